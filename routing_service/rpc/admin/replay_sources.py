"""The stored conversations of a replay: which ones, and what is read of each.

Rule: the server serves callers meanwhile. What is read here takes a part of its time, READ_SHARE.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import routing_service_pb2 as rpb
from routing_service.auth.caller import ACT_AS, ADMIN, READ, Caller
from routing_service.core.errors import RoutingError
from routing_service.rpc.admin.replay_frames import Conversation
from routing_service.rpc.rpc_method import UnaryMethod
from routing_service.storage.checked_store import Store
from routing_service.storage.event_codec import decode_state
from routing_service.storage.store import SessionKey, StoreError, StoreUnavailable
from routing_service.telemetry.call_record import CallRecord

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

READ_SHARE: Final = 0.2
"""The part of the time in which conversations are read, at most; the rest is for callers."""

ROWS_READ_MAX: Final = 100
"""Rows of sessions read at once: a few milliseconds of work."""

SESSIONS_LOOKED_AT_MAX: Final = 1_000_000
"""Sessions that are looked at for one replay, in the order of their ids."""

PAGES_MAX: Final = 4
"""Pages of turns, and of events, that are read of a conversation. Longer ones are cut: the rest of
them would say little more, and a frame is bounded."""

_PAGE: Final = 500

EVENT_KINDS: Final = (
    "agent_handoff",
    "agent_cleared",
    "message_routed",
    "switch_suggested",
    "task_foregrounded",
    "task_parked",
    "switch_answered",
)
"""As KINDS of replay/stored_dialogues.py, which reads them: a test compares the two."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which conversations. from_us, before_us: of the last change; None = no limit."""

    tenant: str
    from_us: int | None
    before_us: int | None
    channel: str
    sessions_max: int


class ReplaySources:
    """Reads one store."""

    def __init__(self, store: Store, list_turns: UnaryMethod, list_events: UnaryMethod) -> None:
        """Read by the calls that list turns and events."""
        self._store = store
        self._list_turns = list_turns
        self._list_events = list_events

    async def choose(self, wanted: Wanted, found: Callable[[int], None]) -> tuple[list[str], bool]:
        """Return the ids of the sessions, and whether there are more than are returned.

        found: called with the number of those that match, as it grows. Raises StoreError.
        """
        chosen: list[str] = []
        matching = looked_at = 0
        cursor = b""
        chance = random.Random()  # noqa: S311 - a sample, no secret
        while looked_at < SESSIONS_LOOKED_AT_MAX:
            async with _a_share_of_the_time():
                rows, cursor = await self._store.list_sessions(wanted.tenant, cursor, ROWS_READ_MAX)
                looked_at += len(rows)
                for row in rows:
                    if not _is_in_time(wanted, row.update_us):
                        continue
                    if wanted.channel and await self._channel_of(row.key) != wanted.channel:
                        continue
                    matching += 1
                    # Each that matches is in the sample with the same probability.
                    place = chance.randrange(matching)
                    if len(chosen) < wanted.sessions_max:
                        chosen.append(row.key.session_id)
                    elif place < wanted.sessions_max:
                        chosen[place] = row.key.session_id
            found(min(matching, wanted.sessions_max))
            if len(rows) < ROWS_READ_MAX:
                break
        chosen.sort()
        return chosen, matching > len(chosen)

    async def read(self, key: SessionKey, home_agent_id: str) -> Conversation | None:
        """Read a conversation; None if it was erased or purged, or cannot be read.

        Raises StoreUnavailable.
        """
        async with _a_share_of_the_time():
            try:
                head = await self._store.load(key)
                if head is None:
                    return None
                state = decode_state(head.state)
                turns = await self._pages(self._turns_page, key)
                events = await self._pages(self._events_page, key)
            except StoreUnavailable:
                raise
            except (RoutingError, StoreError):
                return None
        return Conversation(
            session_id=key.session_id,
            home_agent_id=home_agent_id,
            locale=state.locale,
            channel=state.channel,
            entitlements=tuple(state.entitlements),
            turns=turns,
            events=events,
        )

    async def texts(self, key: SessionKey) -> dict[str, str]:
        """Return the user's texts of a session by request; none of one that cannot be read."""
        found: dict[str, str] = {}
        try:
            for page in await self._pages(self._turns_page, key):
                turns = rpb.ListTurnsResponse.FromString(page).turns
                found |= {turn.request_id: turn.user_text for turn in turns if turn.user_text}
        except RoutingError:
            return found
        return found

    async def _channel_of(self, key: SessionKey) -> str | None:
        head = await self._store.load(key)
        try:
            return None if head is None else decode_state(head.state).channel
        except StoreError:
            return None

    async def _pages(
        self, read_page: Callable[[SessionKey, str], Awaitable[tuple[bytes, str]]], key: SessionKey
    ) -> list[bytes]:
        pages: list[bytes] = []
        token = ""
        while len(pages) < PAGES_MAX:
            page, token = await read_page(key, token)
            pages.append(page)
            if not token:
                break
        return pages

    async def _turns_page(self, key: SessionKey, token: str) -> tuple[bytes, str]:
        request = rpb.ListTurnsRequest(session_id=key.session_id, page_size=_PAGE, page_token=token)
        caller = Caller(key.tenant, scopes=frozenset({READ, ACT_AS}))
        body = await _body_of("ListTurns", self._list_turns, caller, request.SerializeToString())
        return body, rpb.ListTurnsResponse.FromString(body).next_page_token

    async def _events_page(self, key: SessionKey, token: str) -> tuple[bytes, str]:
        request = pb.ListEventsRequest(
            session_id=key.session_id,
            kinds=EVENT_KINDS,
            order=pb.EVENT_ORDER_OLDEST_FIRST,
            page_size=_PAGE,
            page_token=token,
        )
        caller = Caller(key.tenant, scopes=frozenset({ADMIN}))
        body = await _body_of("ListEvents", self._list_events, caller, request.SerializeToString())
        return body, pb.ListEventsResponse.FromString(body).next_page_token


async def _body_of(name: str, method: UnaryMethod, caller: Caller, request: bytes) -> bytes:
    return (await method(caller, request, CallRecord(name))).body


def _is_in_time(wanted: Wanted, update_us: int) -> bool:
    is_late_enough = wanted.from_us is None or update_us >= wanted.from_us
    return is_late_enough and (wanted.before_us is None or update_us < wanted.before_us)


@asynccontextmanager
async def _a_share_of_the_time() -> AsyncIterator[None]:
    """Let the block be followed by a pause, so that blocks take READ_SHARE of the time."""
    began_s = time.perf_counter()
    yield
    took_s = time.perf_counter() - began_s
    await asyncio.sleep(took_s * (1 / READ_SHARE - 1))
