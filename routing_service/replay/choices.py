"""What one may choose about a replay, and within which bounds.

Owns the names of policies and switches, and the limits. It must not know what they lead to, and it
imports nothing: the command line lists the choices without being able to carry them out.
"""

from __future__ import annotations

import enum
from typing import Final


class Policy(enum.StrEnum):
    """How long an agent keeps the conversation."""

    STICKY = "sticky"
    """Until the topic changes."""
    FOLLOW_UP = "follow_up"
    """Only while it waits for an answer."""
    SUPERVISOR = "supervisor"
    """Never: every message goes to the supervisor."""


class Switch(enum.StrEnum):
    """What happens to a message that was dispatched to an agent which does not own it."""

    SUPERVISOR = "supervisor"
    """The agent gives the conversation back, and the supervisor hands it to the owner."""
    AGENT = "agent"
    """The agent hands it to the owner by itself."""
    STUCK = "stuck"
    """Nothing: the user stays with the wrong agent until the topic is that agent's again."""


CONCURRENCY_DEFAULT: Final = 32
"""Enough for a store to group its writes: twice 16 was a third faster, twice 32 a quarter more."""

CONCURRENCY_MAX: Final = 64
"""Below the hundred calls that a connection carries at a time."""

PATIENCE_DEFAULT_S: Final = 60.0
"""How long a server may be away: the time of a restart with a large store, and then some."""
