"""``agent-routing doctor`` with a server's flags: calls that server, finds missing extras."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from routing_service.cli.credentials import Credentials
from routing_service.cli.doctor_extras import extras
from routing_service.cli.doctor_target import NotDescribed, described_server
from routing_service.examples import EXAMPLES
from routing_service.settings.settings import Settings
from routing_service.telemetry.otlp import has_opentelemetry

COMMAND = str(Path(sys.executable).with_name("agent-routing"))
TAX = str(EXAMPLES["tax"].registry_path)

# As if no extra were installed: these packages, and all that is in them, are not found.
WITHOUT = """\
import sys
from importlib.abc import MetaPathFinder
class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"opentelemetry", "connectrpc", "jwt"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from routing_service.cli import main
main()
"""


def free_ports(count: int) -> list[int]:
    """Return ports that nothing listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextmanager
def served(*flags: str):
    """Run a server of its own process until the block ends."""
    with subprocess.Popen(
        [COMMAND, "serve", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout.readline().startswith("serving on")
            yield
        finally:
            process.terminate()


def doctor(*argv: str) -> tuple[int, list[dict[str, str]]]:
    """Run the command without --target: its exit code and findings."""
    ended = subprocess.run(
        [COMMAND, *argv, "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    return ended.returncode, json.loads(ended.stdout)["findings"]


def test_doctor_calls_the_server_that_its_flags_describe():
    """At the operators' address: at the main one it could not see registry, release and clock."""
    port, admin = free_ports(2)
    flags = [
        *("--agents", TAX, "--store", "memory:", "--listen", f"0.0.0.0:{port}", "--insecure"),
        *("--admin-listen", f"127.0.0.1:{admin}"),
    ]
    with served(*flags):
        code, found = doctor("doctor", *flags)
    assert code == 0
    said = [each["said"] for each in found]
    assert f"127.0.0.1:{admin} is alive" in said
    assert f"127.0.0.1:{admin} is ready" in said
    assert any(each["what"] == "release" and each["level"] == "ok" for each in found)


def test_doctor_calls_a_server_with_tls_by_its_own_certificate(tmp_path):
    """The certificate's names need not include the address that the server listens on."""
    pytest.importorskip("cryptography")
    from tests.rpc.tls_files import Authority  # noqa: PLC0415 - see above

    files = Authority(tmp_path).sign("server")
    (port,) = free_ports(1)
    flags = [
        *("--agents", TAX, "--store", "memory:", "--listen", f"127.0.0.1:{port}"),
        *("--tls-certificate-file", str(files.certificate), "--tls-key-file", str(files.key)),
    ]
    with served(*flags):
        code, found = doctor("doctor", *flags)
    assert (code, [each for each in found if each["level"] == "problem"]) == (0, [])
    assert f"127.0.0.1:{port} is ready" in [each["said"] for each in found]


@pytest.mark.parametrize(
    ("given", "target"),
    [
        ({"listen": "127.0.0.1:7001"}, "127.0.0.1:7001"),
        ({"listen": "0.0.0.0:7001", "insecure": True}, "127.0.0.1:50052"),
        ({"listen": "[::]:7001", "insecure": True, "admin_listen": "main"}, "[::1]:7001"),
        ({"listen": "unix:/run/x", "admin_listen": "off"}, "unix:/run/x"),
    ],
)
def test_address_for_operators_comes_first(given, target):
    """An address that stands for all of a machine's is called on the loopback."""
    assert described_server(Settings(agents=TAX, **given), Credentials()).target == target


@pytest.mark.parametrize(
    ("given", "why", "remedy"),
    [
        ({"listen": "127.0.0.1:0"}, "the system choose", "--target"),
        (
            {
                "sign_in": "mtls",
                "callers_file": "c.toml",
                "tls_certificate_file": "a.pem",
                "tls_key_file": "a.key",
                "tls_client_authority_file": "ca.pem",
            },
            "client certificate",
            "--tls-cert",
        ),
    ],
)
def test_server_that_cannot_be_called_is_said(given, why, remedy):
    """Instead of "no server answers", which would be wrong."""
    with pytest.raises(NotDescribed, match=why) as raised:
        described_server(Settings(agents=TAX, **given), Credentials())
    assert remedy in raised.value.remedy


@pytest.mark.parametrize("setting", ["traces", "metrics"])
def test_server_without_an_extra_names_it(setting):
    """A missing package is the first thing that a new user meets: one line, and no traceback."""
    ended = subprocess.run(
        [
            *(sys.executable, "-c", WITHOUT, "serve", f"--{setting}", "otlp"),
            *("--agents", TAX, "--store", "memory:", "--listen", "127.0.0.1:0"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert ended.returncode == 2
    assert ended.stderr.splitlines() == [
        f'error: {setting} "otlp" needs OpenTelemetry: pip install "agent-routing-service[otel]"'
    ]


def test_doctor_finds_each_extra_that_is_not_installed():
    """With the command that installs it; the server would refuse to start."""
    ended = subprocess.run(
        [
            *(sys.executable, "-c", WITHOUT, "doctor", "--json", "--agents", TAX),
            *("--store", "memory:", "--traces", "otlp", "--metrics", "otlp"),
            *("--web-listen", "127.0.0.1:0"),
            *("--sign-in", "oidc", "--oidc-issuer", "https://id.test", "--oidc-audience", "chat"),
            *("--listen", "127.0.0.1:0"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert ended.returncode == 1, ended.stderr
    found = [each for each in json.loads(ended.stdout)["findings"] if each["what"] == "extras"]
    assert [each["level"] for each in found] == ["problem"] * 4
    assert [each["remedy"] for each in found] == [
        f'pip install "agent-routing-service[{extra}]"' for extra in ("otel", "otel", "web", "oidc")
    ]
    assert "connectrpc" in found[2]["said"]


def test_extras_that_are_installed_are_good():
    """Silence could be misread."""
    assert has_opentelemetry()
    found = list(extras(Settings(agents=TAX, traces="otlp", web_listen="127.0.0.1:0")))
    assert [(each.level, each.said) for each in found] == [
        ("ok", "otel, for traces"),
        ("ok", "web, for web_listen"),
    ]
