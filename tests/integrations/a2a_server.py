"""A remote agent, of the reference SDK's own server classes, in a process of its own.

    python tests/integrations/a2a_server.py PORT STREAMING PROTOCOL COUNT_FILE

What it does is what the message says. Each run of it adds a line to the file.
"""

import asyncio
import sys
from pathlib import Path

import uvicorn
from a2a.helpers.proto_helpers import new_raw_part, new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types.a2a_pb2 import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Message,
    Role,
)
from starlette.applications import Starlette


class Planner(AgentExecutor):
    """A remote agent that plans journeys."""

    def __init__(self, counts: Path):
        self._counts = counts

    async def execute(self, context, event_queue):
        """Do what the message says."""
        with self._counts.open("a") as counts:
            counts.write(f"{context.get_user_input()}\n")
        said = context.get_user_input()
        if said == "hello" and context.current_task is None:
            reply = Message(
                message_id=f"reply-{context.message.message_id}",
                context_id=context.context_id,
                role=Role.ROLE_AGENT,
                parts=[new_text_part("Hello World")],
            )
            await event_queue.enqueue_event(reply)
            return
        task = context.current_task
        if task is None:
            task = new_task_from_user_message(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)

        def words(text):
            return updater.new_agent_message([new_text_part(text)])

        match said:
            case "who am I?":
                headers = context.call_context.state.get("headers", {})
                await updater.complete(words(headers.get("authorization", "nobody")))
            case "plan a journey":
                await updater.requires_input(words("Where to?"))
            case "sign in":
                await updater.requires_auth(words("Sign in at https://example.org"))
            case "fail":
                await updater.failed(words("The trains stand still."))
            case "reject":
                await updater.reject(words("I plan journeys only."))
            case "cancel":
                await updater.cancel(words("Somebody cancelled it."))
            case "slow":
                await updater.start_work()
                await asyncio.sleep(4)
                await updater.add_artifact([new_text_part("A slow plan")], name="plan")
                await updater.complete()
            case "word by word":
                await updater.start_work()
                for number, word in enumerate(("Take ", "the ", "train.")):
                    part = [new_text_part(word)]
                    await updater.add_artifact(part, artifact_id="plan", append=number > 0)
                await updater.add_artifact([new_text_part("It leaves at 8.")])
                await updater.complete()
            case _:
                await updater.start_work()
                picture = new_raw_part(b"PNG", media_type="image/png")
                await updater.add_artifact([new_text_part(f"A plan: {said}"), picture])
                which = "a new task" if context.current_task is None else "the task before"
                await updater.complete(words(f"Done, in {which}."))

    async def cancel(self, context, event_queue):
        """Not part of the tests."""
        raise NotImplementedError


def main():
    """Serve until the process is killed."""
    port, streaming, protocol, counts = sys.argv[1:]
    url = f"http://127.0.0.1:{port}/"
    interface = AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version=protocol)
    card = AgentCard(
        name="Planner",
        description="Plans journeys.",
        version="1.0.0",
        supported_interfaces=[interface],
        capabilities=AgentCapabilities(streaming=streaming == "streaming"),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="plan", name="Plan", description="Plans.", tags=["travel"])],
    )
    handler = DefaultRequestHandler(
        agent_executor=Planner(Path(counts)), task_store=InMemoryTaskStore(), agent_card=card
    )
    calls = create_jsonrpc_routes(handler, "/", enable_v0_3_compat=protocol == "0.3")
    routes = [*create_agent_card_routes(card), *calls]
    uvicorn.run(Starlette(routes=routes), host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main()
