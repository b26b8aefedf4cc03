"""docs/how-to/install.md is followed to the letter, each section in a clean folder, and timed."""

import re
import shlex
import shutil
import socket
import sys

import pytest

from routing_service import __version__
from scripts.doc_sessions import read_page
from scripts.package_names import NAMES
from tests import toolchains
from tests.install.conftest import ROOT, Serving, Stopwatch, run

PAGE = ROOT / "docs" / "how-to" / "install.md"
DOCUMENTED = "127.0.0.1:50051"
# From nothing to the first answered message: what a newcomer is promised, on one idle core.
PYTHON_CPU_S_MAX = 120
OTHERS_CPU_S_MAX = 300


def section_blocks(title):
    """Return the blocks of one section, in order."""
    text = PAGE.read_text("utf-8")
    heading = text.index(f"\n## {title}\n")
    first = text.count("\n", 0, heading) + 1
    later = re.search(r"^## ", text[heading + 4 :], re.MULTILINE)
    last = text.count("\n", 0, heading + 4 + later.start()) if later else text.count("\n")
    blocks = [block for block in read_page(PAGE).blocks if first < block.start <= last + 1]
    assert blocks, title
    return blocks


class Follower:
    """Follows a section's blocks: files are written, scripts run in one shell, output compared."""

    def __init__(self, folder, environment, address):
        self._folder, self._environment = folder, environment
        self._address = address
        self._exported = folder.parent / "exported.sh"
        self._printed = ""
        self.serving = None

    def follow(self, block):
        """Do what a reader does with one block."""
        text = block.text.replace(DOCUMENTED, self._address)
        if block.title:
            path = self._folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        elif block.in_background:
            words = [*shlex.split(text), "--listen", self._address]
            self.serving = Serving(words, self._folder, self._environment)
        elif block.language == "sh":
            target = {"AGENT_ROUTING_TARGET": self._address}
            # A reader types all of a section into one shell: what it exports stays.
            source = f"[ ! -e {self._exported} ] || . {self._exported}\n"
            script = f"set -eu\n{source}{text}\nexport -p > {self._exported}\n"
            printed = run(["sh", "-c", script], self._folder, self._environment | target)
            # Maven sets colours, which a reader does not see as text.
            self._printed = re.sub(r"\x1b\[[0-9;]*m", "", printed)
        else:
            assert block.language == "text"
            assert self._printed == text


def follow(title, machine, address):
    """Follow a section to its first answered message; return its processor time in seconds."""
    follower = Follower(*machine, address)
    watch = Stopwatch()
    try:
        for block in section_blocks(title):
            follower.follow(block)
    finally:
        if follower.serving:
            follower.serving.stop()
    return shown(title, watch)


def shown(title, watch):
    """Print what a section took; return its processor time in seconds."""
    seconds, cpu_seconds = watch.read()
    said = f"{title}: first answer after {seconds} s, {cpu_seconds} s of processor time"
    sys.stdout.write(f"\n{said}\n")
    return cpu_seconds


