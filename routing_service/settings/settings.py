"""The table of a server's settings: names, forms, defaults and help texts.

One field of ``Settings`` is one setting. Its flag (--drain-s), its environment variable
(AGENT_ROUTING_DRAIN_S) and its key in the configuration file (drain_s) follow from its name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from routing_service.settings.listen_address import (
    ADMIN_LISTEN_DEFAULT,
    ADMIN_PLACES,
    ListenAddress,
    parse_listen_address,
)
from routing_service.settings.rules import SettingProblem, SettingsInvalid, read_values
from routing_service.settings.setting_forms import (
    Choice,
    Form,
    Seconds,
    Setting,
    Switch,
    Value,
    WholeNumber,
    Words,
)
from routing_service.settings.web_origins import parse_origins

T = TypeVar("T", bound=Value)


def _check_admin_listen(text: str) -> None:
    if text not in ADMIN_PLACES:
        parse_listen_address(text)


def _parse_optional_address(text: str) -> ListenAddress | None:
    """Parse an address, or return None if empty. Raises ValueError like parse_listen_address()."""
    return parse_listen_address(text) if text else None


def _check_traces(text: str) -> None:
    is_file = text.startswith("file:") and text != "file:"
    if text not in ("off", "otlp") and not is_file:
        raise ValueError("give off, otlp, or file: and a path")


def _setting(default: T, form: Form, text: str) -> T:
    """Make a field of Settings. text: shown by ``--help``, without the default."""
    made: T = field(default=default, metadata={"form": form, "default": default, "help": text})
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one server, fixed at its start. Raises SettingsInvalid with every problem."""

    listen: str = _setting(
        "127.0.0.1:50051",
        Words("HOST:PORT", parse_listen_address),
        "the address to listen on: HOST:PORT, [IPV6]:PORT or unix:PATH; port 0 takes a free port",
    )
    web_listen: str = _setting(
        "",
        Words("HOST:PORT", parse_listen_address),
        "the address for browsers (Connect, gRPC-Web, JSON), written as listen; empty = none",
    )
    web_origins: str = _setting(
        "",
        Words("origins such as https://chat.example.org, separated by commas", parse_origins),
        "the origins of pages that may call the web listener; empty = none",
    )
    console_listen: str = _setting(
        "",
        Words("HOST:PORT", _parse_optional_address),
        "the address of the operators' console (web pages), written as listen; empty = none",
    )
    console_oidc_client_id: str = _setting(
        "",
        Words("the client id of a public client"),
        "client id with which the console's page signs in at oidc_issuer (code flow with PKCE); "
        "empty = the page asks for a token",
    )
    console_oidc_scopes: str = _setting(
        "openid",
        Words("scopes, separated by spaces"),
        "scopes that the console's page asks for at oidc_issuer; separated by spaces",
    )
    store: str = _setting(
        "sqlite:///var/routing.db",
        Words("a store URL such as sqlite:///var/routing.db"),
        "the store of the sessions: sqlite:///relative/path, sqlite:////absolute/path, or memory: "
        "for a trial run",
    )
    processes: int = _setting(
        1,
        WholeNumber(1, 64),
        "server processes that share the addresses, each on a core of its own; more than 1 needs "
        "PostgreSQL, Redis or DynamoDB",
    )
    agents: str = _setting("", Words("the path of a registry file"), "the registry file (YAML)")
    reload: str = _setting(
        "auto",
        Choice(("auto", "manual")),
        "when a changed registry file is taken up: auto (within about a second), or manual (on "
        "SIGHUP or agent-routing reload)",
    )
    stickiness: str = _setting(
        "registry",
        Choice(("registry", "enabled", "disabled")),
        "stickiness at start: as the registry file says, enabled, or disabled",
    )
    log_level: str = _setting(
        "info",
        Choice(("debug", "info", "warning", "error")),
        "minimum log level: debug, info, warning or error",
    )
    log_format: str = _setting(
        "auto",
        Choice(("auto", "json", "console")),
        "format of log lines: json, console, or auto (console on a terminal, otherwise json)",
    )
    log_ids: str = _setting(
        "plain",
        Choice(("plain", "hashed")),
        "session and user ids in the log: plain or hashed",
    )
    log_ids_key_file: str = _setting(
        "",
        Words("the path of a file"),
        "file with the key for hashed ids; use the same on all replicas; empty = a random key for "
        "each process",
    )
    log_error_words: bool = _setting(
        default=False,
        form=Switch(),
        text="log the messages of unexpected errors, which may quote user text",
    )
    insecure: bool = _setting(
        default=False,
        form=Switch(),
        text="allow a public address without sign-in, or tokens without TLS",
    )
    sign_in: str = _setting(
        "none",
        Choice(("none", "oidc", "mtls", "oidc+mtls", "development")),
        "how callers sign in: none (everyone may do everything), oidc (tokens), mtls (client "
        "certificates), oidc+mtls (a token, else the certificate), or development (tokens made by "
        "agent-routing token)",
    )
    oidc_issuer: str = _setting(
        "",
        Words("the issuer's URL, as tokens have it in iss"),
        "issuer of the tokens, as in their iss; {tid} in it stands for the tenant",
    )
    oidc_audience: str = _setting(
        "",
        Words("the audience, as tokens have it in aud"),
        "accepted audience of the tokens, as in their aud; several separated by commas",
    )
    oidc_jwks: str = _setting(
        "",
        Words("the URL of a JSON Web Key Set, or a file"),
        "URL or file of the issuer's keys; empty = as the issuer's discovery document says",
    )
    oidc_profile: str = _setting(
        "standard",
        Choice(("standard", "entra")),
        "form of the tokens: standard (RFC 9068), or entra (Entra ID, version 2)",
    )
    oidc_tenants: str = _setting(
        "",
        Words("ids of tenants, with commas, or *"),
        "accepted Entra ID tenants if the issuer has {tid}; separated by commas, or * for all",
    )
    oidc_tenant_claim: str = _setting(
        "",
        Words("the name of a claim"),
        "claim that names the tenant; empty = every caller is in tenant default (entra: tid)",
    )
    oidc_user_claim: str = _setting(
        "sub", Words("the name of a claim"), "claim that names the user (entra: oid)"
    )
    oidc_agents_claim: str = _setting(
        "agents",
        Words("the name of a claim"),
        "claim that names a runtime's agents; scopes and roles such as agent:ID do so as well",
    )
    oidc_entitlements_claim: str = _setting(
        "",
        Words("the name of a claim"),
        "claim with the user's entitlements; empty = only trusted callers may state them",
    )
    oidc_scope_prefix: str = _setting(
        "",
        Words("the prefix of each scope, such as routing."),
        "prefix of each scope and role in tokens",
    )
    oidc_leeway_s: float = _setting(
        30.0, Seconds(0, 300), "allowed clock difference for the start and expiry of tokens"
    )
    development_key_file: str = _setting(
        "var/development.key",
        Words("the path of a file"),
        "key of development tokens; created if missing",
    )
    callers_file: str = _setting(
        "",
        Words("the path of a TOML file"),
        "maps client certificates to callers (TOML); read again when it changes",
    )
    tls_certificate_file: str = _setting(
        "",
        Words("the path of a PEM file"),
        "the server's certificate with its chain (PEM); read again when it changes",
    )
    tls_key_file: str = _setting(
        "", Words("the path of a PEM file"), "the certificate's key (PEM, without a password)"
    )
    tls_client_authority_file: str = _setting(
        "",
        Words("the path of a PEM file"),
        "require client certificates signed by this authority (PEM)",
    )
    admin_listen: str = _setting(
        "auto",
        Words("HOST:PORT, unix:PATH, main, off or auto", _check_admin_listen),
        "the address of AdminService and channelz: an address of its own, main (shared), off, or "
        f"auto (main on loopback, otherwise {ADMIN_LISTEN_DEFAULT})",
    )
    cache_sessions_max: int = _setting(
        10_000,
        WholeNumber(1, 10_000_000),
        "sessions kept in memory; others are read from the store when needed",
    )
    audit_seals_file: str = _setting(
        "",
        Words("the path of a file outside the store"),
        "notes the last seal of each tenant's audit; a start on a store that lacks one is logged "
        "as an error; empty = none",
    )
    expiry_sweep: bool = _setting(
        default=True,
        form=Switch(),
        text="apply time-outs when they fall due; otherwise at the session's next call",
    )
    deadline_default_s: float = _setting(
        10.0,
        Seconds(0.01, 3600),
        "deadline of calls that bring none; at most deadline_max_s",
    )
    deadline_max_s: float = _setting(
        60.0,
        Seconds(0.01, 3600),
        "upper bound for the deadline of a call; streams are exempt",
    )
    drain_s: float = _setting(
        10.0,
        Seconds(0, 3600),
        "time for calls in flight to finish when the server stops",
    )
    # Measured on 2 cores at 2.5 times one server's capacity: with 128 goodput is unharmed (970/s,
    # half of the calls within 0.25 s); with 512 it falls to 370/s because deadlines pass in the
    # queue; with 32 an idle server refuses a seventh of 64 simultaneous calls.
    pending_requests_max: int = _setting(
        128,
        WholeNumber(1, 100_000),
        "calls waiting to be handled; above this some are refused, above twice this all are",
    )
    caller_calls_per_s: int = _setting(
        0,
        WholeNumber(0, 1_000_000),
        "calls per second of one caller, with bursts of 2 s; 0 = no limit",
    )
    caller_streams_max: int = _setting(
        1_000,
        WholeNumber(0, 1_000_000),
        "open watches and message streams of one caller; 0 = no limit",
    )
    # A person has a few conversations, and one turn in each. Ten users at the limit fill the
    # entries among which a replica lets users take turns.
    user_turns_max: int = _setting(
        100,
        WholeNumber(0, 1_000_000),
        "open turns of one user in inboxes, in all its sessions; 0 = no limit",
    )
    connections_max: int = _setting(
        2_000,
        WholeNumber(1, 1_000_000),
        "open connections; further ones are closed unread",
    )
    connections_per_address_max: int = _setting(
        1_000,
        WholeNumber(0, 1_000_000),
        "open connections of one address (IPv6: of a network of 64 bits); beyond it those without "
        "sign-in are closed first; 0 = no limit",
    )
    unsigned_silence_max_s: float = _setting(
        10.0,
        Seconds(0, 86_400),
        "silence after which a connection without a signed-in call is closed; 0 = never",
    )
    resets_per_s_max: int = _setting(
        200,
        WholeNumber(0, 1_000_000),
        "calls per second that one connection may cancel beyond those it lets finish; more closes "
        "it, and its address is refused for a while; 0 = no limit",
    )
    probe_listen: str = _setting(
        "",
        Words("HOST:PORT", _parse_optional_address),
        "the address of the probes /livez and /readyz (HTTP), with connections of its own: "
        "HOST:PORT, [IPV6]:PORT or unix:PATH; empty = none",
    )
    metrics_listen: str = _setting(
        "",
        Words("HOST:PORT", _parse_optional_address),
        "the address of the Prometheus endpoint /metrics: HOST:PORT, [IPV6]:PORT or unix:PATH; "
        "empty = none",
    )
    metrics: str = _setting(
        "off",
        Choice(("off", "otlp")),
        "sends the same figures to a collector: off, or otlp (set by the OTEL_EXPORTER_OTLP_* and "
        "OTEL_METRIC_EXPORT_INTERVAL variables); needs the extra otel",
    )
    traces: str = _setting(
        "off",
        Words("off, otlp or file:PATH", _check_traces),
        "destination of trace spans: off, otlp (a collector, set by the OTEL_EXPORTER_OTLP_* "
        "variables), or file:PATH; needs the extra otel",
    )
    traces_new_percent: int = _setting(
        100,
        WholeNumber(0, 100),
        "percentage of calls without a trace that start one; a caller's own trace keeps the "
        "caller's sampling",
    )
    topic_detector: str = _setting(
        "",
        Words("grpc://HOST:PORT, MODULE:NAME, or the name of an installed detector"),
        "topic detector: grpc://HOST:PORT (grpcs:// with TLS) of a TopicDetectorService, "
        "MODULE:NAME, or a detector offered by an installed package; empty = the one that ships",
    )
    topic_detector_limit_s: float = _setting(
        0.05,
        Seconds(0.001, 10),
        "time limit of topic_detector; after it the fallback judges, or the message is routed as "
        "if topics were off",
    )
    topic_detector_fallback: str = _setting(
        "shipped",
        Choice(("shipped", "none")),
        "what judges when a grpc:// detector fails or is late: shipped (the detector that ships), "
        "or none (the message is routed as if topics were off)",
    )
    topic_judge: str = _setting(
        "",
        Words("https://HOST/PATH of a chat endpoint, grpc://HOST:PORT, or MODULE:NAME"),
        "judge of unsure messages where the registry says when_unsure: judge: https://HOST/PATH of "
        "an OpenAI-compatible endpoint, or a detector as in topic_detector; empty = none",
    )
    topic_judge_model: str = _setting(
        "",
        Words("the name of a model"),
        "model that topic_judge asks for at a chat endpoint",
    )
    topic_judge_key_file: str = _setting(
        "",
        Words("the path of a file"),
        "file with the key of topic_judge's chat endpoint, sent as a bearer token",
    )
    topic_judge_limit_s: float = _setting(
        5.0,
        Seconds(0.1, 60),
        "time limit of topic_judge; after it the supervisor gets the message",
    )
    keepalive_s: float = _setting(
        60.0,
        Seconds(1, 86_400),
        "idle time after which a connection is pinged",
    )
    keepalive_timeout_s: float = _setting(
        20.0,
        Seconds(0.1, 3600),
        "time to answer that ping before the connection is closed",
    )
    connection_age_max_s: float = _setting(
        300.0,
        Seconds(1, 86_400),
        "maximum age of a connection; clients reconnect, so new replicas get their share",
    )

    def __post_init__(self) -> None:
        """Refuse values that would fail later or let strangers in."""
        problems: list[SettingProblem] = []
        values = {name: getattr(self, name) for name in SETTINGS}
        read_values(SETTINGS, values, {}, problems)
        if problems:
            raise SettingsInvalid(tuple(problems))

    @property
    def metrics_address(self) -> ListenAddress | None:
        """``metrics_listen``, parsed; None if empty."""
        return _parse_optional_address(self.metrics_listen)

    @property
    def probe_address(self) -> ListenAddress | None:
        """``probe_listen``, parsed; None if empty."""
        return _parse_optional_address(self.probe_listen)

    @property
    def listen_address(self) -> ListenAddress:
        """``listen``, parsed."""
        return parse_listen_address(self.listen)

    @property
    def admin_address(self) -> ListenAddress | None:
        """The admin address, or None if admin shares the main one or is off."""
        if self.admin_listen not in ADMIN_PLACES:
            return parse_listen_address(self.admin_listen)
        if self.admin_listen == "auto" and not self.listen_address.is_loopback:
            return parse_listen_address(ADMIN_LISTEN_DEFAULT)
        return None

    @property
    def has_admin_on_main(self) -> bool:
        """Whether AdminService shares the main address."""
        return self.admin_listen == "main" or (
            self.admin_listen == "auto" and self.listen_address.is_loopback
        )

    @property
    def web_address(self) -> ListenAddress | None:
        """``web_listen``, parsed; None if there is no web listener."""
        return parse_listen_address(self.web_listen) if self.web_listen else None

    @property
    def console_address(self) -> ListenAddress | None:
        """``console_listen``, parsed; None if empty."""
        return _parse_optional_address(self.console_listen)


SETTINGS: Final[Mapping[str, Setting]] = {
    made.name: Setting(made.name, **made.metadata) for made in dataclasses.fields(Settings)
}
"""All settings by name, in the order in which they are shown."""
