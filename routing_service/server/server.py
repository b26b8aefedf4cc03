"""The server: everything put together, started in order and stopped in order.

Owns which part is made of which, and the life of the server and of its process. It must not know
what a call means. The rule: what is announced works. A server that cannot serve (registry, store,
address) says why and does not start; one that stops first finishes what it has accepted.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Final

import grpc
import structlog

from agent_routing.v1 import admin_service_pb2, routing_service_pb2
from routing_service import __version__
from routing_service.analytics.keeper import StatsKeeper
from routing_service.core.registry import Registry
from routing_service.ids import new_uuid7
from routing_service.registry.file import RegistryFileError, check_registry_file
from routing_service.registry.live_registry import RegistrySource
from routing_service.rpc.admin_servicer import AdminServicer
from routing_service.rpc.caller_limits import CallerLimits
from routing_service.rpc.channelz import DESCRIPTOR as CHANNELZ_DESCRIPTOR
from routing_service.rpc.channelz import channelz_handlers
from routing_service.rpc.health import HEALTH_DESCRIPTOR, HealthService, StoreProbe
from routing_service.rpc.method_handlers import service_handlers
from routing_service.rpc.routing_servicer import RoutingServicer
from routing_service.server.channel_options import RECEIVE_BYTES_MAX
from routing_service.server.listeners import Listeners
from routing_service.server.sign_in import MadeSignIn, make_sign_in, say_who_signs_in
from routing_service.server.tls_files import TlsFiles, TlsFilesInvalid
from routing_service.sessions.command_handler import CommandHandler
from routing_service.sessions.event_feed import EventFeed
from routing_service.sessions.expiry_sweeper import ExpirySweeper
from routing_service.sessions.stickiness_switch import StickinessSwitch
from routing_service.settings.listen_address import ListenAddress, ListenFailed
from routing_service.settings.resolve import missing_agents
from routing_service.settings.rules import SettingProblem, SettingsInvalid, without_secrets
from routing_service.settings.settings import Settings
from routing_service.settings.web_origins import parse_origins
from routing_service.storage.open_store import StoreUrlInvalid, open_store
from routing_service.storage.store import Store, StoreError
from routing_service.telemetry.call_log import CallLog, configure_logging, log_failure
from routing_service.telemetry.call_record import CallObserver, CallRecord
from routing_service.telemetry.log_privacy import IdHashes, LogKeyInvalid, read_key
from routing_service.telemetry.metrics import Metrics
from routing_service.telemetry.prometheus_listener import MetricsListener
from routing_service.telemetry.prometheus_text import CONTENT_TYPE, ServerFigures, metrics_page
from routing_service.telemetry.tracing import TracesUnavailable, Tracing, open_exporter
from routing_service.topics.detection import TopicJudge
from routing_service.topics.detector_plugin import DetectorUnavailable, load_named
from routing_service.topics.model import load_topic_model
from routing_service.topics.topic_detector import TopicModel

if TYPE_CHECKING:
    from routing_service.web.web_listener import WebListener

resource: ModuleType | None
try:
    import resource
except ImportError:  # Windows.
    resource = None

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
"""The machine did not let it: the store cannot be opened, the address is taken."""
EXIT_USAGE: Final = 2
"""What it was told is wrong: settings, registry, store URL."""
EXIT_INTERRUPTED: Final = 130
"""Stopped at once by a second SIGINT: 128 and the signal's number, as shells have it."""

GC_THRESHOLDS: Final = (20_000, 20, 50)
"""Objects made before Python looks for cycles among them, and how often it looks at older ones. A
call leaves no cycles, and at the default of 700 looking for them took an eighth of a busy server's
time."""

DESCRIPTORS_BESIDE: Final = 256
"""Descriptors that are no caller's: the store's files and connections, logs, gRPC's own."""

_log = structlog.get_logger(__name__)

OpenStore = Callable[[str], Awaitable[Store]]
MakeProbe = Callable[[Callable[[], Awaitable[None]], Callable[[bool], None]], StoreProbe]


def system_clock_us() -> int:
    """Return microseconds since 1970."""
    return time.time_ns() // 1_000


def _shipped_model() -> TopicModel:
    """Load topic detection as it ships; it lets the event loop run while it takes a registry in."""
    return load_topic_model(give_way=partial(time.sleep, 0))


