"""OpenAI Agents SDK: agents whose handoffs the service decides and remembers.

Owns what the SDK's agents get for a run: tools, instructions, handoffs, past turns. The program's
agents are never changed; each run uses copies.

    routed = RoutedAgents(client, [coordinator, vat])
    run = await routed.run("How much VAT do I owe?", session_id="chat-42", user_id="ana")
    print(run.text)

An agent keeps its own handoffs, and the service is asked before each. transfer_to_agent is for all
other agents that the registry allows: in the program, if the agent has no handoffs of its own, in
other programs, and people.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import mimetypes
from collections.abc import AsyncIterator, Callable, Container, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from agents import (
    Agent,
    AgentsException,
    FunctionTool,
    FunctionToolResult,
    Handoff,
    HandoffInputData,
    ItemHelpers,
    RunContextWrapper,
    RunHooks,
    Runner,
    RunState,
    ToolsToFinalOutputResult,
    handoff,
)
from agents.items import MessageOutputItem

from agent_routing import content
from agent_routing.integrations import agent_tools, steps
from agent_routing.integrations.agent_names import by_name
from agent_routing.integrations.agent_tools import ASK, COMPLETE, CONSULT, TRANSFER
from agent_routing.integrations.approvals import describe_call
from agent_routing.integrations.kept_runs import FileKeptRuns, KeptRuns, taken
from agent_routing.integrations.routed_run import AgentView, Said
from agent_routing.integrations.routed_runs import CameTo, RoutedRuns
from agent_routing.integrations.routed_turn import RoutedTurn
from agent_routing.integrations.steps import AnyClient, Segment

_ENDING_TOOLS: Final = frozenset({ASK, COMPLETE, CONSULT, TRANSFER})

_KEEPS_HISTORY: Final = (
    "session",
    "conversation_id",
    "previous_response_id",
    "auto_previous_response_id",
)
"""Options of the SDK's Runner with which it adds past messages by itself."""

REFUSALS_MAX: Final = 5
"""Times that a run continues without an approval that it cannot get; then it ends as it is."""


class RoutedAgents(RoutedRuns):
    """Runs agents of the SDK: each message goes to the agent that the service names.

    client: methods ending in _sync need a blocking one. agents: all agents of the program, each
    with its id or an alias of the registry as its name. run_options: for Runner.run() and its
    variants, such as run_config, context, hooks or max_turns. kept_runs: where runs wait for an
    approval; default: a folder of this user on this machine (FileKeptRuns). The methods' options=
    override run_options.

    Raises ValueError for two agents of one name, for a handoff to an agent that is not among the
    agents, and for options with which the SDK would add past messages to those of the service, such
    as session.
    """

    def __init__(
        self,
        client: AnyClient,
        agents: Iterable[Agent[Any]],
        *,
        run_options: Mapping[str, Any] | None = None,
        kept_runs: KeptRuns | None = None,
    ) -> None:
        self._agents: dict[str, Agent[Any]] = by_name(agents)
        super().__init__(client, self._agents)
        _check_handoffs(self._agents)
        self._run_options = _checked(run_options or {})
        self._kept_runs = kept_runs or FileKeptRuns()

    async def _segment(self, segment: Segment) -> Said:
        prepared, options = self._prepared(segment)
        agent, given = await prepared.begin(segment.name)
        try:
            result = await Runner.run(agent, given, **options)
            while (following := await prepared.following(result)) is not None:
                result = await Runner.run(*following, **options)
        except PassedOn as ended:
            return Said("", ended.run_data)
        await asyncio.to_thread(prepared.keep, result)
        return _said(result, segment.turn)

    def _segment_blocking(self, segment: Segment) -> Said:
        prepared, options = self._prepared(segment)
        agent, given = prepared.begin_blocking(segment.name)
        try:
            result = Runner.run_sync(agent, given, **options)
            while (following := prepared.following_blocking(result)) is not None:
                result = Runner.run_sync(*following, **options)
        except PassedOn as ended:
            return Said("", ended.run_data)
        prepared.keep(result)
        return _said(result, segment.turn)

    async def _streamed(self, segment: Segment, came_to: CameTo) -> AsyncIterator[Any]:
        prepared, options = self._prepared(segment)
        following: tuple[Agent[Any], Any] | None = await prepared.begin(segment.name)
        result: Any = None
        try:
            while following is not None:
                result = Runner.run_streamed(*following, **options)
                async for event in result.stream_events():
                    yield event
                following = await prepared.following(result)
        except PassedOn as ended:
            came_to(Said("", ended.run_data))
            return
        await asyncio.to_thread(prepared.keep, result)
        came_to(_said(result, segment.turn))

    def _prepared(self, segment: Segment) -> tuple[_Prepared, dict[str, Any]]:
        """Return the copies of the agents for a run, and its options."""
        options = {**self._run_options, **_checked(segment.turn.options)}
        context = options.get("context")
        prepared = _Prepared(self._client, self._agents, segment.turn, self._kept_runs, context)
        options["hooks"] = RecordedSteps(segment.turn, options.get("hooks"), prepared.ending)
        return prepared, options


