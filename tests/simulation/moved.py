"""What becomes of the turns that wait when a conversation moves on, checked for each change."""

from __future__ import annotations

from routing_service.core import events as ev
from routing_service.core.commands import CancelTask, ClearActiveAgent, Command, SetActiveAgent
from routing_service.core.decide import Decided
from routing_service.core.facts import Facts, LeasedTurns
from routing_service.core.registry import Registry
from routing_service.core.session import OpenTurn, SessionState
from routing_service.core.vocabulary import ClearScope, Initiator, TurnFate

ENDED = frozenset({"timeout", "limit"})


def check_command(
    before: SessionState | None,
    command: Command,
    decided: Decided,
    registry: Registry,
    facts: Facts,
) -> None:
    """Assert what holds for the turns of the task that a command is about."""
    state = decided.state
    _check_overtaken(before, state, registry, facts)
    if before is None or not isinstance(command, SetActiveAgent | ClearActiveAgent | CancelTask):
        return
    if isinstance(command, CancelTask) or _takes_all(command):
        assert not state.open_turns, "a turn of a cancelled task can still be answered"
        return
    if isinstance(command, SetActiveAgent) and (command.turn_request_id or command.suggestion_id):
        return
    events = decided.decision.events
    ended = {e.request_id for e in events if isinstance(e, ev.TurnAbandoned) and e.cause in ENDED}
    live = before.live_turn
    if live is not None and live.request_id in ended:
        return
    _check_moved(before, live, command, decided, registry)


def _takes_all(command: SetActiveAgent | ClearActiveAgent) -> bool:
    return isinstance(command, ClearActiveAgent) and command.scope is ClearScope.SESSION


def _check_moved(
    before: SessionState,
    live: OpenTurn | None,
    command: SetActiveAgent | ClearActiveAgent,
    decided: Decided,
    registry: Registry,
) -> None:
    state, moved = decided.state, decided.decision.moved
    fate = command.open_turn
    if fate is None and command.initiator is Initiator.USER:
        fate = TurnFate.ABANDON
    if fate is None and command.initiator is Initiator.OPERATOR:
        fate = TurnFate.TAKE_ALONG
    if fate is TurnFate.ABANDON:
        assert not state.open_turns, "a turn that was left can still be answered"
        assert moved is None or not moved.agent_id
    if live is None:
        again = [e for e in decided.decision.events if isinstance(e, ev.MessageRouted)]
        if fate is TurnFate.TAKE_ALONG and before.paused is not None and state.paused is None:
            assert [e.continues for e in again] in ([before.paused.request_id], [])
        else:
            assert not again, "a handoff dispatched a message that did not wait"
        return
    assert moved is not None, "a message waited, and the answer does not say so"
    assert moved.request_id == live.request_id
    if fate is None:
        fate = moved.fate
    assert moved.fate is fate
    if fate is TurnFate.TAKE_ALONG:
        along = state.find_turn(live.request_id)
        assert along is not None, "the message was lost by a move"
        assert state.is_live(along), "the message is with nobody who could answer it"
        assert moved.agent_id == along.holder
        assert not along.asker, "a consult went along instead of the user's message"
        if command.initiator is Initiator.OPERATOR:
            assert along.hops == live.hops, "an operator's move was counted as a hop"
        target = command.agent_id if isinstance(command, SetActiveAgent) else ""
        assert along.holder == (registry.resolve(target) or registry.home_agent_id)
    elif fate is TurnFate.LEAVE:
        assert not _waits_in_inbox(live, registry), "a turn was left where nobody gets it"


def _check_overtaken(
    before: SessionState | None, state: SessionState, registry: Registry, facts: Facts
) -> None:
    """Only a worker's turn stays open in an inbox after it was overtaken."""
    known = {
        turn.request_id
        for turn in (before.open_turns if before else ())
        if before is not None and not before.is_live(turn)
    }
    leased = facts.of(LeasedTurns)
    person = state.active_id if state.active_id in registry.people else ""
    for turn in state.open_turns:
        if state.is_live(turn) or not _waits_in_inbox(turn, registry):
            continue
        if person and turn.holder == person and turn.epoch == state.epoch:
            continue
        assert turn.request_id in leased | known, "a message waits where nobody will get it"


def _waits_in_inbox(turn: OpenTurn, registry: Registry) -> bool:
    agent = registry.agents.get(turn.holder)
    return turn.is_delivered or (agent is not None and agent.has_inbox)
