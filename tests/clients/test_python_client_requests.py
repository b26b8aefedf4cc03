"""Plain Python values reach the service as the contract's fields, and answers come back whole."""

import asyncio
import inspect
import math
import os
import re
import subprocess
import sys
import uuid
from datetime import UTC, datetime, timedelta, timezone

import grpc
import grpc.aio
import pytest

import agent_routing
from agent_routing import content, outcomes, plain_values
from agent_routing.aio_stream import AsyncRouteStream
from agent_routing.client_stream import RouteStream
from agent_routing.v1 import routing_service_pb2
from agent_routing.v1.agent_pb2 import Agent
from agent_routing.v1.clear_scope_pb2 import CLEAR_SCOPE_SESSION
from agent_routing.v1.dispatch_pb2 import DECISION_REJECT, DELIVERY_INBOX, Dispatch, Reply
from agent_routing.v1.handoff_pb2 import (
    HANDOFF_MODE_CONSULT,
    HANDOFF_MODE_INTERLUDE,
    INITIATOR_OPERATOR,
)
from agent_routing.v1.route_reason_pb2 import ROUTE_REASON_STICKY
from agent_routing.v1.task_pb2 import TASK_STATUS_FAILED, TASK_STATUS_PAUSED, Task
from agent_routing.v1.turn_pb2 import Turn

SERVICE = routing_service_pb2.DESCRIPTOR.services_by_name["RoutingService"]
UNARY = {name for name, method in SERVICE.methods_by_name.items() if not method.server_streaming}

REQUEST_ID = "0198a6c0-6d02-7c3b-8f64-77d0c1a9be05"
TASK_ID = "0198a6c0-5f3e-7a51-9c1d-2f6f0a4b7e11"


