"""While the service is away the chat continues: with the last known agent, else the supervisor."""

import logging

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo

import agent_routing
from agent_routing import content, errors, outcomes
from agent_routing.fallback import AGENT_TEXTS_MAX, KnownAgents
from agent_routing.v1.agent_pb2 import AGENT_KIND_SPECIALIST, AGENT_KIND_SUPERVISOR, Agent
from agent_routing.v1.dispatch_pb2 import Dispatch, Reply
from agent_routing.v1.route_reason_pb2 import (
    ROUTE_REASON_DEFAULT_AGENT,
    ROUTE_REASON_STICKINESS_DISABLED,
)
from agent_routing.v1.routing_service_pb2 import (
    ClearActiveAgentResponse,
    CompleteTurnResponse,
    ListAgentsResponse,
    ResumeTaskResponse,
    RouteRequest,
    RouteResponse,
    SetActiveAgentResponse,
    StatusResponse,
)
from agent_routing.v1.task_pb2 import Task

REQUEST_ID = "0198a6c0-6d02-7c3b-8f64-77d0c1a9be05"
TASK_ID = "0198a6c0-5f3e-7a51-9c1d-2f6f0a4b7e11"
HOME = Agent(agent_id="coordinator", kind=AGENT_KIND_SUPERVISOR)
BILLING = Agent(
    agent_id="billing", display_name="Facturación", color="#3366ff", kind=AGENT_KIND_SPECIALIST
)
TUTOR = Agent(agent_id="tutor", kind=AGENT_KIND_SPECIALIST)


def dispatched(agent, revision=1, **more):
    """Return an answer that sends the message to an agent."""
    return RouteResponse(
        session_id="chat-42", revision=revision, dispatch=Dispatch(agent=agent), **more
    )


def replied(command, revision=1):
    """Return an answer that has a reply only."""
    return RouteResponse(session_id="chat-42", revision=revision, reply=Reply(command=command))


async def degraded(service, client, text="and now?", **more):
    """Route while the service is away, and return the decision."""
    service.will("Route", service.fails(grpc.StatusCode.UNAVAILABLE, "away"))
    more.setdefault("session_id", "chat-42")
    result = await client.route(text, **more)
    assert result.degraded
    return result


async def test_the_last_agent_that_routed_goes_on(service, connect):
    """The user talks to billing, and an outage must not change that."""
    client = connect()
    service.will("Route", dispatched(BILLING))
    await client.route("my invoice", session_id="chat-42")
    item = content.text_item("see here")
    result = await degraded(service, client, "and now?", items=[item])
    assert result.agent_id == "billing"
    assert result.dispatch.agent == BILLING, "with name and colour, for the user to see"
    assert (result.text, list(result.dispatch.items)) == ("and now?", [item])
    assert (result.revision, result.reason, result.replayed) == (0, "DEGRADED", False)
    assert result.supervisor_bypassed
    assert isinstance(result.error, errors.Unavailable)
    assert "degraded" in result.dispatch.reason_detail


async def test_the_same_request_can_be_routed_when_the_service_is_back(service, connect):
    """The attempt may have been stored: only the same ids make the later report safe."""
    client = connect(fallback=agent_routing.Fallback(supervisor_id="coordinator"))
    service.will("Route", service.fails(grpc.StatusCode.UNAVAILABLE, "away"))
    result = await client.route("hello")
    attempted = service.requests("Route")[0]
    assert (result.session_id, result.request_id) == (attempted.session_id, attempted.request_id)
    assert result.dispatch.request_id == attempted.request_id
    service.will("Route", service.default("Route"))
    later = await client.route("hello", session_id=result.session_id, request_id=result.request_id)
    assert not later.degraded
    assert service.requests("Route")[-1] == attempted


