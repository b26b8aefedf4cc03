"""The registry file: YAML, read, checked and turned into a ``Registry``.

Its rule: a file is either accepted whole or refused with all its problems, each with its place, its
value and the remedy. Nothing in a file is silently ignored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, cast

from routing_service.core.channel_profiles import (
    ANY_CHANNEL,
    BUILT_IN_PROFILES,
    PLAIN_PROFILE,
    Bold,
    ChannelProfile,
    ChannelProfiles,
    Choices,
    ReplyStyle,
    fold_channel,
)
from routing_service.core.registry import (
    ANYONE,
    ASK_SHARE_DEFAULT,
    AUTO_OFF_TURNS_DEFAULT,
    AUTO_OFF_USERS_DEFAULT,
    AUTO_OFF_WINDOW_DEFAULT_US,
    HOPS_PER_MESSAGE_DEFAULT,
    OPEN_TURNS_DEFAULT,
    PARKED_TIMEOUT_DEFAULT_US,
    RETURN_DEPTH_DEFAULT,
    TURN_TIMEOUT_DEFAULT_US,
    Agent,
    AgentKind,
    AgentTopics,
    ApprovalRule,
    AutoOff,
    Limits,
    OnComplete,
    Registry,
    Sticks,
    Topics,
    WhilePaused,
    fold_locale,
)
from routing_service.core.typed_text import fold_word
from routing_service.core.vocabulary import WhenUnsure
from routing_service.registry.checks import (
    API_VERSIONS,
    check_references,
    check_shape,
    duration_us,
)
from routing_service.registry.examples_file import with_further_files
from routing_service.registry.warnings import check_sense
from routing_service.registry.yaml_document import (
    TEXT_BYTES_MAX,
    Document,
    FileProblem,
    read_document,
)
from routing_service.texts.catalogue import formal_sources
from routing_service.texts.own_texts import fluent_pattern

# Problems named in the text of an error; all of them are in its attributes.
_PROBLEMS_SHOWN_MAX = 50

_COMPLETIONS = {"stay": OnComplete.STAY, "release": OnComplete.RELEASE, "return": OnComplete.RETURN}


class RegistryFileError(Exception):
    """A registry file is refused. ``problems`` lists every problem."""

    def __init__(self, source: str, problems: tuple[FileProblem, ...]) -> None:
        self.source = source
        self.problems = problems
        lines = [
            # A file that cannot be read has no place to name.
            f"{source}:{'' if problem.line else ' '}{problem}"
            for problem in problems[:_PROBLEMS_SHOWN_MAX]
        ]
        if len(problems) > _PROBLEMS_SHOWN_MAX:
            lines.append(f"{source}: and {len(problems) - _PROBLEMS_SHOWN_MAX} more problems")
        super().__init__("\n".join(lines))


@dataclass(frozen=True, slots=True)
class CheckedRegistry:
    """A registry and the warnings for its author."""

    registry: Registry
    # In the order of the file. The registry can be used all the same.
    warnings: tuple[FileProblem, ...]


def load_registry(path: str | Path) -> Registry:
    """Read a registry file. Raises RegistryFileError with everything that is wrong with it."""
    return check_registry_file(path).registry


def parse_registry(text: str, source: str) -> Registry:
    """Read a registry from text; source is what errors call it. Raises RegistryFileError."""
    return check_registry(text, source).registry


def check_registry_file(path: str | Path) -> CheckedRegistry:
    """Read a registry file, with the warnings. Raises RegistryFileError."""
    return check_registry(_read_text(Path(path)), str(path), Path(path).parent)


def check_registry(text: str, source: str, folder: Path | None = None) -> CheckedRegistry:
    """Read a registry from text, with the warnings. Raises RegistryFileError.

    folder: where the file of examples is that it may name; None: it may name none.
    """
    checked = _check(text, folder)
    if not isinstance(checked, CheckedRegistry):
        # Raised where the document is gone: an error keeps the variables of the frames it has left.
        raise RegistryFileError(source, checked)
    return checked


def _check(text: str, folder: Path | None) -> CheckedRegistry | tuple[FileProblem, ...]:
    """Return what check_registry() returns, or the problems that refuse the text."""
    document = read_document(text)
    if not _is_readable(document):
        return _in_order(document.problems)
    problems = [*document.problems, *check_shape(document, registry_schema())]
    if not _is_unknown_version(document):
        # One problem for each value is enough: a value of the wrong shape cannot be a reference.
        misshapen = {problem.path for problem in problems}
        problems += [p for p in check_references(document) if p.path not in misshapen]
    else:
        # Further problems of an unknown format would mean nothing.
        problems = [problem for problem in problems if problem.path == "api_version"]
    if problems:
        return _in_order(problems)
    registry = _build_registry(document)
    registry, problems, warnings = with_further_files(document, registry, folder)
    if problems:
        return _in_order(problems)
    return CheckedRegistry(registry, _in_order([*warnings, *check_sense(document, registry)]))


def registry_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of registry files, for editors and printing."""
    return cast("dict[str, Any]", json.loads(_schema_text()))


