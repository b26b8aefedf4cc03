"""What a credential says of its bearer, in the terms of this service.

Owns: the forms that claims may have, whatever kind of credential they stand in. Must not know:
where they come from. Rule: a claim that is not of its form refuses the whole credential; half a
right would be found out by nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from routing_service.auth.caller import AGENT, ANY_AGENT, SCOPES, SignInRefused
from routing_service.core.identifiers import (
    ENTITLEMENT_CHARS_MAX,
    ENTITLEMENTS_BYTES_MAX,
    ENTITLEMENTS_MAX,
    ID_PATTERN,
    USER_BYTES_MAX,
)

AGENTS_MAX: Final = 1000

_AGENT_ROLE: Final = f"{AGENT}:"
_AGENT_ID: Final = re.compile(ID_PATTERN)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def has_control_characters(text: str) -> bool:
    """Say whether a text has control characters or lone surrogates."""
    return _CONTROL.search(text) is not None


def subject(value: Any, claim: str) -> str:
    """Return who a credential is for. Raises SignInRefused."""
    if (
        not isinstance(value, str)
        or not value
        or _CONTROL.search(value)
        or len(value.encode()) > USER_BYTES_MAX
    ):
        raise SignInRefused(f"bad_{claim}")
    return value


def words(value: Any, claim: str) -> list[str]:
    """Return the words of a claim: a list, or text with spaces between. Raises SignInRefused."""
    if value is None:
        return []
    found = value.split(" ") if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise SignInRefused(f"bad_{claim}")
    return [word for word in found if word]


def scopes(granted: Iterable[str], prefix: str = "") -> frozenset[str]:
    """Return those words that are scopes here. prefix: what stands before each, "" for nothing."""
    return frozenset(
        word.removeprefix(prefix)
        for word in granted
        if word.startswith(prefix) and word.removeprefix(prefix) in SCOPES
    )


def agents(named: Iterable[str], granted: Iterable[str] = (), prefix: str = "") -> frozenset[str]:
    """Return the agents that a runtime speaks for. Raises SignInRefused.

    named: their ids. granted: scopes and roles, where "agent:ID" (after the prefix) names one too,
    for identity providers that know roles and no claims of one's own.
    """
    marked = prefix + _AGENT_ROLE
    found = {*named, *(word.removeprefix(marked) for word in granted if word.startswith(marked))}
    if len(found) > AGENTS_MAX or not all(
        name == ANY_AGENT or _AGENT_ID.match(name) for name in found
    ):
        raise SignInRefused("bad_agents")
    return frozenset(found)


def entitlements(value: Any, claim: str) -> tuple[str, ...]:
    """Return what a user is entitled to, sorted. Raises SignInRefused."""
    found = sorted(set(words(value, claim)))
    if (
        len(found) > ENTITLEMENTS_MAX
        or any(len(word) > ENTITLEMENT_CHARS_MAX or _CONTROL.search(word) for word in found)
        or sum(len(word.encode()) for word in found) > ENTITLEMENTS_BYTES_MAX
    ):
        raise SignInRefused(f"bad_{claim}")
    return tuple(found)
