"""A stand-in for DynamoDB for the tests: moto in a separate process, or a server given by URL.

Run as a program, it is the server: moto's handler of DynamoDB's calls behind aiohttp, which the
driver brings along. moto's own server would need many more packages. It also handles calls in
several threads without isolation: a refused transaction resets the whole table, and concurrent
writes are lost. Here each call is handled alone, and a transaction checks all of its conditions
before it writes (see ``transact``).

Imported, it starts that program once for all processes of a test run, and stops it after the last.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

URL_VARIABLE = "ROUTING_TEST_DYNAMODB_URL"
"""A store to use instead, as dynamodb://region/prefix?endpoint_url=…: DynamoDB Local, or AWS with
its credentials in AWS's own variables. The tests make and drop tables, named prefix_…"""

START_TIMEOUT_S = 60.0
REQUEST_BYTES_MAX = 32 * 1024 * 1024
DIRECT = {
    "BatchGetItem": "batch_get_item",
    "DeleteItem": "delete_item",
    "GetItem": "get_item",
    "PutItem": "put_item",
    "Query": "query",
    "TransactGetItems": "transact_get_items",
    "TransactWriteItems": "transact_write_items",
    "UpdateItem": "update_item",
}
"""The calls that the tests make by the thousand."""

DIRECT_BYTES_MAX = 256 * 1024

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
"""What the tests sign with. None of the developer's own reaches a server of ours."""


class CannotStart(Exception):
    """Why this machine cannot run a server; tests that need one are skipped with this reason."""


@dataclass
class TestTables:
    """Tables on one server, one for each test."""

    __test__ = False

    url: str
    """dynamodb://region/prefix?options"""
    empties: str = ""
    """Where our own server takes away what a table has: making one is most of a short test."""
    _tables: dict[Path, str] = field(default_factory=dict)
    """Of the tests that run, by their folders."""
    _ready: set[str] = field(default_factory=set)
    """Those that are stores."""
    _empty: list[str] = field(default_factory=list)
    """Stores that have nothing in them."""

    def new_url(self, folder: Path) -> str:
        """Return the URL of a new table for a test, identified by its folder."""
        self._tables[folder] = secrets.token_hex(8)
        return self.url_of(folder)

    def url_of(self, folder: Path) -> str:
        """Return the URL of a test's store."""
        place, _, query = self.url.partition("?")
        return f"{place}_{self._tables[folder]}?{query}"

    def store_url(self, folder: Path) -> str:
        """Return the URL of a test's store, and make its table first if it is missing."""
        if folder not in self._tables:
            if self._empty:
                self._tables[folder] = self._empty.pop()
            else:
                run_apart(_migrate, self.new_url(folder))
            self._ready.add(self._tables[folder])
        return self.url_of(folder)

    def clear(self, folder: Path) -> None:
        """Empty a test's table, if it has one."""
        if folder not in self._tables:
            return
        url = self.url_of(folder)
        table = self._tables.pop(folder)
        if self.empties and table in self._ready:
            name = url.partition("?")[0].rpartition("/")[2]
            request = urllib.request.Request(f"{self.empties}/{name}", method="DELETE")
            urllib.request.urlopen(request, timeout=START_TIMEOUT_S).close()
            self._empty.append(table)
        else:
            run_apart(_drop, url)


def patient(url: str) -> str:
    """Return a store's URL with time limits for a machine where all tests share two cores.

    One stand-in serves every process of the run, one call at a time, so that a call may wait for
    those of another test. The limits of a real table, 2 s an attempt, were missed there.
    """
    return f"{url}&read_timeout_s=30&call_timeout_s=60"


