"""A random conversation over gRPC, compared with the state machine in memory.

Hypothesis chooses what is said, answered, handed over, cleared, approved, how time goes by and when
the server is restarted, and shrinks failures. Every step is done twice: by a real server over a
store, and by the simulation's ``Conversation``, which has no store, no cache and no wire. After
each of them both must be in the same state and have given the same answer or refusal; plain
messages also go where ``Reference`` says, which shares no code with either. Every answered call can
be repeated at any time, with a byte-identical answer.
"""

import asyncio
import tempfile
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import agent_routing
from agent_routing import outcomes
from routing_service.core import commands
from routing_service.core.errors import RoutingError
from routing_service.core.registry import SECOND_US
from routing_service.core.vocabulary import ApprovalDecision, ClearScope, Initiator, TurnFate
from routing_service.registry.file import check_registry_file
from routing_service.storage.open_store import open_store
from tests.rpc.live_service import Clock, serving
from tests.rpc.registries import DESK
from tests.simulation.conversation import SESSION_ID, Conversation
from tests.simulation.reference_route import Reference
from tests.torture.faulty_store import FaultyStore
from tests.torture.linearisability import check
from tests.torture.recorder import Recorder, stored_changes
from tests.torture.stored_sessions import contradictions

AGENTS = (
    "front",
    "sales",
    "support",
    "asks_only",
    "never_sticks",
    "interrupts",
    "owner",
    "idles",
    "completes_to_support",
    "disabled",
)

PLAIN = ("hello", "and then?")
COMMANDS = ("/supervisor", "/supervisor go on", "/reset", "/reset anew", "/status", "/agent sales")

OUTCOMES = {
    "proceed": (commands.Proceed(), outcomes.proceed()),
    "ask": (commands.FollowUp(), outcomes.follow_up()),
    "ask for a minute": (
        commands.FollowUp(timeout_us=60 * SECOND_US),
        outcomes.follow_up(timeout=60),
    ),
    "complete": (commands.Complete(), outcomes.complete()),
    "fail": (commands.Fail(), outcomes.failure()),
    "ask approval": (commands.AskApproval("May I?"), outcomes.approval_needed("May I?")),
} | {
    f"to {agent_id}": (commands.HandOff(agent_id), outcomes.handoff(agent_id))
    for agent_id in AGENTS
}


class KeptOpen(FaultyStore):
    """A store without faults that outlives its servers."""

    async def close(self):
        """Stay open for the next server."""


