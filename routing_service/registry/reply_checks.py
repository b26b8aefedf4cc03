"""The checks of how a registry file words replies, and of its channels' profiles.

Rule: a sentence that could not be said as written is refused; one that leaves out what the shipped
sentence says is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from routing_service.core.channel_profiles import fold_channel
from routing_service.core.registry import locale_chain
from routing_service.registry.similar_names import did_you_mean, languages_twice
from routing_service.registry.yaml_document import Document, FileProblem, Path
from routing_service.texts import own_texts
from routing_service.texts.catalogue import FALLBACK_LOCALE, formal_sources, shipped_texts


def check_replies(data: Mapping[str, Any], document: Document) -> Iterator[FileProblem]:
    """Find texts that do not exist, placeholders that they do not get, and channels named twice."""
    yield from _check_channels(data.get("channels"), document)
    yield from languages_twice(("replies", "texts"), _languages(data, "texts"), document)
    yield from languages_twice(("replies", "tone"), _languages(data, "tone"), document)
    known = shipped_texts().message_ids(FALLBACK_LOCALE)
    for path, message_id, text in _own_texts(data):
        if message_id not in known:
            message = f'there is no text "{message_id}"'
            remedy = f"{did_you_mean(message_id, known)}agent-routing texts lists them"
            yield document.problem(path, message, remedy, on_key=True)
            continue
        for problem in own_texts.problems_of(message_id, text):
            names = ", ".join(f"{{{name}}}" for name in sorted(own_texts.variables_of(message_id)))
            yield document.problem(path, f"the text {problem}", f"placeholders here: {names}")


def warn_replies(data: Mapping[str, Any], document: Document) -> Iterator[FileProblem]:
    """Warn of sentences that say less than the shipped ones, and of a tone without effect."""
    for path, message_id, text in _own_texts(data):
        missing = own_texts.variables_left_out(message_id, text)
        if missing:
            names = ", ".join(f"{{{name}}}" for name in missing)
            message = f'the text of "{message_id}" leaves out {names}'
            yield document.problem(path, message, "users will not see it; add it if they should")
    tones = _languages(data, "tone")
    for tag, tone in tones.items():
        if tone == "formal" and not any(each in formal_sources() for each in locale_chain(tag)):
            message = f'"{tag}" has one form of address in the texts that ship'
            remedy = "write the sentences in replies.texts"
            yield document.problem(("replies", "tone", tag), message, remedy, on_key=True)


def _check_channels(channels: object, document: Document) -> Iterator[FileProblem]:
    first_by_name: dict[str, str] = {}
    for name in channels if isinstance(channels, dict) else ():
        if not isinstance(name, str):
            continue
        first = first_by_name.setdefault(fold_channel(name), name)
        if first != name:
            message = f'"{name}" is the same channel as "{first}"'
            yield document.problem(("channels", name), message, "keep one of them", on_key=True)


def _languages(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    replies = data.get("replies")
    by_language = replies.get(key) if isinstance(replies, dict) else None
    if not isinstance(by_language, dict):
        return {}
    return {tag: value for tag, value in by_language.items() if isinstance(tag, str)}


def _own_texts(data: Mapping[str, Any]) -> Iterator[tuple[Path, str, str]]:
    """Yield each text of the file that is one, with its path and name."""
    for tag, texts in _languages(data, "texts").items():
        for name, text in texts.items() if isinstance(texts, dict) else ():
            if isinstance(name, str) and isinstance(text, str):
                yield ("replies", "texts", tag, name), name, text
