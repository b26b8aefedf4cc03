"""A real server on a free port, and conversations with it over gRPC.

Owns how a test starts a server, calls it and reads the results: answers, errors with all their
details, and what is stored. A test fails at its end if the server itself failed during it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2, struct_pb2
from google.rpc import error_details_pb2, status_pb2

from agent_routing.v1 import (
    dispatch_pb2,
    handoff_pb2,
    route_reason_pb2,
    routing_service_pb2,
    routing_service_pb2_grpc,
    task_pb2,
    turn_pb2,
)
from agent_routing_topics.default_model import load_word_model
from routing_service.core import events as ev
from routing_service.examples import EXAMPLES
from routing_service.ids import new_uuid7
from routing_service.server.bounds import DEFAULT_BOUNDS, Bounds
from routing_service.server.parts import Counts
from routing_service.server.server import RoutingServer
from routing_service.settings.settings import Settings
from routing_service.storage.checked_store import Store
from routing_service.storage.event_codec import decode_events
from routing_service.storage.open_store import open_store
from routing_service.storage.store import PAGE_ROWS_MAX, AuditEntry, Change, SessionKey
from routing_service.telemetry.call_record import CallRecord
from routing_service.telemetry.tracing import Tracing
from routing_service.topics.topic_detector import TopicModel

DETAILS_KEY = "grpc-status-details-bin"
REPLAYED_KEY = "agent-routing-replayed"
TENANT_KEY = "agent-routing-tenant"
DEFAULT_TENANT = "default"

# Any time works as long as it stands still: tests move it by hand.
START_US = 1_750_000_000_000_000
SECOND_US = 1_000_000

_session_numbers = itertools.count(1)


class Clock:
    """The server's clock. It moves only when a test moves it."""

    def __init__(self) -> None:
        self.now_us = START_US

    def __call__(self) -> int:
        return self.now_us

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self.now_us += int(seconds * SECOND_US)


class Observer:
    """Keeps every finished call, and every failure of the server itself."""

    def __init__(self, counts: Counts | None = None) -> None:
        self.counts = counts
        self.calls: list[CallRecord] = []
        self.failures: list[BaseException] = []

    def finished(self, record: CallRecord) -> None:
        self.calls.append(record)
        if self.counts is not None:
            self.counts.metrics.count_call(record)

    def failed(self, record: CallRecord, error: BaseException) -> str:
        self.failures.append(error)
        return f"failure-{len(self.failures)}"

    def dispatches(self, session_id: str) -> Counter[str]:
        """Count how often each agent was called in a session."""
        return Counter(
            record.agent_id
            for record in self.calls
            if record.session_id == session_id and record.dispatched and not record.replayed
        )


@dataclass
class LiveService:
    """A running server, a channel to it, and its store and observer."""

    server: RoutingServer
    channel: grpc.aio.Channel
    store: Store
    clock: Clock
    observer: Observer
    stub: Any

    def chat(self, session_id: str = "", user_id: str = "ana", tenant: str = "") -> Chat:
        """Return a conversation; session_id "" makes an id that no test has used."""
        return Chat(self, session_id or f"chat-{next(_session_numbers)}", user_id, tenant)

    def call(self, rpc: str, request: object, tenant: str = "") -> grpc.aio.UnaryUnaryCall:
        """Call an RPC directly, for calls that Chat has no method for."""
        metadata = ((TENANT_KEY, tenant),) if tenant else ()
        return getattr(self.stub, rpc)(request, metadata=metadata, timeout=20)

    def raw(self, rpc: str, data: bytes, service: str = "RoutingService") -> Awaitable[bytes]:
        """Send raw bytes that no message class would produce."""
        return self.channel.unary_unary(f"/agent_routing.v1.{service}/{rpc}")(data, timeout=20)


