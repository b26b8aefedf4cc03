"""The check of ``agent-routing doctor`` on the extras: that what the settings ask for is installed.

Drivers of stores are found by the check of the store, which needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Final

from routing_service.cli.doctor_checks import Finding
from routing_service.settings.settings import Settings
from routing_service.telemetry.otlp import MODULES as OTEL_MODULES

WEB_MODULES: Final = ("connectrpc", "h11", "protobuf", "starlette", "uvicorn")

_NEEDS: Final[tuple[tuple[str, Callable[[Settings], bool], str, tuple[str, ...]], ...]] = (
    ("traces", lambda it: it.traces != "off", "otel", OTEL_MODULES),
    ("metrics", lambda it: it.metrics != "off", "otel", OTEL_MODULES),
    ("web_listen", lambda it: bool(it.web_listen), "web", WEB_MODULES),
    ("console_listen", lambda it: bool(it.console_listen), "web", WEB_MODULES),
    ("sign_in", lambda it: "oidc" in it.sign_in, "oidc", ("jwt", "cryptography")),
    ("sign_in", lambda it: "mtls" in it.sign_in, "mtls", ("cryptography",)),
)
"""Setting, whether it is used, the extra that it needs, and modules that this extra installs."""


def extras(settings: Settings) -> Iterator[Finding]:
    """Check that the settings' extras are installed; the server would refuse to start."""
    used = [row for row in _NEEDS if row[1](settings)]
    for name, _, extra, modules in used:
        missing = [module for module in modules if not is_installed(module)]
        value = getattr(settings, name)
        if missing:
            yield Finding(
                "extras",
                "problem",
                f'{name} is "{value}", which needs the extra {extra}; not installed: '
                f"{', '.join(missing)}",
                f'pip install "agent-routing-service[{extra}]"',
            )
        else:
            yield Finding("extras", "ok", f"{extra}, for {name}")


def is_installed(module: str) -> bool:
    """Return whether a module can be found; it is not imported."""
    try:
        return find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):
        # find_spec imports the packages above the module, which may be missing.
        return False
