"""What each scope allows, and the access to sessions that follows from it.

Rule: a right exists only by a line in this module. docs/rights.md shows the result of all of them,
and a test compares the two. core/access.py checks the access against a session.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from routing_service.auth.caller import (
    ACT_AS,
    ADMIN,
    AGENT,
    ANY_AGENT,
    APPROVE,
    PLATFORM,
    READ,
    READ_WORDS,
    ROUTE,
    Caller,
)
from routing_service.core.access import ANY_SESSION, Access
from routing_service.core.commands import Decider
from routing_service.core.errors import Reason, RoutingError, invalid_field, scope_missing
from routing_service.core.identifiers import folded
from routing_service.core.registry import Registry
from routing_service.core.vocabulary import ClearScope, Initiator

_READERS: Final = (ROUTE, READ, AGENT, ADMIN)

ENTRY: Final[Mapping[str, tuple[str, ...]]] = {
    "Route": (ROUTE,),
    "RouteStream": (ROUTE,),
    "SetActiveAgent": (AGENT, ROUTE, ADMIN),
    "ClearActiveAgent": (ROUTE, AGENT, ADMIN),
    "CompleteTurn": (AGENT,),
    "WatchInbox": (AGENT,),
    "KeepTurn": (AGENT,),
    "ListWaiting": (AGENT, ADMIN),
    "ClaimTurn": (AGENT, ADMIN),
    "ReleaseTurn": (AGENT, ADMIN),
    "AddNote": (AGENT, ADMIN),
    "ListNotes": (AGENT, ADMIN),
    "ResumeTask": (ROUTE, APPROVE, ADMIN),
    "ListApprovals": (APPROVE, ADMIN),
    "WatchApprovals": (APPROVE, ADMIN),
    "CancelTask": (ROUTE, AGENT, ADMIN),
    "ReportDegraded": (ROUTE,),
    "Status": _READERS,
    "ListTasks": _READERS,
    "ListTurns": _READERS,
    "ListAgents": _READERS,
    "WatchSession": _READERS,
    "ListSessions": (ADMIN,),
    "GetSessionAt": (ADMIN,),
    "ListInbox": (ADMIN,),
    "ListEvents": (ADMIN,),
    "WatchEvents": (ADMIN,),
    "GetRoutingStats": (ADMIN,),
    "GetServerStatus": (ADMIN,),
    "VerifyAudit": (ADMIN,),
    "EraseUser": (ADMIN,),
    "ExportUser": (ADMIN,),
    "ReloadAgents": (ADMIN,),
    "GetRegistry": (ADMIN,),
    "StartReplay": (ADMIN,),
    "WatchReplay": (ADMIN,),
    "CancelReplay": (ADMIN,),
    "SetStickiness": (ADMIN,),
    "GetStickiness": (ADMIN,),
    "PurgeSessions": (ADMIN,),
}
"""The scopes of which a caller needs one for an RPC. The first is named to a caller without any.
The functions below return the access that follows."""

READS: Final = frozenset({"Status", "ListTasks", "ListTurns", "ListAgents", "WatchSession"})

_COMMAND_OF: Final = {ClearScope.ACTIVE_AGENT: "supervisor", ClearScope.SESSION: "reset"}
"""The command by which a user does the same as ClearActiveAgent."""

NO_ENTITLEMENTS: Final = ("none",)
"""Replaces all entitlements of a user: no agent requires this one."""


def check_entry(caller: Caller, method: str) -> None:
    """Raise SCOPE_MISSING if the caller may not call an RPC. Runs before a request is parsed."""
    if caller.signed_in and caller.scopes.isdisjoint(ENTRY[method]):
        raise scope_missing(method, ENTRY[method][0])


def user_of(caller: Caller, user_id: str) -> str:
    """Return the user that a call is for, or "". Raises OWNER_MISMATCH for another user."""
    if not caller.signed_in:
        return user_id
    if user_id and user_id != caller.user and ACT_AS not in caller.scopes:
        raise RoutingError(
            Reason.OWNER_MISMATCH,
            "user_id is not the credential's user; leave it out, or use a credential with the "
            f'scope "{ACT_AS}"',
            metadata={"field": "user_id", "scope": ACT_AS},
        )
    return user_id or caller.user


def as_speaker(caller: Caller, user_id: str) -> Access:
    """Return the access of a user's own message or choice. Raises OWNER_MISMATCH, SCOPE_MISSING."""
    if caller.signed_in and ROUTE not in caller.scopes:
        raise scope_missing("a user's own message or choice", ROUTE)
    return Access(user_of(caller, user_id), must_be_owner=True)


