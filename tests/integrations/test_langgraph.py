"""LangGraph's own run loop, with the service behind it."""

import base64
import itertools
import sqlite3

import pytest

pytest.importorskip("langgraph", reason="needs langgraph: make test-integrations")

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain.agents.structured_output import ToolStrategy
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.errors import GraphRecursionError
from langgraph.graph import MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, create_react_agent
from langgraph.types import Command, interrupt
from langgraph_supervisor import create_supervisor
from langgraph_swarm import SwarmState, create_handoff_tool, create_swarm
from pydantic import BaseModel

from agent_routing import AsyncClient
from agent_routing.integrations.langgraph import RoutedGraph, RoutingMiddleware
from agent_routing.v1.task_pb2 import TASK_STATUS_FAILED
from clients.python.examples.tax_talk import CallTool
from tests.integrations.approval_stories import *  # noqa: F403 - as stories
from tests.integrations.approval_stories import desk_script, refund_into, refunds
from tests.integrations.stories import *  # noqa: F403 - the tests that every adapter passes
from tests.integrations.stories import ANA, QUESTION, RULES, Program, Say, Script, Seen, Show
from tests.integrations.worker_stories import *  # noqa: F403 - as stories
from tests.integrations.worker_stories import working

NAMES = {agent_id: agent_id for agent_id in RULES} | {
    "coordinator": "Tax Coordinator",
    "vat": "VAT Specialist",
}
_call_numbers = itertools.count(1)


class RuleModel(BaseChatModel):
    """Answers by a script, and records the agent's input for the model."""

    agent_id: str
    script: object

    @property
    def _llm_type(self):
        return "rule"

    def bind_tools(self, tools, **kwargs):
        return self.bind(tools=tools, **kwargs)

    def _generate(self, messages, *_args, tools=(), **_kwargs):
        last = messages[-1]
        roles = {HumanMessage: "user", AIMessage: "assistant"}
        seen = Seen(
            agent_id=self.agent_id,
            system="".join(m.text for m in messages if isinstance(m, SystemMessage)),
            messages=[(roles[type(m)], _shown(m)) for m in messages if type(m) in roles],
            tools={tool.name: tool.description for tool in tools},
            tool_output=last.text if isinstance(last, ToolMessage) else "",
        )
        if isinstance(last, ToolMessage):
            # Providers want a result for each call, and a call for each result.
            assert any(isinstance(m, AIMessage) and m.tool_calls for m in messages)
        reply = self.script.reply(seen)
        replies = reply if isinstance(reply, list) else [reply]
        message = AIMessage(replies[0].text)
        if isinstance(reply, Show):
            image = {"type": "image", "mime_type": "image/png"}
            image["base64"] = base64.b64encode(reply.image).decode()
            message = AIMessage([{"type": "text", "text": reply.text}, image])
        message.tool_calls = [
            {
                "name": each.name,
                "args": dict(each.arguments),
                "id": f"c{next(_call_numbers)}",
                "type": "tool_call",
            }
            for each in replies
            if isinstance(each, CallTool)
        ]
        return ChatResult(generations=[ChatGeneration(message=message)])


def _shown(message):
    """Return a message's text, and its other content as it is."""
    blocks = message.content if isinstance(message.content, list) else []
    others = [str(block) for block in blocks if block.get("type") != "text"]
    return "".join((str(message.text), *others))


def graph_of(script, *, tools=None, checkpointer=None, middleware=()):
    """Return a swarm with an agent for each rule."""
    given = tools or {}
    agents = [
        create_agent(
            RuleModel(agent_id=agent_id, script=script),
            tools=given.get(agent_id, []),
            name=NAMES.get(agent_id, agent_id),
            system_prompt=f"I am {agent_id}.",
            middleware=[*middleware, RoutingMiddleware(transfer=agent_id not in given)],
        )
        for agent_id in script.rules
    ]
    swarm = create_swarm(agents, default_active_agent=agents[0].name)
    return swarm.compile(checkpointer=checkpointer)


