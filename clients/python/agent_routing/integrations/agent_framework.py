"""Microsoft Agent Framework: handoff workflows whose handoffs the service decides and remembers.

Owns what a program's agents get for a run, and how a handoff workflow is run for a message. The
program's agents are never changed; each run uses copies.

    routed = RoutedHandoffs(client, [coordinator, vat])
    run = await routed.run("How much VAT do I owe?", session_id="chat-42", user_id="ana")
    print(run.text)

Each message is a run of a workflow of HandoffBuilder that starts at the agent that the service
names, and ends when it asks for the user's next message.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from agent_framework import (
    Agent,
    AgentContext,
    AgentMiddleware,
    AgentResponse,
    ChatContext,
    ChatMiddleware,
    ChatResponse,
    Content,
    ContextProvider,
    FunctionInvocationContext,
    FunctionMiddleware,
    FunctionTool,
    Message,
    MiddlewareFailure,
    MiddlewareTermination,
)
from agent_framework.orchestrations import HandoffBuilder

from agent_routing import content
from agent_routing.errors import RoutingError
from agent_routing.integrations import agent_tools, steps
from agent_routing.integrations.agent_names import by_name
from agent_routing.integrations.agent_tools import ASK, COMPLETE, CONSULT, TRANSFER
from agent_routing.integrations.kept_runs import FileKeptRuns, KeptRuns, taken
from agent_routing.integrations.routed_run import Said
from agent_routing.integrations.routed_runs import CameTo, RoutedRuns
from agent_routing.integrations.routed_turn import RoutedTurn
from agent_routing.integrations.steps import AnyClient, Calls, Segment, Steps, Work
from agent_routing.integrations.workflow_approvals import (
    REFUSALS_MAX,
    KeptWorkflow,
    LastCheckpoint,
    Rejections,
    Waiting,
    ask_first,
    decide_first,
    kept_workflow,
    requests_of,
    unanswered_call,
)

_SOURCE: Final = "agent_routing"
"""The source of what the adapter adds to a run."""

_OWN_TOOLS: Final = frozenset({TRANSFER, ASK, COMPLETE, CONSULT})

_HANDOFF_PREFIX: Final = "handoff_to_"
"""Of the tools that HandoffBuilder gives to agents."""

_HANDOFF_CHARS_MAX: Final = 64
"""Of those tools' names; other characters than letters, digits, _ and - are replaced by _."""

Build = Callable[[HandoffBuilder], HandoffBuilder]
"""Completes a builder that has the participants and the start agent."""


@dataclass(frozen=True, slots=True)
class _Continued:
    """A workflow that waited, with the decisions about it."""

    kept: KeptWorkflow
    waiting: Waiting

    @property
    def agent(self) -> str:
        """The agent by whose run the workflow began."""
        return self.kept.agent


