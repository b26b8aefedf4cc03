"""Golden sets: the bytes that a release stored and the calls that it answered.

Every later release must read them. This module has the form of a set, and makes one from today's
code. Rule: a set is never changed; a release that stores something new adds one.

A set is a folder named for its release:
    events.jsonl   one line for each event: its kind, its stored bytes, what they mean
    states.jsonl   the same for the states of sessions
    store.db.gz    a SQLite store that a server of that release filled
    hashes.jsonl   what verify printed of it
    calls.jsonl    calls that were made to that server, and the bytes it answered
    agents.yaml    the registry it had, and agents.json, what that said
    SHA256SUMS     of all of these
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf.message import Message

from agent_routing.v1 import dispatch_pb2
from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.core import events as ev
from routing_service.registry.file import load_registry
from routing_service.storage.event_codec import decode_events, decode_state, encode_events
from routing_service.storage.open_store import open_store, open_store_to_read
from routing_service.storage.sqlite.backup import backup_sqlite
from routing_service.storage.store import CURSOR_START
from routing_service.stored_data.verification import SessionReport, TenantReport, verify_store
from tests.rpc.live_service import LiveService, ask, fresh_id, hand_to, serving
from tests.rpc.random_talk import RandomTalk
from tests.rpc.registries import DESK

FOLDER = Path(__file__).parent / "golden"
SUMS = "SHA256SUMS"
PARKED_TALK = "talk-parked"
PARKING_DESK = f"{DESK}while_paused: park\n"
SEEDS = range(4)
STEPS = 14


def sets() -> list[Path]:
    """Return all sets, the oldest name first."""
    return sorted(path for path in FOLDER.iterdir() if path.is_dir())


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """Read a file of JSON lines."""
    for line in path.read_text("utf-8").splitlines():
        yield json.loads(line)


def as_bytes(text: str) -> bytes:
    """Return bytes that are kept as text."""
    return base64.b64decode(text)


def meaning(value: object) -> Any:
    """Return what a stored value means, in JSON's own types."""
    return msgspec.json.decode(msgspec.json.encode(value, order="deterministic"))


def sums_of(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each of a set's files."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.name != SUMS
    }


async def found_in(url: str) -> list[dict[str, Any]]:
    """Return what verify finds of each session and tenant of a store."""
    store = await open_store_to_read(url)
    try:
        found = []
        async for report in verify_store(store):
            match report:
                case SessionReport(key=key):
                    name = {"tenant": key.tenant, "session_id": key.session_id}
                    found.append(name | {"revision": report.revision, "sha256": report.sha256})
                case TenantReport():
                    found.append({"tenant": report.tenant, "sha256": report.sha256})
            assert not getattr(report, "problems", ()), report
        return found
    finally:
        await store.close()


async def make_set(folder: Path, work: Path) -> None:
    """Make a set of what today's code writes. work: an empty folder. Raises FileExistsError."""
    folder.mkdir(parents=True)  # noqa: ASYNC240 - nothing else runs yet
    (folder / "agents.yaml").write_text(PARKING_DESK.lstrip(), "utf-8")
    registry = load_registry(folder / "agents.yaml")
    (folder / "agents.json").write_text(_json_lines([meaning(registry)]), "utf-8")
    url = f"sqlite:///{work / 'routing.db'}"
    async with serving(work, PARKING_DESK, store=url) as service:
        calls = [call for seed in SEEDS for call in await _talk(service, seed)]
        calls += await _parked_talk(service)
        calls += [await _status(service, f"talk-{seed}") for seed in SEEDS]
        calls.append(await _status(service, PARKED_TALK))
        now_us = service.clock.now_us
    _write(folder / "calls.jsonl", [{"now_us": now_us}, *calls])
    _write(folder / "hashes.jsonl", await found_in(url))
    backup_sqlite(work / "routing.db", work / "small.db")
    packed = gzip.compress((work / "small.db").read_bytes(), mtime=0)
    (folder / "store.db.gz").write_bytes(packed)
    await _write_stored(folder, url)
    sums = "".join(f"{sha256}  {name}\n" for name, sha256 in sums_of(folder).items())
    (folder / SUMS).write_text(sums, "utf-8")