class AnyLoopSaver(SqliteSaver):
    """A saver for event loops too; its calls are short."""

    async def aget_tuple(self, config):
        return self.get_tuple(config)

    async def aput(self, *given):
        return self.put(*given)

    async def aput_writes(self, *given, **named):
        self.put_writes(*given, **named)


WORKER_OPTIONS = {"durability": "sync"}
"""A tool that has run is in the checkpoint before the model is called again."""


def memory_of(place, *, in_memory):
    """Return a checkpointer."""
    if in_memory:
        return InMemorySaver()
    return AnyLoopSaver(sqlite3.connect(place / "checkpoints.db", check_same_thread=False))


def approving(client, script, place, *, in_memory=False, ask=True, mode="per_call"):
    """Return a swarm of which the invoice desk has a tool that LangChain's middleware guards."""
    guard = HumanInTheLoopMiddleware(interrupt_on={"refund": True}, interrupt_mode=mode)
    graph = graph_of(
        script,
        tools={"invoices": [tool(refund_into(place))]},
        checkpointer=memory_of(place, in_memory=in_memory),
        middleware=[guard] if ask else [],
    )
    return RoutedGraph(client, graph)


@pytest.fixture
def program():
    """A swarm of LangChain's agents."""
    return Program(
        example="clients/python/examples/langgraph_chat.py",
        names=NAMES,
        make=lambda client, script: RoutedGraph(client, graph_of(script)),
        module=__name__,
        approving=approving,
        after_a_kill="PROCEED",
    )


@pytest.mark.parametrize("target", ["payroll", "vat"])
async def test_handoff_tools_of_the_program_are_tracked(either_client, client, session, target):
    """For example those of langgraph-swarm: for a refused one the model reads an error."""
    script = Script(
        coordinator=lambda seen: (
            Say(seen.tool_output)
            if seen.tool_output
            else CallTool(f"transfer_to_{NAMES[target].lower().replace(' ', '_')}", {})
        )
    )
    tools = {"coordinator": [create_handoff_tool(agent_name=NAMES[target])]}
    run = await RoutedGraph(either_client, graph_of(script, tools=tools)).run(
        "please", session_id=session, **ANA
    )
    assert "transfer_to_agent" not in script.of("coordinator")[0].tools
    if target == "payroll":
        assert "plan:premium" in run.text
    else:
        assert run.agent_id == "vat"
        assert client.status(session, user_id="ana").active_agent.agent_id == "vat"


async def test_handoff_tool_of_the_program_reaches_people(either_client, client, session):
    """The graph has no node for them: its run ends."""

    @tool
    def to_people() -> Command:
        """Hand over to people."""
        return Command(goto="desk", graph=Command.PARENT, update={"active_agent": "desk"})

    script = Script(coordinator=lambda _: CallTool("to_people", {}))
    tools = {"coordinator": [to_people]}
    routed = RoutedGraph(either_client, graph_of(script, tools=tools))
    run = await routed.run("a person please", session_id=session, **ANA)
    assert (run.next.agent.agent_id, len(script.seen)) == ("desk", 1)
    assert client.status(session, user_id="ana").next_agent.agent_id == "desk"


@pytest.mark.parametrize("checkpointer", [None, InMemorySaver()])
@pytest.mark.parametrize("target", ["desk", "payroll"])
async def test_agent_that_is_the_whole_graph_hands_over(client, session, checkpointer, target):
    """There is no graph around it that could go elsewhere; a refusal is read by its model."""
    script = Script(
        coordinator=lambda seen: (
            Say(f"read: {seen.tool_output}" if seen.tool_output else "hello")
            if seen.tool_output or "please" not in seen.user_text
            else CallTool("transfer_to_agent", {"agent_id": target, "reason": "so"}, "One moment.")
        )
    )
    agent = create_agent(
        RuleModel(agent_id="coordinator", script=script),
        name="coordinator",
        middleware=[RoutingMiddleware()],
        checkpointer=checkpointer,
    )
    routed = RoutedGraph(client, agent, agents=["coordinator"])
    run = await routed.run("a person please", session_id=session, **ANA)
    if target == "payroll":
        assert "plan:premium" in run.text
        return
    assert (run.next.agent.agent_id, run.text, len(script.seen)) == ("desk", "One moment.", 1)
    client.clear_active_agent(session, user_id="ana")
    again = await routed.run("thanks", session_id=session, **ANA)
    assert (again.agent_id, again.text) == ("coordinator", "hello")
    worked = await routed.run("please", session_id=f"{session}-2", **ANA)
    assert worked.next.agent.agent_id == "desk"


