"""Google ADK: agents of a tree whose transfers the service decides and remembers.

Owns a plugin for ADK's runner, and how the runner is started for a message. Runs that were not
started here are not changed.

    routed = RoutedRunner(client, Runner(agent=coordinator, app_name="tax", session_service=...))
    run = await routed.run("How much VAT do I owe?", session_id="chat-42", user_id="ana")
    print(run.text)

Every tool that sets actions.transfer_to_agent hands over, ADK's own and the program's. The service
is asked before the transfer happens.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Container,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from google.adk.agents import BaseAgent, LlmAgent, RunConfig
from google.adk.events import Event
from google.adk.plugins import BasePlugin
from google.adk.runners import Runner
from google.adk.tools import BaseTool, ToolContext
from google.genai import types

from agent_routing import content
from agent_routing.integrations import agent_tools, steps
from agent_routing.integrations.adk_confirmations import (
    REQUEST_KEY,
    Confirmations,
    LaterResult,
    LongRunning,
    default_later_result,
    run_key,
)
from agent_routing.integrations.adk_events import authors_of, contents_of_turn, said_by
from agent_routing.integrations.agent_tools import ASK, COMPLETE, CONSULT, TRANSFER
from agent_routing.integrations.routed_run import Said
from agent_routing.integrations.routed_runs import CameTo, RoutedBlockingStream, RoutedRuns
from agent_routing.integrations.routed_turn import RoutedTurn
from agent_routing.integrations.steps import AnyClient, Segment

__all__ = ["REQUEST_KEY", "RoutedRunner"]


class RoutedRunner(RoutedRuns):
    """Runs ADK's agents: each message goes to the agent that the service names.

    client: methods ending in _sync need a blocking one. runner: of the root agent; a plugin is
    added to it. agents: the names of the agents that are in the registry, each an id or alias;
    default: all of the tree, but the steps of a SequentialAgent, LoopAgent, ParallelAgent or agent
    class of the program, which are parts of that agent. run_config: for every run. The methods'
    options= are arguments of Runner.run_async(), such as run_config and state_delta.

    long_running: names of tools whose calls wait for a decision, after their first result.
    later_result: what such a tool returned in the end, of its name, its first result and the
    decision; default: the first result with the status approved or rejected, and the comment.

    Tool confirmations are requests for approval; the session service keeps them. A missing ADK
    session is created, with the id of the session.
    """

    def __init__(
        self,
        client: AnyClient,
        runner: Runner,
        *,
        agents: Iterable[str] = (),
        run_config: RunConfig | None = None,
        long_running: Iterable[str] = (),
        later_result: LaterResult = default_later_result,
    ) -> None:
        self._tree = {agent.name: agent for agent in _whole_tree(runner.agent)}
        super().__init__(client, tuple(agents) or _conversing(runner.agent))
        self._runner = runner
        self._run_config = run_config or RunConfig()
        self._turns: dict[str, _Running] = {}
        self._long_running = LongRunning(frozenset(long_running), later_result)
        plugin = _RoutingPlugin(client, self._turns, self._tree, self._long_running)
        self._began_at: dict[str, Runner] = {}
        runner.plugin_manager.register_plugin(plugin)

    def stream_sync(self, text: str = "", **fields: Any) -> RoutedBlockingStream:
        """Do as stream(), in a thread without an event loop."""
        flow = self._program.converse(text, fields)
        return RoutedBlockingStream(self._client, flow, self._streamed_blocking)

    async def _segment(self, segment: Segment) -> Said:
        events = [event async for event in self._events(segment)]
        return self._said(events, segment.turn)

    def _segment_blocking(self, segment: Segment) -> Said:
        return self._said(list(self._events_blocking(segment)), segment.turn)

    async def _streamed(self, segment: Segment, came_to: CameTo) -> AsyncIterator[Any]:
        events = []
        async for event in self._events(segment):
            events.append(event)
            yield event
        came_to(self._said(events, segment.turn))

    def _streamed_blocking(self, segment: Segment, came_to: CameTo) -> Iterator[Any]:
        events = []
        for event in self._events_blocking(segment):
            events.append(event)
            yield event
        came_to(self._said(events, segment.turn))

    async def _events(self, segment: Segment) -> AsyncIterator[Event]:
        """Run ADK's loop for a dispatch."""
        turn = segment.turn
        requests: tuple[str, ...] = ()
        if turn.decided is not None:
            requests = await steps.do(self._client, turn.paused_requests())
        with self._running(turn, requests):
            if (message := await self._begin(segment, requests)) is not None:
                runner = self._runner_at(segment.name)
                async for event in runner.run_async(**self._arguments(turn, message)):
                    yield event

    def _events_blocking(self, segment: Segment) -> Iterator[Event]:
        """Do as _events(), in a thread without an event loop."""
        turn = segment.turn
        requests: tuple[str, ...] = ()
        if turn.decided is not None:
            requests = steps.do_blocking(self._client, turn.paused_requests())
        with self._running(turn, requests):
            if (message := asyncio.run(self._begin(segment, requests))) is not None:
                runner = self._runner_at(segment.name)
                yield from runner.run(**self._arguments(turn, message))

    @contextmanager
    def _running(self, turn: RoutedTurn, requests: tuple[str, ...]) -> Iterator[None]:
        """Let the plugin find a turn while it runs."""
        running = self._turns[turn.key] = _Running(turn, requests)
        try:
            yield
        finally:
            # A worker whose lease has lapsed may have got the same turn again, and run it by now.
            if self._turns.get(turn.key) is running:
                del self._turns[turn.key]

    def _arguments(self, turn: RoutedTurn, message: types.Content) -> dict[str, Any]:
        options = dict(turn.options)
        run_config: RunConfig = options.pop("run_config", None) or self._run_config
        metadata = {**(run_config.custom_metadata or {}), REQUEST_KEY: turn.key}
        return {
            "user_id": _user_of(turn),
            "session_id": run_key(turn),
            "new_message": message,
            "run_config": run_config.model_copy(update={"custom_metadata": metadata}),
            **options,
        }

    async def _begin(self, segment: Segment, requests: tuple[str, ...]) -> types.Content | None:
        """Return the message with which ADK begins; None if the turn already has its outcome."""
        session = await self._resume_at(segment)
        if not requests:
            return _user_content(segment.turn)
        confirmations = Confirmations(session.events, requests, self._long_running)
        return await confirmations.decide(segment.turn, segment.name, self._append_to(session))

    def _append_to(self, session: Any) -> Callable[[Event], Awaitable[object]]:
        return partial(self._runner.session_service.append_event, session)

    async def _resume_at(self, segment: Segment) -> Any:
        """Make ADK start at the dispatched agent: it starts at the agent of the last event."""
        agent = self._tree[segment.name]
        service = self._runner.session_service
        place = {
            "app_name": self._runner.app_name,
            "user_id": _user_of(segment.turn),
            "session_id": run_key(segment.turn),
        }
        session = await service.get_session(**place) or await service.create_session(**place)
        await service.append_event(
            session, Event(author=agent.name, custom_metadata={REQUEST_KEY: segment.turn.key})
        )
        return session

    def _runner_at(self, name: str) -> Runner:
        """Return the runner that starts at an agent.

        ADK starts at an agent below its root only if control can go from there to the root by
        transfers. For others, such as a SequentialAgent, it gets a runner whose root they are.
        """
        agent = self._tree[name]
        if not _is_barred(agent):
            return self._runner
        if name not in self._began_at:
            runner = copy.copy(self._runner)
            runner.agent = agent
            self._began_at[name] = runner
        return self._began_at[name]

    def _said(self, events: Iterable[Event], turn: RoutedTurn) -> Said:
        """Return the result of a run: the last text of the agent that holds the turn.

        Gives the turn the images and files that the agent made, and the confirmation that it waits
        for.
        """
        names = turn.program.names
        agent = self._tree[names.by_id[turn.holder_id]]
        seen = [event for event in events if not event.partial]
        Confirmations(seen, (turn.key,), self._long_running).ask_first(turn)
        own = authors_of(agent)
        for event in seen:
            if event.author in own and event.content:
                for part in event.content.parts or []:
                    _report(part, turn)
        return Said(said_by(agent, seen), seen)


