"""Catalogues of texts in Fluent, one file per language, and the choice between them.

Rule: rendering never raises. A text that a language lacks is rendered in the default language, then
in English; ``missing_texts`` finds such gaps beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import cast

from fluent.runtime import FluentBundle, FluentResource
from fluent.syntax import ast as fluent_ast

from routing_service.core.registry import fold_locale, locale_chain

# The language that has every text.
FALLBACK_LOCALE = "en"

_SUFFIX = ".ftl"


@dataclass(frozen=True, slots=True)
class MissingTexts:
    """A language that lacks some of the service's texts."""

    locale: str
    # Empty if the language has no catalogue.
    message_ids: tuple[str, ...]

    def __str__(self) -> str:
        """Say what is missing, as the end of a sentence about the texts."""
        if not self.message_ids:
            return f'are not there in "{self.locale}"'
        return f'lack these texts in "{self.locale}": {", ".join(self.message_ids)}'


class Texts:
    """Rendered texts of several languages. Immutable once made; safe to share."""

    def __init__(self, catalogues: Mapping[str, str], over: Iterable[tuple[str, str]] = ()) -> None:
        """Take Fluent sources by locale. Raises ValueError for a source that does not parse.

        over: locales with sources whose messages replace those before them.
        """
        self._bundles: dict[str, FluentBundle] = {}
        message_ids: dict[str, dict[str, None]] = {}
        for locale, source in (*catalogues.items(), *over):
            tag = fold_locale(locale)
            if tag not in self._bundles:
                # Isolation marks are invisible characters around every variable. They would end
                # up in logs, tests and terminals, and no shipped language is written from right
                # to left.
                self._bundles[tag] = FluentBundle([locale], use_isolating=False)
            resource = FluentResource(source)
            for entry in resource.body:
                if isinstance(entry, fluent_ast.Junk):
                    place = (entry.content or "")[:80]
                    # A mistake in a catalogue, not a type error.
                    raise ValueError(f'the "{locale}" texts do not parse at: {place}')  # noqa: TRY004
            self._bundles[tag].add_resource(resource, allow_overrides=True)
            message_ids.setdefault(tag, {}).update(dict.fromkeys(_message_ids(resource)))
        self._message_ids = {tag: tuple(ids) for tag, ids in message_ids.items()}

    @property
    def locales(self) -> tuple[str, ...]:
        """The languages that have a catalogue."""
        return tuple(self._bundles)

    def message_ids(self, locale: str) -> tuple[str, ...]:
        """Return the messages of exactly this language, in the order of its catalogue."""
        return self._message_ids.get(locale, ())

    def negotiate(self, locale: str, default_locale: str = FALLBACK_LOCALE) -> str:
        """Return the language of an answer: es-MX → es → default → English."""
        return next(self._candidates(locale, default_locale), FALLBACK_LOCALE)

    def render(
        self,
        message_id: str,
        locale: str,
        /,
        *,
        default_locale: str = FALLBACK_LOCALE,
        **variables: str | int,
    ) -> str:
        """Return a message in the best language that has it, or its id if none does."""
        incomplete = message_id
        for candidate in self._candidates(locale, default_locale):
            bundle = self._bundles[candidate]
            if not bundle.has_message(message_id):
                continue
            pattern = bundle.get_message(message_id).value
            if pattern is None:
                continue
            text, errors = bundle.format_pattern(pattern, variables)
            if not errors:
                return cast("str", text)
            # A text with a gap is still better than a message id.
            incomplete = str(text)
        return incomplete

    def missing_texts(self, locales: Iterable[str] = ()) -> tuple[MissingTexts, ...]:
        """Return what catalogues lack compared with English, and which locales have none."""
        missing = []
        for locale, has in self._message_ids.items():
            lacks = [name for name in self._message_ids[FALLBACK_LOCALE] if name not in has]
            if lacks:
                missing.append(MissingTexts(locale, tuple(lacks)))
        missing += [
            MissingTexts(locale, ())
            for locale in dict.fromkeys(locales)
            if not any(tag in self._bundles for tag in locale_chain(locale))
        ]
        return tuple(missing)

    def _candidates(self, locale: str, default_locale: str) -> Iterator[str]:
        """Yield the catalogues to try, best first, each at most once."""
        chains = (*locale_chain(locale), *locale_chain(default_locale), FALLBACK_LOCALE)
        return (tag for tag in dict.fromkeys(chains) if tag in self._bundles)


def _message_ids(resource: fluent_ast.Resource) -> Iterator[str]:
    for entry in resource.body:
        if isinstance(entry, fluent_ast.Message):
            yield entry.id.name


@cache
def shipped_texts() -> Texts:
    """Return the replies to users that come with the service. Read once."""
    return Texts(reply_sources())


@cache
def reply_sources() -> Mapping[str, str]:
    """Return the Fluent sources of the replies, by language. Read once."""
    return _sources(resources.files("routing_service.texts"))


@cache
def formal_sources() -> Mapping[str, str]:
    """Return the sources of replies that address the user formally, by language. Read once."""
    return _sources(resources.files("routing_service.texts") / "formal")


@cache
def instruction_texts() -> Texts:
    """Return the instructions to agents that come with the service. Read once."""
    return _read(resources.files("routing_service.texts") / "instructions")


@cache
def answer_texts() -> Texts:
    """Return what users answer to offers, in the languages of the replies. Read once."""
    return _read(resources.files("routing_service.texts") / "answers")


@cache
def role_texts() -> Texts:
    """Return the words for what an agent is, in languages whose names take an article."""
    return _read(resources.files("routing_service.texts") / "roles")


def _read(folder: Traversable) -> Texts:
    """Read a folder with a catalogue for each language."""
    return Texts(_sources(folder))


def _sources(folder: Traversable) -> dict[str, str]:
    return {
        file.name.removesuffix(_SUFFIX): file.read_text(encoding="utf-8")
        for file in folder.iterdir()
        if file.name.endswith(_SUFFIX)
    }


def missing_texts(locales: Iterable[str] = ()) -> tuple[MissingTexts, ...]:
    """Return what the shipped texts lack, and which of the locales have none at all.

    Replies and instructions come in the same languages.
    """
    return shipped_texts().missing_texts(locales)
