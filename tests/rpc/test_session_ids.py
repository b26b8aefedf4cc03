"""Session ids: any visible text that another system uses as a name, stored byte by byte."""

import unicodedata

import pytest

from agent_routing.v1 import admin_service_pb2 as admin_pb
from agent_routing.v1 import admin_service_pb2_grpc as admin_grpc
from agent_routing.v1 import routing_service_pb2 as pb
from tests.rpc.live_service import fresh_id, hand_to, refusal, serving
from tests.rpc.registries import DESK

WELCOME = [
    "conversación de Núria",
    "チャット 42",
    "+34 600 123 456/whatsapp#1",
    "{slot}:*?[a-z]%_\\'\";--",
    " leading and trailing ",
    "👩\U0001f3fd4",
    "é" * 128,
    "\U00010348" * 128,
]

REFUSED = {
    "a\nb": "control",
    "a\x00b": "control",
    "a\x7fb": "control",
    "a\u200bb": "invisible",
    "a\ufeffb": "invisible",
    "a\u202eb": "invisible",
    "a\u2028b": "line-separator",
    "a\u2029b": "line-separator",
    "x" * 129: "has 129 characters",
}


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each."""
    async with serving(tmp_path, DESK) as running:
        yield running


@pytest.mark.parametrize("session_id", WELCOME)
async def test_a_session_id_of_any_script_names_its_session(service, session_id):
    """It comes back unchanged from every call, and finds the session again."""
    chat = service.chat(session_id)
    routed = await chat.say()
    assert routed.session_id == session_id
    await chat.answer(routed.dispatch, **hand_to("sales"))
    status = await chat.status()
    assert (status.session_id, status.active_agent.agent_id) == (session_id, "sales")
    assert (await chat.say("again")).dispatch.agent.agent_id == "sales"
    assert [turn.user_text for turn in await chat.turns()][-1] == "again"
    admin = admin_grpc.AdminServiceStub(service.channel)
    listed = await admin.ListSessions(admin_pb.ListSessionsRequest(), timeout=20)
    assert [each.session_id for each in listed.sessions] == [session_id]
    events = await admin.ListEvents(admin_pb.ListEventsRequest(session_id=session_id), timeout=20)
    assert {record.event.session_id for record in events.records} == {session_id}


@pytest.mark.parametrize("session_id", REFUSED)
async def test_a_session_id_with_unseen_characters_is_refused(service, session_id):
    """They would make two sessions that look like one."""
    for call in (service.chat(session_id).say(), service.chat(session_id).status()):
        refused = await refusal(call)
        assert refused.reason == "INVALID_FIELD"
        assert refused.metadata["field"] == "session_id"
        assert REFUSED[session_id] in refused.message


async def test_text_that_is_not_nfc_is_refused_with_its_nfc_form(service):
    """Never changed silently: the caller would look for an id that it did not send."""
    decomposed = unicodedata.normalize("NFD", "conversación")
    refused = await refusal(service.chat(decomposed).say())
    assert refused.reason == "INVALID_FIELD"
    assert 'send "conversación"' in refused.message
    await service.chat("conversación").say()
    # Compatibility forms are other texts in NFC, and other sessions.
    assert (await service.chat("ﬁ").say()).revision == 1
    assert (await service.chat("fi").say()).revision == 1
    assert (await service.chat("FI").say()).revision == 1


async def test_an_agent_id_stays_ascii(service):
    """Agents are named by programs."""
    refused = await refusal(service.chat().set_active("ventas é"))
    assert refused.reason == "INVALID_FIELD"


async def test_a_repeat_without_session_id_is_one_session(service):
    """Its request_id leads to the session of the first call, and to its answer."""
    request_id = fresh_id()
    request = pb.RouteRequest(user_id="ana", text="hello", request_id=request_id)
    first = await service.call("Route", request)
    again = service.call("Route", request)
    assert (await again).SerializeToString() == first.SerializeToString()
    other = pb.RouteRequest(user_id="ana", text="hello", request_id=fresh_id())
    assert (await service.call("Route", other)).session_id != first.session_id