def run_apart(work, url: str) -> None:
    """Run a coroutine function to its end, with or without a running event loop."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(work(url))
        except BaseException as error:  # noqa: BLE001 - raised again by who waits
            failed.append(error)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


async def _migrate(url: str) -> None:
    from routing_service.storage.migrate_store import migrate_store  # noqa: PLC0415 - the driver

    await migrate_store(patient(url))


async def _drop(url: str) -> None:
    from routing_service.storage.dynamodb.api import open_api  # noqa: PLC0415 - needs the driver
    from routing_service.storage.open_store import dynamodb_place  # noqa: PLC0415 - as above

    async with open_api(dynamodb_place(patient(url))) as api:
        if await api.describe() is not None:
            await api.on_table("delete_table")


@contextmanager
def test_tables(shared_folder: Path) -> Iterator[TestTables]:
    """Yield tables on the server given by its URL, or on the run's own.

    shared_folder: the same for all processes of the run. Raises CannotStart.
    """
    given = os.environ.get(URL_VARIABLE)
    if given:
        yield TestTables(given)
        return
    with _shared_server(shared_folder) as port:
        yield TestTables(store_prefix(port), f"http://127.0.0.1:{port}")


def store_prefix(port: int) -> str:
    """Return the URL prefix of a server's tables."""
    return f"dynamodb://eu-west-1/test?endpoint_url=http://127.0.0.1:{port}"