def test_two_transfers_at_once_are_one(client, session):
    """The service accepts the first; the graph continues with that one agent."""
    pair = [
        CallTool("transfer_to_agent", {"agent_id": agent_id, "reason": "both"})
        for agent_id in ("vat", "invoices")
    ]
    script = Script(coordinator=lambda seen: Say("no") if seen.tool_output else pair)
    run = RoutedGraph(client, graph_of(script)).run_sync("both", session_id=session, **ANA)
    turns = list(client.list_turns(session, user_id="ana"))
    assert [turn.agent_id for turn in turns] == ["coordinator", run.agent_id]
    assert turns[-1].agent_text == run.text


async def test_two_transfers_at_once_in_a_worker_are_one(inboxes, session):
    """The first ends the turn; the other is not executed, and nothing fails."""
    pair = [
        CallTool("transfer_to_agent", {"agent_id": agent_id, "reason": "both"})
        for agent_id in ("vat", "invoices")
    ]
    script = Script(
        coordinator=lambda _: pair, vat=lambda _: Say("one"), invoices=lambda _: Say("one")
    )
    async with AsyncClient(inboxes.address, timeout=20) as client:
        routed = RoutedGraph(client, graph_of(script))
        async with working(routed, client):
            asked = await client.ask("both", session_id=session, wait=60, **ANA)
    assert len(script.of("coordinator")) == 1
    assert [turn.agent_text for turn in asked.turns] == ["", "one"]


async def test_handoff_tools_of_a_swarm_work_in_a_worker(inboxes, session):
    """The graph ends at the handoff; the target runs from its own inbox."""
    tools = {"coordinator": [create_handoff_tool(agent_name=NAMES["invoices"])]}
    script = Script(coordinator=lambda _: CallTool("transfer_to_invoices", {}))
    async with AsyncClient(inboxes.address, timeout=20) as client:
        routed = RoutedGraph(client, graph_of(script, tools=tools))
        async with working(routed, client):
            asked = await client.ask("please", session_id=session, wait=60, **ANA)
    assert asked.text == "the secret of the invoice desk"
    assert len(script.of("invoices")) == 1


def test_question_beside_a_transfer_locks_nobody(client, session):
    """Both are executed at once, in any order; an agent that handed over can no longer ask."""
    pair = [
        CallTool("transfer_to_agent", {"agent_id": "invoices", "reason": "both"}),
        CallTool("ask_user", {"question": "Or shall I?"}),
    ]
    script = Script(coordinator=lambda _: pair, invoices=lambda _: Say("here it is"))
    run = RoutedGraph(client, graph_of(script)).run_sync("both", session_id=session, **ANA)
    assert (run.agent_id, run.text, run.locked) == ("invoices", "here it is", False)


def test_graph_with_a_checkpointer_shows_agents_the_services_history(client, session):
    """The thread keeps everything; an agent still sees only its own past, each turn once."""
    script = Script()
    graph = graph_of(script, checkpointer=InMemorySaver())
    routed = RoutedGraph(client, graph)
    routed.run_sync("VAT?", session_id=session, **ANA)
    routed.run_sync("500", session_id=session, **ANA)
    texts = [text for _, text in script.of("vat")[-1].messages]
    assert texts == ["VAT?", f"Let us see.\n\n{QUESTION}", "500"]
    state = graph.get_state({"configurable": {"thread_id": session}})
    assert [m.text for m in state.values["messages"] if isinstance(m, HumanMessage)] == [
        "VAT?",
        "500",
    ]


