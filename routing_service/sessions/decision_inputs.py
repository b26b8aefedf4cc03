"""Fetches the facts that a decision needs, with one resolver per class of core/facts.py.

Rule: the core says which facts are needed; no resolver looks at a command.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from routing_service.core.case import Case
from routing_service.core.commands import DispatchPlan, TopicOpinion
from routing_service.core.events import MessageQueued, MessageRouted
from routing_service.core.facts import (
    ChoseStay,
    ConsultQuestion,
    Fact,
    Facts,
    HandedBefore,
    IsServiceRequest,
    KnownTurn,
    LeasedTurns,
    MovedDispatch,
    OfferedMessage,
    PastTurn,
    PausedMessage,
    PlainAnswer,
    QueuedText,
    RefusedHandoffs,
    StandingHandoff,
    StoredTaskStatus,
    TopicVerdict,
    VoterNames,
    WasAsked,
    facts_needed,
)
from routing_service.sessions.calls import Call
from routing_service.sessions.dispatch_history import DispatchHistory
from routing_service.sessions.inbox_entries import entry_at
from routing_service.sessions.refusals import HANDOFF_REFUSED, task_of_another
from routing_service.sessions.session_cache import HotSession, SessionCache
from routing_service.sessions.session_reads import SessionReads
from routing_service.sessions.turn_history import TurnHistory
from routing_service.storage.checked_store import Store
from routing_service.texts import Answered, offer_of, plain_answer
from routing_service.topics.detection import TopicJudge


class Inquirer(msgspec.Struct, frozen=True):
    """The call and the session for which a fact is fetched."""

    call: Call
    hot: HotSession
    case: Case


class DecisionInputs:
    """Resolves facts with a store's log, the texts and topic detection."""

    def __init__(
        self,
        store: Store,
        cache: SessionCache,
        history: DispatchHistory,
        turns: TurnHistory,
        topics: TopicJudge | None,
        *,
        reads: SessionReads,
    ) -> None:
        """Read from a store. topics: None = no topic detection, in spite of the registry."""
        self._store = store
        self._cache = cache
        self._history = history
        self._turns = turns
        self._topics = topics
        self._reads = reads
        self._resolvers: dict[type[Fact[Any]], Callable[[Inquirer, Any], Awaitable[Any]]] = {
            IsServiceRequest: self._is_service_request,
            StoredTaskStatus: self._stored_task_status,
            PastTurn: self._past_turn,
            WasAsked: self._was_asked,
            RefusedHandoffs: self._refused_handoffs,
            ConsultQuestion: self._consult_question,
            PlainAnswer: self._plain_answer,
            ChoseStay: self._chose_stay,
            OfferedMessage: self._offered_message,
            QueuedText: self._queued_text,
            PausedMessage: self._paused_message,
            LeasedTurns: self._leased_turns,
            StandingHandoff: self._standing_handoff,
            MovedDispatch: self._moved_dispatch,
            TopicVerdict: self._topic_verdict,
            VoterNames: self._voter_names,
        }

    async def find(self, call: Call, hot: HotSession, case: Case, needed: list[Fact[Any]]) -> Facts:
        """Return the facts that a case needs. needed: the first of them, in order.

        Raises RoutingError for a task of another session; StoreError.
        """
        found = Facts()
        asking = Inquirer(call, hot, case)
        while needed:
            for fact in needed:
                found[type(fact)] = await self._resolvers[type(fact)](asking, fact)
            needed = facts_needed(case, found)
        return found

    async def _is_service_request(self, asking: Inquirer, fact: IsServiceRequest) -> bool:
        return await self._turns.is_child(asking.call.key, fact.request_id)

    async def _stored_task_status(self, asking: Inquirer, fact: StoredTaskStatus) -> str:
        key = asking.call.key
        row = await self._store.find_task(key.tenant, fact.task_id)
        if row is None:
            return ""
        if row.session_id != key.session_id:
            raise task_of_another(asking.call, fact.task_id, row.session_id, row)
        return row.status

    async def _voter_names(self, asking: Inquirer, fact: VoterNames) -> frozenset[str]:
        return await self._turns.voter_names(asking.call.key, fact.request_id, fact.voters)

    async def _past_turn(self, asking: Inquirer, fact: PastTurn) -> KnownTurn | None:
        return await self._turns.find_known_turn(asking.call.key, fact.request_id)

    async def _was_asked(self, asking: Inquirer, fact: WasAsked) -> bool:
        return await self._turns.was_asked(asking.call.key, fact.request_id, fact.agent_id)

    async def _refused_handoffs(self, asking: Inquirer, fact: RefusedHandoffs) -> int:
        return await self._store.count_audit(asking.call.key, HANDOFF_REFUSED, fact.request_id)

    async def _consult_question(self, asking: Inquirer, fact: ConsultQuestion) -> str:
        return await self._turns.question(asking.call.key, fact.request_id)

    async def _plain_answer(self, asking: Inquirer, fact: PlainAnswer) -> bool | None:
        said = _answered(asking, fact.text)
        return None if said is None else said is Answered.YES

    async def _chose_stay(self, asking: Inquirer, fact: ChoseStay) -> bool:
        return _answered(asking, fact.text) is Answered.CHOSE_STAY

    async def _offered_message(
        self, asking: Inquirer, fact: OfferedMessage
    ) -> MessageRouted | None:
        return await self._history.message_at(asking.call.key, asking.hot, fact.message_revision)

    async def _paused_message(self, asking: Inquirer, fact: PausedMessage) -> MessageRouted | None:
        return await self._history.message_at(asking.call.key, asking.hot, fact.message_revision)

    async def _leased_turns(self, asking: Inquirer, fact: LeasedTurns) -> frozenset[str]:
        tenant, session_id = asking.call.key
        found = [
            await self._store.find_item(tenant, entry_at(place, session_id))
            for place in fact.places
        ]
        return frozenset(
            item.entry.request_id for item in found if item is not None and not item.is_free
        )

    async def _standing_handoff(
        self, asking: Inquirer, fact: StandingHandoff
    ) -> HandedBefore | None:
        return await self._turns.standing_handoff(asking.call.key, fact.agent_id)

    async def _moved_dispatch(self, asking: Inquirer, fact: MovedDispatch) -> DispatchPlan | None:
        return await self._reads.moved_dispatch(asking.call.key, fact.turn)

    async def _queued_text(self, asking: Inquirer, fact: QueuedText) -> MessageQueued | None:
        return await self._turns.queued(asking.call.key, fact.message_revision)

    async def _topic_verdict(self, asking: Inquirer, fact: TopicVerdict) -> TopicOpinion | None:
        if self._topics is None:
            return None
        hot = asking.hot
        # The dispatch reads these turns anyway, for its history.
        await self._cache.load_fold(asking.call.key, hot)
        registry = asking.case.draft.registry
        return await self._topics.opinion(
            registry,
            fact.asked,
            fact.text,
            hot.state,
            hot.fold,
            asking.call.key.tenant,
        )


def _answered(asking: Inquirer, text: str) -> Answered | None:
    """Return what a text answers to the session's open suggestion."""
    draft = asking.case.draft
    suggestion = draft.before.suggestion
    if suggestion is None:
        return None
    present = draft.before.active_id or draft.registry.home_agent_id
    offer = offer_of(
        suggestion.agent_id,
        present,
        draft.registry,
        draft.before.locale,
        channel=draft.before.channel,
    )
    return plain_answer(text, offer)
