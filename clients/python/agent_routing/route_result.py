"""What route() returns.

It reads a decision without checking in each message whether a field is set. The generated response
is in .response.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agent_routing.errors import RoutingError
from agent_routing.messages import dispatch_pb2, handoff_pb2, item_pb2, route_reason_pb2
from agent_routing.messages import routing_service_pb2 as pb


@dataclass(frozen=True, slots=True)
class RouteResult:
    """Where a user's message goes.

    Show reply_text if there is one; then, if agent_id is set, send text to that agent and report
    its answer with complete_turn().

    response: the generated message, with everything. degraded: whether the client decided alone
    because the service could not be reached: nothing is stored, and the service does not know this
    message until it is reported (degraded_turn()), or routed again with the same session_id,
    request_id and content. replayed: whether this is the stored answer to an earlier call with
    this request_id. error: why the decision is degraded, or None. base_revision, decided_us: of a
    degraded decision: the last revision of the session that the client knew, and when it decided,
    in microseconds since 1970.
    """

    response: pb.RouteResponse
    degraded: bool = False
    replayed: bool = False
    error: RoutingError | None = None
    base_revision: int | None = None
    decided_us: int = 0

    @property
    def session_id(self) -> str:
        """The session: given, found, or made by the service.

        Empty only for a degraded message that named none: the service makes the id.
        """
        return self.response.session_id

    @property
    def task_id(self) -> str:
        """The task: given, found, or made by the service. Empty if there is none."""
        return self.response.task_id

    @property
    def request_id(self) -> str:
        """The request: given or generated; complete_turn() takes it."""
        return self.response.request_id

    @property
    def revision(self) -> int:
        """The session's revision after the call; 0 if degraded."""
        return self.response.revision

    @property
    def dispatch(self) -> dispatch_pb2.Dispatch | None:
        """The whole dispatch: agent, items, history, handoff. None if no agent must act."""
        return self.response.dispatch if self.response.HasField("dispatch") else None

    @property
    def agent_id(self) -> str | None:
        """The agent to send text to. None if no agent must act."""
        return self.response.dispatch.agent.agent_id if self.response.HasField("dispatch") else None

    @property
    def text(self) -> str:
        """The user's message for the agent, without its command. Empty without a dispatch."""
        return self.response.dispatch.text

    @property
    def reason(self) -> str:
        """Why this agent, such as "STICKY": a RouteReason without its prefix.

        The number of a reason that this release does not know. "UNSPECIFIED" without a dispatch,
        and if degraded.
        """
        number = self.response.dispatch.reason
        if number in route_reason_pb2.RouteReason.values():
            return route_reason_pb2.RouteReason.Name(number).removeprefix("ROUTE_REASON_")
        return str(int(number))

    @property
    def locked(self) -> bool:
        """Whether the agent asked a question, and this message is the answer."""
        return self.response.dispatch.locked

    @property
    def handoff(self) -> handoff_pb2.Handoff | None:
        """The handoff that led to this dispatch, or None."""
        dispatch = self.response.dispatch
        return dispatch.handoff if dispatch.HasField("handoff") else None

    @property
    def previous_agent_id(self) -> str | None:
        """The agent of the session's previous message; None for its first message.

        The same agent while it sticks.
        """
        return self.response.dispatch.previous_agent_id or None

    @property
    def reply_text(self) -> str | None:
        """The reply to a command, to show before an agent's answer; None without a reply."""
        return self.response.reply.text if self.response.HasField("reply") else None

    @property
    def queued(self) -> bool:
        """Whether the message waits for the answer to the one before (double_text: queue)."""
        return self.response.queued

    @property
    def suggestion(self) -> dispatch_pb2.Suggestion | None:
        """The agent switch that is offered to the user, or None."""
        return self.response.suggestion if self.response.HasField("suggestion") else None

    def degraded_turn(
        self, agent_text: str = "", *, user_id: str = "", agent_items: Iterable[item_pb2.Item] = ()
    ) -> pb.DegradedTurn:
        """Return the report of a degraded decision, for report_degraded().

        agent_text, agent_items: what the user was shown. Raises ValueError if the service decided.
        """
        if not self.degraded:
            raise ValueError(
                "the service made this decision and knows it; there is nothing to report"
            )
        dispatch = self.response.dispatch
        turn = pb.DegradedTurn(
            session_id=self.session_id,
            request_id=self.request_id,
            user_id=user_id,
            agent_id=dispatch.agent.agent_id,
            text=dispatch.text,
            items=dispatch.items,
            agent_text=agent_text,
            agent_items=agent_items,
            base_revision=self.base_revision,
        )
        turn.decide_time.FromMicroseconds(self.decided_us)
        return turn

    @property
    def supervisor_bypassed(self) -> bool:
        """Whether an agent got the message without a call of the supervisor."""
        return self.response.supervisor_bypassed
