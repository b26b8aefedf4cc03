"""Bounds that every server has and no setting changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from routing_service.auth.key_set import FETCH_EVERY_S
from routing_service.registry.live_registry import FILE_POLL_S
from routing_service.rpc.admin.replay_runs import ReplayBounds
from routing_service.rpc.caller_limits import STREAM_KINDS, StreamKind
from routing_service.rpc.health import WATCHES_MAX
from routing_service.rpc.method_handlers import WRITE_S_MAX
from routing_service.rpc.tenant_audit import READ_MAX, SCANNED_MAX
from routing_service.server.connection_guard import DEAF_S, STRIKES_MAX
from routing_service.sessions.audit_sealer import SEAL_INTERVAL_S
from routing_service.sessions.expiry_sweeper import SWEEP_INTERVAL_S
from routing_service.sessions.session_cache import FOLDS_MAX, HOT_TRUST_S
from routing_service.sessions.stickiness_switch import GAUGE_S
from routing_service.topics.detection import FAILURE_LOG_S
from routing_service.topics.detector_pool import THREADS_MAX, WAITING_MAX
from routing_service.web.wait_limits import DEFAULT_WAITS, WaitLimits


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of one server. Tests make them small.

    write_s_max: how long a stream's reader may stall. health_watches_max: open at a time.
    audit_read_max, audit_scanned_max: changes of a tenant's audit that are read at once, and for
    one page. deaf_s, strikes_max: for connections that flood. web_waits: for clients of the web
    listener. sweep_interval_s, registry_poll_s, stickiness_gauge_s, keys_fetch_every_s,
    audit_seal_s: how often the background work looks. folds_max, hot_trust_s: of the cache of
    sessions. detector_...: of topic detectors that a setting names. replay: of the process of a
    replay. stream_kinds: how many streams of each RPC may be open.
    """

    write_s_max: float = WRITE_S_MAX
    health_watches_max: int = WATCHES_MAX
    audit_read_max: int = READ_MAX
    audit_scanned_max: int = SCANNED_MAX
    deaf_s: float = DEAF_S
    strikes_max: int = STRIKES_MAX
    web_waits: WaitLimits = DEFAULT_WAITS
    sweep_interval_s: float = SWEEP_INTERVAL_S
    registry_poll_s: float = FILE_POLL_S
    stickiness_gauge_s: float = GAUGE_S
    keys_fetch_every_s: float = FETCH_EVERY_S
    audit_seal_s: float = SEAL_INTERVAL_S
    folds_max: int = FOLDS_MAX
    hot_trust_s: float = HOT_TRUST_S
    detector_threads_max: int = THREADS_MAX
    detector_waiting_max: int = WAITING_MAX
    detector_failure_log_s: float = FAILURE_LOG_S
    replay: ReplayBounds = field(default_factory=ReplayBounds)
    stream_kinds: Mapping[str, StreamKind] = field(default_factory=lambda: STREAM_KINDS)


DEFAULT_BOUNDS: Final = Bounds()
