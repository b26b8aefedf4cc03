"""When a message's topic may bring it to another agent, and what follows from a verdict.

Rule: an agent that owns the session in the middle of a task keeps its user, however sure the
detector is.
"""

from __future__ import annotations

from typing import Final

import msgspec

from routing_service.core import events as ev
from routing_service.core import ownership
from routing_service.core.commands import (
    HandoffPlan,
    RouteMessage,
    SuggestionPlan,
    TopicNote,
    TopicOpinion,
    Verdict,
)
from routing_service.core.draft import Draft
from routing_service.core.handoff_rules import (
    Attempt,
    agent_is_reachable,
    judge,
    session_owner,
)
from routing_service.core.registry import Agent, AgentKind, Registry
from routing_service.core.route_lines import RouteLine
from routing_service.core.session import SessionState
from routing_service.core.strand_fold import task_of_next
from routing_service.core.vocabulary import (
    HandoffMode,
    Initiator,
    RouteReason,
    TopicOutcome,
    WhenUnsure,
)

OPEN_TURN_THRESHOLD: Final = 0.9
"""How sure a switch must be while the active agent still works on an earlier message: what is
written then mostly goes with that message."""


class TopicInquiry(msgspec.Struct, frozen=True):
    """What topic detection is asked about a message, apart from the conversation so far.

    task_id: only the turns of this task are the conversation; see strand_fold.task_of_next().
    """

    active_agent_id: str
    is_locked: bool
    locale: str
    channel: str
    entitlements: tuple[str, ...]
    is_turn_open: bool = False
    task_id: str | None = None


class TopicEffect(msgspec.Struct, frozen=True):
    """What a topic did. handoff: the switch that was made. offer: the agent to suggest.

    asked: what when_unsure did, None = the verdict was sure enough, or was not needed.
    """

    note: TopicNote
    handoff: HandoffPlan | None = None
    offer: str = ""
    asked: WhenUnsure | None = None


def may_ask(registry: Registry, command: RouteMessage) -> bool:
    """Say whether topic detection could be asked about an ordinary message, in any session."""
    return (
        registry.topics.is_on
        and command.stickiness_enabled
        and bool(command.text)
        and not command.text.isspace()
    )


