"""Stored changes and refusals as watchers and auditors get them.

They hold no message texts. A change is sent whole, or not at all if it has no public event.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, assert_never

from msgspec.structs import replace

from agent_routing.v1 import handoff_pb2, session_event_pb2
from routing_service.core import events as ev
from routing_service.core.commands import HandoffPlan, SuggestionPlan
from routing_service.core.events import ClaimEvent, MessageSaid, NoteAdded, WaitBegun
from routing_service.core.vocabulary import RouteReason
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.agent_cards import AgentCards
from routing_service.rpc.claim_mapping import fill_claim
from routing_service.storage.event_codec import (
    BLANK_EVENTS,
    ERASE_USER,
    StoredEvents,
    decode_change,
)
from routing_service.storage.store import AuditEntry, Change, SessionKey

SERIALISED_CHANGES_MAX: Final = 1_024
"""Changes kept as bytes, so that a change is mapped once for all watchers of its session."""

_CLEAR_CAUSES: Final = {
    "command": session_event_pb2.AGENT_CLEAR_CAUSE_COMMAND,
    "reset": session_event_pb2.AGENT_CLEAR_CAUSE_RESET,
    "clear": session_event_pb2.AGENT_CLEAR_CAUSE_CLEARED,
    "proceed": session_event_pb2.AGENT_CLEAR_CAUSE_PROCEED,
    "complete": session_event_pb2.AGENT_CLEAR_CAUSE_COMPLETE,
    "timeout": session_event_pb2.AGENT_CLEAR_CAUSE_TIMEOUT,
}
_LOCK_CAUSES: Final = {
    "answered": session_event_pb2.LOCK_RELEASE_CAUSE_ANSWERED,
    "proceed": session_event_pb2.LOCK_RELEASE_CAUSE_ANSWERED,
    "complete": session_event_pb2.LOCK_RELEASE_CAUSE_ANSWERED,
    "timeout": session_event_pb2.LOCK_RELEASE_CAUSE_TIMEOUT,
    "command": session_event_pb2.LOCK_RELEASE_CAUSE_COMMAND,
    "reset": session_event_pb2.LOCK_RELEASE_CAUSE_RESET,
    "clear": session_event_pb2.LOCK_RELEASE_CAUSE_CLEARED,
    "handoff": session_event_pb2.LOCK_RELEASE_CAUSE_HANDOFF,
    "failure": session_event_pb2.LOCK_RELEASE_CAUSE_FAILURE,
}
_DEQUEUE_CAUSES: Final = {
    "routed": session_event_pb2.DEQUEUE_CAUSE_ROUTED,
    "reset": session_event_pb2.DEQUEUE_CAUSE_RESET,
    "clear": session_event_pb2.DEQUEUE_CAUSE_RESET,
    "lost": session_event_pb2.DEQUEUE_CAUSE_LOST,
}
_CANCEL_CAUSES: Final = {
    "reset": session_event_pb2.TASK_CANCEL_CAUSE_RESET,
    "clear": session_event_pb2.TASK_CANCEL_CAUSE_CLEARED,
    "expired": session_event_pb2.TASK_CANCEL_CAUSE_EXPIRED,
    "approval_expired": session_event_pb2.TASK_CANCEL_CAUSE_APPROVAL_EXPIRED,
}
_WITHDRAW_CAUSES: Final = {
    "command": session_event_pb2.APPROVAL_WITHDRAW_CAUSE_COMMAND,
    "reset": session_event_pb2.APPROVAL_WITHDRAW_CAUSE_RESET,
    "clear": session_event_pb2.APPROVAL_WITHDRAW_CAUSE_CLEARED,
    "handoff": session_event_pb2.APPROVAL_WITHDRAW_CAUSE_HANDOFF,
    "expired": session_event_pb2.APPROVAL_WITHDRAW_CAUSE_TASK_EXPIRED,
}


KEEP_TURN: Final = "KeepTurn"
"""The method of changes by which workers extend turns and report steps."""

ADD_NOTE: Final = "AddNote"
"""The method of changes that are people's notes: they hold nothing else."""