def test_options_of_a_run_are_passed_on(client, session):
    """For example how many steps one run may take."""
    routed = RoutedGraph(client, graph_of(Script()), config={"recursion_limit": 50})
    with pytest.raises(GraphRecursionError):
        routed.run_sync(
            "VAT?", session_id=session, options={"config": {"recursion_limit": 1}}, **ANA
        )


def test_blocking_stream_gives_the_chunks_that_were_asked_for(client, session):
    """In the form of the graph's own stream()."""
    routed = RoutedGraph(client, graph_of(Script()))
    stream = routed.stream_sync(
        "VAT?", options={"stream_mode": "updates", "subgraphs": False}, session_id=session, **ANA
    )
    chunks = list(stream)
    assert [set(chunk) for chunk in chunks] == [{NAMES["coordinator"]}, {NAMES["vat"]}]
    assert (stream.run.agent_id, stream.run.locked) == ("vat", True)


def test_outside_a_routed_run_the_middleware_does_nothing():
    """A graph still runs by itself; its tools say that no conversation is being routed."""
    script = Script(
        coordinator=lambda seen: (
            Say(seen.tool_output) if seen.tool_output else CallTool("transfer_to_agent", {})
        )
    )
    state = graph_of(script).invoke({"messages": [HumanMessage("hello")]})
    assert "no conversation is being routed" in state["messages"][-1].text


def test_interrupt_of_a_tool_is_a_request_for_approval(client, session, tmp_path):
    """interrupt() returns True or False, or what the program makes of the decision."""
    act = refund_into(tmp_path)

    @tool
    def refund(amount: str, account: str) -> str:
        """Refund an amount, if a person agrees."""
        answer = interrupt({"question": "Refund it?", "amount": amount})
        agreed = answer if isinstance(answer, bool) else answer["agreed"]
        return act(amount, account) if agreed else f"no: {answer}"

    def made(**more):
        graph = graph_of(desk_script(), tools={"invoices": [refund]}, checkpointer=InMemorySaver())
        return RoutedGraph(client, graph, **more)

    for number, (decision, more) in enumerate(
        (
            ("APPROVE", {}),
            ("REJECT", {}),
            (
                "REJECT",
                {"resume_value": lambda _, d: {"agreed": d.is_approved, "why": d.comment}},
            ),
        )
    ):
        own = f"{session}-{number}"
        client.set_active_agent(own, "invoices", user_id="ana")
        routed = made(**more)
        run = routed.run_sync("refund 10", session_id=own, **ANA)
        assert run.approval.prompt == "Refund it?: amount: 10"
        done = routed.decide_sync(run.approval, decision, user_id="ana", comment="too much")
        assert done.approval is None
        if more:
            assert "too much" in done.text
    assert refunds(tmp_path) == ["10 to DE-7"]


def test_batched_middleware_has_one_decision_for_all_its_calls(client, session, tmp_path):
    """LangChain's default asks once for all calls of an answer."""
    client.set_active_agent(session, "invoices", user_id="ana")
    routed = approving(client, desk_script(), tmp_path, in_memory=True, mode="batched")
    run = routed.run_sync("refund 10 and 20", session_id=session, **ANA)
    first, second = run.approval.prompt.splitlines()
    assert (first, second) == (
        "refund: amount: 10, account: DE-7",
        "refund: amount: 20, account: DE-7",
    )
    done = routed.decide_sync(run.approval, "APPROVE", user_id="ana")
    assert done.approval is None
    assert sorted(refunds(tmp_path)) == ["10 to DE-7", "20 to DE-7"]


def test_interrupt_without_a_checkpointer_is_an_error_with_the_remedy(client, session):
    """LangGraph could not continue such a run."""

    @tool
    def refund(amount: str, account: str) -> str:
        """Refund an amount."""
        return interrupt(f"{amount} to {account}?")

    client.set_active_agent(session, "invoices", user_id="ana")
    routed = RoutedGraph(client, graph_of(desk_script(), tools={"invoices": [refund]}))
    with pytest.raises(RuntimeError, match="checkpointer"):
        routed.run_sync("refund 10", session_id=session, **ANA)


