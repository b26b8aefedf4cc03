"""What readers of a session learn from the store beyond its state: open requests, tasks, approvals.

Nothing here changes a session.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from routing_service.core import events as ev
from routing_service.core.access import Access, owner_mismatch
from routing_service.core.commands import ConsultPlan, DispatchPlan, ResumePlan
from routing_service.core.errors import Reason, RoutingError
from routing_service.core.route_message import hinted_candidates
from routing_service.core.session import OpenTurn, SessionState
from routing_service.core.vocabulary import HandoffMode, OutcomeKind, RouteReason
from routing_service.sessions.calls import PendingApproval
from routing_service.sessions.turn_history import COMPLETE_TURN, TurnHistory, plan_of
from routing_service.storage.checked_store import Store
from routing_service.storage.event_codec import decode_events
from routing_service.storage.row_content import decode_metadata
from routing_service.storage.store import PAGE_ROWS_MAX, SessionKey, TaskCursor, TaskRow

_CHOSEN: Final = frozenset({RouteReason.USER_SELECTED, RouteReason.TOPIC_SWITCH})
"""Reasons of a message whose change also holds the handoff to the agent that got it."""


_MOVES: Final = (
    ev.MessageRouted,
    ev.AgentHandedOff,
    ev.AgentCleared,
    ev.StickinessExpired,
    ev.TaskResumed,
    ev.SessionErased,
)
"""Events after which a client that did not see them may have decided otherwise."""


class SessionReads:
    """Reads of one store."""

    def __init__(self, store: Store, turns: TurnHistory) -> None:
        """Read from store. turns: its history."""
        self._store = store
        self._turns = turns

    async def session_of_task(self, tenant: str, task_id: str, access: Access) -> str:
        """Return the session of a task that is named alone.

        Raises UNKNOWN_TASK; OWNER_MISMATCH without the session's id, so that a caller without
        access learns nothing; StoreError.
        """
        row = await self._store.find_task(tenant, task_id)
        if row is None:
            raise RoutingError(
                Reason.UNKNOWN_TASK,
                f'task "{task_id}" is not known; name its session_id, or leave task_id out',
                metadata={"task_id": task_id},
            )
        is_owner = row.user_id in ("", access.user_id)
        if not is_owner and (access.user_id or access.must_be_owner):
            raise owner_mismatch("task", task_id)
        return row.session_id

    async def routed_already(self, key: SessionKey, request_id: str) -> bool:
        """Say whether the service has routed a message itself. Raises StoreError."""
        return await self._store.find_request(key, "Route", request_id) is not None

    async def unmoved_head(self, key: SessionKey, revision: int) -> int | None:
        """Return the session's latest revision; None if something moved it after a revision.

        A message, a handoff, a clear and a decision about a task move it; turns reported by clients
        do not. Raises StoreError.
        """
        changes = await self._store.read_changes(key, after=revision, limit=PAGE_ROWS_MAX)
        if len(changes) == PAGE_ROWS_MAX:
            return None
        for change in changes:
            if any(isinstance(event, _MOVES) for event in decode_events(change.events)):
                return None
        return changes[-1].revision if changes else revision

    async def open_dispatch(
        self, key: SessionKey, turn: OpenTurn
    ) -> tuple[DispatchPlan, ev.MessageRouted | None]:
        """Return what an open request was dispatched with, and the user's message."""
        message = await self._turns.message(key, turn.message_revision)
        event, trace_id = await self._turns.dispatched(key, turn.dispatch_revision)
        plan = DispatchPlan(
            request_id=turn.request_id,
            task_id=turn.task_id,
            agent_id=turn.holder,
            reason=turn.reason,
            message_revision=turn.message_revision,
            inbox=turn.is_delivered,
            trace_id=trace_id,
        )
        match event:
            case ev.MessageRouted():
                plan = replace(
                    plan,
                    reason=event.shown_reason,
                    reason_detail=event.reason_detail,
                    previous_agent=event.previous_agent,
                    locked=event.locked,
                    candidates=hinted_candidates(event.topic) if event.topic else (),
                )
                if event.handoff_revision:
                    handed = await self._turns.handoff_at(key, event.handoff_revision, turn.holder)
                    plan = replace(plan, handoff=plan_of(handed) if handed else None)
                elif turn.reason in _CHOSEN:
                    chosen = await self._turns.selection(key, turn.dispatch_revision)
                    plan = replace(plan, handoff=plan_of(chosen) if chosen else None)
            case ev.TaskResumed():
                resume = ResumePlan(event.decision, event.comment)
                previous_agent = event.previous_agent or event.agent_id
                plan = replace(plan, previous_agent=previous_agent, resume=resume)
            case ev.AgentHandedOff():
                handoff = None if event.hands_back else plan_of(event)
                plan = replace(
                    plan,
                    previous_agent=event.from_agent,
                    locked=event.locked,
                    reason_detail=event.reason,
                    handoff=handoff,
                    consult=await self._consult(key, event, turn),
                )
            case None:
                pass
        return plan, message

    async def moved_dispatch(self, key: SessionKey, turn: OpenTurn) -> DispatchPlan | None:
        """Return the dispatch of a turn that went along with a move outside of it, else None."""
        event = await self._turns.dispatch_event(key, turn.dispatch_revision)
        if not (isinstance(event, ev.AgentHandedOff) and event.along):
            return None
        return (await self.open_dispatch(key, turn))[0]

    async def pending_approval(self, key: SessionKey, turn: OpenTurn) -> PendingApproval:
        """Return what a paused turn waits for."""
        change = await self._store.find_request(key, COMPLETE_TURN, turn.request_id, turn.holder)
        found = PendingApproval("", turn.dispatched_us)
        for event in decode_events(change.events) if change else ():
            if isinstance(event, ev.TaskPaused):
                assert change is not None
                found = PendingApproval(event.prompt, change.time_us)
            elif isinstance(event, ev.ApprovalRequested):
                found = replace(found, fields=event.fields)
        return found

    async def voter_names(self, key: SessionKey, state: SessionState) -> frozenset[str]:
        """Return the hashes of all names of those who approved what a session waits for."""
        approval, paused = state.approval, state.paused
        if approval is None or paused is None or not approval.voters:
            return frozenset()  # Nearly always.
        return await self._turns.voter_names(key, paused.request_id, approval.voters)

    async def list_tasks(
        self, key: SessionKey, after: TaskCursor, count: int, task_id: str = ""
    ) -> list[tuple[TaskRow, Mapping[str, str]]]:
        """Return up to count tasks of a session after a cursor, with their metadata.

        task_id: only this one, which is the session's.
        """
        if task_id:
            row = await self._store.find_task(key.tenant, task_id)
            is_next = row is not None and row.session_id == key.session_id and row.cursor > after
            return [(row, decode_metadata(row))] if row is not None and is_next else []
        rows = await self._store.list_tasks(key, after=after, limit=count)
        return [(row, decode_metadata(row)) for row in rows]

    async def _consult(
        self, key: SessionKey, event: ev.AgentHandedOff, turn: OpenTurn
    ) -> ConsultPlan | None:
        """Return the question, or the answer, that a request was dispatched with."""
        if event.mode is HandoffMode.CONSULT:
            return ConsultPlan(event.from_agent, event.message or event.reason)
        if event.mode is not HandoffMode.ANSWER:
            return None
        answer = await self._turns.answer(key, event.turn_request_id, event.from_agent)
        question = await self._turns.question(key, event.turn_request_id)
        is_failure = answer is None or answer.outcome is OutcomeKind.FAILURE
        return ConsultPlan(
            turn.holder, question, "" if answer is None or is_failure else answer.text
        )
