"""Pydantic AI: agents whose handoffs the service decides and remembers.

Owns what a program's agents get for a run: tools, instructions, past turns. The agents are never
changed.

    routed = RoutedAgents(client, [coordinator, vat])
    run = await routed.run("How much VAT do I owe?", session_id="chat-42", user_id="ana")
    print(run.text)

Pydantic AI has no handoffs of its own: each agent gets transfer_to_agent, and its run ends when it
hands over; the next agent's run follows in the same turn.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from pydantic_ai import Agent, AgentRunResult, AgentRunResultEvent, CallDeferred, Tool
from pydantic_ai.capabilities import AbstractCapability, ReinjectSystemPrompt
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    FilePart,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
    VideoUrl,
)
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolDenied
from pydantic_ai.toolsets import FunctionToolset

from agent_routing import content
from agent_routing.integrations import agent_tools, steps
from agent_routing.integrations.agent_names import by_name
from agent_routing.integrations.agent_tools import ASK, COMPLETE, CONSULT, TRANSFER
from agent_routing.integrations.approvals import Decided, describe_call
from agent_routing.integrations.kept_runs import FileKeptRuns, KeptRuns, taken
from agent_routing.integrations.routed_run import AgentView, Said
from agent_routing.integrations.routed_runs import CameTo, RoutedRuns
from agent_routing.integrations.routed_turn import RoutedTurn
from agent_routing.integrations.steps import AnyClient, Calls, Segment, Steps, Work

_OWN_TOOLS: Final = frozenset({TRANSFER, ASK, COMPLETE, CONSULT})

_URLS: Final[Mapping[str, Any]] = {"image": ImageUrl, "audio": AudioUrl, "video": VideoUrl}
"""Pydantic AI's content at a URI, by the first part of its media type; others are documents."""

REFUSALS_MAX: Final = 5
"""Times that a run continues without an approval that it cannot get; then it ends as it is."""


@dataclass(frozen=True, slots=True)
class _AgentRun(Segment):
    """A run of one agent. arguments: of Agent.run()."""

    arguments: Mapping[str, Any]


