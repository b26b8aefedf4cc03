"""Every RPC called by every kind of caller; this test writes the table of docs/rights.md."""

from __future__ import annotations

import asyncio
import http.client
import pkgutil
import re
from contextlib import asynccontextmanager
from http import HTTPStatus
from importlib import import_module
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_database, descriptor_pb2, descriptor_pool, timestamp_pb2
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from grpc_reflection.v1alpha import reflection_pb2

from agent_routing import v1
from agent_routing.status_details import BROKEN_OFF
from agent_routing.v1 import admin_service_pb2 as admin
from agent_routing.v1 import dispatch_pb2, handoff_pb2
from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.auth.rights import ENTRY
from routing_service.storage.store import SessionKey
from tests.rpc.live_service import (
    Refusal,
    fresh_id,
    hand_to,
    proceed,
    read_refusal,
    read_status,
)
from tests.rpc.registries import DESK
from tests.rpc.signed_in import Signed, bearer, outcome_of, serving_signed_in, token
from tests.rpc.test_web_listener import Connect, Watcher

DOCUMENT = Path(__file__).parents[2] / "docs" / "rights.md"

PEOPLE = "  - {id: people, name: People, description: They help, kind: human}\n"

SECRET = "the secret of ana"

CALLERS = {
    "owner": {"scopes": ["route"], "user": "ana"},
    "other user": {"scopes": ["route"], "user": "ben"},
    "reader": {"scopes": ["read"], "user": "ana"},
    "other tenant": {
        "scopes": ["route", "agent", "admin"],
        "user": "ana",
        "agents": ("*",),
        "tenant": "x",
    },
    "its agent": {"scopes": ["agent"], "agents": ("sales",)},
    "supervisor": {"scopes": ["agent"], "agents": ("front",)},
    "other agent": {"scopes": ["agent"], "agents": ("support",)},
    "frontend for ana": {"scopes": ["route", "act_as"]},
    "frontend for nobody": {"scopes": ["route", "act_as"]},
    "reader of all": {"scopes": ["read", "act_as"]},
    "operator": {"scopes": ["admin"], "user": "sam"},
    "operator who reads texts": {"scopes": ["admin", "read_words"], "user": "sam"},
    "its agent, for ana": {"scopes": ["agent", "act_as"], "agents": ("sales",)},
    "approver": {"scopes": ["approve"], "user": "bea"},
    "no scope": {"scopes": [], "user": "ana"},
    "nobody": None,
}
"""Who calls. The session is ana's, in the tenant default; its open turn is held by sales."""


