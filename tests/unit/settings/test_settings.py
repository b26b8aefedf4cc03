import dataclasses

import pytest

from routing_service.settings.resolve import CONFIG_BYTES_MAX, resolve_settings
from routing_service.settings.rules import SettingsInvalid
from routing_service.settings.settings import SETTINGS, Settings

# For each setting a value of its own at every place where it can be given, and how it is read.
GIVEN = {
    "listen": ("127.0.0.1:1", "127.0.0.1:2", '"127.0.0.1:3"', "127.0.0.1:3"),
    "web_listen": ("127.0.0.1:1", "127.0.0.1:2", '"127.0.0.1:3"', "127.0.0.1:3"),
    "web_origins": ("http://a", "http://b", '"http://c, https://d"', "http://c, https://d"),
    "console_listen": ("127.0.0.1:1", "127.0.0.1:2", '"127.0.0.1:3"', "127.0.0.1:3"),
    "console_oidc_client_id": ("page", "other", '"third"', "third"),
    "console_oidc_scopes": ("openid", "openid admin", '"openid api"', "openid api"),
    "store": ("memory:", "sqlite:///a.db", '"sqlite:///b.db"', "sqlite:///b.db"),
    "processes": (2, "3", "4", 4),
    "agents": ("a.yaml", "b.yaml", '"c.yaml"', "c.yaml"),
    "reload": ("manual", "AUTO", '"manual"', "manual"),
    "stickiness": ("enabled", "Disabled", '"enabled"', "enabled"),
    "log_level": ("debug", "WARNING", '"error"', "error"),
    "log_format": ("json", "console", '"json"', "json"),
    "log_ids": ("hashed", "Hashed", '"plain"', "plain"),
    "log_ids_key_file": ("a.key", "b.key", '"c.key"', "c.key"),
    "log_error_words": (True, "yes", "true", True),
    "insecure": (True, "yes", "true", True),
    "sign_in": ("development", "none", '"development"', "development"),
    "oidc_issuer": ("https://a", "https://b", '"https://c"', "https://c"),
    "oidc_audience": ("a", "b", '"c,d"', "c,d"),
    "oidc_jwks": ("https://a/keys", "keys.json", '"https://c/keys"', "https://c/keys"),
    "oidc_profile": ("entra", "standard", '"entra"', "entra"),
    "oidc_tenants": ("a", "b,c", '"*"', "*"),
    "oidc_tenant_claim": ("a", "b", '"c"', "c"),
    "oidc_user_claim": ("a", "b", '"c"', "c"),
    "oidc_agents_claim": ("a", "b", '"c"', "c"),
    "oidc_entitlements_claim": ("a", "b", '"c"', "c"),
    "oidc_scope_prefix": ("a.", "b.", '"c."', "c."),
    "oidc_leeway_s": (0, "1.5", "60", 60.0),
    "development_key_file": ("a.key", "b.key", '"c.key"', "c.key"),
    "callers_file": ("a.toml", "b.toml", '"c.toml"', "c.toml"),
    "tls_certificate_file": ("a.pem", "b.pem", '"c.pem"', "c.pem"),
    "tls_key_file": ("a.pem", "b.pem", '"c.pem"', "c.pem"),
    "tls_client_authority_file": ("a.pem", "b.pem", '"c.pem"', "c.pem"),
    "admin_listen": ("main", "127.0.0.1:7", '"off"', "off"),
    "audit_seals_file": ("a", "b", '"c"', "c"),
    "expiry_sweep": (False, "no", "false", False),
    "cache_sessions_max": (5, "6", "7", 7),
    "deadline_default_s": (5, "6.5", "7", 7.0),
    "deadline_max_s": (5, "6.5", "7", 7.0),
    "drain_s": (0, "1.5", "2.5", 2.5),
    "pending_requests_max": (5, "6", "7", 7),
    "caller_calls_per_s": (0, "6", "7", 7),
    "caller_streams_max": (0, "6", "7", 7),
    "user_turns_max": (0, "6", "7", 7),
    "connections_max": (5, "6", "7", 7),
    "connections_per_address_max": (0, "6", "7", 7),
    "unsigned_silence_max_s": (0, "6", "7.5", 7.5),
    "resets_per_s_max": (0, "6", "7", 7),
    "probe_listen": ("127.0.0.1:1", "127.0.0.1:2", '"127.0.0.1:3"', "127.0.0.1:3"),
    "metrics_listen": ("127.0.0.1:1", "127.0.0.1:2", '"127.0.0.1:3"', "127.0.0.1:3"),
    "metrics": ("otlp", "off", '"otlp"', "otlp"),
    "traces": ("otlp", "file:a", '"file:b"', "file:b"),
    "traces_new_percent": (5, "6", "7", 7),
    "topic_detector": ("a:b", "c", '"d"', "d"),
    "topic_detector_limit_s": (1, "0.5", "2.5", 2.5),
    "topic_detector_fallback": ("none", "shipped", '"none"', "none"),
    "topic_judge": ("https://a/v1", "grpc://b:1", '"https://d/v1"', "https://d/v1"),
    "topic_judge_model": ("a", "b", '"d"', "d"),
    "topic_judge_key_file": ("a", "b", '"d"', "d"),
    "topic_judge_limit_s": (1, "0.5", "2.5", 2.5),
    "keepalive_s": (5.5, "6", "7", 7.0),
    "keepalive_timeout_s": (5.5, "6", "7", 7.0),
    "connection_age_max_s": (50, "60", "70.5", 70.5),
}

