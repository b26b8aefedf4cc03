"""The corpora, read from their files.

Owns paths, forms and licences. Rule: share-alike corpora are marked, and are used only for the
parameters that ship separately.
"""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agent_routing_topics.model.agent_index import AgentText

DIALOGUES_VARIABLE: Final = "ROUTING_DIALOGUES"
DIALOGUES_DEFAULT: Final = "../shared/data/dialogues"

_FILES: Final = {
    "sgd": "sgd_train.jsonl.gz",
    "star": "star_train.jsonl.gz",
    "massive": "massive_es_train.jsonl.gz",
    "clinc150": "clinc150_train.jsonl.gz",
}

PERMISSIVE: Final = ("star", "massive", "clinc150")
"""MIT, CC BY 4.0 and CC BY 3.0: parameters made of them ship under the service's own licence."""

SHARE_ALIKE: Final = ("sgd",)
"""CC BY-SA 4.0: parameters made of it too ship separately under that licence; the service works
without them."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a record. agent: its owner, or None. acts: its intent, among others."""

    speaker: str
    text: str
    agent: str | None
    acts: tuple[str, ...] = ()
    requires_follow_up: bool = False
    task_complete: bool = False
    uncertain: bool = False


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One record."""

    dialogue_id: str
    language: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Service:
    """A part of an agent: its intents, each with a description or "" ."""

    name: str
    description: str
    intents: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Corpus:
    """The dialogues of a corpus and its agents."""

    name: str
    language: str
    dialogues: tuple[Dialogue, ...]
    agents: tuple[AgentText, ...]
    services: dict[str, tuple[Service, ...]]

    @property
    def has_intents(self) -> bool:
        """Whether it consists of single messages, each with its intent."""
        return self.name in ("massive", "clinc150")


def dialogues_folder() -> Path:
    """Return where the corpora are."""
    return Path(os.environ.get(DIALOGUES_VARIABLE, DIALOGUES_DEFAULT))


def load(name: str, folder: Path | None = None) -> Corpus:
    """Read a corpus. Raises OSError if its file is missing."""
    folder = folder or dialogues_folder()
    agents, services = _agents(json.loads((folder / "agents.json").read_text("utf-8"))[name])
    with gzip.open(folder / _FILES[name], "rt", encoding="utf-8") as lines:
        dialogues = tuple(_dialogue(json.loads(line)) for line in lines)
    return Corpus(name, dialogues[0].language, dialogues, agents, services)


def _agents(
    records: list[dict[str, Any]],
) -> tuple[tuple[AgentText, ...], dict[str, tuple[Service, ...]]]:
    agents: list[AgentText] = []
    services: dict[str, tuple[Service, ...]] = {}
    for record in records:
        parts = tuple(
            Service(
                service["service"],
                service.get("description") or "",
                tuple((i["name"], i.get("description") or "") for i in service["intents"]),
            )
            for service in record["services"]
        )
        services[record["id"]] = parts
        agents.append(
            AgentText(
                agent_id=record["id"],
                names=(record["name"],) if record.get("name") else (),
                descriptions=(_description(record, parts),),
                examples=tuple(dict.fromkeys(record["examples"])),
            )
        )
    return tuple(agents), services


def _description(record: dict[str, Any], services: tuple[Service, ...]) -> str:
    """Return the corpus's own description, or that of its intents, as a replay's registry does."""
    intents = [text or name.replace("_", " ") for part in services for name, text in part.intents]
    return (
        record.get("description")
        or "; ".join(dict.fromkeys(intents))
        or record.get("name")
        or record["id"]
    )


def _dialogue(record: dict[str, Any]) -> Dialogue:
    return Dialogue(
        record["dialogue_id"],
        record["language"],
        tuple(
            Turn(
                speaker=turn["speaker"],
                text=turn["text"],
                agent=turn["agent"],
                acts=tuple(turn["acts"]),
                requires_follow_up=bool(turn.get("requires_follow_up")),
                task_complete=bool(turn.get("task_complete")),
                uncertain=bool(turn.get("uncertain")),
            )
            for turn in record["turns"]
        ),
    )
