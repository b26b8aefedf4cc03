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
from collections.abc import AsyncIterator, Container, Iterable, Iterator, Mapping
from typing import Any, Final

from google.adk.agents import BaseAgent, RunConfig
from google.adk.events import Event
from google.adk.plugins import BasePlugin
from google.adk.runners import Runner
from google.adk.tools import BaseTool, ToolContext
from google.genai import types

from agent_routing.integrations import agent_tools, steps
from agent_routing.integrations.agent_tools import ASK, COMPLETE, TRANSFER
from agent_routing.integrations.routed_run import Said
from agent_routing.integrations.routed_runs import CameTo, RoutedBlockingStream, RoutedRuns
from agent_routing.integrations.routed_turn import RoutedTurn
from agent_routing.integrations.steps import AnyClient, Segment

REQUEST_KEY: Final = "agent_routing_request_id"
"""The key in custom_metadata under which a run's events carry their request."""

_OWN_CALL_PREFIX: Final = "adk-"
"""Ids of function calls that ADK generated; models never see them."""


class RoutedRunner(RoutedRuns):
    """Runs ADK's agents: each message goes to the agent that the service names.

    client: methods ending in _sync need a blocking one. runner: of the root agent; a plugin is
    added to it. agents: the names of the agents that are in the registry, if not all of the tree
    are; each is an id or alias of the registry. run_config: for every run.

    A missing ADK session is created, with the id of the session. ADK resumes only at agents that
    may transfer to their parents: leave disallow_transfer_to_parent False.
    """

    def __init__(
        self,
        client: AnyClient,
        runner: Runner,
        *,
        agents: Iterable[str] = (),
        run_config: RunConfig | None = None,
    ) -> None:
        self._tree = {agent.name: agent for agent in _whole_tree(runner.agent)}
        super().__init__(client, tuple(agents) or self._tree)
        self._runner = runner
        self._run_config = run_config or RunConfig()
        self._turns: dict[str, RoutedTurn] = {}
        plugin = _RoutingPlugin(client, self._turns, self._tree)
        runner.plugin_manager.register_plugin(plugin)

    def stream_sync(self, text: str = "", **fields: Any) -> RoutedBlockingStream:
        """Do as stream(), in a thread without an event loop."""
        flow = self._program.converse(text, fields)
        return RoutedBlockingStream(self._client, flow, self._streamed_blocking)

    async def _segment(self, segment: Segment) -> Said:
        events = [event async for event in self._events(segment)]
        return _said(events, segment.turn)

    def _segment_blocking(self, segment: Segment) -> Said:
        return _said(list(self._events_blocking(segment)), segment.turn)

    async def _streamed(self, segment: Segment, came_to: CameTo) -> AsyncIterator[Any]:
        events = []
        async for event in self._events(segment):
            events.append(event)
            yield event
        came_to(_said(events, segment.turn))

    def _streamed_blocking(self, segment: Segment, came_to: CameTo) -> Iterator[Any]:
        events = []
        for event in self._events_blocking(segment):
            events.append(event)
            yield event
        came_to(_said(events, segment.turn))

    async def _events(self, segment: Segment) -> AsyncIterator[Event]:
        """Run ADK's loop for a dispatch."""
        turn = segment.turn
        self._turns[turn.key] = turn
        try:
            await self._resume_at(segment)
            async for event in self._runner.run_async(**self._arguments(turn)):
                yield event
        finally:
            del self._turns[turn.key]

    def _events_blocking(self, segment: Segment) -> Iterator[Event]:
        """Do as _events(), in a thread without an event loop."""
        turn = segment.turn
        self._turns[turn.key] = turn
        try:
            asyncio.run(self._resume_at(segment))
            yield from self._runner.run(**self._arguments(turn))
        finally:
            del self._turns[turn.key]

    def _arguments(self, turn: RoutedTurn) -> dict[str, Any]:
        metadata = {**(self._run_config.custom_metadata or {}), REQUEST_KEY: turn.key}
        return {
            "user_id": _user_of(turn),
            # Without a session, as in an outage, a message is a conversation of its own.
            "session_id": turn.run.session_id or turn.dispatch.request_id,
            "new_message": _content("user", turn.user_text),
            "run_config": self._run_config.model_copy(update={"custom_metadata": metadata}),
        }

    async def _resume_at(self, segment: Segment) -> None:
        """Make ADK start at the dispatched agent: it starts at the agent of the last event."""
        agent = self._tree[segment.name]
        if (barred := _barred_above(agent)) is not None:
            raise ValueError(
                f"ADK cannot start at agent {agent.name!r}, because {barred!r} has"
                " disallow_transfer_to_parent; leave that False"
            )
        service = self._runner.session_service
        place = {
            "app_name": self._runner.app_name,
            "user_id": _user_of(segment.turn),
            "session_id": segment.turn.run.session_id or segment.turn.dispatch.request_id,
        }
        session = await service.get_session(**place) or await service.create_session(**place)
        await service.append_event(
            session, Event(author=agent.name, custom_metadata={REQUEST_KEY: segment.turn.key})
        )