# Other settings that some of them require.
SHARED = {"AGENT_ROUTING_STORE": "postgres://db/chat"}
TLS = {"AGENT_ROUTING_TLS_CERTIFICATE_FILE": "x.pem", "AGENT_ROUTING_TLS_KEY_FILE": "x.pem"}


def problems(*, flags=None, environ=None, config_file=None):
    """Return what is wrong with settings, by name."""
    with pytest.raises(SettingsInvalid) as caught:
        resolve_settings(flags or {}, environ or {}, config_file)
    assert str(caught.value) == "\n".join(str(problem) for problem in caught.value.problems)
    return {problem.name: problem.message for problem in caught.value.problems}


@pytest.fixture
def config_file(tmp_path):
    """Write a configuration file."""

    def write(text):
        path = tmp_path / "routing.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_every_setting_has_a_default_that_serves_this_machine_only():
    """By default a server must not be reachable by strangers."""
    resolved = resolve_settings({"agents": "agents.yaml"}, {})
    assert resolved.settings == Settings(agents="agents.yaml")
    assert resolved.settings.listen_address.is_loopback
    assert not resolved.settings.insecure
    assert {name for name, source in resolved.sources.items() if source != "default"} == {"agents"}


def test_every_setting_is_in_the_table_of_this_test():
    """So that the precedence test covers every new setting."""
    assert GIVEN.keys() == SETTINGS.keys()
    assert [field.name for field in dataclasses.fields(Settings)] == list(SETTINGS)


@pytest.mark.parametrize("name", SETTINGS)
def test_flag_wins_over_environment_over_file_over_default(name, config_file):
    """Each setting can be given at each place, and the nearer place wins."""
    setting = SETTINGS[name]
    in_flag, in_variable, in_file, read_from_file = GIVEN[name]
    path = config_file(f"{name} = {in_file}")
    beside = TLS if name.startswith("tls_") else SHARED if name == "processes" else {}
    environ = beside | {setting.variable: in_variable}
    beside = {key: value for key, value in environ.items() if key != setting.variable}

    flag = resolve_settings({name: in_flag}, environ, path)
    assert getattr(flag.settings, name) == setting.form.read(in_flag)
    assert flag.sources[name] == f"flag {setting.flag}"

    variable = resolve_settings({name: None}, environ, path)
    assert getattr(variable.settings, name) == setting.form.read(in_variable)
    assert variable.sources[name] == f"environment {setting.variable}"

    file = resolve_settings({}, beside, path)
    assert getattr(file.settings, name) == read_from_file
    assert type(getattr(file.settings, name)) is type(setting.default)
    assert file.sources[name] == f"file {path}"

    assert getattr(resolve_settings({}, {}).settings, name) == setting.default


