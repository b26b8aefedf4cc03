"""The trace that a caller's call belongs to, read from its metadata by W3C Trace Context."""

from __future__ import annotations

import re
from typing import Final

TRACEPARENT: Final = "traceparent"

_FORM: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16


def read_traceparent(value: str | bytes) -> re.Match[str] | None:
    """Return a traceparent's trace id, span id and flags as groups; None if it is not valid.

    The specification says to ignore an invalid one.
    """
    if not isinstance(value, str) or value.startswith("ff"):
        return None
    given = _FORM.fullmatch(value)
    if given is None or given[1] == _NO_TRACE or given[2] == _NO_SPAN:
        return None
    return given


def trace_id_of(traceparent: str | bytes) -> str:
    """Return a traceparent's trace id; "" if it is not valid."""
    given = read_traceparent(traceparent)
    return given[1] if given else ""
