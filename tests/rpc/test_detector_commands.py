"""The commands that look at a detector: doctor, and replay with another one."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from typer.testing import CliRunner

from routing_service.cli.app import app
from tests.rpc.test_remote_judge import REGISTRY, Judge, judging

DIALOGUE = {
    "dialogue_id": "d1",
    "corpus": "mine",
    "language": "en",
    "turns": [
        {"speaker": "user", "text": "vat! please", "agent": "vat"},
        {"speaker": "agent", "text": "Here.", "agent": "vat"},
        {"speaker": "user", "text": "payroll! then", "agent": "payroll"},
        {"speaker": "agent", "text": "There.", "agent": "payroll"},
    ],
}


async def run(*arguments: str):
    """Run a command in a thread while this event loop serves the detector."""
    return await asyncio.to_thread(CliRunner().invoke, app, list(arguments))


async def test_doctor_looks_at_the_detector(tmp_path):
    """A detector that answers is listed with its time; one that does not answer is a problem."""
    agents = tmp_path / "agents.yaml"
    await asyncio.to_thread(agents.write_text, REGISTRY, encoding="utf-8")
    given = ["doctor", "--agents", str(agents), "--store", "memory:", "--target", "127.0.0.1:1"]
    given += ["--json"]

    def found(done) -> tuple[str, str]:
        (finding,) = (
            each for each in json.loads(done.stdout)["findings"] if each["what"] == "topic detector"
        )
        return finding["level"], finding["said"]

    async with judging(Judge()) as port:
        address = f"grpc://127.0.0.1:{port}"
        level, said = found(await run(*given, "--topic-detector", address))
        assert level in ("ok", "warning")
        assert said.startswith(f"{address} answers in ")
    level, said = found(await run(*given, "--topic-detector", address))
    assert (level, "UNAVAILABLE" in said) == ("problem", True)
    level, said = found(await run(*given))
    assert (level, " answers in " in said) == ("ok", True)


async def test_replay_plays_with_another_detector(tmp_path):
    """An operator sees the effect of a detector before a server uses it."""
    agents, file = tmp_path / "agents.yaml", tmp_path / "mine.jsonl"
    await asyncio.to_thread(agents.write_text, REGISTRY, encoding="utf-8")
    await asyncio.to_thread(file.write_text, json.dumps(DIALOGUE) + "\n", encoding="utf-8")
    judge = Judge()
    async with judging(judge) as port:
        process = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("agent-routing")),
            *("replay", str(file), "--agents", str(agents), "--json"),
            *("--detector", f"grpc://127.0.0.1:{port}"),
            stdout=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(60):
            said, _ = await process.communicate()
    assert process.returncode == 0
    assert [request.text for request in judge.asked] == ["vat! please", "payroll! then"]
    assert json.loads(said)["first_dispatch_right"] == 1
