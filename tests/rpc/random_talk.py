"""A random conversation with a real server, for properties that hold for any conversation.

Owns the calls that are made. The same seed makes the same calls in the same order.
"""

from __future__ import annotations

import random

import grpc

from agent_routing.v1 import routing_service_pb2
from tests.rpc.live_service import (
    LiveService,
    ask,
    fail,
    finish,
    fresh_id,
    hand_to,
    proceed,
    read_refusal,
)


class RandomTalk:
    """A random conversation that keeps every call that changed something."""

    def __init__(self, service: LiveService, seed: int) -> None:
        self.rng = random.Random(seed)
        self.service = service
        self.chat = service.chat("talk")
        self.kept = []
        self.refused = set()

    async def call(self, rpc, request):
        """Make a call; if it changed something, keep it with its answer's bytes."""
        before = len(await self.chat.changes())
        data = request.SerializeToString()
        try:
            answer = await self.service.raw(rpc, data)
        except grpc.aio.AioRpcError as error:
            self.refused.add(read_refusal(error).reason)
            return
        if len(await self.chat.changes()) > before:
            self.kept.append((rpc, data, answer))

    async def step(self):
        """Make one call that a user, an agent or an operator may make."""
        rng, who = self.rng, {"session_id": self.chat.session_id, "user_id": "ana"}
        agent_id = rng.choice(["sales", "support", "asks_only", "interrupts", "front"])
        kind = rng.random()
        dispatches = (await self.chat.status()).open_requests if self.kept else []
        if kind < 0.3 or not dispatches:
            text = rng.choice(["hello", "more", "/status", "/supervisor", "/agent sales go on"])
            turns = rng.choice([0, 0, 1, 3, -1])
            await self.call(
                "Route",
                routing_service_pb2.RouteRequest(
                    text=text, request_id=fresh_id(), history_turns=turns, **who
                ),
            )
        elif kind < 0.8:
            dispatch = rng.choice(dispatches)
            given = rng.choice([proceed(), ask(), finish(), fail(), hand_to(agent_id)])
            speaker = rng.choice([dispatch.agent.agent_id] * 4 + [agent_id])
            await self.call(
                "CompleteTurn",
                routing_service_pb2.CompleteTurnRequest(
                    request_id=dispatch.request_id,
                    agent_id=speaker,
                    text=f"{speaker} {len(self.kept)}",
                    **who,
                    **given,
                ),
            )
        elif kind < 0.95:
            turn = rng.choice([dispatches[-1].request_id, ""])
            await self.call(
                "SetActiveAgent",
                routing_service_pb2.SetActiveAgentRequest(
                    agent_id=agent_id, request_id=fresh_id(), turn_request_id=turn, **who
                ),
            )
        else:
            await self.call(
                "ClearActiveAgent",
                routing_service_pb2.ClearActiveAgentRequest(request_id=fresh_id(), **who),
            )
        self.service.clock.advance(rng.choice([0, 1, 60, 400]))