def test_a_flag_that_says_false_wins_over_a_variable_that_says_true():
    """False is a value, not a missing one."""
    resolved = resolve_settings({"insecure": False}, {"AGENT_ROUTING_INSECURE": "true"})
    assert resolved.settings.insecure is False
    assert resolved.sources["insecure"] == "flag --insecure"


def test_an_empty_variable_is_no_value():
    """Compose files pass unset variables as empty."""
    resolved = resolve_settings({}, {"AGENT_ROUTING_LISTEN": "", "AGENT_ROUTING_CONFIG": ""})
    assert resolved.sources["listen"] == "default"


def test_the_file_can_be_named_by_a_variable(config_file):
    """Containers are configured by environment; the flag still wins."""
    path = config_file("drain_s = 3")
    environ = {"AGENT_ROUTING_CONFIG": str(path)}
    assert resolve_settings({}, environ).settings.drain_s == 3.0
    assert problems(environ=environ, config_file="nowhere.toml").keys() == {""}


def test_all_that_is_wrong_is_said_at_once_with_its_place(config_file):
    """Otherwise each start would show only one mistake."""
    path = config_file('drain_s = "soon"\nlog_level = "loud"\ncache_sessions_max = 1.5\n')
    found = problems(
        flags={"listen": "50051"},
        environ={"AGENT_ROUTING_KEEPALIVE_S": "-1", "AGENT_ROUTING_INSECURE": "perhaps"},
        config_file=path,
    )
    assert found == {
        "listen": 'listen is "50051" (flag --listen); give HOST:PORT, such as 127.0.0.1:50051 or '
        "[::1]:50051, or unix:PATH",
        "log_level": f'log_level is "loud" (file {path}); give debug, info, warning or error',
        "insecure": 'insecure is "perhaps" (environment AGENT_ROUTING_INSECURE); give true or '
        "false",
        "cache_sessions_max": f'cache_sessions_max is "1.5" (file {path}); give a whole number '
        "from 1 to 10000000",
        "drain_s": f'drain_s is "soon" (file {path}); give seconds from 0 to 3600',
        "keepalive_s": 'keepalive_s is "-1" (environment AGENT_ROUTING_KEEPALIVE_S); give seconds '
        "from 1 to 86400",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("drain_s", "nan"),
        ("drain_s", "inf"),
        ("drain_s", True),
        ("drain_s", ["1"]),
        ("cache_sessions_max", True),
        ("cache_sessions_max", 0),
        ("cache_sessions_max", "1e3"),
        ("store", "sqlite:///a\n.db"),
        ("store", 5),
        ("agents", "  "),
        ("insecure", 1),
        ("insecure", ""),
        ("log_format", None),
        ("log_level", ["info"]),
    ],
)
def test_values_of_another_kind_are_refused(name, value):
    """Also in code, without a file or variable: no value is converted from another type."""
    with pytest.raises(SettingsInvalid) as caught:
        Settings(**{name: value})
    assert [problem.name for problem in caught.value.problems] == [name]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"drain_s = \n", "line 1"),
        (b"drain_s = 1\ndrain_s = 2\n", "line 2"),
        (b"[server\n", "line 1"),
        (b"drain_s = '\xff'", "can't decode byte 0xff"),
    ],
)
def test_a_file_that_is_no_toml_is_refused_with_the_reason(tmp_path, text, reason):
    """The parser's line number is kept in the error."""
    path = tmp_path / "routing.toml"
    path.write_bytes(text)
    found = problems(config_file=path)
    assert found[""].startswith(f'configuration file "{path}" is not valid TOML: ')
    assert reason in found[""]


def test_a_file_that_is_not_there_is_refused(tmp_path):
    """Starting with other settings than the file's would be worse."""
    path = tmp_path / "routing.toml"
    assert problems(config_file=path) == {
        "": f'configuration file "{path}": No such file or directory; check path and permissions'
    }
    assert "Is a directory" in problems(config_file=tmp_path)[""]


