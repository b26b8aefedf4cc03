"""A contender: LangGraph swarm, compiled with its SQLite checkpointer.

As its README shows: create_agent with create_handoff_tool for each target, create_swarm,
compile(checkpointer=…), one thread for each session. A turn that was cut off is continued by
invoke(None) on the thread, as LangGraph's page on persistence says. Each step is on disk before the
next one begins (durability="sync").
"""

from __future__ import annotations

from pathlib import Path

from langchain.agents import create_agent
from langgraph_models import PREFIX, Scripted, Threads, tools_of
from langgraph_swarm import create_handoff_tool, create_swarm
from scripted import Story, main


class Swarm(Threads):
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
        builder = create_swarm(agents, default_active_agent=story.home)
        self.compile(builder, folder / "swarm.db")


if __name__ == "__main__":
    main(Swarm())
