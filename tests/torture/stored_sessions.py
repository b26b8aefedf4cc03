"""Checks of stored data: states, requests and tasks against their log.

Owns the checks that need only the store. Everything is read through a newly opened store.
"""

from __future__ import annotations

from collections import defaultdict

from routing_service.core.evolve import apply_change
from routing_service.core.session import SessionState
from routing_service.storage.checked_store import Store
from routing_service.storage.event_codec import decode_change, decode_state
from routing_service.storage.open_store import open_store
from routing_service.storage.store import CURSOR_START, PAGE_ROWS_MAX, Change, SessionKey
from tests.torture.linearisability import Observed, Violation, check
from tests.torture.recorder import stored_changes


async def violations(url: str, history: list[Observed]) -> list[Violation]:
    """Open a server's store and check it, also against what callers saw."""
    store = await open_store(url)
    try:
        found = [Violation("stored", "", told) for told in await contradictions(store)]
        return found + check(history, await stored_changes(store))
    finally:
        await store.close()


async def contradictions(store: Store) -> list[str]:
    """Return sessions whose state is missing or is not the fold of their events."""
    found = []
    for key, changes in (await _sessions(store)).items():
        if [change.revision for change in changes] != list(range(1, len(changes) + 1)):
            found.append(f"{key}: revisions are {[change.revision for change in changes][:20]} …")
            continue
        head = await store.load(key)
        if head is None or head.revision != len(changes):
            found.append(f"{key}: {len(changes)} changes, the head is {head and head.revision}")
        elif decode_state(head.state) != replayed(key, changes):
            found.append(f"{key}: the state at revision {head.revision} is not its own replay")
        first = changes[0]
        if first.request_id and not await store.find_request(
            key, first.method, first.request_id, first.actor
        ):
            found.append(f"{key}: request {first.request_id} is in the log and cannot be found")
    return found


def replayed(key: SessionKey, changes: list[Change]) -> SessionState:
    """Fold a session's events, from the first."""
    state: SessionState | None = None
    for change in changes:
        stored = decode_change(change.events)
        state = apply_change(
            state,
            stored.events,
            session_id=key.session_id,
            now_us=change.time_us,
            registry_version=stored.registry_version,
        )
    assert state is not None
    return state


async def _sessions(store: Store) -> dict[SessionKey, list[Change]]:
    sessions: defaultdict[SessionKey, list[Change]] = defaultdict(list)
    cursor = CURSOR_START
    while True:
        page, cursor = await store.read_log(cursor, PAGE_ROWS_MAX)
        for key, change in page:
            sessions[key].append(change)
        if len(page) < PAGE_ROWS_MAX:
            return sessions
