"""Records calls of the project's client for the linearisability checker.

Owns the meaning of each answer or error for the checker, and the times of each call. A call that
may have happened is recorded as unknown, never as refused.

recorder = Recorder()
    client = recorder.wrap(agent_routing.AsyncClient(address, fallback=None), "client-1")
    await client.route("hello", session_id="chat-1", request_id=new_uuid7())
    assert check(recorder.history) == []
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from agent_routing import AsyncClient, CallInfo, RoutingError
from agent_routing.v1 import routing_service_pb2
from routing_service.ids import new_uuid7
from routing_service.storage.checked_store import Store
from routing_service.storage.event_codec import decode_change
from routing_service.storage.store import CURSOR_START, PAGE_ROWS_MAX
from tests.torture.linearisability import STATUS, Observed, Outcome, Stored

REFUSALS: Final = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.UNAUTHENTICATED,
    }
)
"""Codes by which the service says that a call does not happen. Any other leaves it open."""

ANSWERS: Final = {
    "Route": routing_service_pb2.RouteResponse,
    "CompleteTurn": routing_service_pb2.CompleteTurnResponse,
    "SetActiveAgent": routing_service_pb2.SetActiveAgentResponse,
    "ClearActiveAgent": routing_service_pb2.ClearActiveAgentResponse,
    "ResumeTask": routing_service_pb2.ResumeTaskResponse,
}
"""What the stored answer of a method is."""

REVISION_MISMATCH: Final = "REVISION_MISMATCH"


@dataclass(slots=True)
class Recorder:
    """Records a history. history: calls in the order of their ends."""

    history: list[Observed] = field(default_factory=list)

    def wrap(self, client: AsyncClient, name: str = "", tenant: str = "default") -> RecordedClient:
        """Return a client with the same methods that records its calls."""
        return RecordedClient(client, self, name, tenant)

    def save(self, path: Path) -> None:
        """Write the history to a file, for another process to read."""
        path.write_text("".join(json.dumps(asdict(call)) + "\n" for call in self.history), "utf-8")


def load_history(paths: Iterable[Path]) -> list[Observed]:
    """Load the files of several processes of one machine as one history."""
    calls = []
    for path in paths:
        for line in path.read_text("utf-8").splitlines():
            fields = json.loads(line)
            calls.append(Observed(**(fields | {"outcome": Outcome(fields["outcome"])})))
    return calls


class RecordedClient:
    """The AsyncClient's calls of one session, recorded; arguments and answers are unchanged."""

    def __init__(self, client: AsyncClient, recorder: Recorder, name: str, tenant: str) -> None:
        self.client = client
        self._recorder = recorder
        self._name = name
        self._tenant = tenant

    async def route(self, text: str = "", *, session_id: str, **fields: Any) -> Any:
        """Record Route. A fallback decision of the client is not an answer of the service."""
        fields["session_id"] = session_id
        return await self._write("Route", self.client.route, (text,), session_id, fields)

    async def set_active_agent(self, session_id: str, agent_id: str, **fields: Any) -> Any:
        """Record SetActiveAgent."""
        call = self.client.set_active_agent
        return await self._write("SetActiveAgent", call, (session_id, agent_id), session_id, fields)

    async def clear_active_agent(self, session_id: str, **fields: Any) -> Any:
        """Record ClearActiveAgent."""
        call = self.client.clear_active_agent
        return await self._write("ClearActiveAgent", call, (session_id,), session_id, fields)

    async def resume_task(
        self, task_id: str, request_id: str, decision: Any, *, session_id: str, **fields: Any
    ) -> Any:
        """Record ResumeTask, which is unique by the request that it resumes."""
        info = CallInfo()
        call = self.client.resume_task(
            task_id, request_id, decision, session_id=session_id, info=info, **fields
        )
        seen = {"kind": "ResumeTask", "session_id": session_id, "request_id": request_id}
        return await self._record(call, seen, info)

    async def complete_turn(
        self, session_id: str, request_id: str, agent_id: str, outcome: Any, **fields: Any
    ) -> Any:
        """Record CompleteTurn, which is unique by request and agent."""
        info = CallInfo()
        call = self.client.complete_turn(
            session_id, request_id, agent_id, outcome, info=info, **fields
        )
        seen = {"kind": "CompleteTurn", "session_id": session_id, "request_id": request_id}
        return await self._record(call, {**seen, "actor": agent_id}, info)

    async def status(self, session_id: str, **fields: Any) -> Any:
        """Record Status."""
        info = CallInfo()
        call = self.client.status(session_id, info=info, **fields)
        return await self._record(call, {"kind": STATUS, "session_id": session_id}, info)

    async def _write(
        self,
        kind: str,
        method: Any,
        args: tuple[str, ...],
        session_id: str,
        fields: dict[str, Any],
    ) -> Any:
        """Make a call with a request id; one is made if none is given."""
        info = CallInfo()
        given = {"request_id": new_uuid7(), **fields}
        seen = {
            "kind": kind,
            "session_id": session_id,
            # A trial writes nothing: it only sees a revision.
            "request_id": "" if fields.get("validate_only") else given["request_id"],
            "expected_revision": given.get("expected_revision"),
        }
        return await self._record(method(*args, info=info, **given), seen, info)

    async def _record(self, call: Awaitable[Any], seen: dict[str, Any], info: CallInfo) -> Any:
        session_id = seen.pop("session_id")
        seen |= {
            "session": f"{self._tenant}/{session_id}",
            "client": self._name,
            "invoke_ns": time.monotonic_ns(),
        }
        try:
            answer = await call
        except asyncio.CancelledError:
            self._keep(seen, info, outcome=Outcome.UNKNOWN, error="cancelled")
            raise
        except RoutingError as error:
            self._keep(seen, info, **_refusal(error))
            raise
        except BaseException as error:
            self._keep(seen, info, outcome=Outcome.UNKNOWN, error=type(error).__name__)
            raise
        if getattr(answer, "degraded", False):
            self._keep(seen, info, **_refusal(answer.error))
        else:
            self._keep(seen, info, **_answer(getattr(answer, "response", answer)))
        return answer

    def _keep(self, seen: dict[str, Any], info: CallInfo, **learned: Any) -> None:
        self._recorder.history.append(
            Observed(
                **seen,
                **learned,
                response_ns=time.monotonic_ns(),
                attempts=info.attempts,
                replayed=info.replayed,
            )
        )


