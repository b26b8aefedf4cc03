"""One recorded dialogue: its turns and the true owner of each.

Its rule: a line is accepted whole, or refused with the place of the mistake and what belongs
there.
"""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from routing_service.core.identifiers import TEXT_BYTES_MAX

TURNS_MAX: Final = 10_000
"""The longest public dialogues have under a hundred turns."""

_DECODER_PLACE: Final = re.compile(r"^(?P<message>.*?) - at `(?P<place>[^`]*)`$", re.DOTALL)


class RecordedTurn(msgspec.Struct, frozen=True):
    """One recorded turn. Keys without meaning for routing are left out."""

    speaker: Literal["user", "agent"]
    text: str
    agent: str | None = None
    """The turn's true owner; None: no agent yet, so the supervisor."""
    requires_follow_up: bool = False
    """The agent asked something. Means nothing on a user's turn."""
    task_complete: bool = False
    """The agent said that it was done. Means nothing on a user's turn."""
    uncertain: bool = False
    """The record does not show the owner: the turn is played, and left out of scores."""


class RecordedDialogue(msgspec.Struct, frozen=True):
    """One line of a file of dialogues."""

    dialogue_id: str
    turns: list[RecordedTurn]
    corpus: str = ""
    language: str = ""

    @property
    def agent_ids(self) -> frozenset[str]:
        """Every agent that owns a turn."""
        return frozenset(turn.agent for turn in self.turns if turn.agent)

    @property
    def user_turns(self) -> int:
        """How many messages the user sent."""
        return sum(turn.speaker == "user" for turn in self.turns)


class DialogueInvalid(ValueError):
    """An invalid line: what is wrong in it, where, and what belongs there."""


_decoder: Final = msgspec.json.Decoder(RecordedDialogue)


def parse_dialogue(line: bytes) -> RecordedDialogue:
    """Read one line. Raises DialogueInvalid."""
    try:
        dialogue = _decoder.decode(line)
    except UnicodeDecodeError:
        raise DialogueInvalid("not UTF-8; save the file as UTF-8") from None
    except msgspec.ValidationError as error:
        raise DialogueInvalid(_misfit(str(error))) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise DialogueInvalid(
            f"not JSON: {error}; write one dialogue a line, as a JSON object"
        ) from None
    _check(dialogue)
    return dialogue


def _misfit(message: str) -> str:
    """Return the decoder's complaint with its place first, such as turns[3].speaker."""
    found = _DECODER_PLACE.match(message)
    if found is None:
        return f"{message}; see agent-routing replay --help for the form"
    place = found["place"].removeprefix("$").removeprefix(".") or "the line"
    complaint = found["message"][:1].lower() + found["message"][1:]
    return f"{place}: {complaint}"


def _check(dialogue: RecordedDialogue) -> None:
    """Refuse what has the right shape and still cannot be played."""
    if not dialogue.dialogue_id:
        raise DialogueInvalid("dialogue_id: empty; give each dialogue an id of its own")
    if len(dialogue.turns) > TURNS_MAX:
        raise DialogueInvalid(f"turns: {len(dialogue.turns)}; at most {TURNS_MAX} are played")
    previous = "agent"
    for number, turn in enumerate(dialogue.turns):
        place = f"turns[{number}]"
        if turn.speaker == "agent" and previous == "agent":
            raise DialogueInvalid(
                f"{place}: an agent's turn that answers no message; a user's turn belongs before it"
            )
        size = len(turn.text.encode())
        if size > TEXT_BYTES_MAX:
            raise DialogueInvalid(
                f"{place}.text: {size} bytes; a server takes at most {TEXT_BYTES_MAX}"
            )
        if "\0" in turn.text:
            raise DialogueInvalid(f"{place}.text: holds a NUL, which no server takes; remove it")
        if turn.speaker == "user" and not turn.text.strip():
            raise DialogueInvalid(f"{place}.text: empty; a user's turn needs a message")
        if turn.agent == "":
            raise DialogueInvalid(f'{place}.agent: ""; write null where the turn is nobody\'s')
        previous = turn.speaker
