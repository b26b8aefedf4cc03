"""The examples of a judge of one's own, each in a process of its own, asked by a real server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests import toolchains
from tests.rpc.live_service import serving, went
from tests.scripted_topics import ScriptedModel

ROOT = Path(__file__).resolve().parents[2]
TYPESCRIPT = ROOT / "clients" / "typescript"

SCRIPT = ROOT / "scripts" / "typescript_client.py"

REGISTRY = """
api_version: agent_routing/v1
version: examples-1
supervisor: front
topics: {mode: auto, threshold: 0.4, first_message: auto}
agents:
  - {id: front, name: Front desk}
  - {id: vat, name: VAT, description: Declares sales taxes every month.}
  - {id: payroll, name: Payroll, description: Wages., examples: [When comes my payslip?]}
"""


def command_of(language: str) -> list[str]:
    """Return how the example is started, on a free port."""
    if language == "python":
        return [sys.executable, str(ROOT / "clients/python/examples/topic_judge.py"), "127.0.0.1:0"]
    node = toolchains.require("node")
    subprocess.run(
        [sys.executable, SCRIPT, "compile"],
        check=True,
        cwd=ROOT,
        env=node.environ(NO_COLOR="1"),
        timeout=400,
        capture_output=True,
    )
    return [str(node.programs["node"]), str(TYPESCRIPT / "build/examples/judge/main.js"), "0"]


@asynccontextmanager
async def judge_of(language: str):
    """Run an example; yield its port."""
    command = await asyncio.to_thread(command_of, language)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(60):
            assert process.stdout is not None
            line = (await process.stdout.readline()).decode()
        yield int(line.rpartition(" ")[2])
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize("language", ["python", "typescript"])
async def test_example_judges_for_a_server(tmp_path, language):
    """What it knows of the agents came with the question."""
    async with (
        judge_of(language) as port,
        serving(
            tmp_path,
            REGISTRY,
            model=ScriptedModel(),
            topic_detector=f"grpc://127.0.0.1:{port}",
            topic_detector_fallback="none",
            topic_detector_limit_s=5.0,
        ) as service,
    ):
        chat = service.chat()
        first = await chat.say("where is the payslip of october", explain_topic=True)
        assert first.topic_trace.model == "words-1"
        assert went(first.dispatch) == ("payroll", "TOPIC_SWITCH")
        await chat.answer(first.dispatch, "Here it is.")
        assert went((await chat.say("thanks")).dispatch) == ("payroll", "STICKY")
        moved = await chat.say("and the taxes on sales of the month")
        assert went(moved.dispatch) == ("vat", "TOPIC_SWITCH")
