"""No sign-in: every caller has every right. For programs on one machine that trust each other.

The settings allow it on loopback alone, unless the operator sets insecure.
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
"""Tenants whose caller is kept."""


def anybody(tenant: str) -> Caller:
    """Return a caller with every right in a tenant; its user_id is believed."""
    return Caller(tenant, scopes=SCOPES, agents=frozenset({ANY_AGENT}), signed_in=False)


class OpenDoor:
    """Accepts every caller, with every right, in the tenant that the call names."""

    def __init__(self) -> None:
        """Keep no caller yet."""
        self._callers: dict[str, Caller] = {}

    async def caller(self, metadata: Metadata, peer: Peer) -> Caller:  # noqa: ARG002 - not needed
        """See SignIn.caller."""
        tenant = named_tenant(metadata) or DEFAULT_TENANT
        known = self._callers.get(tenant)
        if known is None:
            known = anybody(tenant)
            if len(self._callers) < _CALLERS_MAX:
                self._callers[tenant] = known
        return known
