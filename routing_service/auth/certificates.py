"""Signing in by a client certificate.

Owns: which names of a certificate are looked up, and in what. Must not know: how a certificate is
checked: TLS has done that, against the authority that the server trusts, before a call comes here.
Rule: exactly one line of the callers file must fit; a certificate that fits several is refused,
rather than given the rights of whichever came first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from routing_service.auth.bearer import in_tenant
from routing_service.auth.caller import Caller, Metadata, Peer, SignInRefused, named_tenant

# What gRPC's auth_context calls them.
_NAMES: Final = {"peer_uri": "uri", "peer_dns": "dns", "x509_common_name": "cn"}


class CertificateSignIn:
    """Knows callers by their certificates."""

    def __init__(self, callers: Mapping[str, Caller]) -> None:
        """Know these, by uri:NAME, dns:NAME or cn:NAME."""
        self._callers = callers

    def put(self, callers: Mapping[str, Caller]) -> None:
        """Know others from now on."""
        self._callers = callers

    async def caller(self, metadata: Metadata, peer: Peer) -> Caller:
        """See SignIn.caller."""
        known = peer()
        if list(known.get("transport_security_type", ())) != [b"ssl"]:
            raise SignInRefused("no_certificate")
        found = {name: self._callers[name] for name in _names(known) if name in self._callers}
        if len(found) != 1:
            raise SignInRefused("ambiguous_certificate" if found else "unknown_certificate")
        return in_tenant(next(iter(found.values())), named_tenant(metadata))


def _names(known: Mapping[str, Iterable[bytes]]) -> Iterable[str]:
    for key, kind in _NAMES.items():
        for value in known.get(key, ()):
            # A name that is no text is in no file of callers.
            yield f"{kind}:{value.decode('utf-8', 'replace')}"
