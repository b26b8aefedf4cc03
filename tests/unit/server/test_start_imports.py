"""What a server imports before it serves: every package here is paid for at every start."""

import json
import subprocess
import sys

from benchmarks.service import REGISTRY

SERVE = """
import asyncio, json, sys
from routing_service.server.process import Settings
from routing_service.server.server import RoutingServer

async def main():
    settings = Settings(
        listen="127.0.0.1:0", agents=sys.argv[1], store=sys.argv[2], log_level="error"
    )
    server = await RoutingServer.start(settings)
    modules = sorted(sys.modules)
    await server.stop(0)
    print(json.dumps(modules))

asyncio.run(main())
"""

NEEDED = {
    *("agent_routing", "routing_service"),
    *("google", "grpc", "grpc_channelz", "grpc_health", "grpc_reflection"),
    *("aiosqlite", "cython_runtime", "msgspec", "structlog", "tenacity", "typing_extensions"),
    # The registry file, its schema and its texts.
    *("ruamel", "jsonschema", "jsonschema_specifications", "referencing", "rpds", "attr", "attrs"),
    *("fluent", "babel", "pytz"),
    # structlog imports these for logs on a terminal.
    *("rich", "pygments"),
}
"""The packages that a start needs, without those of Python itself."""

IF_INSTALLED = {
    # jsonschema takes them for its formats, as a developer's environment has them.
    *("arrow", "dateutil", "fqdn", "idna", "isoduration", "jsonpointer", "lark", "regex", "six"),
    *("rfc3339_validator", "rfc3986_validator", "uri_template", "webcolors"),
    # structlog, rich and tenacity look for these.
    *("better_exceptions", "colorama", "exceptiongroup", "tornado", "twisted", "zope"),
}
"""Packages that the needed ones import where they are installed; users' installations lack them."""

MODULES_MOST = 300
"""Modules of the service itself at a start; 258 when this was written."""


def test_a_start_imports_only_what_it_needs(tmp_path):
    """Neither engines that are not used, nor the web, telemetry's exporters, NumPy or a grammar."""
    agents = tmp_path / "agents.yaml"
    agents.write_text(REGISTRY)
    command = [sys.executable, "-c", SERVE, str(agents), f"sqlite:///{tmp_path}/routing.db"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    modules = json.loads(printed.stdout.splitlines()[-1])
    packages = {name.split(".")[0] for name in modules}
    ours = [name for name in modules if name.split(".")[0] == "routing_service"]

    beyond = packages - NEEDED - IF_INSTALLED - sys.stdlib_module_names
    assert {name for name in beyond if not name.startswith("_")} == set()
    assert "rfc3987_syntax" not in packages
    assert len(ours) <= MODULES_MOST, f"{len(ours)} modules of the service"
