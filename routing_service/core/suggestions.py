"""Answers to the offer of another agent.

Rule: an offer is answered once. Accepting it is a handoff by the rules of the moment; the message
that it was about is a fact of the log.
"""

from __future__ import annotations

from routing_service.core import events as ev
from routing_service.core import topic_switch
from routing_service.core.commands import HandoffPlan, Verdict
from routing_service.core.draft import Draft
from routing_service.core.errors import Reason, RoutingError
from routing_service.core.handoff_rules import judge
from routing_service.core.ownership import task_is_paused
from routing_service.core.refusals import refuse_handoff
from routing_service.core.session import OpenSuggestion, SessionState
from routing_service.core.vocabulary import HandoffMode


def stay_option_id(suggestion_id: str) -> str:
    """Return the id of the option to stay; the one to accept is the suggestion's own."""
    return f"{suggestion_id[:-1]}{int(suggestion_id[-1], 16) ^ 1:x}"


def answered(draft: Draft, quick_reply_id: str) -> tuple[OpenSuggestion, bool]:
    """Return the open suggestion that an option is of, and whether it accepts.

    Raises RoutingError UNKNOWN_SUGGESTION.
    """
    offer = draft.state.suggestion
    if offer is not None:
        if quick_reply_id == offer.suggestion_id:
            return offer, True
        if quick_reply_id == stay_option_id(offer.suggestion_id):
            return offer, False
    raise unknown_suggestion(draft.state.session_id, quick_reply_id)


def takes_plain_answers(state: SessionState) -> OpenSuggestion | None:
    """Return the suggestion that a plain yes or no answers; None if it answers something else.

    An agent's own question and a pending approval come first; and an offer can be answered so only
    until the next message.
    """
    offer = state.suggestion
    if offer is None or state.newest_turn != offer.request_id or task_is_paused(state):
        return None
    return None if state.active is not None and state.active.locked else offer


def decline(draft: Draft, offer: OpenSuggestion) -> None:
    """Record that the user stays with the present agent."""
    draft.add(_said(draft, offer, accepted=False))


def accept(
    draft: Draft,
    offer: OpenSuggestion,
    *,
    mid_task: bool,
    mode: HandoffMode = HandoffMode.TRANSFER,
) -> tuple[HandoffPlan, tuple[Verdict, ...]]:
    """Give the conversation to the agent that was offered.

    Raises RoutingError: UNKNOWN_SUGGESTION if this registry no longer has the agent,
    HANDOFF_REFUSED if the rules refuse it by now.
    """
    target = draft.registry.agent(offer.agent_id)
    if target is None:
        raise unknown_suggestion(draft.state.session_id, offer.suggestion_id)
    attempt = topic_switch.attempt_by_topic(draft, target, mid_task=mid_task, mode=mode)
    verdicts = judge(attempt)
    if not all(verdict.allowed for verdict in verdicts):
        raise refuse_handoff(attempt, verdicts)
    # Before the handoff, which removes an open suggestion.
    take(draft, offer)
    return topic_switch.carry_out(draft, attempt), verdicts


def take(draft: Draft, offer: OpenSuggestion) -> None:
    """Record that the user accepts the agent that was offered."""
    draft.add(_said(draft, offer, accepted=True))


def unknown_suggestion(session_id: str, suggestion_id: str) -> RoutingError:
    """Say that no such suggestion is open."""
    return RoutingError(
        Reason.UNKNOWN_SUGGESTION,
        f'suggestion "{suggestion_id}" is not open in session "{session_id}"; it was answered, '
        "replaced, or is gone with a change of the active agent; send the message without it",
        metadata={"session_id": session_id, "suggestion_id": suggestion_id},
    )


def _said(draft: Draft, offer: OpenSuggestion, *, accepted: bool) -> ev.SwitchAnswered:
    return ev.SwitchAnswered(
        suggestion_id=offer.suggestion_id,
        agent_id=offer.agent_id,
        from_agent=draft.state.active_id or draft.registry.home_agent_id,
        accepted=accepted,
    )
