"""A scripted chat model for LangChain agents, and what LangGraph's two contenders share."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.sqlite import SqliteSaver
from scripted import TOOL, HandOver, LookUp, Say, Seen, Story, decide, look_up

PREFIX = "transfer_to_"


class Scripted(BaseChatModel):
    """Answers for one agent of a story."""

    story: Any
    agent: str
    targets: tuple[str, ...] = ()

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        **kwargs: Any,
    ) -> Runnable[Any, AIMessage]:
        """Note which agents there are tools for."""
        del kwargs
        names = [each.name for each in tools if isinstance(each, BaseTool)]
        targets = tuple(each.removeprefix(PREFIX) for each in names if each.startswith(PREFIX))
        return Scripted(story=self.story, agent=self.agent, targets=targets)

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, *_: Any, **__: Any
    ) -> ChatResult:
        del stop
        decision = decide(self.story, self.agent, seen(self.story, self, messages))
        match decision:
            case Say():
                said = AIMessage(decision.text)
            case HandOver():
                said = AIMessage(decision.text, tool_calls=[_call(PREFIX + decision.target)])
            case LookUp():
                said = AIMessage(decision.text, tool_calls=[_call(TOOL)])
        return ChatResult(generations=[ChatGeneration(message=said)])


def _call(name: str) -> Any:
    return {"name": name, "args": {}, "id": f"call-{time.time_ns()}", "type": "tool_call"}


def seen(story: Story, model: Scripted, messages: list[BaseMessage]) -> Seen:
    """Say what a model is shown."""
    last_user = max(n for n, each in enumerate(messages) if isinstance(each, HumanMessage))
    since = messages[last_user + 1 :]
    speakers = [
        each.name
        for each in messages
        if isinstance(each, AIMessage) and each.name in story.specialists
    ]
    answers = [
        str(each.text)
        for each in since
        if isinstance(each, AIMessage)
        and each.name in story.specialists
        and each.text
        and not each.text.startswith("Transferring back")
    ]
    last = messages[-1]
    is_result = isinstance(last, ToolMessage) and not str(last.content).startswith("Successfully")
    return Seen(
        text=str(messages[last_user].text),
        answered=answers[-1] if answers else "",
        speaker=speakers[-1] if speakers else "",
        result=str(last.content) if is_result else "",
        targets=model.targets,
        messages=len(messages),
    )


@tool(TOOL)
def look_up_tool() -> str:
    """Look up the invoice."""
    return look_up()


def tools_of(agent: str) -> list[BaseTool]:
    """Return an agent's own tools."""
    return [look_up_tool] if agent == "invoices" else []


def given(text: str, request_id: str) -> dict[str, Any]:
    """Return a turn's input. A message id that is there already replaces the message."""
    return {"messages": [HumanMessage(text, id=request_id or None)]}


def answer(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the last answer of a turn."""
    return {"answer": str(state["messages"][-1].text)}


def stored(values: Mapping[str, Any], upcoming: Sequence[str]) -> dict[str, Any]:
    """Return what is stored of a thread."""
    texts = [str(each.text) for each in values.get("messages", []) if each.text]
    return {
        "texts": texts,
        "active": values.get("active_agent") or "",
        "unfinished": json.dumps(list(upcoming)) if upcoming else "",
    }


class Threads:
    """A graph with the SQLite checkpointer, one thread for each session."""

    def compile(self, builder: Any, path: Path) -> None:
        """Compile a graph with its file."""
        self.connection = sqlite3.connect(path, check_same_thread=False)
        self.app = builder.compile(checkpointer=SqliteSaver(self.connection))

    async def send(self, session: str, text: str, request_id: str) -> Mapping[str, Any]:
        """Invoke the graph."""
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