StepsSeen = Callable[[str], bool | None]
"""What a reader sees of an agent's reported steps: True = all, False = all but input and output,
None = nothing."""

_PARK_CAUSES: Final = {
    "paused": session_event_pb2.TASK_PARK_CAUSE_PAUSED,
    "message": session_event_pb2.TASK_PARK_CAUSE_MESSAGE,
    "command": session_event_pb2.TASK_PARK_CAUSE_COMMAND,
}
_FOREGROUND_CAUSES: Final = {
    "message": session_event_pb2.TASK_FOREGROUND_CAUSE_MESSAGE,
    "command": session_event_pb2.TASK_FOREGROUND_CAUSE_COMMAND,
    "freed": session_event_pb2.TASK_FOREGROUND_CAUSE_FREED,
}


Consult = tuple[str, str]
"""The agent that asks and the one that is asked, or the other way round."""

ConsultRead = Callable[[Consult], bool]
"""Says whether a reader gets what one agent asks another."""


def no_steps(_agent_id: str) -> bool | None:
    """Leave reported steps out."""
    return None


def bare_steps(_agent_id: str) -> bool | None:
    """Show steps without input and output."""
    return False


class ChangeMapper:
    """Serialises stored changes, each once for all its watchers."""

    def __init__(self) -> None:
        """Start empty."""
        # The key has the change's time: a session may be purged, and its id used again. Each change
        # is there as it is, with the consult in it, and without what one agent asked another.
        self._bytes: OrderedDict[
            tuple[SessionKey, int, int], tuple[bytes, Consult | None, bytes]
        ] = OrderedDict()

    def change_bytes(
        self,
        key: SessionKey,
        change: Change,
        cards: AgentCards,
        steps: StepsSeen = no_steps,
        *,
        reads_consult: ConsultRead,
        with_notes: bool = False,
    ) -> bytes:
        """Return a change serialised; empty if it has no public event.

        steps: what the watcher may see of reported steps; their changes are mapped for each.
        reads_consult: says whether the watcher gets what one agent asks another. with_notes: the
        watcher is not a user.
        """
        if change.method == KEEP_TURN:
            made = change_out(key, change, cards, steps)
            return made.SerializeToString() if made.events else b""
        if change.events == BLANK_EVENTS or (change.method == ADD_NOTE and not with_notes):
            return b""
        if change.method == ERASE_USER:
            self.forget(key)
        place = (key, change.revision, change.time_us)
        known = self._bytes.get(place)
        if known is None:
            made = change_out(key, change, cards)
            data = made.SerializeToString() if made.events else b""
            consult = hide_consult(made.events)
            known = (data, consult, made.SerializeToString() if consult else data)
            self._bytes[place] = known
            if len(self._bytes) > SERIALISED_CHANGES_MAX:
                self._bytes.popitem(last=False)
        data, consult, hidden = known
        return data if consult is None or reads_consult(consult) else hidden

    def forget(self, key: SessionKey) -> None:
        """Drop the changes of a session whose content is gone."""
        for entry in [entry for entry in self._bytes if entry[0] == key]:
            del self._bytes[entry]


def hide_consult(events: Iterable[session_event_pb2.SessionEvent]) -> Consult | None:
    """Remove what one agent asks another; return the two agents, None if there is nothing."""
    consult: Consult | None = None
    for event in events:
        match event.WhichOneof("kind"):
            case "agent_handoff":
                handoff = event.agent_handoff.handoff
            case "handoff_refused":
                handoff = event.handoff_refused.handoff
            case _:
                continue
        if handoff.mode == handoff_pb2.HANDOFF_MODE_CONSULT:
            consult = (getattr(handoff, "from").agent_id, handoff.to.agent_id)
            hide_question(handoff)
    return consult


