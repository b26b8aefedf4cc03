"""How well a registry routes recorded dialogues: by the calls of a server, in this process.

Rule: the server that plays decides by the code that serves users, with one bound for all dialogues
in their order. The record says whose a message is, and the server never learns it beforehand.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from routing_service.core.registry import Registry
from routing_service.replay.choices import ReplayPolicy, SwitchMode
from routing_service.replay.local_server import LocalServer
from routing_service.replay.play import FirstDispatch, Stage, play_dialogue
from routing_service.replay.recorded_dialogue import RecordedDialogue
from routing_service.storage.open_store import open_store
from routing_service.storage.store_format import settle_format
from routing_service.topics.detection import TopicJudge

SUPERVISOR: Final = ""
"""Stands for the home agent, wherever an agent may stand."""

UNSURE: Final = "TOPIC_UNSURE"
"""Why Route gives a message to the supervisor that the detector was not sure of."""


class DialogueFailed(Exception):
    """A dialogue that could not be played to its end; the message names it and says why."""


class Mends(enum.Enum):
    """What becomes of a message that went to an agent which does not own it."""

    AGENT = SwitchMode.AGENT
    """That agent hands it to its owner."""
    NOBODY = SwitchMode.STUCK
    """Nothing: that agent keeps the conversation and says nothing."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One user's message and what became of it. Agents by id, SUPERVISOR for the home agent.

    active: who had the conversation. dispatched: who got the message first. likeliest: whom the
    verdict names, before anything is asked; probability: of that, and sureness: how far ahead.
    is_asked: the verdict was unsure, and the supervisor or a judge decided.
    """

    turn: int
    active: str
    owner: str
    dispatched: str
    likeliest: str
    probability: float
    sureness: float
    is_asked: bool
    is_scored: bool
    is_no_agents: bool

    @property
    def is_right(self) -> bool:
        """Tell whether the likeliest option was right."""
        return self.likeliest == self.owner

    @property
    def is_right_asking(self) -> bool:
        """Tell whether it came to its owner at once, or was asked about."""
        return self.is_asked or self.dispatched == self.owner

    @property
    def should_switch(self) -> bool:
        """Tell whether it is for another agent than the active one."""
        return bool(self.active) and self.owner != self.active

    @property
    def switched(self) -> bool:
        """Tell whether the likeliest option takes it from the active agent."""
        return bool(self.active) and self.likeliest != self.active


async def judged_messages(
    dialogues: Iterable[RecordedDialogue],
    registry: Registry,
    judge: TopicJudge,
    mends: Mends = Mends.AGENT,
) -> AsyncIterator[list[Judged]]:
    """Play dialogues one after the other; yield the user's messages of each. Raises DialogueFailed.

    judge: prepared for the registry. What is no agent's belongs where it is.
    """
    stage = Stage(
        policy=ReplayPolicy.STICKY,
        switch=mends.value,
        home_agent_id=registry.home_agent_id,
        run_label="evaluate",
    )
    for dialogue in dialogues:
        store = await open_store("memory:")
        try:
            await settle_format(store)
            dispatches: list[FirstDispatch] = []
            server = LocalServer(registry, judge, store)
            _, error = await play_dialogue(_owned(dialogue), server, stage, dispatches)
        finally:
            await store.close()
        if error:
            raise DialogueFailed(f"{dialogue.dialogue_id}: {error}")
        yield [_judged(each, dialogue, registry) for each in dispatches]


def _owned(dialogue: RecordedDialogue) -> RecordedDialogue:
    """Return a dialogue in which what is no agent's belongs to the agent before."""
    owner: str | None = None
    turns = []
    for turn in dialogue.turns:
        owner = turn.agent or owner
        turns.append(msgspec.structs.replace(turn, agent=owner))
    return msgspec.structs.replace(dialogue, turns=turns)


def _judged(first: FirstDispatch, dialogue: RecordedDialogue, registry: Registry) -> Judged:
    home, turn, trace = registry.home_agent_id, dialogue.turns[first.turn], first.trace
    dispatched = SUPERVISOR if first.agent_id == home else first.agent_id
    owner = SUPERVISOR if first.owner == home else first.owner
    likeliest, probability, sureness = dispatched, 1.0, 1.0
    if trace is not None and trace.model:
        options = {each.agent_id: each.confidence for each in trace.candidates}
        none = max(0.0, 1.0 - trace.stay - sum(options.values()))
        # What is for none of them stays where it is.
        options[first.active] = max(trace.stay, none)
        likeliest = max(options, key=options.__getitem__)
        probability, sureness = options[likeliest], trace.sureness
    return Judged(
        turn=first.turn,
        active=first.active,
        owner=owner,
        dispatched=dispatched,
        likeliest=likeliest,
        probability=min(1.0, probability),
        sureness=sureness,
        is_asked=first.reason == UNSURE,
        is_scored=bool(first.owner),
        is_no_agents=not turn.agent,
    )
