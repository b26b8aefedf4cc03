#!/usr/bin/env python3
"""Write the version in every file that has it, or check that it is the same everywhere.

    scripts/set_version.py 0.2.0      write it
    scripts/set_version.py --check    compare every place with routing_service/__init__.py

routing_service/__init__.py decides. The other places exist because each ecosystem's tools read a
file of their own: npm, Maven, pip, images. A place that is missing or has another form is an error,
so that a new one is not forgotten.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
SOURCE: Final = "routing_service/__init__.py"
VERSION: Final = r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?"

# File, and what stands before the version there; each match in the file is a place.
PLACES: Final[tuple[tuple[str, str], ...]] = (
    (SOURCE, r'^__version__ = "'),
    ("clients/python/agent_routing/_version.py", r'^__version__ = "'),
    ("pyproject.toml", r'"agent-routing-client=='),
    ("pyproject.toml", r'"agent-routing-topics=='),
    ("topics/pyproject.toml", r'^version = "'),
    ("topics/pyproject.toml", r'"agent-routing-service=='),
    ("deploy/README.md", r"--tag agent-routing:"),
    ("deploy/README.md", r"dist/image/agent-routing-"),
    ("deploy/helm/Chart.yaml", r"^version: "),
    ("deploy/helm/Chart.yaml", r"^appVersion: "),
    ("deploy/kubernetes/migrate.yaml", r"image: agent-routing:"),
    ("deploy/kubernetes/deployment.yaml", r"image: agent-routing:"),
    ("clients/typescript/package.json", r'^  "version": "'),
    ("clients/typescript/package-lock.json", r'^  "name": .*\n  "version": "'),
    ("clients/typescript/package-lock.json", r'^    "": \{\n\s*"name": .*\n\s*"version": "'),
    ("clients/typescript/examples/browser-chat/package.json", r'^  "version": "'),
    ("console/package.json", r'^  "version": "'),
    ("console/package-lock.json", r'^  "name": .*\n  "version": "'),
    ("console/package-lock.json", r'^    "": \{\n\s*"name": .*\n\s*"version": "'),
    ("clients/go/options.go", r'^const Version = "'),
    ("clients/java/src/main/java/agentrouting/RoutingClient.java", r'String VERSION = "'),
    ("clients/java/pom.xml", r"<artifactId>agent-routing-client</artifactId>\s*<version>"),
    ("clients/java/README.md", r"<artifactId>agent-routing-client</artifactId>\s*<version>"),
    ("docs/how-to/install.md", r"<artifactId>agent-routing-client</artifactId>\s*<version>"),
)


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("version", nargs="?", help="such as 0.2.0")
    parser.add_argument("--check", action="store_true", help="only compare")
    arguments = parser.parse_args()
    if arguments.check == bool(arguments.version):
        parser.error("name a version, or --check")
    if arguments.version and not re.fullmatch(VERSION, arguments.version):
        parser.error(f"{arguments.version!r} is no version such as 0.2.0 or 0.2.0rc1")
    wanted = arguments.version or found_in(SOURCE, PLACES[0][1])[0]
    wrong = 0
    for name, before in PLACES:
        found = found_in(name, before)
        if not found:
            print(f"{name}: no version stands behind {before!r}; mend the table of {__file__}")
            wrong += 1
        elif arguments.check and set(found) != {wanted}:
            print(f"{name}: {', '.join(found)} in the place of {wanted}")
            wrong += 1
        elif not arguments.check:
            path = ROOT / name
            text = path.read_text(encoding="utf-8")
            path.write_text(
                re.sub(f"({before}){VERSION}", rf"\g<1>{wanted}", text, flags=re.MULTILINE),
                encoding="utf-8",
            )
    return 1 if wrong else 0


def found_in(name: str, before: str) -> list[str]:
    """Return the versions in a file; none where it is not there."""
    path = ROOT / name
    if not path.exists():
        return []
    found = re.findall(f"{before}({VERSION})", path.read_text(encoding="utf-8"), re.MULTILINE)
    return [str(version) for version in found]


if __name__ == "__main__":
    sys.exit(main())
