"""The files of a new project: what ``agent-routing init`` writes.

Rule: they work as they are, and every value in them is one that the user chose or can look up.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from string import Template
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from routing_service import __version__
from routing_service.core.identifiers import ID_ALPHABET, ID_PATTERN, LOCALE_CHARS_MAX

STORES: Final = ("sqlite", "postgres", "redis", "memory")

DELIVERIES: Final = ("caller", "inbox")
"""Who runs the agents: the program that sends the messages, or workers of their own."""

AGENTS_MAX: Final = 20
"""More agents than a person lists in one line are written in the registry file."""

LANGUAGES_MAX: Final = 8

_LANGUAGE: Final = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*")

_DESCRIPTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "en": ("Welcomes users and brings in the right specialist.", "Questions about {}."),
    "es": ("Atiende a quien llega y avisa al especialista que corresponde.", "Consultas de {}."),
    "pt": ("Recebe quem chega e chama o especialista certo.", "Perguntas sobre {}."),
}
"""The supervisor's description and a specialist's, by language. Others start in English."""


@dataclass(frozen=True, slots=True)
class Starter:
    """What the user chose. languages: the first is the default. delivery: see DELIVERIES."""

    agent_ids: tuple[str, ...]
    supervisor_id: str
    languages: tuple[str, ...]
    store: str
    delivery: str = "caller"

    @property
    def has_worker(self) -> bool:
        """Whether the agents are workers with an inbox."""
        return self.delivery == "inbox"


def agent_problem(agent_id: str) -> str:
    """Return what is wrong with an agent's id, or nothing."""
    if re.search(ID_PATTERN, agent_id):
        return ""
    return f'"{agent_id}" is not an agent id: 1 to 128 characters of {ID_ALPHABET}'


def language_problem(tag: str) -> str:
    """Return what is wrong with a language, or nothing."""
    if len(tag) <= LOCALE_CHARS_MAX and _LANGUAGE.fullmatch(tag):
        return ""
    return f'"{tag}" is not a language tag such as en, es or pt-BR'


def starter_files(starter: Starter) -> dict[str, str]:
    """Return the files' texts by name."""
    programs = ("worker.py", "chat.py") if starter.has_worker else ("agents.py",)
    return {
        "agents.yaml": _registry(starter),
        **{name: _program(starter, name) for name in programs},
        "compose.yaml": _compose(starter),
    }


def _registry(starter: Starter) -> str:
    inbox = {"delivery": starter.delivery} if starter.has_worker else {}
    document = {
        "api_version": "agent_routing/v1",
        "version": 1,
        "supervisor": starter.supervisor_id,
        "default_locale": starter.languages[0],
        "agents": [
            {
                "id": starter.supervisor_id,
                "name": _names(starter, starter.supervisor_id),
                "description": _described(starter, starter.supervisor_id),
                **inbox,
            },
            *(
                {
                    "id": agent_id,
                    "name": _names(starter, agent_id),
                    "description": _described(starter, agent_id),
                    "user_selectable": True,
                    **inbox,
                }
                for agent_id in starter.agent_ids
            ),
        ],
    }
    return (
        "# The agents of this chat. Every change is checked by: agent-routing check agents.yaml\n"
        + _yaml(document)
    )


def _shown_name(agent_id: str) -> str:
    name = re.sub(r"[._:=;+@-]+", " ", agent_id).strip() or agent_id
    return name[:1].upper() + name[1:]


def _names(starter: Starter, agent_id: str) -> dict[str, str]:
    return dict.fromkeys(starter.languages, _shown_name(agent_id))


def _described(starter: Starter, agent_id: str) -> dict[str, str]:
    is_supervisor = agent_id == starter.supervisor_id
    found = {}
    for tag in starter.languages:
        language = tag.partition("-")[0].lower()
        home, specialist = _DESCRIPTIONS.get(language, _DESCRIPTIONS["en"])
        found[tag] = home if is_supervisor else specialist.format(_shown_name(agent_id).lower())
    return found


def _program(starter: Starter, name: str) -> str:
    """Return a program's text. name: of the file, and of its template."""
    names = _function_names((starter.supervisor_id, *starter.agent_ids))
    given, text = ("turn", "turn.text") if starter.has_worker else ("text", "text")
    specialists = "".join(
        "\n\n"
        + (f'@worker.agent("{agent_id}")\n' if starter.has_worker else "")
        + f"def {names[agent_id]}({given}):\n"
        + f'    return specialist("{_shown_name(agent_id)}", {text})\n'
        for agent_id in starter.agent_ids
    )
    table = "".join(f'    "{agent_id}": {name},\n' for agent_id, name in names.items())
    words = "".join(
        f'    "{agent_id}": ["{_shown_name(agent_id).lower()}"],\n'
        for agent_id in starter.agent_ids
    )
    return _template(f"{name}.template").substitute(
        supervisor_id=starter.supervisor_id,
        supervisor=names[starter.supervisor_id],
        locale=starter.languages[0],
        words=words,
        specialists=specialists,
        table=table,
    )


