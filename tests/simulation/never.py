"""The invariants of a session, checked for each change.

They are written separately from the state machine, and read only the states, the command and the
events. Of the functions under test only evolve is called, and decide to check that an offer can be
accepted.
"""

from __future__ import annotations

import msgspec

from routing_service.core import events as ev
from routing_service.core.commands import (
    Abandon,
    AskApproval,
    ClaimTurn,
    ClearActiveAgent,
    Command,
    CompleteTurn,
    Erase,
    Expire,
    FollowUp,
    KeepTurn,
    ReleaseTurn,
    ResumeTask,
    RouteMessage,
    Say,
    SetActiveAgent,
    TopicOpinion,
)
from routing_service.core.decide import Decided, decide
from routing_service.core.evolve import apply_change
from routing_service.core.facts import NO_FACTS, Facts, OfferedMessage, TopicVerdict
from routing_service.core.inbox import overtaken_turns
from routing_service.core.registry import Registry
from routing_service.core.session import OpenTurn, SessionState
from routing_service.core.suggestion_fold import SUGGESTION_REST_MESSAGES
from routing_service.core.vocabulary import (
    ApprovalDecision,
    ClearScope,
    Initiator,
    OutcomeStatus,
    RouteReason,
    TaskStatus,
)
from tests.simulation import claims, moved, parked

COMMANDS_THAT_CHANGE = ("/supervisor", "/reset", "/agent", "/task")
TIMED_CAUSES = frozenset({"timeout", "expired"})


def check_change(
    before: SessionState | None,
    command: Command,
    decided: Decided,
    registry: Registry,
    facts: Facts = NO_FACTS,
) -> None:
    """Assert every invariant of one accepted command."""
    state, events = decided.state, decided.decision.events
    if not events:
        assert state is before, "nothing was written, yet the state is another"
        writes_nothing = isinstance(command, ClearActiveAgent | Expire | Erase | KeepTurn)
        writes_nothing |= isinstance(command, Abandon | ClaimTurn | ReleaseTurn | Say)
        writes_nothing |= decided.decision.is_vote  # The same person approves again.
        assert writes_nothing, (
            "only a clear of what is clear, and what changes nothing, writes nothing"
        )
        return
    check_state(state)
    for view in parked.views(state):
        claims.check_place(view, registry)
    assert len(decided.active_after) in {0, len(events)}
    if isinstance(command, Erase):
        _check_erased(before, decided, registry)
        return
    assert before is None or not before.erased, "an erased session was changed"
    _check_home(before, state, registry)
    _check_fold(before, decided, registry)
    _check_time(before, decided)
    parked.check_begun(before, command, decided, registry)
    parked.check_freed(before, command, decided)
    parked.check_overtaken(before, decided, registry)
    if not parked.has_parked(before, state):
        _check_task(before, state, events, registry)
        _check_command(before, command, decided, registry, facts)
        return
    parts = parked.parts_of(before, decided.decision, state, registry.version)
    for part in parts:
        if part.events:
            _check_task(part.before, part.after, part.events, registry)
    part = parked.main_part(parts, command, decided.decision)
    left = parked.without_left_task(part, decided.decision)
    decision = msgspec.structs.replace(decided.decision, events=left)
    seen = msgspec.structs.replace(decided, decision=decision, state=part.after)
    _check_command(part.before, command, seen, registry, facts)


def _check_task(
    before: SessionState | None,
    state: SessionState,
    events: tuple[ev.Event, ...],
    registry: Registry,
) -> None:
    """Assert what holds for every change of a task, whatever asked for it."""
    _check_epoch(before, state)
    _check_tasks(before, events)
    _check_approvals(before, state, events)
    _check_locks(before, state, events)
    _check_turns(before, state, events, registry)
    claims.check_events(before, state, events)


