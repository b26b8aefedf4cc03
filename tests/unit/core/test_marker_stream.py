"""Markers in answers that come in parts: never shown, and independent of where the parts end."""

import itertools

import pytest

from routing_service.core.marker_stream import CONTEXT_CHARS, shown_part
from routing_service.core.markers import cut_markers


def streamed(parts):
    """Return what watchers see of parts, each handled by a replica that knows nothing else."""
    written, seen, end = "", "", 0
    for part in parts:
        before = written[-CONTEXT_CHARS:]
        begin, stop, text = shown_part(before, part)
        start = len(written) - len(before)
        assert start + begin == end, "a part does not begin where the last one ended"
        seen, end = seen + text, start + stop
        written += part
    return seen


MARKED = [
    "Over to you. [HANDOFF_TO:vat]",
    "[HANDOFF_TO: VAT desk] and more",
    "a [[handoff-to=vat]] b",
    "x \N{FULLWIDTH LEFT SQUARE BRACKET}HANDOFF_TO:vat\N{FULLWIDTH RIGHT SQUARE BRACKET} y",
    "list[0] is [not one], [HANDOFF is not], [HANDOFF_TOO] neither",
    "no end [HANDOFF_TO:vat\nnext line",
]


@pytest.mark.parametrize("text", MARKED)
def test_no_cut_of_the_text_shows_a_marker(text):
    """Every way to cut it in three parts, and every single character."""
    cuts = itertools.combinations_with_replacement(range(len(text) + 1), 2)
    ways = [[text[:a], text[a:b], text[b:]] for a, b in cuts]
    for parts in (*ways, list(text)):
        seen = streamed([part for part in parts if part])
        assert "HANDOFF_TO:" not in seen.upper(), parts
        assert "HANDOFF-TO=" not in seen.upper(), parts


@pytest.mark.parametrize("text", MARKED)
def test_what_is_shown_is_the_answer_but_for_white_space(text):
    """What the whole answer then replaces is nearly the same."""
    whole, _ = cut_markers(text)
    seen = streamed([*text, "."])
    assert "".join(whole.split()) == "".join(seen.split()).removesuffix(".")


def test_plain_text_is_shown_at_once():
    """Brackets that begin no marker hold nothing back for longer than it takes to see that."""
    assert shown_part("", "see [1] and") == (0, 11, "see [1] and")
    assert shown_part("", "see [") == (0, 4, "see ")
    assert shown_part("see [", "1] and") == (4, 11, "[1] and")


def test_a_marker_without_end_is_held_back_only_so_long():
    """Within the text that comes with each part; the whole answer replaces what is shown then."""
    seen = streamed(["[HANDOFF_TO: ", *("word " * 60).split(" "), "end"])
    assert "HANDOFF_TO" not in seen
