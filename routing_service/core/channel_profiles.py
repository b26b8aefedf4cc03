"""What each channel can show of a reply: its length, choices, bold names; and a registry's wording.

A channel's own profile wins, then the registry's profile for any channel, then the built-in one.
"""

from __future__ import annotations

import enum
import unicodedata
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

REPLY_CHARACTERS_MAX: Final = 4000
"""A message on WhatsApp has at most 4096 characters, the shortest of the usual channels.
The schema asks for at least 100: shorter replies could not name an agent and say what to do."""

BUTTON_CHARACTERS_MAX: Final = 200

ANY_CHANNEL: Final = "any"
"""The profile of channels that have none of their own."""


class Choices(enum.Enum):
    """How a user chooses: by buttons of the frontend, by typing a number, or by speaking."""

    BUTTONS = "buttons"
    NUMBERS = "numbers"
    SPOKEN = "spoken"


class Bold(enum.Enum):
    """How agents' names are made bold; the value is what stands on both sides of a name."""

    OFF = ""
    STARS = "*"
    DOUBLE_STARS = "**"


@dataclass(frozen=True, slots=True)
class ChannelProfile:
    """What one channel can show."""

    reply_characters: int = REPLY_CHARACTERS_MAX
    choices: Choices = Choices.BUTTONS
    bold: Bold = Bold.OFF
    # Whether replies name commands to type, other than in /help.
    shows_commands: bool = True
    # Whether emoji in replies are kept.
    shows_emoji: bool = True
    # Characters of an option's label.
    button_characters: int = BUTTON_CHARACTERS_MAX


PLAIN_PROFILE: Final = ChannelProfile()

BUILT_IN_PROFILES: Final[Mapping[str, ChannelProfile]] = MappingProxyType(
    {
        "web": PLAIN_PROFILE,
        # 1024 characters is the text of a message with buttons, 20 the title of a button.
        "whatsapp": ChannelProfile(1024, Choices.NUMBERS, Bold.STARS, button_characters=20),
        # About twenty seconds of speech.
        "voice": ChannelProfile(
            300, Choices.SPOKEN, shows_commands=False, shows_emoji=False, button_characters=40
        ),
        ANY_CHANNEL: PLAIN_PROFILE,
    }
)
"""The profiles of channels with these names; a registry's profile starts from them."""


@dataclass(frozen=True, slots=True)
class ChannelProfiles:
    """The profiles of a registry, by folded channel. Empty: every channel shows everything."""

    by_channel: Mapping[str, ChannelProfile] = field(default_factory=dict)

    def of(self, channel: str) -> ChannelProfile:
        """Return the profile of a channel, in any case."""
        if not self.by_channel:
            return PLAIN_PROFILE
        own = self.by_channel.get(fold_channel(channel))
        return own or self.by_channel.get(ANY_CHANNEL, PLAIN_PROFILE)


def fold_channel(channel: str) -> str:
    """Return the form under which channels with profiles are compared: WhatsApp is whatsapp."""
    return unicodedata.normalize("NFC", channel).casefold()


@dataclass(frozen=True, slots=True)
class ReplyStyle:
    """How a registry words the replies to its users. Hashable: catalogues are made from it once."""

    # Folded languages whose users are addressed formally.
    formal: frozenset[str] = frozenset()
    # Folded language, text's name, Fluent pattern: the registry's own sentences.
    texts: tuple[tuple[str, str, str], ...] = ()
    # True: replies begin with an emoji. False: they have none. None: as the texts are written.
    emoji: bool | None = None
