"""A fast ``agent-routing`` for tests that run the command hundreds of times, such as the docs'.

Run as a program, it imports the command and everything that its parts import, which takes most of a
second of a core, and then forks a process for each call. A folder for PATH has an
``agent-routing`` that makes such a call: the process gets the call's arguments, environment,
folder, stdin, stdout and stderr, signals are passed on, and its exit code is returned.

Rule: only imports happen before the fork, so every process starts from the same state. Tests of
what needs a process of its own, such as a printed process id, run the real command.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import marshal
import os
import pkgutil
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER_VARIABLE = "DOC_SESSIONS_BIN"
"""Where scripts/doc_sessions.py looks for commands first."""

READY = b"ready\n"
WORDS_BYTES_MAX = 1024 * 1024
FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")

# As little as possible is imported: this is what each call costs.
CALLER = """\
import _signal, _socket, marshal, posix, sys
call = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
call.connect({path!r})
rights = b"".join(n.to_bytes(4, sys.byteorder) for n in (0, 1, 2))
given = marshal.dumps((sys.argv[1:], dict(posix.environ), posix.getcwd()))
call.sendmsg([len(given).to_bytes(4, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
call.sendall(given)
pid = int.from_bytes(call.recv(4), "big")
for name in {forwarded!r}:
    _signal.signal(getattr(_signal, name), lambda number, _frame: posix.kill(pid, number))
ended = call.recv(4)
code = int.from_bytes(ended, "big", signed=True) if ended else 1
if code < 0:
    _signal.signal(-code, _signal.SIG_DFL)
    posix.kill(posix.getpid(), -code)
posix._exit(code)
"""


@contextmanager
def forked_commands(folder: Path) -> Iterator[Path]:
    """Keep the command ready; yield its folder, or the usual one if this system cannot fork it."""
    if not hasattr(os, "pidfd_open"):
        yield Path(sys.executable).parent
        return
    path = folder / "calls"
    caller = folder / "caller.py"
    caller.write_text(CALLER.format(path=str(path), forwarded=FORWARDED), "utf-8")
    program = folder / "agent-routing"
    start = shlex.join([sys.executable, "-IS", str(caller)])
    program.write_text(f'#!/bin/sh\nexec {start} "$@"\n', "utf-8")
    program.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, __file__, str(path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == READY
        try:
            yield folder
        finally:
            process.stdin.close()


def serve(path: str) -> None:
    """Take calls until stdin ends; returns in the process of each, as what was called."""
    from routing_service import cli  # noqa: PLC0415 - not in the tests' own process

    for module in pkgutil.iter_modules(cli.__path__, "routing_service.cli."):
        importlib.import_module(module.name)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(64)
    # Otherwise each process would look through all that was imported, and so copy it.
    gc.collect()
    gc.freeze()
    os.write(1, READY)
    while True:
        # Whoever keeps this process ready may be killed, and it must not stay behind.
        if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:
            os._exit(0)
        call, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            break
        call.close()
        # Those that served earlier calls have ended, or do so before a later one.
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    length, files, _, _ = socket.recv_fds(call, 4, 3)
    given = b""
    while len(given) < int.from_bytes(length, "big"):
        given += call.recv(WORDS_BYTES_MAX)
    pid = os.fork()
    if pid == 0:
        call.close()
        _become(*marshal.loads(given), files)
        return
    for file in files:
        os.close(file)
    _see_to_its_end(pid, call)
    os._exit(0)


def _become(
    words: list[str], environment: dict[bytes, bytes], folder: str, files: list[int]
) -> None:
    """Be what was called."""
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environb.clear()
    os.environb.update(environment)
    os.chdir(folder)
    sys.argv = ["agent-routing", *words]
    more = os.environ.get("PYTHONPATH", "")
    sys.path[:1] = [str(Path(sys.executable).parent), *filter(None, more.split(os.pathsep))]


def _see_to_its_end(pid: int, call: socket.socket) -> None:
    """Send the caller the exit code of the process; if the caller is gone, kill the process."""
    ends = os.pidfd_open(pid)
    with suppress(BrokenPipeError):
        call.sendall(pid.to_bytes(4, "big"))
    if ends not in select.select([ends, call], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with suppress(BrokenPipeError):
        call.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))


def run() -> int:
    """Run the command that this process has become; return its exit code."""
    from routing_service.cli import main  # noqa: PLC0415 - as above

    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - told as the interpreter tells it
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


if __name__ == "__main__":
    serve(sys.argv[1])
    code = run()
    # As the interpreter ends, but for taking apart all that was imported.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
