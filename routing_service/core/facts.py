"""Facts from outside a session's state that a decision may need, and which command needs which.

Rule: a fact is asked for by value and fetched by the command handler, which has one resolver per
class; a decision only reads what was found. A fact that cannot count is not asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from routing_service.core.case import Case
from routing_service.core.commands import (
    Abandon,
    AddNote,
    AskApproval,
    CancelTask,
    ClaimTurn,
    ClearActiveAgent,
    CompleteTurn,
    DispatchPlan,
    Erase,
    Expire,
    HandOff,
    HandoffPlan,
    KeepTurn,
    PersonsAnswer,
    ReleaseTurn,
    ReportDegraded,
    ResumeTask,
    RouteMessage,
    Say,
    SetActiveAgent,
    TopicOpinion,
)
from routing_service.core.events import MessageQueued, MessageRouted
from routing_service.core.inbox import InboxPlace, inbox_places, is_in_inbox
from routing_service.core.markers import may_hold_marker
from routing_service.core.queued_messages import next_queue
from routing_service.core.session import OpenTurn
from routing_service.core.suggestions import takes_plain_answers
from routing_service.core.topic_switch import TopicInquiry, inquiry, may_ask
from routing_service.core.turn_ids import revision_of_child

T = TypeVar("T")


class KnownTurn(msgspec.Struct, frozen=True):
    """A request that was dispatched in this session to holder and is no longer open."""

    root_request_id: str
    task_id: str
    holder: str


class Fact(msgspec.Struct, Generic[T], frozen=True):
    """One question to the outside. unasked: the answer that counts if it was not asked."""

    unasked: ClassVar[Any] = None


class IsServiceRequest(Fact[bool], frozen=True):
    """Whether the service itself made this request id, for a handoff or resumption here."""

    unasked: ClassVar[bool] = False
    request_id: str


class StoredTaskStatus(Fact[str], frozen=True):
    """The status of a task that is not the session's latest; "" if it does not exist.

    The resolver refuses a task of another session.
    """

    unasked: ClassVar[str] = ""
    task_id: str


class VoterNames(Fact[frozenset[str]], frozen=True):
    """The hashes of all names of the people who have approved a request.

    voters: as in Approval, which has one name of each.
    """

    unasked: ClassVar[frozenset[str]] = frozenset()
    request_id: str
    voters: tuple[str, ...]


class PastTurn(Fact[KnownTurn | None], frozen=True):
    """The turn of a request that is not open; None if it was never dispatched here."""

    request_id: str


class WasAsked(Fact[bool], frozen=True):
    """Whether this agent was ever given the request, although it is not its holder now."""

    unasked: ClassVar[bool] = False
    request_id: str
    agent_id: str


class RefusedHandoffs(Fact[int], frozen=True):
    """The number of handoffs that were refused before in the turn of a request."""

    unasked: ClassVar[int] = 0
    request_id: str


class ConsultQuestion(Fact[str], frozen=True):
    """What the agent of a consult was asked."""

    unasked: ClassVar[str] = ""
    request_id: str


class PlainAnswer(Fact[bool | None], frozen=True):
    """Whether this text is a plain yes or no to the open suggestion. None = neither."""

    text: str
    locale: str


class ChoseStay(Fact[bool], frozen=True):
    """Whether a plain no is the option to stay itself, by its label or its number."""

    unasked: ClassVar[bool] = False
    text: str
    locale: str


class OfferedMessage(Fact[MessageRouted | None], frozen=True):
    """The message that the open suggestion is about, which a change holds."""

    message_revision: int


class QueuedText(Fact[MessageQueued | None], frozen=True):
    """The message that next_queue() names, which a change holds; None if it cannot be read back."""

    message_revision: int


class PausedMessage(Fact[MessageRouted | None], frozen=True):
    """The message of the turn that waits for an approval, which a change holds."""

    message_revision: int


class LeasedTurns(Fact[frozenset[str]], frozen=True):
    """The requests of these turns in inboxes that workers have under leases."""

    unasked: ClassVar[frozenset[str]] = frozenset()
    places: tuple[InboxPlace, ...]


class HandedBefore(msgspec.Struct, frozen=True):
    """A handoff outside a turn, and the change that holds it."""

    plan: HandoffPlan
    revision: int


class StandingHandoff(Fact[HandedBefore | None], frozen=True):
    """The handoff outside a turn by which an agent has the conversation that it has not used yet.

    None = it has it otherwise.
    """

    agent_id: str


class MovedDispatch(Fact[DispatchPlan | None], frozen=True):
    """The dispatch of a turn that went along with a move while its agent worked on it.

    None = it was handed on within the turn, by who knows of it.
    """

    turn: OpenTurn


class TopicVerdict(Fact[TopicOpinion | None], frozen=True):
    """For which agent this message is. None = there is no detector, or no agent to choose."""

    asked: TopicInquiry
    text: str


class Facts(dict[type[Fact[Any]], Any]):
    """The facts that were found for one decision, at most one of each class."""

    def of(self, kind: type[Fact[T]]) -> T:
        """Return the answer to a question, or what counts if it was not asked."""
        answer: T = self.get(kind, kind.unasked)
        return answer


NO_FACTS = Facts()


def facts_needed(case: Case, found: Facts = NO_FACTS) -> list[Fact[Any]]:
    """Return the facts that a case still needs, given those that were found.

    Ask again with the answers until nothing is returned: some questions follow from an answer.
    """
    command = case.command
    needed = _NEEDS[type(command)](case, command, found)
    return [fact for fact in needed if type(fact) not in found] if needed else needed


def topic_asked(case: Case) -> TopicInquiry | None:
    """Return what topic detection is to be asked about a message; None for nothing."""
    command, line = case.command, case.line
    if line is None or not isinstance(command, RouteMessage):
        return None
    if not may_ask(case.draft.registry, command):
        return None
    asked = inquiry(case.draft, line, mid_task=case.mid_task)
    return asked if isinstance(asked, TopicInquiry) else None


def _needs_of_message(case: Case, command: RouteMessage, found: Facts) -> list[Fact[Any]]:
    before = case.draft.before
    needed: list[Fact[Any]] = []
    active = before.active
    if before.open_turns or active is None or not active.turns_taken:
        needed += _needs_of_move_before(case)
    # A caller's own id names, read as one of the service's, a revision far beyond the last.
    if revision_of_child(command.request_id) <= before.revision:
        needed.append(IsServiceRequest(command.request_id))
    if command.task_id and (before.task is None or before.task.task_id != command.task_id):
        needed.append(StoredTaskStatus(command.task_id))
    offer = before.suggestion
    if offer is not None:
        accepts = bool(command.quick_reply_id)
        if not accepts and not command.items and takes_plain_answers(before):
            if PlainAnswer not in found:
                return [*needed, PlainAnswer(command.text, before.locale)]
            accepts = found.of(PlainAnswer) is True
            if found.of(PlainAnswer) is False:
                needed.append(ChoseStay(command.text, before.locale))
            elif case.otherwise is not None and not accepts:
                case = case.otherwise
        if accepts:
            return [*needed, OfferedMessage(offer.message_revision)]
    if case.draft.registry.topics.is_on:
        asked = topic_asked(case)
        if asked is not None:
            needed.append(TopicVerdict(asked, command.text))
    return needed


def _needs_of_move_before(case: Case) -> list[Fact[Any]]:
    """Return what is needed of a turn that a message may overtake, and of a handoff before it."""
    before = case.draft.before
    active = before.active
    is_new = before.sent_home if active is None else not (active.turns_taken or active.entered_turn)
    needed = _leases(case) if before.open_turns else []
    if not is_new:
        return needed
    return [*needed, StandingHandoff(before.active_id or case.draft.registry.home_agent_id)]


def _leases(case: Case) -> list[Fact[Any]]:
    """Return the question which of the open turns in inboxes workers have, if there are any."""
    places = tuple(inbox_places(case.draft.state, case.draft.registry))
    return [LeasedTurns(places)] if places else []


_WITH_FACTS = (HandOff, AskApproval)
"""Outcomes for which more is needed: one check, because every answer pays for it."""


def _needs_of_answer(case: Case, command: CompleteTurn, _: Facts) -> list[Fact[Any]]:
    turn = case.draft.before.find_turn(command.request_id)
    needed: list[Fact[Any]] = []
    if turn is None:
        needed.append(PastTurn(command.request_id))
    elif turn.asker:
        needed.append(ConsultQuestion(command.request_id))
    if turn is None or turn.holder != command.agent_id:
        needed.append(WasAsked(command.request_id, command.agent_id))
        if turn is not None and _moved_to_caller(case, turn, command.agent_id):
            needed.append(MovedDispatch(turn))
    if isinstance(command.outcome, _WITH_FACTS) or _may_hold_marker(command):
        needed.append(RefusedHandoffs(command.request_id))
    return needed


def _moved_to_caller(case: Case, turn: OpenTurn, agent_id: str) -> bool:
    """Say whether an agent's turn is now with another one, to which a caller carries it."""
    return turn.was_held_by(agent_id) and not is_in_inbox(case.draft.registry, turn)


