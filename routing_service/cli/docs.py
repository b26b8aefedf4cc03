"""``agent-routing docs``: the documentation of this release, without a network.

Its rule: the pages are those of docs/ in the tree that was built, so that they fit the command.
"""

from __future__ import annotations

import difflib
import re
import sys
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Final

import typer

EPILOG: Final = """\b
On a terminal a page is shown by $PAGER; otherwise its Markdown is printed.

\b
Exit codes: 0; 2 there is no such topic.

\b
Examples:
  agent-routing docs
  agent-routing docs write-a-registry
  agent-routing docs operations | grep -i backup
"""

_GROUPS: Final = (
    ("", "Pages"),
    ("how-to", "How to"),
    ("explanation", "Explanation"),
    ("development", "Development"),
)
"""Folders of pages, and the title over each in the list."""

_FOR_TESTS: Final = re.compile(r"^<!-- test: .*? -->\n", re.MULTILINE)
"""Says how a test runs the block that follows; readers need not see it."""

_TITLE: Final = re.compile(r"^# (.+)$", re.MULTILINE)


def docs(
    topic: Annotated[
        str, typer.Argument(metavar="[TOPIC]", show_default=False, help="The page to show.")
    ] = "",
) -> None:
    """Read the documentation: list its pages, or show one."""
    pages = topics()
    if not topic:
        _list(pages)
        return
    if topic not in pages:
        near = difflib.get_close_matches(topic, pages, n=1)
        guess = f'did you mean "{near[0]}"? ' if near else ""
        raise typer.BadParameter(
            f'there is no topic "{topic}"; {guess}agent-routing docs lists them'
        )
    text = _FOR_TESTS.sub("", pages[topic].read_text(encoding="utf-8"))
    if sys.stdout.isatty():
        _show(text)
    else:
        typer.echo(text, nl=False)


def topics() -> dict[str, Traversable]:
    """Return each page by its topic, the name of its file."""
    folder = _folder()
    return {
        page.name.removesuffix(".md"): page
        for name, _ in _GROUPS
        for page in sorted((folder / name if name else folder).iterdir(), key=lambda it: it.name)
        if page.name.endswith(".md")
    }


def _folder() -> Traversable:
    """Return where the pages are: in the installed package, or next to it in a checkout."""
    package = resources.files("routing_service")
    checkout = Path(str(package)).parent / "docs"
    return checkout if (checkout / "index.md").is_file() else package / "docs"


def _list(pages: dict[str, Traversable]) -> None:
    widest = max(map(len, pages))
    for name, title in _GROUPS:
        inside = (_folder() / name if name else _folder()).iterdir()
        here = {page.name.removesuffix(".md") for page in inside}
        typer.echo(f"{title}:")
        for topic, page in pages.items():
            if topic in here:
                found = _TITLE.search(page.read_text(encoding="utf-8"))
                typer.echo(f"  {topic:<{widest}}  {found[1] if found else ''}".rstrip())
        typer.echo()
    typer.echo("Show one: agent-routing docs TOPIC")


def _show(text: str) -> None:
    """Show a page on the terminal, through the pager."""
    from rich.console import Console  # noqa: PLC0415 - a page in a pipe needs no layout
    from rich.markdown import Markdown  # noqa: PLC0415

    console = Console()
    # Without colours: not every pager shows them.
    with console.pager():
        console.print(Markdown(text, hyperlinks=False))