def on_session(caller: Caller, method: str, user_id: str) -> Access:
    """Return the access of a read, a clear, a cancellation or a decision.

    A user reaches its own sessions. Without a user_id an operator reaches all of the tenant, a
    service with read and act_as reads all of them, and a runtime reaches those in which one of its
    agents takes part.
    Raises OWNER_MISMATCH, SCOPE_MISSING.
    """
    if not caller.signed_in:
        return Access(user_id)
    user = user_of(caller, user_id)
    scopes = caller.scopes
    is_read = method in READS
    may_be_agent = AGENT in scopes and AGENT in ENTRY[method]
    may_be_user = not scopes.isdisjoint((ROUTE, READ) if is_read else (ROUTE,))
    if not user_id:
        if ADMIN in scopes or (is_read and not caller.user and scopes >= {READ, ACT_AS}):
            return ANY_SESSION
        if may_be_agent and not (caller.user and may_be_user):
            return Access(agents=_limited(caller))
    if may_be_user or ADMIN in scopes:
        return Access(user, must_be_owner=True)
    if may_be_agent:
        return Access(user, must_be_owner=True, agents=_limited(caller))
    raise scope_missing(method, ENTRY[method][0])


def to_decide(caller: Caller, user_id: str) -> Access:
    """Return the access of a decision about a paused task.

    With the scope approve, a caller that names no user reaches all sessions of the tenant, for this
    alone. Raises OWNER_MISMATCH, SCOPE_MISSING.
    """
    if caller.signed_in and APPROVE in caller.scopes and not user_id:
        return ANY_SESSION
    return on_session(caller, "ResumeTask", user_id)


def decider_of(caller: Caller, user_id: str) -> Decider:
    """Return who decides about approvals with a credential. user_id: the user that it acts for.

    Every name counts against it, in any spelling: a person that a sign-in knows by two names is one
    person, and a frontend that acts for a user is that user.
    """
    if not caller.signed_in:
        return Decider()
    given = {caller.subject, caller.person, user_id} - {""}
    names = frozenset(given.union(map(folded, given)))
    return Decider(caller.subject, names, caller.roles, is_person=bool(caller.person or user_id))


def may_see_resumed(caller: Caller, user_id: str) -> bool:
    """Say whether a decider gets the dispatch that follows, which has the user's message."""
    is_approver = caller.signed_in and APPROVE in caller.scopes and not user_id
    return not is_approver or ADMIN in caller.scopes


def as_agent(caller: Caller, method: str, user_id: str, agent_id: str) -> Access:
    """Return the access of an agent's own act. agent_id: an id, not an alias.

    Raises OWNER_MISMATCH, SCOPE_MISSING.
    """
    if not caller.signed_in:
        return Access(user_id)
    if AGENT not in caller.scopes:
        raise scope_missing(f"{method} as an agent", AGENT)
    if not caller.speaks_for(agent_id):
        raise scope_missing(f'{method} as agent "{agent_id}"', f"{AGENT}:{agent_id}")
    if user_id:
        return Access(user_of(caller, user_id), must_be_owner=True, agents=_limited(caller))
    return Access(agents=_limited(caller))


def as_person(caller: Caller, method: str, user_id: str, agent_id: str) -> Access:
    """Return the access of one of an agent's people, or of an operator.

    Raises OWNER_MISMATCH, SCOPE_MISSING.
    """
    if caller.signed_in and ADMIN in caller.scopes:
        return Access(user_of(caller, user_id), must_be_owner=True) if user_id else ANY_SESSION
    return as_agent(caller, method, user_id, agent_id)


def is_runtime_of(caller: Caller, agent_id: str) -> bool:
    """Say whether a caller runs an agent: it writes its words, and reads what is for it.

    An operator as such does neither. agent_id: an id, not an alias.
    """
    return not caller.signed_in or (AGENT in caller.scopes and caller.speaks_for(agent_id))


def reads_notes(caller: Caller, agent_id: str) -> bool:
    """Say whether a reader of notes gets their texts. agent_id: "" = as an operator."""
    return reads_texts(caller) or bool(agent_id and is_runtime_of(caller, agent_id))


def is_operator(caller: Caller) -> bool:
    """Say whether a caller may end the claims of others."""
    return caller.signed_in and ADMIN in caller.scopes


def as_operator(caller: Caller, user_id: str) -> Access:
    """Return the access of an operator's handoff. Raises OWNER_MISMATCH, SCOPE_MISSING."""
    if not caller.signed_in:
        return Access(user_id)
    if ADMIN not in caller.scopes:
        raise scope_missing("SetActiveAgent as an operator", ADMIN)
    return Access(user_of(caller, user_id), must_be_owner=True) if user_id else ANY_SESSION


def who_hands_over(
    caller: Caller, registry: Registry, initiator: Initiator | None, from_agent_id: str
) -> str:
    """Return the agent in whose name a runtime hands over; "" = the one with the conversation.

    A runtime of several agents must name one. from_agent_id: as in the request.
    Raises INVALID_FIELD, SCOPE_MISSING.
    """
    named = registry.resolve(from_agent_id) or from_agent_id
    if not caller.signed_in or (not named and ANY_AGENT in caller.agents):
        return from_agent_id
    if AGENT not in caller.scopes:
        raise scope_missing("SetActiveAgent as an agent", AGENT)
    if not named and initiator is Initiator.SUPERVISOR:
        named = registry.home_agent_id
    if not named:
        if len(caller.agents) != 1:
            raise invalid_field(
                "from_agent_id", "is required; name which of your agents hands over"
            )
        named = next(iter(caller.agents))
    home_id = registry.home_agent_id
    if initiator is Initiator.SUPERVISOR and named != home_id and not caller.speaks_for(home_id):
        raise scope_missing("SetActiveAgent as the supervisor", f"{AGENT}:{home_id}")
    return named


