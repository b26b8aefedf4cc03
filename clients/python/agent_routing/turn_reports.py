"""What an agent's function says of its turn while it works: steps, notes, parts of the answer.

Rule: best effort. A report that fails is logged and never fails the function; steps that were not
sent before the answer go with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from agent_routing.errors import InvalidField, Overloaded, RoutingError, StoreFormat
from agent_routing.plain_values import Seconds, duration
from agent_routing.v1 import routing_service_pb2 as pb
from agent_routing.v1.turn_pb2 import Step

STEPS_EVERY_S: Final = 5.0
"""The service stores the steps of a turn at most this often."""

STEPS_MAX: Final = 64
STEPS_BYTES_MAX: Final = 48 * 1024
"""Of one report."""

DELTA_EVERY_S: Final = 0.1
"""How often a part of the answer is sent: readers see no difference to more often."""

DELTA_CHARS_MAX: Final = 8_000
"""Of one part: below its 32 KiB in any language."""

BEFORE_CHARS: Final = 160
"""How much of the text before comes with each part."""

_log: Final = logging.getLogger("agent_routing.worker")

Keep: TypeAlias = Callable[..., Awaitable[pb.KeepTurnResponse]]
"""Calls KeepTurn for a turn, with more fields."""


@dataclass(slots=True)
class TurnReports:
    """The reports of one turn. known: steps of this attempt that are stored already."""

    keep: Keep
    known: int = 0
    _steps: list[Step] = field(default_factory=list)
    _stores_steps: bool = True
    _sent_steps_s: float = float("-inf")
    _written: str = ""
    _sent_chars: int = 0
    _sent_bytes: int = 0
    _sending: asyncio.Task[None] | None = None
    _reporting: asyncio.Task[None] | None = None
    _is_ending: asyncio.Event = field(default_factory=asyncio.Event)

    def step(self, step: Step) -> None:
        """Take a step, and send it as soon as the service stores another report."""
        self._steps.append(step)
        self._begin_report()

    async def note(self, text: str) -> None:
        """Send a note."""
        await self._try(note=text)

    def delta(self, text: str) -> None:
        """Take the next part of the answer, and send it soon."""
        self._written += text
        if self._sending is None:
            self._sending = asyncio.create_task(self._send(), name="turn parts")

    @property
    def written(self) -> str:
        """The parts so far."""
        return self._written

    async def finish(self) -> list[Step]:
        """Send the rest of the parts; return the steps that were not sent.

        Steps that come later wait, for go_on() or for ever.
        """
        self._is_ending.set()
        if self._sending is not None:
            await self._sending
        await self._flush()
        if self._reporting is not None:
            # A report on its way may be stored: its steps must not go with the answer as well.
            await self._reporting
        await self.stop()
        return list(self._steps)

    def go_on(self) -> None:
        """Send again, because the function goes on after all: its answer was refused."""
        self._is_ending.clear()
        if self._steps:
            self._begin_report()

    async def stop(self) -> None:
        """Send nothing more."""
        tasks = [task for task in (self._sending, self._reporting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin_report(self) -> None:
        if self._stores_steps and self._reporting is None and not self._is_ending.is_set():
            self._reporting = asyncio.create_task(self._report(), name="turn steps")

    async def _report(self) -> None:
        loop = asyncio.get_running_loop()
        while self._steps:
            if await self._ends_within(self._sent_steps_s + STEPS_EVERY_S - loop.time()):
                break
            part = _one_report(self._steps)
            try:
                kept = await self.keep(steps=part, first_step=self.known)
            except Overloaded as error:
                wait = error.retry_after
                if await self._ends_within(STEPS_EVERY_S if wait is None else wait.total_seconds()):
                    break
                continue
            except (StoreFormat, InvalidField) as error:
                # They go with the answer.
                self._stores_steps = False
                _log.warning("steps_not_reported error=%s", error)
                break
            except RoutingError as error:
                _log.warning("steps_not_reported error=%s", error)
                if await self._ends_within(STEPS_EVERY_S):
                    break
                continue
            if kept.status != pb.KEEP_TURN_STATUS_KEPT:
                break
            self._sent_steps_s = loop.time()
            # Beyond the limit of a turn the service leaves steps out: they are not sent again.
            del self._steps[: len(part)]
            self.known = kept.steps_known
        self._reporting = None

    async def _ends_within(self, seconds: float) -> bool:
        """Wait for so long, or until the function has ended; say whether it has.

        Without a wait the answer is no: a step that is reported as the function ends is sent.
        """
        if seconds <= 0:
            return False
        try:
            await asyncio.wait_for(self._is_ending.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def _send(self) -> None:
        while self._sent_chars < len(self._written):
            await self._ends_within(DELTA_EVERY_S)
            await self._flush()
        self._sending = None

    async def _flush(self) -> None:
        while self._sent_chars < len(self._written):
            start = self._sent_chars
            text = self._written[start : start + DELTA_CHARS_MAX]
            before = self._written[max(0, start - BEFORE_CHARS) : start]
            delta = pb.AnswerDelta(offset=self._sent_bytes, text=text, before=before)
            # Also if it fails: a gap only means that readers wait for the whole answer.
            self._sent_chars += len(text)
            self._sent_bytes += len(text.encode())
            await self._try(delta=delta)

    async def _try(self, **fields: Any) -> None:
        try:
            await self.keep(**fields)
        except RoutingError as error:
            _log.warning("report_not_sent error=%s", error)


def made_step(name: str, kind: str, given: str, result: str, took: Seconds | None) -> Step:
    """Return a step of these values."""
    return Step(name=name, kind=kind, input=given, output=result, duration=duration(took))


def fitting(steps: Iterable[Step]) -> list[Step]:
    """Return the first steps that fit into an answer; the others are logged as left out."""
    given = list(steps)
    kept = _one_report(given)
    if kept and kept[0].ByteSize() > STEPS_BYTES_MAX:
        kept = []
    if len(kept) < len(given):
        _log.warning("steps_left_out count=%d", len(given) - len(kept))
    return kept


def _one_report(steps: list[Step]) -> list[Step]:
    """Return the first steps that fit into one report; one that never does goes alone."""
    total = 0
    for place, step in enumerate(steps[:STEPS_MAX]):
        total += step.ByteSize()
        if total > STEPS_BYTES_MAX:
            return steps[: max(1, place)]
    return steps[:STEPS_MAX]
