"""A contender: Agent Squad with its SqlChatStorage over SQLite.

As its documentation shows: an orchestrator with a storage, agents, and a classifier, which is a
model's call before each message; here a custom classifier and custom agents, scripted. The
classifier sees the conversation with all agents. A message that was cut off is sent again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_squad.agents import Agent, AgentOptions
from agent_squad.classifiers import Classifier, ClassifierResult
from agent_squad.orchestrator import AgentSquad
from agent_squad.storage import SqlChatStorage
from agent_squad.types import ConversationMessage, ParticipantRole
from scripted import LookUp, Seen, Story, choose, decide, look_up, main

USER = "user"


class Scripted(Agent):
    """One agent of a story, with its tool."""

    def __init__(self, story: Story, name: str) -> None:
        """Keep them."""
        super().__init__(AgentOptions(name=name, description=name))
        self.id = name
        self.story = story

    async def process_request(
        self,
        input_text: str,
        user_id: str,
        session_id: str,
        chat_history: list[ConversationMessage],
        additional_params: dict[str, Any] | None = None,
    ) -> ConversationMessage:
        """Answer. An agent has no way to hand over."""
        del user_id, session_id, additional_params
        shown = len(chat_history) + 1
        decision = decide(self.story, self.id, Seen(input_text, messages=shown))
        if isinstance(decision, LookUp):
            result = look_up()
            decision = decide(
                self.story, self.id, Seen(input_text, result=result, messages=shown + 2)
            )
        return ConversationMessage(
            role=ParticipantRole.ASSISTANT.value, content=[{"text": decision.text}]
        )


class ScriptedClassifier(Classifier):
    """Chooses an agent for a message, from all that was said."""

    def __init__(self, story: Story) -> None:
        """Keep the story."""
        super().__init__()
        self.story = story

    async def process_request(
        self, input_text: str, chat_history: list[ConversationMessage]
    ) -> ClassifierResult:
        """Choose."""
        said = [each.content[0]["text"] for each in chat_history if each.role == "assistant"]
        speaker = said[-1][1:].partition("]")[0] if said else ""
        speaker = speaker if speaker in self.story.specialists else ""
        seen = Seen(input_text, speaker=speaker, messages=len(chat_history) + 1)
        decide(self.story, self.story.home, seen)
        chosen = self.get_agent_by_id(choose(self.story, seen) or self.story.home)
        return ClassifierResult(selected_agent=chosen, confidence=0.9)


class Squad:
    """The story's agents. Who answers for the home agent is an agent like the others."""

    async def open(self, story: Story, folder: Path) -> None:
        """Build them."""
        self.storage = SqlChatStorage(f"file:{folder}/squad.db")
        await self.storage.initialize()
        self.squad = AgentSquad(storage=self.storage, classifier=ScriptedClassifier(story))
        for name in story.handoffs:
            self.squad.add_agent(Scripted(story, name))

    async def send(self, session: str, text: str, request_id: str) -> Mapping[str, Any]:
        """Route the request. There is no place for the caller's id."""
        del request_id
        response = await self.squad.route_request(text, USER, session)
        return {"answer": response.output.content[0]["text"]}

    async def resume(self, session: str, text: str, request_id: str) -> Mapping[str, Any]:
        """Send the message again."""
        return await self.send(session, text, request_id)

    async def read(self, session: str) -> Mapping[str, Any]:
        """Read what was said to all agents."""
        said = await self.storage.fetch_all_chats(USER, session)
        texts = [each.content[0]["text"] for each in said]
        return {"texts": [_plain(each) for each in texts], "active": "", "unfinished": ""}

    async def close(self) -> None:
        """Close the storage."""
        await self.storage.close()


def _plain(text: str) -> str:
    return text.partition("] ")[2] if text.startswith("[") else text


if __name__ == "__main__":
    main(Squad())
