"""Plays the scenarios: each contender in processes of its own, some of which are killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import peer_environment
from benchmarks.comparison.contenders import Contender
from benchmarks.comparison.scripted import ASKED, GATE, KILL, SLOWLY, STORIES, TRACE

HERE: Final = Path(__file__).parent
PEERS: Final = HERE / "peers"
ENVIRONMENTS: Final = peer_environment.ROOT / "build" / "comparison"
EXAMPLES: Final = peer_environment.ROOT / "routing_service" / "examples"
OURS: Final = "this_service"
STORE: Final = "routing.db"
PROCESS_S_MAX: Final = 300
READY: Final = "serving on "
TRACE_PREFIX: Final = "trace-"

QUESTION: Final = STORIES["tax"].messages[0]
ANSWER: Final = STORIES["tax"].messages[1]
NEXT: Final = "And when is it due?"
AT_ONCE: Final = (SLOWLY + "has my invoice been paid?", "Say quarterly")
CUT_OFF: Final = "Please look up my invoice"
REFUSED: Final = ("Please file my return", "Please pass me on", "Yes")
REQUEST_IDS: Final = tuple(f"0198a6c0-0000-7000-8000-00000000000{number}" for number in range(6))

Seen = dict[str, Any]


def python_of(contender: Contender) -> Path:
    """Return the Python of a contender's environment, which is made if it is not there."""
    if contender.key == OURS:
        return Path(sys.executable)
    return peer_environment.prepare(contender.key, PEERS, ENVIRONMENTS)