def _check_handoffs(agents: Mapping[str, Agent[Any]]) -> None:
    """Raise ValueError for a handoff to an agent that the program does not have."""
    for agent in agents.values():
        for each in agent.handoffs:
            target = each.agent_name if isinstance(each, Handoff) else each.name
            if target not in agents:
                raise ValueError(
                    f"agent {agent.name!r} hands over to {target!r}, which is not among the agents"
                    " given; pass all agents of the program"
                )


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a run. Raises ValueError for those that keep another history."""
    for key in _KEEPS_HISTORY:
        if options.get(key):
            raise ValueError(
                f"the option {key!r} would add the SDK's past messages to those that the service"
                " keeps, and the model would read each twice; leave it out"
            )
    return dict(options)


class PassedOn(AgentsException):
    """Ends a run after one of the program's own handoffs, to an agent that workers run."""


class _Prepared:
    """The copies of a program's agents for one run."""

    def __init__(
        self,
        client: AnyClient,
        agents: Mapping[str, Agent[Any]],
        turn: RoutedTurn,
        kept_runs: KeptRuns,
        context: object,
    ) -> None:
        self._client = client
        self._originals = agents
        self._turn = turn
        self._kept_runs = kept_runs
        self._context = context
        self._copies: dict[str, Agent[Any]] = {}
        self._refusals = 0
        # The names of the tools that end a run, as they become known.
        self.ending = set(_ENDING_TOOLS)

    async def begin(self, name: str) -> tuple[Agent[Any], Any]:
        """Return the agent of a run, and its input: the message, or a kept run."""
        if self._turn.decided is not None:
            requests = await steps.do(self._client, self._turn.paused_requests())
            if requests:
                state = await asyncio.to_thread(self._take, requests[0])
                return await self._resumed(state)
        return self.agent(name), await self.first_input()

    def begin_blocking(self, name: str) -> tuple[Agent[Any], Any]:
        """Do as begin(), in a thread without an event loop."""
        if self._turn.decided is not None:
            requests = steps.do_blocking(self._client, self._turn.paused_requests())
            if requests:
                # asyncio.run() would end the event loop that the SDK keeps for blocking runs.
                loop = asyncio.new_event_loop()
                try:
                    return loop.run_until_complete(self._resumed(self._take(requests[0])))
                finally:
                    loop.close()
        return self.agent(name), self._first_input_blocking()

    def _take(self, request_id: str) -> str:
        return taken(self._kept_runs, self._turn.run.session_id, request_id)

    async def _resumed(self, kept: str) -> tuple[Agent[Any], Any]:
        """Return a kept run with the decision about the first call that waits."""
        decided = self._turn.decided
        assert decided is not None
        # The SDK finds agents by name from the one given; the copies do not refer to each other.
        copies = [self.agent(name) for name in self._originals]
        state = await RunState.from_string(
            Agent(name="agent_routing", handoffs=copies), kept, context_override=self._context
        )
        waiting = state.get_interruptions()[0]
        if decided.is_approved:
            state.approve(waiting)
        else:
            # Without a comment the program's own tool_error_formatter says what the model reads.
            state.reject(waiting, rejection_message=decided.rejection if decided.comment else None)
        return self.agent(state._current_agent.name), state  # noqa: SLF001 - no public way

    async def following(self, result: Any) -> tuple[Agent[Any], Any] | None:
        """Return the agent and the input of the run that follows a run; None if none does.

        The run continues if it cannot wait for an approval. The target of transfer_to_agent gets a
        run of its own.
        """
        if self._has_moved(result.last_agent.name):
            return self.agent(self._holder), await self.first_input()
        return self._refuse_approvals(result)

    def following_blocking(self, result: Any) -> tuple[Agent[Any], Any] | None:
        """Do as following(), in a thread without an event loop."""
        if self._has_moved(result.last_agent.name):
            return self.agent(self._holder), self._first_input_blocking()
        return self._refuse_approvals(result)

    @property
    def _holder(self) -> str:
        """The name of the agent that has the turn."""
        return self._turn.program.names.by_id[self._turn.holder_id]

    def _has_moved(self, name: str) -> bool:
        """Tell whether the turn has gone from an agent to another one of the program."""
        return name != self._holder and not self._turn.is_passed_on

    def _refuse_approvals(self, result: Any) -> tuple[Agent[Any], Any] | None:
        """Return the state with which the run continues if it cannot wait; None if it can."""
        reason = self._turn.no_approval
        if not reason or not result.interruptions or self._refusals >= REFUSALS_MAX:
            return None
        self._refusals += 1
        state = result.to_state()
        for item in result.interruptions:
            state.reject(item, rejection_message=reason)
        return result.last_agent, state

    def keep(self, result: Any) -> None:
        """Keep a run that waits for an approval, and end the turn with it."""
        if not result.interruptions or self._turn.no_approval or self._turn.is_passed_on:
            return
        # One decision at a time; the next call is asked about when the run continues.
        waiting = result.interruptions[0]
        state = result.to_state().to_string()
        self._kept_runs.save(self._turn.run.session_id, self._turn.key, state)
        prompt = describe_call(waiting.name or "tool", waiting.arguments or "")
        self._turn.need_approval(prompt, waiting.name or "tool", waiting.arguments or "")

    def agent(self, name: str) -> Agent[Any]:
        """Return the copy of an agent, by its name in the program."""
        if name not in self._copies:
            original = self._originals[name]
            self._copies[name] = original.clone(
                instructions=self._instructions(original),
                tools=[*original.tools, *self._tools(original), *self._passing_on(original)],
                handoffs=[] if self._turn.is_worked else self._handoffs(original),
                tool_use_behavior=self._tool_use(original),
            )
        return self._copies[name]

    async def first_input(self) -> list[Any]:
        """Return the input of a run."""
        return self._input(await steps.do(self._client, self._turn.past()))

    def _first_input_blocking(self) -> list[Any]:
        return self._input(steps.do_blocking(self._client, self._turn.past()))

    def _input(self, past: Iterable[tuple[str, str]]) -> list[Any]:
        """Return an input: past turns, a note about the dispatch, and the user's message."""
        items: list[dict[str, Any]] = [{"role": role, "content": text} for role, text in past]
        if self._turn.note:
            items.append({"role": "user", "content": self._turn.note})
        items.append({"role": "user", "content": _content(self._turn)})
        return items

    def _instructions(self, original: Agent[Any]) -> Callable[..., Any]:
        """Return the agent's own instructions, followed by those of the registry."""

        async def instructions(context: RunContextWrapper[Any], agent: Agent[Any]) -> str:
            own = original.instructions
            if callable(own):
                made = own(context, agent)
                own = await made if inspect.isawaitable(made) else made
            view = await self._view()
            return f"{own}\n\n{view.instructions}" if own else view.instructions

        return instructions

    def _tools(self, original: Agent[Any]) -> list[FunctionTool]:
        """Return an agent's transfer_to_agent, ask_user, complete_task and consult_agent."""
        agent_name = original.name

        async def transfer(_context: object, arguments: str) -> str:
            given = _read(arguments)
            refusal = await self.move(agent_name, given.get("agent_id", ""), given)
            return refusal or "handed over"

        async def ask(_context: object, arguments: str) -> str:
            return self._turn.ask(agent_name, _read(arguments).get("question", ""))

        async def complete(_context: object, arguments: str) -> str:
            given = _read(arguments)
            answer, summary = given.get("answer", ""), given.get("summary", "")
            return self._turn.complete(agent_name, answer, summary)

        async def consult(_context: object, arguments: str) -> str:
            given = _read(arguments)
            return self._turn.consult(
                agent_name, given.get("agent_id", ""), given.get("question", "")
            )

        async def offer_transfer(_context: object, _agent: object) -> bool:
            view = await self._view()
            # Handoffs of the program's own are the ones that it wants among its agents.
            targets = view.elsewhere if original.handoffs else view.targets
            transferring.description = agent_tools.describe_transfer(targets)
            transferring.params_json_schema = _schema(agent_tools.transfer_parameters(targets))
            return bool(targets)

        async def offer_consult(_context: object, _agent: object) -> bool:
            asked = (await self._view()).consultable
            consulting.description = agent_tools.describe_consult(asked)
            consulting.params_json_schema = _schema(agent_tools.consult_parameters(asked))
            return bool(asked) and self._turn.may_consult

        asking = _tool(ASK, agent_tools.ASK_DESCRIPTION, agent_tools.ASK_PARAMETERS, ask)
        completing = _tool(
            COMPLETE, agent_tools.COMPLETE_DESCRIPTION, agent_tools.COMPLETE_PARAMETERS, complete
        )
        # What can be reached is known at the call of the model: the SDK then asks is_enabled.
        transferring = _tool(
            TRANSFER, agent_tools.NO_TARGETS, agent_tools.transfer_parameters(()), transfer
        )
        transferring.is_enabled = offer_transfer
        consulting = _tool(
            CONSULT, agent_tools.NO_CONSULT, agent_tools.consult_parameters(()), consult
        )
        consulting.is_enabled = offer_consult
        return [asking, completing, transferring, consulting]

    def _tool_use(self, original: Agent[Any]) -> Callable[..., Any]:
        """Return what ends a run: ask_user and complete_task, otherwise the agent's own setting."""

        async def final_output(
            context: RunContextWrapper[Any], results: list[FunctionToolResult]
        ) -> ToolsToFinalOutputResult:
            is_over = self._turn.is_ended or self._has_moved(original.name)
            if is_over and any(result.tool.name in self.ending for result in results):
                return ToolsToFinalOutputResult(
                    is_final_output=True, final_output=self._turn.tool_text
                )
            behavior = original.tool_use_behavior
            if callable(behavior):
                made = behavior(context, results)
                return await made if inspect.isawaitable(made) else made
            if behavior == "stop_on_first_tool":
                return ToolsToFinalOutputResult(
                    is_final_output=True, final_output=results[0].output
                )
            if isinstance(behavior, dict):
                for result in results:
                    if result.tool.name in behavior.get("stop_at_tool_names", ()):
                        return ToolsToFinalOutputResult(
                            is_final_output=True, final_output=result.output
                        )
            return ToolsToFinalOutputResult(is_final_output=False)

        return final_output

    def _handoffs(self, original: Agent[Any]) -> list[Any]:
        """Return the agent's own handoffs, tracked."""
        own = [each if isinstance(each, Handoff) else handoff(each) for each in original.handoffs]
        return [_Tracked(self, original.name, each) for each in own]

    def _passing_on(self, original: Agent[Any]) -> list[FunctionTool]:
        """Return the handoffs of a worker's agent as tools: they end its run."""
        if not self._turn.is_worked:
            return []
        tools = [self._as_tool(each) for each in self._handoffs(original)]
        self.ending.update(tool.name for tool in tools)
        return tools

    def _as_tool(self, given: Any) -> FunctionTool:
        """Return a handoff as a tool."""

        async def invoke(context: Any, arguments: str) -> str:
            agent = await given.on_invoke_handoff(context, arguments)
            return str(given.get_transfer_message(agent))

        async def offered(context: Any, agent: Any) -> bool:
            enabled = given.is_enabled
            if callable(enabled):
                made = enabled(context, agent)
                enabled = await made if inspect.isawaitable(made) else made
            return bool(enabled)

        return FunctionTool(
            name=given.tool_name,
            description=given.tool_description,
            params_json_schema=given.input_json_schema,
            on_invoke_tool=invoke,
            strict_json_schema=given.strict_json_schema,
            is_enabled=offered,
        )

    async def move(self, from_name: str, to_name: str, given: Mapping[str, str]) -> str | None:
        """Hand over; return None, or the text for the model if it is refused."""
        words = {key: given.get(key, "") for key in ("reason", "context", "message", "mode")}
        return await steps.do(
            self._client, self._turn.hand_over(to_name, from_name=from_name, **words)
        )

    def agent_now(self) -> Agent[Any]:
        """Return the agent that continues after a handoff of the program's own.

        Raises PassedOn if it is no agent of this run. In a worker handoffs are tools, and end the
        run as such.
        """
        if self._turn.is_passed_on and not self._turn.is_worked:
            raise PassedOn
        return self.agent(self._holder)

    async def _view(self) -> AgentView:
        """Return what the agent that holds the turn sees."""
        return await steps.do(self._client, self._turn.view())

    async def input_after(self, data: HandoffInputData) -> HandoffInputData:
        """Give the target of a handoff its own past, without other agents' texts."""
        return data.clone(
            input_history=tuple(await self.first_input()), pre_handoff_items=(), input_items=()
        )