class _RoutingPlugin(BasePlugin):
    """Gives agents what they may see, and asks the service about their transfers."""

    def __init__(
        self,
        client: AnyClient,
        turns: Mapping[str, RoutedTurn],
        tree: Mapping[str, BaseAgent],
    ) -> None:
        super().__init__(name="agent_routing")
        self._client = client
        self._turns = turns
        self._tree = tree

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        """Give the model its agent's instructions, tools and past."""
        if (turn := self._turn(callback_context)) is None:
            return
        view = await steps.do(self._client, turn.view())
        past = await steps.do(self._client, turn.past())
        llm_request.append_instructions([view.instructions])
        reachable = set(_transfer_targets(self._tree[callback_context.agent_name]))
        targets = [(name, each) for name, each in view.targets if name in reachable]
        _take_out(llm_request, TRANSFER)
        tools = [_EndingTool(turn, ASK), _EndingTool(turn, COMPLETE)]
        transfer = _TransferTool(turn, targets, reachable)
        llm_request.append_tools([transfer, *tools] if targets else tools)
        contents = [_content("user" if role == "user" else "model", text) for role, text in past]
        if turn.note:
            contents.append(_content("user", turn.note))
        contents.append(_content("user", turn.user_text))
        contents.extend(_own_contents(callback_context))
        llm_request.contents = contents

    async def after_tool_callback(
        self,
        *,
        tool: BaseTool,  # noqa: ARG002 - ADK's signature
        tool_args: dict[str, Any],
        tool_context: ToolContext,
        result: Any,  # noqa: ARG002 - ADK's signature
    ) -> dict[str, Any] | None:
        """Ask the service about a tool's transfer. The model reads why it was refused."""
        turn = self._turn(tool_context)
        target = tool_context.actions.transfer_to_agent
        if turn is None or not target:
            return None
        words = {
            key: str(tool_args.get(key) or "") for key in ("reason", "context", "message", "mode")
        }
        refusal = await steps.do(
            self._client, turn.hand_over(target, from_name=tool_context.agent_name, **words)
        )
        if refusal is None:
            return None
        tool_context.actions.transfer_to_agent = None
        return {"error": refusal}

    def _turn(self, context: Any) -> RoutedTurn | None:
        config = context.run_config
        metadata = (config.custom_metadata if config else None) or {}
        return self._turns.get(metadata.get(REQUEST_KEY, ""))


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
            agent_tools.transfer_parameters(name for name, _ in targets),
        )
        self._names = turn.program.names
        self._reachable = reachable

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        """Pass the agent's name to ADK."""
        # ADK's own instructions say agent_name.
        wanted = str(args.get("agent_id") or args.get("agent_name") or "")
        name = self._names.name(self._names.agent_id(wanted) or "") or wanted
        if name not in self._reachable:
            return {"error": agent_tools.describe_refusal(f'you cannot reach agent "{name}"')}
        tool_context.actions.transfer_to_agent = name
        return {"result": f"handed over to {name}"}


class _EndingTool(_RoutedTool):
    """ask_user or complete_task."""

    def __init__(self, turn: RoutedTurn, name: str) -> None:
        if name == ASK:
            super().__init__(name, agent_tools.ASK_DESCRIPTION, agent_tools.ASK_PARAMETERS)
        else:
            super().__init__(
                name, agent_tools.COMPLETE_DESCRIPTION, agent_tools.COMPLETE_PARAMETERS
            )
        self._turn = turn

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        """End the turn: the model is not called again."""
        tool_context.actions.skip_summarization = True
        speaker = tool_context.agent_name
        if self.name == ASK:
            return {"result": self._turn.ask(speaker, str(args.get("question") or ""))}
        answer, summary = str(args.get("answer") or ""), str(args.get("summary") or "")
        return {"result": self._turn.complete(speaker, answer, summary)}


def _whole_tree(root: BaseAgent) -> Iterator[BaseAgent]:
    """Yield an agent and all below it."""
    yield root
    for agent in root.sub_agents:
        yield from _whole_tree(agent)


def _barred_above(agent: BaseAgent) -> str | None:
    """Return the agent that prevents ADK from resuming at this one; None if none does."""
    while agent.parent_agent is not None:
        if getattr(agent, "disallow_transfer_to_parent", True):
            return str(agent.name)
        agent = agent.parent_agent
    return None


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


def _own_contents(context: Any) -> Iterator[types.Content]:
    """Yield what an agent said and called in this run, with the results."""
    for event in context.session.events:
        if event.invocation_id != context.invocation_id or event.author != context.agent_name:
            continue
        if event.partial or not (event.content and event.content.parts):
            continue
        content = event.content.model_copy(deep=True)
        for part in content.parts:
            for call in (part.function_call, part.function_response):
                if call is not None and (call.id or "").startswith(_OWN_CALL_PREFIX):
                    call.id = None
        yield content


def _said(events: Iterable[Event], turn: RoutedTurn) -> Said:
    """Return the result of a run: the last text of the agent that holds the turn."""
    name = turn.program.names.by_id[turn.holder_id]
    seen = [event for event in events if not event.partial]
    for event in reversed(seen):
        if event.author == name and event.content and (text := _text(event.content)):
            return Said(text, seen)
    return Said("", seen)


def _text(content: types.Content) -> str:
    return "".join(part.text for part in content.parts or [] if part.text and not part.thought)


def _content(role: str, text: str) -> types.Content:
    return types.Content(role=role, parts=[types.Part(text=text)])


def _user_of(turn: RoutedTurn) -> str:
    """Return a user id for ADK, which needs one; with sign-in the program may not know it."""
    return turn.user_id or "user"
