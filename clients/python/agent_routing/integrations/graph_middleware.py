"""The middleware of LangGraph's agents: tools, instructions and past of a routed turn.

Outside a routed run it does nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
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
from langgraph.errors import GraphInterrupt
from langgraph.graph import END
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command, Send

from agent_routing.integrations import agent_tools, steps
from agent_routing.integrations.agent_tools import ASK, COMPLETE, CONSULT, TRANSFER
from agent_routing.integrations.graph_calls import DecidedCalls
from agent_routing.integrations.routed_run import AgentView
from agent_routing.integrations.routed_turn import RoutedTurn
from agent_routing.integrations.steps import AnyClient

TURN_KEY: Final = "__agent_routing_turn"
"""The key of the turn in a run's configuration. LangGraph does not store such keys in
checkpoints."""

_OWN_TOOLS: Final = frozenset({TRANSFER, ASK, COMPLETE, CONSULT})

_TOOLS_OF_THE_MOMENT: Final = frozenset({TRANSFER, CONSULT})
"""Tools that list the agents that can be reached now."""


_NESTED: Final = "|"
"""Between the parts of a checkpoint's namespace, one for each graph around a task."""

SHARED_TASK: Final = (
    "not executed: this tool waits for an approval, and the calls of one answer run together here,"
    " so that none of them can wait; call it again, as the only tool of your answer"
)
"""What a model reads whose call would wait in one task with others."""


@dataclass(frozen=True, slots=True)
class RunningTurn:
    """A turn, and the client for its calls. keys: the requests whose messages belong to it.

    calls: of a decided run, each of which begins at most once. structured: the last structured
    output of each agent, as text.
    """

    client: AnyClient
    turn: RoutedTurn
    keys: frozenset[str]
    calls: DecidedCalls | None = None
    structured: dict[str, str] = field(default_factory=dict)


class RoutingMiddleware(AgentMiddleware[Any, Any]):
    """The middleware for the agents of a RoutedGraph. One instance may serve all of them.

    It adds the tools transfer_to_agent, ask_user, complete_task and consult_agent, and gives each
    model call the agent's instructions and its own past turns, without other agents' texts.
    transfer: whether to add transfer_to_agent; set it to False for agents with their own handoff
    tools.

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
            _consult_tool(()),
        ]
        self.tools = [_transfer_tool(()), *ending] if transfer else ending

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[..., Any]) -> Any:
        """Give the model what its agent may see; once the turn was passed on, it is not called."""
        if (running := _running_of(request.messages)) is None:
            return handler(request)
        if running.turn.is_passed_on:
            return AIMessage("")
        view = steps.do_blocking(running.client, running.turn.view())
        past = steps.do_blocking(running.client, running.turn.past())
        return _noted(running, handler(_for_agent(request, running, view, past)))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[..., Awaitable[Any]]
    ) -> Any:
        """Give the model what its agent may see."""
        if (running := _running_of(request.messages)) is None:
            return await handler(request)
        if running.turn.is_passed_on:
            return AIMessage("")
        view = await steps.do(running.client, running.turn.view())
        past = await steps.do(running.client, running.turn.past())
        return _noted(running, await handler(_for_agent(request, running, view, past)))

    def wrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]],
    ) -> ToolMessage | Command[Any]:
        """Ask the service about a tool's handoff. The model reads why it was refused."""
        running = _running()
        result = _own_tool(running, request)
        if result is None:
            result = _called(running, request, handler)
        target = _target_of(result)
        if running is None or not target:
            return result
        refusal = steps.do_blocking(running.client, _hand_over(running.turn, request, target))
        if refusal is not None:
            return _refused(request, refusal)
        return _handed_over(running.turn, request, result)

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Ask the service about a tool's handoff. The model reads why it was refused."""
        running = _running()
        result = _own_tool(running, request)
        if result is None:
            result = await _acalled(running, request, handler)
        target = _target_of(result)
        if running is None or not target:
            return result
        refusal = await steps.do(running.client, _hand_over(running.turn, request, target))
        if refusal is not None:
            return _refused(request, refusal)
        return _handed_over(running.turn, request, result)


def _noted(running: RunningTurn, response: Any) -> Any:
    """Return a model's response. A structured output in it is the agent's answer: a swarm drops it.

    The graph's own messages have it only as the arguments of a call.
    """
    output = getattr(response, "structured_response", None)
    if output is not None:
        name = running.turn.program.names.by_id[running.turn.holder_id]
        running.structured[name] = agent_tools.as_text(output)
    return response


def _running() -> RunningTurn | None:
    """Return the turn of this run; None outside a routed run."""
    found = get_config().get("configurable", {}).get(TURN_KEY)
    return found if isinstance(found, RunningTurn) else None


def _running_of(messages: Iterable[AnyMessage]) -> RunningTurn | None:
    """Return the turn of an agent's messages; None for others.

    An agent that a tool of the run calls has the run's configuration, and messages of its own.
    """
    running = _running()
    if running is None or not any(message.id in running.keys for message in messages):
        return None
    return running


def _called(
    running: RunningTurn | None,
    request: ToolCallRequest,
    handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]],
) -> Any:
    """Execute a tool call; of a decided run at most once."""
    is_alone = _is_alone(request)

    def run() -> ToolMessage | Command[Any]:
        began = datetime.now(UTC)
        try:
            result = handler(request)
        except GraphInterrupt:
            if running is None or is_alone:
                raise
            return _refused(request, SHARED_TASK)
        _record(running, request, result, began)
        return result

    calls = running.calls if running is not None and is_alone else None
    return run() if calls is None else calls.once(request.tool_call, run)


