"""The server: it makes the parts, connects them, starts them in order and stops them in order.

Rule: an announced server works. A server that cannot serve (registry, store, address) says why and
does not start. A server that stops first finishes the calls that it has accepted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import structlog

from routing_service.analytics.keeper import StatsKeeper
from routing_service.ids import new_uuid7
from routing_service.registry.live_registry import RegistrySource
from routing_service.rpc.admin.replay_runs import Replays
from routing_service.rpc.admin_servicer import AdminServicer
from routing_service.rpc.caller_limits import CallerLimits
from routing_service.rpc.channelz import channelz_handlers
from routing_service.rpc.health import HealthService, StoreProbe
from routing_service.rpc.masked_answers import masked_methods
from routing_service.rpc.method_handlers import service_handlers
from routing_service.rpc.open_streams import OpenStreams
from routing_service.rpc.routing_servicer import RoutingServicer
from routing_service.server import own_sockets
from routing_service.server.bounds import DEFAULT_BOUNDS, Bounds
from routing_service.server.channel_options import PENDING_HARD_FACTOR
from routing_service.server.connection_guard import ConnectionGuard, SignedPeers
from routing_service.server.listeners import Listeners
from routing_service.server.parts import (
    BugsOnly,
    Counts,
    end_task,
    load_registry,
    make_topic_judge,
    open_listeners,
    open_tls_files,
    read_figures,
    read_registry,
    read_status,
    replay_settings,
    seal_notes,
    shipped_model,
    start_console,
    start_metrics,
    start_probes,
    start_web,
    tell_queues,
)
from routing_service.server.sign_in import MadeSignIn, make_sign_in
from routing_service.server.tls_files import TlsFiles
from routing_service.server.unread_calls import UnreadCalls
from routing_service.sessions.approval_watches import ApprovalWatches
from routing_service.sessions.audit_sealer import AuditSealer
from routing_service.sessions.auto_off import AutoOffWatch
from routing_service.sessions.command_handler import CommandHandler
from routing_service.sessions.event_feed import EventFeed
from routing_service.sessions.expiry_sweeper import ExpirySweeper
from routing_service.sessions.inbox import Inbox
from routing_service.sessions.live_feed import LiveFeed
from routing_service.sessions.stickiness_switch import (
    DEFAULT_TENANT,
    Source,
    Stickiness,
    StickinessSwitch,
)
from routing_service.sessions.user_turns import UserTurns
from routing_service.settings.listen_address import ListenAddress
from routing_service.settings.rules import without_secrets
from routing_service.settings.settings import Settings
from routing_service.storage.checked_store import Store
from routing_service.storage.open_store import open_store
from routing_service.storage.store_format import settle_format
from routing_service.telemetry.call_record import CallObserver
from routing_service.telemetry.tracing import Tracing
from routing_service.topics.detection import TopicJudge
from routing_service.topics.topic_detector import TopicModel

if TYPE_CHECKING:
    from routing_service.telemetry.otlp_metrics import MetricsExport
    from routing_service.telemetry.prometheus_text import Figures
    from routing_service.web.web_listener import WebListener

_log = structlog.get_logger(__name__)

OpenStore = Callable[[str], Awaitable[Store]]
MakeProbe = Callable[[Callable[[], Awaitable[None]], Callable[[bool], None]], StoreProbe]


def system_clock_us() -> int:
    """Return microseconds since 1970."""
    return time.time_ns() // 1_000


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a server consists of, apart from its listeners."""

    settings: Settings
    bounds: Bounds
    clock_us: Callable[[], int]
    source: RegistrySource
    topics: TopicJudge
    store: Store
    feed: EventFeed
    inbox: Inbox
    approvals: ApprovalWatches
    live: LiveFeed
    stats: StatsKeeper
    auto_off: AutoOffWatch
    handler: CommandHandler
    switch: StickinessSwitch
    sweeper: ExpirySweeper
    sealer: AuditSealer
    health: HealthService
    draining: asyncio.Event
    signing_in: MadeSignIn
    tls: TlsFiles | None
    unread: UnreadCalls

    @classmethod
    def connected(
        cls,
        settings: Settings,
        *,
        store: Store,
        source: RegistrySource,
        topics: TopicJudge,
        clock_us: Callable[[], int],
        signing_in: MadeSignIn,
        bounds: Bounds,
    ) -> _Parts:
        """Make the parts and connect them. Raises SettingsInvalid for unreadable files."""
        feed = EventFeed(store)
        inbox = Inbox(store)
        approvals = ApprovalWatches(store)
        switch = StickinessSwitch(
            store,
            lambda: source.registry.stickiness_enabled,
            start_source=Source.REGISTRY if settings.stickiness == "registry" else Source.SETTING,
            gauge_s=bounds.stickiness_gauge_s,
        )
        user_turns = UserTurns(store, settings.user_turns_max)
        handler = CommandHandler(
            store,
            lambda: source.registry,
            clock_us,
            stickiness=switch.now,
            cache_sessions_max=settings.cache_sessions_max,
            folds_max=bounds.folds_max,
            hot_trust_s=bounds.hot_trust_s,
            publish=feed.publish,
            doubt=feed.doubt,
            topics=topics,
            on_entries=partial(tell_queues, user_turns, inbox, approvals),
            user_turns=user_turns,
        )
        inbox.serve(handler)
        approvals.serve(handler.approvals)
        auto_off = AutoOffWatch(store, switch, lambda: source.registry, clock_us)
        return cls(
            settings=settings,
            bounds=bounds,
            clock_us=clock_us,
            source=source,
            topics=topics,
            store=store,
            feed=feed,
            inbox=inbox,
            approvals=approvals,
            live=LiveFeed(store),
            stats=StatsKeeper(
                store,
                lambda: source.registry.home_agent_id,
                clock_us,
                holder=new_uuid7(),
                window_part_us=auto_off.part_us,
                watch=auto_off.look,
            ),
            auto_off=auto_off,
            handler=handler,
            switch=switch,
            sealer=AuditSealer(
                store,
                clock_us,
                holder=new_uuid7(),
                logs=(handler.audit, auto_off.audit),
                interval_s=bounds.audit_seal_s,
                notes=seal_notes(settings.audit_seals_file),
            ),
            sweeper=ExpirySweeper(
                store, handler.expire, clock_us, interval_s=bounds.sweep_interval_s
            ),
            health=HealthService(bounds.health_watches_max),
            draining=asyncio.Event(),
            signing_in=signing_in,
            tls=open_tls_files(settings),
            unread=UnreadCalls(settings.pending_requests_max * PENDING_HARD_FACTOR),
        )

    def figures(self, counts: Counts) -> Figures:
        """Return the figures of the metrics page as they are now."""
        return read_figures(
            counts=counts,
            health=self.health,
            feed=self.feed,
            source=self.source,
            inbox=self.inbox,
            sweeper=self.sweeper,
            stats=self.stats,
            auto_off=self.auto_off,
            switch=self.switch,
            store=self.store,
            topics=self.topics,
            keys_age_s=self.signing_in.keys_age_s,
            calls_refused_unread=self.unread.refused,
        )

    def drain(self, listeners: Listeners) -> None:
        """Send callers to other replicas, and end the calls that have no end of their own."""
        self.draining.set()
        self.health.drain()
        listeners.drain()
        self.feed.close()
        self.inbox.close()
        self.approvals.close()