def free_address():
    """An address for a server that the section itself starts."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.timeout(1_200)
def test_the_service_is_installed_and_answers(clean_machine):
    """The wheel alone serves an example and starts a project; two extras are installed on top."""
    follower = Follower(*clean_machine, free_address())
    *first, project, extras = section_blocks("The service")
    watch = Stopwatch()
    try:
        for block in first:
            follower.follow(block)
    finally:
        if follower.serving:
            follower.serving.stop()
    assert shown("The service", watch) < PYTHON_CPU_S_MAX
    assert "coordinator" in follower._printed
    folder, environment = clean_machine
    watch = Stopwatch()
    demo = ["env/bin/agent-routing", "demo", "--once", "--no-browser", "--pause", "0"]
    said = run(demo, folder, environment)
    shown("The demo of an installed service", watch)
    # Without the extra web.
    assert 'no console: pip install "agent-routing-service[web]" adds it' in said
    follower.follow(project)
    assert (folder / "my-chat" / "worker.py").exists()
    follower.follow(extras)
    imported = run(
        [
            "env/bin/python",
            "-c",
            "import connectrpc, agent_routing_topics as e; print(e)",
        ],
        folder,
        environment,
    )
    assert str(folder) in imported


@pytest.mark.timeout(900)
def test_the_python_client_is_installed_and_answers(clean_machine, tax_address):
    """The client without the service."""
    assert follow("The Python client", clean_machine, tax_address) < PYTHON_CPU_S_MAX
    folder, environment = clean_machine
    listed = run(["env/bin/pip", "list", "--format", "freeze"], folder, environment)
    assert "agent-routing-client" in listed
    assert "agent-routing-service" not in listed


@pytest.mark.timeout(900)
def test_the_typescript_client_is_installed_and_answers(clean_machine, tax_address):
    """From the packed file, with its own dependencies only."""
    machine = with_toolchain(clean_machine, "node")
    assert follow("The TypeScript client", machine, tax_address) < OTHERS_CPU_S_MAX


@pytest.mark.timeout(900)
def test_the_typescript_client_installs_from_a_fresh_checkout(clean_machine, tmp_path):
    """Neither dist/ nor node_modules are there: npm compiles the client by its own scripts."""
    folder, environment = with_toolchain(clean_machine, "node")
    checkout = tmp_path / "checkout"
    which = ["--cached", "--others", "--exclude-standard", "clients/typescript"]
    listed = run(["git", "ls-files", "-z", *which], ROOT)
    for name in filter(None, listed.split("\0")):
        target = checkout / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    run(["npm", "init", "--yes"], folder, environment)
    run(["npm", "install", checkout / "clients" / "typescript"], folder, environment)
    program = 'import { Client } from "@agent-routing/client"; console.log(typeof Client);'
    said = run(["node", "--input-type=module", "-e", program], folder, environment)
    assert said == "function\n"
    run(["npm", "pack", checkout / "clients" / "typescript"], folder, environment)
    names = run(["tar", "tzf", f"agent-routing-client-{__version__}.tgz"], folder)
    assert "package/dist/index.js" in names.splitlines()


@pytest.mark.timeout(1_200)
def test_the_go_client_is_installed_and_answers(clean_machine, tax_address):
    """Through a module proxy that is a folder; then from a checkout, by the line as written."""
    machine = with_toolchain(clean_machine, "go")
    assert follow("The Go client", machine, tax_address) < OTHERS_CPU_S_MAX
    folder, environment = machine
    [line] = re.findall(r"`(go mod edit -require.+?)`", PAGE.read_text("utf-8"), re.DOTALL)
    second = folder.parent / "second"
    second.mkdir()
    shutil.copyfile(folder / "main.go", second / "main.go")
    run(["go", "mod", "init", "example.org/second"], second, environment)
    run(shlex.split(line.replace("PATH", str(ROOT))), second, environment)
    run(["go", "mod", "tidy"], second, environment)
    said = run(["go", "run", "."], second, environment)
    assert said == "send to coordinator because NO_ACTIVE_AGENT\n"


@pytest.mark.timeout(1_200)
def test_the_java_client_is_installed_and_answers(clean_machine, tax_address):
    """With Maven and a JDK alone: no Go, no Python. Both packages are imported whole."""
    machine = with_toolchain(clean_machine, "java")
    assert follow("The Java client", machine, tax_address) < OTHERS_CPU_S_MAX


def with_toolchain(machine, name):
    """The machine, with one toolchain and its variables, and none of the tests' own settings."""
    folder, environment = machine
    found = toolchains.require(name)
    own = {key: found.environment[key] for key in ("PATH", "JAVA_HOME") if key in found.environment}
    path = own.get("PATH", environment["PATH"]).split(":")
    own["PATH"] = ":".join([path[0], environment["PATH"]])
    return folder, environment | own


def test_every_manifest_has_the_name_of_the_table():
    """One table decides what packages are called; the page shows the same names."""
    assert run([sys.executable, "scripts/package_names.py", "--check"], ROOT) == ""
    page = PAGE.read_text("utf-8")
    maven = f"{NAMES['maven-group']}:{NAMES['maven-artifact']}"
    names = [name for key, name in NAMES.items() if not key.startswith(("maven", "home"))]
    assert [name for name in [*names, maven] if f"`{name}`" not in page] == []


@pytest.mark.timeout(600)
def test_pages_of_the_package_index_stand_by_themselves(packages, tmp_path):
    """Twine renders them; a relative link would lead nowhere there."""
    run([sys.executable, "-m", "virtualenv", "env"], tmp_path)
    run(["env/bin/pip", "install", "--quiet", "twine"], tmp_path)
    files = [*packages.glob("*.whl"), *packages.glob("agent_routing_*.tar.gz")]
    assert len(files) == 6
    said = run(["env/bin/twine", "check", "--strict", *files], tmp_path)
    assert said.count("PASSED") == 6
    for name in ("docs/assets/pypi.md", "clients/python/README.md", "topics/README.md"):
        links = re.findall(r"\]\(([^)]+)\)", (ROOT / name).read_text("utf-8"))
        assert [link for link in links if not link.startswith("https://")] == [], name
