"""Checks histories of calls for linearisability: one order of calls must explain all answers.

Owns the observed calls (``Observed``), the stored changes (``Stored``), and the check of one
against the other. It uses none of the service's code. An unanswered call may have happened once, at
any time after it began, or not at all.

Why this is nearly a replay, where checking a history for linearisability is hard in general: every
change has its own number, without gaps, and every answer has it. So the order is known, and what is
left to check is that it is one: no number is shared, no call that began after another's end comes
before it, reads see a number that existed while they ran, and numbers in no answer belong to calls
that were never answered.

history = recorder.history                  # see recorder.py
    assert check(history) == []                 # from outside alone
    assert check(history, await stored_changes(store)) == []   # and against the log
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

STATUS: Final = "Status"

NO_OP: Final = "ClearActiveAgent"
"""The one write that may write nothing; it then answers with the revision that it found."""

UNKNOWN_SESSION: Final = "UNKNOWN_SESSION"


class Outcome(StrEnum):
    """What a caller knows about a call's outcome."""

    ANSWERED = "answered"
    REFUSED = "refused"
    """It was decided that it does not happen."""
    UNKNOWN = "unknown"
    """Nobody answered, or with something that leaves open whether it happened."""


class Op(NamedTuple):
    """Identifies a call and its repeats within a session."""

    kind: str
    request_id: str
    actor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One call as its caller saw it.

    session: tenant and session id. kind: the RPC's name. invoke_ns, response_ns: on one monotonic
    clock for the whole history; response_ns None: there was no answer. revision: the answer's or,
    for a refusal, the one that it names. agent: the active agent after that revision, "" for none;
    None if the answer does not say. answer: a digest of the answer's bytes, which a repeat must
    have too. kept: a digest of the bytes that are stored with the change, "" = not known. error:
    the reason of a refusal. attempts: how often it was sent.
    """

    session: str
    kind: str
    invoke_ns: int
    response_ns: int | None = None
    outcome: Outcome = Outcome.ANSWERED
    request_id: str = ""
    actor: str = ""
    revision: int | None = None
    agent: str | None = None
    answer: str = ""
    kept: str = ""
    error: str = ""
    expected_revision: int | None = None
    replayed: bool = False
    attempts: int = 1
    client: str = ""

    @property
    def op(self) -> Op:
        """The call, the same for each of its repeats."""
        return Op(self.kind, self.request_id, self.actor)

    @property
    def end_ns(self) -> float:
        """When it ended; infinite for an open call, or one that may still take effect."""
        if self.response_ns is None or self.outcome is Outcome.UNKNOWN:
            return math.inf
        return self.response_ns


@dataclass(frozen=True, slots=True)
class Stored:
    """One change as the store has it. method "": the service's own. agent: active after it.

    kept: as ``Observed.kept``.
    """

    revision: int
    method: str
    request_id: str
    actor: str
    agent: str | None = None
    kept: str = ""

    @property
    def op(self) -> Op:
        """The call that made this change."""
        return Op(self.method, self.request_id, self.actor)


@dataclass(frozen=True, slots=True)
class Violation:
    """A finding that no order of the calls explains. kind: see the checks below."""

    kind: str
    session: str
    detail: str

    def __str__(self) -> str:
        """Return one line of a report."""
        return f"{self.kind}: session {self.session}: {self.detail}"


Log = Mapping[str, Sequence[Stored]]


def check(history: Iterable[Observed], log: Log | None = None) -> list[Violation]:
    """Return the violations in a history.

    log: the stored changes of each session at the end, by ``Observed.session``; None = unknown. A
    session that it lacks has no changes. Sessions are independent, and checked one by one.
    """
    by_session: defaultdict[str, list[Observed]] = defaultdict(list)
    for call in history:
        by_session[call.session].append(call)
    found: list[Violation] = []
    for session in sorted(by_session.keys() | (log or {}).keys()):
        stored = None if log is None else log.get(session, ())
        checked = _Session(by_session[session], stored)
        found += [Violation(kind, session, detail) for kind, detail in checked.violations()]
    return found


_Found = Iterator[tuple[str, str]]


class _Point(NamedTuple):
    """A call's place in the one order there can be: writes at 2r, what saw revision r at 2r + 1."""

    position: int
    call: Observed


