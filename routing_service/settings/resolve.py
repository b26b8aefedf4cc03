"""Where the value of each setting comes from: flag, then environment, then file, then default."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from routing_service.settings.rules import (
    SettingProblem,
    SettingsInvalid,
    read_values,
    without_secrets,
)
from routing_service.settings.setting_forms import VARIABLE_PREFIX, Value
from routing_service.settings.settings import SETTINGS, Settings

CONFIG_VARIABLE: Final = f"{VARIABLE_PREFIX}CONFIG"
"""Names the configuration file if no flag does."""

OTHER_VARIABLES: Final = frozenset(
    {
        CONFIG_VARIABLE,
        f"{VARIABLE_PREFIX}PROFILES",
        f"{VARIABLE_PREFIX}TARGET",
        f"{VARIABLE_PREFIX}TENANT",
        f"{VARIABLE_PREFIX}TOKEN",
        f"{VARIABLE_PREFIX}TOKEN_FILE",
        f"{VARIABLE_PREFIX}TLS_CA",
        f"{VARIABLE_PREFIX}TLS_CERT",
        f"{VARIABLE_PREFIX}TLS_KEY",
        f"{VARIABLE_PREFIX}TLS_NAME",
    }
)
"""Variables of the command-line client rather than the server: the target, and how to sign in."""

CONFIG_BYTES_MAX: Final = 1024 * 1024
"""A larger file is not a configuration; the largest sensible one has a few kilobytes."""


@dataclass(frozen=True, slots=True)
class ExplainedSetting:
    """One setting with its value and the source of that value."""

    name: str
    value: Value
    source: str
    """"flag --listen", "environment AGENT_ROUTING_LISTEN", "file NAME" or "default"."""
    help: str


@dataclass(frozen=True, slots=True)
class ResolvedSettings:
    """Settings combined from flags, environment and file."""

    settings: Settings
    sources: Mapping[str, str]
    """By name, as in ``ExplainedSetting.source``."""
    warnings: tuple[SettingProblem, ...]
    """Ignored variables: they look like settings, but no such setting exists."""

    def explain(self) -> tuple[ExplainedSetting, ...]:
        """List every setting, without the password of a store URL."""
        return tuple(
            ExplainedSetting(
                setting.name,
                without_secrets(getattr(self.settings, setting.name)),
                self.sources[setting.name],
                setting.help,
            )
            for setting in SETTINGS.values()
        )


def resolve_settings(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    config_file: str | Path | None = None,
) -> ResolvedSettings:
    """Combine the settings: flag > environment > file > default.

    flags: values by the setting's name; None = not given. An empty variable counts as not given.
    config_file: None = the file that AGENT_ROUTING_CONFIG names, if set.
    Raises SettingsInvalid with every problem.
    """
    assert flags.keys() <= SETTINGS.keys(), flags.keys() - SETTINGS.keys()
    problems: list[SettingProblem] = []
    file_name = str(config_file or environ.get(CONFIG_VARIABLE, ""))
    in_file = _from_file(Path(file_name), problems) if file_name else {}
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    for setting in SETTINGS.values():
        candidates = (
            (flags.get(setting.name), f"flag {setting.flag}"),
            (environ.get(setting.variable) or None, f"environment {setting.variable}"),
            (in_file.get(setting.name), f"file {file_name}"),
            (setting.default, "default"),
        )
        values[setting.name], sources[setting.name] = next(
            candidate for candidate in candidates if candidate[0] is not None
        )
    read = read_values(SETTINGS, values, sources, problems)
    if problems:
        raise SettingsInvalid(tuple(problems))
    return ResolvedSettings(Settings(**read), sources, tuple(_unknown_variables(environ)))


def missing_agents() -> SettingProblem:
    """Return the problem of a server without a registry; settings alone may lack one."""
    setting = SETTINGS["agents"]
    return SettingProblem(
        setting.name,
        f"no registry file is named; give {setting.flag} FILE, {setting.variable}, or agents in "
        "the configuration file",
    )


def _from_file(path: Path, problems: list[SettingProblem]) -> dict[str, object]:
    """Return the settings of a file; add what is wrong with the file to problems."""
    try:
        with path.open("rb") as file:
            content = file.read(CONFIG_BYTES_MAX + 1)
        document = tomllib.loads(content[:CONFIG_BYTES_MAX].decode("utf-8"))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        problems.append(
            SettingProblem("", f'configuration file "{path}": {reason}; check path and permissions')
        )
        return {}
    except ValueError as error:  # Also what is not UTF-8, and TOML's own complaint, with its line.
        problems.append(
            SettingProblem("", f'configuration file "{path}" is not valid TOML: {error}')
        )
        return {}
    if len(content) > CONFIG_BYTES_MAX:
        message = f'configuration file "{path}" is longer than {CONFIG_BYTES_MAX} bytes; shorten it'
        problems.append(SettingProblem("", message))
    problems += (
        SettingProblem(
            key,
            f'configuration file "{path}" has the unknown key "{key}"'
            + _meant(key, SETTINGS, "known keys"),
        )
        for key in document
        if key not in SETTINGS
    )
    return {key: value for key, value in document.items() if key in SETTINGS}


def _unknown_variables(environ: Mapping[str, str]) -> Iterable[SettingProblem]:
    known = {setting.variable for setting in SETTINGS.values()} | OTHER_VARIABLES
    for name in sorted(environ):
        if name.startswith(VARIABLE_PREFIX) and name not in known:
            yield SettingProblem(
                name,
                f"environment variable {name} is not a setting and is ignored"
                + _meant(name, known, "known variables"),
            )


def _meant(written: str, known: Iterable[str], known_as: str) -> str:
    close = difflib.get_close_matches(written.lower(), [name.lower() for name in known], n=1)
    meant = [name for name in known if name.lower() in close]
    if meant:
        return f"; did you mean {meant[0]}?"
    return f"; {known_as}: {', '.join(sorted(known))}"
