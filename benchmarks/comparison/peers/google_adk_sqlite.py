"""A contender: Google's Agent Development Kit with its DatabaseSessionService over SQLite.

As its documentation shows: sub-agents of a root agent, a Runner over an App, one session for each
conversation; the Runner finds the agent that replied last. The App is resumable. An invocation that
was cut off is continued by run_async(invocation_id=…), as the page on resuming says.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App, ResumabilityConfig
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import DatabaseSessionService
from google.genai import types
from scripted import TOOL, HandOver, LookUp, Seen, Story, decide, look_up, main

APP = "comparison"
USER = "user"
TRANSFER = "transfer_to_agent"


class Scripted(BaseLlm):
    """Answers for one agent of a story."""

    story: Any
    agent: str

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: FBT001, FBT002
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answer."""
        del stream
        decision = decide(self.story, self.agent, _seen(llm_request))
        parts = [types.Part.from_text(text=decision.text)]
        if isinstance(decision, HandOver):
            given = {"agent_name": decision.target}
            parts.append(types.Part.from_function_call(name=TRANSFER, args=given))
        if isinstance(decision, LookUp):
            parts.append(types.Part.from_function_call(name=TOOL, args={}))
        yield LlmResponse(content=types.Content(role="model", parts=parts))


def _seen(request: LlmRequest) -> Seen:
    texts, result = [], ""
    for content in request.contents:
        for part in content.parts or []:
            if part.text and content.role == "user" and not part.text.startswith("For context"):
                texts.append(part.text)
                result = ""
            response = part.function_response
            if response is not None and response.name in {TOOL, TRANSFER}:
                result = json.dumps(response.response)
    # Another agent's words are shown as the user's, with "[agent] said:" before them.
    spoken = [each for each in texts if not each.startswith("[")]
    result = "" if result == json.dumps({"result": None}) else result
    return Seen(
        text=spoken[-1],
        result=result,
        targets=_targets(request),
        messages=len(request.contents),
    )


def _targets(request: LlmRequest) -> list[str]:
    tool = request.tools_dict.get(TRANSFER)
    return list(getattr(tool, "_agent_names", []))


class Adk:
    """The story's specialists under the home agent."""

    async def open(self, story: Story, folder: Path) -> None:
        """Build them. A handoff that the story has not is disallowed where ADK has a switch for it.

        The switches are one for the parent and one for all peers, so only filing and the motivator
        can be limited, and only to their parent.
        """
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        limited = {"filing"}
        agents = [
            LlmAgent(
                name=name,
                description=name,
                model=Scripted(model="none", story=story, agent=name),
                tools=[look_up] if name == "invoices" else [],
                disallow_transfer_to_peers=name in limited,
            )
            for name in story.specialists
        ]
        root = LlmAgent(
            name=story.home,
            model=Scripted(model="none", story=story, agent=story.home),
            sub_agents=agents,
        )
        # Without the time-out concurrent writes fail with "database is locked".
        self.service = DatabaseSessionService(
            db_url=f"sqlite+aiosqlite:///{folder}/sessions.db", connect_args={"timeout": 60}
        )
        app = App(
            name=APP,
            root_agent=root,
            resumability_config=ResumabilityConfig(is_resumable=True),
        )
        self.runner = Runner(app=app, session_service=self.service, auto_create_session=True)

    async def send(self, session: str, text: str, request_id: str) -> Mapping[str, Any]:
        """Run the agent of the session. There is no place for the caller's id."""
        del request_id
        message = types.Content(role="user", parts=[types.Part.from_text(text=text)])
        return await self._run(session, new_message=message)

    async def resume(self, session: str, text: str, request_id: str) -> Mapping[str, Any]:
        """Continue the session's last invocation."""
        del text, request_id
        events = await self._events(session)
        return await self._run(session, invocation_id=events[-1].invocation_id)

    async def _run(self, session: str, **given: Any) -> Mapping[str, Any]:
        said = ""
        async for event in self.runner.run_async(user_id=USER, session_id=session, **given):
            for part in event.content.parts if event.content and event.content.parts else []:
                said = part.text or said
        return {"answer": said}

    async def _events(self, session: str) -> list[Any]:
        stored = await self.service.get_session(app_name=APP, user_id=USER, session_id=session)
        return list(stored.events) if stored else []

    async def read(self, session: str) -> Mapping[str, Any]:
        """Read the session's events."""
        texts, calls = [], []
        for event in await self._events(session):
            for part in event.content.parts if event.content and event.content.parts else []:
                if part.text:
                    texts.append(part.text)
                if part.function_call:
                    calls.append(part.function_call.name)
                if part.function_response and calls:
                    calls.pop()
        return {"texts": texts, "active": "", "unfinished": json.dumps(calls) if calls else ""}

    async def close(self) -> None:
        """Close the engine."""
        await self.service.close()


if __name__ == "__main__":
    main(Adk())
