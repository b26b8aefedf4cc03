"""Reading recorded dialogues: from files, packed or not, and from pipes; bad lines by name."""

import gzip
import io
import json
import os
import sys
import threading

import pytest

from routing_service.replay.dialogue_files import (
    BadLine,
    DialogueFileUnreadable,
    FoundDialogue,
    check_files,
    read_dialogues,
)
from routing_service.replay.recorded_dialogue import (
    TEXT_BYTES_MAX,
    TURNS_MAX,
    DialogueInvalid,
    parse_dialogue,
)


def line(dialogue_id="d1", **changes):
    """Make a line that is a dialogue, but for the changes."""
    dialogue = {
        "dialogue_id": dialogue_id,
        "corpus": "made",
        "language": "en",
        "agents": ["billing"],
        "turns": [
            {"speaker": "user", "text": "hello", "agent": "billing", "acts": ["GREET"]},
            {"speaker": "agent", "text": "hi", "agent": "billing", "requires_follow_up": True},
        ],
    }
    return (json.dumps(dialogue | changes) + "\n").encode()


def ids(found):
    """Return what was read in short: ids of dialogues, and places of bad lines."""
    return [
        each.dialogue.dialogue_id if isinstance(each, FoundDialogue) else str(each.place)
        for each in found
    ]


def test_plain_and_packed_files_read_alike(tmp_path):
    """The first bytes, not the name, show whether a file is packed."""
    content = line("d1") + line("d2")
    plain, packed = tmp_path / "a.gz", tmp_path / "b.jsonl"
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    assert ids(read_dialogues([str(plain), str(packed)])) == ["d1", "d2", "d1", "d2"]


def test_files_packed_in_parts_read_to_the_end(tmp_path):
    """Gzip files may be put one after the other; cat makes such files."""
    file = tmp_path / "parts"
    file.write_bytes(gzip.compress(line("d1")) + gzip.compress(line("d2")))
    assert ids(read_dialogues([str(file)])) == ["d1", "d2"]


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "packed"])
def test_pipe_is_read_while_it_is_written(tmp_path, pack):
    """A dialogue comes out before the writer has finished: nothing waits for the end."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    first_read = threading.Event()

    def write():
        with path.open("wb", buffering=0) as pipe:
            pipe.write(pack(line("d1")))
            # Without this the reader could be waiting for the end of the pipe.
            if pack is bytes:
                assert first_read.wait(10)
            pipe.write(pack(line("d2")))

    writer = threading.Thread(target=write)
    writer.start()
    found = read_dialogues([str(path)])
    assert ids([next(found)]) == ["d1"]
    first_read.set()
    assert ids(found) == ["d2"]
    writer.join()


def test_standard_input_is_read_under_its_sign(monkeypatch):
    """Zcat *.gz | agent-routing replay -."""
    stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(line("d1") + b"{\n")))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert ids(read_dialogues(["-"])) == ["d1", "standard input:2"]
    assert not stdin.closed


def test_bad_lines_are_named_and_the_rest_is_read(tmp_path):
    """One bad line of a million does not stop the run; blank lines count as lines."""
    file = tmp_path / "mixed.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + line("d1") + b"\n" + b"nonsense\n" + line("d2").rstrip())
    found = list(read_dialogues([str(file)]))
    assert ids(found) == ["d1", f"{file}:3", "d2"]
    assert "not JSON" in str(found[1])


def test_damaged_gzip_is_told_with_its_place(tmp_path):
    """Lines before the damage are used; nothing after it is."""
    packed = gzip.compress(line("d1") * 500)
    file = tmp_path / "cut.gz"
    file.write_bytes(packed[: len(packed) - 12])
    *found, last = read_dialogues([str(file)])
    assert isinstance(last, BadLine)
    assert "damaged" in last.reason
    assert all(isinstance(each, FoundDialogue) for each in found)


def test_too_long_line_is_skipped_without_being_kept(tmp_path):
    """A file of one endless line must not fill the memory."""
    file = tmp_path / "long.jsonl"
    file.write_bytes(b"x" * 9_000 + b"\n" + line("d2"))
    assert ids(read_dialogues([str(file)], line_bytes_max=2_000)) == [f"{file}:1", "d2"]


def test_missing_file_is_found_before_anything_is_played(tmp_path):
    """A mistyped last file must not end a long run."""
    good = tmp_path / "good.jsonl"
    good.write_bytes(line())
    with pytest.raises(DialogueFileUnreadable, match=r"mistyped.*No such file"):
        check_files([str(good), str(tmp_path / "mistyped.jsonl")])
    with pytest.raises(DialogueFileUnreadable, match="directory"):
        check_files([str(tmp_path)])
    with pytest.raises(DialogueFileUnreadable, match="twice"):
        check_files(["-", "-"])
    check_files([str(good), "-"])


USER = {"speaker": "user", "text": "hello", "agent": None}
AGENT = {"speaker": "agent", "text": "hi", "agent": "billing"}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"dialogue_id": ""}, "dialogue_id: empty"),
        ({"dialogue_id": 7}, "dialogue_id: expected `str`, got `int`"),
        ({"turns": None}, "turns: expected `array`"),
        ({"turns": [USER | {"speaker": "robot"}]}, "turns[0].speaker: invalid enum value 'robot'"),
        ({"turns": [USER, AGENT | {"text": None}]}, "turns[1].text: expected `str`"),
        ({"turns": [{"speaker": "user"}]}, "turns[0]: object missing required field `text`"),
        ({"turns": [AGENT]}, "turns[0]: an agent's turn that answers no message"),
        ({"turns": [USER, AGENT, AGENT]}, "turns[2]: an agent's turn that answers no message"),
        ({"turns": [USER | {"text": " "}]}, "turns[0].text: empty"),
        ({"turns": [USER | {"text": "a\0b"}]}, "turns[0].text: holds a NUL"),
        (
            {"turns": [USER | {"text": "ñ" * (TEXT_BYTES_MAX // 2 + 1)}]},
            "turns[0].text: 32770 bytes",
        ),
        ({"turns": [USER | {"agent": ""}]}, 'turns[0].agent: ""; write null'),
        ({"turns": [USER] * (TURNS_MAX + 1)}, "turns: 10001; at most 10000"),
    ],
)
def test_unplayable_dialogue_is_refused_with_the_place(changes, complaint):
    """The error names the place for the file's author."""
    with pytest.raises(DialogueInvalid) as refused:
        parse_dialogue(line(**changes))
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"[]", "array"),
        (b"[" * 100_000, "array"),
        (b'{"turns": []}', "dialogue_id"),
        (b'{"dialogue_id": "\xff", "turns": []}', "UTF-8"),
        (b'{"dialogue_id": "d1"', "not JSON"),
    ],
    ids=["array", "deep", "no id", "bytes", "cut"],
)
def test_line_that_is_no_dialogue_is_refused(content, complaint):
    """No content of a file causes a traceback."""
    with pytest.raises(DialogueInvalid, match=complaint):
        parse_dialogue(content)


def test_several_messages_in_a_row_are_a_dialogue():
    """People send a second message before the answer to the first."""
    dialogue = parse_dialogue(line(turns=[USER, USER, AGENT]))
    assert dialogue.user_turns == 2
    assert dialogue.agent_ids == {"billing"}
