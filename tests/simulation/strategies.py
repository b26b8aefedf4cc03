"""Random registries, sessions and steps, read from a tape of bytes.

They use few names and settings, so that these interact; all values are legal. Hypothesis draws the
tape: bytes are drawn fast and evenly, and a failure shrinks towards zeros, which every choice here
reads as its simplest option.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from routing_service.core.registry import (
    SECOND_US,
    Agent,
    AgentKind,
    AgentTopics,
    Limits,
    OnComplete,
    Registry,
    Sticks,
    Topics,
)
from routing_service.core.session import OpenTurn, Rest, SessionState, Task, Tenure, Work
from routing_service.core.vocabulary import (
    ApprovalDecision,
    HandoffMode,
    RouteReason,
    TaskStatus,
)
from tests.simulation.conversation import SESSION_ID, START_US, uuid7

Choice = TypeVar("Choice")

HOME = "home"
POOL = ("ada", "ben", "cleo", "dan", "eve")
ENTITLEMENTS = ((), ("plus",), ("gold",), ("gold", "plus"))
CHANNELS = ("", "web", "app")
TIMES_S = (10, 1, 60)

REGISTRY_BYTES = 104
STEP_BYTES = 13
SESSION_BYTES = 64


class Tape:
    """Bytes to choose by. After its end it returns zeros."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    def byte(self) -> int:
        """Return the next byte."""
        self._place += 1
        return self._data[self._place - 1] if self._place <= len(self._data) else 0

    def pick(self, options: Sequence[Choice]) -> Choice:
        """Return one of the options, the first for a zero."""
        return options[self.byte() % len(options)]

    def rarely(self, odds: int = 6) -> bool:
        """Return True once in that many times."""
        return self.byte() % odds == odds - 1

    def subset(self, options: Sequence[Choice]) -> list[Choice]:
        """Return some of up to eight options."""
        bits = self.byte()
        return [option for place, option in enumerate(options) if bits >> place & 1]


def draw_agent(tape: Tape, agent_id: str, others: tuple[str, ...]) -> Agent:
    """Draw one agent; others: the agents it may refer to."""
    on_complete = tape.pick(
        (OnComplete.RELEASE, OnComplete.RETURN, OnComplete.HOP, OnComplete.STAY)
    )
    follower = tape.pick(others)
    kept_to = frozenset(tape.subset(others))
    return Agent(
        agent_id,
        aliases=(f"{agent_id} the agent",),
        kind=AgentKind.SYSTEM if tape.rarely(20) else AgentKind.SPECIALIST,
        sticks=tape.pick((Sticks.SESSION, Sticks.SESSION, Sticks.FOLLOW_UP, Sticks.NEVER)),
        owns_session=tape.rarely(),
        handoff_to=kept_to if tape.rarely(4) else None,
        receives_as_interlude=tape.rarely(3),
        turns_max=tape.pick((0, 0, 1, 2)),
        on_complete=on_complete,
        on_complete_agent_id=follower if on_complete is OnComplete.HOP else "",
        requires=frozenset({"plus"}) if tape.rarely() else frozenset(),
        channels=frozenset({"web"}) if tape.rarely() else None,
        idle_timeout_us=60 * SECOND_US if tape.rarely() else None,
        turn_timeout_us=5 * SECOND_US if tape.rarely(10) else None,
        markers=tape.pick((True, False)),
        user_selectable=tape.pick((True, False)),
        enabled=not tape.rarely(8),
        topics=AgentTopics(
            mode=tape.pick(("", "", "", "", "off", "suggest", "auto")),
            threshold=0.85 if tape.rarely() else None,
        ),
    )


def draw_topics(tape: Tape) -> Topics:
    """Draw a registry's topic settings: half of them have none."""
    return Topics(
        mode=tape.pick(("off", "auto", "off", "suggest")),
        threshold=tape.pick((0.8, 0.5)),
        lock_threshold=tape.pick((None, 0.9, 0.5)),
        first_message=tape.pick(("supervisor", "auto")),
    )


def draw_registry(tape: Tape) -> Registry:
    """Draw a registry of a home agent and most of the pool."""
    is_swarm = tape.rarely(4)
    names = [name for name in POOL if not tape.rarely()] or [POOL[0]]
    others = (*names, HOME)
    sticks = tape.pick((Sticks.SESSION, Sticks.FOLLOW_UP, Sticks.NEVER))
    if is_swarm:
        home = Agent(HOME, sticks=sticks, receives_as_interlude=tape.rarely(), markers=True)
    else:
        home = Agent(HOME, kind=AgentKind.SUPERVISOR, markers=True)
    return Registry(
        version=str(tape.byte()),
        home_agent_id=HOME,
        agents={HOME: home} | {name: draw_agent(tape, name, others) for name in names},
        is_swarm=is_swarm,
        limits=Limits(
            hops_per_message=tape.pick((5, 4, 3, 2, 1)),
            return_depth=tape.pick((3, 2, 1)),
            open_turns=tape.pick((4, 3, 2, 1)),
            turn_timeout_us=tape.pick((60, 60, 10, 1)) * SECOND_US,
            idle_timeout_us=tape.pick((None, 60 * SECOND_US, 10 * SECOND_US)),
        ),
        double_text_rejects=tape.rarely(),
        disabled_commands=frozenset({"supervisor"}) if tape.rarely() else frozenset(),
        topics=draw_topics(tape),
    )