def requests(session_id: str, open_request: str, paused: tuple[str, str], user_id: str) -> dict:
    """Return a call of every RPC, by the name of its row."""
    whose = {"session_id": session_id, "user_id": user_id}
    task_id, paused_request = paused
    return {
        "Route": pb.RouteRequest(**whose, text="hello"),
        "Route, a trial": pb.RouteRequest(**whose, text="hello", validate_only=True),
        "RouteStream": pb.RouteStreamRequest(
            route=pb.RouteRequest(**whose, text="hello", request_id=fresh_id())
        ),
        "SetActiveAgent": pb.SetActiveAgentRequest(**whose, agent_id="support"),
        "SetActiveAgent, from sales": pb.SetActiveAgentRequest(
            **whose, agent_id="support", from_agent_id="sales"
        ),
        "SetActiveAgent, as supervisor": pb.SetActiveAgentRequest(
            **whose, agent_id="support", initiator=handoff_pb2.INITIATOR_SUPERVISOR
        ),
        "SetActiveAgent, as user": pb.SetActiveAgentRequest(
            **whose, agent_id="support", initiator=handoff_pb2.INITIATOR_USER
        ),
        "SetActiveAgent, as operator": pb.SetActiveAgentRequest(
            **whose, agent_id="support", initiator=handoff_pb2.INITIATOR_OPERATOR
        ),
        "ClearActiveAgent": pb.ClearActiveAgentRequest(**whose),
        "CompleteTurn, as sales": pb.CompleteTurnRequest(
            **whose, request_id=open_request, agent_id="sales", text="done", **proceed()
        ),
        "CompleteTurn, as support": pb.CompleteTurnRequest(
            **whose, request_id=open_request, agent_id="support", text="done", **proceed()
        ),
        "CompleteTurn, by alias": pb.CompleteTurnRequest(
            **whose, request_id=open_request, agent_id="SALES TEAM", text="done", **proceed()
        ),
        "WatchInbox, of sales": pb.WatchInboxRequest(agent_ids=["sales"], worker_id="w1"),
        "WatchInbox, of support": pb.WatchInboxRequest(agent_ids=["support"], worker_id="w1"),
        "KeepTurn, as sales": pb.KeepTurnRequest(
            **whose, request_id=open_request, agent_id="sales", release=True
        ),
        "KeepTurn, as support": pb.KeepTurnRequest(
            **whose, request_id=open_request, agent_id="support", release=True
        ),
        "ListWaiting, of sales": pb.ListWaitingRequest(agent_id="sales"),
        "ClaimTurn, of people": pb.ClaimTurnRequest(**whose, agent_id="people"),
        "ReleaseTurn, of people": pb.ReleaseTurnRequest(**whose, agent_id="people"),
        "AddNote, of people": pb.AddNoteRequest(**whose, agent_id="people", text="x"),
        "ListNotes, of people": pb.ListNotesRequest(**whose, agent_id="people"),
        "ResumeTask": pb.ResumeTaskRequest(
            session_id=f"{session_id}-paused",
            user_id=user_id,
            task_id=task_id,
            request_id=paused_request,
            decision=dispatch_pb2.DECISION_APPROVE,
        ),
        "ResumeTask, by its task": pb.ResumeTaskRequest(
            user_id=user_id,
            task_id=task_id,
            request_id=paused_request,
            decision=dispatch_pb2.DECISION_APPROVE,
        ),
        "ListApprovals": pb.ListApprovalsRequest(),
        "WatchApprovals": pb.WatchApprovalsRequest(),
        "CancelTask": pb.CancelTaskRequest(
            session_id=f"{session_id}-paused", user_id=user_id, task_id=task_id
        ),
        "CancelTask, by its task": pb.CancelTaskRequest(user_id=user_id, task_id=task_id),
        "ReportDegraded": pb.ReportDegradedRequest(
            turns=[pb.DegradedTurn(**whose, request_id=fresh_id(), agent_id="sales", text="hello")]
        ),
        "Status": pb.StatusRequest(**whose),
        "Status, by a task": pb.StatusRequest(user_id=user_id, task_id=task_id),
        "ListTasks": pb.ListTasksRequest(**whose),
        "ListTasks, by a task": pb.ListTasksRequest(user_id=user_id, task_id=task_id),
        "ListTurns": pb.ListTurnsRequest(**whose),
        "ListTurns, by a task": pb.ListTurnsRequest(user_id=user_id, task_id=task_id),
        "ListTurns, for a reason": pb.ListTurnsRequest(**whose, read_reason="ticket 7"),
        "ListTurns, of sales": pb.ListTurnsRequest(**whose, agent_id="sales"),
        "ListAgents": pb.ListAgentsRequest(),
        "ListAgents, of the session": pb.ListAgentsRequest(**whose),
        "ListAgents, instructions": pb.ListAgentsRequest(include_instructions=True),
        "WatchSession": pb.WatchSessionRequest(**whose, after_revision=0),
        "WatchSession, by a task": pb.WatchSessionRequest(
            user_id=user_id, task_id=task_id, after_revision=0
        ),
        "ListSessions": admin.ListSessionsRequest(),
        "ListEvents": admin.ListEventsRequest(),
        "ListEvents, for a reason": admin.ListEventsRequest(read_reason="ticket 7"),
        "WatchEvents": admin.WatchEventsRequest(from_beginning=True),
        "GetRoutingStats": admin.GetRoutingStatsRequest(),
        "EraseUser": admin.EraseUserRequest(user_id="ana"),
        "ExportUser": admin.ExportUserRequest(user_id="ana"),
        "ReloadAgents": admin.ReloadAgentsRequest(validate_only=True),
        "ReloadAgents, a candidate": admin.ReloadAgentsRequest(candidate=b"agents: []"),
        "GetRegistry": admin.GetRegistryRequest(),
        "StartReplay": admin.StartReplayRequest(candidate=b"agents: []"),
        "WatchReplay": admin.WatchReplayRequest(),
        "WatchReplay, for a reason": admin.WatchReplayRequest(read_reason="ticket 7"),
        "CancelReplay": admin.CancelReplayRequest(replay_id="r"),
        "SetStickiness": admin.SetStickinessRequest(enabled=True),
        "GetStickiness": admin.GetStickinessRequest(),
        "GetSessionAt": admin.GetSessionAtRequest(session_id=session_id),
        "ListInbox": admin.ListInboxRequest(),
        "GetServerStatus": admin.GetServerStatusRequest(),
        "VerifyAudit": admin.VerifyAuditRequest(),
        "PurgeSessions": admin.PurgeSessionsRequest(
            update_time_before=timestamp_pb2.Timestamp(seconds=1)
        ),
        "ListSessions, other tenant": admin.ListSessionsRequest(tenant="y"),
        "GetSessionAt, other tenant": admin.GetSessionAtRequest(session_id=session_id, tenant="y"),
        "ListEvents, other tenant": admin.ListEventsRequest(tenant="y"),
        "ListInbox, other tenant": admin.ListInboxRequest(tenant="y"),
        "WatchEvents, all tenants": admin.WatchEventsRequest(tenant="*"),
    }


