"""Every RPC called by every kind of caller; this test writes the table of docs/rights.md."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from google.protobuf import timestamp_pb2

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

DOCUMENT = Path(__file__).parents[2] / "docs" / "rights.md"

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
        "ReportDegraded": pb.ReportDegradedRequest(
            turns=[pb.DegradedTurn(**whose, request_id=fresh_id(), agent_id="sales", text="hello")]
        ),
        "Status": pb.StatusRequest(**whose),
        "ListTasks": pb.ListTasksRequest(**whose),
        "ListTurns": pb.ListTurnsRequest(**whose),
        "ListTurns, of sales": pb.ListTurnsRequest(**whose, agent_id="sales"),
        "ListAgents": pb.ListAgentsRequest(),
        "ListAgents, of the session": pb.ListAgentsRequest(**whose),
        "ListAgents, instructions": pb.ListAgentsRequest(include_instructions=True),
        "WatchSession": pb.WatchSessionRequest(**whose, after_revision=0),
        "ListSessions": admin.ListSessionsRequest(),
        "ListEvents": admin.ListEventsRequest(),
        "WatchEvents": admin.WatchEventsRequest(from_beginning=True),
        "GetRoutingStats": admin.GetRoutingStatsRequest(),
        "EraseUser": admin.EraseUserRequest(user_id="ana"),
        "ExportUser": admin.ExportUserRequest(user_id="ana"),
        "ReloadAgents": admin.ReloadAgentsRequest(validate_only=True),
        "SetStickiness": admin.SetStickinessRequest(enabled=True),
        "GetStickiness": admin.GetStickinessRequest(),
        "PurgeSessions": admin.PurgeSessionsRequest(
            update_time_before=timestamp_pb2.Timestamp(seconds=1)
        ),
        "ListSessions, other tenant": admin.ListSessionsRequest(tenant="y"),
        "WatchEvents, all tenants": admin.WatchEventsRequest(tenant="*"),
    }


ROWS = tuple(requests("s", "", ("", ""), ""))


@pytest.fixture
async def service(tmp_path):
    """A help desk where callers sign in."""
    async with serving_signed_in(tmp_path, DESK, store="memory:") as running:
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
        user_id = "ana" if caller == "frontend for ana" else ""
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
    """Return the outcomes as the document's table."""
    lines = [
        "| call | " + " | ".join(CALLERS) + " |",
        "|---" * (len(CALLERS) + 1) + "|",
    ]
    lines += [
        f"| {row} | " + " | ".join(outcomes[caller, row] for caller in CALLERS) + " |"
        for row in ROWS
    ]
    return "\n".join(lines)


def test_every_rpc_has_a_row_and_a_right():
    """An RPC without a row and a right would be open to every caller, or to none."""
    services = (pb.DESCRIPTOR, admin.DESCRIPTOR)
    names = {m.name for file in services for s in file.services_by_name.values() for m in s.methods}
    assert names == ENTRY.keys()
    assert names == {row.partition(",")[0] for row in ROWS}


async def test_every_call_by_every_caller_is_as_designed(service):
    """The document is the design: a changed right is changed there, and the diff shows its effect.

    A refused call changes nothing, and its error names neither the owner nor any text.
    """
    desk = Desk(service)
    outcomes = {
        (caller, row): await desk.outcome(caller, row) for row in ROWS for caller in CALLERS
    }
    made = table(outcomes)
    assert made in DOCUMENT.read_text(encoding="utf-8"), made