def _check_command(
    before: SessionState | None,
    command: Command,
    decided: Decided,
    registry: Registry,
    facts: Facts,
) -> None:
    """Assert what holds for a command of its kind."""
    state, events = decided.state, decided.decision.events
    _check_dispatch(command, decided, registry)
    claims.check_command(before, command, events, decided.now_us, registry)
    moved.check_command(before, command, decided, registry, facts)
    _check_topics(before, command, facts.of(TopicVerdict), decided, registry)
    match command:
        case CompleteTurn():
            is_stored = decided.decision.status is OutcomeStatus.STORED_ONLY
            found = before if is_stored else _in_force(before, command)
            _check_answer(found, command, decided)
        case RouteMessage():
            _check_message(_in_force(before, command), command, decided)
        case SetActiveAgent():
            assert not _of(events, ev.CommandHandled, ev.TurnCompleted)
            routed = [event for event in _of(events, ev.MessageRouted) if not event.continues]
            takes_offer = bool(command.suggestion_id) and not command.turn_request_id
            assert bool(routed) == takes_offer
            assert len(_of(events, ev.AgentHandedOff)) >= 1
            if command.turn_request_id and not command.stickiness_enabled:
                _check_untouched(before, state, "a handoff in a turn moved while stickiness is off")
        case ClearActiveAgent(scope=scope):
            assert not _of(events, ev.CommandHandled, ev.TurnCompleted)
            assert all(event.continues for event in _of(events, ev.MessageRouted))
            assert state.active is None
            assert before is not None
            assert state.epoch > before.epoch, "a turn in flight could land after the clear"
            assert state.paused is None
            if scope is ClearScope.SESSION:
                assert not state.open_turns
                assert state.open_task is None
        case ResumeTask():
            _check_resumed(before, command, decided)


def _in_force(before: SessionState | None, command: Command) -> SessionState | None:
    """Return the session as a call finds it: what was kept while stickiness was off comes first."""
    if before is None or before.meanwhile is None or before.paused is not None:
        return before
    if not isinstance(command, CompleteTurn | RouteMessage) or not command.stickiness_enabled:
        return before
    held, live, epoch = before.meanwhile, before.live_turn, before.epoch + 1
    return msgspec.structs.replace(
        before,
        active=held[-1] if held else None,
        stack=held[:-1],
        epoch=epoch,
        returned=False,
        open_turns=tuple(
            msgspec.structs.replace(turn, epoch=epoch) if turn is live else turn
            for turn in before.open_turns
        ),
    )


def check_state(state: SessionState) -> None:
    """Assert the invariants of any state, for each of its tasks."""
    parked.check_places(state)
    for view in parked.views(state):
        _check_view(view)


def _check_view(state: SessionState) -> None:
    """Assert the invariants of a session with one task."""
    stack_ids = [frame.agent_id for frame in state.stack]
    if state.active is None:
        assert not stack_ids, "frames without an active agent"
        assert not state.returned
    else:
        present = [*stack_ids, state.active_id]
        assert len(set(present)) == len(present), f"repeated agents: {present}"
    for tenure in (*state.stack, *((state.active,) if state.active else ())):
        assert tenure.lock_expire_us is None or tenure.locked, "a lock's time without a lock"
    requests = [turn.request_id for turn in state.open_turns]
    assert len(set(requests)) == len(requests), "one request is open twice"
    for turn in state.open_turns:
        assert turn.path[-1] == turn.holder
        assert turn.epoch <= state.epoch
        assert 0 <= turn.request_since < len(turn.path)
        assert turn.message_revision <= turn.dispatch_revision <= state.revision
    assert sum(map(state.is_live, state.open_turns)) <= 1, "two turns may move the session"
    if state.suggestion is not None:
        assert state.suggestion.message_revision <= state.revision
        assert state.suggestion.agent_id != state.active_id, "the active agent is suggested"
    assert len(state.rests) <= SUGGESTION_REST_MESSAGES
    is_paused = state.task is not None and state.task.status is TaskStatus.PAUSED
    assert is_paused == (state.paused is not None), "a pause without a request, or the reverse"
    approval = state.approval
    if approval is not None and approval.ended:
        assert state.paused is None, "an approval that has ended is pending"
        assert not approval.voters
    elif approval is not None:
        assert state.paused is not None, "an approval is pending where no task is paused"
        assert len(approval.voters) < approval.needs, "enough have approved, and it is pending"
        assert len(set(approval.voters)) == len(approval.voters), "one person approved twice"
    if state.paused is not None:
        assert state.task is not None
        assert state.paused.task_id == state.task.task_id
        assert state.paused.request_id not in requests, "a request is open and waits as well"