def start_server(folder: Path) -> tuple[int, int]:
    """Start a server and return its process id and port. Raises CannotStart."""
    for needed in ("moto", "aiohttp"):
        if importlib.util.find_spec(needed) is None:
            raise CannotStart(f"{needed} is not installed, and {URL_VARIABLE} names no server")
    ready = folder / f"dynamodb-{secrets.token_hex(4)}.port"
    log = (folder / "dynamodb.log").open("ab")
    process = subprocess.Popen(
        [sys.executable, __file__, str(ready)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    log.close()
    ends_s = time.monotonic() + START_TIMEOUT_S
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > ends_s:
            process.kill()
            told = (folder / "dynamodb.log").read_text(errors="replace")[-2_000:]
            raise CannotStart(f"the stand-in for DynamoDB did not start: {told}")
        time.sleep(0.02)
    # Another process of the run may stop it, so it is not waited for: the system reaps it.
    process.returncode = 0
    return process.pid, int(ready.read_text())


def stop_server(pid: int) -> None:
    """Stop a server that was started here or in another process of the run."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


@contextmanager
def _shared_server(folder: Path) -> Iterator[int]:
    state = folder / "dynamodb.json"
    with _locked(folder):
        if state.exists():
            found = json.loads(state.read_text())
        else:
            pid, port = start_server(folder)
            found = {"pid": pid, "port": port, "users": []}
        found["users"].append(os.getpid())
        state.write_text(json.dumps(found))
    try:
        yield found["port"]
    finally:
        with _locked(folder):
            if state.exists():
                found = json.loads(state.read_text())
            # A killed process does not count.
            found["users"] = [
                pid
                for pid in found["users"]
                if pid != os.getpid() and Path(f"/proc/{pid}").exists()
            ]
            if found["users"]:
                state.write_text(json.dumps(found))
            else:
                state.unlink(missing_ok=True)
                stop_server(found["pid"])


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "dynamodb.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def transact(backend, items) -> None:
    """Check all conditions of a transaction, then apply all of its actions.

    moto copies the whole table for each transaction to be able to reset it, which dominates a test
    with a thousand sessions. docs/dynamodb.md lists what this leaves out.
    """
    from moto.dynamodb.comparisons import get_filter_expression  # noqa: PLC0415 - in the server
    from moto.dynamodb.exceptions import (  # noqa: PLC0415 - as above
        MultipleTransactionsException,
        TooManyTransactionsException,
        TransactionCanceledException,
    )

    if len(items) > 100:
        raise TooManyTransactionsException
    seen: set[str] = set()
    reasons: list[tuple[str | None, str | None, None]] = []
    for item in items:
        ((kind, action),) = item.items()
        table = backend.get_table(action["TableName"])
        given = action["Item"] if kind == "Put" else action["Key"]
        key = {name: given[name] for name in (table.hash_key_attr, table.range_key_attr)}
        if repr(key) in seen:
            raise MultipleTransactionsException
        seen.add(repr(key))
        condition = action.get("ConditionExpression")
        holds = condition is None or get_filter_expression(
            condition,
            action.get("ExpressionAttributeNames"),
            action.get("ExpressionAttributeValues"),
        ).expr(backend.get_item(action["TableName"], key))
        reasons.append(
            (None, None, None)
            if holds
            else ("ConditionalCheckFailed", "The conditional request failed", None)
        )
    if any(code for code, _, _ in reasons):
        raise TransactionCanceledException(reasons)
    for item in items:
        ((kind, action),) = item.items()
        table = action["TableName"]
        names = action.get("ExpressionAttributeNames")
        values = action.get("ExpressionAttributeValues")
        if kind == "Put":
            backend.put_item(table, action["Item"])
        elif kind == "Delete":
            backend.delete_item(table, action["Key"])
        elif kind == "Update":
            backend.update_item(
                table,
                action["Key"],
                update_expression=action["UpdateExpression"],
                expression_attribute_names=names,
                expression_attribute_values=values,
            )


def _serve(ready: Path) -> None:
    from aiohttp import web  # noqa: PLC0415 - in the server alone
    from moto.core.request import Request  # noqa: PLC0415 - as above
    from moto.dynamodb.models import DynamoDBBackend, dynamodb_backends  # noqa: PLC0415 - as above
    from moto.dynamodb.responses import DynamoHandler  # noqa: PLC0415 - as above

    DynamoDBBackend.transact_write_items = transact

    def answer_directly(operation: str, body: bytes) -> bytes:
        """Call moto's method without its parsing of requests and writing of answers.

        Those take three quarters of its time, since they use the whole service description.
        """
        handler = DynamoHandler()
        handler.region, handler.current_account = "eu-west-1", "123456789012"
        handler.headers, handler.uri = {}, ""
        handler.body = handler.params = json.loads(body)
        result = getattr(handler, operation)().result
        return json.dumps(result, default=lambda value: b64encode(value).decode()).encode()

    async def handle(request: web.Request) -> web.Response:
        body = await request.read()
        operation = DIRECT.get(request.headers["X-Amz-Target"].partition(".")[2])
        # moto would use the length of a large item's base64 as its size, and refuse it.
        if operation is not None and len(body) < DIRECT_BYTES_MAX:
            # moto itself builds the refusal, so the call is made again.
            with suppress(Exception):
                return web.Response(
                    body=answer_directly(operation, body),
                    content_type="application/x-amz-json-1.0",
                )
        url = "https://dynamodb.eu-west-1.amazonaws.com/"
        called = Request.from_primitives("POST", url, dict(request.headers), body)
        status, headers, answer = DynamoHandler.dispatch(called, url, called.headers)
        headers = {
            name: str(value)
            for name, value in headers.items()
            if name.lower() not in {"content-length", "content-type", "date"}
        }
        return web.Response(
            status=status,
            headers=headers,
            body=answer.encode() if isinstance(answer, str) else answer,
            content_type="application/x-amz-json-1.0",
        )

    async def empty(request: web.Request) -> web.Response:
        """Reset a table to a new store with its own identity."""
        backend = dynamodb_backends["123456789012"]["eu-west-1"]
        name = request.match_info["table"]
        key = {"pk": {"S": "m"}, "sk": {"S": "m"}}
        record = backend.get_item(name, key).to_json()["Attributes"]
        record["store_id"] = {"B": b64encode(os.urandom(8)).decode()}
        backend.tables[name].items.clear()
        backend.put_item(name, record)
        return web.Response()

    app = web.Application(client_max_size=REQUEST_BYTES_MAX)
    app.router.add_post("/", handle)
    app.router.add_delete("/{table}", empty)

    async def main() -> None:
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        written = ready.with_suffix(".new")
        written.write_text(str(port))
        written.rename(ready)
        await asyncio.Event().wait()

    asyncio.run(main())


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
