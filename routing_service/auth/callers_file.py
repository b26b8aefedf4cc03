"""The file that maps client certificates to callers.

Rule: a file is accepted whole, or refused with all its mistakes.

    [[caller]]
    certificate = "uri:spiffe://example.org/runtime/vat"   # or "dns:NAME", or "cn:NAME"
    tenant = "acme"                                        # default: "default"
    scopes = ["agent"]
    agents = ["vat"]                                       # "*": all
    roles = []                                             # for approvals by role
    user = ""                                              # for a person's certificate
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from routing_service.auth import claims
from routing_service.auth.caller import (
    AGENT,
    DEFAULT_TENANT,
    SCOPES,
    Caller,
    SignInRefused,
    is_tenant,
)
from routing_service.core.identifiers import ID_ALPHABET, ID_CHARS_MAX

CALLERS_BYTES_MAX: Final = 1024 * 1024
"""Some five thousand callers; more belong to an identity provider."""

KINDS: Final = ("uri", "dns", "cn")

_KEYS: Final = frozenset({"certificate", "tenant", "scopes", "agents", "roles", "user"})


class CallersFileInvalid(Exception):
    """The file is refused; the message has a line for each mistake."""


def read_callers(path: Path) -> Mapping[str, Caller]:
    """Return the callers by the name in their certificate. Raises CallersFileInvalid."""
    try:
        with path.open("rb") as file:
            content = file.read(CALLERS_BYTES_MAX + 1)
        document = tomllib.loads(content.decode("utf-8"))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise CallersFileInvalid(
            f'callers file "{path}": {reason}; check path and permissions'
        ) from error
    except ValueError as error:
        raise CallersFileInvalid(
            f'callers file "{path}" is not valid: {error}; write TOML'
        ) from error
    if len(content) > CALLERS_BYTES_MAX:
        raise CallersFileInvalid(
            f'callers file "{path}" is longer than {CALLERS_BYTES_MAX} bytes; shorten it'
        )
    problems: list[str] = [
        f'"{key}" is not a key; write [[caller]] tables' for key in document if key != "caller"
    ]
    entries = document.get("caller", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        problems.append("caller is not a list of tables; write [[caller]] before each")
        entries = []
    callers: dict[str, Caller] = {}
    for place, entry in enumerate(entries, 1):
        name, caller = _read_entry(entry, place, problems)
        if name in callers:
            problems.append(f'caller {place}: certificate "{name}" is named twice; keep one')
        if caller is not None:
            callers[name] = caller
    if problems:
        raise CallersFileInvalid(
            "\n".join(f'callers file "{path}": {problem}' for problem in problems)
        )
    return callers


def _read_entry(
    entry: Mapping[str, Any], place: int, problems: list[str]
) -> tuple[str, Caller | None]:
    found: list[str] = [f'"{key}" is not a key of a caller' for key in entry if key not in _KEYS]
    name = entry.get("certificate", "")
    kind, _, value = name.partition(":") if isinstance(name, str) else ("", "", "")
    if kind not in KINDS or not value:
        found.append('certificate is not "uri:…", "dns:…" or "cn:…"')
    tenant = entry.get("tenant", DEFAULT_TENANT)
    if not isinstance(tenant, str) or not is_tenant(tenant):
        found.append(f"tenant is not 1-{ID_CHARS_MAX} characters of {ID_ALPHABET}")
    named = {key: entry.get(key, []) for key in ("scopes", "agents", "roles")}
    for key, values in named.items():
        if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
            found.append(f"{key} is not a list of words")
            named[key] = []
    found += [
        f'"{word}" is not a scope; use {", ".join(sorted(SCOPES))}'
        for word in named["scopes"]
        if word not in SCOPES
    ]
    if AGENT in named["scopes"] and not named["agents"]:
        found.append('agents is missing next to the scope "agent"; name them, or "*" for all')
    caller = None
    if not found:
        try:
            user = claims.subject(entry["user"], "user") if entry.get("user") else ""
            caller = Caller(
                tenant=tenant,
                subject=claims.subject(name, "certificate"),
                user=user,
                person=user,
                scopes=frozenset(named["scopes"]),
                roles=claims.roles((*named["scopes"], *named["roles"])),
                agents=claims.agents(named["agents"]),
            )
        except SignInRefused as error:
            found.append(f"{error.problem.removeprefix('bad_')} is not valid")
    problems += [f"caller {place}: {problem}" for problem in found]
    return (name if isinstance(name, str) else ""), caller
