"""A contender: LangGraph supervisor, compiled with its SQLite checkpointer.

As its README shows: create_react_agent for each specialist, create_supervisor, compile. Its README
now recommends to build the supervisor directly from tools for most uses. A turn that was cut off is
continued as in the swarm.
"""

from __future__ import annotations

import warnings
from pathlib import Path

warnings.simplefilter("ignore")

from langgraph.prebuilt import create_react_agent  # noqa: E402
from langgraph_models import PREFIX, Scripted, Threads, tools_of  # noqa: E402
from langgraph_supervisor import create_handoff_tool, create_supervisor  # noqa: E402
from scripted import Story, main  # noqa: E402


class Supervised(Threads):
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
        self.compile(builder, folder / "supervisor.db")


if __name__ == "__main__":
    main(Supervised())
