"""The console's desk: people claim, read and answer conversations in a real browser.

Against a real server, as test_console_session.py.
"""

import time

import pytest

from agent_routing.v1 import admin_service_pb2 as admin_pb
from agent_routing.v1 import admin_service_pb2_grpc, turn_pb2
from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.server.bounds import Bounds
from tests.clients.console_driver import browse
from tests.rpc.live_service import hand_to, serving
from tests.rpc.signed_in import bearer, serving_signed_in, token

pytestmark = pytest.mark.timeout(600)

SECRET = "My parcel with the ring is lost"

HAND_BACK_LATER = (
    "Nothing waits for an answer. You can say something, and hand back with the answer to the"
    " next message."
)

SHOP = """
api_version: agent_routing/v1
version: shop-1
supervisor: front
agents:
  - {id: front, name: Front desk}
  - {id: desk, name: Help desk, kind: human, color: "#0b57b0"}
  - {id: night, name: Night desk, kind: human}
  - id: late
    name: Late desk
    kind: human
    unclaimed_timeout: 1s
    unclaimed_message: {en: Nobody is free right now.}
"""


SWEEPING = {"expiry_sweep": True, "bounds": Bounds(sweep_interval_s=0.1)}


def time_us():
    """The real time: the page shows how long something has waited."""
    return time.time_ns() // 1_000


async def handed_over(live, session_id, user, agent_id):
    """A conversation that waits for people."""
    routed = await live.stub.Route(
        pb.RouteRequest(session_id=session_id, text=SECRET),
        metadata=bearer(token("route", user=user)),
    )
    request = pb.CompleteTurnRequest(
        session_id=session_id, request_id=routed.request_id, agent_id="front", **hand_to(agent_id)
    )
    await live.stub.CompleteTurn(request, metadata=bearer(token("agent", agents=("*",))))


