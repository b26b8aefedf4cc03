"""What ask() returns, and how it finds out what became of a message.

Rule: that is read from Status and the history, never guessed from time. The watch only says when to
look.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agent_routing.errors import Overloaded, RoutingError, WatchTooSlow
from agent_routing.fallback import is_undecided
from agent_routing.messages import agent_pb2, dispatch_pb2, route_reason_pb2, turn_pb2
from agent_routing.messages import routing_service_pb2 as pb
from agent_routing.retry import RetryPolicy
from agent_routing.route_result import RouteResult

ASK_S_DEFAULT: Final = 300.0
"""How long ask() waits: longer than a person does, shorter than the service's turn_timeout."""

ASK_WATCH_S: Final = 20.0
"""How long one watch of ask() lasts before it looks again."""

ASK_TURNS: Final = 100
"""Turns in a page that ask() reads: a message passes through far fewer agents."""

PAUSE_S_MIN: Final = 0.1
"""The shortest wait before ask() tries again, whatever the client's retry policy says."""

WITH_PEOPLE: Final = "WITH_PEOPLE"
AWAITING_APPROVAL: Final = "AWAITING_APPROVAL"
QUEUED: Final = "QUEUED"


class NoAnswerYet(TimeoutError):
    """No answer came in time. The turn goes on: ask again with request_id.

    request_id: the message's. agent_id: the agent that has it; empty while it is queued.
    """

    def __init__(self, request_id: str, agent_id: str, wait_s: float) -> None:
        who = f' from agent "{agent_id}"' if agent_id else ""
        state = "its turn goes on" if agent_id else "it waits for the answer to the one before"
        super().__init__(
            f"no answer{who} in {wait_s:g} s; {state}: ask again with request_id {request_id}"
        )
        self.request_id = request_id
        self.agent_id = agent_id
        self.wait_s = wait_s

    def __reduce__(self) -> tuple[type[NoAnswerYet], tuple[str, str, float]]:
        return type(self), (self.request_id, self.agent_id, self.wait_s)


class NoInbox(ValueError):
    """The agent that has the turn has no inbox, so the caller has to carry it.

    request_id: the message's. agent_id: the agent.
    """

    def __init__(self, request_id: str, agent_id: str) -> None:
        super().__init__(
            f'agent "{agent_id}" has no inbox; carry request {request_id} to it, or set '
            "delivery: inbox for it in the registry"
        )
        self.request_id = request_id
        self.agent_id = agent_id

    def __reduce__(self) -> tuple[type[NoInbox], tuple[str, str]]:
        return type(self), (self.request_id, self.agent_id)


@dataclass(frozen=True, slots=True)
class Asked:
    """What became of a message: its answer, or why there is none yet or will be none.

    route: what route() returned. turns: what the agents did, in order; empty for a command, and
    while the message is queued. waits_for: an outcome that is not the end of a turn: WITH_PEOPLE,
    AWAITING_APPROVAL or QUEUED; otherwise empty. claimed: with WITH_PEOPLE, whether a person has
    claimed the conversation. replayed: whether an earlier call sent this request_id, so that its
    caller gets the same answer.
    """

    route: RouteResult
    turns: tuple[turn_pb2.Turn, ...] = ()
    waits_for: str = ""
    claimed: bool = False
    replayed: bool = False

    @property
    def text(self) -> str:
        """Everything that the user should see: the service's reply, and what the agents wrote.

        There is an empty line between two texts.
        """
        texts = [shown_text(turn, self.turns) for turn in self.turns]
        texts = [self.route.reply_text or "", *texts]
        return "\n\n".join(text for text in texts if text)

    @property
    def notice(self) -> str:
        """What to show after the text: that the task was parked until its approval; or empty."""
        return self.turns[-1].notice if self.turns else ""

    @property
    def agent_id(self) -> str:
        """The agent that answered last, or has the message; empty for a command."""
        return self.turns[-1].agent_id if self.turns else ""

    @property
    def outcome(self) -> str:
        """How the last agent ended its turn, such as PROCEED or FAILURE; empty for a command.

        Or why there is no answer:
        ABANDONED: none will come; cause says why. Ask as a new request.
        WITH_PEOPLE: people have the message. A watch of the session shows what they write.
        AWAITING_APPROVAL: a person has to decide first.
        QUEUED: the message waits behind one that people have.
        With the same request_id ask() returns what has become of it since, and waits again if an
        agent has the message.
        """
        if self.waits_for:
            return self.waits_for
        end = self._end()
        if end is None:
            return "ABANDONED" if self.route.queued else ""
        return _name(turn_pb2.TurnOutcome, _outcome_of(end))

    @property
    def cause(self) -> str:
        """Why the turn was abandoned, such as OVERTAKEN or TIMEOUT; otherwise empty.

        Also empty if the message was still queued when the session was reset, and if the service
        is older than these causes.
        """
        end = self._end()
        if end is None or self.outcome != "ABANDONED":
            return ""
        if not end.outcome:
            return "TIMEOUT"  # It is not stored as abandoned yet.
        return _name(turn_pb2.AbandonCause, end.abandon_cause) if end.abandon_cause else ""

    def _end(self) -> turn_pb2.Turn | None:
        ends = [turn for turn in self.turns if turn.outcome != turn_pb2.TURN_OUTCOME_SAID]
        return ends[-1] if ends else None

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

    text: what to append to the text of its turn, which request_id and agent_id name. is_note: text
    is a note for the user while they wait, and not part of the answer. replaces: text stands for
    everything of its turn so far; empty: nothing of it counts. asked: the whole answer, with the
    last part.
    """

    text: str
    agent_id: str = ""
    request_id: str = ""
    is_note: bool = False
    replaces: bool = False
    asked: Asked | None = None


@dataclass(slots=True)
class _Written:
    """What came of one turn's answer. text: as the caller has it, after what is ready."""

    attempt: int = 0
    end: int = 0
    text: str = ""
    is_whole: bool = False
    ready: list[AskedPart] = field(default_factory=list)


