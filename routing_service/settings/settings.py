"""The settings of a server: what there is to set, what it may be, and where a value came from.

Owns the names, bounds and defaults, and the order flag > environment > file > default. It must not
know what the settings do, and it opens nothing but the configuration file.

The rule: settings are taken whole or refused with everything that is wrong with them. A setting is
one field of ``Settings``; its flag (--drain-s), its variable (AGENT_ROUTING_DRAIN_S) and its key in
the file (drain_s) follow from the field's name.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from routing_service.settings.listen_address import ListenAddress, parse_listen_address
from routing_service.settings.provider_url import TENANT_MARK, is_fetchable
from routing_service.settings.setting_forms import (
    Choice,
    Form,
    Seconds,
    Switch,
    Value,
    WholeNumber,
    Words,
)
from routing_service.settings.web_origins import parse_origins

VARIABLE_PREFIX: Final = "AGENT_ROUTING_"

CONFIG_VARIABLE: Final = f"{VARIABLE_PREFIX}CONFIG"
"""Names the configuration file where no flag does."""

OTHER_VARIABLES: Final = frozenset(
    {
        CONFIG_VARIABLE,
        f"{VARIABLE_PREFIX}PROFILES",
        f"{VARIABLE_PREFIX}TARGET",
        f"{VARIABLE_PREFIX}TENANT",
        f"{VARIABLE_PREFIX}TOKEN",
        f"{VARIABLE_PREFIX}TOKEN_FILE",
        f"{VARIABLE_PREFIX}TLS_CA",
        f"{VARIABLE_PREFIX}TLS_CERT",
        f"{VARIABLE_PREFIX}TLS_KEY",
        f"{VARIABLE_PREFIX}TLS_NAME",
    }
)
"""Variables that are no settings of a server: they tell the commands where one is, and how to sign
in there."""

CONFIG_BYTES_MAX: Final = 1024 * 1024
"""More than this is no configuration; the largest sensible one has a few kilobytes."""

_SHOWN_CHARACTERS_MAX: Final = 200
_USER_INFO: Final = re.compile(r"//.*@", re.DOTALL)
_QUERY_SECRET: Final = re.compile(r"((?:password|secret|_key)=)[^&#]*", re.IGNORECASE)

T = TypeVar("T", bound=Value)


ADMIN_LISTEN_DEFAULT: Final = "127.0.0.1:50052"

ADMIN_WORDS: Final = frozenset({"auto", "main", "off"})


def _check_admin_listen(text: str) -> None:
    if text not in ADMIN_WORDS:
        parse_listen_address(text)


def separated(text: str) -> tuple[str, ...]:
    """Return the words of a setting that may have several, with commas between."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _parse_optional_address(text: str) -> ListenAddress | None:
    """Read an address, or nothing. Raises ValueError as parse_listen_address() does."""
    return parse_listen_address(text) if text else None


def _check_traces(text: str) -> None:
    is_file = text.startswith("file:") and text != "file:"
    if text not in ("off", "otlp") and not is_file:
        raise ValueError("give off, otlp, or file: and a path")


