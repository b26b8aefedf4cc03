"""Agents by two names: the registry's ids, and what a program calls them.

Owns: finding one by the other. Must not know: frameworks, sessions. Rule: an agent of the program
that the registry lacks is the program's mistake, and is said before anything runs.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from agent_routing.v1.routing_service_pb2 import ListAgentsResponse


class AgentNames:
    """The agents of one program.

    names: what the program calls its agents: an id of the registry or one of its aliases, in any
    case.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)
        if not self._names:
            raise ValueError("there are no agents; give those that the registry names")
        # Until the registry has been read, a name is taken for an id.
        self._id_by_name = {_folded(name): name for name in self._names}
        self.by_id: dict[str, str] = {name: name for name in self._names}

    def learn(self, listed: ListAgentsResponse) -> None:
        """Take the registry's ids and aliases over. listed: every agent of the registry.

        Raises LookupError for an agent of the program that is not in it.
        """
        ids = {_folded(agent.agent_id): agent.agent_id for agent in listed.agents}
        ids |= {_folded(alias): agent_id for alias, agent_id in listed.agent_id_by_alias.items()}
        unknown = [name for name in self._names if _folded(name) not in ids]
        if unknown:
            known = ", ".join(agent.agent_id for agent in listed.agents)
            raise LookupError(
                f"the registry has no agent {', '.join(map(repr, unknown))}, neither as id nor as"
                f" alias; add an alias to one of these, or rename the program's agent: {known}"
            )
        self._id_by_name = {_folded(name): ids[_folded(name)] for name in self._names} | ids
        self.by_id = {ids[_folded(name)]: name for name in self._names}

    def agent_id(self, name: str) -> str | None:
        """Return the id of an agent by its name in the program, id or alias; None if unknown."""
        return self._id_by_name.get(_folded(name))

    def name(self, agent_id: str) -> str | None:
        """Return what the program calls an agent; None if it is not the program's."""
        return self.by_id.get(agent_id)


def _folded(name: str) -> str:
    """Return the form under which the service compares names: any case, any composition."""
    return unicodedata.normalize("NFC", name.strip()).casefold()
