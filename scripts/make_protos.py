"""Generate clients/python/agent_routing/v1 from protos/, or check that it is current.

Generates the code of the TypeScript and Go clients with it, where Node and Go are at hand.

The pinned generators (protos-requirements.txt) have their own venv under build/, so that neither
the service nor its users install them. The script runs with a bare Python 3.11, without the
project's environment. Rule: the generated files depend on the contract and the pins only, so that
--check can compare byte by byte.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
THIRD_PARTY = ROOT / "third_party" / "googleapis"
CLIENT = ROOT / "clients" / "python"
PACKAGE = Path("agent_routing") / "v1"
REQUIREMENTS = ROOT / "scripts" / "protos-requirements.txt"
VENV = ROOT / "build" / "protos-venv"
HANDWRITTEN = frozenset({"__init__.py"})


def run(command: list[str], **environment: str) -> None:
    """Run a command to its end; its own output says what went wrong.

    Raises subprocess.CalledProcessError if it fails.
    """
    subprocess.run(command, check=True, cwd=ROOT, env=os.environ | environment)


def make_venv(target: Path) -> None:
    """Make an empty venv, also where Python came without the means for it.

    Debian ships Python without ensurepip, which the venv module needs; virtualenv brings its own
    pip, and runs from a folder on the path.
    """
    shutil.rmtree(target, ignore_errors=True)
    probe = [sys.executable, "-c", "import ensurepip, venv"]
    if subprocess.run(probe, check=False, capture_output=True).returncode == 0:
        run([sys.executable, "-m", "venv", str(target)])
        return
    tool = target.with_name("virtualenv")
    run([sys.executable, "-m", "pip", "install", "-q", "--target", str(tool), "virtualenv"])
    run([sys.executable, "-m", "virtualenv", "-q", str(target)], PYTHONPATH=str(tool))


def generators() -> Path:
    """Return the bin folder with the pinned generators, installing them if the pins changed."""
    stamp = VENV / "requirements.sha256"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()
    programs = VENV / ("Scripts" if os.name == "nt" else "bin")
    if not stamp.is_file() or stamp.read_text() != wanted:
        make_venv(VENV)
        run([str(programs / "python"), "-m", "pip", "install", "-q", "-r", str(REQUIREMENTS)])
        # Written last, so that an interrupted installation starts again.
        stamp.write_text(wanted)
    return programs


def generate(target: Path) -> None:
    """Write the package's generated modules and their types below target."""
    programs = generators()
    sources = sorted((PROTOS / PACKAGE).glob("*.proto"))
    # The gRPC plugin writes an empty module for every file that has no service.
    services = [source for source in sources if source.stem.endswith("_service")]
    protoc = [
        str(programs / "python"),
        "-m",
        "grpc_tools.protoc",
        f"--proto_path={PROTOS}",
        f"--proto_path={THIRD_PARTY}",
    ]
    # protoc finds the mypy plugins by name on the path.
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    messages = [f"--python_out={target}", f"--mypy_out=quiet:{target}"]
    stubs = [f"--grpc_python_out={target}", f"--mypy_grpc_out=quiet:{target}"]
    run([*protoc, *messages, *map(str, sources)], PATH=path)
    run([*protoc, *stubs, *map(str, services)], PATH=path)


def generated_files(package: Path) -> dict[str, bytes]:
    """Return the generated files of a package folder by name."""
    return {
        path.name: path.read_bytes()
        for path in sorted(package.glob("*.py*"))
        if path.is_file() and path.name not in HANDWRITTEN
    }


def write(fresh: dict[str, bytes], package: Path) -> None:
    """Replace the generated files of a package folder, dropping those no longer generated."""
    for name in generated_files(package).keys() - fresh.keys():
        (package / name).unlink()
    for name, content in fresh.items():
        (package / name).write_bytes(content)
    print(f"{len(fresh)} files generated in {package.relative_to(ROOT)}")


def stale(fresh: dict[str, bytes], package: Path) -> list[str]:
    """Return the names of generated files that are missing, left over or different."""
    present = generated_files(package)
    names = present.keys() | fresh.keys()
    return sorted(name for name in names if present.get(name) != fresh.get(name))


def make_typescript() -> int:
    """Generate the TypeScript client's code too, where there is npm.

    `make test-clients` checks it.
    """
    if shutil.which("npm") is None:
        print("clients/typescript/src/gen is as it was: npm is not installed")
        return 0
    script = ROOT / "scripts" / "typescript_client.py"
    return subprocess.run([sys.executable, str(script), "generate"], check=False).returncode


def make_go() -> int:
    """Generate the Go client's code too, where there is Go; `make test-clients` checks it."""
    if shutil.which("go") is None:
        print("clients/go/v1 is as it was: go is not installed")
        return 0
    script = ROOT / "scripts" / "make_stubs.py"
    return subprocess.run([sys.executable, str(script), "go"], check=False).returncode


def main() -> int:
    """Generate, or with --check compare and exit with 1 if anything differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing, exit 1 if anything differs"
    )
    arguments = parser.parse_args()
    package = CLIENT / PACKAGE
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh = generated_files(Path(folder) / PACKAGE)
    if not arguments.check:
        write(fresh, package)
        return make_typescript() or make_go()
    differing = stale(fresh, package)
    for name in differing:
        print(f"{package.relative_to(ROOT) / name} is not what protos/ generates", file=sys.stderr)
    if differing:
        print("run `make protos` and commit the result", file=sys.stderr)
        return 1
    print(f"{len(fresh)} generated files are current")
    return 0


if __name__ == "__main__":
    sys.exit(main())