@dataclass(frozen=True, slots=True)
class _Listening:
    """Where a server is reached: addresses with their real ports."""

    listeners: Listeners
    main: ListenAddress
    admin: ListenAddress | None
    metrics: ListenAddress | None
    probes: ListenAddress | None
    web: WebListener | None
    console: WebListener | None
    replays: Replays

    @property
    def ports(self) -> frozenset[int]:
        """The TCP ports that callers connect to."""
        pages = (each.address for each in (self.web, self.console) if each is not None)
        addresses = [self.main, self.admin, *pages]
        return frozenset(each.port for each in addresses if each is not None and each.port)


class RoutingServer:
    """One running server. Made by ``start``, ended by ``stop``."""

    def __init__(self, parts: _Parts, listening: _Listening, opened: AsyncExitStack) -> None:
        """Take over the running parts. opened: closes them in order."""
        self._parts = parts
        self._settings = parts.settings
        self._listening = listening
        self._opened = opened
        self._stopping: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        settings: Settings,
        *,
        observer: CallObserver | None = None,
        counts: Counts | None = None,
        tracing: Tracing | None = None,
        shown_id: Callable[[str], str] = str,
        clock_us: Callable[[], int] = system_clock_us,
        store_opener: OpenStore = open_store,
        make_probe: MakeProbe = StoreProbe,
        load_model: Callable[[], TopicModel] = shipped_model,
        bounds: Bounds = DEFAULT_BOUNDS,
    ) -> RoutingServer:
        """Start serving: registry, store, handler, address, in this order.

        observer: is given each call's record; None = only bugs are logged. counts: the calls and
        log lines of the metrics page; None = none. tracing: traces calls; the observer is called
        through it; None = no traces. shown_id: makes an example of a session id, hashed or not.
        clock_us: the time of decisions, microseconds since 1970.
        make_probe: takes the store's probe and what reports readiness. load_model: loads topic
        detection when a registry wants it, unless a setting names a detector. bounds: those that no
        setting changes.
        Raises SettingsInvalid, RegistryFileError, StoreError, ListenFailed; nothing stays open.
        """
        signing_in = make_sign_in(settings, keys_fetch_every_s=bounds.keys_fetch_every_s)
        topics = make_topic_judge(settings, load_model, bounds)
        source = RegistrySource(
            settings.agents,
            partial(load_registry, settings, topics),
            partial(read_registry, settings),
            topics.in_force,
            poll_s=bounds.registry_poll_s,
            takes_up_changes=settings.reload == "auto",
        )
        async with AsyncExitStack() as opened:
            opened.push_async_callback(topics.close)
            store = await store_opener(settings.store)
            opened.push_async_callback(store.close)
            topics.keep_in(store)
            store_format = await settle_format(store)
            parts = _Parts.connected(
                settings,
                store=store,
                source=source,
                topics=topics,
                clock_us=clock_us,
                signing_in=signing_in,
                bounds=bounds,
            )
            # A store that opens but cannot be written fails here, not at a caller's first call.
            await store.probe_write()
            counts = counts or Counts()
            figures = partial(parts.figures, counts)
            listening = await _listen(
                parts, opened, observer, figures, tracing, counts=counts, shown_id=shown_id
            )
            _run_beside(parts, opened, make_probe)
            _run_telemetry(opened, tracing, counts.export, figures)
            stickiness = await parts.switch.now(DEFAULT_TENANT)
            _log_started(parts, listening, stickiness, store_format)
            return cls(parts, listening, opened.pop_all())

    @property
    def address(self) -> str:
        """The main address as a gRPC target: HOST:PORT with the real port, or unix:PATH."""
        return str(self._listening.main)

    @property
    def admin_address(self) -> str:
        """The address of AdminService as a gRPC target; "" if it is off."""
        if self._listening.admin is not None:
            return str(self._listening.admin)
        return self.address if self._settings.has_admin_on_main else ""

    @property
    def metrics_address(self) -> str:
        """The address of the metrics page, HOST:PORT or unix:PATH; "" if there is none."""
        return str(self._listening.metrics or "")

    @property
    def probe_address(self) -> str:
        """The address of the probes, HOST:PORT or unix:PATH; "" if there is none."""
        return str(self._listening.probes or "")

    @property
    def port(self) -> int:
        """The real port; 0 for a unix socket."""
        return self._listening.main.port

    @property
    def web_url(self) -> str:
        """The URL for browsers, such as http://127.0.0.1:8080; "" without a web listener."""
        return "" if self._listening.web is None else self._listening.web.url

    @property
    def console_url(self) -> str:
        """The URL of the operators' console; "" without one."""
        return "" if self._listening.console is None else self._listening.console.url

    @property
    def watches(self) -> int:
        """The number of open watches of sessions and of the log."""
        return self._parts.feed.watches

    @property
    def registry_reloads(self) -> tuple[int, int]:
        """How often a registry was put in force, and how often a file was refused."""
        return self._parts.source.reloads, self._parts.source.failures

    async def reload(self) -> None:
        """Read the registry and callers files again; a bad one is logged and changes nothing."""
        await self._parts.source.reload_or_keep()
        await self._parts.signing_in.reload()

    async def stop(self, grace_s: float | None = None) -> None:
        """Send callers to other replicas, let calls in flight finish, then close the store.

        grace_s: None = settings.drain_s; calls that take longer are cancelled. Stopping twice is
        allowed: the second call waits for the first.
        """
        if self._stopping is None:
            grace_s = self._settings.drain_s if grace_s is None else grace_s
            self._stopping = asyncio.create_task(self._stop(grace_s), name="stop server")
        await asyncio.shield(self._stopping)

    async def _stop(self, grace_s: float) -> None:
        _log.info("server_draining", address=self.address, grace_s=grace_s)
        self._parts.drain(self._listening.listeners)
        self._listening.replays.drain()
        ending = [self._listening.listeners.stop(grace_s)]
        pages = (self._listening.web, self._listening.console)
        ending += [each.stop(grace_s) for each in pages if each is not None]
        await asyncio.gather(*ending)
        await self._opened.aclose()
        _log.info("server_stopped", address=self.address)


