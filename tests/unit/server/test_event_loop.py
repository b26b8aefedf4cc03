"""The loop reads gRPC's wake-ups many at a time, and every call is answered all the same.

In processes of their own: gRPC has one thread of wake-ups for all loops of a process.
"""

import json
import subprocess
import sys

import pytest

pytest.importorskip("uvloop", reason="uvloop: not on this platform")

PLAYED = """
import asyncio, json, socket, sys, threading
import grpc
from routing_service.server import event_loop

CALLS = 400
taken = []

class Counted(event_loop.WakeUps):
    __slots__ = ()

    def recv(self, *arguments):
        data = super().recv(*arguments)
        taken.append(len(data))
        return data

event_loop.WakeUps = Counted

async def answer(data, _context):
    await asyncio.sleep(0)
    return data

async def call(address):
    async with grpc.aio.insecure_channel(address) as channel:
        echo = channel.unary_unary("/test.Echo/Echo")
        said = [b"%d" % number for number in range(CALLS)]
        answers = await asyncio.wait_for(asyncio.gather(*(echo(each) for each in said)), 50)
        assert answers == said, "the answers are those of other calls"
        return len(answers)

async def main():
    server = grpc.aio.server()
    echo = grpc.unary_unary_rpc_method_handler(answer)
    handlers = grpc.method_handlers_generic_handler("test.Echo", {"Echo": echo})
    server.add_generic_rpc_handlers((handlers,))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    if "two-loops" in sys.argv:
        other = asyncio.to_thread(lambda: asyncio.run(call(address)))
        answered = sum(await asyncio.gather(call(address), other))
    else:
        answered = await call(address)
    await server.stop(1)
    ours, theirs = socket.socketpair()
    asyncio.get_running_loop().add_reader(ours, lambda: None)
    kept = type(ours) is socket.socket
    asyncio.get_running_loop().remove_reader(ours)
    ours.close()
    theirs.close()
    counted = {"answered": answered, "reads": len(taken), "events": sum(taken), "kept": kept}
    print(json.dumps(counted))

with asyncio.Runner(loop_factory=event_loop.loop_factory()) as runner:
    runner.run(main())
"""


def played(*arguments):
    """Play calls in a process of its own; return what it counted."""
    done = subprocess.run(
        [sys.executable, "-c", PLAYED, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=55,
    )
    assert done.returncode == 0, done.stderr
    # gRPC would log an error of its reader there.
    assert "Error" not in done.stderr, done.stderr
    return json.loads(done.stdout)


def test_wake_ups_are_taken_many_at_a_time_and_all_calls_are_answered():
    """Each event of gRPC is one byte; a read for each byte would call the reader for nothing."""
    counted = played()
    assert counted["answered"] == 400
    assert counted["kept"], "the socket of another reader was changed"
    assert counted["events"] >= 400 * 3, counted
    assert counted["reads"] < counted["events"] * 0.9, counted


def test_another_loop_of_the_process_gets_its_answers_too():
    """Both loops read the same socket, and one may take what woke the other."""
    assert played("two-loops")["answered"] == 800
