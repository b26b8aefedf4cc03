"""Which files, functions and kinds of value a call passes through.

Recorded as `interpreter_steps` counts: from gRPC's bytes to gRPC's bytes, over the store in memory.
Counted are calls of the service's own functions on the loop's thread; what a function written in C
does, such as building a struct, is not seen, but its value is, where it is passed on.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import routing_service
from agent_routing.v1 import routing_service_pb2 as pb
from benchmarks import interpreter_steps
from benchmarks.story import USER_TEXT
from routing_service.ids import new_uuid7

FOLDER: Final = str(Path(routing_service.__file__).parent)


@dataclass(frozen=True, slots=True)
class CallPath:
    """What one call passes through."""

    calls: int
    files: int
    changes: int
    """How often the next function to run is of another file than the one before."""
    kinds: int
    """Classes of the service whose instances were an argument or a result."""


class Recorder:
    """Records the functions of the service that run while an awaitable is awaited."""

    def __init__(self) -> None:
        """Begin with nothing recorded."""
        self.codes: list[CodeType] = []
        self.kinds: set[type] = set()
        self._entered: set[FrameType] = set()

    async def of(self, awaitable: Awaitable[bytes]) -> bytes:
        """Return the awaitable's result."""
        self.codes, self.kinds, self._entered = [], set(), set()
        sys.setprofile(self._profile)
        try:
            return await awaitable
        finally:
            sys.setprofile(None)

    def path(self) -> CallPath:
        """Return the figures of what was recorded last."""
        self._entered.clear()
        files = [code.co_filename for code in self.codes]
        changes = sum(a != b for a, b in itertools.pairwise(files))
        return CallPath(len(files), len(set(files)), changes, len(self.kinds))

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(FOLDER):
            return
        if event == "call":
            # A coroutine that goes on after an await is the same call. Frames are kept, since the
            # place of one that is gone is used again.
            if frame in self._entered:
                return
            self._entered.add(frame)
            self.codes.append(code)
            count = code.co_argcount + code.co_kwonlyargcount
            for name in code.co_varnames[:count]:
                self._note(frame.f_locals.get(name))
        elif event == "return":
            self._note(argument)

    def _note(self, value: object) -> None:
        kind = type(value)
        if kind.__module__.startswith("routing_service."):
            self.kinds.add(kind)


async def record() -> dict[str, CallPath]:
    """Return the paths of a first Route, of a CompleteTurn with a handoff, and of a sticky turn."""
    paths = {}
    async with interpreter_steps.handlers() as (handler, flush):
        recorder, context = Recorder(), interpreter_steps.Context()

        async def call(method: str, message: Any) -> bytes:
            answer = await handler(method)(message.SerializeToString(), context)
            flush()
            return answer

        async def turn(names: list[str]) -> None:
            message = pb.RouteRequest(
                session_id="chat", user_id="ana", text=USER_TEXT, request_id=new_uuid7()
            )
            data = await recorder.of(call("Route", message))
            paths[names[0]] = recorder.path()
            dispatch = pb.RouteResponse.FromString(data).dispatch
            for name in names[1:]:
                answer = interpreter_steps.answer_to(dispatch)
                data = await recorder.of(call("CompleteTurn", answer))
                paths[name] = recorder.path()
                dispatch = pb.CompleteTurnResponse.FromString(data).next

        await turn(["first Route", "CompleteTurn with a handoff", "CompleteTurn after it"])
        for _ in range(interpreter_steps.WARM_TURNS):
            await turn(["sticky Route", "sticky CompleteTurn"])
    paths.pop("CompleteTurn after it")
    return paths
