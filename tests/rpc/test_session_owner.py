"""Session owners: users of one tenant, and tenants, are kept apart on every call."""

import pytest

from agent_routing.v1 import dispatch_pb2, routing_service_pb2
from tests.rpc.live_service import ask, fresh_id, refusal, serving, went
from tests.rpc.registries import DESK


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each."""
    async with serving(tmp_path, DESK) as running:
        yield running


def every_call(chat, dispatch):
    """Return each RPC that names the session, by name."""
    return {
        "Route": chat.say("mine?"),
        "Route, a trial": chat.say("mine?", validate_only=True),
        "Route, a command": chat.say("/reset"),
        "SetActiveAgent": chat.set_active("support"),
        "SetActiveAgent, a trial": chat.set_active("support", validate_only=True),
        "SetActiveAgent, in the turn": chat.set_active(
            "support", turn_request_id=dispatch.request_id
        ),
        "ClearActiveAgent": chat.clear(),
        "CompleteTurn": chat.answer(dispatch, "mine"),
        "Status": chat.status(),
        "ListTurns": chat.turns(),
        "ListTasks": chat.tasks(),
        "ListAgents": chat.agents(),
    }


async def test_another_user_s_session_is_refused_on_every_call(service):
    """The error does not name the owner, and nothing changes."""
    chat = await service.chat().with_agent("sales", **ask())
    routed = await chat.say("a secret")
    stranger = service.chat(chat.session_id, user_id="ben")
    async with chat.unchanged():
        for name, call in every_call(stranger, routed.dispatch).items():
            refused = await refusal(call)
            assert tuple(refused) == ("PERMISSION_DENIED", "OWNER_MISMATCH"), name
            assert refused.metadata == {"session_id": chat.session_id}, name
            assert "ana" not in refused.message, name
    assert await chat.audit() == []


async def test_repeat_by_another_user_does_not_get_the_answer(service):
    """Ownership is checked before the request id is looked up."""
    chat = service.chat()
    request_id = fresh_id()
    await chat.say("a secret", request_id=request_id)
    stranger = service.chat(chat.session_id, user_id="ben")
    refused = await refusal(stranger.say("a secret", request_id=request_id))
    assert tuple(refused) == ("PERMISSION_DENIED", "OWNER_MISMATCH")


async def test_message_without_a_user_does_not_slip_into_somebody_s_session(service):
    """Agents and operators may omit the user; a message and a user's own choice need it."""
    chat = await service.chat().with_agent("sales")
    nobody = service.chat(chat.session_id, user_id="")
    for call in (nobody.say(), nobody.set_active("support", initiator=3)):
        refused = await refusal(call)
        assert tuple(refused) == ("PERMISSION_DENIED", "OWNER_MISMATCH")
    assert (await nobody.status()).owner == "ana"
    assert len(await nobody.turns()) == 2
    assert (await nobody.set_active("support")).agent.agent_id == "support"


async def test_session_belongs_to_the_first_user_who_speaks_in_it(service):
    """A session that an agent runtime began has no owner until then."""
    chat = service.chat()
    nobody = service.chat(chat.session_id, user_id="")
    await nobody.set_active("sales")
    assert (await nobody.status()).owner == ""
    assert went((await chat.say()).dispatch) == ("sales", "STICKY")
    assert (await chat.status()).owner == "ana"
    refused = await refusal(service.chat(chat.session_id, user_id="ben").say())
    assert tuple(refused) == ("PERMISSION_DENIED", "OWNER_MISMATCH")


async def test_another_user_s_task_is_refused(service):
    """By its id alone, without naming its session, or from the caller's own session."""
    chat = service.chat("ana-s-session")
    task_id = (await chat.say()).task_id
    stranger = service.chat(user_id="ben")
    async with chat.unchanged():
        for session_id in ("", stranger.session_id):
            refused = await refusal(stranger.say("go on", session_id=session_id, task_id=task_id))
            assert tuple(refused) == ("PERMISSION_DENIED", "OWNER_MISMATCH")
            assert refused.metadata == {"task_id": task_id}
            assert "ana" not in refused.message
    assert await stranger.changes() == []


async def test_another_tenant_s_session_is_not_found(service):
    """Reads, clears and answers return the same as for an unknown id."""
    chat = await service.chat(tenant="acme").with_agent("sales", **ask())
    routed = await chat.say("a secret")
    other = service.chat(chat.session_id, tenant="globex")
    unknown = service.chat(tenant="globex")
    missing = dispatch_pb2.Dispatch(request_id=routed.request_id)
    missing.agent.agent_id = "sales"
    async with chat.unchanged():
        for name, (theirs, nobodys) in {
            "Status": (other.status(), unknown.status()),
            "ListTurns": (other.turns(), unknown.turns()),
            "ListTasks": (other.tasks(), unknown.tasks()),
            "ListAgents": (other.agents(), unknown.agents()),
            "ClearActiveAgent": (other.clear(), unknown.clear()),
            "CompleteTurn": (other.answer(missing), unknown.answer(missing)),
        }.items():
            refused, expected = await refusal(theirs), await refusal(nobodys)
            assert tuple(refused) == ("NOT_FOUND", "UNKNOWN_SESSION"), name
            assert refused.message == expected.message.replace(
                unknown.session_id, chat.session_id
            ), name


async def test_one_session_id_in_two_tenants_is_two_sessions(service):
    """Tenant and id together identify a session; request and task ids are separate as well."""
    acme, globex = (service.chat("main", tenant=name) for name in ("acme", "globex"))
    request_id, task_id = fresh_id(), fresh_id()
    first = await acme.say("hello", request_id=request_id, task_id=task_id)
    second = await globex.say("good day", request_id=request_id, task_id=task_id)
    assert first.revision == second.revision == 1
    await acme.set_active("sales")
    assert went((await globex.say()).dispatch) == ("front", "NO_ACTIVE_AGENT")
    assert went((await acme.say()).dispatch) == ("sales", "STICKY")
    assert [turn.user_text for turn in await globex.turns()] == ["good day", "hello"]


async def test_task_of_another_tenant_is_not_found(service):
    """It is found neither by its id alone nor by its session's id."""
    task_id = (await service.chat(tenant="acme").say()).task_id
    refused = await refusal(service.chat(tenant="globex").say(session_id="", task_id=task_id))
    assert tuple(refused) == ("NOT_FOUND", "UNKNOWN_TASK")
    assert refused.metadata == {"task_id": task_id}


async def test_caller_without_a_tenant_is_in_the_default_one(service):
    """The default tenant can also be named."""
    chat = service.chat()
    await chat.say()
    assert (await service.chat(chat.session_id, tenant="default").status()).revision == 1


@pytest.mark.parametrize("tenant", ["two words", "a/b", "x" * 129])
async def test_tenant_that_is_no_id_is_a_bad_field(service, tenant):
    """The tenant is part of keys and log lines."""
    request = routing_service_pb2.RouteRequest(text="hello")
    refused = await refusal(service.call("Route", request, tenant))
    assert tuple(refused) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert refused.rules == ["agent-routing-tenant"]
    assert refused.metadata["field"] == "agent-routing-tenant"
