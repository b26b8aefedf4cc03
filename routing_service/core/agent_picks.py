"""Which agent a user means who has typed something after /agent, and what of it is the message.

Rule: the longest name wins; then a number of the list shown last, then words that only one agent's
name has. Where two agents fit equally well none is picked: the user is asked which. A marker picks
none: it is text in a user's message, the names in it too.
"""

from __future__ import annotations

import difflib
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from routing_service.core.markers import marker_place
from routing_service.core.registry import Agent, AgentKind, Registry, localised
from routing_service.core.spoken_words import FILLERS, NUMBER_SIGNS, ORDINALS
from routing_service.core.typed_text import fold_word, says_nothing, without_separator

LISTED_MAX: Final = 99
"""Numbers of a list that are remembered: more than people scroll through, 400 bytes of state."""

_NAME_WORDS_MAX: Final = 16
"""Words of a message that may be a name. The longest name has 128 characters."""

# What a word's stem has in common with a name's word, and how the two may then differ.
_STEM_CHARACTERS_MIN: Final = 5
_PREFIX_CHARACTERS_MIN: Final = 4
_ENDING_CHARACTERS_MAX: Final = 4
_TYPO_RATIO_MIN: Final = 0.85
"""One wrong letter in seven: "facturasion" is "facturación", "renta" is not "venta"."""

# A word, and the punctuation after it, which ends a name.
_WORD = re.compile(r"[^\s,;!?…，；！？]+")  # noqa: RUF001 - as typed.
_AROUND = ".,;:()[]{}<>\"'«»“”‘’`*¿¡!?…"  # noqa: RUF001 - as typed.
_BREAKS = frozenset(".,;:!?…–—-\n，；！？：")  # noqa: RUF001 - as typed.
# Brackets with an agent's outcome in them. Markers of handoffs are found by markers.py.
_OUTCOME = re.compile(
    r"[\[［【〔⟦]{1,4}\s{0,8}(?:complete|follow[_ -]?up|proceed|failure|approval[_ -]?needed)"  # noqa: RUF001
    r"\s{0,8}[\]］】〕⟧]",  # noqa: RUF001 - as typed.
    re.IGNORECASE,
)
_NUMBER = re.compile(r"(?:n[º°.]*|#)?([0-9]{1,3})[.)ºª°\ufe0f\u20e3]*", re.IGNORECASE)
_ABBREVIATION = re.compile(r"(?:\w\.)+\w")
_ID_PARTS = re.compile(r"[\W_]+")

# Opening quote -> closing quote, as keyboards of several languages write them.
_QUOTES: Mapping[str, str] = {
    '"': '"',
    "'": "'",
    "“": "”",
    "„": "“",
    "‘": "’",  # noqa: RUF001 - this is the quotation mark that people paste.
    "«": "»",
}


class Pick(msgspec.Struct, frozen=True):
    """What was picked. agent_id: "" for none. fitting: those that fit equally well.

    written: what was taken for the name. rest: the message after it.
    """

    agent_id: str = ""
    fitting: tuple[str, ...] = ()
    written: str = ""
    rest: str = ""


class PickCase(msgspec.Struct, frozen=True):
    """What a pick is made from. visible: those that this user may reach, the home agent too.

    listed: the list shown last, in its order.
    """

    registry: Registry
    visible: tuple[str, ...]
    listed: tuple[str, ...]
    locale: str = ""


class _Word(msgspec.Struct, frozen=True):
    """A word as typed, folded, and where it stands. ends_name: punctuation follows it."""

    folded: str
    end: int
    ends_name: bool


def remember_list(registry: Registry, agent_ids: Sequence[str]) -> str:
    """Return a list that was shown, in a form short enough for the session's state."""
    places = {agent_id: place for place, agent_id in enumerate(registry.agents)}
    numbers = ",".join(str(places[agent_id]) for agent_id in agent_ids[:LISTED_MAX])
    return f"{_registry_mark(registry)}:{numbers}"


def recall_list(registry: Registry, listed: str) -> tuple[str, ...] | None:
    """Return the list that was shown last; None if the registry has other agents by now."""
    mark, _, numbers = listed.partition(":")
    if mark != _registry_mark(registry):
        return None
    agent_ids = list(registry.agents)
    return tuple(agent_ids[int(number)] for number in numbers.split(",") if number)


def _registry_mark(registry: Registry) -> str:
    return f"{zlib.crc32(chr(10).join(registry.agents).encode()):x}"


def pick_agent(text: str, case: PickCase) -> Pick:
    """Find the agent that a text begins with. text: what follows the command."""
    outcome = _OUTCOME.search(text)
    places = (marker_place(text), outcome.start() if outcome else -1)
    marker = min((place for place in places if place >= 0), default=-1)
    if marker < 0:
        return _pick_name(text, case)
    before = text[:marker]
    if says_nothing(before):
        return Pick(written=text.strip())
    found = _pick_name(before, case)
    return msgspec.structs.replace(found, rest=f"{found.rest}{text[marker:]}")