def _setting(default: T, form: Form, text: str) -> T:
    """Make a field of Settings. text: for ``--help``, without the default."""
    made: T = field(default=default, metadata={"form": form, "default": default, "help": text})
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a server is told at its start. Raises SettingsInvalid; nothing changes afterwards."""

    listen: str = _setting(
        "127.0.0.1:50051",
        Words("HOST:PORT", parse_listen_address),
        "where to listen: HOST:PORT, [IPV6]:PORT or unix:PATH; port 0 takes a free one",
    )
    web_listen: str = _setting(
        "",
        Words("HOST:PORT", parse_listen_address),
        "where to listen for browsers (Connect, gRPC-Web, JSON), as listen; without it nowhere",
    )
    web_origins: str = _setting(
        "",
        Words("origins such as https://chat.example.org, separated by commas", parse_origins),
        "the origins of pages that may call the web listener; without it none may",
    )
    store: str = _setting(
        "sqlite:///var/routing.db",
        Words("a store URL such as sqlite:///var/routing.db"),
        "where sessions are kept: sqlite:///relative/path, sqlite:////absolute/path, or memory: "
        "for a trial run",
    )
    agents: str = _setting("", Words("the path of a registry file"), "the registry file (YAML)")
    stickiness: str = _setting(
        "registry",
        Choice(("registry", "enabled", "disabled")),
        "whether agents stick, at the start: as the registry file says, or else",
    )
    log_level: str = _setting(
        "info",
        Choice(("debug", "info", "warning", "error")),
        "the least level that is logged: debug, info, warning or error",
    )
    log_format: str = _setting(
        "auto",
        Choice(("auto", "json", "console")),
        "how log lines look: json, console, or auto (console on a terminal, otherwise json)",
    )
    log_ids: str = _setting(
        "plain",
        Choice(("plain", "hashed")),
        "how session and user ids stand in the log: plain, or hashed",
    )
    log_ids_key_file: str = _setting(
        "",
        Words("the path of a file"),
        "the secret by which ids are hashed, the same on all replicas; without it each process "
        "has one of its own",
    )
    log_error_words: bool = _setting(
        default=False,
        form=Switch(),
        text="log what unexpected errors say, which may quote what somebody said",
    )
    insecure: bool = _setting(
        default=False,
        form=Switch(),
        text="listen where others can reach it although nobody signs in, or tokens come in the "
        "clear",
    )
    sign_in: str = _setting(
        "none",
        Choice(("none", "oidc", "mtls", "oidc+mtls", "development")),
        "who callers are: none (all may do everything), oidc (tokens), mtls (client certificates), "
        "oidc+mtls (a token, else the certificate), or development (tokens of agent-routing token)",
    )
    oidc_issuer: str = _setting(
        "",
        Words("the issuer's URL, as tokens have it in iss"),
        "who signs the tokens, as in their iss; {tid} in it stands for the tenant",
    )
    oidc_audience: str = _setting(
        "",
        Words("the audience, as tokens have it in aud"),
        "for whom the tokens must be, as in their aud; several with commas",
    )
    oidc_jwks: str = _setting(
        "",
        Words("the URL of a JSON Web Key Set, or a file"),
        "where the issuer's keys are: a URL or a file; left out: as the issuer's document says",
    )
    oidc_profile: str = _setting(
        "standard",
        Choice(("standard", "entra")),
        "how tokens are read: standard (RFC 9068), or entra (Entra ID, version 2)",
    )
    oidc_tenants: str = _setting(
        "",
        Words("ids of tenants, with commas, or *"),
        "the tenants of Entra ID that are let in, where the issuer has {tid}; with commas, or *",
    )
    oidc_tenant_claim: str = _setting(
        "",
        Words("the name of a claim"),
        "the claim that names the tenant; left out: all are in the tenant default (entra: tid)",
    )
    oidc_user_claim: str = _setting(
        "sub", Words("the name of a claim"), "the claim that names the user (entra: oid)"
    )
    oidc_agents_claim: str = _setting(
        "agents",
        Words("the name of a claim"),
        "the claim that names a runtime's agents; scopes and roles such as agent:ID do too",
    )
    oidc_entitlements_claim: str = _setting(
        "",
        Words("the name of a claim"),
        "the claim that says what a user is entitled to; left out: only trusted callers say so",
    )
    oidc_scope_prefix: str = _setting(
        "",
        Words("what stands before each scope, such as routing."),
        "what stands before each scope and role in tokens",
    )
    oidc_leeway_s: float = _setting(
        30.0, Seconds(0, 300), "by how much clocks may differ where tokens begin and expire"
    )
    development_key_file: str = _setting(
        "var/development.key",
        Words("the path of a file"),
        "the key of development tokens; one that is not there is made",
    )
    callers_file: str = _setting(
        "",
        Words("the path of a TOML file"),
        "who the bearers of client certificates are (TOML); read again when it changes",
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
        "demand client certificates of this authority (PEM)",
    )
    admin_listen: str = _setting(
        "auto",
        Words("HOST:PORT, unix:PATH, main, off or auto", _check_admin_listen),
        "where AdminService and channelz are: an address of their own, main (with the rest), off, "
        f"or auto: main on loopback, otherwise {ADMIN_LISTEN_DEFAULT}",
    )
    cache_sessions_max: int = _setting(
        10_000,
        WholeNumber(1, 10_000_000),
        "sessions kept in memory; the others are read from the store when needed",
    )
    expiry_sweep: bool = _setting(
        default=True,
        form=Switch(),
        text="let time-outs take effect when they fall due; otherwise at the session's next call",
    )
    deadline_default_s: float = _setting(
        10.0,
        Seconds(0.01, 3600),
        "time for a call that brings no deadline of its own; at most deadline_max_s",
    )
    deadline_max_s: float = _setting(
        60.0,
        Seconds(0.01, 3600),
        "the longest time for a call, whatever its deadline; streams are not cut by it",
    )
    drain_s: float = _setting(
        10.0,
        Seconds(0, 3600),
        "time for calls in flight to finish when the server stops",
    )
    # Measured on 2 cores at 2.5 times what one server does: with 128 goodput stays whole (970/s,
    # half of the calls within 0.25 s), with 512 it falls to 370/s as callers' deadlines pass in
    # the queue; with 32 an idle server refuses a seventh of 64 calls that come at once.
    pending_requests_max: int = _setting(
        128,
        WholeNumber(1, 100_000),
        "calls waiting to be looked at; from here on some are refused, from twice as many all",
    )
    caller_calls_per_s: int = _setting(
        0,
        WholeNumber(0, 1_000_000),
        "calls a second of one caller; what it saved in two seconds may come at once; 0 = no limit",
    )
    caller_streams_max: int = _setting(
        1_000,
        WholeNumber(0, 1_000_000),
        "watches and message streams that one caller may have open; 0 = no limit",
    )
    connections_max: int = _setting(
        2_000,
        WholeNumber(1, 1_000_000),
        "connections at a time; one more is closed before it is read",
    )
    metrics_listen: str = _setting(
        "",
        Words("HOST:PORT", _parse_optional_address),
        "where Prometheus may fetch figures, by HTTP from /metrics: HOST:PORT, [IPV6]:PORT or "
        "unix:PATH; empty = nowhere",
    )
    traces: str = _setting(
        "off",
        Words("off, otlp or file:PATH", _check_traces),
        "where spans of calls go: off, otlp (a collector, by the OTEL_EXPORTER_OTLP_* "
        "variables), or file:PATH; needs the extra otel",
    )
    traces_new_percent: int = _setting(
        100,
        WholeNumber(0, 100),
        "of calls that come without a trace, how many begin one; a caller's trace is followed "
        "as the caller says",
    )
    topic_detector: str = _setting(
        "",
        Words("MODULE:NAME, or the name of an installed detector"),
        "what judges topics: MODULE:NAME, or a detector that a package offers; left out: the one "
        "that ships",
    )
    topic_detector_limit_s: float = _setting(
        0.05,
        Seconds(0.001, 10),
        "how long a message waits for topic_detector; then it is routed as if topics were off",
    )
    keepalive_s: float = _setting(
        60.0,
        Seconds(1, 86_400),
        "a connection that was silent for so long is asked whether it is still there",
    )
    keepalive_timeout_s: float = _setting(
        20.0,
        Seconds(0.1, 3600),
        "a connection that does not answer that for so long is closed",
    )
    connection_age_max_s: float = _setting(
        300.0,
        Seconds(1, 86_400),
        "connections are renewed after this time, so that new replicas get their share",
    )

    def __post_init__(self) -> None:
        """Refuse what would only fail later, or serve strangers."""
        problems: list[SettingProblem] = []
        values = {name: getattr(self, name) for name in SETTINGS}
        _read(values, {}, problems)
        if problems:
            raise SettingsInvalid(tuple(problems))

    @property
    def metrics_address(self) -> ListenAddress | None:
        """``metrics_listen``, read; None if there is none."""
        return _parse_optional_address(self.metrics_listen)

    @property
    def listen_address(self) -> ListenAddress:
        """``listen``, read."""
        return parse_listen_address(self.listen)

    @property
    def admin_address(self) -> ListenAddress | None:
        """Where AdminService has a listener of its own; None where it has none."""
        if self.admin_listen not in ADMIN_WORDS:
            return parse_listen_address(self.admin_listen)
        if self.admin_listen == "auto" and not self.listen_address.is_loopback:
            return parse_listen_address(ADMIN_LISTEN_DEFAULT)
        return None

    @property
    def has_admin_on_main(self) -> bool:
        """Whether AdminService is where all else is."""
        return self.admin_listen == "main" or (
            self.admin_listen == "auto" and self.listen_address.is_loopback
        )

    @property
    def web_address(self) -> ListenAddress | None:
        """``web_listen``, read; None: no web listener."""
        return parse_listen_address(self.web_listen) if self.web_listen else None


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as an operator meets it."""

    name: str
    form: Form
    default: Value
    help: str

    @property
    def flag(self) -> str:
        """Its option on the command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return f"{VARIABLE_PREFIX}{self.name.upper()}"


SETTINGS: Final[Mapping[str, Setting]] = {
    made.name: Setting(made.name, **made.metadata) for made in dataclasses.fields(Settings)
}
"""All settings by name, in the order in which they are explained."""


@dataclass(frozen=True, slots=True)
class SettingProblem:
    """One thing that is wrong with the settings."""

    name: str
    """The setting's, or the key or variable that is none; "" for a file that cannot be read."""
    message: str
    """What, which value, where it comes from, what to do."""

    def __str__(self) -> str:
        return self.message


