"""The console's page of a session, what an operator does there, and the page of approvals.

In a real browser against a real server, as test_console_page.py.
"""

import asyncio
import json
import time

import pytest

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import admin_service_pb2_grpc, handoff_pb2
from agent_routing.v1 import routing_service_pb2 as rpb
from tests.clients.console_driver import browse, browsing, met
from tests.rpc.live_service import ask, hand_to, refusal, serving
from tests.rpc.signed_in import bearer, serving_signed_in, token

pytestmark = pytest.mark.timeout(600)

SECRET = "my bank details"
CLICKS_MAX = 5


def time_us():
    """The real time: the page shows how long ago something changed."""
    return time.time_ns() // 1_000


async def stuck(live, session_id="chat-vat", user="u-17"):
    """A conversation that sticks with the wrong agent; one handoff of it was refused."""
    chat = live.chat(session_id, user_id=user)
    chat.profile = {"channel": "web"}
    await chat.with_agent("vat", **ask(600))
    routed = await chat.say(SECRET)
    await refusal(chat.answer(routed.dispatch, "", **hand_to("payroll", reason="is about pay")))
    await chat.answer(routed.dispatch, "And which quarter?", **ask(600))
    return chat


async def test_a_session_is_read_and_its_texts_for_a_reason_alone(modules, tmp_path):
    """Conversation, timeline, why, slider and JSON; texts need the right, and leave a record."""
    async with serving_signed_in(
        tmp_path, "tax", console_listen="127.0.0.1:0", clock=time_us
    ) as live:
        user = bearer(token("route", user="u-17"))
        runtime = bearer(token("agent", agents=("*",)))
        routed = await live.stub.Route(
            rpb.RouteRequest(session_id="chat-vat", text=SECRET, channel="web"), metadata=user
        )
        moved = await live.stub.CompleteTurn(
            rpb.CompleteTurnRequest(
                session_id="chat-vat",
                request_id=routed.request_id,
                agent_id="coordinator",
                **hand_to("vat", reason="is about VAT"),
            ),
            metadata=runtime,
        )
        late = rpb.CompleteTurnRequest(
            session_id="chat-vat",
            request_id=moved.next.request_id,
            agent_id="vat",
            **hand_to("payroll", reason="is about pay"),
        )
        await refusal(live.stub.CompleteTurn(late, metadata=runtime))
        url = f"{live.server.console_url}/?view=session&id=chat-vat"
        turns = 'section[aria-label="Conversation"]'
        happened = 'section[aria-label="What happened"]'
        state = 'section[aria-label="State"]'
        seen = await browse(
            modules,
            tmp_path,
            [
                ["open", url],
                ["fill", "input[name=token]", token("admin", subject="sam")],
                ["click", "form.sign-in button"],
                ["wait", '.live[data-live="live"]'],
                ["wait", f'{state} dl[data-revision="2"]'],
                ["text", f"{turns} ol"],
                ["text", f"{happened} summary"],
                ["text", ".latest"],
                ["axe"],
                # Without the right the texts stay hidden.
                ["fill", "input[name=why]", "ticket 7"],
                ["click", ".texts button"],
                ["wait", ".texts [role=alert]"],
                ["text", ".texts [role=alert]"],
                # The slider: the state before the handoff, in the URL.
                ["slide", "input[name=at]", 1],
                ["wait", f'{state} dl[data-revision="1"]'],
                ["text", f"{state} dl"],
                ["query"],
                ["click", "header button"],
                ["fill", "input[name=token]", token("admin", "read_words", subject="sam")],
                ["click", "form.sign-in button"],
                ["wait", f'{state} dl[data-revision="1"]'],
                ["click", f'{happened} button[aria-label="Revision 2"] >> nth=0'],
                ["wait", f'{state} dl[data-revision="2"]'],
                ["fill", "input[name=why]", "ticket 7"],
                ["click", ".texts button"],
                ["wait", f'{turns} :text("{SECRET}")'],
                ["click", f"{happened} .refused summary"],
                ["text", f"{happened} .refused dl"],
                ["click", ".head button"],
                ["wait", ".json"],
                ["click", ".json summary"],
                ["value", ".json textarea"],
                ["click", ".json summary"],
                ["shot", "console-session"],
                ["axe"],
                ["scheme", "dark"],
                ["axe"],
                ["shot", "console-session-dark"],
                ["size", 390, 800],
                ["select", "header select", "es"],
                ["wait", 'h2:has-text("Conversación")'],
                ["wide"],
                ["axe"],
                ["shot", "console-session-phone"],
            ],
        )
        stub = admin_service_pb2_grpc.AdminServiceStub(live.channel)
        page = await stub.ListEvents(
            pb.ListEventsRequest(kinds=["operator_act"]), metadata=bearer(token("admin"))
        )
    results = seen["results"]
    [said] = results[0]
    assert SECRET not in said
    assert "text hidden" in said
    assert "Especialista en IVA" in said
    kinds = " | ".join(results[1])
    assert "message routed" in kinds
    assert "agent handoff" in kinds
    assert "handoff refused" in kinds
    assert "entitled" in kinds
    assert "SUPERVISOR_HANDOFF" in results[2][0]
    assert results[3] == []
    assert 'needs the scope "read_words"' in results[4][0]
    assert "home agent" in results[5][0]
    assert results[6] == "?view=session&id=chat-vat&at=1"
    assert "plan:premium" in results[7][0]
    assert "is about pay" in results[7][0]
    whole = json.loads(results[8])
    assert whole["status"]["sessionId"] == "chat-vat"
    assert whole["turns"][-1]["userText"] == SECRET
    assert results[9:] == [[], [], 0, []]
    assert seen["mistakes"] == []
    acts = [(each.actor, each.event.operator_act.reason) for each in page.records]
    assert acts == [("sam", "ticket 7")] * 2