@dataclass
class Chat:
    """One session as the frontend and the agent runtime see it."""

    service: LiveService
    session_id: str
    user_id: str = "ana"
    tenant: str = ""
    # Sent with every message.
    profile: dict[str, Any] = field(default_factory=dict)

    def say(self, text: str = "hello", **fields: Any) -> grpc.aio.UnaryUnaryCall:
        """Send a user's message."""
        given = {"session_id": self.session_id, "user_id": self.user_id, "text": text}
        request = routing_service_pb2.RouteRequest(**(given | self.profile | fields))
        return self.service.call("Route", request, self.tenant)

    def answer(
        self, dispatch: dispatch_pb2.Dispatch, text: str = "", /, **fields: Any
    ) -> grpc.aio.UnaryUnaryCall:
        """Complete a dispatched request as its agent; the default outcome is "proceed"."""
        given = {
            "session_id": self.session_id,
            "user_id": self.user_id,
            "request_id": dispatch.request_id,
            "agent_id": dispatch.agent.agent_id,
            "text": text,
        }
        if not fields.keys() & OUTCOMES:
            given |= proceed()
        request = routing_service_pb2.CompleteTurnRequest(**(given | fields))
        return self.service.call("CompleteTurn", request, self.tenant)

    def set_active(self, agent_id: str, **fields: Any) -> grpc.aio.UnaryUnaryCall:
        """Hand the conversation to an agent."""
        given = {"session_id": self.session_id, "user_id": self.user_id, "agent_id": agent_id}
        request = routing_service_pb2.SetActiveAgentRequest(**(given | fields))
        return self.service.call("SetActiveAgent", request, self.tenant)

    def clear(self, **fields: Any) -> grpc.aio.UnaryUnaryCall:
        """Go back to the home agent."""
        given = {"session_id": self.session_id, "user_id": self.user_id}
        request = routing_service_pb2.ClearActiveAgentRequest(**(given | fields))
        return self.service.call("ClearActiveAgent", request, self.tenant)

    def status(self, **fields: Any) -> grpc.aio.UnaryUnaryCall:
        """Read the session's status."""
        given = {"session_id": self.session_id, "user_id": self.user_id}
        request = routing_service_pb2.StatusRequest(**(given | fields))
        return self.service.call("Status", request, self.tenant)

    async def turns(self, **fields: Any) -> list[turn_pb2.Turn]:
        """List the history."""
        given = {"session_id": self.session_id, "user_id": self.user_id}
        request = routing_service_pb2.ListTurnsRequest(**(given | fields))
        response = await self.service.call("ListTurns", request, self.tenant)
        return list(response.turns)

    async def tasks(self, **fields: Any) -> list[task_pb2.Task]:
        """List the tasks."""
        given = {"session_id": self.session_id, "user_id": self.user_id}
        request = routing_service_pb2.ListTasksRequest(**(given | fields))
        response = await self.service.call("ListTasks", request, self.tenant)
        return list(response.tasks)

    async def agents(self, **fields: Any) -> list[str]:
        """List the ids of the agents that this session's user may reach."""
        given = {"session_id": self.session_id, "user_id": self.user_id}
        request = routing_service_pb2.ListAgentsRequest(**(given | fields))
        response = await self.service.call("ListAgents", request, self.tenant)
        return [agent.agent_id for agent in response.agents]

    async def with_agent(self, agent_id: str, **outcome: Any) -> Chat:
        """Let the supervisor hand over to an agent; the agent answers with the given outcome."""
        routed = await self.say(f"I need {agent_id}")
        handed = await self.answer(routed.dispatch, **hand_to(agent_id))
        await self.answer(handed.next, f"{agent_id} here", **outcome)
        return self

    @property
    def key(self) -> SessionKey:
        return SessionKey(self.tenant or DEFAULT_TENANT, self.session_id)

    async def changes(self) -> list[Change]:
        """Read every stored change."""
        found: list[Change] = []
        while True:
            after = found[-1].revision if found else 0
            page = await self.service.store.read_changes(self.key, after=after, limit=PAGE_ROWS_MAX)
            found += page
            if len(page) < PAGE_ROWS_MAX:
                return found

    async def events(self, revision: int = 0) -> list[ev.Event]:
        """Read the stored events, of one change or of all."""
        return [
            event
            for change in await self.changes()
            if revision in (0, change.revision)
            for event in decode_events(change.events)
        ]

    async def kinds(self, revision: int = 0) -> list[str]:
        """Return the kinds of the stored events."""
        return [type(event).__name__ for event in await self.events(revision)]

    async def audit(self) -> list[AuditEntry]:
        """Read the refused calls."""
        store, key = self.service.store, self.key
        entries, _ = await store.read_audit(key.tenant, key.session_id, b"", PAGE_ROWS_MAX)
        return entries

    async def snapshot(self) -> tuple[bytes, int]:
        """Return everything that a caller could see change, and the number of changes."""
        if not await self.changes():
            return b"", 0
        status = await self.status()
        turns = await self.turns()
        seen = routing_service_pb2.ListTurnsResponse(turns=turns).SerializeToString()
        return status.SerializeToString(deterministic=True) + seen, len(await self.changes())

    @asynccontextmanager
    async def unchanged(self) -> AsyncIterator[None]:
        """Assert that nothing in the session changes."""
        before = await self.snapshot()
        yield
        assert await self.snapshot() == before


