"""Run npm scripts of clients/typescript, with its packages installed as the lockfile has them.

    python scripts/typescript_client.py generate:check
    python scripts/typescript_client.py compile          (the client, its tests and examples)
    python scripts/typescript_client.py page             (examples/browser-chat, to be published)

Owns when `npm ci` and the compiler run: once for each state of their inputs, also if several
processes ask at the same time, as the tests do. Needs Node with npm, and nothing of the project's
own environment.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: there the tests are run by one process.
    fcntl = None  # type: ignore[assignment]

ROOT = Path(__file__).resolve().parent.parent
CLIENT = ROOT / "clients" / "typescript"
INSTALLED = CLIENT / "node_modules" / ".installed.sha256"
COMPILED = CLIENT / "build" / ".compiled.sha256"
PAGE = CLIENT / "examples" / "browser-chat"
PAGE_BUILT = PAGE / "dist" / ".built.sha256"
LOCK = ROOT / "build" / "typescript-client.lock"


def install() -> None:
    """Install the packages, unless they are there as the lockfile has them.

    Raises subprocess.CalledProcessError if npm fails; its own output says why.
    """
    manifests = [CLIENT / "package.json", CLIENT / "package-lock.json"]
    once(INSTALLED, manifests, ["ci", "--no-progress"])


def compile_all() -> None:
    """Compile the client, its tests and examples, unless nothing has changed since.

    Raises subprocess.CalledProcessError for what does not compile; the compiler says what.
    """
    folders = ("src", "test", "examples/chat", "examples/worker")
    sources = [path for folder in folders for path in sorted((CLIENT / folder).rglob("*.ts"))]
    settings = [*sorted(CLIENT.glob("tsconfig*.json")), CLIENT / "package-lock.json"]
    once(COMPILED, [*settings, *sources], ["run", "--silent", "build"], ["run", "-s", "build:test"])


def build_page() -> None:
    """Build the browser's example, unless nothing has changed since.

    Raises subprocess.CalledProcessError if Vite fails; its own output says why.
    """
    compile_all()
    chat = CLIENT / "examples" / "chat"
    sources = [*sorted(PAGE.glob("src/*")), *sorted(PAGE.glob("*.*")), *sorted(chat.glob("*.ts"))]
    once(PAGE_BUILT, [COMPILED, *sources], ["run", "--silent", "build", f"--workspace={PAGE}"])


def once(stamp: Path, inputs: list[Path], *commands: list[str]) -> None:
    """Run npm, unless it has run on just these inputs; one process at a time."""
    LOCK.parent.mkdir(exist_ok=True)
    with LOCK.open("w") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        digest = hashlib.sha256()
        for path in inputs:
            digest.update(f"{path.relative_to(CLIENT)}\0".encode() + path.read_bytes() + b"\0")
        if stamp.is_file() and stamp.read_text() == digest.hexdigest():
            return
        for command in commands:
            npm(*command)
        # Written last, so that an interrupted run starts again.
        stamp.write_text(digest.hexdigest())


def npm(*arguments: str) -> None:
    """Run npm in the client's folder. Raises subprocess.CalledProcessError if it fails."""
    program = shutil.which("npm")
    if program is None:
        sys.exit("npm is not installed; scripts/toolchains.sh node installs Node with it")
    subprocess.run([program, *arguments], check=True, cwd=CLIENT, env=os.environ)


def main() -> int:
    """Install, and run the scripts that are named, in order; 1 if one fails."""
    try:
        install()
        for script in sys.argv[1:]:
            if script == "compile":
                compile_all()
            elif script == "page":
                build_page()
            else:
                npm("run", "--silent", script)
    except subprocess.CalledProcessError as failed:
        print(f"{' '.join(map(str, failed.cmd[1:]))} failed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
