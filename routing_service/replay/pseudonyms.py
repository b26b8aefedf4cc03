"""Replaces what may identify a person in the texts of a conversation.

Rule: by shape, without checksums, so that mistyped numbers are replaced too. When in doubt, text is
replaced: a message that lost a word can still be routed.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

_UPPER: Final = "A-ZÀ-ÖØ-ÞĀŁŚŽŠČ"
_CAPITALISED: Final = rf"[{_UPPER}][\w'\u2019-]{{0,40}}\w"
_PARTICLE: Final = r"(?:d[eao]s?|del|de la|de los|da|la|van|von|der|bin|al|y|e|Mc|O')"
_NAME: Final = (
    rf"{_CAPITALISED}(?:(?:\s+[{_UPPER}]\.?)?\s+(?:{_PARTICLE}\s+)?{_CAPITALISED}){{0,4}}"
)

_SHAPES: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    ("email", re.compile(r"(?<![\w.+%'-])[\w.+%'-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")),
    ("url", re.compile(r"(?:https?://|www\.)\S+[\w/]", re.IGNORECASE)),
    (
        "url",
        re.compile(
            r"(?<![\w.-])(?:[a-z0-9-]{1,63}\.){1,6}(?:com|org|net|info|biz|io|co|es|pt|br|mx|ar|cl|uk|eu|de|fr|it)\b"
            r"(?:/\S*\w)?",
            re.IGNORECASE,
        ),
    ),
    ("user", re.compile(r"(?<![\w@])@\w{2,}")),
    (
        "id",
        re.compile(
            r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE
        ),
    ),
    # Two letters, two check digits, then groups of four with a digit in each but the first.
    (
        "iban",
        re.compile(
            r"\b[a-z]{2}\d{2}[ -]?[a-z0-9]{4}(?:[ -]?(?=[a-z]{0,3}\d)[a-z0-9]{4}){1,6}"
            r"(?:[ -]?(?=[a-z]{0,2}\d)[a-z0-9]{1,3})?\b",
            re.IGNORECASE,
        ),
    ),
    ("ip", re.compile(r"(?<![\w.-])\d{1,3}(?:\.\d{1,3}){3}(?![\w-]|\.\d)")),
    ("ip", re.compile(r"(?<![\w:])(?:[0-9a-f]{0,4}:){3,7}[0-9a-f]{1,4}(?![\w:])", re.IGNORECASE)),
    (
        "date",
        re.compile(
            r"(?<![\w./-])(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}"
            r"|\d{1,2}([-/.])\d{1,2}\1(?:\d{4}|\d{2}))(?!\w|[./-]\d)"
        ),
    ),
    # A street before its number (es, pt), and after it (en).
    (
        "address",
        re.compile(
            r"\b(?:calle|c/|avenida|avda\.?|av\.|plaza|paseo|carrer|travesía|rua|r\.|travessa|"
            r"praça|largo|alameda|estrada)\s*[^\n,;.!?]{2,50}?,?\s*(?:n\.?[ºo°]?\s*)?\d{1,5}\b",
            re.IGNORECASE,
        ),
    ),
    (
        "address",
        re.compile(
            r"\b\d{1,6}[a-z]?,?\s+(?:[\w'\u2019.-]{1,30}\s+){1,4}?(?:street|st|road|rd|avenue|ave|lane|ln|"
            r"drive|dr|boulevard|blvd|way|court|ct|square|sq|terrace|place|pl|close|crescent|"
            r"parkway|highway|trail)\b\.?",
            re.IGNORECASE,
        ),
    ),
    ("postcode", re.compile(r"\b[A-Z]{1,2}\d[A-Z\d]? ?\d[A-Z]{2}\b")),
    ("id", re.compile(r"\b[A-Z]{2} ?\d{2} ?\d{2} ?\d{2} ?[A-D]\b", re.IGNORECASE)),
    # Seven digits and more, as people write them: cards, accounts, telephones, tax numbers.
    (
        "number",
        re.compile(
            r"(?<!\w)(?<!\b[A-Za-z]-)(?:\+\s?)?\(?\d(?:[ \t.()/\u00a0\u2010-\u2013-]{0,3}\d){6,}"
            r"(?:(?:[ ]?-[ ]?)?[A-Za-z](?!\w)|(?:\s?(?:x|ext\.?)\s?\d{1,6}))?(?![\w])"
        ),
    ),
)
"""Kinds of identifiers and their shapes, in the order in which they are looked for. None of them
backtracks over more than a word, as texts may be long and are anybody's."""

_CODE: Final = re.compile(r"(?<![\w\[])[^\W_](?:[./-]?[^\W_]){5,}(?!\w)")
_CODE_DIGITS_MIN: Final = 5
"""A word with letters and so many digits is a tax number, a passport, a contract."""

_STRONG: Final = re.compile(
    r"\b(?:my (?:full |first |last )?name(?:'s| is)|call me|name:|me llamo"
    r"|mi nombre(?: completo)? es|nombre:|meu nome (?:completo )?é|me chamo|chamo-me|nome:)\s*",
    re.IGNORECASE,
)
"""What follows is a name, also in small letters."""

