"""The checks of a registry file: its shape (JSON Schema, in plain messages) and its references.

Valid but doubtful content is for routing_service.registry.warnings. Its rule: a check reads what is
there even if another check has found a fault, so that one run reports everything. It never raises
for the content of a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from routing_service.core.registry import (
    APPROVAL_EXPIRES_MAX_US,
    APPROVAL_EXPIRES_MIN_US,
    AUTO_OFF_WINDOW_MAX_US,
    AUTO_OFF_WINDOW_MIN_US,
    CLAIM_TIMEOUT_MAX_US,
    CLAIM_TIMEOUT_MIN_US,
    DAY_US,
    HOUR_US,
    IDLE_TIMEOUT_MAX_US,
    IDLE_TIMEOUT_MIN_US,
    MINUTE_US,
    PARKED_TIMEOUT_MAX_US,
    PARKED_TIMEOUT_MIN_US,
    RESERVED_AGENT_IDS,
    SECOND_US,
    TURN_TIMEOUT_MAX_US,
    TURN_TIMEOUT_MIN_US,
    fold_locale,
    fold_name,
)
from routing_service.core.slash_commands import COMMANDS_BY_NAME, TASK_COMMANDS
from routing_service.core.typed_text import fold_word
from routing_service.registry.json_schema import Draft202012Validator, ValidationError, extend
from routing_service.registry.reply_checks import check_replies
from routing_service.registry.similar_names import did_you_mean, languages_twice
from routing_service.registry.yaml_document import Document, FileProblem, Path

# The formats that this release reads, oldest first.
API_VERSIONS = ("agent_routing/v1", "agent_routing/v1.1")

# Characters of a value that a message repeats.
_SHOWN_MAX = 60

# Names listed in a message before the rest is counted.
_LISTED_MAX = 12

_UNITS_US = {"d": DAY_US, "h": HOUR_US, "m": MINUTE_US, "s": SECOND_US, "ms": SECOND_US // 1000}
_DURATION_PART = re.compile(r"([0-9]+)(ms|[dhms])")


def duration_us(text: str) -> int:
    """Return the microseconds of a duration such as 1h30m. The schema has checked its form."""
    return sum(int(number) * _UNITS_US[unit] for number, unit in _DURATION_PART.findall(text))


# --- The shape --------------------------------------------------------------------------------


def _pattern(
    _validator: object, pattern: str, instance: object, _schema: object
) -> Iterator[ValidationError]:
    """Match as JSON Schema means it: $ is the end, not also the place before a last line break."""
    if isinstance(instance, str) and not re.search(re.sub(r"\$$", r"\\Z", pattern), instance):
        yield ValidationError("does not match")


_Validator: Any = extend(Draft202012Validator, {"pattern": _pattern})


def check_shape(document: Document, schema: Mapping[str, Any]) -> list[FileProblem]:
    """Return what the schema refuses: keys, types, values and sizes."""
    problems: list[FileProblem] = []
    for error in _Validator(schema).iter_errors(document.data):
        problems += _schema_problems(error, document)
    return problems


def _schema_problems(error: ValidationError, document: Document) -> list[FileProblem]:
    path = cast("Path", tuple(error.absolute_path))
    schema = cast("dict[str, Any]", error.schema)
    if "propertyNames" in error.absolute_schema_path:
        return [_wrong_value((*path, str(error.instance)), schema, document, on_key=True)]
    match error.validator:
        case "additionalProperties":
            return list(_unknown_keys(path, error, document))
        case "required":
            return list(_missing_keys(path, error, document))
        case "oneOf":
            return [_home_problem(document)]
        case "uniqueItems":
            return list(_repeated_items(path, error, document))
        case "enum" if path == ("api_version",):
            return [_version_problem(path, error, document)]
        case _:
            return [_wrong_value(path, schema, document)]


def _wrong_value(
    path: Path, schema: Mapping[str, Any], document: Document, *, on_key: bool = False
) -> FileProblem:
    name = _last_key(path)
    expects = schema.get("x-expects", "what the schema says")
    if on_key:
        return document.problem(
            path, f"{_shown(name)} is no language", f"use {expects}", on_key=True
        )
    value = document.value_at(path)
    if value is None:
        hint = "; in YAML a # starts a comment" if name == "color" else ""
        # A missing value has no place of its own; the next value's would mislead.
        message, remedy = f"{name} is empty{hint}", f"give {expects}, or remove the key"
        return document.problem(path, message, remedy, on_key=path in document.key_marks)
    return document.problem(path, f"{name} cannot be {_shown(value)}", f"use {expects}")


def _unknown_keys(path: Path, error: ValidationError, document: Document) -> Iterator[FileProblem]:
    schema = cast("dict[str, Any]", error.schema)
    known = list(schema["properties"])
    for key in cast("dict[str, object]", error.instance):
        if key in known:
            continue
        remedy = f"{did_you_mean(key, known) or 'remove it; '}keys here: {', '.join(known)}"
        if (*path, key) in document.bare_keys:
            remedy = (
                "put the value before it in quotes if this is the rest of it: between { and } a "
                f"comma begins a new key; keys here: {', '.join(known)}"
            )
        if key == "<<":
            remedy = "write the keys out; merge keys are not part of YAML 1.2"
        yield document.problem((*path, key), f'unknown key "{key}"', remedy, on_key=True)


def _missing_keys(path: Path, error: ValidationError, document: Document) -> Iterator[FileProblem]:
    schema = cast("dict[str, Any]", error.schema)
    for key in cast("list[str]", error.validator_value):
        if key not in cast("dict[str, object]", error.instance):
            expects = _expects_of(schema, key)
            what = f"{_agent_label(error.instance)}has no {key}" if path else f"{key} is missing"
            yield document.problem(path, what, f"add {key}: {expects}")


def _expects_of(schema: Mapping[str, Any], key: str) -> str:
    """Return what a key should hold, following the schema's reference by its known names."""
    known = {"id": "a word such as billing", "name": "what users see, such as Billing"}
    return known.get(key) or str(schema["properties"][key].get("x-expects", "a value"))


