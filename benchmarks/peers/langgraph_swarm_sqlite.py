"""A peer: LangGraph swarm with its SQLite checkpointer, agents without a model.

Runs in an environment of its own (requirements next to it). Every turn is one invocation of the
compiled swarm with the conversation's thread id, as its documentation shows: with the asynchronous
checkpointer if the load has many sessions at once, with the blocking one in one thread if it has
one after another.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from pathlib import Path

from langchain_core.messages import AIMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command
from langgraph_swarm import create_swarm
from story import (
    AGENT_TEXT,
    HANDOFF_TEXT,
    SPECIALIST,
    SUPERVISOR,
    USER_TEXT,
    Load,
    Result,
    Stopwatch,
    load_from_arguments,
    tell,
)


def hand_over(state: MessagesState) -> Command:
    """Pass the message on, as the swarm's handoff tool does."""
    messages = [*state["messages"], AIMessage(HANDOFF_TEXT)]
    return Command(
        goto=SPECIALIST,
        graph=Command.PARENT,
        update={"messages": messages, "active_agent": SPECIALIST},
    )


def answer(_state: MessagesState) -> dict[str, list[AIMessage]]:
    """Answer the user."""
    return {"messages": [AIMessage(AGENT_TEXT)]}


def swarm() -> StateGraph:
    """Build the two agents and the swarm over them."""
    supervisor = StateGraph(MessagesState)
    supervisor.add_node("hand_over", hand_over)
    supervisor.add_edge(START, "hand_over")
    specialist = StateGraph(MessagesState)
    specialist.add_node("answer", answer)
    specialist.add_edge(START, "answer")
    agents = [supervisor.compile(name=SUPERVISOR), specialist.compile(name=SPECIALIST)]
    return create_swarm(agents, default_active_agent=SUPERVISOR)


def message() -> dict[str, list[dict[str, str]]]:
    """Return the input of one turn."""
    return {"messages": [{"role": "user", "content": USER_TEXT}]}


def one_after_another(load: Load, path: Path) -> Result:
    """Play the load in one thread."""
    connection = sqlite3.connect(path, check_same_thread=False)
    app = swarm().compile(checkpointer=SqliteSaver(connection))
    with Stopwatch() as watch:
        for _ in range(load.turns_per_session):
            for session in range(load.sessions):
                state = app.invoke(message(), {"configurable": {"thread_id": str(session)}})
    assert state["active_agent"] == SPECIALIST
    connection.close()
    return Result(load.turns, watch.seconds)


async def concurrently(load: Load, path: Path) -> Result:
    """Play the load with many sessions at once."""
    async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
        app = swarm().compile(checkpointer=saver)
        places = asyncio.Semaphore(load.concurrency)

        async def play(session: int) -> None:
            async with places:
                for _ in range(load.turns_per_session):
                    await app.ainvoke(message(), {"configurable": {"thread_id": str(session)}})

        with Stopwatch() as watch:
            await asyncio.gather(*(play(session) for session in range(load.sessions)))
    return Result(load.turns, watch.seconds)


def main() -> None:
    """Play the load the way that fits it."""
    load = load_from_arguments()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "swarm.db"
        if load.concurrency == 1:
            tell(one_after_another(load, path))
        else:
            tell(asyncio.run(concurrently(load, path)))


if __name__ == "__main__":
    main()
