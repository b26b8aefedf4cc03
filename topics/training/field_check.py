"""Check the hand-written dialogues of topics/training/field against their registries.

    python -m topics.training.field_check [FOLDER]

It prints a line for each registry, then every problem with its place; exit code 1 if there is one.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent / "field"

SET_ASIDE: Final = frozenset(
    {
        "energia-co",
        "homebank-ng",
        "legal-us",
        "museum-uk",
        "oficina-pt",
        "prefeitura-br",
        "rrhh-mx",
        "veterinaria-uy",
    }
)
"""Registries that no parameter may be trained on or chosen by. They were named before training."""

DIALOGUES: Final = 12
EXAMPLES_MORE: Final = 25
"""Examples that agents_25.json has for each agent in addition to those of agents.json."""
LANGUAGES: Final = frozenset({"en", "es", "pt"})
VERBATIM: Final = 1
"""Least number of a registry's examples that occur word for word with another agent active."""


@dataclass(slots=True)
class Found:
    """What one registry's dialogues contain, and what is wrong with them."""

    registry: str
    user_turns: int = 0
    changes: int = 0
    nobodys: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.registry}: {self.user_turns} user turns, {self.changes} changes of agent, "
            f"{self.nobodys} for no agent, {len(self.problems)} problems"
        )


def check(folder: Path = FOLDER) -> Iterator[Found]:
    """Check every registry of a folder. Raises OSError and ValueError for unreadable files."""
    agents = json.loads((folder / "agents.json").read_text("utf-8"))
    fuller = json.loads((folder / "agents_25.json").read_text("utf-8"))
    for name, registry in sorted(agents.items()):
        found = Found(name)
        found.problems += _registry_problems(registry, fuller.get(name, []))
        known = {agent["id"] for agent in registry}
        lines = gzip.decompress((folder / f"{name}.jsonl.gz").read_bytes()).decode().splitlines()
        if len(lines) != DIALOGUES:
            found.problems.append(f"{len(lines)} dialogues, not {DIALOGUES}")
        texts: list[tuple[str, str | None, str | None]] = []
        for line in lines:
            _check_dialogue(json.loads(line), known, found, texts)
        verbatim = sum(
            owner == agent["id"] != active
            and active is not None
            and text.casefold() in {example.casefold() for example in agent["examples"]}
            for text, owner, active in texts
            for agent in registry
        )
        if verbatim < VERBATIM:
            found.problems.append(
                f"{verbatim} verbatim examples of another agent, fewer than {VERBATIM}"
            )
        yield found


def _registry_problems(
    registry: list[dict[str, Any]], fuller: list[dict[str, Any]]
) -> Iterator[str]:
    ids = [agent["id"] for agent in registry]
    if len(ids) != len(set(ids)):
        yield "an agent's id occurs twice"
    languages = {agent["language"] for agent in registry}
    if len(languages) != 1 or not languages <= LANGUAGES:
        yield f"languages {sorted(languages)}, not one of {sorted(LANGUAGES)}"
    if [agent["id"] for agent in fuller] != ids:
        yield "agents_25.json has other agents"
        return
    owners: dict[str, str] = {}
    for agent, more in zip(registry, fuller, strict=True):
        if not agent["description"].strip() or not agent["name"].strip():
            yield f"agent {agent['id']} lacks a name or a description"
        added = more["examples"][len(agent["examples"]) :]
        if more["examples"][: len(agent["examples"])] != agent["examples"]:
            yield f"agent {agent['id']}: agents_25.json does not begin with the given examples"
        if len(added) != EXAMPLES_MORE:
            yield f"agent {agent['id']}: {len(added)} examples added, not {EXAMPLES_MORE}"
        for example in more["examples"]:
            other = owners.setdefault(example.casefold(), agent["id"])
            if other != agent["id"]:
                yield f"example {example!r} is given to {other} and {agent['id']}"


def _check_dialogue(
    dialogue: dict[str, Any],
    known: set[str],
    found: Found,
    texts: list[tuple[str, str | None, str | None]],
) -> None:
    """Add one dialogue's figures and problems. texts: user text, its agent, the active agent."""
    active: str | None = None
    place = dialogue["dialogue_id"]
    if dialogue["corpus"] != found.registry:
        found.problems.append(f"{place}: corpus {dialogue['corpus']!r}")
    for number, turn in enumerate(dialogue["turns"]):
        where = f"{place}, turn {number + 1}"
        if turn["speaker"] != ("user", "agent")[number % 2]:
            found.problems.append(f"{where}: users and agents do not alternate")
        named = [turn["agent"], *(each["agent"] for each in turn.get("also", []))]
        found.problems += (
            f"{where}: unknown agent {each}" for each in named if each and each not in known
        )
        if not turn["text"].strip():
            found.problems.append(f"{where}: no text")
        if turn["speaker"] != "user":
            continue
        found.user_turns += 1
        texts.append((turn["text"], turn["agent"], active))
        if turn["agent"] is None:
            found.nobodys += 1
            continue
        found.changes += active is not None and turn["agent"] != active
        active = turn["agent"]
    if len(dialogue["turns"]) % 2:
        found.problems.append(f"{place}: does not end with an agent's turn")


def main() -> int:
    """Print the figures and problems of a folder."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    failed = False
    for found in check(folder):
        print(found)
        for problem in found.problems:
            failed = True
            print(f"  {problem}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
