"""Whose session it is, and which callers may reach it.

Rule: access is checked before anything of a session is shown, the first answer of a repeat
included. auth/rights.py makes an Access from the caller's credential.
"""

from __future__ import annotations

import msgspec

from routing_service.core.erased_owner import is_owner
from routing_service.core.errors import Reason, RoutingError, scope_missing, session_erased
from routing_service.core.session import SessionState
from routing_service.core.strand_fold import turns_of


class Access(msgspec.Struct, frozen=True):
    """The rights of a caller.

    user_id: the user whose session it must be; "" = no user: an agent runtime or an operator.
    must_be_owner: a caller without a user has no access to a session that has one. agents: those
    that a runtime speaks for, one of which must take part in the session; None = not checked.
    """

    user_id: str = ""
    must_be_owner: bool = False
    agents: frozenset[str] | None = None


ANY_SESSION = Access()


def refused(access: Access, state: SessionState, home_agent_id: str) -> RoutingError | None:
    """Return why a caller may not reach a session; None if it may.

    A session without a user belongs to the first user who speaks. One that was erased is refused
    to every caller.
    """
    if state.erased:
        return _refused_erased(access, state)
    if state.owner and access.user_id != state.owner and (access.user_id or access.must_be_owner):
        return owner_mismatch("session", state.session_id)
    if access.agents is None or home_agent_id in access.agents:
        return None
    if access.agents.isdisjoint(agents_of(state)):
        error = scope_missing(
            f'session "{state.session_id}" is with none of your agents; reaching it', "admin"
        )
        error.metadata["session_id"] = state.session_id
        return error
    return None


def _refused_erased(access: Access, state: SessionState) -> RoutingError:
    """Return what a caller learns of an erased session.

    Its owner, operators and runtimes learn that it was erased; to other users it is another's.
    """
    names_user = access.user_id or access.must_be_owner
    if names_user and not is_owner(state.owner_hash, state.session_id, access.user_id):
        return owner_mismatch("session", state.session_id)
    return session_erased(state.session_id)


def agents_of(state: SessionState) -> set[str]:
    """Return the agents that take part in a session, or did, as far as its state shows."""
    turns = (*state.open_turns, state.paused) if state.paused else state.open_turns
    found = {frame.agent_id for frame in state.stack}
    found.update(state.turns_by_agent, (state.active_id, state.previous_agent))
    for strand in state.apart.parked if state.apart is not None else ():
        turns = (*turns, *turns_of(strand))
        found.update(frame.agent_id for frame in strand.stack)
        found.add(strand.active.agent_id if strand.active else "")
    for turn in turns:
        found.update(turn.path, (turn.holder, turn.asker))
    return found - {""}


def owner_mismatch(what: str, name: str) -> RoutingError:
    """Refuse another user's session or task. The error does not say whose it is."""
    return RoutingError(
        Reason.OWNER_MISMATCH,
        f'{what} "{name}" belongs to another user; name that user, or leave {what}_id out to '
        "begin another",
        metadata={f"{what}_id": name},
    )
