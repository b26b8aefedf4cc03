"""Ids of requests that the service itself opens inside a turn.

The id of a child request contains the revision that dispatched it, so that a late answer to a turn
that the state has forgotten finds its place in the log without an index of every request.
Rule: the id is a valid UUIDv7 (RFC 9562 leaves its random bits to us).
"""

from __future__ import annotations

import uuid

REVISION_BITS = 40
_REVISION_MASK = (1 << REVISION_BITS) - 1
_RANDOM_BITS_BELOW = 22  # 62 bits after the variant, less the revision's.


def child_request_id(seed: str, revision: int) -> str:
    """Return seed, a UUIDv7, with the revision in the upper 40 of its last 62 bits."""
    assert 0 < revision <= _REVISION_MASK
    number = uuid.UUID(seed).int
    number &= ~(_REVISION_MASK << _RANDOM_BITS_BELOW)
    return str(uuid.UUID(int=number | (revision << _RANDOM_BITS_BELOW)))


def revision_of_child(request_id: str) -> int:
    """Return the revision in such an id; for any other id, some number or 0."""
    # The last 16 digits hold the revision; a hyphen is among them.
    return (int(request_id[-17:].replace("-", ""), 16) >> _RANDOM_BITS_BELOW) & _REVISION_MASK