def _home_problem(document: Document) -> FileProblem:
    data = cast("dict[str, object]", document.data)
    if "supervisor" in data and "default_agent" in data:
        return document.problem(
            ("default_agent",),
            "both supervisor and default_agent are given",
            "keep supervisor, or keep default_agent for agents without a supervisor",
            on_key=True,
        )
    return document.problem(
        (),
        "supervisor is missing",
        "add supervisor: with the id of the agent that routes, or default_agent: without one",
    )


def _version_problem(path: Path, error: ValidationError, document: Document) -> FileProblem:
    message = f"this release does not read api_version {_shown(error.instance)}"
    remedy = (
        f"write {' or '.join(API_VERSIONS)}, or read the file with the release it was written for"
    )
    return document.problem(path, message, remedy)


def _repeated_items(
    path: Path, error: ValidationError, document: Document
) -> Iterator[FileProblem]:
    items = cast("list[object]", error.instance)
    for i, item in enumerate(items):
        if item in items[:i]:
            message = f"{_last_key(path)} has {_shown(item)} twice"
            yield document.problem((*path, i), message, "remove one of them")


# --- The references ---------------------------------------------------------------------------


def check_references(document: Document) -> list[FileProblem]:
    """Return names that are taken twice or lead nowhere, and values that contradict each other."""
    data = cast("dict[str, Any]", document.data)
    agents = agent_entries(data)
    ids = [agent["id"] for _, agent in agents if isinstance(agent.get("id"), str)]
    problems = [*_check_names(agents, document), *_check_home(data, agents, ids, document)]
    default_locale = data.get("default_locale", "en")
    limits = data.get("limits")
    if isinstance(limits, dict):
        problems += _check_duration(("limits", "turn_timeout"), limits, _TURN_RANGE, document)
        problems += _check_duration(("limits", "idle_timeout"), limits, _IDLE_RANGE, document)
        problems += _check_duration(("limits", "parked_timeout"), limits, _PARKED_RANGE, document)
    stickiness = data.get("stickiness")
    auto_off = stickiness.get("auto_off") if isinstance(stickiness, dict) else None
    if isinstance(auto_off, dict):
        window_range = (AUTO_OFF_WINDOW_MIN_US, AUTO_OFF_WINDOW_MAX_US, "1m to 1d")
        place = ("stickiness", "auto_off", "window")
        problems += _check_duration(place, auto_off, window_range, document)
    problems += _check_approvals(data, document)
    problems += _check_when_unsure(data, document)
    problems += _check_command_words(data, document)
    problems += check_replies(data, document)
    for path, agent in agents:
        problems += _check_targets(path, agent, ids, agents, document)
        problems += _check_duration((*path, "idle_timeout"), agent, _IDLE_RANGE, document)
        problems += _check_duration((*path, "turn_timeout"), agent, _TURN_RANGE, document)
        problems += _check_person(path, agent, document)
        for key in ("name", "description", "on_complete_message", "unclaimed_message"):
            problems += _check_locales((*path, key), agent.get(key), default_locale, document)
    return problems


