"""Seals as files outside a store have them."""

import pytest

from routing_service.stored_data.noted_seals import NotASeal, NotedSeal, noted_seal, seals_in

HASH = "0123456789abcdef" * 4
SEAL = NotedSeal("bank", 3, HASH)


@pytest.mark.parametrize(
    "line",
    [
        f'{{"tenant":"bank","seal":3,"hash":"{HASH}"}}',
        f'{{"level":"info","event":"audit_sealed","tenant":"bank","seal":3,"hash":"{HASH}"}}',
        f'{{"tenant":"bank","event":{{"audit_sealed":{{"seal":"3","hash":"{HASH}"}}}}}}',
    ],
    ids=["note", "log", "export"],
)
def test_a_seal_is_read_from_a_note_a_log_and_an_export(line):
    """Among lines of anything else."""
    lines = ['{"event":"server_started","tenant":"x"}', "", '{"event":{"operator_act":{}}}', line]
    assert seals_in(text.encode() for text in lines) == [SEAL]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("audit_sealed", "line 2 is not a JSON object"),
        ('["seal"]', "line 2 is not a JSON object"),
        ('{"tenant":"bank","seal":3,"hash":"ab"}', "line 2 is not the number of a seal"),
        (f'{{"tenant":"bank","seal":0,"hash":"{HASH}"}}', "line 2 is not the number"),
        (f'{{"seal":1,"hash":"{HASH}"}}', "line 2 is not the number"),
        (f'{{"tenant":"bank","seal":1,"hash":"{HASH.upper()}"}}', "line 2 is not the number"),
    ],
)
def test_a_line_that_names_no_seal_as_it_should_is_named(line, why):
    """An anchor that was misread would prove nothing."""
    with pytest.raises(NotASeal, match=why):
        seals_in([b"{}", line.encode()])


def test_a_seal_is_read_from_its_number_and_hash():
    """As the command prints them."""
    assert noted_seal("bank", f"3:{HASH}") == SEAL
    for text in ("3", "3:", f"x:{HASH}", f"-1:{HASH}", f"3:{HASH}0"):
        with pytest.raises(NotASeal, match="64 hexadecimal digits"):
            noted_seal("bank", text)
