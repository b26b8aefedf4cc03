"""When an open turn ends without an answer, and how far its worker moves that."""

from __future__ import annotations

from routing_service.core.registry import TURN_EXTENDED_MAX_US, Registry
from routing_service.core.session import OpenTurn


def deadline_us(turn: OpenTurn, registry: Registry) -> int:
    """Return when a turn is abandoned, microseconds since 1970.

    By this registry, or as a worker extended it, if that is later: so a reload with a longer
    timeout holds for extended turns too, and no deadline is before the shortest timeout.
    """
    timeout_us = registry.turn_timeouts_us.get(turn.holder, registry.limits.turn_timeout_us)
    own_us = turn.dispatched_us + timeout_us
    return own_us if turn.work is None else max(own_us, turn.work.deadline_us)


def extended_us(turn: OpenTurn, registry: Registry, now_us: int) -> int | None:
    """Return the deadline of a turn whose worker goes on; None = it stays.

    It moves only when less than half of the agent's timeout is left, so that a turn of hours
    writes a few changes, and at most to TURN_EXTENDED_MAX_US after the dispatch.
    """
    timeout_us = registry.turn_timeout_us(turn.holder)
    before_us = deadline_us(turn, registry)
    if before_us - now_us >= timeout_us // 2:
        return None
    after_us = min(now_us + timeout_us, turn.dispatched_us + TURN_EXTENDED_MAX_US)
    return after_us if after_us > before_us else None
