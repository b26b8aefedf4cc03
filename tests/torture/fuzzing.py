"""The fuzzers' requests to every RPC, and the check of every answer.

Owns the RPCs and their share, seed requests, and the verdict on an answer. An answer is either a
success or an error with a reason of the contract; anything else is a failure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from agent_routing.v1 import (
    admin_service_pb2,
    clear_scope_pb2,
    error_reason_pb2,
    handoff_pb2,
    item_pb2,
    routing_service_pb2,
    turn_pb2,
)
from tests.rpc.registries import DESK
from tests.torture.in_process import Answer

OWN: Final = "agent_routing.v1."
RARE: Final = frozenset({"ReloadAgents", "WatchInbox", "WatchApprovals"})
"""One reads a file each time, two wait: a small share, or they take all of the time."""

_METHODS: Final[dict[str, MethodDescriptor]] = {
    f"/{service.full_name}/{method.name}": method
    for service in (
        routing_service_pb2.DESCRIPTOR.services_by_name["RoutingService"],
        admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"],
        health_pb2.DESCRIPTOR.services_by_name["Health"],
        reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
    )
    for method in service.methods
}

PATHS: Final = tuple(_METHODS)
"""Every RPC that a server has."""

WEIGHTED_PATHS: Final = tuple(
    path for path in PATHS for _ in range(1 if path.rpartition("/")[2] in RARE else 32)
)

SESSIONS: Final = ("chat-1", "chat-2", "chat-3", "chat-4", "chat-5", "chat-6")
REQUESTS: Final = tuple(f"0198a6c0-0000-7000-8000-00000000000{n}" for n in range(6))
TASK: Final = "0198a6c0-0000-7000-8000-0000000000aa"

REGISTRY: Final = f"""{DESK}
  - {{id: people, name: People, description: They help, kind: human, user_selectable: true}}
  - {{id: bench, name: Bench, description: It repairs., delivery: inbox, user_selectable: true}}
while_paused: park
double_text: queue
approvals: {{expires: 2d}}
"""
"""A help desk with people, an inbox, parked tasks and messages that wait."""

FORBIDDEN: Final = frozenset({"INTERNAL", "UNKNOWN", "DATA_LOSS", "UNAVAILABLE", "CANCELLED"})
"""Codes that no input may lead to. Nothing here stops, and nothing fails but by an input."""

# Typical texts of Python, its libraries or the machine. Quoted values are the caller's own and are
# removed first.
_INSIDE: Final = re.compile(
    r"Traceback|\b[A-Z]\w+(Error|Exception)\b|File \"|\.py\b|0x[0-9a-f]{6}|<class|object at|"
    r"\bline \d+|NoneType|codec can't|asyncio|sqlite|site-packages|/(usr|root|home|tmp)/"
)
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_REASONS: Final = frozenset(
    name.removeprefix("ERROR_REASON_")
    for name in error_reason_pb2.ErrorReason.DESCRIPTOR.values_by_name
)
DETAILS_BYTES_MAX: Final = 4096
PROBLEMS_MAX: Final = 50


def message_class(path: str, *, response: bool = False) -> type[Message]:
    """Return the class of an RPC's request or response."""
    method = _METHODS[path]
    return message_factory.GetMessageClass(method.output_type if response else method.input_type)


@dataclass
class Verdicts:
    """The verdicts on all inputs."""

    codes: Counter[str] = field(default_factory=Counter)
    methods: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    @property
    def inputs(self) -> int:
        """The number of inputs."""
        return self.codes.total()

    def take(self, path: str, data: bytes, answer: Answer) -> None:
        """Check one answer."""
        self.codes[answer.code] += 1
        self.methods[path.rpartition("/")[2]] += 1
        for problem in problems_of(path, data, answer):
            if len(self.problems) < PROBLEMS_MAX:
                self.problems.append(f"{path} {data.hex()}: {problem}")


def problems_of(path: str, data: bytes, answer: Answer) -> Iterator[str]:
    """Return what is wrong with an answer to a request."""
    if answer.raised is not None:
        yield f"raised {answer.raised!r}"
    if answer.code in FORBIDDEN:
        yield f"{answer.code} {answer.message}"
    if answer.code != "OK":
        if _INSIDE.search(_QUOTED.sub('""', answer.message)):
            yield f"shows its inside: {answer.message}"
        if path.startswith(f"/{OWN}"):
            yield from _problems_of_details(data, answer.details, answer.message)
        return
    response = message_class(path, response=True)
    for body in answer.bodies:
        try:
            parsed = response.FromString(body)
        except DecodeError:
            yield f"answered with bytes that are no {response.DESCRIPTOR.name}: {body.hex()}"
            continue
        if isinstance(parsed, routing_service_pb2.RouteStreamResponse) and parsed.HasField("error"):
            error = parsed.error
            yield from _problems_of_details(data, error.SerializeToString(), error.message)
            if parsed.error.code in {1, 2, 13, 14, 15}:
                yield f"on a stream: {parsed.error}"


