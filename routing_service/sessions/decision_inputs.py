"""What a decision needs to know beyond the session's state, from the log, the switch and topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from msgspec.structs import replace

from routing_service.core.commands import (
    Command,
    CompleteTurn,
    HandOff,
    ResumeTask,
    RouteMessage,
    SetActiveAgent,
)
from routing_service.core.registry import Registry
from routing_service.core.route_message import topic_inquiry
from routing_service.core.session import SessionState
from routing_service.core.suggestions import takes_plain_answers
from routing_service.core.turn_ids import revision_of_child
from routing_service.sessions.calls import Call
from routing_service.sessions.dispatch_history import DispatchHistory
from routing_service.sessions.refusals import HANDOFF_REFUSED, task_of_another
from routing_service.sessions.session_cache import HotSession, SessionCache
from routing_service.sessions.turn_history import TurnHistory
from routing_service.storage.store import SessionKey, Store
from routing_service.texts import plain_answer
from routing_service.topics.detection import TopicJudge

_BY_STICKINESS: Final = (RouteMessage, SetActiveAgent, CompleteTurn)
"""Commands that are decided differently while a tenant's stickiness is off."""


class DecisionInputs:
    """Reads them for one command at a time."""

    def __init__(
        self,
        store: Store,
        cache: SessionCache,
        history: DispatchHistory,
        turns: TurnHistory,
        *,
        stickiness_enabled: Callable[[str], Awaitable[bool]],
        topics: TopicJudge | None,
    ) -> None:
        """Read from a store. topics: None = no topic detection, in spite of the registry."""
        self._store = store
        self._turns = turns
        self._cache = cache
        self._history = history
        self._stickiness_enabled = stickiness_enabled
        self._topics = topics

    async def informed(self, call: Call, state: SessionState | None, command: Command) -> Command:
        """Return the command with what only the store and the switch know."""
        if isinstance(command, _BY_STICKINESS):
            enabled = await self._stickiness_enabled(call.key.tenant)
            if enabled is not command.stickiness_enabled:
                command = replace(command, stickiness_enabled=enabled)
        match command:
            case CompleteTurn():
                return await self._informed_answer(call.key, state, command)
            case RouteMessage(task_id=task_id, request_id=request_id):
                # An id that is not the service's own names some revision far beyond the last.
                may_be_child = state is not None and revision_of_child(request_id) <= state.revision
                if may_be_child and await self._turns.is_child(call.key, request_id):
                    command = replace(command, names_child=True)
                if not task_id:
                    return command
                if state is not None and state.task and state.task.task_id == task_id:
                    return command
                row = await self._store.find_task(call.key.tenant, task_id)
                if row is None:
                    return command
                if row.session_id != call.key.session_id:
                    raise task_of_another(call, task_id, row.session_id, row)
                return replace(command, known_task_status=row.status)
            case ResumeTask(task_id=task_id):
                if state is None or (state.task and state.task.task_id == task_id):
                    return command
                row = await self._store.find_task(call.key.tenant, task_id)
                if row is not None and row.session_id != call.key.session_id:
                    raise task_of_another(call, task_id, row.session_id, row)
                return replace(command, known_task_status=row.status if row else "")
            case SetActiveAgent(turn_request_id=turn_id) if turn_id:
                refusals = await self._store.count_audit(call.key, HANDOFF_REFUSED, turn_id)
                is_open = state is not None and state.find_turn(turn_id) is not None
                known = is_open or await self._turns.find_known_turn(call.key, turn_id) is not None
                return replace(command, refusals=refusals, turn_known=known)
            case _:
                return command

    async def with_topic(
        self, hot: HotSession, call: Call, command: Command, registry: Registry, now_us: int
    ) -> Command:
        """Return a message, or an answer to a suggestion, with what their decision needs to know.

        Of the session as it is believed to be: after a conflict everything is asked anew.
        """
        state = hot.state
        if state is not None and state.suggestion is not None:
            command, is_answer = await self._with_answer(hot, call.key, state, command, registry)
            if is_answer:
                return command
        if self._topics is None or not registry.topics.is_on:
            return command
        if not isinstance(command, RouteMessage):
            return command
        asked = topic_inquiry(state, command, registry, now_us, session_id=call.key.session_id)
        if asked is None:
            return command
        # A dispatch reads them anyway, for its history.
        await self._cache.load_fold(call.key, hot)
        opinion = await self._topics.opinion(registry, asked, command.text, state, hot.fold)
        return command if opinion is None else replace(command, topic=opinion)

    async def _with_answer(
        self,
        hot: HotSession,
        key: SessionKey,
        state: SessionState,
        command: Command,
        registry: Registry,
    ) -> tuple[Command, bool]:
        """Return what may answer the open suggestion with what it would accept; and if it does."""
        offer = state.suggestion
        assert offer is not None
        match command:
            case SetActiveAgent(suggestion_id=suggestion_id):
                accepts = bool(suggestion_id)
            case RouteMessage(quick_reply_id=quick_reply_id) if quick_reply_id:
                accepts = True
            case RouteMessage(text=text, items=()) if takes_plain_answers(state):
                says_yes = plain_answer(text, state.locale, registry.default_locale)
                accepts = bool(says_yes)
                command = replace(command, says_yes=says_yes)
            case _:
                accepts = False
        if accepts and isinstance(command, RouteMessage | SetActiveAgent):
            message = await self._history.message_at(key, hot, offer.message_revision)
            command = replace(command, offered=message)
        return command, accepts

    async def _informed_answer(
        self, key: SessionKey, state: SessionState | None, command: CompleteTurn
    ) -> CompleteTurn:
        """Return an agent's answer with what only the log knows of its request."""
        request_id = command.request_id
        turn = state.find_turn(request_id) if state else None
        if turn is not None and turn.asker:
            question = await self._turns.question(key, request_id)
            command = replace(command, consult_question=question)
        if state is not None and turn is None:
            known_turn = await self._turns.find_known_turn(key, request_id)
            command = replace(command, known_turn=known_turn)
        if state is not None and (turn is None or turn.holder != command.agent_id):
            was_asked = await self._turns.was_asked(key, request_id, command.agent_id)
            command = replace(command, was_asked=was_asked)
        if isinstance(command.outcome, HandOff) or "[" in command.text:
            refusals = await self._store.count_audit(key, HANDOFF_REFUSED, request_id)
            command = replace(command, refusals=refusals)
        return command