def _may_hold_marker(command: CompleteTurn) -> bool:
    """Say whether an answer may hold a marker: then it is a handoff too."""
    if may_hold_marker(command.text):
        return True
    return bool(command.items) and any(may_hold_marker(i.text or "") for i in command.items)


def _needs_of_handoff(case: Case, command: SetActiveAgent, found: Facts) -> list[Fact[Any]]:
    before = case.draft.before
    needed: list[Fact[Any]] = []
    turn_id = command.turn_request_id
    if turn_id:
        needed.append(RefusedHandoffs(turn_id))
        if before.find_turn(turn_id) is None:
            needed.append(PastTurn(turn_id))
    if command.suggestion_id and before.suggestion is not None:
        needed.append(OfferedMessage(before.suggestion.message_revision))
        needed += _leases(case)
    if not turn_id:
        needed += _needs_of_move(case)
    return [*needed, *_needs_of_task(case, command, found)] if command.task_id else needed


def _needs_of_clear(case: Case, command: ClearActiveAgent, found: Facts) -> list[Fact[Any]]:
    needed = _needs_of_move(case)
    return [*needed, *_needs_of_task(case, command, found)] if command.task_id else needed


def _needs_of_move(case: Case) -> list[Fact[Any]]:
    """Return what is needed to move a conversation with what waits in it."""
    paused = case.draft.state.paused
    return [] if paused is None else [PausedMessage(paused.message_revision)]