@pytest.mark.parametrize(
    ("method", "answer", "call", "agent_id"),
    [
        (
            "CompleteTurn",
            CompleteTurnResponse(active_agent=BILLING, next=Dispatch(agent=TUTOR)),
            lambda c: c.complete_turn("chat-42", REQUEST_ID, "billing", outcomes.handoff("tutor")),
            "tutor",
        ),
        (
            "CompleteTurn",
            CompleteTurnResponse(active_agent=BILLING),
            lambda c: c.complete_turn("chat-42", REQUEST_ID, "billing", outcomes.proceed()),
            "billing",
        ),
        (
            "CompleteTurn",
            CompleteTurnResponse(),
            lambda c: c.complete_turn("chat-42", REQUEST_ID, "billing", outcomes.complete()),
            "coordinator",
        ),
        (
            "SetActiveAgent",
            SetActiveAgentResponse(agent=TUTOR),
            lambda c: c.set_active_agent("chat-42", "tutor"),
            "tutor",
        ),
        (
            "ClearActiveAgent",
            ClearActiveAgentResponse(previous_agent=BILLING, agent=HOME),
            lambda c: c.clear_active_agent("chat-42"),
            "coordinator",
        ),
        (
            "Status",
            StatusResponse(next_agent=TUTOR, active_agent=BILLING),
            lambda c: c.status("chat-42"),
            "tutor",
        ),
        (
            "ResumeTask",
            ResumeTaskResponse(dispatch=Dispatch(agent=TUTOR)),
            lambda c: c.resume_task(TASK_ID, REQUEST_ID, "APPROVE"),
            "tutor",
        ),
    ],
    ids=["next", "stays", "left", "handoff", "clear", "status", "resume"],
)
async def test_every_answer_that_names_the_agent_is_learnt_from(
    service, connect, *, method, answer, call, agent_id
):
    """Other calls change the agent too; each answer names the next one."""
    client = connect(fallback=agent_routing.Fallback(supervisor_id="coordinator"))
    service.will("Route", dispatched(BILLING, revision=5))
    await client.route("my invoice", session_id="chat-42")
    answer = type(answer).FromString(answer.SerializeToString())
    answer.session_id, answer.revision = "chat-42", 6
    service.will(method, answer)
    await call(client)
    assert (await degraded(service, client)).agent_id == agent_id


@pytest.mark.parametrize(
    ("command", "agent_id"),
    [
        ("/supervisor", "coordinator"),
        ("/reset", "coordinator"),
        ("/agent", "coordinator"),
        ("/status", "billing"),
        ("/help", "billing"),
        ("/newer", "billing"),
    ],
)
async def test_commands_that_leave_the_agent_are_understood(service, connect, command, agent_id):
    """Their answers name no agent; returning to the previous one would trap the user."""
    client = connect(fallback=agent_routing.Fallback(supervisor_id="coordinator"))
    service.will("Route", dispatched(BILLING, revision=1), replied(command, revision=2))
    await client.route("my invoice", session_id="chat-42")
    await client.route(command, session_id="chat-42")
    assert (await degraded(service, client)).agent_id == agent_id


async def test_an_older_answer_does_not_undo_a_newer_one(service, connect):
    """Answers of parallel calls arrive in any order, and a replayed one may be very old."""
    client = connect()
    service.will(
        "Route",
        dispatched(TUTOR, revision=9),
        service.replays(dispatched(BILLING, revision=3)),
    )
    await client.route("a", session_id="chat-42")
    await client.route("b", session_id="chat-42")
    assert (await degraded(service, client)).agent_id == "tutor"


async def test_a_dry_run_teaches_nothing_and_never_degrades(service, connect):
    """Only the service can say what would happen."""
    client = connect()
    service.will("Route", dispatched(BILLING, revision=1), dispatched(TUTOR, revision=1))
    service.will("SetActiveAgent", SetActiveAgentResponse(session_id="chat-42", agent=TUTOR))
    await client.route("a", session_id="chat-42")
    await client.route("a", session_id="chat-42", validate_only=True)
    await client.set_active_agent("chat-42", "tutor", validate_only=True)
    assert (await degraded(service, client)).agent_id == "billing"
    with pytest.raises(errors.Unavailable):
        await client.route("a", session_id="chat-42", validate_only=True)


@pytest.mark.parametrize(
    ("method", "answer", "call"),
    [
        ("ListAgents", ListAgentsResponse(home_agent_id="coordinator"), lambda c: c.list_agents()),
        (
            "ClearActiveAgent",
            ClearActiveAgentResponse(session_id="other", agent=HOME),
            lambda c: c.clear_active_agent("other"),
        ),
        (
            "Route",
            RouteResponse(session_id="other", dispatch=Dispatch(agent=HOME)),
            lambda c: c.route("a", session_id="other"),
        ),
        (
            "Route",
            RouteResponse(
                session_id="other",
                dispatch=Dispatch(
                    agent=Agent(agent_id="coordinator"), reason=ROUTE_REASON_DEFAULT_AGENT
                ),
            ),
            lambda c: c.route("a", session_id="other"),
        ),
    ],
    ids=["list_agents", "clear", "supervisor", "default-agent"],
)
async def test_the_supervisor_is_learnt_from_any_session(service, connect, method, answer, call):
    """All sessions share the registry: a new session goes there too."""
    client = connect()
    service.will(method, answer)
    await call(client)
    result = await degraded(service, client, session_id="never-seen")
    assert result.agent_id == "coordinator"
    assert not result.supervisor_bypassed


