"""The instructions for each agent's prompt: how it keeps, asks, completes and hands over.

It chooses the sentences that an agent gets by its entry in the registry; the catalogues have them
in each language.

Rule: a text says what the decisions really do with this agent's outcomes, in this registry, and
never exceeds its bound; the text itself counts what was cut.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Container, Iterator
from typing import Final

from routing_service.core.registry import Agent, AgentKind, OnComplete, Registry, Sticks
from routing_service.core.slash_commands import COMMANDS_BY_NAME
from routing_service.texts import Texts, instruction_texts

INSTRUCTIONS_BYTES_MAX: Final = 4095
"""Of one agent's text: about a thousand tokens of its prompt. The texts of all 512 agents that a
registry may have stay, with their ids, well below the 4 MiB that clients accept by default."""

NAME_CHARACTERS_MAX: Final = 60
"""Of an agent's name wherever it is mentioned."""

_DESCRIPTION_CHARACTERS: Final = (1_000, 240, 80, 0)
"""Lengths of description to try: the longest that leaves room for all agents is used."""

_WAYS_OUT: Final = ("supervisor", "reset")
"""Commands that take a user away from any agent, the gentler one first."""

_MARKER: Final = "[HANDOFF_TO:id]"


def agent_instructions(registry: Registry, agent_id: str, locale: str = "") -> str:
    """Return the text for an agent's prompt. agent_id: an id of the registry, not an alias.

    locale: empty for the registry's default. At most INSTRUCTIONS_BYTES_MAX bytes of UTF-8.
    """
    return InstructionWriter(registry, locale).text(agent_id)


def handoff_targets(registry: Registry, source: Agent) -> list[Agent]:
    """Return the agents to which an agent may hand over, for any user; home is among them."""
    return [
        agent
        for agent in registry.agents.values()
        if agent is not source
        and agent.enabled
        and agent.kind is not AgentKind.SYSTEM
        and (
            agent.agent_id == registry.home_agent_id
            or source.handoff_to is None
            or agent.agent_id in source.handoff_to
        )
    ]


