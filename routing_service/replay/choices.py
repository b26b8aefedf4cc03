"""The options of a replay and their bounds.

It imports nothing, so that the command line can list them quickly.
"""

from __future__ import annotations

import enum
from typing import Final


class ReplayPolicy(enum.StrEnum):
    """How long an agent keeps the conversation."""

    STICKY = "sticky"
    """Until the topic changes."""
    FOLLOW_UP = "follow_up"
    """Only while it waits for an answer."""
    SUPERVISOR = "supervisor"
    """Never: every message goes to the supervisor."""


class SwitchMode(enum.StrEnum):
    """What happens to a message that was dispatched to the wrong agent."""

    SUPERVISOR = "supervisor"
    """The agent gives the conversation back, and the supervisor hands it to the owner."""
    AGENT = "agent"
    """The agent hands the message to its owner."""
    STUCK = "stuck"
    """Nothing: the user stays with the wrong agent until the topic is that agent's again."""


class TopicMode(enum.StrEnum):
    """The server's handling of changes of topic."""

    OFF = "off"
    """Nothing: an agent keeps the user until it hands over."""
    SUGGEST = "suggest"
    """It offers the switch; the user takes the right ones and declines the others."""
    AUTO = "auto"
    """It switches."""


class FirstMessage(enum.StrEnum):
    """Who gets a message if no agent is active."""

    SUPERVISOR = "supervisor"
    AUTO = "auto"
    """The agent of its topic, if the server is sure."""


TOPIC_THRESHOLD_DEFAULT: Final = 0.5
"""Threshold of a corpus's registry. A verdict is a probability, and a wrong switch costs as much as
a missed one, so more than even odds is enough."""


CONCURRENCY_DEFAULT: Final = 32
"""Enough for a store to group its writes: 32 was a third faster than 16, 64 a quarter more."""

CONCURRENCY_MAX: Final = 64
"""Below the hundred calls that a connection carries at a time."""

PATIENCE_DEFAULT_S: Final = 60.0
"""How long a server may be away: more than a restart with a large store takes."""