class _Tracked(Handoff[Any, Any]):
    """A handoff of the program, about which the service is asked."""

    def __init__(self, prepared: _Prepared, from_name: str, own: Handoff[Any, Any]) -> None:
        super().__init__(
            tool_name=own.tool_name,
            tool_description=own.tool_description,
            input_json_schema=own.input_json_schema,
            on_invoke_handoff=self._invoke,
            agent_name=own.agent_name,
            input_filter=self._input,
            nest_handoff_history=False,
            strict_json_schema=own.strict_json_schema,
            is_enabled=own.is_enabled,
        )
        self._prepared = prepared
        self._from_name = from_name
        self._own = own
        self._refusal: str | None = None

    async def _invoke(self, context: RunContextWrapper[Any], arguments: str) -> Agent[Any]:
        # Ask first: the handoff's own side effects must happen only if it is allowed.
        self._refusal = await self._prepared.move(
            self._from_name, self._own.agent_name, _read(arguments)
        )
        if self._refusal is None:
            await self._own.on_invoke_handoff(context, arguments)
        return self._prepared.agent_now()

    async def _input(self, data: HandoffInputData) -> HandoffInputData:
        if self._refusal is not None:
            return data
        if self._own.input_filter is not None:
            filtered = self._own.input_filter(data)
            return await filtered if inspect.isawaitable(filtered) else filtered
        return await self._prepared.input_after(data)

    def get_transfer_message(self, agent: Any) -> str:
        """Return the text for the model: that the handoff happened, or why it did not."""
        return self._refusal or super().get_transfer_message(agent)