def _check_home(before: SessionState | None, state: SessionState, registry: Registry) -> None:
    """No change makes a supervisor active. A reload may have made the active agent one."""
    home = registry.home_agent_id
    if registry.is_swarm or home not in _present(state):
        return
    assert before is not None
    assert home in _present(before), "the supervisor became active, or waits on the return stack"
    assert state.active_id != home or before.active_id == home, "the supervisor became active"


def _present(state: SessionState) -> set[str]:
    return {state.active_id} | {frame.agent_id for frame in state.stack}


def _check_fold(before: SessionState | None, decided: Decided, registry: Registry) -> None:
    folded = apply_change(
        before,
        decided.decision.events,
        session_id=decided.state.session_id,
        now_us=decided.now_us,
        registry_version=registry.version,
    )
    assert folded == decided.state, "the state differs from its own replay"
    assert decided.state.revision == (before.revision if before else 0) + 1, "a revision gap"


def _check_time(before: SessionState | None, decided: Decided) -> None:
    assert decided.state.update_us == decided.now_us
    assert before is None or decided.now_us >= before.update_us, "time ran backwards"


def _check_epoch(before: SessionState | None, state: SessionState) -> None:
    if before is None:
        return
    assert state.epoch >= before.epoch
    if state.active_id != before.active_id:
        assert state.epoch > before.epoch, "the active agent changed within one ownership epoch"


def _check_tasks(before: SessionState | None, events: tuple[ev.Event, ...]) -> None:
    """At most one task is open, and a closed task stays closed."""
    is_open = before is not None and before.open_task is not None
    task_id = before.task.task_id if before and before.task else ""
    for event in events:
        match event:
            case ev.TaskCreated():
                assert not is_open, "a task began beside an open one"
                is_open, task_id = True, event.task_id
            case ev.TaskCompleted() | ev.TaskFailed() | ev.TaskCancelled():
                assert is_open, "a closed task was closed again"
                assert event.task_id == task_id
                is_open = False
            case ev.TaskPaused() | ev.TaskResumed():
                assert is_open, "a closed task was paused or resumed"
                assert event.task_id == task_id
            case ev.MessageRouted():
                assert is_open, "a message joined no open task"
                assert event.task_id == task_id
            case _:
                pass


def _check_approvals(
    before: SessionState | None, state: SessionState, events: tuple[ev.Event, ...]
) -> None:
    """The events alone show which request is pending: a reader that folds them is never wrong.

    An approval of a store of format 1 has no such events, and keeps none until it ends.
    """
    was_paused = before is not None and before.paused is not None
    is_old = was_paused and before is not None and before.approval is None
    pending = before.paused.request_id if before and before.paused and not is_old else ""
    paused = ""
    for event in events:
        match event:
            case ev.TaskPaused():
                assert not pending
                paused = event.request_id
            case ev.ApprovalRequested():
                assert event.request_id == paused, "an approval without a pause"
                pending, is_old = paused, False
            case ev.ApprovalVoted():
                assert event.request_id == pending, "a vote for what is not pending"
            case ev.ApprovalExpired(rejects=True):
                assert event.request_id == pending, "an approval expired that was not pending"
                resumed = _of(events, ev.TaskResumed)
                assert [each.decision for each in resumed] == [ApprovalDecision.REJECT]
                assert not _of(events, ev.MessageRouted, ev.TurnCompleted), "a caller's change"
                pending = ""
            case ev.ApprovalDecided() | ev.ApprovalWithdrawn() | ev.ApprovalExpired():
                assert event.request_id == pending, "an approval ended twice, or was not pending"
                pending = ""
            case ev.TaskResumed() | ev.TaskCancelled() | ev.AgentCleared():
                # Where its message goes along the user is still to be told: it comes last.
                along = [each.continues for each in _of(events, ev.MessageRouted)]
                assert not pending or pending in along, (
                    "the event that ends an approval comes first"
                )
            case _:
                pass
    if is_old or (paused and not _of(events, ev.ApprovalRequested)):
        assert state.approval is None
        return
    assert pending == (state.paused.request_id if state.paused else ""), "the events say otherwise"