ROWS = tuple(requests("s", "", ("", ""), ""))


@pytest.fixture
async def service(tmp_path):
    """A help desk where callers sign in."""
    async with serving_signed_in(tmp_path, DESK + PEOPLE, store="memory:") as running:
        yield running


async def prepared(service, session_id: str) -> tuple[str, tuple[str, str]]:
    """Make ana's session with a turn that sales holds, and another that waits for an approval.

    Returns the open request, and the task and request of the paused one.
    """
    both = Signed(
        service, *bearer(token("route", "agent", user="ana", agents=("*",), subject="maker"))
    )

    async def begin(name: str) -> pb.CompleteTurnResponse:
        routed = await both("Route", pb.RouteRequest(session_id=name, text=SECRET))
        return await both(
            "CompleteTurn",
            pb.CompleteTurnRequest(
                session_id=name,
                request_id=routed.request_id,
                agent_id="front",
                **hand_to("sales"),
            ),
        )

    open_one = (await begin(session_id)).next
    waiting = (await begin(f"{session_id}-paused")).next
    await both(
        "CompleteTurn",
        pb.CompleteTurnRequest(
            session_id=f"{session_id}-paused",
            request_id=waiting.request_id,
            agent_id="sales",
            approval_needed=pb.ApprovalNeededOutcome(prompt="really?"),
        ),
    )
    return open_one.request_id, (waiting.task_id, waiting.request_id)


class Desk:
    """One server, and sessions that are created again once a call has changed them."""

    def __init__(self, service) -> None:
        self._service = service
        self._place = 0
        self._session_id = ""
        self._open_request = ""
        self._paused = ("", "")

    async def outcome(self, caller: str, row: str) -> str:
        """Make one call as one caller, and return its outcome as a short text."""
        if not self._session_id:
            self._place += 1
            self._session_id = f"s{self._place}"
            self._open_request, self._paused = await prepared(self._service, self._session_id)
        user_id = "ana" if caller.endswith("for ana") else ""
        request = requests(self._session_id, self._open_request, self._paused, user_id)[row]
        claims = CALLERS[caller]
        who = () if claims is None else bearer(_token(claims))
        before = await self._states()
        error = await self._call(row.partition(",")[0], request, who)
        if error is None:
            self._session_id = ""
            return "yes"
        assert SECRET not in str(error)
        said = error.message.replace(self._session_id, "")
        assert "ana" not in said, said
        assert await self._states() == before, (caller, row)
        if error.reason == "SCOPE_MISSING":
            return f"needs {error.metadata['scope']}"
        return error.reason

    async def _call(self, rpc: str, request: object, who: tuple) -> Refusal | None:
        if rpc != "RouteStream":
            error = await outcome_of(Signed(self._service, *who)(rpc, request))
            return read_refusal(error) if error is not None else None
        stream = self._service.stub.RouteStream(iter([request]), metadata=who, timeout=20)
        try:
            answers = [answer async for answer in stream]
        except grpc.aio.AioRpcError as error:
            if BROKEN_OFF in (error.details() or ""):
                # The stream was refused before grpc.aio had sent the message.
                return await self._call(rpc, request, who)
            return read_refusal(error)
        return read_status(answers[0].error) if answers[0].HasField("error") else None

    async def _states(self) -> list[object]:
        keys = [SessionKey("default", f"{self._session_id}{end}") for end in ("", "-paused")]
        keys += [SessionKey("x", key.session_id) for key in keys]
        heads = [await self._service.store.load(key) for key in keys]
        return [head and (head.revision, head.state) for head in heads]


def _token(claims: dict) -> str:
    given = dict(claims)
    return token(*given.pop("scopes"), **given)