class ServerBesideModel(RuleBasedStateMachine):
    """One session on a server, and the same session in memory."""

    def __init__(self):
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory(prefix="routing-")
        path = Path(self.folder.name)
        (path / "agents.yaml").write_text(DESK, "utf-8")
        registry = check_registry_file(str(path / "agents.yaml")).registry
        self.clock = Clock()
        self.model = Conversation(registry, now_us=self.clock.now_us)
        self.recorder = Recorder()
        self.server_ids = {}
        self.repeatable = []
        self.store = KeptOpen(self.runner.run(open_store("memory:")))
        self.start()

    def start(self):
        """Start a server with an empty cache over the existing store."""

        async def start():
            async with AsyncExitStack() as opened:
                path = Path(self.folder.name)
                service = await opened.enter_async_context(
                    serving(path, DESK, shared=self.store, clock=self.clock)
                )
                client = await opened.enter_async_context(
                    agent_routing.AsyncClient(service.server.address, fallback=None)
                )
                self.client = self.recorder.wrap(client)
                self.opened = opened.pop_all()

        self.runner.run(start())

    def teardown(self):
        """Stop the server, after a last comparison with the store."""

        async def end():
            log = await stored_changes(self.store)
            # Only Status shows the effect of passed time on the agent; the log does not.
            history = [replace(call, agent=None) for call in self.recorder.history]
            found = [*check(history, log), *await contradictions(self.store)]
            await self.opened.aclose()
            await self.store.inner.close()
            return found

        try:
            found = self.runner.run(end())
            assert found == []
        finally:
            self.runner.close()
            self.folder.cleanup()

    def both(self, model_step, send):
        """Do a step on both sides; return the answer and the decision, or None for a refusal."""
        refusal, decision = "", None
        before = self.model.state.revision if self.model.state else 0
        try:
            decision = model_step()
        except RoutingError as error:
            refusal = error.reason.value
        try:
            answer = self.runner.run(send())
        except agent_routing.RoutingError as error:
            answer = error
        if isinstance(answer, agent_routing.RoutingError):
            assert answer.reason == refusal, (answer, refusal)
            return None
        assert not refusal, f"the model refuses ({refusal}), the server answers {answer}"
        answer = getattr(answer, "response", answer)
        assert answer.revision == self.model.state.revision
        if answer.revision > before:
            self.repeatable.append((send, answer.SerializeToString(deterministic=True)))
        self.same_dispatch(answer, decision)
        return answer

    def same_dispatch(self, answer, decision):
        """Compare the next agent, and keep the server's request id."""
        name = "next" if "next" in answer.DESCRIPTOR.fields_by_name else "dispatch"
        if name not in answer.DESCRIPTOR.fields_by_name:
            return
        planned = decision.dispatch
        assert answer.HasField(name) == (planned is not None)
        if planned is not None:
            sent = getattr(answer, name)
            assert sent.agent.agent_id == planned.agent_id
            assert sent.locked == planned.locked
            self.server_ids[planned.request_id] = sent.request_id

    def open_turn(self, place):
        """Return one of the model's open turns, with the server's request id."""
        turn = self.model.state.open_turns[place % len(self.model.state.open_turns)]
        return turn, self.server_ids[turn.request_id]

    @property
    def has_open_turn(self):
        """Whether there is a turn to answer."""
        return self.model.state is not None and bool(self.model.state.open_turns)

    @rule(text=st.sampled_from((*PLAIN, *PLAIN, *COMMANDS)))
    def say(self, text):
        """Send a user's message; a plain one must go where the reference says."""
        expected = None
        if text in PLAIN and self.model.state is not None:
            reference = Reference(self.model.state, self.model.registry, self.model.now_us)
            expected = reference.expects(stickiness=True)
        request_id = self.model.fresh_id()
        answer = self.both(
            lambda: self.model.says(text, request_id=request_id),
            lambda: self.client.route(text, session_id=SESSION_ID, request_id=request_id),
        )
        if expected is not None:
            assert answer.dispatch.agent.agent_id == expected.agent_id

    @precondition(lambda self: self.has_open_turn)
    @rule(place=st.integers(0, 3), outcome=st.sampled_from(sorted(OUTCOMES)))
    def answer(self, place, outcome):
        """An agent's answer to a request that it holds."""
        turn, server_id = self.open_turn(place)
        core, wire = OUTCOMES[outcome]
        self.both(
            lambda: self.model.answers(core, request=turn.request_id, text="so it is"),
            lambda: self.client.complete_turn(
                SESSION_ID, server_id, turn.holder, wire, text="so it is"
            ),
        )

    @precondition(lambda self: self.has_open_turn)
    @rule(place=st.integers(0, 3), agent_id=st.sampled_from(AGENTS))
    def hand_over_in_a_turn(self, place, agent_id):
        """Make a framework's own handoff."""
        turn, server_id = self.open_turn(place)
        self.hand_over(agent_id, turn.request_id, server_id)

    @rule(agent_id=st.sampled_from(AGENTS))
    def hand_over_between_messages(self, agent_id):
        """Make an operator's or a frontend's handoff."""
        self.hand_over(agent_id, "", "")

    def hand_over(self, agent_id, turn_id, server_turn_id):
        """Request a handoff on both sides."""
        request_id = self.model.fresh_id()
        self.both(
            lambda: self.model.hands_to(agent_id, turn=turn_id),
            lambda: self.client.set_active_agent(
                SESSION_ID, agent_id, turn_request_id=server_turn_id, request_id=request_id
            ),
        )

    @precondition(lambda self: self.model.state is not None)
    @rule(scope=st.sampled_from(sorted(ClearScope, key=lambda scope: scope.value)))
    def clear(self, scope):
        """Clear to the supervisor."""
        request_id = self.model.fresh_id()
        self.both(
            # What goes along gets a request id of the server's own, which the model cannot know.
            lambda: self.model.clears(
                scope, initiator=Initiator.OPERATOR, open_turn=TurnFate.ABANDON
            ),
            lambda: self.client.clear_active_agent(
                SESSION_ID, scope=scope.name, request_id=request_id, open_turn="ABANDON"
            ),
        )

    @precondition(lambda self: self.model.state is not None and self.model.state.paused)
    @rule(decision=st.sampled_from(sorted(ApprovalDecision, key=lambda each: each.value)))
    def resume(self, decision):
        """Decide a pending approval."""
        task_id = self.runner.run(self.client.status(SESSION_ID)).task.task_id
        request_id = self.server_ids[self.model.state.paused.request_id]
        self.both(
            lambda: self.model.resumes(decision),
            lambda: self.client.resume_task(
                task_id, request_id, decision.name, session_id=SESSION_ID
            ),
        )

    @rule(seconds=st.sampled_from([1, 59, 60, 601, 1_300]))
    def wait(self, seconds):
        """Let time pass, for locks, idle agents and unanswered turns."""
        self.clock.advance(seconds)
        self.model.wait(seconds)

    @precondition(lambda self: bool(self.repeatable))
    @rule(place=st.integers(0, 1_000))
    def repeat(self, place):
        """Repeat an old call: the same bytes, and no effect."""
        send, first = self.repeatable[place % len(self.repeatable)]
        again = self.runner.run(send())
        again = getattr(again, "response", again)
        assert again.SerializeToString(deterministic=True) == first
        assert self.recorder.history[-1].replayed

    @rule()
    def restart(self):
        """Restart the server, which loses its cache."""
        self.runner.run(self.opened.aclose())
        self.start()

    @invariant()
    def both_are_in_one_state(self):
        """Compare Status with the model."""
        if self.model.state is None:
            return
        status = self.runner.run(self.client.status(SESSION_ID))
        view = self.model.view()
        assert status.revision == view.revision
        assert status.active_agent.agent_id == view.active_id
        assert status.locked == (view.active is not None and view.active.locked)
        assert [frame.agent.agent_id for frame in status.return_stack] == [
            frame.agent_id for frame in view.stack
        ]
        waiting = [(d.agent.agent_id, d.request_id) for d in status.open_requests]
        assert waiting == [
            (turn.holder, self.server_ids[turn.request_id]) for turn in view.open_turns
        ]
        if view.task is not None:
            name = view.task.status.value.upper()
            assert status.task.status == agent_routing.v1.task_pb2.TaskStatus.Value(
                f"TASK_STATUS_{name}"
            )


def run(examples, steps):
    """Let Hypothesis run it."""
    run_state_machine_as_test(
        ServerBesideModel,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            print_blob=True,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(300)
def test_server_does_what_the_model_does():
    """A few conversations of a few steps; the next test is the long version."""
    run(examples=12, steps=25)


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_server_does_what_the_model_does_for_long():
    """Four hundred conversations of up to sixty steps."""
    run(examples=400, steps=60)