def _function_names(agent_ids: tuple[str, ...]) -> dict[str, str]:
    """Return a name of its own for each agent's function."""
    names: dict[str, str] = {}
    for agent_id in agent_ids:
        name = "answer_as_" + re.sub(r"\W", "_", agent_id.casefold())
        while name in names.values():
            name += "_"
        names[agent_id] = name
    return names


def _template(name: str) -> Template:
    folder = resources.files("routing_service") / "cli" / "starter_files"
    return Template((folder / name).read_text(encoding="utf-8"))


def _compose(starter: Starter) -> str:
    store_url, services, volumes = _STORE_SERVICES[starter.store]
    server: dict[str, Any] = {
        "image": f"agent-routing:{__version__}",
        # Anyone who reaches the port is believed, so it is published on this machine alone.
        "command": ["serve", "--insecure"],
        "restart": "unless-stopped",
        "environment": {
            "AGENT_ROUTING_STORE": store_url,
            "AGENT_ROUTING_AGENTS": "/etc/agent-routing/agents.yaml",
            "AGENT_ROUTING_ADMIN_LISTEN": "main",
        },
        "volumes": ["./agents.yaml:/etc/agent-routing/agents.yaml:ro"],
        "ports": ["127.0.0.1:50051:50051"],
        "stop_grace_period": "20s",
        **_CONFINED,
    }
    if starter.store == "sqlite":
        server["volumes"].append("sessions:/data")
    if starter.store == "postgres":
        services = services | {
            "migrate": {
                "image": server["image"],
                "command": ["migrate"],
                "environment": {"AGENT_ROUTING_STORE": store_url},
                "depends_on": {"postgres": {"condition": "service_healthy"}},
                # Unquoted, Compose reads it as false.
                "restart": DoubleQuotedScalarString("no"),
            }
        }
    waits_for = {
        "postgres": {"migrate": {"condition": "service_completed_successfully"}},
        "redis": {"redis": {"condition": "service_healthy"}},
    }.get(starter.store)
    if waits_for:
        server["depends_on"] = waits_for
    if starter.has_worker:
        services = services | {"worker": _worker_service()}
    document: dict[str, Any] = {"services": {**services, "server": server}}
    if volumes:
        document["volumes"] = dict.fromkeys(volumes)
    return _template("compose.yaml.template").substitute(
        image=server["image"], first=_FIRST[starter.store], document=_yaml(document)
    )


def _worker_service() -> dict[str, Any]:
    return {
        # It has Python and the client. For libraries of yours, build an image from it.
        "image": f"agent-routing:{__version__}",
        "entrypoint": ["python"],
        "command": ["/app/worker.py"],
        "restart": "unless-stopped",
        "environment": {"AGENT_ROUTING_TARGET": "server:50051"},
        "volumes": ["./worker.py:/app/worker.py:ro"],
        "depends_on": {"server": {"condition": "service_healthy"}},
        # The image's own check asks a server.
        "healthcheck": {"disable": True},
        # It waits 20 s for its functions, and gives the other turns back.
        "stop_grace_period": "30s",
        **_CONFINED,
    }


_CONFINED: Final = {
    "read_only": True,
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges:true"],
}
_POSTGRES: Final = {
    "image": "postgres:18-bookworm",
    "restart": "unless-stopped",
    "environment": {
        "POSTGRES_DB": "chat",
        "POSTGRES_USER": "router",
        "POSTGRES_PASSWORD": "${POSTGRES_PASSWORD:?choose a password of letters and digits}",
    },
    "volumes": ["sessions:/var/lib/postgresql"],
    "healthcheck": {
        "test": ["CMD", "pg_isready", "--username=router", "--dbname=chat"],
        "interval": "2s",
        "timeout": "5s",
        "retries": 30,
    },
    "stop_grace_period": "60s",
}
_REDIS: Final = {
    "image": "redis:8-bookworm",
    "restart": "unless-stopped",
    # An answer is sent once the change is on disk: every write is synced.
    "command": ["redis-server", "--appendonly", "yes", "--appendfsync", "always"],
    "volumes": ["sessions:/data"],
    "healthcheck": {
        "test": ["CMD", "redis-cli", "ping"],
        "interval": "2s",
        "timeout": "5s",
        "retries": 30,
    },
}
_STORE_SERVICES: Final[Mapping[str, tuple[str, dict[str, Any], tuple[str, ...]]]] = {
    "sqlite": ("sqlite:////data/routing.db", {}, ("sessions",)),
    "postgres": (
        "postgres://router:${POSTGRES_PASSWORD}@postgres:5432/chat",
        {"postgres": _POSTGRES},
        ("sessions",),
    ),
    "redis": ("redis://redis:6379/0", {"redis": _REDIS}, ("sessions",)),
    "memory": ("memory:", {}, ()),
}
_FIRST: Final = {
    "sqlite": "docker compose up --wait",
    "postgres": "POSTGRES_PASSWORD=... docker compose up --wait",
    "redis": "docker compose up --wait",
    "memory": "docker compose up --wait",
}


def _yaml(document: object) -> str:
    yaml = YAML()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.width = 100
    written = io.StringIO()
    yaml.dump(document, written)
    return written.getvalue()
