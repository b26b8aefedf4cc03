"""Turns in inboxes as the sessions have them: what is offered, and whose lease counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import structlog

from routing_service.core import events as ev
from routing_service.core.commands import DispatchPlan
from routing_service.core.decide import view
from routing_service.core.errors import Reason, RoutingError
from routing_service.core.history import TurnRecord
from routing_service.core.inbox import (
    find_live,
    find_placed,
    find_waiting,
    place_of,
    waiting_places,
)
from routing_service.core.people import turns_of_person
from routing_service.core.registry import Registry
from routing_service.core.session import OpenTurn, SessionState
from routing_service.core.strand_fold import seen_from
from routing_service.sessions.calls import Call
from routing_service.sessions.dispatch_history import DispatchHistory
from routing_service.sessions.inbox_entries import entry_at, place_at
from routing_service.sessions.session_cache import SessionCache
from routing_service.sessions.session_reads import SessionReads
from routing_service.storage.checked_store import Store
from routing_service.storage.queue_entries import QueueEntry, QueueItem
from routing_service.storage.store import SchemaTooNew, SessionKey, StoreCorrupt

METHOD: Final = "WatchInbox"

READS_AT_ONCE: Final = 16
"""Sessions that one listing loads at the same time, as many as the lists of approvals."""

_log = structlog.get_logger(__name__)


class WaitingTurn(msgspec.Struct, frozen=True):
    """A turn that waits in an inbox, with everything that its worker needs."""

    state: SessionState
    turn: OpenTurn
    plan: DispatchPlan
    message: ev.MessageRouted | None
    history: tuple[TurnRecord, ...]


class HeldTurn(msgspec.Struct, frozen=True):
    """A turn in an inbox for operators: its entry with the lease, as it stands."""

    item: QueueItem
    state: SessionState
    turn: OpenTurn


class WaitingConversation(msgspec.Struct, frozen=True):
    """A task that waits in an inbox, with the requests that wait in it, the oldest first.

    state: the session, as it is seen from the task. is_with_person: a person has the task.
    """

    key: SessionKey
    state: SessionState
    requests: list[tuple[DispatchPlan, ev.MessageRouted | None]]
    is_with_person: bool


class InboxTurns:
    """The waiting turns of one store's sessions."""

    def __init__(
        self,
        store: Store,
        cache: SessionCache,
        reads: SessionReads,
        history: DispatchHistory,
        registry: Callable[[], Registry],
        *,
        clock_us: Callable[[], int],
    ) -> None:
        """Read through a cache of sessions."""
        self._clock_us = clock_us
        self._store = store
        self._cache = cache
        self._reads = reads
        self._history = history
        self._registry = registry

    async def find(
        self, tenant: str, entry: QueueEntry, history_turns: int, *, is_again: bool = False
    ) -> WaitingTurn | None:
        """Return the turn that an entry stands for; None if it does not wait any more.

        history_turns: as in RouteRequest. is_again: for the worker that has it, which may finish
        it although it was overtaken. Raises StoreError.
        """
        key = SessionKey(tenant, entry.session_id)
        async with self._cache.hold(key) as hot:
            state = await self._cache.current(key, hot)
            place = place_at(entry)
            turn = find_placed(state, place) if is_again else find_waiting(state, place)
            if state is None or turn is None:
                return None
            plan, message = await self._reads.open_dispatch(key, turn)
            call = Call(key, METHOD, "", b"", history_turns=history_turns)
            home_id = self._registry().home_agent_id
            history = await self._history.past_turns(hot, call, plan, state, home_id)
        return WaitingTurn(state, turn, plan, message, history)

    async def users_of(self, tenant: str, entries: Sequence[QueueEntry]) -> dict[QueueEntry, str]:
        """Return the users of entries' sessions, "" for those that have none. Raises StoreError."""
        users: dict[QueueEntry, str] = {}
        unknown: list[QueueEntry] = []
        for entry in entries:
            state = self._cache.peek(SessionKey(tenant, entry.session_id))
            if state is not None:
                users[entry] = state.owner
            else:
                unknown.append(entry)
        for at in range(0, len(unknown), READS_AT_ONCE):
            part = unknown[at : at + READS_AT_ONCE]
            read = await asyncio.gather(*(self._user_of(tenant, entry) for entry in part))
            users.update(zip(part, read, strict=True))
        return users

    async def _user_of(self, tenant: str, entry: QueueEntry) -> str:
        try:
            row = await self._store.find_session(SessionKey(tenant, entry.session_id))
        except (StoreCorrupt, SchemaTooNew):
            return ""  # Its offer fails, and is logged.
        return row.user_id if row is not None else ""

    async def waiting(
        self, tenant: str, agent_id: str, after: QueueEntry | None, count: int
    ) -> list[tuple[QueueEntry, WaitingConversation | None]]:
        """Return up to count entries of an inbox after one of them, the longest waiting first.

        Each with what it stands for; None for one that waits no longer, which is removed, and for a
        session that cannot be read, which is logged. Raises StoreError.
        """
        items = await self._store.read_queue(tenant, agent_id, after, count)
        found: list[tuple[QueueEntry, WaitingConversation | None]] = []
        for at in range(0, len(items), READS_AT_ONCE):
            entries = [item.entry for item in items[at : at + READS_AT_ONCE]]
            read = await asyncio.gather(*(self._conversation(tenant, entry) for entry in entries))
            found += zip(entries, read, strict=True)
        return found

    async def _conversation(self, tenant: str, entry: QueueEntry) -> WaitingConversation | None:
        key = SessionKey(tenant, entry.session_id)
        registry = self._registry()
        try:
            async with self._cache.hold(key) as hot:
                state = await self._cache.current(key, hot)
                place = place_at(entry)
                if state is None or place not in waiting_places(state, registry):
                    await self._store.mend_queue(tenant, (), (entry,))
                    return None
                state = view(state, registry, self._clock_us())
                turns = turns_of_person(state, registry)
                is_with_person = any(place_of(turn) == place for turn in turns)
                if not is_with_person:
                    turn = find_waiting(state, place)
                    turns = (turn,) if turn is not None else ()
                    # A parked task has a claim and requests of its own.
                    parked = seen_from(state, turn.task_id) if turn is not None else state
                    is_with_person = turn in turns_of_person(parked, registry)
                    if is_with_person:
                        state, turns = parked, turns_of_person(parked, registry)
                requests = [await self._reads.open_dispatch(key, turn) for turn in turns]
        except (StoreCorrupt, SchemaTooNew) as error:
            _log.warning("inbox_entry_not_read", session_id=entry.session_id, error=str(error))
            return None
        return WaitingConversation(key, state, requests, is_with_person=is_with_person)

    async def list(
        self, tenant: str, queue: str, after: QueueEntry | None, count: int
    ) -> tuple[list[QueueEntry], list[HeldTurn]]:
        """Return up to count entries of a queue, and the turns that they still stand for.

        A damaged session is logged and left out. Raises StoreError.
        """
        items = await self._store.read_queue(tenant, queue, after, count)
        held: list[HeldTurn] = []
        for at in range(0, len(items), READS_AT_ONCE):
            part = items[at : at + READS_AT_ONCE]
            found = await asyncio.gather(*(self._held(tenant, item) for item in part))
            held += [each for each in found if each is not None]
        return [item.entry for item in items], held

    async def _held(self, tenant: str, item: QueueItem) -> HeldTurn | None:
        key = SessionKey(tenant, item.entry.session_id)
        try:
            async with self._cache.hold(key) as hot:
                state = await self._cache.current(key, hot)
        except (StoreCorrupt, SchemaTooNew) as error:
            _log.warning("inbox_turn_not_read", session_id=key.session_id, error=str(error))
            return None
        place = place_at(item.entry)
        turn = find_waiting(state, place)
        if turn is None and state is not None and place in waiting_places(state, self._registry()):
            # The first of a person's turns, which is not the live one, or one that was overtaken.
            turn = find_placed(state, place)
        return HeldTurn(item, state, turn) if state is not None and turn is not None else None

    async def put_back(self, key: SessionKey, entries: tuple[QueueEntry, ...]) -> None:
        """Put entries that a session should have and the store has lost. Raises StoreError."""
        for entry in entries:
            if await self._store.find_item(key.tenant, entry) is None:
                await self._store.mend_queue(key.tenant, (entry,), ())

    async def check_lease(self, call: Call, state: SessionState | None) -> None:
        """Raise LEASE_LOST if an answer's turn is another worker's, or was moved.

        A turn that is not open, or was overtaken, is left to the rules for late answers.
        """
        turn = find_live(state, call.request_id)
        if state is None or turn is None:
            return
        if turn.holder == call.actor:
            entry = entry_at(place_of(turn), state.session_id)
            item = await self._store.find_item(call.key.tenant, entry)
            if item is None or item.token == call.lease_token:
                return
        raise RoutingError(
            Reason.LEASE_LOST,
            f'the lease on request "{call.request_id}" is no longer yours; another worker has the '
            "turn, or it was moved or given back",
            metadata={
                "request_id": call.request_id,
                "agent_id": call.actor,
                "session_id": call.key.session_id,
            },
        )
