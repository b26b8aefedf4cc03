"""Generate the blocking Python client from the asyncio one, or check that it is current.

    .venv/bin/python scripts/make_sync.py [--check]

unasync removes async and await and replaces the names below; ruff sorts the imports again and
formats. What differs by more than that (the channel, waiting, the stream) is written by hand in
client.py and aio.py, client_stream.py and aio_stream.py.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import unasync

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "clients" / "python" / "agent_routing"
RUFF = Path(sys.executable).parent / "ruff"

MODULES: Mapping[str, str] = {
    "admin_aio.py": "admin.py",
    "ask_calls_aio.py": "ask_calls.py",
    "approval_calls_aio.py": "approval_calls.py",
    "people_calls_aio.py": "people_calls.py",
    "routing_calls_aio.py": "routing_calls.py",
}
"""The hand-written modules, and what is generated from each."""

NAMES: Mapping[str, str] = {
    "AdminServiceAsyncStub": "AdminServiceStub",
    "AsyncAdmin": "Admin",
    "AsyncApprovalCalls": "ApprovalCalls",
    "AsyncAskCalls": "AskCalls",
    "AsyncClient": "Client",
    "AsyncPeopleCalls": "PeopleCalls",
    "AsyncRouteCall": "RouteCall",
    "AsyncRoutingCalls": "RoutingCalls",
    "AsyncRpc": "Rpc",
    "RoutingServiceAsyncStub": "RoutingServiceStub",
    "aio": "client",
    "approval_calls_aio": "approval_calls",
    "aclosing": "closing",
    "asyncio": "time",
    "people_calls_aio": "people_calls",
    "routing_calls_aio": "routing_calls",
    "metadata_soon": "metadata_now",
}


def generate(source: str) -> str:
    """Return the blocking form of a module. source: its file name."""
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "aio" / source, Path(folder) / "blocking" / source
        before.parent.mkdir()
        text = (PACKAGE / source).read_text(encoding="utf-8")
        before.write_text(text, encoding="utf-8")
        rule = unasync.Rule("/aio/", "/blocking/", additional_replacements=dict(NAMES))
        unasync.unasync_files([str(before)], [rule])
        made = after.read_text(encoding="utf-8")
    made = f"# Generated from {source} by scripts/make_sync.py. Do not edit.\n{made}"
    made = ruff(made, MODULES[source], "check", "--select=I", "--fix-only", "--quiet")
    return ruff(made, MODULES[source], "format", "--quiet")


def ruff(text: str, name: str, *command: str) -> str:
    """Return a module as ruff changes it."""
    done = subprocess.run(
        [RUFF, *command, f"--stdin-filename={PACKAGE / name}", "-"],
        check=True,
        cwd=ROOT,
        input=text,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout


def main() -> int:
    """Generate, or with --check compare and exit with 1 if anything differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing, exit 1 if anything differs"
    )
    arguments = parser.parse_args()
    behind = 0
    for source, name in MODULES.items():
        path, fresh = PACKAGE / name, generate(source)
        if not arguments.check:
            path.write_text(fresh, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != fresh:
            print(f"{name} is not what {source} generates", file=sys.stderr)
            behind += 1
    if behind:
        print("run `make protos` and commit the result", file=sys.stderr)
        return 1
    print(f"{len(MODULES)} blocking modules are {'current' if arguments.check else 'generated'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