def _pick_name(text: str, case: PickCase) -> Pick:
    closing = _QUOTES.get(text[:1])
    end = text.find(closing, 1) if closing else -1
    if end > 0:
        quoted = text[1:end].strip()
        found = _find(quoted, case)
        rest = _message(text[end + 1 :])
        if found.rest and not found.fitting:
            return Pick(written=quoted, rest=rest)
        return msgspec.structs.replace(found, written=quoted, rest=rest)
    return _find(text, case)


def find_by_name(registry: Registry, name: str) -> str | None:
    """Return the agent of exactly this id, alias or shown name, in any language; None = no one."""
    agent_id = registry.resolve(name)
    if agent_id is not None:
        return agent_id
    named = _names_of(registry.agents.values()).get(_phrase(_words(name)), ())
    return named[0] if len(named) == 1 else None


def _find(text: str, case: PickCase) -> Pick:
    words = _words(text)
    first = text.split(maxsplit=1)[:1]
    if not words and not first:
        return Pick()
    ways: tuple[Callable[[str, list[_Word], PickCase], Pick | None], ...] = (
        _by_first_word,
        _by_whole_name,
        _by_number,
        _by_words,
        _by_likeness,
    )
    for way in ways:
        found = way(text, words, case)
        if found is not None:
            return found
    written = first[0].strip(_AROUND) or first[0]
    return Pick(written="" if says_nothing(text) else written)


def _by_whole_name(text: str, words: list[_Word], case: PickCase) -> Pick | None:
    """Find the longest run of words that is an id, an alias or a shown name."""
    names = _names_of(case.registry.agents.values())
    for start in range(_fillers(words) + 1):
        for end in range(min(len(words), start + _NAME_WORDS_MAX), start, -1):
            phrase = _phrase(words[start:end])
            agent_id = case.registry.resolve(phrase)
            fitting = (agent_id,) if agent_id else names.get(phrase, ())
            if fitting:
                return _picked(text, words, end, fitting, case)
    return None


def _by_first_word(text: str, words: list[_Word], case: PickCase) -> Pick | None:
    """Find an id or alias with signs that end a word elsewhere."""
    parts = text.split(maxsplit=1)
    if words and words[0].folded == fold_word(parts[0]):
        return None
    agent_id = case.registry.resolve(parts[0])
    if agent_id is None:
        return None
    return Pick(agent_id, written=parts[0], rest=parts[1] if len(parts) > 1 else "")


def _by_number(text: str, words: list[_Word], case: PickCase) -> Pick | None:
    """Find an agent by its number in the list shown last."""
    if len(words) > 1 and words[-1].folded == "one" and words[-2].folded in ORDINALS:
        # "the second one"
        words = [*words[:-2], msgspec.structs.replace(words[-2], end=words[-1].end)]
    start = 0
    while start < len(words) - 1 and words[start].folded in FILLERS | NUMBER_SIGNS:
        start += 1
    if not words:
        return None
    word = words[start]
    match = _NUMBER.fullmatch(word.folded)
    is_last = start + 1 == len(words)
    number = int(match[1]) if match else ORDINALS.get(word.folded, 0) if is_last else 0
    if not 1 <= number <= len(case.listed):
        return Pick(written=word.folded) if match else None
    return Pick(case.listed[number - 1], written=word.folded, rest=_message(text[word.end :]))


def _by_words(text: str, words: list[_Word], case: PickCase) -> Pick | None:
    """Find an agent by words that its name has, first among those that the user sees."""
    registry = case.registry
    seen = [registry.agents[agent_id] for agent_id in case.visible]
    others = [
        agent
        for agent in registry.agents.values()
        if agent.kind is not AgentKind.SYSTEM and agent.agent_id not in case.visible
    ]
    for agents in (seen, others):
        for owners in (_shown_words(agents, case), _all_words(agents)):
            found = _run_of_words(words, owners)
            if found is not None:
                return _picked(text, words, found[1], found[0], case)
    return None


def _run_of_words(
    words: list[_Word], owners: Mapping[str, tuple[str, ...]]
) -> tuple[tuple[str, ...], int] | None:
    """Return the agents that the words in front fit, and how many words those are."""
    fitting: tuple[str, ...] = ()
    end = 0
    for place, word in enumerate(words):
        named = owners.get(word.folded, ())
        if named:
            both = tuple(agent_id for agent_id in fitting if agent_id in named)
            if fitting and not both:
                # "renta y personal": a word of one and a word of another.
                return tuple(dict.fromkeys((*fitting, *named))), place + 1
            fitting, end = both or named, place + 1
        elif word.folded not in FILLERS:
            break
        if word.ends_name:
            break
    return (fitting, end) if fitting else None


def _by_likeness(text: str, words: list[_Word], case: PickCase) -> Pick | None:
    """Find an agent by a word that differs from one of its name in the ending or a letter."""
    start = _fillers(words)
    if start == len(words):
        return None
    typed = words[start].folded
    owners = _all_words(case.registry.agents[agent_id] for agent_id in case.visible)
    fitting = dict.fromkeys(
        agent_id for word, ids in owners.items() if _are_alike(typed, word) for agent_id in ids
    )
    return _picked(text, words, start + 1, tuple(fitting), case) if fitting else None