def table(outcomes: dict[tuple[str, str], str]) -> str:
    """Return the outcomes as the document's table: calls and callers without a difference are one.

    A joined name has a semicolon between the names of its rows or columns. Who has no
    credential has no column.
    """
    callers: dict[tuple[str, ...], list[str]] = {}
    for caller, who in CALLERS.items():
        if who is None:
            continue
        callers.setdefault(tuple(outcomes[caller, row] for row in ROWS), []).append(caller)
    rows: dict[tuple[str, ...], list[str]] = {}
    for row in ROWS:
        cells = tuple(outcomes[names[0], row] for names in callers.values())
        rows.setdefault(cells, []).append(row)
    lines = [
        "| call | " + " | ".join(map("; ".join, callers.values())) + " |",
        "|---" * (len(callers) + 1) + "|",
        *(f"| {'; '.join(names)} | {' | '.join(cells)} |" for cells, names in rows.items()),
    ]
    return "\n".join(lines)


OUTWARD = {"agent_routing.v1.TopicDetectorService"}
"""Services of the contract that this server calls, and never serves."""

WITHOUT_RIGHTS = {
    "grpc.health.v1.Health": "OK",
    "grpc.reflection.v1.ServerReflection": "UNAUTHENTICATED",
    "grpc.reflection.v1alpha.ServerReflection": "UNAUTHENTICATED",
    "grpc.channelz.v1.Channelz": "UNAUTHENTICATED",
}
"""What a stranger gets of the services that are not the contract's."""


def contract() -> dict[str, ServiceDescriptor]:
    """Return every service of the contract, by its full name."""
    names = [found.name for found in pkgutil.iter_modules(v1.__path__)]
    files = [import_module(f"{v1.__name__}.{name}") for name in names if name.endswith("_pb2")]
    services = [each for file in files for each in file.DESCRIPTOR.services_by_name.values()]
    return {service.full_name: service for service in services}


def test_every_rpc_of_the_contract_has_a_row_and_a_right():
    """An RPC without a row and a right would be open to every caller, or to none."""
    served = [service for name, service in contract().items() if name not in OUTWARD]
    names = [method.name for service in served for method in service.methods]
    assert len(names) == len(set(names)), "rights go by the name of the RPC alone"
    assert set(names) == ENTRY.keys()
    assert set(names) == {row.partition(",")[0] for row in ROWS}


@asynccontextmanager
async def everywhere(tmp_path: Path):
    """A server where callers sign in, with every listener that it can have."""
    listeners = ("admin_listen", "web_listen", "probe_listen", "metrics_listen")
    given = dict.fromkeys(listeners, "127.0.0.1:0")
    async with serving_signed_in(tmp_path, DESK + PEOPLE, store="memory:", **given) as running:
        yield running


async def test_strangers_get_nothing_of_any_method_of_any_grpc_listener(tmp_path):
    """The server says what it serves: a service that is added is found here."""
    async with everywhere(tmp_path) as service:
        # At the first address, AdminService is not served.
        for address, is_admin in (
            (service.server.address, False),
            (service.server.admin_address, True),
        ):
            async with grpc.aio.insecure_channel(address) as channel:
                found = {
                    method.full_name: await stranger(channel, method)
                    for method in await methods_of(channel)
                }
            ours = {
                f"{name}.{method.name}": "UNAUTHENTICATED"
                for name, described in contract().items()
                if name not in OUTWARD and (is_admin or not name.endswith(".AdminService"))
                for method in described.methods
            }
            others = found.keys() - ours.keys()
            assert {name: found.get(name) for name in ours} == ours
            services = {name.rpartition(".")[0] for name in others}
            assert services == WITHOUT_RIGHTS.keys() - (
                set() if is_admin else {"grpc.channelz.v1.Channelz"}
            )
            for name in others:
                assert found[name] == WITHOUT_RIGHTS[name.rpartition(".")[0]], name


async def methods_of(channel: grpc.aio.Channel) -> list[MethodDescriptor]:
    """Return what a listener serves, as it tells a caller with a credential."""
    ask = channel.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )

    async def answer(**asked: str) -> reflection_pb2.ServerReflectionResponse:
        metadata = bearer(token("route", user="ana"))
        request = reflection_pb2.ServerReflectionRequest(**asked)
        call = ask(iter([request]), metadata=metadata, timeout=20)
        [told] = [each async for each in call]
        return told

    found: list[MethodDescriptor] = []
    for listed in (await answer(list_services="")).list_services_response.service:
        files = await answer(file_containing_symbol=listed.name)
        database = descriptor_database.DescriptorDatabase()
        for data in files.file_descriptor_response.file_descriptor_proto:
            database.Add(descriptor_pb2.FileDescriptorProto.FromString(data))
        pool = descriptor_pool.DescriptorPool(database)
        found += pool.FindServiceByName(listed.name).methods
    return found