async def test_a_stuck_user_is_moved_in_five_clicks(modules, tmp_path):
    """From the user's name to the move, with the reason of the last decision on the screen."""
    async with serving(tmp_path, "tax", console_listen="127.0.0.1:0", clock=time_us) as live:
        chat = await stuck(live)
        await live.chat("chat-other", user_id="bob").say("hello")
        seen = await browse(
            modules,
            tmp_path,
            [
                ["open", live.server.console_url],
                ["wait", 'tr[data-session="chat-other"]'],
                ["fill", "input[name=user]", "u-17"],
                ["press", "Enter"],
                ["gone", 'tr[data-session="chat-other"]'],
                ["click", 'tr[data-session="chat-vat"] a'],
                ["wait", ".latest"],
                ["text", ".latest"],
                ["select", "select[name=agent]", "invoices"],
                ["wait", '[data-trial="allowed"]'],
                ["text", "[data-trial]"],
                ["fill", "input[name=reason]", "stuck, ticket 7"],
                ["click", "button[name=do]"],
                ["wait", ".done"],
                ["clicks"],
                ["text", ".done"],
                ["wait", '.latest:has-text("OPERATOR")'],
                ["shot", "console-moved"],
                ["axe"],
                # Undone: moved back, with a trial of its own.
                ["click", ".done button"],
                ["wait", '[data-trial="allowed"]'],
                ["fill", "input[name=reason]", "the wrong one"],
                ["click", "button[name=do]"],
                ["wait", '.latest:has-text("Especialista en IVA"):has-text("OPERATOR")'],
                ["back"],
                ["wait", 'tr[data-session="chat-vat"]'],
                ["query"],
            ],
        )
        status = await chat.status()
        events = await chat.events()
    results = seen["results"]
    assert "FOLLOW_UP_LOCK" in results[0][0]
    assert "This would happen:" in results[1][0]
    assert "Facturación" in results[1][0]
    assert results[2] <= CLICKS_MAX
    assert "Done: Move to an agent" in results[3][0]
    assert results[4] == []
    assert results[5] == "?user=u-17"
    assert status.active_agent.agent_id == "vat"
    reasons = [event.reason for event in events if getattr(event, "to_agent", "") == "invoices"]
    assert reasons == ["stuck, ticket 7"]
    assert seen["mistakes"] == []


async def test_the_page_says_what_becomes_of_a_message_that_waits(modules, tmp_path):
    """Before the act and after it; the message is with the agent that then has the conversation."""
    async with serving(tmp_path, "tax", console_listen="127.0.0.1:0", clock=time_us) as live:
        chat = await stuck(live)
        waiting = await chat.say("is anyone there?")
        steps = [
            ["open", f"{live.server.console_url}/?view=session&id=chat-vat"],
            ["wait", '.live[data-live="live"]'],
            ["select", "select[name=agent]", "invoices"],
            ["wait", ".waits"],
            ["text", ".waits"],
            ["select", "select[name=act]", "clear"],
            ["wait", '.waits:not(:has-text("Facturación"))'],
            ["text", ".waits"],
            ["fill", "input[name=reason]", "no answer for an hour"],
            ["click", "button[name=do]"],
            ["wait", ".done"],
            ["text", ".done"],
            ["axe"],
        ]
        seen = await browse(modules, tmp_path, steps)
        [waits] = (await chat.status()).open_requests
    results = seen["results"]
    assert results[0][0].startswith("The message that waits goes along to")
    assert "Facturación" in results[0][0]
    assert results[1][0].startswith("The message that waits goes along to")
    assert "The message that waits goes along to" in results[2][0]
    assert results[3] == []
    assert waits.request_id == waiting.request_id
    assert waits.agent.agent_id == "coordinator"


