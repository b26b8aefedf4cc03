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

import base64
from collections.abc import (
    AsyncIterator,
    Iterable,
    Iterator,
    Mapping,
)
from dataclasses import dataclass, field
from typing import Any, Final

from langchain_core.messages import (
    AIMessage,
    HumanMessage,
)

from agent_routing import content
from agent_routing.content import Item
from agent_routing.integrations import steps
from agent_routing.integrations.graph_calls import DecidedCalls
from agent_routing.integrations.graph_interrupts import (
    REQUEST_KEY,
    TASK_KEY,
    ResumeValue,
    Waiting,
    aside_thread,
    ask_first,
    decided_input,
    default_resume_value,
    is_of,
    lost,
    must_stay_aside,
    refused_input,
    text_since,
)
from agent_routing.integrations.graph_middleware import TURN_KEY, RoutingMiddleware, RunningTurn
from agent_routing.integrations.routed_run import Said
from agent_routing.integrations.routed_runs import (
    CameTo,
    RoutedBlockingStream,
    RoutedRuns,
)
from agent_routing.integrations.routed_turn import RoutedTurn
from agent_routing.integrations.steps import AnyClient, Segment

__all__ = ["RoutedGraph", "RoutingMiddleware"]

_STREAM_OPTIONS: Final[Mapping[str, Any]] = {"stream_mode": "messages", "subgraphs": True}
"""What is streamed by default."""

REFUSALS_MAX: Final = 5
"""Times that a run continues without an approval that it cannot get; then it ends as it is."""

_BLOCKS: Final = ("image", "audio", "video")
"""Kinds of content that LangChain's messages tell from files, by media type."""

_EDGES: Final = frozenset({"__start__", "__end__"})


@dataclass(slots=True)
class _Plan:
    """One run of the graph. known: ids of the messages that were in its thread before.

    structured: structured outputs of agents in it, by their names.
    """

    given: Any
    config: dict[str, Any]
    known: frozenset[str] = frozenset()
    calls: DecidedCalls | None = None
    structured: Mapping[str, str] = field(default_factory=dict)
    refusals: int = 0