def _check_locks(
    before: SessionState | None, state: SessionState, events: tuple[ev.Event, ...]
) -> None:
    """The events alone show which agent is locked: a lock ends by an event or in a frame."""
    if before is None or before.active is None or not before.active.locked:
        return
    waiting = before.active.agent_id
    still = [t.agent_id for t in (*state.stack, *((state.active,) if state.active else ()))]
    released = [event for event in _of(events, ev.LockReleased) if event.agent_id == waiting]
    kept = any(
        t.agent_id == waiting and t.locked
        for t in (*state.stack, *((state.active,) if state.active else ()))
    )
    # A lock from before stickiness was off is an interrupted agent's, and may leave with it.
    settled = any(event.settles for event in _of(events, ev.AgentHandedOff))
    kept |= settled and bool(_of(events, ev.StickinessExpired) or _of(events, ev.AgentCleared))
    assert kept or released, f"the lock of {waiting} ended without a word; present: {still}"


def _check_dispatch(command: Command, decided: Decided, registry: Registry) -> None:
    """A dispatch names an open turn of an agent that is available to this user."""
    dispatch, state = decided.decision.dispatch, decided.state
    if dispatch is None:
        return
    turn = state.find_turn(dispatch.request_id)
    assert turn is not None, "a dispatch that nobody can complete"
    assert turn.holder == dispatch.agent_id
    assert turn.task_id == dispatch.task_id
    assert state.previous_agent == dispatch.agent_id
    assert state.is_live(turn), "a dispatch whose answer could move nothing"
    agent = registry.agent(dispatch.agent_id)
    assert agent is not None, "a dispatch to an agent that is not registered"
    assert agent.enabled
    assert agent.requires <= set(state.entitlements)
    assert agent.channels is None or state.channel in agent.channels
    if isinstance(command, RouteMessage):
        assert dispatch.request_id == command.request_id
        assert dispatch.locked == (
            state.active is not None
            and state.active.agent_id == dispatch.agent_id
            and state.active.locked
        )


_ENDS_OF_TURNS = (ev.TurnAbandoned, ev.TurnCompleted, ev.TurnAnswered)


def _check_turns(
    before: SessionState | None,
    state: SessionState,
    events: tuple[ev.Event, ...],
    registry: Registry,
) -> None:
    """A turn is removed only by an event, and the number of open turns is limited."""
    gone = {turn.request_id for turn in before.open_turns} if before else set()
    gone -= {turn.request_id for turn in state.open_turns}
    said = {event.request_id for event in _of(events, *_ENDS_OF_TURNS)}
    if before and before.paused and not state.paused:
        resumed = _of(events, ev.TaskResumed, ev.TaskCancelled, ev.AgentCleared)
        resumed += _of(events, ev.ApprovalWithdrawn)
        dropped = [e for e in _of(events, ev.AgentHandedOff) if e.drops_approval]
        assert resumed or dropped, "a pause ended without a word"
    moved = {event.turn_request_id for event in _of(events, ev.AgentHandedOff)}
    assert gone <= said | moved, "a turn vanished"
    if _of(events, ev.MessageRouted):
        by_people = bool(claims.people_with(state, registry))
        assert len(state.open_turns) <= (16 if by_people else registry.limits.open_turns)
    _check_work(before, state, events, registry)


DAY_US = 24 * 60 * 60 * 1_000_000
STEPS_MAX = 256


def ends_us(turn: OpenTurn, registry: Registry) -> int:
    """Return when a turn ends unanswered: by its holder's timeout, or as extended, the later."""
    agent = registry.agents.get(turn.holder)
    own_us = agent.turn_timeout_us if agent else None
    ends = turn.dispatched_us + (own_us or registry.limits.turn_timeout_us)
    return max(ends, turn.work.deadline_us) if turn.work is not None else ends