def versions(contender: Contender) -> Mapping[str, str]:
    """Return the versions of a contender's packages in its environment."""
    program = (
        "import json, sys; from importlib.metadata import version;"
        " print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
    )
    done = subprocess.run(
        [str(python_of(contender)), "-c", program, *contender.packages],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return dict(json.loads(done.stdout))


class Stage:
    """One scenario of a contender: a story, and a folder for its storage."""

    def __init__(self, contender: Contender, story: str) -> None:
        self.contender, self.story = contender, story
        self.folder = Path(tempfile.mkdtemp(prefix="comparison-"))
        self._server: subprocess.Popen[str] | None = None
        self.address = ""

    def act(self, *steps: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return these steps on this storage, as a process takes them."""
        if self.contender.key == OURS and self._server is None:
            self._serve()
        return {
            "story": self.story,
            "folder": str(self.folder),
            "steps": steps,
            "address": self.address,
        }

    def run(self, *steps: Mapping[str, Any], **environment: str) -> list[Seen]:
        """Play steps in a process; return what was seen of each step that ended."""
        return finish(start(self.contender, self.act(*steps), **environment))

    def restart(self) -> None:
        """Kill what holds the storage besides the processes of the steps: our server."""
        if self._server is not None:
            self._server.send_signal(signal.SIGKILL)
            self._server.wait()
            self._server = None

    def copy(self) -> Stage:
        """Return another stage on a copy of the storage as it is on disk."""
        assert self._server is None, "a store that is open is not copied"
        other = Stage(self.contender, self.story)
        shutil.rmtree(other.folder)
        shutil.copytree(self.folder, other.folder)
        return other

    def close(self) -> None:
        """Remove everything."""
        self.restart()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _serve(self) -> None:
        command = [str(Path(sys.executable).parent / "agent-routing"), "serve"]
        command += ["--listen", "127.0.0.1:0", "--store", f"sqlite:///{self.folder / STORE}"]
        command += ["--agents", str(EXAMPLES / f"{self.story}.yaml")]
        self._server = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        if not line.startswith(READY):
            raise RuntimeError(f"the server did not start: {line!r}")
        self.address = line.removeprefix(READY).strip()


def start(
    contender: Contender, *acts: Mapping[str, Any], **environment: str
) -> subprocess.Popen[str]:
    """Start a process that plays these acts."""
    handle, trace = tempfile.mkstemp(dir=acts[0]["folder"], prefix=TRACE_PREFIX)
    os.close(handle)
    return subprocess.Popen(
        [str(python_of(contender)), str(PEERS / f"{contender.key}.py"), json.dumps(acts)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            "PATH": os.environ.get("PATH", ""),
            "PYTHONPATH": f"{HERE}{os.pathsep}{PEERS}",
            TRACE: trace,
            **environment,
        },
    )


def finish(process: subprocess.Popen[str]) -> list[Seen]:
    """Wait for a process; return what it saw, with its death by a signal at the end."""
    out, complaints = process.communicate(timeout=PROCESS_S_MAX)
    seen = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    if process.returncode < 0:
        seen.append({"killed": True})
    elif process.returncode:
        raise RuntimeError(f"a contender's program failed: {complaints[-2000:]}")
    return seen


@contextlib.contextmanager
def stage(contender: Contender, story: str = "tax") -> Iterator[Stage]:
    """Yield a new stage, and remove it."""
    made = Stage(contender, story)
    try:
        yield made
    finally:
        made.close()


def send(text: str, request: int | None = None) -> Mapping[str, Any]:
    """Return the step that sends a message. request: which of the request ids it has."""
    request_id = "" if request is None else REQUEST_IDS[request]
    return {"do": "send", "text": text, "request_id": request_id}


READ: Final[Mapping[str, Any]] = {"do": "read"}


def in_one_process(contender: Contender) -> Seen:
    """Play each example's story, a repeat, and a handoff that is not allowed.

    The repeat is the same message again, as a caller sends it after a timeout. on_disk: what is in
    the storage after the first story.
    """
    seen: Seen = {}
    again = send(ANSWER, 1)
    first = again
    if contender.gives_request_ids:
        first, again = send(ANSWER), {**again, "request_id": ASKED}
    plan = {name: [send(text) for text in story.messages] for name, story in STORIES.items()}
    plan["repeat"] = [send(QUESTION), first, again, READ]
    plan["refused"] = [send(text) for text in REFUSED]
    with contextlib.ExitStack() as stack:
        stages = {
            name: stack.enter_context(stage(contender, name if name in STORIES else "tax"))
            for name in plan
        }
        acts = [stages[name].act(*steps) for name, steps in plan.items()]
        said = iter(finish(start(contender, *acts)))
        for name, steps in plan.items():
            seen[name] = [next(said) for _ in steps]
        stages["tax"].restart()
        seen["on_disk"] = on_disk(stages["tax"].folder)
    return seen


def restart(contender: Contender) -> Seen:
    """Play the first message in one process, the answer in another."""
    with stage(contender) as on:
        on.run(send(QUESTION))
        on.restart()
        answered, stored = on.run(send(ANSWER), READ)
        return {"answered": answered, "stored": stored}


def at_once(contender: Contender) -> Seen:
    """Let two processes work on messages of one session; the first one's model answers last."""
    with stage(contender) as on:
        gate = on.folder / "gate"
        act = on.act(send(QUESTION), send(AT_ONCE[0]))
        slow = start(contender, act, **{GATE: str(gate)})
        ends_s = time.monotonic() + PROCESS_S_MAX
        reached = Path(f"{gate}.reached")
        while not reached.exists() and slow.poll() is None and time.monotonic() < ends_s:
            time.sleep(0.02)
        fast = on.run(send(AT_ONCE[1]))
        gate.touch()
        seen = {"slow": finish(slow)[-1], "fast": fast[-1]}
        seen["stored"], seen["next"] = on.run(READ, send(NEXT))
        return seen


def kill(contender: Contender) -> Seen:
    """Kill the process while a tool runs: the model has answered, the turn has not ended.

    Then continue as the documentation says, and on a copy send another message instead.
    """
    with stage(contender) as on:
        cut_off = send(CUT_OFF, None if contender.gives_request_ids else 2)
        killed = on.run(send(QUESTION), cut_off, **{KILL: "1"})
        on.restart()
        with contextlib.closing(on.copy()) as other:
            left, after, stored_after = other.run(READ, send(NEXT), READ)
        resumed, stored = on.run({**cut_off, "do": "resume"}, READ)
        return {
            "killed": killed,
            "left": left,
            "next": after,
            "stored_after_next": stored_after,
            "resumed": resumed,
            "stored": stored,
        }


SCENARIOS: Final = {
    "in_one_process": in_one_process,
    "restart": restart,
    "at_once": at_once,
    "kill": kill,
}


def on_disk(folder: Path) -> Mapping[str, Any]:
    """Return the storage's size, and the rows of its tables or the number of its files."""
    files = [
        path
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(TRACE_PREFIX)
    ]
    size_bytes = sum(path.stat().st_size for path in files)  # Reading a database changes its files.
    found: dict[str, int] = {}
    for path in files:
        if path.suffix == ".db":
            with contextlib.closing(sqlite3.connect(path)) as connection:
                names = connection.execute("select name from sqlite_master where type = 'table'")
                for (name,) in names.fetchall():
                    [count] = connection.execute(f'select count(*) from "{name}"').fetchone()
                    if count:
                        found[name] = count
        elif path.suffix == ".json":
            found["checkpoint files"] = found.get("checkpoint files", 0) + 1
    return {"bytes": size_bytes, "rows": found}


def play(contender: Contender, only: Sequence[str] = ()) -> Mapping[str, Seen]:
    """Play all scenarios, or some."""
    seen = {}
    for name, scenario in SCENARIOS.items():
        if only and name not in only:
            continue
        started_s = time.monotonic()
        seen[name] = scenario(contender)
        sys.stderr.write(f"{contender.key} {name} {time.monotonic() - started_s:.0f} s\n")
    return seen
