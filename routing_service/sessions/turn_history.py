"""Turns read back from the log: pages of history, an agent's recent turns, a late answer's turn.

Rule: the number of changes read per returned turn is bounded; an answer that came much later is
looked up by its request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from routing_service.core import events as ev
from routing_service.core.commands import HandoffPlan
from routing_service.core.dispatches import dispatched_by
from routing_service.core.events import NoteAdded
from routing_service.core.facts import HandedBefore, KnownTurn
from routing_service.core.history import HistoryFold, TurnRecord, changed
from routing_service.core.turn_ids import revision_of_child
from routing_service.core.vocabulary import HandoffMode, Initiator
from routing_service.storage.checked_store import Store
from routing_service.storage.event_codec import StoredEvents, decode_change, decode_events
from routing_service.storage.store import INT_MAX, Change, SessionKey

COMPLETE_TURN: Final = "CompleteTurn"
ROUTE: Final = "Route"
RESUME_TASK: Final = "ResumeTask"

BATCH_CHANGES: Final = 100
"""Changes per read: a page of 50 turns with its answers, in one round trip."""

SCAN_CHANGES_MAX: Final = 400
"""How far back an agent's recent turns are searched for a dispatch: it bounds the cost of a message
in a session in which the agent was last active long ago."""

LATEST_CHANGES: Final = 8
"""Where a handoff is looked for first that its agent has not used yet."""

_ENDS_HANDOFF: Final = (
    ev.AgentCleared,
    ev.StickinessExpired,
    ev.TaskParked,
    ev.TaskForegrounded,
    ev.StrandChosen,
)
"""Events after which the conversation is with its agent for another reason."""

_BY_MESSAGE: Final = frozenset({Initiator.USER, Initiator.TOPIC})
"""Initiators of a handoff in the change of a user's message: its command, or its topic."""

Wanted = Callable[[TurnRecord], bool]