def test_a_file_that_is_far_too_long_is_refused(config_file):
    """Probably a log or a database was named by mistake."""
    line = "# filler\n"
    path = config_file(line * (CONFIG_BYTES_MAX // len(line) + 1))
    assert "longer than" in problems(config_file=path)[""]


def test_an_unknown_key_in_the_file_is_refused_and_the_known_one_named(config_file):
    """Otherwise a mistyped key would silently leave its setting at the default."""
    path = config_file("drain-s = 1\nlistne = 'x'\nentirely_else = 1\n[server]\nlisten = 'x'\n")
    found = problems(config_file=path)
    assert found["drain-s"].endswith('has the unknown key "drain-s"; did you mean drain_s?')
    assert found["listne"].endswith("did you mean listen?")
    assert "; known keys: admin_listen, agents, audit_seals_file, " in found["entirely_else"]
    assert "server" in found


def test_an_unknown_variable_is_a_warning_with_the_known_one_named():
    """It may belong to another program, so it is only a warning."""
    environ = {
        "AGENT_ROUTING_LISTENS": "x",
        "AGENT_ROUTING_TARGET": "127.0.0.1:1",
        "AGENT_ROUTING_CONFIG": "",
        "OTHER": "x",
    }
    (warning,) = resolve_settings({}, environ).warnings
    assert warning.name == "AGENT_ROUTING_LISTENS"
    assert warning.message.endswith("; did you mean AGENT_ROUTING_LISTEN?")


@pytest.mark.parametrize(
    "listen", ["0.0.0.0:50051", "[::]:50051", "10.0.0.5:1", "example.com:80", "localhost.evil:1"]
)
def test_others_are_let_in_only_by_intent(listen):
    """Without sign-in, any caller that reaches the port can be any user."""
    found = problems(flags={"listen": listen})
    assert found["listen"].startswith(f'listen is "{listen}" (flag --listen), which others can')
    assert "--insecure" in found["listen"]
    with pytest.raises(SettingsInvalid, match="others can reach"):
        Settings(listen=listen)
    assert Settings(listen=listen, insecure=True).listen == listen


@pytest.mark.parametrize(
    "listen", ["127.0.0.1:0", "127.8.8.8:1", "localhost:65535", "[::1]:50051", "unix:/tmp/x.sock"]
)
def test_this_machine_alone_needs_no_intent(listen):
    """Addresses of this machine are as safe as the machine."""
    assert str(Settings(listen=listen).listen_address) == listen


@pytest.mark.parametrize(
    "listen",
    [
        "localhost",
        "localhost:",
        ":50051",
        "localhost:65536",
        "localhost:99999999999",
        "::1:50051",
        "[nonsense]:1",
        "[::1]",
        "http://localhost:1",
        "local host:1",
        "unix:",
        "unix:" + "a" * 104,
        "127.0.0.1:٣",
        "",
    ],
)
def test_an_address_that_is_none_is_refused(listen):
    """The error shows the format, instead of gRPC's own message."""
    with pytest.raises(SettingsInvalid, match="give "):
        Settings(listen=listen)


def test_explaining_names_every_setting_and_hides_the_password():
    """Explanations are often pasted into tickets."""
    store = "postgres://ana:secret@db/routing"
    explained = resolve_settings({}, {"AGENT_ROUTING_STORE": store}).explain()
    assert [line.name for line in explained] == list(SETTINGS)
    assert all(line.help for line in explained)
    (shown,) = [line for line in explained if line.name == "store"]
    assert shown.value == "postgres://…@db/routing"
    assert shown.source == "environment AGENT_ROUTING_STORE"


def test_a_refusal_hides_the_password_too():
    """Errors go to logs and screens."""
    found = problems(flags={"store": "postgres://ana:secret@db/\n"})
    assert "secret" not in found["store"]


def test_a_long_value_is_cut_in_the_refusal():
    """Probably a file's content was given instead of its name."""
    assert len(problems(flags={"listen": "x" * 10_000})["listen"]) < 500