async def stranger(channel: grpc.aio.Channel, method: MethodDescriptor) -> str:
    """Return the code of a call without a credential and without content."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    # A call of one message looks the same on the wire in all four forms.
    call = channel.stream_stream(path)(iter([b""]), timeout=20)
    try:
        async for _ in call:
            call.cancel()
            return "OK"
    except grpc.aio.AioRpcError as error:
        if BROKEN_OFF in (error.details() or ""):
            return await stranger(channel, method)
        return error.code().name
    return "OK"


class WebDesk(Desk):
    """The same over HTTP."""

    async def _call(self, rpc: str, request: object, who: tuple) -> Refusal | None:
        headers = dict(who)
        if rpc in {"WatchSession", "WatchInbox", "WatchApprovals"}:
            watcher = await Watcher(self._service, "connect").begin(request, headers, rpc)
            flags, _ = first = await watcher.frame()
            await watcher.leave()
            return read_status(watcher.status_in(first)) if flags else None
        answer_class = getattr(pb, f"{rpc}Response")
        outcome = await Connect(self._service.server.web_url).call(
            rpc, request, answer_class, headers
        )
        return outcome.status and read_status(outcome.status)


def designed() -> dict[tuple[str, str], str]:
    """Return the document's table: the outcome by caller and row."""
    lines = DOCUMENT.read_text(encoding="utf-8").partition("\n| call |")[2].splitlines()
    heads, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines if line
    )
    return dict.fromkeys((("nobody", row) for row in ROWS), "UNAUTHENTICATED") | {
        (caller, row): cell
        for names, *cells in rows
        for row in names.split("; ")
        for joined, cell in zip(heads, cells, strict=True)
        for caller in joined.split("; ")
    }


async def test_every_call_by_every_caller_is_the_same_over_http(tmp_path):
    """The web listener serves RoutingService alone, without the stream of messages."""
    table_of = designed()
    (routing,) = pb.DESCRIPTOR.services_by_name.values()
    served = {method.name for method in routing.methods if not method.client_streaming}
    rows = [row for row in ROWS if row.partition(",")[0] in served]
    assert {row.partition(",")[0] for row in rows} == served
    async with everywhere(tmp_path) as service:
        desk = WebDesk(service)
        wrong = {
            (caller, row): found
            for row in rows
            for caller in CALLERS
            if (found := await desk.outcome(caller, row)) != table_of[caller, row]
        }
        assert wrong == {}
        wire = Connect(service.server.web_url)
        every = dict(bearer(token("route", "admin", "platform", user="ana")))
        for method in admin.DESCRIPTOR.services_by_name["AdminService"].methods:
            status, _, _ = await asyncio.to_thread(
                wire.post,
                f"/agent_routing.v1.AdminService/{method.name}",
                b"",
                {"content-type": "application/proto", **every},
            )
            assert status == HTTPStatus.NOT_FOUND, method.name


async def test_listeners_without_sign_in_say_nothing_of_sessions(tmp_path):
    """The probes and the metrics page have fixed paths, and answer all else with 404."""
    async with everywhere(tmp_path) as service:
        await prepared(service, "seen-by-ana")
        for address, paths in (
            (service.server.probe_address, ("/livez", "/readyz")),
            (service.server.metrics_address, ("/metrics",)),
        ):
            for path in paths:
                status, body = await asyncio.to_thread(fetch, address, path)
                assert status == HTTPStatus.OK
                assert not re.search(r"seen-by-ana|\bana\b", body)
            for path in ("/", "/agent_routing.v1.RoutingService/Status", "/metrics/../etc"):
                status, body = await asyncio.to_thread(fetch, address, path)
                assert status == HTTPStatus.NOT_FOUND, (address, path)


def fetch(address: str, path: str) -> tuple[int, str]:
    """Return the status and the body of a GET."""
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


async def test_every_call_by_every_caller_is_as_designed(service):
    """The document is the design: a changed right is changed there, and the diff shows its effect.

    A refused call changes nothing, and its error names neither the owner nor any text.
    """
    desk = Desk(service)
    outcomes = {
        (caller, row): await desk.outcome(caller, row) for row in ROWS for caller in CALLERS
    }
    assert {outcomes["nobody", row] for row in ROWS} == {"UNAUTHENTICATED"}
    made = table(outcomes)
    assert made in DOCUMENT.read_text(encoding="utf-8"), made