def topic_targets(
    registry: Registry, channel: str, entitlements: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the agents that a topic may bring such a user to, in the registry's order.

    In a swarm the default agent is among them; a supervisor is not an agent of any topic.
    """
    asker = SessionState(
        "", revision=0, create_us=0, update_us=0, channel=channel, entitlements=entitlements
    )
    return tuple(
        agent.agent_id
        for agent in registry.specialists
        if registry.topics.mode_to(agent) != "off" and agent_is_reachable(agent, asker)
    )


def inquiry(draft: Draft, line: RouteLine, *, mid_task: bool) -> TopicInquiry | TopicOutcome:
    """Return what to ask about a message, or the reason not to ask.

    draft: with all time-outs applied. line: of Route, the one that applies without topics.
    """
    state, topics = draft.state, draft.registry.topics
    is_locked = False
    if not line.asks_topic or state.active_id in draft.registry.people:
        return TopicOutcome.OTHER_RULE
    if state.active is None:
        if state.sent_home:
            return TopicOutcome.SENT_HOME
        if topics.first_message != "auto":
            return TopicOutcome.HOME_FIRST
    else:
        if mid_task and session_owner(state, draft.registry):
            return TopicOutcome.OWNED
        is_locked = state.active.locked
        if is_locked and topics.lock_threshold is None and not state.active.soft:
            return TopicOutcome.LOCKED
    return TopicInquiry(
        active_agent_id=state.active_id,
        is_locked=is_locked,
        locale=state.locale,
        channel=state.channel,
        entitlements=state.entitlements,
        is_turn_open=_is_turn_open(state),
        # Most sessions never have two tasks open.
        task_id=task_of_next(state) if state.has_work else None,
    )


def _is_turn_open(state: SessionState) -> bool:
    """Say whether the active agent is still working on an earlier message."""
    return any(turn.holder == state.active_id for turn in state.open_turns)


def weigh(
    draft: Draft, line: RouteLine, opinion: TopicOpinion | None, *, mid_task: bool
) -> TopicEffect:
    """Let a message's topic decide, if it is sure enough and no rule forbids it.

    line: of Route, the one that applies without topics. opinion: None = there is no detector.
    A switch is made here; an offer is only named, since it is made with the message's dispatch.
    """
    asked = inquiry(draft, line, mid_task=mid_task)
    if isinstance(asked, TopicOutcome):
        return TopicEffect(TopicNote(asked))
    if opinion is not None and opinion.is_missing:
        return TopicEffect(TopicNote(TopicOutcome.NO_VERDICT, opinion=opinion))
    if opinion is None or not opinion.ranked:
        return TopicEffect(TopicNote(TopicOutcome.UNSURE, opinion=opinion))
    is_unsure = opinion.is_unsure and draft.registry.topics.asks_when_unsure
    if is_unsure and not asked.is_turn_open:
        return _ask(draft, opinion)
    agent_id, confidence = opinion.ranked[0]
    target = draft.registry.agent(agent_id)
    if target is None or not _is_target(draft, target):
        return TopicEffect(TopicNote(TopicOutcome.UNSURE, opinion=opinion))
    offers = bool(asked.active_agent_id) and draft.registry.topics.mode_to(target) == "suggest"
    threshold = _threshold(draft.registry, target, asked, moves=not offers)
    note = TopicNote(TopicOutcome.UNSURE, agent_id, confidence, threshold, opinion)
    if confidence < threshold or confidence <= opinion.stay:
        return TopicEffect(note)
    if any(rest.agent_id == agent_id for rest in draft.state.rests):
        return TopicEffect(_noted(note, TopicOutcome.RESTING))
    return (
        _offer(draft, note, target) if offers else _switch(draft, note, target, mid_task=mid_task)
    )


def _ask(draft: Draft, opinion: TopicOpinion) -> TopicEffect:
    """Do what the registry's when_unsure says of an unsure verdict."""
    asked = draft.registry.when_unsure
    agent_id, confidence = opinion.ranked[0]
    note = TopicNote(TopicOutcome.ASKED, agent_id, confidence, opinion.bound, opinion)
    if asked is not WhenUnsure.SUGGEST:
        return TopicEffect(note, asked=asked)
    target = draft.registry.agent(agent_id)
    if target is None or not _is_target(draft, target):
        return TopicEffect(note, asked=asked)
    if any(rest.agent_id == agent_id for rest in draft.state.rests):
        return TopicEffect(_noted(note, TopicOutcome.RESTING), asked=asked)
    return msgspec.structs.replace(_offer(draft, note, target), asked=asked)


def suggest(
    draft: Draft, command: RouteMessage, note: TopicNote, from_agent: str
) -> SuggestionPlan:
    """Offer an agent to the user, in addition to the dispatch that the draft has made."""
    assert note.opinion is not None
    suggestion_id = note.opinion.suggestion_id
    draft.add(
        ev.SwitchSuggested(
            suggestion_id=suggestion_id,
            agent_id=note.agent_id,
            from_agent=from_agent,
            request_id=command.request_id,
            confidence=note.confidence,
            topic_model=note.opinion.model,
        )
    )
    return SuggestionPlan(suggestion_id, note.agent_id, note.confidence)


def offered_second(draft: Draft, note: TopicNote, dispatched: str) -> TopicNote | None:
    """Return the offer of a message's other request, to be made with its dispatch; None for none.

    dispatched: the agent that got the message for its newer request.
    """
    opinion, registry = note.opinion, draft.registry
    if opinion is None or not opinion.second_request or opinion.second_request == dispatched:
        return None
    agent_id = opinion.second_request
    target = registry.agent(agent_id)
    if target is None or not _is_target(draft, target):
        return None
    if any(rest.agent_id == agent_id for rest in draft.state.rests):
        return None
    probability = dict(opinion.ranked).get(agent_id, opinion.stay)
    effect = _offer(draft, TopicNote(note.outcome, agent_id, probability, 0.0, opinion), target)
    return effect.note if effect.offer else None


def attempt_by_topic(
    draft: Draft, target: Agent, *, mid_task: bool, mode: HandoffMode = HandoffMode.TRANSFER
) -> Attempt:
    """Return the handoff by which a topic would bring the next message to an agent."""
    state, registry = draft.state, draft.registry
    present = state.active_id or registry.home_agent_id
    return Attempt(
        state=state,
        registry=registry,
        initiator=Initiator.TOPIC,
        target=target,
        source=present,
        mode=ownership.effective_mode(state, registry, present, target, mode),
        mid_task=mid_task,
    )


def carry_out(draft: Draft, attempt: Attempt) -> HandoffPlan:
    """Emit the events of a switch that the rules allowed."""
    if attempt.mode is not HandoffMode.INTERLUDE:
        # An interrupted agent keeps its lock on the return stack; any other loses it.
        ownership.unlock(draft, "handoff")
    return ownership.hand_off(
        draft,
        ownership.Move(
            source=attempt.source,
            target=attempt.target,
            initiator=Initiator.TOPIC,
            mode=attempt.mode,
            route_reason=RouteReason.TOPIC_SWITCH,
        ),
    )


def _is_target(draft: Draft, agent: Agent) -> bool:
    """Say whether a topic may bring this user to an agent that it is not with."""
    present = draft.state.active_id or draft.registry.home_agent_id
    return (
        agent.agent_id != present
        and agent.kind is AgentKind.SPECIALIST
        and draft.registry.topics.mode_to(agent) != "off"
        and agent_is_reachable(agent, draft.state)
    )


def _threshold(registry: Registry, target: Agent, asked: TopicInquiry, *, moves: bool) -> float:
    threshold = registry.topics.threshold_to(target)
    lock_threshold = registry.topics.lock_threshold
    if asked.is_locked and lock_threshold is not None:
        threshold = max(threshold, lock_threshold)
    if moves and asked.is_turn_open and registry.topics.keeps_open_turns:
        # An offer takes nobody away from the agent that works.
        threshold = max(threshold, OPEN_TURN_THRESHOLD)
    return threshold


def _offer(draft: Draft, note: TopicNote, target: Agent) -> TopicEffect:
    # It is accepted in the middle of the task that this very message may begin.
    verdicts = judge(attempt_by_topic(draft, target, mid_task=True))
    if not all(verdict.allowed for verdict in verdicts) or session_owner(
        draft.state, draft.registry
    ):
        return TopicEffect(_noted(note, TopicOutcome.REFUSED, verdicts))
    return TopicEffect(_noted(note, TopicOutcome.SUGGESTED, verdicts), offer=target.agent_id)


def _switch(draft: Draft, note: TopicNote, target: Agent, *, mid_task: bool) -> TopicEffect:
    attempt = attempt_by_topic(draft, target, mid_task=mid_task)
    verdicts = judge(attempt)
    if not all(verdict.allowed for verdict in verdicts):
        return TopicEffect(_noted(note, TopicOutcome.REFUSED, verdicts))
    plan = carry_out(draft, attempt)
    return TopicEffect(_noted(note, TopicOutcome.SWITCHED, verdicts), handoff=plan)


def _noted(note: TopicNote, outcome: TopicOutcome, verdicts: tuple[Verdict, ...] = ()) -> TopicNote:
    return msgspec.structs.replace(note, outcome=outcome, verdicts=verdicts)
