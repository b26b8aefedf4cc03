"""Protobuf's wire format, for the few places that join serialised messages.

Joining bytes costs a fraction of filling in a message and serialising it (docs/performance.md).
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import Message


def tag(number: int) -> bytes:
    """Return the wire key of a length-delimited field: its number and the wire type 2."""
    return varint(number << 3 | 2)


def tag_of(message: type[Message], field: str) -> bytes:
    """Return the wire key of a message's length-delimited field."""
    return tag(message.DESCRIPTOR.fields_by_name[field].number)


def framed(key: bytes, body: bytes) -> bytes:
    """Return a length-delimited field: its key, the length of its body, the body."""
    size = len(body)
    if size < _SIZES_MADE:
        return key + _SIZES[size] + body
    if size < 1 << 14:  # The same as varint, which is slow: a dispatch with twenty turns.
        return key + bytes((size & 0x7F | 0x80, size >> 7)) + body
    return key + varint(size) + body


def varint(number: int) -> bytes:
    """Return a number in groups of seven bits, the lowest group first."""
    groups = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


_SIZES_MADE: Final = 1 << 12
"""Lengths below this are encoded in advance: only the history of an answer is longer."""
_SIZES: Final = tuple(map(varint, range(_SIZES_MADE)))


def read_varint(data: bytes, start: int) -> tuple[int, int]:
    """Return the varint that starts there, and the index behind it."""
    byte = data[start]
    if byte < 0x80:  # noqa: PLR2004 - the last group
        return byte, start + 1
    number, shift = byte & 0x7F, 7
    while True:
        start += 1
        byte = data[start]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the last group
            return number, start + 1
        shift += 7


def with_more(message: bytes, key: bytes, more: bytes) -> bytes:
    """Return a serialised message with more fields in one of its inner messages, given by its key.

    The fields are put inside the existing inner message. The encoding would allow a second inner
    message that readers merge ("Last One Wins"), but some readers do not merge: protobufjs, and so
    gRPC's loader for Node, would keep the text and lose the agent.
    """
    index = 0
    while index < len(message):
        begin = index
        found, index = read_varint(message, index)
        match found & 7:
            case 0:  # A number.
                _, index = read_varint(message, index)
            case 2:  # Bytes, or a message.
                after_key = index
                size, index = read_varint(message, index)
                end = index + size
                if message[begin:after_key] == key:
                    inner = message[index:end] + more
                    return message[:begin] + framed(key, inner) + message[end:]
                index = end
            case 1:
                index += 8
            case _:
                index += 4
    return message + framed(key, more)
