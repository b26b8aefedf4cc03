"""Random conversations of several tasks, with workers and people, played into the state machine.

Owns what callers do there. Every decision is checked against the invariants (never.py), and where
an ordinary message goes against the second implementation of the rules (reference_route.py).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from routing_service.core import events as ev
from routing_service.core.commands import (
    Abandon,
    AskApproval,
    CancelTask,
    ClaimTurn,
    ClearActiveAgent,
    Command,
    Complete,
    CompleteTurn,
    Decider,
    Decision,
    Expire,
    Fail,
    FollowUp,
    HandOff,
    KeepTurn,
    Outcome,
    PersonsAnswer,
    Proceed,
    ReleaseTurn,
    ResumeTask,
    RouteMessage,
    SetActiveAgent,
)
from routing_service.core.errors import Reason, RoutingError
from routing_service.core.evolve import apply_change, evolve
from routing_service.core.facts import (
    Facts,
    KnownTurn,
    PastTurn,
    QueuedText,
    RefusedHandoffs,
    StoredTaskStatus,
)
from routing_service.core.inbox import waiting_places
from routing_service.core.people import is_with_person
from routing_service.core.registry import (
    SECOND_US,
    AgentKind,
    ApprovalRule,
    OnComplete,
    Registry,
    Topics,
    WhilePaused,
)
from routing_service.core.session import SessionState
from routing_service.core.strand_fold import every_open_turn
from routing_service.core.vocabulary import (
    ApprovalDecision,
    ClearScope,
    HandoffMode,
    Initiator,
    RouteReason,
)
from tests.simulation import parked
from tests.simulation.conversation import SESSION_ID, Conversation, uuid7
from tests.simulation.reference_route import Reference
from tests.simulation.strategies import HOME, POOL, Tape, draw_registry

PERSON = "eve"
VOTERS = ("olga", "bea", "cai")
STEP_BYTES = 8

REFUSALS = {
    Reason.HANDOFF_REFUSED,
    Reason.UNKNOWN_AGENT,
    Reason.UNKNOWN_REQUEST,
    Reason.UNKNOWN_TASK,
    Reason.TASK_OPEN,
    Reason.TASKS_OPEN,
    Reason.TASK_CLOSED,
    Reason.TASK_NOT_PAUSED,
    Reason.TURN_OPEN,
    Reason.REQUEST_NOT_OPEN,
    Reason.AGENT_UNAVAILABLE,
    Reason.CLAIMED,
    Reason.NOTHING_TO_CLAIM,
    Reason.INVALID_FIELD,
    Reason.UNKNOWN_SUGGESTION,
}
"""The refusals of calls that callers may make here; any other is a bug."""

TEXTS = (
    *["hello"] * 14,
    *("/task 1", "/task 1 go on", "/task 2 go on", "/tasks", "/reset", "/reset all"),
    *("/reset and more", "/supervisor", "/supervisor and more", "/agent ben", "/agent cleo hi"),
)
KINDS = (
    *["say"] * 10,
    *["answer"] * 14,
    *["hand over"] * 3,
    *["resume"] * 3,
    *["claim", "release", "claim", "keep", "sweep", "sweep", "wait", "wait"],
    *["clear", "cancel", "switch", "abandon"],
)


def draw_busy_registry(tape: Tape) -> Registry:
    """Draw a registry where tasks are parked, messages wait, and one agent is a person."""
    drawn = draw_registry(tape)
    inboxes = tape.subset(POOL)
    agents = {
        name: replace(agent, has_inbox=name in inboxes) for name, agent in drawn.agents.items()
    }
    if PERSON in agents:
        agents[PERSON] = replace(
            agents[PERSON],
            kind=AgentKind.HUMAN,
            has_inbox=True,
            enabled=True,
            requires=frozenset(),
            channels=None,
            turns_max=0,
            idle_timeout_us=None,
            turn_timeout_us=None,
            on_complete=OnComplete.RELEASE,
            on_complete_agent_id="",
        )
    return replace(
        drawn,
        agents=agents,
        double_text_rejects=False,
        double_text_queues=tape.pick((True, False)),
        while_paused=tape.pick((WhilePaused.PARK, WhilePaused.PARK, WhilePaused.HOLD)),
        begins_tasks=tape.pick((True, False)),
        approvals=ApprovalRule(
            expires_us=tape.pick((None, 60 * SECOND_US)), needs=tape.pick((1, 1, 2, 3))
        ),
        topics=Topics(),
    )


class TaskTalk:
    """One conversation. outcomes: how often each kind of step was taken, or refused and why."""

    def __init__(self, registry: Registry) -> None:
        self.chat = Conversation(registry)
        self.outcomes: Counter[str] = Counter()
        self.statuses: dict[str, str] = {}
        self.texts: dict[str, ev.MessageQueued] = {}
        self.answered: dict[tuple[str, str], str] = {}

    def play(self, tape: Tape) -> None:
        """Take one step; a refusal changes nothing."""
        kind = "say" if self.chat.state is None else tape.pick(KINDS)
        before = self.chat.state
        refusal = None
        try:
            getattr(self, "_" + kind.replace(" ", "_"))(tape)
        except RoutingError as error:
            refusal = error
        self.outcomes[refusal.reason.value if refusal else kind] += 1
        if refusal is not None:
            assert refusal.reason in REFUSALS, refusal
            assert self.chat.state is before

    def _do(self, command: Command, **facts: object) -> Decision:
        chat = self.chat
        found = {_FACTS[name]: value for name, value in facts.items()}
        decision = chat.do(command, Facts(found))
        for turn in every_open_turn(self._state):
            known = KnownTurn(turn.root_request_id, turn.task_id, turn.holder)
            chat.known[turn.request_id] = known
        for event in decision.events:
            match event:
                case ev.TaskCreated() | ev.TaskResumed():
                    self.statuses[event.task_id] = "running"
                case ev.TaskPaused():
                    self.statuses[event.task_id] = "paused"
                case ev.TaskCompleted() | ev.TaskFailed() | ev.TaskCancelled():
                    self.statuses[event.task_id] = "completed"
                case ev.MessageQueued():
                    self.texts[event.request_id] = event
                case _:
                    pass
        return decision

    @property
    def _state(self) -> SessionState:
        assert self.chat.state is not None
        return self.chat.state

    @property
    def _sticks(self) -> bool:
        """Whether agents stick: a person keeps the conversation whatever the switch says."""
        state = self.chat.state
        return self.chat.stickiness or (
            state is not None and is_with_person(state, self.chat.registry)
        )

    def _task(self, tape: Tape, kind: str) -> str:
        """Return a task of a kind, "" if there is none."""
        state = self.chat.state
        if kind == "new":
            return self.chat.fresh_id()
        if state is None:
            return ""
        if kind == "open":
            return state.open_task.task_id if state.open_task else ""
        known = [strand.task_id for strand in (state.apart.parked if state.apart else ())]
        if kind == "closed":
            known = [task for task, status in self.statuses.items() if status == "completed"]
        return tape.pick(known) if known else ""

    def _say(self, tape: Tape) -> None:
        chat = self.chat
        task_id = self._task(
            tape, tape.pick((*[""] * 8, "open", "parked", "parked", "new", "closed"))
        )
        revision = chat.state.revision if chat.state else 0
        command = RouteMessage(
            request_id=chat.fresh_id(),
            text=tape.pick(TEXTS),
            new_task_id=chat.fresh_id(),
            task_id=task_id,
            stickiness_enabled=self._sticks,
            inbox=tape.rarely(3) and not chat.registry.is_all_inbox,
            shown_revision=tape.pick((None, None, 0, revision, max(0, revision - 1))),
        )
        before = chat.state
        decision = self._do(command, status=self.statuses.get(task_id, ""))
        is_plain = decision.dispatch is not None and not any(
            isinstance(event, ev.CommandHandled) for event in decision.events
        )
        if before is not None and is_plain:
            self._check_where(before, command, decision)

    def _check_where(self, before: SessionState, command: RouteMessage, decision: Decision) -> None:
        """Compare with the second implementation, after time-outs and the change of tasks."""
        chat = self.chat
        now = apply_change(
            before,
            (),
            session_id=SESSION_ID,
            now_us=self._state.update_us,
            registry_version=chat.registry.version,
        )
        expired = False
        for event in decision.events:
            if isinstance(event, ev.TaskCreated | ev.MessageRouted):
                break
            timed = isinstance(event, ev.AgentCleared) and event.cause == "timeout"
            expired |= timed or isinstance(event, ev.StickinessExpired)
            now = evolve(now, event)
        reference = Reference(now, chat.registry, chat.now_us)
        expected = reference.expects(stickiness=command.stickiness_enabled)
        assert decision.dispatch is not None
        assert decision.dispatch.agent_id == expected.agent_id
        if decision.dispatch.reason is RouteReason.EXPIRED:
            assert expired or expected.reason is RouteReason.EXPIRED
        else:
            assert decision.dispatch.reason is expected.reason
        assert (chat.active, chat.locked, chat.stack) == (
            expected.active,
            expected.locked,
            expected.stack,
        )

    def _request(self, tape: Tape) -> str:
        """Return an open request of any task, or a past one."""
        turns = [turn.request_id for turn in every_open_turn(self._state)]
        if turns and not tape.rarely(12):
            return turns[-1 - tape.byte() % len(turns)]
        return tape.pick(list(self.chat.known) or [uuid7(10**6)])

    def _answer(self, tape: Tape) -> None:
        chat = self.chat
        request = self._request(tape)
        turns = {turn.request_id: turn for turn in every_open_turn(self._state)}
        turn, known = turns.get(request), chat.known.get(request)
        agent_id = turn.holder if turn else known.holder if known else POOL[0]
        agent_id = tape.pick(POOL) if tape.rarely(16) else agent_id
        if (request, agent_id) in self.answered:
            return  # A repeat gets its first answer from the store.
        text = f"answer {len(self.answered)}"
        command = CompleteTurn(
            request_id=request,
            agent_id=agent_id,
            outcome=_outcome(tape),
            child_seed=chat.fresh_id(),
            text=text,
            stickiness_enabled=self._sticks,
        )
        if agent_id in chat.registry.people:
            fields = {name: getattr(command, name) for name in command.__struct_fields__}
            command = PersonsAnswer(**fields, subject=tape.pick(("bea", "cai", "")))
        past = None if turn else known
        self._do(command, past=past, refused=chat.refusals.get(request, 0))
        self.answered[request, agent_id] = text

    def _hand_over(self, tape: Tape) -> None:
        chat = self.chat
        turn = self._request(tape) if tape.pick((True, False)) else ""
        task_id = self._task(tape, tape.pick(("", "", "", "open", "parked", "parked", "closed")))
        is_open = any(each.request_id == turn for each in every_open_turn(self._state))
        command = SetActiveAgent(
            request_id=chat.fresh_id(),
            agent_id=tape.pick((*POOL, HOME)),
            turn_request_id=turn,
            initiator=tape.pick((None, None, *list(Initiator)[:4])),
            mode=tape.pick((HandoffMode.TRANSFER, HandoffMode.INTERLUDE)),
            stickiness_enabled=self._sticks,
            subject=tape.pick(("", "bea", "cai")),
            task_id=task_id,
        )
        self._do(
            command,
            past=None if is_open else chat.known.get(turn),
            refused=chat.refusals.get(turn, 0),
            status=self.statuses.get(task_id, ""),
        )

    def _resume(self, tape: Tape) -> None:
        paused = [view.paused for view in parked.views(self._state) if view.paused]
        if paused:
            turn = tape.pick(paused)
            decision = tape.pick(tuple(ApprovalDecision))
            seed = self.chat.fresh_id()
            name = tape.pick(VOTERS)
            person = Decider(name, frozenset({name}), is_person=True)
            command = ResumeTask(turn.request_id, turn.task_id, decision, seed, decider=person)
            self._do(command, status=self.statuses[turn.task_id])

    def _claim(self, tape: Tape) -> None:
        person, takes = tape.pick(("bea", "cai")), tape.rarely(3)
        self._do(
            ClaimTurn(self.chat.fresh_id(), PERSON, person, takes, stickiness_enabled=self._sticks)
        )

    def _release(self, tape: Tape) -> None:
        person, is_operator = tape.pick(("bea", "cai")), tape.rarely(3)
        self._do(ReleaseTurn(self.chat.fresh_id(), PERSON, person, is_operator, self._sticks))

    def _keep(self, tape: Tape) -> None:
        turns = every_open_turn(self._state)
        if turns:
            turn = tape.pick(turns)
            self._do(
                KeepTurn(
                    turn.request_id, turn.holder, extends=True, stickiness_enabled=self._sticks
                )
            )

    def _sweep(self, _tape: Tape) -> None:
        queues = [view for view in parked.views(self._state) if view.queued]
        queues.sort(key=lambda view: view.live_turn is not None)
        text = self.texts[queues[0].queued[0].request_id] if queues else None
        seed, task_id = self.chat.fresh_id(), self.chat.fresh_id()
        self._do(Expire(seed, task_id, self._sticks), queued=text)

    def _abandon(self, tape: Tape) -> None:
        places = waiting_places(self._state, self.chat.registry)
        if places:
            self._do(Abandon(*tape.pick(places), self._sticks))

    def _wait(self, tape: Tape) -> None:
        self.chat.wait(tape.pick((1, 5, 10, 61, 1000, 700_000)))

    def _switch(self, tape: Tape) -> None:
        self.chat.stickiness = tape.pick((True, True, False))

    def _clear(self, tape: Tape) -> None:
        task_id = self._task(tape, tape.pick(("", "", "open", "parked", "parked", "closed")))
        command = ClearActiveAgent(
            self.chat.fresh_id(),
            tape.pick(tuple(ClearScope)),
            subject=tape.pick(("", "bea")),
            task_id=task_id,
            stickiness_enabled=self._sticks,
        )
        self._do(command, status=self.statuses.get(task_id, ""))

    def _cancel(self, tape: Tape) -> None:
        task_id = self._task(tape, tape.pick(("open", "parked", "closed"))) or uuid7(10**6)
        command = CancelTask(self.chat.fresh_id(), task_id, stickiness_enabled=self._sticks)
        self._do(command, status=self.statuses.get(task_id, ""))


_FACTS = {
    "status": StoredTaskStatus,
    "past": PastTurn,
    "refused": RefusedHandoffs,
    "queued": QueuedText,
}


def _outcome(tape: Tape) -> Outcome:
    """Draw how a turn ends."""
    kind = tape.byte() % 16
    if kind < 4:
        return FollowUp(tape.pick((None, 10 * SECOND_US)))
    if kind < 7:
        return Proceed()
    if kind < 9:
        return Complete(summary="done")
    if kind < 11:
        return AskApproval(prompt="pay?")
    if kind < 12:
        return Fail(message="no")
    mode = tape.pick((HandoffMode.TRANSFER, HandoffMode.INTERLUDE, HandoffMode.CONSULT))
    return HandOff(tape.pick((*POOL, PERSON, PERSON, HOME)), mode=mode)