async def test_without_any_agent_known_the_failure_is_raised(service, connect):
    """There is no agent to send the user to, and an invented name would be worse."""
    service.will("Route", service.fails(grpc.StatusCode.UNAVAILABLE, "away"))
    with pytest.raises(errors.Unavailable):
        await connect().route("hello")


async def test_fallback_can_be_switched_off(service, connect):
    """A caller with its own fallback wants the error."""
    client = connect(fallback=None)
    service.will("Route", dispatched(BILLING), service.fails(grpc.StatusCode.UNAVAILABLE, "away"))
    await client.route("a", session_id="chat-42")
    with pytest.raises(errors.Unavailable):
        await client.route("a", session_id="chat-42")


@pytest.mark.parametrize(
    "reason",
    sorted(
        set(errors.ERRORS_BY_REASON)
        - {"STORE_UNAVAILABLE", "SCHEMA_TOO_NEW", "SHUTTING_DOWN", "SIGN_IN_UNAVAILABLE"}
        - {"DEADLINE"}
    ),
)
async def test_a_decision_of_the_service_is_never_overruled(service, connect, reason):
    """A refusal is an answer: sending the message to an agent would break the enforced rule."""
    client = connect(fallback=agent_routing.Fallback(supervisor_id="coordinator"))
    info = ErrorInfo(reason=reason, domain="agent_routing")
    service.will(
        "Route",
        dispatched(BILLING),
        service.fails(grpc.StatusCode.FAILED_PRECONDITION, "no", info),
    )
    await client.route("a", session_id="chat-42")
    with pytest.raises(errors.ERRORS_BY_REASON[reason]):
        await client.route("a", session_id="chat-42")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE"),
        (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN"),
        (grpc.StatusCode.UNAVAILABLE, "SCHEMA_TOO_NEW"),
        (grpc.StatusCode.UNAVAILABLE, "SIGN_IN_UNAVAILABLE"),
        (grpc.StatusCode.UNAVAILABLE, None),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, None),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, None),
        (grpc.StatusCode.CANCELLED, None),
    ],
)
async def test_every_way_of_being_away_falls_back(service, connect, code, reason):
    """For the user all of these are the same: there was no answer."""
    client = connect(fallback=agent_routing.Fallback(supervisor_id="coordinator"))
    details = [ErrorInfo(reason=reason, domain="agent_routing")] if reason else []
    service.will("Route", service.fails(code, "not now", *details))
    result = await client.route("a", session_id="chat-42")
    assert (result.degraded, result.agent_id) == (True, "coordinator")
    assert result.error.reason == (reason or "")


async def test_a_service_that_hangs_falls_back_at_the_deadline(service, connect):
    """The user waits no longer than the timeout."""
    client = connect(fallback=agent_routing.Fallback(supervisor_id="coordinator"))
    service.will("Route", service.hangs())
    result = await client.route("a", timeout=0.3)
    assert isinstance(result.error, errors.DeadlineExceeded)
    assert result.agent_id == "coordinator"


async def test_nothing_but_a_route_is_answered_in_the_services_place(service, connect):
    """The caller, which has the text, must learn that a completion was not stored."""
    client = connect(fallback=agent_routing.Fallback(supervisor_id="coordinator"))
    service.stop()
    for call in (
        client.complete_turn("chat-42", REQUEST_ID, "billing", outcomes.proceed(), text="done"),
        client.set_active_agent("chat-42", "billing"),
        client.clear_active_agent("chat-42"),
        client.status("chat-42"),
        client.list_agents(),
    ):
        with pytest.raises(errors.Unavailable):
            await call


async def test_a_session_is_found_by_its_task(service, connect):
    """A following message may name the task only."""
    client = connect(fallback=agent_routing.Fallback(supervisor_id="coordinator"))
    service.will("Route", dispatched(BILLING, task_id=TASK_ID))
    await client.route("a", session_id="chat-42")
    result = await degraded(service, client, session_id="", task_id=TASK_ID)
    assert (result.agent_id, result.session_id, result.task_id) == ("billing", "chat-42", TASK_ID)
    assert (await degraded(service, client)).task_id == TASK_ID
    unknown = await degraded(service, client, session_id="", task_id=REQUEST_ID)
    assert (unknown.agent_id, unknown.session_id) == ("coordinator", "")
    service.will("Status", StatusResponse(session_id="chat-42", revision=2, task=Task()))
    await client.status("chat-42")
    closed = await degraded(service, client, session_id="", task_id=TASK_ID)
    assert closed.session_id == "", "the task is not the session's any more"


