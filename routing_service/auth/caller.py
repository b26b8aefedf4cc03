"""Who calls, and the interface of every way of signing in.

Owns: the caller, the scopes, and how a credential is refused. Must not know: tokens, certificates.
Rule: a way of signing in returns a caller or raises; none returns a caller with rights that the
credential does not give it.
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
PLATFORM: Final = "platform"

SCOPES: Final = frozenset({ROUTE, AGENT, READ, ADMIN, ACT_AS, PLATFORM})
"""All there are. A word of a credential that is none of them is passed over: it is for another
service."""

ANY_AGENT: Final = "*"
"""Among a caller's agents: it speaks for each of them."""

TENANT_KEY: Final = "agent-routing-tenant"
DEFAULT_TENANT: Final = "default"

_TENANT: Final = re.compile(ID_PATTERN)

Metadata = Iterable[tuple[str, str | bytes]]
Peer = Callable[[], Mapping[str, Iterable[bytes]]]
"""Returns what the transport knows of who is at its other end, as gRPC's auth_context does. It
costs about as much as all else of signing in, so it is asked only where certificates sign in."""


class Caller(msgspec.Struct, frozen=True):
    """Who calls.

    tenant: whose sessions these are. subject: who signed in, for the audit; "" where nobody does.
    user: whose sessions are the caller's own; "" for a service. scopes: of SCOPES. agents: those
    that it speaks for, where it has the scope agent; ANY_AGENT among them: all. entitlements: what
    the credential says of its user; None: nothing. expires_s: when the credential ends, in seconds
    since 1970. signed_in: False where nobody signs in: then every right is the caller's, and a
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

    def speaks_for(self, agent_id: str) -> bool:
        """Say whether the caller is an agent's runtime. agent_id: an id, no alias."""
        return agent_id in self.agents or ANY_AGENT in self.agents


class SignIn(Protocol):
    """One way of signing in."""

    async def caller(self, metadata: Metadata, peer: Peer) -> Caller:
        """Return who calls.

        Raises SignInRefused; RoutingError for a tenant that is none or not the caller's, and
        SIGN_IN_UNAVAILABLE where it cannot be told.
        """
        ...


class SignInRefused(RoutingError):
    """A credential that is not accepted. problem: why, one word for the log alone."""

    def __init__(self, problem: str, message: str = "") -> None:
        """Keep the reason. message: what the caller may learn; "" = only that it was refused."""
        super().__init__(
            Reason.UNAUTHENTICATED,
            message
            or "the credential is missing, or is not accepted here; sign in, and send the token "
            "once, as metadata authorization: Bearer",
        )
        self.problem = problem


def named_tenant(metadata: Metadata) -> str:
    """Return the tenant that a call names in its metadata, "" for none. Raises INVALID_FIELD."""
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
    """Say whether a text can name a tenant."""
    return _TENANT.match(text) is not None