_NamesTask = ResumeTask | CancelTask | SetActiveAgent | ClearActiveAgent


def _needs_of_task(case: Case, command: _NamesTask, _: Facts) -> list[Fact[Any]]:
    task = case.draft.before.task
    if task is not None and task.task_id == command.task_id:
        return []
    return [StoredTaskStatus(command.task_id)]


def _needs_of_decision(case: Case, command: ResumeTask, found: Facts) -> list[Fact[Any]]:
    # The turn that goes on may overtake one.
    needed = [*_leases(case), *_needs_of_task(case, command, found)]
    approval = case.draft.before.approval
    if approval is not None and approval.voters:
        needed.append(VoterNames(command.request_id, approval.voters))
    return needed


def _needs_of_expiry(case: Case, _command: Expire, _found: Facts) -> list[Fact[Any]]:
    state = case.draft.before
    waiting = next_queue(state)
    needed: list[Fact[Any]] = []
    if waiting is not None:
        needed.append(QueuedText(waiting[1].message_revision))
    if state.queued:
        needed.append(StandingHandoff(state.active_id or case.draft.registry.home_agent_id))
    # A turn that goes on after its approval may overtake another.
    return [*needed, *_leases(case)]


def _needs_nothing(_case: Case, _command: Any, _found: Facts) -> list[Fact[Any]]:
    return []


_NEEDS: dict[type, Callable[[Case, Any, Facts], list[Fact[Any]]]] = {
    RouteMessage: _needs_of_message,
    CompleteTurn: _needs_of_answer,
    PersonsAnswer: _needs_of_answer,
    SetActiveAgent: _needs_of_handoff,
    KeepTurn: _needs_nothing,
    ClaimTurn: _needs_nothing,
    ReleaseTurn: _needs_nothing,
    Say: _needs_nothing,
    AddNote: _needs_nothing,
    ResumeTask: _needs_of_decision,
    CancelTask: _needs_of_task,
    ClearActiveAgent: _needs_of_clear,
    ReportDegraded: _needs_nothing,
    Expire: _needs_of_expiry,
    Abandon: _needs_nothing,
    Erase: _needs_nothing,
}
