"""One stored conversation with two registries, and where they differ.

Rule: a message whose owner one of the registries does not have is played all the same. On that side
it is the home agent's, and in no score.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from agent_routing.v1 import admin_service_pb2 as admin_pb
from agent_routing.v1 import routing_service_pb2 as pb
from agent_routing.v1.route_reason_pb2 import RouteReason
from agent_routing.v1.session_event_pb2 import SessionEvent
from agent_routing.v1.turn_pb2 import Turn
from routing_service.core.registry import Registry
from routing_service.replay.choices import ReplayPolicy, SwitchMode
from routing_service.replay.comparison import effect_of
from routing_service.replay.figures import Tally
from routing_service.replay.local_server import LocalServer
from routing_service.replay.play import FirstDispatch, Stage, play_dialogue
from routing_service.replay.recorded_dialogue import RecordedDialogue
from routing_service.replay.stored_dialogues import dialogue_with_turns
from routing_service.rpc.admin.replay_frames import Conversation, Figures, FoundTurn, Played
from routing_service.storage.open_store import open_store
from routing_service.storage.store_format import settle_format
from routing_service.topics.detection import TopicJudge

_EFFECTS: Final = {
    "right now": admin_pb.REPLAY_EFFECT_RIGHT_NOW,
    "by the supervisor now": admin_pb.REPLAY_EFFECT_SUPERVISED_NOW,
    "misrouted now": admin_pb.REPLAY_EFFECT_MISROUTED_NOW,
    "as good as before": admin_pb.REPLAY_EFFECT_AS_GOOD,
    "unknown": admin_pb.REPLAY_EFFECT_UNKNOWN,
}

_US: Final = 1_000_000


@dataclass(slots=True)
class WhatIfSide:
    """One of the two registries, with what it did so far."""

    registry: Registry
    topics: TopicJudge
    tally: Tally = field(default_factory=Tally)

    @property
    def figures(self) -> Figures:
        """The counts of all conversations that both sides played."""
        tally = self.tally
        return Figures(
            supervisor_calls_saved=tally.saved_turns,
            supervisor_calls=tally.supervisor_calls,
            scored_messages=tally.scored_turns,
            first_right=tally.first_right_turns,
            misrouted=tally.misrouted_turns,
            handoffs=tally.handoffs,
            handoffs_refused=tally.handoffs_refused,
            stuck=tally.stuck_turns,
            errors=tally.errors,
        )


@dataclass(frozen=True, slots=True)
class _Record:
    """A conversation to be played. roots: the stored turn of each message of the user."""

    conversation: Conversation
    dialogue: RecordedDialogue
    roots: Sequence[Turn]


async def play_conversation(
    conversation: Conversation, current: WhatIfSide, candidate: WhatIfSide
) -> Played:
    """Play a conversation with both registries, and return where they differ.

    One that fails on a side is in no count but that side's errors.
    """
    record = _record_of(conversation)
    found: list[FoundTurn] = []
    messages = 0
    if record.dialogue.turns:
        played = [await _play(record, side) for side in (current, candidate)]
        errors = [tally.errors for tally, _ in played]
        for side, (tally, _) in zip((current, candidate), played, strict=True):
            side.tally.add(tally if not any(errors) else Tally(errors=tally.errors))
        if not any(errors):
            messages = record.dialogue.user_turns
            (_, before), (_, after) = played
            found = list(_differences(record, before, after, candidate.registry))
    return Played(conversation.session_id, messages, found, current.figures, candidate.figures)


def _record_of(conversation: Conversation) -> _Record:
    """Read a conversation's pages."""
    turns: list[Turn] = []
    events: list[SessionEvent] = []
    for page in conversation.turns:
        turns += pb.ListTurnsResponse.FromString(page).turns
    for page in conversation.events:
        records = admin_pb.ListEventsResponse.FromString(page).records
        events += [each.event for each in records]
    dialogue, roots = dialogue_with_turns(
        "conversation",
        turns,
        events,
        home_agent_id=conversation.home_agent_id,
        language=conversation.locale,
    )
    return _Record(conversation, dialogue, roots)


async def _play(record: _Record, side: WhatIfSide) -> tuple[Tally, list[FirstDispatch]]:
    """Play a conversation with one registry, in a store of its own."""
    store = await open_store("memory:")
    try:
        await settle_format(store)
        server = _AtRecordedTimes(side.registry, side.topics, store)
        server.times_us = [_time_us(root) for root in record.roots]
        dispatches: list[FirstDispatch] = []
        stage = Stage(
            policy=ReplayPolicy.STICKY,
            switch=SwitchMode.SUPERVISOR,
            home_agent_id=side.registry.home_agent_id,
            run_label="what-if",
            channel=record.conversation.channel,
            entitlements=record.conversation.entitlements,
        )
        dialogue = _as_known_to(side.registry, record.dialogue)
        tally, _ = await play_dialogue(dialogue, server, stage, dispatches)
    finally:
        await store.close()
    return tally, dispatches


class _AtRecordedTimes(LocalServer):
    """A local server whose clock stands at the time of each message, as recorded."""

    times_us: list[int]

    async def route(self, request: pb.RouteRequest) -> pb.RouteResponse:
        """Set the clock to the message's time, and route it."""
        if request.text and self.times_us:
            # What is taken up late, such as an answer to a suggestion, is never before it.
            self.clock_us = max(self.clock_us, self.times_us.pop(0))
        return await super().route(request)


def _time_us(turn: Turn) -> int:
    time = turn.create_time
    return time.seconds * _US + time.nanos // 1_000


def _as_known_to(registry: Registry, dialogue: RecordedDialogue) -> RecordedDialogue:
    """Return the dialogue with a registry's own ids of the agents."""
    turns = []
    for turn in dialogue.turns:
        agent = turn.agent and registry.resolve(turn.agent)
        is_gone = bool(turn.agent) and agent is None
        if agent == registry.home_agent_id:
            agent = None
        turns.append(
            msgspec.structs.replace(turn, agent=agent, uncertain=turn.uncertain or is_gone)
        )
    return msgspec.structs.replace(dialogue, turns=turns)


def _differences(
    record: _Record,
    before: Sequence[FirstDispatch],
    after: Sequence[FirstDispatch],
    candidate: Registry,
) -> Iterator[FoundTurn]:
    """Yield the messages that the candidate sends elsewhere, or for another reason."""
    places = [at for at, turn in enumerate(record.dialogue.turns) if turn.speaker == "user"]
    number_of: Mapping[int, int] = {at: number for number, at in enumerate(places)}
    for was, now in zip(before, after, strict=True):
        # An agent that only has another id is the same agent.
        same_id = candidate.resolve(was.agent_id) or was.agent_id
        if (same_id, was.reason) == (now.agent_id, now.reason):
            continue
        turn = record.dialogue.turns[was.turn]
        owner = "" if turn.uncertain else turn.agent or record.conversation.home_agent_id
        is_gone = bool(owner) and not now.owner
        effect = _EFFECTS[effect_of(was, now)]
        number = number_of[was.turn]
        yield FoundTurn(
            request_id=record.roots[number].request_id,
            number=number + 1,
            owner=owner,
            current_agent=was.agent_id,
            current_reason=_reason(was),
            agent=now.agent_id,
            reason=_reason(now),
            effect=admin_pb.REPLAY_EFFECT_OWNER_REMOVED if is_gone else effect,
        )


def _reason(first: FirstDispatch) -> int:
    return RouteReason.Value(f"ROUTE_REASON_{first.reason}")
