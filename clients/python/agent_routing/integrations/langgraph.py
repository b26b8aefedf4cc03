"""LangGraph: agents of a graph whose handoffs the service decides and remembers.

Owns a middleware for LangChain's agents, and how a graph is run for a message. Outside a routed run
the middleware does nothing.

    agents = [create_agent(model, name=name, middleware=[RoutingMiddleware()]) for name in names]
    routed = RoutedGraph(client, create_swarm(agents, default_active_agent=names[0]).compile())
    run = routed.run_sync("How much VAT do I owe?", session_id="chat-42", user_id="ana")

Every tool that returns a Command to the parent graph is a handoff, also a tool of the program. The
service is asked before the handoff happens.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from langchain.agents.middleware import AgentMiddleware, ModelRequest
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.config import get_config
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command, Send

from agent_routing.integrations import agent_tools, steps
from agent_routing.integrations.agent_tools import ASK, COMPLETE, TRANSFER
from agent_routing.integrations.routed_run import AgentView, Said
from agent_routing.integrations.routed_runs import (
    CameTo,
    RoutedBlockingStream,
    RoutedRuns,
    RoutedStream,
)
from agent_routing.integrations.routed_turn import RoutedTurn
from agent_routing.integrations.steps import AnyClient, Segment

_TURN: Final = "__agent_routing_turn"
"""The key of the turn in a run's configuration. LangGraph does not store such keys in
checkpoints."""

_STREAM_OPTIONS: Final[Mapping[str, Any]] = {"stream_mode": "messages", "subgraphs": True}
"""What is streamed by default."""

_OWN_TOOLS: Final = frozenset({TRANSFER, ASK, COMPLETE})

_EDGES: Final = frozenset({"__start__", "__end__"})


@dataclass(frozen=True, slots=True)
class _Running:
    """A turn, and the client for its calls."""

    client: AnyClient
    turn: RoutedTurn


class RoutedGraph(RoutedRuns):
    """Runs a graph of agents: each message goes to the agent that the service names.

    client: methods ending in _sync need a blocking one. graph: compiled, with a node for each agent
    and active_agent in its state, as create_swarm() makes it. Its agents have the
    RoutingMiddleware. agents: the names of the nodes that are agents, if not all are; each is an id
    or alias of the registry. config: for every run; configurable.thread_id is the session's id
    unless it is given.
    """

    def __init__(
        self,
        client: AnyClient,
        graph: Any,
        *,
        agents: Iterable[str] = (),
        config: Mapping[str, Any] | None = None,
    ) -> None:
        names = tuple(agents) or tuple(name for name in graph.nodes if name not in _EDGES)
        super().__init__(client, names)
        self._graph = graph
        self._config = dict(config or {})

    def stream(
        self, text: str = "", *, options: Mapping[str, Any] | None = None, **fields: Any
    ) -> RoutedStream:
        """Do as run(), streaming: iterate over the graph's chunks, then read .run.

        options: for astream(), such as stream_mode and subgraphs. A stream that is not read to its
        end leaves its turn open; the next message overtakes it.
        """
        streamed = partial(self._streamed, options=options)
        return RoutedStream(self._client, self._program.converse(text, fields), streamed)

    def stream_sync(
        self, text: str = "", *, options: Mapping[str, Any] | None = None, **fields: Any
    ) -> RoutedBlockingStream:
        """Do as stream(), blocking."""
        streamed = partial(self._streamed_blocking, options=options)
        return RoutedBlockingStream(self._client, self._program.converse(text, fields), streamed)

    async def _segment(self, segment: Segment) -> Said:
        given_input, config = self._prepared(segment)
        return _said(await self._graph.ainvoke(given_input, config), segment.turn)

    def _segment_blocking(self, segment: Segment) -> Said:
        given_input, config = self._prepared(segment)
        return _said(self._graph.invoke(given_input, config), segment.turn)

    async def _streamed(
        self, segment: Segment, came_to: CameTo, options: Mapping[str, Any] | None = None
    ) -> AsyncIterator[Any]:
        given_input, config = self._prepared(segment)
        seen = _LastState({**_STREAM_OPTIONS, **(options or {})})
        async for chunk in self._graph.astream(given_input, config, **seen.options):
            for shown in seen.of(chunk):
                yield shown
        came_to(_said(seen.state, segment.turn))

    def _streamed_blocking(
        self, segment: Segment, came_to: CameTo, options: Mapping[str, Any] | None = None
    ) -> Iterator[Any]:
        given_input, config = self._prepared(segment)
        seen = _LastState({**_STREAM_OPTIONS, **(options or {})})
        for chunk in self._graph.stream(given_input, config, **seen.options):
            yield from seen.of(chunk)
        came_to(_said(seen.state, segment.turn))

    def _prepared(self, segment: Segment) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the graph's input and configuration for a run."""
        turn = segment.turn
        configurable = {
            # Without a session, as in an outage, a message is a thread of its own.
            "thread_id": turn.run.session_id or turn.dispatch.request_id,
            **self._config.get("configurable", {}),
            _TURN: _Running(self._client, turn),
        }
        message = HumanMessage(turn.user_text, id=turn.key)
        given = {"messages": [message], "active_agent": segment.name}
        return given, {**self._config, "configurable": configurable}