async def test_a_person_claims_reads_answers_and_hands_back(modules, tmp_path):
    """By mouse and keyboard; only own agents; texts and takeovers for a reason."""
    async with serving_signed_in(
        tmp_path, SHOP, console_listen="127.0.0.1:0", clock=time_us, **SWEEPING
    ) as live:
        for session_id, user, agent_id in (
            ("parcel-1", "ana", "desk"),
            ("parcel-2", "eva", "desk"),
            ("night-1", "leo", "night"),
            ("late-1", "mia", "late"),
        ):
            await handed_over(live, session_id, user, agent_id)
        cleo = bearer(token("agent", agents=("desk",), subject="cleo"))
        await live.stub.ClaimTurn(
            pb.ClaimTurnRequest(session_id="parcel-2", agent_id="desk"), metadata=cleo
        )
        own = {"agents": ("desk",), "subject": "bea"}
        one, two = 'li[data-waiting="parcel-1"]', 'li[data-waiting="parcel-2"]'
        done, turns = ".case .done", ".case .turns"
        seen = await browse(
            modules,
            tmp_path,
            [
                ["open", f"{live.server.console_url}/?view=desk"],
                ["fill", "input[name=token]", token("agent", **own)],
                ["click", "form.sign-in button"],
                ["wait", f"{one}:has-text('not claimed')"],
                ["text", ".inbox"],
                ["click", f"{one} a"],
                ["wait", f"{turns} .hidden"],
                ["query"],
                # Without the right the texts stay hidden.
                ["fill", "input[name=why]", "order 17"],
                ["click", "button[name=show]"],
                ["wait", ".texts [role=alert]"],
                ["text", ".texts [role=alert]"],
                ["click", "header button"],
                ["fill", "input[name=token]", token("agent", "read_words", **own)],
                ["click", "form.sign-in button"],
                # By keyboard alone.
                ["wait", "button[name=claim]"],
                ["tab", "claim"],
                ["press", "Enter"],
                ["wait", f"{done}:has-text('Claimed.')"],
                ["wait", f"{one}:has-text('claimed by bea')"],
                ["tab", "why"],
                ["fill", "input[name=why]", "order 17"],
                ["press", "Enter"],
                ["wait", f'{turns} :text("{SECRET}")'],
                ["fill", "input[name=note]", "The carrier has it."],
                ["press", "Enter"],
                ["wait", '.notes :text("The carrier has it.")'],
                ["fill", "textarea[name=text]", "One moment."],
                ["click", "button[name=say]"],
                ["wait", f'{turns} :text("One moment.")'],
                ["text", turns],
                ["axe"],
                ["shot", "console-desk"],
                ["fill", "textarea[name=text]", "It is on its way."],
                ["click", "button[name=answer]"],
                ["wait", f"{done}:has-text('Answered.')"],
                ["gone", one],
                ["wait", f'{turns} :text("It is on its way.")'],
                ["enabled", "button[name=hand-back]"],
                ["click", "button[name=release]"],
                ["wait", f"{done}:has-text('Released.')"],
                ["wait", "button[name=claim]"],
                # The claim of another person.
                ["click", f"{two} a"],
                ["wait", "button[name=take-over]"],
                ["fill", "input[name=take-over-why]", "Cleo went home"],
                ["press", "Enter"],
                ["wait", f"{two}:has-text('claimed by bea')"],
                ["fill", "textarea[name=text]", "All done."],
                ["click", "button[name=hand-back]"],
                ["wait", f"{done}:has-text('Answered and handed back.')"],
                ["wait", ".case :text('The conversation is not with these people')"],
                ["back"],
                ["wait", "h2:has-text('parcel-1')"],
                ["scheme", "dark"],
                ["axe"],
                ["shot", "console-desk-dark"],
                ["size", 390, 800],
                ["select", "header select", "es"],
                ["wait", "h1:has-text('Mostrador')"],
                ["wide"],
                ["axe"],
                ["shot", "console-desk-phone"],
                ["select", "header select", "pt"],
                ["wait", "h1:has-text('Atendimento')"],
                # What an operator sees of it on the page of the session.
                ["select", "header select", "en"],
                ["click", "header button"],
                ["size", 1200, 760],
                ["fill", "input[name=token]", token("admin", subject="sam")],
                ["click", "form.sign-in button"],
                ["click", ".case a"],
                ["wait", 'section[aria-label="What happened"] summary'],
                ["text", 'section[aria-label="What happened"] summary'],
                ["text", ".turns"],
                ["shot", "console-desk-session"],
                # What was not claimed in time.
                ["open", f"{live.server.console_url}/?view=session&id=late-1"],
                ["wait", 'summary:has-text("RETURNED")'],
                ["text", 'section[aria-label="What happened"] summary'],
                ["text", ".turns"],
            ],
        )
        operator = bearer(token("admin", subject="sam"))
        status = await live.stub.Status(pb.StatusRequest(session_id="parcel-2"), metadata=operator)
        listed = await live.stub.ListTurns(
            pb.ListTurnsRequest(session_id="parcel-1"), metadata=operator
        )
        stub = admin_service_pb2_grpc.AdminServiceStub(live.channel)
        acts = await stub.ListEvents(
            admin_pb.ListEventsRequest(kinds=["operator_act"]), metadata=operator
        )
    assert seen["mistakes"] == []
    inbox, query, refused, said, axe, is_open, *looks, happened, masked, returned, told = seen[
        "results"
    ]
    assert "parcel-1" in inbox[0]
    assert "claimed by cleo" in inbox[0]
    assert "night-1" not in inbox[0]
    assert SECRET not in inbox[0]
    assert query == "?view=desk&agent=desk&id=parcel-1"
    assert 'needs the scope "read_words"' in refused[0]
    assert "One moment." in said[0]
    assert "said without ending the turn" in said[0]
    assert axe == []
    assert is_open is False
    assert looks == [[], 0, []]
    kinds = " | ".join(happened)
    assert "claimed H Help desk bea" in kinds
    assert "message said H Help desk" in kinds
    assert "note added H Help desk bea" in kinds
    assert "claim released H Help desk bea · RELEASED" in kinds
    assert "One moment." not in masked[0]
    back = [each for each in returned if "RETURNED" in each]
    assert "L Late desk → F Front desk" in back[0]
    assert "message said L Late desk" in " | ".join(returned)
    assert "Late desk said without ending the turn" in told[0]
    assert not status.HasField("active_agent")
    assert not status.HasField("claim")
    texts = {turn.outcome: turn.agent_text for turn in listed.turns}
    assert texts[turn_pb2.TURN_OUTCOME_SAID] == "One moment."
    assert texts[turn_pb2.TURN_OUTCOME_PROCEED] == "It is on its way."
    assert [(each.actor, each.event.operator_act.reason) for each in acts.records] == [
        ("bea", "order 17")
    ]


