"""A conversation as a chat frontend drives it: route, let the agent answer, follow the dispatches.

Its rule: the service alone decides who answers. If it cannot be reached, every message that is
answered all the same says so.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol, assert_never

from agent_routing import CallInfo, Client, RouteResult, RoutingError, outcomes
from agent_routing.errors import HandoffRefused, UnknownSession
from agent_routing.v1.agent_pb2 import AGENT_KIND_HUMAN, Agent
from agent_routing.v1.dispatch_pb2 import DELIVERY_INBOX, Decision, Dispatch, Reply, Suggestion
from agent_routing.v1.handoff_pb2 import Handoff
from agent_routing.v1.item_pb2 import Item
from agent_routing.v1.route_reason_pb2 import RouteReason
from agent_routing.v1.routing_service_pb2 import (
    CompleteTurnResponse,
    PendingApproval,
    ResumeTaskResponse,
    StatusResponse,
)
from agent_routing.v1.turn_pb2 import OUTCOME_STATUS_APPLIED as APPLIED
from routing_service.cli.answers import pending_approvals
from routing_service.examples.agent_reply import (
    AgentReply,
    AgentTurn,
    AskApproval,
    Complete,
    Fail,
    FollowUp,
    HandOff,
    Outcome,
    Proceed,
)
from routing_service.examples.transfer_tool import describe_refusal
from routing_service.ids import new_uuid7

DecisionWord = Literal["approve", "reject"]

_REFUSALS_MAX: Final = 3
"""Refused handoffs in a turn before the agent is asked for text alone."""


class Agents(Protocol):
    """What answers for the agents: scripts or stand-ins."""

    def answer(self, turn: AgentTurn) -> AgentReply:
        """Return the answer of the turn's agent."""
        ...


@dataclass(frozen=True, slots=True)
class Replied:
    """The service answered a command without an agent."""

    reply: Reply


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Another agent has the conversation."""

    handoff: Handoff


@dataclass(frozen=True, slots=True)
class Refused:
    """The rules refused an agent's handoff."""

    agent: Agent
    error: HandoffRefused


@dataclass(frozen=True, slots=True)
class AgentAnswered:
    """An agent answered. outcome: such as "follow up". waits: for the user's answer."""

    agent: Agent
    reason: str
    text: str
    outcome: str
    waits: bool


@dataclass(frozen=True, slots=True)
class WaitsForPerson:
    """The message is for a person, who answers in time: see Conversation.news()."""

    agent: Agent


@dataclass(frozen=True, slots=True)
class PersonAnswered:
    """A person answered, or said something."""

    agent: Agent
    text: str


@dataclass(frozen=True, slots=True)
class ApprovalAsked:
    """An agent waits for a person's approval. prompt: what is to be approved."""

    agent: Agent
    prompt: str


@dataclass(frozen=True, slots=True)
class Suggested:
    """The user is offered another agent. A plain yes accepts, unless an agent waits."""

    suggestion: Suggestion


@dataclass(frozen=True, slots=True)
class NothingToDecide:
    """A decision came, but no agent had asked for an approval."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """The same request was sent again. replayed: it got the first answer and had no effect."""

    replayed: bool


@dataclass(frozen=True, slots=True)
class Degraded:
    """The service could not be reached: the client's fallback decided, and nothing was stored."""

    error: RoutingError


@dataclass(frozen=True, slots=True)
class Failed:
    """A call was refused or got no answer."""

    error: RoutingError