class RoutedAgents(RoutedRuns):
    """Runs agents of Pydantic AI: each message goes to the agent that the service names.

    client: methods ending in _sync need a blocking one. agents: all agents of the program, each
    with its id or an alias of the registry as its name. run_options: for Agent.run(), such as deps,
    usage_limits or model_settings; toolsets and capabilities in it are added. kept_runs: where runs
    wait for an approval; default: a folder of this user on this machine (FileKeptRuns). The
    methods' options= override run_options.

    Output validators get an agent's own outputs, and not the end of a run by a tool of the adapter
    or for an approval.
    """

    def __init__(
        self,
        client: AnyClient,
        agents: Iterable[Agent[Any, Any]],
        *,
        run_options: Mapping[str, Any] | None = None,
        kept_runs: KeptRuns | None = None,
    ) -> None:
        self._agents: dict[str, Agent[Any, Any]] = by_name(agents)
        super().__init__(client, self._agents)
        self._run_options = dict(run_options or {})
        self._kept_runs = kept_runs or FileKeptRuns()

    async def _segment(self, segment: Segment) -> Said:
        return await steps.run(self._client, self._runs(segment), self._agent_run)

    def _segment_blocking(self, segment: Segment) -> Said:
        return steps.run_blocking(self._client, self._runs(segment), self._agent_run_blocking)

    async def _streamed(self, segment: Segment, came_to: CameTo) -> AsyncIterator[Any]:
        flow = steps.stream(self._client, self._runs(segment), self._agent_stream, came_to)
        async for event in flow:
            yield event

    async def _agent_run(self, run: Segment) -> AgentRunResult[Any]:
        assert isinstance(run, _AgentRun)
        agent, arguments = _runnable(self._agents[run.name], run.arguments)
        return await agent.run(**arguments)

    def _agent_run_blocking(self, run: Segment) -> AgentRunResult[Any]:
        assert isinstance(run, _AgentRun)
        agent, arguments = _runnable(self._agents[run.name], run.arguments)
        return agent.run_sync(**arguments)

    async def _agent_stream(self, run: Segment, came_to: CameTo) -> AsyncIterator[Any]:
        assert isinstance(run, _AgentRun)
        agent, arguments = _runnable(self._agents[run.name], run.arguments)
        async with agent.run_stream_events(**arguments) as events:
            async for event in events:
                if isinstance(event, AgentRunResultEvent):
                    came_to(event.result)
                yield event

    def _runs(self, segment: Segment) -> Steps[Said]:
        """Run the dispatched agent, and those to which it hands over."""
        turn, name, refusals = segment.turn, segment.name, 0
        given = yield from self._continued(turn)
        if given == {}:
            return Said("", None)
        while True:
            arguments = yield from self._arguments(turn, name, given)
            result: AgentRunResult[Any] = yield _AgentRun(name, turn, arguments)
            holder = turn.program.names.by_id[turn.holder_id]
            if holder != name:
                name, given = holder, None
                continue
            output = result.output
            if turn.is_ended or not isinstance(output, DeferredToolRequests):
                return _said(result, turn)
            if output.calls:
                raise RuntimeError(
                    f"tool {output.calls[0].tool_name} of agent {name} is executed outside the run,"
                    " which this adapter does not support"
                )
            if turn.no_approval and refusals < REFUSALS_MAX:
                refusals += 1
                given = _answers(result, turn.no_approval)
                continue
            if not turn.no_approval:
                kept = _Kept.of(result, output)
                yield Work(partial(self._keep, turn, kept))
            return _said(result, turn)

    def _continued(self, turn: RoutedTurn) -> Calls[dict[str, Any] | None]:
        """Return the arguments with which a decided run continues; None for any other turn.

        Empty if another call must be decided first. Raises ApprovedRunLost.
        """
        if turn.decided is None:
            return None
        requests = yield from turn.paused_requests()
        if not requests:
            return None
        session_id = turn.run.session_id
        state = yield Work(partial(taken, self._kept_runs, session_id, requests[0]))
        kept = _Kept.read(state)
        kept.decide(turn.decided)
        if kept.waiting:
            yield Work(partial(self._keep, turn, kept))
            return {}
        return kept.arguments()

    def _keep(self, turn: RoutedTurn, kept: _Kept) -> None:
        """Keep a run, and end the turn with the first call that waits."""
        self._kept_runs.save(turn.run.session_id, turn.key, kept.text())
        call = kept.waiting[0]
        turn.need_approval(
            describe_call(call.tool_name, call.args or ""), call.tool_name, call.args
        )

    def _arguments(
        self, turn: RoutedTurn, name: str, given: Mapping[str, Any] | None
    ) -> Calls[dict[str, Any]]:
        """Return the arguments of Agent.run(). given: of a run that continues."""
        agent = self._agents[name]
        options = {**self._run_options, **turn.options}
        view = yield from turn.view()
        if given is None:
            past = yield from turn.past()
            given = {"user_prompt": _prompt(turn), "message_history": _history(past, turn.note)}
        own = agent.output_type
        outputs = list(own) if isinstance(own, (list, tuple)) else [own]
        return {
            **options,
            **given,
            "instructions": view.instructions,
            "output_type": [*outputs, DeferredToolRequests],
            "toolsets": [*(options.get("toolsets") or ()), self._tools(turn, name, view)],
            "capabilities": [
                *(options.get("capabilities") or ()),
                ReinjectSystemPrompt(),
                _RecordedSteps(turn, name),
            ],
        }

    def _tools(self, turn: RoutedTurn, name: str, view: AgentView) -> FunctionToolset[Any]:
        """Return the tools of an agent that has the turn."""

        async def transfer(**given: Any) -> str:
            said = {key: str(value or "") for key, value in given.items()}
            to_name = said.pop("agent_id", "")
            refusal = await steps.do(self._client, turn.hand_over(to_name, from_name=name, **said))
            if refusal is None:
                raise CallDeferred
            return refusal

        async def ask(**given: Any) -> str:
            return _end(turn, turn.ask(name, str(given.get("question") or "")))

        async def complete(**given: Any) -> str:
            answer, summary = str(given.get("answer") or ""), str(given.get("summary") or "")
            return _end(turn, turn.complete(name, answer, summary))

        async def consult(**given: Any) -> str:
            asked = str(given.get("agent_id") or ""), str(given.get("question") or "")
            return _end(turn, turn.consult(name, *asked))

        rows: list[tuple[Any, str, str, Iterable[agent_tools.Parameter]]] = [
            (ask, ASK, agent_tools.ASK_DESCRIPTION, agent_tools.ASK_PARAMETERS),
            (complete, COMPLETE, agent_tools.COMPLETE_DESCRIPTION, agent_tools.COMPLETE_PARAMETERS),
        ]
        if view.targets:
            described = agent_tools.describe_transfer(view.targets)
            parameters = agent_tools.transfer_parameters(view.targets)
            rows.append((transfer, TRANSFER, described, parameters))
        if view.consultable and turn.may_consult:
            described = agent_tools.describe_consult(view.consultable)
            parameters = agent_tools.consult_parameters(view.consultable)
            rows.append((consult, CONSULT, described, parameters))
        return FunctionToolset(
            [
                # One after the other: of two that end the turn, the first counts.
                Tool.from_schema(
                    function,
                    tool,
                    description,
                    agent_tools.json_schema(parameters),
                    sequential=True,
                )
                for function, tool, description, parameters in rows
            ]
        )


