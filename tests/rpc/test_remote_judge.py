"""A detector at a gRPC address: its questions, the accepted answers, and its absence."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
import pytest

from agent_routing.v1 import routing_service_pb2
from agent_routing.v1 import topic_detector_service_pb2 as pb
from agent_routing.v1.dispatch_pb2 import Dispatch
from agent_routing.v1.topic_detector_service_pb2_grpc import (
    TopicDetectorServiceServicer,
    add_TopicDetectorServiceServicer_to_server,
)
from routing_service.settings.rules import SettingsInvalid
from tests.rpc.live_service import ask, serving, went
from tests.rpc.test_metrics_page import fetch
from tests.scripted_topics import ScriptedModel

REGISTRY = """
api_version: agent_routing/v1
version: judged-1
supervisor: front
topics: {mode: auto, threshold: 0.6, first_message: auto, lock_threshold: 0.6}
agents:
  - {id: front, name: Front desk}
  - {id: vat, name: {en: VAT, es: IVA}, description: VAT returns., examples: [my F29, file VAT]}
  - {id: payroll, name: Payroll, description: Wages.}
  - {id: archive, name: Archive, description: Old papers., enabled: false}
"""

_CUE = re.compile(r"(\w+)!")


@dataclass
class Judge(TopicDetectorServiceServicer):
    """Answers with the agent that a message names after an exclamation mark."""

    asked: list[pb.JudgeRequest] = field(default_factory=list)
    answer: pb.JudgeResponse | None = None
    delay_s: float = 0.0
    code: grpc.StatusCode | None = None

    async def Judge(self, request, context):  # noqa: N802 - as the contract names it
        """See TopicDetectorService."""
        self.asked.append(request)
        if self.code is not None:
            await context.abort(self.code, "the classifier is broken")
        await asyncio.sleep(self.delay_s)
        if self.answer is not None:
            return self.answer
        cue = _CUE.search(request.text)
        if cue is None or cue[1] not in request.candidate_ids:
            return pb.JudgeResponse(stay=0.9 if request.active_agent_id else 0.0)
        named = Dispatch.TopicCandidate(agent_id=cue[1], probability=0.9)
        return pb.JudgeResponse(ranked=[named], stay=0.05, model="cue-1")


@asynccontextmanager
async def judging(judge: Judge, port: int = 0):
    """Serve a judge; yield its port."""
    server = grpc.aio.server()
    add_TopicDetectorServiceServicer_to_server(judge, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


def judged_by(tmp_path, port: int, **settings):
    """A server that asks the judge; the scripted model replaces the built-in one."""
    given = {"topic_detector_limit_s": 5.0, "metrics_listen": "127.0.0.1:0"} | settings
    return serving(
        tmp_path,
        REGISTRY,
        model=ScriptedModel(),
        topic_detector=f"grpc://127.0.0.1:{port}",
        **given,
    )


async def test_judge_decides_and_is_named_with_the_decision(tmp_path):
    """Decisions are logged and explained with the name of its model."""
    async with judging(Judge()) as port, judged_by(tmp_path, port) as service:
        routed = await service.chat().say("vat! please", explain_topic=True)
        assert went(routed.dispatch) == ("vat", "TOPIC_SWITCH")
        assert routed.topic_trace.model == "cue-1"
        assert service.observer.calls[-1].topic_model == "cue-1"


async def test_judge_is_asked_with_the_conversation_and_the_agents(tmp_path):
    """A judge is stateless: the question has everything that it needs."""
    judge = Judge()
    async with judging(judge) as port, judged_by(tmp_path, port) as service:
        chat = service.chat()
        first = await chat.say("vat! please", locale="es")
        await chat.say("and hurry")
        await chat.answer(first.dispatch, "Which month?", **ask())
        await chat.say("payroll! instead")
    opening, doubled, last = judge.asked
    assert (opening.text, opening.active_agent_id) == ("vat! please", "")
    assert sorted(opening.candidate_ids) == ["payroll", "vat"]
    assert [agent.agent_id for agent in opening.agents] == ["vat", "payroll"]
    assert (opening.agents[0].display_name, opening.agents[0].description) == (
        "VAT",
        "VAT returns.",
    )
    assert list(opening.agents[0].examples) == ["my F29", "file VAT"]
    assert (opening.registry_version, opening.locale) == ("judged-1", "es")
    assert re.fullmatch("[0-9a-f]{64}", opening.agents_sha256)
    assert (doubled.active_agent_id, doubled.turn_open, opening.turn_open) == ("vat", True, False)
    assert last.agents_sha256 == opening.agents_sha256
    assert (last.active_agent_id, list(last.candidate_ids)) == ("vat", ["payroll"])
    assert [(turn.user_text, turn.agent_text, turn.outcome) for turn in last.recent] == [
        ("vat! please", "Which month?", "follow_up"),
        ("and hurry", "", ""),
    ]


@pytest.mark.parametrize(
    ("broken", "cause"),
    [
        ({"delay_s": 30.0}, "late"),
        ({"code": grpc.StatusCode.INTERNAL}, "error"),
        ({"answer": pb.JudgeResponse(stay=float("nan"))}, "error"),
        ({"answer": pb.JudgeResponse(stay=0.9, second_request_agent_id="robot")}, "error"),
        (
            {
                "answer": pb.JudgeResponse(
                    ranked=[Dispatch.TopicCandidate(agent_id="robot", probability=0.9)]
                )
            },
            "error",
        ),
    ],
)
async def test_what_ships_judges_where_the_judge_does_not(tmp_path, broken, cause):
    """The message waits up to the time limit, and the decision names which model judged."""
    judge = Judge(**broken)
    async with (
        judging(judge) as port,
        judged_by(tmp_path, port, topic_detector_limit_s=0.2) as service,
    ):
        begin_s = time.monotonic()
        routed = await service.chat().say("#payroll please", explain_topic=True)
        assert time.monotonic() - begin_s < 5
        assert went(routed.dispatch) == ("payroll", "TOPIC_SWITCH")
        assert routed.topic_trace.model == "scripted-1"
        page = (await fetch(service.server.metrics_address))[2]
        assert f'agent_routing_topic_detector_failures_total{{cause="{cause}"}} 1.0\n' in page


async def test_without_a_fallback_the_message_goes_as_if_topics_were_off(tmp_path):
    """If the operator wants no other judge."""
    judge = Judge(code=grpc.StatusCode.UNAVAILABLE)
    async with (
        judging(judge) as port,
        judged_by(tmp_path, port, topic_detector_fallback="none") as service,
    ):
        routed = await service.chat().say("#payroll vat!", explain_topic=True)
        assert went(routed.dispatch) == ("front", "NO_ACTIVE_AGENT")
        assert routed.topic_trace.outcome == routing_service_pb2.TOPIC_OUTCOME_NO_VERDICT


async def test_judge_that_is_away_is_asked_again_when_it_is_back(tmp_path):
    """A server starts without its judge, and does not need a restart when it is back."""
    async with judging(Judge()) as port:
        pass
    async with judged_by(tmp_path, port) as service:
        away = await service.chat().say("vat! please")
        assert went(away.dispatch) == ("front", "NO_ACTIVE_AGENT")
        async with judging(Judge(), port), asyncio.timeout(15):
            agents = [""]
            while agents[-1] != "vat":
                agents.append((await service.chat().say("vat! please")).dispatch.agent.agent_id)


async def test_second_request_is_in_the_trace(tmp_path):
    """A judge may detect two requests in one message."""
    named = Dispatch.TopicCandidate(agent_id="vat", probability=0.9)
    answer = pb.JudgeResponse(ranked=[named], sureness=0.8, second_request_agent_id="payroll")
    async with judging(Judge(answer=answer)) as port, judged_by(tmp_path, port) as service:
        routed = await service.chat().say("wages, and my VAT", explain_topic=True)
        assert went(routed.dispatch) == ("vat", "TOPIC_SWITCH")
        assert routed.topic_trace.second_request_agent_id == "payroll"
        assert routed.topic_trace.sureness == pytest.approx(0.8)


@pytest.mark.parametrize("address", ["grpc://", "grpc://nowhere", "grpcs://a b:1"])
async def test_server_does_not_start_with_an_address_that_is_none(tmp_path, address):
    """The error shows the format of an address."""
    with pytest.raises(SettingsInvalid, match="grpc://HOST:PORT"):
        async with serving(tmp_path, REGISTRY, topic_detector=address):
            pass