def _topic_judge(settings: Settings, load_model: Callable[[], TopicModel]) -> TopicJudge:
    """Return what judges topics: by the model that a setting names, which is loaded at once.

    load_model: where none is named. Raises SettingsInvalid.
    """
    if not settings.topic_detector:
        return TopicJudge(load_model)
    try:
        named = load_named(settings.topic_detector)
    except DetectorUnavailable as error:
        raise SettingsInvalid((SettingProblem("topic_detector", str(error)),)) from error
    return TopicJudge(lambda: named, limit_s=settings.topic_detector_limit_s)


class RoutingServer:
    """One running server. Made by ``start``, ended by ``stop``."""

    def __init__(
        self,
        settings: Settings,
        address: ListenAddress,
        listeners: Listeners,
        *,
        admin_address: ListenAddress | None,
        feed: EventFeed,
        source: RegistrySource,
        signing_in: MadeSignIn,
        web: WebListener | None,
        drain: Callable[[], None],
        metrics_address: ListenAddress | None,
        opened: AsyncExitStack,
    ) -> None:
        """Take over what is running. drain: tells callers to go elsewhere."""
        self._admin_address = admin_address
        self._signing_in = signing_in
        self._metrics_address = metrics_address
        self._web = web
        self._feed = feed
        self._source = source
        self._settings = settings
        self._address = address
        self._listeners = listeners
        self._drain = drain
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
        clock_us: Callable[[], int] = system_clock_us,
        store_opener: OpenStore = open_store,
        make_probe: MakeProbe = StoreProbe,
        load_model: Callable[[], TopicModel] = _shipped_model,
    ) -> RoutingServer:
        """Start serving: registry, store, handler, address, in this order.

        observer: hears of each call; None = bugs alone are logged. counts: what the metrics page
        shows of calls and log lines; None = it shows none. tracing: of calls, which the observer
        hears of through it; None = there is none. clock_us: what decisions take
        for the time, microseconds since 1970. make_probe: from the store's probe and what to tell.
        load_model: of topic detection, unless a setting names one; called where a registry wants
        it.
        Raises SettingsInvalid, RegistryFileError, StoreError, ListenFailed; nothing stays open.
        """
        signing_in = make_sign_in(settings)
        tls = _tls_files(settings)
        topics = _topic_judge(settings, load_model)
        source = RegistrySource(
            settings.agents, partial(_load_prepared, settings, topics), topics.in_force
        )
        registry = source.registry
        async with AsyncExitStack() as opened:
            opened.push_async_callback(topics.close)
            store = await store_opener(settings.store)
            opened.push_async_callback(store.close)
            feed = EventFeed(store)
            switch = StickinessSwitch(store, lambda: source.registry.stickiness_enabled)
            stats = StatsKeeper(
                store,
                lambda: source.registry.home_agent_id,
                clock_us,
                holder=new_uuid7(),
            )
            handler = CommandHandler(
                store,
                lambda: source.registry,
                clock_us,
                stickiness_enabled=switch.is_enabled,
                cache_sessions_max=settings.cache_sessions_max,
                publish=feed.publish,
                doubt=feed.doubt,
                topics=topics,
            )
            # A store that can be opened and not written fails here, not at the first caller's.
            await store.probe_write()
            health = HealthService()
            probe = make_probe(store.probe_write, lambda ready: health.set_ready(is_ready=ready))
            draining = asyncio.Event()
            routing_handler, admin_handler = service_handlers(
                RoutingServicer(handler, feed, clock_us),
                AdminServicer(
                    store,
                    handler,
                    feed,
                    source=source,
                    switch=switch,
                    stats=stats,
                    clock_us=clock_us,
                ),
                observer or NobodyListens(),
                sign_in=signing_in.sign_in,
                deadline_default_s=settings.deadline_default_s,
                deadline_max_s=settings.deadline_max_s,
                limits=CallerLimits(settings.caller_calls_per_s, settings.caller_streams_max),
                draining=draining,
                tracer=tracing,
            )
            listeners = Listeners(settings, tls)
            opened.push_async_callback(listeners.stop)
            address, admin_address = await _listen(
                listeners,
                settings,
                (routing_handler, health.handler()),
                (admin_handler, *channelz_handlers(signing_in.sign_in)),
            )
            sweeper = ExpirySweeper(store, handler.expire, clock_us)

            metrics_address = settings.metrics_address
            if metrics_address is not None:
                figures = partial(
                    _figures,
                    counts=counts or Counts(),
                    health=health,
                    feed=feed,
                    source=source,
                    sweeper=sweeper,
                    stats=stats,
                    store=store,
                )
                listener = await MetricsListener.start(metrics_address, figures, CONTENT_TYPE)
                opened.push_async_callback(listener.close)
                metrics_address = listener.address
            web = await _start_web(settings, routing_handler, health, tls)
            if web is not None:
                opened.push_async_callback(web.stop, 0)
            tasks = [
                ("store probe", probe.run()),
                ("registry", source.watch()),
                ("stats", stats.run()),
            ]
            if settings.expiry_sweep:
                tasks.append(("expiry sweeper", sweeper.run()))
            if tls is not None:
                tasks.append(("TLS files", tls.run()))
            if tracing is not None:
                tasks.append(("traces", tracing.run()))
            opened.push_async_callback(signing_in.close)
            tasks += [(name, run()) for name, run in signing_in.running.items()]
            for name, running in tasks:
                opened.push_async_callback(_end, asyncio.create_task(running, name=name))

            def drain() -> None:
                draining.set()
                health.drain()
                listeners.drain()
                feed.close()

            _log.info(
                "server_started",
                address=str(address),
                admin_address=str(admin_address or ""),
                tls=tls is not None,
                metrics_address=str(metrics_address or ""),
                web="" if web is None else web.url,
                store=without_secrets(settings.store),
                registry=settings.agents,
                registry_version=registry.version,
                agents=len(registry.agents),
                stickiness_enabled=registry.stickiness_enabled,
            )
            return cls(
                settings,
                address,
                listeners,
                admin_address=admin_address,
                signing_in=signing_in,
                feed=feed,
                web=web,
                drain=drain,
                source=source,
                metrics_address=metrics_address,
                opened=opened.pop_all(),
            )

    @property
    def address(self) -> str:
        """Where it listens, as a gRPC target: HOST:PORT with the real port, or unix:PATH."""
        return str(self._address)

    @property
    def admin_address(self) -> str:
        """Where AdminService is, as a gRPC target; "" where it is nowhere."""
        if self._admin_address is not None:
            return str(self._admin_address)
        return self.address if self._settings.has_admin_on_main else ""

    @property
    def metrics_address(self) -> str:
        """Where the figures are served, HOST:PORT or unix:PATH; empty if nowhere."""
        return str(self._metrics_address or "")

    @property
    def port(self) -> int:
        """The real port; 0 for a unix socket."""
        return self._address.port

    @property
    def web_url(self) -> str:
        """Where browsers find it, such as http://127.0.0.1:8080; "" without a web listener."""
        return "" if self._web is None else self._web.url

    @property
    def watches(self) -> int:
        """How many watch a session or the log now."""
        return self._feed.watches

    @property
    def registry_reloads(self) -> tuple[int, int]:
        """How often another registry was put in force, and how often a file could not be."""
        return self._source.reloads, self._source.failures

    async def reload(self) -> None:
        """Read the registry and callers files again; a bad one is logged and changes nothing."""
        await self._source.reload_or_keep()
        await self._signing_in.reload()

    async def stop(self, grace_s: float | None = None) -> None:
        """Send callers elsewhere, let calls in flight finish, then let go of the store.

        grace_s: None = settings.drain_s; what takes longer is cancelled. Stopping twice is no
        error: the second call waits for the first.
        """
        if self._stopping is None:
            grace_s = self._settings.drain_s if grace_s is None else grace_s
            self._stopping = asyncio.create_task(self._stop(grace_s), name="stop server")
        await asyncio.shield(self._stopping)

    async def _stop(self, grace_s: float) -> None:
        _log.info("server_draining", address=self.address, grace_s=grace_s)
        self._drain()
        ending = [self._listeners.stop(grace_s)]
        if self._web is not None:
            ending.append(self._web.stop(grace_s))
        await asyncio.gather(*ending)
        await self._opened.aclose()
        _log.info("server_stopped", address=self.address)


