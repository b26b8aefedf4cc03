"""The example registries by name, without the scripts of their agents.

Rule: a command that only names or serves an example does not import its agents.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Final

import typer

EXAMPLES: Final = (
    "tax",
    "tutor",
    "budget",
    "erp",
    "erp_topics",
    "erp_swarm",
    "platform",
    "helpdesk",
)
"""The agents of "helpdesk" have no scripts: in the chat, stand-ins answer, and a person."""


def example_file(name: str) -> Path:
    """Return the registry file of an example. Exits with 2 for an unknown name."""
    if name not in EXAMPLES:
        raise typer.BadParameter(f'there is no example "{name}"; examples: {", ".join(EXAMPLES)}')
    return Path(str(resources.files("routing_service") / "examples" / f"{name}.yaml"))
