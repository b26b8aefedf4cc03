"""``agent-routing topics examples``: examples of messages for each agent, written by a model.

Owns the prompt, the checks of what comes back, and the file. Rule: nothing is sent anywhere but to
the command that the operator names.
"""

from __future__ import annotations

import io
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import typer
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from agent_routing_topics.default_model import load_default_model
from agent_routing_topics.left_out import left_out
from agent_routing_topics.model.words import split
from routing_service.cli.failure import CommandFailed
from routing_service.core.registry import Agent, AgentKind, Registry
from routing_service.registry.examples_file import EXAMPLES_MAX
from routing_service.registry.file import RegistryFileError, load_registry

COMMAND_S_MAX: Final = 600
ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
SHOWN_MAX: Final = 20
SURE_COLLISION: Final = 0.5
"""Sureness from which an example that goes to another agent is left out."""

_SMALL_WORDS: Final = {
    "en": "the is my of to and for what how can please i you it do a in on with",
    "es": "el la los las de que y un una mi por para como con quiero cual cuanto es en se lo me",
    "pt": "o os as de que e um uma meu minha por para como com quero qual quanto em no na nao voce",
}
_LANGUAGE_WORDS_MIN: Final = 5
_LANGUAGE_LEAD: Final = 2


@dataclass(slots=True)
class Checked:
    """What came back, checked. kept: by agent; dropped: each text with the reason."""

    kept: dict[str, list[str]] = field(default_factory=dict)
    dropped: list[tuple[str, str, str]] = field(default_factory=list)


def run_examples(agents: str, *, count: int, command: str, answer: str) -> None:
    """Carry ``topics examples`` out. Raises CommandFailed, typer.BadParameter."""
    if not agents:
        raise typer.BadParameter("give --agents FILE: the registry that wants examples")
    if command and answer:
        raise typer.BadParameter("give --command or --answer, not both")
    try:
        registry = load_registry(agents)
    except RegistryFileError as error:
        raise CommandFailed(str(error)) from error
    prompt = prompt_of(registry, count)
    if not command and not answer:
        typer.echo(prompt)
        return
    said = _run(command, prompt) if command else _read(answer)
    checked = check_examples(registry, parsed(said))
    path = Path(agents).with_suffix(".examples.yml")
    path.write_text(written(checked.kept), "utf-8")
    _report(checked, path, Path(agents))


def prompt_of(registry: Registry, count: int) -> str:
    """Return what a model is asked: the agents as the registry has them, and the form."""
    languages = ", ".join(sorted(_languages(registry)))
    lines = [
        f"Write {count} messages that users would send for each of these agents of a chat service.",
        f"Languages: {languages}, in equal parts. Write as people type: short and long, with and",
        "without a greeting, questions and requests, everyday words rather than those of the",
        "description, some with a typing error, some in the middle of a conversation. Each",
        "message must be for one agent alone. No numbering, no names of agents.",
        "",
        "Answer with YAML alone: a mapping of agent ids to lists of quoted messages.",
        "",
    ]
    for agent in _specialists(registry):
        name = "; ".join(dict.fromkeys(agent.name.values()))
        lines += [f"{agent.agent_id}: {name}"]
        lines += [f"  {text}" for text in dict.fromkeys(agent.description.values())]
        lines += [f'  for example: "{text}"' for text in agent.examples[:6]]
    return "\n".join(lines)


