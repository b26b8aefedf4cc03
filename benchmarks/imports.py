"""Importing the Python client, next to importing gRPC, in processor time.

The byte code of all of it is kept in a folder of this run, so both are measured as installed
packages are: without compiling.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.figure import Figure, Scale

ROOT: Final = Path(__file__).parent.parent

OVER_GRPC_MS_MOST: Final = 40.0

PROGRAMS: Final[Mapping[str, str]] = {
    "nothing": "",
    "grpc": "import grpc",
    "client": "import agent_routing; agent_routing.Client; agent_routing.AsyncClient",
    "client made": "import agent_routing; agent_routing.Client('127.0.0.1:50051')",
}
"""The package imports a name at its first use, so both clients are named. Making one also imports
protobuf and the messages."""


def measure(scale: Scale) -> list[Figure]:
    """Return import_client_ms, grpc_import_ms, and what the client adds to gRPC's import."""
    rounds = _rounds(scale.starts * 2)
    taken_ms = {name: statistics.median(values) for name, values in rounds.items()}
    grpc_ms = taken_ms["grpc"] - taken_ms["nothing"]
    client_ms = taken_ms["client"] - taken_ms["nothing"]
    made_ms = taken_ms["client made"] - taken_ms["nothing"]
    return [
        Figure(
            "import_client_ms",
            client_ms,
            "ms",
            grpc_ms + OVER_GRPC_MS_MOST,
            is_most=True,
            rounds={f"python and {name} ms": values for name, values in rounds.items()},
            beside={"with a client made ms": round(made_ms, 1)},
        ),
        Figure("grpc_import_ms", grpc_ms, "ms"),
        Figure("import_client_over_grpc", (client_ms - grpc_ms) / grpc_ms, "of gRPC's import"),
        Figure("client_made_over_grpc", (made_ms - grpc_ms) / grpc_ms, "of gRPC's import"),
    ]


def _rounds(count: int) -> dict[str, list[float]]:
    """Run the programs in turn; return the processor time of each run in milliseconds."""
    taken: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for number in range(count + 1):
            for name, program in PROGRAMS.items():
                taken_ms = _run_ms(program, environment)
                if number:  # The first compiles.
                    taken[name].append(taken_ms)
    return taken


def _run_ms(program: str, environment: Mapping[str, str]) -> float:
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport time; print(time.process_time())"],
        check=True,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    return float(done.stdout) * 1e3
