"""The files that a registry names: more examples by agent, and what was learned from its users.

Rule: each is taken whole or refused, as the registry is; its examples follow the agent's own. One
that is not there is a warning: a registry that was copied without it still serves.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from routing_service.core.registry import Registry
from routing_service.registry.yaml_document import (
    TEXT_BYTES_MAX,
    Document,
    FileProblem,
    read_document,
)

EXAMPLES_MAX: Final = 200
"""Examples of an agent, with those of the registry: as its schema has it."""

EXAMPLE_CHARACTERS_MAX: Final = 4_000

TEMPERATURE_BOUNDS: Final = (0.2, 5.0)
STAY_OFFSET_BOUNDS: Final = (-5.0, 5.0)

_EXAMPLES_KEY: Final = "examples_file"
_LEARNED_KEY: Final = "learned_file"
_EXAMPLES_FORM: Final = (
    "write it with agent-routing topics examples, as agent ids with lists of messages"
)
_LEARNED_FORM: Final = (
    "write it with agent-routing topics learn, as temperature, stay_offset and examples"
)

Problems = list[FileProblem]


def with_further_files(
    document: Document, registry: Registry, folder: Path | None
) -> tuple[Registry, Problems, Problems]:
    """Return the registry with what the files that it names have, problems, and warnings.

    folder: of the registry; None where it is read from text and has no neighbours.
    """
    data = document.data
    names = {
        key: str(data[key])
        for key in (_EXAMPLES_KEY, _LEARNED_KEY)
        if isinstance(data, dict) and data.get(key)
    }
    problems: Problems = []
    warnings: Problems = []
    topics = registry.topics
    examples: list[dict[str, tuple[str, ...]]] = []
    for key, name in names.items():
        held = _File(document, key, name, folder)
        found = held.read()
        if found is not None and key == _LEARNED_KEY:
            temperature = held.number(found, "temperature", 1.0, TEMPERATURE_BOUNDS)
            stay_offset = held.number(found, "stay_offset", 0.0, STAY_OFFSET_BOUNDS)
            topics = replace(topics, temperature=temperature, stay_offset=stay_offset)
            found = held.learned_examples(found)
        if found is not None:
            examples.append(held.examples(found, frozenset(registry.agents)))
        problems += held.problems
        warnings += held.warnings
    if problems or not names:
        return registry, problems, warnings
    agents = dict(registry.agents)
    for more in examples:
        for agent_id, said in more.items():
            agent = agents[agent_id]
            together = tuple(dict.fromkeys((*agent.examples, *said)))[:EXAMPLES_MAX]
            agents[agent_id] = replace(agent, examples=together)
    further = tuple(names.values())
    found_all = replace(registry, agents=agents, topics=topics, further_files=further)
    return found_all, problems, warnings


class _File:
    """A file that a registry names. problems, warnings: at the registry's key."""

    def __init__(self, document: Document, key: str, name: str, folder: Path | None) -> None:
        self.problems: Problems = []
        self.warnings: Problems = []
        self._document = document
        self._key = key
        self._name = name
        self._folder = folder
        self._form = _LEARNED_FORM if key == _LEARNED_KEY else _EXAMPLES_FORM

    def read(self) -> dict[str, Any] | None:
        """Return the mapping that the file holds; None if it holds none."""
        name, folder = self._name, self._folder
        if folder is None:
            self.warnings.append(
                self._problem("it is not read: this registry is not a file", "load it from a file")
            )
            return None
        if Path(name).is_absolute() or ".." in Path(name).parts:
            self._refuse("it is not next to the registry", "give a name in the same folder")
            return None
        try:
            with (folder / name).open("rb") as file:
                content = file.read(TEXT_BYTES_MAX + 1)
            text = content.decode("utf-8")
        except FileNotFoundError:
            self.warnings.append(
                self._problem("it is not there", f"copy it next to the registry: {folder / name}")
            )
            return None
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            self._refuse(f"it cannot be read: {reason}", "check the name and its permissions")
            return None
        found = read_document(text)
        if found.problems:
            self._refuse(str(found.problems[0]))
        elif not isinstance(found.data, dict):
            self._refuse("it is not a mapping")
        else:
            return {str(key): value for key, value in found.data.items()}
        return None

    def number(
        self, found: dict[str, Any], name: str, default: float, bounds: tuple[float, float]
    ) -> float:
        """Return a number of the file; the default if it is not there or not in its bounds."""
        value = found.get(name, default)
        low, high = bounds
        if isinstance(value, int | float) and low <= value <= high:
            return float(value)
        self._refuse(f"{name} is {value!r}, not a number from {low:g} to {high:g}")
        return default

    def learned_examples(self, found: dict[str, Any]) -> dict[str, Any] | None:
        """Return the examples among what was learned; None if the file has something else."""
        unknown = sorted(found.keys() - {"temperature", "stay_offset", "examples"})
        if unknown:
            self._refuse(f'"{unknown[0]}" is not known')
        examples = found.get("examples") or {}
        if isinstance(examples, dict):
            return {str(key): value for key, value in examples.items()}
        self._refuse("examples is not a mapping")
        return None

    def examples(
        self, found: dict[str, Any], agent_ids: frozenset[str]
    ) -> dict[str, tuple[str, ...]]:
        """Return the examples of each agent."""
        examples: dict[str, tuple[str, ...]] = {}
        for agent_id, said in found.items():
            if agent_id not in agent_ids:
                self._refuse(f'agent "{agent_id}" is not registered', "mend its id")
            elif not isinstance(said, list) or not all(
                isinstance(one, str) and 0 < len(one) <= EXAMPLE_CHARACTERS_MAX for one in said
            ):
                self._refuse(f"{agent_id} has something else than messages")
            else:
                examples[agent_id] = tuple(said)
        return examples

    def _refuse(self, message: str, remedy: str = "") -> None:
        self.problems.append(self._problem(message, remedy or self._form))

    def _problem(self, message: str, remedy: str) -> FileProblem:
        return self._document.problem(
            (self._key,), f'{self._key} "{self._name}": {message}', remedy
        )
