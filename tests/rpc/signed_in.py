"""Callers with credentials: the key that a test's server trusts, tokens, and calls with them."""

from __future__ import annotations

import base64
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from agent_routing.v1 import admin_service_pb2_grpc
from routing_service.auth.development import make_token
from tests.rpc.live_service import LiveService, serving

KEY = b"a key for tests, of 32 bytes ..."
WRONG_KEY = b"another key, also of 32 bytes ..."


def token(
    *scopes: str,
    user: str = "",
    tenant: str = "default",
    agents: tuple[str, ...] = (),
    lasts_s: float = 3600,
    key: bytes = KEY,
    subject: str = "",
    entitlements: tuple[str, ...] | None = None,
) -> str:
    """Sign a token as the development signer does."""
    return make_token(
        key,
        subject=subject or user or "service",
        user=user,
        tenant=tenant,
        scopes=scopes,
        agents=agents,
        entitlements=entitlements,
        lasts_s=lasts_s,
        now_s=time.time(),
    )


def bearer(value: str, *more: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call with a token."""
    return (("authorization", f"Bearer {value}"), *more)


def write_key(folder: Path, key: bytes = KEY) -> Path:
    """Write a development key file."""
    path = folder / "development.key"
    path.write_text(base64.urlsafe_b64encode(key).decode(), encoding="ascii")
    return path


@asynccontextmanager
async def serving_signed_in(folder: Path, registry: str, **settings: Any):
    """Run a server that trusts KEY."""
    path = write_key(folder)
    async with serving(
        folder, registry, sign_in="development", development_key_file=str(path), **settings
    ) as running:
        yield running


class Signed:
    """Calls with one credential."""

    def __init__(self, service: LiveService, *metadata: tuple[str, str]) -> None:
        self._routing = service.stub
        self._admin = admin_service_pb2_grpc.AdminServiceStub(service.channel)
        self.metadata = metadata

    def __call__(self, rpc: str, request: object) -> Any:
        """Call an RPC of either service."""
        stub = self._routing if hasattr(self._routing, rpc) else self._admin
        return getattr(stub, rpc)(request, metadata=self.metadata, timeout=20)


def signed(service: LiveService, *scopes: str, **claims: Any) -> Signed:
    """Return calls with a token that has these scopes and claims."""
    return Signed(service, *bearer(token(*scopes, **claims)))


async def outcome_of(call: Any) -> grpc.aio.AioRpcError | None:
    """Await an answer, or the first message of a stream; return the error, or None for success."""
    try:
        if hasattr(call, "read"):
            await call.read()
            call.cancel()
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error
    return None
