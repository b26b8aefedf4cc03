"""docs/integrations.md shows the adapters' examples unchanged: those that the tests run."""

import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "integrations.md").read_text("utf-8")
EXAMPLES = {
    "OpenAI Agents SDK": "openai_agents_chat.py",
    "LangGraph": "langgraph_chat.py",
    "Google ADK": "google_adk_chat.py",
    "Pydantic AI": "pydantic_ai_chat.py",
    "Microsoft Agent Framework": "agent_framework_chat.py",
}


def lines_of(text):
    """Return a text's lines without their common indentation."""
    return [line.rstrip() for line in textwrap.dedent(text).strip().splitlines()]


@pytest.mark.parametrize("heading", EXAMPLES)
def test_page_shows_the_lines_of_the_example(heading):
    """A reader who copies them gets what the tests ran."""
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    blocks = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert blocks
    source = (ROOT / "clients/python/examples" / EXAMPLES[heading]).read_text("utf-8").splitlines()
    for block in blocks:
        wanted = lines_of(block)
        starts = range(len(source) - len(wanted) + 1)
        shown = (lines_of("\n".join(source[at : at + len(wanted)])) for at in starts)
        assert wanted in list(shown), block


def test_every_example_is_on_the_page():
    """An example must be linked to be found."""
    found = {path.name for path in (ROOT / "clients/python/examples").glob("*_chat.py")}
    assert found == set(EXAMPLES.values())
    for name in found:
        assert f"(../clients/python/examples/{name})" in PAGE