def _check_work(
    before: SessionState | None,
    state: SessionState,
    events: tuple[ev.Event, ...],
    registry: Registry,
) -> None:
    """Only the live turn is extended; what is delivered stays so; steps are counted once."""
    old = {turn.request_id: turn for turn in before.open_turns} if before else {}
    for event in _of(events, ev.TurnExtended):
        turn = old[event.request_id]
        assert before is not None
        is_worked = turn in overtaken_turns(before, registry)
        assert before.live_turn is turn or is_worked, "a turn was extended that nobody answers"
        assert turn.holder == event.agent_id
        assert ends_us(turn, registry) < event.deadline_us <= turn.dispatched_us + DAY_US
    for event in _of(events, ev.StepsReported):
        old_turn = old[event.request_id]
        work = old_turn.work
        known = work.steps if work is not None and work.attempt == event.attempt else 0
        is_forgotten = (
            not (work and work.attempt) and before is not None and not before.is_live(old_turn)
        )
        assert event.first_step == known or is_forgotten, "steps were doubled, or there is a gap"
        after = state.find_turn(event.request_id)
        assert after is not None
        assert after.work is not None
        assert after.work.kept == (work.kept if work else 0) + len(event.steps) <= STEPS_MAX
    asked = {event.request_id for event in _of(events, ev.MessageRouted) if event.inbox}
    roots = {turn.root_request_id for turn in old.values() if turn.is_delivered} | asked
    if before is not None and before.paused is not None and before.paused.is_delivered:
        roots.add(before.paused.root_request_id)
    for turn in state.open_turns:
        assert turn.is_delivered == (turn.root_request_id in roots), "a turn changed its delivery"
        if turn.work is not None:
            assert state.has_work, "a state of format 2 would be written as one of format 1"
    _check_queue(before, state, events)
    timed_out = {e.request_id for e in _of(events, ev.TurnAbandoned) if e.cause == "timeout"}
    for request_id, turn in old.items():
        is_over = state.update_us >= ends_us(turn, registry)
        assert is_over or request_id not in timed_out, "a turn ended before its time"


def _check_queue(
    before: SessionState | None, state: SessionState, events: tuple[ev.Event, ...]
) -> None:
    """A message that waits goes on once, in order, or is said to be gone."""
    old = [queued.request_id for queued in before.queued] if before else []
    added = [event.request_id for event in _of(events, ev.MessageQueued)]
    gone = [event.request_id for event in _of(events, ev.MessageDequeued)]
    routed = [event.request_id for event in _of(events, ev.MessageRouted)]
    assert gone == old[: len(gone)], "messages that waited went on out of order"
    assert [queued.request_id for queued in state.queued] == old[len(gone) :] + added
    assert len(state.queued) <= 8
    for event in _of(events, ev.MessageDequeued):
        assert (event.request_id in routed) == (event.cause == "routed")
    if added:
        assert not routed, "a message waits and goes on at once"


def _check_answer(before: SessionState | None, command: CompleteTurn, decided: Decided) -> None:
    events, decision = decided.decision.events, decided.decision
    assert before is not None
    answers = _of(events, ev.TurnCompleted)
    assert len(answers) == 1, "an agent's text is lost, or kept twice"
    (answer,) = answers
    assert _is_part(answer.text, command.text), "an agent's text was changed"
    # The answer to a consult goes to the agent that asked.
    assert decision.text == ("" if answer.is_consult else answer.text)
    assert answer.items == command.items
    assert answer.steps == command.steps
    assert answer.status is decision.status
    assert not _of(events, ev.CommandHandled), "a command was parsed from an agent's text"
    assert not _of(events, ev.MessageRouted)
    if decision.status is OutcomeStatus.STORED_ONLY:
        _check_untouched(before, decided.state, "an answer that is only kept moved something")
        assert not _of(events, ev.AgentHandedOff, ev.TaskCompleted, ev.TaskFailed)
        assert decision.dispatch is None
    if not command.stickiness_enabled:
        _check_untouched(before, decided.state, "an outcome moved while stickiness is off")
    if isinstance(command.outcome, FollowUp) and not _of(events, ev.AgentHandedOff):
        assert decision.dispatch is None
    # A task that had expired when the answer came is not paused.
    if before.paused is not None and not _of(events, ev.TaskCancelled):
        _check_untouched(before, decided.state, "an outcome moved while the task is paused")
        assert not _of(events, ev.AgentHandedOff, ev.TaskCompleted, ev.TaskFailed, ev.TaskPaused)
    turn = before.find_turn(command.request_id)
    if turn is not None and turn.asker:
        _check_untouched(before, decided.state, "the answer to a consult moved the session")
    pauses = isinstance(command.outcome, AskApproval) and decision.status is OutcomeStatus.APPLIED
    assert bool(_of(events, ev.TaskPaused)) == pauses
    if turn is not None and not answer.closes and decision.dispatch is None and not pauses:
        kept = decided.state.find_turn(command.request_id)
        abandoned = _of(events, ev.TurnAbandoned)
        assert kept == turn or abandoned, "the request of another holder did not stay open"


