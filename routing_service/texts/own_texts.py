"""The replies' texts as a registry words them: its own sentences, and the formal address.

Rule: a registry's sentence may use only placeholders that the text it replaces gets; the check of
registry files refuses any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import Final

from fluent.runtime import FluentBundle, FluentResource
from fluent.syntax import ast as fluent_ast
from fluent.syntax.visitor import Visitor

from routing_service.core.channel_profiles import ReplyStyle
from routing_service.texts.agent_names import FORMS
from routing_service.texts.catalogue import (
    FALLBACK_LOCALE,
    Texts,
    formal_sources,
    reply_sources,
    shipped_texts,
)

COMMON_COMMANDS: Final = ("supervisor", "agent", "help")
"""Commands whose typed forms every text may use: { $supervisor_command } and so on."""

_AGENT_VARIABLES: Final = frozenset({"agent", "home", "name", "next_agent", "present"})
"""Variables that hold an agent's name, each in all its forms."""

_COMMON: Final = frozenset({"home", *(f"{name}_command" for name in COMMON_COMMANDS)})

_CATALOGUES_KEPT: Final = 8
"""Styles whose catalogues are kept: a process serves one registry, and tests a few."""

# A placeholder as people write it: {agent}. Fluent's own form is { $agent }.
_BRACED: Final = re.compile(r"\{\s*([A-Za-z][A-Za-z0-9_]*)\s*\}")
_SPECIAL_AT_LINE_START: Final = re.compile(r"^\s*([\[*.])")

_SAMPLES: Final = (1, 2, 20)


def fluent_pattern(text: str) -> str:
    """Return a registry's sentence as the value of a Fluent message."""
    lines = _BRACED.sub(r"{ $\1 }", text.strip()).splitlines()
    if "->" not in text:
        lines = [_SPECIAL_AT_LINE_START.sub(r'{ "\1" }', line) for line in lines]
    return "\n    ".join(line.strip() for line in lines)


@lru_cache(maxsize=_CATALOGUES_KEPT)
def reply_texts(style: ReplyStyle) -> Texts:
    """Return the texts of a registry's replies. Made once for a style."""
    if not (style.formal or style.texts):
        return shipped_texts()
    formal = [(tag, source) for tag, source in formal_sources().items() if tag in style.formal]
    own = [(tag, f"{name} = {pattern}\n") for tag, name, pattern in style.texts]
    return Texts(reply_sources(), (*formal, *own))


def variables_of(message_id: str) -> frozenset[str]:
    """Return the placeholders that a text of replies gets, in all their forms."""
    return frozenset(_with_forms(_variables()[message_id] | _COMMON))


def variables_left_out(message_id: str, text: str) -> tuple[str, ...]:
    """Return what the shipped text says and a registry's own text does not, whatever its form."""
    used = {_base(name) for name in _found(f"own = {fluent_pattern(text)}\n")["own"].variables}
    return tuple(sorted(_variables()[message_id] - used))


def problems_of(message_id: str, text: str) -> Iterator[str]:
    """Yield what is wrong with a registry's sentence, each as the end of "the text …"."""
    source = f"own = {fluent_pattern(text)}\n"
    resource = FluentResource(source)
    if any(isinstance(entry, fluent_ast.Junk) for entry in resource.body):
        yield "does not parse: a brace is open, or a choice has no * before one of its cases"
        return
    known = variables_of(message_id)
    found = _found(source)["own"]
    for name in sorted(found.variables - known):
        yield f'has the placeholder {{{name}}}, which "{message_id}" does not get'
    for name in sorted(found.others):
        yield f"refers to {name}; only placeholders are allowed"
    if found.variables - known or found.others:
        return
    bundle = FluentBundle(["en"], use_isolating=False)
    bundle.add_resource(resource)
    pattern = bundle.get_message("own").value
    assert pattern is not None, source
    for number in _SAMPLES:
        shown, errors = bundle.format_pattern(pattern, dict.fromkeys(known, number))
        if errors or not str(shown).strip():
            yield f"cannot be rendered: {errors[0] if errors else 'it is empty'}"
            return


class _Found(Visitor):
    """What a text refers to."""

    def __init__(self) -> None:
        self.variables: set[str] = set()
        self.others: set[str] = set()

    def visit_VariableReference(self, node: fluent_ast.VariableReference) -> None:  # noqa: N802
        self.variables.add(node.id.name)

    def visit_MessageReference(self, node: fluent_ast.MessageReference) -> None:  # noqa: N802
        self.others.add(node.id.name)

    def visit_TermReference(self, node: fluent_ast.TermReference) -> None:  # noqa: N802
        self.others.add(f"-{node.id.name}")

    def visit_FunctionReference(self, node: fluent_ast.FunctionReference) -> None:  # noqa: N802
        self.others.add(f"{node.id.name}()")


def _found(source: str) -> dict[str, _Found]:
    found = {}
    for entry in FluentResource(source).body:
        if isinstance(entry, fluent_ast.Message):
            found[entry.id.name] = _Found()
            found[entry.id.name].visit(entry)
    return found


@cache
def _variables() -> Mapping[str, frozenset[str]]:
    """Return the placeholders of each shipped text, without the forms of names."""
    found = _found(reply_sources()[FALLBACK_LOCALE])
    return {name: frozenset(map(_base, each.variables)) for name, each in found.items()}


def _base(name: str) -> str:
    """Return a placeholder without its form: agent_the is agent."""
    for form in FORMS[1:]:
        if name.endswith(form) and name.removesuffix(form) in _AGENT_VARIABLES:
            return name.removesuffix(form)
    return name


def _with_forms(names: frozenset[str]) -> Iterator[str]:
    for name in names:
        yield from (f"{name}{form}" for form in FORMS) if name in _AGENT_VARIABLES else (name,)
