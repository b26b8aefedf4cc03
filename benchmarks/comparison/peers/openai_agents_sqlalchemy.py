"""A contender: the OpenAI Agents SDK with its SQLAlchemySession over SQLite.

As its documentation shows: agents with handoffs, Runner.run with a session, and the next message to
result.last_agent. A session stores the conversation's items and not the agent, so this program
keeps the last agent's name in a table of its own, written after each run, as a program that follows
the documentation would. A run that was cut off has no continuation but in a durable execution
service, so its message is sent again.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agents import (
    Agent,
    Model,
    ModelResponse,
    Runner,
    Usage,
    function_tool,
    handoff,
    set_tracing_disabled,
)
from agents.extensions.memory import SQLAlchemySession
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
from scripted import TOOL, HandOver, LookUp, Say, Seen, Story, decide, look_up, main

PREFIX = "transfer_to_"


class Scripted(Model):
    """Answers for one agent of a story."""

    def __init__(self, story: Story, agent: str) -> None:
        """Keep them."""
        self.story, self.agent = story, agent

    async def get_response(
        self,
        system_instructions: Any,
        input: Any,  # noqa: A002 - the SDK's name
        *args: Any,
        **kwargs: Any,
    ) -> ModelResponse:
        """Answer."""
        del system_instructions
        handoffs = kwargs["handoffs"] if "handoffs" in kwargs else args[3]
        names = [each.tool_name.removeprefix(PREFIX) for each in handoffs]
        items = [{"role": "user", "content": input}] if isinstance(input, str) else list(input)
        decision = decide(self.story, self.agent, _seen(items, names))
        output: list[Any] = [_said(decision.text)]
        match decision:
            case HandOver():
                output.append(self._call(PREFIX + decision.target))
            case LookUp():
                output.append(self._call(TOOL))
            case Say():
                pass
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def _call(self, name: str) -> ResponseFunctionToolCall:
        return ResponseFunctionToolCall(
            name=name, arguments="{}", call_id=f"call-{time.time_ns()}", type="function_call"
        )

    def stream_response(self, *_: Any, **__: Any) -> Any:
        """Not used here."""
        raise NotImplementedError


def _said(text: str) -> ResponseOutputMessage:
    part = ResponseOutputText(text=text, type="output_text", annotations=[], logprobs=[])
    return ResponseOutputMessage(
        id="message", type="message", role="assistant", content=[part], status="completed"
    )


def _seen(items: list[Any], targets: list[str]) -> Seen:
    users = [n for n, each in enumerate(items) if each.get("role") == "user"]
    last = items[-1]
    output = str(last.get("output", "")) if last.get("type") == "function_call_output" else ""
    return Seen(
        text=_text(items[users[-1]]),
        result="" if "assistant" in output and output.startswith("{") else output,
        targets=targets,
        messages=len(items),
    )


def _text(item: Any) -> str:
    content = item.get("content") or ""
    return (
        content if isinstance(content, str) else "".join(each.get("text", "") for each in content)
    )


class OpenAiAgents:
    """The story's agents."""

    async def open(self, story: Story, folder: Path) -> None:
        """Build them."""
        set_tracing_disabled(disabled=True)
        self.story = story
        self.url = f"sqlite+aiosqlite:///{folder}/sessions.db"
        self.own = sqlite3.connect(folder / "program.db")
        self.own.execute("create table if not exists last_agent (session primary key, agent)")
        tool = function_tool(look_up, name_override=TOOL)
        self.agents: dict[str, Agent[Any]] = {
            name: Agent(
                name=name,
                model=Scripted(story, name),
                tools=[tool] if name == "invoices" else [],
            )
            for name in story.handoffs
        }
        for name, targets in story.handoffs.items():
            self.agents[name].handoffs = [handoff(self.agents[each]) for each in targets]

    def _session(self, session: str) -> SQLAlchemySession:
        return SQLAlchemySession.from_url(session, url=self.url, create_tables=True)

    def _last_agent(self, session: str) -> str:
        rows = self.own.execute("select agent from last_agent where session = ?", (session,))
        return (rows.fetchone() or ("",))[0]

    async def send(self, session: str, text: str, request_id: str) -> Mapping[str, Any]:
        """Run the last agent with the session. There is no place for the caller's id."""
        del request_id
        agent = self.agents[self._last_agent(session) or self.story.home]
        result = await Runner.run(agent, text, session=self._session(session))
        row = (session, result.last_agent.name)
        self.own.execute("insert or replace into last_agent values (?, ?)", row)
        self.own.commit()
        return {"answer": str(result.final_output)}

    async def resume(self, session: str, text: str, request_id: str) -> Mapping[str, Any]:
        """Send the message again."""
        return await self.send(session, text, request_id)

    async def read(self, session: str) -> Mapping[str, Any]:
        """Read the session's items."""
        items = await self._session(session).get_items()
        texts = [_text(each) for each in items if each.get("role")]
        calls = {each["call_id"] for each in items if each.get("type") == "function_call"}
        done = {each["call_id"] for each in items if each.get("type") == "function_call_output"}
        return {
            "texts": texts,
            "active": self._last_agent(session),
            "unfinished": json.dumps(sorted(calls - done)) if calls - done else "",
        }

    async def close(self) -> None:
        """Close the program's own table."""
        self.own.close()


if __name__ == "__main__":
    main(OpenAiAgents())