def snake(name):
    """Return an RPC's name in Python's form."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


@pytest.mark.parametrize("method", sorted(UNARY))
def test_every_rpc_has_a_method_with_every_field_in_both_clients(method):
    """A field or RPC that is added to the contract must not be forgotten in one of them."""
    fields = set(SERVICE.methods_by_name[method].input_type.fields_by_name)
    name = snake(method)
    if "page_token" in fields:
        name += "_page"
    if method == "CompleteTurn":
        oneof = SERVICE.methods_by_name[method].input_type.oneofs_by_name["outcome"]
        fields = fields - {each.name for each in oneof.fields} | {"outcome"}
    for kind in (agent_routing.Client, agent_routing.AsyncClient):
        parameters = set(inspect.signature(getattr(kind, name)).parameters)
        assert parameters == fields | {"self", "timeout", "info"}


def test_a_watch_has_every_field_in_both_clients():
    """It has no deadline: away_timeout says how long the service may be away."""
    fields = set(SERVICE.methods_by_name["WatchSession"].input_type.fields_by_name)
    for kind in (agent_routing.Client, agent_routing.AsyncClient):
        parameters = set(inspect.signature(kind.watch_session).parameters)
        assert parameters == fields | {"self", "away_timeout"}


@pytest.mark.parametrize(
    ("blocking", "asyncio"),
    [
        (agent_routing.Client, agent_routing.AsyncClient),
        (agent_routing.Admin, agent_routing.AsyncAdmin),
        (RouteStream, AsyncRouteStream),
    ],
)
def test_both_clients_have_the_same_methods_with_the_same_arguments(blocking, asyncio):
    """A program that moves to asyncio only adds the word await."""

    def methods(kind):
        return {
            name: [
                (each.name, each.kind, each.default)
                for each in inspect.signature(method).parameters.values()
            ]
            for name, method in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_") and name != "close"
        }

    assert "route" in methods(blocking)
    assert methods(blocking) == methods(asyncio)


def test_every_public_name_is_there_and_none_else():
    """Names are imported at their first use, so a wrong one would show only then."""
    for name in agent_routing.__all__:
        assert getattr(agent_routing, name) is not None
    assert set(agent_routing.__all__) <= set(dir(agent_routing))
    with pytest.raises(AttributeError, match="has no attribute 'Klient'"):
        _ = agent_routing.Klient


def test_the_clients_load_nothing_but_what_the_package_depends_on():
    """A module of another distribution is missing if that one is not installed."""

    def packages(program):
        ending = "import sys; print(*{name.partition('.')[0] for name in sys.modules})"
        loaded = subprocess.run(
            [sys.executable, "-c", program + ending], capture_output=True, text=True, check=True
        )
        return set(loaded.stdout.split()) - sys.stdlib_module_names

    theirs = packages("import grpc, google.rpc.error_details_pb2, google.protobuf.struct_pb2; ")
    ours = packages("import agent_routing as a; a.Client, a.AsyncClient, a.outcomes, a.content; ")
    assert ours - theirs == {"agent_routing"}


async def test_every_field_of_a_route_arrives(service, connect):
    """Each field is set once and checked on the other side."""
    client = connect(tenant="acme", metadata=[("x-trace", "7")])
    expires = datetime(2030, 1, 2, 3, 4, 5, 600, tzinfo=timezone(timedelta(hours=2)))
    await client.route(
        "hola",
        session_id="chat-42",
        user_id="ana",
        request_id=REQUEST_ID,
        task_id=TASK_ID,
        items=[
            content.text_item("# Title", "text/markdown"),
            content.data_item(b"\x89PNG", "image/png"),
            content.uri_item("https://example.com/a.pdf", "application/pdf"),
        ],
        locale="es-MX",
        channel="whatsapp",
        history_turns=-1,
        expected_revision=0,
        entitlements=["plan:premium", "beta"],
        quick_reply_id="accept-1",
        literal_text=True,
        validate_only=True,
        explain_topic=True,
        metadata={"ticket": "7"},
        task_expire_time=expires,
        deliver="INBOX",
        shown_revision=7,
    )
    [request] = service.requests("Route")
    assert request.ListFields()
    unset = {each.name for each in request.DESCRIPTOR.fields} - {
        field.name for field, _ in request.ListFields()
    }
    assert unset == set()
    assert (request.text, request.session_id, request.user_id) == ("hola", "chat-42", "ana")
    assert (request.request_id, request.task_id) == (REQUEST_ID, TASK_ID)
    assert [each.WhichOneof("content") for each in request.items] == ["text", "data", "uri"]
    assert request.HasField("expected_revision")
    assert list(request.entitlements) == ["plan:premium", "beta"]
    assert dict(request.metadata) == {"ticket": "7"}
    assert request.task_expire_time.ToDatetime(UTC) == expires
    assert request.deliver == DELIVERY_INBOX
    assert request.shown_revision == 7
    assert service.received[0].metadata["agent-routing-tenant"] == "acme"
    assert service.received[0].metadata["x-trace"] == "7"


async def test_an_ordinary_route_sets_nothing_but_text_and_ids(service, connect):
    """The service has the defaults: sending a default would override them."""
    await connect().route("hello")
    [request] = service.requests("Route")
    assert {field.name for field, _ in request.ListFields()} == {"text", "request_id"}
    assert "agent-routing-tenant" not in service.received[0].metadata


async def test_missing_ids_are_made_new_and_in_time_order(service, connect):
    """A repeat must be the same request, so the client names it. The service names the session."""
    client = connect()
    results = [await client.route("hello") for _ in range(3)]
    requests = service.requests("Route")
    ids = [uuid.UUID(request.request_id) for request in requests]
    assert [each.version for each in ids] == [7, 7, 7]
    assert len(set(ids)) == 3
    milliseconds = [each.int >> 80 for each in ids]
    assert milliseconds == sorted(milliseconds)
    assert abs(milliseconds[0] / 1000 - datetime.now(UTC).timestamp()) < 60
    assert [each.session_id for each in requests] == ["", "", ""]
    assert [each.request_id for each in results] == [each.request_id for each in requests]


async def test_a_task_id_alone_leaves_the_session_to_be_found(service, connect):
    """A generated session id would begin another session instead of finding the task's."""
    await connect().route("go on", task_id=TASK_ID)
    [request] = service.requests("Route")
    assert request.session_id == ""
    assert request.request_id


