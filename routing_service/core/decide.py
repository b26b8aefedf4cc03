"""The state machine's one entrance: decide(state, command, registry, now, facts) → events, answer.

Rule: pure. The same arguments give the same decision; a refusal raises and changes nothing.
"""

from __future__ import annotations

from typing import assert_never

import msgspec
from msgspec.structs import replace

from routing_service.core import events as ev
from routing_service.core import ownership, strands
from routing_service.core.abandon import decide_abandon
from routing_service.core.cancel_task import decide_cancel, named_task
from routing_service.core.case import Case, open_case
from routing_service.core.claims import check_runtime
from routing_service.core.commands import (
    Abandon,
    AddNote,
    CancelTask,
    ClaimTurn,
    ClearActiveAgent,
    Command,
    CompleteTurn,
    Decision,
    Erase,
    Expire,
    KeepTurn,
    MovedTurn,
    ReleaseTurn,
    ReportDegraded,
    ResumeTask,
    RouteMessage,
    Say,
    SetActiveAgent,
)
from routing_service.core.complete_turn import decide_complete
from routing_service.core.draft import Draft
from routing_service.core.erased_owner import owner_hash
from routing_service.core.errors import scope_missing
from routing_service.core.expiry import decide_expire
from routing_service.core.facts import NO_FACTS, Facts, LeasedTurns
from routing_service.core.keep_turn import decide_keep
from routing_service.core.moved_turn import bring_home, fate_of, let_go
from routing_service.core.people import end_claim
from routing_service.core.registry import Registry
from routing_service.core.report_degraded import decide_report
from routing_service.core.resume_task import decide_resume
from routing_service.core.route_message import decide_route
from routing_service.core.said import decide_of_people
from routing_service.core.session import SessionState
from routing_service.core.set_active_agent import decide_set_active
from routing_service.core.strand_fold import with_own_history
from routing_service.core.vocabulary import ClearScope, TurnFate


class Decided(msgspec.Struct, frozen=True):
    """A decision and the state after it (the one before, if nothing is written).

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
    facts: Facts = NO_FACTS,
) -> Decided:
    """Decide one command on the facts that are known: open_case() and decide_case() in one.

    state: None for a session without any change. now_us: microseconds since 1970.
    Raises RoutingError.
    """
    return decide_case(open_case(state, command, registry, now_us, session_id=session_id), facts)


def decide_case(case: Case, facts: Facts) -> Decided:
    """Decide a case once. facts: those that facts_needed() asks for. Raises RoutingError."""
    # Most messages need no facts.
    draft = _informed(case.draft, facts) if facts else case.draft
    command = case.command
    match command:
        case RouteMessage():
            decision = decide_route(case, command, facts)
        case CompleteTurn():
            decision = decide_complete(draft, command, facts)
            if command.by_person:
                decision = _end_claim(draft, decision)
        case KeepTurn():
            decision = decide_keep(draft, command)
        case ClaimTurn() | ReleaseTurn() | Say() | AddNote():
            decision = decide_of_people(draft, command)
        case SetActiveAgent():
            decision = decide_set_active(draft, command, facts, is_new=case.is_new)
        case ClearActiveAgent():
            decision = _decide_clear(draft, command, facts)
        case CancelTask():
            decision = decide_cancel(draft, command, facts)
        case ResumeTask():
            decision = decide_resume(draft, command, facts)
        case ReportDegraded():
            decision = decide_report(draft, command, is_new=case.is_new)
        case Expire() | Abandon():
            decision = _decide_own(draft, command, facts, is_new=case.is_new)
        case Erase():
            decision = _decide_erase(draft, command, is_there=not case.is_new)
        case _:
            assert_never(command)
    state = draft.state
    if state.apart is not None:
        decision = strands.finish(draft, command, decision, case.origin)
        if not decision.events:
            return Decided(decision, case.origin or draft.before, draft.now_us)
        state = draft.state
    after = state if decision.events else draft.before
    decision = _with_own_history(decision, state) if state.has_work else decision
    return Decided(decision, after, draft.now_us, tuple(draft.active_after))


def _informed(draft: Draft, facts: Facts) -> Draft:
    """Note in a draft which turns workers have, which any decision may ask."""
    draft.leased = facts.of(LeasedTurns)
    return draft


def _with_own_history(decision: Decision, state: SessionState) -> Decision:
    """Note in a dispatch whether it is sent with the turns of its task alone."""
    if decision.dispatch is None:
        return decision
    return replace(decision, events=with_own_history(decision.events, state))


def _decide_own(draft: Draft, command: Expire | Abandon, facts: Facts, *, is_new: bool) -> Decision:
    """Decide a change that the service makes by itself; none in a session that never began."""
    if is_new:
        return Decision()
    if isinstance(command, Expire):
        return decide_expire(draft, command, facts)
    return decide_abandon(draft, command)


def _end_claim(draft: Draft, decision: Decision) -> Decision:
    """End a claim after a person's answer: a person who stood in may be done with the session."""
    if draft.state.claim is not None:
        end_claim(draft)
    return replace(decision, events=tuple(draft.events))