def _check_erased(before: SessionState | None, decided: Decided, registry: Registry) -> None:
    """Of an erased session only its times and the erasure are left."""
    assert before is not None
    _check_fold(before, decided, registry)
    _check_time(before, decided)
    assert [type(event) for event in decided.decision.events] == [ev.SessionErased]
    assert decided.decision.dispatch is None
    assert decided.state == SessionState(
        session_id=before.session_id,
        revision=before.revision + 1,
        create_us=before.create_us,
        update_us=decided.now_us,
        registry_version=registry.version,
        erased=True,
    )


def _check_resumed(before: SessionState | None, command: ResumeTask, decided: Decided) -> None:
    """A decision resumes the paused agent, and changes nothing else."""
    assert before is not None
    assert before.paused is not None
    assert before.paused.request_id == command.request_id
    _check_untouched(before, decided.state, "a decision moved the session")
    dispatch = decided.decision.dispatch
    if decided.decision.is_vote:
        assert dispatch is None, "an agent goes on before enough have approved"
        assert command.decision is ApprovalDecision.APPROVE, "a rejection did not count"
        assert decided.state.paused == before.paused
        return
    assert dispatch is not None
    assert dispatch.agent_id == before.paused.holder
    assert dispatch.resume is not None
    assert dispatch.resume.decision is command.decision
    assert not _of(decided.decision.events, ev.CommandHandled, ev.TurnCompleted, ev.MessageRouted)


def _is_part(part: str, whole: str) -> bool:
    """Say whether a text is another with something cut out."""
    rest = iter(whole)
    return all(character in rest for character in part)


def _check_message(before: SessionState | None, command: RouteMessage, decided: Decided) -> None:
    events, decision = decided.decision.events, decided.decision
    assert not _of(events, ev.TurnCompleted)
    assert len(_of(events, ev.MessageRouted)) == (decision.dispatch is not None)
    assert decision.queued == bool(_of(events, ev.MessageQueued))
    if decision.queued:
        assert decision.dispatch is None
        by_task = any(event.command == "task" for event in _of(events, ev.CommandHandled))
        assert bool(decision.reply) == by_task
        return
    assert decision.dispatch is not None or decision.reply is not None, "a message without answer"
    declined = [event for event in _of(events, ev.SwitchAnswered) if not event.accepted]
    is_declined = bool(command.quick_reply_id and declined)
    is_command = bool(_of(events, ev.CommandHandled))
    is_notice = decision.reply is not None and decision.reply.variant == "notice"
    assert is_notice == (decision.reply is not None and bool(decision.dispatch) and not is_command)
    has_reply = decision.reply is not None and not is_notice
    assert has_reply == bool(is_command or is_declined)
    if command.literal_text:
        assert is_notice or decision.reply is None, "a command was parsed from literal text"
    if before is None:
        return
    is_timed = any(
        getattr(event, "cause", "") in TIMED_CAUSES or isinstance(event, ev.StickinessExpired)
        for event in events
    )
    changes = command.text.strip().lower().startswith(COMMANDS_THAT_CHANGE)
    by_topic = [e for e in _of(events, ev.AgentHandedOff) if e.initiator is Initiator.TOPIC]
    # Where a task ended because another began, parked.check_begun says whether it had to.
    is_left = bool(_of(events, ev.TaskCompleted))
    if not is_timed and not by_topic and not is_left and (decision.reply is None or not changes):
        _check_untouched(before, decided.state, "a plain message moved the session by itself")