@dataclass(frozen=True, slots=True)
class _WorkflowRun(Segment):
    """A run of a workflow that starts at an agent, or goes on. replies: by agent, as they come.

    rejections: texts for the model, by the id of the call that was rejected.
    """

    continued: _Continued | None = None
    replies: dict[str, AgentResponse] = field(default_factory=dict)
    rejections: dict[str, str] = field(default_factory=dict)
    storage: LastCheckpoint = field(default_factory=LastCheckpoint)
    refused: list[object] = field(default_factory=list)

    def refusals(self, requests: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what the workflow gets if it cannot wait for approvals; None: it has ended."""
        reason = self.turn.no_approval
        if not reason or not requests or len(self.refused) >= REFUSALS_MAX:
            return None
        self.refused.append(requests)
        decisions = dict.fromkeys(requests, reason)
        waiting = Waiting(None, requests)
        self.rejections.update(waiting.rejections(decisions))
        return waiting.responses(decisions)


class RoutedHandoffs(RoutedRuns):
    """Runs agents in handoff workflows: each message goes to the agent that the service names.

    client: methods ending in _sync need a blocking one. agents: all agents of the program, each
    with its id or an alias of the registry as its name. build: adds to a HandoffBuilder, for
    example handoffs with add_handoff(); the service is asked before each. Without it the agents get
    transfer_to_agent. run_options: for Workflow.run(), such as function_invocation_kwargs; the
    methods' options= override them.

    kept_runs: where workflows wait for an approval; default: a folder of this user on this machine
    (FileKeptRuns).

    Raises ValueError for an agent with a declaration-only tool: nothing could execute it.
    """

    def __init__(
        self,
        client: AnyClient,
        agents: Iterable[Agent[Any]],
        *,
        build: Build | None = None,
        run_options: Mapping[str, Any] | None = None,
        kept_runs: KeptRuns | None = None,
    ) -> None:
        self._agents: dict[str, Agent[Any]] = by_name(agents)
        _check_tools(self._agents)
        super().__init__(client, self._agents)
        self._build = build
        self._run_options = dict(run_options or {})
        self._kept_runs = kept_runs or FileKeptRuns()

    async def _segment(self, segment: Segment) -> Said:
        return await steps.run(self._client, self._runs(segment), self._workflow_run)

    def _segment_blocking(self, segment: Segment) -> Said:
        def run(step: Segment) -> Any:
            return asyncio.run(self._workflow_run(step))

        return steps.run_blocking(self._client, self._runs(segment), run)

    async def _streamed(self, segment: Segment, came_to: CameTo) -> AsyncIterator[Any]:
        flow = steps.stream(self._client, self._runs(segment), self._workflow_stream, came_to)
        async for event in flow:
            yield event

    async def _workflow_run(self, run: Segment) -> Any:
        assert isinstance(run, _WorkflowRun)
        workflow, given, options = await self._workflow(run)
        result = await workflow.run(**given, **options)
        while (refused := run.refusals(requests_of(result))) is not None:
            result = await workflow.run(responses=refused, **options)
        return result

    async def _workflow_stream(self, run: Segment, came_to: CameTo) -> AsyncIterator[Any]:
        assert isinstance(run, _WorkflowRun)
        workflow, given, options = await self._workflow(run)
        refused: Any = {}
        result: Any = None
        while refused is not None:
            events = workflow.run(stream=True, **given, **options)
            async for event in events:
                yield event
            result = await events.get_final_response()
            refused = run.refusals(requests_of(result))
            given = {"responses": refused}
        came_to(result)

    def _runs(self, segment: Segment) -> Steps[Said]:
        """Run a workflow for the dispatched agent, and others for agents that it transfers to."""
        turn, name = segment.turn, segment.name
        continued = yield from self._continued(turn)
        if continued is not None:
            name = continued.agent
            requests = continued.waiting.requests
            assert turn.decided is not None
            if not decide_first(requests, continued.kept, turn.decided):
                yield from self._keep(turn, requests, continued.kept)
                return Said("", None)
        while True:
            run = _WorkflowRun(name, turn, continued)
            result = yield run
            if (requests := requests_of(result)) and not turn.no_approval:
                kept = yield _in_a_loop(kept_workflow, name, run.storage.checkpoint)
                yield from self._keep(turn, requests, kept)
                return _said(run.replies[turn.program.names.by_id[turn.holder_id]], result, turn)
            if (called := unanswered_call(result)) is not None:
                raise RuntimeError(f"agent {name!r} called {_NOT_EXECUTED.format(called)}")
            holder = turn.program.names.by_id[turn.holder_id]
            # A handoff of the workflow has run its target already.
            if holder in run.replies:
                return _said(run.replies[holder], result, turn)
            if holder == name:
                return Said("", result)
            name, continued = holder, None

    def _continued(self, turn: RoutedTurn) -> Calls[_Continued | None]:
        """Return the workflow that a decision is about; None for any other turn.

        Raises ApprovedRunLost.
        """
        if turn.decided is None:
            return None
        requests = yield from turn.paused_requests()
        if not requests:
            return None
        state = yield Work(partial(taken, self._kept_runs, turn.run.session_id, requests[0]))
        kept = KeptWorkflow.read(state)
        waiting: Waiting = yield _in_a_loop(kept.load)
        return _Continued(kept, waiting)

    def _keep(
        self, turn: RoutedTurn, requests: Mapping[str, Any], kept: KeptWorkflow
    ) -> Calls[None]:
        """Keep a workflow, and end the turn with the first call that waits."""
        yield Work(partial(self._kept_runs.save, turn.run.session_id, turn.key, kept.text()))
        ask_first(turn, requests, kept)

    async def _workflow(self, run: _WorkflowRun) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """Return a workflow that starts at an agent, its input, and options of its runs."""
        names = self._agents if self._build else (run.name,)
        copies = {name: self._copy(name, run) for name in names}
        builder = HandoffBuilder(participants=list(copies.values()))
        builder = builder.with_start_agent(copies[run.name])
        if self._build is not None:
            builder = self._build(builder)
        options = {**self._run_options, **run.turn.options, "checkpoint_storage": run.storage}
        workflow = builder.build()
        if run.continued is None:
            return workflow, {"message": [_user_message(run.turn)]}, options
        waiting, decisions = run.continued.waiting, run.continued.kept.decisions
        run.rejections.update(waiting.rejections(decisions))
        run.storage.checkpoint = waiting.checkpoint
        given = {
            "checkpoint_id": waiting.checkpoint.checkpoint_id,
            "responses": waiting.responses(decisions),
        }
        return workflow, given, options

    def _copy(self, name: str, run: _WorkflowRun) -> Agent[Any]:
        """Return an agent of the program with what this run adds to it."""
        agent = copy.copy(self._agents[name])
        provider = _Provider(self._client, run.turn, name, has_transfer=self._build is None)
        # Handoff workflows require it; nothing of a run is kept here.
        agent.require_per_service_call_history_persistence = True
        agent.context_providers = [*agent.context_providers, provider]
        # The program's middleware may replace or give the answer: its result is the reply.
        agent.middleware = [
            _Reply(run, name),
            *(agent.middleware or ()),
            _Past(self._client, run, name),
            Rejections(run.rejections),
        ]
        return agent


class _Reply(AgentMiddleware):
    """Keeps an agent's reply, as the program's own middleware made it."""

    def __init__(self, run: _WorkflowRun, name: str) -> None:
        self._run = run
        self._name = name

    async def process(
        self, context: AgentContext, call_next: Callable[[], Awaitable[None]]
    ) -> None:
        """Run the agent."""
        try:
            await call_next()
        finally:
            # Middleware that ends the run raises, with the answer here.
            if isinstance(context.result, AgentResponse):
                self._keep(context.result)
            elif context.result is not None:
                context.result = context.result.with_result_hook(self._keep)

    def _keep(self, response: AgentResponse) -> None:
        self._run.replies[self._name] = response


class _Past(AgentMiddleware):
    """Gives an agent its own past and the message."""

    def __init__(self, client: AnyClient, run: _WorkflowRun, name: str) -> None:
        self._client = client
        self._run = run
        self._name = name
        # A workflow that goes on has its input, and what happened since.
        holder = run.turn.program.names.by_id[run.turn.holder_id]
        self._has_run = run.continued is not None and name == holder

    async def process(
        self, context: AgentContext, call_next: Callable[[], Awaitable[None]]
    ) -> None:
        """Run the agent."""
        turn = self._run.turn
        if not self._has_run:
            past = await steps.do(self._client, turn.past())
            messages = [Message(role, [text]) for role, text in past]
            if turn.note:
                messages.append(Message("user", [turn.note]))
            context.messages = [*messages, _user_message(turn)]
        self._has_run = True
        await call_next()


class _Provider(ContextProvider):
    """Gives an agent its instructions and tools for the turn that it holds."""

    def __init__(
        self, client: AnyClient, turn: RoutedTurn, name: str, *, has_transfer: bool
    ) -> None:
        super().__init__(_SOURCE)
        self._client = client
        self._turn = turn
        self._name = name
        self._has_transfer = has_transfer

    async def before_run(self, *, context: Any, **_given: Any) -> None:
        """Add the registry's instructions, the tools, and what follows the calls of tools."""
        turn = self._turn
        view = await steps.do(self._client, turn.view())
        context.extend_instructions(_SOURCE, view.instructions)
        rows: list[tuple[str, str, Iterable[agent_tools.Parameter]]] = [
            (ASK, agent_tools.ASK_DESCRIPTION, agent_tools.ASK_PARAMETERS),
            (COMPLETE, agent_tools.COMPLETE_DESCRIPTION, agent_tools.COMPLETE_PARAMETERS),
        ]
        # A program with handoffs of its own needs the tool for what is not in it.
        if targets := view.targets if self._has_transfer else view.elsewhere:
            described = agent_tools.describe_transfer(targets)
            rows.append((TRANSFER, described, agent_tools.transfer_parameters(targets)))
        if view.consultable and turn.may_consult:
            described = agent_tools.describe_consult(view.consultable)
            rows.append((CONSULT, described, agent_tools.consult_parameters(view.consultable)))
        context.extend_tools(_SOURCE, [_tool(*row) for row in rows])
        calls = _Calls(self._client, turn, self._name)
        context.extend_middleware(_SOURCE, [_Written(turn, self._name), calls])


class _Written(ChatMiddleware):
    """Notes what a model writes, which may come next to a transfer."""

    def __init__(self, turn: RoutedTurn, name: str) -> None:
        self._turn = turn
        self._name = name

    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        """Call the model."""
        context.stream_result_hooks.append(self._note)
        await call_next()
        if isinstance(context.result, ChatResponse):
            self._note(context.result)

    def _note(self, response: ChatResponse[Any]) -> None:
        self._turn.wrote(self._name, response.text)


class _Calls(FunctionMiddleware):
    """Executes the adapter's tools, asks the service about handoffs, and records the others."""

    def __init__(self, client: AnyClient, turn: RoutedTurn, name: str) -> None:
        self._client = client
        self._turn = turn
        self._name = name

    async def process(
        self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]
    ) -> None:
        """Execute a call of a tool."""
        called, given = context.function.name, _texts(context.arguments)
        if called.startswith(_HANDOFF_PREFIX) and (target := self._target(called)) is not None:
            refusal = await self._hand_over(target, {})
            if refusal is not None:
                context.result = refusal
            elif self._turn.is_passed_on:
                # The target runs elsewhere.
                raise MiddlewareTermination(result=f"handed over to {target}")
            else:
                await call_next()
            return
        if called in _OWN_TOOLS:
            context.result = await self._own(called, given)
            if self._turn.is_ended or not self._is_holder:
                # The model is not called again.
                raise MiddlewareTermination(result=context.result)
            return
        began = datetime.now(UTC)
        await call_next()
        output = "".join(str(each) for each in _texts_of(context.result))
        self._turn.report.add_step(called, "tool", given, output, began)

    @property
    def _is_holder(self) -> bool:
        return self._turn.program.names.by_id[self._turn.holder_id] == self._name

    def _target(self, called: str) -> str | None:
        """Return the agent to which a tool of HandoffBuilder hands over."""
        names = self._turn.program.names.by_id.values()
        return next((name for name in names if _handoff_tool(name) == called), None)

    async def _hand_over(self, target: str, words: Mapping[str, str]) -> str | None:
        try:
            return await steps.do(
                self._client, self._turn.hand_over(target, from_name=self._name, **words)
            )
        except RoutingError as error:
            # The framework gives other errors to the model.
            raise MiddlewareFailure(error.message) from error

    async def _own(self, called: str, given: Mapping[str, str]) -> str:
        """Execute a tool of the adapter; return its result for the model."""
        turn = self._turn
        if called == ASK:
            return turn.ask(self._name, given.get("question", ""))
        if called == COMPLETE:
            return turn.complete(self._name, given.get("answer", ""), given.get("summary", ""))
        target = given.get("agent_id", "")
        if called == CONSULT:
            return turn.consult(self._name, target, given.get("question", ""))
        words = {key: given.get(key, "") for key in ("reason", "context", "message", "mode")}
        return await self._hand_over(target, words) or f"handed over to {target}"