class RoutingMiddleware(AgentMiddleware[Any, Any]):
    """The middleware for the agents of a RoutedGraph. One instance may serve all of them.

    It adds the tools transfer_to_agent, ask_user and complete_task, and gives each model call the
    agent's instructions and its own past turns, without other agents' texts. transfer: whether to
    add transfer_to_agent; set it to False for agents with their own handoff tools.

    A graph without LangChain's agents can use wrap_tool_call and awrap_tool_call in its ToolNode.
    """

    def __init__(self, *, transfer: bool = True) -> None:
        super().__init__()
        ending = [
            _bare_tool(ASK, agent_tools.ASK_DESCRIPTION, agent_tools.ASK_PARAMETERS, ends=True),
            _bare_tool(
                COMPLETE,
                agent_tools.COMPLETE_DESCRIPTION,
                agent_tools.COMPLETE_PARAMETERS,
                ends=True,
            ),
        ]
        self.tools = [_transfer_tool(()), *ending] if transfer else ending

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[..., Any]) -> Any:
        """Give the model what its agent may see."""
        if (running := _running()) is None:
            return handler(request)
        view = steps.do_blocking(running.client, running.turn.view())
        past = steps.do_blocking(running.client, running.turn.past())
        return handler(_for_agent(request, running.turn, view, past))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[..., Awaitable[Any]]
    ) -> Any:
        """Give the model what its agent may see."""
        if (running := _running()) is None:
            return await handler(request)
        view = await steps.do(running.client, running.turn.view())
        past = await steps.do(running.client, running.turn.past())
        return await handler(_for_agent(request, running.turn, view, past))

    def wrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]],
    ) -> ToolMessage | Command[Any]:
        """Ask the service about a tool's handoff. The model reads why it was refused."""
        running = _running()
        result = _own_tool(running, request)
        result = handler(request) if result is None else result
        target = _target_of(result)
        if running is None or not target:
            return result
        refusal = steps.do_blocking(running.client, _hand_over(running.turn, request, target))
        return result if refusal is None else _refused(request, refusal)

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Ask the service about a tool's handoff. The model reads why it was refused."""
        running = _running()
        result = _own_tool(running, request)
        result = await handler(request) if result is None else result
        target = _target_of(result)
        if running is None or not target:
            return result
        refusal = await steps.do(running.client, _hand_over(running.turn, request, target))
        return result if refusal is None else _refused(request, refusal)


def _running() -> _Running | None:
    """Return the turn of this run; None outside a routed run."""
    found = get_config().get("configurable", {}).get(_TURN)
    return found if isinstance(found, _Running) else None


def _for_agent(
    request: ModelRequest[Any],
    turn: RoutedTurn,
    view: AgentView,
    past: Iterable[tuple[str, str]],
) -> ModelRequest[Any]:
    """Return a model's request with its agent's instructions, tools and past."""
    own = request.system_message.text if request.system_message else ""
    system = f"{own}\n\n{view.instructions}" if own else view.instructions
    messages: list[AnyMessage] = [
        HumanMessage(text) if role == "user" else AIMessage(text) for role, text in past
    ]
    if turn.note:
        messages.append(HumanMessage(turn.note))
    name = turn.program.names.by_id[turn.holder_id]
    messages.extend(_own_messages(request.messages, turn.key, name))
    tools = [
        tool for tool in request.tools if not (isinstance(tool, BaseTool) and tool.name == TRANSFER)
    ]
    if len(tools) < len(request.tools) and view.targets:
        tools.append(_transfer_tool(view.targets))
    return request.override(system_message=SystemMessage(system), messages=messages, tools=tools)


def _own_messages(messages: Iterable[AnyMessage], key: str, name: str) -> list[AnyMessage]:
    """Return the user's message of this run, and what its agent said and called since then.

    key: the id of the user's message. A tool call without a result, because another call of the
    same answer handed over, gets one that says so: providers need a result for each.
    """
    own: list[AnyMessage] = []
    called: dict[str, str] = {}
    is_begun = False
    for message in messages:
        if message.id == key:
            is_begun = True
            own.append(message)
        elif not is_begun:
            continue
        elif isinstance(message, AIMessage) and message.name == name:
            own.extend(_unanswered(called))
            own.append(message)
            called = {call["id"] or "": call["name"] for call in message.tool_calls}
        elif isinstance(message, ToolMessage) and message.tool_call_id in called:
            del called[message.tool_call_id]
            own.append(message)
    own.extend(_unanswered(called))
    return own


