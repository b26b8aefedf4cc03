"""How large and how tangled the service is, from its own source and from recorded calls.

    make shape           the table
    make shape args=--check   also fail where an arrow runs back, files import each other in a
                         circle, or a function is longer than 80 lines

A room is a file of Python; an arrow is one file that imports another, for types alone too. A floor
is one more than the highest floor of what a room imports. To count floors in a circle, the arrows
that close it are left out; these are the arrows that run back. The recorded calls are those of
`benchmarks/call_path.py`: their bytes go in and out as gRPC's do, over the store in memory.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SERVICE: Final = "routing_service"

FUNCTION_LINES_MOST: Final = 80
FEW_LINES: Final = 60
"""A file below this is counted: many of them are one idea cut into pieces."""

sys.path.insert(0, str(ROOT))


@dataclass
class Module:
    """One file and what it imports of the service."""

    path: Path
    lines: int
    tree: ast.Module
    imports: set[str] = field(default_factory=set)


def read_modules(package: str) -> dict[str, Module]:
    """Return the package's modules by their dotted names, with what they import of the package."""
    modules = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        text = path.read_text()
        dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        modules[dotted] = Module(path, text.count("\n"), ast.parse(text))
    for dotted, module in modules.items():
        module.imports = set(_imported(module.tree, modules)) - {dotted}
    return modules


