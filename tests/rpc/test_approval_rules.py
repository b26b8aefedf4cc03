"""Who may decide an approval, how many have to, by when, and how one ends undecided."""

import asyncio

import grpc
import pytest
from google.protobuf import struct_pb2

from agent_routing.v1 import admin_service_pb2 as admin
from agent_routing.v1 import dispatch_pb2
from agent_routing.v1 import routing_service_pb2 as pb
from agent_routing.v1 import session_event_pb2 as events_pb
from routing_service.registry.file import RegistryFileError
from routing_service.server.bounds import Bounds
from tests.rpc.live_service import (
    hand_to,
    read_refusal,
    refusal,
    serving,
    task_status,
    went,
)
from tests.rpc.registries import DESK
from tests.rpc.signed_in import serving_signed_in, signed
from tests.rpc.test_inbox import complete, working

APPROVE = dispatch_pb2.DECISION_APPROVE
REJECT = dispatch_pb2.DECISION_REJECT


def desk(rule: str) -> str:
    """Return the help desk with a rule for approvals."""
    return f"{DESK.rstrip()}\napprovals: {rule}\n"


def needs(prompt="Refund 40 euros?", **fields):
    """The agent needs an approval."""
    asked = pb.ApprovalNeededOutcome(prompt=prompt)
    if fields:
        asked.fields.update(fields)
    return {"approval_needed": asked}


async def paused_by(chat, **fields):
    """Let the agent support ask; return the paused dispatch."""
    await chat.with_agent("support")
    routed = await chat.say("I want my money back")
    await chat.answer(routed.dispatch, "One moment.", **needs(**fields))
    return routed.dispatch


def decision(session_id, paused, decided=APPROVE, **fields):
    """Return a decision about a paused request."""
    return pb.ResumeTaskRequest(
        session_id=session_id,
        task_id=paused.task_id,
        request_id=paused.request_id,
        decision=decided,
        **fields,
    )


async def paused_signed_in(service, session_id):
    """Let ana's session pause, with callers that sign in; return the paused dispatch."""
    ana = signed(service, "route", user="ana")
    agent = signed(service, "agent", agents=("*",))
    routed = await ana("Route", pb.RouteRequest(session_id=session_id, text="my money back"))
    handed = await agent(
        "CompleteTurn",
        pb.CompleteTurnRequest(
            session_id=session_id,
            request_id=routed.dispatch.request_id,
            agent_id="front",
            **hand_to("support"),
        ),
    )
    await agent(
        "CompleteTurn",
        pb.CompleteTurnRequest(
            session_id=session_id,
            request_id=handed.next.request_id,
            agent_id="support",
            text="One moment.",
            **needs(amount=40, currency="EUR"),
        ),
    )
    return handed.next


async def kinds(chat):
    """Return the kinds of all events of a session, in order, as they are stored."""
    return [type(event).__struct_config__.tag for event in await chat.events()]