async def test_every_field_of_a_handoff_arrives(service, connect):
    """Enums by name or number, context as JSON."""
    await connect().set_active_agent(
        "chat-42",
        "billing",
        user_id="ana",
        request_id=REQUEST_ID,
        turn_request_id=TASK_ID,
        initiator="OPERATOR",
        from_agent_id="coordinator",
        reason="asked for an invoice",
        context={"pages": [1, 2.5, None, True, {"a": ("b",)}], "client": "Ñandú"},
        message="Billing takes over",
        mode=HANDOFF_MODE_INTERLUDE,
        suggestion_id=REQUEST_ID,
        task_id=TASK_ID,
        open_turn="LEAVE",
        expected_revision=3,
        validate_only=True,
    )
    [request] = service.requests("SetActiveAgent")
    assert len(request.ListFields()) == len(request.DESCRIPTOR.fields)
    assert (request.initiator, request.mode) == (INITIATOR_OPERATOR, HANDOFF_MODE_INTERLUDE)
    assert request.context["client"] == "Ñandú"
    assert list(request.context["pages"])[:4] == [1, 2.5, None, True]
    assert request.expected_revision == 3


async def test_every_field_of_the_other_calls_arrives(service, connect):
    """Each call once, with all arguments."""
    client = connect()
    await client.clear_active_agent(
        "chat-42",
        user_id="ana",
        request_id=REQUEST_ID,
        scope="session",
        task_id=TASK_ID,
        open_turn="ABANDON",
        reason="start over",
        expected_revision=9,
        validate_only=True,
    )
    await client.cancel_task(
        TASK_ID,
        session_id="chat-42",
        user_id="ana",
        request_id=REQUEST_ID,
        reason="ordered twice",
        expected_revision=9,
        validate_only=True,
    )
    await client.list_waiting_page("desk", page_size=5, page_token="t")
    await client.claim_turn(
        "chat-42",
        "desk",
        claimant="bea",
        take_over=True,
        reason="bea is ill",
        user_id="ana",
        request_id=REQUEST_ID,
        expected_revision=9,
    )
    await client.release_turn(
        "chat-42",
        "desk",
        claimant="bea",
        user_id="ana",
        request_id=REQUEST_ID,
        expected_revision=9,
    )
    await client.add_note(
        "chat-42",
        "Called twice.",
        agent_id="desk",
        author="bea",
        task_id=TASK_ID,
        user_id="ana",
        request_id=REQUEST_ID,
    )
    await client.list_notes("chat-42", agent_id="desk", user_id="ana")
    await client.status("chat-42", user_id="ana", task_id=TASK_ID)
    await client.resume_task(
        TASK_ID,
        REQUEST_ID,
        "REJECT",
        session_id="chat-42",
        user_id="ana",
        comment="too dear",
        validate_only=True,
    )
    await client.list_tasks_page(
        "chat-42",
        user_id="ana",
        task_id=TASK_ID,
        statuses=["PAUSED", TASK_STATUS_FAILED],
        page_size=5,
        page_token="t",
    )
    await client.list_turns_page(
        "chat-42",
        user_id="ana",
        agent_id="billing",
        task_id=TASK_ID,
        order="NEWEST_FIRST",
        page_size=5,
        page_token="t",
        read_reason="the user complains",
    )
    await client.list_agents(
        session_id="chat-42",
        user_id="ana",
        locale="es",
        from_agent_id="billing",
        include_instructions=True,
    )
    for each in service.received:
        assert len(each.request.ListFields()) == len(each.request.DESCRIPTOR.fields), each.method
    assert service.requests("ClearActiveAgent")[0].scope == CLEAR_SCOPE_SESSION
    assert service.requests("ResumeTask")[0].decision == DECISION_REJECT
    [tasks] = service.requests("ListTasks")
    assert list(tasks.statuses) == [TASK_STATUS_PAUSED, TASK_STATUS_FAILED]


