"""The client's README is run, block by block, against the tax example."""

import asyncio
import contextlib
import io
import re
import threading
from pathlib import Path

import pytest

import agent_routing
from tests.rpc.live_service import serving

README = (Path(agent_routing.__file__).parents[1] / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
ADDRESS = "127.0.0.1:50051"


@pytest.fixture
def tax_address(tmp_path):
    """The tax example, served from another thread: the README runs its own event loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="tax-example")
    thread.start()
    running = serving(tmp_path, "tax")
    live = asyncio.run_coroutine_threadsafe(running.__aenter__(), loop).result(20)
    yield live.server.address
    asyncio.run_coroutine_threadsafe(running.__aexit__(None, None, None), loop).result(20)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def test_every_block_of_the_readme_runs_and_says_what_it_should(tax_address):
    """A reader who copies it must not be the first to run it."""
    names = {"__name__": "readme"}
    printed = []
    for block in BLOCKS:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block.replace(ADDRESS, tax_address), "README.md", "exec"), names)
        printed.append(out.getvalue())
    names["client"].close()
    message, answer, chat, refusal, changes, stream, away, operated, generated = printed
    assert message == (
        "send to coordinator because NO_ACTIVE_AGENT : How much VAT do I owe this quarter?\n"
    )
    first, *rows, listed = operated.splitlines()
    assert first.endswith(" calls saved")
    assert "coordinator → vat" in "\n".join(rows)
    assert "chat-42" in listed
    assert answer == "Our VAT specialist will help you.\n"
    assert chat.splitlines() == [
        "vat True",
        "coordinator Our VAT specialist will help you.",
        "vat What did you sell, without VAT?",
        "vat ",
    ]
    assert refusal.startswith("entitled - ")
    assert "plan:premium" in refusal
    assert re.match(r"1 \['session_started', .*\]\n2 \[.*'agent_handoff'.*\]\n3 ", changes)
    assert stream == "['coordinator', 'coordinator']\n"
    assert away == ""
    assert generated == "coordinator hello\n"


def test_the_readme_names_every_method_and_outcome():
    """A reader looks there first."""
    public = {name for name in vars(agent_routing.Client) if not name.startswith("_")}
    missing = {name for name in public - {"close"} if f"{name}(" not in README}
    assert not missing
    outcomes = re.findall(r"^\| `(\w+)\(.*` \|", README, re.MULTILINE)
    constructors = ["proceed", "follow_up", "complete", "handoff", "approval_needed", "failure"]
    assert outcomes[:6] == constructors
    assert all(hasattr(agent_routing.outcomes, name) for name in constructors)