class AnswerParts:
    """Puts the parts of a message's answers together: repeats are dropped, gaps wait for the whole.

    Parts of turns that are not known to follow from the message are kept back, so that what an
    agent said before a handoff comes before the parts of the next agent.
    """

    def __init__(self) -> None:
        self._written: dict[tuple[str, str], _Written] = {}
        """By request and agent: the turns of the chain, in its order."""
        self._kept_back: dict[tuple[str, str], _Written] = {}

    def know(self, turns: Sequence[turn_pb2.Turn], *, is_done: bool = False) -> None:
        """Take the turns that followed from the message so far; those that ended are whole.

        is_done: all of them are, also those that are still open.
        """
        for turn in turns:
            key = (turn.request_id, turn.agent_id)
            if key not in self._written:
                self._written[key] = self._kept_back.pop(key, _Written())
            if turn.outcome or is_done:
                self._complete(turn, shown_text(turn, turns), self._written[key])

    def _complete(self, turn: turn_pb2.Turn, whole: str, written: _Written) -> None:
        """Add what is missing of a whole answer."""
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
            self._of(note).ready.append(part)
        if not response.HasField("delta"):
            return
        delta = response.delta
        written = self._of(delta)
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

    def _of(self, message: pb.TurnDelta | pb.TurnNote) -> _Written:
        key = (message.request_id, message.agent_id)
        return self._written.get(key) or self._kept_back.setdefault(key, _Written())

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


class Asking:
    """A message that was routed: what became of it so far, and how long that is waited for.

    turns: what followed so far. watched: the watch that says when to look again.
    """

    def __init__(
        self,
        routed: RouteResult,
        user_id: str,
        times: tuple[float, float],
        *,
        replayed: bool,
        include: Iterable[pb.WatchInclude.ValueType] = (),
    ) -> None:
        """Begin to wait. times: how long, in seconds, and until when on the monotonic clock."""
        self.turns: tuple[turn_pb2.Turn, ...] = ()
        is_answered = routed.dispatch is None and not routed.queued
        self._asked = Asked(routed, replayed=replayed) if is_answered else None
        self.watched = pb.WatchSessionRequest(
            session_id=routed.session_id,
            user_id=user_id,
            after_revision=routed.revision,
            include=include,
        )
        self._routed = routed
        self._wait_s, self._until_s = times
        self._replayed = replayed
        self._watch_until_s = 0.0
        self._attempts = 0

    def is_done(self) -> bool:
        """Say whether nothing can come before people act or the user writes again."""
        return self._asked is not None

    @property
    def asked(self) -> Asked:
        """The result. Only once it is done."""
        assert self._asked is not None
        return self._asked

    def is_found(self, newest_first: Sequence[turn_pb2.Turn], state: pb.StatusResponse) -> bool:
        """Say whether the turns go back to the message, or it is queued and has none."""
        request_id = self._routed.request_id
        return self._queue_of(state) is not None or any(
            turn.request_id == request_id for turn in newest_first
        )

    def look(self, state: pb.StatusResponse, newest_first: Sequence[turn_pb2.Turn]) -> None:
        """Take the session's state, and the turns, which were read after it.

        Raises NoInbox if the message is now with an agent whose turns a caller carries.
        """
        self.turns = chain_of(self._routed.request_id, newest_first)
        if state.revision < self.watched.after_revision:
            return  # Of a replica that has not seen the newest change.
        requests = {self._routed.request_id, *(turn.request_id for turn in self.turns)}
        waiting = [each for each in state.open_requests if each.request_id in requests]
        queue = self._queue_of(state)
        if waiting:
            check_inbox(waiting[-1])
            if _is_with_people(waiting[-1]):
                # The claim of a parked task is not in its state.
                claimed = state.HasField("claim") and waiting[-1].task_id == state.task.task_id
                self._asked = self._result(WITH_PEOPLE, claimed=claimed)
        elif queue is not None:
            before = [each for each in state.open_requests if each.task_id == queue]
            if before and _is_with_people(before[-1]):
                self._asked = self._result(QUEUED)
        else:
            pending = [state.pending_approval]
            pending += [parked.pending_approval for parked in state.parked_tasks]
            is_paused = any(each.request_id in requests for each in pending)
            self._asked = self._result(AWAITING_APPROVAL if is_paused else "")

    def _queue_of(self, state: pb.StatusResponse) -> str | None:
        """Return the task in which the message is queued, or None if it is not."""
        queues = [(state.task.task_id, state.queued_request_ids)]
        queues += [(each.task.task_id, each.queued_request_ids) for each in state.parked_tasks]
        return next((task for task, queue in queues if self._routed.request_id in queue), None)

    def _result(self, waits_for: str, *, claimed: bool = False) -> Asked:
        return Asked(self._routed, self.turns, waits_for, claimed, self._replayed)

    def begin_watch_s(self) -> float:
        """Begin a connection of the watch; return how long it may last. Raises NoAnswerYet."""
        now_s = time.monotonic()
        if now_s >= self._until_s:
            agent_id = self.turns[-1].agent_id if self.turns else self._routed.agent_id or ""
            raise NoAnswerYet(self._routed.request_id, agent_id, self._wait_s)
        self._attempts += 1
        self._watch_until_s = min(self._until_s, now_s + ASK_WATCH_S)
        return self._watch_until_s - now_s

    def received(self, response: pb.WatchSessionResponse) -> bool:
        """Take a message of the watch; say whether to look again."""
        self._attempts = 0
        if response.HasField("change"):
            self.watched.after_revision = response.change.revision
        return response.HasField("change")

    def failed(self, error: RoutingError) -> None:
        """Go on while the service is away. Raises error if it is a refusal, or time is up."""
        error.request_id = self._routed.request_id
        may_come_back = is_undecided(error) or isinstance(error, (Overloaded, WatchTooSlow))
        if not may_come_back or time.monotonic() >= self._until_s:
            raise error
        self._attempts += 1
        self._watch_until_s = self._until_s

    def pause_s(self, retry: RetryPolicy) -> float:
        """Return how long to wait before the next look, after a watch or a failure."""
        left_s = self._watch_until_s - time.monotonic()
        pause_s = max(PAUSE_S_MIN, retry.backoff_s(max(1, self._attempts)))
        return max(0.0, min(left_s, pause_s))