class SettingsInvalid(Exception):
    """Settings that are not taken. ``problems`` holds all that is wrong with them."""

    def __init__(self, problems: tuple[SettingProblem, ...]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class ExplainedSetting:
    """One setting with its value and where that came from."""

    name: str
    value: Value
    source: str
    """"flag --listen", "environment AGENT_ROUTING_LISTEN", "file NAME" or "default"."""
    help: str


@dataclass(frozen=True, slots=True)
class ResolvedSettings:
    """Settings as flags, environment and file gave them together."""

    settings: Settings
    sources: Mapping[str, str]
    """By name, in the words of ``ExplainedSetting.source``."""
    warnings: tuple[SettingProblem, ...]
    """What was passed over: variables that look like settings and are none."""

    def explain(self) -> tuple[ExplainedSetting, ...]:
        """List every setting; a password in a store URL is left out."""
        return tuple(
            ExplainedSetting(
                setting.name,
                without_secrets(getattr(self.settings, setting.name)),
                self.sources[setting.name],
                setting.help,
            )
            for setting in SETTINGS.values()
        )


def resolve_settings(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    config_file: str | Path | None = None,
) -> ResolvedSettings:
    """Put the settings together: flag > environment > file > default.

    flags: values by the setting's name; None = not given. A variable that is empty is not given
    either. config_file: None = what AGENT_ROUTING_CONFIG names, if anything.
    Raises SettingsInvalid with every problem.
    """
    assert flags.keys() <= SETTINGS.keys(), flags.keys() - SETTINGS.keys()
    problems: list[SettingProblem] = []
    file_name = str(config_file or environ.get(CONFIG_VARIABLE, ""))
    in_file = _from_file(Path(file_name), problems) if file_name else {}
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    for setting in SETTINGS.values():
        candidates = (
            (flags.get(setting.name), f"flag {setting.flag}"),
            (environ.get(setting.variable) or None, f"environment {setting.variable}"),
            (in_file.get(setting.name), f"file {file_name}"),
            (setting.default, "default"),
        )
        values[setting.name], sources[setting.name] = next(
            candidate for candidate in candidates if candidate[0] is not None
        )
    read = _read(values, sources, problems)
    if problems:
        raise SettingsInvalid(tuple(problems))
    return ResolvedSettings(Settings(**read), sources, tuple(_unknown_variables(environ)))


def missing_agents() -> SettingProblem:
    """Say that a server cannot start without a registry; settings alone may lack one."""
    setting = SETTINGS["agents"]
    return SettingProblem(
        setting.name,
        f"no registry file is named; give {setting.flag} FILE, {setting.variable}, or agents in "
        "the configuration file",
    )


def _from_file(path: Path, problems: list[SettingProblem]) -> dict[str, object]:
    """Return the settings that a file holds; what is wrong with the file is added to problems."""
    try:
        with path.open("rb") as file:
            content = file.read(CONFIG_BYTES_MAX + 1)
        document = tomllib.loads(content[:CONFIG_BYTES_MAX].decode("utf-8"))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        problems.append(
            SettingProblem("", f'configuration file "{path}": {reason}; check path and permissions')
        )
        return {}
    except ValueError as error:  # Also what is not UTF-8, and TOML's own complaint, with its line.
        problems.append(
            SettingProblem("", f'configuration file "{path}" is not taken: {error}; write TOML')
        )
        return {}
    if len(content) > CONFIG_BYTES_MAX:
        message = f'configuration file "{path}" is longer than {CONFIG_BYTES_MAX} bytes; shorten it'
        problems.append(SettingProblem("", message))
    problems += (
        SettingProblem(
            key,
            f'configuration file "{path}" has the unknown key "{key}"'
            + _meant(key, SETTINGS, "known keys"),
        )
        for key in document
        if key not in SETTINGS
    )
    return {key: value for key, value in document.items() if key in SETTINGS}


def _unknown_variables(environ: Mapping[str, str]) -> Iterable[SettingProblem]:
    known = {setting.variable for setting in SETTINGS.values()} | OTHER_VARIABLES
    for name in sorted(environ):
        if name.startswith(VARIABLE_PREFIX) and name not in known:
            yield SettingProblem(
                name,
                f"environment variable {name} is no setting and is passed over"
                + _meant(name, known, "known variables"),
            )


def _meant(written: str, known: Iterable[str], known_as: str) -> str:
    close = difflib.get_close_matches(written.lower(), [name.lower() for name in known], n=1)
    meant = [name for name in known if name.lower() in close]
    if meant:
        return f"; did you mean {meant[0]}?"
    return f"; {known_as}: {', '.join(sorted(known))}"


def _read(
    values: Mapping[str, object], sources: Mapping[str, str], problems: list[SettingProblem]
) -> dict[str, Any]:
    """Return the values in their types; what is wrong with each, or with them together, is added.

    The types are those of the fields of Settings, as each form reads into its field's type.
    """
    read: dict[str, Any] = {}
    for name, setting in SETTINGS.items():
        value = values[name]
        if type(value) is type(setting.default) and value == setting.default:
            read[name] = value  # Also a default that nobody could write, such as no file.
            continue
        try:
            read[name] = setting.form.read(value)
        except ValueError as error:
            problems.append(SettingProblem(name, f"{_named(name, values, sources)}; {error}"))
    problems += _conflicts(read, values, sources)
    return read


_EXPOSING: Final = frozenset(
    {"listen", "web_listen", "admin_listen", "insecure", "sign_in", "tls_certificate_file"}
)
"""The settings that decide together whether strangers get in."""


def _conflicts(
    read: Mapping[str, Any], values: Mapping[str, object], sources: Mapping[str, str]
) -> Iterable[SettingProblem]:
    """Say what is wrong with the values together, for as far as each of them was read."""
    found: list[tuple[str, str]] = []
    if read.keys() >= _EXPOSING:
        found += _exposed(read)
    if read.keys() == SETTINGS.keys():
        found += _missing(read)
    for name, why_not in found:
        yield SettingProblem(name, f"{_named(name, values, sources)}{why_not}")


def _exposed(read: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Say which address would let strangers in."""
    if read["insecure"]:
        return
    flag = SETTINGS["insecure"].flag
    addresses = {"listen": read["listen"]}
    if read["web_listen"]:
        addresses["web_listen"] = read["web_listen"]
    if read["admin_listen"] not in ADMIN_WORDS:
        addresses["admin_listen"] = read["admin_listen"]
    if read["sign_in"] == "none":
        why_not = (
            f"and nobody signs in; listen on 127.0.0.1, set {SETTINGS['sign_in'].flag}, or add "
            f"{flag} if a proxy or the network keeps strangers out"
        )
    elif "development" in read["sign_in"]:
        why_not = (
            "and whoever has the development key can be anybody; listen on 127.0.0.1, sign in by "
            f"oidc or mtls, or add {flag}"
        )
    elif not read["tls_certificate_file"]:
        why_not = (
            "and tokens would come in the clear; give "
            f"{SETTINGS['tls_certificate_file'].flag} and {SETTINGS['tls_key_file'].flag}, or add "
            f"{flag} if a proxy in front ends TLS"
        )
    else:
        return
    for name, text in addresses.items():
        if not parse_listen_address(text).is_loopback:
            yield name, f", which others can reach, {why_not}"


def _missing(read: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Say what a value needs beside it."""
    kinds = read["sign_in"].split("+")
    needed: list[tuple[str, str]] = []
    if "oidc" in kinds:
        needed += [("sign_in", "oidc_issuer"), ("sign_in", "oidc_audience")]
        yield from _issuer_problems(read)
    if "mtls" in kinds:
        needed += [
            ("sign_in", "callers_file"),
            ("sign_in", "tls_certificate_file"),
            ("sign_in", "tls_client_authority_file"),
        ]
    needed += [
        ("tls_certificate_file", "tls_key_file"),
        ("tls_key_file", "tls_certificate_file"),
        ("tls_client_authority_file", "tls_certificate_file"),
    ]
    for name, other in needed:
        if read[name] and not read[other]:
            yield name, f", and {other} is missing; give {SETTINGS[other].flag}"
    if read["admin_listen"] == read["listen"] and not read["listen"].endswith(":0"):
        yield "admin_listen", ", which is listen; write main to have both in one place"


def _issuer_problems(read: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    issuer, jwks = read["oidc_issuer"], read["oidc_jwks"]
    if TENANT_MARK in issuer:
        if read["oidc_profile"] != "entra":
            yield "oidc_issuer", f" and has {TENANT_MARK}; that needs oidc_profile entra"
        for other in ("oidc_tenants", "oidc_jwks"):
            if not read[other]:
                yield "oidc_issuer", f", and {other} is missing; give {SETTINGS[other].flag}"
    elif issuer and not jwks and not is_fetchable(issuer):
        yield "oidc_issuer", "; give a URL with https, or oidc_jwks"
    if "://" in jwks and not is_fetchable(jwks):
        yield "oidc_jwks", "; give a URL with https, or a file"


def _named(name: str, values: Mapping[str, object], sources: Mapping[str, str]) -> str:
    """Return 'drain_s is "ten" (flag --drain-s)'."""
    shown = str(without_secrets(values[name]))
    if len(shown) > _SHOWN_CHARACTERS_MAX:
        shown = f"{shown[:_SHOWN_CHARACTERS_MAX]}…"
    source = sources.get(name)
    return f'{name} is "{shown}"' + (f" ({source})" if source else "")


def without_secrets(value: Any) -> Any:
    """Return a value as it may be shown: a store URL without its user and password."""
    if not isinstance(value, str):
        return value
    return _QUERY_SECRET.sub(r"\1…", _USER_INFO.sub("//…@", value))