class InstructionWriter:
    """Writes the texts of one registry in one language."""

    def __init__(
        self,
        registry: Registry,
        locale: str = "",
        texts: Texts | None = None,
        reachable: Container[str] | None = None,
    ) -> None:
        """Prepare what the texts have in common. locale: empty for the registry's default.

        reachable: the agents that one user may be with; None for texts that fit every user.
        """
        self._registry = registry
        self._reachable = reachable
        self._locale = locale or registry.default_locale
        self._texts = texts or instruction_texts()
        language = self._texts.negotiate(self._locale, registry.default_locale)
        self._names = {
            agent.agent_id: _clipped(
                agent.display_name(self._locale, registry.default_locale), NAME_CHARACTERS_MAX
            )
            for agent in registry.agents.values()
        }
        self._common = {
            "home": self._names[registry.home_agent_id],
            "home_id": registry.home_agent_id,
        }
        ways_out = [name for name in _WAYS_OUT if name not in registry.disabled_commands]
        self._way_out = COMMANDS_BY_NAME[ways_out[0]].typed(language) if ways_out else ""
        # Rendered once: a list may be part of as many texts as it has agents.
        self._comes_back = self._say("handoff-comes-back")
        described = {
            agent.agent_id: _clipped(
                agent.display_description(self._locale, registry.default_locale),
                _DESCRIPTION_CHARACTERS[0],
            )
            for agent in registry.agents.values()
        }
        self._lines = {
            characters: {
                agent_id: self._line(agent_id, description, characters)
                for agent_id, description in described.items()
            }
            for characters in _DESCRIPTION_CHARACTERS
        }

    def text(self, agent_id: str) -> str:
        """Return one agent's text. Raises KeyError for an id that the registry does not have."""
        agent = self._registry.agents[agent_id]
        intro = self._say("intro", name=self._names[agent_id], agent_id=agent_id)
        if agent.kind is AgentKind.SYSTEM:
            return f"{intro}\n\n{self._say('keep-system')}\n"
        targets = self._targets(agent)
        before = "\n".join((intro, *self._before_the_list(agent, targets)))
        after = "\n".join(self._after_the_list(agent, targets))
        room_bytes = INSTRUCTIONS_BYTES_MAX - len(f"{before}\n\n{after}\n".encode())
        listed = "\n".join(self._listed(agent, targets, room_bytes))
        return "\n".join(part for part in (before, listed, after) if part) + "\n"

    def _before_the_list(self, agent: Agent, targets: list[Agent]) -> Iterator[str]:
        yield from self._section("keep-head", *self._keeping(agent))
        if agent.kind is AgentKind.SUPERVISOR:
            yield from self._section("ask-head", self._say("ask-supervisor"))
        elif agent.sticks is not Sticks.NEVER:
            yield from self._section("ask-head", self._say("ask"))
        yield from self._section("complete-head", *self._completing(agent))
        yield from self._section("stop-head", self._say("stop-approval"), self._say("stop-failure"))
        yield from self._section("handoff-head", *self._handing_over(agent, targets))

    def _keeping(self, agent: Agent) -> Iterator[str]:
        if agent.kind is AgentKind.SUPERVISOR:
            yield self._say("keep-supervisor")
            return
        is_home = agent.agent_id == self._registry.home_agent_id
        if is_home:
            yield self._say("keep-home")
        match agent.sticks:
            case Sticks.SESSION:
                yield self._say("keep-session")
            case Sticks.FOLLOW_UP if not is_home:
                yield self._say("keep-follow-up")
            case Sticks.NEVER if not is_home:
                yield self._say("keep-never")
            case _:
                pass  # What comes back to the home agent comes back to this one.
        if agent.owns_session:
            yield self._say("keep-owns")
        if not is_home and self._way_out:
            yield self._say("keep-leave", leave_command=self._way_out)

    def _completing(self, agent: Agent) -> Iterator[str]:
        if agent.receives_as_interlude and agent.kind is not AgentKind.SUPERVISOR:
            yield self._say("interlude")
        yield self._say("complete-when")
        is_home = agent.agent_id == self._registry.home_agent_id
        match agent.on_complete:
            case OnComplete.HOP if self._is_reachable(agent.on_complete_agent_id):
                yield self._say("complete-hop", next_agent=self._names[agent.on_complete_agent_id])
            case OnComplete.STAY if agent.kind is not AgentKind.SUPERVISOR:
                yield self._say("complete-stay")
            case _ if is_home:
                yield self._say("complete-home")
            case _:
                # A release returns as well if an interrupted agent waits.
                yield self._say("complete-return")
        if agent.turns_max and agent.kind is not AgentKind.SUPERVISOR:
            yield self._say("turns-max", count=agent.turns_max)

    def _handing_over(self, agent: Agent, targets: list[Agent]) -> Iterator[str]:
        is_supervisor = agent.kind is AgentKind.SUPERVISOR
        if not targets:
            yield self._say("handoff-alone" if is_supervisor else "handoff-nobody")
            return
        yield self._say("handoff-specialists" if is_supervisor else "handoff-when")
        yield self._say("handoff-warm")
        yield self._say("handoff-how")

    def _listed(self, agent: Agent, targets: list[Agent], room_bytes: int) -> list[str]:
        """Return a line for each target, shortened and cut to the room that is left."""
        # A supervisor is never interrupted.
        may_return = agent.kind is not AgentKind.SUPERVISOR
        lines: list[str] = []
        for characters in _DESCRIPTION_CHARACTERS:
            known = self._lines[characters]
            lines = []
            left_bytes = room_bytes
            for target in targets:
                line = known[target.agent_id]
                if target.receives_as_interlude and may_return:
                    line = f"{line} {self._comes_back}"
                left_bytes -= _bytes(line)
                if left_bytes < 0:
                    break
                lines.append(line)
            else:
                return lines
        more_bytes = _bytes(self._more(len(targets)))
        while lines and room_bytes - sum(map(_bytes, lines)) < more_bytes:
            lines.pop()
        return [*lines, self._more(len(targets) - len(lines))]

    def _after_the_list(self, agent: Agent, targets: list[Agent]) -> Iterator[str]:
        is_home = agent.agent_id == self._registry.home_agent_id
        if targets:
            yield self._say("handoff-refused")
            if agent.kind is not AgentKind.SUPERVISOR:
                yield self._say("handoff-interlude")
            yield self._say("handoff-consult")
        if agent.markers and (targets or not is_home):
            yield self._say("handoff-marker", marker=_MARKER)
        if not is_home:
            # The home agent is never an interlude or consulted: a handoff to it is a transfer.
            yield from self._section(
                "back-head",
                self._say("back-home"),
                self._say("back-interrupted"),
                self._say("back-consulted"),
            )

    def _targets(self, agent: Agent) -> list[Agent]:
        """Return the agents to which an agent may hand over, except the home agent."""
        home_id = self._registry.home_agent_id
        return [
            target
            for target in handoff_targets(self._registry, agent)
            if target.agent_id != home_id and self._is_reachable(target.agent_id)
        ]

    def _is_reachable(self, agent_id: str) -> bool:
        """Say whether an agent may be handed to: it is enabled, and for this user if one is given.

        A completion that names another one degrades to a release.
        """
        agent = self._registry.agents[agent_id]
        return agent.enabled and (self._reachable is None or agent_id in self._reachable)

    def _section(self, heading: str, *sentences: str) -> Iterator[str]:
        yield ""
        yield self._say(heading)
        yield from sentences

    def _line(self, agent_id: str, description: str, characters: int) -> str:
        line = f"- {agent_id}"
        if not characters:
            return line
        if self._names[agent_id] != agent_id:
            line += f" ({self._names[agent_id]})"
        return f"{line}: {_cut(description, characters)}" if description else line

    def _more(self, count: int) -> str:
        return self._say("handoff-more", count=count, bytes=INSTRUCTIONS_BYTES_MAX)

    def _say(self, message_id: str, **variables: str | int) -> str:
        return self._texts.render(
            message_id,
            self._locale,
            default_locale=self._registry.default_locale,
            **self._common,
            **variables,
        )


def _bytes(line: str) -> int:
    """Return the bytes of a line with its line break."""
    return len(line.encode()) + 1


def _clipped(text: str, characters_max: int) -> str:
    """Return a text on one line, without invisible characters, cut if it is too long."""
    line = " ".join(text.split())[: 2 * characters_max]
    if not line.isprintable():  # Looking at every character, of hundreds of agents, takes a while.
        line = "".join(c for c in line if unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Co"})
    return _cut(line, characters_max)


def _cut(line: str, characters_max: int) -> str:
    return line if len(line) <= characters_max else f"{line[: characters_max - 1].rstrip()}…"
