#!/usr/bin/env python3
"""Write the settings of the chart's values.yaml, and its schema, from the table of settings.

scripts/make_chart.py             check that both are up to date
scripts/make_chart.py --write     write them
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from routing_service.settings.setting_forms import (  # noqa: E402 - runs from a checkout
    Choice,
    Seconds,
    Setting,
    Switch,
    WholeNumber,
)
from routing_service.settings.settings import SETTINGS  # noqa: E402

VALUES: Final = ROOT / "deploy/helm/values.yaml"
SCHEMA: Final = ROOT / "deploy/helm/values.schema.json"
BEGIN: Final = "# Settings of the server, made by scripts/make_chart.py.\n"

GIVEN: Final = {
    "listen": "0.0.0.0:50051",
    "agents": "/etc/agent-routing/agents.yaml",
    "probe_listen": "0.0.0.0:50053",
    "metrics_listen": "0.0.0.0:9464",
    "log_format": "json",
    "drain_s": "20",
}
"""What the chart's objects need; all other settings have the server's defaults."""

IN_THE_SECRET: Final = frozenset({"store"})
"""Settings with a password, which come from a Secret."""


def main() -> int:
    """Write or check."""
    values = VALUES.read_text("utf-8").partition(BEGIN)[0] + BEGIN + settings_text()
    schema = json.dumps(schema_of(), indent=2) + "\n"
    if sys.argv[1:] == ["--write"]:
        VALUES.write_text(values, "utf-8")
        SCHEMA.write_text(schema, "utf-8")
        return 0
    if (VALUES.read_text("utf-8"), SCHEMA.read_text("utf-8")) == (values, schema):
        return 0
    sys.stderr.write("the chart's settings are not up to date: scripts/make_chart.py --write\n")
    return 1


def settings_text() -> str:
    """Return the settings with their help; null stands for the server's default."""
    lines = ["# null: the server's default, shown below.", "settings:"]
    for name, setting in SETTINGS.items():
        if name in IN_THE_SECRET:
            continue
        default = f" Default: {setting.default}." if setting.default != "" else ""
        text = f"{setting.help[:1].upper()}{setting.help[1:]}.{default}"
        lines += textwrap.wrap(text, 96, initial_indent="  # ", subsequent_indent="  # ")
        given = GIVEN.get(name)
        if given is None:
            lines.append(f"  {name}: null")
        else:
            lines.append(f"  {name}: {given}")
    return "\n".join(lines) + "\n"


def schema_of() -> dict[str, Any]:
    """Return the schema: a misspelt setting is refused before anything is applied."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "settings": {
                "type": "object",
                "additionalProperties": False,
                "required": list(GIVEN),
                "properties": {
                    name: form_of(setting)
                    for name, setting in SETTINGS.items()
                    if name not in IN_THE_SECRET
                },
            }
        },
    }


def form_of(setting: Setting) -> dict[str, Any]:
    """Return the schema of one setting. Numbers may be given as text, as --set does."""
    match setting.form:
        case Switch():
            return {"type": ["boolean", "null"]}
        case WholeNumber():
            return {"type": ["integer", "null"]}
        case Seconds():
            return {"type": ["number", "null"]}
        case Choice() as choice:
            return {"enum": [*choice.words, None]}
        case _:
            return {"type": ["string", "null"]}


if __name__ == "__main__":
    sys.exit(main())
