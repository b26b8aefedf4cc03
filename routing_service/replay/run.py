"""A whole replay: many dialogues at once, each in its own order.

Owns concurrency, limits and what becomes of bad lines and errors. It must not know how a dialogue
is played, nor where the server runs. Its rule: at most ``concurrency`` dialogues are in memory, and
what is counted does not depend on how many are in flight.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from agent_routing.errors import RoutingError
from routing_service.replay.choices import CONCURRENCY_DEFAULT
from routing_service.replay.dialogue_files import BadLine, FoundDialogue, read_dialogues
from routing_service.replay.figures import Figures, Tally
from routing_service.replay.play import Stage, play_dialogue
from routing_service.replay.server_calls import PatientServer

_AGENTS_NAMED_MAX: Final = 20

Complaint = Callable[[str], None]
Progress = Callable[[Tally], None]


class ReplayStopped(Exception):
    """A replay that cannot go on; the message says why and what to do."""


@dataclass(slots=True)
class Run:
    """One replay while it runs. strict: the first bad line or error ends it."""

    server: PatientServer
    stage: Stage
    known_agents: frozenset[str]
    lines: Iterator[FoundDialogue | BadLine]
    complain: Complaint
    progress: Progress
    limit: int | None = None
    strict: bool = False
    tally: Tally = field(default_factory=Tally)
    bad_lines: int = 0
    _taken: int = 0
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def work(self) -> None:
        """Play dialogues, one after the other, until there are no more."""
        while (found := await self._next()) is not None:
            tally, error = await play_dialogue(found.dialogue, self.server, self.stage)
            self.tally.add(tally)
            self.progress(self.tally)
            if error:
                self._report(f"{found.place}: dialogue {found.dialogue.dialogue_id}: {error}")

    async def _next(self) -> FoundDialogue | None:
        async with self._reading:
            while self.limit is None or self._taken < self.limit:
                # In a thread: a pipe may keep the reader waiting, and nobody else.
                line = await asyncio.to_thread(next, self.lines, None)
                if line is None:
                    return None
                unplayable = str(line) if isinstance(line, BadLine) else self._unplayable(line)
                if unplayable:
                    self.bad_lines += 1
                    self._report(unplayable)
                    continue
                assert isinstance(line, FoundDialogue)
                self._taken += 1
                return line
        return None

    def _unplayable(self, found: FoundDialogue) -> str:
        unknown = sorted(found.dialogue.agent_ids - self.known_agents)
        if not unknown:
            return ""
        known = sorted(self.known_agents)
        more = f" and {len(known) - _AGENTS_NAMED_MAX} more" * (len(known) > _AGENTS_NAMED_MAX)
        return (
            f'{found.place}: agent "{unknown[0]}" is not registered; '
            f"registered agents: {', '.join(known[:_AGENTS_NAMED_MAX])}{more}"
        )

    def _report(self, what: str) -> None:
        if self.strict:
            raise ReplayStopped(what)
        self.complain(what)


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be replayed, and how. See the options of agent-routing replay."""

    files: Sequence[str]
    concurrency: int = CONCURRENCY_DEFAULT
    limit: int | None = None
    strict: bool = False


async def replay(
    order: Order,
    server: PatientServer,
    stage: Stage,
    known_agents: frozenset[str],
    *,
    complain: Complaint,
    progress: Progress,
) -> Figures:
    """Play every dialogue of the order and return the figures.

    known_agents: the server's. complain: called with each line or dialogue that could not be
    played. progress: called with the counts after each dialogue.
    Raises ReplayStopped, DialogueFileUnreadable.
    """
    lines = read_dialogues(order.files)
    run = Run(
        server=server,
        stage=stage,
        known_agents=known_agents,
        lines=lines,
        complain=complain,
        progress=progress,
        limit=order.limit,
        strict=order.strict,
    )
    started_s = time.perf_counter()
    try:
        await _work_together(run, order.concurrency)
    except RoutingError as error:
        raise ReplayStopped(
            f"the server stayed away after {run.tally.dialogues} dialogues: {error}; "
            f"--run-label {stage.run_label} takes up the run where it was"
        ) from error
    finally:
        # A replay that stops early leaves no file open, unless a thread still waits for a pipe.
        with suppress(ValueError):
            lines.close()
    seconds = time.perf_counter() - started_s
    return Figures(run.tally, seconds, run.bad_lines, stage.run_label)


async def _work_together(run: Run, workers: int) -> None:
    """Run the workers; the first that fails stops the others, and its error is raised alone."""
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(run.work())
    except BaseExceptionGroup as failures:
        first: BaseException = failures
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None
