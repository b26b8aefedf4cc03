"""The conversation as turns, folded from the log.

Rule: one record per request and agent, in the order in which requests reached agents. An agent's
record holds its own text and the user's, and no other agent's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import force_setattr, replace

from routing_service.core import events as ev
from routing_service.core.dispatches import dispatched_by
from routing_service.core.events import MessageSaid
from routing_service.core.vocabulary import (
    HandoffMode,
    Initiator,
    OutcomeKind,
    OutcomeStatus,
    RouteReason,
)

_POSITION = attrgetter("position")
_REQUEST_ID = attrgetter("request_id")
_HAS_MESSAGE = attrgetter("has_message")


class TurnRecord(msgspec.Struct, frozen=True):
    """One request as one agent had it.

    position: (revision, place) of the dispatch, which orders the history.
    revision: the change that last changed the record: its answer's, or else its dispatch's.
    message_revision: the change that holds the user's text; has_message: it is filled in.
    abandoned: why it can no longer be answered, as TurnAbandoned shows it, "" = it can.
    asker: the agent that asked, if the turn is a question to this one. asks: the agent that this
    one asked instead of answering. answered_by: a later request, whose answer is for this one too.
    is_said: the agent said it while a turn went on. outcome None, and none of these: unanswered.
    parks: its answer paused its task, and the task was parked. size_bytes: about its size in memory
    and in an answer. shown: the record as bytes for answers, kept by rpc, b"" = not made yet; see
    keep_shown. heard: the record as topic detection reads it, kept by that. Both are empty again
    after a change of the record.
    """

    position: tuple[int, int]
    request_id: str
    agent_id: str
    task_id: str
    message_revision: int
    create_us: int
    revision: int
    parent_request_id: str = ""
    from_agent_id: str = ""
    reason: RouteReason | None = None
    has_message: bool = True
    user_text: str = ""
    user_items: tuple[ev.Item, ...] = ()
    agent_text: str = ""
    agent_items: tuple[ev.Item, ...] = ()
    steps: tuple[ev.Step, ...] = ()
    outcome: OutcomeKind | None = None
    status: OutcomeStatus | None = None
    handoff_message: str = ""
    complete_us: int | None = None
    abandoned: str = ""
    asker: str = ""
    asks: str = ""
    answered_by: str = ""
    is_said: bool = False
    parks: bool = False
    size_bytes: int = 0
    shown: bytes = b""
    heard: list[Any] = msgspec.field(default_factory=list)

    @property
    def is_open(self) -> bool:
        """Say whether nothing has become of the request yet."""
        closed = self.abandoned or self.answered_by or self.is_said
        return self.outcome is None and not closed

    def answered(self, event: ev.TurnCompleted, revision: int, now_us: int) -> TurnRecord:
        """Return the record with the agent's answer."""
        return changed(
            self,
            revision=revision,
            agent_text=event.text,
            agent_items=event.items,
            steps=(*self.steps, *event.steps) if self.steps else event.steps,
            outcome=event.outcome,
            status=event.status,
            handoff_message=event.message,
            complete_us=now_us,
            size_bytes=self.size_bytes
            + _size(event.text, event.items)
            + _utf8_bytes(event.message),
        )

    @property
    def consult(self) -> tuple[str, str] | None:
        """The agent that asks and the one that is asked, if the turn has text of a consult."""
        if self.asker:
            return self.asker, self.agent_id
        return (self.agent_id, self.asks) if self.asks else None

    def without_consult(self) -> TurnRecord:
        """Return the record for those who are neither of the two agents.

        The agent that asks may have said something to the user; that stays.
        """
        if self.asks:
            return changed(self, handoff_message="")
        return changed(self, agent_text="", agent_items=(), steps=(), handoff_message="")

    def keep_shown(self, shown: bytes) -> None:
        """Keep the record's bytes. They are derived from it, so a frozen record may keep them."""
        force_setattr(self, "shown", shown)


def changed(record: TurnRecord, **values: Any) -> TurnRecord:
    """Return a record with other values, without what was derived from the old ones."""
    return replace(record, **values, shown=b"", heard=[])