def _runnable(
    agent: Agent[Any, Any], arguments: Mapping[str, Any]
) -> tuple[Agent[Any, Any], dict[str, Any]]:
    """Return an agent that takes the output types of a run, and the other arguments.

    Pydantic AI takes none for a run of an agent with output validators, as they might not expect
    them. The only one added is the end of a run by a deferred call, and they do not get that.
    """
    given = dict(arguments)
    if not getattr(agent, "_output_validators", ()):
        return agent, given
    shape: Agent[Any, Any] = Agent(output_type=given.pop("output_type"))
    wider = copy.copy(agent)
    for part in ("_output_type", "_output_schema", "_output_toolset"):
        setattr(wider, part, getattr(shape, part))
    return wider, given


@dataclass
class _RecordedSteps(AbstractCapability[Any]):
    """Records a run's tool calls as steps of the turn, and what the model wrote next to them."""

    turn: RoutedTurn
    name: str

    async def wrap_tool_execute(
        self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any, **_given: Any
    ) -> Any:
        """Execute a call, and record it if the tool gave a result."""
        self.turn.wrote(self.name, _last_text(ctx.messages))
        began = datetime.now(UTC)
        result = await handler(args)
        if tool_def.name not in _OWN_TOOLS:
            self.turn.report.add_step(tool_def.name, "tool", call.args or "", result, began)
        return result