@pytest.mark.parametrize("reason", ["UNKNOWN_SESSION", "SESSION_ERASED"])
async def test_a_session_that_is_gone_is_forgotten(service, connect, reason):
    """Its id may be used again, and erased data must not stay here."""
    client = connect(fallback=agent_routing.Fallback(supervisor_id="coordinator"))
    service.will("Route", dispatched(BILLING, revision=7, task_id=TASK_ID))
    await client.route("a", session_id="chat-42")
    info = ErrorInfo(reason=reason, domain="agent_routing")
    service.will("Status", service.fails(grpc.StatusCode.NOT_FOUND, "gone", info))
    with pytest.raises(errors.RoutingError):
        await client.status("chat-42")
    result = await degraded(service, client)
    assert (result.agent_id, result.task_id) == ("coordinator", "")


async def test_a_degraded_decision_is_logged_once_with_its_ids(service, connect, caplog):
    """Operators must see that users are served without the service, but never their text."""
    client = connect(fallback=agent_routing.Fallback(supervisor_id="coordinator"))
    with caplog.at_level(logging.WARNING, logger="agent_routing"):
        result = await degraded(service, client, "my secret")
    [record] = caplog.records
    line = record.getMessage()
    assert line.startswith("route_degraded session_id=chat-42 ")
    assert result.request_id in line
    assert "agent_id=coordinator code=UNAVAILABLE" in line
    assert "secret" not in line


def learn_route(known, session_id, agent, revision=1, task_id=""):
    """Learn from an answer of a session."""
    known.learn(
        RouteRequest(),
        RouteResponse(
            session_id=session_id,
            revision=revision,
            task_id=task_id,
            dispatch=Dispatch(agent=agent),
        ),
    )


def agent_of(known, **request):
    """Return the agent that a message would go to while the service is away."""
    error = errors.Unavailable("away", code=grpc.StatusCode.UNAVAILABLE)
    answer = known.degraded_answer(RouteRequest(**request), error)
    return answer and answer.dispatch.agent.agent_id


def test_the_sessions_used_last_are_kept_and_no_more():
    """A frontend runs for months, so its memory is bounded."""
    known = KnownAgents(agent_routing.Fallback(supervisor_id="home", sessions_max=3))
    for session_id in ("a", "b", "c"):
        learn_route(known, session_id, BILLING, task_id=f"task-of-{session_id}")
    learn_route(known, "a", BILLING, revision=0)  # Old news, but the session is in use.
    learn_route(known, "d", BILLING)
    agents = {each: agent_of(known, session_id=each) for each in "abcd"}
    assert agents == {"a": "billing", "b": "home", "c": "billing", "d": "billing"}
    assert agent_of(known, task_id="task-of-b") == "home"
    assert agent_of(known, task_id="task-of-c") == "billing"
    for number in range(1_000):
        learn_route(known, f"s{number}", BILLING, task_id=str(number))
    assert len(known._sessions) == len(known._session_by_task) == 3


def test_descriptions_of_agents_are_kept_once_and_bounded():
    """Ten thousand sessions with one agent must not hold ten thousand descriptions."""
    known = KnownAgents(agent_routing.Fallback())
    for number in range(100):
        learn_route(known, f"s{number}", BILLING)
    assert len({id(each.agent) for each in known._sessions.values()}) == 1
    for number in range(3 * AGENT_TEXTS_MAX):
        learn_route(known, "s", Agent(agent_id=f"agent-{number}"), revision=number)
    assert len(known._agents) <= AGENT_TEXTS_MAX
    assert agent_of(known, session_id="s0") == "billing"


def test_a_stand_in_of_the_home_agent_is_what_is_known():
    """With stickiness off, every message goes to the home agent; in the fallback too."""
    known = KnownAgents(agent_routing.Fallback(supervisor_id="coordinator"))
    learn_route(known, "s", BILLING, revision=1)
    known.learn(
        RouteRequest(),
        RouteResponse(
            session_id="s",
            revision=2,
            dispatch=Dispatch(agent=HOME, reason=ROUTE_REASON_STICKINESS_DISABLED),
        ),
    )
    assert agent_of(known, session_id="s") == "coordinator"


def test_what_is_learnt_from_is_not_kept_in_memory():
    """An answer may have a long history; only a copy of the agent is kept."""
    known = KnownAgents(agent_routing.Fallback())
    answer = dispatched(BILLING)
    known.learn(RouteRequest(), answer)
    answer.dispatch.agent.agent_id = "changed-by-the-caller"
    assert agent_of(known, session_id="chat-42") == "billing"


def test_a_fallback_for_no_sessions_is_refused():
    """A fallback of 0 sessions would be none; None is the way to say that."""
    with pytest.raises(ValueError, match="sessions_max is 0"):
        agent_routing.Fallback(sessions_max=0)
