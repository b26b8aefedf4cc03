"""The registry file made for the agents of a corpus.

Its rule: the result is an ordinary registry file that any server can use.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from ruamel.yaml import YAML

from routing_service.replay.choices import FirstMessage, ReplayPolicy, SwitchMode, TopicMode

SUPERVISOR_ID: Final = "supervisor"

_DESCRIPTION_CHARACTERS_MAX: Final = 4000
"""As the registry's schema has it."""

_AGENTS_BYTES_MAX: Final = 16 * 1024 * 1024


_STICKS: Final = {
    ReplayPolicy.STICKY: "session",
    ReplayPolicy.FOLLOW_UP: "follow_up",
    ReplayPolicy.SUPERVISOR: "never",
}


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """A registry's topics. lock_threshold None: an agent that waits always keeps its user."""

    mode: TopicMode
    first_message: FirstMessage
    threshold: float
    lock_threshold: float | None

    def as_dict(self) -> dict[str, object]:
        """Return them in the form of a registry file."""
        lock = self.lock_threshold
        return {
            "mode": str(self.mode),
            "threshold": self.threshold,
            "lock_threshold": "off" if lock is None else lock,
            "first_message": str(self.first_message),
        }


class _Intent(msgspec.Struct, frozen=True):
    name: str = ""
    description: str | None = None


class _Service(msgspec.Struct, frozen=True):
    intents: list[_Intent] = []


class CorpusAgent(msgspec.Struct, frozen=True):
    """One agent as a corpus describes it. Keys that a registry does not need are left out."""

    id: str
    name: str = ""
    description: str | None = None
    services: list[_Service] = []
    examples: list[str] = []


class CorpusAgentsInvalid(Exception):
    """An unusable file of agents; the message names it and says why."""


def load_corpus_agents(path: str, corpus: str) -> tuple[CorpusAgent, ...]:
    """Read the agents of one corpus from a file of several: {corpus: [agents]}.

    corpus: a name in the file, or the name of a part of it, such as sgd_train of sgd.
    Raises CorpusAgentsInvalid.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(_AGENTS_BYTES_MAX + 1)
    except OSError as error:
        raise CorpusAgentsInvalid(
            f'cannot read "{path}": {error.strerror or type(error).__name__}; check the path'
        ) from None
    if len(content) > _AGENTS_BYTES_MAX:
        raise CorpusAgentsInvalid(f'"{path}" is longer than {_AGENTS_BYTES_MAX} bytes')
    try:
        corpora = msgspec.json.decode(content, type=dict[str, list[CorpusAgent]])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorpusAgentsInvalid(
            f'"{path}" holds no agents of corpora: {error}; it should be '
            '{"corpus": [{"id": …, "name": …, "description": …, "examples": […]}]}'
        ) from None
    name = corpus if corpus in corpora else corpus.partition("_")[0]
    if not corpora.get(name):
        raise CorpusAgentsInvalid(
            f'"{path}" has no agents of a corpus "{corpus}"; it has: {", ".join(corpora) or "none"}'
        )
    return tuple(corpora[name])


def corpus_registry(
    corpus: str,
    agents: tuple[CorpusAgent, ...],
    policy: ReplayPolicy,
    switch: SwitchMode,
    topics: TopicSettings | None = None,
) -> str:
    """Return a registry file: one specialist an agent, and a supervisor over them.

    Under the sticky policy a change of topic ends an agent's time, not a finished task; so an agent
    that says it is done stays. If nothing corrects a wrong dispatch (stuck), a finished task is the
    only way out, and frees the user.
    """
    stays = policy is ReplayPolicy.STICKY and switch is not SwitchMode.STUCK
    return "".join(
        f"{line}\n"
        for line in _registry_lines(
            _version(corpus, policy, switch, topics),
            agents,
            _STICKS[policy],
            "stay" if stays else "release",
            topics,
        )
    )


def with_topics(registry_text: str, topics: TopicSettings) -> str:
    """Return a registry file with other topics, otherwise unchanged."""
    yaml = YAML()
    data = yaml.load(registry_text)
    data["topics"] = topics.as_dict()
    written = io.StringIO()
    yaml.dump(data, written)
    return written.getvalue()


def _version(
    corpus: str, policy: ReplayPolicy, switch: SwitchMode, topics: TopicSettings | None
) -> str:
    version = f"{corpus}-{policy}-{switch}"
    return version if topics is None else f"{version}-{topics.mode}-{topics.first_message}"


def _registry_lines(
    version: str,
    agents: tuple[CorpusAgent, ...],
    sticks: str,
    on_complete: str,
    topics: TopicSettings | None,
) -> Iterator[str]:
    yield "api_version: agent_routing/v1"
    yield f"version: {_scalar(version)}"
    yield f"supervisor: {SUPERVISOR_ID}"
    if topics is not None:
        yield f"topics: {json.dumps(topics.as_dict())}"
    yield "agents:"
    yield f"  - id: {SUPERVISOR_ID}"
    yield "    name: Supervisor"
    yield "    kind: supervisor"
    for agent in agents:
        yield f"  - id: {_scalar(agent.id)}"
        if agent.name:
            yield f"    name: {_scalar(agent.name)}"
        yield f"    description: {_scalar(_description(agent))}"
        yield f"    sticks: {sticks}"
        yield f"    on_complete: {on_complete}"
        examples = list(dict.fromkeys(agent.examples))
        if examples:
            yield "    examples:"
            yield from (f"      - {_scalar(example)}" for example in examples)


def _description(agent: CorpusAgent) -> str:
    """Return the corpus's own description, or one made of what the agent can do."""
    intents = [
        intent.description or intent.name.replace("_", " ")
        for service in agent.services
        for intent in service.intents
    ]
    said = agent.description or "; ".join(dict.fromkeys(intents)) or agent.name or agent.id
    return said[:_DESCRIPTION_CHARACTERS_MAX]


def _scalar(text: str) -> str:
    """Return text as YAML that reads back as the same text: JSON's strings are YAML's too."""
    return json.dumps(text, ensure_ascii=False)