@cache
def _schema_text() -> str:
    package = resources.files("routing_service.registry")
    return package.joinpath("schema.json").read_text(encoding="utf-8")


def _read_text(path: Path) -> str:
    """Return a file's text, or raise RegistryFileError saying why it cannot be read."""
    try:
        with path.open("rb") as file:
            # Reading one byte over the limit is enough to refuse a file of any length.
            content = file.read(TEXT_BYTES_MAX + 1)
    except FileNotFoundError:
        raise _unreadable(path, "there is no such file", "check the path") from None
    except IsADirectoryError:
        raise _unreadable(path, "this is a directory", "name a file in it") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise _unreadable(path, f"it cannot be read: {reason}", "check its permissions") from None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        if len(content) > TEXT_BYTES_MAX:  # The cut may have hit the middle of a character.
            return content.decode("utf-8", "replace")
        message = f"byte 0x{content[error.start]:02x} at offset {error.start} is not UTF-8"
        raise _unreadable(path, message, "save the file as UTF-8") from None


def _unreadable(path: Path, message: str, remedy: str) -> RegistryFileError:
    return RegistryFileError(str(path), (FileProblem(0, 0, "", message, remedy),))


def _is_readable(document: Document) -> bool:
    """Whether there is data to check. Data that is not a mapping gets one clear problem."""
    if document.data is None and document.problems:
        return False
    if not isinstance(document.data, dict):
        message = "the file is not a mapping of keys to values"
        remedy = f"start it with api_version: {API_VERSIONS[-1]}"
        document.problems.append(document.problem((), message, remedy))
        return False
    return True


def _is_unknown_version(document: Document) -> bool:
    data = cast("dict[str, object]", document.data)
    return "api_version" in data and data["api_version"] not in API_VERSIONS


def _in_order(problems: list[FileProblem]) -> tuple[FileProblem, ...]:
    return tuple(sorted(dict.fromkeys(problems)))


def _build_registry(document: Document) -> Registry:
    """Turn a document without problems into a registry. The casts rely on the checks before."""
    data = cast("dict[str, Any]", document.data)
    default_locale = str(data.get("default_locale", "en"))
    home = str(data.get("supervisor") or data["default_agent"])
    stickiness: dict[str, Any] = (
        {"start": data["stickiness"]}
        if isinstance(data.get("stickiness"), str)
        else data.get("stickiness", {})
    )
    agents = [_build_agent(agent, home, data, default_locale) for agent in data["agents"]]
    double_text = data.get("double_text", _by_version(data, "allow", "queue"))
    profiles = _build_profiles(data)
    if profiles.by_channel:
        agents = [_with_folded_channels(agent) for agent in agents]
    return Registry(
        # As written: 1.10 is a version of its own, not the number 1.1.
        version=document.written[("version",)],
        home_agent_id=home,
        agents={agent.agent_id: agent for agent in agents},
        is_swarm="default_agent" in data,
        stickiness_enabled=stickiness.get("start", "enabled") == "enabled",
        auto_off=_build_auto_off(stickiness.get("auto_off")),
        default_locale=default_locale,
        limits=_build_limits(data.get("limits", {})),
        double_text_rejects=double_text == "reject",
        double_text_queues=double_text == "queue",
        while_paused=WhilePaused(data.get("while_paused", _by_version(data, "hold", "park"))),
        begins_tasks=data.get("tasks", "join") == "new",
        disabled_commands=frozenset(data.get("commands", {}).get("disabled", ())),
        command_words={
            fold_word(word): command
            for command, words in data.get("commands", {}).get("words", {}).items()
            for word in words
        },
        topics=_build_topics(data),
        approvals=_build_approvals(data.get("approvals", {})),
        channels=profiles,
        replies=_build_replies(data.get("replies", {})),
    )


