"""A worker whose agents do what a message says, and a frontend that asks.

    python -m tests.clients.scripted_worker work ADDRESS OPTIONS
    python -m tests.clients.scripted_worker ask ADDRESS
    python -m tests.clients.scripted_worker approvals ADDRESS

Follows tests/clients/vectors/workers/README.md, as the programs of the other languages do.
"""

import asyncio
import json
import os
import signal
import sys

import agent_routing
from agent_routing import outcomes
from agent_routing.outcomes import Answer
from agent_routing.v1.item_pb2 import Item
from agent_routing.v1.turn_pb2 import Step
from agent_routing.worker import InboxTurn, Result, Worker


def say(**line):
    """Print a line of JSON at once."""
    sys.stdout.write(f"{json.dumps(line)}\n")
    sys.stdout.flush()


async def hang(turn: InboxTurn) -> Result:
    """Wait until the turn is taken from the function."""
    try:
        await asyncio.Event().wait()
    finally:
        say(event="stopped", agent_id=turn.agent_id)
    raise AssertionError("nothing sets the event")


async def write(turn: InboxTurn, parts: list) -> Result:
    """Say what is done, and write an answer in parts."""
    await turn.note("one moment")
    await turn.step("search", input="VAT", output="2 pages")
    for part in parts:
        await turn.delta(part)
        await asyncio.sleep(0.4)
    return "".join(parts)


async def act(turn: InboxTurn, action: dict) -> Result:
    """Do what a message says."""
    [(kind, given)] = action.items()
    match kind:
        case "say" | "say_late":
            await asyncio.sleep(4 if kind == "say_late" else 0)
            return given
        case "follow_up":
            return outcomes.follow_up(given)
        case "complete":
            return Answer("done", outcomes.complete(summary=given))
        case "handoff":
            return Answer("one moment", outcomes.handoff(given, reason="asked"))
        case "approval_needed":
            return outcomes.approval_needed(given, fields={"amount": 20})
        case "failure":
            return outcomes.failure(given)
        case "answer":
            item = Item(content_type="text/plain", text="more")
            steps = [Step(name="look up", kind="tool")]
            return Answer(given, outcomes.proceed(), [item], steps)
        case "raise":
            raise ValueError(given)
        case "nothing":
            return None
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
    return await report(turn, kind, given)


async def report(turn: InboxTurn, kind: str, given) -> Result:
    """Say what is done, while it is done."""
    match kind:
        case "write":
            return await write(turn, given)
        case "steps":
            for name in given:
                await turn.step(name)
            return "done"
        case "step_and_die":
            await turn.step(given)
            await asyncio.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        case "write_and_raise":
            await turn.delta(given)
            await asyncio.sleep(0.5)
            raise ValueError(given)
        case "write_and_hang":
            await turn.delta(given)
    return await hang(turn)


def work(address: str, options: dict) -> None:
    """Run a worker until SIGTERM."""
    worker = Worker(
        address,
        lease=options.get("lease_ms", 30_000) / 1000,
        stop_timeout=options.get("stop_timeout_ms", 20_000) / 1000,
        attempts=options.get("attempts", 3),
        concurrency=options.get("concurrency", 10),
    )

    async def run(turn: InboxTurn) -> Result:
        began = {"agent_id": turn.agent_id, "attempt": turn.attempt, "request_id": turn.request_id}
        say(event="began", **began)
        script = json.loads(turn.text)
        own = f"{turn.agent_id}@{options['number']}"
        actions = script.get(own, script.get(turn.agent_id, ()))
        return await act(turn, actions[min(turn.attempt, len(actions)) - 1])

    for agent_id in options["agents"]:
        worker.agent(agent_id)(run)
    worker.run()
    say(event="ended")


def ask(address: str) -> None:
    """Ask for each line of the input."""
    with agent_routing.Client(address) as client:
        for line in sys.stdin:
            given = json.loads(line)
            wait = given.pop("wait_ms", 300_000) / 1000
            read = {}
            try:
                if given.pop("parts", False):
                    asked, read = read_parts(client.ask_parts(**given, wait=wait))
                else:
                    asked = client.ask(**given, wait=wait)
            except (agent_routing.RoutingError, ValueError, TimeoutError) as error:
                say(error=str(error), request_id=getattr(error, "request_id", ""))
            else:
                turns = [turn.agent_id for turn in asked.turns]
                names = ("text", "agent_id", "outcome", "cause", "notice", "claimed", "replayed")
                say(**{name: getattr(asked, name) for name in names}, turns=turns, **read)


def read_parts(parts):
    """Return the whole answer, and what a user saw of it."""
    texts, notes, count = {}, [], 0
    for part in parts:
        if part.is_note:
            notes.append(part.text)
        elif part.text or part.replaces:
            turn = (part.request_id, part.agent_id)
            before = "" if part.replaces else texts.get(turn, "")
            texts[turn] = before + part.text
            count += 1
        asked = part.asked
    shown = [text for text in texts.values() if text]
    return asked, {"shown": shown, "notes": notes, "in_parts": count > len(shown)}


def approvals(address: str) -> None:
    """List what waits for an approval, then watch it."""
    with agent_routing.Client(address) as client:
        sessions = [waiting.session_id for waiting in client.list_approvals(page_size=1)]
        say(event="listed", sessions=sessions)
        for news in client.watch_approvals():
            kind = news.WhichOneof("kind")
            say(event=kind, session_id=getattr(news, kind).session_id)


if __name__ == "__main__":
    if sys.argv[1] == "approvals":
        approvals(sys.argv[2])
    elif sys.argv[1] == "ask":
        ask(sys.argv[2])
    else:
        work(sys.argv[2], json.loads(sys.argv[3]))
