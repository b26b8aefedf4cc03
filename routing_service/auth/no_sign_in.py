"""No sign-in: for programs on one machine that trust each other.

Owns: who a caller is where nobody signs in. Must not know: where the server listens; only loopback
is served like this unless an operator insists (config.py).
"""

from __future__ import annotations

from typing import Final

from routing_service.auth.caller import (
    ANY_AGENT,
    DEFAULT_TENANT,
    SCOPES,
    Caller,
    Metadata,
    Peer,
    named_tenant,
)

_CALLERS_MAX: Final = 1024
"""Tenants for which a caller is kept ready."""


def anybody(tenant: str) -> Caller:
    """Return a caller with every right in a tenant, whose user_id is believed."""
    return Caller(tenant, scopes=SCOPES, agents=frozenset({ANY_AGENT}), signed_in=False)


class OpenDoor:
    """Lets everybody in, with every right, to the tenant that they name."""

    def __init__(self) -> None:
        """Begin with the default tenant."""
        self._callers: dict[str, Caller] = {}

    async def caller(self, metadata: Metadata, peer: Peer) -> Caller:  # noqa: ARG002 - nobody is asked
        """See SignIn.caller."""
        tenant = named_tenant(metadata) or DEFAULT_TENANT
        known = self._callers.get(tenant)
        if known is None:
            known = anybody(tenant)
            if len(self._callers) < _CALLERS_MAX:
                self._callers[tenant] = known
        return known