def hide_question(handoff: handoff_pb2.Handoff) -> None:
    """Remove what is asked, and why."""
    for field in ("reason", "context", "message"):
        handoff.ClearField(field)


def change_out(
    key: SessionKey, change: Change, cards: AgentCards, steps: StepsSeen = bare_steps
) -> session_event_pb2.Change:
    """Return a stored change. Raises SchemaTooNew, StoreCorrupt."""
    stored = decode_change(change.events)
    made = session_event_pb2.Change(session_id=key.session_id, revision=change.revision)
    for place in range(len(stored.events)):
        event = event_out(key, change, stored, place, cards)
        if event is not None and _with_steps(event, stored.events[place], steps):
            made.events.append(event)
    return made


def _with_steps(made: session_event_pb2.SessionEvent, event: ev.Event, seen: StepsSeen) -> bool:
    """Add reported steps to their event as a reader may see them; say whether it may at all."""
    if not isinstance(event, ev.StepsReported):
        return True
    content = seen(event.agent_id)
    if content is None:
        return False
    steps = [replace(step, attempt=event.attempt) for step in event.steps]
    made.steps_reported.steps.extend(pm.steps_out(steps, with_content=content))
    return True


def bare_event(
    key: SessionKey, row: Change | AuditEntry, place: str
) -> session_event_pb2.SessionEvent:
    """Return an event without its kind. place: among those of its revision."""
    return session_event_pb2.SessionEvent(
        event_id=f"{row.revision}.{place}",
        session_id=key.session_id,
        revision=row.revision,
        event_time=pm.timestamp(row.time_us),
        request_id=row.request_id,
    )


def event_out(
    key: SessionKey, change: Change, stored: StoredEvents, place: int, cards: AgentCards
) -> session_event_pb2.SessionEvent | None:
    """Return one event of a change; None for an internal event."""
    made = bare_event(key, change, str(place))
    made.registry_version = stored.registry_version
    active = stored.active[place] if place < len(stored.active) else ""
    if active:
        made.active_agent.CopyFrom(cards.card(active, ""))
    made.parked_task_id = parked_task(stored.events, place)
    return made if _fill(made, stored, place, change.time_us, cards) else None


def parked_task(events: Sequence[ev.Event], place: int) -> str:
    """Return the parked task in which an event of a change happened; "" for the foreground."""
    for event in reversed(events[:place]):
        if isinstance(event, ev.StrandChosen):
            return event.task_id
    return ""


def _fill(
    made: session_event_pb2.SessionEvent,
    stored: StoredEvents,
    place: int,
    time_us: int,
    cards: AgentCards,
) -> bool:
    """Set the event's kind. Return False for an internal event."""
    event = stored.events[place]
    match event:
        case (
            ev.ProfileUpdated()
            | ev.TimePassed()
            | ev.StrandChosen()
            | WaitBegun()
            | ev.ClaimReleased(claimant="")
            | ev.AgentHandedOff(hands_back=True)
        ):
            return False
        case ev.SessionErased() | ev.SessionStarted() | ev.TaskCreated() | ev.TaskCompleted():
            _fill_begun_or_done(made, event, cards)
        case ev.TaskFailed() | ev.TaskCancelled() | ev.TaskParked() | ev.TaskForegrounded():
            _fill_left(made, event, cards)
        case (
            ev.TaskPaused()
            | ev.TaskResumed()
            | ev.ApprovalRequested()
            | ev.ApprovalVoted()
            | ev.ApprovalDecided()
            | ev.ApprovalWithdrawn()
            | ev.ApprovalExpired()
        ):
            _fill_pause(made, event, cards)
        case ev.MessageRouted():
            _fill_routed(made.message_routed, event, cards)
        case ev.CommandHandled():
            made.command_handled.command = f"/{event.command}"
            if event.agent_id:
                made.command_handled.agent.CopyFrom(cards.card(event.agent_id, ""))
        case ev.TurnAbandoned():
            made.turn_abandoned.request_id = event.request_id
            made.turn_abandoned.agent.CopyFrom(cards.card(event.agent_id, ""))
            made.turn_abandoned.cause = pm.abandon_cause_out(event.shown_cause)
        case (
            ev.TurnExtended()
            | ev.StepsReported()
            | ev.MessageQueued()
            | ev.MessageDequeued()
            | ev.Claimed()
            | ev.ClaimReleased()
            | ev.TurnAnswered()
            | MessageSaid()
            | NoteAdded()
        ):
            _fill_work(made, event, cards)
        case ev.TurnCompleted():
            _fill_completed(made.turn_completed, event, stored, time_us, cards)
        case ev.AgentHandedOff():
            _fill_handoff(made.agent_handoff, event, cards)
        case ev.AgentCleared() | ev.StickinessExpired():
            _fill_cleared(made, event, cards)
        case ev.LockEngaged() | ev.LockReleased():
            _fill_lock(made, event, cards)
        case ev.SwitchSuggested() | ev.SwitchAnswered():
            _fill_switch(made, event, cards)
        case _:
            assert_never(event)
    return True


