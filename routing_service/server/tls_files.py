"""The server's certificate and key, reloaded while it serves.

Rule: certificate, key and authority are taken together or not at all. A pair that does not match,
or is half written, is logged, and connections keep using the previous one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc
import structlog

_log = structlog.get_logger(__name__)

LOOK_EVERY_S: Final = 1.0
"""How often the files are checked."""

FILE_BYTES_MAX: Final = 1024 * 1024

_Contents = tuple[bytes, bytes, bytes]


class TlsFilesInvalid(Exception):
    """Unusable TLS files; the message says why and what to do."""


class TlsFiles:
    """A server's TLS files."""

    def __init__(self, certificate: str, key: str, client_authority: str = "") -> None:
        """Read them. client_authority: signs the required client certificates; "" = none.

        Raises TlsFilesInvalid.
        """
        self._paths = tuple(
            Path(name) if name else None for name in (certificate, key, client_authority)
        )
        self._contents = self._read()
        self._generation = 0
        self._newest: ssl.SSLContext | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """Return the credentials for opening a port; each port has its own."""
        given = self._generation

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            # Called for each handshake, in a thread of gRPC's.
            nonlocal given
            if given == self._generation:
                return None
            given = self._generation
            return self._configuration()

        make: Callable[..., grpc.ServerCredentials] = grpc.dynamic_ssl_server_credentials
        return make(
            self._configuration(),
            fetch,
            require_client_authentication=self._paths[2] is not None,
        )

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of the web listener. New connections use the current files."""
        context = self._newest = self._made_context()

        def take_newest(connection: ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> None:
            # A context cannot drop an authority, so each change makes a new context.
            assert self._newest is not None
            connection.context = self._newest

        context.sni_callback = take_newest
        return context

    def _made_context(self) -> ssl.SSLContext:
        certificate, key, authority = self._paths
        assert certificate is not None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key, password=lambda: b"")
        if authority is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(authority)
        return context

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        certificate, key, authority = self._contents
        return grpc.ssl_server_certificate_configuration(
            [(key, certificate)], root_certificates=authority or None
        )

    async def run(self) -> None:
        """Reload changed files until cancelled."""
        refused = None
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                contents = await asyncio.to_thread(self._changed)
            except TlsFilesInvalid as error:
                if str(error) != refused:
                    _log.error("tls_files_refused", error=str(error))
                refused = str(error)
                continue
            refused = None
            if contents is not None:
                self._contents = contents
                self._generation += 1
                try:
                    if self._newest is not None:
                        self._newest = self._made_context()
                except OSError as error:  # Changed once more, this moment; the next look has them.
                    _log.warning("tls_files_changing", error=str(error))
                _log.info("tls_files_taken_over", certificate=str(self._paths[0]))

    def _changed(self) -> _Contents | None:
        """Return the files' contents if they have changed. Raises TlsFilesInvalid."""
        return None if self._contents_now() == self._contents else self._read()

    def _contents_now(self) -> _Contents:
        certificate, key, authority = (_content(path) if path else b"" for path in self._paths)
        return certificate, key, authority

    def _read(self) -> _Contents:
        """Return the files' contents, checked to match. Raises TlsFilesInvalid."""
        certificate, key, authority = self._paths
        assert certificate is not None
        before = self._contents_now()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # A key with a password would make OpenSSL ask for it at the terminal.
            context.load_cert_chain(certificate, key, password=lambda: b"")
            if authority is not None:
                context.load_verify_locations(authority)
        except (OSError, ValueError) as error:
            raise TlsFilesInvalid(
                f'TLS with certificate "{certificate}", key "{key}"'
                + (f' and client authority "{authority}"' if authority else "")
                + f": {error}; give PEM files that belong together, and a key without a password"
            ) from error
        if self._contents_now() != before:
            raise TlsFilesInvalid("the TLS files change just now; they are read again")
        return before


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise TlsFilesInvalid(f'TLS file "{path}": {reason}; check path and permissions') from error
