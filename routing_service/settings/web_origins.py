"""The origins of pages that may call the service from a browser.

Owns the form of the list and how origins are compared. Rule: an origin is allowed by its whole
name. Wildcards are refused, because the list must keep out every other page.
"""

from __future__ import annotations

import re
from typing import Final

ORIGINS_MAX: Final = 100
"""More than these belong behind one proxy, with an origin of its own."""

_ORIGIN: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{1,5}))?"
)
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}


def parse_origins(text: str) -> frozenset[str]:
    """Read origins, separated by commas or spaces, as browsers write them.

    Raises ValueError with what to write instead.
    """
    words = text.replace(",", " ").split()
    if len(words) > ORIGINS_MAX:
        raise ValueError(f"give at most {ORIGINS_MAX} origins")
    return frozenset(map(_origin, words))


def _origin(word: str) -> str:
    found = _ORIGIN.fullmatch(word)
    if found is None:
        raise ValueError(
            f'"{word[:100]}" is no origin; give scheme, host and port as browsers send them, such '
            "as https://chat.example.org, separated by commas"
        )
    scheme, host, port = found["scheme"], found["host"].lower(), found["port"]
    # Browsers leave out the port that the scheme implies.
    suffix = "" if port is None or port == _DEFAULT_PORTS[scheme] else f":{port}"
    return f"{scheme}://{host}{suffix}"