@dataclass(frozen=True, slots=True)
class _Running:
    """A turn that runs. requests: those of the paused runs that it continues, nearest first."""

    turn: RoutedTurn
    requests: tuple[str, ...]

    @property
    def keys(self) -> frozenset[str]:
        """The requests whose events belong to the turn."""
        return frozenset((self.turn.key, *self.requests))

    @property
    def holder(self) -> str:
        """The name of the agent that has the turn."""
        return self.turn.program.names.by_id[self.turn.holder_id]

    def is_program_agent(self, name: str) -> bool:
        """Tell whether an agent is one of the service, and not a step of one."""
        return name in self.turn.program.names.by_id.values()


class _RoutingPlugin(BasePlugin):
    """Gives agents what they may see, and asks the service about their transfers."""

    def __init__(
        self,
        client: AnyClient,
        turns: Mapping[str, _Running],
        tree: Mapping[str, BaseAgent],
        long_running: LongRunning,
    ) -> None:
        super().__init__(name="agent_routing")
        self._client = client
        self._turns = turns
        self._tree = tree
        self._long_running = long_running
        self._began: dict[str, datetime] = {}

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        """Give the model its agent's instructions, tools and past."""
        if (running := self._running(callback_context)) is None:
            return
        turn = running.turn
        agent = self._tree[callback_context.agent_name]
        past: list[tuple[str, str]] = []
        if getattr(agent, "include_contents", "default") == "default":
            past = await steps.do(self._client, turn.past())
        before = [_content("user" if role == "user" else "model", text) for role, text in past]
        if turn.note:
            before.append(_content("user", turn.note))
        before.append(_user_content(turn))
        if not running.is_program_agent(agent.name):
            # A step of the agent that has the turn: it reads the other steps, and ends nothing.
            others = authors_of(self._tree[running.holder])
            own = contents_of_turn(callback_context, running.keys, others)
            llm_request.contents = [*before, *own]
            return
        view = await steps.do(self._client, turn.view())
        llm_request.append_instructions([view.instructions])
        reachable = set(_transfer_targets(self._tree[callback_context.agent_name]))
        elsewhere = {name for name, _ in view.elsewhere}
        targets = [each for each in view.targets if each[0] in reachable | elsewhere]
        _take_out(llm_request, TRANSFER)
        tools = [_EndingTool(turn, name, view.consultable) for name in (ASK, COMPLETE)]
        if view.consultable and turn.may_consult:
            tools.append(_EndingTool(turn, CONSULT, view.consultable))
        transfer = _TransferTool(turn, targets, reachable)
        llm_request.append_tools([transfer, *tools] if targets else tools)
        llm_request.contents = [*before, *contents_of_turn(callback_context, running.keys)]

    async def after_model_callback(self, *, callback_context: Any, llm_response: Any) -> None:
        """Note what the model wrote, which may come next to a transfer."""
        running = self._running(callback_context)
        if running is None or llm_response.partial or llm_response.content is None:
            return
        parts = llm_response.content.parts or []
        text = "".join(part.text for part in parts if part.text and not part.thought)
        running.turn.wrote(callback_context.agent_name, text)

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Note the time. A tool that needs a decision that it cannot get is not executed."""
        if (running := self._running(tool_context)) is None:
            return None
        self._began[tool_context.function_call_id or ""] = datetime.now(UTC)
        refused = running.turn.no_approval
        if refused and (
            tool.name in self._long_running.names
            or await tool.check_require_confirmation(tool_args, tool_context)
        ):
            return {"error": refused}
        return None

    async def after_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, result: Any
    ) -> dict[str, Any] | None:
        """Record the step, and ask the service about a transfer. The model reads a refusal."""
        if (running := self._running(tool_context)) is None:
            return None
        turn, actions = running.turn, tool_context.actions
        began = self._began.pop(tool_context.function_call_id or "", None)
        if actions.requested_tool_confirmations:
            if not turn.no_approval:
                return None
            actions.requested_tool_confirmations = {}
            return {"error": turn.no_approval}
        if not isinstance(tool, _RoutedTool):
            turn.report.add_step(tool.name, "tool", tool_args, result, began)
        target = actions.transfer_to_agent
        if not target or not (
            running.is_program_agent(target) or running.is_program_agent(tool_context.agent_name)
        ):
            # No transfer, or one between the steps of an agent.
            return None
        words = {
            key: str(tool_args.get(key) or "") for key in ("reason", "context", "message", "mode")
        }
        refusal = await steps.do(
            self._client,
            turn.hand_over(actions.transfer_to_agent, from_name=tool_context.agent_name, **words),
        )
        if refusal is not None:
            actions.transfer_to_agent = None
            return {"error": refusal}
        if turn.is_passed_on:
            # The target runs elsewhere; the model is not called again.
            actions.transfer_to_agent = None
            actions.skip_summarization = True
        return None

    def _running(self, context: Any) -> _Running | None:
        """Return the turn of a run; None for another run, such as that of an AgentTool's agent."""
        config = context.run_config
        metadata = (config.custom_metadata if config else None) or {}
        running = self._turns.get(metadata.get(REQUEST_KEY, ""))
        # An AgentTool runs its agent with the same plugins and metadata, in a session of its own.
        if running is None or context.session.id != run_key(running.turn):
            return None
        return running


