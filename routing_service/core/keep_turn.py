"""What a worker says of its turn while it works: it goes on, and what it has done so far.

The lease is not decided here: who may say something is checked before.
"""

from __future__ import annotations

from typing import Final

from routing_service.core import events as ev
from routing_service.core import ownership
from routing_service.core.commands import Decision, KeepTurn
from routing_service.core.deadlines import extended_us
from routing_service.core.draft import Draft
from routing_service.core.errors import Reason, RoutingError, invalid_field
from routing_service.core.inbox import find_worked
from routing_service.core.session import OpenTurn, Work

STEPS_EVERY_US: Final = 5_000_000
"""Reports of one turn's steps are at least this far apart: each is a change of the session."""

TURN_STEPS_MAX: Final = 256
"""Steps that are kept of one turn, of all its attempts. Later ones are left out."""

TURN_STEPS_BYTES_MAX: Final = 192 * 1024
"""Their size: four reports of the largest size."""

_NO_WORK: Final = Work()


def decide_keep(draft: Draft, command: KeepTurn) -> Decision:
    """Move the turn's deadline, and store its steps; no events if there is nothing to store.

    A turn that is no longer the agent's is left as it is; one that was overtaken goes on.
    Raises INVALID_FIELD for a gap in the steps, OVERLOADED for steps too soon.
    """
    ownership.expire_waits(draft)
    turn = draft.state.find_turn(command.request_id)
    is_worked = find_worked(draft.state, command.request_id, draft.registry) is turn
    if turn is not None and turn.holder == command.agent_id and is_worked:
        if command.steps:
            _report(draft, command, turn)
        if command.extends:
            until_us = extended_us(turn, draft.registry, draft.now_us)
            if until_us is not None:
                draft.add(
                    ev.TurnExtended(
                        request_id=turn.request_id,
                        root_request_id=turn.root_request_id,
                        agent_id=turn.holder,
                        deadline_us=until_us,
                    )
                )
    return Decision(events=tuple(draft.events))


def steps_known(turn: OpenTurn, attempt: int) -> int:
    """Return how many steps of an attempt are stored."""
    work = turn.work
    return work.steps if work is not None and work.attempt == attempt else 0


def _report(draft: Draft, command: KeepTurn, turn: OpenTurn) -> None:
    """Store the steps that are not stored yet."""
    work = turn.work or _NO_WORK
    if command.attempt < work.attempt:
        return  # A later worker has the turn by now.
    known = steps_known(turn, command.attempt)
    if not work.attempt and not draft.state.is_live(turn):
        known = command.first_step  # What was known of it was forgotten when it was overtaken.
    steps = command.steps[max(0, known - command.first_step) :]
    room = TURN_STEPS_MAX - work.kept
    left_bytes = TURN_STEPS_BYTES_MAX - work.kept_bytes
    if not steps or room <= 0 or left_bytes <= 0:
        return
    if command.first_step > known:
        raise invalid_field(
            "first_step", f"is {command.first_step}, and {known} steps of this attempt are known"
        )
    waits_us = work.reported_us + STEPS_EVERY_US - draft.now_us
    if known and waits_us > 0:
        raise RoutingError(
            Reason.OVERLOADED,
            "the steps of a turn are stored at most every "
            f"{STEPS_EVERY_US // 1_000_000} s; collect them, and send them after the delay",
            metadata={"limit": "turn_steps_interval", "request_id": turn.request_id},
            retry_after_s=waits_us / 1_000_000,
        )
    kept, size = _within(steps[:room], left_bytes)
    if not kept:
        return
    draft.add(
        ev.StepsReported(
            request_id=turn.request_id,
            root_request_id=turn.root_request_id,
            task_id=turn.task_id,
            agent_id=turn.holder,
            attempt=command.attempt,
            first_step=known,
            steps=kept,
            steps_bytes=size,
        )
    )


def _within(steps: tuple[ev.Step, ...], bytes_max: int) -> tuple[tuple[ev.Step, ...], int]:
    """Return the first steps that fit, and their size."""
    total = 0
    for place, step in enumerate(steps):
        size = sum(len(part.encode()) for part in (step.name, step.kind, step.input, step.output))
        if total + size > bytes_max:
            return steps[:place], total
        total += size
    return steps, total
