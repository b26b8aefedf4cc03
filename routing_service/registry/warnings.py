"""Warnings about a registry file: valid content that is probably a mistake.

They are about unreachable agents, circular completions, keys without effect and missing languages.
Its rule: a warning says what will happen, so that an author who means it can keep it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from routing_service.core.registry import (
    Agent,
    AgentKind,
    AgentTopics,
    OnComplete,
    Registry,
    Sticks,
    fold_locale,
)
from routing_service.registry.checks import agent_entries
from routing_service.registry.reply_checks import warn_replies
from routing_service.registry.yaml_document import Document, FileProblem, Path
from routing_service.texts.own_texts import reply_texts


def check_sense(document: Document, registry: Registry) -> list[FileProblem]:
    """Return the warnings: content that is valid, works as written, and is probably a mistake."""
    data = cast("dict[str, Any]", document.data)
    paths = {agent["id"]: path for path, agent in agent_entries(data)}
    warnings: list[FileProblem] = []
    for agent in registry.agents.values():
        written = cast("dict[str, Any]", document.value_at(paths[agent.agent_id]))
        warnings += _warn_without_effect(agent, written, registry, paths, document)
        warnings += _warn_traps(agent, registry, paths, document)
    warnings += _warn_cycles(registry, paths, document)
    warnings += _warn_unreachable(registry, paths, document)
    warnings += _warn_locales(registry, paths, document)
    warnings += _warn_topics(registry, paths, document)
    warnings += warn_replies(data, document)
    warnings += _warn_open_door(registry, document)
    return warnings


# Keys without meaning for an agent that never becomes active.
_NO_EFFECT_ON_SUPERVISOR = (
    "sticks",
    "owns_session",
    "receives_as",
    "turns_max",
    "idle_timeout",
    "asks_in_prose",
)


_NO_EFFECT_ON_PEOPLE = (
    "asks_in_prose",
    "examples",
    "idle_timeout",
    "markers",
    "steps",
    "turn_timeout",
    "turns_max",
)


def _warn_without_effect(
    agent: Agent,
    written: Mapping[str, Any],
    registry: Registry,
    paths: Mapping[str, Path],
    document: Document,
) -> Iterator[FileProblem]:
    path = paths[agent.agent_id]
    label = f'agent "{agent.agent_id}"'
    if agent.kind is AgentKind.SUPERVISOR:
        for key in _NO_EFFECT_ON_SUPERVISOR:
            if key in written:
                message = f"{key} has no effect on the supervisor, which never becomes active"
                yield document.problem((*path, key), message, "remove the key", on_key=True)
    if agent.asks_in_prose and agent.sticks is Sticks.NEVER:
        message = f"{label} has asks_in_prose: lock, but an agent with sticks: never is not locked"
        remedy = "remove asks_in_prose, or write sticks: follow_up"
        yield document.problem((*path, "asks_in_prose"), message, remedy, on_key=True)
    if agent.on_complete_message and agent.on_complete is not OnComplete.HOP:
        message = f"{label} has an on_complete_message, which is shown only before another agent"
        remedy = "name an agent in on_complete, or remove the message"
        yield document.problem((*path, "on_complete_message"), message, remedy, on_key=True)
    if agent.unclaimed_message and agent.unclaimed_timeout_us is None:
        message = f"{label} has an unclaimed_message, which is shown only after unclaimed_timeout"
        remedy = "write unclaimed_timeout, or remove the message"
        yield document.problem((*path, "unclaimed_message"), message, remedy, on_key=True)
    if agent.kind is AgentKind.SYSTEM and agent.user_selectable:
        message = f"{label} is user_selectable, but a system agent refuses every handoff"
        remedy = "remove user_selectable, or make it a specialist"
        yield document.problem((*path, "user_selectable"), message, remedy, on_key=True)
    if agent.kind is AgentKind.HUMAN:
        for key in _NO_EFFECT_ON_PEOPLE:
            if key in written:
                message = f"{key} has no effect on people"
                yield document.problem((*path, key), message, "remove the key", on_key=True)
    for i, target_id in enumerate(written.get("handoff_to", ())):
        target = registry.agents[target_id]
        if target is agent or target.kind is AgentKind.SYSTEM:
            why = "is itself" if target is agent else "is a system agent"
            message = f'{label} may never hand over to "{target_id}", which {why}'
            yield document.problem((*path, "handoff_to", i), message, "remove it from the list")
    if not agent.description and agent.kind in (AgentKind.SPECIALIST, AgentKind.HUMAN):
        message = f"{label} has no description"
        remedy = "say what it is for: supervisors and users choose by it"
        yield document.problem(path, message, remedy)


def _warn_traps(
    agent: Agent, registry: Registry, paths: Mapping[str, Path], document: Document
) -> Iterator[FileProblem]:
    """Warn of agents that users cannot easily leave, and of owners that never own a session."""
    path = paths[agent.agent_id]
    label = f'agent "{agent.agent_id}"'
    if agent.owns_session and agent.sticks is Sticks.NEVER:
        message = f"{label} owns the session but never keeps it"
        yield document.problem((*path, "owns_session"), message, "use sticks: session")
    has_way_back = not {"supervisor", "reset"} <= registry.disabled_commands
    if agent.owns_session and agent.on_complete is OnComplete.STAY and not has_way_back:
        message = f"{label} stays when it is done, and users have no command to leave it"
        remedy = "enable /supervisor or /reset, or use on_complete: release"
        yield document.problem((*path, "on_complete"), message, remedy)
    next_agent = registry.agents.get(agent.on_complete_agent_id)
    if next_agent is not None and not next_agent.enabled:
        message = f'{label} completes to "{next_agent.agent_id}", which is disabled'
        yield document.problem((*path, "on_complete"), message, "it will release instead")


def _warn_open_door(registry: Registry, document: Document) -> Iterator[FileProblem]:
    """Warn of a lesson that users cannot leave by /supervisor and still cancel by /reset."""
    owners = [agent.agent_id for agent in registry.specialists if agent.owns_session]
    off = registry.disabled_commands
    if owners and "supervisor" in off and "reset" not in off:
        message = f'users cannot leave "{owners[0]}" by /supervisor, and can still by /reset'
        remedy = "add reset, or leave supervisor on"
        yield document.problem(("commands", "disabled"), message, remedy)


def _warn_cycles(
    registry: Registry, paths: Mapping[str, Path], document: Document
) -> Iterator[FileProblem]:
    """Warn of completions that lead back to where they started. Each cycle is named once."""
    done: set[str] = set()
    for start in registry.agents:
        trail: list[str] = []
        at = start
        while at and at not in done and at not in trail:
            trail.append(at)
            at = registry.agents[at].on_complete_agent_id
        if at in trail:
            cycle = " -> ".join([*trail[trail.index(at) :], at])
            message = f"completions form a circle: {cycle}"
            remedy = "let one of them release, unless each of them asks the user something"
            yield document.problem((*paths[at], "on_complete"), message, remedy)
        done.update(trail)


def _warn_topics(
    registry: Registry, paths: Mapping[str, Path], document: Document
) -> Iterator[FileProblem]:
    """Warn of settings of topics that another setting disables."""
    topics = registry.topics
    targets = [a for a in registry.specialists if a.enabled and topics.mode_to(a) != "off"]
    if not topics.is_on:
        if topics.first_message == "auto":
            message = "first_message: auto has no effect while topics are off"
            remedy = "set mode to suggest or auto"
            yield document.problem(("topics", "first_message"), message, remedy, on_key=True)
        for agent in registry.agents.values():
            if agent.topics != AgentTopics():
                message = f'topics of agent "{agent.agent_id}" has no effect while topics are off'
                path = (*paths[agent.agent_id], "topics")
                yield document.problem(path, message, "set topics.mode for all", on_key=True)
        return
    if len(targets) <= 1:
        message = "topics are on, and there are not two agents that a topic could switch between"
        yield document.problem(("topics",), message, "add agents, or leave topics out", on_key=True)
    if topics.lock_threshold is not None and topics.lock_threshold < topics.threshold:
        message = (
            f"lock_threshold {topics.lock_threshold:g} is below threshold {topics.threshold:g}, "
            "which counts for locked agents too"
        )
        yield document.problem(("topics", "lock_threshold"), message, "raise it, or leave it off")
    for agent in registry.agents.values():
        if agent.kind is not AgentKind.SPECIALIST and agent.topics != AgentTopics():
            message = (
                f'topics of agent "{agent.agent_id}" has no effect: no topic brings users to a '
            )
            message += agent.kind.value
            path = (*paths[agent.agent_id], "topics")
            yield document.problem(path, message, "remove the key", on_key=True)


def _warn_unreachable(
    registry: Registry, paths: Mapping[str, Path], document: Document
) -> Iterator[FileProblem]:
    """Warn of unreachable agents. Topic detection reaches all that it may switch to."""
    if not any(a.enabled for a in registry.specialists):
        message = "there is no enabled specialist to hand a conversation to"
        yield document.problem(("agents",), message, "add one", on_key=True)
    reached = _reachable(registry)
    for agent in registry.answering:
        is_human = agent.kind is AgentKind.HUMAN
        by_topic = registry.topics.mode_to(agent) != "off" and not is_human
        if agent.enabled and agent.agent_id not in reached and not by_topic:
            message = (
                f'no conversation can reach agent "{agent.agent_id}": no reachable agent '
                "hands over or completes to it, and users cannot select it"
            )
            remedy = "add it to a handoff_to, or set user_selectable: true"
            yield document.problem(paths[agent.agent_id], message, remedy)


def _reachable(registry: Registry) -> set[str]:
    """Return the agents that messages can reach, from the home agent and from users."""
    waiting = [registry.home_agent_id]
    waiting += [a.agent_id for a in registry.answering if a.user_selectable]
    answering = [a.agent_id for a in registry.answering]
    reached: set[str] = set()
    while waiting:
        agent = registry.agents[waiting.pop()]
        if agent.agent_id in reached or not agent.enabled:
            continue
        reached.add(agent.agent_id)
        waiting += answering if agent.handoff_to is None else agent.handoff_to
        waiting += [agent.on_complete_agent_id] if agent.on_complete_agent_id else []
    return reached


def _warn_locales(
    registry: Registry,
    paths: Mapping[str, Path],
    document: Document,
) -> Iterator[FileProblem]:
    """Warn of agents that lack a language which others have, and of languages without replies."""
    names = _locales_of(agent.name for agent in registry.agents.values())
    descriptions = _locales_of(agent.description for agent in registry.agents.values())
    for agent in registry.agents.values():
        expected = (
            ("name", agent.name, names),
            ("description", agent.description, descriptions),
            ("on_complete_message", agent.on_complete_message, names),
            ("unclaimed_message", agent.unclaimed_message, names),
        )
        for key, texts, locales in expected:
            missing = [locale for locale in locales if locale not in _locales_of([texts])]
            if texts and missing:
                message = f'{key} of agent "{agent.agent_id}" has no text in {", ".join(missing)}'
                remedy = "other agents have one; users of that language will see another"
                yield document.problem((*paths[agent.agent_id], key), message, remedy)
    replies = reply_texts(registry.replies)
    for missing_text in replies.missing_texts((*names, fold_locale(registry.default_locale))):
        message = f"the replies to commands {missing_text}"
        yield document.problem(("default_locale",), message, "such users will see another language")


def _locales_of(texts: Iterable[Mapping[str, str]]) -> list[str]:
    return list(dict.fromkeys(fold_locale(locale) for mapping in texts for locale in mapping))