def _tool(
    name: str,
    description: str,
    parameters: Iterable[agent_tools.Parameter],
    invoke: Callable[..., Any],
) -> FunctionTool:
    return FunctionTool(
        name=name,
        description=description,
        params_json_schema=_schema(parameters),
        on_invoke_tool=invoke,
    )


def _schema(parameters: Iterable[agent_tools.Parameter]) -> dict[str, Any]:
    return agent_tools.json_schema(parameters, strict=True)


class RecordedSteps(RunHooks[Any]):
    """Records a run's tool calls as steps of the turn, and passes all on to the program's hooks."""

    def __init__(self, turn: RoutedTurn, own: Any, left_out: Container[str]) -> None:
        self._turn = turn
        self._left_out = left_out
        self._own = own or RunHooks()
        self._began: dict[str, datetime] = {}

    async def on_llm_start(self, *given: Any, **named: Any) -> None:
        """Pass on."""
        await self._own.on_llm_start(*given, **named)

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        """Note what the model wrote, which may come next to a transfer."""
        texts = (ItemHelpers.extract_text(item) for item in response.output)
        self._turn.wrote(agent.name, "\n\n".join(filter(None, texts)))
        await self._own.on_llm_end(context, agent, response)

    async def on_agent_start(self, *given: Any, **named: Any) -> None:
        """Pass on."""
        await self._own.on_agent_start(*given, **named)

    async def on_agent_end(self, *given: Any, **named: Any) -> None:
        """Pass on."""
        await self._own.on_agent_end(*given, **named)

    async def on_handoff(self, *given: Any, **named: Any) -> None:
        """Pass on."""
        await self._own.on_handoff(*given, **named)

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        """Note the time."""
        self._began[getattr(context, "tool_call_id", "")] = datetime.now(UTC)
        await self._own.on_tool_start(context, agent, tool)

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: object) -> None:
        """Record the step."""
        began = self._began.pop(getattr(context, "tool_call_id", ""), None)
        if tool.name not in self._left_out:
            given = getattr(context, "tool_arguments", "")
            self._turn.report.add_step(tool.name, "tool", given, result, began)
        await self._own.on_tool_end(context, agent, tool, result)


