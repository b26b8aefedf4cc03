"""The registry in force: read at start, and again on request or when the file changes.

Its rule: a file that cannot be used changes nothing; the registry in force stays.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

import structlog

from routing_service.core.registry import Registry
from routing_service.registry.file import CheckedRegistry, RegistryFileError
from routing_service.registry.file_replacement import replace_file, why_read_only
from routing_service.registry.yaml_document import FileProblem

FILE_POLL_S: Final = 1.0
"""How often the file's time and size are checked. Notifications miss some ways in which editors and
mounted volumes replace files; one stat a second costs nothing."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a reload changed, or would change. Agent ids are sorted.

    warnings: of the registry's file. previous_file: the name under which a file that was replaced
    is kept, "" if none was.
    """

    registry: Registry
    previous: Registry
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    warnings: tuple[FileProblem, ...] = ()
    previous_file: str = ""

    @property
    def is_new(self) -> bool:
        """Return whether anything differs."""
        return self.registry != self.previous

    @property
    def changed_settings(self) -> tuple[str, ...]:
        """The keys of the file, besides version and agents, whose values differ. Sorted."""
        return tuple(
            sorted(
                {
                    _KEYS.get(each.name, each.name)
                    for each in fields(Registry)
                    if each.compare
                    and each.name not in _NOT_SETTINGS
                    and getattr(self.registry, each.name) != getattr(self.previous, each.name)
                }
            )
        )

    @property
    def touched_agents(self) -> frozenset[str]:
        """Agents that differ or are gone, and the former home agent if there is another one."""
        agents = {*self.removed, *self.changed}
        if self.registry.home_agent_id != self.previous.home_agent_id:
            agents.add(self.previous.home_agent_id)
        return frozenset(agents)


_NOT_SETTINGS: Final = frozenset({"version", "agents", "further_files"})

_KEYS: Final = {
    "home_agent_id": "supervisor",
    "is_swarm": "default_agent",
    "stickiness_enabled": "stickiness",
    "auto_off": "stickiness",
    "double_text_rejects": "double_text",
    "double_text_queues": "double_text",
    "begins_tasks": "tasks",
    "disabled_commands": "commands",
    "command_words": "commands",
}
"""Fields of Registry that have another name in the file."""


class OtherInForce(Exception):
    """Another version is in force than a caller saw. version: the one in force."""

    def __init__(self, version: str) -> None:
        self.version = version
        super().__init__(version)


class OtherInFile(Exception):
    """The file has another version than the caller expects. version: that one."""

    def __init__(self, version: str) -> None:
        """Keep the version."""
        self.version = version
        super().__init__(version)


class RegistrySource:
    """Holds the registry in force. The files that it names are watched as well."""

    def __init__(
        self,
        path: str,
        load: Callable[[], CheckedRegistry],
        check: Callable[[str], CheckedRegistry],
        in_force: Callable[[Registry], None] = lambda _: None,
        *,
        poll_s: float = FILE_POLL_S,
        takes_up_changes: bool = True,
    ) -> None:
        """Load for the first time. Raises RegistryFileError, and then there is none.

        load: reads and checks the file at path; runs in a thread when it is read again. check: does
        the same with the text of another file, and prepares nothing. in_force:
        called after each load with the registry in force, new or old. poll_s: how often the file's
        time and size are checked. takes_up_changes: False: a changed file is logged, and read only
        on request.
        """
        self._path = path
        self._takes_up_changes = takes_up_changes
        self._poll_s = poll_s
        self._load = load
        self._check = check
        self._seen = _stamp(path)
        self._tell_in_force = in_force
        checked = load()
        self._registry = checked.registry
        self._warnings = checked.warnings
        self._further_seen = self._stamp_further()
        self._tell_in_force(self._registry)
        self._reloading = asyncio.Lock()
        # Since the start: files put in force, and files that could not be.
        self.reloads = 0
        self.failures = 0

    @property
    def registry(self) -> Registry:
        """The registry in force."""
        return self._registry

    @property
    def warnings(self) -> tuple[FileProblem, ...]:
        """The warnings about the file of the registry in force."""
        return self._warnings

    @property
    def read_only_reason(self) -> str:
        """Why the file cannot be replaced; "" if it can."""
        return why_read_only(Path(self._path))

    async def reload(
        self,
        *,
        validate_only: bool = False,
        expected_version: str = "",
        expected_file_version: str = "",
    ) -> Reloaded:
        """Read the file again and put it in force.

        expected_version, expected_file_version: of the registry in force and of the file; "" = any.
        Raises RegistryFileError, OtherInForce, OtherInFile; then the old one stays, and every
        problem of the file is logged for operators.
        """
        async with self._reloading:
            if expected_version and expected_version != self._registry.version:
                raise OtherInForce(self._registry.version)
            seen = self._seen, self._further_seen
            try:
                return await self._reload(
                    validate_only=validate_only, expected_file_version=expected_file_version
                )
            except OtherInFile:
                # watch() takes the file up as if there had been no call.
                self._seen, self._further_seen = seen
                raise

    async def compare(self, text: str) -> Reloaded:
        """Return what another registry file would change. Raises RegistryFileError.

        Files that it names are read from the folder of the server's own file.
        """
        checked = await asyncio.to_thread(self._check, text)
        return _compare(self._registry, checked)

    async def take(self, text: str, expected_version: str = "") -> Reloaded:
        """Replace the file by another text, and put that in force.

        The file until now is kept next to it. expected_version: "" = any version may be in force.
        Raises RegistryFileError, OtherInForce, FileReadOnly; then file and registry stay.
        """
        async with self._reloading:
            if expected_version and expected_version != self._registry.version:
                raise OtherInForce(self._registry.version)
            await asyncio.to_thread(self._check, text)
            kept = await asyncio.to_thread(replace_file, Path(self._path), text)
            try:
                made = await self._reload(validate_only=False)
            except RegistryFileError:
                # A file that it names has changed since the check.
                await asyncio.to_thread(kept.restore)
                raise
            return replace(made, previous_file=kept.name)

    async def _reload(self, *, validate_only: bool, expected_file_version: str = "") -> Reloaded:
        if not validate_only:
            # Taken before the files are read: a change meanwhile is seen afterwards. A trial
            # takes nothing up, so what it read is still to be seen by watch().
            self._seen = _stamp(self._path)
            self._further_seen = self._stamp_further()
        try:
            checked = await asyncio.to_thread(self._load)
        except RegistryFileError as error:
            if not validate_only:
                self.failures += 1
                _log.error(
                    "registry_reload_failed",
                    registry=self._path,
                    registry_version=self._registry.version,
                    problems=[str(problem) for problem in error.problems],
                )
            raise
        registry = checked.registry
        if expected_file_version and expected_file_version != registry.version:
            raise OtherInFile(registry.version)
        made = _compare(self._registry, checked)
        names_another = registry.further_files != self._registry.further_files
        if not validate_only:
            self._warnings = checked.warnings
        if not validate_only and made.is_new:
            # One assignment: a decision uses the old or the new registry, never a mixture.
            self._registry = registry
            self.reloads += 1
            _log.info(
                "registry_reloaded",
                registry=self._path,
                registry_version=registry.version,
                previous_version=made.previous.version,
                added=made.added,
                removed=made.removed,
                changed=made.changed,
            )
        if names_another and self._registry is registry:
            self._further_seen = self._stamp_further()
        self._tell_in_force(self._registry)
        return made

    async def reload_or_keep(self) -> None:
        """Read the file again; a bad one is logged and changes nothing."""
        with suppress(RegistryFileError):
            await self.reload()

    async def watch(self) -> None:
        """Read the file again whenever it changes, until cancelled; or only log the change."""
        while True:
            await asyncio.sleep(self._poll_s)
            stamp, further = _stamp(self._path), self._stamp_further()
            # A missing file is being replaced: there is nothing to read yet.
            if (stamp is not None and stamp != self._seen) or (
                None not in further and further != self._further_seen
            ):
                if self._takes_up_changes:
                    await self.reload_or_keep()
                else:
                    self._seen, self._further_seen = stamp, further
                    _log.info(
                        "registry_file_changed",
                        registry=self._path,
                        registry_version=self._registry.version,
                        remedy="agent-routing reload --validate-only, then agent-routing reload",
                    )

    def _stamp_further(self) -> list[tuple[int, int, int] | None]:
        """Return the same of the files that the registry in force names."""
        names = self._registry.further_files
        return [_stamp(str(Path(self._path).parent / name)) for name in names]


def _stamp(path: str) -> tuple[int, int, int] | None:
    """Return a file's time, size and number; None while it is missing."""
    try:
        found = os.stat(path)  # noqa: PTH116 - one system call, no path object
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _compare(previous: Registry, checked: CheckedRegistry) -> Reloaded:
    registry = checked.registry
    before, after = previous.agents, registry.agents
    shared = before.keys() & after.keys()
    return Reloaded(
        registry=registry,
        previous=previous,
        added=tuple(sorted(after.keys() - before.keys())),
        removed=tuple(sorted(before.keys() - after.keys())),
        changed=tuple(sorted(name for name in shared if before[name] != after[name])),
        warnings=checked.warnings,
    )