def _fill_place(
    made: session_event_pb2.SessionEvent,
    event: ev.TaskParked | ev.TaskForegrounded,
    cards: AgentCards,
) -> None:
    match event:
        case ev.TaskParked():
            made.task_parked.task_id = event.task_id
            made.task_parked.number = event.number
            made.task_parked.cause = _PARK_CAUSES[event.cause]
            if event.agent_id:
                made.task_parked.agent.CopyFrom(cards.card(event.agent_id, ""))
        case ev.TaskForegrounded():
            made.task_foregrounded.task_id = event.task_id
            made.task_foregrounded.agent.CopyFrom(cards.card(event.agent_id, ""))
            made.task_foregrounded.locked = event.locked
            made.task_foregrounded.cause = _FOREGROUND_CAUSES[event.cause]
        case _:
            assert_never(event)


def _fill_begun_or_done(
    made: session_event_pb2.SessionEvent,
    event: ev.SessionErased | ev.SessionStarted | ev.TaskCreated | ev.TaskCompleted,
    cards: AgentCards,
) -> None:
    match event:
        case ev.SessionErased():
            made.session_erased.SetInParent()
        case ev.SessionStarted(profile=profile):
            made.session_started.owner = profile.user_id
            made.session_started.locale = profile.locale
            made.session_started.channel = profile.channel
            made.session_started.SetInParent()
        case ev.TaskCreated():
            made.task_created.task_id = event.task_id
            if event.expire_us is not None:
                made.task_created.expire_time.CopyFrom(pm.timestamp(event.expire_us))
        case ev.TaskCompleted():
            made.task_completed.task_id = event.task_id
            made.task_completed.summary = event.summary
            made.task_completed.agent.CopyFrom(cards.card(event.agent_id, ""))


def _fill_left(
    made: session_event_pb2.SessionEvent,
    event: ev.TaskFailed | ev.TaskCancelled | ev.TaskParked | ev.TaskForegrounded,
    cards: AgentCards,
) -> None:
    match event:
        case ev.TaskFailed():
            made.task_failed.task_id = event.task_id
            made.task_failed.message = event.message
            made.task_failed.agent.CopyFrom(cards.card(event.agent_id, ""))
        case ev.TaskCancelled():
            made.task_cancelled.task_id = event.task_id
            made.task_cancelled.cause = _CANCEL_CAUSES[event.cause]
        case ev.TaskParked() | ev.TaskForegrounded():
            _fill_place(made, event, cards)


def _fill_pause(
    made: session_event_pb2.SessionEvent,
    event: ev.TaskPaused | ev.TaskResumed | ev.ApprovalEvent,
    cards: AgentCards,
) -> None:
    match event:
        case ev.TaskPaused():
            made.task_paused.task_id = event.task_id
            made.task_paused.request_id = event.request_id
            made.task_paused.prompt = event.prompt
            made.task_paused.agent.CopyFrom(cards.card(event.agent_id, ""))
        case ev.TaskResumed():
            made.task_resumed.task_id = event.task_id
            made.task_resumed.request_id = event.request_id
            made.task_resumed.resume.decision = pm.DECISIONS[event.decision]
            made.task_resumed.resume.comment = event.comment
            made.task_resumed.next_request_id = event.child_request_id
        case _:
            _fill_approval(made, event, cards)