def _admin_calls(
    parts: _Parts,
    routing_calls: RoutingServicer,
    *,
    counts: Counts,
    shown_id: Callable[[str], str],
) -> AdminServicer:
    settings = parts.settings
    return AdminServicer(
        parts.store,
        parts.handler,
        parts.feed,
        source=parts.source,
        switch=parts.switch,
        stats=parts.stats,
        clock_us=parts.clock_us,
        read_status=partial(
            read_status,
            counts=counts,
            store=settings.store,
            health=parts.health,
            source=parts.source,
            feed=parts.feed,
            clock_us=parts.clock_us,
            start_us=parts.clock_us(),
        ),
        list_turns=routing_calls.methods["ListTurns"],
        replay_settings=replay_settings(settings),
        replay_bounds=parts.bounds.replay,
        audit_read_max=parts.bounds.audit_read_max,
        audit_scanned_max=parts.bounds.audit_scanned_max,
        shown_id=shown_id,
    )


async def _listen(
    parts: _Parts,
    opened: AsyncExitStack,
    observer: CallObserver | None,
    figures: Callable[[], Figures],
    tracing: Tracing | None,
    *,
    counts: Counts,
    shown_id: Callable[[str], str],
) -> _Listening:
    """Open all listeners, and guard them. Raises SettingsInvalid, ListenFailed."""
    settings = parts.settings
    streams = OpenStreams()
    parts.signing_in.tell_changes_to(streams.check_all)
    signed = SignedPeers()
    # Before the others: while the server starts, its probes say that it lives.
    probes = await start_probes(settings, parts.health)
    if probes is not None:
        opened.push_async_callback(probes.close)
    routing_calls = RoutingServicer(
        parts.handler, parts.feed, parts.inbox, parts.approvals, parts.live
    )
    admin_calls = _admin_calls(parts, routing_calls, counts=counts, shown_id=shown_id)
    opened.push_async_callback(admin_calls.replays.close)
    handlers_of = partial(
        service_handlers,
        observer=observer or BugsOnly(),
        sign_in=parts.signing_in.sign_in,
        deadline_default_s=settings.deadline_default_s,
        deadline_max_s=settings.deadline_max_s,
        limits=CallerLimits(
            settings.caller_calls_per_s,
            settings.caller_streams_max,
            kinds=parts.bounds.stream_kinds,
        ),
        draining=parts.draining,
        streams=streams,
        tracer=tracing,
        write_s_max=parts.bounds.write_s_max,
        let_in=signed.add,
    )
    routing_handler, admin_handler = handlers_of(routing_calls.methods, admin_calls.methods)
    listeners = Listeners(settings, parts.tls, parts.signing_in.sign_in, parts.unread)
    opened.push_async_callback(listeners.stop)
    main, admin = await open_listeners(
        listeners,
        settings,
        (routing_handler, parts.health.handler()),
        (admin_handler, *channelz_handlers(parts.signing_in.sign_in)),
    )
    metrics = await start_metrics(settings, figures)
    if metrics is not None:
        opened.push_async_callback(metrics.close)
    web = await start_web(
        settings, routing_handler, parts.health, parts.tls, parts.bounds.web_waits
    )
    if web is not None:
        opened.push_async_callback(web.stop, 0)
    masked = handlers_of(*masked_methods(routing_calls.methods, admin_calls.methods))
    console = await start_console(settings, masked, parts.tls, parts.bounds.web_waits)
    if console is not None:
        opened.push_async_callback(console.stop, 0)
    listening = _Listening(
        listeners,
        main,
        admin,
        metrics=None if metrics is None else metrics.address,
        probes=None if probes is None else probes.address,
        web=web,
        console=console,
        replays=admin_calls.replays,
    )
    _guard(parts, listening.ports, signed, opened)
    return listening


