"""One open turn of a routed run: handoffs, what its holder sees, and the report of its end.

Only the service decides. While it cannot be reached, a turn continues from local memory, and the
run is marked degraded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from agent_routing import outcomes
from agent_routing.content import Item
from agent_routing.errors import (
    DeadlineExceeded,
    InvalidField,
    LeaseLost,
    Overloaded,
    PreconditionFailed,
    RequestNotOpen,
    RoutingError,
    Unavailable,
    UnknownAgent,
)
from agent_routing.integrations import agent_tools
from agent_routing.integrations.approvals import APPROVAL_STEP, Approval, Decided
from agent_routing.integrations.local_memory import HISTORY_TURNS
from agent_routing.integrations.routed_run import AgentView, RoutedRun, Shown
from agent_routing.integrations.steps import Await, Call, Calls
from agent_routing.integrations.turn_report import TurnReport
from agent_routing.outcomes import Answer, Outcome
from agent_routing.v1.agent_pb2 import Agent
from agent_routing.v1.dispatch_pb2 import DECISION_APPROVE, DELIVERY_INBOX, Dispatch
from agent_routing.v1.handoff_pb2 import Handoff
from agent_routing.v1.route_reason_pb2 import ROUTE_REASON_AWAITING_APPROVAL
from agent_routing.v1.routing_service_pb2 import (
    ApprovalNeededOutcome,
    CompleteTurnResponse,
    HandoffOutcome,
    ListAgentsResponse,
    ListTurnsResponse,
    StatusResponse,
)
from agent_routing.v1.task_pb2 import TASK_STATUS_PAUSED
from agent_routing.v1.turn_pb2 import Turn
from agent_routing.worker import InboxTurn

if TYPE_CHECKING:
    from agent_routing.integrations.routed_program import RoutedProgram

AWAY: Final = (Unavailable, DeadlineExceeded, Overloaded)
"""Errors that mean that the service cannot be reached at the moment."""

_REFUSED: Final = (PreconditionFailed, UnknownAgent, InvalidField)
"""Errors that mean that the rules refuse a handoff or a consultation."""

APPROVALS_MAX: Final = 50
"""Decisions in a row for one run that are looked through for where it began."""

_log = logging.getLogger("agent_routing")


class RoutedTurn:
    """An open turn while the framework runs: the agent that holds it, and how it will end."""

    def __init__(
        self,
        program: RoutedProgram,
        run: RoutedRun,
        dispatch: Dispatch,
        fields: Mapping[str, Any],
        options: Mapping[str, Any],
        *,
        is_local: bool,
        worker_turn: InboxTurn | None = None,
    ) -> None:
        """Begin. worker_turn: the turn of a worker, by whose lease it is answered."""
        self.program = program
        self.options = options
        self.run = run
        self.dispatch = dispatch
        self.holder_id = dispatch.agent.agent_id
        # All that have held it in this run.
        self.holder_ids = {self.holder_id}
        self.note = agent_tools.note_of_dispatch(dispatch, program.names.by_id)
        self.user_id: str = fields.get("user_id", "")
        self._who = {"session_id": run.session_id, "user_id": self.user_id}
        self._locale = fields.get("locale", "")
        # The service does not know a turn that was routed without it.
        self._is_local = is_local
        self._worker_turn = worker_turn
        self.report = TurnReport(None if worker_turn is None else worker_turn.reports.step)
        # The answer to a handoff that ended the turn here: its target runs elsewhere.
        self._passed_on: CompleteTurnResponse | None = None
        # The open turn, after it was moved to an agent whose turns wait in an inbox.
        self._moved_away: Dispatch | None = None
        self._is_moving = False
        self._written = ("", "")
        # Whether the outcome was refused: the agent runs again, and reads why.
        self.is_refused = False
        self._outcome: Outcome | None = None
        self._tool_text = ""
        self._views: dict[str, AgentView] = {}

    @property
    def key(self) -> str:
        """The request to complete, which identifies the turn."""
        return self.dispatch.request_id

    @property
    def is_worked(self) -> bool:
        """Whether a worker runs the agent: then every handoff ends the run."""
        return self._worker_turn is not None

    @property
    def is_passed_on(self) -> bool:
        """Whether a handoff ended the run: its target is no agent of this run.

        It is an agent of another program, people, or one that workers run.
        """
        return self._passed_on is not None or self._moved_away is not None

    @property
    def user_text(self) -> str:
        """The user's message, without its command, and the texts among its items."""
        texts = (self.dispatch.text, *(item.text for item in self.dispatch.items))
        return "\n\n".join(text for text in texts if text)

    @property
    def items(self) -> list[Item]:
        """What the user sent besides text: images, files, links."""
        return [item for item in self.dispatch.items if not item.HasField("text")]

    @property
    def decided(self) -> Decided | None:
        """The decision with which a paused run continues; None for any other turn."""
        if not self.dispatch.HasField("resume"):
            return None
        resume = self.dispatch.resume
        return Decided(resume.decision == DECISION_APPROVE, resume.comment)

    @property
    def is_paused(self) -> bool:
        """Whether the user wrote while the task waits for a decision."""
        return self.dispatch.reason == ROUTE_REASON_AWAITING_APPROVAL

    @property
    def no_approval(self) -> str:
        """Why the agent cannot ask for an approval in this turn, for the model; empty if it can."""
        if self.is_paused:
            return "not executed: your earlier request for approval has not been decided yet"
        if self._is_consulted:
            return "not executed: while another agent consults you, you cannot ask for approval"
        if self._is_local:
            return "not executed: at the moment nothing can be approved"
        return ""

    @property
    def _is_consulted(self) -> bool:
        """Whether another agent asks, and not the user."""
        dispatch = self.dispatch
        return dispatch.HasField("consult") and not dispatch.consult.HasField("answer")

    @property
    def is_ended(self) -> bool:
        """Whether a tool ended the turn: the model is not called again."""
        return self._outcome is not None

    @property
    def tool_text(self) -> str:
        """The text for the user from the tool that ended the turn."""
        return self._tool_text

    def wrote(self, name: str, text: str) -> None:
        """Note the text of a model's newest answer: next to a transfer it is for the user."""
        self._written = (name, text)

    def ask(self, from_name: str, question: str) -> str:
        """End the turn with a question; return the tool's result for the model."""
        if not self._is_holder(from_name):
            return agent_tools.TOO_LATE
        self._outcome, self._tool_text = outcomes.follow_up(), question
        return "asked; the user's next message is the answer"

    def complete(self, from_name: str, answer: str, summary: str = "") -> str:
        """End the turn and the agent's task; return the tool's result for the model."""
        if not self._is_holder(from_name):
            return agent_tools.TOO_LATE
        given = agent_tools.cut(summary, agent_tools.MESSAGE_BYTES_MAX)
        self._outcome, self._tool_text = outcomes.complete(summary=given), answer
        return "completed"

    def consult(self, from_name: str, to_name: str, question: str) -> str:
        """Pause the turn for another agent's answer; return the tool's result for the model."""
        if not self._is_holder(from_name):
            return agent_tools.TOO_LATE
        if not self.may_consult:
            return agent_tools.NO_CONSULT
        target_id = self.program.names.agent_id(to_name) or to_name
        reason = agent_tools.cut(question, agent_tools.REASON_BYTES_MAX)
        self._outcome = outcomes.handoff(target_id, reason=reason, mode="CONSULT")
        self._tool_text = ""
        return "asked; you will continue with the answer"

    @property
    def may_consult(self) -> bool:
        """Whether the agent can consult another one in this turn."""
        return not (self._is_local or self._is_consulted or self.is_paused or self.is_refused)

    def need_approval(self, prompt: str, tool: str, given: object = "") -> None:
        """End the turn with a request for approval. tool, given: what is to be approved.

        Call it only if no_approval is empty. A turn that was passed on has its outcome already.
        """
        if self.is_passed_on:
            return
        cut = agent_tools.cut(prompt.replace("\0", "").strip(), agent_tools.MESSAGE_BYTES_MAX)
        self._outcome = outcomes.approval_needed(cut or "approve?")
        self.report.add_step(tool, APPROVAL_STEP, given)

    def paused_requests(self) -> Calls[tuple[str, ...]]:
        """Return the requests that led to a resumed turn, nearest first, if its framework asked.

        The first is the one that was decided; before it are those decided earlier in the same run.
        Empty if the program asked for the approval by a call of its own.
        """
        page: ListTurnsResponse = yield Call(
            "list_turns_page",
            {**self._who, "order": "NEWEST_FIRST", "page_size": APPROVALS_MAX},
        )
        # A request that was handed over has an entry for each agent that had it.
        entries: dict[str, list[Turn]] = {}
        for turn in page.turns:
            entries.setdefault(turn.request_id, []).append(turn)
        chain: list[str] = []
        key = _parent(entries.get(self.dispatch.request_id, ()))
        while any(
            step.kind == APPROVAL_STEP for each in entries.get(key, ()) for step in each.steps
        ):
            chain.append(key)
            key = _parent(entries[key])
        return tuple(chain)

    def _is_holder(self, name: str) -> bool:
        """Tell whether an agent still has the turn; an empty name stands for its holder.

        A model may call a tool together with a transfer, and frameworks then execute both.
        """
        if self.is_passed_on:
            return False
        return not name or self.program.names.agent_id(name) == self.holder_id

    def view(self) -> Calls[AgentView]:
        """Return what the holder sees: its instructions, and the agents it may hand over to."""
        holder_id = self.holder_id
        if (known := self._views.get(holder_id)) is not None:
            return known
        targets = [
            (name, agent)
            for name, agent in self.program.agents_here()
            if agent.agent_id != holder_id
        ]
        instructions = self.program.memory.instructions(self._who["session_id"], holder_id)
        if not self._is_local:
            asked = {**self._who, "locale": self._locale}
            try:
                listed: ListAgentsResponse = yield Call(
                    "list_agents", {**asked, "from_agent_id": holder_id}
                )
                targets = self.program.with_names(listed.agents)
                self.program.noticed_version(listed.registry_version)
                kept = self.program.memory.instructions(
                    self._who["session_id"], holder_id, listed.registry_version, self._locale
                )
                if not kept:
                    whole: ListAgentsResponse = yield Call(
                        "list_agents", {**asked, "include_instructions": True}
                    )
                    kept = whole.instructions.get(holder_id, "")
                    self.program.memory.keep_instructions(
                        self._who["session_id"], self._locale, whole
                    )
                instructions = kept
            except AWAY as error:
                self._degrade(error)
        parts = (part for part in (instructions.strip(), agent_tools.TOOLS_NOTE) if part)
        by_id = self.program.names.by_id
        elsewhere = tuple(each for each in targets if each[1].agent_id not in by_id)
        here = tuple(each for each in targets if each[1].agent_id in by_id)
        # The answer of an agent elsewhere comes back to a worker, and not to this run.
        consultable = tuple(targets) if self.is_worked else here
        view = AgentView("\n\n".join(parts), tuple(targets), elsewhere, consultable)
        self._views[holder_id] = view
        return view

    def past(self) -> Calls[list[tuple[str, str]]]:
        """Return the past turns that the holder may see, oldest first, as (role, text)."""
        turns: Iterable[Turn] = self.dispatch.history
        if self.holder_id != self.dispatch.agent.agent_id:
            turns = yield from self._turns_of_holder()
        return agent_tools.past_messages(turns, self.holder_id, self.program.names.by_id)

    def hand_over(
        self,
        to_name: str,
        *,
        from_name: str = "",
        reason: str = "",
        context: str = "",
        message: str = "",
        mode: str = "",
    ) -> Calls[str | None]:
        """Hand the turn over to another agent.

        Returns None, or if the handoff is refused the text for the model. An agent of this program
        goes on in the same run. Any other target, and in a worker every one, ends the run: see
        is_passed_on. While the service is away a handoff within the program happens all the same,
        and the run is degraded.
        """
        target_id = yield from self._target(to_name)
        if target_id is None:
            known = ", ".join(name for name, _ in (yield from self.view()).targets)
            refused = f'there is no agent "{to_name}" to be reached, but {known or "none"}'
            return agent_tools.describe_refusal(refused)
        # A model may call two transfers at once, and frameworks then execute both at once.
        if self.is_passed_on:
            return agent_tools.TOO_LATE
        if self._is_moving:
            return agent_tools.ONE_TRANSFER
        names = self.program.names
        giver_id = names.agent_id(from_name) or self.holder_id
        given = {
            "reason": agent_tools.cut(reason, agent_tools.REASON_BYTES_MAX),
            "context": _context(context),
            "mode": "INTERLUDE" if mode.lower() == "interlude" else None,
        }
        self._is_moving = True
        try:
            if self.is_worked or names.name(target_id) is None:
                refusal = yield from self._pass_on(giver_id, target_id, message, given)
            else:
                refusal = yield from self._move(giver_id, target_id, message, given)
        finally:
            self._is_moving = False
        return refusal

    def _target(self, name: str) -> Calls[str | None]:
        """Return the id of a handoff's target by what a model wrote; None if there is none."""
        names = self.program.names
        if (known := names.agent_id(name)) is not None:
            # Without the service, only agents of this program can go on.
            return known if names.name(known) is not None or not self._is_local else None
        view: AgentView = yield from self.view()
        return next((agent.agent_id for each, agent in view.targets if each == name), None)

    def _move(
        self, giver_id: str, target_id: str, message: str, given: Mapping[str, Any]
    ) -> Calls[str | None]:
        """Move the open turn to an agent of this program."""
        # What the model wrote next to the transfer has no field of its own here.
        shown = _joined(self._beside(giver_id), message)
        if self._is_local:
            self.program.memory.moved_away(self.run.session_id, target_id)
        else:
            try:
                yield Call(
                    "set_active_agent",
                    {
                        **self._who,
                        **given,
                        "agent_id": target_id,
                        "turn_request_id": self.dispatch.request_id,
                        "from_agent_id": giver_id,
                        "message": agent_tools.cut(shown, agent_tools.MESSAGE_BYTES_MAX),
                    },
                )
                yield from self._see_delivery(target_id)
            except _REFUSED as refused:
                return agent_tools.describe_refusal(refused.message)
            except AWAY as error:
                self._degrade(error)
                self.program.memory.moved_away(self.run.session_id, target_id)
        self._outcome, self._tool_text = None, ""
        if shown:
            self.run.shown.append(Shown(giver_id, shown))
        self.holder_ids.add(target_id)
        if self._moved_away is not None:
            self._outcome = outcomes.handoff(target_id)
            return None
        self.holder_id = target_id
        handoff = Handoff(to=Agent(agent_id=target_id), reason=given["reason"])
        getattr(handoff, "from").agent_id = giver_id
        if given["context"] is not None:
            handoff.context.update(given["context"])
        self.note = agent_tools.note_of_handoff(handoff, self.program.names.by_id)
        return None

    def _see_delivery(self, target_id: str) -> Calls[None]:
        """Leave a turn that was moved to an agent with an inbox: that agent's workers have it."""
        status: StatusResponse = yield Call("status", self._who)
        for moved in status.open_requests:
            if (
                moved.request_id == self.dispatch.request_id
                and moved.agent.agent_id == target_id
                and moved.delivery == DELIVERY_INBOX
            ):
                self._moved_away = moved

    def _pass_on(
        self, giver_id: str, target_id: str, message: str, given: Mapping[str, Any]
    ) -> Calls[str | None]:
        """End the turn with a handoff to an agent that runs elsewhere."""
        if giver_id != self.holder_id:
            return agent_tools.TOO_LATE
        outcome = outcomes.handoff(
            target_id, message=agent_tools.cut(message, agent_tools.MESSAGE_BYTES_MAX), **given
        )
        text = agent_tools.cut(self._beside(giver_id), agent_tools.TEXT_BYTES_MAX)
        try:
            self._passed_on = yield from self._complete(outcome, text)
        except (LeaseLost, RequestNotOpen):
            raise
        except _REFUSED as refused:
            return agent_tools.describe_refusal(refused.message)
        except AWAY as error:
            if self.is_worked:
                raise
            self._degrade(error)
            return agent_tools.describe_refusal("at the moment no other program can be reached")
        self._outcome, self._tool_text = outcome, ""
        return None

    def _beside(self, giver_id: str) -> str:
        """Return what the model of an agent wrote next to its transfer."""
        name, text = self._written
        writer_id = self.program.names.agent_id(name) if name else self.holder_id
        return text.strip() if writer_id == giver_id else ""

    def finish(self, text: str) -> Calls[Dispatch | None]:
        """Report the answer; return the next dispatch of the message, or None."""
        if self._moved_away is not None:
            self.run.agent_id = self.holder_id
            return self._moved_away
        whole = self._beside(self.holder_id) if self._passed_on else _joined(text, self._tool_text)
        sent = agent_tools.cut(whole, agent_tools.TEXT_BYTES_MAX)
        answer = self._passed_on
        if answer is None and not self._is_local:
            try:
                answer = yield from self._complete(self._outcome or outcomes.proceed(), sent)
            except (LeaseLost, RequestNotOpen):
                raise
            except _REFUSED as refused:
                if not self._takes_back_consult(refused.message):
                    raise
                return None
            except AWAY as error:
                self._degrade(error)
        self.is_refused = False
        self.run.agent_id = self.holder_id
        self.program.memory.remember(self.run.session_id, self.dispatch, self.holder_id, whole)
        if answer is not None:
            self._answered(answer)
            if sent == whole:
                whole = answer.text  # Without its markers.
        # A consulted agent answers the agent that asked.
        if whole and not self._is_consulted:
            self.run.shown.append(Shown(self.holder_id, whole))
            self.run.items.extend(self.report.items)
        if answer is None:
            return None
        if answer.notice.text:
            self.run.shown.append(Shown("", answer.notice.text))
        if answer.next.handoff.message:
            giver_id = getattr(answer.next.handoff, "from").agent_id
            self.run.shown.append(Shown(giver_id, answer.next.handoff.message))
        return answer.next if answer.HasField("next") else None

    def _complete(self, outcome: Outcome, text: str) -> Calls[CompleteTurnResponse]:
        """Report how the turn ended: under the worker's lease if there is one."""
        items, taken = self.report.items, self.report.steps
        if self._worker_turn is not None:
            answer = Answer(text, outcome, items, taken)
            answered: CompleteTurnResponse = yield Await(
                partial(self._worker_turn.complete, answer)
            )
            return answered
        answered = yield Call(
            "complete_turn",
            {
                **self._who,
                "request_id": self.dispatch.request_id,
                "agent_id": self.holder_id,
                "outcome": outcome,
                "text": text,
                "items": items,
                "steps": taken,
            },
        )
        return answered

    def _answered(self, answer: CompleteTurnResponse) -> None:
        self.run.answers.append(answer)
        asked = self._outcome
        if isinstance(asked, ApprovalNeededOutcome) and answer.task_status == TASK_STATUS_PAUSED:
            self.run.approval = Approval(
                self.run.session_id,
                answer.task_id,
                self.dispatch.request_id,
                self.holder_id,
                asked.prompt,
            )

    def _takes_back_consult(self, message: str) -> bool:
        """Make a refused consultation undone, so that the agent runs again and reads why."""
        if self.is_refused or not isinstance(self._outcome, HandoffOutcome):
            return False
        self.note = agent_tools.describe_refusal(message, "consultation")
        self._outcome, self.is_refused = None, True
        return True

    def fail(self, error: Exception) -> Calls[None]:
        """Report that the run failed. Raises nothing, so that the run's own error is raised."""
        if self._is_local or self.is_passed_on:
            return
        try:
            # The error's message may have text that users wrote.
            yield from self._complete(outcomes.failure(type(error).__name__), "")
        except RoutingError as unreported:
            _log.warning("failure_not_reported: %s", unreported.message)

    def _turns_of_holder(self) -> Calls[list[Turn]]:
        if not self._is_local:
            try:
                page: ListTurnsResponse = yield Call(
                    "list_turns_page",
                    {
                        **self._who,
                        "agent_id": self.holder_id,
                        "order": "NEWEST_FIRST",
                        "page_size": HISTORY_TURNS,
                    },
                )
            except AWAY as error:
                self._degrade(error)
            else:
                # The entries of this message belong to the run itself.
                return [
                    turn
                    for turn in reversed(page.turns)
                    if turn.request_id != self.dispatch.request_id
                ]
        return self.program.memory.turns(self.run.session_id, self.holder_id, self.program.home_id)

    def _degrade(self, error: RoutingError) -> None:
        """Record that something was decided without the service."""
        self.run.degraded, self.run.error = True, error
        _log.warning("run_degraded: %s", error.message)


def _parent(entries: Iterable[Turn]) -> str:
    """Return the request from which that of these entries followed; empty if there is none."""
    return next((turn.parent_request_id for turn in entries if turn.parent_request_id), "")


def _context(text: str) -> dict[str, str] | None:
    """Return the context of a handoff request; None for an empty text."""
    if not text:
        return None
    return {"context": agent_tools.cut(text, agent_tools.CONTEXT_BYTES_MAX)}


def _joined(text: str, tool_text: str) -> str:
    """Return the model's text and the text that it gave to a tool, without repeating it."""
    if not tool_text or tool_text in text:
        return text
    return f"{text}\n\n{tool_text}" if text else tool_text