def _check_topics(
    before: SessionState | None,
    command: Command,
    topic: TopicOpinion | None,
    decided: Decided,
    registry: Registry,
) -> None:
    """Topics move no user away from an owner, offers end with ownership, declined agents rest."""
    state, events = decided.state, decided.decision.events
    switched = [e for e in _of(events, ev.AgentHandedOff) if e.initiator is Initiator.TOPIC]
    offered = _of(events, ev.SwitchSuggested)
    accepted = [event for event in _of(events, ev.SwitchAnswered) if event.accepted]
    if switched or offered:
        assert isinstance(command, RouteMessage | SetActiveAgent)
        assert not _has_owner(before, events, registry), "taken away from who owns the session"
    if switched and not accepted:
        assert isinstance(command, RouteMessage)
        assert command.stickiness_enabled
        assert registry.topics.mode != "off", "a topic switched while topics are off"
        assert decided.decision.dispatch is not None
        assert decided.decision.dispatch.reason is RouteReason.TOPIC_SWITCH
        (handoff,) = switched
        _check_sure(before, topic, handoff.to_agent, events, registry)
    if offered:
        assert isinstance(command, RouteMessage)
        assert state.suggestion is not None
        _check_sure(before, topic, state.suggestion.agent_id, events, registry)
    if state.suggestion is not None and not offered:
        assert before is not None
        assert state.suggestion == before.suggestion
        assert state.epoch == before.epoch, "a suggestion outlived a change of ownership"
    if accepted:
        assert before is not None
        assert before.suggestion is not None
        assert [event.suggestion_id for event in accepted] == [before.suggestion.suggestion_id]


def _check_sure(
    before: SessionState | None,
    topic: TopicOpinion | None,
    agent_id: str,
    events: tuple[ev.Event, ...],
    registry: Registry,
) -> None:
    assert topic is not None, "a topic that nobody detected"
    confidence = dict(topic.ranked)[agent_id]
    topics, agent = registry.topics, registry.agents[agent_id]
    assert confidence >= (topics.threshold if (own := agent.topics.threshold) is None else own)
    assert confidence > topic.stay
    if before is None:
        return
    assert agent_id not in {rest.agent_id for rest in before.rests}, "declined, and brought up"
    assert before.paused is None or _of(events, ev.TaskCancelled, ev.AgentCleared)
    timed_out = [e for e in _of(events, ev.LockReleased) if e.cause == "timeout"]
    if before.active is not None and before.active.locked and not timed_out:
        assert topics.lock_threshold is not None, "a lock was overridden"
        assert confidence >= topics.lock_threshold


def _has_owner(
    before: SessionState | None, events: tuple[ev.Event, ...], registry: Registry
) -> bool:
    """Say whether an agent owns the session in the middle of an open task."""
    if before is None or before.open_task is None or not before.newest_turn:
        return False
    if _of(events, ev.TaskCancelled, ev.StickinessExpired):
        return False
    present = _present(before)
    given_up = {
        event.agent_id for event in _of(events, ev.LockReleased) if event.cause != "handoff"
    }
    owners = {
        name for name in present if name in registry.agents and registry.agents[name].owns_session
    }
    return bool(owners - given_up)


def check_offer(command: Command, decided: Decided, registry: Registry) -> None:
    """Assert that an offer is valid if accepted at once, in either way."""
    offer = decided.decision.suggestion
    if offer is None:
        return
    (message,) = _of(decided.decision.events, ev.MessageRouted)
    assert isinstance(message, ev.MessageRouted)
    assert isinstance(command, RouteMessage)
    by_button = RouteMessage(
        offer.suggestion_id,
        "",
        offer.suggestion_id,
        quick_reply_id=offer.suggestion_id,
    )
    by_handoff = SetActiveAgent(
        offer.suggestion_id,
        offer.agent_id,
        suggestion_id=offer.suggestion_id,
        new_task_id=offer.suggestion_id,
        child_seed=offer.suggestion_id,
    )
    for accepting in (by_button, by_handoff):
        accepted = decide(
            decided.state,
            accepting,
            registry,
            decided.now_us,
            session_id=decided.state.session_id,
            facts=Facts({OfferedMessage: message}),
        )
        check_change(decided.state, accepting, accepted, registry)
        dispatch = accepted.decision.dispatch
        assert dispatch is not None
        (sent_on,) = _of(accepted.decision.events, ev.MessageRouted)
        assert isinstance(sent_on, ev.MessageRouted)
        assert (dispatch.agent_id, sent_on.text) == (offer.agent_id, message.text)
        assert dispatch.reason is RouteReason.TOPIC_SWITCH
        assert accepted.state.active_id == offer.agent_id


def _check_untouched(before: SessionState | None, after: SessionState, what: str) -> None:
    assert before is not None
    assert after.active == before.active, what
    assert after.stack == before.stack, what
    assert after.epoch == before.epoch, what


def _of(events: tuple[ev.Event, ...], *kinds: type[ev.Event]) -> list[ev.Event]:
    return [event for event in events if isinstance(event, kinds)]
