"""Every byte that a server answers in random conversations, to compare two versions of the service.

    python -m benchmarks.transcript --seeds 100 > after.txt

Run it in two checkouts and compare the files: a change of the code alone changes no line. The seed
chooses the calls and the time between them; new ids and the clock are fixed too. The store is the
one in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import grpc
from google.protobuf import json_format, message_factory
from google.protobuf.message import Message

from agent_routing.v1 import admin_service_pb2, routing_service_pb2
from benchmarks import interpreter_steps
from routing_service import ids
from routing_service.server.bounds import Bounds

START_US: Final = 1_767_225_600_000_000
"""The first moment of 2026."""

CALLS: Final = 60
"""Calls of one seed: enough for tasks to be parked, to come forward and to expire."""

AGENTS: Final = """
  - {id: front, name: {en: Front, es: Recepción}}
  - {id: billing, name: Billing, user_selectable: true, handoff_to: [expert, desk, slow, notes]}
  - {id: expert, name: Expert, receives_as: interlude, markers: true}
  - {id: asks, name: Asks, sticks: follow_up, user_selectable: true}
  - {id: never, name: Never, sticks: never}
  - {id: lesson, name: Lesson, owns_session: true, on_complete: notes, markers: true,
     on_complete_message: {en: Great work!}, user_selectable: true}
  - {id: notes, name: Notes, on_complete: return, turns_max: 2}
  - {id: paid, name: Paid, requires: ["plan:premium"], user_selectable: true}
  - {id: slow, name: Slow, delivery: inbox, user_selectable: true}
"""

PERSON: Final = """\
  - {id: desk, name: Desk, kind: human, user_selectable: true, claim_timeout: 1h,
     unclaimed_timeout: 30m}
