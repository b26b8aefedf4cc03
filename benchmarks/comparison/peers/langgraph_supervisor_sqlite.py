"""A contender: LangGraph supervisor, compiled with its SQLite checkpointer.

As its README shows: create_react_agent for each specialist, create_supervisor, compile. Its README
now recommends to build the supervisor directly from tools for most uses. A turn that was cut off is
continued as in the swarm.
"""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")

from langgraph.checkpoint.sqlite import SqliteSaver  # noqa: E402
from langgraph.prebuilt import create_react_agent  # noqa: E402
from langgraph_models import PREFIX, Scripted, answer, given, stored, tools_of  # noqa: E402
from langgraph_supervisor import create_handoff_tool, create_supervisor  # noqa: E402
from scripted import Story, main  # noqa: E402


class Supervised:
    """The story's specialists under a supervisor."""

    async def open(self, story: Story, folder: Path) -> None:
        """Build them."""
        agents = [
            create_react_agent(Scripted(story=story, agent=name), tools=tools_of(name), name=name)
            for name in story.specialists
        ]
        builder = create_supervisor(
            agents,
            model=Scripted(story=story, agent=story.home),
            tools=[
                create_handoff_tool(agent_name=each, name=PREFIX + each)
                for each in story.specialists
            ],
            supervisor_name=story.home,
        )
        self.connection = sqlite3.connect(folder / "supervisor.db", check_same_thread=False)
        self.app = builder.compile(checkpointer=SqliteSaver(self.connection))

    async def send(self, session: str, text: str, request_id: str) -> Mapping[str, Any]:
        """Invoke the supervisor."""
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
    main(Supervised())
