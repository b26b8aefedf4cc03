"""Generate the contract's code for clients/go and clients/java, or check that it is current.

    .venv/bin/python scripts/make_stubs.py [--check] [go] [java] [...]

Owns the plugins and their versions, which it puts into build/plugins: Go's by `go install`, Java's
by Maven, so that both come from their toolchain's usual source. buf.gen.yaml says what is generated
and where. Its rule: a folder of generated code holds nothing else, so that it can be compared file
by file.
"""

import argparse
import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parent.parent
PLUGINS = ROOT / "build" / "plugins"
BUF = Path(sys.executable).parent / "buf"

# The runtimes that go.mod asks for are at least these: generated code runs with its own version of
# the runtime and newer ones.
GO_PLUGINS = (
    "google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.11",
    "google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.0",
)
# Java's generated code is three times the size of all the rest, so it is not checked in, but made
# for each build. Protobuf's is that of the runtime that grpc-java brings.
JAVA_PLUGINS = {
    "protoc": "com.google.protobuf:protoc:3.25.8:exe",
    "protoc-gen-grpc-java": "io.grpc:protoc-gen-grpc-java:1.76.0:exe",
}


@dataclass(frozen=True, slots=True)
class Language:
    """A client's language.

    folder: of its generated code. plugins: what brings its plugins. is_kept: whether the code is
    checked in.
    """

    folder: Path
    plugins: Callable[[], None]
    is_kept: bool = True


def run(command: list[str], **environment: str) -> None:
    """Run a command to its end; its own output says what went wrong.

    Raises subprocess.CalledProcessError if it fails.
    """
    subprocess.run(command, check=True, cwd=ROOT, env=os.environ | environment)


def once(name: str, bring: Callable[[], None]) -> None:
    """Install a plugin if this version is missing. name: with its version."""
    stamp = PLUGINS / f"{name.replace('/', '_')}.stamp"
    if not stamp.exists():
        bring()
        stamp.touch()


def go_plugins() -> None:
    """Build the plugins for Go."""
    for module in GO_PLUGINS:
        once(module, lambda module=module: run(["go", "install", module], GOBIN=str(PLUGINS)))


def java_platform() -> str:
    """Return what Maven's artifacts call this machine."""
    system = {"Darwin": "osx"}.get(platform.system(), platform.system().lower())
    machine = {"arm64": "aarch_64", "aarch64": "aarch_64", "AMD64": "x86_64"}
    return f"{system}-{machine.get(platform.machine(), platform.machine())}"


def java_plugins() -> None:
    """Get the plugins for Java, which are programs in Maven's repository."""
    for name, artifact in JAVA_PLUGINS.items():
        wanted = f"{artifact}:{java_platform()}"
        once(wanted.replace(":", "_"), lambda name=name, wanted=wanted: _copy(wanted, name))


def _copy(artifact: str, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        copy = ["mvn", "-B", "-q", "dependency:copy", f"-Dartifact={artifact}"]
        run([*copy, f"-DoutputDirectory={folder}"])
        (program,) = Path(folder).iterdir()
        shutil.move(program, PLUGINS / name)
    (PLUGINS / name).chmod(0o755)


LANGUAGES: Mapping[str, Language] = {
    "go": Language(ROOT / "clients" / "go" / "v1", go_plugins),
    "java": Language(
        ROOT / "clients" / "java" / "src" / "generated" / "java", java_plugins, is_kept=False
    ),
}


def generate(name: str, target: Path) -> Path:
    """Generate a language's code below target, and return the folder that it is in there."""
    template = YAML(typ="safe").load((ROOT / "buf.gen.yaml").read_text("utf-8"))
    home = f"clients/{name}"
    own = [each for each in template["plugins"] if (each["out"] + "/").startswith(home + "/")]
    template["plugins"] = [each | {"out": str(target / each["out"])} for each in own]
    run(
        [str(BUF), "generate", "--template", json.dumps(template), "--path", "protos/agent_routing"]
    )
    return target / LANGUAGES[name].folder.relative_to(ROOT)


def files(folder: Path) -> dict[str, bytes]:
    """Return what a folder holds, by the path in it."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def main() -> int:
    """Do it while no other process does: they would write the same files."""
    PLUGINS.mkdir(parents=True, exist_ok=True)
    with (PLUGINS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return generate_or_check()


def generate_or_check() -> int:
    """Generate, or with --check compare and return 1 if anything differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("languages", nargs="*", choices=[[], *LANGUAGES], help="all by default")
    parser.add_argument(
        "--check", action="store_true", help="write nothing, exit 1 if anything differs"
    )
    arguments = parser.parse_args()
    behind = 0
    for name in arguments.languages or LANGUAGES:
        language = LANGUAGES[name]
        language.plugins()
        with tempfile.TemporaryDirectory() as folder:
            made = generate(name, Path(folder))
            fresh, present = files(made), files(language.folder)
            shown = language.folder.relative_to(ROOT)
            if arguments.check and language.is_kept:
                names = sorted(fresh.keys() | present.keys())
                differing = [each for each in names if fresh.get(each) != present.get(each)]
                for each in differing:
                    print(f"{shown / each} is not what protos/ generates", file=sys.stderr)
                behind += len(differing)
                print(f"{shown}: {len(names) - len(differing)} files are current")
            elif fresh != present:
                # Unchanged files keep their time, so that compilers skip them.
                shutil.rmtree(language.folder, ignore_errors=True)
                shutil.copytree(made, language.folder)
                print(f"{shown}: {len(fresh)} files generated")
            else:
                print(f"{shown}: {len(fresh)} files are as they were")
    if behind:
        print("run `make stubs` and commit the result", file=sys.stderr)
    return min(behind, 1)


if __name__ == "__main__":
    sys.exit(main())
