"""The client certificate of a connection, for the calls that come over it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from contextvars import ContextVar

from starlette.types import ASGIApp, Receive, Scope, Send

from routing_service.auth.certificates import CERTIFICATE_KEY, TRANSPORT_KEY

_pem: ContextVar[bytes] = ContextVar("peer_certificate", default=b"")


def presenting(app: ASGIApp, transport: asyncio.BaseTransport) -> ASGIApp:
    """Return an application whose calls know the certificate of their connection, if it has one."""
    connection: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    der = None if connection is None else connection.getpeercert(binary_form=True)
    if not der:
        return app
    pem = ssl.DER_cert_to_PEM_cert(der).encode()

    async def presented(scope: Scope, receive: Receive, send: Send) -> None:
        _pem.set(pem)
        await app(scope, receive, send)

    return presented


def auth_context() -> Mapping[str, Sequence[bytes]]:
    """Return the certificate of the present call, in the form of gRPC's auth_context."""
    pem = _pem.get()
    return {TRANSPORT_KEY: [b"ssl"], CERTIFICATE_KEY: [pem]} if pem else {}