def _are_alike(typed: str, word: str) -> bool:
    if min(len(typed), len(word)) < _PREFIX_CHARACTERS_MIN or not typed.isalpha():
        return False
    if word.startswith(typed):
        return True
    common = 0
    while common < min(len(typed), len(word)) and typed[common] == word[common]:
        common += 1
    endings = max(len(typed), len(word)) - common
    if common >= _STEM_CHARACTERS_MIN and endings <= _ENDING_CHARACTERS_MAX:
        return True
    return difflib.SequenceMatcher(None, typed, word).ratio() >= _TYPO_RATIO_MIN


def _picked(
    text: str, words: list[_Word], end: int, fitting: tuple[str, ...], case: PickCase
) -> Pick:
    """Pick the one that fits; of several the only one that may be chosen, or none."""
    written = text[: words[end - 1].end].strip(_AROUND + " ")
    if len(fitting) > 1:
        visible = tuple(agent_id for agent_id in fitting if agent_id in case.visible) or fitting
        agents = case.registry.agents
        fitting = tuple(i for i in visible if agents[i].user_selectable) or visible
    if len(fitting) > 1:
        return Pick(fitting=fitting, written=written, rest=text)
    others = _only_names(words[end:], case)
    if others is not None:
        if not others <= set(fitting):
            return Pick(fitting=(*fitting, *sorted(others - set(fitting))), written=text.strip())
        return Pick(fitting[0], written=written)
    return Pick(fitting[0], written=written, rest=_message(text[words[end - 1].end :]))


def _only_names(words: Sequence[_Word], case: PickCase) -> set[str] | None:
    """Return the agents whose names the rest of a text consists of; None if it says more."""
    owners = _all_words(case.registry.agents[agent_id] for agent_id in case.visible)
    named: set[str] = set()
    for word in words:
        if word.folded in owners:
            named.update(owners[word.folded])
        elif word.folded not in FILLERS:
            return None
    return named if words else None


def _message(text: str) -> str:
    """Return what follows a name, without the punctuation between the two."""
    rest = without_separator(text)
    rest = text.lstrip() if rest is None else rest
    return "" if says_nothing(rest) else rest


def _fillers(words: list[_Word]) -> int:
    """Return how many words in front say nothing about the agent."""
    count = 0
    while count < len(words) and words[count].folded in FILLERS:
        count += 1
    return count


def _words(text: str) -> list[_Word]:
    """Return the words of a text's beginning."""
    words: list[_Word] = []
    for match in _WORD.finditer(text[: 2 * 128 + 64]):
        typed = match[0]
        core = typed.strip(_AROUND)
        if says_nothing(core) and core != "#":
            if words and not _BREAKS.isdisjoint(typed):
                words[-1] = msgspec.structs.replace(words[-1], ends_name=True)
            continue
        end = match.start() + typed.index(core) + len(core)
        after = text[end : end + 2].lstrip(" ")[:1]
        if _ABBREVIATION.fullmatch(core):
            core = core.replace(".", "")
        words.append(_Word(fold_word(core), end, after in _BREAKS if after else True))
    return words


def _phrase(words: Sequence[_Word]) -> str:
    return " ".join(word.folded for word in words)


def _names_of(agents: Iterable[Agent]) -> dict[str, tuple[str, ...]]:
    """Return whole names, folded, with the agents that have them."""
    owners: dict[str, tuple[str, ...]] = {}
    for agent in agents:
        spaced = _ID_PARTS.sub(" ", agent.agent_id)
        for name in (*agent.name.values(), *agent.aliases, agent.agent_id, spaced):
            _add(owners, _phrase(_words(name)), agent.agent_id)
    return owners


def _shown_words(agents: Iterable[Agent], case: PickCase) -> dict[str, tuple[str, ...]]:
    """Return the words of the names that the user sees, with their agents."""
    owners: dict[str, tuple[str, ...]] = {}
    for agent in agents:
        shown = localised(agent.name, case.locale, case.registry.default_locale)
        _add_words(owners, shown, agent.agent_id)
    return owners


def _all_words(agents: Iterable[Agent]) -> dict[str, tuple[str, ...]]:
    """Return the words of all names, aliases and ids, with their agents."""
    owners: dict[str, tuple[str, ...]] = {}
    for agent in agents:
        for name in (*agent.name.values(), *agent.aliases, agent.agent_id):
            _add_words(owners, name, agent.agent_id)
    return owners


def _add_words(owners: dict[str, tuple[str, ...]], name: str, agent_id: str) -> None:
    for word in _ID_PARTS.split(fold_word(name)):
        if word and word not in FILLERS:
            _add(owners, word, agent_id)


def _add(owners: dict[str, tuple[str, ...]], name: str, agent_id: str) -> None:
    if agent_id not in owners.get(name, ()):
        owners[name] = (*owners.get(name, ()), agent_id)