class _RoutedTool(BaseTool):
    """A tool whose arguments are texts."""

    def __init__(
        self, name: str, description: str, parameters: Iterable[agent_tools.Parameter]
    ) -> None:
        super().__init__(name=name, description=description)
        self._schema = agent_tools.json_schema(parameters)

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=self.name, description=self.description, parameters_json_schema=self._schema
        )


class _TransferTool(_RoutedTool):
    """transfer_to_agent. The plugin asks the service after it ran."""

    def __init__(
        self, turn: RoutedTurn, targets: list[tuple[str, Any]], reachable: Container[str]
    ) -> None:
        super().__init__(
            TRANSFER,
            agent_tools.describe_transfer(targets),
            agent_tools.transfer_parameters(targets),
        )
        self._names = turn.program.names
        self._reachable = reachable

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        """Pass the agent's name to ADK."""
        # ADK's own instructions say agent_name.
        wanted = str(args.get("agent_id") or args.get("agent_name") or "")
        agent_id = self._names.agent_id(wanted) or wanted
        name = self._names.name(agent_id)
        if name is not None and name not in self._reachable:
            return {"error": agent_tools.describe_refusal(f'you cannot reach agent "{name}"')}
        name = name or agent_id
        tool_context.actions.transfer_to_agent = name
        return {"result": f"handed over to {name}"}


