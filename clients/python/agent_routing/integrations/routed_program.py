"""A program's agents: one user message through them and the service, step by step.

Owns the order of the calls: route, run the agent, report its answer, continue where the service
says. Only the service decides. While it cannot be reached, the chat continues from what was last
known, and every such decision is marked degraded. Uses no framework, thread or event loop (steps).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from agent_routing.asking import is_consult
from agent_routing.integrations.agent_names import AgentNames
from agent_routing.integrations.approvals import Approval, ApprovedRunLost
from agent_routing.integrations.local_memory import HISTORY_TURNS, LocalMemory
from agent_routing.integrations.routed_run import RoutedRun, Said, Shown
from agent_routing.integrations.routed_turn import AWAY, RoutedTurn
from agent_routing.integrations.steps import AnyClient, Call, Calls, Segment, Steps
from agent_routing.plain_values import DecisionName
from agent_routing.route_result import RouteResult
from agent_routing.v1.agent_pb2 import AGENT_KIND_SYSTEM, Agent
from agent_routing.v1.dispatch_pb2 import DELIVERY_INBOX, Dispatch
from agent_routing.v1.routing_service_pb2 import (
    ListAgentsResponse,
    ListTurnsResponse,
    ResumeTaskResponse,
    StatusResponse,
)
from agent_routing.worker import InboxTurn

_log = logging.getLogger("agent_routing")


class RoutedProgram:
    """The agents of a program, and what is known about the registry. Safe in threads.

    names: of the program's agents: ids or aliases of the registry.
    """

    def __init__(self, client: AnyClient, names: Iterable[str]) -> None:
        self.client = client
        self.names = AgentNames(names)
        self.memory = LocalMemory()
        self._listed: ListAgentsResponse | None = None

    def converse(
        self, text: str, fields: Mapping[str, Any], options: Mapping[str, Any] | None = None
    ) -> Steps[RoutedRun]:
        """Route a message, run its agents, report their answers.

        fields: of Client.route(). options: of the framework, for this message.
        """
        yield from self._know_the_registry()
        routed: RouteResult = yield Call("route", {"text": text, **fields})
        run = RoutedRun(
            session_id=routed.session_id,
            reason=routed.reason,
            suggestion=routed.suggestion,
            degraded=routed.degraded,
            error=routed.error,
        )
        if routed.reply_text:
            run.shown.append(Shown("", routed.reply_text))
        dispatch = routed.dispatch
        if dispatch is None:
            return run
        if routed.degraded:
            dispatch = self.memory.fill(run.session_id, dispatch, self.home_id)
        else:
            self.memory.seed(run.session_id, dispatch)
        if routed.replayed:
            taken_up = yield from self._taken_up(run, dispatch, fields)
            if taken_up is None:
                return run
            dispatch = taken_up
        return (yield from self._go_on(run, dispatch, fields, options, is_local=routed.degraded))

    def answer(
        self,
        session_id: str,
        dispatch: Dispatch,
        fields: Mapping[str, Any],
        options: Mapping[str, Any] | None = None,
    ) -> Steps[RoutedRun]:
        """Answer a message that a frontend already routed. fields: user_id and locale."""
        yield from self._know_the_registry()
        run = RoutedRun(session_id=session_id)
        # A worker answers what its agent's inbox gave it.
        flow = self._go_on(run, dispatch, fields, options, is_local=False, is_given=True)
        return (yield from flow)

    def work(
        self,
        given: InboxTurn,
        fields: Mapping[str, Any],
        options: Mapping[str, Any] | None = None,
    ) -> Steps[None]:
        """Answer a worker's turn, under its lease. fields: user_id and locale.

        What follows from the answer is dispatched by the service, to inboxes too.
        """
        yield from self._know_the_registry()
        if self.names.name(given.agent_id) is None:
            known = ", ".join(sorted(self.names.by_id))
            raise LookupError(f'the program has no agent "{given.agent_id}"; it has {known}')
        run = RoutedRun(session_id=given.session_id)
        turn = RoutedTurn(
            self, run, given.dispatch, fields, options or {}, is_local=False, worker_turn=given
        )
        yield from self._answered(run, turn)

    def decide(
        self,
        approval: Approval,
        decision: DecisionName,
        fields: Mapping[str, Any],
        options: Mapping[str, Any] | None = None,
    ) -> Steps[RoutedRun]:
        """Decide a request for approval, and run the agent that asked.

        fields: user_id, comment, and the locale of instructions.
        """
        given = dict(fields)
        resumed: ResumeTaskResponse = yield Call(
            "resume_task",
            {
                "task_id": approval.task_id,
                "request_id": approval.request_id,
                "decision": decision,
                "session_id": approval.session_id,
                "user_id": given.get("user_id", ""),
                "comment": given.pop("comment", ""),
            },
        )
        run = RoutedRun(session_id=resumed.session_id)
        if not resumed.HasField("dispatch"):
            return run
        yield from self._know_the_registry()
        # The decision may be a repeat, and the run may have ended since.
        dispatch = yield from self._taken_up(run, resumed.dispatch, given)
        if dispatch is None:
            return run
        run.reason = "TASK_RESUMED"
        return (yield from self._go_on(run, dispatch, given, options, is_local=False))

    @property
    def home_id(self) -> str:
        """The id of the home agent; empty while the registry is unknown."""
        return self._listed.home_agent_id if self._listed else ""

    def agents_here(self) -> list[tuple[str, Agent]]:
        """Return the program's agents as last known, with their names in the program."""
        if self._listed is None:
            return [(name, Agent(agent_id=id_)) for id_, name in self.names.by_id.items()]
        return self.with_names(
            agent
            for agent in self._listed.agents
            if agent.enabled
            and agent.kind != AGENT_KIND_SYSTEM
            and self.names.name(agent.agent_id) is not None
        )

    def with_names(self, agents: Iterable[Agent]) -> list[tuple[str, Agent]]:
        """Return agents with their names in the program, or their ids if they are not in it."""
        return [(self.names.name(agent.agent_id) or agent.agent_id, agent) for agent in agents]

    def noticed_version(self, registry_version: str) -> None:
        """Read the registry again before the next message if its version is another."""
        if self._listed is not None and self._listed.registry_version != registry_version:
            self._listed = None

    def _taken_up(
        self, run: RoutedRun, dispatch: Dispatch, fields: Mapping[str, Any]
    ) -> Calls[Dispatch | None]:
        """Return the open dispatch of a message that was routed before, by a run that died.

        None if the message was answered: the answer is then in run. The handoffs of that run stand,
        so the dispatch is to the agent that has the message now.
        """
        who = {"session_id": run.session_id, "user_id": fields.get("user_id", "")}
        try:
            status: StatusResponse = yield Call("status", who)
            page: ListTurnsResponse = yield Call(
                "list_turns_page", {**who, "order": "NEWEST_FIRST", "page_size": HISTORY_TURNS}
            )
        except AWAY as error:
            run.degraded, run.error = True, error
            return dispatch
        chain = {dispatch.request_id}
        for turn in reversed(page.turns):
            if turn.request_id in chain or turn.parent_request_id in chain:
                chain.add(turn.request_id)
                if is_consult(turn, page.turns):
                    continue
                said = (turn.agent_text, turn.handoff_message)
                run.shown.extend(Shown(turn.agent_id, text) for text in said if text)
                run.agent_id = turn.agent_id if turn.agent_text else run.agent_id
        return next((each for each in status.open_requests if each.request_id in chain), None)

    def _know_the_registry(self) -> Calls[None]:
        """Read the registry once. Raises LookupError for an agent that it does not have."""
        if self._listed is not None:
            return
        try:
            listed: ListAgentsResponse = yield Call("list_agents", {})
        except AWAY as error:
            _log.warning("agents_not_listed: %s", error.message)
            return
        self.names.learn(listed)
        self._listed = listed

    def _go_on(
        self,
        run: RoutedRun,
        dispatch: Dispatch,
        fields: Mapping[str, Any],
        options: Mapping[str, Any] | None,
        *,
        is_local: bool,
        is_given: bool = False,
    ) -> Steps[RoutedRun]:
        """Run agents for a dispatch, and for the dispatches that follow from it.

        is_given: whether the program was given the dispatch, from an inbox too; others of an inbox
        are for its workers.
        """
        following: Dispatch | None = dispatch
        # The service ends this loop: it limits the hops of a message.
        while following is not None:
            is_here = self.names.name(following.agent.agent_id) is not None
            if not is_here or (following.delivery == DELIVERY_INBOX and not is_given):
                run.next = following
                break
            is_given = False
            turn = RoutedTurn(self, run, following, fields, options or {}, is_local=is_local)
            following = yield from self._answered(run, turn)
        return run

    def _answered(self, run: RoutedRun, turn: RoutedTurn) -> Steps[Dispatch | None]:
        """Run the framework for a turn, and report it; return the dispatch that follows."""
        while True:
            try:
                said: Said = yield Segment(self.names.by_id[turn.holder_id], turn)
            except Exception as error:
                # A worker tries again. A decided run that is lost is lost to all attempts.
                if not turn.is_worked or isinstance(error, ApprovedRunLost):
                    yield from turn.fail(error)
                raise
            run.results.append(said.result)
            following = yield from turn.finish(said.text)
            # A second refusal is an error of finish().
            if not turn.is_refused:
                return following