def _fill_approval(
    made: session_event_pb2.SessionEvent,
    event: ev.ApprovalEvent,
    cards: AgentCards,
) -> None:
    match event:
        case ev.ApprovalRequested():
            asked = made.approval_requested
            asked.task_id, asked.request_id = event.task_id, event.request_id
            asked.agent.CopyFrom(cards.card(event.agent_id, ""))
            asked.by, asked.decisions_needed = event.by, event.needs
            asked.rejects_on_expiry = event.rejects
            if event.expire_us is not None:
                asked.expire_time.CopyFrom(pm.timestamp(event.expire_us))
            if event.fields is not None:
                asked.fields.CopyFrom(pm.context_out(event.fields))
        case ev.ApprovalVoted():
            voted = made.approval_voted
            voted.task_id, voted.request_id = event.task_id, event.request_id
            voted.decider, voted.comment = event.decider, event.comment
        case ev.ApprovalDecided():
            decided = made.approval_decided
            decided.task_id, decided.request_id = event.task_id, event.request_id
            decided.decision = pm.DECISIONS[event.decision]
            decided.decider = event.decider
            decided.decisions, decided.decisions_needed = event.decisions, event.needs
        case ev.ApprovalWithdrawn():
            withdrawn = made.approval_withdrawn
            withdrawn.task_id, withdrawn.request_id = event.task_id, event.request_id
            withdrawn.cause = _WITHDRAW_CAUSES[event.cause]
        case ev.ApprovalExpired():
            made.approval_expired.task_id = event.task_id
            made.approval_expired.request_id = event.request_id
            made.approval_expired.rejected = event.rejects


def _fill_work(
    made: session_event_pb2.SessionEvent,
    event: ev.TurnExtended | ev.StepsReported | ev.MessageQueued | ev.MessageDequeued | ClaimEvent,
    cards: AgentCards,
) -> None:
    """Fill in what a worker or person said of a turn; the steps themselves depend on the reader."""
    match event:
        case ev.MessageQueued():
            made.message_queued.request_id = event.request_id
        case ev.MessageDequeued():
            made.message_dequeued.request_id = event.request_id
            made.message_dequeued.cause = _DEQUEUE_CAUSES[event.cause]
        case ev.TurnExtended():
            made.turn_extended.request_id = event.request_id
            made.turn_extended.agent.CopyFrom(cards.card(event.agent_id, ""))
            made.turn_extended.deadline.CopyFrom(pm.timestamp(event.deadline_us))
        case ev.StepsReported():
            reported = made.steps_reported
            reported.request_id, reported.task_id = event.request_id, event.task_id
            reported.agent.CopyFrom(cards.card(event.agent_id, ""))
            reported.attempt, reported.first_step = event.attempt, event.first_step
        case _:
            fill_claim(made, event, cards)


def _fill_cleared(
    made: session_event_pb2.SessionEvent,
    event: ev.AgentCleared | ev.StickinessExpired,
    cards: AgentCards,
) -> None:
    match event:
        case ev.AgentCleared():
            if event.agent_id:
                made.agent_cleared.previous_agent.CopyFrom(cards.card(event.agent_id, ""))
            made.agent_cleared.cause = _CLEAR_CAUSES[event.cause]
            made.agent_cleared.reason = event.reason
        case ev.StickinessExpired():
            made.stickiness_expired.agent.CopyFrom(cards.card(event.agent_id, ""))
            made.stickiness_expired.idle_duration.CopyFrom(pm.duration(event.idle_us))


