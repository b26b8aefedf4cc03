"""What route() answers.

Owns: reading a decision without asking of each message whether it is set. Must not know: how the
decision was come by. Rule: the generated response is always at hand, whole, in .response.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent_routing.errors import RoutingError
from agent_routing.v1.dispatch_pb2 import Dispatch, Suggestion
from agent_routing.v1.handoff_pb2 import Handoff
from agent_routing.v1.route_reason_pb2 import RouteReason
from agent_routing.v1.routing_service_pb2 import RouteResponse


@dataclass(frozen=True, slots=True)
class RouteResult:
    """Where a user's message goes.

    Show reply_text if there is one; then, if agent_id is set, send text to that agent and report
    its answer with complete_turn().

    response: the generated message, with everything. degraded: whether the client decided by
    itself, since the service could not be reached: nothing is stored, and the service knows nothing
    of this message until it is routed again, with the same session_id, request_id and content;
    commands in the text were not carried out. replayed: whether this is the stored answer of an
    earlier call with this request_id. error: why the decision is degraded, else None.
    """

    response: RouteResponse
    degraded: bool = False
    replayed: bool = False
    error: RoutingError | None = None

    @property
    def session_id(self) -> str:
        """The session: as given, found, or made.

        Empty only where a degraded message named its session by a task this client never saw.
        """
        return self.response.session_id

    @property
    def task_id(self) -> str:
        """The task: as given, found, or made. Empty where there is none."""
        return self.response.task_id

    @property
    def request_id(self) -> str:
        """The request: as given or made; complete_turn() names it."""
        return self.response.request_id

    @property
    def revision(self) -> int:
        """The session's revision after the call; 0 if degraded."""
        return self.response.revision

    @property
    def dispatch(self) -> Dispatch | None:
        """The whole dispatch: agent, items, history, handoff. None where no agent has to act."""
        return self.response.dispatch if self.response.HasField("dispatch") else None

    @property
    def agent_id(self) -> str | None:
        """The agent to send text to. None where no agent has to act."""
        return self.response.dispatch.agent.agent_id if self.response.HasField("dispatch") else None

    @property
    def text(self) -> str:
        """The user's message for the agent, without its command. Empty without a dispatch."""
        return self.response.dispatch.text

    @property
    def reason(self) -> str:
        """Why this agent, such as "STICKY": a RouteReason without its prefix, or the number of one
        that this release does not know. "UNSPECIFIED" without a dispatch, and if degraded.
        """  # noqa: D205 - one sentence
        number = self.response.dispatch.reason
        if number in RouteReason.values():
            return RouteReason.Name(number).removeprefix("ROUTE_REASON_")
        return str(int(number))

    @property
    def locked(self) -> bool:
        """Whether the agent had asked something, and this message is taken for the answer."""
        return self.response.dispatch.locked

    @property
    def handoff(self) -> Handoff | None:
        """The handoff that led here, if one did."""
        dispatch = self.response.dispatch
        return dispatch.handoff if dispatch.HasField("handoff") else None

    @property
    def previous_agent_id(self) -> str | None:
        """The agent that got the session's message before this one: the same one while it sticks.
        None for a session's first message.
        """  # noqa: D205 - one sentence
        return self.response.dispatch.previous_agent_id or None

    @property
    def reply_text(self) -> str | None:
        """What to show the user at once, before any agent's answer: a command's. Else None."""
        return self.response.reply.text if self.response.HasField("reply") else None

    @property
    def suggestion(self) -> Suggestion | None:
        """A switch that is offered to the user, if one is."""
        return self.response.suggestion if self.response.HasField("suggestion") else None

    @property
    def supervisor_bypassed(self) -> bool:
        """Whether an agent got the message with no call of the supervisor."""
        return self.response.supervisor_bypassed