def _answer(message: Any) -> dict[str, Any]:
    """Return an answer's data. Two of them name the active agent, the others the next one."""
    tells_agent = "active_agent" in message.DESCRIPTOR.fields_by_name
    return {
        "outcome": Outcome.ANSWERED,
        "revision": message.revision,
        "agent": message.active_agent.agent_id if tells_agent else None,
        "answer": _digest(message),
        "kept": _kept(message),
    }


def _kept(message: Message) -> str:
    """Return a digest of the stored part of an answer: all but the user's text and past turns."""
    for name in ("dispatch", "next"):
        if name in message.DESCRIPTOR.fields_by_name and message.HasField(name):
            kept = type(message).FromString(message.SerializeToString())
            for words in ("text", "items", "history"):
                getattr(kept, name).ClearField(words)
            return _digest(kept)
    return _digest(message)


def _digest(message: Message) -> str:
    data = message.SerializeToString(deterministic=True)
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def _refusal(error: RoutingError) -> dict[str, Any]:
    outcome = Outcome.REFUSED if error.code in REFUSALS else Outcome.UNKNOWN
    told = error.metadata.get("revision", "") if error.reason == REVISION_MISMATCH else ""
    return {
        "outcome": outcome,
        "error": error.reason or error.code.name,
        "revision": int(told) if told else None,
    }


async def stored_changes(store: Store) -> dict[str, list[Stored]]:
    """Read every session's changes from the log, for ``check``."""
    log: dict[str, list[Stored]] = {}
    cursor = CURSOR_START
    while True:
        page, cursor = await store.read_log(cursor, PAGE_ROWS_MAX)
        for key, change in page:
            active = decode_change(change.events).active
            log.setdefault(str(key), []).append(
                Stored(
                    change.revision,
                    change.method,
                    change.request_id,
                    change.actor,
                    active[-1] if active else None,
                    _kept(ANSWERS[change.method].FromString(change.answer))
                    if change.answer
                    else "",
                )
            )
        if len(page) < PAGE_ROWS_MAX:
            return log
