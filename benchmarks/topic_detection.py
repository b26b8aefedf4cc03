"""What a decision of topic detection costs: `python -m benchmarks.topic_detection [--json]`.

CPU time of the judging thread, so that other processes count for little, of questions in the middle
of conversations with eight turns behind them; loading and memory in a process that does nothing
else. Registries are made up, with twenty examples an agent; no file is needed.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import time
import tracemalloc
from typing import Final

from routing_service.core.registry import Agent, AgentKind, Registry
from routing_service.topics import load_topic_model
from routing_service.topics.topic_detector import RecentTurn, TopicQuestion

AGENTS: Final = (20, 200)
QUESTIONS: Final = 2000
TURNS: Final = 8

_OPENINGS: Final = (
    "I need", "Can you find me", "I would like to book", "Please show me", "Thanks. Now I want",
    "What about", "Is there", "Could you check", "Book", "Yes, and also",
)  # fmt: skip
_COMMON: Final = (
    "room", "table", "flight", "train", "balance", "appointment", "ticket", "song", "weather",
    "meeting", "taxi", "apartment", "doctor", "movie", "order", "account", "party", "car",
)  # fmt: skip
_ENDINGS: Final = (
    "for two people on Monday at 5 pm", "in the north of the town", "please", "tomorrow morning",
    "near the station that is not too expensive", "under my name", "for next week", "",
)  # fmt: skip


def _sentence(chance: random.Random, own: str) -> str:
    words = (chance.choice(_OPENINGS), "a", own, chance.choice(_COMMON), chance.choice(_ENDINGS))
    return " ".join(words)


def _registry(chance: random.Random, count: int) -> Registry:
    agents = {"supervisor": Agent("supervisor", kind=AgentKind.SUPERVISOR)}
    for number in range(count):
        own = f"{chance.choice(_COMMON)}{number}"
        agents[f"agent-{number}"] = Agent(
            f"agent-{number}",
            name={"en": own},
            description={"en": _sentence(chance, own)},
            examples=tuple(_sentence(chance, own) for _ in range(20)),
        )
    return Registry(version="1", home_agent_id="supervisor", agents=agents)


def _questions(chance: random.Random, ids: list[str]) -> list[TopicQuestion]:
    found = []
    for _ in range(QUESTIONS):
        active, earlier = chance.sample(ids, 2)
        recent = tuple(
            RecentTurn(
                earlier if turn < TURNS // 2 else active,
                _sentence(chance, chance.choice(_COMMON)),
                "There are three. " + _sentence(chance, chance.choice(_COMMON)),
                "follow_up",
            )
            for turn in range(TURNS)
        )
        found.append(
            TopicQuestion(
                text=_sentence(chance, chance.choice(_COMMON)),
                locale="en",
                active_agent_id=active,
                is_locked=chance.random() < 0.5,  # noqa: PLR2004 - every other one
                recent=recent,
                earlier_agent_ids=(earlier,),
                candidate_ids=frozenset(ids),
            )
        )
    return found


def measure() -> dict[str, float]:
    """Return every figure by name."""
    chance = random.Random(11)
    started_s = time.thread_time()
    model = load_topic_model()
    figures = {"load_ms": 1000 * (time.thread_time() - started_s)}
    tracemalloc.start()
    kept = load_topic_model()
    figures["model_mib"] = tracemalloc.get_traced_memory()[0] / 2**20
    del kept
    for count in AGENTS:
        registry = _registry(chance, count)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        traced = model.for_registry(registry)
        figures[f"detector_mib_{count}_agents"] = (
            tracemalloc.get_traced_memory()[0] - before
        ) / 2**20
        del traced
    tracemalloc.stop()
    for count in AGENTS:
        registry = _registry(chance, count)
        started_s = time.thread_time()
        detector = model.for_registry(registry)
        figures[f"make_ms_{count}_agents"] = 1000 * (time.thread_time() - started_s)
        times_ms = []
        for question in _questions(chance, [a.agent_id for a in registry.specialists]):
            started_ns = time.thread_time_ns()
            detector.judge(question)
            times_ms.append((time.thread_time_ns() - started_ns) / 1e6)
        times_ms.sort()
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            figures[f"judge_{name}_ms_{count}_agents"] = times_ms[int(share * len(times_ms))]
    figures["process_rss_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {name: round(value, 3) for name, value in figures.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    figures = measure()
    if parser.parse_args().json:
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:28} {value:10.3f}")


if __name__ == "__main__":
    main()
