"""Replays the scenario vectors through the Python client.

Owns how a step of a vector becomes a call of the client, how its result becomes JSON, and how that
is compared. It follows tests/clients/vectors/README.md, as the runners of the other languages do:
open questions are settled there.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

import agent_routing
from agent_routing.ids import new_uuid7
from agent_routing.v1 import routing_service_pb2

VECTORS = Path(__file__).resolve().parent / "vectors"
VECTOR_SERVER = Path(__file__).resolve().parent / "vector_server.py"

# Of a step that waits for something: a change of a watch, a word of the server. Nothing takes so
# long; what does is missing.
STEP_S_MAX = 30.0
EVENTUALLY_PAUSE_S = 0.05
ANSWER_OR_ERROR = ("answer", "error")

METHODS = {
    "Route": "route",
    "SetActiveAgent": "set_active_agent",
    "ClearActiveAgent": "clear_active_agent",
    "CancelTask": "cancel_task",
    "Status": "status",
    "CompleteTurn": "complete_turn",
    "ResumeTask": "resume_task",
    "ReportDegraded": "report_degraded",
    "ListTasks": "list_tasks_page",
    "ListTurns": "list_turns_page",
    "ListAgents": "list_agents",
    "WatchSession": "watch_session",
    "ListWaiting": "list_waiting_page",
    "ClaimTurn": "claim_turn",
    "ReleaseTurn": "release_turn",
    "KeepTurn": "say",
    "AddNote": "add_note",
    "ListNotes": "list_notes",
}
# Fields that a Python caller gives by position: given also where the vector leaves them out.
POSITIONAL = {
    "SetActiveAgent": ("session_id", "agent_id"),
    "ClearActiveAgent": ("session_id",),
    "Status": ("session_id",),
    "CompleteTurn": ("session_id", "request_id", "agent_id", "outcome"),
    "CancelTask": ("task_id",),
    "ResumeTask": ("task_id", "request_id", "decision"),
    "ReportDegraded": ("turns",),
    "ListTasks": ("session_id",),
    "ListTurns": ("session_id",),
    "WatchSession": ("session_id",),
    "ListWaiting": ("agent_id",),
    "ClaimTurn": ("session_id", "agent_id"),
    "ReleaseTurn": ("session_id", "agent_id"),
    "KeepTurn": ("session_id", "agent_id"),
    "AddNote": ("session_id", "text"),
    "ListNotes": ("session_id",),
}

# Arguments that have another name than their field.
ARGUMENTS = {("KeepTurn", "say"): "text"}
# Fields of the lists whose name is not the call's.
ENTRIES = {"ListWaiting": "entries"}


def scenarios() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Return every scenario with the name of its file, in order."""
    for path in sorted(VECTORS.glob("*.json")):
        if path.name != "schema.json":
            for scenario in json.loads(path.read_text("utf-8"))["scenarios"]:
                yield path.stem, scenario


class Mismatch(AssertionError):
    """A result differs from the vector."""


def compare(expected: Any, actual: Any, at: str) -> None:
    """Compare a result with a vector's expectation. Raises Mismatch, which says where."""
    match expected:
        case {"$present": True}:
            ok = actual is not None
        case {"$contains": str() as part}:
            ok = isinstance(actual, str) and part in actual
        case {"$length": int() as length}:
            ok = (len(actual) if isinstance(actual, list) else 0) == length
        case {"$uuid": int() as version}:
            ok = isinstance(actual, str) and uuid.UUID(actual).version == version
        case {"$not": other}:
            ok = actual != other
        case {"$includes": list() as parts}:
            ok = isinstance(actual, list) and all(
                any(is_like(part, each) for each in actual) for part in parts
            )
        case dict():
            ok = isinstance(actual, dict)
            for key, value in expected.items() if ok else ():
                compare(value, actual.get(key), f"{at}.{key}")
        case list():
            ok = len(expected) == len(actual or ())
            for place, value in enumerate(expected) if ok else ():
                compare(value, actual[place], f"{at}.{place}")
        case _:
            # In Python True is 1, in JSON it is not.
            ok = expected == actual and isinstance(expected, bool) == isinstance(actual, bool)
    if not ok:
        raise Mismatch(f"{at}: expected {json.dumps(expected)}, got {json.dumps(actual)}")


def is_like(expected: Any, actual: Any) -> bool:
    """Tell whether a result matches a vector's expectation."""
    try:
        compare(expected, actual, "")
    except Mismatch:
        return False
    return True


