"""A topic detector behind a gRPC address: TopicDetectorService of the contract, in any language.

A call that fails is not repeated: a message waits no longer than the time limit. The detector that
ships judges instead if it is given as the fallback.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Final

import grpc
import grpc.aio

from agent_routing.proxies import proxy_options
from agent_routing.v1 import topic_detector_service_pb2 as pb
from routing_service.core.registry import Agent, AgentKind, Registry, localised
from routing_service.rpc.chat_judge import ChatModel, is_chat
from routing_service.settings.listen_address import parse_listen_address
from routing_service.topics.detector_plugin import DetectorUnavailable, load_named
from routing_service.topics.detector_pool import ThreadsBusy, TooLate
from routing_service.topics.topic_detector import (
    TopicDetector,
    TopicModel,
    TopicQuestion,
    TopicVerdict,
)

PLAIN: Final = "grpc://"
ENCRYPTED: Final = "grpcs://"

EXAMPLES_MAX: Final = 25
"""Examples of an agent that a request carries: a request for 20 agents stays below 64 KB."""

CALLS_MAX: Final = 256
"""Calls at a time. A judge that is slower than the messages come would only answer late."""

MODEL_CHARACTERS_MAX: Final = 64
"""Of a model's name, which is stored with each message."""

OFFLINE_LIMIT_S: Final = 10.0
"""Time limit outside a server, as in ``topics evaluate``, where no user waits."""

_METHOD: Final = "/agent_routing.v1.TopicDetectorService/Judge"
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 64 * 1024),
    ("grpc.keepalive_time_ms", 60_000),
    # A judge that comes back is used again within two seconds.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_retries", 0),
)

if TYPE_CHECKING:
    _Calls = grpc.aio.UnaryUnaryMultiCallable[pb.JudgeRequest, pb.JudgeResponse]
    _BlockingCalls = grpc.UnaryUnaryMultiCallable[pb.JudgeRequest, pb.JudgeResponse]


class JudgeFailed(Exception):
    """The judge answered with an error, or is not there; the message has its status."""


def is_remote(name: str) -> bool:
    """Say whether a detector's name is an address."""
    return name.startswith((PLAIN, ENCRYPTED))


def load_detector(
    name: str, limit_s: float = OFFLINE_LIMIT_S, fallback: TopicModel | None = None
) -> TopicModel:
    """Return the model of a name: an address, MODULE:NAME, or an installed package's.

    limit_s, fallback: of an address alone. Raises DetectorUnavailable.
    """
    return RemoteModel(name, limit_s, fallback) if is_remote(name) else load_named(name)


def load_judge(name: str, model: str = "", key: str = "", limit_s: float = 5.0) -> TopicModel:
    """Return what judges unsure messages: the URL of a chat endpoint, or as load_detector.

    model, key: of a chat endpoint alone. Raises DetectorUnavailable.
    """
    if is_chat(name):
        return ChatModel(name, model, key=key, limit_s=limit_s)
    return load_detector(name, limit_s)


class RemoteModel:
    """A TopicModel that asks a service. It is connected with its first question."""

    def __init__(self, name: str, limit_s: float, fallback: TopicModel | None = None) -> None:
        """name: grpc://HOST:PORT or grpcs://HOST:PORT. Raises DetectorUnavailable."""
        self.version = name
        self.limit_s = limit_s
        self._fallback = fallback
        self._is_encrypted = name.startswith(ENCRYPTED)
        self._target = name.partition("://")[2]
        self._options = (*_OPTIONS, *proxy_options(self._target))
        self._calls: grpc.aio.UnaryUnaryMultiCallable[pb.JudgeRequest, pb.JudgeResponse] | None = (
            None
        )
        self._channel: grpc.aio.Channel | None = None
        self._blocking: grpc.UnaryUnaryMultiCallable[pb.JudgeRequest, pb.JudgeResponse] | None = (
            None
        )
        self._open = 0
        try:
            parse_listen_address(self._target)
        except ValueError as error:
            raise DetectorUnavailable(
                f'topic detector "{name}": {error}; give grpc://HOST:PORT, or grpcs://HOST:PORT '
                "with TLS"
            ) from error

    @property
    def is_plaintext(self) -> bool:
        """Say whether texts leave this machine without encryption."""
        host = self._target.rpartition(":")[0]
        is_local = host in ("127.0.0.1", "localhost", "[::1]") or self._target.startswith("unix:")
        return not self._is_encrypted and not is_local

    def for_registry(self, registry: Registry) -> RemoteDetector:
        """Make the detector of a registry, and that of the fallback."""
        fallback = None if self._fallback is None else self._fallback.for_registry(registry)
        version = "" if self._fallback is None else self._fallback.version
        return RemoteDetector(self, registry, fallback, version)

    async def ask(self, request: pb.JudgeRequest) -> pb.JudgeResponse:
        """Ask within the time limit. Raises TooLate, ThreadsBusy, JudgeFailed."""
        if self._open >= CALLS_MAX:
            raise ThreadsBusy
        if self._calls is None:
            self._channel = (
                grpc.aio.secure_channel(
                    self._target, grpc.ssl_channel_credentials(), options=self._options
                )
                if self._is_encrypted
                else grpc.aio.insecure_channel(self._target, options=self._options)
            )
            self._calls = self._channel.unary_unary(
                _METHOD,
                request_serializer=pb.JudgeRequest.SerializeToString,
                response_deserializer=pb.JudgeResponse.FromString,
            )
        self._open += 1
        try:
            answer: pb.JudgeResponse = await self._calls(request, timeout=self.limit_s)
        except grpc.RpcError as error:
            raise self._failure(error) from None
        finally:
            self._open -= 1
        return answer

    def ask_now(self, request: pb.JudgeRequest) -> pb.JudgeResponse:
        """Ask next to no event loop, within OFFLINE_LIMIT_S. Raises TooLate, JudgeFailed."""
        if self._blocking is None:
            channel = (
                grpc.secure_channel(
                    self._target, grpc.ssl_channel_credentials(), options=self._options
                )
                if self._is_encrypted
                else grpc.insecure_channel(self._target, options=self._options)
            )
            self._blocking = channel.unary_unary(
                _METHOD,
                request_serializer=pb.JudgeRequest.SerializeToString,
                response_deserializer=pb.JudgeResponse.FromString,
            )
        try:
            answer: pb.JudgeResponse = self._blocking(request, timeout=OFFLINE_LIMIT_S)
        except grpc.RpcError as error:
            raise self._failure(error) from None
        return answer

    def _failure(self, error: grpc.RpcError) -> Exception:
        code = error.code()
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return TooLate(f"{self.version} took longer than {self.limit_s:g} s")
        return JudgeFailed(f"{self.version} answers {code.name}: {str(error.details())[:200]}")

    async def close(self) -> None:
        """End the connection, and the calls under way."""
        channel, self._channel, self._calls = self._channel, None, None
        if channel is not None:
            await channel.close()