def draw_session(tape: Tape, registry: Registry) -> SessionState:
    """Draw a session as it could be stored, also by a replica with another registry."""
    names = [*POOL, *([HOME] if registry.is_swarm else [])]
    held = []
    for _ in range(tape.pick((1, 0, 2, 3))):
        name = names.pop(tape.byte() % len(names))
        is_locked = tape.pick((False, True))
        expire_us = START_US + (tape.byte() - 100) * SECOND_US
        is_timed = tape.pick((False, True)) and is_locked
        held.append(
            Tenure(name, is_locked, expire_us if is_timed else None, turns_taken=tape.byte() % 4)
        )
    status = tape.pick((None, *TaskStatus))
    task_id = uuid7(0)
    expire_us = START_US + (tape.byte() - 100) * SECOND_US if tape.rarely(3) else None
    turns = tuple(
        _extended(tape, _turn(number, task_id, HOME, START_US - (tape.byte() % 90) * SECOND_US))
        for number in range(1, tape.pick((0, 1, 2, 3)) + 1)
    )
    is_paused = status is TaskStatus.PAUSED
    return SessionState(
        session_id=SESSION_ID,
        revision=7,
        create_us=START_US - 100 * SECOND_US,
        update_us=START_US,
        channel=tape.pick(CHANNELS),
        entitlements=tape.pick(ENTITLEMENTS),
        active=held[-1] if held else None,
        stack=tuple(held[:-1]),
        returned=bool(held) and tape.rarely(3),
        newest_turn=turns[-1].request_id if turns else "",
        open_turns=turns,
        has_work=any(turn.work is not None for turn in turns),
        paused=_turn(50, task_id, tape.pick((*POOL, HOME)), START_US) if is_paused else None,
        task=None if status is None else Task(task_id, status, START_US, START_US, expire_us),
        sent_home=not held and tape.rarely(3),
        rests=(Rest(tape.pick(POOL), 2),) if tape.rarely(4) else (),
    )


def _extended(tape: Tape, turn: OpenTurn) -> OpenTurn:
    """Return a turn that, now and then, has a later deadline."""
    if not tape.rarely(10):
        return turn
    return replace(turn, work=Work(deadline_us=START_US + (tape.byte() % 90) * SECOND_US))


def _turn(number: int, task_id: str, holder: str, dispatched_us: int) -> OpenTurn:
    return OpenTurn(
        request_id=uuid7(number),
        root_request_id=uuid7(number),
        message_revision=1,
        task_id=task_id,
        holder=holder,
        epoch=0,
        path=(holder,),
        reason=RouteReason.STICKY,
        dispatched_us=dispatched_us,
        dispatch_revision=1,
    )


@dataclass(frozen=True)
class About:
    """The verdict of topic detection on a message."""

    agent_id: str
    confidence: float
    stay: float


@dataclass(frozen=True)
class Say:
    """The user sends a message.

    answers_offer: how it answers a suggestion, if there is one: by a button (accept, stay) or in
    text (yes, no).
    """

    text: str
    entitlements: tuple[str, ...]
    channel: str
    literal_text: bool
    task: str
    expire_s: int | None
    about: About | None = None
    answers_offer: str = ""


@dataclass(frozen=True)
class Answer:
    """An agent answers. turn: an open one, counted from the newest; closed: a past one."""

    turn: int
    closed: bool
    by: str
    outcome: str
    target: str
    mode: HandoffMode
    timeout_s: int | None
    text: str


@dataclass(frozen=True)
class HandOver:
    """A caller requests a handoff.

    turn None: between messages. takes_offer: the target is the suggested agent, if there is one.
    """

    target: str
    turn: int | None
    closed: bool
    by: str
    initiator: str
    mode: HandoffMode
    takes_offer: bool = False


@dataclass(frozen=True)
class Resume:
    """A person decides a pending approval; wrong: what does not match it, if anything."""

    decision: ApprovalDecision
    wrong: str


@dataclass(frozen=True)
class Clear:
    """A caller clears the active agent, or the session."""

    session: bool


@dataclass(frozen=True)
class Wait:
    """Time passes; negative: the clock is put back."""

    seconds: int


@dataclass(frozen=True)
class Reload:
    """The registry is replaced."""

    place: int


@dataclass(frozen=True)
class Switch:
    """Stickiness is switched off, or on again."""

    enabled: bool