class _Kept:
    """A run that waits: its messages, the calls that wait, and the decisions about others."""

    def __init__(
        self, messages: list[ModelMessage], call_ids: list[str], decisions: dict[str, Any]
    ) -> None:
        self._messages = messages
        self._call_ids = call_ids
        self._decisions = decisions

    @classmethod
    def of(cls, result: AgentRunResult[Any], output: DeferredToolRequests) -> _Kept:
        """Return what to keep of a run."""
        ids = [call.tool_call_id for call in output.approvals]
        return cls(list(result.all_messages()), ids, {})

    @classmethod
    def read(cls, state: str) -> _Kept:
        """Return a run that was kept."""
        kept = json.loads(state)
        messages = ModelMessagesTypeAdapter.validate_python(kept["messages"])
        return cls(messages, kept["call_ids"], kept["decisions"])

    def text(self) -> str:
        """Return the run as it is kept."""
        messages = ModelMessagesTypeAdapter.dump_python(self._messages, mode="json")
        kept = {"call_ids": self._call_ids, "decisions": self._decisions, "messages": messages}
        return json.dumps(kept)

    @property
    def waiting(self) -> list[ToolCallPart]:
        """The calls that are not decided, in the model's order."""
        calls = {call.tool_call_id: call for call in _calls(self._messages)}
        return [calls[each] for each in self._call_ids if each not in self._decisions]

    def decide(self, decided: Decided) -> None:
        """Record the decision about the first call that waits."""
        self._decisions[self.waiting[0].tool_call_id] = (
            True if decided.is_approved else decided.rejection
        )

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of Agent.run() with which the run continues."""
        approvals = {
            call_id: True if made is True else ToolDenied(made)
            for call_id, made in self._decisions.items()
        }
        return {
            "message_history": self._messages,
            "deferred_tool_results": DeferredToolResults(approvals=approvals),
        }


def _answers(result: AgentRunResult[Any], refusal: str) -> dict[str, Any]:
    """Return the arguments with which a run continues without approvals."""
    denied = {call.tool_call_id: ToolDenied(refusal) for call in result.output.approvals}
    return {
        "message_history": result.all_messages(),
        "deferred_tool_results": DeferredToolResults(approvals=denied),
    }


def _end(turn: RoutedTurn, text: str) -> str:
    """Return a tool's result for the model, or end the run because the turn has ended."""
    if turn.is_ended:
        raise CallDeferred
    return text


def _calls(messages: Iterable[ModelMessage]) -> Iterator[ToolCallPart]:
    for message in messages:
        if isinstance(message, ModelResponse):
            yield from (part for part in message.parts if isinstance(part, ToolCallPart))


def _prompt(turn: RoutedTurn) -> Any:
    """Return the user's message: its text, or a list of its text, images and files."""
    if not turn.items:
        return turn.user_text
    parts: list[Any] = [turn.user_text] if turn.user_text else []
    for item in turn.items:
        media_type = item.content_type.partition(";")[0]
        if item.uri:
            made = _URLS.get(media_type.partition("/")[0], DocumentUrl)
            parts.append(made(url=item.uri, media_type=media_type))
        else:
            parts.append(BinaryContent(data=item.data, media_type=media_type))
    return parts


def _history(past: Iterable[tuple[str, str]], note: str) -> list[ModelMessage]:
    """Return past turns, and a note about the dispatch."""
    messages: list[ModelMessage] = [
        ModelRequest(parts=[UserPromptPart(text)])
        if role == "user"
        else ModelResponse(parts=[TextPart(text)])
        for role, text in past
    ]
    if note:
        messages.append(ModelRequest(parts=[UserPromptPart(note)]))
    return messages


def _last_text(messages: Iterable[ModelMessage]) -> str:
    """Return the text of the model's newest answer."""
    answers = [each for each in messages if isinstance(each, ModelResponse)]
    parts = (part for each in answers[-1:] for part in each.parts)
    return "".join(part.content for part in parts if isinstance(part, TextPart))


def _said(result: AgentRunResult[Any], turn: RoutedTurn) -> Said:
    """Return the result of a run, and give the turn the images and files that the model made."""
    for message in result.new_messages():
        if isinstance(message, ModelResponse):
            for part in message.parts:
                if isinstance(part, FilePart):
                    made = part.content
                    turn.report.add_item(content.data_item(made.data, made.media_type))
    output = result.output
    if turn.is_ended or isinstance(output, DeferredToolRequests):
        return Said(_last_text(result.new_messages()), result)
    # Output functions and validators may have made another text than the model's.
    return Said(output if isinstance(output, str) else agent_tools.as_text(output), result)