def parsed(said: str) -> dict[str, list[str]]:
    """Read a model's answer, with or without a fence around it. Raises CommandFailed."""
    lines = said.strip().splitlines()
    fences = [at for at, line in enumerate(lines) if line.lstrip().startswith("```")]
    if len(fences) > 1:
        lines = lines[fences[0] + 1 : fences[1]]
    try:
        data = YAML(typ="safe").load("\n".join(lines))
    except YAMLError as error:
        raise CommandFailed(f"the answer is not YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(data, Mapping) or not data:
        raise CommandFailed("the answer is not a mapping of agent ids to lists of messages")
    return {
        str(agent_id): [str(text).strip() for text in texts if str(text).strip()]
        for agent_id, texts in data.items()
        if isinstance(texts, list)
    }


def check_examples(registry: Registry, said: Mapping[str, list[str]]) -> Checked:
    """Leave out what is doubled, in another language, or another agent's without itself."""
    checked = Checked()
    agents = {agent.agent_id: agent for agent in _specialists(registry)}
    for agent_id in sorted(said.keys() - agents.keys()):
        checked.dropped.append((agent_id, "", "no such agent is registered"))
    languages = _languages(registry)
    holders = Counter(
        key
        for agent_id, agent in agents.items()
        for key in {tuple(split(text)) for text in (*agent.examples, *said.get(agent_id, ()))}
    )
    for agent_id, agent in agents.items():
        seen = {tuple(split(text)) for text in agent.examples}
        kept = checked.kept[agent_id] = []
        for text in said.get(agent_id, ()):
            key = tuple(split(text))
            reason = ""
            if not key or key in seen:
                reason = "it is there already"
            elif holders[key] > 1:
                reason = "two agents have it"
            elif (language := language_of(text)) and language not in languages:
                reason = f"its language is {language}; the registry has {', '.join(languages)}"
            seen.add(key)
            if reason:
                checked.dropped.append((agent_id, text, reason))
            elif len(kept) + len(agent.examples) < EXAMPLES_MAX:
                kept.append(text)
    _drop_collisions(registry, checked)
    return checked


def _drop_collisions(registry: Registry, checked: Checked) -> None:
    together = dict(registry.agents) | {
        agent_id: replace(
            registry.agents[agent_id], examples=(*registry.agents[agent_id].examples, *texts)
        )
        for agent_id, texts in checked.kept.items()
    }
    model = load_default_model(waits=True)
    for one in left_out(replace(registry, agents=together), model.for_registry):
        if one.found and not one.is_right and one.sureness >= SURE_COLLISION:
            kept = checked.kept.get(one.agent_id, [])
            if one.text in kept:
                kept.remove(one.text)
                checked.dropped.append((one.agent_id, one.text, f"it sounds like {one.found}"))


def language_of(text: str) -> str:
    """Return en, es or pt where a text's small words are clearly of one of them; else ""."""
    words = split(text)
    if len(words) < _LANGUAGE_WORDS_MIN:
        return ""
    counts = Counter(
        {name: sum(word in small.split() for word in words) for name, small in _SMALL_WORDS.items()}
    )
    (best, most), (_, second) = counts.most_common(2)
    return best if most - second >= _LANGUAGE_LEAD else ""


def written(examples: Mapping[str, list[str]]) -> str:
    """Return examples as a file of them."""
    out = io.StringIO()
    out.write("# More examples for topic detection, by agent: see docs/topics.md.\n")
    yaml = YAML()
    yaml.width = 4096
    yaml.dump({agent_id: list(texts) for agent_id, texts in examples.items() if texts}, out)
    return out.getvalue()


def _specialists(registry: Registry) -> list[Agent]:
    return [
        agent
        for agent in registry.agents.values()
        if agent.kind is AgentKind.SPECIALIST and agent.enabled
    ]


def _languages(registry: Registry) -> tuple[str, ...]:
    found = {registry.default_locale[:2]}
    for agent in _specialists(registry):
        found.update(locale[:2] for locale in (*agent.name, *agent.description))
    return tuple(sorted(found))


def _run(command: str, prompt: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the operator's own command
            shlex.split(command),
            input=prompt,
            capture_output=True,
            text=True,
            timeout=COMMAND_S_MAX,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise CommandFailed(f'--command "{command}" could not be run: {error}') from error
    if done.returncode:
        raise CommandFailed(
            f'--command "{command}" ended with {done.returncode}: {done.stderr.strip()[-500:]}'
        )
    return done.stdout[:ANSWER_BYTES_MAX]


def _read(answer: str) -> str:
    try:
        if answer == "-":
            return sys.stdin.read(ANSWER_BYTES_MAX)
        return Path(answer).read_text("utf-8")[:ANSWER_BYTES_MAX]
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f'cannot read --answer "{answer}": {error}') from error


def _report(checked: Checked, path: Path, agents: Path) -> None:
    for agent_id, texts in checked.kept.items():
        typer.echo(f"{agent_id}: {len(texts)} examples")
    for agent_id, text, reason in checked.dropped[:SHOWN_MAX]:
        typer.echo(f"left out of {agent_id}: {text!r}: {reason}", err=True)
    if len(checked.dropped) > SHOWN_MAX:
        typer.echo(f"and {len(checked.dropped) - SHOWN_MAX} more were left out", err=True)
    typer.echo(f"wrote {path}")
    if f"examples_file: {path.name}" not in agents.read_text("utf-8"):
        typer.echo(f"add this line to {agents}:  examples_file: {path.name}")
