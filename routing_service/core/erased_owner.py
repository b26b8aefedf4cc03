"""What an erased session keeps of its owner: a salted hash, by which the owner is told of it.

Rule: everyone else is told what they are told of any other user's session. The hash is a pseudonym:
it names its user only to someone who already guesses the name and has the store.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

SALT_BYTES: Final = 16
"""Random for each session, so that the sessions of one user cannot be linked."""

_HASH_BYTES: Final = 16


def owner_hash(salt: bytes, session_id: str, owner: str) -> str:
    """Return salt and hash of an owner in hexadecimal digits; "" for a session without owner."""
    if not owner or not salt:
        return ""
    assert len(salt) == SALT_BYTES, len(salt)
    said = f"{session_id}\0{owner}".encode("utf-8", "surrogatepass")
    made = hashlib.blake2b(said, key=salt, digest_size=_HASH_BYTES)
    return salt.hex() + made.hexdigest()


def is_owner(stored: str, session_id: str, user_id: str) -> bool:
    """Say whether a user owned the session. stored: as owner_hash made it; "" = not known."""
    salt = bytes.fromhex(stored[: 2 * SALT_BYTES])
    return bool(stored) and hmac.compare_digest(owner_hash(salt, session_id, user_id), stored)
