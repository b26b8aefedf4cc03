"""What the documents promise is there: commands that can be typed, links that lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "clients/python/README.md",
    "docs/proofs.md",
]


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
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text_of(name))
    missing = [link for link in links if not (ROOT / name).parent.joinpath(link).exists()]
    assert not missing
