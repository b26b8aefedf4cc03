"""What topics take from a Route, in CPU time, and how long one decision thinks.

    .venv/bin/python -m benchmarks.topic_cost [AGENTS ...]       default: 20 200

The same conversations by three registries that differ in their topics alone, in one process and
without gRPC, over a store in memory: in turns, so that whatever else the machine does falls on all
of them. The figure is CPU microseconds for a whole Route; a verdict's own time is apart. The agents
are made, each of a subject of its own, as the words of a registry are.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from dataclasses import replace
from typing import Final

from routing_service.command_handler import Answer, Call, CommandHandler, Made
from routing_service.core.commands import CompleteTurn, HandOff, Proceed, RouteMessage
from routing_service.core.registry import Agent, AgentKind, Registry, Topics
from routing_service.ids import new_uuid7
from routing_service.storage.memory_store import MemoryStore
from routing_service.storage.store import SessionKey
from routing_service.topic_judge import TopicJudge
from routing_service.topics import load_topic_model
from routing_service.topics.topic_detector import TopicDetector, TopicQuestion, TopicVerdict

SUBJECTS: Final = (
    *("hotel rooms", "flights", "rental cars", "weather", "bank transfers", "invoices", "payroll"),
    *("income tax", "restaurants", "concert tickets", "doctor appointments", "apartments", "loans"),
    *("insurance claims", "deliveries", "phone contracts", "printers", "passwords", "holidays"),
    *("train journeys", "recipes", "music", "alarms", "shopping lists", "translations"),
)
VERBS: Final = ("book", "find", "cancel", "change", "explain", "compare", "pay for", "repair")
FILLERS: Final = ("please", "for tomorrow", "as soon as possible", "at the best price", "for two")
MODES: Final = ("off", "suggest", "auto")
SESSIONS: Final = 40
TURNS: Final = 10
ROUNDS: Final = 5


class TimedModel:
    """The model that ships, with the time of each verdict."""

    def __init__(self) -> None:
        self._model = load_topic_model()
        self.version = self._model.version
        self.seconds: list[float] = []

    def for_registry(self, registry: Registry) -> TopicDetector:
        """Make the detector, timed."""
        detector, seconds = self._model.for_registry(registry), self.seconds

        class Timed:
            def judge(self, question: TopicQuestion) -> TopicVerdict:
                started_s = time.perf_counter()
                verdict = detector.judge(question)
                seconds.append(time.perf_counter() - started_s)
                return verdict

        return Timed()


def registry_of(agents: int) -> Registry:
    """Return a registry of so many agents."""
    made = {"desk": Agent("desk", kind=AgentKind.SUPERVISOR)}
    for number in range(agents):
        subject = SUBJECTS[number % len(SUBJECTS)]
        kind = f" {number // len(SUBJECTS)}" * (number >= len(SUBJECTS))
        examples = [f"I want to {verb} {subject}{kind}" for verb in VERBS[:4]]
        made[f"agent-{number}"] = Agent(
            f"agent-{number}",
            name={"en": f"{subject.title()}{kind}"},
            description={"en": f"Helps with {subject}{kind}: prices, dates and questions."},
            examples=tuple(examples),
        )
    return Registry(version="1", home_agent_id="desk", agents=made)


class Side:
    """One registry's server, without its wires."""

    def __init__(self, registry: Registry, model: TimedModel) -> None:
        async def sticks(_tenant: str) -> bool:
            return True

        judge = TopicJudge(lambda: model)
        judge.prepare(registry)
        self.routes_s: list[float] = []
        self._handler = CommandHandler(
            MemoryStore(),
            lambda: registry,
            lambda: time.time_ns() // 1000,
            stickiness_enabled=sticks,
            cache_sessions_max=10_000,
            topics=judge,
        )
        self._specialists = [agent.agent_id for agent in registry.specialists]

    async def play(self, seed: int) -> None:
        """Let users talk: the same ones with the same words for the same seed."""
        chance = random.Random(seed)
        routes = spent_s = 0.0
        for number in range(SESSIONS):
            key = SessionKey("default", f"{seed}-{number}")
            for turn in range(TURNS):
                words = (chance.choice(VERBS), chance.choice(SUBJECTS), chance.choice(FILLERS))
                text = f"I would like to {' '.join(words)}"
                request_id = new_uuid7()
                route = RouteMessage(request_id, text, new_uuid7())
                call = Call(key, "Route", request_id, b"", history_turns=-1)
                started_s = time.process_time()
                handled = await self._handler.handle(call, route, _answer)
                spent_s += time.process_time() - started_s
                routes += 1
                assert handled.decided is not None
                dispatch = handled.decided.decision.dispatch
                assert dispatch is not None
                handoff = HandOff(chance.choice(self._specialists)) if turn == 0 else None
                await self._complete(key, dispatch.request_id, dispatch.agent_id, handoff)
        self.routes_s.append(spent_s / routes)

    async def _complete(
        self, key: SessionKey, request_id: str, agent_id: str, handoff: HandOff | None
    ) -> None:
        outcome = handoff if agent_id == "desk" and handoff else Proceed()
        command = CompleteTurn(request_id, agent_id, outcome, new_uuid7(), text="Here you are.")
        call = Call(key, "CompleteTurn", request_id, b"", actor=agent_id)
        handled = await self._handler.handle(call, command, _answer)
        assert handled.decided is not None
        following = handled.decided.decision.dispatch
        if following is not None:
            await self._complete(key, following.request_id, following.agent_id, None)


def _answer(_made: Made) -> Answer:
    return Answer(b"answer")


async def measure(agents: int) -> None:
    """Play in turns and print the figures."""
    registry, model = registry_of(agents), TimedModel()
    started_s = time.process_time()
    sides = {}
    for mode in MODES:
        topics = Topics(mode, threshold=0.5, lock_threshold=0.5, first_message="supervisor")
        sides[mode] = Side(replace(registry, topics=topics), model)
    print(f"{agents} agents; detectors made in {(time.process_time() - started_s) / 2:.2f} s CPU")
    await asyncio.gather(*(side.play(-1) for side in sides.values()))  # Warm.
    model.seconds.clear()
    for seed in range(ROUNDS):
        for side in sides.values():
            await side.play(seed)
    off = statistics.median(sides["off"].routes_s[1:])
    for mode, side in sides.items():
        route_s = statistics.median(side.routes_s[1:])
        print(f"  topics {mode:8} {route_s * 1e6:7.0f} us CPU a Route, {route_s / off:.2f} of off")
    ordered = sorted(model.seconds)
    p50, p99 = (ordered[int(len(ordered) * share)] for share in (0.5, 0.99))
    print(f"  a verdict: p50 {p50 * 1e6:.0f} us, p99 {p99 * 1e6:.0f} us of {len(ordered):,}")


def main() -> None:
    """Measure for each number of agents that is given."""
    for agents in map(int, sys.argv[1:] or ["20", "200"]):
        asyncio.run(measure(agents))


if __name__ == "__main__":
    main()