def _unanswered(called: Mapping[str, str]) -> list[ToolMessage]:
    return [
        ToolMessage("not executed", name=name, tool_call_id=call_id, status="error")
        for call_id, name in called.items()
    ]


def _target_of(result: object) -> str:
    """Return the node to which a tool's result hands over; empty if it is not a handoff."""
    if not isinstance(result, Command) or result.graph != Command.PARENT:
        return ""
    goto = result.goto
    if isinstance(goto, (list, tuple)):
        goto = goto[0] if len(goto) == 1 else ""
    return str(goto.node if isinstance(goto, Send) else goto)


def _hand_over(turn: RoutedTurn, request: ToolCallRequest, target: str) -> steps.Calls[str | None]:
    """Return the calls that ask the service about a handoff."""
    given = request.tool_call["args"]
    return turn.hand_over(
        target,
        from_name=_speaker(request.state),
        **{key: str(given.get(key) or "") for key in ("reason", "context", "message", "mode")},
    )


def _speaker(state: Any) -> str:
    """Return the name of the agent that called a tool; empty if its answer has no name."""
    for message in reversed(state["messages"] if isinstance(state, dict) else ()):
        if isinstance(message, AIMessage):
            return message.name or ""
    return ""


def _refused(request: ToolCallRequest, refusal: str) -> ToolMessage:
    return _tool_result(request, refusal, status="error")


def _tool_result(
    request: ToolCallRequest, text: str, status: Literal["success", "error"] = "success"
) -> ToolMessage:
    """Return the result of a tool call for the model."""
    call = request.tool_call
    return ToolMessage(text, name=call["name"], tool_call_id=call["id"] or "", status=status)


def _own_tool(
    running: _Running | None, request: ToolCallRequest
) -> ToolMessage | Command[Any] | None:
    """Return the result of a call of this module's tools; None for any other tool."""
    name, given = request.tool_call["name"], request.tool_call["args"]
    if name not in _OWN_TOOLS:
        return None
    if running is None:
        return _refused(request, f"{name} was not executed: no conversation is being routed")
    turn = running.turn
    speaker = _speaker(request.state)
    if name == ASK:
        return _tool_result(request, turn.ask(speaker, str(given.get("question") or "")))
    if name == COMPLETE:
        answer, summary = str(given.get("answer") or ""), str(given.get("summary") or "")
        return _tool_result(request, turn.complete(speaker, answer, summary))
    names = turn.program.names
    wanted = str(given.get("agent_id") or "")
    node = names.name(names.agent_id(wanted) or "") or wanted
    messages = [*request.state["messages"], _tool_result(request, f"handed over to {node}")]
    return Command(
        goto=node, graph=Command.PARENT, update={"messages": messages, "active_agent": node}
    )


def _bare_tool(
    name: str, description: str, parameters: Iterable[agent_tools.Parameter], *, ends: bool
) -> StructuredTool:
    """Return a tool as a model sees it; the middleware executes it."""

    def unrouted(**_given: object) -> str:
        return f"{name} was not executed: no conversation is being routed"

    return StructuredTool.from_function(
        func=unrouted,
        name=name,
        description=description,
        args_schema=agent_tools.json_schema(parameters),
        return_direct=ends,
    )


def _transfer_tool(targets: Iterable[tuple[str, Any]]) -> StructuredTool:
    """Return transfer_to_agent, for the agents to which an agent may hand over."""
    known = tuple(targets)
    return _bare_tool(
        TRANSFER,
        agent_tools.describe_transfer(known),
        agent_tools.transfer_parameters(name for name, _ in known),
        ends=False,
    )


class _LastState:
    """Reads a graph's state from its stream, and passes on the requested chunks."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.state: Mapping[str, Any] = {}
        modes = options["stream_mode"]
        self._is_single = isinstance(modes, str)
        self._asked = [modes] if isinstance(modes, str) else list(modes)
        self._has_namespaces = bool(options["subgraphs"])
        self.options = {**options, "stream_mode": [*self._asked, *self._added]}

    @property
    def _added(self) -> list[str]:
        return [] if "values" in self._asked else ["values"]

    def of(self, chunk: tuple[Any, ...]) -> Iterator[Any]:
        """Yield a chunk in the form of the options, if it was requested."""
        namespace, mode, data = chunk if self._has_namespaces else ((), *chunk)
        if mode == "values" and not namespace:
            self.state = data
        if mode not in self._asked:
            return
        parts = (data,) if self._is_single else (mode, data)
        parts = (namespace, *parts) if self._has_namespaces else parts
        yield parts[0] if len(parts) == 1 else parts


def _said(state: Any, turn: RoutedTurn) -> Said:
    """Return the result of a run: the last text of the agent that holds the turn."""
    name = turn.program.names.by_id[turn.holder_id]
    for message in reversed(state["messages"]):
        if message.id == turn.key:
            break
        if isinstance(message, AIMessage) and message.name in (name, None):
            return Said(str(message.text), state)
    return Said("", state)