"""

_SWARM: Final = "default_agent: billing\ntasks: new\ndouble_text: reject"
_SHORT: Final = """\
supervisor: front
double_text: allow
while_paused: hold
limits: {hops_per_message: 3, open_turns: 3, turn_timeout: 2m}"""

REGISTRIES: Final = tuple(
    f"api_version: agent_routing/{version}\nversion: 1\n{rules}\nagents:{AGENTS}{desk}"
    for version, rules, desk in (
        ("v1", "supervisor: front", "  - {id: desk, name: Desk}\n"),
        ("v1.1", "supervisor: front", PERSON),
        ("v1.1", _SWARM, PERSON),
        ("v1.1", _SHORT, PERSON),
    )
)

STEPS_US: Final = (1, *[1_000_000] * 12, *[5_000_000] * 8, 61_000_000, 700_000_000, 2_000_000_000)
"""Time between two calls: mostly seconds, now and then more than a time-out."""

AGENT_IDS: Final = (
    *("front", "billing", "expert", "asks", "never", "lesson", "notes", "paid", "slow", "desk"),
    *("desk", "desk", "slow", "unknown"),
)
TEXTS: Final = (
    *("hello", "hello", "more of it", "yes", "no", "I don't know"),
    *("/status", "/supervisor", "/supervisor show me taxes", "/reset", "/reset all", "/agents"),
    *("/agent billing", "/agent lesson go on", "/agent desk", "/tasks", "/task 1", "/task 2 go on"),
    *("/help", "/history", "/agent nowhere", "/supervisors"),
)
ANSWERS: Final = ("Done.", "Which one?", "[HANDOFF_TO:notes] Well done.", "")


class Talk:
    """The random calls of one seed, and what they were answered."""

    def __init__(self, seed: int, handler: Any) -> None:
        """Begin with a session that is not there yet."""
        self._seed = seed
        self._chance = random.Random(seed)
        self._handler = handler
        self._number = 0
        self._known: list[str] = []
        first, second = f"chat-{seed}-a", f"chat-{seed}-b"
        self._sessions = (first, first, first, second)
        self.now_us = START_US
        self.lines: list[str] = []

    async def play(self) -> None:
        """Make all calls."""
        for _ in range(CALLS):
            self.now_us += self._chance.choice(STEPS_US)
            calls = (
                *[self._route] * 8,
                *[self._complete] * 16,
                *(self._set_agent, self._set_agent, self._clear, self._resume, self._cancel),
                *(self._keep, self._claim, self._release, self._note, self._say, self._switch),
                *(self._repeat, self._reported),
            )
            await self._chance.choice(calls)()
            # A queued message is sent on by itself; it is to happen before the next call.
            following = [task for task in asyncio.all_tasks() if task.get_name() == "next message"]
            await asyncio.gather(*following)
        for session in self._sessions[2:]:
            for method in ("Status", "ListTasks", "ListTurns"):
                await self._call(method, session_id=session)
            await self._call("ListNotes", session_id=session, agent_id="desk")
            await self._call("ListEvents", service="AdminService", session_id=session)
        await self._call("SetStickiness", service="AdminService", enabled=True, reason="over")

    def _may(self, share: float) -> bool:
        return self._chance.random() < share

    def _fresh_id(self) -> str:
        self._number += 1
        request_id = f"00000000-0000-7000-8000-{self._seed:06x}{self._number:06x}"
        self._known.append(request_id)
        return request_id

    async def _open(self) -> tuple[str, list[Any]]:
        session = self._chance.choice(self._sessions)
        status = await self._call("Status", session_id=session)
        return session, list(status.open_requests) if status else []

    async def _task_of(self, session: str) -> str:
        listed = await self._call("ListTasks", session_id=session)
        tasks = [task.task_id for task in listed.tasks] if listed else []
        return self._chance.choice([*tasks, ""]) if tasks else ""

    async def _route(self, session: str = "", text: str = "") -> None:
        chance, session = self._chance, session or self._chance.choice(self._sessions)
        fields: dict[str, Any] = {"text": text or chance.choice(TEXTS)}
        if self._may(0.15):
            fields["task_id"] = await self._task_of(session)
        if self._may(0.1):
            fields |= {"entitlements": ["plan:premium"], "channel": "web", "locale": "es"}
        if self._may(0.1):
            fields |= {"metadata": {"order": "17"}, "history_turns": chance.choice((-1, 1, 3))}
        if self._may(0.05):
            fields["validate_only"] = True
        if self._may(0.05):
            fields["deliver"] = "DELIVERY_INBOX"
        await self._call(
            "Route", session_id=session, user_id="ana", request_id=self._fresh_id(), **fields
        )

    async def _complete(self) -> None:
        chance = self._chance
        session, turns = await self._open()
        if not turns:
            await self._route(session, chance.choice(("hello", "/agent desk hello", "go on")))
            return
        turn = chance.choice([turns[-1], turns[-1], chance.choice(turns)])
        agent = chance.choice([turn.agent.agent_id] * 6 + [chance.choice(AGENT_IDS)])
        outcome: dict[str, Any] = chance.choice(
            (
                *[{"proceed": {}}] * 3,
                *[{"follow_up": {}}] * 2,
                {"follow_up": {"timeout": "600s"}},
                {"complete": {"summary": "all done"}},
                {"failure": {"message": "no luck"}},
                *[{"approval_needed": {"prompt": "Pay?"}}] * 2,
                *[self._handoff()] * 4,
            )
        )
        await self._call(
            "CompleteTurn",
            session_id=session,
            user_id="ana",
            request_id=turn.request_id,
            agent_id=agent,
            text=chance.choice(ANSWERS),
            parse_markers=self._may(0.2),
            steps=[{"name": "look", "kind": "tool"}] if self._may(0.1) else [],
            **outcome,
        )

    def _handoff(self) -> dict[str, Any]:
        handoff = {
            "agent_id": self._chance.choice(AGENT_IDS),
            "reason": "asked",
            "context": {"order": 17},
            "mode": self._chance.choice(
                ("HANDOFF_MODE_UNSPECIFIED", "HANDOFF_MODE_INTERLUDE", "HANDOFF_MODE_CONSULT")
            ),
        }
        return {"handoff": handoff}

    async def _set_agent(self) -> None:
        chance = self._chance
        session, turns = await self._open()
        fields: dict[str, Any] = {}
        if turns and self._may(0.4):
            fields["turn_request_id"] = chance.choice(turns).request_id
        if self._may(0.2):
            fields["task_id"] = await self._task_of(session)
        await self._call(
            "SetActiveAgent",
            session_id=session,
            user_id="ana",
            agent_id=chance.choice(AGENT_IDS),
            request_id=self._fresh_id(),
            initiator=chance.choice(
                (*["INITIATOR_UNSPECIFIED"] * 2, "INITIATOR_USER", "INITIATOR_OPERATOR")
            ),
            mode=chance.choice(("HANDOFF_MODE_UNSPECIFIED", "HANDOFF_MODE_INTERLUDE")),
            reason="moved",
            validate_only=self._may(0.1),
            **fields,
        )

    async def _clear(self) -> None:
        chance, session = self._chance, self._chance.choice(self._sessions)
        task_id = await self._task_of(session) if self._may(0.2) else ""
        await self._call(
            "ClearActiveAgent",
            session_id=session,
            user_id="ana",
            request_id=self._fresh_id(),
            scope=chance.choice(("CLEAR_SCOPE_ACTIVE_AGENT", "CLEAR_SCOPE_SESSION")),
            task_id=task_id,
        )

    async def _resume(self) -> None:
        listed = await self._call("ListApprovals")
        own = [each for each in listed.approvals if each.session_id in self._sessions]
        if own:
            each = self._chance.choice(own)
            await self._call(
                "ResumeTask",
                session_id=each.session_id,
                user_id="ana",
                task_id=each.approval.task_id,
                request_id=each.approval.request_id,
                decision=self._chance.choice(("DECISION_APPROVE", "DECISION_REJECT")),
                comment="fine",
            )

    async def _cancel(self) -> None:
        session = self._chance.choice(self._sessions)
        task_id = await self._task_of(session)
        if task_id and self._may(0.5):
            await self._call("CancelTask", task_id=task_id, user_id="ana")

    async def _keep(self) -> None:
        session, turns = await self._open()
        if turns:
            turn = self._chance.choice(turns)
            await self._call(
                "KeepTurn",
                session_id=session,
                request_id=turn.request_id,
                agent_id=turn.agent.agent_id,
                extend="300s",
                steps=[{"name": "read", "kind": "tool"}],
            )

    async def _claim(self) -> None:
        await self._call(
            "ClaimTurn",
            session_id=self._chance.choice(self._sessions),
            agent_id="desk",
            claimant=self._chance.choice(("rosa", "rosa", "tim")),
            take_over=self._may(0.2),
        )

    async def _release(self) -> None:
        await self._call(
            "ReleaseTurn",
            session_id=self._chance.choice(self._sessions),
            agent_id="desk",
            claimant="rosa",
        )

    async def _note(self) -> None:
        await self._call(
            "AddNote",
            session_id=self._chance.choice(self._sessions),
            agent_id="desk",
            text="is angry",
            author="rosa",
            request_id=self._fresh_id(),
        )

    async def _say(self) -> None:
        session, turns = await self._open()
        if turns:
            turn = self._chance.choice(turns)
            await self._call(
                "KeepTurn",
                session_id=session,
                request_id=turn.request_id,
                agent_id=turn.agent.agent_id,
                say="One moment.",
                say_request_id=self._fresh_id(),
            )

    async def _switch(self) -> None:
        if self._may(0.3):
            await self._call(
                "SetStickiness",
                service="AdminService",
                enabled=self._may(0.7),
                reason="a trial",
            )

    async def _repeat(self) -> None:
        if self._known:
            await self._call(
                "Route",
                session_id=self._sessions[0],
                user_id="ana",
                request_id=self._chance.choice(self._known),
                text="hello",
            )

    async def _reported(self) -> None:
        if self._may(0.3):
            turn = {
                "request_id": self._fresh_id(),
                "session_id": self._sessions[0],
                "user_id": "ana",
                "agent_id": "billing",
                "user_text": "while away",
            }
            await self._call("ReportDegraded", turns=[turn])

    async def _call(self, method: str, *, service: str = "RoutingService", **fields: Any) -> Any:
        """Make a call and write it down; return its answer, None if it was refused."""
        module = routing_service_pb2 if service == "RoutingService" else admin_service_pb2
        rpc = module.DESCRIPTOR.services_by_name[service].methods_by_name[method]
        fields = {name: value for name, value in fields.items() if value != ""}
        request = message_factory.GetMessageClass(rpc.input_type)()
        try:
            json_format.ParseDict(fields, request, ignore_unknown_fields=True)
        except json_format.ParseError as error:
            raise AssertionError(f"{method}: {error}") from error
        context = Refusing()
        answer, text = None, ""
        try:
            data = await self._handler(method, service)(request.SerializeToString(), context)
        except grpc.RpcError:
            raise
        except Refused:
            text = f"{context.code} {context.details}"
        else:
            if isinstance(data, bytes):
                answer = message_factory.GetMessageClass(rpc.output_type).FromString(data)
                # The order of a map is chance, in bytes too.
                data = answer.SerializeToString(deterministic=True)
                text = f"{hashlib.sha256(data).hexdigest()[:16]} {_json(answer)}"
        self.lines.append(f"{self.now_us} {method} {_json(request)}\n    -> {text}")
        return answer


class Refused(Exception):
    """What a call ends with when its context aborts it."""


class Refusing(interpreter_steps.Context):
    """A context that keeps the status with which a call is refused."""

    def __init__(self) -> None:
        """Begin without a status."""
        self.code: grpc.StatusCode | None = None
        self.details = ""

    async def abort(self, code: grpc.StatusCode, details: str = "", *_rest: object) -> None:
        """Keep the status and end the call."""
        self.code, self.details = code, details
        raise Refused


def _json(message: Message) -> str:
    return json_format.MessageToJson(
        message,
        indent=None,
        preserving_proto_field_name=True,
        ensure_ascii=False,
        sort_keys=True,
    )


@contextmanager
def fixed(seed: int, clock_us: Callable[[], int]) -> Iterator[None]:
    """Take new ids from the seed, and their time from the clock, while the block runs."""
    chance = random.Random(seed)
    halves = [f"7{n:03x}-8{n:03x}-{chance.getrandbits(48):012x}" for n in range(0xFFF)]
    now = SimpleNamespace(time_ns=lambda: clock_us() * 1_000)
    with (
        mock.patch.object(ids, "time", now),
        mock.patch.object(ids, "_random_halves", halves),
    ):
        yield


async def record(registry: str, seeds: Iterable[int]) -> list[str]:
    """Return the lines of these seeds, played one after the other on one server."""
    lines: list[str] = []
    playing: list[Talk] = []

    def clock_us() -> int:
        return playing[-1].now_us if playing else START_US

    # What looks at intervals would fall between calls by chance.
    bounds = Bounds(sweep_interval_s=3600, audit_seal_s=3600, registry_poll_s=3600)
    async with interpreter_steps.handlers(registry, clock_us, bounds) as (handler, _flush):
        for seed in seeds:
            with fixed(seed, clock_us):
                playing.append(Talk(seed, handler))
                await playing[-1].play()
            lines += (f"== seed {seed}", *playing[-1].lines)
    return lines


def main() -> None:
    """Print the transcript of the seeds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100, help="how many of each registry (100)")
    parser.add_argument("--first", type=int, default=0, help="the first one (0)")
    options = parser.parse_args()
    for registry in REGISTRIES:
        seeds = range(options.first, options.first + options.seeds)
        print("\n".join(asyncio.run(record(registry, seeds))))


if __name__ == "__main__":
    main()
