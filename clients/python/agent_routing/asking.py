"""What ask() returns, and how it finds out that a message was answered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from agent_routing.messages import dispatch_pb2, route_reason_pb2, turn_pb2
from agent_routing.messages import routing_service_pb2 as pb
from agent_routing.route_result import RouteResult

ASK_S_DEFAULT: Final = 300.0
"""How long ask() waits: longer than a person does, shorter than the service's turn_timeout."""

ASK_WATCH_S: Final = 20.0
"""How long one watch of ask() lasts before it looks again."""

ASK_TURNS: Final = 100
"""Turns that ask() reads: a message passes through far fewer agents."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The answer to a message.

    route: what route() returned. turns: what the agents did, in order; empty for a command.
    """

    route: RouteResult
    turns: tuple[turn_pb2.Turn, ...] = ()

    @property
    def text(self) -> str:
        """Everything that the user should see, with an empty line between two agents' texts."""
        if not self.turns:
            return self.route.reply_text or ""
        texts = [
            text
            for turn in self.turns
            if not is_consult(turn, self.turns)
            for text in (turn.agent_text, turn.handoff_message)
        ]
        return "\n\n".join(text for text in texts if text)

    @property
    def notice(self) -> str:
        """What to show after the text: that the task was parked until its approval; or empty."""
        return self.turns[-1].notice if self.turns else ""

    @property
    def agent_id(self) -> str:
        """The agent that answered last; empty for a command."""
        return self.turns[-1].agent_id if self.turns else ""

    @property
    def outcome(self) -> str:
        """How the last agent ended its turn, such as PROCEED or FAILURE; empty for a command.

        ABANDONED: there is no answer, and none will come. A newer message may have taken the turn's
        place, its time may have run out, or its workers may have died: ask as a new request.
        FAILURE and APPROVAL_NEEDED usually have no text either.
        """
        outcomes = [turn.outcome for turn in self.turns]
        ends = [each for each in outcomes if each != turn_pb2.TURN_OUTCOME_SAID]
        if not ends:
            return ""
        # The turn is not open: one whose time ran out may not be stored as abandoned yet.
        end = ends[-1] or turn_pb2.TURN_OUTCOME_ABANDONED
        # A number that is newer than this client stays a number.
        known = turn_pb2.TurnOutcome.values()
        name = turn_pb2.TurnOutcome.Name(end) if end in known else str(end)
        return name.removeprefix("TURN_OUTCOME_")

    @property
    def session_id(self) -> str:
        """The session."""
        return self.route.session_id

    @property
    def request_id(self) -> str:
        """The request of the message: ask() with it again returns the same answer."""
        return self.route.request_id


@dataclass(frozen=True, slots=True)
class AskedPart:
    """A part of an answer, or a note.

    text: what to append to the text of its request. is_note: text is a note for the user while they
    wait, and not part of the answer. replaces: text stands for everything of its request so far.
    asked: the whole answer, with the last part.
    """

    text: str
    agent_id: str = ""
    request_id: str = ""
    is_note: bool = False
    replaces: bool = False
    asked: Asked | None = None


@dataclass(slots=True)
class _Written:
    """What came of one request's answer. text: as the caller has it, after what is ready."""

    attempt: int = 0
    end: int = 0
    text: str = ""
    is_whole: bool = False
    ready: list[AskedPart] = field(default_factory=list)