def plain(message: Message) -> dict[str, Any]:
    """Return a message in the form of vectors: proto3 JSON with the contract's field names."""
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def arguments(rpc: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request as arguments of the client's method."""
    message = getattr(routing_service_pb2, f"{rpc}Request")()
    json_format.ParseDict(dict(request), message)
    given = dict.fromkeys(POSITIONAL.get(rpc, ()), "")
    for described, value in message.ListFields():
        outcome = described.containing_oneof
        is_outcome = outcome is not None and outcome.name == "outcome"
        name = "outcome" if is_outcome else ARGUMENTS.get((rpc, described.name), described.name)
        given[name] = _argument(described, value)
    return given


def _argument(described: FieldDescriptor, value: Any) -> Any:
    kind = described.message_type.full_name if described.message_type else ""
    match kind:
        case "google.protobuf.Struct":
            return json_format.MessageToDict(value)
        case "google.protobuf.Timestamp":
            return value.ToDatetime(UTC)
        case "google.protobuf.Duration":
            return value.ToTimedelta()
        case _:
            return value


@dataclass
class Disturber:
    """The running vector server."""

    process: asyncio.subprocess.Process
    address: str

    async def obey(self, word: str) -> None:
        """Make the server change its connections, and wait until it has."""
        self.process.stdin.write(f"{word}\n".encode())
        said = await asyncio.wait_for(self.process.stdout.readline(), STEP_S_MAX)
        assert said.decode().strip() == f"ok {word}", said


@asynccontextmanager
async def vector_server():
    """Start the server of the vectors."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(VECTOR_SERVER),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        line = await asyncio.wait_for(process.stdout.readline(), STEP_S_MAX)
        yield Disturber(process, json.loads(line)["address"])
    finally:
        process.stdin.close()
        await asyncio.wait_for(process.wait(), STEP_S_MAX)


@dataclass
class Scenario:
    """A running scenario: its client, and its results so far."""

    server: Disturber
    client: agent_routing.AsyncClient
    variables: dict[str, str] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    watches: dict[str, Any] = field(default_factory=dict)
    streams: dict[str, Any] = field(default_factory=dict)

    def filled(self, value: Any) -> Any:
        """Return a part of a vector with its variables filled in."""
        match value:
            case str():
                return re.sub(r"\$\{([^}]+)\}", lambda found: self._variable(found[1]), value)
            case dict():
                return {key: self.filled(each) for key, each in value.items()}
            case list():
                return [self.filled(each) for each in value]
            case _:
                return value

    def _variable(self, name: str) -> str:
        if name not in self.variables:
            kind, _, rest = name.partition(":")
            made = {
                "uuid": new_uuid7,
                "id": lambda: f"vector-{new_uuid7()}",
                "x": lambda: "x" * int(rest),
            }
            assert kind in made, f"nothing has captured ${{{name}}}"
            self.variables[name] = made[kind]()
        return self.variables[name]

    async def step(self, step: Mapping[str, Any]) -> None:
        """Execute one step, and compare its result."""
        match step:
            case {"network": word}:
                await self.server.obey(word)
            case {"watch": name}:
                given = arguments("WatchSession", self.filled(step["request"]))
                self.watches[name] = self.client.watch_session(**given)
            case {"next": name}:
                change = asyncio.wait_for(anext(self.watches[name]), STEP_S_MAX)
                await self._check(step, change)
            case {"end": name}:
                await self.watches.pop(name).aclose()
            case {"stream": name}:
                await self._stream(name, step["messages"])
            case {"rpc": rpc, "eventually": True}:
                await self._eventually(rpc, step)
            case {"rpc": rpc, "at_once": count}:
                calls = [asyncio.ensure_future(self._call(rpc, step)) for _ in range(count)]
                await asyncio.wait(calls)
                for call in calls:
                    await self._check(step, call)
            case {"rpc": rpc}:
                await self._check(step, self._call(rpc, step))
            case _:
                raise AssertionError(f"no such step: {step}")

    async def _call(self, rpc: str, step: Mapping[str, Any]) -> Any:
        """Make the step's call. Raises Mismatch for an unexpected stored answer."""
        given = arguments(rpc, self.filled(step["request"]))
        if step.get("pages") == "all":
            listed = getattr(self.client, METHODS[rpc].removesuffix("_page"))
            key = ENTRIES.get(rpc, rpc.removeprefix("List").lower())
            return {key: [plain(each) async for each in listed(**given)]}
        info = agent_routing.CallInfo()
        if "timeout_s" in step:
            given["timeout"] = step["timeout_s"]
        begun_s = time.monotonic()
        answer = await getattr(self.client, METHODS[rpc])(**given, info=info)
        took_s = time.monotonic() - begun_s
        if took_s > step.get("within_s", STEP_S_MAX):
            raise Mismatch(f"took {took_s:.3f} s, expected at most {step['within_s']} s")
        replayed = step.get("replayed", False)
        is_degraded = isinstance(answer, agent_routing.RouteResult) and answer.degraded
        if info.replayed != replayed and not is_degraded:
            raise Mismatch(f"replayed: expected {replayed}, got {info.replayed}")
        return answer

    async def _eventually(self, rpc: str, step: Mapping[str, Any]) -> None:
        """Call until the service is back: a client needs a moment to notice it."""
        async with asyncio.timeout(STEP_S_MAX):
            while True:
                coming = asyncio.ensure_future(self._call(rpc, step))
                await asyncio.wait([coming])
                error = coming.exception()
                is_away = isinstance(error, agent_routing.errors.Unavailable) or (
                    error is None and getattr(coming.result(), "degraded", False)
                )
                if not is_away:
                    break
                await asyncio.sleep(EVENTUALLY_PAUSE_S)
        await self._check(step, coming)

    async def _stream(self, name: str, messages: list[Mapping[str, Any]]) -> None:
        if name not in self.streams:
            self.streams[name] = self.client.stream()
        stream = self.streams[name]
        # Tasks begin in the order in which they are made, so the messages are sent in theirs.
        answers = [
            asyncio.ensure_future(stream.route(**arguments("Route", self.filled(each["request"]))))
            for each in messages
        ]
        await asyncio.wait(answers, timeout=STEP_S_MAX)
        for each, answer in zip(messages, answers, strict=True):
            await self._check(each, answer)

    async def _check(self, step: Mapping[str, Any], coming: Any) -> None:
        """Await a result, and compare it with the step's expectation."""
        assert sum(key in step for key in ANSWER_OR_ERROR) == 1, "a step expects answer or error"
        try:
            result = await coming
        except agent_routing.RoutingError as error:
            if "error" not in step:
                raise Mismatch(f"failed with {error.code.name} {error.reason}: {error}") from error
            compare(self.filled(step["error"]), error_as_json(error), "error")
            return
        if isinstance(result, agent_routing.RouteResult):
            compare(step.get("degraded", False), result.degraded, "degraded")
            result = result.response
        answer = plain(result) if isinstance(result, Message) else result
        if "error" in step:
            raise Mismatch(f"expected {step['error']}, got the answer {json.dumps(answer)}")
        compare(self.filled(step["answer"]), answer, "answer")
        if "same_as" in step and answer != self.answers[step["same_as"]]:
            first = json.dumps(self.answers[step["same_as"]])
            raise Mismatch(f"not the first answer {first} but {json.dumps(answer)}")
        self.answers[step.get("name", "")] = answer
        for variable, path in step.get("capture", {}).items():
            self.variables[variable] = at_path(answer, path)

    async def close(self) -> None:
        """Close everything."""
        for watch in self.watches.values():
            await watch.aclose()
        for stream in self.streams.values():
            await stream.close()
        await self.client.close()


def at_path(answer: Any, path: str) -> str:
    """Return the text at a path such as "open_requests.0.request_id"."""
    for part in path.split("."):
        answer = answer[int(part)] if part.isdecimal() else answer[part]
    assert isinstance(answer, str), f"{path} is {answer!r}; only texts are captured"
    return answer


def error_as_json(error: agent_routing.RoutingError) -> dict[str, Any]:
    """Return an error in the form of vectors."""
    return {
        "code": error.code.name,
        "reason": error.reason,
        "message": error.message,
        "metadata": dict(error.metadata),
        "request_id": error.request_id,
        "session_id": error.session_id,
        "violations": [
            {"name": each.name, "subject": each.subject, "detail": each.detail}
            for each in error.violations
        ],
    }


async def play(server: Disturber, scenario: Mapping[str, Any]) -> None:
    """Play a scenario. Raises Mismatch with the number of the step."""
    settings = scenario.get("client", {})
    fallback = agent_routing.Fallback(supervisor_id=settings.get("supervisor_id", ""))
    playing = Scenario(
        server,
        agent_routing.AsyncClient(
            server.address,
            tenant=settings.get("tenant", ""),
            timeout=settings.get("timeout_s", STEP_S_MAX),
            retry=agent_routing.RetryPolicy(attempts_max=settings.get("attempts_max", 4)),
            fallback=fallback if settings.get("fallback", True) else None,
            # Otherwise gRPC lends it the connection of the scenario before, with its troubles.
            options=[("grpc.use_local_subchannel_pool", 1)],
        ),
    )
    try:
        for number, step in enumerate(scenario["steps"]):
            try:
                await playing.step(step)
            except Mismatch as mismatch:
                # What this scenario disturbed must not fail the next ones.
                await server.obey("back")
                raise Mismatch(f"step {number}, {json.dumps(step)[:200]}: {mismatch}") from mismatch
    finally:
        await playing.close()
