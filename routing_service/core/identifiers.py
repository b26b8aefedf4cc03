"""What ids look like, and how large the parts of a request may be: one set of bounds for everyone.

Rule: a value within these bounds fits every storage engine, every error message and one answer.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

ID_CHARS_MAX: Final = 128
"""Of a session, an agent, a tenant and a channel; a channel has a lower bound of its own."""

SESSION_BYTES_MAX: Final = 4 * ID_CHARS_MAX
"""Of a session id, as UTF-8. Half of the longest sort key of DynamoDB."""

ID_CHARACTERS: Final = r"A-Za-z0-9._:\-@=;+"
"""Safe as they stand in URLs, log lines, file names in quotes and gRPC metadata."""

ID_ALPHABET: Final = "A-Z a-z 0-9 . _ : - @ = ; +"
"""The same for people: in error messages."""

ID_PATTERN: Final = rf"\A[{ID_CHARACTERS}]{{1,{ID_CHARS_MAX}}}\Z"
"""A whole id."""

USER_BYTES_MAX: Final = 256
"""Of a user id, which may be any text, as UTF-8."""

UNSEEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufdd0-\ufdef\ufeff\ufff0-\ufffb\ufffe\uffff"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e007f]"
)
"""What the name of a user or caller must not have: control characters, invisible ones (Unicode's
category Cf: zero width, direction, tags), line separators, surrogates and noncharacters. With them,
two different names could look alike."""

LOCALE_CHARS_MAX: Final = 35
"""The longest tag that RFC 5646 promises to be stored whole."""

CHANNEL_CHARS_MAX: Final = 64

ENTITLEMENTS_MAX: Final = 32
ENTITLEMENT_CHARS_MAX: Final = 64
ENTITLEMENTS_BYTES_MAX: Final = 2048
"""Entitlements are part of the session's bounded state; 32 of 64 ASCII characters just fit."""

TEXT_BYTES_MAX: Final = 32 * 1024
"""Of one message, as UTF-8."""

ITEMS_MAX: Final = 16
ITEMS_BYTES_MAX: Final = 64 * 1024
"""Of all items of one message."""

CONTENT_TYPE_CHARS_MAX: Final = 128
URI_CHARS_MAX: Final = 2048

STEPS_MAX: Final = 64
STEPS_BYTES_MAX: Final = 48 * 1024
"""Of all steps of one answer."""

STEP_NAME_CHARS_MAX: Final = 128
STEP_KIND_CHARS_MAX: Final = 64

REASON_BYTES_MAX: Final = 1024
MESSAGE_BYTES_MAX: Final = 4096

CONTEXT_BYTES_MAX: Final = 16 * 1024
"""Of what a handoff passes on, as JSON."""

CONTEXT_DEPTH_MAX: Final = 24

TASK_METADATA_ENTRIES_MAX: Final = 32
TASK_METADATA_BYTES_MAX: Final = 4096
"""Of one request's metadata, and of all that a task has collected: keys and values, as UTF-8."""

TASK_METADATA_KEY_CHARS_MAX: Final = 64

HISTORY_TURNS_MIN: Final = -1
"""No past turns with a dispatch, unless the agent is locked."""

HISTORY_TURNS_DEFAULT: Final = 20
HISTORY_TURNS_MAX: Final = 100

HISTORY_BYTES_MAX: Final = 1024 * 1024
"""Text sent along with one dispatch: well below the 4 MiB that gRPC clients accept by default."""

LEASE_TOKEN_BYTES_MAX: Final = 128
"""Of a lease's token, which the service makes: 49 characters."""

PERSON_NOTE_BYTES_MAX: Final = 4 * 1024
"""A note of people about a conversation."""

NOTE_BYTES_MAX: Final = 1024
"""Of a note for the user: a line or two."""


def folded(name: str) -> str:
    """Return the form in which two spellings of one person's name are the same.

    Only to refuse: what a name gives is for exactly that name.
    """
    return unicodedata.normalize("NFKC", name).casefold()
