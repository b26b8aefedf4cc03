"""What is sent along with a dispatch: the user's message and the agent's recent turns.

Rule: the home agent sees every turn of the session, another agent only its own; what one agent
asked another is for these two alone. In a task that was open at the same time as another one, both
see only that task's. A repeat gets the turns that its first answer had.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Final

from routing_service.core import events as ev
from routing_service.core.commands import Decision, DispatchPlan
from routing_service.core.dispatches import dispatched_by
from routing_service.core.history import TurnRecord
from routing_service.core.identifiers import (
    HISTORY_BYTES_MAX,
    HISTORY_TURNS_DEFAULT,
    HISTORY_TURNS_MAX,
)
from routing_service.core.registry import Registry
from routing_service.core.session import SessionState
from routing_service.core.strand_fold import has_own_history
from routing_service.sessions.calls import Call
from routing_service.sessions.session_cache import HotSession
from routing_service.sessions.turn_history import SCAN_CHANGES_MAX, TurnHistory
from routing_service.storage.store import SessionKey

_SIZE_BYTES: Final = attrgetter("size_bytes")

Sent = tuple[ev.MessageRouted | None, tuple[TurnRecord, ...]]
"""The user's message, and the turns before it, oldest first."""


class DispatchHistory:
    """Finds them in memory, or else in the log."""

    def __init__(self, turns: TurnHistory, registry: Callable[[], Registry]) -> None:
        """Read the log through turns. registry: returns the present one."""
        self._turns = turns
        self._registry = registry

    async def past_turns(
        self, hot: HotSession, call: Call, dispatch: DispatchPlan, state: SessionState, home_id: str
    ) -> tuple[TurnRecord, ...]:
        """Return the turns that a new dispatch is sent with, oldest first. Raises StoreError.

        state: after the change that made the dispatch, or a later one.
        """
        count = history_count(call, locked=dispatch.locked)
        if not count:
            return ()
        revision = state.revision
        task_id = dispatch.task_id if has_own_history(state, dispatch.task_id) else ""
        fold = hot.fold
        if fold is not None:
            # Look no further back than a read of the log does: a repeat, or a server that does not
            # have the session in memory, must send the same turns.
            is_home = dispatch.agent_id == home_id
            found = fold.latest(
                count,
                "" if is_home else dispatch.agent_id,
                but=dispatch.request_id,
                after=revision - SCAN_CHANGES_MAX,
                task_id=task_id,
            )
            complete = fold.have_messages(found)
            enough = len(found) == count or not fold.is_cut
            if complete and enough and (found or not dispatch.locked):
                return _within_bytes(_for_home(home_id, found) if is_home else found)
        return await self._as_of(
            call.key,
            revision,
            count,
            dispatch.agent_id,
            dispatch.request_id,
            locked=dispatch.locked,
            task_id=task_id,
        )

    async def of_repeat(self, call: Call, revision: int, events: list[ev.Event]) -> Sent:
        """Return what the first answer to a repeated call was sent with. Raises StoreError.

        revision, events: of the change that the first call made.
        """
        history: tuple[TurnRecord, ...] = ()
        message: ev.MessageRouted | None = None
        for event in events:
            sent = dispatched_by(event)
            if isinstance(event, ev.TurnCompleted) and event.next_revision:
                moved = await self._turns.dispatch_event(call.key, event.next_revision)
                sent = dispatched_by(moved) if moved is not None else None
            elif sent is not None and not sent.makes_request:
                continue
            if sent is None:
                continue
            if isinstance(event, ev.MessageRouted):
                message = event
            else:
                message = await self._turns.message(call.key, sent.message_revision)
            count = history_count(call, locked=sent.locked)
            if count:
                history = await self._as_of(
                    call.key,
                    revision,
                    count,
                    sent.agent_id,
                    sent.request_id,
                    locked=sent.locked,
                    task_id=sent.task_id if sent.own_history else "",
                )
        return message, history

    async def message_at(
        self, key: SessionKey, hot: HotSession, revision: int
    ) -> ev.MessageRouted | None:
        """Return the user's message that a change holds, from memory if it is there."""
        known = hot.fold.message(revision) if hot.fold else None
        return known or await self._turns.message(key, revision)

    async def _as_of(
        self,
        key: SessionKey,
        revision: int,
        count: int,
        agent_id: str,
        request_id: str,
        *,
        locked: bool,
        task_id: str,
    ) -> tuple[TurnRecord, ...]:
        """Read them from the log. task_id: only turns of this task; "" = of every task."""
        is_home = agent_id == self._registry().home_agent_id

        def is_shown(record: TurnRecord) -> bool:
            is_of_task = not task_id or record.task_id == task_id
            is_of_agent = is_home or record.agent_id == agent_id
            return record.request_id != request_id and is_of_agent and is_of_task

        found = await self._turns.as_of(key, revision, count, is_shown, must_find=locked)
        return _within_bytes(_for_home(agent_id, found) if is_home else found)


def routed_message(decision: Decision) -> ev.MessageRouted | None:
    """Return the user's message that a decision dispatches for the first time."""
    for event in decision.events:
        if isinstance(event, ev.MessageRouted):
            return event
    return None


def history_count(call: Call, *, locked: bool) -> int:
    """Return how many past turns are sent along: a locked agent always gets its history."""
    asked = call.history_turns
    if asked < 0:
        return HISTORY_TURNS_DEFAULT if locked else 0
    return min(asked or HISTORY_TURNS_DEFAULT, HISTORY_TURNS_MAX)


def _for_home(home_id: str, records: list[TurnRecord]) -> list[TurnRecord]:
    """Return turns without the consults in which the home agent has no part.

    Another agent gets only its own turns, so it has a part in all of their consults.
    """
    return [
        record
        if (consult := record.consult) is None or home_id in consult
        else record.without_consult()
        for record in records
    ]


def _within_bytes(records: list[TurnRecord]) -> tuple[TurnRecord, ...]:
    """Leave out the oldest turns if all of them would exceed HISTORY_BYTES_MAX."""
    if sum(map(_SIZE_BYTES, records)) <= HISTORY_BYTES_MAX:
        return tuple(records)
    total = 0
    for place in range(len(records) - 1, -1, -1):
        total += records[place].size_bytes
        if total > HISTORY_BYTES_MAX:
            return tuple(records[place + 1 :])
    return tuple(records)