def _guard(
    parts: _Parts, ports: Collection[int], signed: SignedPeers, opened: AsyncExitStack
) -> None:
    """Guard the connections of these ports. opened: ends it."""
    if not ports or not own_sockets.is_supported:
        return
    guard = ConnectionGuard(
        parts.settings,
        ports,
        signed,
        deaf_s=parts.bounds.deaf_s,
        strikes_max=parts.bounds.strikes_max,
    )
    opened.callback(guard.close)
    opened.push_async_callback(end_task, asyncio.create_task(guard.run(), name="connection guard"))


def _run_beside(parts: _Parts, opened: AsyncExitStack, make_probe: MakeProbe) -> None:
    """Start the background tasks. opened: ends them."""
    probe = make_probe(
        parts.store.probe_write, lambda ready: parts.health.set_ready(is_ready=ready)
    )
    tasks = [
        ("store probe", probe.run()),
        ("registry", parts.source.watch()),
        ("stats", parts.stats.run()),
        ("stickiness", parts.switch.run()),
        ("audit sealer", parts.sealer.run()),
        ("unread calls", parts.unread.run()),
        ("topic counts", parts.topics.run()),
    ]
    if parts.settings.expiry_sweep:
        tasks.append(("expiry sweeper", parts.sweeper.run()))
    if parts.tls is not None:
        tasks.append(("TLS files", parts.tls.run()))
    opened.push_async_callback(parts.signing_in.close)
    tasks += [(name, run()) for name, run in parts.signing_in.running.items()]
    for name, running in tasks:
        opened.push_async_callback(end_task, asyncio.create_task(running, name=name))


