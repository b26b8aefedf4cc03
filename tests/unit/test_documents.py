"""What the documents promise is there: commands that can be typed, links that lead somewhere."""

import re
from pathlib import Path

import pytest

from routing_service.core import identifiers, keep_turn, queued_messages, registry, strands
from routing_service.rpc import (
    caller_limits,
    health,
    method_handlers,
    ordered_stream,
    page_tokens,
    request_checks,
    status_errors,
)
from routing_service.rpc.admin import audit, operations, registry_calls
from routing_service.rpc.routing import degraded_turns, people
from routing_service.server import channel_options
from routing_service.sessions import (
    approval_watches,
    inbox,
    inbox_backlog,
    live_feed,
    retention,
    stickiness_switch,
)
from routing_service.settings.settings import SETTINGS
from routing_service.telemetry import line_writer

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "clients/python/README.md",
    "docs/limits.md",
    "docs/proofs.md",
    "docs/explanation/architecture.md",
    "docs/development/dependencies.md",
    "docs/development/releasing.md",
    "docs/development/generated-code.md",
]

LIMITS = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        audit,
        degraded_turns,
        operations,
        people,
        registry_calls,
        retention,
        ordered_stream,
        channel_options,
        approval_watches,
        caller_limits,
        inbox,
        inbox_backlog,
        keep_turn,
        queued_messages,
        strands,
        line_writer,
        live_feed,
        registry,
        stickiness_switch,
        health,
        identifiers,
        method_handlers,
        request_checks,
        page_tokens,
        status_errors,
    )
}


def text_of(name):
    """Return a file of the repository."""
    return (ROOT / name).read_text("utf-8")


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", ".ci/run"])
def test_every_make_command_in_a_document_is_a_target(name):
    """A newcomer types these word for word."""
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    typed = re.findall(r"(?:^ +|`|^section |\{ )make ([a-z-]+)", text_of(name), re.MULTILINE)
    assert typed
    assert set(typed) <= targets


@pytest.mark.parametrize("name", DOCUMENTS)
def test_relative_links_lead_to_files(name):
    """A link that a rename broke is found here rather than by a reader."""
    folder = (ROOT / name).parent
    links = re.findall(r"\]\(\s*(?!https?:|#)([^)\s]+)", without_blocks(text_of(name)))
    missing = [link for link in links if not folder.joinpath(link.partition("#")[0]).exists()]
    assert not missing
    # `make docs` checks the site's pages; README.md is none of them.
    elsewhere = [link.split("#") for link in links if ".md#" in link]
    unknown = [link for link in elsewhere if link[1] not in anchors_of(folder / link[0])]
    assert not unknown


def without_blocks(page):
    """Return a page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)


def anchors_of(path):
    """Return the anchors of a page's headings, as the site makes them."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(path.read_text("utf-8")), re.MULTILINE)
    words = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return {re.sub(r"[-\s]+", "-", each) for each in words}


def number(written):
    """Read a number as the tables have it: 1,000 or 32 KiB."""
    digits, _, unit = written.strip().replace(",", "").partition(" ")
    return float(digits) * {"": 1, "KiB": 1024}[unit]


def test_every_limit_of_the_table_is_the_code_s():
    """A limit that an operator reads about is the one that holds."""
    rows = re.findall(
        r"^\| .* \| ([\d,]+(?: KiB)?) \| `(\w+)\.(\w+)`", text_of("docs/limits.md"), re.MULTILINE
    )
    assert len(rows) >= 34
    for written, module, name in rows:
        assert number(written) == getattr(LIMITS[module], name), name
    text = text_of("docs/limits.md")
    for name, module in LIMITS.items():
        for limit in re.findall(rf"`{name}\.(\w+)`", text):
            assert hasattr(module, limit)


def test_every_setting_of_the_limits_has_the_default_that_is_written():
    """And every setting that limits something is there."""
    rows = re.findall(r"^\| .*? \| `(\w+)` \| ([\d,]+) \|", text_of("docs/limits.md"), re.MULTILINE)
    for name, written in rows:
        assert number(written) == SETTINGS[name].default, name
    limiting = {
        name for name in SETTINGS if re.search("_max|_per_s$|deadline_|drain_s|keepalive_s$", name)
    }
    assert limiting == {name for name, _ in rows}


def test_no_field_is_larger_than_the_table_says():
    """A bound of a request that is added is written down."""
    bounds = {
        name
        for module in (identifiers, request_checks)
        for name in vars(module)
        if re.fullmatch("[A-Z][A-Z_]+_MAX", name)
    }
    rows = re.findall(r"`(?:identifiers|request_checks)\.(\w+)`", text_of("docs/limits.md"))
    assert bounds == set(rows)