class RoutedGraph(RoutedRuns):
    """Runs a graph of agents: each message goes to the agent that the service names.

    client: methods ending in _sync need a blocking one. graph: compiled, with a node for each agent
    and active_agent in its state, as create_swarm() makes it. Its agents have the
    RoutingMiddleware. agents: the names of the nodes that are agents, if not all are; each is an id
    or alias of the registry. config: for every run; configurable.thread_id is the session's id
    unless it is given. resume_value: what interrupt() returns for a decision; default: what
    LangChain's human-in-the-loop middleware expects, and for other interrupts True or False. The
    methods' options= are arguments of invoke() and stream(); config in them is added to config.

    Raises ValueError for a graph that always begins at the same agent, such as those of
    create_supervisor().
    """

    def __init__(
        self,
        client: AnyClient,
        graph: Any,
        *,
        agents: Iterable[str] = (),
        config: Mapping[str, Any] | None = None,
        resume_value: ResumeValue = default_resume_value,
    ) -> None:
        names = tuple(agents) or tuple(name for name in graph.nodes if name not in _EDGES)
        if (fixed := _fixed_start(graph, names)) is not None:
            raise ValueError(
                f"the graph begins every run at {fixed!r}, so no other agent could keep the"
                " conversation: its edge from START is fixed, as in the graphs of"
                " create_supervisor(). Use create_swarm(), or route from START by active_agent. If"
                " the whole graph is one agent of the registry, name that one: agents=[…]"
            )
        super().__init__(client, names)
        self._graph = graph
        self._config = dict(config or {})
        self._resume_value = resume_value

    def stream_sync(
        self, text: str = "", *, options: Mapping[str, Any] | None = None, **fields: Any
    ) -> RoutedBlockingStream:
        """Do as stream(), blocking."""
        flow = self._program.converse(text, fields, options)
        return RoutedBlockingStream(self._client, flow, self._streamed_blocking)

    async def _segment(self, segment: Segment) -> Said:
        plan, options = await self._begin(segment)
        result = await self._graph.ainvoke(plan.given, plan.config, **options)
        while self._must_refuse(segment.turn, plan, waiting := await self._waiting(plan), result):
            result = await self._graph.ainvoke(plan.given, plan.config, **options)
        await _aforget(plan, waiting)
        return _said(result, segment.turn, plan, waiting)

    def _segment_blocking(self, segment: Segment) -> Said:
        plan, options = self._begin_blocking(segment)
        result = self._graph.invoke(plan.given, plan.config, **options)
        while self._must_refuse(
            segment.turn, plan, waiting := self._waiting_blocking(plan), result
        ):
            result = self._graph.invoke(plan.given, plan.config, **options)
        _forget(plan, waiting)
        return _said(result, segment.turn, plan, waiting)

    async def _streamed(self, segment: Segment, came_to: CameTo) -> AsyncIterator[Any]:
        plan, options = await self._begin(segment)
        seen = _LastState({**_STREAM_OPTIONS, **options})
        is_again = True
        waiting: Waiting | None = None
        while is_again:
            async for chunk in self._graph.astream(plan.given, plan.config, **seen.options):
                for shown in seen.of(chunk):
                    yield shown
            waiting = await self._waiting(plan)
            is_again = self._must_refuse(segment.turn, plan, waiting, seen.state)
        await _aforget(plan, waiting)
        came_to(_said(seen.state, segment.turn, plan, waiting))

    def _streamed_blocking(self, segment: Segment, came_to: CameTo) -> Iterator[Any]:
        plan, options = self._begin_blocking(segment)
        seen = _LastState({**_STREAM_OPTIONS, **options})
        is_again = True
        waiting: Waiting | None = None
        while is_again:
            for chunk in self._graph.stream(plan.given, plan.config, **seen.options):
                yield from seen.of(chunk)
            waiting = self._waiting_blocking(plan)
            is_again = self._must_refuse(segment.turn, plan, waiting, seen.state)
        _forget(plan, waiting)
        came_to(_said(seen.state, segment.turn, plan, waiting))

    async def _begin(self, segment: Segment) -> tuple[_Plan, dict[str, Any]]:
        """Return a run of the graph, and the other arguments of its methods."""
        turn = segment.turn
        options = dict(turn.options)
        config = {**self._config, **options.pop("config", {})}
        thread_id = self._thread_id(turn, config)
        if not self._graph.checkpointer:
            return self._plan(segment, config, thread_id, ()), options
        requests: tuple[str, ...] = ()
        if turn.decided is not None:
            requests = await steps.do(self._client, turn.paused_requests())
        waiting = await self._waiting_in(config, thread_id)
        if (requests and not is_of(waiting, requests)) or (
            not requests and await steps.do(self._client, must_stay_aside(turn, waiting))
        ):
            waiting = await self._waiting_in(config, aside_thread(turn, thread_id))
        return self._plan(segment, config, thread_id, requests, waiting), options

    def _begin_blocking(self, segment: Segment) -> tuple[_Plan, dict[str, Any]]:
        """Do as _begin(), blocking."""
        turn = segment.turn
        options = dict(turn.options)
        config = {**self._config, **options.pop("config", {})}
        thread_id = self._thread_id(turn, config)
        if not self._graph.checkpointer:
            return self._plan(segment, config, thread_id, ()), options
        requests: tuple[str, ...] = ()
        if turn.decided is not None:
            requests = steps.do_blocking(self._client, turn.paused_requests())
        waiting = self._waiting_in_blocking(config, thread_id)
        if (requests and not is_of(waiting, requests)) or (
            not requests and steps.do_blocking(self._client, must_stay_aside(turn, waiting))
        ):
            waiting = self._waiting_in_blocking(config, aside_thread(turn, thread_id))
        return self._plan(segment, config, thread_id, requests, waiting), options

    def _plan(
        self,
        segment: Segment,
        config: Mapping[str, Any],
        thread_id: str,
        requests: tuple[str, ...],
        waiting: Waiting | None = None,
    ) -> _Plan:
        """Return the input and configuration of a run. requests: those that it continues."""
        turn = segment.turn
        calls: DecidedCalls | None = None
        given: Any = {
            "messages": [HumanMessage(_content(turn), id=turn.key)],
            "active_agent": segment.name,
        }
        known: frozenset[str] = frozenset()
        if waiting is not None:
            thread_id = waiting.thread_id
            known = frozenset(message.id for message in waiting.messages)
            if requests:
                if not is_of(waiting, requests):
                    raise lost(thread_id)
                given = decided_input(turn, waiting, self._resume_value)
                # A run that is decided in several turns has one set of calls.
                calls = DecidedCalls(self._graph.checkpointer, f"{thread_id}:{requests[-1]}")
        running = RunningTurn(self._client, turn, frozenset((turn.key, *requests)), calls)
        whole = {
            **config,
            "configurable": {
                **config.get("configurable", {}),
                "thread_id": thread_id,
                TURN_KEY: running,
            },
            "metadata": {
                **config.get("metadata", {}),
                REQUEST_KEY: turn.key,
                TASK_KEY: turn.dispatch.task_id,
            },
        }
        return _Plan(given, whole, known, calls, running.structured)

    def _thread_id(self, turn: RoutedTurn, config: Mapping[str, Any]) -> str:
        # Without a session, as in an outage, a message is a thread of its own.
        own = turn.run.session_id or turn.dispatch.request_id
        return str(config.get("configurable", {}).get("thread_id") or own)

    async def _waiting_in(self, config: Mapping[str, Any], thread_id: str) -> Waiting:
        place = _at(config, thread_id)
        return Waiting(thread_id, await self._graph.aget_state(place, subgraphs=True))

    def _waiting_in_blocking(self, config: Mapping[str, Any], thread_id: str) -> Waiting:
        place = _at(config, thread_id)
        return Waiting(thread_id, self._graph.get_state(place, subgraphs=True))

    async def _waiting(self, plan: _Plan) -> Waiting | None:
        """Return the thread after a run; None without a checkpointer."""
        if not self._graph.checkpointer:
            return None
        return await self._waiting_in(plan.config, plan.config["configurable"]["thread_id"])

    def _waiting_blocking(self, plan: _Plan) -> Waiting | None:
        """Do as _waiting(), blocking."""
        if not self._graph.checkpointer:
            return None
        return self._waiting_in_blocking(plan.config, plan.config["configurable"]["thread_id"])

    def _must_refuse(
        self, turn: RoutedTurn, plan: _Plan, waiting: Waiting | None, result: Any
    ) -> bool:
        """Tell whether the run continues because it cannot wait for an approval, and prepare that.

        Raises RuntimeError for an interrupt in a graph without a checkpointer.
        """
        if waiting is None:
            if isinstance(result, Mapping) and result.get("__interrupt__"):
                raise RuntimeError(
                    "an agent called interrupt(), and the graph has no checkpointer that keeps the"
                    " run: compile it with one"
                )
            return False
        if not waiting.interrupts:
            return False
        if not turn.no_approval:
            ask_first(turn, waiting)
            return False
        plan.refusals += 1
        plan.given = refused_input(turn, waiting, self._resume_value)
        return plan.refusals <= REFUSALS_MAX


