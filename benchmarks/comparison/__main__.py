"""`make compare`: plays all scenarios with all contenders and writes the page's tables.

It takes a quarter of an hour, needs the package index the first time, and no other network.

    python -m benchmarks.comparison [--only KEY ...] [--together N] [--write-page]
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import platform
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from benchmarks.comparison import play, tables
from benchmarks.comparison.contenders import CONTENDERS, Contender
from benchmarks.peer_environment import ROOT

RESULT: Final = Path(__file__).parent / "result.json"
TOGETHER: Final = 2
"""Contenders at once: each has one process at a time, or two."""
PAGE: Final = ROOT / "docs" / "explanation" / "comparison.md"


def main(arguments: list[str]) -> None:
    """Play, store what was seen, write the page."""
    keys = [each.key for each in CONTENDERS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.comparison")
    parser.add_argument(
        "--only", nargs="+", choices=keys, default=[], help="play these, keep what others saw"
    )
    parser.add_argument(
        "--together", type=int, default=TOGETHER, help="how many contenders play at once"
    )
    parser.add_argument("--write-page", action="store_true", help="write the page, play nothing")
    given = parser.parse_args(arguments)
    result: dict[str, Any] = {"seen": {}}
    if (given.only or given.write_page) and RESULT.exists():
        result = json.loads(RESULT.read_text(encoding="utf-8"))
    if not given.write_page:
        chosen = [each for each in CONTENDERS if not given.only or each.key in given.only]
        with ThreadPoolExecutor(given.together) as pool:
            played = dict(zip([each.key for each in chosen], pool.map(_play, chosen), strict=True))
        seen = result["seen"] | played
        result["seen"] = {key: seen[key] for key in keys if key in seen}
        result["date"] = dt.datetime.now(tz=dt.UTC).date().isoformat()
        result["python"] = platform.python_version()
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(
        with_tables(PAGE.read_text(encoding="utf-8"), tables.render(result)), encoding="utf-8"
    )


def _play(contender: Contender) -> Mapping[str, Any]:
    return {"versions": play.versions(contender), **play.play(contender)}


def with_tables(page: str, rendered: str) -> str:
    """Return the page with these tables between its marks."""
    before, _, rest = page.partition(tables.BEGIN)
    _, _, after = rest.partition(tables.END)
    return before + rendered + after


if __name__ == "__main__":
    main(sys.argv[1:])
