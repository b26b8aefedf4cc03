"""A stored conversation as a recorded dialogue, with the agent that each message really was for.

Rule: an owner is what happened, not what routing decided first: the agent that answered after all
handoffs, or the one that the user, the user's answer to a suggestion, or an operator chose instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from agent_routing.v1.agent_pb2 import Agent
from agent_routing.v1.handoff_pb2 import INITIATOR_OPERATOR, INITIATOR_USER
from agent_routing.v1.route_reason_pb2 import (
    ROUTE_REASON_CONSULTED,
    ROUTE_REASON_RETURNED,
    ROUTE_REASON_TASK_COMPLETED,
    ROUTE_REASON_TASK_RESUMED,
)
from agent_routing.v1.session_event_pb2 import (
    AGENT_CLEAR_CAUSE_COMMAND,
    AgentHandoff,
    SessionEvent,
)
from agent_routing.v1.turn_pb2 import (
    TURN_OUTCOME_ABANDONED,
    TURN_OUTCOME_ANSWERED,
    TURN_OUTCOME_COMPLETE,
    TURN_OUTCOME_FAILURE,
    TURN_OUTCOME_FOLLOW_UP,
    TURN_OUTCOME_HANDOFF,
    TURN_OUTCOME_UNSPECIFIED,
    Turn,
)
from routing_service.replay.recorded_dialogue import RecordedDialogue, RecordedTurn

KINDS: Final = (
    "agent_handoff",
    "agent_cleared",
    "message_routed",
    "switch_suggested",
    "task_foregrounded",
    "task_parked",
    "switch_answered",
)
"""The events that show a message's owner besides its turns."""

_FOLLOWS: Final = frozenset(
    {ROUTE_REASON_TASK_COMPLETED, ROUTE_REASON_RETURNED, ROUTE_REASON_TASK_RESUMED}
)
"""Reasons of requests that follow a finished one: they say nothing about whose the message was."""

_UNANSWERED: Final = frozenset(
    {
        TURN_OUTCOME_UNSPECIFIED,
        TURN_OUTCOME_ABANDONED,
        TURN_OUTCOME_ANSWERED,
        TURN_OUTCOME_FAILURE,
        TURN_OUTCOME_HANDOFF,
    }
)


@dataclass(slots=True)
class _Message:
    """A user's message with what followed. owner: "" = nobody yet."""

    root: Turn
    owner: str
    answer: Turn | None = None
    is_uncertain: bool = False
    is_repeat: bool = False


def dialogue_of(
    dialogue_id: str,
    turns: Sequence[Turn],
    events: Iterable[SessionEvent],
    *,
    home_agent_id: str,
    language: str = "",
) -> RecordedDialogue:
    """Return a session's turns and events, both oldest first, as a dialogue.

    The owner None is the home agent. A message is uncertain if nobody answered it, or if the user
    left with /supervisor right after the answer.
    """
    dialogue, _ = dialogue_with_turns(
        dialogue_id, turns, events, home_agent_id=home_agent_id, language=language
    )
    return dialogue


def dialogue_with_turns(
    dialogue_id: str,
    turns: Sequence[Turn],
    events: Iterable[SessionEvent],
    *,
    home_agent_id: str,
    language: str = "",
) -> tuple[RecordedDialogue, list[Turn]]:
    """Return the same, and the stored turn of each of the dialogue's user turns."""
    messages = _messages(turns)
    _correct(messages, events)
    recorded: list[RecordedTurn] = []
    roots: list[Turn] = []
    for message in messages:
        if message.is_repeat or not message.root.user_text.strip():
            continue
        recorded += _turns_of(message, home_agent_id)
        roots.append(message.root)
    dialogue = RecordedDialogue(dialogue_id, recorded, corpus="stored", language=language)
    return dialogue, roots


def agents_of(turns: Iterable[Turn]) -> frozenset[str]:
    """Return the agents that took part in a session."""
    return frozenset(turn.agent_id for turn in turns)


def with_texts(dialogue: RecordedDialogue, texts: Sequence[str]) -> RecordedDialogue:
    """Return the dialogue with other texts, one for each of its turns."""
    turns = [
        msgspec.structs.replace(turn, text=text)
        for turn, text in zip(dialogue.turns, texts, strict=True)
    ]
    return msgspec.structs.replace(dialogue, turns=turns)


