"""The table of behaviours in the documents names existing tests."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "behaviours.md"

MODULE = r"\[test_\w+\]\(\.\./([^)]+)\): (`\w+`(?:, `\w+`)*)"
ROW = re.compile(rf"\| (?P<what>[^|]+) \| (?P<modules>{MODULE}(?:; .+)?) \|")
NAME = re.compile(r"`(\w+)`")


def rows():
    """Return what each row has of each module: the behaviour, the module's path, tests' names."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    found = [ROW.fullmatch(line) for line in lines if line.startswith("| ") and "`" in line]
    assert all(found), "a row that is not | behaviour | [module](path): `tests`; … |"
    return [
        (row["what"], path, NAME.findall(tests))
        for row in found
        for path, tests in re.findall(MODULE, row["modules"])
    ]


@pytest.mark.parametrize(("what", "path", "names"), rows(), ids=lambda value: str(value)[:40])
def test_every_test_that_the_table_names_is_there(what, path, names):
    """Renaming a test must not leave a behaviour without its proof."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    tests = {
        node.name.removeprefix("test_")
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert names, what
    assert set(names) <= tests, what


def test_table_has_rows():
    """An empty table would pass the other test."""
    assert len(rows()) > 50
