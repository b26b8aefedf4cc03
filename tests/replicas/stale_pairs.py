"""Two replicas on one store, one of them with an outdated cache, and calls of every kind to it.

Owns how a replica is made without a server, how a store is copied so that a replica with an empty
cache can decide the same call, and which calls are made. The replica on the copy defines the right
answer. The same seed makes the same calls in the same order.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from google.protobuf.message import Message
from msgspec.structs import replace

from agent_routing.v1 import handoff_pb2, routing_service_pb2
from routing_service.auth.no_sign_in import anybody
from routing_service.core.errors import RoutingError
from routing_service.core.registry import Registry
from routing_service.ids import new_uuid7
from routing_service.rpc.routing_servicer import RoutingServicer
from routing_service.sessions.approval_watches import ApprovalWatches
from routing_service.sessions.command_handler import CommandHandler
from routing_service.sessions.event_feed import EventFeed
from routing_service.sessions.inbox import Inbox
from routing_service.sessions.live_feed import LiveFeed
from routing_service.sessions.stickiness_switch import FOLLOW_S, StickinessSwitch
from routing_service.storage.checked_store import Store
from routing_service.storage.memory_store import MemoryStore
from routing_service.storage.store import SessionKey
from routing_service.telemetry.call_record import CallRecord
from tests.rpc.live_service import ask, fail, finish, hand_to, proceed

TENANT = "default"
START_US = 1_750_000_000_000_000

CHANGE_ATTEMPTS_MAX = 8
"""Calls at random until one has changed the session; the last is one that always does."""


class SharedStore(MemoryStore):
    """A store that other replicas write to as well, like a database server."""

    @property
    def shared_writers(self) -> bool:
        return True

    async def close(self) -> None:
        """Stay open for the other replicas."""

    def fork(self) -> SharedStore:
        """Return an independent copy."""
        made, here = SharedStore(), self._engine
        # Stored values never change, so the copies may share them.
        sessions = [each for tenant in here._tenants.values() for each in tenant.sessions.values()]
        shared = [*here._audit, *(change for session in sessions for change in session.changes)]
        shared += [here.log_form, here._audit_form]
        known = {id(each): each for each in shared}
        made._engine.__dict__.update(copy.deepcopy(here.__dict__, known))
        return made

    def contents(self) -> tuple[object, ...]:
        """Return everything stored, for comparisons; of the audit what is not random."""
        audit = [replace(entry, data=_not_random(entry.data)) for entry in self._engine._audit]
        return self._engine._tenants, self._engine._log, audit


def _not_random(data: bytes) -> bytes:
    """Return an audit entry's content without its place in a chain, which is random."""
    kept = msgspec.json.decode(data)
    for name in ("chain", "salt", "crc"):
        del kept[name]
    return msgspec.json.encode(kept)


@dataclass(frozen=True)
class Outcome:
    """The result of a call: an answer, or an error with everything that its caller sees."""

    answer: bytes = b""
    replayed: bool = False
    error: tuple[object, ...] = ()

    @property
    def kind(self) -> str:
        """Name it for counting."""
        return str(self.error[0]) if self.error else "replayed" if self.replayed else "answered"


class Replica:
    """One replica's handler and RPCs, with an empty cache."""

    def __init__(self, store: Store, registry: Registry, clock: Any, ids: CountedIds) -> None:
        # The switch may be half a second old by design; here it is read each time.
        self._asked = 0
        self.switch = StickinessSwitch(
            store, lambda: registry.stickiness_enabled, monotonic_s=self._later
        )
        self.handler = CommandHandler(
            store,
            lambda: registry,
            clock,
            stickiness=self.switch.now,
            cache_sessions_max=100,
        )
        self.servicer = RoutingServicer(
            self.handler,
            EventFeed(store),
            Inbox(store),
            ApprovalWatches(store),
            LiveFeed(store),
            new_id=ids,
        )

    def _later(self) -> float:
        self._asked += 1
        return self._asked * 2 * FOLLOW_S

    async def call(self, rpc: str, request: Message) -> Outcome:
        """Make a call as the server would pass it on."""
        method = self.servicer.methods[rpc]
        try:
            answered = await method(anybody(TENANT), request.SerializeToString(), CallRecord(rpc))
        except RoutingError as error:
            violations = tuple((v.subject, v.detail) for v in error.violations)
            told = tuple(sorted(error.metadata.items()))
            return Outcome(error=(error.reason.name, str(error), told, violations))
        return Outcome(answered.body, answered.replayed)


