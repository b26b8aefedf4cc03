"""A proxy between a store and DynamoDB whose failures a test controls.

Owns the failures. Each call is forwarded unless a rule of the test says otherwise.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

JSON = "application/x-amz-json-1.0"


@dataclass
class Rule:
    """What happens to the next calls of one operation."""

    operation: str
    act: Callable[[Call], object]
    """A coroutine function that answers the call."""
    left: int = 1
    """How many calls yet."""
    matches: Callable[[dict], bool] = lambda _: True


@dataclass
class Proxy:
    """The rules, and the calls so far."""

    target: str
    port: int = 0
    rules: list[Rule] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def then(self, operation: str, act, *, times: int = 1, matches=lambda _: True) -> None:
        """Set another result for the next calls of an operation."""
        self.rules.append(Rule(operation, act, times, matches))


@dataclass
class Call:
    """One call in progress."""

    operation: str
    headers: dict[str, str]
    body: bytes
    proxy: Proxy
    session: aiohttp.ClientSession

    async def pass_on(self) -> web.Response:
        """Forward the call, and return its answer."""
        async with self.session.post(
            self.proxy.target, data=self.body, headers=self.headers
        ) as answer:
            headers = {k: v for k, v in answer.headers.items() if k.lower().startswith("x-amz")}
            return web.Response(
                status=answer.status,
                body=await answer.read(),
                headers=headers,
                content_type=JSON,
            )


def refuse(code: str, *, status: int = 400, **fields: object):
    """Answer with an AWS error without forwarding the call."""

    async def act(_call: Call) -> web.Response:
        body = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "no", **fields}
        return web.Response(status=status, body=json.dumps(body).encode(), content_type=JSON)

    return act


def cancel(*codes: str):
    """Answer that a transaction was cancelled, for these reasons."""
    return refuse(
        "TransactionCanceledException", CancellationReasons=[{"Code": code} for code in codes]
    )


async def lose_answer(call: Call) -> web.Response:
    """Forward the call, and close the connection before the answer."""
    answer = await call.pass_on()
    answer.force_close()
    raise ConnectionResetError


async def hang(_call: Call) -> web.Response:
    """Never answer, and do not forward."""
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


def delay(entered: asyncio.Event, goes_on: asyncio.Event):
    """Signal that a call has arrived, and forward it once released."""

    async def act(call: Call) -> web.Response:
        entered.set()
        await goes_on.wait()
        return await call.pass_on()

    return act


@asynccontextmanager
async def proxy_to(target: str) -> AsyncIterator[Proxy]:
    """Run a proxy in front of a server for the block."""
    proxy = Proxy(target)

    async def handle(request: web.Request) -> web.StreamResponse:
        operation = request.headers["X-Amz-Target"].partition(".")[2]
        body = await request.read()
        kept = ("X-Amz-Target", "Content-Type", "Authorization")
        headers = {name: request.headers[name] for name in kept if name in request.headers}
        call = Call(operation, headers, body, proxy, session)
        proxy.calls.append(operation)
        for rule in proxy.rules:
            if rule.left and rule.operation == operation and rule.matches(json.loads(body)):
                rule.left -= 1
                try:
                    return await rule.act(call)
                except ConnectionResetError:
                    assert request.transport is not None
                    request.transport.abort()
                    return web.Response()
        return await call.pass_on()

    async with aiohttp.ClientSession() as session:
        app = web.Application(client_max_size=32 * 1024 * 1024)
        app.router.add_post("/", handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        proxy.port = runner.addresses[0][1]
        try:
            yield proxy
        finally:
            await runner.cleanup()