def _problems_of_details(data: bytes, details: bytes, message: str) -> Iterator[str]:
    if not details or len(details) > DETAILS_BYTES_MAX:
        yield f"has {len(details)} bytes of details"
        return
    status = status_pb2.Status.FromString(details)
    if status.message != message:
        yield "its details say something else than its message"
    info = error_details_pb2.ErrorInfo()
    if not status.details or not status.details[0].Unpack(info) or info.reason not in _REASONS:
        yield f"has no reason: {status}"
    # What the caller sent may look like anything.
    own = [value for value in info.metadata.values() if value.encode() not in data]
    said = " ".join([message, *own])
    if _INSIDE.search(_QUOTED.sub('""', said)):
        yield f"shows its inside: {said}"


# --- seed requests ---


def _newest() -> list[tuple[str, Message]]:
    """Return calls about people, an inbox, an approval and parked tasks."""
    rs = routing_service_pb2
    at_people = {"session_id": "chat-4", "user_id": "ana", "agent_id": "people"}
    at_bench = {"session_id": "chat-5", "user_id": "ana", "agent_id": "bench"}
    say = rs.CompleteTurnRequest(
        session_id="chat-6",
        user_id="ana",
        request_id=REQUESTS[5],
        agent_id="front",
        approval_needed=rs.ApprovalNeededOutcome(prompt="really?"),
    )
    return [
        ("Route", rs.RouteRequest(session_id="chat-4", user_id="ana", text="/agent people help")),
        ("ListWaiting", rs.ListWaitingRequest(agent_id="people", page_size=2)),
        ("ClaimTurn", rs.ClaimTurnRequest(**at_people, claimant="bea")),
        ("ClaimTurn", rs.ClaimTurnRequest(**at_people, claimant="cem", take_over=True)),
        ("ReleaseTurn", rs.ReleaseTurnRequest(**at_people, claimant="cem")),
        (
            "Route",
            rs.RouteRequest(
                session_id="chat-5", user_id="ana", request_id=REQUESTS[4], text="/agent bench go"
            ),
        ),
        ("WatchInbox", rs.WatchInboxRequest(agent_ids=["bench"], worker_id="w1", capacity=1)),
        (
            "KeepTurn",
            rs.KeepTurnRequest(
                **at_bench,
                request_id=REQUESTS[4],
                steps=[turn_pb2.Step(name="look", kind="tool")],
                note="looking",
            ),
        ),
        (
            "Route",
            rs.RouteRequest(
                session_id="chat-6", user_id="ana", request_id=REQUESTS[5], text="refund"
            ),
        ),
        ("CompleteTurn", say),
        ("Route", rs.RouteRequest(session_id="chat-6", user_id="ana", text="and now this")),
        ("Route", rs.RouteRequest(session_id="chat-6", user_id="ana", text="/tasks")),
        ("Route", rs.RouteRequest(session_id="chat-6", user_id="ana", text="/task 1")),
        ("ListApprovals", rs.ListApprovalsRequest(agent_id="front", page_size=2)),
        ("WatchApprovals", rs.WatchApprovalsRequest(agent_id="front")),
        (
            "CancelTask",
            rs.CancelTaskRequest(session_id="chat-6", user_id="ana", validate_only=True),
        ),
        (
            "ReportDegraded",
            rs.ReportDegradedRequest(
                turns=[
                    rs.DegradedTurn(
                        session_id="chat-6",
                        user_id="ana",
                        request_id=REQUESTS[3],
                        agent_id="front",
                        text="hello",
                        agent_text="hello",
                    )
                ]
            ),
        ),
    ]


