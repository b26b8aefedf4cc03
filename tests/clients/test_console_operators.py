"""Two operators at the console at once: the server refuses the second, and the page says so.

In a real browser with two tabs, each signed in as another person. The second one's call is held
in the browser until the first one's act is done: its page cannot know of it when it is pressed.
"""

import time

import pytest

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import admin_service_pb2_grpc
from agent_routing.v1 import routing_service_pb2 as rpb
from routing_service.examples import EXAMPLES
from tests.clients.console_driver import browse
from tests.clients.test_console_desk import SHOP, handed_over
from tests.clients.test_console_operations import PastClock, talked, tomorrow_of
from tests.clients.test_console_session import APPROVALS
from tests.rpc.signed_in import bearer, serving_signed_in, token

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]

ACTS = ".acts .problem[role=alert]"


def time_us():
    """The real time: the page shows how long ago something changed."""
    return time.time_ns() // 1_000


def enter(operator, url, ready, *scopes, **rights):
    """Return the steps with which an operator opens a page in a tab and signs in."""
    return [
        ["as", operator],
        ["open", url],
        ["fill", "input[name=token]", token(*scopes, subject=operator, **rights)],
        ["click", "form.sign-in button"],
        ["wait", ready],
    ]


def both(url, ready, *scopes, **rights):
    """Return the steps that sign kim and sam in on the same page."""
    return [
        *enter("kim", url, ready, *scopes, **rights),
        *enter("sam", url, ready, *scopes, **rights),
    ]


def second_is_told(method, press, first, shown):
    """Return the steps: sam presses first, kim is faster, and then sam's call comes."""
    return [
        ["as", "sam"],
        ["hold", method],
        ["click", press],
        ["as", "kim"],
        *first,
        ["as", "sam"],
        ["release", method],
        ["wait", shown],
        ["text", shown],
        ["count", ".done"],
    ]


async def acts_of(live, **fields):
    """Return who has done what in a tenant's audit, the latest last."""
    stub = admin_service_pb2_grpc.AdminServiceStub(live.channel)
    page = await stub.ListEvents(pb.ListEventsRequest(**fields), metadata=bearer(token("admin")))
    return [(each.actor, each.event.WhichOneof("kind")) for each in page.records]


def on_session(name, agent_id=""):
    """Return the steps that choose an act on a session and say why."""
    return [
        ["select", "select[name=act]", name],
        *([["select", "select[name=agent]", agent_id]] if agent_id else []),
        ["wait", '.trial[data-trial="allowed"]'],
        ["fill", "input[name=reason]", "ticket 7"],
    ]


PRESS = "button[name=do]:enabled"
DO = [["click", PRESS], ["wait", ".done"]]


async def test_of_two_acts_on_a_session_the_second_is_refused(modules, tmp_path):
    """Move, clear and cancel: each is bound to the revision that its operator has seen."""
    acts = {"moved": "SetActiveAgent", "cleared": "ClearActiveAgent", "cancelled": "CancelTask"}
    names = {"moved": "move", "cleared": "reset", "cancelled": "cancel"}
    async with serving_signed_in(
        tmp_path, "tax", console_listen="127.0.0.1:0", clock=time_us
    ) as live:
        for session_id in acts:
            await talked(live, session_id, "u-17")
        steps = []
        for session_id, method in acts.items():
            url = f"{live.server.console_url}/?view=session&id={session_id}"
            goes_to = "filing" if session_id == "moved" else ""
            chosen = on_session(names[session_id], goes_to)
            opening = both(url, "select[name=act]", "admin") if not steps else []
            for operator in ("kim", "sam"):
                opening += [["as", operator], ["open", url], ["wait", "select[name=act]"], *chosen]
            steps += opening
            steps += second_is_told(method, PRESS, DO, ACTS)
        seen = await browse(modules, tmp_path, steps)
        for session_id in acts:
            done = await acts_of(live, session_id=session_id, actor="sam")
            assert done == [], session_id
            assert await acts_of(live, session_id=session_id, actor="kim"), session_id
    results = seen["results"]
    for place in range(len(acts)):
        shown, done = results[2 * place : 2 * place + 2]
        assert "has changed since" in shown[0] or "REVISION_MISMATCH" in shown[0]
        assert done == 0
    assert seen["mistakes"] == []