# --- outcomes of a turn, as fields of CompleteTurnRequest ---

OUTCOMES = {"proceed", "follow_up", "complete", "handoff", "approval_needed", "failure"}


def proceed() -> dict[str, Any]:
    """A complete answer."""
    return {"proceed": routing_service_pb2.ProceedOutcome()}


def ask(timeout_s: int | None = None) -> dict[str, Any]:
    """The agent asks a question."""
    timeout = None if timeout_s is None else duration_pb2.Duration(seconds=timeout_s)
    return {"follow_up": routing_service_pb2.FollowUpOutcome(timeout=timeout)}


def finish(summary: str = "", message: str = "") -> dict[str, Any]:
    """The agent is done."""
    return {"complete": routing_service_pb2.CompleteOutcome(summary=summary, message=message)}


def hand_to(agent_id: str, *, context: Mapping[str, Any] | None = None, **fields: Any) -> dict:
    """The agent hands over to another agent."""
    given = None if context is None else struct(context)
    return {
        "handoff": routing_service_pb2.HandoffOutcome(agent_id=agent_id, context=given, **fields)
    }


def fail(message: str = "") -> dict[str, Any]:
    """The agent failed."""
    return {"failure": routing_service_pb2.FailureOutcome(message=message)}


def struct(values: Mapping[str, Any]) -> struct_pb2.Struct:
    """Return plain values as a Struct."""
    made = struct_pb2.Struct()
    made.update(values)
    return made


INTERLUDE = handoff_pb2.HANDOFF_MODE_INTERLUDE
TRANSFER = handoff_pb2.HANDOFF_MODE_TRANSFER


# --- results as short texts ---


def reason(dispatch: dispatch_pb2.Dispatch) -> str:
    """Return the reason of a dispatch."""
    name = route_reason_pb2.RouteReason.Name(dispatch.reason)
    return name.removeprefix("ROUTE_REASON_")


def went(dispatch: dispatch_pb2.Dispatch) -> tuple[str, str]:
    """Return the agent that a message went to, and why."""
    return dispatch.agent.agent_id, reason(dispatch)


def outcome_status(response: routing_service_pb2.CompleteTurnResponse) -> str:
    """Return what happened to an answer."""
    name = turn_pb2.OutcomeStatus.Name(response.outcome_status)
    return name.removeprefix("OUTCOME_STATUS_")


def outcome(turn: turn_pb2.Turn) -> tuple[str, str]:
    """Return how a turn ended, and what that changed."""
    ended = turn_pb2.TurnOutcome.Name(turn.outcome).removeprefix("TURN_OUTCOME_")
    did = turn_pb2.OutcomeStatus.Name(turn.outcome_status).removeprefix("OUTCOME_STATUS_")
    return ended, did


def task_status(value: int) -> str:
    """Return a task's status."""
    return task_pb2.TaskStatus.Name(value).removeprefix("TASK_STATUS_")


def initiator(handoff: handoff_pb2.Handoff) -> str:
    """Return who asked for a handoff."""
    return handoff_pb2.Initiator.Name(handoff.initiator).removeprefix("INITIATOR_")


def mode(handoff: handoff_pb2.Handoff) -> str:
    """Return what a handoff did to the agent before."""
    return handoff_pb2.HandoffMode.Name(handoff.mode).removeprefix("HANDOFF_MODE_")


def handed_from(handoff: handoff_pb2.Handoff) -> str:
    """Return who handed over; the field's name is a Python keyword."""
    return getattr(handoff, "from").agent_id


def stack(status: routing_service_pb2.StatusResponse) -> list[str]:
    """Return the interrupted agents, the next one to return last."""
    return [frame.agent.agent_id for frame in status.return_stack]


async def is_replayed(call: grpc.aio.UnaryUnaryCall) -> bool:
    """Say whether an answer is a repeat of an earlier one."""
    return dict(await call.trailing_metadata()).get(REPLAYED_KEY) == "true"


