"""Dialogues from files and pipes, one at a time.

Its rule: nothing is read before it is needed, and no mistake is skipped silently: a bad line is
reported with its place, and reading continues with the next.
"""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, cast

from routing_service.replay.recorded_dialogue import (
    DialogueInvalid,
    RecordedDialogue,
    parse_dialogue,
)

LINE_BYTES_MAX: Final = 16 * 1024 * 1024
"""A dialogue of ten thousand long turns; longer lines are skipped without being kept in memory."""

STDIN_NAME: Final = "-"

_GZIP_MAGIC: Final = b"\x1f\x8b"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class SourceLine:
    """The file and number of a line."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class FoundDialogue:
    """A dialogue and where it was found."""

    place: SourceLine
    dialogue: RecordedDialogue


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is not a dialogue, or the place where reading a file failed."""

    place: SourceLine
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


class DialogueFileUnreadable(Exception):
    """A file that cannot be opened; the message names it and says why."""


def check_files(names: Sequence[str]) -> None:
    """Raise DialogueFileUnreadable for the first file that is missing or unreadable.

    A long run should not fail at its end because its last file was mistyped.
    """
    if names.count(STDIN_NAME) > 1:
        raise DialogueFileUnreadable('standard input ("-") is named twice; it can be read once')
    for name in names:
        path = Path(name)
        # A pipe can be opened only once: reading here would consume its content.
        if name == STDIN_NAME or path.is_fifo() or path.is_char_device():
            continue
        with _open(name):
            pass


def read_dialogues(
    names: Sequence[str], *, line_bytes_max: int = LINE_BYTES_MAX
) -> Generator[FoundDialogue | BadLine, None, None]:
    """Yield the dialogues of all files, in order. "-" is standard input.

    Gzip files are recognized by their first bytes. line_bytes_max: a longer line is a BadLine.
    Raises DialogueFileUnreadable.
    """
    for name in names:
        shown = "standard input" if name == STDIN_NAME else name
        with _open(name) as file:
            yield from _read_lines(_unpacked(file), shown, line_bytes_max)


@contextmanager
def _open(name: str) -> Iterator[BinaryIO]:
    if name == STDIN_NAME:
        yield sys.stdin.buffer  # Not ours to close.
        return
    try:
        file = Path(name).open("rb")  # noqa: SIM115 - only opening it is guarded
    except OSError as error:
        raise DialogueFileUnreadable(
            f'cannot read "{name}": {error.strerror or type(error).__name__}; check the path and '
            "its permissions"
        ) from None
    with file:
        yield file


def _unpacked(file: BinaryIO) -> BinaryIO:
    # Both an open file and standard input are buffered readers, which can look ahead in a pipe.
    head: bytes = file.peek(len(_GZIP_MAGIC))  # type: ignore[attr-defined]
    if head.startswith(_GZIP_MAGIC):
        return cast("BinaryIO", gzip.GzipFile(fileobj=file))
    return file


def _read_lines(
    file: BinaryIO, name: str, line_bytes_max: int
) -> Iterator[FoundDialogue | BadLine]:
    number = 0
    while True:
        place = SourceLine(name, number + 1)
        try:
            line = file.readline(line_bytes_max + 1)
            is_too_long = len(line) > line_bytes_max
            if is_too_long:
                _skip_rest_of_line(file, line_bytes_max)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            yield BadLine(place, f"the gzip data is damaged: {error}; what follows is not read")
            return
        except OSError as error:
            yield BadLine(place, f"reading failed: {error.strerror or error}")
            return
        if not line:
            return
        number += 1
        if number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if is_too_long:
            yield BadLine(place, f"over {line_bytes_max} bytes; write one dialogue a line")
        elif line.strip():
            yield _parse(line, place)


def _skip_rest_of_line(file: BinaryIO, part_bytes_max: int) -> None:
    while True:
        part = file.readline(part_bytes_max)
        if not part or part.endswith(b"\n"):
            return


def _parse(line: bytes, place: SourceLine) -> FoundDialogue | BadLine:
    try:
        return FoundDialogue(place, parse_dialogue(line))
    except DialogueInvalid as error:
        return BadLine(place, str(error))
