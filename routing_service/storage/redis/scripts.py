"""The scripts that the Redis server runs: each is one step, whole or not at all.

A script is called by its digest. If the server answers that it does not have it, as after a
restart, the texts are sent and the script is called again, because nothing has happened then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Final, TypeAlias

Argument: TypeAlias = bytes | str | int
Command: TypeAlias = tuple[Argument, ...]

_SUFFIX: Final = ".lua"


@cache
def scripts() -> dict[str, str]:
    """Read the scripts, by name."""
    folder = resources.files(__package__) / "lua"
    found = {
        entry.name.removesuffix(_SUFFIX): entry.read_text(encoding="utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(_SUFFIX)
    }
    assert found, "the package was built without its scripts"
    return found


def script_call(name: str, keys: Sequence[bytes], *arguments: Argument) -> Command:
    """Make the command that runs a script."""
    return ("EVALSHA", _digest(name), len(keys), *keys, *arguments)


def load_commands() -> list[Command]:
    """Make the commands that give the server all scripts."""
    return [("SCRIPT", "LOAD", text) for text in scripts().values()]


@cache
def _digest(name: str) -> str:
    # The server's name for a script, not a secret.
    return hashlib.sha1(scripts()[name].encode(), usedforsecurity=False).hexdigest()