def check_clear(
    caller: Caller, access: Access, registry: Registry, scope: ClearScope
) -> frozenset[str] | None:
    """Return the agents whose conversation a runtime may clear; None = not limited to agents.

    access: from on_session. A user may clear only what the registry lets users clear by a command.
    Raises SCOPE_MISSING.
    """
    if access.agents is not None:
        return access.agents
    is_user = caller.signed_in and access.must_be_owner
    if is_user and caller.scopes.isdisjoint((ADMIN, ACT_AS)):
        command = _COMMAND_OF[scope]
        if command in registry.disabled_commands:
            raise scope_missing(f"clearing where the registry switches /{command} off", ADMIN)
    return None


def who_clears(access: Access) -> Initiator:
    """Return in whose name a conversation is cleared. access: from on_session.

    Who names a user is that user or its frontend; a runtime is limited to its agents.
    """
    if access.user_id or access.must_be_owner:
        return Initiator.USER
    return Initiator.OPERATOR if access.agents is None else Initiator.AGENT


def sees_steps(caller: Caller, agent_id: str) -> bool:
    """Say whether a caller sees input and output of the steps that an agent reports."""
    return ADMIN in caller.scopes or is_runtime_of(caller, agent_id)


def reads_consult(caller: Caller, user_id: str, consult: Iterable[str]) -> bool:
    """Say whether a reader gets what one agent asks another: an operator, and the two agents.

    user_id: as the request names it; without sign-in it makes the reader that user. consult: both
    agents' ids.
    """
    if not caller.signed_in:
        return not user_id
    return ADMIN in caller.scopes or any(is_runtime_of(caller, agent) for agent in consult)


def carries_dispatches(caller: Caller) -> bool:
    """Say whether a signed-in caller takes dispatches to agents: not with a user's own token."""
    return not caller.scopes.isdisjoint((AGENT, ACT_AS, ADMIN))


def hears_agent(access: Access, agent_id: str) -> bool:
    """Say whether a watcher gets an agent's notes and deltas. access: from on_session."""
    return access.agents is None or agent_id in access.agents


def check_turns_of(access: Access, registry: Registry, agent_id: str) -> None:
    """Refuse a runtime that asks for turns of other agents. agent_id: "" = all.

    Raises SCOPE_MISSING.
    """
    agents = access.agents
    if agents is None or registry.home_agent_id in agents or agent_id in agents:
        return
    raise scope_missing("ListTurns of other agents than your own (name yours as agent_id)", ADMIN)


def check_instructions(caller: Caller) -> None:
    """Refuse the text of agents' prompts to callers that run no agent. Raises SCOPE_MISSING."""
    if caller.signed_in and caller.scopes.isdisjoint((AGENT, ADMIN)):
        raise scope_missing("ListAgents with include_instructions", AGENT)


def check_texts(caller: Caller) -> None:
    """Refuse texts that are read for a reason. Raises SCOPE_MISSING."""
    if not reads_texts(caller):
        raise scope_missing("reading texts for a reason (read_reason)", READ_WORDS)


def reads_texts(caller: Caller) -> bool:
    """Say whether a caller may see the texts of conversations in the console."""
    return not caller.signed_in or READ_WORDS in caller.scopes


def reads_prompts(caller: Caller) -> bool:
    """Say whether a caller may see in the console what approvals are about."""
    return reads_texts(caller) or APPROVE in caller.scopes


def entitlements_of(caller: Caller, user_id: str, given: tuple[str, ...]) -> tuple[str, ...]:
    """Return the entitlements of a message's user; () = those that are stored already.

    A credential's own entitlements take precedence. Others are accepted from callers that may act
    for users. Raises SCOPE_MISSING.
    """
    if not caller.signed_in:
        return given
    own = caller.entitlements
    if own is not None and user_id == caller.user:
        if not set(given).issubset(own) and ACT_AS not in caller.scopes:
            raise scope_missing("entitlements beyond the credential's", ACT_AS)
        return own or NO_ENTITLEMENTS
    if given and ACT_AS not in caller.scopes:
        raise scope_missing("entitlements in a message", ACT_AS)
    return given


def check_tenant(caller: Caller, tenant: str) -> None:
    """Raise SCOPE_MISSING for another tenant than the caller's. tenant: "" = the caller's."""
    if caller.signed_in and tenant not in ("", caller.tenant) and PLATFORM not in caller.scopes:
        raise scope_missing("another tenant", PLATFORM)


def check_all_tenants(caller: Caller, what: str) -> None:
    """Raise SCOPE_MISSING for an act on all tenants. what: the beginning of the error."""
    if caller.signed_in and PLATFORM not in caller.scopes:
        raise scope_missing(what, PLATFORM)


def _limited(caller: Caller) -> frozenset[str] | None:
    """Return the agents to which a runtime is limited; None = it speaks for all."""
    return None if ANY_AGENT in caller.agents else caller.agents