Step = Say | Answer | HandOver | Resume | Clear | Wait | Reload | Switch

TARGETS = (*POOL, *POOL, *POOL, HOME, "CLEO the Agent", "nobody")
USER_TEXTS = (
    *["hello"] * 16,
    "/supervisor",
    "/Supervisor and more",
    "/reset",
    "/reset and more",
    "/agents",
    "/status",
    "/help",
    "/agent",
    "/agent nobody",
    *(f"/agent {name}" for name in (*POOL, HOME)),
    *(f"/agent {name} and more" for name in POOL),
    "a /reset in the middle",
)
AGENT_TEXTS = (
    *["/reset", "", "/supervisor now", "plain words"] * 3,
    "[HANDOFF_TO:ada]",
    "go on [handoff_to: cleo the agent ] now",
    "[HANDOFF_TO:nobody] [HANDOFF_TO:ben]",
    "[HANDOFF_TO:home]",
)
OUTCOMES = (
    *("follow_up", "follow_up", "proceed", "proceed", "complete", "complete"),
    *("handoff", "handoff", "handoff", "handoff", "failure", "approval_needed"),
)
TRANSFER, INTERLUDE, CONSULT = HandoffMode.TRANSFER, HandoffMode.INTERLUDE, HandoffMode.CONSULT
KINDS = (*[Say] * 10, *[Answer] * 14, *[HandOver] * 5, *[Resume] * 2, Clear, Wait, Wait, Reload)


def draw_about(tape: Tape) -> About | None:
    """Draw a verdict; some messages have none."""
    if tape.rarely(3):
        return None
    confidence, stay = tape.pick(((0.95, 0.02), (0.82, 0.1), (0.6, 0.3), (0.55, 0.7)))
    return About(tape.pick((*POOL, HOME, "nobody")), confidence, stay)


def draw_step(tape: Tape) -> Step:
    """Draw the next step."""
    kind = tape.pick((*KINDS, Switch))
    if kind is Say:
        return Say(
            text=tape.pick(USER_TEXTS),
            entitlements=tape.pick(ENTITLEMENTS) if tape.rarely() else (),
            channel=tape.pick(CHANNELS) if tape.rarely() else "",
            literal_text=tape.rarely(),
            task=tape.pick(("", "", "", "", "open", "open", "new", "closed")),
            expire_s=tape.pick((None, None, None, None, 5, 60)),
            about=draw_about(tape),
            answers_offer=tape.pick(("", "", "", "", "accept", "stay", "yes", "no")),
        )
    if kind is Answer:
        return Answer(
            turn=tape.pick((*[0] * 12, 1, 2)),
            closed=tape.rarely(16),
            by=tape.pick((*[""] * 24, *POOL, HOME)),
            outcome=tape.pick(OUTCOMES),
            target=tape.pick(TARGETS),
            mode=tape.pick((TRANSFER, TRANSFER, INTERLUDE, CONSULT)),
            timeout_s=tape.pick((None, *TIMES_S)),
            text=tape.pick(AGENT_TEXTS),
        )
    if kind is HandOver:
        return HandOver(
            target=tape.pick(TARGETS),
            turn=tape.pick((0, 0, None, 1)),
            closed=tape.rarely(12),
            by=tape.pick(("", "", "", "", *POOL, HOME)),
            initiator=tape.pick(("", "", "supervisor", "agent", "user", "operator")),
            mode=tape.pick((TRANSFER, INTERLUDE)),
            takes_offer=tape.rarely(4),
        )
    if kind is Resume:
        wrong = tape.pick((*[""] * 9, "request", "open request", "task", "closed task"))
        return Resume(tape.pick(tuple(ApprovalDecision)), wrong)
    if kind is Clear:
        return Clear(session=tape.pick((False, True)))
    if kind is Wait:
        return Wait(tape.pick((1, 5, 10, 61, 1000, -5, -1000)))
    if kind is Reload:
        return Reload(tape.byte())
    # Mostly on, since little else happens when it is off.
    return Switch(enabled=tape.pick((True, True, False)))


def draw_history(data: bytes) -> tuple[list[Registry], list[Step]]:
    """Return three registries and as many steps as the rest of the tape allows.

    Every registry and every step reads its own part, so that a change to one of them leaves the
    others as they are.
    """
    registries = [
        draw_registry(Tape(data[place * REGISTRY_BYTES : (place + 1) * REGISTRY_BYTES]))
        for place in range(3)
    ]
    rest = data[3 * REGISTRY_BYTES :]
    steps = [
        draw_step(Tape(rest[place : place + STEP_BYTES]))
        for place in range(0, len(rest), STEP_BYTES)
    ]
    return registries, steps


def tape_bytes(steps: int) -> int:
    """Return the length of a tape for a history of that many steps."""
    return 3 * REGISTRY_BYTES + steps * STEP_BYTES
