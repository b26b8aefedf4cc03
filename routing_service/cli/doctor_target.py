"""The server that settings describe, as ``agent-routing doctor`` calls it on the same machine."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass, replace
from typing import Any

from routing_service.cli.credentials import Credentials
from routing_service.settings.listen_address import ListenAddress
from routing_service.settings.settings import Settings


class NotDescribed(Exception):
    """The settings do not say how to call the server. The message says why."""

    def __init__(self, why: str, remedy: str) -> None:
        """remedy: what to do instead."""
        super().__init__(why)
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class DescribedServer:
    """An address to call, and the credentials for it."""

    target: str
    credentials: Credentials


def described_server(settings: Settings, given: Credentials) -> DescribedServer:
    """Return the operators' address if there is one, else the main address.

    given: the options before the command's name; they win. Without them a server with TLS is
    trusted by its own certificate file. Raises NotDescribed.
    """
    address = settings.admin_address or settings.listen_address
    if not address.unix_path and not address.port:
        raise NotDescribed(
            f"{address} lets the system choose the port",
            "give --target with the address that the server printed at its start",
        )
    target = str(_reachable(address))
    if settings.tls_client_authority_file and not given.tls_cert:
        raise NotDescribed(
            f"{target} accepts only callers with a client certificate",
            "give --tls-cert and --tls-key before the command's name",
        )
    if not settings.tls_certificate_file:
        return DescribedServer(target, given)
    credentials = given
    if not given.tls_ca:
        credentials = replace(credentials, tls_ca=settings.tls_certificate_file)
    if not given.tls_name:
        credentials = replace(
            credentials, tls_name=_name_in(settings.tls_certificate_file, address)
        )
    return DescribedServer(target, credentials)


def _reachable(address: ListenAddress) -> ListenAddress:
    """Return an address of this machine for one that stands for all of them."""
    if address.host in {"0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
        host = "127.0.0.1" if address.host == "0.0.0.0" else "::1"  # noqa: S104
        return ListenAddress(host=host, port=address.port)
    return address


def _name_in(certificate_file: str, address: ListenAddress) -> str:
    """Return a name that the certificate has, the address's own if it is among them.

    Raises NotDescribed.
    """
    try:
        # The standard library decodes certificates only from files.
        decoded: dict[str, Any] = ssl._ssl._test_decode_cert(certificate_file)  # type: ignore[attr-defined]  # noqa: SLF001
    except (OSError, ssl.SSLError) as error:
        raise NotDescribed(
            f"{certificate_file} cannot be read as a certificate: {error}",
            "correct tls_certificate_file",
        ) from error
    names = [name for _, name in decoded.get("subjectAltName", ())]
    host = _reachable(address).host
    if _is_named(host, names):
        return ""
    if not names:
        raise NotDescribed(
            f"{certificate_file} has no subject alternative name, which gRPC requires",
            "issue a certificate with subjectAltName",
        )
    name: str = names[0]
    return name.replace("*", "any", 1)


def _is_named(host: str, names: list[str]) -> bool:
    """Return whether the certificate has a host, written in the same or another form."""
    if host in names:
        return True
    try:
        own = ipaddress.ip_address(host)
    except ValueError:
        return False
    for name in names:
        try:
            if ipaddress.ip_address(name) == own:
                return True
        except ValueError:
            continue
    return False