async def test_of_two_operations_the_second_is_refused(modules, tmp_path):
    """Stickiness, reload, erasure and purge: the server compares them with their trial."""
    clock = PastClock()
    text = EXAMPLES["tax"].registry_path.read_text(encoding="utf-8")
    async with serving_signed_in(
        tmp_path, text, console_listen="127.0.0.1:0", clock=clock, reload="manual"
    ) as live:
        clock.days = 9
        await talked(live, "old", "ben")
        clock.days = 0
        await talked(live, "chat-vat", "u-17")
        registry = tmp_path / "agents.yaml"
        changed = registry.read_text(encoding="utf-8").replace("version: 1\n", "version: two\n")
        assert "version: two" in changed
        registry.write_text(changed, encoding="utf-8")
        url = f"{live.server.console_url}/?view=operations"
        forms = {
            "SetStickiness": ("stickiness", [], []),
            "ReloadAgents": ("reload", [], []),
            "EraseUser": (
                "erase",
                [["fill", "input[name=user]", "u-17"]],
                [["fill", "input[name=confirm]", "u-17"]],
            ),
            "PurgeSessions": (
                "purge",
                [["fill", "input[name=before]", tomorrow_of(-1)]],
                [["fill", "input[name=confirm]", "purge"]],
            ),
        }
        steps = both(url, ".stickiness", "admin")
        for method, (name, fill, confirm) in forms.items():
            for operator in ("kim", "sam"):
                steps += [
                    ["as", operator],
                    ["open", f"{url}&act={name}"],
                    ["wait", ".stickiness"],
                    *fill,
                    ["click", "button[name=try]"],
                    ["wait", ".trial"],
                    ["fill", "input[name=reason]", f"by {operator}"],
                    *confirm,
                ]
            steps += second_is_told(method, PRESS, DO, ACTS)
        seen = await browse(modules, tmp_path, steps)
        done = await acts_of(live, kinds=["operator_act", "stickiness_switched"])
    results = seen["results"]
    for place in range(len(forms)):
        shown, count = results[2 * place : 2 * place + 2]
        assert "perhaps by another operator" in shown[0]
        assert count == 0
    assert [actor for actor, _ in done] == ["kim"] * len(forms)
    assert seen["mistakes"] == []


async def test_of_two_decisions_the_second_is_refused(modules, tmp_path):
    """One approves while the other rejects: the request is decided once."""
    async with serving_signed_in(
        tmp_path, APPROVALS, console_listen="127.0.0.1:0", clock=time_us
    ) as live:
        routed = await live.stub.Route(
            rpb.RouteRequest(session_id="pay-1", text="Pay me"),
            metadata=bearer(token("route", user="ana")),
        )
        await live.stub.CompleteTurn(
            rpb.CompleteTurnRequest(
                session_id="pay-1",
                request_id=routed.request_id,
                agent_id="cashier",
                approval_needed=rpb.ApprovalNeededOutcome(prompt="Pay 40 euro?"),
            ),
            metadata=bearer(token("agent", agents=("*",))),
        )
        first = 'li[data-approval="pay-1"]'
        url = f"{live.server.console_url}/?view=approvals"
        # People are counted: a credential without a user decides nothing.
        steps = [
            step
            for name in ("kim", "sam")
            for step in enter(name, url, first, "approve", user=name)
        ]
        for operator in ("kim", "sam"):
            steps += [
                ["as", operator],
                ["click", f"{first} button[name=decide]"],
                ["wait", f"{first} .trial"],
            ]
        approved = [["click", f"{first} button[name=approve]"], ["wait", ".done"]]
        rejecting = f"{first} button[name=reject]"
        steps += second_is_told("ResumeTask", rejecting, approved, ".problem[role=alert]")
        seen = await browse(modules, tmp_path, steps)
        acts = await acts_of(live, session_id="pay-1", kinds=["task_resumed"])
    shown, count = seen["results"]
    assert "APPROVAL_DECIDED" in shown[0]
    assert count == 0
    assert acts == [("kim", "task_resumed")]
    assert seen["mistakes"] == []


async def test_of_two_people_at_the_desk_the_second_is_refused(modules, tmp_path):
    """One claims while the other claims, and one takes over while the other answers."""
    async with serving_signed_in(
        tmp_path, SHOP, console_listen="127.0.0.1:0", clock=time_us
    ) as live:
        await handed_over(live, "parcel-1", "ana", "desk")
        url = f"{live.server.console_url}/?view=desk&agent=desk&id=parcel-1"
        claimed = [["click", "button[name=claim]"], ["wait", ".claim:has-text('claimed by kim')"]]
        taken = [
            ["wait", ".claim:has-text('claimed by sam')"],
            ["fill", "input[name=take-over-why]", "sam went home"],
            ["click", "button[name=take-over]"],
            ["wait", ".claim:has-text('claimed by kim')"],
        ]
        steps = [
            *both(url, "button[name=claim]:enabled", "agent", agents=("desk",)),
            *second_is_told("ClaimTurn", "button[name=claim]", claimed, ACTS),
            ["fill", "input[name=take-over-why]", "kim is busy"],
            ["click", "button[name=take-over]"],
            ["wait", ".claim:has-text('claimed by sam')"],
            ["fill", "textarea[name=text]", "It is on its way."],
            *second_is_told("CompleteTurn", "button[name=answer]", taken, ACTS),
        ]
        seen = await browse(modules, tmp_path, steps)
        stub = admin_service_pb2_grpc.AdminServiceStub(live.channel)
        listing = pb.ListEventsRequest(session_id="parcel-1", kinds=["claimed", "turn_completed"])
        page = await stub.ListEvents(listing, metadata=bearer(token("admin")))
    told = [each for each in seen["results"] if isinstance(each, list)]
    assert ["CLAIMED" in each[0] for each in told] == [True, True]
    claims = [each.event.claimed for each in page.records if each.event.HasField("claimed")]
    assert [(each.claimant, each.reason) for each in claims] == [
        ("kim", "sam went home"),
        ("sam", "kim is busy"),
        ("kim", ""),
    ]
    answered = [each for each in page.records if each.event.HasField("turn_completed")]
    assert [each.event.turn_completed.agent.agent_id for each in answered] == ["front"]
    assert seen["mistakes"] == []
