"""Which plain messages answer the offer of another agent: words, labels, names, numbers, signs.

Rule: a message is a yes or a no only if every word of it belongs to the answer. What says more, or
asks, is a message for the agent.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Final

from routing_service.core.registry import Registry
from routing_service.core.typed_text import fold_word, without_invisible
from routing_service.texts.catalogue import answer_texts

ANSWER_CHARACTERS_MAX: Final = 200
"""Longer messages are not looked at. A label has an agent's name of at most 128 characters."""

_WORDS_MAX: Final = 24

_SEPARATOR: Final = "|"

_YES_SIGNS: Final = frozenset("👍👌✅🙌💯🆗☑✔🤝💪🤙")
_NO_SIGNS: Final = frozenset("👎❌🙅🚫✖⛔🛑")
_ELONGATED = re.compile(r"([^\W\d])\1+")


class Answered(Enum):
    """What a plain answer says. CHOSE_STAY: the option to stay itself, by its label or number."""

    YES = "yes"
    NO = "no"
    CHOSE_STAY = "stay"


@dataclass(frozen=True, slots=True)
class Offer:
    """Whom an offer is about. labels: as shown on its two options, to accept and to stay."""

    offered: tuple[str, ...]
    present: tuple[str, ...]
    labels: tuple[str, str]


class _Kind(Enum):
    """What a word or a phrase of an answer is; the catalogues have one message for each."""

    YES = "yes"
    FINE = "fine"
    SWITCH = "switch"
    PLEASE = "please"
    THANKS = "thanks"
    FILLER = "filler"
    NO = "no"
    STAY = "stay"
    LINK = "link"
    FIRST = "first"
    SECOND = "second"
    # Names of the two agents; not in the catalogues.
    OFFERED = "offered"
    PRESENT = "present"


_Phrase = tuple[str, ...]
_Lexicon = Mapping[_Phrase, frozenset[_Kind]]


def names_of(agent_id: str, registry: Registry) -> tuple[str, ...]:
    """Return all names by which users may call an agent."""
    agent = registry.agent(agent_id)
    return (*agent.name.values(), *agent.aliases, agent_id) if agent else (agent_id,)


def plain_answer(text: str, offer: Offer) -> Answered | None:
    """Return what a message answers to an offer; None if it is something else."""
    if len(text) > ANSWER_CHARACTERS_MAX or "?" in text:
        return None
    text = without_invisible(text)
    words = _words(text)
    accept_label, stay_label = (_words(label) for label in offer.labels)
    if words and words == accept_label:
        return Answered.YES
    if words and words == stay_label:
        return Answered.CHOSE_STAY
    signs = {sign for sign in text if sign in _YES_SIGNS | _NO_SIGNS}
    if not words:
        return _by_signs(signs)
    if len(words) > _WORDS_MAX or not _signs_agree(signs):
        return None
    readings = _readings(words, _lexicon_of(offer))
    said = {answer for kinds in readings if (answer := _answer(kinds)) is not None}
    return said.pop() if len(said) == 1 else None


def _by_signs(signs: set[str]) -> Answered | None:
    if not signs or not _signs_agree(signs):
        return None
    return Answered.YES if signs <= _YES_SIGNS else Answered.NO


def _signs_agree(signs: set[str]) -> bool:
    return signs <= _YES_SIGNS or signs <= _NO_SIGNS


def _answer(kinds: frozenset[_Kind]) -> Answered | None:
    """Return what an answer says that has words of these kinds and no others."""
    numbered = kinds & {_Kind.FIRST, _Kind.SECOND}
    if numbered:
        if kinds - numbered - {_Kind.PLEASE, _Kind.LINK, _Kind.FILLER} or len(numbered) > 1:
            return None
        return Answered.YES if _Kind.FIRST in kinds else Answered.CHOSE_STAY
    says_no = bool(kinds & {_Kind.NO, _Kind.STAY})
    if says_no or (_Kind.PRESENT in kinds and not kinds & _MEANS_YES):
        against = kinds & {_Kind.YES, _Kind.SWITCH, _Kind.OFFERED}
        return None if against or kinds == {_Kind.STAY, _Kind.FINE} else Answered.NO
    if _Kind.PRESENT in kinds or not kinds & _MEANS_YES:
        return None
    # "ok, gracias" ends a conversation; "sí, gracias" answers.
    is_sure = kinds & {_Kind.YES, _Kind.SWITCH, _Kind.OFFERED}
    return None if _Kind.THANKS in kinds and not is_sure else Answered.YES


_MEANS_YES = frozenset({_Kind.YES, _Kind.FINE, _Kind.SWITCH, _Kind.OFFERED})


def _readings(words: list[str], lexicon: _Lexicon) -> set[frozenset[_Kind]]:
    """Return the kinds of phrases that a message can be read as, with no word left over.

    Longer phrases are preferred: "no quiero" is not "no" and "quiero".
    """
    longest = max(map(len, lexicon))
    ways: list[dict[frozenset[_Kind], int]] = [{frozenset(): 0}]
    for end in range(1, len(words) + 1):
        found: dict[frozenset[_Kind], int] = {}
        for start in range(max(0, end - longest), end):
            for kind in lexicon.get(tuple(words[start:end]), ()):
                for kinds, phrases in ways[start].items():
                    together = kinds | {kind}
                    found[together] = min(found.get(together, phrases + 1), phrases + 1)
        ways.append(found)
    best = min(ways[-1].values(), default=0)
    return {kinds for kinds, phrases in ways[-1].items() if phrases == best}


def _lexicon_of(offer: Offer) -> _Lexicon:
    """Return the phrases of the catalogues, and the names of the two agents."""
    lexicon = dict(_catalogue_lexicon())
    for names, kind in ((offer.present, _Kind.PRESENT), (offer.offered, _Kind.OFFERED)):
        for name in names:
            phrase = tuple(_words(name))
            if phrase and not set(lexicon.get(phrase, ())) - {_Kind.LINK, _Kind.FILLER}:
                lexicon[phrase] = frozenset({kind})
    return lexicon


@cache
def _catalogue_lexicon() -> _Lexicon:
    """Return the phrases of all languages: people answer in several."""
    texts = answer_texts()
    lexicon: dict[_Phrase, frozenset[_Kind]] = {
        ("1",): frozenset({_Kind.FIRST}),
        ("2",): frozenset({_Kind.SECOND}),
    }
    for locale in texts.locales:
        for message_id in texts.message_ids(locale):
            phrases = texts.render(message_id, locale).split(_SEPARATOR)
            _add_phrases(lexicon, phrases, _Kind(message_id))
    return lexicon


def _add_phrases(
    lexicon: dict[_Phrase, frozenset[_Kind]], phrases: Iterable[str], kind: _Kind
) -> None:
    for phrase in phrases:
        words = tuple(_words(phrase))
        lexicon[words] = lexicon.get(words, frozenset()) | {kind}


def _words(text: str) -> list[str]:
    """Return the words in the form in which answers are compared.

    Without case, accents and marks; "siii" and "sí" are one. Digits stay as they are.
    """
    folded = unicodedata.normalize("NFKC", fold_word(text)).casefold().replace("'", "")
    plain = "".join(c if c.isalnum() else " " for c in folded.replace("’", ""))  # noqa: RUF001
    return [_ELONGATED.sub(r"\1", word) for word in plain.split()]