@pytest.mark.parametrize(
    ("outcome", "field"),
    [
        (outcomes.proceed(), "proceed"),
        (outcomes.follow_up(), "follow_up"),
        (outcomes.follow_up(timeout=timedelta(minutes=10)), "follow_up"),
        (outcomes.complete(summary="sent", message="Bye"), "complete"),
        (outcomes.handoff("billing"), "handoff"),
        (outcomes.approval_needed("Pay 20 euro?"), "approval_needed"),
        (outcomes.failure("no network"), "failure"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_each_outcome_arrives_as_itself(service, connect, outcome, field):
    """An empty outcome is set too: a request without one would be refused."""
    await connect().complete_turn("chat-42", REQUEST_ID, "tutor", outcome, text="done")
    [request] = service.requests("CompleteTurn")
    assert request.WhichOneof("outcome") == field
    assert getattr(request, field) == outcome


async def test_every_part_of_an_answer_arrives(service, connect):
    """Steps with their times, a handoff with all arguments."""
    began = datetime(2030, 1, 2, tzinfo=UTC)
    await connect().complete_turn(
        session_id="chat-42",
        request_id=REQUEST_ID,
        agent_id="tutor",
        outcome=outcomes.handoff(
            "motivator", reason="tired", context={"n": 1}, message="A break?", mode="consult"
        ),
        text="Well done",
        user_id="ana",
        items=[content.text_item("x")],
        steps=[
            content.step("search", kind="tool", input="{}", output="[]", start_time=began),
            content.step("model", duration=0.25),
            content.step("model", duration=timedelta(microseconds=3)),
        ],
        parse_markers=True,
    )
    [request] = service.requests("CompleteTurn")
    assert request.handoff.mode == HANDOFF_MODE_CONSULT
    assert len(request.handoff.ListFields()) == len(request.handoff.DESCRIPTOR.fields)
    assert request.steps[0].start_time.ToDatetime(UTC) == began
    assert not request.steps[0].HasField("duration")
    assert [each.duration.ToNanoseconds() for each in request.steps[1:]] == [250_000_000, 3_000]
    assert request.parse_markers


async def test_a_result_says_what_to_do_without_looking_into_messages(service, connect):
    """A missing part of Route's answer is None or empty."""
    service.will(
        "Route",
        routing_service_pb2.RouteResponse(
            session_id="chat-42",
            revision=7,
            supervisor_bypassed=True,
            dispatch=Dispatch(
                request_id=REQUEST_ID,
                agent=Agent(agent_id="billing"),
                reason=ROUTE_REASON_STICKY,
                text="my invoice",
                previous_agent_id="tutor",
                locked=True,
            ),
        ),
        routing_service_pb2.RouteResponse(
            session_id="chat-42", revision=8, reply=Reply(command="/help", text="Ask me")
        ),
        routing_service_pb2.RouteResponse(dispatch=Dispatch(reason=77)),
    )
    client = connect()
    turn = await client.route("my invoice", session_id="chat-42")
    assert (turn.agent_id, turn.text, turn.reason) == ("billing", "my invoice", "STICKY")
    assert (turn.locked, turn.previous_agent_id) == (True, "tutor")
    assert (turn.revision, turn.supervisor_bypassed) == (7, True)
    assert (turn.degraded, turn.replayed, turn.error) == (False, False, None)
    assert turn.dispatch == turn.response.dispatch
    assert (turn.reply_text, turn.handoff, turn.suggestion) == (None, None, None)
    reply = await client.route("/help", session_id="chat-42")
    assert (reply.agent_id, reply.dispatch, reply.text) == (None, None, "")
    assert (reply.reply_text, reply.reason) == ("Ask me", "UNSPECIFIED")
    newer = await client.route("hello")
    assert newer.reason == "77"


async def test_a_stored_answer_is_told_from_a_new_one(service, connect):
    """A caller that counts handoffs must not count a repeat."""
    answer = routing_service_pb2.RouteResponse(session_id="chat-42")
    service.will("Route", answer, service.replays(answer))
    service.will("CompleteTurn", service.replays(routing_service_pb2.CompleteTurnResponse()))
    client = connect()
    assert not (await client.route("a", request_id=REQUEST_ID)).replayed
    assert (await client.route("a", request_id=REQUEST_ID)).replayed
    info = agent_routing.CallInfo()
    await client.complete_turn("chat-42", REQUEST_ID, "a", outcomes.proceed(), info=info)
    assert (info.attempts, info.replayed) == (1, True)
    await client.status("chat-42", info=info)
    assert not info.replayed


def pages_of(answer_class, field, entries):
    """A step that serves entries two by two, by page token."""

    def step(request, _context):
        begin = int(request.page_token or 0)
        more = str(begin + 2) if begin + 2 < len(entries) else ""
        return answer_class(**{field: entries[begin : begin + 2]}, next_page_token=more)

    return step


@pytest.mark.parametrize("count", [0, 1, 2, 5])
async def test_iterators_go_over_all_pages_in_order(service, connect, count):
    """A caller that wants the whole history need not use tokens."""
    turns = [Turn(request_id=str(number)) for number in range(count)]
    tasks = [Task(task_id=str(number)) for number in range(count)]
    service.will("ListTurns", pages_of(routing_service_pb2.ListTurnsResponse, "turns", turns))
    service.will("ListTasks", pages_of(routing_service_pb2.ListTasksResponse, "tasks", tasks))
    client = connect()
    assert await client.list_turns("chat-42", agent_id="billing", order="NEWEST_FIRST") == turns
    assert await client.list_tasks("chat-42", statuses=["PAUSED"]) == tasks
    for request in service.requests("ListTurns"):
        assert (request.agent_id, request.order) == ("billing", 2)
    for request in service.requests("ListTasks"):
        assert list(request.statuses) == [TASK_STATUS_PAUSED]
    assert len(service.requests("ListTurns")) == max(1, math.ceil(count / 2))


def test_pages_are_fetched_only_when_they_are_needed(service):
    """The first turns of a long history cost one call."""
    turns = [Turn(request_id=str(number)) for number in range(100)]
    service.will("ListTurns", pages_of(routing_service_pb2.ListTurnsResponse, "turns", turns))
    with agent_routing.Client(f"127.0.0.1:{service.port}") as client:
        history = client.list_turns("chat-42")
        assert service.received == []
        assert [next(history).request_id, next(history).request_id] == ["0", "1"]
        assert len(service.received) == 1
        next(history)
        assert len(service.received) == 2


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda c: c.route("a", task_expire_time=datetime(2030, 1, 1)), ValueError, "time zone"),  # noqa: DTZ001 - what must be refused
        (lambda c: c.route("a", entitlements="plan:premium"), TypeError, "give a list"),
        (lambda c: c.route("a", timeout=0), ValueError, "timeout is 0"),
        (lambda c: c.route("a", timeout=math.inf), ValueError, "finite"),
        (lambda c: c.route("\ud800"), ValueError, "surrogates"),
        (lambda c: c.set_active_agent("s", "a", mode="BORROW"), ValueError, "one of TRANSFER"),
        (
            lambda c: c.set_active_agent("s", "a", context={"id": [{"n": 2**53 + 1}]}),
            ValueError,
            r"context\.id\[0\]\.n is 9007199254740993.*send it as text",
        ),
        (
            lambda c: c.set_active_agent("s", "a", context={"when": datetime.now(UTC)}),
            ValueError,
            "context.when is a datetime",
        ),
        (lambda c: c.set_active_agent("s", "a", context={1: "x"}), ValueError, "keys are strings"),
        (lambda c: c.complete_turn("s", "r", "a", "proceed"), TypeError, "outcomes.proceed"),
        (lambda c: c.complete_turn("s", "r", "a", None), TypeError, "agent_routing.outcomes"),
        (lambda c: c.list_tasks_page("s", statuses=["DONE"]), ValueError, "one of RUNNING"),
    ],
)
async def test_what_no_request_can_carry_is_refused_at_once(service, connect, build, error, words):
    """Nothing is sent, and the message names the value and what to do."""
    with pytest.raises(error, match=words):
        await build(connect())
    assert service.received == []