_WEAK: Final = re.compile(
    r"(?:\b(?:i am|i'm|this is|hi|hello|hey|dear|thanks|thank you|regards|sincerely|mr|mrs|ms|miss"
    r"|dr|prof|soy|habla|hola|querid[oa]|estimad[oa]|gracias|saludos|sr|sra|señora?|don|doña|dña"
    r"|sou(?: [oa])?|olá|oi|prezad[oa]|car[oa]|obrigad[oa]|senhora?|dona)\b[.,]?\s+"
    r"(?:(?:mr|mrs|ms|miss|dr|sr|sra|señora?|senhora?)\b\.?\s+)?)",
    re.IGNORECASE,
)
"""What follows is a name if it is capitalised."""

_ASKS_NAME: Final = re.compile(
    r"\b(?:names?|nombre|apellidos?|nome|sobrenome|apelido)\b[^.!?]{0,100}\?"
)
"""The next message, if it is short, is a name."""

_NAME_WORDS_MAX: Final = 5

_NAME_HERE: Final = re.compile(_NAME)
_WORDS_HERE: Final = re.compile(r"[^\W\d_][\w'\u2019-]*(?:\s+[^\W\d_][\w'\u2019-]*){0,3}")
_RUN: Final = re.compile(rf"(?<![\w'\u2019-]){_NAME}")
_WORDS: Final = re.compile(r"[^\W\d_][\w'\u2019-]*(?:\s+[^\W\d_][\w'\u2019-]*)*")
_PARTICLES: Final = frozenset({"da", "das", "de", "del", "do", "dos", "van", "von", "der", "bin"})
_QUOTES: Final = "'\u2019-"

_PLACEHOLDER: Final = re.compile(r"\[(?:[a-z]+) \d+\]")

_OTHER_WORDS: Final = """
a about afraid also am an and another are as ask at because but by calling can could dear do does
en for from going good had has have having he hello help here hey hi how i if in interested is it
just let looking may me my new no not now of ok okay on or our please she should so sorry sure
thank thanks that the their then there these they this those to trying unable very was we well
were what when where which who why will with would writing yes you your monday tuesday wednesday
thursday friday saturday sunday january february march april june july august september october
november december mr mrs ms miss dr al algo aquí así aunque bien buenas buenos como con cuando
cuánto cómo de del dónde e el ella es esa ese eso esta estas este esto estoy gracias ha hay hola
la las le les lo los más mi muy necesito nos o para pero por porque puede puedo que qué quiero se
si sin sobre soy su sí también te tengo tu un una y ya yo sr sra señor señora don doña agora ao
aqui até bem boa bom com da das dos ela ele em está eu foi isso já mais mas meu minha muito não na
nas obrigado obrigada oi olá os ou pela pelo posso preciso quando quanto quero sem ser seu sua são
tem tenho uma uns você à é
"""
"""Words that often follow a cue, or begin a sentence or a heading."""

_NO_NAMES: Final = frozenset(_OTHER_WORDS.split())

_NAME_CHARS_MIN: Final = 3

_BEFORE_CHARS: Final = 10
"""What is looked at before a word to see whether it begins a sentence."""

_ACRONYM_CHARS_MAX: Final = 5
"""Capitals alone up to this length are acronyms, such as VAT."""


@dataclass(frozen=True, slots=True)
class KnownWords:
    """What is known of names before a conversation is read.

    kept: words in small letters that are no names, such as those of the registry's agents. names:
    are replaced wherever they stand capitalised. proper_names: every capitalised word inside a
    sentence is taken for a name.
    """

    kept: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    proper_names: bool = True


NOTHING_KNOWN: Final = KnownWords()


