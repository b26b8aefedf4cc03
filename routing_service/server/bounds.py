"""Bounds that every server has and no setting changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from routing_service.rpc.health import WATCHES_MAX
from routing_service.rpc.method_handlers import WRITE_S_MAX
from routing_service.rpc.tenant_audit import READ_MAX, SCANNED_MAX
from routing_service.server.connection_guard import DEAF_S, STRIKES_MAX
from routing_service.web.wait_limits import DEFAULT_WAITS, WaitLimits


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of one server. Tests make them small.

    write_s_max: how long a stream's reader may stall. health_watches_max: open at a time.
    audit_read_max, audit_scanned_max: changes of a tenant's audit that are read at once, and for
    one page. deaf_s, strikes_max: for connections that flood. web_waits: for clients of the web
    listener.
    """

    write_s_max: float = WRITE_S_MAX
    health_watches_max: int = WATCHES_MAX
    audit_read_max: int = READ_MAX
    audit_scanned_max: int = SCANNED_MAX
    deaf_s: float = DEAF_S
    strikes_max: int = STRIKES_MAX
    web_waits: WaitLimits = DEFAULT_WAITS


DEFAULT_BOUNDS: Final = Bounds()
