#!/usr/bin/env python3
"""Run what README.md shows, and compare or rewrite what was seen.

    scripts/readme_sessions.py --check HOST:PORT    differences end with exit code 1
    scripts/readme_sessions.py --write HOST:PORT    the README gets what is seen now

Owns: the console blocks, and the Python block with the text block behind it. HOST:PORT is a server
of the tax example on a new store, which takes the place of 127.0.0.1:50051. Ids and times that
differ from run to run are compared by their form.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
README: Final = ROOT / "README.md"
DOCUMENTED: Final = "127.0.0.1:50051"
COMMAND_S_MAX: Final = 60
COLUMNS: Final = "96"

_BLOCK: Final = re.compile(r"^```(console|python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_VARYING: Final = (
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "UUID"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*( UTC|Z)?"), "TIME"),
    (re.compile(r"\d+(\.\d+)? ?(ms|s|min)\b"), "SPAN"),
)


def main() -> int:
    """Run the blocks in order; each sees what those before it did."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", metavar="HOST:PORT")
    mode.add_argument("--write", metavar="HOST:PORT")
    arguments = parser.parse_args()
    server = arguments.check or arguments.write
    before = README.read_text(encoding="utf-8")
    after = replay(before, server)
    if arguments.write:
        README.write_text(after, encoding="utf-8")
        return 0
    differences = list(
        difflib.unified_diff(
            steady(before).splitlines(),
            steady(after).splitlines(),
            "README.md",
            "what is seen",
            lineterm="",
        )
    )
    sys.stdout.writelines(f"{line}\n" for line in differences)
    return 1 if differences else 0


def replay(text: str, server: str) -> str:
    """Return the README with what its commands and its program print now."""
    printed = ""

    def block(match: re.Match[str]) -> str:
        nonlocal printed
        kind, body = match.groups()
        if kind == "console":
            shown = "".join(session(command, server) for command in commands(body))
            return f"```console\n{shown}```"
        if kind == "python":
            printed = run([sys.executable, "-c", body], server)
            return match.group()
        if printed:
            output, printed = printed, ""
            return f"```text\n{output}```"
        return match.group()

    return _BLOCK.sub(block, text)


def commands(body: str) -> list[str]:
    """Return the commands of a console block: a $ begins one, a quote may span lines."""
    found: list[str] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            found.append(line[2:])
        elif found and found[-1].count("'") % 2:
            found[-1] += f"\n{line}"
    return found


def session(command: str, server: str) -> str:
    """Return a command with what it prints."""
    if command.startswith("export "):
        return f"$ {command}\n"
    return f"$ {command}\n{run(['bash', '-c', command], server)}"


def run(arguments: list[str], server: str) -> str:
    """Run a command against the server and return what a terminal would show."""
    bin_folder = Path(sys.executable).parent
    done = subprocess.run(
        [argument.replace(DOCUMENTED, server) for argument in arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_S_MAX,
        check=False,
        env={
            **os.environ,
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "AGENT_ROUTING_TARGET": server,
            "COLUMNS": COLUMNS,
            "NO_COLOR": "1",
        },
    )
    shown = "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())
    return shown.replace(server, DOCUMENTED)


def steady(text: str) -> str:
    """Return a text with all that differs from run to run replaced by its form."""
    for pattern, form in _VARYING:
        text = pattern.sub(form, text)
    return text


if __name__ == "__main__":
    sys.exit(main())
