"""What the tests of installing share: the files that users get, clean folders, a running server."""

import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import toolchains

ROOT = toolchains.ROOT
COMMAND_S_MAX = 800


def pytest_collection_modifyitems(items):
    """They download what a new machine would, so they have a target of their own."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("install")


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    """A copy of what `make packages` builds, away from the checkout.

    The variable PACKAGES names files that are built already, such as a release's.
    """
    built = Path(os.environ.get("PACKAGES") or ROOT / "dist")
    for script in () if os.environ.get("PACKAGES") else ("dist.py --build", "client_packages.py"):
        name, *words = script.split()
        run([sys.executable, f"scripts/{name}", *words], ROOT)
    return Path(shutil.copytree(built, tmp_path_factory.mktemp("packages") / "dist"))


@pytest.fixture
def clean_machine(tmp_path, packages):
    """A user's folder, and an environment with empty caches that does not find the checkout."""
    own = Path(sys.executable).parent
    path = [each for each in os.environ["PATH"].split(os.pathsep) if Path(each) != own]
    folder = tmp_path / "user"
    folder.mkdir()
    cache = tmp_path / "cache"
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "VIRTUAL_ENV", "AGENT_ROUTING", "COVERAGE"))
    } | {
        "PATH": os.pathsep.join(path),
        "PACKAGES": str(packages),
        "PIP_CACHE_DIR": str(cache / "pip"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "npm_config_cache": str(cache / "npm"),
        "GOPATH": str(cache / "go"),
        "GOCACHE": str(cache / "go-build"),
        "GOFLAGS": "-modcacherw",
        "MAVEN_OPTS": f"-Dmaven.repo.local={cache / 'maven'}",
    }
    yield folder, environment
    shutil.rmtree(cache, ignore_errors=True)


def run(words, folder, environment=None):
    """Run a command to its end; return its output. Fails with the output."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_S_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-5_000:]}\n{done.stderr[-5_000:]}"
    return done.stdout


class Serving:
    """A command that keeps running, after its line that says where it serves."""

    def __init__(self, words, folder, environment):
        self.log = Path(folder, "server.log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
            )
        line = self.process.stdout.readline()
        self.address = line.removeprefix("serving on ").strip()
        assert self.address, self.log.read_text("utf-8")

    def stop(self):
        """End it, and whatever it started, as Ctrl-C does."""
        self.process.terminate()
        self.process.communicate(timeout=60)


@pytest.fixture(scope="session")
def tax_address(tmp_path_factory):
    """The tax example on a free port, for the clients of languages that bring no server."""
    folder = tmp_path_factory.mktemp("server")
    command = Path(sys.executable).with_name("agent-routing")
    serving = Serving(
        [command, "serve", "--example", "tax", "--listen", "127.0.0.1:0"], folder, None
    )
    yield serving.address
    serving.stop()


class Stopwatch:
    """What commands cost since it was made.

    seconds: on the clock. cpu_seconds: of processor time, all processes together, which other work
    on the machine does not change; with the downloads it bounds the time on a machine of one core.
    """

    def __init__(self):
        self._from_s = time.monotonic()
        self._from_cpu_s = self._cpu_s()

    @staticmethod
    def _cpu_s():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def read(self):
        """Return both."""
        seconds = round(time.monotonic() - self._from_s, 1)
        return seconds, round(self._cpu_s() - self._from_cpu_s, 1)
