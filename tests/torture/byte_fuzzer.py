"""Random bytes for every RPC, by atheris, which continues from inputs that reach new code.

python -m tests.torture.byte_fuzzer --runs 10000 --seed 7 --registry agents.yaml --out v.json

Owns a fuzzer's process, which ends after its runs. The first two bytes of an input choose the RPC
and the rest is the request, so that what is found for one RPC is tried on the others too.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import json
import logging
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import atheris

with atheris.instrument_imports(include=["routing_service", "agent_routing"]):
    from tests.torture.fuzzing import WEIGHTED_PATHS, Verdicts, seeds
    from tests.torture.in_process import InProcess

import structlog

PATH_BYTES: Final = 2

QUIET_S: Final = 240
"""How often the fuzzer prints where it is: a test that was ended then says why."""

RENEWED_EVERY: Final = 4_000
"""Inputs after which the server is a new one: a session with thousands of turns is slow to list."""

INPUT_BYTES_MAX: Final = 2_048


def main() -> None:
    """Fuzz as the arguments say; the verdicts are written before the last input returns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--registry", required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    faulthandler.dump_traceback_later(QUIET_S, repeat=True)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with TemporaryDirectory() as corpus:
        for number, (path, data) in enumerate(seeds()):
            place = WEIGHTED_PATHS.index(path).to_bytes(PATH_BYTES, "big")
            (Path(corpus) / str(number)).write_bytes(place + data)
        target = Target(given.registry, given.runs, given.out)
        flags = (
            f"-atheris_runs={given.runs}",
            f"-seed={given.seed}",
            f"-max_len={INPUT_BYTES_MAX}",
            # The output names the failing input, so no file is left in the sources.
            f"-artifact_prefix={corpus}/",
            "-timeout=120",
            "-rss_limit_mb=4096",
            "-verbosity=0",
            "-print_final_stats=0",
        )
        atheris.Setup([sys.argv[0], *flags, corpus], target)
        atheris.Fuzz()


class Target:
    """Sends each input to a server, which is replaced now and then."""

    def __init__(self, registry: str, runs: int, out: Path) -> None:
        self._registry = registry
        self._runs = runs
        self._out = out
        self._loop = asyncio.new_event_loop()
        self._verdicts = Verdicts()
        self._server: InProcess | None = None

    def __call__(self, data: bytes) -> None:
        """Handle one input."""
        if self._verdicts.inputs % RENEWED_EVERY == 0:
            self._loop.run_until_complete(self._renew())
        assert self._server is not None
        place = int.from_bytes(data[:PATH_BYTES], "big") % len(WEIGHTED_PATHS)
        path, request = WEIGHTED_PATHS[place], data[PATH_BYTES:]
        answer = self._loop.run_until_complete(self._server.send(path, request))
        self._verdicts.take(path, request, answer)
        if self._verdicts.inputs == self._runs:
            self._loop.run_until_complete(self._end())
            self._write()

    async def _renew(self) -> None:
        await self._end()
        self._server = await InProcess.start(self._registry)
        for path, data in seeds():
            await self._server.send(path, data)

    async def _end(self) -> None:
        if self._server is None:
            return
        self._verdicts.problems += [f"failed: {error!r}" for error in self._server.failures]
        await self._server.stop()
        self._server = None

    def _write(self) -> None:
        verdicts = self._verdicts
        made = {
            "codes": verdicts.codes,
            "methods": verdicts.methods,
            "problems": verdicts.problems,
        }
        self._out.write_text(json.dumps(made), "utf-8")


if __name__ == "__main__":
    main()