def seeds() -> list[tuple[str, bytes]]:
    """Return a valid request of every RPC, and several of the large ones, in order.

    The first ones create sessions for the later ones.
    """
    rs, ad = routing_service_pb2, admin_service_pb2
    png = item_pb2.Item(content_type="image/png", uri="https://example.com/a.png")
    route = [
        rs.RouteRequest(
            session_id=session_id,
            user_id="ana",
            request_id=REQUESTS[number],
            task_id=TASK if number == 1 else "",
            text="hello",
            items=[png],
            locale="es",
            channel="web",
            entitlements=["plan:premium"],
            metadata={"key": "value"},
        )
        for number, session_id in enumerate(SESSIONS[:3])
    ]
    complete = [
        rs.CompleteTurnRequest(
            session_id=SESSIONS[number],
            user_id="ana",
            request_id=REQUESTS[number],
            agent_id="front",
            text="so it is [HANDOFF_TO:sales]",
            items=[png],
            steps=[turn_pb2.Step(name="look", kind="tool", input="a", output="b")],
            **outcome,
        )
        for number, outcome in enumerate(
            (
                {"handoff": rs.HandoffOutcome(agent_id="sales", reason="sales", message="bye")},
                {"approval_needed": rs.ApprovalNeededOutcome(prompt="really?")},
                {"follow_up": rs.FollowUpOutcome()},
            )
        )
    ]
    made: list[tuple[str, Message]] = [
        *(("Route", message) for message in route),
        *(("CompleteTurn", message) for message in complete),
        ("Route", rs.RouteRequest(session_id="chat-1", user_id="ana", text="/agent support go")),
        ("Route", rs.RouteRequest(task_id=TASK, user_id="ana", text="/status", validate_only=True)),
        (
            "SetActiveAgent",
            rs.SetActiveAgentRequest(
                session_id="chat-3",
                user_id="ana",
                agent_id="Sales Team",
                initiator=handoff_pb2.INITIATOR_OPERATOR,
                mode=handoff_pb2.HANDOFF_MODE_INTERLUDE,
                reason="help",
                message="over to you",
            ),
        ),
        (
            "ClearActiveAgent",
            rs.ClearActiveAgentRequest(
                session_id="chat-3", user_id="ana", scope=clear_scope_pb2.CLEAR_SCOPE_SESSION
            ),
        ),
        ("Status", rs.StatusRequest(session_id="chat-2", user_id="ana")),
        (
            "ResumeTask",
            rs.ResumeTaskRequest(
                user_id="ana", task_id=TASK, request_id=REQUESTS[1], decision=1, comment="yes"
            ),
        ),
        ("ListTasks", rs.ListTasksRequest(session_id="chat-1", user_id="ana", page_size=2)),
        ("ListTurns", rs.ListTurnsRequest(session_id="chat-1", user_id="ana", agent_id="sales")),
        ("ListAgents", rs.ListAgentsRequest(session_id="chat-1", from_agent_id="front")),
        (
            "WatchSession",
            rs.WatchSessionRequest(session_id="chat-1", user_id="ana", after_revision=0),
        ),
        ("RouteStream", rs.RouteStreamRequest(route=route[0])),
        *_newest(),
    ]
    admin: list[tuple[str, Message]] = [
        ("ListSessions", ad.ListSessionsRequest(owner="ana", page_size=2)),
        ("ListEvents", ad.ListEventsRequest(session_id="chat-1", kinds=["agent_handoff"])),
        ("ListEvents", ad.ListEventsRequest(page_size=3, owner="ana")),
        ("WatchEvents", ad.WatchEventsRequest(from_beginning=True)),
        ("GetRoutingStats", ad.GetRoutingStatsRequest(channel="web")),
        ("ExportUser", ad.ExportUserRequest(user_id="ana")),
        ("EraseUser", ad.EraseUserRequest(user_id="ben", reason="asked", validate_only=True)),
        ("GetSessionAt", ad.GetSessionAtRequest(session_id="chat-1", revision=1)),
        ("ListInbox", ad.ListInboxRequest(agent_id="front", page_size=2)),
        ("GetServerStatus", ad.GetServerStatusRequest()),
        ("VerifyAudit", ad.VerifyAuditRequest(tenant="default")),
        ("SetStickiness", ad.SetStickinessRequest(enabled=True, reason="test")),
        ("GetStickiness", ad.GetStickinessRequest()),
        (
            "PurgeSessions",
            ad.PurgeSessionsRequest(update_time_before={"seconds": 1}, validate_only=True),
        ),
        ("ReloadAgents", ad.ReloadAgentsRequest(validate_only=True)),
        ("ReloadAgents", ad.ReloadAgentsRequest(validate_only=True, candidate=b"agents: []")),
        ("GetRegistry", ad.GetRegistryRequest()),
        ("StartReplay", ad.StartReplayRequest(candidate=b"agents: []", sessions_max=1)),
        ("WatchReplay", ad.WatchReplayRequest()),
        ("CancelReplay", ad.CancelReplayRequest(replay_id="r")),
    ]
    ask = reflection_pb2.ServerReflectionRequest
    return [
        *((f"/{OWN}RoutingService/{name}", each.SerializeToString()) for name, each in made),
        *((f"/{OWN}AdminService/{name}", each.SerializeToString()) for name, each in admin),
        *(
            (
                f"/grpc.health.v1.Health/{name}",
                health_pb2.HealthCheckRequest(
                    service="agent_routing.v1.RoutingService"
                ).SerializeToString(),
            )
            for name in ("Check", "List", "Watch")
        ),
        *(
            (
                "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                each.SerializeToString(),
            )
            for each in (
                ask(list_services=""),
                ask(file_containing_symbol="agent_routing.v1.RoutingService"),
                ask(file_by_filename="agent_routing/v1/item.proto"),
                ask(all_extension_numbers_of_type="google.protobuf.MethodOptions"),
            )
        ),
    ]