def test_a_struct_that_refers_to_itself_ends():
    """It cannot be sent."""
    loop = {}
    loop["again"] = loop
    with pytest.raises(ValueError, match="more than 32 levels"):
        plain_values.struct("context", loop)


@pytest.mark.parametrize("levels", [32, 33])
def test_a_struct_may_have_as_many_levels_as_the_other_side_can_parse(levels):
    """One level more could be sent, and would arrive as a malformed request."""
    value = {"leaf": 1}
    for _ in range(levels - 1):
        value = {"in": value}
    if levels > 32:
        with pytest.raises(ValueError, match="flatten"):
            plain_values.struct("context", value)
    else:
        struct = plain_values.struct("context", value)
        assert type(struct).FromString(struct.SerializeToString()) == struct


@pytest.mark.parametrize("settings", [{"timeout": -1}, {"timeout": math.nan}])
@pytest.mark.parametrize("kind", [agent_routing.Client, agent_routing.AsyncClient])
def test_a_client_refuses_settings_that_cannot_be(kind, settings):
    """In the constructor, not at the first call."""
    with pytest.raises(ValueError, match="timeout"):
        kind("127.0.0.1:1", **settings)


async def test_a_client_is_made_before_the_loop_and_closed_twice(service):
    """Frontends create it with the module, and close it in several places."""
    client = await asyncio.to_thread(agent_routing.AsyncClient, f"127.0.0.1:{service.port}")
    async with client as same:
        assert same is client
        await client.status("chat-42")
    await client.close()
    with pytest.raises(RuntimeError, match=r"is closed; create another"):
        await client.status("chat-42")
    with agent_routing.Client(f"127.0.0.1:{service.port}") as threads:
        threads.status("chat-42")
    threads.close()
    with pytest.raises(RuntimeError, match=r"is closed; create another"):
        threads.status("chat-42")


