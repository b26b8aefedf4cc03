"""A peer: Google's Agent Development Kit with its database sessions, agents without a model.

Runs in an environment of its own (requirements next to it). Every turn is one run of the Runner
over a DatabaseSessionService on SQLite, as its documentation shows; the Runner itself finds the
agent that answered last.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import warnings
from collections.abc import AsyncGenerator
from pathlib import Path

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import DatabaseSessionService
from google.genai import types
from story import (
    AGENT_TEXT,
    SPECIALIST,
    SUPERVISOR,
    USER_TEXT,
    Load,
    Result,
    Stopwatch,
    load_from_arguments,
    tell,
)

APP = "benchmark"
USER = "user"


class HandsOver(BaseLlm):
    """A model that always hands over to the specialist."""

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: FBT001, FBT002
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answer at once."""
        del llm_request, stream
        call = types.Part.from_function_call(
            name="transfer_to_agent", args={"agent_name": SPECIALIST}
        )
        yield LlmResponse(content=types.Content(role="model", parts=[call]))


class Answers(BaseLlm):
    """A model that always gives the same answer."""

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: FBT001, FBT002
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answer at once."""
        del llm_request, stream
        said = types.Part.from_text(text=AGENT_TEXT)
        yield LlmResponse(content=types.Content(role="model", parts=[said]))


def agents() -> LlmAgent:
    """Return the supervisor, with the specialist that it hands over to."""
    specialist = LlmAgent(name=SPECIALIST, model=Answers(model="none"), description="Invoices.")
    return LlmAgent(name=SUPERVISOR, model=HandsOver(model="none"), sub_agents=[specialist])


async def play(load: Load, path: Path) -> Result:
    """Play the load with so many sessions at once."""
    # Without the time-out sessions at once fail with "database is locked".
    service = DatabaseSessionService(
        db_url=f"sqlite+aiosqlite:///{path}", connect_args={"timeout": 60}
    )
    runner = Runner(app_name=APP, agent=agents(), session_service=service)
    places = asyncio.Semaphore(load.concurrency)
    # The tables are made when they are first needed.
    await service.create_session(app_name=APP, user_id=USER, session_id="first")

    async def converse(number: int) -> None:
        async with places:
            session_id = str(number)
            await service.create_session(app_name=APP, user_id=USER, session_id=session_id)
            for _ in range(load.turns_per_session):
                message = types.Content(role="user", parts=[types.Part.from_text(text=USER_TEXT)])
                author = ""
                async for event in runner.run_async(
                    user_id=USER, session_id=session_id, new_message=message
                ):
                    author = event.author
                assert author == SPECIALIST, author

    with Stopwatch() as watch:
        await asyncio.gather(*(converse(number) for number in range(load.sessions)))
    return Result(load.turns, watch.seconds)


def main() -> None:
    """Play the load."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        tell(asyncio.run(play(load_from_arguments(), Path(folder) / "sessions.db")))


if __name__ == "__main__":
    main()
