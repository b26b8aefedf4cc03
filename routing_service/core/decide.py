"""The state machine's one entrance: decide(state, command, registry, now) → events and answer.

Owns: which function decides which command. Must not know: clocks, stores, protobuf.
Rule: pure. The same arguments give the same decision, and a refusal raises and changes nothing.
"""

from __future__ import annotations

from typing import assert_never

import msgspec
from msgspec.structs import replace

from routing_service.core import events as ev
from routing_service.core import ownership
from routing_service.core.commands import (
    ClearActiveAgent,
    Command,
    CompleteTurn,
    Decision,
    Erase,
    Expire,
    ResumeTask,
    RouteMessage,
    SetActiveAgent,
)
from routing_service.core.complete_turn import decide_complete
from routing_service.core.draft import Draft
from routing_service.core.errors import scope_missing, session_erased, unknown_session
from routing_service.core.expiry import decide_expire
from routing_service.core.registry import Registry
from routing_service.core.resume_task import decide_resume
from routing_service.core.route_message import decide_route
from routing_service.core.session import SessionState
from routing_service.core.set_active_agent import decide_set_active
from routing_service.core.vocabulary import ClearScope


class Decided(msgspec.Struct, frozen=True):
    """A decision and the state it leads to (the one before, where nothing is written).

    active_after: the active agent's id after each of the events, "" for none.
    """

    decision: Decision
    state: SessionState
    now_us: int
    active_after: tuple[str, ...] = ()


def decide(
    state: SessionState | None,
    command: Command,
    registry: Registry,
    now_us: int,
    *,
    session_id: str,
) -> Decided:
    """Decide one command.

    state: None for a session that nobody has talked in. now_us: microseconds since 1970; taken as
    the session's last change where the clock is behind it. Raises RoutingError.
    """
    if state is not None and state.erased and not isinstance(command, Expire | Erase):
        raise session_erased(session_id)
    draft = Draft(state, session_id, registry, now_us)
    match command:
        case RouteMessage():
            decision = decide_route(draft, command, is_new=state is None)
        case SetActiveAgent():
            decision = decide_set_active(draft, command, is_new=state is None)
        case ClearActiveAgent():
            if state is None:
                raise unknown_session(session_id)
            decision = _decide_clear(draft, command)
        case CompleteTurn():
            if state is None:
                raise unknown_session(session_id)
            decision = decide_complete(draft, command)
        case ResumeTask():
            if state is None:
                raise unknown_session(session_id)
            decision = decide_resume(draft, command)
        case Expire():
            decision = Decision() if state is None else decide_expire(draft)
        case Erase():
            decision = _decide_erase(draft, command, is_there=state is not None)
        case _:
            assert_never(command)
    after = draft.state if decision.events else draft.before
    return Decided(decision, after, draft.now_us, tuple(draft.active_after))


def _decide_erase(draft: Draft, command: Erase, *, is_there: bool) -> Decision:
    """End the session for good. What is erased, or never was, stays unwritten."""
    if is_there and not draft.before.erased:
        draft.add(ev.SessionErased(reason=command.reason))
    return Decision(events=tuple(draft.events))


def _decide_clear(draft: Draft, command: ClearActiveAgent) -> Decision:
    """Go back to the home agent. What is clear already stays unwritten."""
    state = draft.state
    previous = state.active_id
    home_id = draft.registry.home_agent_id
    if command.speaks_for is not None and command.speaks_for.isdisjoint((previous, home_id)):
        raise scope_missing("clearing a conversation that another agent has", "admin")
    task_id = state.task.task_id if state.task else ""
    takes_task = command.scope is ClearScope.SESSION and state.open_task is not None
    # A handoff in flight must not land after the clear, so an open turn makes it count.
    if not (state.active or state.open_turns or state.paused or takes_task):
        return Decision(task_id=task_id, agent_id=home_id)
    ownership.expire_turns(draft)
    match command.scope:
        case ClearScope.ACTIVE_AGENT:
            ownership.clear(draft, "clear", command.reason)
        case ClearScope.SESSION:
            ownership.clear_all(draft, "clear", command.reason)
        case _:
            assert_never(command.scope)
    return Decision(
        events=tuple(draft.events),
        task_id=task_id,
        previous_agent=previous,
        agent_id=home_id,
    )


def view(state: SessionState, registry: Registry, now_us: int) -> SessionState:
    """Return the session as the next message would meet it; nothing is written.

    Time-outs that have passed count already, since they would before anything else is done.
    """
    draft = Draft(state, state.session_id, registry, now_us)
    ownership.expire_turns(draft)
    ownership.expire_ownership(draft)
    if not draft.events:
        return state
    return replace(
        draft.state, revision=state.revision, update_us=state.update_us, used_us=state.used_us
    )
