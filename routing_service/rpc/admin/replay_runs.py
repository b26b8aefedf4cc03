"""Replays while they run and afterwards: their processes, what they found, and who waits for it.

Rule: a replay costs the server little. Its decisions are made in a process of its own, which is
killed when the replay is cancelled, when it takes too long, and when the server stops.
"""

from __future__ import annotations

import asyncio
import enum
import os
import pickle
import socket
import subprocess
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Final

import structlog

from routing_service.core.errors import Reason, RoutingError
from routing_service.core.registry import Registry
from routing_service.ids import new_uuid7
from routing_service.registry.file import RegistryFileError
from routing_service.registry.yaml_document import FileProblem
from routing_service.rpc.admin.replay_frames import (
    CandidateRefused,
    CandidateTaken,
    Figures,
    FoundTurn,
    Played,
    ProcessFailed,
    ReplayOrder,
    frame_of,
    from_process,
    read_frame,
)
from routing_service.rpc.admin.replay_sources import ReplaySources, Wanted
from routing_service.settings.setting_forms import VARIABLE_PREFIX
from routing_service.storage.store import SessionKey, StoreError

PROCESS_MODULE: Final = "routing_service.cli.replay_process"

RUNNING_MAX: Final = 2
"""Replays of all tenants at a time on a server: each takes what is left of a core."""

KEPT_MAX: Final = 16
"""Tenants whose latest replay is kept after its end."""

TURNS_KEPT_MAX: Final = 20_000
"""Turns that differ, of one replay, that are kept and shown: 9.4 MiB. The rest is counted."""

AHEAD_MAX: Final = 4
"""Conversations that are sent ahead of their answers, so that the process never waits."""

SENT = "the registry in the request"

LAST_LINES_BYTES_MAX: Final = 4096
"""Of what a process wrote to stderr, for the log: a trace of twenty lines."""

_BOOT: Final = """
import runpy, sys
sys.path[:] = sys.argv[2:]
runpy.run_module(sys.argv[1], run_name="__main__", alter_sys=True)
"""
"""Runs a module with the server's import path. -I keeps variables and the working folder from
changing what is imported."""

_KILLED: Final = -9

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ReplayBounds:
    """Bounds of a process. seconds_max: from its start to its end."""

    memory_bytes_max: int = 1024 * 1024 * 1024
    seconds_max: float = 2 * 3600.0
    """Three hundred conversations of ten messages took 10 s on a busy machine, so ten thousand,
    the most that a replay may have, take minutes."""


class State(enum.IntEnum):
    """What a replay does, as ReplayState of the contract."""

    READING = 1
    PLAYING = 2
    DONE = 3
    CANCELLED = 4
    FAILED = 5

    @property
    def is_end(self) -> bool:
        """Whether it has ended."""
        return self >= State.DONE


