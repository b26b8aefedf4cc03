"""Fingerprints are stored: a repeated request must have the same one in every release."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_routing.v1 import item_pb2
from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.rpc.routing.complete_turn import COMPLETE_FINGERPRINT
from routing_service.rpc.routing.handoffs import (
    CANCEL_FINGERPRINT,
    CLEAR_FINGERPRINT,
    RESUME_FINGERPRINT,
    SET_ACTIVE_FINGERPRINT,
)
from routing_service.rpc.routing.route import ROUTE_FINGERPRINT

ID = "0198A6C0-5f3e-7a51-9c1d-2f6f0a4b7e11"
UNKNOWN = b"\xfa\x3e\x05later"  # A field of a later contract.

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
ids = st.sampled_from(["", ID, ID.lower()])
unknown = st.sampled_from([b"", UNKNOWN])

routes = st.builds(
    pb.RouteRequest,
    session_id=words,
    request_id=ids,
    user_id=words,
    task_id=ids,
    text=words,
    items=st.lists(st.builds(item_pb2.Item, content_type=words, text=words), max_size=2),
    locale=words,
    channel=words,
    entitlements=st.lists(words, max_size=3),
    metadata=st.dictionaries(words, words, max_size=3),
    quick_reply_id=ids,
    literal_text=st.booleans(),
    history_turns=st.integers(-1, 100),
    expected_revision=st.none() | st.integers(0, 9),
)
outcomes = st.sampled_from(
    [
        {},
        {"proceed": {}},
        {"follow_up": {"timeout": {"seconds": 5}}},
        {"complete": {"summary": "done", "message": ""}},
        {"handoff": {"agent_id": "billing", "reason": "money", "context": {"a": 1.0}}},
        {"failure": {"message": "no"}},
    ]
)


def completed(outcome, text, steps, *, parse_markers=None):
    """An agent's answer."""
    return pb.CompleteTurnRequest(
        session_id="chat",
        request_id=ID,
        agent_id="billing",
        text=text,
        parse_markers=parse_markers,
        steps=[{"name": step} for step in steps],
        **outcome,
    )


answers = st.builds(
    completed,
    outcomes,
    words,
    st.lists(words, max_size=2),
    parse_markers=st.sampled_from([None, True, False]),
)


def digest_of(request, fingerprint):
    """Return a request's fingerprint as an RPC makes it."""
    return fingerprint.of(request, dict(request.ListFields()))


@given(routes, unknown)
def test_message_is_compared_as_protobuf_writes_it(request, more):
    """The joined bytes equal protobuf's. Fields unknown to this release are compared as well."""
    request = pb.RouteRequest.FromString(request.SerializeToString() + more)
    written = ROUTE_FINGERPRINT.serialised(request)
    expected = hashlib.blake2b(written, digest_size=16).digest()
    assert digest_of(request, ROUTE_FINGERPRINT) == expected


@given(answers, unknown)
def test_answer_is_compared_as_protobuf_writes_it(request, more):
    """The same holds for agents' answers."""
    request = pb.CompleteTurnRequest.FromString(request.SerializeToString() + more)
    written = COMPLETE_FINGERPRINT.serialised(request)
    expected = hashlib.blake2b(written, digest_size=16).digest()
    assert digest_of(request, COMPLETE_FINGERPRINT) == expected


@pytest.mark.parametrize(
    ("request_", "fingerprint", "digest"),
    [
        (
            pb.RouteRequest(text="Hola"),
            ROUTE_FINGERPRINT,
            "b7e101df420613e39fd94ae705d46112",
        ),
        (
            pb.RouteRequest(
                session_id="chat",
                task_id=ID,
                text="Hola",
                locale="es",
                entitlements=["b", "a"],
                metadata={"k": "v", "a": "b"},
            ),
            ROUTE_FINGERPRINT,
            "7dfc3e8ba05e8f3d68c4799d0ace521a",
        ),
        (
            completed({"proceed": {}}, "It is so.", []),
            COMPLETE_FINGERPRINT,
            "ae5a03faa30792096f572c1b3d7b4f92",
        ),
        (
            completed({"handoff": {"agent_id": "billing"}}, "", ["look"], parse_markers=True),
            COMPLETE_FINGERPRINT,
            "b89966a36815875c5a5e6ce9d929ce1e",
        ),
    ],
)
def test_fingerprint_is_what_earlier_releases_stored(request_, fingerprint, digest):
    """Otherwise a repeat after an upgrade would be refused as another request."""
    assert digest_of(request_, fingerprint).hex() == digest


@pytest.mark.parametrize(
    ("message", "fingerprint", "not_compared"),
    [
        (
            pb.RouteRequest,
            ROUTE_FINGERPRINT,
            {
                *("session_id", "user_id", "request_id"),
                *("history_turns", "expected_revision", "shown_revision"),
                *("validate_only", "explain_topic"),
            },
        ),
        (
            pb.CompleteTurnRequest,
            COMPLETE_FINGERPRINT,
            {"session_id", "user_id", "request_id", "agent_id", "lease_token"},
        ),
        (
            pb.SetActiveAgentRequest,
            SET_ACTIVE_FINGERPRINT,
            {"session_id", "user_id", "request_id", "expected_revision", "validate_only"},
        ),
        (
            pb.ClearActiveAgentRequest,
            CLEAR_FINGERPRINT,
            {"session_id", "user_id", "request_id", "expected_revision", "validate_only"},
        ),
        (
            pb.ResumeTaskRequest,
            RESUME_FINGERPRINT,
            {"session_id", "user_id", "request_id", "validate_only"},
        ),
        (
            pb.CancelTaskRequest,
            CANCEL_FINGERPRINT,
            {"session_id", "user_id", "request_id", "expected_revision", "validate_only"},
        ),
    ],
    ids=["Route", "CompleteTurn", "SetActiveAgent", "ClearActiveAgent", "ResumeTask", "CancelTask"],
)
def test_every_field_of_a_request_is_compared_or_known_not_to_be(
    message, fingerprint, not_compared
):
    """A forgotten field would let another request pass as a repeat."""
    assert set(fingerprint.fields).isdisjoint(not_compared)
    assert set(fingerprint.fields) | not_compared == set(message.DESCRIPTOR.fields_by_name)
    assert fingerprint.uuids | fingerprint.sets <= set(fingerprint.fields)
