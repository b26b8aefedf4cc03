"""A random conversation with a real server, for properties that hold for any conversation.

Owns the calls that are made. The same seed makes the same calls in the same order.
"""

from __future__ import annotations

import random

import grpc
from google.protobuf.duration_pb2 import Duration

from agent_routing.v1 import routing_service_pb2, turn_pb2
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


class TasksAtRandom(RandomTalk):
    """A random conversation of several tasks, with approvals and people."""

    async def step(self):
        """Make one call that a user, an agent, an approver or a person may make."""
        rng = self.rng
        status = await self.chat.status() if self.kept else routing_service_pb2.StatusResponse()
        tasks = ["", "", fresh_id(), *(each.task.task_id for each in status.parked_tasks)]
        who = {"session_id": self.chat.session_id, "user_id": "ana", "request_id": fresh_id()}
        agent_id = rng.choice(["refunds", "orders", "anna", "anna", "front"])
        kinds = ["decide", "claim", "move", "end", "keep", "keep", "note", "cancel"]
        if status.active_agent.agent_id == "anna":
            kinds += ["claim", "say"] * 3
        kind = rng.choice(["say"] * 5 + ["answer"] * 7 + kinds)
        if kind == "say" or not self.kept:
            text = rng.choice(["hello"] * 5 + ["/task 1 go on", "/task 2", "/tasks", "/reset all"])
            asked = {"text": text, "task_id": rng.choice(tasks)}
            if rng.random() < 0.2:
                asked["shown_revision"] = rng.randrange(status.revision + 1)
            await self.call("Route", routing_service_pb2.RouteRequest(**who, **asked))
        elif kind == "answer" and status.open_requests:
            dispatch = rng.choice(status.open_requests)
            wish = {"approval_needed": routing_service_pb2.ApprovalNeededOutcome(prompt="Pay?")}
            given = rng.choice([proceed(), ask(), finish(), fail(), wish, hand_to(agent_id)])
            answer = {"request_id": dispatch.request_id, "agent_id": dispatch.agent.agent_id}
            request = routing_service_pb2.CompleteTurnRequest(
                **(who | answer), text=f"answer {len(self.kept)}", **given
            )
            await self.call("CompleteTurn", request)
        elif kind == "decide":
            pending = [each.pending_approval for each in status.parked_tasks]
            pending = [each for each in (*pending, status.pending_approval) if each.request_id]
            for each in pending[:1]:
                decided = {"request_id": each.request_id, "task_id": each.task_id}
                request = routing_service_pb2.ResumeTaskRequest(
                    **(who | decided), decision=rng.choice([1, 2])
                )
                await self.call("ResumeTask", request)
        elif kind == "claim":
            await self._claim(who | {"agent_id": "anna", "claimant": rng.choice(["bea", "cai"])})
        elif kind == "keep" and status.open_requests:
            await self._keep(who, rng.choice(status.open_requests))
        elif kind == "note":
            noted = {"agent_id": "anna", "author": "bea", "task_id": rng.choice(tasks)}
            request = routing_service_pb2.AddNoteRequest(**who, **noted, text="a note")
            await self.call("AddNote", request)
        elif kind == "cancel":
            present = [*tasks, status.task.task_id]
            request = routing_service_pb2.CancelTaskRequest(
                **who | {"task_id": rng.choice(present)}
            )
            await self.call("CancelTask", request)
        elif kind == "move":
            request = routing_service_pb2.SetActiveAgentRequest(
                **who, agent_id=agent_id, task_id=rng.choice(tasks)
            )
            await self.call("SetActiveAgent", request)
        else:
            scope = {"task_id": rng.choice(tasks), "scope": rng.choice([1, 2])}
            await self.call(
                "ClearActiveAgent", routing_service_pb2.ClearActiveAgentRequest(**who, **scope)
            )
        self.service.clock.advance(rng.choice([0, 1, 60, 400]))

    async def _claim(self, who):
        """Claim, take over or release what a person has."""
        if self.rng.random() < 0.4:
            await self.call("ReleaseTurn", routing_service_pb2.ReleaseTurnRequest(**who))
            return
        is_taken = self.rng.random() < 0.5
        request = routing_service_pb2.ClaimTurnRequest(**who, take_over=is_taken)
        await self.call("ClaimTurn", request)

    async def _keep(self, who, dispatch):
        """Extend a turn's deadline, report a step of it, or say something in it."""
        turn = {"request_id": dispatch.request_id, "agent_id": dispatch.agent.agent_id}
        acts = [
            {"extend": Duration(seconds=self.rng.choice([60, 3600]))},
            {"steps": [turn_pb2.Step(name="look up")], "first_step": 0},
            {"say": "One moment.", "message_id": fresh_id()},
        ]
        request = routing_service_pb2.KeepTurnRequest(**who | turn, **self.rng.choice(acts))
        try:
            await self.service.raw("KeepTurn", request.SerializeToString())
        except grpc.aio.AioRpcError as error:
            self.refused.add(read_refusal(error).reason)