def _at(config: Mapping[str, Any], thread_id: str) -> dict[str, Any]:
    """Return the configuration with which a thread is read."""
    return {**config, "configurable": {**config.get("configurable", {}), "thread_id": thread_id}}


def _forget(plan: _Plan, waiting: Waiting | None) -> None:
    """Remove the marks of a run's calls, unless it waits for another decision."""
    if plan.calls is not None and not (waiting and waiting.interrupts):
        plan.calls.forget()


async def _aforget(plan: _Plan, waiting: Waiting | None) -> None:
    """Do as _forget(), in an event loop."""
    if plan.calls is not None and not (waiting and waiting.interrupts):
        await plan.calls.aforget()


def _fixed_start(graph: Any, names: tuple[str, ...]) -> str | None:
    """Return the agent at which a graph of several agents always begins; None if there is none."""
    edges = getattr(getattr(graph, "builder", None), "edges", ())
    if len(names) < 2:  # noqa: PLR2004 - one agent may always begin
        return None
    return next((end for start, end in edges if start == "__start__" and end in names), None)


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


def _said(state: Any, turn: RoutedTurn, plan: _Plan, waiting: Waiting | None) -> Said:
    """Return the result of a run: the last text of the agent that holds the turn.

    Gives the turn the images and files among the agent's messages.
    """
    name = turn.program.names.by_id[turn.holder_id]
    # An agent that waits has not yet given its messages to the graph.
    messages = waiting.messages if waiting and waiting.interrupts else state["messages"]
    begun = max((at for at, each in enumerate(messages) if each.id == turn.key), default=-1)
    own = messages[begun + 1 :]
    for message in own:
        if isinstance(message, AIMessage) and message.id not in plan.known:
            for block in message.content_blocks:
                if (item := _item_of(block)) is not None:
                    turn.report.add_item(item)
    _check_handoffs(turn, [each for each in own if each.id not in plan.known], state)
    text = text_since(own, plan.known, name) or plan.structured.get(name, "")
    return Said(text, state)


def _check_handoffs(turn: RoutedTurn, messages: Iterable[Any], state: Any) -> None:
    """Raise RuntimeError for a handoff about which the service was not asked.

    Its agent has run, so the service can only learn that the turn failed.
    """
    names = turn.program.names
    spoke = {each.name for each in messages if isinstance(each, AIMessage)}
    if not turn.is_passed_on and isinstance(state, Mapping):
        spoke.add(state.get("active_agent"))
    held = {names.by_id[each] for each in turn.holder_ids}
    strays = sorted(str(name) for name in spoke - held if name in names.by_id.values())
    if strays:
        raise RuntimeError(
            f"the graph went to agent {strays[0]!r} without asking the service: hand over by a"
            " tool, and give each agent the RoutingMiddleware, or a ToolNode of your own its"
            " wrap_tool_call and awrap_tool_call"
        )


def _content(turn: RoutedTurn) -> Any:
    """Return the user's message: its text, or a list of its text, images and files."""
    if not turn.items:
        return turn.user_text
    blocks: list[dict[str, Any]] = []
    if turn.user_text:
        blocks.append({"type": "text", "text": turn.user_text})
    for item in turn.items:
        media_type = item.content_type.partition(";")[0]
        kind = media_type.partition("/")[0]
        block = {"type": kind if kind in _BLOCKS else "file", "mime_type": media_type}
        if item.uri:
            blocks.append({**block, "url": item.uri})
        else:
            blocks.append({**block, "base64": base64.b64encode(item.data).decode()})
    return blocks


def _item_of(block: Any) -> Item | None:
    """Return an image or file of an agent's message; None for other content."""
    if block.get("type") not in (*_BLOCKS, "file"):
        return None
    media_type = block.get("mime_type") or "application/octet-stream"
    if url := block.get("url"):
        return content.uri_item(url, media_type)
    if data := block.get("base64"):
        return content.data_item(base64.b64decode(data), media_type)
    return None