def _decide_erase(draft: Draft, command: Erase, *, is_there: bool) -> Decision:
    """End the session for good. A session that is erased or never began is not written."""
    if is_there and not draft.before.erased:
        state = draft.before
        kept = owner_hash(command.salt, state.session_id, state.owner)
        draft.add(ev.SessionErased(reason=command.reason, owner_hash=kept))
    return Decision(events=tuple(draft.events))


def _decide_clear(draft: Draft, command: ClearActiveAgent, facts: Facts) -> Decision:
    """Return to the home agent. A session that is clear already is not written."""
    if command.task_id:
        ownership.expire_waits(draft)
        named_task(draft, command.task_id, facts)
    state = draft.state
    previous = state.active_id
    home_id = draft.registry.home_agent_id
    if command.speaks_for is not None and command.speaks_for.isdisjoint((previous, home_id)):
        raise scope_missing("clearing a conversation that another agent has", "admin")
    task_id = state.task.task_id if state.task else ""
    takes_task = command.scope is ClearScope.SESSION and state.open_task is not None
    # An open turn makes the clear count: a handoff in flight must not take effect after it.
    if not (state.active or state.open_turns or state.paused or takes_task):
        return Decision(task_id=task_id, agent_id=home_id)
    ownership.expire_waits(draft)
    check_runtime(draft, command.speaks_for, command.subject)
    moved = None
    match command.scope:
        case ClearScope.ACTIVE_AGENT:
            moved = _clear_agent(draft, command, facts)
        case ClearScope.SESSION:
            moved = let_go(draft, TurnFate.ABANDON, "clear")
            ownership.clear_all(draft, "clear", command.reason)
        case _:
            assert_never(command.scope)
    return Decision(
        events=tuple(draft.events),
        task_id=task_id,
        previous_agent=previous,
        agent_id=home_id,
        moved=moved,
    )


def _clear_agent(draft: Draft, command: ClearActiveAgent, facts: Facts) -> MovedTurn | None:
    """Return to the home agent, and say what becomes of the live turn."""
    state, home_id = draft.state, draft.registry.home_agent_id
    by = command.speaks_for or frozenset((state.active_id or home_id,))
    fate = fate_of(draft, command.open_turn, command.initiator, by=by)
    live, paused = state.live_turn, state.paused
    moved = let_go(draft, fate, "clear")
    goes_along = moved is not None and fate is TurnFate.TAKE_ALONG
    ownership.clear(draft, "clear", command.reason, brings_paused=goes_along and live is None)
    if moved is None or not goes_along:
        return moved
    if (turn := live or paused) is not None:
        bring_home(draft, turn, command, facts)
    return replace(moved, agent_id=home_id)


def view(state: SessionState, registry: Registry, now_us: int) -> SessionState:
    """Return the session as the next message would find it, with time-outs applied.

    Nothing is written.
    """
    draft = Draft(state, state.session_id, registry, now_us)
    ownership.expire_waits(draft)
    ownership.expire_ownership(draft)
    if draft.state.apart is not None:
        strands.expire_parked(draft)
    if not draft.events:
        return state
    task, stored = draft.state.task, state.task
    if task is not None and stored is not None and task.status is stored.status:
        task = stored  # It has not changed yet.
    return replace(
        draft.state,
        revision=state.revision,
        update_us=state.update_us,
        used_us=state.used_us,
        task=task,
    )
