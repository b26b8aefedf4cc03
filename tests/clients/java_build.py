"""The Java client, generated and built by Maven; one process at a time.

Owns how Maven runs, and a lock: tests in different processes must not build into one folder at the
same time. A process that uses the build holds the lock.
"""

from __future__ import annotations

import fcntl
import functools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import toolchains

JAVA_CLIENT = toolchains.ROOT / "clients" / "java"
LOCK = toolchains.ROOT / "build" / "java-client.lock"


@contextmanager
def locked() -> Iterator[None]:
    """Keep other processes from building the client."""
    LOCK.parent.mkdir(exist_ok=True)
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def maven(*arguments: str) -> str:
    """Run Maven on the client and return its output. The caller holds the lock.

    Generates the contract's code first, because it is not checked in. Fails with the whole output.
    """
    _generate()
    program = toolchains.require("java").programs["mvn"]
    # Of the JVM that Maven starts for the tests.
    tests = f"-DargLine={' '.join(toolchains.JAVA_QUICK)}"
    return _run([program, "-B", "-ntp", tests, *arguments])


@functools.cache
def _generate() -> None:
    """Generate the contract's code, once per process: no test changes the contract."""
    _run([sys.executable, toolchains.ROOT / "scripts" / "make_stubs.py", "java"])


def example(main: str = "chat.Chat") -> list[str]:
    """Build the examples and return the command that starts one. The caller holds the lock."""
    return [*_java(), main]


@functools.cache
def _java() -> list[str]:
    classpath = JAVA_CLIENT / "target" / "classpath.txt"
    maven("-q", "test-compile", "dependency:build-classpath", f"-Dmdep.outputFile={classpath}")
    folders = [JAVA_CLIENT / "target" / name for name in ("classes", "test-classes")]
    path = ":".join([*map(str, folders), classpath.read_text("utf-8").strip()])
    program = str(toolchains.require("java").programs["java"])
    return [program, *toolchains.JAVA_QUICK, "-cp", path]


def _run(command: list[str | Path]) -> str:
    java = toolchains.require("java")
    done = subprocess.run(
        [str(each) for each in command],
        check=False,
        cwd=JAVA_CLIENT,
        env=java.environ(PYTHON=sys.executable),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-10_000:]
    return done.stdout
