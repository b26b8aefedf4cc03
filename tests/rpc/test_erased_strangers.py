"""Errors for an erased session: its owner learns of the erasure, strangers learn nothing."""

from __future__ import annotations

from agent_routing.v1 import admin_service_pb2 as admin
from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.core.access import ANY_SESSION, Access, refused
from routing_service.core.erased_owner import SALT_BYTES, is_owner, owner_hash
from routing_service.core.session import SessionState
from routing_service.storage.event_codec import decode_state
from routing_service.storage.store import SessionKey
from tests.rpc.live_service import fresh_id, refusal
from tests.rpc.registries import DESK
from tests.rpc.signed_in import serving_signed_in, signed

MISMATCH = ("PERMISSION_DENIED", "OWNER_MISMATCH")
ERASED = ("FAILED_PRECONDITION", "SESSION_ERASED")
UNKNOWN = ("NOT_FOUND", "UNKNOWN_SESSION")


def calls(request_id):
    """Return calls of a user that name the session, including a repeat of its first message."""
    return {
        "Route": pb.RouteRequest(session_id="s", text="hello", request_id=request_id),
        "Status": pb.StatusRequest(session_id="s"),
        "ListTurns": pb.ListTurnsRequest(session_id="s"),
        "ListTasks": pb.ListTasksRequest(session_id="s"),
        "WatchSession": pb.WatchSessionRequest(session_id="s"),
        "ClearActiveAgent": pb.ClearActiveAgentRequest(session_id="s"),
    }


async def told(caller, requests):
    """Return the error of each call."""
    found = set()
    for rpc, request in requests.items():
        call = caller(rpc, request)
        found.add(tuple(await refusal(call.read() if rpc == "WatchSession" else call)))
    return found


async def test_strangers_are_told_nothing_of_an_erased_session(tmp_path):
    """Only its owner, operators and runtimes learn of it; after a purge no caller does."""
    async with serving_signed_in(tmp_path, DESK) as service:
        ana = signed(service, "route", "read", user="ana")
        bob = signed(service, "route", "read", user="bob")
        operator = signed(service, "admin")
        first = calls(fresh_id())
        await ana("Route", first["Route"])
        assert await told(bob, first) == {MISMATCH}
        await operator("EraseUser", admin.EraseUserRequest(user_id="ana"))
        assert await told(bob, first) == {MISMATCH}
        assert await told(ana, first) == {ERASED}
        assert tuple(await refusal(operator("Status", first["Status"]))) == ERASED

        stored = await service.store.load(SessionKey("default", "s"))
        kept = decode_state(stored.state).owner_hash
        assert is_owner(kept, "s", "ana")
        assert b"ana" not in stored.state
        # Each session's hash has its own salt, so two sessions of one user cannot be linked.
        salt = bytes(SALT_BYTES - 1) + b"x"
        assert owner_hash(salt, "s", "ana") != kept
        assert not is_owner(kept, "s", "bob")
        assert not is_owner(kept, "t", "ana")
        assert not is_owner("", "s", "ana")

        service.clock.advance(3600)
        purged = admin.PurgeSessionsRequest()
        purged.update_time_before.FromMicroseconds(service.clock.now_us - 1_000_000)
        await operator("PurgeSessions", purged)
        assert await service.store.load(SessionKey("default", "s")) is None
        reads = {name: each for name, each in first.items() if name in ("Status", "ListTurns")}
        assert await told(ana, reads) == await told(bob, reads) == {UNKNOWN}


async def test_session_that_an_earlier_release_erased_has_no_known_owner():
    """Users get the same error as strangers; operators and runtimes learn of the erasure."""
    state = SessionState("s", 1, 0, 0, erased=True)
    reasons = {
        access: refused(access, state, "front").reason.value
        for access in (
            Access("ana"),
            Access("ana", must_be_owner=True),
            ANY_SESSION,
            Access(agents=frozenset({"sales"})),
        )
    }
    assert list(reasons.values()) == ["OWNER_MISMATCH"] * 2 + ["SESSION_ERASED"] * 2