def _fill_lock(
    made: session_event_pb2.SessionEvent,
    event: ev.LockEngaged | ev.LockReleased,
    cards: AgentCards,
) -> None:
    match event:
        case ev.LockEngaged():
            made.lock_engaged.agent.CopyFrom(cards.card(event.agent_id, ""))
            if event.expire_us is not None:
                made.lock_engaged.expire_time.CopyFrom(pm.timestamp(event.expire_us))
        case ev.LockReleased():
            made.lock_released.agent.CopyFrom(cards.card(event.agent_id, ""))
            made.lock_released.cause = _LOCK_CAUSES[event.cause]


def _fill_switch(
    made: session_event_pb2.SessionEvent,
    event: ev.SwitchSuggested | ev.SwitchAnswered,
    cards: AgentCards,
) -> None:
    match event:
        case ev.SwitchSuggested():
            plan = SuggestionPlan(event.suggestion_id, event.agent_id, event.confidence)
            offered = pm.suggestion_out(plan, event.from_agent, cards, "", "")
            made.switch_suggested.suggestion.CopyFrom(offered)
            made.switch_suggested.request_id = event.request_id
            made.switch_suggested.from_agent_id = event.from_agent
            made.switch_suggested.topic_model = event.topic_model
        case ev.SwitchAnswered():
            made.switch_answered.suggestion_id = event.suggestion_id
            made.switch_answered.agent.CopyFrom(cards.card(event.agent_id, ""))
            made.switch_answered.from_agent_id = event.from_agent
            made.switch_answered.accepted = event.accepted


def _fill_routed(
    made: session_event_pb2.MessageRouted, event: ev.MessageRouted, cards: AgentCards
) -> None:
    made.request_id = event.request_id
    made.task_id = event.task_id
    made.agent.CopyFrom(cards.card(event.agent_id, ""))
    made.reason = pm.REASONS[event.shown_reason]
    made.previous_agent_id = event.previous_agent
    made.supervisor_bypassed = event.agent_id != cards.registry.home_agent_id
    made.locked = event.locked
    made.topic_confidence = event.confidence
    made.topic_model = event.topic_model
    if event.topic is not None:
        topic = event.topic
        made.topic.model = topic.model
        made.topic.candidates.extend(pm.candidates_out(topic.candidates))
        made.topic.stay = topic.stay
        made.topic.sureness = topic.sureness
        made.topic.bound = topic.bound
        made.topic.second_request_agent_id = topic.second_request
        made.topic.asked = bool(topic.asked)


def _fill_completed(
    made: session_event_pb2.TurnCompleted,
    event: ev.TurnCompleted,
    stored: StoredEvents,
    time_us: int,
    cards: AgentCards,
) -> None:
    made.request_id = event.request_id
    made.task_id = event.task_id
    made.agent.CopyFrom(cards.card(event.agent_id, ""))
    made.outcome = pm.OUTCOMES[event.outcome]
    made.outcome_status = pm.OUTCOME_STATUSES[event.status]
    if event.dispatched_us is not None:
        made.response_duration.CopyFrom(pm.duration(max(0, time_us - event.dispatched_us)))
    for other in stored.events:
        if isinstance(other, ev.AgentHandedOff) and other.dispatches:
            made.next_request_id = other.child_request_id or other.turn_request_id


def _fill_handoff(
    made: session_event_pb2.AgentHandoff, event: ev.AgentHandedOff, cards: AgentCards
) -> None:
    plan = HandoffPlan(
        from_agent=event.from_agent,
        to_agent=event.to_agent,
        initiator=event.initiator,
        mode=event.mode,
        reason=event.reason,
        context=event.context,
        message=event.message,
    )
    handoff: handoff_pb2.Handoff = pm.handoff_out(plan, cards, "")
    made.handoff.CopyFrom(handoff)
    made.turn_request_id = event.turn_request_id
    made.route_reason = pm.REASONS[RouteReason(event.route_reason)]
    if event.dispatches:
        made.next_request_id = event.child_request_id or event.turn_request_id
        made.task_id = event.task_id
