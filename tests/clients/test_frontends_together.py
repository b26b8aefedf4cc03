"""The example frontends of all languages play one story against one server, at the same time.

Each has its own session. They must show exactly the same, and the server must store the same.
"""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

import agent_routing
from tests import toolchains
from tests.clients import java_build

# The first of these languages to be asked builds its client, on a machine that may be busy.
pytestmark = pytest.mark.timeout(600)

LANGUAGES = ("python", "go", "java", "typescript")
STEP_S_MAX = 60

STORY = """\
Hello
How much VAT do I owe this quarter?
I don't know
10,000 euros
/status
When is it due?
I have questions about my invoices
/supervisor and my invoices?
Is there VAT on them?
/agent payroll
/supervisors are fine
/supervisor who does payroll here?
My income tax return, please
¿Y el IVA? 🧾
/reset
Please file it for me
/agents
"""

EXPECTED_OPENING = """\
> Hello
[Coordinator] no active agent
  Hello! Ask me about VAT, income tax, invoices or payroll.
> How much VAT do I owe this quarter?
[Coordinator] no active agent
  One moment, I bring in our specialist.
  ── Coordinator → VAT specialist ──
[VAT specialist] supervisor handoff
  What did you sell this quarter, without VAT?
> I don't know
[VAT specialist] follow up lock
  A number is all I need: what did you sell, without VAT?
> 10,000 euros
[VAT specialist] follow up lock
  That makes 2100.00 € of VAT.
> /status
  You are talking to VAT specialist.
"""


def frontend(language, folder):
    """Return the command that starts a language's example; builds it if necessary."""
    clients = toolchains.ROOT / "clients"
    match language:
        case "python":
            return [sys.executable, str(clients / "python" / "examples" / "chat.py")]
        case "go":
            go = toolchains.require("go")
            program = folder / "chat"
            build = [str(go.programs["go"]), "build", "-o", str(program), "./examples/chat"]
            subprocess.run(build, check=True, cwd=clients / "go", env=go.environ())
            return [str(program)]
        case "java":
            return java_build.example()
        case "typescript":
            node = toolchains.require("node")
            script = toolchains.ROOT / "scripts" / "typescript_client.py"
            subprocess.run([sys.executable, str(script), "compile"], check=True)
            main = clients / "typescript" / "build" / "examples" / "chat" / "main.js"
            return [str(node.programs["node"]), str(main)]
        case _:
            raise AssertionError(language)


@contextlib.contextmanager
def tax_server(folder):
    """Serve the tax example in its own process, and return its address."""
    program = Path(sys.executable).parent / "agent-routing"
    agents = toolchains.ROOT / "routing_service" / "examples" / "tax.yaml"
    settings = ["--listen=127.0.0.1:0", f"--store=sqlite:///{folder}/story.db", "--log-level=error"]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            [str(program), "serve", *settings, f"--agents={agents}"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        line = process.stdout.readline()
        assert line.startswith("serving on "), (folder / "log").read_text("utf-8")
        try:
            yield line.removeprefix("serving on ").strip()
        finally:
            process.terminate()


@contextlib.contextmanager
def playing(command, address, session_id):
    """Start a frontend that waits for its first line."""
    with subprocess.Popen(
        [*command, "--target", address, "--session", session_id],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_all_frontends_play_the_same_story_at_once(tmp_path):
    """The author of a frontend in another language can compare it with ours."""
    commands = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(java_build.locked())
        for language in LANGUAGES:
            commands[language] = frontend(language, tmp_path)
        address = stack.enter_context(tax_server(tmp_path))
        processes = {
            language: stack.enter_context(playing(command, address, f"story-{language}"))
            for language, command in commands.items()
        }
        first, *others = STORY.splitlines(keepends=True)
        shown = {}
        # They start at different paces. Once each has its first answer, all go on at once.
        for language, process in processes.items():
            process.stdin.write(first)
            process.stdin.flush()
            shown[language] = "".join(process.stdout.readline() for _ in range(3))
        for process in processes.values():
            process.stdin.write("".join(others))
            process.stdin.close()
        for language, process in processes.items():
            shown[language] += process.stdout.read()
            assert process.wait(STEP_S_MAX) == 0, language
        kept = {language: history(address, f"story-{language}") for language in LANGUAGES}
    assert shown["python"].startswith(EXPECTED_OPENING), shown["python"]
    for language in LANGUAGES:
        assert shown[language] == shown["python"], language
        assert kept[language] == kept["python"], language
    assert len(kept["python"]) >= 15


def history(address, session_id):
    """Return what the server stores about a session, without ids and times."""
    with agent_routing.Client(address) as client:
        return [
            (turn.agent_id, turn.from_agent_id, turn.reason, turn.user_text, turn.agent_text)
            for turn in client.list_turns(session_id, user_id="ana")
        ]
