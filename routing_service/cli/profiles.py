"""Profiles: named sets of values for the variables of commands, such as a server and its token.

Its rule: an option wins over the profile, and the profile wins over the environment, because it was
asked for by name.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Final

from routing_service.cli.failure import EXIT_USAGE, CommandFailed

FLAG: Final = "--profile"
FILE_VARIABLE: Final = "AGENT_ROUTING_PROFILES"
PREFIX: Final = "AGENT_ROUTING_"
FILE_BYTES_MAX: Final = 1_000_000


def taken_from(argv: Sequence[str]) -> tuple[list[str], str]:
    """Return the arguments without --profile NAME, and the name, "" without one.

    The option may come before or after the command. Arguments after ``--`` are left alone. Raises
    CommandFailed if the name is missing or the option is given twice.
    """
    words = list(argv)
    end = words.index("--") if "--" in words else len(words)
    found: list[str] = []
    left: list[str] = []
    position = 0
    while position < end:
        flag, equals, name = words[position].partition("=")
        if flag != FLAG:
            left.append(words[position])
        elif equals:
            found.append(name)
        elif position + 1 < end:
            position += 1
            found.append(words[position])
        else:
            found.append("")
        position += 1
    if len(found) > 1 or found == [""]:
        raise CommandFailed(f"{FLAG} takes one name", exit_code=EXIT_USAGE)
    return [*left, *words[end:]], found[0] if found else ""


def apply_profile(
    name: str, environment: MutableMapping[str, str], known: frozenset[str], home: Path
) -> None:
    """Set a profile's values in the environment, under their variables.

    known: all variables of commands. home: the user's folder. Raises CommandFailed if the file or
    the profile is missing, and for unknown keys.
    """
    path = profiles_path(environment, home)
    profiles = read_profiles(path)
    if name not in profiles:
        there = ", ".join(sorted(profiles)) or "none"
        raise CommandFailed(
            f'{path} has no profile "{name}"; it has: {there}', exit_code=EXIT_USAGE
        )
    profile = profiles[name]
    if not isinstance(profile, Mapping):
        raise CommandFailed(
            f"{path}: {name} is not a table; write [{name}] and its keys below",
            exit_code=EXIT_USAGE,
        )
    for key, value in profile.items():
        variable = f"{PREFIX}{key.upper()}"
        if variable not in known:
            keys = ", ".join(sorted(each.removeprefix(PREFIX).lower() for each in known))
            raise CommandFailed(
                f'{path}: [{name}] has the unknown key "{key}"; keys are {keys}',
                exit_code=EXIT_USAGE,
            )
        if isinstance(value, Mapping | list):
            raise CommandFailed(
                f"{path}: [{name}] {key} is not a single value", exit_code=EXIT_USAGE
            )
        environment[variable] = str(value).lower() if isinstance(value, bool) else str(value)


def profiles_path(environment: Mapping[str, str], home: Path) -> Path:
    """Return the path of the file of profiles."""
    named = environment.get(FILE_VARIABLE)
    if named:
        return Path(named)
    folder = environment.get("XDG_CONFIG_HOME")
    return (Path(folder) if folder else home / ".config") / "agent-routing" / "profiles.toml"


def read_profiles(path: Path) -> Mapping[str, object]:
    """Read the file. Raises CommandFailed with the problem and its place."""
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX).decode("utf-8")
        return tomllib.loads(text)
    except FileNotFoundError:
        raise CommandFailed(
            f"there is no file of profiles at {path}; make one with [staging] and "
            f'target = "HOST:PORT" below it, or name another with {FILE_VARIABLE}',
            exit_code=EXIT_USAGE,
        ) from None
    except OSError as error:
        raise CommandFailed(
            f"cannot read {path}: {os.strerror(error.errno or 0)}", exit_code=EXIT_USAGE
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{path} is not a TOML file: {error}", exit_code=EXIT_USAGE) from None