async def test_without_sign_in_the_person_gives_a_name(modules, tmp_path):
    """A claim needs one; another name takes over, for a reason that is in the audit."""
    async with serving(tmp_path, SHOP, console_listen="127.0.0.1:0", clock=time_us) as live:
        chat = live.chat("parcel-1", user_id="ana")
        routed = await chat.say(SECRET)
        await chat.answer(routed.dispatch, "", **hand_to("desk"))
        seen = await browse(
            modules,
            tmp_path,
            [
                ["open", f"{live.server.console_url}/?view=desk&agent=desk&id=parcel-1"],
                ["wait", "button[name=claim]"],
                ["enabled", "button[name=claim]"],
                ["fill", "input[name=person]", "bea"],
                ["click", "button[name=claim]"],
                ["wait", ".claim:has-text('claimed by bea')"],
                ["count", "button[name=take-over]"],
                ["fill", "input[name=person]", "cleo"],
                ["fill", "input[name=take-over-why]", "bea asked me to"],
                ["click", "button[name=take-over]"],
                ["wait", ".claim:has-text('claimed by cleo')"],
                ["axe"],
            ],
        )
        listing = admin_pb.ListEventsRequest(session_id="parcel-1", kinds=["claimed"])
        stub = admin_service_pb2_grpc.AdminServiceStub(live.channel)
        latest = (await stub.ListEvents(listing, timeout=20)).records[0].event.claimed
    assert seen["results"] == [False, 0, []]
    assert seen["mistakes"] == []
    taken = (latest.claimant, latest.taken_from, latest.reason)
    assert taken == ("cleo", "bea", "bea asked me to")


async def test_what_was_not_sent_is_there_when_the_conversation_is_opened_again(modules, tmp_path):
    """An answer and a note stay with their conversation while others and other pages are read."""
    async with serving(tmp_path, SHOP, console_listen="127.0.0.1:0", clock=time_us) as live:
        for session_id in ("parcel-1", "parcel-2"):
            chat = live.chat(session_id, user_id="ana")
            routed = await chat.say(SECRET)
            await chat.answer(routed.dispatch, "", **hand_to("desk"))
        one, two = 'li[data-waiting="parcel-1"] a', 'li[data-waiting="parcel-2"] a'
        text, note = "textarea[name=text]", "input[name=note]"
        seen = await browse(
            modules,
            tmp_path,
            [
                ["open", f"{live.server.console_url}/?view=desk"],
                ["wait", ".head :text('type your name')"],
                ["fill", "input[name=person]", "bea"],
                ["gone", ".head :text('type your name')"],
                ["click", one],
                ["wait", "h2:has-text('parcel-1')"],
                ["fill", text, "It comes at no"],
                ["fill", note, "The carrier"],
                ["click", two],
                ["wait", "h2:has-text('parcel-2')"],
                ["value", text],
                ["value", note],
                ["click", 'nav a:has-text("Approvals")'],
                ["wait", "h1:has-text('Approvals')"],
                ["back"],
                ["wait", "h2:has-text('parcel-2')"],
                ["click", one],
                ["wait", "h2:has-text('parcel-1')"],
                ["value", text],
                ["value", note],
                ["click", "button[name=answer]"],
                ["wait", ".done:has-text('Answered.')"],
                ["click", two],
                ["wait", "h2:has-text('parcel-2')"],
                ["back"],
                ["wait", "h2:has-text('parcel-1')"],
                ["value", text],
                ["value", note],
                ["text", ".reply .quiet"],
            ],
        )
    assert seen["mistakes"] == []
    assert seen["results"] == [
        "",
        "",
        "It comes at no",
        "The carrier",
        "",
        "The carrier",
        [HAND_BACK_LATER],
    ]
