"""Playing one dialogue on a server, turn by turn.

Its rule: the record says who owns a turn, and the server says who gets it. If they differ, the
switch mode says what follows. The server never learns the owner beforehand.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from dataclasses import dataclass, field
from typing import Final

from google.protobuf.descriptor import EnumDescriptor

from agent_routing.errors import HandoffRefused, RoutingError
from agent_routing.v1 import routing_service_pb2 as pb
from agent_routing.v1.dispatch_pb2 import Dispatch
from agent_routing.v1.route_reason_pb2 import ROUTE_REASON_TOPIC_SWITCH, RouteReason
from agent_routing.v1.turn_pb2 import OUTCOME_STATUS_STORED_ONLY, OutcomeStatus
from routing_service.core.identifiers import ID_PATTERN
from routing_service.replay.choices import ReplayPolicy, SwitchMode
from routing_service.replay.figures import Calibration, DecisionDigest, Tally
from routing_service.replay.recorded_dialogue import RecordedDialogue, RecordedTurn
from routing_service.replay.server_calls import Server, is_away

USER_ID: Final = "replay"

NO_HISTORY: Final = -1
"""Not read by the replay; sent because a locked agent always gets it."""

_SESSION_NAME: Final = re.compile(ID_PATTERN)
_LOCALE: Final = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8}){0,3}")
_REQUEST_IDS: Final = uuid.UUID("6f1a7a50-6a53-5f0e-9a0c-6d6f2c1f3b8e")
"""The namespace of a replay's request ids: the same run makes the same requests."""

_NEXT_MAX: Final = 32
"""Dispatches that may follow one answer: more than any registry's limit of hops."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The settings that all dialogues of a replay share."""

    policy: ReplayPolicy
    switch: SwitchMode
    home_agent_id: str
    run_label: str
    user_id: str = USER_ID
    channel: str = ""
    entitlements: tuple[str, ...] = ()


class TurnLost(Exception):
    """The server kept an answer without acting on it: another caller is using the session."""


@dataclass(frozen=True, slots=True)
class Held:
    """An open request, and the agent whose answer it waits for."""

    request_id: str
    agent_id: str
    locked: bool


def session_id_for(run_label: str, dialogue: RecordedDialogue) -> str:
    """Return the session of a dialogue in a run: readable where its parts are safe in an id."""
    readable = ":".join(filter(None, ("replay", run_label, dialogue.corpus, dialogue.dialogue_id)))
    if _SESSION_NAME.fullmatch(readable):
        return readable
    parts = f"{run_label}\x1f{dialogue.corpus}\x1f{dialogue.dialogue_id}"
    return f"replay:{hashlib.sha256(parts.encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class FirstDispatch:
    """Where Route sent one user's message. turn: its place in the record, from 0.

    reason: as in the contract, without its prefix. owner: the message's true owner, the home
    agent if it has none; "" if the record does not show it. is_home: the supervisor has the
    message, or a swarm's default agent, which hands it on. active: the agent that had the
    conversation, "" for none. trace: what topic detection said.
    """

    turn: int
    agent_id: str
    reason: str
    owner: str
    is_home: bool
    active: str = ""
    trace: pb.TopicTrace | None = field(default=None, compare=False)


async def play_dialogue(
    dialogue: RecordedDialogue,
    server: Server,
    stage: Stage,
    first_dispatches: list[FirstDispatch] | None = None,
) -> tuple[Tally, str]:
    """Play a dialogue to its end, or to its first error; return its counts, and that error or "".

    first_dispatches: gets one entry for each user's message that was routed.
    Raises RoutingError if the server is away: the rest cannot be played then.
    """
    player = _Player(dialogue, server, stage, first_dispatches)
    error = ""
    try:
        await player.play()
    except RoutingError as failed:
        if is_away(failed):
            raise
        error = f"{failed} [{failed.reason or failed.code.name}]"
    except TurnLost as lost:
        error = str(lost)
    if error:
        player.tally.errors += 1
    player.tally.dialogues += 1
    player.tally.digest = player.digest.value()
    return player.tally, error


