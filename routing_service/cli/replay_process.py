"""The process of a replay: python -m routing_service.cli.replay_process, started by a server.

Rule: it ends with its server, takes what the server leaves of the processor, and writes no text of
a conversation anywhere but to the server.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import pickle
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

import structlog

from routing_service.core.registry import Registry
from routing_service.registry.file import RegistryFileError
from routing_service.replay.what_if import WhatIfSide, play_conversation
from routing_service.rpc.admin.replay_frames import (
    CandidateRefused,
    CandidateTaken,
    Conversation,
    FromProcess,
    ProcessFailed,
    ReplayOrder,
    frame_of,
    from_server,
    read_frame,
)
from routing_service.server.bounds import DEFAULT_BOUNDS
from routing_service.server.parts import make_topic_judge, read_registry
from routing_service.settings.settings import Settings
from routing_service.telemetry.call_log import configure_logging
from routing_service.topics.detector_plugin import load_shipped_model
from routing_service.topics.topic_detector import TopicModel

NICENESS: Final = 19
"""The least that a process can want of the processor."""

DETECTOR_LIMIT_S: Final = 10.0
"""Of a verdict: no user waits, and a late one would be another decision than a server's."""

_PIPE_BYTES_MAX: Final = 1024 * 1024

_PR_SET_PDEATHSIG: Final = 1
_SIGKILL: Final = 9

_log = structlog.get_logger(__name__)


def main() -> None:
    """Run the process; end it with code 0 when the server has closed the pipe."""
    _stay_behind()
    # Without the messages of errors, which could quote conversations. The server logs the lines.
    configure_logging("error", "json")
    with suppress(AttributeError):  # Windows.
        # The server takes its signals in a thread, and keeps them from all others.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # What other code prints, such as a log, would be read as a frame.
    pipe = os.dup(1)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    with os.fdopen(pipe, "wb") as answers:
        asyncio.run(_run(answers))
    # Threads of topic detection need no end of their own.
    os._exit(0)


def _stay_behind() -> None:
    """Give way to all other work, and end with the server even if it is killed."""
    with suppress(OSError, AttributeError):
        os.nice(NICENESS)
    with suppress(ImportError, OSError, AttributeError):
        import ctypes  # noqa: PLC0415 - only here

        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL)


def _limit_memory(bytes_max: int) -> None:
    """Have allocations beyond the limit fail, and no picture of the memory be written."""
    with suppress(ImportError, OSError, ValueError):
        import resource  # noqa: PLC0415 - not on Windows

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (bytes_max, bytes_max))


async def _run(answers: BinaryIO) -> None:
    """Take the order, then play conversations until the pipe is closed."""
    reader = asyncio.StreamReader(limit=_PIPE_BYTES_MAX)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    order = from_server.decode(await read_frame(reader))
    assert isinstance(order, ReplayOrder)
    _limit_memory(order.memory_bytes_max)
    try:
        await _obey(order, reader, answers)
    except MemoryError:
        limit = order.memory_bytes_max // 2**20
        why = f"it needed more than {limit} MiB of memory; choose a shorter period"
        _send(answers, ProcessFailed(why))
    except Exception as error:  # noqa: BLE001 - its message could hold texts, which stay here
        _log.exception("replay_failed")
        _send(answers, ProcessFailed(f"it failed by {type(error).__name__} at {_place_of(error)}"))


async def _obey(order: ReplayOrder, reader: asyncio.StreamReader, answers: BinaryIO) -> None:
    """Read the candidate, and play what comes."""
    try:
        sides = _sides(order)
    except RegistryFileError as error:
        problems = [(p.line, p.column, p.path, p.message, p.remedy) for p in error.problems]
        _send(answers, CandidateRefused(problems))
        return
    except (MemoryError, RecursionError) as error:
        why = f"the candidate is too large to be read ({type(error).__name__})"
        _send(answers, ProcessFailed(why))
        return
    _send(answers, CandidateTaken(sides[1].registry.version))
    while data := await read_frame(reader):
        conversation = from_server.decode(data)
        assert isinstance(conversation, Conversation)
        _send(answers, await play_conversation(conversation, *sides))


def _place_of(error: BaseException) -> str:
    """Return where an error was raised: file and line."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "an unknown place"
    return f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"


def _sides(order: ReplayOrder) -> tuple[WhatIfSide, WhatIfSide]:
    """Make both sides, ready to judge topics. Raises RegistryFileError."""
    settings = Settings(**order.settings)  # type: ignore[arg-type]
    candidate = read_registry(settings, order.candidate).registry
    # Made by the server that sent it, over a pipe that only the two have.
    current: Registry = pickle.loads(order.registry)  # noqa: S301
    return _side(settings, current), _side(settings, candidate)


def _side(settings: Settings, registry: Registry) -> WhatIfSide:
    # A judge costs seconds and money a message: unsure ones go to the supervisor here.
    without = dataclasses.replace(settings, topic_judge="")
    topics = make_topic_judge(without, _patient_model, DEFAULT_BOUNDS)
    topics.prepare(registry)
    topics.in_force(registry)
    return WhatIfSide(registry, topics)


def _patient_model() -> TopicModel:
    """Load the model that ships. All messages are judged alike, from the first one on."""
    return load_shipped_model(waits=True, limit_s=DETECTOR_LIMIT_S)


def _send(answers: BinaryIO, message: FromProcess) -> None:
    """Send a message. A server that does not read makes this process wait."""
    try:
        answers.write(frame_of(message))
        answers.flush()
    except BrokenPipeError:
        os._exit(0)  # The server has ended, or has cancelled the replay.


if __name__ == "__main__":
    main()