def shown_text(turn: turn_pb2.Turn, turns: Sequence[turn_pb2.Turn]) -> str:
    """Return what the user should see of a turn, one of those that followed from a message."""
    if is_consult(turn, turns) or _was_given_up(turn):
        return ""
    return "\n\n".join(text for text in (turn.agent_text, turn.handoff_message) if text)


def check_inbox(dispatch: dispatch_pb2.Dispatch) -> None:
    """Raise NoInbox for a turn that the caller has to carry."""
    if dispatch.delivery != dispatch_pb2.DELIVERY_INBOX:
        raise NoInbox(dispatch.request_id, dispatch.agent.agent_id)


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


def _outcome_of(turn: turn_pb2.Turn) -> int:
    """Return how a turn ended. An answer to one that was given up counts as none."""
    is_abandoned = not turn.outcome or _was_given_up(turn)
    return turn_pb2.TURN_OUTCOME_ABANDONED if is_abandoned else turn.outcome


def _was_given_up(turn: turn_pb2.Turn) -> bool:
    """Say whether the user, or somebody for them, gave the turn up: a late answer is not shown."""
    return turn.abandon_cause in {
        turn_pb2.ABANDON_CAUSE_RESET,
        turn_pb2.ABANDON_CAUSE_CLEARED,
        turn_pb2.ABANDON_CAUSE_COMMAND,
        turn_pb2.ABANDON_CAUSE_CANCELLED,
        turn_pb2.ABANDON_CAUSE_REPLACED,
        turn_pb2.ABANDON_CAUSE_ERASED,
    }


def _is_with_people(dispatch: dispatch_pb2.Dispatch) -> bool:
    return dispatch.agent.kind == agent_pb2.AGENT_KIND_HUMAN


def is_consult(turn: turn_pb2.Turn, turns: Sequence[turn_pb2.Turn]) -> bool:
    """Say whether an answer was for the agent that asked, and not for the user."""
    return turn.reason == route_reason_pb2.ROUTE_REASON_CONSULTED and any(
        after.parent_request_id == turn.request_id
        and after.reason == route_reason_pb2.ROUTE_REASON_CONSULTED
        and after.agent_id == turn.from_agent_id
        for after in turns
    )


def _name(kind: Any, number: int) -> str:
    """Return an enum value's name without its prefix; a number newer than this client as it is."""
    if number not in kind.values():
        return str(number)
    prefix = kind.Name(0).removesuffix("UNSPECIFIED")
    return str(kind.Name(number)).removeprefix(prefix)
