"""The console's page of operations: acts are tried, need a reason, and tell the second operator.

In a real browser against a real server, one of each for all acts.
"""

import asyncio
import json
import time

import pytest

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import admin_service_pb2_grpc
from agent_routing.v1 import routing_service_pb2 as rpb
from tests.clients.console_driver import browsing, met
from tests.rpc.live_service import hand_to
from tests.rpc.signed_in import bearer, serving_signed_in, token

pytestmark = pytest.mark.timeout(600)

SECRET = "my bank details"
DAY_US = 86_400 * 10**6


class PastClock:
    """The real time, or earlier by a number of days."""

    days = 0

    def __call__(self):
        return time.time_ns() // 1_000 - self.days * DAY_US


async def talked(live, session_id, user):
    """Hold a conversation that sticks with an agent."""
    routed = await live.stub.Route(
        rpb.RouteRequest(session_id=session_id, text=SECRET, channel="web"),
        metadata=bearer(token("route", user=user)),
    )
    request = rpb.CompleteTurnRequest(
        session_id=session_id,
        request_id=routed.request_id,
        agent_id="coordinator",
        **hand_to("vat", reason="is about VAT"),
    )
    runtime = bearer(token("agent", agents=("*",)))
    moved = await live.stub.CompleteTurn(request, metadata=runtime)
    done = rpb.CompleteTurnRequest(
        session_id=session_id, request_id=moved.next.request_id, agent_id="vat", text="Which?"
    )
    done.follow_up.SetInParent()
    await live.stub.CompleteTurn(done, metadata=runtime)


def act(name, *fill):
    """Return the steps that choose an act, fill its form in and try it."""
    return [
        ["select", "select[name=operation]", name],
        *fill,
        ["click", "button[name=try]"],
        ["wait", ".trial"],
        ["text", ".trial"],
    ]


def do(reason, *confirm):
    """Return the steps that do what was tried."""
    return [
        ["fill", "input[name=reason]", reason],
        *confirm,
        ["click", "button[name=do]"],
        ["wait", ".done"],
        ["text", ".done"],
    ]


def signed_in(*scopes):
    """Return the steps of a sign-in."""
    return [
        ["fill", "input[name=token]", token(*scopes, subject="sam")],
        ["click", "form.sign-in button"],
        ["wait", ".stickiness"],
    ]


def steps_of(url):
    """Return everything that the operator does."""
    return [
        ["open", f"{url}/?view=operations&act=export"],
        *signed_in("admin"),
        # An export has all texts, so it needs the right to read them.
        *act("export", ["fill", "input[name=user]", "u-17"]),
        ["fill", "input[name=reason]", "ticket 7"],
        ["click", "button[name=do]"],
        ["wait", ".problem"],
        ["text", ".problem"],
        ["click", "header button"],
        *signed_in("admin", "read_words"),
        ["text", ".stickiness"],
        *act("stickiness"),
        ["fill", "input[name=reason]", "agents answer nonsense"],
        ["meet", "tried"],
        ["click", "button[name=do]"],
        ["wait", ".problem[role=alert]"],
        ["text", ".problem"],
        ["wait", '.stickiness[data-enabled="false"]'],
        ["text", ".stickiness"],
        ["shot", "console-operations-overtaken"],
        ["axe"],
        *act("stickiness", ["select", "select[name=enabled]", {"label": "on"}]),
        *do("it is mended"),
        ["wait", '.stickiness[data-enabled="true"]'],
        ["text", ".stickiness"],
        *act("reload"),
        ["shot", "console-operations"],
        *do("a new file"),
        *act("export", ["fill", "input[name=user]", "u-17"]),
        ["fill", "input[name=reason]", "ticket 7"],
        ["download", "button[name=do]"],
        ["wait", ".done"],
        *act("erase"),
        ["enabled", "button[name=do]"],
        *do("ticket 7", ["fill", "input[name=confirm]", "u-17"]),
        *act("purge", ["fill", "input[name=before]", "2020-01-01T00:00"]),
        ["text", "button[name=do]"],
        *act("purge", ["fill", "input[name=before]", tomorrow_of(-1)]),
        ["scheme", "dark"],
        ["axe"],
        ["shot", "console-operations-dark"],
        ["size", 390, 800],
        ["select", "header select", "es"],
        ["wait", 'h1:has-text("Operaciones")'],
        ["text", ".trial"],
        ["wide"],
        ["axe"],
        ["shot", "console-operations-phone"],
        *do("old", ["fill", "input[name=confirm]", "purge"]),
        ["select", "header select", "pt"],
        ["wait", 'h1:has-text("Operações")'],
        ["query"],
    ]


