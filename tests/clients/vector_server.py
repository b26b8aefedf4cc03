"""A real server for the scenario vectors; the tests of every language start and disturb it.

    python tests/clients/vector_server.py

starts `agent-routing serve` with the vectors' registry and a store in memory, and a relay in front
of it. It prints one line of JSON, {"address": "127.0.0.1:40001"}, once it answers, and ends when
its input ends. It executes commands from its input, one per line, and answers each with "ok WORD"
when it is done:

    away          connections are cut, and new ones too, as if there were no server
    back          new connections are served again, and nothing is lost any longer
    cut           connections are cut; new ones are served
    hang          connections stay, and nothing passes any longer, as behind a dead network
    lose-request  the next call is cut before the server sees it; once
    lose-answer   the next call is executed, and cut before its answer arrives; once
    refuse-N      the next N calls are refused before the server reads them (REFUSED_STREAM)
    reset-N       the next N calls are reset, as by a server that has too many (CANCEL)
    serve-NAME    new connections reach a server of the example NAME, until "back"; it is started
                  when it is asked for first

Owns the relay, which reads only the headers of HTTP/2 frames. It uses only the standard library, so
that any Python that has the service can run it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
REGISTRY = ROOT / "tests" / "clients" / "vectors" / "registry.yaml"
EXAMPLES = ROOT / "routing_service" / "examples"
SERVE = "serve-"

# HTTP/2 (RFC 9113): the first bytes of a client, and the header of every frame: three bytes of
# length, one of type.
PREFACE_BYTES = 24
HEAD_BYTES = 9
LENGTH_BYTES = 3
TYPE_AT = 3
STREAM_AT = 5
HEADERS_FRAME = 0x1
RST_STREAM_FRAME = 0x3
REFUSALS = {"refuse": 0x7, "reset": 0x8}
CANCEL = 0x8

Side = Literal["request", "answer"]


class Relay:
    """Forwards connections to the server, unless a command says otherwise."""

    def __init__(self, port: int) -> None:
        self._port = self._own_port = port
        self._is_away = False
        self._hangs = False
        self._lose: Side | None = None
        self._refuse = 0
        self._refusal = 0
        self._writers: set[asyncio.StreamWriter] = set()

    def obey(self, word: str) -> None:
        """Execute a command. Raises KeyError for an unknown one."""
        name, _, count = word.rpartition("-")
        if name in REFUSALS:
            self._refuse, self._refusal = int(count), REFUSALS[name]
            return
        {
            "away": self._go_away,
            "back": self._come_back,
            "cut": self._cut,
            "hang": self._hang,
            "lose-request": lambda: self._lose_next("request"),
            "lose-answer": lambda: self._lose_next("answer"),
        }[word]()

    def _go_away(self) -> None:
        self._is_away = True
        self._cut()

    def _hang(self) -> None:
        self._hangs = True

    def _come_back(self) -> None:
        if self._hangs:
            # They have lost bytes.
            self._hangs = False
            self._cut()
        self._is_away = False
        self._lose = None
        self._refuse = 0
        if self._port != self._own_port:
            self.lead_to(self._own_port)

    def lead_to(self, port: int) -> None:
        """Forward to another server; connections to the present one are cut."""
        self._port = port
        self._cut()

    def _lose_next(self, side: Side) -> None:
        self._lose = side

    def _cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection in both directions, until either side ends it."""
        if self._is_away:
            writer.transport.abort()
            return
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._port)
        pair = {writer, to_writer}
        greeted = asyncio.Event()
        self._writers |= pair
        try:
            await asyncio.wait(
                [
                    asyncio.ensure_future(
                        self._pass_on(reader, to_writer, "request", pair, greeted)
                    ),
                    asyncio.ensure_future(
                        self._pass_on(to_reader, writer, "answer", pair, greeted)
                    ),
                ]
            )
        finally:
            self._writers -= pair

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        side: Side,
        pair: set[asyncio.StreamWriter],
        greeted: asyncio.Event,
    ) -> None:
        refused: set[bytes] = set()
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            if side == "request":
                writer.write(await reader.readexactly(PREFACE_BYTES))
            while not writer.is_closing():
                head = await reader.readexactly(HEAD_BYTES)
                body = await reader.readexactly(int.from_bytes(head[:LENGTH_BYTES]))
                if head[TYPE_AT] == HEADERS_FRAME and self._lose == side:
                    self._lose = None
                    break
                stream = head[STREAM_AT:]
                if self._hangs or stream in refused:
                    continue
                writer.write(head + body)
                if side == "answer":
                    greeted.set()
                if head[TYPE_AT] == HEADERS_FRAME and side == "request" and self._refuse:
                    # The server has seen the head, which both compress with what came before.
                    self._refuse -= 1
                    refused.add(stream)
                    writer.write(reset(stream, CANCEL))
                    # The first frame of a server is its settings.
                    await greeted.wait()
                    (pair - {writer}).pop().write(reset(stream, self._refusal))
                await writer.drain()
        # One side has ended, or was to be lost: the other ends with it.
        for each in pair:
            each.transport.abort()


def reset(stream: bytes, code: int) -> bytes:
    """Return the frame that resets a stream."""
    return b"\0\0\x04" + bytes([RST_STREAM_FRAME, 0]) + stream + code.to_bytes(4)


async def start_service(registry: Path) -> tuple[asyncio.subprocess.Process, int]:
    """Start the service on a free port; return its process and port. Its log goes to stderr."""
    command = Path(sys.executable).parent / "agent-routing"
    process = await asyncio.create_subprocess_exec(
        str(command),
        *("serve", "--listen", "127.0.0.1:0", "--store", "memory:"),
        *("--agents", str(registry), "--log-level", "error"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        # The caller's environment must not change a vector's result.
        env={name: value for name, value in os.environ.items() if "AGENT_ROUTING" not in name},
    )
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    if not line.startswith("serving on "):
        raise SystemExit(f"{command} does not serve: {line!r}; its log is above")
    return process, int(line.strip().rpartition(":")[2])


def say(line: str) -> None:
    """Print a line for which the starting process waits."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def main() -> None:
    """Serve until the input ends."""
    process, port = await start_service(REGISTRY)
    processes = [process]
    example_ports: dict[str, int] = {}
    try:
        relay = Relay(port)
        listener = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
        host, own_port = listener.sockets[0].getsockname()[:2]
        words = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(words), sys.stdin
        )
        say(json.dumps({"address": f"{host}:{own_port}"}))
        while line := await words.readline():
            word = line.decode().strip()
            if word.startswith(SERVE):
                name = word.removeprefix(SERVE)
                if name not in example_ports:
                    process, example_ports[name] = await start_service(EXAMPLES / f"{name}.yaml")
                    processes.append(process)
                relay.lead_to(example_ports[name])
            else:
                relay.obey(word)
            say(f"ok {word}")
        listener.close()
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                # In memory: nothing must be saved, and nothing waits.
                process.send_signal(signal.SIGKILL)
            await process.wait()


if __name__ == "__main__":
    asyncio.run(main())
