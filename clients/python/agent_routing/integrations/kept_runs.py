"""Runs that wait for an approval, where the framework has no store of its own for them.

Rule: a kept run is taken at most once, so that an approved tool call is never executed twice. A
process that dies after taking it leaves the call not executed, in part, or executed; its turn
fails.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Protocol

from agent_routing.integrations.approvals import ApprovedRunLost


class KeptRuns(Protocol):
    """A place for the states of runs that wait for an approval.

    All processes that may continue a run need the same place. The states contain what users,
    models and tools wrote. Methods may be called from several threads.
    """

    def save(self, session_id: str, request_id: str, state: str) -> None:
        """Store the state of the run of a request, replacing an earlier one."""

    def take(self, session_id: str, request_id: str) -> str | None:
        """Remove a state and return it, in one atomic step; None if there is none."""

    def remove(self, session_id: str, request_id: str) -> None:
        """Remove a state, if there is one."""


def taken(kept_runs: KeptRuns, session_id: str, request_id: str) -> str:
    """Take the state of a run. Raises ApprovedRunLost if it is not there."""
    state = kept_runs.take(session_id, request_id)
    if state is None:
        raise ApprovedRunLost(
            f"the run of request {request_id} is not kept here: an earlier attempt took it up, and"
            " may have executed what was approved; or the processes do not share the folder or"
            " store"
            " given as kept_runs"
        )
    return state


class FileKeptRuns:
    """KeptRuns in a folder: one file for each run, readable by its owner alone.

    folder: default: agent-routing/runs in $XDG_STATE_HOME, or else in ~/.local/state. It is made
    when the first run is kept. Processes on several machines need a folder that they share.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._folder = _default_folder() if folder is None else Path(folder)

    def save(self, session_id: str, request_id: str, state: str) -> None:
        """Store a state. A crash leaves the earlier file or the new one, never a part."""
        path = self._path(session_id, request_id)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # mkstemp makes files that only their owner can read.
        descriptor, part = tempfile.mkstemp(dir=path.parent, prefix=".part-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(state)
                file.flush()
                os.fsync(file.fileno())
            Path(part).replace(path)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise

    def take(self, session_id: str, request_id: str) -> str | None:
        """Remove a state and return it: of several processes one gets it."""
        path = self._path(session_id, request_id)
        taken = path.with_suffix(f".{os.getpid()}-{os.urandom(4).hex()}")
        try:
            path.rename(taken)
        except FileNotFoundError:
            return None
        state = taken.read_text("utf-8")
        taken.unlink()
        return state

    def remove(self, session_id: str, request_id: str) -> None:
        """Remove a state, if there is one."""
        self._path(session_id, request_id).unlink(missing_ok=True)

    def _path(self, session_id: str, request_id: str) -> Path:
        # A session id may have any characters; its digest is a file name everywhere.
        session = hashlib.sha256(session_id.encode()).hexdigest()[:32]
        return self._folder / session / f"{request_id}.json"


def _default_folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "agent-routing" / "runs"