async def test_a_channel_that_was_given_is_left_open(service):
    """Its creator may share it."""
    target = f"127.0.0.1:{service.port}"
    with grpc.insecure_channel(target) as channel:
        with agent_routing.Client(target, channel=channel) as first:
            first.status("chat-42")
        with agent_routing.Client(target, channel=channel) as second:
            second.status("chat-42")
    async with grpc.aio.insecure_channel(target) as channel:
        async with agent_routing.AsyncClient(target, channel=channel) as first:
            await first.status("chat-42")
        async with agent_routing.AsyncClient(target, channel=channel) as second:
            await second.status("chat-42")
    assert len(service.received) == 4


def test_a_client_of_another_event_loop_says_so(service):
    """The error of gRPC itself would be about a future of another loop, or missing."""
    client = agent_routing.AsyncClient(f"127.0.0.1:{service.port}")
    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(client.status("chat-42"))
        with pytest.raises(RuntimeError, match="another event loop"):
            second.run(client.status("chat-42"))
        first.run(client.close())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_client_that_was_used_before_a_fork_says_so_in_the_child(service):
    """In the child gRPC would hang. A client that was only created before the fork works."""
    program = f"""
import os, sys, agent_routing
used, made = (agent_routing.Client("127.0.0.1:{service.port}") for _ in range(2))
if sys.argv[1] == "used":
    used.status("chat-42")
if os.fork() == 0:
    try:
        (used if sys.argv[1] == "used" else made).status("in-the-child")
        print("answered", flush=True)
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""

    def child(which):
        return subprocess.run(
            [sys.executable, "-c", program, which],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        ).stdout

    assert "used before this process was forked" in child("used")
    assert child("made") == "answered\n"


async def test_markers_are_left_to_the_registry_unless_said(service, connect):
    """A client that always sent False would disable them for every agent."""
    client = connect()
    for said, present in ((None, False), (False, True), (True, True)):
        await client.complete_turn(
            "chat-1", REQUEST_ID, "vat", outcomes.proceed(), text="hello", parse_markers=said
        )
        request = service.received[-1].request
        assert request.HasField("parse_markers") is present
        assert request.parse_markers is bool(said)
