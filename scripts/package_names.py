#!/usr/bin/env python3
"""The name of each package in its registry, and the check that every file uses it.

    scripts/package_names.py                                list the names
    scripts/package_names.py --check                        compare each manifest with this table
    scripts/package_names.py --set maven-group org.acme     write another name everywhere

This table decides. Until the project has a public home, Go and Maven names are below example.com,
which RFC 2606 reserves, so that no package of another project can have them; the npm name has a
scope. After --set for Go, run `make protos`, and for npm `npm install` in clients/typescript.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent

NAMES: Final = {
    "pypi-service": "agent-routing-service",
    "pypi-client": "agent-routing-client",
    "pypi-topics": "agent-routing-topics",
    "npm": "@agent-routing/client",
    "go": "example.com/agent-routing/go",
    "maven-group": "com.example.agentrouting",
    "maven-artifact": "agent-routing-client",
    "home": "https://example.com/agent-routing",
}

# By name: the file that registries read, and what stands there before the name.
MANIFESTS: Final = (
    ("pypi-service", "pyproject.toml", '^name = "'),
    ("pypi-client", "clients/python/pyproject.toml", '^name = "'),
    ("pypi-topics", "topics/pyproject.toml", '^name = "'),
    ("npm", "clients/typescript/package.json", '^  "name": "'),
    ("npm", "clients/typescript/package-lock.json", '^  "name": "'),
    ("go", "clients/go/go.mod", "^module "),
    ("go", "buf.gen.yaml", "opt: module="),
    ("maven-group", "clients/java/pom.xml", "^  <groupId>"),
    ("maven-artifact", "clients/java/pom.xml", "^  <artifactId>"),
    ("home", "pyproject.toml", '^Homepage = "'),
    ("home", "clients/python/pyproject.toml", '^Homepage = "'),
    ("home", "topics/pyproject.toml", '^Homepage = "'),
)

RESERVED: Final = ("example.com", "com.example")
"""In a name: below a domain that cannot be owned, so the name is a stand-in."""

SETTABLE: Final = ("npm", "go", "maven-group", "home")
"""The names that are unlike any other text. The others are also names of Python distributions."""

_NAME: Final = r"[A-Za-z0-9@][A-Za-z0-9@:./_-]*"


def main() -> int:
    """List, check or write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare each manifest")
    parser.add_argument("--set", nargs=2, metavar=("KEY", "NAME"), help="write another name")
    arguments = parser.parse_args()
    if arguments.set:
        return write(*arguments.set)
    if arguments.check:
        return check()
    for key, name in NAMES.items():
        print(f"{key:15}  {name}")
    return 0


def stand_ins() -> dict[str, str]:
    """Return the names that have to change before the packages can be published."""
    return {key: name for key, name in NAMES.items() if any(each in name for each in RESERVED)}


def check() -> int:
    """Return how many manifests have another name than the table."""
    wrong = 0
    for key, file, before in MANIFESTS:
        text = (ROOT / file).read_text(encoding="utf-8")
        found = re.findall(f"{before}({_NAME})", text, re.MULTILINE)
        if found[:1] != [NAMES[key]]:
            print(f"{file}: {' '.join(found[:1]) or 'no name'} in the place of {NAMES[key]}")
            wrong += 1
    return wrong


def write(key: str, name: str) -> int:
    """Replace a name in every file that git knows, except in the changelog."""
    if key not in SETTABLE or not re.fullmatch(_NAME, name):
        print(f"give one of {', '.join(SETTABLE)}, and a name such as {NAMES['go']}")
        return 1
    known = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    old, changed = NAMES[key].encode(), 0
    for file in known.stdout.decode().split("\0"):
        path = ROOT / file
        if file == "CHANGELOG.md" or not path.is_file():
            continue
        content = path.read_bytes()
        # Not within a longer name, such as one of another module.
        renamed = re.sub(rb"(?<![\w@./-])" + re.escape(old) + rb"(?![\w-])", name.encode(), content)
        if renamed != content:
            path.write_bytes(renamed)
            changed += 1
    print(f"{changed} files have {name} now")
    return 0


if __name__ == "__main__":
    sys.exit(main())