class _Player:
    """One dialogue while it is played."""

    def __init__(
        self,
        dialogue: RecordedDialogue,
        server: Server,
        stage: Stage,
        first_dispatches: list[FirstDispatch] | None,
    ) -> None:
        self._first_dispatches = first_dispatches
        self.tally = Tally()
        self.digest = DecisionDigest(dialogue.dialogue_id)
        self._dialogue = dialogue
        self._server = server
        self._stage = stage
        self._session_id = session_id_for(stage.run_label, dialogue)
        is_locale = _LOCALE.fullmatch(dialogue.language)
        self._locale = dialogue.language if is_locale else ""
        # The owner of the current message.
        self._owner = ""
        # The agent that was active after the last answer, "" for none.
        self._active = ""

    async def play(self) -> None:
        held: Held | None = None
        for number, turn in enumerate(self._dialogue.turns):
            if turn.speaker == "user":
                held = await self._send(number, turn)
            else:
                assert held is not None  # A dialogue begins with the user.
                await self._answer(number, turn, held)

    async def _send(self, number: int, turn: RecordedTurn) -> Held:
        """Route a user's message and bring it to its owner; return the agent that then has it."""
        request_id = uuid.uuid5(_REQUEST_IDS, f"{self._session_id}\x1f{number}")
        response = await self._server.route(
            pb.RouteRequest(
                session_id=self._session_id,
                user_id=self._stage.user_id,
                request_id=str(request_id),
                text=turn.text,
                # The record shows that the message was not a command.
                literal_text=True,
                locale=self._locale,
                channel=self._stage.channel,
                entitlements=self._stage.entitlements,
                history_turns=NO_HISTORY,
                explain_topic=True,
            )
        )
        calls_before = self.tally.supervisor_calls
        first = self._take(number, response.dispatch)
        self._owner = owner = turn.agent or self._stage.home_agent_id
        self._score(turn, first, owner)
        self._score_topic(turn, response, owner)
        if self._first_dispatches is not None:
            reason = _name(RouteReason.DESCRIPTOR, response.dispatch.reason)
            self._first_dispatches.append(
                FirstDispatch(
                    turn=number,
                    agent_id=first.agent_id,
                    reason=reason.removeprefix("ROUTE_REASON_"),
                    owner="" if turn.uncertain else owner,
                    is_home=first.agent_id == self._stage.home_agent_id,
                    active=self._active,
                    trace=response.topic_trace,
                )
            )
        held = await self._answer_offer(number, response, first, owner)
        held = await self._bring_to(number, held, owner)
        self.tally.user_turns += 1
        if held.agent_id not in (owner, self._stage.home_agent_id):
            self.tally.stuck_turns += 1
        unsupervised = self.tally.supervisor_calls == calls_before
        self.tally.unsupervised_turns += unsupervised
        # A lock saves the call even if the message turns out to be for another agent. An agent
        # that sticks saves it only as long as the topic is its own.
        by_lock = self._stage.policy is ReplayPolicy.FOLLOW_UP
        self.tally.saved_turns += response.supervisor_bypassed and (by_lock or unsupervised)
        return held

    def _score(self, turn: RecordedTurn, first: Held, owner: str) -> None:
        if turn.uncertain:
            return
        self.tally.scored_turns += 1
        if first.agent_id == owner:
            self.tally.first_right_turns += 1
        elif first.agent_id != self._stage.home_agent_id:
            self.tally.misrouted_turns += 1

    def _score_topic(self, turn: RecordedTurn, response: pb.RouteResponse, owner: str) -> None:
        """Count topic detection's verdict on a message whose owner the record shows."""
        if turn.uncertain:
            return
        home, active = self._stage.home_agent_id, self._active
        trace = response.topic_trace
        if trace.model:
            self.tally.judged_turns += 1
            self.tally.calibration += _came_true(trace, active or home, home, owner)
        if not active:
            return
        chosen = ""
        if response.HasField("suggestion"):
            chosen = response.suggestion.agent.agent_id
        elif response.dispatch.reason == ROUTE_REASON_TOPIC_SWITCH:
            chosen = response.dispatch.agent.agent_id
        self.tally.switches += bool(chosen)
        self.tally.right_switches += chosen == owner
        self.tally.false_switches += bool(chosen) and owner == active
        self.tally.due_switches += owner not in (active, home)

    async def _answer_offer(
        self, number: int, response: pb.RouteResponse, held: Held, owner: str
    ) -> Held:
        """Let the user take a suggestion of the owner, and decline any other."""
        if not response.HasField("suggestion"):
            return held
        self.tally.offers += 1
        offered_id = response.suggestion.agent.agent_id
        accepts = offered_id == owner
        accept, stay = response.suggestion.options
        request_id = uuid.uuid5(_REQUEST_IDS, f"{self._session_id}\x1f{number}\x1foffer")
        answered = await self._server.route(
            pb.RouteRequest(
                session_id=self._session_id,
                user_id=self._stage.user_id,
                request_id=str(request_id),
                quick_reply_id=accept.id if accepts else stay.id,
                history_turns=NO_HISTORY,
            )
        )
        self.digest.note(number, "offered", offered_id, accepts)
        if not accepts:
            self.tally.offers_declined += 1
            return held
        self.tally.offers_accepted += 1
        return self._take(number, answered.dispatch)

    async def _bring_to(self, number: int, held: Held, owner: str) -> Held:
        """Hand the message over until its owner gets it, as the switch mode says."""
        home = self._stage.home_agent_id
        if held.agent_id not in (owner, home):
            match self._stage.switch:
                case SwitchMode.STUCK:
                    return held
                case SwitchMode.AGENT:
                    held = await self._hand_over(number, held, owner)
                case SwitchMode.SUPERVISOR:
                    pass
            if held.agent_id != owner:
                # The conversation is cleared with it, lock and all.
                held = await self._hand_over(number, held, home)
        if held.agent_id == home != owner:
            held = await self._hand_over(number, held, owner)
        return held

    async def _hand_over(self, number: int, held: Held, agent_id: str) -> Held:
        """Hand over; a refusal leaves the message with its agent, and is counted."""
        request = self._completion(held, "")
        request.handoff.agent_id = agent_id
        request.handoff.reason = "the topic is another agent's"
        try:
            response = await self._complete(number, request)
        except HandoffRefused:
            self.tally.handoffs_refused += 1
            self.digest.note(number, "refused", held.agent_id, agent_id)
            return held
        if agent_id != self._stage.home_agent_id:
            self.tally.handoffs += 1
        return self._take(number, response.next)

    async def _answer(self, number: int, turn: RecordedTurn, held: Held) -> None:
        """Complete the turn as recorded; an agent that got it wrongly gives an empty answer."""
        answerer = turn.agent or self._stage.home_agent_id
        if answerer != self._owner:
            # Another agent than the owner answered: the agents handed over among themselves.
            held = await self._bring_to(number, held, answerer)
        if held.agent_id == answerer:
            request = self._completion(held, turn.text)
            if turn.requires_follow_up:
                request.follow_up.SetInParent()
            elif turn.task_complete:
                request.complete.SetInParent()
            else:
                request.proceed.SetInParent()
        else:
            request = self._completion(held, "")
            if held.locked:
                # It still waits for the answer to its question.
                request.follow_up.SetInParent()
            else:
                request.proceed.SetInParent()
        response = await self._complete(number, request)
        for _ in range(_NEXT_MAX):
            if not response.HasField("next"):
                return
            # The registry passes the message on to an agent that the record does not have.
            follower = self._take(number, response.next)
            request = self._completion(follower, "")
            request.proceed.SetInParent()
            response = await self._complete(number, request)
        raise TurnLost(f"turn {number}: the message was sent on {_NEXT_MAX} times")

    def _completion(self, held: Held, text: str) -> pb.CompleteTurnRequest:
        return pb.CompleteTurnRequest(
            session_id=self._session_id,
            user_id=self._stage.user_id,
            request_id=held.request_id,
            agent_id=held.agent_id,
            text=text,
        )

    async def _complete(
        self, number: int, request: pb.CompleteTurnRequest
    ) -> pb.CompleteTurnResponse:
        response = await self._server.complete_turn(request)
        status = _name(OutcomeStatus.DESCRIPTOR, response.outcome_status)
        active_id = response.active_agent.agent_id
        self.digest.note(number, "completed", status, active_id, response.locked)
        self._active = active_id
        if response.outcome_status == OUTCOME_STATUS_STORED_ONLY:
            raise TurnLost(
                f"turn {number}: the answer of {request.agent_id} was stored and moved nothing; "
                "is another client at work in this session?"
            )
        return response

    def _take(self, number: int, dispatch: Dispatch) -> Held:
        agent_id = dispatch.agent.agent_id
        if not agent_id:
            raise TurnLost(f"turn {number}: the server dispatched the message to nobody")
        if agent_id == self._stage.home_agent_id:
            self.tally.supervisor_calls += 1
        reason = _name(RouteReason.DESCRIPTOR, dispatch.reason)
        self.digest.note(number, "dispatched", agent_id, reason, dispatch.locked)
        return Held(dispatch.request_id, agent_id, dispatch.locked)


def _came_true(trace: pb.TopicTrace, present: str, home: str, owner: str) -> Calibration:
    """Compare a verdict with the message's true owner.

    present: the active agent, or the home agent if no agent is active; it then owns a message that
    is for none of the candidates.
    """
    likeliest = [(candidate.confidence, candidate.agent_id) for candidate in trace.candidates]
    said = sum(candidate.confidence for candidate in trace.candidates) + trace.stay
    likeliest.append((trace.stay, present))
    likeliest.append((max(0.0, 1 - said), home))
    probability, agent_id = max(likeliest, key=lambda each: each[0])
    return Calibration.of(min(1.0, probability), is_right=agent_id == owner)


def _name(enum: EnumDescriptor, value: int) -> str:
    """Return the name of an enum's value, or the number of a newer server's value."""
    found = enum.values_by_number.get(value)
    return str(found.name) if found else str(value)
