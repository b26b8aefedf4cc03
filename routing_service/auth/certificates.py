"""Sign-in by a client certificate, which TLS has checked against the trusted authority.

Rule: exactly one line of the callers file must fit; a certificate that fits several is refused.
Names are read from the certificate itself: gRPC's own list cuts a name at a NUL, so that the name
"operator", NUL, ".example.org" would sign in as "operator".
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from routing_service.auth import claims
from routing_service.auth.bearer import in_tenant
from routing_service.auth.caller import Caller, Metadata, Peer, SignInRefused, named_tenant

TRANSPORT_KEY: Final = "transport_security_type"
CERTIFICATE_KEY: Final = "x509_pem_cert"
"""Names of gRPC's auth_context; the web listener uses the same."""

READ_MAX: Final = 1024
"""Certificates whose names are kept, because reading one takes 0.1 ms: one for each caller of a
large callers file that is in use."""


class CertificateSignIn:
    """Knows callers by their certificates."""

    def __init__(self, callers: Mapping[str, Caller]) -> None:
        """Know these callers, by uri:NAME, dns:NAME or cn:NAME."""
        self._callers = callers

    def put(self, callers: Mapping[str, Caller]) -> None:
        """Replace the known callers."""
        self._callers = callers

    async def caller(self, metadata: Metadata, peer: Peer) -> Caller:
        """See SignIn.caller."""
        known = peer()
        given = list(known.get(CERTIFICATE_KEY, ()))
        if list(known.get(TRANSPORT_KEY, ())) != [b"ssl"] or len(given) != 1:
            raise SignInRefused("no_certificate")
        names = certificate_names(given[0])
        found = {name: self._callers[name] for name in names if name in self._callers}
        if len(found) != 1:
            raise SignInRefused("ambiguous_certificate" if found else "unknown_certificate")
        return in_tenant(next(iter(found.values())), named_tenant(metadata))


@lru_cache(maxsize=READ_MAX)
def certificate_names(pem: bytes) -> tuple[str, ...]:
    """Return the names of a certificate as uri:NAME, dns:NAME and cn:NAME.

    Raises SignInRefused for a certificate that cannot be read, or with a control or invisible
    character in any of these names.
    """
    from cryptography import x509  # noqa: PLC0415 - of the extra mtls
    from cryptography.x509.oid import NameOID  # noqa: PLC0415 - the same

    try:
        certificate = x509.load_pem_x509_certificate(pem)
        subject = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        named = [("cn", attribute.value) for attribute in subject]
        try:
            alternatives = certificate.extensions.get_extension_for_class(
                x509.SubjectAlternativeName
            ).value
        except x509.ExtensionNotFound:
            pass
        else:
            uris = alternatives.get_values_for_type(x509.UniformResourceIdentifier)
            named += [("uri", uri) for uri in uris]
            named += [("dns", name) for name in alternatives.get_values_for_type(x509.DNSName)]
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise SignInRefused("unreadable_certificate") from error
    for _, name in named:
        if not isinstance(name, str) or claims.has_unseen_characters(name):
            raise SignInRefused("bad_certificate_name")
    return tuple(f"{kind}:{name!s}" for kind, name in named)
