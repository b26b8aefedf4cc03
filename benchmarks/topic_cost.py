"""The cost of topics: a verdict's time, its memory, and the loss of Route/s.

    .venv/bin/python -m benchmarks.topic_cost [--quick]

Verdicts are of messages in the middle of conversations with eight turns behind them, among 20 and
200 agents with 20 examples each. A server keeps the reading of earlier turns, so only the last one
is new; after a restart all are. The figure is processor time of the judging thread, which is what
the event loop loses; on an otherwise idle machine, wall time is the same.

The loss of Route/s is measured on three servers with default settings, on SQLite, whose registries
of 20 agents differ only in topics (off, suggest, auto), loaded in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import random
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from agent_routing_topics.default_model import TopicModel, load_word_model
from benchmarks import service, talk
from benchmarks.figure import FULL, QUICK, Figure, Scale, percentile, ratio
from routing_service.core.registry import Agent, AgentKind, Registry
from routing_service.server.process import GC_THRESHOLDS
from routing_service.topics.topic_detector import RecentTurn, TopicDetector, TopicQuestion

P99_MS_MOST: Final = {20: 1.0, 200: 3.0}
"""By number of agents."""

EXAMPLES: Final = 20
TURNS: Final = 8
QUESTIONS: Final = 2000
QUESTIONS_QUICK: Final = 50
MESSAGES_PER_SESSION: Final = 4
MODES: Final = ("off", "suggest", "auto")

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


def measure(scale: Scale) -> list[Figure]:
    """Return topic_p99_ms_20, topic_p99_ms_200 and topic_route_share."""
    return [*(_verdicts(scale, agents) for agents in P99_MS_MOST), _route_share(scale)]


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
            examples=tuple(_sentence(chance, own) for _ in range(EXAMPLES)),
        )
    return Registry(version="1", home_agent_id="supervisor", agents=agents)


def _questions(chance: random.Random, ids: list[str], count: int) -> Iterator[TopicQuestion]:
    for _ in range(count):
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
        yield TopicQuestion(
            text=_sentence(chance, chance.choice(_COMMON)),
            locale="en",
            active_agent_id=active,
            is_locked=chance.random() < 0.5,  # noqa: PLR2004 - every other one
            recent=recent,
            earlier_agent_ids=(earlier,),
            candidate_ids=frozenset(ids),
        )


def _verdicts(scale: Scale, agents: int, questions_quick: int = QUESTIONS_QUICK) -> Figure:
    chance = random.Random(11)
    registry = _registry(chance, agents)
    ids = [agent.agent_id for agent in registry.specialists]
    begun_s = time.thread_time()
    model = load_word_model()
    load_ms = 1e3 * (time.thread_time() - begun_s)
    begun_s = time.thread_time()
    detector = model.for_registry(registry)
    make_ms = 1e3 * (time.thread_time() - begun_s)
    cpu_ms: list[float] = []
    wall_ms: list[float] = []
    anew_ms: list[float] = []
    thresholds = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)  # As the server has them.
    try:
        count = questions_quick if scale.is_quick else QUESTIONS
        for question in _questions(chance, ids, count):
            anew_ms.append(_judged_ms(detector, _forgotten(question))[0])
            # The message before this one was judged by all turns but the last.
            detector.judge(_with_turns(question, question.recent[:-1]))
            cpu, wall = _judged_ms(detector, question)
            cpu_ms.append(cpu)
            wall_ms.append(wall)
    finally:
        gc.set_threshold(*thresholds)
    beside: dict[str, Any] = {
        "p50_ms": percentile(cpu_ms, 0.5),
        "p50_wall_ms": percentile(wall_ms, 0.5),
        "p99_wall_ms": percentile(wall_ms, 0.99),
        "p50_after_restart_ms": percentile(anew_ms, 0.5),
        "p99_after_restart_ms": percentile(anew_ms, 0.99),
        "take_in_ms": make_ms,
        "load_ms": load_ms,
    }
    if not scale.is_quick:
        beside["take_in_mib"] = _taken_in_mib(model, registry)
    return Figure(
        f"topic_p99_ms_{agents}",
        percentile(cpu_ms, 0.99),
        "ms CPU",
        P99_MS_MOST[agents],
        is_most=True,
        beside={name: round(value, 3) for name, value in beside.items()},
    )


def _taken_in_mib(model: TopicModel, registry: Registry) -> float:
    """Return the memory of a registry's agents. Following each allocation takes seconds."""
    tracemalloc.start()
    kept = model.for_registry(registry)
    memory_mib = tracemalloc.get_traced_memory()[0] / 2**20
    tracemalloc.stop()
    del kept
    return memory_mib