async def refused_to(call):
    """Await a call that is refused; return the refusal."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return read_refusal(raised.value)


async def test_two_people_have_to_approve_and_neither_is_the_user(tmp_path):
    """The first approval is a vote; the second dispatches the agent, exactly once."""
    rule = "{by: other_than_owner, needs: 2}"
    async with serving_signed_in(tmp_path, desk(rule), store="memory:") as service:
        paused = await paused_signed_in(service, "s")
        ana = signed(service, "route", user="ana")
        approver = {name: signed(service, "approve", user=name) for name in ("bea", "cai")}
        refused = await refused_to(ana("ResumeTask", decision("s", paused)))
        assert tuple(refused) == ("PERMISSION_DENIED", "APPROVER_REFUSED")
        assert refused.metadata["by"] == "other_than_owner"
        first = await approver["bea"]("ResumeTask", decision("s", paused, comment="fine"))
        assert (first.decisions, first.decisions_needed) == (1, 2)
        assert not first.HasField("dispatch")
        # The same person again is no second approval, with another comment either.
        again = await approver["bea"]("ResumeTask", decision("s", paused, comment="yes, fine"))
        assert again == first
        pending = (await ana("Status", pb.StatusRequest(session_id="s"))).pending_approval
        assert (pending.decisions, pending.decisions_needed, pending.by) == (
            1,
            2,
            "other_than_owner",
        )
        assert dict(pending.fields) == {"amount": 40, "currency": "EUR"}
        second = await approver["cai"]("ResumeTask", decision("s", paused))
        assert (second.decisions, second.decisions_needed) == (2, 2)
        # An approver learns that it was decided, not what the user wrote.
        assert not second.HasField("dispatch")
        status = await ana("Status", pb.StatusRequest(session_id="s"))
        (open_request,) = status.open_requests
        assert went(open_request) == ("support", "TASK_RESUMED")
        assert open_request.resume.decision == APPROVE
        # All who approved get the answer that decided; a reject learns whose decision stands.
        assert await approver["bea"]("ResumeTask", decision("s", paused)) == second
        refused = await refused_to(approver["bea"]("ResumeTask", decision("s", paused, REJECT)))
        assert tuple(refused) == ("FAILED_PRECONDITION", "APPROVAL_DECIDED")
        assert (refused.metadata["decision"], refused.metadata["decider"]) == ("approve", "cai")


async def test_one_rejection_is_enough(tmp_path):
    """Also by a person who has approved before."""
    async with serving_signed_in(tmp_path, desk("{needs: 3}"), store="memory:") as service:
        paused = await paused_signed_in(service, "s")
        bea = signed(service, "approve", user="bea")
        await bea("ResumeTask", decision("s", paused))
        rejected = await bea("ResumeTask", decision("s", paused, REJECT))
        assert (rejected.decisions, rejected.decisions_needed) == (1, 3)
        status = await signed(service, "admin")("Status", pb.StatusRequest(session_id="s"))
        assert status.open_requests[0].resume.decision == REJECT


async def test_votes_at_once_count_each_person_once(tmp_path):
    """Eight callers with the credentials of three people: the third person's vote decides."""
    async with serving_signed_in(tmp_path, desk("{needs: 3}"), store="memory:") as service:
        for n in range(5):
            paused = await paused_signed_in(service, f"s{n}")
            people = [signed(service, "approve", user=name) for name in ("bea", "cai", "dan")]
            calls = [people[k % 3]("ResumeTask", decision(f"s{n}", paused)) for k in range(8)]
            answers = await asyncio.gather(*calls)
            assert max(answer.decisions for answer in answers) == 3
            status = await signed(service, "admin")("Status", pb.StatusRequest(session_id=f"s{n}"))
            assert [each.reason for each in status.open_requests] == [
                status.open_requests[0].reason
            ]
            assert status.revision == max(answer.revision for answer in answers)


async def test_role_is_in_the_deciders_own_credential(tmp_path):
    """A frontend that acts for the user has none by naming one."""
    rule = '{by: "role:treasurer"}'
    async with serving_signed_in(tmp_path, desk(rule), store="memory:") as service:
        paused = await paused_signed_in(service, "s")
        for caller, user_id in (
            (signed(service, "approve", user="bea"), ""),
            (signed(service, "route", "act_as"), "ana"),
            (signed(service, "admin", user="sam"), ""),
        ):
            refused = await refused_to(caller("ResumeTask", decision("s", paused, user_id=user_id)))
            assert refused.reason == "APPROVER_REFUSED"
        treasurer = signed(service, "approve", "treasurer", user="tom")
        assert (await treasurer("ResumeTask", decision("s", paused))).decisions == 1


async def test_frontend_that_acts_for_the_user_is_the_user(tmp_path):
    """Otherwise the user's own click would be another person's decision."""
    rule = "{by: other_than_owner}"
    async with serving_signed_in(tmp_path, desk(rule), store="memory:") as service:
        paused = await paused_signed_in(service, "s")
        frontend = signed(service, "route", "act_as")
        refused = await refused_to(frontend("ResumeTask", decision("s", paused, user_id="ana")))
        assert refused.reason == "APPROVER_REFUSED"


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("{needs: 2}", "nobody signs in here"),
        ("{by: other_than_owner}", "nobody signs in here"),
        ('{by: "role:treasurer"}', "nobody signs in here"),
        ("{expires: 2d, on_expiry: reject}", "every agent needs an inbox; without one: front, "),
        ("{on_expiry: reject}", "add expires"),
        ("{on_expiry: cancel}", "add expires"),
        ("{expires: 400d}", "use 1s to 365d"),
        ("{by: somebody}", "anyone, other_than_owner or role:NAME"),
        ("{needs: 9}", "a whole number from 1 to 8"),
    ],
)
async def test_rule_that_cannot_be_kept_is_refused_at_start(tmp_path, rule, said):
    """With the place and the remedy; nothing is served."""
    with pytest.raises(RegistryFileError, match="approvals") as raised:
        async with serving(tmp_path, desk(rule), store="memory:"):
            pass
    assert said in str(raised.value)


