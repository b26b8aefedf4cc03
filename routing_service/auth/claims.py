"""The valid forms of claims, in every kind of credential.

Rule: an invalid claim refuses the whole credential. A caller with half of its rights would not be
noticed.
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
    UNSEEN,
    USER_BYTES_MAX,
)

AGENTS_MAX: Final = 1000

_AGENT_ROLE: Final = f"{AGENT}:"
_AGENT_ID: Final = re.compile(ID_PATTERN)


def has_unseen_characters(text: str) -> bool:
    """Say whether a text has characters that no name may have: see UNSEEN."""
    return UNSEEN.search(text) is not None


def subject(value: Any, claim: str) -> str:
    """Return the name of the person or program that a credential is for.

    It is compared with user ids, so the same characters are refused. Raises SignInRefused.
    """
    if (
        not isinstance(value, str)
        or not value
        or UNSEEN.search(value)
        or len(value.encode()) > USER_BYTES_MAX
    ):
        raise SignInRefused(f"bad_{claim}")
    return value


def words(value: Any, claim: str) -> list[str]:
    """Return the words of a claim: a list, or text with spaces. Raises SignInRefused."""
    if value is None:
        return []
    found = value.split(" ") if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise SignInRefused(f"bad_{claim}")
    return [word for word in found if word]


def scopes(granted: Iterable[str], prefix: str = "") -> frozenset[str]:
    """Return the words that are scopes of this service. prefix: of each; "" = none."""
    return frozenset(
        word.removeprefix(prefix)
        for word in granted
        if word.startswith(prefix) and word.removeprefix(prefix) in SCOPES
    )


def roles(granted: Iterable[str], prefix: str = "") -> frozenset[str]:
    """Return all words that a credential grants, other services' included. prefix: is removed."""
    return frozenset(word.removeprefix(prefix) for word in granted)


def agents(named: Iterable[str], granted: Iterable[str] = (), prefix: str = "") -> frozenset[str]:
    """Return the agents that a runtime speaks for. Raises SignInRefused.

    named: their ids. granted: scopes and roles; "agent:ID" (after the prefix) among them names an
    agent too, for identity providers with roles and without custom claims.
    """
    marked = prefix + _AGENT_ROLE
    found = {*named, *(word.removeprefix(marked) for word in granted if word.startswith(marked))}
    if len(found) > AGENTS_MAX or not all(
        name == ANY_AGENT or _AGENT_ID.match(name) for name in found
    ):
        raise SignInRefused("bad_agents")
    return frozenset(found)


def entitlements(value: Any, claim: str) -> tuple[str, ...]:
    """Return a user's entitlements, sorted. Raises SignInRefused."""
    found = sorted(set(words(value, claim)))
    if (
        len(found) > ENTITLEMENTS_MAX
        or any(len(word) > ENTITLEMENT_CHARS_MAX or UNSEEN.search(word) for word in found)
        or sum(len(word.encode()) for word in found) > ENTITLEMENTS_BYTES_MAX
    ):
        raise SignInRefused(f"bad_{claim}")
    return tuple(found)