@dataclass(slots=True, eq=False)
class Replay:
    """One replay. turns: with the sessions that they are of. Times: microseconds since 1970."""

    replay_id: str
    wanted: Wanted
    current_version: str
    home_agent_id: str
    start_us: int
    candidate_version: str = ""
    state: State = State.READING
    end_us: int = 0
    failure: str = ""
    conversations: int = 0
    played: int = 0
    left_out: int = 0
    messages: int = 0
    turns_changed: int = 0
    is_sample: bool = False
    current: Figures = field(default_factory=Figures)
    candidate: Figures = field(default_factory=Figures)
    effects: Counter[int] = field(default_factory=Counter)
    turns: list[tuple[str, FoundTurn]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set and replaced at each change."""

    def tell(self) -> None:
        """Wake who waits for a change."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class Replays:
    """The replays of one server."""

    def __init__(
        self,
        sources: ReplaySources,
        registry: Callable[[], Registry],
        clock_us: Callable[[], int],
        settings: Mapping[str, str | int | float | bool],
        bounds: ReplayBounds | None = None,
    ) -> None:
        """Start none yet. registry: returns the one in force. settings: for the processes."""
        self._sources = sources
        self._registry = registry
        self._clock_us = clock_us
        self._settings = dict(settings)
        self._bounds = bounds or ReplayBounds()
        self._latest: OrderedDict[str, Replay] = OrderedDict()
        """By tenant."""
        self._tasks: dict[Replay, asyncio.Task[None]] = {}
        """Of those that have not ended."""
        self._processes: set[asyncio.Task[None]] = set()
        """The same, and those whose process has been killed and is not gone yet."""
        self._is_closed = False

    def find(self, tenant: str, replay_id: str) -> Replay:
        """Return a tenant's replay. replay_id: "" = the latest. Raises UNKNOWN_REPLAY."""
        found = self._latest.get(tenant)
        if found is None or replay_id not in ("", found.replay_id):
            named = f'replay "{replay_id[:64]}"' if replay_id else "a replay of this tenant"
            raise RoutingError(
                Reason.UNKNOWN_REPLAY,
                f"{named} is not known to this server; ask the replica that started it, or start "
                "it again",
                metadata={"replay_id": replay_id[:64]},
            )
        return found

    async def start(self, wanted: Wanted, candidate: str) -> Replay:
        """Start a replay; return it once its process has read the candidate.

        Raises RegistryFileError; RoutingError REPLAY_RUNNING, OVERLOADED, SHUTTING_DOWN.
        """
        self._check_room(wanted.tenant)
        registry = self._registry()
        replay = Replay(
            new_uuid7(),
            wanted,
            registry.version,
            registry.home_agent_id,
            self._clock_us(),
        )
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        order = ReplayOrder(
            pickle.dumps(registry), candidate, self._settings, self._bounds.memory_bytes_max
        )
        task = asyncio.create_task(self._run(replay, order, taken), name="replay")
        self._tasks[replay] = task
        self._processes.add(task)
        task.add_done_callback(self._processes.discard)
        try:
            await taken
        except BaseException:
            # Also when the caller's time ran out: it does not know the replay. One that has ended
            # by itself still waits for its process, which a cancellation would leave behind.
            if not replay.state.is_end:
                task.cancel()
            # If both ended at once, the outcome has no reader.
            if taken.done() and not taken.cancelled():
                taken.exception()
            raise
        self._latest[wanted.tenant] = replay
        self._latest.move_to_end(wanted.tenant)
        self._forget_oldest()
        return replay

    async def cancel(self, replay: Replay) -> None:
        """End a replay, and wait for its end. One that has ended stays as it is."""
        task = self._tasks.get(replay)
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.shield(task)

    def drain(self) -> None:
        """Let every replay end, because the server stops."""
        self._is_closed = True
        for replay, task in self._tasks.items():
            if replay.failure:
                continue
            replay.failure = "the server is stopping; start the replay again on another replica"
            task.cancel()

    async def close(self) -> None:
        """Let every replay end, and wait for that."""
        self.drain()
        await asyncio.gather(*self._processes, return_exceptions=True)

    def _check_room(self, tenant: str) -> None:
        if self._is_closed:
            raise RoutingError(
                Reason.SHUTTING_DOWN,
                "the server is shutting down; start the replay on another replica",
                retry_after_s=1.0,
            )
        for replay in self._tasks:
            if replay.wanted.tenant == tenant:
                raise RoutingError(
                    Reason.REPLAY_RUNNING,
                    f'replay "{replay.replay_id}" of this tenant is running; watch it, or cancel '
                    "it first",
                    metadata={"replay_id": replay.replay_id},
                )
        if len(self._tasks) >= RUNNING_MAX:
            raise RoutingError(
                Reason.OVERLOADED,
                f"{RUNNING_MAX} replays of other tenants run on this server; retry later",
                metadata={"limit": "replays"},
                retry_after_s=30.0,
            )

    def _forget_oldest(self) -> None:
        for tenant in list(self._latest):
            if len(self._latest) <= KEPT_MAX:
                return
            if self._latest[tenant].state.is_end:
                del self._latest[tenant]

    async def _run(self, replay: Replay, order: ReplayOrder, taken: asyncio.Future[None]) -> None:
        """Run a replay to its end. taken: gets the outcome of reading the candidate."""
        process = _Process()
        is_lost = False
        try:
            async with asyncio.timeout(self._bounds.seconds_max):
                await process.start()
                await self._take_candidate(process, replay, order)
                if not taken.done():
                    taken.set_result(None)
                await self._play(process, replay)
            replay.state = State.DONE
        except asyncio.CancelledError:
            replay.state = State.FAILED if replay.failure else State.CANCELLED
        except TimeoutError:
            minutes = self._bounds.seconds_max / 60
            _fail(replay, f"it took longer than {minutes:g} minutes; choose a shorter period")
        except RegistryFileError as error:
            _fail(replay, "the candidate was refused")
            if not taken.done():
                taken.set_exception(error)
        except _ProcessLost as lost:
            is_lost = True
            _fail(replay, str(lost))
        except StoreError:
            _fail(replay, "the store cannot be reached or is busy; start the replay again")
        except Exception:  # noqa: BLE001 - a fault here must not leave who waits for the end waiting
            _log.exception("replay_failed", replay_id=replay.replay_id)
            _fail(replay, "it failed by a fault of this server; its log says more")
        finally:
            process.kill()
            self._ended(replay, taken)
            last_lines = await process.ended()
            if is_lost:
                _log.error(
                    "replay_process_failed", replay_id=replay.replay_id, last_lines=last_lines
                )

    def _ended(self, replay: Replay, taken: asyncio.Future[None]) -> None:
        """Tell everyone that a replay has ended."""
        replay.end_us = self._clock_us()
        del self._tasks[replay]
        if not taken.done():
            taken.set_exception(_not_started(replay))
        replay.tell()
        _log.info(
            "replay_ended",
            replay_id=replay.replay_id,
            tenant=replay.wanted.tenant,
            state=replay.state.name,
            conversations=replay.played,
            turns_changed=replay.turns_changed,
            failure=replay.failure,
        )

    async def _take_candidate(self, process: _Process, replay: Replay, order: ReplayOrder) -> None:
        """Have the process read the candidate. Raises RegistryFileError, _ProcessLost."""
        await process.send(frame_of(order))
        match from_process.decode(await process.receive()):
            case CandidateTaken(version=version):
                replay.candidate_version = version
            case CandidateRefused(problems=problems):
                raise RegistryFileError(SENT, tuple(FileProblem(*each) for each in problems))
            case ProcessFailed(why=why):
                raise _ProcessLost(why)
            case Played():
                raise _ProcessLost("its process answered out of order")

    async def _play(self, process: _Process, replay: Replay) -> None:
        """Choose conversations, and have the process play them."""

        def found(count: int) -> None:
            replay.conversations = count
            replay.tell()

        chosen, replay.is_sample = await self._sources.choose(replay.wanted, found)
        replay.conversations = len(chosen)
        replay.state = State.PLAYING
        replay.tell()
        room = asyncio.Semaphore(AHEAD_MAX)
        working = (
            asyncio.create_task(self._receive_all(process, replay, len(chosen), room)),
            asyncio.create_task(self._send_all(process, replay, chosen, room)),
        )
        try:
            await asyncio.wait(working, return_when=asyncio.FIRST_EXCEPTION)
            for each in working:
                if each.done():
                    each.result()
        finally:
            for each in working:
                each.cancel()
            await asyncio.gather(*working, return_exceptions=True)

    async def _send_all(
        self, process: _Process, replay: Replay, chosen: list[str], room: asyncio.Semaphore
    ) -> None:
        for session_id in chosen:
            await room.acquire()
            key = SessionKey(replay.wanted.tenant, session_id)
            conversation = await self._sources.read(key, replay.home_agent_id)
            if conversation is None:
                replay.left_out += 1
                replay.tell()
                room.release()
                continue
            await process.send(frame_of(conversation))
        process.close_input()

    async def _receive_all(
        self, process: _Process, replay: Replay, count: int, room: asyncio.Semaphore
    ) -> None:
        while replay.played + replay.left_out < count:
            data = await process.receive_or_end()
            if not data:
                if replay.played + replay.left_out < count:
                    raise _ProcessLost(await process.why_ended())
                return
            match from_process.decode(data):
                case Played() as answer:
                    _count(replay, answer)
                    room.release()
                    replay.tell()
                case ProcessFailed(why=why):
                    raise _ProcessLost(why)
                case _:
                    raise _ProcessLost("its process answered out of order")


def _count(replay: Replay, answer: Played) -> None:
    """Add what was found in a conversation."""
    if answer.messages:
        replay.played += 1
    else:
        replay.left_out += 1
    replay.messages += answer.messages
    replay.current, replay.candidate = answer.current, answer.candidate
    replay.turns_changed += len(answer.turns)
    replay.effects.update(turn.effect for turn in answer.turns)
    room = TURNS_KEPT_MAX - len(replay.turns)
    replay.turns += [(answer.session_id, turn) for turn in answer.turns[:room]]


def _fail(replay: Replay, why: str) -> None:
    replay.state, replay.failure = State.FAILED, why


def _not_started(replay: Replay) -> RoutingError:
    why = replay.failure or "it was cancelled"
    return RoutingError(
        Reason.OVERLOADED,
        f"the replay could not be started: {why}",
        metadata={"limit": "replays"},
        retry_after_s=5.0,
    )


class _ProcessLost(Exception):
    """The process of a replay cannot go on; the message says why."""


class _Process:
    """The process of one replay."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._last_lines: asyncio.Task[str] | None = None
        self._input: socket.socket | None = None
        self._reader: asyncio.StreamReader | None = None
        self._output: asyncio.ReadTransport | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def start(self) -> None:
        """Start it. Raises _ProcessLost."""
        # A socket, so that the event loop needs no private class to wait for room in it.
        self._input, its = socket.socketpair()
        try:
            # Not the event loop's own way: uvloop forks, and gRPC's handlers of a fork crash the
            # new process where gRPC's threads are busy. This one does not run them. In this thread,
            # because the process ends with the thread that started it.
            self._process = subprocess.Popen(  # noqa: ASYNC220, S603 - milliseconds; our own code
                [sys.executable, "-I", "-c", _BOOT, PROCESS_MODULE, *filter(None, sys.path)],
                stdin=its.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # The variables of the server may have its passwords.
                env={k: v for k, v in os.environ.items() if not k.startswith(VARIABLE_PREFIX)},
                # A Ctrl-C in the terminal reaches the server alone, which then ends it.
                start_new_session=True,
            )
        except OSError as error:
            self._input.close()
            why = error.strerror or type(error).__name__
            raise _ProcessLost(f"its process could not be started: {why}") from error
        finally:
            its.close()
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._last_lines = asyncio.create_task(_last_lines(self._process.stderr))
        self._reader, self._output = await _opened(self._process.stdout)
        _, self._writer = await asyncio.open_unix_connection(sock=self._input)

    async def send(self, frame: bytes) -> None:
        """Send a frame; waits while the process has others to read."""
        # A process that has ended is noticed by who reads its answers. Its pipe is closed then, and
        # uvloop raises RuntimeError for that.
        assert self._writer is not None
        if self._writer.is_closing():
            return
        with suppress(OSError):
            self._writer.write(frame)
            await self._writer.drain()

    def close_input(self) -> None:
        """Let the process end once it has answered what it was sent."""
        assert self._writer is not None
        with suppress(OSError, RuntimeError):  # The process has ended.
            self._writer.write_eof()

    async def receive(self) -> bytes:
        """Return the next frame's message. Raises _ProcessLost."""
        data = await self.receive_or_end()
        if not data:
            raise _ProcessLost(await self.why_ended())
        return data

    async def receive_or_end(self) -> bytes:
        """Return the next frame's message, b"" when the process has ended. Raises _ProcessLost."""
        assert self._reader is not None
        try:
            return await read_frame(self._reader)
        except (ValueError, OSError):
            return b""

    async def why_ended(self) -> str:
        """Say how it ended."""
        assert self._process is not None
        code = await asyncio.to_thread(self._process.wait)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        if code == _KILLED:
            return (
                "its process was killed, as the operating system does when memory runs out; "
                "choose a shorter period, or start it again"
            )
        return f"its process ended with {how}; the server's log says more (replay_process_failed)"

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()

    async def ended(self) -> str:
        """Wait for its end, and close its pipes. Return the last lines that it wrote to stderr."""
        if self._process is None or self._last_lines is None:
            return ""
        await asyncio.to_thread(self._process.wait)
        if self._writer is not None:
            self._writer.close()
            with suppress(OSError):
                await self._writer.wait_closed()
        elif self._input is not None:
            self._input.close()
        if self._output is not None:
            self._output.close()
        elif self._process.stdout is not None:
            self._process.stdout.close()
        return await self._last_lines


async def _last_lines(pipe: IO[bytes]) -> str:
    """Read a pipe to its end; return the last of it."""
    reader, transport = await _opened(pipe)
    last = b""
    while data := await reader.read(LAST_LINES_BYTES_MAX):
        last = (last + data)[-LAST_LINES_BYTES_MAX:]
    transport.close()
    return last.decode("utf-8", "replace")


async def _opened(pipe: IO[bytes]) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    """Return a reader of a pipe, and the transport, which uvloop does not close at the end."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader, transport