async def test_approval_expires_without_a_call_and_the_user_is_told(tmp_path):
    """The sweeper cancels the task; the answer to the next message says why."""
    sweeping = {"expiry_sweep": True, "bounds": Bounds(sweep_interval_s=0.02)}
    rule = "{expires: 2d}"
    async with serving(tmp_path, desk(rule), store="memory:", **sweeping) as service:
        chat = service.chat()
        paused = await paused_by(chat)
        pending = (await chat.status()).pending_approval
        assert pending.expire_time.ToMicroseconds() == service.clock.now_us + 2 * 86_400_000_000
        service.clock.advance(2 * 86_400)
        # Readers see it at once, and the sweeper writes it.
        status = await chat.status()
        assert task_status(status.task.status) == "CANCELLED"
        assert not status.HasField("pending_approval")
        for _ in range(100):
            if "approval_expired" in await kinds(chat):
                break
            await asyncio.sleep(0.05)
        found = await kinds(chat)
        at = found.index("approval_expired")
        assert found[at : at + 2] == ["approval_expired", "task_cancelled"]
        late = await refusal(service.call("ResumeTask", decision(chat.session_id, paused)))
        assert tuple(late) == (
            "FAILED_PRECONDITION",
            "TASK_NOT_PAUSED",
        )
        said = await chat.say("hello?")
        assert said.reply.command == ""
        assert said.reply.text == (
            "The approval did not come in time, so what was waiting for it has been cancelled."
        )
        assert said.HasField("dispatch")
        assert not (await chat.say("and now?")).HasField("reply"), "it is said once"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("/supervisor", events_pb.APPROVAL_WITHDRAW_CAUSE_COMMAND),
        ("/reset", events_pb.APPROVAL_WITHDRAW_CAUSE_RESET),
    ],
)
async def test_command_that_withdraws_an_approval_says_so(tmp_path, text, cause):
    """In its own reply, and not again."""
    async with serving(tmp_path, DESK, store="memory:") as service:
        chat = service.chat()
        await paused_by(chat)
        said = await chat.say(text)
        assert "What was waiting for an approval has been withdrawn." in said.reply.text
        assert not (await chat.say("hello")).HasField("reply")
        watch = service.stub.WatchSession(
            pb.WatchSessionRequest(session_id=chat.session_id, after_revision=said.revision - 1)
        )
        while not (change := (await watch.read()).change).events:
            pass  # A heartbeat comes first.
        watch.cancel()
        (withdrawn,) = [e for e in change.events if e.WhichOneof("kind") == "approval_withdrawn"]
        assert withdrawn.approval_withdrawn.cause == cause


@pytest.mark.parametrize("how", ["operator", "clear"])
async def test_user_is_told_of_a_withdrawal_by_others_at_the_next_message(tmp_path, how):
    """In the user's language; a command's reply says it as well."""
    async with serving(tmp_path, DESK, store="memory:") as service:
        for next_text in ("hola", "/status"):
            chat = service.chat()
            await paused_by(chat)
            if how == "operator":
                await chat.set_active("sales", user_id="", initiator=4)
            else:
                await chat.clear()
            assert "approval_withdrawn" in await kinds(chat)
            said = await chat.say(next_text, locale="es")
            assert "Lo que esperaba una aprobación se ha retirado." in said.reply.text
            assert not (await chat.say("¿y ahora?", locale="es")).HasField("reply")


async def test_events_of_an_approval_alone_say_what_is_pending(tmp_path):
    """A reader that folds them needs no other event."""
    async with serving(tmp_path, DESK, store="memory:") as service:
        chat = service.chat()
        paused = await paused_by(chat)
        await service.call("ResumeTask", decision(chat.session_id, paused))
        found = [kind for kind in await kinds(chat) if kind.startswith(("approval", "task_"))]
        assert found == [
            "task_created",
            "task_paused",
            "approval_requested",
            "approval_decided",
            "task_resumed",
        ]


async def test_fields_are_bounded(tmp_path):
    """They are stored with the change and shown to every approver."""
    async with serving(tmp_path, DESK, store="memory:") as service:
        chat = await service.chat().with_agent("support")
        routed = await chat.say("hello")
        asked = pb.ApprovalNeededOutcome(prompt="?", fields=struct_pb2.Struct())
        asked.fields["note"] = "x" * 4096
        refused = await refusal(chat.answer(routed.dispatch, approval_needed=asked))
        assert tuple(refused) == ("INVALID_ARGUMENT", "INVALID_FIELD")
        assert "approval_needed.fields" in refused.violations


async def test_every_decision_is_in_the_audit_with_its_decider(tmp_path):
    """Votes, the decision that counts, and who was signed in."""
    async with serving_signed_in(tmp_path, desk("{needs: 2}"), store="memory:") as service:
        paused = await paused_signed_in(service, "s")
        for name in ("bea", "cai"):
            caller = signed(service, "approve", user=name)
            await caller("ResumeTask", decision("s", paused, comment=f"{name} agrees"))
        listed = await signed(service, "admin")(
            "ListEvents", admin.ListEventsRequest(session_id="s")
        )
        found = {
            record.event.WhichOneof("kind"): record
            for record in listed.records
            if record.event.WhichOneof("kind").startswith("approval")
        }
        assert found["approval_voted"].event.approval_voted.decider == "bea"
        assert found["approval_voted"].event.approval_voted.comment == "bea agrees"
        assert found["approval_voted"].actor == "bea"
        decided = found["approval_decided"].event.approval_decided
        assert (decided.decider, decided.decisions, decided.decisions_needed) == ("cai", 2, 2)
        assert found["approval_decided"].actor == "cai"


