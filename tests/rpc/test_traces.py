"""Traces over the wire: from the caller to the server's span, and to the dispatch."""

from agent_routing import AsyncClient, outcomes
from agent_routing.v1 import routing_service_pb2
from routing_service.telemetry.tracing import Tracing
from tests.rpc.live_service import hand_to, refusal, serving
from tests.rpc.registries import DESK

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
GIVEN = (("traceparent", f"00-{TRACE}-{PARENT}-01"),)


class Kept:
    """An exporter that collects spans."""

    def __init__(self):
        self.spans = []

    def export(self, spans):
        self.spans += spans

    def shutdown(self):
        pass


def traced(exporter):
    """Return a server's tracing that exports to the collector."""
    return Tracing(exporter, new_percent=0, version="1.2.3")


def parts(traceparent):
    """Return the trace id and span id of a traceparent."""
    _, trace, span, _ = traceparent.split("-")
    return trace, span


async def test_every_dispatch_carries_the_trace_of_its_own_call(tmp_path):
    """For Route, a handoff, a stream, and a repeat, which is another call."""
    exporter = Kept()
    async with serving(tmp_path, DESK, tracing=traced(exporter)) as service:
        chat = service.chat()
        fields = {"session_id": chat.session_id, "user_id": "ana", "text": "hello"}
        asked = routing_service_pb2.RouteRequest(
            request_id="0198a6c0-0000-7000-8000-000000000001", **fields
        )
        routed = await service.stub.Route(asked, metadata=GIVEN, timeout=20)
        again = await service.stub.Route(asked, metadata=GIVEN, timeout=20)
        assert routed.dispatch.request_id == again.dispatch.request_id
        complete = routing_service_pb2.CompleteTurnRequest(
            session_id=chat.session_id,
            user_id="ana",
            request_id=routed.request_id,
            agent_id="front",
            **hand_to("sales"),
        )
        handed = await service.stub.CompleteTurn(complete, metadata=GIVEN, timeout=20)
        async with (
            AsyncClient(service.server.address, metadata=lambda: GIVEN) as client,
            client.stream() as stream,
        ):
            turn = await stream.route("again", session_id=chat.session_id, user_id="ana")
            on_stream = turn.dispatch
            await client.complete_turn(
                chat.session_id, turn.request_id, "sales", outcomes.proceed(), user_id="ana"
            )
        dispatches = [routed.dispatch, again.dispatch, handed.next, on_stream]
        assert {parts(each.traceparent)[0] for each in dispatches} == {TRACE}
        assert len({parts(each.traceparent)[1] for each in dispatches}) == 4
    spans = {f"{span.context.span_id:016x}": span for span in exporter.spans}
    assert [spans[parts(each.traceparent)[1]].attributes["rpc.method"] for each in dispatches] == [
        "Route",
        "Route",
        "CompleteTurn",
        "RouteStream",
    ]
    assert {f"{span.parent.span_id:016x}" for span in spans.values()} == {PARENT}
    assert spans[parts(again.dispatch.traceparent)[1]].attributes["agent_routing.replayed"]
    assert len(spans) == 5


async def test_reply_and_refusal_have_spans_and_no_dispatch(tmp_path):
    """Tracing must not add a dispatch to an answer without one."""
    exporter = Kept()
    async with serving(tmp_path, DESK, tracing=traced(exporter)) as service:
        chat = service.chat()
        fields = {"session_id": chat.session_id, "user_id": "ana", "text": "/help"}
        reply = await service.stub.Route(
            routing_service_pb2.RouteRequest(**fields), metadata=GIVEN, timeout=20
        )
        assert not reply.HasField("dispatch")
        handoff = routing_service_pb2.SetActiveAgentRequest(
            session_id=chat.session_id, user_id="ana", agent_id="premium", initiator=3
        )
        refused = service.stub.SetActiveAgent(handoff, metadata=GIVEN, timeout=20)
        assert (await refusal(refused)).rules == ["entitled"]
    replied, handed = exporter.spans
    assert replied.attributes["agent_routing.command"] == "help"
    assert handed.attributes["agent_routing.refused_rules"] == ("entitled",)
    assert handed.attributes["rpc.grpc.status_code"] == "FAILED_PRECONDITION"


async def test_without_tracing_nothing_of_it_is_answered(tmp_path):
    """The answers are the same as without this feature."""
    async with serving(tmp_path, DESK) as service:
        asked = routing_service_pb2.RouteRequest(session_id="plain", user_id="ana", text="hello")
        routed = await service.stub.Route(asked, metadata=GIVEN, timeout=20)
        assert routed.dispatch.traceparent == ""
        status = await service.chat("plain").status()
        assert status.open_requests[0].traceparent == ""