@dataclass(slots=True)
class HistoryFold:
    """Collects turns from changes, oldest first. May begin anywhere in the log.

    records_max, bytes_max: how much of the past is kept; 0 = all. is_cut: older turns are missing:
    they were dropped, or the fold began after the session's first change.
    """

    records_max: int = 0
    bytes_max: int = 0
    is_cut: bool = False
    _records: dict[tuple[str, str], TurnRecord] = field(default_factory=dict)
    # The same by agent; both are in the order of positions.
    _by_agent: dict[str, list[TurnRecord]] = field(default_factory=dict)
    _messages: dict[int, ev.MessageRouted] = field(default_factory=dict)
    _message_uses: dict[int, int] = field(default_factory=dict)
    _bytes: int = 0

    @property
    def records(self) -> list[TurnRecord]:
        """The turns so far, in the order of their dispatches."""
        return list(self._records.values())

    def latest(
        self, count: int, agent_id: str, *, but: str, after: int, task_id: str = ""
    ) -> list[TurnRecord]:
        """Return an agent's newest turns, "" for those of all agents, oldest first.

        but: a request that is left out. after: only turns after this revision. task_id: only turns
        of this task; "" = of every task.
        Every dispatch needs them, so this avoids interpreter steps per turn.
        """
        records = self._by_agent.get(agent_id, ()) if agent_id else self._records.values()
        if task_id:
            records = [record for record in records if record.task_id == task_id]
        found = list(islice(reversed(records), count + 1))
        # Nearly always the one left out is the newest, and occurs once.
        if found and found[0].request_id == but:
            del found[0]
        del found[count:]
        if but in map(_REQUEST_ID, found) or (found and found[-1].position[0] <= after):
            wanted = (r for r in reversed(records) if r.request_id != but and r.position[0] > after)
            found = list(islice(wanted, count))
        found.reverse()
        return found

    @staticmethod
    def have_messages(records: Iterable[TurnRecord]) -> bool:
        """Say whether all of them have the user's text."""
        return False not in map(_HAS_MESSAGE, records)

    def apply(self, revision: int, now_us: int, events: Iterable[ev.Event]) -> None:
        """Fold one change."""
        for place, event in enumerate(events):
            position = (revision, place)
            match event:
                case ev.MessageRouted():
                    self._messages[revision] = event
                    self._put(_opened(event, position, now_us))
                case ev.AgentHandedOff() if event.dispatches:
                    self._handed_over(event, position, now_us)
                case ev.TaskResumed():
                    self._resumed(event, position, now_us)
                case ev.TurnCompleted():
                    self._answer(event, position, now_us)
                case ev.StepsReported() if not self.records_max:
                    self._report(event, revision)
                case ev.TurnAbandoned():
                    known = self._records.get((event.request_id, event.agent_id))
                    if known is not None:
                        self._put(changed(known, abandoned=event.shown_cause, revision=revision))
                case ev.TurnAnswered():
                    self._answer_with(event, revision, now_us)
                case ev.TaskParked(cause="paused"):
                    self._note_parked(events, revision)
                case MessageSaid():
                    self._put(_said(event, position, now_us))
                case _:
                    pass
        self._trim()

    def _answer_with(self, event: ev.TurnAnswered, revision: int, now_us: int) -> None:
        known = self._records.get((event.request_id, event.agent_id))
        if known is not None:
            later = event.answered_by
            self._put(changed(known, answered_by=later, revision=revision, complete_us=now_us))

    def _note_parked(self, events: Iterable[ev.Event], revision: int) -> None:
        for event in events:
            if isinstance(event, ev.TaskPaused):
                known = self._records.get((event.request_id, event.agent_id))
                if known is not None:
                    self._put(changed(known, parks=True, revision=revision))

    def message(self, revision: int) -> ev.MessageRouted | None:
        """Return the user's message of a change, if the fold still has it."""
        return self._messages.get(revision)

    def _handed_over(
        self, event: ev.AgentHandedOff, position: tuple[int, int], now_us: int
    ) -> None:
        if not event.child_request_id or event.initiator is Initiator.COMPLETION:
            # The request goes on with another agent, and the first one is done with it: as an
            # agent that answered is already, unlike people who did not claim it.
            before = self._records.get((event.turn_request_id, event.from_agent))
            if before is not None and before.is_open:
                moved = changed(
                    before,
                    outcome=OutcomeKind.HANDOFF,
                    handoff_message=event.message,
                    complete_us=now_us,
                    revision=position[0],
                )
                self._put(moved)
        request_id = event.child_request_id or event.turn_request_id
        known = self._records.get((request_id, event.to_agent))
        if known is not None and known.status is not None:
            # It answered before it was given the request, and an agent answers a request once.
            return
        if known is not None:
            # It gets the request a second time; its place in the history is the later one.
            self._take((request_id, event.to_agent))
        is_consult = event.mode is HandoffMode.CONSULT
        asking = self._records.get((event.turn_request_id, event.from_agent))
        if is_consult and asking is not None:
            self._put(changed(asking, asks=event.to_agent))
        self._go_on(
            event,
            position,
            now_us,
            parent_request_id=event.turn_request_id if event.child_request_id else "",
            from_agent_id=event.from_agent,
            reason=event.route_reason,
            asker=event.from_agent if is_consult else "",
        )

    def _resumed(self, event: ev.TaskResumed, position: tuple[int, int], now_us: int) -> None:
        self._go_on(
            event,
            position,
            now_us,
            parent_request_id=event.request_id,
            from_agent_id=event.agent_id,
            reason=RouteReason.TASK_RESUMED,
        )

    def _go_on(
        self,
        event: ev.AgentHandedOff | ev.TaskResumed,
        position: tuple[int, int],
        now_us: int,
        *,
        parent_request_id: str,
        from_agent_id: str,
        reason: RouteReason,
        asker: str = "",
    ) -> None:
        """Add the turn of an agent with which an earlier message goes on."""
        sent = dispatched_by(event)
        assert sent is not None
        message = self._messages.get(sent.message_revision)
        self._put(
            TurnRecord(
                position=position,
                request_id=sent.request_id,
                agent_id=sent.agent_id,
                task_id=sent.task_id,
                message_revision=sent.message_revision,
                create_us=now_us,
                revision=position[0],
                parent_request_id=parent_request_id,
                from_agent_id=from_agent_id,
                reason=reason,
                asker=asker,
                has_message=message is not None,
                user_text=message.text if message else "",
                user_items=message.items if message else (),
                size_bytes=_size(message.text, message.items) if message else 0,
            )
        )

    def _answer(self, event: ev.TurnCompleted, position: tuple[int, int], now_us: int) -> None:
        known = self._records.get((event.request_id, event.agent_id))
        if known is None:
            if not event.own_entry:
                # The dispatch lies before the fold's beginning; TurnHistory looks answers up.
                return
            known = TurnRecord(
                position=position,
                request_id=event.request_id,
                agent_id=event.agent_id,
                task_id=event.task_id,
                message_revision=0,
                create_us=event.decided_us or now_us,
                revision=position[0],
                reason=RouteReason.DEGRADED if event.detail == ev.DEGRADED_DETAIL else None,
                user_text=event.user_text,
                user_items=event.user_items,
                size_bytes=_size(event.user_text, event.user_items),
            )
        self._put(known.answered(event, position[0], now_us))

    def _report(self, event: ev.StepsReported, revision: int) -> None:
        """Add steps that were reported before the answer. A fold in memory keeps none."""
        known = self._records.get((event.request_id, event.agent_id))
        if known is not None:
            steps = (replace(step, attempt=event.attempt) for step in event.steps)
            self._put(changed(known, steps=(*known.steps, *steps), revision=revision))

    def _put(self, record: TurnRecord) -> None:
        key = (record.request_id, record.agent_id)
        before = self._records.get(key)
        if before is not None and before.position != record.position:
            self._take(key)
            before = None
        self._records[key] = record
        if before is None:
            self._by_agent.setdefault(record.agent_id, []).append(record)
            self._bytes += record.size_bytes
        else:
            listed = self._by_agent[record.agent_id]
            # Usually the newest turn is answered.
            listed[-1 if listed[-1] is before else _place_in(listed, before)] = record
            self._bytes += record.size_bytes - before.size_bytes
            if before.message_revision == record.message_revision:
                return
            self._message_uses[before.message_revision] -= 1
        uses = self._message_uses
        uses[record.message_revision] = uses.get(record.message_revision, 0) + 1

    def _take(self, key: tuple[str, str]) -> None:
        record = self._records.pop(key)
        listed = self._by_agent[record.agent_id]
        del listed[_place_in(listed, record)]
        if not listed:
            del self._by_agent[record.agent_id]
        self._bytes -= record.size_bytes
        self._message_uses[record.message_revision] -= 1

    def _trim(self) -> None:
        """Drop the oldest turns, and messages that no record needs any more."""
        if not self.records_max:
            return
        records = self._records
        while len(records) > self.records_max or self._bytes > self.bytes_max > 0:
            if len(records) <= 1:
                break
            key = next(iter(records))
            revision = records[key].message_revision
            self._take(key)
            self.is_cut = True
            if not self._message_uses[revision]:
                del self._message_uses[revision]
                self._messages.pop(revision, None)