WORKED = """
api_version: agent_routing/v1
version: worked-1
supervisor: front
limits: {turn_timeout: 10m}
approvals: {expires: 1h, on_expiry: reject}
agents:
  - {id: front, name: Front desk, delivery: inbox}
  - {id: refunds, name: Refunds, delivery: inbox}
"""


def sweeping(interval_s):
    """Return the settings of a server that looks for what has expired at an interval."""
    return {
        "store": "memory:",
        "expiry_sweep": True,
        "bounds": Bounds(sweep_interval_s=interval_s),
    }


async def asked_for_an_hour(service):
    """Let the worker of refunds ask for an approval; return the chat and the paused dispatch."""
    chat = service.chat()
    await chat.set_active("refunds")
    routed = await chat.say("my money")
    await chat.answer(routed.dispatch, "One moment.", **needs(amount=40))
    return chat, routed.dispatch


async def test_what_nobody_decides_in_time_is_a_rejection_in_the_agents_inbox(tmp_path):
    """The agent tells the user; a late decision changes nothing."""
    async with serving(tmp_path, WORKED, **sweeping(0.02)) as service:
        chat, paused = await asked_for_an_hour(service)
        pending = (await chat.status()).pending_approval
        assert (pending.rejects_on_expiry, pending.HasField("expire_time")) == (True, True)
        async with working(service, "refunds") as worker:
            assert await worker.has_none()
            service.clock.advance(3600)
            item = await worker.next()
            resume = item.dispatch.resume
            assert (resume.decision, resume.comment) == (REJECT, "nobody decided in time")
            assert item.dispatch.text == "my money"
            refused = await refusal(service.call("ResumeTask", decision(chat.session_id, paused)))
            assert tuple(refused) == ("FAILED_PRECONDITION", "TASK_NOT_PAUSED")
            await complete(service, item, "Nobody could approve it, sorry.")
        assert (await chat.turns())[-1].agent_text == "Nobody could approve it, sorry."
        assert task_status((await chat.status()).task.status) == "RUNNING"
        found = [kind for kind in await kinds(chat) if kind.startswith(("approval", "task"))]
        assert found == [
            "task_created",
            "task_paused",
            "approval_requested",
            "approval_expired",
            "task_resumed",
        ]


async def test_message_or_decision_after_the_time_leaves_the_rejection_to_the_sweep(tmp_path):
    """No caller's own change takes the place of the dispatch into the inbox."""
    async with serving(tmp_path, WORKED, **sweeping(3600)) as service:
        chat, paused = await asked_for_an_hour(service)
        service.clock.advance(3600)
        refused = await refusal(service.call("ResumeTask", decision(chat.session_id, paused)))
        assert tuple(refused) == ("FAILED_PRECONDITION", "TASK_NOT_PAUSED")
        assert refused.metadata["status"] == "paused"
        assert went((await chat.say("any news?")).dispatch) == ("refunds", "AWAITING_APPROVAL")
        handler = service.server._parts.handler
        assert (await handler.expire(chat.key)).changed
        assert not (await handler.expire(chat.key)).changed
        async with working(service, "refunds") as worker:
            assert (await worker.next()).dispatch.resume.decision == REJECT


async def test_agent_that_lost_its_inbox_cannot_go_on_so_the_task_is_cancelled(tmp_path):
    """A rejection that no worker would ever get is none."""
    async with serving(tmp_path, WORKED, **sweeping(3600)) as service:
        chat, _ = await asked_for_an_hour(service)
        other = WORKED.replace("approvals: {expires: 1h, on_expiry: reject}", "")
        (tmp_path / "agents.yaml").write_text(
            other.replace("name: Refunds, delivery: inbox", "name: Refunds"), "utf-8"
        )
        await service.server.reload()
        service.clock.advance(3600)
        assert (await service.server._parts.handler.expire(chat.key)).changed
        assert task_status((await chat.status()).task.status) == "CANCELLED"


async def test_server_without_the_sweep_refuses_to_reject_by_time(tmp_path):
    """Nothing else would ever do it."""
    with pytest.raises(RegistryFileError, match="expiry sweep"):
        async with serving(tmp_path, WORKED, store="memory:", expiry_sweep=False):
            pass
