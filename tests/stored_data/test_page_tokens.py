"""Page tokens that no list made, through a real server on every engine."""

import base64

import pytest

from agent_routing.v1 import admin_service_pb2, admin_service_pb2_grpc
from tests.conformance.conftest import ENGINES
from tests.rpc.live_service import refusal, serving
from tests.rpc.registries import DESK


def token(data):
    """Return bytes as a token."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


TASK = b"0198a6c0-5f3e-7a51-9c1d-2f6f0a4b7e11"
SESSIONS = (b"S\0", b"Sa\0b", b"S\x1f", b"S" + b"x" * 2000, b"S\xff", b"X", b"S\xed\xa0\x80")
TASKS = (
    b"1:\0",
    b"1:x",
    b"1:" + TASK[:-1] + b"\0",
    b" 1:" + TASK,
    b"1_0:" + TASK,
    b"9" * 30 + b":" + TASK,
)
TURNS = (b"1:\0", b"\0:1", b"1_0:1", b" 1:1", b"1:1:1", b"\xd9\xa1:1", b"9" * 30 + b":1")
REVISIONS = (b"\0", b"1\0", b"1_0", b" 1", b"\xd9\xa1", b"9" * 30, b"-")
EVENTS = (b"\0", b"\x92\xc4\x01\0\xc4\0", b"\x92\xc4\0\xc4\x01\0", b"\xff" * 40)


@pytest.mark.parametrize("engine", [each.name for each in ENGINES])
async def test_token_that_no_list_made_is_a_bad_field_on_every_engine(tmp_path, place_on, engine):
    """The same refusal everywhere, before any engine is asked; none of them is INTERNAL."""
    pb = admin_service_pb2
    (tmp_path / "server").mkdir()
    async with serving(tmp_path / "server", DESK, store=place_on(engine)) as service:
        chat = await service.chat("tokens").with_agent("sales")
        admin = admin_service_pb2_grpc.AdminServiceStub(service.channel)
        lists = (
            (lambda t: chat.tasks(page_token=t), TASKS),
            (lambda t: chat.turns(page_token=t), TURNS),
            (lambda t: admin.ListSessions(pb.ListSessionsRequest(page_token=t)), SESSIONS),
            (lambda t: admin.ListEvents(pb.ListEventsRequest(page_token=t)), EVENTS),
            (
                lambda t: admin.ListEvents(pb.ListEventsRequest(session_id="tokens", page_token=t)),
                REVISIONS,
            ),
        )
        for ask, made in lists:
            for data in made:
                refused = await refusal(ask(token(data)))
                assert tuple(refused) == ("INVALID_ARGUMENT", "INVALID_FIELD"), data
                assert refused.rules == ["page_token"]
            for text in ("a\0b", "\0", "é", "====", "A", "\u2028"):
                refused = await refusal(ask(text))
                assert tuple(refused) == ("INVALID_ARGUMENT", "INVALID_FIELD"), text
        assert service.observer.failures == []