class TurnHistory:
    """Reads turns of one store."""

    def __init__(self, store: Store) -> None:
        """Read from store."""
        self._store = store

    async def oldest_first(
        self, key: SessionKey, after: tuple[int, int], count: int, wanted: Wanted
    ) -> list[TurnRecord]:
        """Return up to count wanted turns after a position, in order."""
        fold = HistoryFold()
        last = max(0, after[0] - 1)
        is_whole = False
        elsewhere: set[tuple[int, int]] = set()

        def page() -> list[TurnRecord]:
            records = (r for r in fold.records if r.position > after and wanted(r))
            return [r for r in records if r.position not in elsewhere][:count]

        while True:
            while len(page()) < count and not is_whole:
                changes = await self._store.read_changes(key, after=last, limit=BATCH_CHANGES)
                _fold(fold, changes)
                is_whole = len(changes) < BATCH_CHANGES
                last = changes[-1].revision if changes else last
            if not is_whole:
                last, is_whole = await self._look_ahead(key, fold, last, page)
            records = page()
            filled = [await self._filled(key, record, fold) for record in records]
            if None not in filled:
                return [record for record in filled if record is not None]
            elsewhere.update(
                record.position
                for record, there in zip(records, filled, strict=True)
                if there is None
            )

    async def newest_first(
        self, key: SessionKey, before: tuple[int, int] | None, count: int, wanted: Wanted
    ) -> list[TurnRecord]:
        """Return up to count wanted turns before a position (None = the end), newest first."""
        found: list[TurnRecord] = []
        end = before or (INT_MAX - 1, 0)
        before_revision: int | None = end[0] + 1 if before else None
        # The changes after the batch: in them its turns are answered, abandoned or moved.
        newer: list[Change] = []
        while len(found) < count:
            changes = await self._store.read_changes(
                key, before=before_revision, limit=BATCH_CHANGES, newest_first=True
            )
            if not changes:
                break
            batch = changes[::-1]
            fold = HistoryFold()
            _fold(fold, batch)
            place = min(end, (batch[-1].revision + 1, 0))

            def listed(fold: HistoryFold = fold, end: tuple[int, int] = place) -> list[TurnRecord]:
                return [r for r in reversed(fold.records) if r.position < end and wanted(r)]

            if any(record.status is None for record in listed()):
                _fold(fold, newer)
                if before is not None:
                    after = (newer or batch)[-1].revision
                    await self._look_ahead(key, fold, after, listed)
            for record in listed():
                filled = await self._filled(key, record, fold) if len(found) < count else None
                if filled is not None:
                    found.append(filled)
            if len(changes) < BATCH_CHANGES:
                break
            before_revision = changes[-1].revision
            newer = [*batch, *newer][:SCAN_CHANGES_MAX]
        return found

    async def _look_ahead(
        self, key: SessionKey, fold: HistoryFold, after: int, page: Callable[[], list[TurnRecord]]
    ) -> tuple[int, bool]:
        """Fold the next changes, until each turn of a page has its answer or a bound is reached.

        A turn stays open for a few messages or minutes, so its end is near if it has come at all.
        Returns the last revision that is folded, and whether that is the log's end.
        """
        for _ in range(SCAN_CHANGES_MAX // BATCH_CHANGES):
            if all(record.status is not None for record in page()):
                break
            changes = await self._store.read_changes(key, after=after, limit=BATCH_CHANGES)
            _fold(fold, changes)
            after = changes[-1].revision if changes else after
            if len(changes) < BATCH_CHANGES:
                return after, True
        return after, False

    async def as_of(
        self, key: SessionKey, revision: int, count: int, wanted: Wanted, *, must_find: bool
    ) -> list[TurnRecord]:
        """Return the newest wanted turns as they stood after a revision, oldest first.

        Answers that came later are left out, so that the result is always the same.
        Only the last SCAN_CHANGES_MAX changes are looked through; must_find: or more, until there
        is a turn.
        """
        found: list[TurnRecord] = []
        changes: list[Change] = []
        before = revision + 1
        while len(changes) < SCAN_CHANGES_MAX or (must_find and not found):
            page = await self._store.read_changes(
                key, before=before, limit=BATCH_CHANGES, newest_first=True
            )
            changes += page
            fold = HistoryFold()
            _fold(fold, changes[::-1])
            found = [record for record in fold.records if wanted(record)]
            if len(found) >= count or len(page) < BATCH_CHANGES:
                break
            before = page[-1].revision
        return [await self._with_message(key, record) for record in found[-count:]]

    async def message(self, key: SessionKey, revision: int) -> ev.MessageRouted | None:
        """Return the user's message that a change holds."""
        for event in await self._events(key, revision):
            if isinstance(event, ev.MessageRouted):
                return event
        return None

    async def queued(self, key: SessionKey, revision: int) -> ev.MessageQueued | None:
        """Return the message that a change let wait."""
        for event in await self._events(key, revision):
            if isinstance(event, ev.MessageQueued):
                return event
        return None

    async def dispatch_event(
        self, key: SessionKey, revision: int
    ) -> ev.MessageRouted | ev.AgentHandedOff | ev.TaskResumed | None:
        """Return the event by which a change gave an agent a request."""
        return (await self.dispatched(key, revision))[0]

    async def dispatched(
        self, key: SessionKey, revision: int
    ) -> tuple[ev.MessageRouted | ev.AgentHandedOff | ev.TaskResumed | None, str]:
        """Return the event by which a change gave an agent a request, and the call's trace id."""
        stored = await self._stored(key, revision)
        for event in stored.events if stored else ():
            if dispatched_by(event) is not None:
                assert stored is not None
                assert isinstance(event, ev.MessageRouted | ev.AgentHandedOff | ev.TaskResumed)
                return event, stored.trace_id
        return None, ""

    async def question(self, key: SessionKey, request_id: str) -> str:
        """Return what the agent of a consult was asked. request_id: the consulted agent's."""
        event = await self.dispatch_event(key, revision_of_child(request_id))
        return event.message or event.reason if isinstance(event, ev.AgentHandedOff) else ""

    async def consult_of(self, key: SessionKey, change: Change) -> tuple[str, str] | None:
        """Return who asks and who is asked, if a change holds steps of a consult; else None."""
        for reported in decode_events(change.events):
            if isinstance(reported, ev.StepsReported):
                event = await self.dispatch_event(key, revision_of_child(reported.request_id))
                if (
                    isinstance(event, ev.AgentHandedOff)
                    and event.mode is HandoffMode.CONSULT
                    and event.child_request_id == reported.request_id
                ):
                    return event.from_agent, event.to_agent
        return None

    async def selection(self, key: SessionKey, revision: int) -> ev.AgentHandedOff | None:
        """Return the handoff by which a message opened its turn with another agent."""
        for event in await self._events(key, revision):
            if isinstance(event, ev.AgentHandedOff) and event.initiator in _BY_MESSAGE:
                return event
        return None

    async def standing_handoff(self, key: SessionKey, agent_id: str) -> HandedBefore | None:
        """Return the handoff outside a turn by which an agent has the conversation, if it has so.

        It is the latest change of the conversation's agent, usually among the last few changes.
        """
        before: int | None = None
        for count in (LATEST_CHANGES, *[BATCH_CHANGES] * (SCAN_CHANGES_MAX // BATCH_CHANGES)):
            changes = await self._store.read_changes(
                key, before=before, limit=count, newest_first=True
            )
            for change in changes:
                for event in reversed(decode_events(change.events)):
                    if isinstance(event, ev.AgentHandedOff) and (event.moves or event.settles):
                        is_its = event.to_agent == agent_id and not event.turn_request_id
                        if not is_its or event.settles:
                            return None
                        return HandedBefore(plan_of(event), change.revision)
                    if isinstance(event, _ENDS_HANDOFF):
                        return None
            if len(changes) < count:
                return None
            before = changes[-1].revision
        return None

    async def abandon_cause(self, key: SessionKey, request_id: str) -> str:
        """Return why a turn was abandoned, "" if it was not. It asks for the latest changes only.

        A worker that still has the turn hears of its end within seconds.
        """
        changes = await self._store.read_changes(key, limit=BATCH_CHANGES, newest_first=True)
        for change in changes:
            for event in decode_events(change.events):
                if isinstance(event, ev.TurnAbandoned) and event.request_id == request_id:
                    return event.shown_cause
        return ""

    async def handoff_at(
        self, key: SessionKey, revision: int, agent_id: str
    ) -> ev.AgentHandedOff | None:
        """Return the handoff outside a turn by which a change gave an agent the conversation."""
        for event in reversed(await self._events(key, revision)):
            if isinstance(event, ev.AgentHandedOff) and event.to_agent == agent_id:
                return event
        return None

    async def answer(
        self, key: SessionKey, request_id: str, agent_id: str
    ) -> ev.TurnCompleted | None:
        """Return an agent's answer to a request, if there is one."""
        change = await self._store.find_request(key, COMPLETE_TURN, request_id, agent_id)
        for event in decode_events(change.events) if change else ():
            if isinstance(event, ev.TurnCompleted):
                return event
        return None

    async def find_known_turn(self, key: SessionKey, request_id: str) -> KnownTurn | None:
        """Return the turn that a request was dispatched in, however long ago; None for none."""
        routed = await self._store.find_request(key, ROUTE, request_id)
        if routed is not None:
            return _known_turn(decode_events(routed.events), request_id)
        return await self._find_child(key, request_id)

    async def was_asked(self, key: SessionKey, request_id: str, agent_id: str) -> bool:
        """Say whether an agent was ever given a request.

        A request is handed on within minutes of its dispatch, so only what follows that is read.
        """
        routed = await self._store.find_request(key, ROUTE, request_id)
        after = max(0, (routed.revision if routed else revision_of_child(request_id)) - 1)
        for _ in range(SCAN_CHANGES_MAX // BATCH_CHANGES):
            changes = await self._store.read_changes(key, after=after, limit=BATCH_CHANGES)
            for change in changes:
                if _gives(change, request_id, agent_id):
                    return True
            if len(changes) < BATCH_CHANGES:
                break
            after = changes[-1].revision
        return False

    async def is_child(self, key: SessionKey, request_id: str) -> bool:
        """Say whether the service itself made this request in the session."""
        return await self._find_child(key, request_id) is not None

    async def notes(self, key: SessionKey, revisions: Iterable[int]) -> list[tuple[int, NoteAdded]]:
        """Return the notes that these changes hold, with their times."""
        found: list[tuple[int, NoteAdded]] = []
        for revision in revisions:
            changes = await self._store.read_changes(
                key, after=revision - 1, before=revision + 1, limit=1
            )
            found += [
                (change.time_us, event)
                for change in changes
                for event in decode_events(change.events)
                if isinstance(event, NoteAdded)
            ]
        return found

    async def voter_names(
        self, key: SessionKey, request_id: str, voters: Iterable[str]
    ) -> frozenset[str]:
        """Return the hashes of all names of those who approved a request. voters: as in Approval.

        The state has one name of each; the change that holds a vote has the others.
        """
        names = set(voters)
        for voter in tuple(names):
            change = await self._store.find_request(key, RESUME_TASK, request_id, voter)
            for event in decode_events(change.events) if change else ():
                if isinstance(event, ev.ApprovalVoted):
                    names.update(event.other_names)
        return frozenset(names)

    async def _find_child(self, key: SessionKey, request_id: str) -> KnownTurn | None:
        # A handoff, a resumption, or a suggestion accepted by a handoff, which opened a turn.
        events = await self._events(key, revision_of_child(request_id))
        return _known_turn(events, request_id)

    async def _events(self, key: SessionKey, revision: int) -> list[ev.Event]:
        stored = await self._stored(key, revision)
        return stored.events if stored else []

    async def _stored(self, key: SessionKey, revision: int) -> StoredEvents | None:
        if revision < 1:
            return None
        changes = await self._store.read_changes(
            key, after=revision - 1, before=revision + 1, limit=1
        )
        return decode_change(changes[0].events) if changes else None

    async def _filled(
        self, key: SessionKey, record: TurnRecord, fold: HistoryFold
    ) -> TurnRecord | None:
        """Return the record with what is outside the changes that were folded.

        None: its agent answered before it was given the request, so its place is there.
        """
        if record.status is None:
            answer = await self._store.find_request(
                key, COMPLETE_TURN, record.request_id, record.agent_id
            )
            if answer is not None:
                if answer.revision < record.position[0]:
                    return None
                for event in decode_events(answer.events):
                    if isinstance(event, ev.TurnCompleted):
                        record = record.answered(event, answer.revision, answer.time_us)
                    elif isinstance(event, ev.TaskParked) and event.cause == "paused":
                        record = changed(record, parks=True)
                    elif isinstance(event, ev.AgentHandedOff) and event.mode is HandoffMode.CONSULT:
                        record = changed(record, asks=event.to_agent)
        if record.has_message:
            return record
        message = fold.message(record.message_revision)
        if message is not None:
            return _with_words(record, message)
        return await self._with_message(key, record)

    async def _with_message(self, key: SessionKey, record: TurnRecord) -> TurnRecord:
        if record.has_message:
            return record
        message = await self.message(key, record.message_revision)
        return _with_words(record, message) if message else record


def plan_of(event: ev.AgentHandedOff) -> HandoffPlan:
    """Return a handoff as it was reported when it happened."""
    return HandoffPlan(
        from_agent=event.from_agent,
        to_agent=event.to_agent,
        initiator=event.initiator,
        mode=event.mode,
        reason=event.reason,
        context=event.context,
        message=event.message,
    )


def _with_words(record: TurnRecord, message: ev.MessageRouted) -> TurnRecord:
    return changed(record, has_message=True, user_text=message.text, user_items=message.items)


def _known_turn(events: Iterable[ev.Event], request_id: str) -> KnownTurn | None:
    """Return the turn that a change opened with a request of this id."""
    for event in events:
        sent = dispatched_by(event)
        if sent is not None and sent.makes_request and sent.request_id == request_id:
            return KnownTurn(sent.root_request_id, sent.task_id, sent.agent_id)
    return None


def _gives(change: Change, request_id: str, agent_id: str) -> bool:
    """Say whether a change gave a request to an agent."""
    sent = [dispatched_by(event) for event in decode_events(change.events)]
    return any(s is not None and (s.request_id, s.agent_id) == (request_id, agent_id) for s in sent)


def _fold(fold: HistoryFold, changes: list[Change]) -> None:
    for change in changes:
        fold.apply(change.revision, change.time_us, decode_events(change.events))