_NOT_EXECUTED: Final = (
    "the tool {0!r}, which is only declared: your program would have to execute it outside the run,"
    " which this adapter does not support; give it a function"
)


def _check_tools(agents: Mapping[str, Agent[Any]]) -> None:
    """Raise ValueError for a tool that nothing executes."""
    for agent in agents.values():
        for each in agent.default_options.get("tools") or ():
            if isinstance(each, FunctionTool) and each.declaration_only:
                raise ValueError(f"agent {agent.name!r} has {_NOT_EXECUTED.format(each.name)}")


def _in_a_loop(function: Callable[..., Any], *given: Any) -> Work:
    """Return a step that awaits a coroutine function, in a thread with or without an event loop."""
    return Work(lambda: asyncio.run(function(*given)))


def _tool(name: str, description: str, parameters: Iterable[agent_tools.Parameter]) -> FunctionTool:
    """Return a tool as a model sees it; _Calls executes it."""

    async def unrouted(**_given: object) -> str:
        return f"{name} was not executed"

    return FunctionTool(
        name=name,
        description=description,
        approval_mode="never_require",
        func=unrouted,
        input_model=agent_tools.json_schema(parameters),
    )


def _handoff_tool(name: str) -> str:
    """Return the name of the tool with which HandoffBuilder's agents hand over to an agent."""
    return f"{_HANDOFF_PREFIX}{re.sub(r'[^a-zA-Z0-9_-]', '_', name)}"[:_HANDOFF_CHARS_MAX]


