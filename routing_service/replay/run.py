"""A whole replay: many dialogues at once, each in its own order.

Its rule: at most ``concurrency`` dialogues are in memory, and the counts do not depend on how many
are played at a time.
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
from routing_service.replay.figures import ReplayFigures, Tally
from routing_service.replay.play import FirstDispatch, Stage, play_dialogue
from routing_service.replay.server_calls import PatientServer

_AGENTS_NAMED_MAX: Final = 20

Complaint = Callable[[str], None]
Progress = Callable[[Tally], None]


class ReplayStopped(Exception):
    """A replay that cannot continue; the message says why and what to do."""


@dataclass(slots=True)
class Side:
    """One of the servers that the same dialogues are played on.

    known_agents: its registry's. name: the prefix of its complaints; "" for a single server.
    """

    server: PatientServer
    stage: Stage
    known_agents: frozenset[str]
    name: str = ""
    tally: Tally = field(default_factory=Tally)


Played = Callable[[int, FoundDialogue, tuple[list[FirstDispatch], ...]], None]
"""Called for a dialogue that was played on every side, with its number in the run and each side's
dispatches."""


@dataclass(slots=True)
class Run:
    """One replay while it runs. strict: the first bad line or error ends it."""

    sides: tuple[Side, ...]
    lines: Iterator[FoundDialogue | BadLine]
    complain: Complaint
    progress: Progress
    played: Played | None = None
    limit: int | None = None
    strict: bool = False
    bad_lines: int = 0
    _taken: int = 0
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def work(self) -> None:
        """Play dialogues one after the other until none is left."""
        while (taken := await self._next()) is not None:
            number, found = taken
            dispatches: tuple[list[FirstDispatch], ...] = tuple([] for _ in self.sides)
            for side, first_dispatches in zip(self.sides, dispatches, strict=True):
                tally, error = await play_dialogue(
                    found.dialogue,
                    side.server,
                    side.stage,
                    first_dispatches if self.played else None,
                )
                side.tally.add(tally)
                if error:
                    where = f"{found.place}: dialogue {found.dialogue.dialogue_id}"
                    self._report(f"{where}: {_named(side)}{error}")
            if self.played is not None:
                self.played(number, found, dispatches)
            self.progress(self.sides[-1].tally)

    async def _next(self) -> tuple[int, FoundDialogue] | None:
        async with self._reading:
            while self.limit is None or self._taken < self.limit:
                # In a thread, so that a slow pipe blocks only the reader.
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
                return self._taken, line
        return None

    def _unplayable(self, found: FoundDialogue) -> str:
        """Return why a dialogue cannot be played on every side, "" if it can."""
        for side in self.sides:
            unknown = sorted(found.dialogue.agent_ids - side.known_agents)
            if not unknown:
                continue
            known = sorted(side.known_agents)
            more = f" and {len(known) - _AGENTS_NAMED_MAX} more" * (len(known) > _AGENTS_NAMED_MAX)
            return (
                f'{found.place}: {_named(side)}agent "{unknown[0]}" is not registered; '
                f"registered agents: {', '.join(known[:_AGENTS_NAMED_MAX])}{more}"
            )
        return ""

    def _report(self, what: str) -> None:
        if self.strict:
            raise ReplayStopped(what)
        self.complain(what)


def _named(side: Side) -> str:
    return f"{side.name}: " if side.name else ""


@dataclass(frozen=True, slots=True)
class Order:
    """The order for a replay. See the options of agent-routing replay."""

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
) -> ReplayFigures:
    """Play every dialogue of the order and return the figures.

    known_agents: the server's. complain: called with each line or dialogue that could not be
    played. progress: called with the counts after each dialogue.
    Raises ReplayStopped, DialogueFileUnreadable.
    """
    side = Side(server, stage, known_agents)
    (figures,) = await replay_sides(order, (side,), complain=complain, progress=progress)
    return figures


async def replay_sides(
    order: Order,
    sides: tuple[Side, ...],
    *,
    complain: Complaint,
    progress: Progress,
    played: Played | None = None,
) -> tuple[ReplayFigures, ...]:
    """Play every dialogue of the order on each side, and return the figures of each.

    Files are read once: a pipe is enough. A dialogue that one side cannot play is played on none.
    progress: called with the last side's counts. played: called after each dialogue.
    Raises ReplayStopped, DialogueFileUnreadable.
    """
    lines = read_dialogues(order.files)
    run = Run(
        sides=sides,
        lines=lines,
        complain=complain,
        progress=progress,
        played=played,
        limit=order.limit,
        strict=order.strict,
    )
    started_s = time.perf_counter()
    try:
        await _work_together(run, order.concurrency)
    except RoutingError as error:
        last = sides[-1]
        raise ReplayStopped(
            f"the server was unreachable after {last.tally.dialogues} dialogues: {error}; "
            f"--run-label {last.stage.run_label} resumes the run"
        ) from error
    finally:
        # A replay that stops early leaves no file open, unless a thread still waits for a pipe.
        with suppress(ValueError):
            lines.close()
    seconds = time.perf_counter() - started_s
    return tuple(
        ReplayFigures(side.tally, seconds, run.bad_lines, side.stage.run_label) for side in sides
    )


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
