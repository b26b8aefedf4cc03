"""Client of the agent routing service.

Owns the public names in __all__. A name is imported from its module at its first use, because grpc
and protobuf take a tenth of a second to import, and a command that only prints its help must not
pay for that.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from agent_routing._version import __version__

if TYPE_CHECKING:
    from agent_routing import content, errors, outcomes
    from agent_routing.admin import Admin
    from agent_routing.admin_aio import AsyncAdmin
    from agent_routing.aio import AsyncClient
    from agent_routing.calls import CallInfo
    from agent_routing.client import Client
    from agent_routing.errors import RoutingError
    from agent_routing.fallback import Fallback
    from agent_routing.marker_filter import MarkerFilter
    from agent_routing.retry import RetryPolicy
    from agent_routing.route_result import RouteResult
    from agent_routing.tokens import tls_credentials

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncClient",
    "CallInfo",
    "Client",
    "Fallback",
    "MarkerFilter",
    "RetryPolicy",
    "RouteResult",
    "RoutingError",
    "__version__",
    "content",
    "errors",
    "outcomes",
    "tls_credentials",
]

_MODULES: Final = {
    "Admin": "agent_routing.admin",
    "AsyncAdmin": "agent_routing.admin_aio",
    "AsyncClient": "agent_routing.aio",
    "CallInfo": "agent_routing.calls",
    "Client": "agent_routing.client",
    "Fallback": "agent_routing.fallback",
    "MarkerFilter": "agent_routing.marker_filter",
    "RetryPolicy": "agent_routing.retry",
    "RouteResult": "agent_routing.route_result",
    "RoutingError": "agent_routing.errors",
    "tls_credentials": "agent_routing.tokens",
}
"""The module of each class and function. The other names in __all__ are modules."""


def __getattr__(name: str) -> object:
    """Import a public name at its first use, and keep it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _MODULES:
        value = getattr(importlib.import_module(_MODULES[name]), name)
    else:
        value = importlib.import_module(f"{__name__}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Also list the names that are not imported yet."""
    return sorted({*globals(), *__all__})
