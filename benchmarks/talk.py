"""Conversations with the service, call by call, for the client of wire.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agent_routing.v1 import routing_service_pb2 as pb
from agent_routing.v1.dispatch_pb2 import Dispatch
from benchmarks import wire
from benchmarks.story import AGENT_TEXT, HANDOFF_TEXT, SPECIALIST, SUPERVISOR, USER_TEXT
from routing_service.ids import new_uuid7

ROUTE = wire.headers("/agent_routing.v1.RoutingService/Route")
COMPLETE = wire.headers("/agent_routing.v1.RoutingService/CompleteTurn")
LIST_TURNS = wire.headers("/agent_routing.v1.RoutingService/ListTurns")


def names(count: int) -> list[str]:
    """Return names of unused sessions."""
    run = new_uuid7()
    return [f"{run}-{number}" for number in range(count)]


def route(session_id: str) -> bytes:
    """Return a user's message."""
    return pb.RouteRequest(
        session_id=session_id, user_id="user", text=USER_TEXT, request_id=new_uuid7()
    ).SerializeToString()


def messages(session_ids: Sequence[str], count: int) -> list[wire.Next]:
    """Return conversations without answers, with this many messages for each session."""

    def prepared(session_id: str) -> wire.Next:
        # Made beforehand, so that the client does less while it is measured.
        calls = iter([(ROUTE, route(session_id)) for _ in range(count)])
        return lambda _answer: next(calls, None)

    return [prepared(session_id) for session_id in session_ids]


def turns(
    session_id: str, count: int, heard: Callable[[str], None] = lambda _call: None
) -> wire.Next:
    """Return a conversation of whole turns: each a message, and an answer of each agent it meets.

    heard: called with the kind of each answer, "route" or "complete".
    """
    left = count
    routing = False

    def go_on(answer: bytes) -> tuple[bytes, bytes] | None:
        nonlocal left, routing
        if answer:
            heard("route" if routing else "complete")
            dispatch = (
                pb.RouteResponse.FromString(answer).dispatch
                if routing
                else pb.CompleteTurnResponse.FromString(answer).next
            )
            routing = False
            if dispatch.request_id:
                return COMPLETE, completion(session_id, dispatch).SerializeToString()
        if not left:
            return None
        left -= 1
        routing = True
        return ROUTE, route(session_id)

    return go_on


def completion(session_id: str, dispatch: Dispatch) -> pb.CompleteTurnRequest:
    """Return what the story's agent answers."""
    answer = pb.CompleteTurnRequest(
        session_id=session_id,
        user_id="user",
        request_id=dispatch.request_id,
        agent_id=dispatch.agent.agent_id,
    )
    if dispatch.agent.agent_id == SUPERVISOR:
        answer.text = HANDOFF_TEXT
        answer.handoff.agent_id = SPECIALIST
    else:
        answer.text = AGENT_TEXT
        answer.proceed.SetInParent()
    return answer