def _by_version(data: dict[str, Any], oldest: str, newer: str) -> str:
    """Return a default of agent_routing/v1, or that of newer files."""
    return oldest if data["api_version"] == API_VERSIONS[0] else newer


def _build_auto_off(auto_off: dict[str, Any] | None) -> AutoOff | None:
    if auto_off is None:
        return None
    return AutoOff(
        stuck_share=float(auto_off["stuck_share"]),
        window_us=_optional_duration_us(auto_off, "window") or AUTO_OFF_WINDOW_DEFAULT_US,
        turns_min=int(auto_off.get("turns_min", AUTO_OFF_TURNS_DEFAULT)),
        users_min=int(auto_off.get("users_min", AUTO_OFF_USERS_DEFAULT)),
    )


def _build_profiles(data: dict[str, Any]) -> ChannelProfiles:
    """Return the profiles of channels. A v1 file has only those that it lists."""
    written = {fold_channel(name): profile for name, profile in data.get("channels", {}).items()}
    if data["api_version"] == "agent_routing/v1" and not written:
        return ChannelProfiles()
    profiles: dict[str, ChannelProfile] = {}
    if data["api_version"] != "agent_routing/v1":
        profiles = dict(BUILT_IN_PROFILES)
    any_channel = _profile(written.get(ANY_CHANNEL) or {}, PLAIN_PROFILE)
    for name, profile in written.items():
        profiles[name] = _profile(profile, BUILT_IN_PROFILES.get(name, any_channel))
    return ChannelProfiles(profiles)


def _profile(written: dict[str, Any], base: ChannelProfile) -> ChannelProfile:
    bold = written.get("bold")
    return ChannelProfile(
        reply_characters=int(written.get("reply_characters", base.reply_characters)),
        choices=Choices(written.get("choices", base.choices)),
        bold=Bold[bold.upper()] if bold else base.bold,
        shows_commands=written.get("commands", base.shows_commands),
        shows_emoji=written.get("emoji", base.shows_emoji),
        button_characters=int(written.get("button_characters", base.button_characters)),
    )


def _with_folded_channels(agent: Agent) -> Agent:
    if agent.channels is None:
        return agent
    return replace(
        agent, channels=frozenset(map(fold_channel, agent.channels)), folds_channels=True
    )


def _build_replies(written: dict[str, Any]) -> ReplyStyle:
    tone = written.get("tone", {})
    tones = dict.fromkeys(formal_sources(), tone) if isinstance(tone, str) else tone
    return ReplyStyle(
        formal=frozenset(fold_locale(tag) for tag, value in tones.items() if value == "formal"),
        texts=tuple(
            (fold_locale(tag), name, fluent_pattern(text))
            for tag, texts in written.get("texts", {}).items()
            for name, text in texts.items()
        ),
        emoji=written.get("emoji"),
    )


def _build_topics(data: dict[str, Any]) -> Topics:
    """Return the settings of topics. Files of agent_routing/v1 keep their first defaults."""
    topics = data.get("topics", {})
    mode = topics.get("mode", "off")
    if data["api_version"] == "agent_routing/v1" or mode != "auto":
        threshold, lock_threshold = topics.get("threshold", 0.8), "off"
        first_message, when_unsure = "supervisor", "stay"
    else:
        threshold = lock_threshold = topics.get("threshold", 0.0)
        first_message = "auto"
        when_unsure = "suggest" if "default_agent" in data else "supervisor"
    lock_threshold = topics.get("lock_threshold", lock_threshold)
    return Topics(
        mode=mode,
        threshold=float(threshold),
        lock_threshold=None if lock_threshold == "off" else float(lock_threshold),
        first_message=topics.get("first_message", first_message),
        when_unsure=WhenUnsure(topics.get("when_unsure", when_unsure)),
        keeps_open_turns=data["api_version"] != "agent_routing/v1",
        ask_share=float(topics.get("ask_share", ASK_SHARE_DEFAULT)),
        right_wanted=float(topics["right_wanted"]) if "right_wanted" in topics else None,
    )