@dataclass(slots=True)
class Pseudonyms:
    """The pseudonyms of one conversation: the same value always has the same one."""

    known: KnownWords = NOTHING_KNOWN
    ids: tuple[str, ...] = ()
    """Ids of the user and the session, which are replaced wherever they stand."""
    _given: dict[tuple[str, str], str] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)
    _anywhere: set[str] = field(default_factory=set)
    _capitalised: set[str] = field(default_factory=set)
    # The pseudonym of each word of the names that were replaced.
    _name_of: dict[str, str] = field(default_factory=dict)

    def replace_all(self, texts: Sequence[str]) -> list[str]:
        """Return the texts of the conversation, in order, without what identifies a person.

        A name that is found in one of them is replaced in all of them.
        """
        shaped = [self._without_shapes(unicodedata.normalize("NFC", text)) for text in texts]
        self._capitalised |= self.known.names
        for before, text in zip(("", *shaped), shaped, strict=False):
            self._learn_names(text)
            if _ASKS_NAME.search(before) and len(text.split()) <= _NAME_WORDS_MAX:
                self._anywhere.update(self._names_among(text.split()))
        return [self._without_names(text) for text in shaped]

    @property
    def counts(self) -> dict[str, int]:
        """How many different values were replaced, by kind."""
        return dict(self._counts)

    def _pseudonym(self, kind: str, value: str) -> str:
        key = (kind, re.sub(r"[\W_]+", "", value).casefold() or value)
        if key not in self._given:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._given[key] = f"[{kind} {self._counts[kind]}]"
        return self._given[key]

    def _without_shapes(self, text: str) -> str:
        for each in self.ids:
            if each:
                pattern = re.compile(rf"(?<!\w){re.escape(each)}(?!\w)", re.IGNORECASE)
                text = pattern.sub(lambda found: self._pseudonym("user", found[0]), text)
        for kind, pattern in _SHAPES:
            text = _outside_placeholders(
                text,
                lambda part, kind=kind, pattern=pattern: pattern.sub(  # type: ignore[misc]
                    lambda found: self._pseudonym(kind, found[0]), part
                ),
            )
        return _outside_placeholders(text, lambda part: _CODE.sub(self._code, part))

    def _code(self, found: re.Match[str]) -> str:
        """Replace a word with letters and several digits."""
        digits = sum(character.isdigit() for character in found[0])
        has_letters = any(character.isalpha() for character in found[0])
        is_id = digits >= _CODE_DIGITS_MIN and has_letters
        return self._pseudonym("id", found[0]) if is_id else found[0]

    def _learn_names(self, text: str) -> None:
        for cue in _STRONG.finditer(text):
            found = _NAME_HERE.match(text, cue.end()) or _WORDS_HERE.match(text, cue.end())
            words = re.findall(r"[\w'\u2019-]+", found[0]) if found else []
            self._anywhere.update(self._names_among(_until_other_words(words)))
        for cue in _WEAK.finditer(text):
            found = _NAME_HERE.match(text, cue.end())
            if found:
                self._capitalised.update(self._names_among(found[0].split()))
        if self.known.proper_names:
            for found in _RUN.finditer(text):
                self._capitalised.update(self._names_in_run(text, found))

    def _names_in_run(self, text: str, found: re.Match[str]) -> list[str]:
        """Return the names in capitalised words; the first word of a sentence may be any."""
        words = [word for word in found[0].split() if _is_capitalised(word)]
        if words and words[0].casefold() in _NO_NAMES:
            words = words[1:]
            return self._names_among(words)
        before = text[max(0, found.start() - _BEFORE_CHARS) : found.start()].rstrip(" \"'“«([¿¡-")
        is_first = not before or before[-1] in ".!?…"
        return [] if is_first and len(words) < 2 else self._names_among(words)  # noqa: PLR2004

    def _names_among(self, words: Iterable[str]) -> list[str]:
        names = (word.strip("'\u2019-.,").casefold() for word in words)
        return [name for name in names if self._may_be_name(name)]

    def _may_be_name(self, word: str) -> bool:
        is_known = word in _NO_NAMES or word in self.known.kept
        return len(word) >= _NAME_CHARS_MIN and not is_known and not word.isdigit()

    def _without_names(self, text: str) -> str:
        """Replace names: neighbours become one, such as a first and a last name."""
        return _outside_placeholders(text, lambda part: _WORDS.sub(self._in_words, part))

    def _in_words(self, found: re.Match[str]) -> str:
        parts = [*re.split(r"(\s+)", found[0]), "", ""]
        said = name = space = ""
        for at, part in enumerate(parts[:-1]):
            goes_on = bool(name) and part in _PARTICLES and self._is_name(parts[at + 2])
            if part.isspace():
                space = part
            elif part and (goes_on or self._is_name(part)):
                if not name:
                    said, name = said + space, part
                else:
                    name += space + part
                space = ""
            else:
                said += (self._named(name) if name else "") + space + part
                name = space = ""
        return said

    def _named(self, name: str) -> str:
        """Return a name's pseudonym: a part of a known name has that name's."""
        words = [_bare(word) for word in name.split() if word not in _PARTICLES]
        known = [self._name_of[word] for word in words if word in self._name_of]
        pseudonym = known[0] if known else self._pseudonym("name", name)
        for word in words:
            self._name_of.setdefault(word, pseudonym)
        return pseudonym

    def _is_name(self, word: str) -> bool:
        bare = word.strip(_QUOTES)
        folded = _bare(word)
        if folded in self._anywhere:
            return True
        is_acronym = bare.isupper() and len(bare) <= _ACRONYM_CHARS_MAX
        return folded in self._capitalised and _is_capitalised(bare) and not is_acronym


def _bare(word: str) -> str:
    return word.strip(_QUOTES).casefold().removesuffix("'s").removesuffix("\u2019s")


def _is_capitalised(word: str) -> bool:
    return word[:1].isupper()


def _until_other_words(words: Sequence[str]) -> list[str]:
    """Return the words before the first that is no name."""
    names: list[str] = []
    for word in words:
        if word.casefold() in _NO_NAMES and not re.fullmatch(_PARTICLE, word):
            break
        names.append(word)
    return names


def _outside_placeholders(text: str, change: Callable[[str], str]) -> str:
    """Change a text except where something was replaced already."""
    done: list[str] = []
    at = 0
    for found in _PLACEHOLDER.finditer(text):
        done += [change(text[at : found.start()]), found[0]]
        at = found.end()
    return "".join([*done, change(text[at:])])