def _check_approvals(data: dict[str, Any], document: Document) -> Iterator[FileProblem]:
    """Find a time out of bounds, and what this release cannot do when it passes."""
    approvals = data.get("approvals")
    if not isinstance(approvals, dict):
        return
    bounds = (APPROVAL_EXPIRES_MIN_US, APPROVAL_EXPIRES_MAX_US, "1s to 365d")
    yield from _check_duration(("approvals", "expires"), approvals, bounds, document)
    place = ("approvals", "on_expiry")
    if "on_expiry" in approvals and "expires" not in approvals:
        message = "on_expiry has no effect without a time"
        yield document.problem(place, message, "add expires, such as 2d, or leave it out")
    elif approvals.get("on_expiry") == "reject":
        carried = [
            str(agent.get("id"))
            for _, agent in agent_entries(data)
            if agent.get("kind") not in ("system", "human") and agent.get("delivery") != "inbox"
        ]
        if carried:
            message = (
                "on_expiry reject gives the agent the rejection when no caller is there to carry "
                f"it, so every agent needs an inbox; without one: {_listed(carried)}"
            )
            yield document.problem(place, message, "add delivery: inbox to them, or write cancel")


def _check_when_unsure(data: dict[str, Any], document: Document) -> Iterator[FileProblem]:
    """Find settings that contradict each other, or ask for a supervisor that is not there."""
    topics = data.get("topics")
    if not isinstance(topics, dict):
        return
    if "ask_share" in topics and "right_wanted" in topics:
        message = "ask_share and right_wanted are two answers to how much is asked about"
        yield document.problem(("topics", "ask_share"), message, "leave one of them out")
    if topics.get("when_unsure") == "supervisor" and "default_agent" in data:
        message = "when_unsure is supervisor, and a file with default_agent has none"
        yield document.problem(("topics", "when_unsure"), message, "write suggest or agent")


_PERSON_KEYS = ("claim_timeout", "unclaimed_timeout", "unclaimed_message")


def _check_person(path: Path, agent: dict[str, Any], document: Document) -> Iterator[FileProblem]:
    """Find what only people have on another agent, and a delivery that does not reach people."""
    yield from _check_duration((*path, "claim_timeout"), agent, _CLAIM_RANGE, document)
    yield from _check_duration((*path, "unclaimed_timeout"), agent, _CLAIM_RANGE, document)
    if agent.get("kind") != "human":
        for key in _PERSON_KEYS:
            if key in agent:
                message = f"{key} is of agents of kind human, and this is none"
                yield document.problem((*path, key), message, "remove it, or write kind: human")
    elif agent.get("delivery") == "caller":
        message = "delivery is caller, and people take conversations from an inbox"
        yield document.problem((*path, "delivery"), message, "leave it out, or write inbox")


_CLAIM_RANGE = (CLAIM_TIMEOUT_MIN_US, CLAIM_TIMEOUT_MAX_US, "1s to 30d")
_TURN_RANGE = (TURN_TIMEOUT_MIN_US, TURN_TIMEOUT_MAX_US, "1s to 1d")
_PARKED_RANGE = (PARKED_TIMEOUT_MIN_US, PARKED_TIMEOUT_MAX_US, "1s to 365d")
_IDLE_RANGE = (IDLE_TIMEOUT_MIN_US, IDLE_TIMEOUT_MAX_US, "1s to 365d")