def _messages(turns: Sequence[Turn]) -> list[_Message]:
    """Return the users' messages, each with its owner by its chain of requests."""
    found: dict[str, _Message] = {}
    root_of: dict[str, str] = {}
    for turn in turns:
        root = root_of.get(turn.parent_request_id, turn.request_id)
        root_of[turn.request_id] = root
        message = found.setdefault(root, _Message(turn, turn.agent_id, is_uncertain=True))
        if turn.reason == ROUTE_REASON_CONSULTED:
            continue
        if turn.reason not in _FOLLOWS:
            message.owner = turn.agent_id
        if turn.outcome not in _UNANSWERED:
            message.is_uncertain = False
            if turn.agent_text or message.answer is None:
                message.answer = turn
    return list(found.values())


def _correct(messages: Sequence[_Message], events: Iterable[SessionEvent]) -> None:
    """Give messages the owner that the user or an operator chose after the answer."""
    by_request = {message.root.request_id: message for message in messages}
    offers: dict[str, _Message] = {}
    # The message of the offer that was accepted, and the revision: the chosen agent gets it again.
    accepted: tuple[_Message, int] | None = None
    # A correction is of the message before it in the same task: by parked task, "" for the one that
    # has the conversation.
    lasts: dict[str, _Message | None] = {}
    for event in events:
        place = event.parked_task_id
        match event.WhichOneof("kind"):
            case "task_parked":
                lasts[event.task_parked.task_id] = lasts.pop("", None)
            case "task_foregrounded":
                lasts[""] = lasts.pop(event.task_foregrounded.task_id, None)
            case "message_routed":
                routed = by_request.get(event.message_routed.request_id)
                if accepted is not None and routed is not None and accepted[1] == event.revision:
                    _repeat(accepted[0], routed)
                    lasts[place] = accepted[0]
                else:
                    lasts[place] = routed or lasts.get(place)
            case "switch_suggested":
                suggested = event.switch_suggested
                if suggested.request_id in by_request:
                    offered = by_request[suggested.request_id]
                    offers[suggested.suggestion.suggestion_id] = offered
            case "switch_answered":
                answered = event.switch_answered
                offered_message = offers.pop(answered.suggestion_id, None)
                if offered_message is not None and answered.accepted:
                    offered_message.owner = answered.agent.agent_id
                    accepted = (offered_message, event.revision)
                elif offered_message is not None:
                    offered_message.owner = answered.from_agent_id
            case "agent_handoff":
                _moved(lasts.get(place), event.agent_handoff)
            case "agent_cleared":
                last = lasts.get(place)
                if last is not None and event.agent_cleared.cause == AGENT_CLEAR_CAUSE_COMMAND:
                    last.is_uncertain = True
            case _:
                pass


def _repeat(offered: _Message, repeated: _Message) -> None:
    """Let the message of an accepted suggestion have the answer that the chosen agent gave."""
    repeated.is_repeat = True
    offered.answer, offered.is_uncertain = repeated.answer, repeated.is_uncertain


def _moved(last: _Message | None, handoff: AgentHandoff) -> None:
    """Correct the last message by a handoff that a user or an operator asked for."""
    made = handoff.handoff
    if last is None:
        return
    is_correction = made.initiator in (INITIATOR_USER, INITIATOR_OPERATOR)
    from_agent: Agent = getattr(made, "from")
    if is_correction and not handoff.turn_request_id and from_agent.agent_id == last.owner:
        last.owner = made.to.agent_id


def _turns_of(message: _Message, home_agent_id: str) -> Iterator[RecordedTurn]:
    """Yield a message and its answer, if it has one."""
    yield RecordedTurn(
        "user",
        message.root.user_text,
        _owner(message.owner, home_agent_id),
        uncertain=message.is_uncertain,
    )
    answer = message.answer
    if answer is not None:
        yield RecordedTurn(
            "agent",
            answer.agent_text,
            _owner(answer.agent_id, home_agent_id),
            requires_follow_up=answer.outcome == TURN_OUTCOME_FOLLOW_UP,
            task_complete=answer.outcome == TURN_OUTCOME_COMPLETE,
        )


def _owner(agent_id: str, home_agent_id: str) -> str | None:
    return None if agent_id == home_agent_id else agent_id
