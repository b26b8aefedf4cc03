"""The caller, the scopes, and the interface of every sign-in.

Rule: a sign-in returns a caller with the rights that the credential gives, or raises.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

import msgspec

from routing_service.core.errors import Reason, RoutingError, Violation
from routing_service.core.identifiers import ID_ALPHABET, ID_CHARS_MAX, ID_PATTERN

ROUTE: Final = "route"
AGENT: Final = "agent"
READ: Final = "read"
ADMIN: Final = "admin"
ACT_AS: Final = "act_as"
APPROVE: Final = "approve"
PLATFORM: Final = "platform"
READ_WORDS: Final = "read_words"

SCOPES: Final = frozenset({ROUTE, AGENT, READ, ADMIN, ACT_AS, APPROVE, PLATFORM, READ_WORDS})
"""All scopes. Other words in a credential are ignored: they are for other services."""

ANY_AGENT: Final = "*"
"""Among a caller's agents: it speaks for every agent."""

TENANT_KEY: Final = "agent-routing-tenant"
DEFAULT_TENANT: Final = "default"

_TENANT: Final = re.compile(ID_PATTERN)

Metadata = Iterable[tuple[str, str | bytes]]
Peer = Callable[[], Mapping[str, Iterable[bytes]]]
"""Returns what the transport knows of its peer, as gRPC's auth_context does. It costs about as much
as the rest of sign-in, so it is asked only for sign-in by certificate."""


class Caller(msgspec.Struct, frozen=True):
    """Who calls.

    tenant: of all sessions that it reaches. subject: who signed in, for the audit; "" without
    sign-in. user: the owner of its own sessions; "" for a service. scopes: of SCOPES. agents: those
    that it speaks for if it has the scope agent; with ANY_AGENT: all. entitlements: its user's, by
    the credential; None = the credential does not say. expires_s: when the credential expires, in
    seconds since 1970. roles: its scopes and roles as the credential has them, for approvals.
    person: as user, and also in another tenant than its own, where no session is its user's.
    signed_in: False without sign-in: then the caller has every right, and its
    user_id is believed.
    """

    tenant: str
    subject: str = ""
    user: str = ""
    scopes: frozenset[str] = frozenset()
    agents: frozenset[str] = frozenset()
    entitlements: tuple[str, ...] | None = None
    expires_s: float = math.inf
    signed_in: bool = True
    roles: frozenset[str] = frozenset()
    person: str = ""

    def speaks_for(self, agent_id: str) -> bool:
        """Say whether the caller is an agent's runtime. agent_id: an id, not an alias."""
        return agent_id in self.agents or ANY_AGENT in self.agents


class SignIn(Protocol):
    """A kind of sign-in."""

    async def caller(self, metadata: Metadata, peer: Peer) -> Caller:
        """Return the caller.

        Raises SignInRefused; RoutingError for a tenant that is invalid or not the caller's, and
        SIGN_IN_UNAVAILABLE if credentials cannot be checked now.
        """
        ...


class SignInRefused(RoutingError):
    """A credential that is not accepted. problem: the reason, one word, for the log alone."""

    def __init__(self, problem: str, message: str = "") -> None:
        """Keep the reason. message: for the caller; "" = only that it was refused."""
        super().__init__(
            Reason.UNAUTHENTICATED,
            message
            or "the credential is missing, or is not accepted here; sign in, and send the token "
            "once, as metadata authorization: Bearer",
        )
        self.problem = problem


def named_tenant(metadata: Metadata) -> str:
    """Return the tenant named in a call's metadata, or "". Raises INVALID_FIELD."""
    for key, value in metadata:
        if key == TENANT_KEY:
            tenant = value if isinstance(value, str) else value.decode("ascii", "replace")
            if not is_tenant(tenant):
                detail = f"is not 1-{ID_CHARS_MAX} characters of {ID_ALPHABET}"
                raise RoutingError(
                    Reason.INVALID_FIELD,
                    f"metadata {TENANT_KEY} {detail}",
                    metadata={"field": TENANT_KEY, "fields": "1"},
                    violations=(Violation(TENANT_KEY, detail),),
                )
            return tenant
    return ""


def is_tenant(text: str) -> bool:
    """Say whether a text is a valid tenant."""
    return _TENANT.match(text) is not None
