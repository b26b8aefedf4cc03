"""HTTP proxies: gRPC goes through one that the environment names, whether or not it is meant to.

Its rule: what is on this machine is called directly.
"""

from __future__ import annotations

import os
from typing import Final

_LOCAL: Final = ("127.", "localhost:", "[::1]", "unix:", "unix-abstract:")

_VARIABLES: Final = ("grpc_proxy", "https_proxy", "http_proxy")
_EXCEPTIONS: Final = ("no_grpc_proxy", "no_proxy")
"""gRPC's own, in its order: the first one that is set counts."""


def is_local(target: str) -> bool:
    """Tell whether a target is on this machine: loopback, or a unix socket."""
    return all(f"{each}:".startswith(_LOCAL) for each in _places(target))


def proxy_options(target: str) -> tuple[tuple[str, int], ...]:
    """Return the options that a channel to a target needs."""
    return (("grpc.enable_http_proxy", 0),) if is_local(target) else ()


def proxy_hint(target: str) -> str:
    """Return what an error says if gRPC goes through a proxy to a target; empty if it does not."""
    named = next((name for name in _VARIABLES if os.environ.get(name)), "")
    excluded = next((os.environ[name] for name in _EXCEPTIONS if os.environ.get(name)), "")
    ends = tuple(part.strip() for part in excluded.split(",") if part.strip())
    hosts = [each.rpartition(":")[0].strip("[]") for each in _places(target)]
    if not named or is_local(target) or all(host.endswith(ends) for host in hosts):
        return ""
    return f"; it is called through the proxy of {named}: if it must not be, add it to no_proxy"


def _places(target: str) -> list[str]:
    for prefix in ("ipv4:", "ipv6:", "dns:///", "dns:"):
        target = target.removeprefix(prefix)
    return target.split(",")