class UnboundModel(RuleModel):
    """A model that takes any tools and keeps none, for a graph that is never run."""

    def bind_tools(self, tools, **kwargs):
        del tools, kwargs
        return self


def test_supervisor_graphs_are_refused_with_the_reason(client):
    """create_supervisor() begins every run at its supervisor: no agent could stick."""
    script = Script()
    agents = [
        create_agent(RuleModel(agent_id=name, script=script), name=name)
        for name in ("vat", "invoices")
    ]
    supervisor = create_supervisor(
        agents,
        model=UnboundModel(agent_id="coordinator", script=script),
        supervisor_name="coordinator",
    )
    with pytest.raises(ValueError, match=r"begins every run at 'coordinator'.*create_swarm"):
        RoutedGraph(client, supervisor.compile())


def _desk_graph(node):
    """Return a graph of one node that is no agent of LangChain's."""
    graph = StateGraph(MessagesState)
    graph.add_node("invoices", node)
    graph.add_edge("__start__", "invoices")
    return graph.compile(checkpointer=InMemorySaver())


def test_interrupt_of_a_node_asks_until_it_is_content(client, session):
    """Several interrupts in one node: each is a request of its own; the comment is its value."""

    def node(_state):
        question = "Which year?"
        while not (year := interrupt({"instruction": question})).isdigit():
            question = f"{year} is no year."
        return {"messages": [AIMessage(f"the books of {year}", name="invoices")]}

    client.set_active_agent(session, "invoices", user_id="ana")
    routed = RoutedGraph(client, _desk_graph(node), resume_value=lambda _, decided: decided.comment)
    run = routed.run_sync("the books", session_id=session, **ANA)
    assert run.approval.prompt == "Which year?"
    run = routed.decide_sync(run.approval, "APPROVE", user_id="ana", comment="soon")
    assert run.approval.prompt == "soon is no year."
    done = routed.decide_sync(run.approval, "APPROVE", user_id="ana", comment="2025")
    assert (done.text, done.approval) == ("the books of 2025", None)


class Balance(BaseModel):
    """A structured answer."""

    account: str
    amount: int


@pytest.mark.parametrize("memory", [None, InMemorySaver()])
async def test_structured_output_is_the_text_of_the_answer(client, session, memory):
    """A swarm keeps it only as the arguments of a call; the service gets it as JSON."""
    script = Script(invoices=lambda _: CallTool("Balance", {"account": "DE-7", "amount": 120}))
    desk = create_agent(
        RuleModel(agent_id="invoices", script=script),
        name="invoices",
        response_format=ToolStrategy(Balance),
        middleware=[RoutingMiddleware()],
    )
    graph = create_swarm([desk], default_active_agent="invoices").compile(checkpointer=memory)
    client.set_active_agent(session, "invoices", user_id="ana")
    run = await RoutedGraph(client, graph).run("my balance", session_id=session, **ANA)
    assert run.text == '{"account":"DE-7","amount":120}'
    (turn,) = client.list_turns(session, user_id="ana")
    assert turn.agent_text == run.text


def _react_swarm(script):
    """Return agents that have no middleware, as those of create_react_agent()."""
    agents = [
        create_react_agent(
            RuleModel(agent_id=name, script=script),
            [create_handoff_tool(agent_name=other)],
            name=name,
        )
        for name, other in (("coordinator", "invoices"), ("invoices", "coordinator"))
    ]
    return create_swarm(agents, default_active_agent="coordinator").compile()


def _command_graph(_script):
    """Return nodes of which one hands over by its own result, and no tool asks."""

    def coordinator(_state):
        return Command(goto="invoices", update={"active_agent": "invoices"})

    graph = StateGraph(SwarmState)
    graph.add_node("coordinator", coordinator, destinations=("invoices",))
    graph.add_node("invoices", lambda _: {"messages": [AIMessage("paid")]})
    graph.add_conditional_edges(
        "__start__", lambda state: state["active_agent"], ["coordinator", "invoices"]
    )
    return graph.compile()


