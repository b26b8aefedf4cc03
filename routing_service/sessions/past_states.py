"""The state of a session after any of its changes, folded again from the log.

Rule: nothing is written, and memory holds one page of changes and the marks.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

import msgspec

from routing_service.core import events as ev
from routing_service.core.errors import (
    Reason,
    RoutingError,
    Violation,
    session_erased,
    unknown_session,
)
from routing_service.core.evolve import apply_change
from routing_service.core.session import SessionState
from routing_service.storage.checked_store import Store
from routing_service.storage.event_codec import decode_change, decode_state
from routing_service.storage.store import Change, SessionKey, StoreCorrupt

PAGE_CHANGES: Final = 64
"""Changes read at once: each may have 300 KB of text."""

MARK_EVERY: Final = 256
"""Changes between two states that are kept. From a mark on, a call folds at most this many."""

MARKS_MAX: Final = 512
"""States that are kept, of all sessions: 4 MiB at the 8 KiB of the largest one."""


class _Mark(msgspec.Struct, frozen=True):
    """A state that was folded.

    is_blank: changes before it are erased, and the one that starts the state again comes later.
    """

    state: SessionState
    is_blank: bool


class PastStates:
    """Folds the sessions of one store."""

    def __init__(self, store: Store) -> None:
        """Keep no mark yet."""
        self._store = store
        self._marks: OrderedDict[tuple[SessionKey, int], _Mark] = OrderedDict()

    async def at(self, key: SessionKey, revision: int) -> tuple[SessionState, int]:
        """Return the state after a change, and the latest revision. revision: 0 = the latest one.

        A call that runs out of time has kept its marks: a repeat continues from there.
        Raises UNKNOWN_SESSION, INVALID_FIELD for a later revision than the latest, SESSION_ERASED,
        REVISION_COMPACTED; StoreError.
        """
        head = await self._store.load(key)
        if head is None:
            self._forget(key)
            raise unknown_session(key.session_id)
        if not 0 <= revision <= head.revision:
            raise _later(key, revision, head.revision)
        latest = decode_state(head.state)
        if latest.erased:
            self._forget(key)
        if revision in (0, head.revision):
            return latest, head.revision
        folded = await self._folded(key, revision, latest)
        if folded.is_blank:
            raise session_erased(key.session_id)
        return folded.state, head.revision

    async def _folded(self, key: SessionKey, revision: int, latest: SessionState) -> _Mark:
        """Fold up to a revision, from the nearest mark on."""
        mark = self._nearest(key, revision, latest.create_us)
        while mark is None or mark.state.revision < revision:
            after = mark.state.revision if mark is not None else 0
            limit = min(PAGE_CHANGES, revision - after)
            changes = await self._store.read_changes(key, after=after, limit=limit)
            for change in changes:
                mark = _after(key, mark, change)
                if mark.state.revision % MARK_EVERY == 0 and not latest.erased:
                    self._keep(key, mark)
            if len(changes) < limit and (mark is None or mark.state.revision < revision):
                # It was purged while it was read.
                raise unknown_session(key.session_id)
            # An engine in memory never waits, and other calls must go on.
            await asyncio.sleep(0)
        return mark

    def _nearest(self, key: SessionKey, revision: int, create_us: int) -> _Mark | None:
        """Return the latest mark up to a revision. create_us: of the session as it is now."""
        for place in range(revision - revision % MARK_EVERY, 0, -MARK_EVERY):
            found = self._marks.get((key, place))
            # Another session may have had this name, and have been purged.
            if found is not None and found.state.create_us == create_us:
                self._marks.move_to_end((key, place))
                return found
        return None

    def _keep(self, key: SessionKey, mark: _Mark) -> None:
        place = (key, mark.state.revision)
        self._marks[place] = mark
        self._marks.move_to_end(place)
        if len(self._marks) > MARKS_MAX:
            self._marks.popitem(last=False)

    def _forget(self, key: SessionKey) -> None:
        for place in [each for each in self._marks if each[0] == key]:
            del self._marks[place]


def _after(key: SessionKey, mark: _Mark | None, change: Change) -> _Mark:
    """Fold one change. Raises REVISION_COMPACTED, SESSION_ERASED; StoreError."""
    expected = mark.state.revision + 1 if mark is not None else 1
    if change.revision != expected:
        raise _compacted(key, expected, change.revision)
    stored = decode_change(change.events)
    is_blank = mark is not None and mark.is_blank
    if not stored.events:
        is_blank = True
    elif any(isinstance(event, ev.SessionErased) for event in stored.events):
        is_blank = False
    try:
        state = apply_change(
            mark.state if mark is not None else None,
            stored.events,
            session_id=key.session_id,
            now_us=change.time_us,
            registry_version=stored.registry_version,
        )
    except Exception as error:
        if is_blank:
            # An erasure that is under way, or was interrupted: what came before is blank already.
            raise session_erased(key.session_id) from error
        message = f'change {change.revision} of session "{key}" cannot be applied'
        raise StoreCorrupt(message) from error
    return _Mark(state, is_blank)


def _later(key: SessionKey, revision: int, head: int) -> RoutingError:
    detail = (
        f'is {revision}, and session "{key.session_id}" is at revision {head}; '
        f"give 1 to {head}, or 0 for the latest"
    )
    return RoutingError(
        Reason.INVALID_FIELD,
        f"revision {detail}",
        metadata={"field": "revision", "fields": "1"},
        violations=(Violation("revision", detail),),
    )


def _compacted(key: SessionKey, expected: int, found: int) -> RoutingError:
    return RoutingError(
        Reason.REVISION_COMPACTED,
        f'changes of session "{key.session_id}" are kept from revision {found}, not from '
        f"{expected}; read Status for its present state",
        metadata={
            "session_id": key.session_id,
            "after_revision": str(expected - 1),
            "oldest_revision": str(found),
        },
    )