def _texts(arguments: Any) -> dict[str, str]:
    """Return a call's arguments as texts."""
    dump = getattr(arguments, "model_dump", None)
    given = dump() if dump is not None else arguments
    if not isinstance(given, Mapping):
        return {}
    return {str(key): "" if value is None else str(value) for key, value in given.items()}


def _texts_of(result: Any) -> list[str]:
    """Return the texts of a tool's result."""
    if isinstance(result, list):
        return [str(each.text or "") for each in result if isinstance(each, Content)]
    return [str(result)]


def _user_message(turn: RoutedTurn) -> Message:
    """Return the user's message: its text, images and files."""
    contents: list[Content] = []
    if turn.user_text or not turn.items:
        contents.append(Content.from_text(turn.user_text))
    for item in turn.items:
        media_type = item.content_type.partition(";")[0]
        if item.uri:
            contents.append(Content.from_uri(item.uri, media_type=media_type))
        else:
            contents.append(Content.from_data(item.data, media_type))
    return Message("user", contents)


def _said(response: AgentResponse, result: Any, turn: RoutedTurn) -> Said:
    """Return the result of a run, and give the turn the images and files that the agent made."""
    text = ""
    for message in response.messages:
        if message.role != "assistant":
            continue
        text = message.text or text
        for each in message.contents:
            if each.type == "uri" and each.uri:
                turn.report.add_item(content.uri_item(each.uri, each.media_type or _BYTES))
            elif each.type == "data" and each.uri:
                turn.report.add_item(
                    content.data_item(_data_of(each.uri), each.media_type or _BYTES)
                )
    return Said(text, result)


_BYTES: Final = "application/octet-stream"
"""The media type of content that names none."""


def _data_of(uri: str) -> bytes:
    """Return the bytes of a data URI."""
    return base64.b64decode(uri.partition(",")[2])
