"""The live sessions that have to do with some agents, counted before a registry is put in force."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from routing_service.core.session import SessionState
from routing_service.core.strand_fold import turns_of
from routing_service.storage.checked_store import Store
from routing_service.storage.event_codec import decode_state
from routing_service.storage.store import SchemaTooNew, StoreCorrupt

SESSIONS_READ_MAX: Final = 10_000
"""Sessions that one call reads. With more in the store the counts are too low, and it says so."""

READ_MAX: Final = 500

EXAMPLES_MAX: Final = 5


@dataclass(slots=True)
class Touched:
    """Live sessions of one agent. active: it has the conversation. interrupted: it gets it back."""

    active: int = 0
    interrupted: int = 0
    answering: int = 0
    examples: list[str] = field(default_factory=list)


@dataclass(slots=True)
class TouchedSessions:
    """The result. is_complete: whether every session was read. by_agent: only agents with any."""

    sessions_read: int = 0
    is_complete: bool = True
    by_agent: dict[str, Touched] = field(default_factory=dict)


async def count_touched(
    store: Store,
    tenants: Iterable[str],
    agent_ids: Collection[str],
    *,
    home_agent_id: str,
    shown_id: Callable[[str], str],
    read_max: int = SESSIONS_READ_MAX,
) -> TouchedSessions:
    """Read sessions of the tenants, and count those that have to do with the agents.

    home_agent_id: has the conversations in which no agent is active. shown_id: makes an example of
    a session id. A session that cannot be read is left out of the counts.
    """
    counted = TouchedSessions()
    for tenant in tenants:
        cursor = b""
        while True:
            room = min(READ_MAX, read_max - counted.sessions_read)
            if not room:
                counted.is_complete = False
                return counted
            rows, cursor = await store.list_sessions(tenant, cursor, room)
            for row in rows:
                counted.sessions_read += 1
                head = await store.load(row.key)
                if head is None:
                    continue
                try:
                    state = decode_state(head.state)
                except (StoreCorrupt, SchemaTooNew):
                    continue
                _count(counted, state, agent_ids, home_agent_id, shown_id)
            if len(rows) < room:
                break
    return counted


def _count(
    counted: TouchedSessions,
    state: SessionState,
    agent_ids: Collection[str],
    home_agent_id: str,
    shown_id: Callable[[str], str],
) -> None:
    parked = state.apart.parked if state.apart is not None else ()
    turns = [*state.open_turns, *([state.paused] if state.paused else [])]
    turns += [turn for strand in parked for turn in turns_of(strand)]
    if state.erased or not (state.active or turns or state.open_task):
        return
    active = {state.active_id or home_agent_id}
    interrupted = {tenure.agent_id for tenure in state.stack}
    # The agent of a parked task comes back to it, as an interrupted one does.
    interrupted |= {strand.active.agent_id for strand in parked if strand.active}
    interrupted |= {tenure.agent_id for strand in parked for tenure in strand.stack}
    answering = {turn.holder for turn in turns}
    for agent_id in (active | interrupted | answering) & set(agent_ids):
        touched = counted.by_agent.setdefault(agent_id, Touched())
        touched.active += agent_id in active
        touched.interrupted += agent_id in interrupted
        touched.answering += agent_id in answering
        if len(touched.examples) < EXAMPLES_MAX:
            touched.examples.append(shown_id(state.session_id))