@pytest.mark.parametrize("graph_of_two", [_react_swarm, _command_graph])
async def test_handoff_without_a_question_to_the_service_is_an_error(client, session, graph_of_two):
    """The answer of an agent that the service did not choose is not stored as another's."""
    script = Script(coordinator=lambda _: CallTool("transfer_to_invoices", {}))
    routed = RoutedGraph(client, graph_of_two(script))
    with pytest.raises(RuntimeError, match=r"went to agent 'invoices' without.*RoutingMiddleware"):
        await routed.run("my invoice", session_id=session, **ANA)
    status = client.status(session, user_id="ana")
    assert (status.task.status, len(status.open_requests)) == (TASK_STATUS_FAILED, 0)


def test_calls_of_one_task_do_not_wait_together(client, session, tmp_path):
    """LangGraph would give one of them the decision about another: the model calls them apart."""
    act, routing = refund_into(tmp_path), RoutingMiddleware()

    @tool
    def refund(amount: str, account: str) -> str:
        """Refund an amount, if a person agrees."""
        return act(amount, account) if interrupt({"question": f"{amount}?"}) else "no"

    def desk(seen):
        if "as the only tool" in seen.tool_output:
            return CallTool("refund", {"amount": "20", "account": "DE-7"})
        return desk_script().rules["invoices"](seen)

    script = Script(invoices=desk)
    node = ToolNode(
        [refund], wrap_tool_call=routing.wrap_tool_call, awrap_tool_call=routing.awrap_tool_call
    )
    agent = create_react_agent(
        RuleModel(agent_id="invoices", script=script), node, name="invoices", version="v1"
    )
    graph = create_swarm([agent], default_active_agent="invoices")
    routed = RoutedGraph(client, graph.compile(checkpointer=InMemorySaver()))
    client.set_active_agent(session, "invoices", user_id="ana")
    run = routed.run_sync("refund 10 and 20", session_id=session, **ANA)
    assert run.approval.prompt == "20?"
    done = routed.decide_sync(run.approval, "APPROVE", user_id="ana")
    assert done.approval is None
    assert refunds(tmp_path) == ["20 to DE-7"]


async def test_whole_graph_may_be_one_agent(client, session):
    """For example one agent of LangChain's, or a supervisor with its team."""
    script = Script(vat=lambda _: Say("21 %"))
    solo = create_agent(
        RuleModel(agent_id="vat", script=script), name="vat", middleware=[RoutingMiddleware()]
    )
    with pytest.raises(ValueError, match="name that one: agents="):
        RoutedGraph(client, solo)
    client.set_active_agent(session, "vat", user_id="ana")
    run = await RoutedGraph(client, solo, agents=["vat"]).run("how much", session_id=session, **ANA)
    assert (run.agent_id, run.text) == ("vat", "21 %")


async def test_agent_that_a_tool_calls_is_left_alone(client, session):
    """With the same middleware too: it reads what the tool gave it, and not the conversation."""
    routing = RoutingMiddleware()
    inner = Script(assessor=lambda seen: Say(f"assessed {seen.user_text}"))
    assessor = create_agent(
        RuleModel(agent_id="assessor", script=inner), name="assessor", middleware=[routing]
    )

    @tool
    async def assess(answer: str) -> str:
        """Assess an answer."""
        state = await assessor.ainvoke({"messages": [HumanMessage(answer)]})
        return state["messages"][-1].text

    script = Script(
        coordinator=lambda seen: (
            Say(seen.tool_output) if seen.tool_output else CallTool("assess", {"answer": "1/4"})
        )
    )
    graph = graph_of(script, tools={"coordinator": [assess]})
    run = await RoutedGraph(client, graph).run("one half of a half", session_id=session, **ANA)
    assert run.text == "assessed 1/4"
    (seen,) = inner.seen
    assert (seen.system, seen.messages) == ("", [("user", "1/4")])