@dataclasses.dataclass(frozen=True, slots=True)
class Counts:
    """What is counted outside of a server, for its metrics page."""

    metrics: Metrics = dataclasses.field(default_factory=Metrics)
    lines_lost: Callable[[], int] = lambda: 0


class NobodyListens:
    """A CallObserver for a server in a program that has no log of its own."""

    def finished(self, record: CallRecord) -> None:
        """See CallObserver.finished."""

    def failed(self, record: CallRecord, error: BaseException) -> str:
        """Log it all the same: a bug must not pass in silence."""
        return log_failure(record, error)


async def serve(
    settings: Settings,
    observer: CallObserver | None = None,
    counts: Counts | None = None,
    tracing: Tracing | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then stop in order. Raises what RoutingServer.start does.

    A SIGINT while it stops ends the process at once: nothing that was answered is lost by it.
    """
    stop_asked = asyncio.Event()
    reload_asked = asyncio.Event()
    _on_signals(stop_asked, reload_asked)
    server = await RoutingServer.start(settings, observer=observer, counts=counts, tracing=tracing)
    reloading = asyncio.create_task(_reload_when_asked(server, reload_asked), name="reload")
    try:
        if not stop_asked.is_set():
            say_who_signs_in(settings)
            _set_garbage_aside()
            _announce(server.address, server.web_url)
        await stop_asked.wait()
    finally:
        await _end(reloading)
        await server.stop()


def run(settings: Settings) -> int:
    """Serve in this process until told to stop; return its exit code, errors told on stderr."""
    try:
        key = read_key(settings.log_ids_key_file)
    except LogKeyInvalid as error:
        return _refused(error, EXIT_USAGE)
    configured = configure_logging(
        settings.log_level,
        settings.log_format,
        hashes=IdHashes(key) if settings.log_ids == "hashed" else None,
        error_words=settings.log_error_words,
    )
    _allow_descriptors(settings.connections_max)
    counts = Counts(Metrics(), lambda: configured.writer.lines_lost)
    observer: CallObserver = CallLog(configured, counts.metrics)
    try:
        tracing = _tracing(settings, configured.hashes)
    except TracesUnavailable as error:
        return _refused(error, EXIT_USAGE)
    if tracing is not None:
        observer = tracing.observing(observer)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(serve(settings, observer, counts, tracing))
    except (SettingsInvalid, RegistryFileError, StoreUrlInvalid) as error:
        return _refused(error, EXIT_USAGE)
    except (StoreError, ListenFailed) as error:
        return _refused(error, EXIT_FAILED)
    finally:
        configured.writer.flush()
    return EXIT_OK


def _figures(
    *,
    counts: Counts,
    health: HealthService,
    feed: EventFeed,
    source: RegistrySource,
    sweeper: ExpirySweeper,
    stats: StatsKeeper,
    store: Store,
) -> str:
    """Return the metrics page as it is now."""
    return metrics_page(
        counts.metrics.snapshot(),
        ServerFigures(
            is_ready=health.is_ready,
            watches=feed.watches,
            registry_version=str(source.registry.version),
            agents=len(source.registry.agents),
            registry_reloads=source.reloads,
            registry_reload_failures=source.failures,
            stickiness_enabled=source.registry.stickiness_enabled,
            sessions_expired=sweeper.sessions_swept,
            expiry_failures=sweeper.failures,
            stuck=stats.stuck,
            log_lines_lost=counts.lines_lost(),
            # The memory engine, and stores of tests, keep no count.
            writes=getattr(store, "write_figures", None),
        ),
        __version__,
    )


def _tracing(settings: Settings, hashes: IdHashes | None) -> Tracing | None:
    """Return what traces calls, if the settings want it. Raises TracesUnavailable."""
    if settings.traces == "off":
        return None
    return Tracing(
        open_exporter(settings.traces),
        new_percent=settings.traces_new_percent,
        version=__version__,
        hashes=hashes,
    )


def _refused(error: Exception, exit_code: int) -> int:
    for line in str(error).splitlines():
        print(f"error: {line}", file=sys.stderr)  # noqa: T201 - for whoever typed the command
    return exit_code


def _allow_descriptors(connections_max: int) -> None:
    """Ask the system for as many descriptors as connections may need; say so where it refuses.

    Many systems give a process 1,024 unless it asks for more. One that runs out can neither accept
    a connection nor open its store.
    """
    if resource is None:  # Windows has no such limit.
        return
    wanted = connections_max + DESCRIPTORS_BESIDE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted or soft == resource.RLIM_INFINITY:
        return
    given = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (given, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        _log.warning(
            "descriptors_few",
            descriptors=soft,
            wanted=wanted,
            remedy="raise the limit of open files (ulimit -n, LimitNOFILE), or lower "
            "connections_max",
        )


def _set_garbage_aside() -> None:
    """Look through what the start has left once, and never again: it stays as it is."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _announce(address: str, web_url: str) -> None:
    # Whoever started it may have closed the pipe; that is no reason to stop serving.
    with suppress(OSError):
        print(f"serving on {address}", flush=True)  # noqa: T201 - what programs wait for
        if web_url:
            print(f"serving browsers on {web_url}", flush=True)  # noqa: T201 - the same


async def _start_web(
    settings: Settings,
    routing: grpc.GenericRpcHandler,
    health: HealthService,
    tls: TlsFiles | None,
) -> WebListener | None:
    """Listen for browsers, where that is set. Raises SettingsInvalid, ListenFailed."""
    address = settings.web_address
    if address is None:
        return None
    try:
        from routing_service.web.web_listener import WebListener  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise SettingsInvalid(
            (
                SettingProblem(
                    "web_listen",
                    f'web_listen is "{address}", and the web listener is not installed '
                    f"({error.name}); install agent-routing-service[web]",
                ),
            )
        ) from error
    return await WebListener.start(
        address,
        routing_service_pb2.DESCRIPTOR.services_by_name["RoutingService"],
        (routing,),
        tls=None if tls is None else tls.context(),
        origins=parse_origins(settings.web_origins),
        is_ready=lambda: health.is_ready,
        calls_max=settings.pending_requests_max,
        connections_max=settings.connections_max,
        receive_bytes_max=RECEIVE_BYTES_MAX,
    )


def _load_registry(settings: Settings) -> Registry:
    if not settings.agents:
        raise SettingsInvalid((missing_agents(),))
    checked = check_registry_file(settings.agents)
    for warning in checked.warnings:
        _log.warning("registry_warning", file=settings.agents, warning=str(warning))
    if settings.stickiness == "registry":
        return checked.registry
    return dataclasses.replace(
        checked.registry, stickiness_enabled=settings.stickiness == "enabled"
    )


def _load_prepared(settings: Settings, topics: TopicJudge) -> Registry:
    loaded = _load_registry(settings)
    topics.prepare(loaded)
    return loaded


def _tls_files(settings: Settings) -> TlsFiles | None:
    """Return the files of TLS, None where there is none. Raises SettingsInvalid."""
    if not settings.tls_certificate_file:
        return None
    try:
        return TlsFiles(
            settings.tls_certificate_file,
            settings.tls_key_file,
            settings.tls_client_authority_file,
        )
    except TlsFilesInvalid as error:
        raise SettingsInvalid((SettingProblem("tls_certificate_file", str(error)),)) from error


async def _listen(
    listeners: Listeners,
    settings: Settings,
    handlers: Sequence[grpc.GenericRpcHandler],
    for_operators: Sequence[grpc.GenericRpcHandler],
) -> tuple[ListenAddress, ListenAddress | None]:
    """Listen, and return where: for callers, and for operators, None where that is no other place.

    for_operators: AdminService, then channelz. Raises ListenFailed.
    """
    services = [*routing_service_pb2.DESCRIPTOR.services_by_name.values(), HEALTH_DESCRIPTOR]
    admin_services = [*services, *admin_service_pb2.DESCRIPTOR.services_by_name.values()]
    if settings.has_admin_on_main:
        # Without channelz: it names every caller's address, and has no place among callers.
        all_handlers = (*handlers, for_operators[0])
        address = await listeners.listen(settings.listen_address, admin_services, all_handlers)
    else:
        address = await listeners.listen(settings.listen_address, services, handlers)
    if settings.admin_address is None:
        return address, None
    try:
        admin_address = await listeners.listen(
            settings.admin_address,
            [*admin_services, CHANNELZ_DESCRIPTOR],
            (*handlers, *for_operators),
        )
    except ListenFailed as error:
        # Nobody may have asked for this address: it is a default.
        raise ListenFailed(f"{error} (admin_listen, where operators are)") from error
    return address, admin_address


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return uvloop's loop, about a fifth faster, where the platform has it."""
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


async def _reload_when_asked(server: RoutingServer, asked: asyncio.Event) -> None:
    while True:
        await asked.wait()
        asked.clear()
        await server.reload()


def _on_signals(stop_asked: asyncio.Event, reload_asked: asyncio.Event) -> None:
    def stop(number: signal.Signals) -> None:
        if not stop_asked.is_set():
            _log.info("stop_asked", signal=number.name)
            stop_asked.set()
        elif number is signal.SIGINT:
            _log.warning("stopped_at_once", signal=number.name)
            os._exit(EXIT_INTERRUPTED)

    def reload(number: signal.Signals) -> None:
        _log.info("reload_asked", signal=number.name)
        reload_asked.set()

    loop = asyncio.get_running_loop()
    handled = {"SIGTERM": stop, "SIGINT": stop, "SIGHUP": reload}
    for name, react in handled.items():
        number = getattr(signal, name, None)  # Windows has no SIGHUP.
        if number is None:
            continue
        try:
            loop.add_signal_handler(number, react, number)
        except NotImplementedError:  # Windows.
            signal.signal(number, lambda *_, r=react, n=number: loop.call_soon_threadsafe(r, n))
