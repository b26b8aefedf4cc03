"""The names of agents in the registry and in a program.

An agent of the program that the registry does not have is an error, which is raised before anything
runs.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Any

from agent_routing.v1.routing_service_pb2 import ListAgentsResponse


def by_name(agents: Iterable[Any]) -> dict[str, Any]:
    """Return a program's agents by their names.

    Raises ValueError for an agent without a name, and for two agents with one name.
    """
    found: dict[str, Any] = {}
    known: set[str] = set()
    for agent in agents:
        name = agent.name or ""
        if not name:
            raise ValueError("an agent has no name; give each one its id or alias: Agent(name=…)")
        if _folded(name) in known:
            raise ValueError(
                f"two agents have the name {name!r}, and one of them would never run; give each"
                " agent a name of its own, its id or alias in the registry"
            )
        known.add(_folded(name))
        found[name] = agent
    return found


class AgentNames:
    """The agents of one program.

    names: of the agents in the program: an id of the registry or one of its aliases, in any case.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)
        if not self._names:
            raise ValueError("there are no agents; give the names of the program's agents")
        # Until the registry has been read, a name stands for an id.
        self._id_by_name = {_folded(name): name for name in self._names}
        self.by_id: dict[str, str] = {name: name for name in self._names}

    def learn(self, listed: ListAgentsResponse) -> None:
        """Take the ids and aliases of the registry. listed: every agent of the registry.

        Raises LookupError for an agent of the program that is not in the registry, and for two
        that are the same agent there.
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
        by_id: dict[str, str] = {}
        for name in self._names:
            agent_id = ids[_folded(name)]
            if agent_id in by_id:
                raise LookupError(
                    f"the program's agents {by_id[agent_id]!r} and {name!r} are both agent"
                    f" {agent_id!r} of the registry; give each one an agent there"
                )
            by_id[agent_id] = name
        self._id_by_name = {_folded(name): ids[_folded(name)] for name in self._names} | ids
        self.by_id = by_id

    def agent_id(self, name: str) -> str | None:
        """Return the id of an agent by its name in the program, id or alias; None if unknown."""
        return self._id_by_name.get(_folded(name))

    def name(self, agent_id: str) -> str | None:
        """Return an agent's name in the program; None if it belongs to another program."""
        return self.by_id.get(agent_id)


def _folded(name: str) -> str:
    """Return the form in which the service compares names: case and composition do not matter."""
    return unicodedata.normalize("NFC", name.strip()).casefold()
