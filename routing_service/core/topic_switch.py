"""When a message's topic may bring it to another agent, and what it then does.

Owns: whether topic detection is asked about a message, and what follows from its opinion. Must not
know: what detects topics, stores, protobuf, languages.
Rule: asking and deciding look at the session in the same way, so that an opinion is of the question
that was asked; whoever owns the session in mid-task keeps its user, however sure anybody is.
"""

from __future__ import annotations

import msgspec

from routing_service.core import events as ev
from routing_service.core import ownership
from routing_service.core.commands import (
    HandoffPlan,
    RouteMessage,
    SuggestionPlan,
    TopicNote,
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
from routing_service.core.session import SessionState
from routing_service.core.slash_commands import parse
from routing_service.core.vocabulary import HandoffMode, Initiator, RouteReason, TopicOutcome

# The lines of Route before which topics have a say; those of the second kind find nobody active.
_KEPT = frozenset({RouteReason.RETURNED, RouteReason.FOLLOW_UP_LOCK, RouteReason.STICKY})
_NOBODY = frozenset({RouteReason.NO_ACTIVE_AGENT, RouteReason.DEFAULT_AGENT})


class TopicInquiry(msgspec.Struct, frozen=True):
    """What topic detection is asked about a message, but for the conversation so far."""

    active_agent_id: str
    is_locked: bool
    locale: str
    channel: str
    entitlements: tuple[str, ...]


class Outcome(msgspec.Struct, frozen=True):
    """What a topic did. handoff: the switch that was made. offer: the agent to suggest."""

    note: TopicNote
    handoff: HandoffPlan | None = None
    offer: str = ""


def may_ask(registry: Registry, command: RouteMessage) -> bool:
    """Say whether topic detection could be asked about a message, whatever its session."""
    return (
        registry.topics.is_on
        and command.stickiness_enabled
        and not command.quick_reply_id
        and not command.text.isspace()
        and bool(command.text)
        and (command.literal_text or parse(command.text) is None)
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


def inquiry(draft: Draft, reason: RouteReason, *, mid_task: bool) -> TopicInquiry | TopicOutcome:
    """Return what to ask about a message that a line of Route would take, or why not to ask.

    draft: with all that comes before that line. reason: the line's.
    """
    state, topics = draft.state, draft.registry.topics
    is_locked = False
    if reason in _NOBODY:
        if state.sent_home:
            return TopicOutcome.SENT_HOME
        if topics.first_message != "auto":
            return TopicOutcome.HOME_FIRST
    elif reason in _KEPT:
        if mid_task and session_owner(state, draft.registry):
            return TopicOutcome.OWNED
        is_locked = state.active is not None and state.active.locked
        if is_locked and topics.lock_threshold is None:
            return TopicOutcome.LOCKED
    else:
        return TopicOutcome.OTHER_RULE
    return TopicInquiry(
        active_agent_id=state.active_id,
        is_locked=is_locked,
        locale=state.locale,
        channel=state.channel,
        entitlements=state.entitlements,
    )


def weigh(draft: Draft, command: RouteMessage, reason: RouteReason, *, mid_task: bool) -> Outcome:
    """Let a message's topic decide, if it is sure enough and nothing forbids it.

    A switch is made here; an offer is only named, since it is made beside the message's dispatch.
    """
    asked = inquiry(draft, reason, mid_task=mid_task)
    if isinstance(asked, TopicOutcome):
        return Outcome(TopicNote(asked))
    opinion = command.topic
    if opinion is not None and opinion.is_missing:
        return Outcome(TopicNote(TopicOutcome.NO_VERDICT, opinion=opinion))
    if opinion is None or not opinion.ranked:
        return Outcome(TopicNote(TopicOutcome.UNSURE, opinion=opinion))
    agent_id, confidence = opinion.ranked[0]
    target = draft.registry.agent(agent_id)
    if target is None or not _is_target(draft, target):
        return Outcome(TopicNote(TopicOutcome.UNSURE, opinion=opinion))
    threshold = _threshold(draft.registry, target, is_locked=asked.is_locked)
    note = TopicNote(TopicOutcome.UNSURE, agent_id, confidence, threshold, opinion)
    if confidence < threshold or confidence <= opinion.stay:
        return Outcome(note)
    if any(rest.agent_id == agent_id for rest in draft.state.rests):
        return Outcome(_noted(note, TopicOutcome.RESTING))
    offers = reason in _KEPT and draft.registry.topics.mode_to(target) == "suggest"
    return (
        _offer(draft, note, target) if offers else _switch(draft, note, target, mid_task=mid_task)
    )


def suggest(
    draft: Draft, command: RouteMessage, note: TopicNote, from_agent: str
) -> SuggestionPlan:
    """Offer an agent to the user, beside the dispatch that the draft has made."""
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
        # An interrupted agent keeps its lock in its frame; anyone else has let go.
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


def _threshold(registry: Registry, target: Agent, *, is_locked: bool) -> float:
    threshold = registry.topics.threshold_to(target)
    lock_threshold = registry.topics.lock_threshold
    if is_locked and lock_threshold is not None:
        return max(threshold, lock_threshold)
    return threshold


def _offer(draft: Draft, note: TopicNote, target: Agent) -> Outcome:
    # Whoever accepts does so in the middle of the task that this very message may begin.
    verdicts = judge(attempt_by_topic(draft, target, mid_task=True))
    if not all(verdict.allowed for verdict in verdicts) or session_owner(
        draft.state, draft.registry
    ):
        return Outcome(_noted(note, TopicOutcome.REFUSED, verdicts))
    return Outcome(_noted(note, TopicOutcome.SUGGESTED, verdicts), offer=target.agent_id)


def _switch(draft: Draft, note: TopicNote, target: Agent, *, mid_task: bool) -> Outcome:
    attempt = attempt_by_topic(draft, target, mid_task=mid_task)
    verdicts = judge(attempt)
    if not all(verdict.allowed for verdict in verdicts):
        return Outcome(_noted(note, TopicOutcome.REFUSED, verdicts))
    plan = carry_out(draft, attempt)
    return Outcome(_noted(note, TopicOutcome.SWITCHED, verdicts), handoff=plan)


def _noted(note: TopicNote, outcome: TopicOutcome, verdicts: tuple[Verdict, ...] = ()) -> TopicNote:
    return msgspec.structs.replace(note, outcome=outcome, verdicts=verdicts)