class _EndingTool(_RoutedTool):
    """ask_user, complete_task or consult_agent."""

    def __init__(self, turn: RoutedTurn, name: str, targets: Iterable[tuple[str, Any]]) -> None:
        known = tuple(targets)
        descriptions: dict[str, tuple[str, tuple[agent_tools.Parameter, ...]]] = {
            ASK: (agent_tools.ASK_DESCRIPTION, agent_tools.ASK_PARAMETERS),
            COMPLETE: (agent_tools.COMPLETE_DESCRIPTION, agent_tools.COMPLETE_PARAMETERS),
            CONSULT: (
                agent_tools.describe_consult(known),
                agent_tools.consult_parameters(known),
            ),
        }
        super().__init__(name, *descriptions[name])
        self._turn = turn

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        """End the turn: the model is not called again, unless the tool was refused."""
        speaker = tool_context.agent_name
        given = {key: str(value or "") for key, value in args.items()}
        if self.name == ASK:
            result = self._turn.ask(speaker, given.get("question", ""))
        elif self.name == CONSULT:
            asked = given.get("agent_id", ""), given.get("question", "")
            result = self._turn.consult(speaker, *asked)
        else:
            answer, summary = given.get("answer", ""), given.get("summary", "")
            result = self._turn.complete(speaker, answer, summary)
        tool_context.actions.skip_summarization = self._turn.is_ended
        return {"result": result}