def _place_in(listed: list[TurnRecord], record: TurnRecord) -> int:
    """Return where a record is in a list that is in the order of positions."""
    return bisect_left(listed, record.position, key=_POSITION)


def _opened(event: ev.MessageRouted, position: tuple[int, int], now_us: int) -> TurnRecord:
    return TurnRecord(
        position=position,
        request_id=event.request_id,
        agent_id=event.agent_id,
        task_id=event.task_id,
        message_revision=position[0],
        create_us=now_us,
        revision=position[0],
        parent_request_id=event.continues,
        reason=event.shown_reason,
        user_text=event.text,
        user_items=event.items,
        size_bytes=_size(event.text, event.items),
    )


def _said(event: MessageSaid, position: tuple[int, int], now_us: int) -> TurnRecord:
    """Return the entry of a message that an agent said within a turn, or without one."""
    return TurnRecord(
        position=position,
        request_id=event.message_id,
        agent_id=event.agent_id,
        task_id=event.task_id,
        message_revision=0,
        create_us=now_us,
        revision=position[0],
        parent_request_id=event.request_id,
        agent_text=event.text,
        status=OutcomeStatus.APPLIED,
        complete_us=now_us,
        is_said=True,
        size_bytes=_size(event.text, ()),
    )


def _size(text: str, items: tuple[ev.Item, ...]) -> int:
    """Return the size of a message on the wire without framing: text and items, as UTF-8."""
    size_bytes = len(text) if text.isascii() else _utf8_bytes(text)
    for item in items:
        size_bytes += len(item.content_type) + len(item.data or b"")
        size_bytes += _utf8_bytes(item.text or "") + _utf8_bytes(item.uri or "")
    return size_bytes


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