def tomorrow_of(days):
    """Return a day relative to now, as the field has it."""
    return time.strftime("%Y-%m-%dT00:00", time.gmtime(time.time() + days * 86_400))


def check_shown(results):
    """Check what the page showed after each step that shows something."""
    assert "sessions: 1, turns:" in next(results)[0]
    assert 'needs the scope "read_words"' in next(results)[0]
    assert "Stickiness is on" in next(results)[0]
    assert "on → off" in next(results)[0]
    # The second of two operators: nothing is done, and the page says who was first, and why.
    assert "perhaps by another operator" in next(results)[0]
    now = next(results)[0]
    assert "Stickiness is off" in now
    assert "by kim: I was first" in now
    assert next(results) == []
    assert "off → on" in next(results)[0]
    assert "Done: Switch stickiness" in next(results)[0]
    assert "by sam: it is mended" in next(results)[0]
    assert "Nothing would change" in next(results)[0]
    assert "Done: Reload the registry" in next(results)[0]
    assert "sessions: 1, turns:" in next(results)[0]
    exported = [json.loads(line) for line in next(results).splitlines()]
    assert SECRET in [part["turn"]["userText"] for part in exported if "turn" in part]
    assert "sessions: 1, turns:" in next(results)[0]
    assert next(results) is False
    assert "Done: Erase a user" in next(results)[0]
    assert "sessions: 0" in next(results)[0]
    assert next(results) == []
    assert "sessions: 1" in next(results)[0]
    assert next(results) == []
    assert "sesiones: 1" in next(results)[0]
    assert [next(results) for _ in range(2)] == [0, []]
    assert "Hecho" in next(results)[0]
    assert next(results) == "?view=operations&act=purge"


def recorded(records):
    """Return the acts in the audit: who, what, why."""
    found = []
    for record in records:
        kind = record.event.WhichOneof("kind")
        reason = getattr(record.event, kind).reason
        found.append((record.actor, record.method.rpartition("/")[2], reason))
    return found


async def test_every_act_is_tried_and_done_for_a_reason(modules, tmp_path):
    """Switch, reload, export, erase, purge; the audit has each with its operator and reason."""
    clock = PastClock()
    async with serving_signed_in(
        tmp_path, "tax", console_listen="127.0.0.1:0", clock=clock
    ) as live:
        clock.days = 9
        await talked(live, "old", "ben")
        clock.days = 0
        await talked(live, "chat-vat", "u-17")
        stub = admin_service_pb2_grpc.AdminServiceStub(live.channel)
        async with browsing(modules, tmp_path, steps_of(live.server.console_url)) as ended:
            finishing = asyncio.create_task(ended())
            go_on = await met(tmp_path, "tried", finishing)
            await stub.SetStickiness(
                pb.SetStickinessRequest(enabled=False, reason="I was first"),
                metadata=bearer(token("admin", subject="kim")),
            )
            go_on()
            seen = await finishing
        page = await stub.ListEvents(
            pb.ListEventsRequest(kinds=["operator_act", "stickiness_switched"]),
            metadata=bearer(token("admin")),
        )
        left = await stub.ListSessions(pb.ListSessionsRequest(), metadata=bearer(token("admin")))
    check_shown(iter(seen["results"]))
    assert seen["mistakes"] == []
    assert recorded(page.records) == [
        ("kim", "SetStickiness", "I was first"),
        ("sam", "SetStickiness", "it is mended"),
        ("sam", "ReloadAgents", "a new file"),
        ("sam", "ExportUser", "ticket 7"),
        ("sam", "EraseUser", "ticket 7"),
        ("sam", "PurgeSessions", "old"),
    ]
    assert "old" not in [session.session_id for session in left.sessions]
