"""A real server in its own process, which can be killed and restarted on the same store.

It runs in the project's environment, not in the framework's, as it would for users.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
STOP_S_MAX = 20

COMMAND = os.environ.get("INTEGRATIONS_SERVER", str(ROOT / ".venv/bin/agent-routing"))

# The tax example's agents, a lesson that its assessor follows by itself, and those that no program
# of the tests has: elsewhere is of another program, and people sit at the help desk.
REGISTRY = """
api_version: agent_routing/v1
version: integrations-1
supervisor: coordinator
default_locale: en
limits: {hops_per_message: 3}
agents:
  - {id: coordinator, aliases: [Tax Coordinator], name: Coordinator}
  - id: vat
    aliases: [VAT Specialist, iva]
    name: VAT
    description: {en: How much VAT is due., es: Cuánto IVA hay que pagar.}
    user_selectable: true
  - {id: invoices, aliases: [Invoice Desk], name: Invoices, description: Where invoices stand.}
  - {id: payroll, name: Payroll, description: Payslips., requires: ["plan:premium"]}
  - id: lesson
    name: Lesson
    description: Teaches fractions.
    on_complete: assessor
    on_complete_message: Great work!
  - {id: assessor, name: Assessor, description: Asks what was learnt.}
  - {id: clerk, name: Clerk, delivery: inbox}
  - {id: elsewhere, name: Elsewhere, description: Old files., user_selectable: true}
  - {id: desk, aliases: [Help desk], name: Desk, description: People who help., kind: human}
"""


class TaxServer:
    """The server, its store and its port, which stay the same over restarts."""

    def __init__(self, folder: Path, registry: str = REGISTRY) -> None:
        self._folder = folder
        self._agents = folder / "agents.yaml"
        self._agents.write_text(registry, "utf-8")
        self._process: subprocess.Popen[str] | None = None
        self.address = "127.0.0.1:0"

    def start(self) -> None:
        """Start the server, the first time on a free port, and wait until it answers."""
        command = [COMMAND, "serve", "--listen", self.address, "--agents", str(self._agents)]
        command += ["--store", f"sqlite:///{self._folder}/routing.db"]
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True
            )
        line = self._process.stdout.readline()
        assert line.startswith("serving on "), (self._folder / "server.log").read_text()
        self.address = line.removeprefix("serving on ").strip()

    def kill(self) -> None:
        """Kill the server without a shutdown."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate(timeout=STOP_S_MAX)
            self._process = None
