"""Fingerprints of requests: a repeat of a request_id is accepted only for an equal request.

A fingerprint is stored with the change, and a repeat may come after an upgrade. So the bytes that
are digested never change. Which fields of a request count is declared next to its RPC.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from routing_service.rpc.wire_format import framed, tag

_DIGEST_BYTES: Final = 16

_SHAPES_MAX: Final = 512
"""Combinations of set fields that are remembered. Callers use a handful but could use thousands."""

Present = Mapping[FieldDescriptor, Any]
"""The fields that are set in a request, as ListFields gives them, with their values."""


@dataclass(frozen=True, slots=True, eq=False)
class Fingerprint:
    """The fields of a request by which a repeat is compared, apart from its ids.

    A field that only says how to answer (history_turns) or on which condition to act
    (expected_revision) does not count. fields: the names of those that do. uuids: the ones compared
    in lower case. sets: the ones compared without order and duplicates.
    """

    fields: tuple[str, ...]
    uuids: frozenset[str] = frozenset()
    sets: frozenset[str] = frozenset()

    def of(self, request: Message, present: Present) -> bytes:
        """Return the digest of the fields that count, serialised as protobuf serialises them.

        Strings and messages are joined here: copying a request and clearing the other fields costs
        several times as much. A request with any other kind of value is left to protobuf.
        """
        data = b""
        for field, key, is_uuid in _counted(self, tuple(present)):
            value = present[field]
            if isinstance(value, str):
                data += framed(key, (value.lower() if is_uuid else value).encode())
            elif isinstance(value, Message):
                data += framed(key, value.SerializeToString(deterministic=True))
            else:
                data = self.serialised(request)
                break
        if len(UnknownFieldSet(request)):
            data = self.serialised(request)
        return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()

    def serialised(self, request: Message) -> bytes:
        """Return a request as bytes, with only the fields that count and unknown fields."""
        compared = type(request)()
        compared.CopyFrom(request)
        for name in _not_counted(self, request.DESCRIPTOR):
            compared.ClearField(name)
        for name in self.uuids:
            if value := getattr(request, name):
                setattr(compared, name, value.lower())
        for name in self.sets:
            # Clients may send the entries in any order.
            if values := getattr(request, name):
                compared.ClearField(name)
                getattr(compared, name).extend(sorted(set(values)))
        return compared.SerializeToString(deterministic=True)


@lru_cache(_SHAPES_MAX)
def _counted(
    fingerprint: Fingerprint, present: tuple[FieldDescriptor, ...]
) -> tuple[tuple[FieldDescriptor, bytes, bool], ...]:
    """Return the set fields that count, in wire order, each with its key and if it is a UUID."""
    return tuple(
        (field, tag(field.number), field.name in fingerprint.uuids)
        for field in sorted(present, key=attrgetter("number"))
        if field.name in fingerprint.fields
    )


@cache
def _not_counted(fingerprint: Fingerprint, request: Descriptor) -> tuple[str, ...]:
    return tuple(field.name for field in request.fields if field.name not in fingerprint.fields)