def _whole_tree(root: BaseAgent) -> Iterator[BaseAgent]:
    """Yield an agent and all below it."""
    yield root
    for agent in root.sub_agents:
        yield from _whole_tree(agent)


def _conversing(agent: BaseAgent) -> Iterator[str]:
    """Yield the names of an agent and those below it that can have a conversation."""
    yield agent.name
    if isinstance(agent, LlmAgent):
        for below in agent.sub_agents:
            yield from _conversing(below)


def _is_barred(agent: BaseAgent) -> bool:
    """Tell whether ADK would start at its root rather than at this agent."""
    while agent.parent_agent is not None:
        if getattr(agent, "disallow_transfer_to_parent", True):
            return True
        agent = agent.parent_agent
        if not isinstance(agent, LlmAgent):
            return True
    return False


def _transfer_targets(agent: Any) -> Iterator[str]:
    """Yield the names to which ADK lets an agent transfer: children, parent and siblings."""
    for below in agent.sub_agents:
        yield below.name
    parent = agent.parent_agent
    if parent is None:
        return
    if not getattr(agent, "disallow_transfer_to_parent", False):
        yield parent.name
    if not getattr(agent, "disallow_transfer_to_peers", False):
        for beside in parent.sub_agents:
            if beside.name != agent.name:
                yield beside.name


def _take_out(llm_request: Any, name: str) -> None:
    """Remove a tool from a model's request."""
    if llm_request.tools_dict.pop(name, None) is None:
        return
    for tool in llm_request.config.tools or []:
        if declared := getattr(tool, "function_declarations", None):
            tool.function_declarations = [each for each in declared if each.name != name]


def _report(part: types.Part, turn: RoutedTurn) -> None:
    """Give a turn an image or file of its agent's answer."""
    if part.inline_data and part.inline_data.data:
        media_type = part.inline_data.mime_type or _BYTES
        turn.report.add_item(content.data_item(part.inline_data.data, media_type))
    elif part.file_data and part.file_data.file_uri:
        media_type = part.file_data.mime_type or _BYTES
        turn.report.add_item(content.uri_item(part.file_data.file_uri, media_type))


_BYTES: Final = "application/octet-stream"
"""The media type of content that names none."""


def _user_content(turn: RoutedTurn) -> types.Content:
    """Return the user's message: its text, images and files."""
    parts = [types.Part(text=turn.user_text)] if turn.user_text or not turn.items else []
    for item in turn.items:
        if item.uri:
            parts.append(types.Part.from_uri(file_uri=item.uri, mime_type=item.content_type))
        else:
            parts.append(types.Part.from_bytes(data=item.data, mime_type=item.content_type))
    return types.Content(role="user", parts=parts)


def _content(role: str, text: str) -> types.Content:
    return types.Content(role=role, parts=[types.Part(text=text)])


def _user_of(turn: RoutedTurn) -> str:
    """Return a user id for ADK, which needs one; with sign-in the program may not know it."""
    return turn.user_id or "user"