async def test_the_second_of_two_operators_is_told(modules, tmp_path):
    """The change of the first one is shown, and what the second one tried is tried again."""
    async with serving(tmp_path, "tax", console_listen="127.0.0.1:0", clock=time_us) as live:
        chat = await stuck(live)
        steps = [
            ["open", f"{live.server.console_url}/?view=session&id=chat-vat"],
            ["wait", '.live[data-live="live"]'],
            ["select", "select[name=agent]", "invoices"],
            ["wait", '[data-trial="allowed"]'],
            ["meet", "tried"],
            # The change comes by itself, and the trial is of the new state: a refusal now.
            ["wait", '[data-trial="refused"]'],
            ["wait", '.acts :text("has changed since this was tried")'],
            ["text", ".acts .problem"],
            ["enabled", "button[name=do]"],
            ["shot", "console-overtaken"],
            ["select", "select[name=act]", "cancel"],
            ["wait", '[data-trial="allowed"]'],
            ["fill", "input[name=reason]", "both at once"],
            ["click", "button[name=do]"],
            ["wait", ".done"],
            ["text", ".done"],
            ["select", "select[name=act]", "reset"],
            ["wait", ".trial"],
        ]
        async with browsing(modules, tmp_path, steps) as ended:
            finishing = asyncio.create_task(ended())
            go_on = await met(tmp_path, "tried", finishing)
            operator = handoff_pb2.INITIATOR_OPERATOR
            await chat.set_active("invoices", initiator=operator, reason="mine")
            go_on()
            seen = await finishing
        tasks = await chat.tasks()
    results = seen["results"]
    assert results[0][0].startswith("not_active")
    assert results[1] is False
    assert "Cancel the task" in results[2][0]
    assert [task.status for task in tasks] == [5]
    assert seen["mistakes"] == []


async def test_an_approval_is_decided_with_its_prompt(modules, tmp_path):
    """By the deadline, with a comment; prompts are for those who may decide."""
    async with serving_signed_in(
        tmp_path, APPROVALS, console_listen="127.0.0.1:0", clock=time_us
    ) as live:
        runtime = bearer(token("agent", agents=("*",)))
        for session_id, prompt in (("pay-1", "Pay 40 euro?"), ("pay-2", "Pay 4,000 euro?")):
            user = bearer(token("route", user="ana"))
            routed = await live.stub.Route(
                rpb.RouteRequest(session_id=session_id, text=SECRET), metadata=user
            )
            needed = rpb.ApprovalNeededOutcome(prompt=prompt)
            needed.fields.update({"amount": 40})
            await live.stub.CompleteTurn(
                rpb.CompleteTurnRequest(
                    session_id=session_id,
                    request_id=routed.request_id,
                    agent_id="cashier",
                    approval_needed=needed,
                ),
                metadata=runtime,
            )
        first = 'li[data-approval="pay-1"]'
        seen = await browse(
            modules,
            tmp_path,
            [
                ["open", f"{live.server.console_url}/?view=approvals"],
                ["fill", "input[name=token]", token("admin", subject="sam")],
                ["click", "form.sign-in button"],
                ["wait", first],
                ["text", f"{first} .prompt"],
                ["click", "header button"],
                ["fill", "input[name=token]", token("approve", user="bea")],
                ["click", "form.sign-in button"],
                ["wait", first],
                ["text", ".approvals .prompt"],
                ["click", f"{first} button[name=decide]"],
                ["wait", f"{first} .trial"],
                ["text", f"{first} .trial"],
                ["shot", "console-approvals"],
                ["axe"],
                ["fill", f"{first} input[name=comment]", "this once"],
                ["click", f"{first} button[name=approve]"],
                ["gone", first],
                ["text", ".done"],
                ["size", 390, 800],
                ["scheme", "dark"],
                ["wide"],
                ["axe"],
                ["shot", "console-approvals-phone"],
            ],
        )
        request = rpb.StatusRequest(session_id="pay-1")
        decided = await live.stub.Status(request, metadata=bearer(token("admin")))
    results = seen["results"]
    assert results[0] == ["text hidden"]
    assert results[1] == ["Pay 40 euro?", "Pay 4,000 euro?"]
    assert results[2] == ["If you approve: 1 of 1 approvals"]
    assert results[3] == []
    assert "Done: Approve" in results[4][0]
    assert results[5:] == [0, []]
    assert decided.open_requests[0].resume.comment == "this once"
    assert seen["mistakes"] == []


APPROVALS = """
api_version: agent_routing/v1
version: cash-1
supervisor: cashier
approvals: {by: other_than_owner, expires: 2h, on_expiry: cancel}
agents:
  - {id: cashier, name: Cashier, description: Pays., color: "#0b57b0"}
"""
