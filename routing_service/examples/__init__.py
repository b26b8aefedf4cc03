"""Examples that run without a model or a network: registries, scripted agents, stories.

``EXAMPLES`` is the way in: for each example its registry file and what makes its agents.
``stories`` has conversations to play over them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from routing_service.examples import (
    budget_agents,
    erp_agents,
    platform_agents,
    tax_agents,
    tutor_agents,
)
from routing_service.examples.scripted_agents import ScriptedAgents


@dataclass(frozen=True, slots=True)
class Example:
    """One example. make_agents() returns the agents of one conversation."""

    name: str
    registry_path: Path
    make_agents: Callable[[], ScriptedAgents]


_FOLDER = Path(__file__).parent

EXAMPLES: Mapping[str, Example] = {
    "tax": Example("tax", _FOLDER / "tax.yaml", tax_agents.make_agents),
    "tutor": Example("tutor", _FOLDER / "tutor.yaml", tutor_agents.make_agents),
    "budget": Example("budget", _FOLDER / "budget.yaml", budget_agents.make_agents),
    "erp": Example("erp", _FOLDER / "erp.yaml", erp_agents.make_agents),
    "erp_topics": Example("erp_topics", _FOLDER / "erp_topics.yaml", erp_agents.make_agents),
    "erp_swarm": Example("erp_swarm", _FOLDER / "erp_swarm.yaml", erp_agents.make_swarm_agents),
    "platform": Example("platform", _FOLDER / "platform.yaml", platform_agents.make_agents),
}