async def _talk(service: LiveService, seed: int) -> list[dict[str, Any]]:
    talk = RandomTalk(service, seed)
    talk.chat = service.chat(f"talk-{seed}")
    for _ in range(STEPS):
        await talk.step()
    return [_call(rpc, data, answer) for rpc, data, answer in talk.kept]


async def _parked_talk(service: LiveService) -> list[dict[str, Any]]:
    """Two tasks that wait for approvals and are parked, one that asks, and the conversation."""
    who = {"session_id": PARKED_TALK, "user_id": "ana"}
    calls = []

    async def call(rpc: str, answer: Message, **fields: Any) -> Any:
        request = getattr(pb, f"{rpc}Request")(**who, **fields)
        data = request.SerializeToString()
        given = await service.raw(rpc, data)
        calls.append(_call(rpc, data, given))
        return type(answer).FromString(given)

    async def answers(dispatch: Any, **outcome: Any) -> Any:
        return await call(
            "CompleteTurn",
            pb.CompleteTurnResponse(),
            request_id=dispatch.request_id,
            agent_id=dispatch.agent.agent_id,
            text="so it is",
            **outcome,
        )

    for agent_id in ("sales", "support"):
        routed = await call(
            "Route", pb.RouteResponse(), text=f"{agent_id}, please", request_id=fresh_id()
        )
        handed = await answers(routed.dispatch, **hand_to(agent_id))
        asked = pb.ApprovalNeededOutcome(prompt="May it?")
        waits = await answers(handed.next, approval_needed=asked)
    await call("Route", pb.RouteResponse(), text="something else", request_id=fresh_id())
    decided = {"request_id": waits.request_id, "decision": dispatch_pb2.DECISION_APPROVE}
    request = pb.ResumeTaskRequest(user_id="ana", task_id=waits.task_id, **decided)
    data = request.SerializeToString()
    given = await service.raw("ResumeTask", data)
    calls.append(_call("ResumeTask", data, given))
    await answers(pb.ResumeTaskResponse.FromString(given).dispatch, **ask())
    return calls


async def _status(service: LiveService, session_id: str) -> dict[str, Any]:
    request = pb.StatusRequest(session_id=session_id, user_id="ana")
    data = request.SerializeToString()
    return _call("Status", data, await service.raw("Status", data))


def _call(rpc: str, data: bytes, answer: bytes) -> dict[str, Any]:
    return {"rpc": rpc, "request": _text(data), "answer": _text(answer)}


async def _write_stored(folder: Path, url: str) -> None:
    """Write each kind of event that there is, and the states of all sessions."""
    # The kinds that no conversation above has come to have their bytes too.
    from tests.unit.storage.test_event_codec import EVENTS  # noqa: PLC0415 - nothing else needs it

    events: list[ev.Event] = list(EVENTS)
    states = []
    store = await open_store(url)
    page, _ = await store.read_log(CURSOR_START, 1000)
    for _, change in page:
        events += decode_events(change.events)
    sessions, _ = await store.list_sessions("default", CURSOR_START, 1000)
    for row in sessions:
        head = await store.load(row.key)
        assert head is not None
        states.append({"bytes": _text(head.state), "means": meaning(decode_state(head.state))})
    await store.close()
    several: dict[str, list[ev.Event]] = {}
    for event in events:
        kept = several.setdefault(type(event).__name__, [])
        if len(kept) < 3 and event not in kept:
            kept.append(event)
    _write(
        folder / "events.jsonl",
        (
            {
                "kind": kind,
                "bytes": _text(encode_events([event], [""], user_id="ana", registry_version="1")),
                "means": meaning(event),
            }
            for kind, kept in sorted(several.items())
            for event in kept
        ),
    )
    _write(folder / "states.jsonl", states)


def missing_kinds() -> set[str]:
    """Return the kinds of events that no set has."""
    present = {line["kind"] for folder in sets() for line in lines(folder / "events.jsonl")}
    return {kind.__name__ for kind in ev.Event.__args__} - present


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _json_lines(rows: Iterable[object]) -> str:
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)


def _write(path: Path, rows: Iterable[object]) -> None:
    path.write_text(_json_lines(rows), "utf-8")