class _Session:
    """One session's calls, and their order by revision."""

    def __init__(self, calls: Sequence[Observed], stored: Sequence[Stored] | None) -> None:
        self.calls = sorted(calls, key=lambda call: call.invoke_ns)
        self.stored = stored
        self.stored_ops = None if stored is None else {change.op: change for change in stored}
        self.attempts: defaultdict[Op, list[Observed]] = defaultdict(list)
        for call in self.calls:
            if call.request_id:
                self.attempts[call.op].append(call)
        answered = {op: _once(tries) for op, tries in self.attempts.items()}
        self.writes = {op: call for op, call in answered.items() if call is not None}
        self.reads = [call for call in self.calls if self._is_read(call)]

    def violations(self) -> _Found:
        """Run every check."""
        yield from self._one_answer_each()
        yield from self._one_revision_each()
        yield from self._as_expected()
        yield from self._never_sent()
        yield from self._in_real_time()
        yield from self._one_agent_each()
        if self.stored is None:
            yield from self._accounted_for()
        else:
            yield from self._log_is_whole(self.stored)
            yield from self._log_is_what_was_answered(self.stored)

    def _is_read(self, call: Observed) -> bool:
        """Say whether a call only saw the revision in its answer."""
        if call.outcome is Outcome.REFUSED:
            # A refusal that names the head, or that found no session, has seen it.
            return call.revision is not None or call.error == UNKNOWN_SESSION
        if call.outcome is not Outcome.ANSWERED or call.revision is None:
            return False
        return not call.request_id or self._is_no_op(call)

    def _is_no_op(self, call: Observed) -> bool:
        """Say whether an answered write may have written nothing.

        Without the log this is possible; it then counts as having seen its revision, which is
        checked as strictly.
        """
        if call.kind != NO_OP:
            return False
        return self.stored_ops is None or call.op not in self.stored_ops

    def _wrote(self) -> list[Observed]:
        """Return the answered writes, each once."""
        return [call for call in self.writes.values() if not self._is_no_op(call)]

    def _one_answer_each(self) -> _Found:
        """two_answers: a request was applied twice, or a repeat got another answer."""
        for op, tries in self.attempts.items():
            answered = [call for call in tries if call.outcome is Outcome.ANSWERED]
            if not answered or self._is_no_op(answered[0]):
                continue
            first = answered[0]
            for call in answered[1:]:
                if (call.revision, call.answer) != (first.revision, first.answer):
                    yield (
                        "two_answers",
                        (
                            f"{_say(op)} was answered as revision {first.revision} and as "
                            f"{call.revision}"
                        ),
                    )

    def _one_revision_each(self) -> _Found:
        """shared_revision: two requests have one revision. no_revision: an answer has none."""
        takers: dict[int, Op] = {}
        for call in self._wrote():
            if call.revision is None or call.revision < 1:
                yield "no_revision", f"{_say(call.op)} was answered as revision {call.revision}"
            elif call.revision in takers:
                other = takers[call.revision]
                yield (
                    "shared_revision",
                    f"revision {call.revision} was given to {_say(other)} and to {_say(call.op)}",
                )
            else:
                takers[call.revision] = call.op

    def _as_expected(self) -> _Found:
        """unexpected_revision: applied on another revision than the caller expected."""
        for call in self._wrote():
            if call.expected_revision is None or call.revision is None:
                continue
            if call.revision != call.expected_revision + 1:
                yield (
                    "unexpected_revision",
                    (
                        f"{_say(call.op)} expected revision {call.expected_revision} and became "
                        f"{call.revision}"
                    ),
                )

    def _never_sent(self) -> _Found:
        """phantom_repeat: the first attempt of a request was called a repeat."""
        for op, tries in self.attempts.items():
            first, *others = tries
            alone = not any(call.invoke_ns < first.end_ns for call in others)
            if first.replayed and first.attempts == 1 and alone:
                yield "phantom_repeat", f"{_say(op)} was sent once and answered as a repeat"

    def _points(self) -> list[_Point]:
        points = [
            _Point(2 * call.revision, call) for call in self._wrote() if call.revision is not None
        ]
        # UNKNOWN_SESSION means that there was no change yet.
        points += [_Point(2 * (call.revision or 0) + 1, call) for call in self.reads]
        return points

    def _in_real_time(self) -> _Found:
        """Find calls that began after another's end and yet come before it.

        reordered: a write before an earlier write. stale_read: it missed a write. backwards_read:
        it missed what an earlier read saw. read_ahead: it saw a write that had not begun.
        """
        # From the last place to the first: which of the later calls ended earliest?
        earliest: _Point | None = None
        points = sorted(self._points(), key=lambda point: point.position, reverse=True)
        place = 0
        while place < len(points):
            level = [point for point in points[place:] if point.position == points[place].position]
            for point in level:
                if earliest is not None and earliest.call.end_ns < point.call.invoke_ns:
                    yield _backwards(point, earliest)
            ended = min(level, key=lambda point: point.call.end_ns)
            if earliest is None or ended.call.end_ns < earliest.call.end_ns:
                earliest = ended
            place += len(level)

    def _one_agent_each(self) -> _Found:
        """two_agents: different agents were active after the same change."""
        told: dict[int, tuple[str, str]] = {}
        if self.stored is not None:
            told = {
                change.revision: (change.agent, "the store")
                for change in self.stored
                if change.agent is not None
            }
        for _, call in self._points():
            if call.agent is None or call.revision is None:
                continue
            agent, teller = told.setdefault(call.revision, (call.agent, _say(call.op)))
            if agent != call.agent:
                yield (
                    "two_agents",
                    (
                        f'after revision {call.revision} the active agent was "{agent}" to '
                        f'{teller} and "{call.agent}" to {_say(call.op)}'
                    ),
                )

    def _accounted_for(self) -> _Found:
        """phantom: a revision that was seen or skipped, and that no call can have made.

        Gaps are assigned to unanswered calls, each of which may have made one: one that began
        before anything ended that comes later. Later gaps have later bounds, so the first come
        first.
        """
        points = sorted(self._points(), key=lambda point: point.position)
        made = {call.revision for call in self.writes.values() if call.revision is not None}
        last = max((point.call.revision or 0 for point in points), default=0)
        bounds: dict[int, float] = {}
        bound = math.inf
        for revision in range(last, 0, -1):
            while points and points[-1].position >= 2 * revision:
                bound = min(bound, points.pop().call.end_ns)
            bounds[revision] = bound
        waiting = sorted(
            min(call.invoke_ns for call in tries)
            for op, tries in self.attempts.items()
            if op not in self.writes and any(call.outcome is Outcome.UNKNOWN for call in tries)
        )
        for revision in range(1, last + 1):
            if revision in made:
                continue
            if waiting and waiting[0] < bounds[revision]:
                waiting.pop(0)
            else:
                yield "phantom", f"no call can have made revision {revision}"

    def _log_is_whole(self, stored: Sequence[Stored]) -> _Found:
        """gap: stored revisions are not 1, 2, 3 …. duplicate_apply: a request is stored twice."""
        revisions = [change.revision for change in stored]
        if revisions != list(range(1, len(revisions) + 1)):
            missing = sorted(set(range(1, max(revisions) + 1)) - set(revisions))
            yield "gap", f"of {len(revisions)} changes stored, these are missing: {missing[:5]}"
        seen: dict[Op, int] = {}
        for change in stored:
            if change.request_id and change.op in seen:
                yield (
                    "duplicate_apply",
                    (
                        f"{_say(change.op)} is stored as revisions {seen[change.op]} and "
                        f"{change.revision}"
                    ),
                )
            seen.setdefault(change.op, change.revision)

    def _log_is_what_was_answered(self, stored: Sequence[Stored]) -> _Found:
        """Compare answers with the log.

        lost_write: answered, not stored. moved_write: stored under another revision. other_answer:
        stored with another answer. refusal_applied: refused, and yet stored. phantom: stored
        without a call.
        """
        by_op = {change.op: change for change in stored}
        for call in self._wrote():
            change = by_op.get(call.op)
            if change is None:
                yield "lost_write", f"{_say(call.op)} was answered as revision {call.revision}"
            elif call.kept and change.kept and call.kept != change.kept:
                yield "other_answer", f"{_say(call.op)} got another answer than is stored"
            elif change.revision != call.revision:
                yield (
                    "moved_write",
                    (
                        f"{_say(call.op)} was answered as revision {call.revision} and is stored "
                        f"as {change.revision}"
                    ),
                )
        for change in stored:
            if not change.request_id:
                continue  # The service's own change, or one of a caller that wants no repeats.
            tries = self.attempts.get(change.op)
            if tries is None:
                yield "phantom", f"{_say(change.op)} is stored as revision {change.revision}"
            elif all(call.outcome is Outcome.REFUSED for call in tries):
                yield (
                    "refusal_applied",
                    (
                        f"{_say(change.op)} was refused ({tries[0].error}) and is stored as "
                        f"revision {change.revision}"
                    ),
                )


def _once(tries: Sequence[Observed]) -> Observed | None:
    """Return a request's answered attempts as one call, from its start to its first answer."""
    answered = [call for call in tries if call.outcome is Outcome.ANSWERED]
    if not answered:
        return None
    first = min(answered, key=lambda call: call.end_ns)
    begun_ns = min(call.invoke_ns for call in tries)
    fields = {name: getattr(first, name) for name in Observed.__slots__}
    return Observed(**(fields | {"invoke_ns": begun_ns}))


def _backwards(late: _Point, early: _Point) -> tuple[str, str]:
    """Name the violation in which a call that began after another's end comes before it."""
    late_reads, early_reads = late.position % 2, early.position % 2
    kind = {
        (0, 0): "reordered",
        (1, 0): "stale_read",
        (1, 1): "backwards_read",
        (0, 1): "read_ahead",
    }[late_reads, early_reads]
    return kind, (
        f"{_say(late.call.op)} at revision {late.call.revision} began after {_say(early.call.op)} "
        f"at revision {early.call.revision} had ended"
    )


def _say(op: Op) -> str:
    return " ".join(part for part in op if part)
