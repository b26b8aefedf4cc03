"""``agent-routing docs``, and where the help of each command leads."""

import re
from pathlib import Path

import pytest

from routing_service.cli.app import COMMANDS
from routing_service.cli.docs import topics

DOCS = Path(__file__).parents[3] / "docs"
PAGES = [page for page in DOCS.rglob("*.md") if page.parent.name != "assets"]


def test_every_page_is_listed_with_its_title(run):
    """The list is the way in."""
    code, out, _ = run("docs")
    assert code == 0
    for page in PAGES:
        title = page.read_text("utf-8").partition("\n")[0].removeprefix("# ")
        if title.startswith("<!--"):
            title = re.search(r"^# (.+)$", page.read_text("utf-8"), re.MULTILINE)[1]
        assert re.search(rf"^  {re.escape(page.stem)} +{re.escape(title)}$", out, re.MULTILINE)
    assert {page.stem for page in PAGES} == topics().keys()


def test_page_is_printed_without_notes_for_tests(run):
    """As Markdown in a pipe."""
    code, out, err = run("docs", "install")
    assert (code, err) == (0, "")
    assert out.startswith("# Install it\n")
    assert "<!-- test:" not in out
    assert "make packages" in out


def test_page_on_a_terminal_goes_through_the_pager(run, monkeypatch):
    """Laid out, without the signs of Markdown."""
    shown = []
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("pydoc.pager", shown.append)
    assert run("docs", "install")[0] == 0
    (page,) = shown
    assert "Install it" in page
    assert "# Install it" not in page
    assert "\x1b[" not in page


def test_topic_that_is_not_there_is_refused_with_a_guess(run):
    """People shorten names."""
    code, _, err = run("docs", "write-registry")
    assert code == 2
    said = " ".join(err.replace("│", " ").split())
    assert 'did you mean "write-a-registry"?' in said
    assert "agent-routing docs lists them" in said


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row.name)
def test_help_of_each_command_ends_with_an_example_and_where_to_read_on(run, row):
    """--help is the page that a person at 3 am opens."""
    code, out, _ = run(row.name, "--help")
    assert code == 0
    assert re.search(rf"^ *agent-routing {row.name}\b", out.partition("Usage:")[2], re.MULTILINE)
    named = re.findall(r"^ *agent-routing docs (\S+)$", out, re.MULTILINE)
    assert named
    assert set(named) <= topics().keys()