def _content(turn: RoutedTurn) -> str | list[dict[str, Any]]:
    """Return the user's message: its text, or a list of its text, images and files."""
    if not turn.items:
        return turn.user_text
    parts: list[dict[str, Any]] = []
    if turn.user_text:
        parts.append({"type": "input_text", "text": turn.user_text})
    for item in turn.items:
        media_type = item.content_type.partition(";")[0]
        data = f"data:{media_type};base64,{base64.b64encode(item.data).decode()}"
        if media_type.startswith("image/"):
            url = item.uri or data
            parts.append({"type": "input_image", "image_url": url, "detail": "auto"})
        elif item.uri:
            parts.append({"type": "input_file", "file_url": item.uri})
        else:
            name = f"file{mimetypes.guess_extension(media_type) or ''}"
            parts.append({"type": "input_file", "file_data": data, "filename": name})
    return parts


def _said(result: Any, turn: RoutedTurn) -> Said:
    """Return the result of a run, and give the turn the images that it made."""
    for item in result.new_items:
        if getattr(item.raw_item, "type", "") == "image_generation_call" and item.raw_item.result:
            image = base64.b64decode(item.raw_item.result)
            turn.report.add_item(content.data_item(image, "image/png"))
    if not turn.is_ended:
        output = result.final_output
        return Said(output if isinstance(output, str) else agent_tools.as_text(output), result)
    # A tool ended the run; the text that the model wrote with the call is for the user too.
    texts: list[str] = []
    for item in reversed(result.new_items):
        if isinstance(item, MessageOutputItem):
            texts.append(ItemHelpers.text_message_output(item))
        elif item.type == "tool_call_output_item" and texts:
            break
    return Said("\n\n".join(reversed(texts)), result)


def _read(arguments: str) -> dict[str, str]:
    """Return a tool call's arguments; empty if the model did not write a JSON object."""
    try:
        read = json.loads(arguments or "{}")
    except ValueError:
        return {}
    if not isinstance(read, dict):
        return {}
    return {key: "" if value is None else str(value) for key, value in read.items()}
