"""The command agent-routing in this environment: its libraries come from the project's own.

python -m tests.integrations.service_command COMMAND...

The framework's environment has the client with its extra, and not what else the service needs.
"""

import sys

from tests.integrations.tax_server import COMMAND, ROOT


def main() -> None:
    """Run the command."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    environment = (ROOT / COMMAND).parent.parent
    # At the end: what is installed here is used first.
    sys.path.append(str(environment / "lib" / version / "site-packages"))
    sys.path.append(str(ROOT))
    from routing_service.cli import main as command  # noqa: PLC0415 - it is found now

    command()


if __name__ == "__main__":
    main()