class CountedIds:
    """The server's ids as a sequence: two replicas that do the same make the same ids."""

    def __init__(self) -> None:
        self.step = 0
        self.made = 0

    def __call__(self) -> str:
        self.made += 1
        return f"0198a6c0-0000-7000-8000-{self.step:08x}{self.made:04x}"

    def again(self) -> None:
        """Restart the step."""
        self.made = 0


@dataclass
class StalePairs:
    """Makes calls to a stale replica, and compares its answers with a fresh one's."""

    make_store: Callable[[], Any]
    """Gives the store of the next session: a new one, or the same again."""
    registry: Registry
    seed: int
    now_us: int = START_US
    wrong: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    stale: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.ids = CountedIds()
        self.sessions = 0
        self.new_session()

    def new_session(self) -> None:
        """Continue with another session, so that sessions stay short."""
        self.sessions += 1
        self.store = self.make_store()
        self.session_id = f"chat-{self.sessions}"
        self.here = self.replica(self.store)
        self.there = self.replica(self.store)
        self.past: list[tuple[str, Message]] = []
        self.owner = ""

    def replica(self, store: Store) -> Replica:
        """Return a replica with an empty cache."""
        return Replica(store, self.registry, lambda: self.now_us, self.ids)

    async def head(self) -> int:
        """Return the session's revision."""
        return await self.store.head_revision(SessionKey(TENANT, self.session_id))

    async def fall_behind(self) -> None:
        """Let one replica cache the session, and the other change it."""
        if not self.past and self.rng.random() < 0.5:
            await self._begin_without_a_user()
        status = routing_service_pb2.StatusRequest(session_id=self.session_id)
        await self.here.call("Status", status)
        before = await self.head()
        for attempt in range(CHANGE_ATTEMPTS_MAX):
            self.ids.step += 1
            self.ids.again()
            rpc, request = await self.any_call()
            if attempt == CHANGE_ATTEMPTS_MAX - 1:
                rpc, request = "Route", self._plain_message(await self._seen())
            await self.there.call(rpc, request)
            if await self.head() > before:
                self.past.append((rpc, request))
                self.stale += 1
                return
        raise AssertionError("nothing changed the session")

    async def _begin_without_a_user(self) -> None:
        """Begin the session like an agent framework: its first speaking user becomes the owner."""
        request = routing_service_pb2.SetActiveAgentRequest(
            session_id=self.session_id, agent_id="sales", request_id=self._id()
        )
        await self.there.call("SetActiveAgent", request)

    async def compare_with_copy(self) -> None:
        """Make one call to the stale replica, and to a fresh one on a copy of the store."""
        await self.fall_behind()
        rpc, request = await self.any_call()
        copied = self.store.fork()
        self.ids.step += 1
        self.ids.again()
        expected = await self.replica(copied).call(rpc, request)
        self.ids.again()
        before = await self.head()
        actual = await self.here.call(rpc, request)
        changed = await self.head() > before
        if changed:
            self.past.append((rpc, request))
        self._count(rpc, request, actual, changed=changed)
        same_store = self.store.contents() == copied.contents()
        if actual != expected or not same_store:
            self._wrong(rpc, request, expected, actual)

    async def compare_in_place(self) -> None:
        """Make one call to the stale replica, then the same to a fresh one on the same store.

        An applied call must come back as a repeat; a refused one must get the same error again.
        """
        await self.fall_behind()
        rpc, request = await self.any_call()
        if rpc == "SetActiveAgent" and request.turn_request_id:
            # Refusals are counted by turn, so the second answer may differ from the first.
            request.validate_only = True
        if rpc == "CompleteTurn" and request.WhichOneof("outcome") == "handoff":
            request.proceed.SetInParent()
        self.ids.step += 1
        self.ids.again()
        before = await self.head()
        actual = await self.here.call(rpc, request)
        changed = await self.head() > before
        self.ids.again()
        expected = await self.replica(self.store).call(rpc, request)
        self._count(rpc, request, actual, changed=changed)
        if changed:
            self.past.append((rpc, request))
            actual = Outcome(actual.answer, replayed=True)
        if actual != expected or (await self.head()) != before + changed:
            self._wrong(rpc, request, expected, actual)

    def _wrong(self, rpc: str, request: Message, expected: Outcome, actual: Outcome) -> None:
        self.wrong.append(
            f"seed {self.seed}, step {self.ids.step}: {rpc} {request}\n"
            f"expected {expected}\nanswered {actual}"
        )

    def _count(self, rpc: str, request: Message, outcome: Outcome, *, changed: bool) -> None:
        self.kinds[rpc] += 1
        self.kinds[outcome.kind] += 1
        if getattr(request, "validate_only", False):
            self.kinds["validate_only"] += 1
        if rpc == "ClearActiveAgent" and outcome.kind == "answered" and not changed:
            self.kinds["clear of what is clear"] += 1

    async def any_call(self) -> tuple[str, Message]:
        """Return a call that a user, an agent or an operator might make, right or wrong."""
        rng = self.rng
        self.now_us += rng.choice([0, 1_000, 60_000_000, 400_000_000])
        kind = rng.random()
        if self.past and kind < 0.12:
            return self._repeat()
        status = await self._seen()
        self.owner = status.owner
        if kind < 0.34:
            return "Route", self._message(status)
        if kind < 0.54:
            return self._answer(status)
        if kind < 0.70:
            return "SetActiveAgent", self._handoff(status)
        if kind < 0.80:
            return "ClearActiveAgent", routing_service_pb2.ClearActiveAgentRequest(
                scope=rng.choice([1, 1, 2]), **self._ids(), **self._expected(status)
            )
        if kind < 0.85:
            task = status.pending_approval.task_id or status.task.task_id or self._id()
            pending = status.pending_approval.request_id or self._id()
            return "ResumeTask", routing_service_pb2.ResumeTaskRequest(
                session_id=self.session_id,
                task_id=task,
                request_id=pending,
                decision=rng.choice([1, 2]),
            )
        return self._read()

    async def _seen(self) -> routing_service_pb2.StatusResponse:
        """Return the session's status from a replica that is not compared."""
        request = routing_service_pb2.StatusRequest(session_id=self.session_id)
        outcome = await self.replica(self.store).call("Status", request)
        return routing_service_pb2.StatusResponse.FromString(outcome.answer)

    def _id(self) -> str:
        return f"0198a6c0-0001-7000-8000-{self.rng.getrandbits(48):012x}"

    def _user(self) -> str:
        return self.rng.choices([self.owner or "ana", "", "bob"], [80, 12, 8])[0]

    def _ids(self) -> dict[str, Any]:
        return {
            "session_id": self.session_id,
            "user_id": self._user(),
            "request_id": self._id(),
        }

    def _expected(self, status: routing_service_pb2.StatusResponse) -> dict[str, Any]:
        revision = status.revision
        return self.rng.choices(
            [
                {},
                {"expected_revision": revision},
                {"expected_revision": max(0, revision - 1)},
                {"expected_revision": revision + 1},
            ],
            [80, 8, 8, 4],
        )[0]

    def _plain_message(
        self, status: routing_service_pb2.StatusResponse
    ) -> routing_service_pb2.RouteRequest:
        return routing_service_pb2.RouteRequest(
            session_id=self.session_id,
            user_id=status.owner or "ana",
            request_id=self._id(),
            text="hello",
        )

    def _message(
        self, status: routing_service_pb2.StatusResponse
    ) -> routing_service_pb2.RouteRequest:
        rng = self.rng
        words = ["hello", "more", "/status", "/history", "/supervisor", "/reset", "/agent sales"]
        tasks = ["", "", "", status.task.task_id, self._id()]
        metadata = {f"key-{rng.randrange(40)}": "v" for _ in range(rng.choice([0, 0, 1, 30]))}
        return routing_service_pb2.RouteRequest(
            text=rng.choice(words),
            task_id=rng.choice(tasks),
            metadata=metadata,
            channel=rng.choice(["", "", "web", "app"]),
            history_turns=rng.choice([0, 0, 2, -1]),
            literal_text=rng.random() < 0.1,
            validate_only=rng.random() < 0.15,
            **self._ids(),
            **self._expected(status),
        )

    def _answer(self, status: routing_service_pb2.StatusResponse) -> tuple[str, Message]:
        rng = self.rng
        approval = {
            "approval_needed": routing_service_pb2.ApprovalNeededOutcome(prompt="May I?"),
        }
        target = self._agent()
        given = rng.choice(
            [proceed(), ask(), ask(60), finish(), fail(), approval, hand_to(target)],
        )
        agent_id, request_id = self._agent(), self._id()
        if status.open_requests:
            dispatch = rng.choice(status.open_requests)
            request_id = dispatch.request_id if rng.random() < 0.9 else request_id
            agent_id = dispatch.agent.agent_id if rng.random() < 0.85 else agent_id
        return "CompleteTurn", routing_service_pb2.CompleteTurnRequest(
            session_id=self.session_id,
            user_id=self._user(),
            request_id=request_id,
            agent_id=agent_id,
            text=f"words {rng.randrange(1000)}",
            **given,
        )

    def _handoff(
        self, status: routing_service_pb2.StatusResponse
    ) -> routing_service_pb2.SetActiveAgentRequest:
        rng = self.rng
        turns = [turn.request_id for turn in status.open_requests]
        return routing_service_pb2.SetActiveAgentRequest(
            agent_id=self._agent(),
            turn_request_id=rng.choice(["", "", *turns[-1:], self._id()]),
            initiator=rng.choice([0, 1, 2, 3, 4]),
            mode=rng.choice([0, handoff_pb2.HANDOFF_MODE_INTERLUDE]),
            validate_only=rng.random() < 0.3,
            **self._ids(),
            **self._expected(status),
        )

    def _agent(self) -> str:
        agents = ["sales", "support", "asks_only", "interrupts", "owner", "front", "never_sticks"]
        return self.rng.choice([*agents, "disabled", "premium", "nobody"])

    def _read(self) -> tuple[str, Message]:
        rng = self.rng
        session_id = self.session_id if rng.random() < 0.9 else f"{self.session_id}-unknown"
        who = {"session_id": session_id, "user_id": self._user()}
        rpc = rng.choice(["Status", "Status", "ListTasks", "ListTurns", "ListAgents"])
        request = getattr(routing_service_pb2, f"{rpc}Request")(**who)
        if rpc == "ListTurns":
            request.agent_id = rng.choice(["", "sales"])
            request.order = rng.choice([0, 2])
            request.page_size = rng.choice([0, 2])
        return rpc, request

    def _repeat(self) -> tuple[str, Message]:
        """Return a request again: unchanged, from another user, or with another content."""
        rpc, request = self.rng.choice(self.past)
        again = type(request)()
        again.CopyFrom(request)
        how = self.rng.random()
        if how < 0.3:
            again.user_id = "bob"
        elif how < 0.45 and rpc == "Route":
            again.text = "something else"
        return rpc, again


def fresh_id() -> str:
    """Return an id for a request or a task."""
    return new_uuid7()