def _with_turns(question: TopicQuestion, recent: tuple[RecentTurn, ...]) -> TopicQuestion:
    """Return a question with other turns before it."""
    return TopicQuestion(
        text=question.text,
        locale=question.locale,
        active_agent_id=question.active_agent_id,
        is_locked=question.is_locked,
        recent=recent,
        earlier_agent_ids=question.earlier_agent_ids,
        candidate_ids=question.candidate_ids,
    )


def _forgotten(question: TopicQuestion) -> TopicQuestion:
    """Return a question whose turns were not read before."""
    turns = question.recent
    return _with_turns(
        question,
        tuple(RecentTurn(t.agent_id, t.user_text, t.agent_text, t.outcome) for t in turns),
    )


def _judged_ms(detector: TopicDetector, question: TopicQuestion) -> tuple[float, float]:
    """Return what a verdict took: processor time, and time."""
    begun_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
    detector.judge(question)
    cpu_ns = time.thread_time_ns() - cpu_ns
    return cpu_ns / 1e6, (time.perf_counter_ns() - begun_ns) / 1e6


def _registry_file(mode: str) -> str:
    """Return the benchmarks' registry with more agents, which get no handoffs."""
    chance = random.Random(7)
    topics = f"topics: {{mode: {mode}, threshold: 0.8, lock_threshold: 0.8}}\n"
    head, _, agents = service.REGISTRY.partition("agents:\n")
    lines = [head + topics + "agents:\n" + agents.rstrip("\n")]
    for number in range(min(P99_MS_MOST) - 1):
        own = f"{_COMMON[number % len(_COMMON)]}{number}"
        lines += [
            f"  - id: agent-{number}",
            f"    name: {{en: {own}}}",
            f"    description: {json.dumps(_sentence(chance, own))}",
            f"    examples: {json.dumps([_sentence(chance, own) for _ in range(EXAMPLES)])}",
        ]
    return "\n".join(lines) + "\n"


def _route_share(scale: Scale) -> Figure:
    rounds: dict[str, list[float]] = {
        f"{mode} {unit}": [] for unit in ("/s", "CPU us") for mode in MODES
    }
    with contextlib.ExitStack() as running, tempfile.TemporaryDirectory() as folder:
        servers = {}
        for mode in MODES:
            path = Path(folder) / f"{mode}.yaml"
            path.write_text(_registry_file(mode), "utf-8")
            servers[mode] = running.enter_context(service.server_process("", "--agents", str(path)))
        for number in range(scale.rounds + 1):
            for mode, (address, pid) in servers.items():
                begun = talk.names(scale.turns // MESSAGES_PER_SESSION)
                service.converse(address, [talk.turns(n, 1) for n in begun], scale.at_once)
                load = talk.messages(begun, MESSAGES_PER_SESSION)
                cpu_s = service.cpu_s(pid)
                played = service.converse(address, load, scale.at_once)
                cpu_s = service.cpu_s(pid) - cpu_s
                if number:  # The first round only warms up.
                    rounds[f"{mode} /s"].append(played.calls_per_s)
                    rounds[f"{mode} CPU us"].append(cpu_s * 1e6 / len(played.call_seconds))
    return Figure(
        "topic_route_share",
        ratio(rounds, "auto /s", "off /s"),
        "of Route/s that remain",
        rounds=rounds,
        beside={
            "suggest": round(ratio(rounds, "suggest /s", "off /s"), 3),
            "of_processor_time": round(ratio(rounds, "off CPU us", "auto CPU us"), 3),
        },
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer of everything")
    scale = QUICK if parser.parse_args().quick else FULL
    for figure in measure(scale):
        print(f"{figure.key:20} {figure.value:8.3f} {figure.unit}")
        for name, value in figure.beside.items():
            print(f"  {name:22} {value:8.3f}")
        if figure.spread:
            print(f"  {figure.spread}")


if __name__ == "__main__":
    main()