def _imported(tree: ast.Module, modules: dict[str, Module]) -> list[str]:
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            # A name may be a module of the package, or something that the package defines.
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names += [name if name in modules else node.module for name in whole]
    return [name for name in names if name in modules]


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other (Tarjan's components of two and more)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    result = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in sorted(arrows[name]):
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                result.append(sorted(group))

    sys.setrecursionlimit(10_000)
    for name in sorted(arrows):
        if name not in index:
            visit(name)
    return result


def without_back(arrows: dict[str, set[str]]) -> tuple[dict[str, set[str]], list[tuple[str, str]]]:
    """Return the arrows without those that close circles, and these.

    In each circle the arrow is left out that leaves the fewest rooms in circles; among equals the
    first by name.
    """
    forward = {name: set(targets) for name, targets in arrows.items()}
    back = []
    while groups := circles(forward):
        inside = {
            (name, target)
            for group in groups
            for name in group
            for target in forward[name] & {*group}
        }

        def left_in_circles(arrow: tuple[str, str]) -> int:
            trial = {**forward, arrow[0]: forward[arrow[0]] - {arrow[1]}}
            return sum(len(group) for group in circles(trial))

        name, target = min(sorted(inside), key=left_in_circles)
        forward[name].discard(target)
        back.append((name, target))
    return forward, back


def floors(arrows: dict[str, set[str]]) -> int:
    """Return the length, in modules, of the longest chain of arrows without a circle."""
    depth: dict[str, int] = {}

    def of(name: str) -> int:
        if name not in depth:
            depth[name] = 1 + max(map(of, arrows[name]), default=0)
        return depth[name]

    return max(map(of, arrows), default=0)


def within(modules: dict[str, Module], package: str) -> dict[str, set[str]]:
    """Return the arrows among the modules of a package; its __init__, a mere face, is no room."""
    inside = {
        name
        for name, module in modules.items()
        if name.startswith(package + ".") and module.path.name != "__init__.py"
    }
    return {name: modules[name].imports & inside for name in sorted(inside)}


def long_functions(modules: dict[str, Module]) -> list[tuple[int, str]]:
    """Return the functions over FUNCTION_LINES_MOST lines, the longest first."""
    return sorted(
        (
            (length, f"{name}.{node.name}")
            for name, module in modules.items()
            for node in ast.walk(module.tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and (length := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES_MOST
        ),
        reverse=True,
    )


def event_matches(modules: dict[str, Module]) -> dict[str, int]:
    """Return how often each module asks which kind of event it has: cases, isinstance, keys."""
    events = modules[f"{SERVICE}.core.events"].tree
    kinds = {node.name for node in events.body if isinstance(node, ast.ClassDef)}
    counts: dict[str, int] = defaultdict(int)
    for name, module in modules.items():
        for node in ast.walk(module.tree):
            asked: list[ast.AST] = []
            if isinstance(node, ast.MatchClass):
                asked = [node.cls]
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                asked = list(ast.walk(node.args[1]))
            elif isinstance(node, ast.Dict):
                asked = [key for key in node.keys if key is not None]
            counts[name] += sum(_name(kind) in kinds for kind in asked)
    return {name: count for name, count in counts.items() if count}


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def with_one_importer(modules: dict[str, Module]) -> list[str]:
    """Return the modules that one module alone imports, which is in the same folder."""
    importers: dict[str, set[str]] = defaultdict(set)
    for name, module in modules.items():
        for target in module.imports:
            importers[target].add(name)
    return [
        name
        for name, module in modules.items()
        if module.path.name != "__init__.py"
        and len(importers[name]) == 1
        and modules[next(iter(importers[name]))].path.parent == module.path.parent
    ]


def _lines(folder: str, pattern: str = "*.py") -> tuple[int, int]:
    files = [path for path in (ROOT / folder).rglob(pattern) if ".venv" not in path.parts]
    return sum(path.read_text().count("\n") for path in files), len(files)


def _words() -> int:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    folders = ("clients", "console", "deploy", "topics", "benchmarks", "tests", "protos")
    for folder in folders:
        pages += (ROOT / folder).rglob("*.md")
    return sum(len(page.read_text().split()) for page in pages if "node_modules" not in page.parts)


def table(modules: dict[str, Module]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the rows of the table, and what must not be."""
    from benchmarks import call_path  # noqa: PLC0415 - imports the service itself

    everything = {name: module.imports for name, module in modules.items()}
    forward, back_everywhere = without_back(everything)
    core = within(modules, f"{SERVICE}.core")
    core_forward, core_back = without_back(core)
    matches = event_matches(modules)
    too_long = long_functions(modules)
    calls = asyncio.run(call_path.record())

    rows = [
        ("routing_service: lines / files", _parts(*_lines(SERVICE))),
        (
            "core: rooms / arrows / floors / back / circles",
            _parts(
                len(core), _count(core), floors(core_forward), len(core_back), len(circles(core))
            ),
        ),
        (
            "all: rooms / arrows / back / circles",
            _parts(
                len(modules), _count(everything), len(back_everywhere), len(circles(everything))
            ),
        ),
        ("longest import chain", str(floors(forward))),
    ]
    rows += [
        (
            f"{name}: calls / files / changes of file / kinds of value",
            _parts(path.calls, path.files, path.changes, path.kinds),
        )
        for name, path in calls.items()
    ]
    rows += [
        ("event match sites / modules that have them", _parts(sum(matches.values()), len(matches))),
        ("modules with one importer, in its own folder", str(len(with_one_importer(modules)))),
        (
            f"files under {FEW_LINES} lines",
            str(
                sum(
                    module.lines < FEW_LINES and module.path.name != "__init__.py"
                    for module in modules.values()
                )
            ),
        ),
        (f"functions over {FUNCTION_LINES_MOST} lines", str(len(too_long))),
        ("cli: lines / files", _parts(*_lines(f"{SERVICE}/cli"))),
        ("Python client: lines / files, without generated code", _parts(*_client())),
        ("tests: lines / files", _parts(*_lines("tests"))),
        ("Markdown: words", f"{_words():,}"),
    ]
    wrong = [f"{name} imports {target}, which runs back" for name, target in back_everywhere]
    wrong += [f"in a circle: {', '.join(group)}" for group in circles(everything)]
    wrong += [f"{name} has {length} lines" for length, name in too_long]
    return rows, wrong


def _parts(*figures: int) -> str:
    return " / ".join(f"{figure:,}" for figure in figures)


def _count(arrows: dict[str, set[str]]) -> int:
    return sum(map(len, arrows.values()))


def _client() -> tuple[int, int]:
    lines, files = _lines("clients/python/agent_routing")
    generated_lines, generated_files = _lines("clients/python/agent_routing/v1")
    return lines - generated_lines, files - generated_files


def main() -> int:
    """Print the table; with --check, fail where the shape is not allowed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--check",
        action="store_true",
        help=f"fail for an arrow back, a circle, or a function over {FUNCTION_LINES_MOST} lines",
    )
    options = parser.parse_args()
    rows, wrong = table(read_modules(SERVICE))
    width = max(len(name) for name, _ in rows)
    for name, figure in rows:
        print(f"{name:<{width}}  {figure}")
    for line in wrong:
        print(f"not allowed: {line}", file=sys.stderr)
    return 1 if wrong and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
