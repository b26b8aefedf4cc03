"""The parts that a server is made of, each made from its settings."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc
import structlog

from agent_routing.v1 import admin_service_pb2, routing_service_pb2
from routing_service import __version__
from routing_service.analytics.keeper import StatsKeeper
from routing_service.core.registry import Registry
from routing_service.core.vocabulary import WhenUnsure
from routing_service.registry.file import (
    CheckedRegistry,
    RegistryFileError,
    check_registry,
    check_registry_file,
)
from routing_service.registry.live_registry import RegistrySource
from routing_service.registry.yaml_document import FileProblem
from routing_service.rpc.admin.server_status import ServerStatus
from routing_service.rpc.channelz import DESCRIPTOR as CHANNELZ_DESCRIPTOR
from routing_service.rpc.health import HEALTH_DESCRIPTOR, HealthService
from routing_service.rpc.remote_judge import RemoteModel, is_remote, load_detector, load_judge
from routing_service.server.bounds import Bounds
from routing_service.server.channel_options import OPERATORS_BYTES_MAX, RECEIVE_BYTES_MAX
from routing_service.server.listeners import Listeners
from routing_service.server.tls_files import TlsFiles, TlsFilesInvalid
from routing_service.sessions.approval_watches import ApprovalWatches
from routing_service.sessions.auto_off import AutoOffWatch
from routing_service.sessions.event_feed import EventFeed
from routing_service.sessions.expiry_sweeper import ExpirySweeper
from routing_service.sessions.inbox import Inbox
from routing_service.sessions.seal_notes import SealNotes
from routing_service.sessions.stickiness_switch import StickinessSwitch
from routing_service.sessions.user_turns import UserTurns
from routing_service.settings.listen_address import ListenAddress, ListenFailed
from routing_service.settings.resolve import missing_agents
from routing_service.settings.rules import SettingProblem, SettingsInvalid
from routing_service.settings.settings import Settings
from routing_service.settings.web_origins import parse_origins
from routing_service.storage.checked_store import Store
from routing_service.storage.store import Append
from routing_service.stored_data.noted_seals import NotASeal
from routing_service.telemetry.call_log import log_failure
from routing_service.telemetry.call_record import CallRecord
from routing_service.telemetry.metrics import Metrics
from routing_service.telemetry.page_listener import Page, PageListener
from routing_service.topics.detection import TopicJudge
from routing_service.topics.detector_plugin import (
    INSTALL,
    DetectorUnavailable,
    is_shipped_installed,
    load_shipped_model,
)
from routing_service.topics.topic_detector import TopicModel
from routing_service.web.wait_limits import WaitLimits

if TYPE_CHECKING:
    from routing_service.telemetry.otlp_metrics import MetricsExport
    from routing_service.telemetry.prometheus_text import Figures
    from routing_service.web.web_listener import WebListener

TOPICS_FOLDER: Final = "var"
"""Where vectors of examples, and what is computed of large registries, are kept: from the folder
that the server was started in. Where it cannot be written, they are computed at each start."""

SENT_REGISTRY: Final = "the registry in the request"
"""What errors call a registry that a caller sent."""

_log = structlog.get_logger(__name__)


def shipped_model() -> TopicModel:
    """Load the topic model that ships. It yields to the event loop while it prepares a registry."""
    return load_shipped_model(partial(time.sleep, 0), TOPICS_FOLDER)


def make_topic_judge(
    settings: Settings, load_model: Callable[[], TopicModel], bounds: Bounds
) -> TopicJudge:
    """Return the topic judge. A detector named by a setting is loaded at once.

    load_model: used if no detector is named. Raises SettingsInvalid.
    """
    make = partial(
        TopicJudge,
        threads_max=bounds.detector_threads_max,
        waiting_max=bounds.detector_waiting_max,
        failure_log_s=bounds.detector_failure_log_s,
        load_judge=_judge_loader(settings),
    )
    if not settings.topic_detector:
        return make(load_model)
    try:
        named = _named_model(settings, load_model)
    except DetectorUnavailable as error:
        raise SettingsInvalid((SettingProblem("topic_detector", str(error)),)) from error
    return make(lambda: named, limit_s=settings.topic_detector_limit_s)


def _judge_loader(settings: Settings) -> Callable[[], TopicModel] | None:
    """Return what loads topic_judge; None without one. Raises SettingsInvalid."""
    if not settings.topic_judge:
        return None
    key = ""
    if settings.topic_judge_key_file:
        try:
            key = Path(settings.topic_judge_key_file).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            problem = SettingProblem("topic_judge_key_file", f"cannot be read: {error}")
            raise SettingsInvalid((problem,)) from error
    name, model = settings.topic_judge, settings.topic_judge_model
    try:
        judge = load_judge(name, model, key, settings.topic_judge_limit_s)
    except DetectorUnavailable as error:
        raise SettingsInvalid((SettingProblem("topic_judge", str(error)),)) from error
    return lambda: judge


def _named_model(settings: Settings, load_model: Callable[[], TopicModel]) -> TopicModel:
    """Return the model that topic_detector names. Raises DetectorUnavailable."""
    name = settings.topic_detector
    falls_back = is_remote(name) and settings.topic_detector_fallback == "shipped"
    model = load_detector(
        name, settings.topic_detector_limit_s, load_model() if falls_back else None
    )
    if isinstance(model, RemoteModel) and model.is_plaintext:
        _log.warning("topic_detector_plaintext", topic_detector=name)
    return model


@dataclasses.dataclass(frozen=True, slots=True)
class Counts:
    """Counts kept outside the server and shown on its metrics page.

    export: also sends the page's figures to a collector; None = they are sent nowhere.
    """

    metrics: Metrics = dataclasses.field(default_factory=Metrics)
    lines_lost: Callable[[], int] = lambda: 0
    export: MetricsExport | None = None


class BugsOnly:
    """The CallObserver of a server that is given none: it logs bugs alone."""

    def finished(self, record: CallRecord) -> None:
        """See CallObserver.finished."""

    def failed(self, record: CallRecord, error: BaseException) -> str:
        """Log a bug."""
        return log_failure(record, error)


def read_figures(
    *,
    counts: Counts,
    health: HealthService,
    feed: EventFeed,
    source: RegistrySource,
    inbox: Inbox,
    sweeper: ExpirySweeper,
    stats: StatsKeeper,
    auto_off: AutoOffWatch,
    switch: StickinessSwitch,
    store: Store,
    topics: TopicJudge,
    keys_age_s: Callable[[], float] | None,
    calls_refused_unread: int,
) -> Figures:
    """Return the figures of the metrics page as they are now."""
    from routing_service.telemetry.prometheus_text import (  # noqa: PLC0415 - a server without the page starts faster
        Figures,
        ServerFigures,
    )

    return Figures(
        counts.metrics.snapshot(),
        ServerFigures(
            is_ready=health.is_ready,
            watches=feed.watches,
            registry_version=str(source.registry.version),
            agents=len(source.registry.agents),
            registry_reloads=source.reloads,
            registry_reload_failures=source.failures,
            stickiness_enabled=switch.enabled_for_all,
            stickiness_tenants_off=switch.tenants_off,
            sessions_expired=sweeper.sessions_swept,
            expiry_failures=sweeper.failures,
            stuck=stats.stuck,
            stats_damaged=stats.damaged,
            agents_switched_off=auto_off.agents_switched_off,
            log_lines_lost=counts.lines_lost(),
            calls_refused_unread=calls_refused_unread,
            writes=store.write_figures,
            topics=topics.figures,
            inbox=inbox.figures(time.time_ns() // 1_000),
            sign_in_keys_age_s=None if keys_age_s is None else keys_age_s(),
        ),
        __version__,
    )


def read_status(
    *,
    counts: Counts,
    store: str,
    health: HealthService,
    source: RegistrySource,
    feed: EventFeed,
    clock_us: Callable[[], int],
    start_us: int,
) -> ServerStatus:
    """Return how the server is doing now. store: its URL. start_us: when it started."""
    engine = store.partition(":")[0].lower()
    return ServerStatus(
        server=f"{socket.gethostname()}/{os.getpid()}",
        version=__version__,
        start_us=start_us,
        now_us=clock_us(),
        store_engine="postgres" if engine == "postgresql" else engine,
        is_ready=health.is_ready,
        registry_version=str(source.registry.version),
        agents=len(source.registry.agents),
        watches=feed.watches,
        counted=counts.metrics.snapshot(),
    )


def tell_queues(
    user_turns: UserTurns, inbox: Inbox, approvals: ApprovalWatches, append: Append
) -> None:
    """Tell those who watch queues of a commit with entries, or with a vote."""
    user_turns.changed(append)
    inbox.entries_changed(append)
    approvals.entries_changed(append)


def seal_notes(path: str) -> SealNotes:
    """Return the notes of seals. path: of their file, "" = none. Raises SettingsInvalid."""
    try:
        return SealNotes(Path(path) if path else None)
    except OSError as error:
        problem = f'audit_seals_file "{path}" cannot be written: {error.strerror or error}'
        raise SettingsInvalid((SettingProblem("audit_seals_file", problem),)) from error
    except NotASeal as error:
        problem = f'audit_seals_file "{path}": {error}; correct the line, or name another file'
        raise SettingsInvalid((SettingProblem("audit_seals_file", problem),)) from error


async def start_web(
    settings: Settings,
    routing: grpc.GenericRpcHandler,
    health: HealthService,
    tls: TlsFiles | None,
    waits: WaitLimits,
) -> WebListener | None:
    """Start the web listener if its address is set. Raises SettingsInvalid, ListenFailed."""
    address = settings.web_address
    if address is None:
        return None
    try:
        from routing_service.web.web_listener import WebListener, calls_app  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise _no_web("web_listen", "the web listener", address, error) from error
    app = calls_app(
        routing_service_pb2.DESCRIPTOR.services_by_name["RoutingService"],
        (routing,),
        origins=parse_origins(settings.web_origins),
        is_ready=lambda: health.is_ready,
        calls_max=settings.pending_requests_max,
        receive_bytes_max=RECEIVE_BYTES_MAX,
        waits=waits,
    )
    return await WebListener.start(
        address,
        app,
        tls=None if tls is None else tls.context(),
        connections_max=settings.connections_max,
        waits=waits,
        is_shared=settings.processes > 1,
    )


async def start_console(
    settings: Settings,
    handlers: Sequence[grpc.GenericRpcHandler],
    tls: TlsFiles | None,
    waits: WaitLimits,
) -> WebListener | None:
    """Start the console's listener if its address is set. Raises SettingsInvalid, ListenFailed.

    handlers: of both services, whose answers have no text of a conversation.
    """
    address = settings.console_address
    if address is None:
        return None
    try:
        from routing_service.web.console import ConsoleSignIn, console_app  # noqa: PLC0415 - an extra
        from routing_service.web.web_listener import WebListener  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise _no_web("console_listen", "the console", address, error) from error
    app = console_app(
        handlers,
        ConsoleSignIn(
            settings.sign_in,
            issuer=settings.oidc_issuer if settings.console_oidc_client_id else "",
            client_id=settings.console_oidc_client_id,
            scopes=settings.console_oidc_scopes,
        ),
        calls_max=settings.pending_requests_max,
        receive_bytes_max=RECEIVE_BYTES_MAX,
        operators_bytes_max=OPERATORS_BYTES_MAX,
        waits=waits,
    )
    try:
        return await WebListener.start(
            address,
            app,
            tls=None if tls is None else tls.context(),
            connections_max=settings.connections_max,
            waits=waits,
            is_shared=settings.processes > 1,
        )
    except ListenFailed as error:
        raise ListenFailed(f"{error} (console_listen)") from error


def _no_web(name: str, what: str, address: ListenAddress, error: ImportError) -> SettingsInvalid:
    message = (
        f'{name} is "{address}", and {what} is not installed ({error.name}); install '
        "agent-routing-service[web]"
    )
    return SettingsInvalid((SettingProblem(name, message),))


def read_registry(settings: Settings, text: str | None = None) -> CheckedRegistry:
    """Read and check the registry file, or a text in its place. Raises SettingsInvalid.

    Raises RegistryFileError for a registry that this server cannot use.
    """
    if not settings.agents:
        raise SettingsInvalid((missing_agents(),))
    if text is None:
        checked = check_registry_file(settings.agents)
    else:
        checked = check_registry(text, SENT_REGISTRY, Path(settings.agents).parent)
    source = settings.agents if text is None else SENT_REGISTRY
    _check_with_settings(settings, checked.registry, source)
    if settings.stickiness == "registry":
        return checked
    registry = dataclasses.replace(
        checked.registry, stickiness_enabled=settings.stickiness == "enabled"
    )
    return dataclasses.replace(checked, registry=registry)


def _check_with_settings(settings: Settings, loaded: Registry, source: str) -> None:
    """Raise RegistryFileError for a registry that does not go with the settings."""
    if settings.sign_in == "none" and loaded.approvals.names_deciders:
        message = "approvals tell callers apart, by by: or needs:, and nobody signs in here"
        remedy = "set --sign-in, or leave by and needs out"
        problem = FileProblem(0, 0, "approvals", message, remedy)
        raise RegistryFileError(source, (problem,))
    if loaded.approvals.rejects_on_expiry and not settings.expiry_sweep:
        message = "on_expiry: reject is what the expiry sweep does, and it is off"
        remedy = "set --expiry-sweep, or write on_expiry: cancel"
        problem = FileProblem(0, 0, "approvals.on_expiry", message, remedy)
        raise RegistryFileError(source, (problem,))
    if loaded.topics.when_unsure is WhenUnsure.JUDGE and not settings.topic_judge:
        message = "when_unsure is judge, and the server names none"
        remedy = "set --topic-judge, or write supervisor"
        problem = FileProblem(0, 0, "topics.when_unsure", message, remedy)
        raise RegistryFileError(source, (problem,))
    if loaded.topics.is_on and not settings.topic_detector and not is_shipped_installed():
        message = "topics are on, and agent-routing-topics, which detects them, is not installed"
        remedy = f"{INSTALL}, or write topics: {{mode: off}}"
        problem = FileProblem(0, 0, "topics", message, remedy)
        raise RegistryFileError(source, (problem,))


def replay_settings(settings: Settings) -> dict[str, str | int | float | bool]:
    """Return the settings for the process of a replay: all, as rules tie them together.

    It opens no store, so that it gets neither its address nor its password.
    """
    return dataclasses.asdict(dataclasses.replace(settings, store="memory:", processes=1))


def load_registry(settings: Settings, topics: TopicJudge) -> CheckedRegistry:
    """Read the registry, and prepare its topics. Raises SettingsInvalid, RegistryFileError."""
    checked = read_registry(settings)
    for warning in checked.warnings:
        _log.warning("registry_warning", file=settings.agents, warning=str(warning))
    topics.prepare(checked.registry)
    return checked


def open_tls_files(settings: Settings) -> TlsFiles | None:
    """Open the TLS files, or return None without TLS. Raises SettingsInvalid."""
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


async def open_listeners(
    listeners: Listeners,
    settings: Settings,
    handlers: Sequence[grpc.GenericRpcHandler],
    for_operators: Sequence[grpc.GenericRpcHandler],
) -> tuple[ListenAddress, ListenAddress | None]:
    """Open the ports. Return the main address and the admin address, None if admin shares the main.

    for_operators: AdminService, then channelz. Raises ListenFailed.
    """
    services = [*routing_service_pb2.DESCRIPTOR.services_by_name.values(), HEALTH_DESCRIPTOR]
    admin_services = [*services, *admin_service_pb2.DESCRIPTOR.services_by_name.values()]
    if settings.has_admin_on_main:
        # channelz is left out: it shows every caller's address.
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
            OPERATORS_BYTES_MAX,
        )
    except ListenFailed as error:
        # The address may be the default, so the message names its setting.
        raise ListenFailed(f"{error} (admin_listen)") from error
    return address, admin_address


async def end_task(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks, all at once, and wait for their ends."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task


async def start_metrics(settings: Settings, figures: Callable[[], Figures]) -> PageListener | None:
    """Start the Prometheus endpoint if its address is set. Raises ListenFailed."""
    address = settings.metrics_address
    if address is None:
        return None
    from routing_service.telemetry.prometheus_text import metrics_page  # noqa: PLC0415 - see above

    pages = {"/metrics": lambda accept: Page(*metrics_page(figures(), accept))}
    return await PageListener.start(address, pages, name="metrics")


async def start_probes(settings: Settings, health: HealthService) -> PageListener | None:
    """Start the listener of the probes if its address is set. Raises ListenFailed."""
    address = settings.probe_address
    if address is None:
        return None

    def readyz(_accept: str) -> Page:
        if health.is_ready:
            return Page("ok\n")
        return Page("not ready\n", status="503 Service Unavailable")

    pages = {"/livez": lambda _accept: Page("ok\n"), "/readyz": readyz}
    return await PageListener.start(address, pages, name="probes")
