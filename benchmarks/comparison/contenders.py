"""The contenders: their programs, and what the page says of each that no run can show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Contender:
    """One of them.

    key: of its program in peers/ and its requirements next to it. packages: whose versions are
    named. api: what is used of it. persists: its own recommended persistence, and what "persisted"
    means there. source: the documentation that the program follows. gives_request_ids: it gives an
    id to the message that it waits for, so the caller has none of its own.
    """

    key: str
    title: str
    packages: tuple[str, ...]
    api: str
    persists: str
    source: str
    gives_request_ids: bool = False


CONTENDERS: Final = (
    Contender(
        "langgraph_swarm_sqlite",
        "LangGraph swarm",
        ("langgraph-swarm", "langgraph", "langchain", "langgraph-checkpoint-sqlite"),
        '`create_agent`, `create_handoff_tool`, `create_swarm`, `invoke(…, durability="sync")`',
        "`SqliteSaver`: a checkpoint of the whole state, the active agent in it, after each step of"
        " the graph. Its documentation recommends `PostgresSaver` for production",
        "https://github.com/langchain-ai/langgraph-swarm-py#readme",
    ),
    Contender(
        "langgraph_supervisor_sqlite",
        "LangGraph supervisor",
        ("langgraph-supervisor", "langgraph", "langgraph-checkpoint-sqlite"),
        '`create_react_agent`, `create_supervisor`, `invoke(…, durability="sync")`',
        "`SqliteSaver`, as above; the supervisor begins each turn, so no agent is stored",
        "https://github.com/langchain-ai/langgraph-supervisor-py#readme",
    ),
    Contender(
        "openai_agents_sqlalchemy",
        "OpenAI Agents SDK",
        ("openai-agents",),
        "`Agent(handoffs=…)`, `Runner.run(session=…)`, `result.last_agent`",
        "`SQLAlchemySession`: the conversation's items. The program here keeps `last_agent` in a"
        " table of its own, after each run",
        "https://openai.github.io/openai-agents-python/sessions/",
    ),
    Contender(
        "google_adk_sqlite",
        "Google ADK",
        ("google-adk",),
        "`LlmAgent(sub_agents=…)`, `App(resumability_config=…)`, `Runner.run_async`",
        "`DatabaseSessionService`: one event after another, as they happen. The agent that replied"
        " last, or was handed to, is read from them",
        "https://google.github.io/adk-docs/sessions/session/",
    ),
    Contender(
        "agent_framework_files",
        "Microsoft Agent Framework",
        ("agent-framework-core", "agent-framework-orchestrations"),
        "`HandoffBuilder.add_handoff`, `Workflow.run(checkpoint_id=…, responses=…)`",
        "`FileCheckpointStorage`, as in its samples: a checkpoint of the whole workflow after each"
        " superstep; of an open question only with"
        ' `allowed_checkpoint_types=["types:GenericAlias"]`',
        "https://github.com/microsoft/agent-framework/tree/main/python/samples/03-workflows",
        gives_request_ids=True,
    ),
    Contender(
        "agent_squad_sqlite",
        "Agent Squad",
        ("agent-squad",),
        "`AgentSquad.route_request`, `Classifier`, `Agent`",
        "`SqlChatStorage`: the user's message and the answer, for each agent, after the answer. Its"
        " documentation names `DynamoDbChatStorage` for production",
        "https://pypi.org/project/agent-squad/",
    ),
    Contender(
        "semantic_router_index",
        "semantic-router",
        ("semantic-router",),
        "`Route`, `IndexedRouter`",
        "nothing, by design: it routes one text, and has no session. A router itself can be saved",
        "https://pypi.org/project/semantic-router/",
    ),
    Contender(
        "this_service",
        "**this service**",
        ("agent-routing-service",),
        "`agent-routing serve --store sqlite:///…`; `route`, `complete_turn`",
        "SQLite, written to disk before each answer: every message, handoff and answer, the active"
        " agent and its lock",
        "../first-conversation.md",
    ),
)
