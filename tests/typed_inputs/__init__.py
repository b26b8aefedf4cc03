"""What people type, with what should come of it: our own list, and that of the field where it is.

tests/typed_inputs/*.json has one file a kind, with cases as lists. The field's typed.json has the
same kinds. ROUTING_FIELD names the folder of the latter.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

FOLDER_VARIABLE = "ROUTING_FIELD"
FOLDER_DEFAULT = Path(__file__).parents[2] / ".." / "shared" / "data" / "field"

OWN = Path(__file__).parent


def own_inputs(kind: str) -> Any:
    """Return our own list of a kind: command, answer, pick or marker."""
    return json.loads((OWN / f"{kind}.json").read_text(encoding="utf-8"))


def field_inputs(kind: str) -> Any:
    """Return the field's list of a kind; skip the test where it is missing."""
    path = Path(os.environ.get(FOLDER_VARIABLE) or FOLDER_DEFAULT).resolve() / "typed.json"
    if not path.exists():
        pytest.skip(f"no {path.name} in {path.parent}; name its folder in {FOLDER_VARIABLE}")
    return json.loads(path.read_text(encoding="utf-8"))[kind]
