"""Client of the agent routing service.

Owns what its users import: the names in __all__. Must not import grpc or protobuf by itself: they
cost a tenth of a second, and a command that only prints its help should not pay for them. The rule:
a name is imported from its module when it is first asked for.
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
    "RetryPolicy": "agent_routing.retry",
    "RouteResult": "agent_routing.route_result",
    "RoutingError": "agent_routing.errors",
    "tls_credentials": "agent_routing.tokens",
}
"""The module of each class and function. What is in __all__ and not here is a module itself."""


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for, and keep it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _MODULES:
        value = getattr(importlib.import_module(_MODULES[name]), name)
    else:
        value = importlib.import_module(f"{__name__}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Show what is not imported yet, too."""
    return sorted({*globals(), *__all__})
