"""A peer: the OpenAI Agents SDK with its SQLiteSession, agents without a model.

Runs in an environment of its own (requirements next to it). Every turn is one Runner.run with the
conversation's session, as its documentation shows. The next turn begins with the agent that
answered last; the SDK leaves remembering it to the program, which here keeps it in memory.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from agents import (
    Agent,
    Model,
    ModelResponse,
    Runner,
    SQLiteSession,
    Usage,
    handoff,
    set_tracing_disabled,
)
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
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


def said(text: str) -> ResponseOutputMessage:
    """Return an agent's text as a model returns it."""
    words = ResponseOutputText(text=text, type="output_text", annotations=[], logprobs=[])
    return ResponseOutputMessage(
        id="message", type="message", role="assistant", content=[words], status="completed"
    )


class Scripted(Model):
    """A model that always gives the same answer."""

    def __init__(self, *output: Any) -> None:
        """Keep the answer."""
        self.output = list(output)

    async def get_response(self, *_: Any, **__: Any) -> ModelResponse:
        """Answer at once."""
        return ModelResponse(output=list(self.output), usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        """Not used here."""
        raise NotImplementedError


def agents() -> Agent:
    """Return the supervisor, with the specialist that it hands over to."""
    specialist = Agent(name=SPECIALIST, instructions="Invoices.", model=Scripted(said(AGENT_TEXT)))
    to_specialist = handoff(specialist)
    call = ResponseFunctionToolCall(
        name=to_specialist.tool_name, arguments="{}", call_id="call", type="function_call"
    )
    model = Scripted(said(HANDOFF_TEXT), call)
    return Agent(name=SUPERVISOR, instructions="Hand over.", model=model, handoffs=[to_specialist])


async def play(load: Load, path: Path) -> Result:
    """Play the load with so many sessions at once."""
    supervisor = agents()
    places = asyncio.Semaphore(load.concurrency)
    run = path.name

    async def converse(number: int) -> None:
        async with places:
            session = SQLiteSession(f"{run}-{number}", path)
            agent = supervisor
            for _ in range(load.turns_per_session):
                result = await Runner.run(agent, USER_TEXT, session=session)
                agent = result.last_agent
            assert agent.name == SPECIALIST
            assert result.final_output == AGENT_TEXT
            session.close()

    with Stopwatch() as watch:
        await asyncio.gather(*(converse(number) for number in range(load.sessions)))
    return Result(load.turns, watch.seconds)


def main() -> None:
    """Play the load."""
    set_tracing_disabled(disabled=True)
    with tempfile.TemporaryDirectory() as folder:
        tell(asyncio.run(play(load_from_arguments(), Path(folder) / "sessions.db")))


if __name__ == "__main__":
    main()
