"""Whether an agent's text asks the user something: plain cases, and the field's dialogues."""

from __future__ import annotations

import gzip
import time
from collections import Counter, defaultdict

import pytest

from routing_service.core.prose_questions import ENDING_CHARACTERS_MAX, asks_user
from routing_service.replay.recorded_dialogue import parse_dialogue
from topics.training.field_check import FOLDER, SET_ASIDE

PRECISION_LEAST = 0.97
RECALL_LEAST = 0.98
"""Of each language, a point below what docs/proofs.md states."""


@pytest.mark.parametrize(
    "text",
    [
        "Which one do you prefer?",
        "**Which one do you prefer?** 😊",
        "It is on its way. Shall I send you the link?",
        "Which one?\n- the blue one\n- the red one",
        "¿Cuál prefiere?\n1. Martes\n2. Jueves",
        "¿Le parece bien? Quedo atenta.",
        "¿cuál prefieres",
        "Dime los cuatro planetas rocosos.",
        "Perfecto. Para eso, indíqueme su número de cliente.",
        "Necesito su DNI.",
        "Me conta pra quem é e quanto quer gastar.",
        "Qual deles você prefere?",
        "I need your order number.",
        "Please confirm the address.",
        "The one of 30 September? I can send it to tilly@tearooms.example.",
        "(Or would you rather wait?)",
    ],
)
def test_text_that_asks(text):
    """A question at the end, with little after it, or a request for information."""
    assert asks_user(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ?",
        "Done, it is in your email.",
        'She wrote: "Where is my order?"',
        "Escribieron: «¿dónde está mi pedido?»",
        "See https://example.com/search?",
        "Run `which python?`",
        "Why is it late? Because the van broke down.",
        "What does it cover? " + "It covers what the contract says in its first part. " * 3,
        "Let me know if you need anything else.",
        "Avísame si necesitas algo más.",
        "Send me the crime reference when you have it, and I'll release the parcel.",
        "Me avisa quando chegar.",
    ],
)
def test_text_that_does_not_ask(text):
    """Quotations, code, addresses, offers, and questions that the agent answers itself."""
    assert not asks_user(text)


@pytest.mark.parametrize("piece", ["?", "a", "[ ", '"', "`", "please ", "para eso, ", "¿", "1. "])
def test_long_text_is_read_at_its_end_alone(piece):
    """No text costs more than its last sentences do."""
    text = piece * 100_000
    began_s = time.perf_counter()
    asks_user(text)
    assert time.perf_counter() - began_s < 1
    assert asks_user(text + "\n" + "well " * (ENDING_CHARACTERS_MAX // 10) + "which one?")


def measured(names):
    """Count agents' turns by language: (asks by its text, asks by its label)."""
    counts = defaultdict(Counter)
    for name in sorted(names):
        with gzip.open(FOLDER / f"{name}.jsonl.gz") as lines:
            for line in lines:
                dialogue = parse_dialogue(line)
                for turn in dialogue.turns:
                    # A turn without an agent is the supervisor's, which is never locked.
                    if turn.speaker == "agent" and turn.agent:
                        asked = asks_user(turn.text)
                        counts[dialogue.language][asked, turn.requires_follow_up] += 1
    return counts


@pytest.mark.parametrize("part", ["all", "set aside"])
def test_questions_are_found_in_the_field_s_dialogues(part):
    """Precision and recall in each language, as docs/proofs.md states them."""
    every = {path.name.removesuffix(".jsonl.gz") for path in FOLDER.glob("*.jsonl.gz")}
    counts = measured(every if part == "all" else SET_ASIDE)
    assert set(counts) == {"en", "es", "pt"}
    for language, count in sorted(counts.items()):
        precision = count[True, True] / (count[True, True] + count[True, False])
        recall = count[True, True] / (count[True, True] + count[False, True])
        print(  # noqa: T201 - the figures
            f"\nasks in prose, {part}, {language}: {sum(count.values())} turns, "
            f"precision {precision:.4f}, recall {recall:.4f}"
        )
        assert precision >= PRECISION_LEAST
        assert recall >= RECALL_LEAST
