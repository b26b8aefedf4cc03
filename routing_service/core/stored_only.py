"""Answers that may not move anything: they are kept in the history, with status STORED_ONLY."""

from __future__ import annotations

from routing_service.core import events as ev
from routing_service.core.commands import CompleteTurn, Decision, Verdict
from routing_service.core.draft import Draft
from routing_service.core.errors import unknown_request
from routing_service.core.facts import Facts, MovedDispatch, PastTurn, WasAsked
from routing_service.core.session import OpenTurn
from routing_service.core.vocabulary import OutcomeStatus


def store_only(
    draft: Draft,
    command: CompleteTurn,
    facts: Facts,
    agent_id: str,
    turn: OpenTurn | None,
    *,
    text: str,
) -> Decision:
    """Keep an answer that may not move anything: too late, or not the holder's.

    turn: the open turn of its request, if there is one. text: without markers.
    The decision has the dispatch of a turn that went along to an agent without an inbox: the caller
    carries it there. Raises UNKNOWN_REQUEST if the request was never dispatched in this session.
    """
    # The turn as it is, or as it was before this change closed it.
    source = turn or draft.before.find_turn(command.request_id)
    was_asked = facts.of(WasAsked)
    known = facts.of(PastTurn)
    if source is not None:
        root_request_id, task_id = source.root_request_id, source.task_id
        # An overtaken turn has forgotten its earlier holders.
        has_entry = was_asked or source.was_held_by(agent_id)
    elif known is not None:
        root_request_id, task_id = known.root_request_id, known.task_id
        has_entry = was_asked or known.holder == agent_id
    else:
        raise unknown_request(draft.state.session_id, command.request_id)
    is_holder = source is not None and source.holder == agent_id
    # A question that was overtaken: the text is still for the agent that asked.
    is_consult = source is not None and is_holder and bool(source.asker)
    verdicts = _why_stored(agent_id, turn)
    moved = facts.of(MovedDispatch) if turn is not None and has_entry else None
    if moved is not None and turn is not None and not draft.state.is_live(turn):
        moved = None
    draft.add(
        ev.TurnCompleted(
            request_id=command.request_id,
            root_request_id=root_request_id,
            task_id=task_id,
            agent_id=agent_id,
            outcome=command.outcome.kind,
            status=OutcomeStatus.STORED_ONLY,
            text=text,
            items=command.items,
            steps=command.steps,
            # The holder has answered, however late; any other agent leaves it to the holder.
            closes=turn is not None and is_holder,
            own_entry=not has_entry,
            dispatched_us=source.dispatched_us if source and is_holder else None,
            detail=command.outcome.detail,
            is_consult=is_consult,
            message=command.outcome.said,
            next_revision=turn.dispatch_revision if turn is not None and moved is not None else 0,
        )
    )
    return Decision(
        events=tuple(draft.events),
        task_id=task_id,
        dispatch=moved,
        status=OutcomeStatus.STORED_ONLY,
        verdicts=verdicts,
        text="" if is_consult else text,
    )


def _why_stored(agent_id: str, turn: OpenTurn | None) -> tuple[Verdict, ...]:
    """Say why an answer moved nothing."""
    if turn is None:
        return (Verdict("live_turn", allowed=False, detail="the request is no longer open"),)
    if turn.holder != agent_id:
        detail = f'the request is held by "{turn.holder}", not by "{agent_id}"'
        return (Verdict("from_agent", allowed=False, detail=detail),)
    detail = "a newer message or a change of the active agent has overtaken the turn"
    return (Verdict("live_turn", allowed=False, detail=detail),)


def was_asked_before(draft: Draft, command: CompleteTurn, facts: Facts, agent_id: str) -> bool:
    """Say whether a turn was this agent's: a reload that drops the agent must not lose its answer.

    The turn may just have been closed, by its time-out.
    """
    turn = draft.before.find_turn(command.request_id)
    if turn is not None:
        return agent_id in turn.path
    known = facts.of(PastTurn)
    return known is not None and agent_id == known.holder