class AnswerParts:
    """Puts the parts of a message's answers together: repeats are dropped, gaps wait for the whole.

    Parts of requests that are not known to follow from the message are kept back, so that what an
    agent said before a handoff comes before the parts of the next agent.
    """

    def __init__(self, request_id: str) -> None:
        self._written = {request_id: _Written()}
        """Of the requests of the chain, in its order."""
        self._kept_back: dict[str, _Written] = {}

    def know(self, turns: Sequence[turn_pb2.Turn], *, is_done: bool = False) -> None:
        """Take the turns that followed from the message so far; those that ended are whole.

        is_done: all of them are, also those that were abandoned.
        """
        for turn in turns:
            if turn.request_id not in self._written:
                kept_back = self._kept_back.pop(turn.request_id, None)
                self._written[turn.request_id] = kept_back or _Written()
            if (turn.outcome or is_done) and not is_consult(turn, turns):
                self._complete(turn, self._written[turn.request_id])

    def _complete(self, turn: turn_pb2.Turn, written: _Written) -> None:
        """Add what is missing of a whole answer."""
        whole = "\n\n".join(text for text in (turn.agent_text, turn.handoff_message) if text)
        if whole != written.text:
            replaces = not whole.startswith(written.text)
            text = whole if replaces else whole[len(written.text) :]
            part = AskedPart(text, turn.agent_id, turn.request_id, replaces=replaces)
            written.ready.append(part)
        written.text, written.is_whole = whole, True

    def take(self, response: pb.WatchSessionResponse) -> None:
        """Take a message of the watch."""
        if response.HasField("note"):
            note = response.note
            part = AskedPart(note.text, note.agent_id, note.request_id, is_note=True)
            self._of(note.request_id).ready.append(part)
        if not response.HasField("delta"):
            return
        delta = response.delta
        written = self._of(delta.request_id)
        starts_again = delta.attempt > written.attempt
        begin = 0 if starts_again else written.end
        is_old = written.is_whole or delta.attempt < written.attempt
        if is_old or delta.end <= begin or delta.begin != begin:
            return
        replaces = starts_again and bool(written.text)
        written.attempt, written.end = delta.attempt, delta.end
        written.text = delta.text if starts_again else written.text + delta.text
        part = AskedPart(delta.text, delta.agent_id, delta.request_id, replaces=replaces)
        written.ready.append(part)

    def _of(self, request_id: str) -> _Written:
        if request_id in self._written:
            return self._written[request_id]
        return self._kept_back.setdefault(request_id, _Written())

    def ready(self) -> list[AskedPart]:
        """Return the parts to show, and forget them."""
        parts: list[AskedPart] = []
        for written in self._written.values():
            parts += written.ready
            written.ready = []
        return parts

    def rest(self, asked: Asked) -> list[AskedPart]:
        """Return what is missing of the whole answers, with the last part."""
        self.know(asked.turns, is_done=True)
        return [*self.ready(), AskedPart("", asked.agent_id, asked.request_id, asked=asked)]


def check_inbox(dispatch: dispatch_pb2.Dispatch) -> None:
    """Raise ValueError for a turn that the caller has to carry."""
    if dispatch.delivery != dispatch_pb2.DELIVERY_INBOX:
        raise ValueError(
            f'agent "{dispatch.agent.agent_id}" has no inbox; carry request {dispatch.request_id} '
            "to it, or set delivery: inbox for it in the registry"
        )


def chain_of(request_id: str, newest_first: Iterable[turn_pb2.Turn]) -> tuple[turn_pb2.Turn, ...]:
    """Return the turns that followed from a request, itself included, the oldest first."""
    found: list[turn_pb2.Turn] = []
    known = {request_id}
    for turn in reversed(list(newest_first)):
        if turn.request_id in known or turn.parent_request_id in known:
            known.add(turn.request_id)
            found.append(turn)
    # What an agent said in its turn was read before its answer, but its turn began earlier.
    said = [turn for turn in found if turn.outcome == turn_pb2.TURN_OUTCOME_SAID]
    return tuple(
        each
        for turn in found
        if turn not in said
        for each in (*(one for one in said if one.parent_request_id == turn.request_id), turn)
    )


def is_open(turns: Sequence[turn_pb2.Turn], open_requests: Iterable[dispatch_pb2.Dispatch]) -> bool:
    """Say whether one of the requests still waits for an answer."""
    requests = {turn.request_id for turn in turns}
    return not turns or any(dispatch.request_id in requests for dispatch in open_requests)


def no_answer_yet(routed: RouteResult, wait_s: float) -> str:
    """Say that an answer takes longer than the caller waits."""
    return (
        f'no answer from agent "{routed.agent_id}" in {wait_s:g} s; its turn goes on: ask again '
        f"with request_id {routed.request_id}"
    )


def is_consult(turn: turn_pb2.Turn, turns: Sequence[turn_pb2.Turn]) -> bool:
    """Say whether an answer was for the agent that asked, and not for the user."""
    return turn.reason == route_reason_pb2.ROUTE_REASON_CONSULTED and any(
        after.parent_request_id == turn.request_id
        and after.reason == route_reason_pb2.ROUTE_REASON_CONSULTED
        and after.agent_id == turn.from_agent_id
        for after in turns
    )
