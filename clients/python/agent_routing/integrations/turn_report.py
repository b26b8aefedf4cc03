"""What a turn reports besides its text: steps and items, within the contract's limits."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from agent_routing import content
from agent_routing.content import Item, Step
from agent_routing.integrations import agent_tools
from agent_routing.integrations.approvals import APPROVAL_STEP

STEPS_MAX: Final = 64
"""Of a turn, from the contract; the newest are kept."""

STEPS_BYTES_MAX: Final = 48 * 1024
"""Of a turn's steps, from the contract."""

STEP_TEXT_BYTES_MAX: Final = 4 * 1024
"""Of a step's input and of its output: a dozen long steps fit into a turn."""

STEP_NAME_CHARS_MAX: Final = 128
"""From the contract."""

ITEMS_MAX: Final = 16
"""Of an answer, from the contract."""

ITEMS_BYTES_MAX: Final = 64 * 1024
"""Of an answer's items, from the contract; larger content is passed by URI."""

_log = logging.getLogger("agent_routing")


class TurnReport:
    """The steps and items of one turn.

    send_step: takes each step as it happens, in a worker; None: steps go with the answer.
    """

    def __init__(self, send_step: Callable[[Step], object] | None = None) -> None:
        self._send_step = send_step
        self._steps: list[Step] = []
        self.items: list[Item] = []

    @property
    def steps(self) -> list[Step]:
        """The newest steps that fit, oldest first."""
        # 4 bytes are the most that a repeated field adds to a step of this size.
        size, fitting = 0, 0
        for step in reversed(self._steps[-STEPS_MAX:]):
            size += step.ByteSize() + 4
            if size > STEPS_BYTES_MAX:
                break
            fitting += 1
        return self._steps[len(self._steps) - fitting :]

    def add_step(
        self,
        name: str,
        kind: str,
        given: object = "",
        output: object = "",
        began: datetime | None = None,
    ) -> None:
        """Record a step. began: when it began, with a time zone; it ends now."""
        step = content.step(
            (_clean(name) or kind)[:STEP_NAME_CHARS_MAX],
            kind=kind,
            input=_text(given),
            output=_text(output),
            start_time=began,
            duration=None if began is None else max(datetime.now(UTC) - began, timedelta()),
        )
        # Only the attempt that asks for an approval may report that it did.
        if self._send_step is None or kind == APPROVAL_STEP:
            self._steps.append(step)
        else:
            self._send_step(step)

    def add_item(self, item: Item) -> None:
        """Add an item to the answer. One that does not fit is left out, and logged."""
        size = sum(each.ByteSize() + 4 for each in (*self.items, item))
        if len(self.items) >= ITEMS_MAX or size > ITEMS_BYTES_MAX:
            _log.warning("item_left_out: %s of %d bytes", item.content_type, item.ByteSize())
            return
        self.items.append(item)


def _text(value: Any) -> str:
    """Return a value as text that fits."""
    if not isinstance(value, str):
        dump = getattr(value, "model_dump_json", None)
        value = dump() if dump is not None else json.dumps(value, default=str, ensure_ascii=False)
    return agent_tools.cut(_clean(value), STEP_TEXT_BYTES_MAX)


def _clean(text: str) -> str:
    """Return a text without NUL, which the service refuses."""
    return text.replace("\0", "")
