"""Answers to the offer of another agent.

Owns: which suggestion an answer is about, and what accepting and declining do. Must not know: the
words of an offer, who detected the topic, stores.
Rule: an offer is answered once. Accepting is a handoff by the rules of the moment, and what it
needs of the log (the message that was asked about) comes with the command.
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
    """Return the suggestion that a plain yes or no answers, None where it answers something else.

    An agent's own question, or an approval that is awaited, is what such a word is about; and so is
    whatever was said after the message beside which the offer was made.
    """
    offer = state.suggestion
    if offer is None or state.newest_turn != offer.request_id or task_is_paused(state):
        return None
    return None if state.active is not None and state.active.locked else offer


def decline(draft: Draft, offer: OpenSuggestion) -> None:
    """Take note that the user stays."""
    draft.add(_said(draft, offer, accepted=False))


def accept(
    draft: Draft,
    offer: OpenSuggestion,
    *,
    mid_task: bool,
    mode: HandoffMode = HandoffMode.TRANSFER,
) -> tuple[HandoffPlan, tuple[Verdict, ...]]:
    """Give the conversation to the agent that was offered.

    Raises RoutingError: UNKNOWN_SUGGESTION where this registry has no such agent any more,
    HANDOFF_REFUSED where the rules refuse by now what they would have allowed.
    """
    target = draft.registry.agent(offer.agent_id)
    if target is None:
        raise unknown_suggestion(draft.state.session_id, offer.suggestion_id)
    attempt = topic_switch.attempt_by_topic(draft, target, mid_task=mid_task, mode=mode)
    verdicts = judge(attempt)
    if not all(verdict.allowed for verdict in verdicts):
        raise refuse_handoff(attempt, verdicts)
    # Before the handoff, by which an open suggestion is gone.
    take(draft, offer)
    return topic_switch.carry_out(draft, attempt), verdicts


def take(draft: Draft, offer: OpenSuggestion) -> None:
    """Take note that the user wants the agent that was offered."""
    draft.add(_said(draft, offer, accepted=True))


def unknown_suggestion(session_id: str, suggestion_id: str) -> RoutingError:
    """Say that nothing such is offered, or not any more."""
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