class RemoteDetector:
    """Judges messages for one registry by asking the service.

    fallback: judges what the service does not; None = such a message has no verdict.
    fallback_version: the name of its model.
    """

    def __init__(
        self,
        model: RemoteModel,
        registry: Registry,
        fallback: TopicDetector | None = None,
        fallback_version: str = "",
    ) -> None:
        """Describe the registry's agents for every request."""
        self.fallback = fallback
        self.fallback_version = fallback_version
        self._model = model
        self._common = pb.JudgeRequest(
            agents=[
                _described(agent, registry.default_locale)
                for agent in registry.agents.values()
                if agent.kind is AgentKind.SPECIALIST and agent.enabled
            ],
            registry_version=str(registry.version),
        )
        told = self._common.SerializeToString(deterministic=True)
        self._common.agents_sha256 = hashlib.sha256(told).hexdigest()

    async def judge_remotely(self, question: TopicQuestion) -> TopicVerdict:
        """Judge within the model's time limit. Raises TooLate, ThreadsBusy, JudgeFailed."""
        return _verdict(await self._model.ask(self._request(question)))

    def judge(self, question: TopicQuestion) -> TopicVerdict:
        """Judge next to no event loop. Raises TooLate, JudgeFailed."""
        return _verdict(self._model.ask_now(self._request(question)))

    def _request(self, question: TopicQuestion) -> pb.JudgeRequest:
        request = pb.JudgeRequest(
            text=question.text,
            locale=question.locale,
            active_agent_id=question.active_agent_id,
            locked=question.is_locked,
            turn_open=question.is_turn_open,
            recent=[
                pb.JudgedTurn(
                    agent_id=turn.agent_id,
                    user_text=turn.user_text,
                    agent_text=turn.agent_text,
                    outcome=turn.outcome,
                )
                for turn in question.recent
            ],
            earlier_agent_ids=question.earlier_agent_ids,
            candidate_ids=sorted(question.candidate_ids),
        )
        request.MergeFrom(self._common)
        return request


def _described(agent: Agent, locale: str) -> pb.JudgedAgent:
    return pb.JudgedAgent(
        agent_id=agent.agent_id,
        display_name=localised(agent.name, locale, locale) or agent.agent_id,
        description=localised(agent.description, locale, locale),
        examples=agent.examples[:EXAMPLES_MAX],
    )


def _verdict(answer: pb.JudgeResponse) -> TopicVerdict:
    return TopicVerdict(
        tuple((each.agent_id, each.probability) for each in answer.ranked),
        answer.stay,
        answer.sureness if answer.HasField("sureness") else None,
        second_request=answer.second_request_agent_id,
        model=answer.model[:MODEL_CHARACTERS_MAX],
    )


async def probe(model: RemoteModel, registry: Registry, limit_s: float) -> tuple[str, float]:
    """Ask the service about one message; return its model's name and the seconds it took.

    Raises TooLate, JudgeFailed.
    """
    detector = model.for_registry(registry)
    candidates = [agent.agent_id for agent in registry.specialists if agent.enabled]
    question = TopicQuestion(text="hello", candidate_ids=candidates)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(limit_s):
        await detector.judge_remotely(question)  # Connects.
        begin_s = loop.time()
        verdict = await detector.judge_remotely(question)
    return verdict.model or model.version, loop.time() - begin_s
