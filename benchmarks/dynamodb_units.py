"""What a turn costs on DynamoDB: write units, from the items that the service really stores.

Owns the counting, by DynamoDB's published rule: an item's size is that of its attributes' names and
values, a write unit is 1 KiB begun, and in a transaction each counts twice. It plays the story of
the benchmark (see story.py) on a stand-in for DynamoDB and needs no AWS.

    python -m benchmarks.dynamodb_units
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from benchmarks.service import REGISTRY, play
from benchmarks.story import Load
from routing_service.server.server import RoutingServer
from routing_service.settings.settings import Settings
from routing_service.storage.dynamodb.api import Api
from routing_service.storage.migrate_store import migrate_store
from tests.engines.dynamodb_server import CREDENTIALS, start_server, stop_server, store_prefix

TURNS: Final = 50
UNIT_BYTES: Final = 1024


def size_bytes(item: dict[str, Any]) -> int:
    """Count an item's bytes. A number takes about a byte for two digits, and one more."""
    total = 0
    for name, typed in item.items():
        ((kind, value),) = typed.items()
        total += len(name.encode())
        if kind == "N":
            total += (len(value.lstrip("-")) + 1) // 2 + 1
        elif kind == "S":
            total += len(value.encode())
        elif kind == "B":
            total += len(value)
        else:
            total += 1
    return total


def units(size: int) -> int:
    """Count the write units of an item in a transaction."""
    return 2 * -(-size // UNIT_BYTES)


async def main() -> None:
    """Play, count and print."""
    os.environ.update(CREDENTIALS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pid, port = start_server(folder)
        try:
            await _measure(folder, store_prefix(port).replace("/test?", "/measured?"))
        finally:
            stop_server(pid)


async def _measure(folder: Path, url: str) -> None:
    await migrate_store(url)
    written: dict[str, list[tuple[int, int]]] = defaultdict(list)
    transacted = Api.transact

    async def transact(api: Api, actions: Any, token: str) -> None:
        await transacted(api, actions, token)
        for action in actions:
            ((_, what),) = action.items()
            # An update's attributes are its values, and its names are in its expression.
            item = what.get("Item") or {
                **what["Key"],
                **{
                    key.removeprefix(":"): value
                    for key, value in what["ExpressionAttributeValues"].items()
                },
            }
            size = size_bytes(item)
            written[_kind(item)].append((size, units(size)))

    Api.transact = transact  # type: ignore[method-assign]
    agents = folder / "agents.yaml"
    agents.write_text(REGISTRY)
    server = await RoutingServer.start(
        Settings(listen="127.0.0.1:0", agents=str(agents), store=url)
    )
    try:
        await play(server.address, Load(1, TURNS, 1))
    finally:
        await server.stop()
    appends = len(written["head"])
    print(f"{TURNS} turns, {appends} appends: {appends / TURNS:.2f} for a turn")
    total = 0.0
    for kind, found in written.items():
        sizes = [size for size, _ in found]
        cost = sum(unit for _, unit in found) / TURNS
        total += cost
        print(
            f"{kind:14} {len(found) / TURNS:5.2f} a turn, {min(sizes)} to {max(sizes)} bytes, "
            f"{cost:.2f} units a turn"
        )
    counted = appends / TURNS
    print(f"{'log counter':14} {counted:5.2f} a turn, {counted:.2f} units a turn")
    print(f"{'all':14} {total + counted:.2f} units a turn")


def _kind(item: dict[str, Any]) -> str:
    pk, sk = item["pk"]["S"], item["sk"]["S"]
    if pk.startswith("s/"):
        return {"h": "head", "c": "change", "r": "request", "t": "task place", "a": "audit"}[sk[0]]
    return {"q": "log place", "l": "in the list", "t": "task"}.get(pk[0], "other")


if __name__ == "__main__":
    asyncio.run(main())