def _build_approvals(approvals: dict[str, Any]) -> ApprovalRule:
    return ApprovalRule(
        by=approvals.get("by", ANYONE),
        needs=int(approvals.get("needs", 1)),
        expires_us=_optional_duration_us(approvals, "expires"),
        rejects_on_expiry=approvals.get("on_expiry") == "reject",
    )


def _build_limits(limits: dict[str, Any]) -> Limits:
    return Limits(
        hops_per_message=int(limits.get("hops_per_message", HOPS_PER_MESSAGE_DEFAULT)),
        return_depth=int(limits.get("return_depth", RETURN_DEPTH_DEFAULT)),
        open_turns=int(limits.get("open_turns", OPEN_TURNS_DEFAULT)),
        turn_timeout_us=_optional_duration_us(limits, "turn_timeout") or TURN_TIMEOUT_DEFAULT_US,
        parked_timeout_us=_optional_duration_us(limits, "parked_timeout")
        or PARKED_TIMEOUT_DEFAULT_US,
        idle_timeout_us=_optional_duration_us(limits, "idle_timeout"),
    )


# A key of unavailable -> the rule that refuses.
_UNAVAILABLE = {"plan": "entitled", "channel": "channel", "disabled": "enabled"}


def _build_agent(
    agent: dict[str, Any], home: str, data: dict[str, Any], default_locale: str
) -> Agent:
    is_supervisor = agent["id"] == home and "supervisor" in data
    default_kind = "supervisor" if is_supervisor else "specialist"
    on_complete = agent.get("on_complete", "release")
    completion = _COMPLETIONS.get(on_complete, OnComplete.HOP)
    return Agent(
        agent_id=agent["id"],
        aliases=tuple(agent.get("aliases", ())),
        name=_texts(agent["name"], default_locale),
        article={
            fold_locale(tag): article
            for tag, article in _texts(agent.get("article"), default_locale).items()
        },
        description=_texts(agent.get("description"), default_locale),
        examples=tuple(agent.get("examples", ())),
        kind=AgentKind(agent.get("kind", default_kind)),
        sticks=Sticks(agent.get("sticks", "session")),
        owns_session=agent.get("owns_session", False),
        handoff_to=frozenset(agent["handoff_to"]) if "handoff_to" in agent else None,
        receives_as_interlude=agent.get("receives_as") == "interlude",
        turns_max=int(agent.get("turns_max", 0)),
        on_complete=completion,
        on_complete_agent_id=on_complete if completion is OnComplete.HOP else "",
        on_complete_message=_texts(agent.get("on_complete_message"), default_locale),
        requires=frozenset(agent.get("requires", ())),
        unavailable={
            _UNAVAILABLE[key]: _texts(text, default_locale)
            for key, text in agent.get("unavailable", {}).items()
        },
        channels=frozenset(agent["channels"]) if "channels" in agent else None,
        idle_timeout_us=_optional_duration_us(agent, "idle_timeout"),
        turn_timeout_us=_optional_duration_us(agent, "turn_timeout"),
        shows_steps=agent.get("steps") == "shown",
        markers=agent.get("markers", False),
        asks_in_prose=agent.get("asks_in_prose") == "lock",
        claim_timeout_us=_optional_duration_us(agent, "claim_timeout"),
        unclaimed_timeout_us=_optional_duration_us(agent, "unclaimed_timeout"),
        unclaimed_message=_texts(agent.get("unclaimed_message"), default_locale),
        has_inbox=agent.get("delivery") == "inbox" or agent.get("kind") == "human",
        user_selectable=agent.get("user_selectable", False),
        enabled=agent.get("enabled", True),
        topics=_build_agent_topics(agent.get("topics", {})),
        icon=agent.get("icon", ""),
        color=agent.get("color", ""),
    )


def _build_agent_topics(topics: dict[str, Any]) -> AgentTopics:
    threshold = topics.get("threshold")
    return AgentTopics(topics.get("mode", ""), None if threshold is None else float(threshold))


def _texts(text: str | dict[str, str] | None, default_locale: str) -> dict[str, str]:
    """Return texts by locale; a text without a language is in the default one."""
    if text is None:
        return {}
    return {default_locale: text} if isinstance(text, str) else dict(text)


def _optional_duration_us(data: dict[str, Any], key: str) -> int | None:
    return duration_us(data[key]) if key in data else None
