"""Names in a registry file that are nearly, or really, the same."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from routing_service.core.registry import fold_locale
from routing_service.registry.yaml_document import Document, FileProblem, Path


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question about the name that was probably meant, "" if none is near."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f'did you mean "{close[0]}"? ' if close else ""


def languages_twice(path: Path, tags: Iterable[str], document: Document) -> Iterator[FileProblem]:
    """Find languages that are written twice, such as pt-br and pt-BR."""
    first_by_locale: dict[str, str] = {}
    for tag in tags:
        first = first_by_locale.setdefault(fold_locale(tag), tag)
        if first != tag:
            message = f'"{tag}" is the same language as "{first}"'
            yield document.problem((*path, tag), message, "keep one of them", on_key=True)