@dataclass(frozen=True)
class Refusal:
    """An error with all its details."""

    code: str
    reason: str
    message: str
    metadata: Mapping[str, str]
    violations: Mapping[str, str]
    details_bytes: int
    retry_after_s: float | None = None

    def __iter__(self):
        """Unpack to what most tests compare: code and reason."""
        return iter((self.code, self.reason))

    @property
    def rules(self) -> list[str]:
        """Return the rules that refused, or the bad fields, in order."""
        return list(self.violations)


async def refusal(call: Awaitable[object]) -> Refusal:
    """Await an error and check the form that every error of the service has."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return read_refusal(caught.value)


def read_refusal(error: grpc.aio.AioRpcError) -> Refusal:
    """Read an error's details."""
    details = dict(error.trailing_metadata() or ()).get(DETAILS_KEY)
    assert details is not None, f"{error.code()} without details: {error.details()}"
    status = status_pb2.Status.FromString(details)
    assert status.code == error.code().value[0]
    assert status.message == error.details()
    return read_status(status, len(details))


def read_status(status: status_pb2.Status, details_bytes: int = 0) -> Refusal:
    """Read an error that came inside a message of a stream."""
    codes = {code.value[0]: code.name for code in grpc.StatusCode}
    info = error_details_pb2.ErrorInfo()
    violations: dict[str, str] = {}
    retry_after_s = None
    for packed in status.details:
        if packed.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            packed.Unpack(info)
        elif packed.Is(error_details_pb2.BadRequest.DESCRIPTOR):
            bad = error_details_pb2.BadRequest()
            packed.Unpack(bad)
            violations |= {v.field: v.description for v in bad.field_violations}
        elif packed.Is(error_details_pb2.PreconditionFailure.DESCRIPTOR):
            failure = error_details_pb2.PreconditionFailure()
            packed.Unpack(failure)
            violations |= {v.type: v.description for v in failure.violations}
        elif packed.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            retry = error_details_pb2.RetryInfo()
            packed.Unpack(retry)
            retry_after_s = retry.retry_delay.ToNanoseconds() / 1e9
        else:
            raise AssertionError(packed.type_url)
    assert info.domain == "agent_routing"
    return Refusal(
        codes[status.code],
        info.reason,
        status.message,
        dict(info.metadata),
        violations,
        details_bytes,
        retry_after_s,
    )


# --- servers ---


@cache
def _word_model() -> TopicModel:
    """Load the model once for all servers of this process: it takes half a second."""
    return load_word_model()


@asynccontextmanager
async def serving(
    folder: Path,
    registry: str,
    *,
    store: str = "",
    clock: Clock | None = None,
    shared: Store | None = None,
    model: TopicModel | None = None,
    counts: Counts | None = None,
    tracing: Tracing | None = None,
    bounds: Bounds = DEFAULT_BOUNDS,
    shown_id: Callable[[str], str] = str,
    **settings: Any,
) -> AsyncIterator[LiveService]:
    """Run a server until the block ends.

    registry: an example's name, or a registry file's text. store: "" = SQLite in the folder, the
    same file each time. shared: an open store, which stays open. model: detects topics; None = the
    built-in model. counts: the call metrics of the metrics page. tracing: traces calls. bounds:
    limits that have no setting.
    """
    if registry in EXAMPLES:
        path = EXAMPLES[registry].registry_path
    else:
        path = folder / "agents.yaml"
        await asyncio.to_thread(path.write_text, registry, encoding="utf-8")
    clock = clock or Clock()
    observer = Observer(counts)
    # With a test clock, the test decides when time-driven work runs.
    settings = {"expiry_sweep": False, "listen": "127.0.0.1:0"} | settings
    opened: list[Store] = []

    async def opener(url: str) -> Store:
        opened.append(shared or await open_store(url))
        return opened[0]

    server = await RoutingServer.start(
        Settings(
            store=store or f"sqlite:///{folder / 'routing.db'}",
            agents=str(path),
            **settings,
        ),
        observer=tracing.observing(observer) if tracing else observer,
        counts=counts,
        tracing=tracing,
        clock_us=clock,
        store_opener=opener,
        load_model=(lambda: model) if model else _word_model,
        bounds=bounds,
        shown_id=shown_id,
    )
    try:
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub = routing_service_pb2_grpc.RoutingServiceStub(channel)
            yield LiveService(server, channel, opened[0], clock, observer, stub)
    finally:
        await server.stop(0.5)
    if observer.failures:
        raise observer.failures[0]
    assert not [r for r in observer.calls if r.code in ("INTERNAL", "UNKNOWN")]


def fresh_id() -> str:
    """Return an id for a request or a task."""
    return new_uuid7()