def _check_names(
    agents: list[tuple[Path, dict[str, Any]]], document: Document
) -> Iterator[FileProblem]:
    """Find ids and aliases that two agents share, in any case, and reserved ids."""
    owners: dict[str, tuple[object, int]] = {}
    names = [((*path, "id"), agent, agent.get("id")) for path, agent in agents]
    for path, agent in agents:
        aliases = agent.get("aliases")
        for i, alias in enumerate(aliases if isinstance(aliases, list) else ()):
            names.append(((*path, "aliases", i), agent, alias))
    for path, agent, name in names:
        if not isinstance(name, str):
            continue
        is_id = path[-1] == "id"
        if is_id and fold_name(name) in RESERVED_AGENT_IDS:
            message = f'the id "{name}" means something else in on_complete'
            yield document.problem(path, message, "choose another id")
        line = document.value_marks[path][0]
        owner, owner_line = owners.setdefault(fold_name(name), (agent, line))
        # An alias that repeats its own agent's name is harmless; two agents of one name are not.
        if owner is not agent:
            what = "id" if is_id else "alias"
            message = f'the {what} "{name}" already names the agent on line {owner_line}'
            yield document.problem(path, message, "give each agent names of its own, in any case")


def _check_home(
    data: Mapping[str, Any],
    agents: list[tuple[Path, dict[str, Any]]],
    ids: list[str],
    document: Document,
) -> Iterator[FileProblem]:
    """Check the supervisor or default agent, and that no other agent has the supervisor's kind."""
    key = "supervisor" if "supervisor" in data else "default_agent"
    home_id = data.get(key)
    if isinstance(home_id, str) and home_id not in ids:
        yield _unknown_agent((key,), home_id, ids, document)
    for path, agent in agents:
        if agent.get("id") == home_id:
            yield from _check_home_agent(path, agent, key, document)
        elif agent.get("kind") == "supervisor":
            message = (
                f"{_agent_label(agent)}is of kind supervisor, but {key} names {_shown(home_id)}"
            )
            yield document.problem((*path, "kind"), message, "make it a specialist")


def _check_home_agent(
    path: Path, agent: Mapping[str, Any], key: str, document: Document
) -> Iterator[FileProblem]:
    role = "the supervisor" if key == "supervisor" else "the default agent"
    kind = "supervisor" if key == "supervisor" else "specialist"
    if agent.get("kind", kind) in {"supervisor", "specialist", "system", "human"} - {kind}:
        message = f"{role} cannot be of kind {agent['kind']}"
        yield document.problem((*path, "kind"), message, f"write {kind}, or leave the key out")
    if agent.get("enabled") is False:
        message = f"{role} cannot be disabled: every user falls back to it"
        yield document.problem((*path, "enabled"), message, "remove the key")
    for name in ("requires", "channels"):
        if agent.get(name):
            message = f"{role} cannot have {name}: every user falls back to it"
            yield document.problem((*path, name), message, "remove the key", on_key=True)


def _check_command_words(data: Mapping[str, Any], document: Document) -> Iterator[FileProblem]:
    """Find words that stand for two commands, including the built-in words."""
    commands = data.get("commands")
    words = commands.get("words") if isinstance(commands, dict) else None
    owners: dict[str, tuple[str, str]] = {}
    for command, own in (words if isinstance(words, dict) else {}).items():
        for i, word in enumerate(own if isinstance(own, list) else ()):
            if not isinstance(word, str):
                continue
            path = ("commands", "words", command, i)
            folded = fold_word(word)
            shipped = COMMANDS_BY_NAME.get(folded)
            is_older = shipped is not None and shipped.name in TASK_COMMANDS
            if shipped is not None and shipped.name != command and not is_older:
                message = f'"{word}" is the service\'s own word for {shipped.name}'
                yield document.problem(path, message, f"choose another word for {command}")
            owner, first = owners.setdefault(folded, (command, word))
            if owner != command:
                message = f'"{word}" already stands for {owner}, as "{first}"'
                yield document.problem(path, message, "keep it with one command")