async def _acalled(
    running: RunningTurn | None,
    request: ToolCallRequest,
    handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
) -> Any:
    """Do as _called(), in an event loop."""
    is_alone = _is_alone(request)

    async def run() -> ToolMessage | Command[Any]:
        began = datetime.now(UTC)
        try:
            result = await handler(request)
        except GraphInterrupt:
            if running is None or is_alone:
                raise
            return _refused(request, SHARED_TASK)
        _record(running, request, result, began)
        return result

    calls = running.calls if running is not None and is_alone else None
    return await (run() if calls is None else calls.aonce(request.tool_call, run))


def _is_alone(request: ToolCallRequest) -> bool:
    """Tell whether a call has a task of its own.

    LangGraph gives the interrupts of one task their values in the order in which they happen, and
    repeats all of the task: of several calls in one task none can be left out, and none may wait,
    as it could get the decision about another.
    """
    path = get_config().get("metadata", {}).get("langgraph_path") or ("",)
    if path[0] == "__pregel_push":
        return True
    return len(_last_answer(request.state).tool_calls) == 1


def _record(
    running: RunningTurn | None,
    request: ToolCallRequest,
    result: ToolMessage | Command[Any],
    began: datetime,
) -> None:
    """Record a tool call as a step of the turn."""
    if running is not None:
        call = request.tool_call
        output = result.text if isinstance(result, ToolMessage) else f"goto {_target_of(result)}"
        running.turn.report.add_step(call["name"], "tool", call["args"], output, began)


def _for_agent(
    request: ModelRequest[Any],
    running: RunningTurn,
    view: AgentView,
    past: Iterable[tuple[str, str]],
) -> ModelRequest[Any]:
    """Return a model's request with its agent's instructions, tools and past."""
    turn = running.turn
    own = request.system_message.text if request.system_message else ""
    system = f"{own}\n\n{view.instructions}" if own else view.instructions
    messages: list[AnyMessage] = [
        HumanMessage(text) if role == "user" else AIMessage(text) for role, text in past
    ]
    if turn.note:
        messages.append(HumanMessage(turn.note))
    name = turn.program.names.by_id[turn.holder_id]
    messages.extend(_own_messages(request.messages, running.keys, name))
    tools = [
        tool
        for tool in request.tools
        if not (isinstance(tool, BaseTool) and tool.name in _TOOLS_OF_THE_MOMENT)
    ]
    had = {tool.name for tool in request.tools if isinstance(tool, BaseTool)}
    if TRANSFER in had and view.targets:
        tools.append(_transfer_tool(view.targets))
    if CONSULT in had and view.consultable and turn.may_consult:
        tools.append(_consult_tool(view.consultable))
    return request.override(system_message=SystemMessage(system), messages=messages, tools=tools)


def _own_messages(
    messages: Iterable[AnyMessage], keys: Container[str], name: str
) -> list[AnyMessage]:
    """Return the user's message of this run, and what its agent said and called since then.

    keys: the user's message has one of them as its id. A tool call without a result, because
    another call of the same answer handed over, gets one that says so: providers need a result for
    each.
    """
    own: list[AnyMessage] = []
    called: dict[str, str] = {}
    is_begun = False
    for message in messages:
        if message.id in keys:
            is_begun, own, called = True, [message], {}
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
    last = _last_answer(request.state)
    turn.wrote(last.name or "", last.text)
    return turn.hand_over(
        target,
        from_name=last.name or "",
        **{key: str(given.get(key) or "") for key in ("reason", "context", "message", "mode")},
    )


def _handed_over(
    turn: RoutedTurn, request: ToolCallRequest, result: ToolMessage | Command[Any]
) -> ToolMessage | Command[Any]:
    """Return what follows an accepted handoff: if its target runs elsewhere, the run ends."""
    if not turn.is_passed_on or not isinstance(result, Command):
        return result
    if _NESTED not in get_config().get("configurable", {}).get("checkpoint_ns", ""):
        # The agent is the whole graph, and there is none around it that could end.
        return _tool_result(request, "handed over")
    update = result.update
    if isinstance(update, dict):
        # The agent that has the conversation may be no node of the graph.
        update = {key: value for key, value in update.items() if key != "active_agent"}
    return Command(goto=END, graph=Command.PARENT, update=update)


def _speaker(state: Any) -> str:
    """Return the name of the agent that called a tool; empty if its answer has no name."""
    return _last_answer(state).name or ""


def _last_answer(state: Any) -> AIMessage:
    """Return the model's answer that called a tool."""
    messages = state["messages"] if isinstance(state, dict) else ()
    return next((each for each in reversed(messages) if isinstance(each, AIMessage)), AIMessage(""))


def _refused(request: ToolCallRequest, refusal: str) -> ToolMessage:
    return _tool_result(request, refusal, status="error")


def _tool_result(
    request: ToolCallRequest, text: str, status: Literal["success", "error"] = "success"
) -> ToolMessage:
    """Return the result of a tool call for the model."""
    call = request.tool_call
    return ToolMessage(text, name=call["name"], tool_call_id=call["id"] or "", status=status)


def _own_tool(
    running: RunningTurn | None, request: ToolCallRequest
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
    if name == CONSULT:
        asked = str(given.get("agent_id") or ""), str(given.get("question") or "")
        return _tool_result(request, turn.consult(speaker, *asked))
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
        agent_tools.transfer_parameters(known),
        ends=False,
    )


def _consult_tool(targets: Iterable[tuple[str, Any]]) -> StructuredTool:
    """Return consult_agent, for the agents that an agent may ask."""
    known = tuple(targets)
    return _bare_tool(
        CONSULT,
        agent_tools.describe_consult(known),
        agent_tools.consult_parameters(known),
        ends=True,
    )
