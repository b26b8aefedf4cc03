"""A contender: LangGraph swarm, compiled with its SQLite checkpointer.

As its README shows: create_agent with create_handoff_tool for each target, create_swarm,
compile(checkpointer=…), one thread for each session. A turn that was cut off is continued by
invoke(None) on the thread, as LangGraph's page on persistence says. Each step is on disk before the
next one begins (durability="sync").
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph_models import PREFIX, Scripted, answer, given, stored, tools_of
from langgraph_swarm import create_handoff_tool, create_swarm
from scripted import Story, main


class Swarm:
    """The story's agents in a swarm."""

    async def open(self, story: Story, folder: Path) -> None:
        """Build them."""
        agents = [
            create_agent(
                Scripted(story=story, agent=name),
                tools=[
                    *tools_of(name),
                    *(create_handoff_tool(agent_name=each, name=PREFIX + each) for each in targets),
                ],
                name=name,
            )
            for name, targets in story.handoffs.items()
        ]
        self.connection = sqlite3.connect(folder / "swarm.db", check_same_thread=False)
        builder = create_swarm(agents, default_active_agent=story.home)
        self.app = builder.compile(checkpointer=SqliteSaver(self.connection))

    async def send(self, session: str, text: str, request_id: str) -> Mapping[str, Any]:
        """Invoke the swarm."""
        return answer(self.app.invoke(given(text, request_id), _of(session), durability="sync"))

    async def resume(self, session: str, text: str, request_id: str) -> Mapping[str, Any]:
        """Continue the thread from its last checkpoint."""
        del text, request_id
        return answer(self.app.invoke(None, _of(session), durability="sync"))

    async def read(self, session: str) -> Mapping[str, Any]:
        """Read the thread's state."""
        state = self.app.get_state(_of(session))
        return stored(state.values, state.next)

    async def close(self) -> None:
        """Close the file."""
        self.connection.close()


def _of(session: str) -> Any:
    return {"configurable": {"thread_id": session}}


if __name__ == "__main__":
    main(Swarm())