def _check_targets(
    path: Path,
    agent: Mapping[str, Any],
    ids: list[str],
    agents: list[tuple[Path, dict[str, Any]]],
    document: Document,
) -> Iterator[FileProblem]:
    """Check that an agent hands to, and completes to, agents that exist and can be reached."""
    handoff_to = agent.get("handoff_to")
    for i, target in enumerate(handoff_to if isinstance(handoff_to, list) else ()):
        if isinstance(target, str) and target not in ids:
            yield _unknown_agent((*path, "handoff_to", i), target, ids, document)
    completes_to = agent.get("on_complete")
    if not isinstance(completes_to, str) or completes_to in RESERVED_AGENT_IDS:
        return
    where = (*path, "on_complete")
    if completes_to == agent.get("id"):
        message = f"{_agent_label(agent)}completes to itself"
        yield document.problem(where, message, "write stay to keep the conversation")
    elif completes_to not in ids:
        known = [*sorted(RESERVED_AGENT_IDS), *ids]
        yield _unknown_agent(where, completes_to, known, document)
    elif any(a.get("id") == completes_to and a.get("kind") == "system" for _, a in agents):
        message = f'on_complete names "{completes_to}", a system agent, which refuses handoffs'
        yield document.problem(where, message, "name a specialist, or write release")


def _check_duration(
    path: Path, data: Mapping[str, Any], bounds: tuple[int, int, str], document: Document
) -> Iterator[FileProblem]:
    minimum_us, maximum_us, words = bounds
    key = _last_key(path)
    value = data.get(key)
    if not isinstance(value, str) or not _DURATION_PART.match(value):
        return
    if not minimum_us <= duration_us(value) <= maximum_us:
        yield document.problem(path, f"{key} {value} is out of bounds", f"use {words}")


def _check_locales(
    path: Path, texts: object, default_locale: object, document: Document
) -> Iterator[FileProblem]:
    if not isinstance(texts, dict) or not texts:
        return
    yield from languages_twice(path, texts, document)
    tags = {fold_locale(tag) for tag in texts}
    if isinstance(default_locale, str) and fold_locale(default_locale) not in tags:
        message = f'{_last_key(path)} has no text in the default_locale "{default_locale}"'
        yield document.problem(path, message, f"add {default_locale}: to it")


def _unknown_agent(path: Path, name: str, known: list[str], document: Document) -> FileProblem:
    """Return the problem of an unknown reference, with the id that was probably meant."""
    agents = agent_entries(cast("dict[str, Any]", document.data))
    folded = fold_name(name)
    by_alias = next(
        (
            agent.get("id")
            for _, agent in agents
            if folded in {fold_name(n) for n in _strings([agent.get("id"), *_aliases(agent)])}
        ),
        None,
    )
    meant = f'did you mean "{by_alias}"? ' if by_alias else did_you_mean(name, known)
    message = f"{_last_key(path)} names {_shown(name)}, which is not registered"
    return document.problem(path, message, f"{meant}use one of {_listed(known)}")


# --- Words ------------------------------------------------------------------------------------


def agent_entries(data: Mapping[str, Any]) -> list[tuple[Path, dict[str, Any]]]:
    """Return those agents that are mappings, with their paths."""
    agents = data.get("agents")
    if not isinstance(agents, list):
        return []
    return [(("agents", i), agent) for i, agent in enumerate(agents) if isinstance(agent, dict)]


def _aliases(agent: Mapping[str, Any]) -> list[object]:
    aliases = agent.get("aliases")
    return aliases if isinstance(aliases, list) else []


def _strings(values: Iterable[object]) -> list[str]:
    return [value for value in values if isinstance(value, str)]


def _last_key(path: Path) -> str:
    """Return the last key of a path; an item of a list is called by its list's."""
    return next((step for step in reversed(path) if isinstance(step, str)), "the file")


def _agent_label(agent: object) -> str:
    agent_id = agent.get("id") if isinstance(agent, dict) else None
    return f'agent "{agent_id}" ' if isinstance(agent_id, str) else "the agent "


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_LISTED_MAX])
    more = len(names) - _LISTED_MAX
    return f"{shown} and {more} more" if more > 0 else shown or "none"
