"""What a server and the process of a replay tell each other, over the process's pipes.

Each message is a frame: four bytes with the length, then msgpack. The server sends the order, then
conversations, then closes the pipe; the process answers the order, then each conversation.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

FRAME_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of one frame. A conversation is sent in pages as ListTurns makes them, of 4 MiB at most."""

_LENGTH_BYTES: Final = 4


class ReplayOrder(msgspec.Struct, frozen=True, tag=True):
    """What to compare. registry: the one in force, pickled by the server that sends it.

    candidate: the text of the other one. settings: of the server, which the reading of a registry
    and topic detection depend on. memory_bytes_max: of the process.
    """

    registry: bytes
    candidate: str
    settings: dict[str, str | int | float | bool]
    memory_bytes_max: int


class Conversation(msgspec.Struct, frozen=True, tag=True):
    """A stored conversation. turns: of ListTurnsResponse, events: of ListEventsResponse."""

    session_id: str
    home_agent_id: str
    locale: str
    channel: str
    entitlements: tuple[str, ...]
    turns: list[bytes]
    events: list[bytes]


class CandidateTaken(msgspec.Struct, frozen=True, tag=True):
    """The candidate can be used. version: its own."""

    version: str


class CandidateRefused(msgspec.Struct, frozen=True, tag=True):
    """The candidate cannot be used. problems: line, column, path, message, remedy of each."""

    problems: list[tuple[int, int, str, str, str]]


class FoundTurn(msgspec.Struct, frozen=True):
    """A message that the candidate treats differently. Reasons and effect: as in the contract.

    number: its place among the user's messages, from 1.
    """

    request_id: str
    number: int
    owner: str
    current_agent: str
    current_reason: int
    agent: str
    reason: int
    effect: int


class Figures(msgspec.Struct):
    """The counts of ReplayFigures in the contract, of one side."""

    supervisor_calls_saved: int = 0
    supervisor_calls: int = 0
    scored_messages: int = 0
    first_right: int = 0
    misrouted: int = 0
    handoffs: int = 0
    handoffs_refused: int = 0
    stuck: int = 0
    errors: int = 0


class Played(msgspec.Struct, frozen=True, tag=True):
    """A conversation was played. messages: 0 if there was nothing to play, or a call failed.

    current, candidate: of all conversations so far.
    """

    session_id: str
    messages: int
    turns: list[FoundTurn]
    current: Figures
    candidate: Figures


class ProcessFailed(msgspec.Struct, frozen=True, tag=True):
    """The process cannot go on. why: a sentence without any text of a conversation."""

    why: str


FromServer = ReplayOrder | Conversation
FromProcess = CandidateTaken | CandidateRefused | Played | ProcessFailed

_encoder: Final = msgspec.msgpack.Encoder()
from_server: Final = msgspec.msgpack.Decoder(FromServer)
from_process: Final = msgspec.msgpack.Decoder(FromProcess)


def frame_of(message: FromServer | FromProcess) -> bytes:
    """Return a message as a frame."""
    body = _encoder.encode(message)
    return len(body).to_bytes(_LENGTH_BYTES) + body


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """Return the next frame's message, b"" at the end. Raises ValueError for a broken pipe."""
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES))
        if length > FRAME_BYTES_MAX:
            raise ValueError(f"a frame of {length} bytes")
        return await reader.readexactly(length)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise ValueError("a frame was cut off") from error
        return b""