Happening = (
    Replied
    | HandedOver
    | Refused
    | AgentAnswered
    | WaitsForPerson
    | PersonAnswered
    | ApprovalAsked
    | Suggested
    | NothingToDecide
    | Repeated
    | Degraded
    | Failed
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """The user, the session and the channel."""

    session_id: str
    user_id: str
    locale: str
    channel: str
    entitlements: tuple[str, ...] = ()
    # Kept on every task.
    metadata: tuple[tuple[str, str], ...] = ()


class Conversation:
    """One session and its agents."""

    def __init__(self, client: Client, agents: Agents, speaker: Speaker) -> None:
        self._client = client
        self._agents = agents
        self.speaker = speaker
        # Agents that stand for people, once one has had a message here, and what they said.
        self._people: dict[str, Agent] = {}
        self._heard: set[str] = set()

    def say(
        self, text: str, items: tuple[Item, ...] = (), *, comes_twice: bool = False
    ) -> Iterator[Happening]:
        """Send a message of the user; yield each happening as it comes.

        comes_twice: send it again, as if the first answer had been lost.
        """
        request_id = new_uuid7()
        try:
            routed = self._route(text, items, request_id)
            if comes_twice:
                yield Repeated(self._route(text, items, request_id).replayed)
            if routed.degraded:
                assert routed.error is not None
                yield Degraded(routed.error)
            if routed.response.HasField("reply"):
                yield Replied(routed.response.reply)
            if routed.degraded and routed.dispatch is not None:
                yield self._answer_unheard(routed.dispatch)
                return
            yield from self._follow(routed.dispatch)
            if routed.suggestion is not None:
                yield Suggested(routed.suggestion)
        except RoutingError as error:
            yield Failed(error)

    def decide(
        self, decision: DecisionWord, comment: str, *, comes_twice: bool = False
    ) -> Iterator[Happening]:
        """Approve or reject what the agent waits for."""
        try:
            pending = self._pending_approval()
            if pending is None:
                yield NothingToDecide()
                return
            info = CallInfo()
            resumed = self._resume(pending, decision, comment, info)
            if comes_twice:
                resumed = self._resume(pending, decision, comment, info)
                yield Repeated(info.replayed)
            yield from self._follow(resumed.dispatch)
        except RoutingError as error:
            yield Failed(error)

    def _pending_approval(self) -> PendingApproval | None:
        """Return the pending approval; None without one, or before the first message."""
        speaker = self.speaker
        try:
            status = self._client.status(speaker.session_id, user_id=speaker.user_id)
        except UnknownSession:
            return None
        return next(iter(pending_approvals(status)), None)

    def _resume(
        self, pending: PendingApproval, decision: DecisionWord, comment: str, info: CallInfo
    ) -> ResumeTaskResponse:
        return self._client.resume_task(
            pending.task_id,
            pending.request_id,
            "APPROVE" if decision == "approve" else "REJECT",
            session_id=self.speaker.session_id,
            comment=comment,
            info=info,
        )

    def _route(self, text: str, items: tuple[Item, ...], request_id: str) -> RouteResult:
        speaker = self.speaker
        return self._client.route(
            text,
            session_id=speaker.session_id,
            user_id=speaker.user_id,
            request_id=request_id,
            items=items,
            locale=speaker.locale,
            channel=speaker.channel,
            entitlements=speaker.entitlements,
            metadata=dict(speaker.metadata),
        )

    def _follow(self, dispatch: Dispatch | None) -> Iterator[Happening]:
        """Let agents answer until no dispatch follows."""
        while dispatch is not None:
            if dispatch.HasField("handoff"):
                yield HandedOver(dispatch.handoff)
            if dispatch.agent.kind == AGENT_KIND_HUMAN:
                self._people[dispatch.agent.agent_id] = dispatch.agent
                yield WaitsForPerson(dispatch.agent)
                return
            response = yield from self._answer(dispatch)
            dispatch = response.next if response.HasField("next") else None

    def news(self) -> Iterator[Happening]:
        """Yield what people have said since, and carry on with what they gave to an agent.

        Costs nothing until a message was for a person. Raises RoutingError.
        """
        for agent in self._people.values():
            turns = self._client.list_turns_page(
                self.speaker.session_id,
                user_id=self.speaker.user_id,
                agent_id=agent.agent_id,
                order="NEWEST_FIRST",
            ).turns
            for turn in reversed(turns):
                if turn.agent_text and turn.request_id not in self._heard:
                    self._heard.add(turn.request_id)
                    yield PersonAnswered(agent, turn.agent_text)
        if not self._people:
            return
        status = self._client.status(self.speaker.session_id, user_id=self.speaker.user_id)
        for dispatch in status.open_requests:
            is_handed_back = dispatch.handoff.HasField("from") and (
                getattr(dispatch.handoff, "from").agent_id in self._people
            )
            if is_handed_back and dispatch.delivery != DELIVERY_INBOX:
                yield from self._follow(dispatch)

    def standing(self) -> StatusResponse | None:
        """Return the session's status; None while the service cannot be reached."""
        try:
            return self._client.status(self.speaker.session_id, user_id=self.speaker.user_id)
        except RoutingError:
            return None

    def _answer(self, dispatch: Dispatch) -> Generator[Happening, None, CompleteTurnResponse]:
        """Let the agent answer, and again if its handoff is refused; return the completed turn."""
        turn = self._turn(dispatch)
        reply = self._agents.answer(turn)
        for refusals in itertools.count(1):
            try:
                response = self._complete(dispatch, reply)
            except HandoffRefused as error:
                yield Refused(dispatch.agent, error)
                refusal = describe_refusal(error.message)
                reply = self._agents.answer(
                    replace(turn, refused_rules=error.rules, refusal=refusal)
                )
                if refusals >= _REFUSALS_MAX:
                    reply = AgentReply(reply.text, Proceed())
                continue
            yield AgentAnswered(
                dispatch.agent,
                turn.reason,
                response.text,
                _OUTCOME_WORDS[type(reply.outcome)],
                response.locked and response.active_agent.agent_id == dispatch.agent.agent_id,
            )
            if isinstance(reply.outcome, AskApproval) and response.outcome_status == APPLIED:
                yield ApprovalAsked(dispatch.agent, reply.outcome.prompt)
            return response
        raise AssertionError  # Counting does not end.

    def _answer_unheard(self, dispatch: Dispatch) -> AgentAnswered:
        """Let the agent answer a message that the service never got; nothing is reported."""
        turn = self._turn(dispatch)
        reply = self._agents.answer(turn)
        return AgentAnswered(
            dispatch.agent,
            turn.reason,
            reply.text,
            _OUTCOME_WORDS[type(reply.outcome)],
            waits=False,
        )

    def _turn(self, dispatch: Dispatch) -> AgentTurn:
        reason = RouteReason.DESCRIPTOR.values_by_number.get(dispatch.reason)
        return AgentTurn(
            agent_id=dispatch.agent.agent_id,
            text=dispatch.text,
            locale=self.speaker.locale,
            reason=reason.name.removeprefix("ROUTE_REASON_").lower() if reason else "",
            handoff_reason=dispatch.handoff.reason,
            handoff_context=dict(dispatch.handoff.context),
            item_types=tuple(item.content_type for item in dispatch.items),
            decision=_DECISION_WORDS.get(dispatch.resume.decision, ""),
            decision_comment=dispatch.resume.comment,
            locked=dispatch.locked,
        )

    def _complete(self, dispatch: Dispatch, reply: AgentReply) -> CompleteTurnResponse:
        return self._client.complete_turn(
            self.speaker.session_id,
            dispatch.request_id,
            dispatch.agent.agent_id,
            _to_contract(reply.outcome),
            text=reply.text,
            user_id=self.speaker.user_id,
            # If the registry lets the agent use markers.
            parse_markers=True,
        )


_DECISION_WORDS: Final = {
    Decision.DECISION_APPROVE: "approve",
    Decision.DECISION_REJECT: "reject",
}

_OUTCOME_WORDS: Final = {
    Proceed: "proceed",
    FollowUp: "follow up",
    Complete: "complete",
    HandOff: "handoff",
    AskApproval: "approval needed",
    Fail: "failure",
}


def _to_contract(outcome: Outcome) -> outcomes.Outcome:
    match outcome:
        case Proceed():
            return outcomes.proceed()
        case FollowUp(timeout_s=timeout_s):
            return outcomes.follow_up(timeout=timeout_s)
        case Complete(summary=summary, message=message):
            return outcomes.complete(summary=summary, message=message)
        case HandOff(agent_id, reason, context, message, mode):
            return outcomes.handoff(
                agent_id,
                reason=reason,
                context=context or None,
                message=message,
                mode="INTERLUDE" if mode == "interlude" else "TRANSFER",
            )
        case AskApproval(prompt=prompt):
            return outcomes.approval_needed(prompt)
        case Fail(message=message):
            return outcomes.failure(message)
        case _:
            assert_never(outcome)
