"""Build the console's page from console/ into routing_service/web/console_page, or compare it.

    python scripts/console.py build    (make console)
    python scripts/console.py check    (fails if the built page is not what console/ builds)
    python scripts/console.py install  (its packages alone, for the tests)

Owns when `npm ci` runs: once for each state of the lockfile, also if several processes ask at the
same time. Needs Node with npm, and nothing of the project's own environment.
"""

import filecmp
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: there the tests are run by one process.
    fcntl = None  # type: ignore[assignment]

ROOT = Path(__file__).resolve().parent.parent
CONSOLE = ROOT / "console"
BUILT = ROOT / "routing_service" / "web" / "console_page"
INSTALLED = CONSOLE / "node_modules" / ".installed.sha256"
LOCK = ROOT / "build" / "console.lock"


def install() -> None:
    """Install the packages, unless they are there as the lockfile has them."""
    LOCK.parent.mkdir(exist_ok=True)
    with LOCK.open("w") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = hashlib.sha256((CONSOLE / "package-lock.json").read_bytes()).hexdigest()
        if INSTALLED.is_file() and INSTALLED.read_text() == wanted:
            return
        npm("ci", "--ignore-scripts", "--no-progress", "--no-audit", "--no-fund")
        # Written last, so that an interrupted run starts again.
        INSTALLED.write_text(wanted)


def build(folder: Path) -> None:
    """Check the types of the sources, and build them into a folder."""
    npm("run", "--silent", "check")
    npm("run", "--silent", "build", CONSOLE_OUT=str(folder))


def check() -> bool:
    """Say whether the built page is what the sources build."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "page"
        build(folder)
        names = {path.name for path in (*folder.iterdir(), *BUILT.iterdir())}
        _, differing, missing = filecmp.cmpfiles(folder, BUILT, sorted(names), shallow=False)
    for name in (*differing, *missing):
        print(f"{BUILT / name} is not what console/ builds; run make console", file=sys.stderr)
    return not differing and not missing


def npm(*arguments: str, **environment: str) -> None:
    """Run npm in the console's folder. Raises subprocess.CalledProcessError if it fails."""
    program = shutil.which("npm")
    if program is None:
        sys.exit("npm is not installed; scripts/toolchains.sh node installs Node with it")
    subprocess.run([program, *arguments], check=True, cwd=CONSOLE, env=os.environ | environment)


def main() -> int:
    """Do what is asked; 1 if it fails."""
    asked = sys.argv[1:]
    if asked not in (["build"], ["check"], ["install"]):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        install()
        if asked == ["build"]:
            build(BUILT)
        return 0 if asked != ["check"] or check() else 1
    except subprocess.CalledProcessError as failed:
        print(f"{' '.join(map(str, failed.cmd[1:]))} failed", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