def _run_telemetry(
    opened: AsyncExitStack,
    tracing: Tracing | None,
    export: MetricsExport | None,
    figures: Callable[[], Figures],
) -> None:
    """Start what sends to collectors. opened: ends both at once, as each may wait for its own."""
    running: list[asyncio.Task[None]] = []
    if tracing is not None:
        running.append(asyncio.create_task(tracing.run(), name="traces"))
    if export is not None:
        sending = export.run(lambda: figures().collect())
        running.append(asyncio.create_task(sending, name="metrics"))
    opened.push_async_callback(end_task, *running)


def _log_started(
    parts: _Parts, listening: _Listening, stickiness: Stickiness, store_format: int
) -> None:
    registry = parts.source.registry
    _log.info(
        "server_started",
        address=str(listening.main),
        admin_address=str(listening.admin or ""),
        tls=parts.tls is not None,
        metrics_address=str(listening.metrics or ""),
        probe_address=str(listening.probes or ""),
        web="" if listening.web is None else listening.web.url,
        console="" if listening.console is None else listening.console.url,
        store=without_secrets(parts.settings.store),
        store_format=store_format,
        registry=parts.settings.agents,
        registry_version=registry.version,
        agents=len(registry.agents),
        stickiness_enabled=stickiness.enabled,
        stickiness_source=stickiness.source.value,
    )
    if not stickiness.is_stored:
        return
    switched = stickiness.switched
    overrules = switched.enabled != registry.stickiness_enabled
    log = _log.warning if overrules or not switched.enabled else _log.info
    log(
        "stickiness_overruled_by_switch" if overrules else "stickiness_switched",
        enabled=switched.enabled,
        start_enabled=registry.stickiness_enabled,
        setting=parts.settings.stickiness,
        since=datetime.fromtimestamp(switched.time_us / 1e6, UTC).isoformat(),
        by=switched.by,
        reason=switched.reason,
        agent_ids=list(switched.agent_ids),
        users_percent=switched.users_percent,
        remedy="agent-routing stickiness shows it, agent-routing stickiness on ends it",
    )
