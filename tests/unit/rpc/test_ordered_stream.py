"""Messages in progress on one stream: bounded, in order, and ended if the caller does not read."""

import asyncio

import pytest

from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.core.errors import Reason, RoutingError
from routing_service.rpc.ordered_stream import (
    GROUP_BYTES_MAX,
    IN_FLIGHT_MAX,
    QUEUES_KEPT_MAX,
    OrderedStream,
)

LONG_S = 60
WAIT_S = 30


def message(number, session_id="", task_id=""):
    """Return the bytes of a message."""
    route = pb.RouteRequest(session_id=session_id, task_id=task_id, text=str(number))
    return pb.RouteStreamRequest(route=route).SerializeToString()


def number_of(message):
    """Return the number of a message."""
    return int(message.route.text)


class Requests:
    """A caller's messages, counted as they are read."""

    def __init__(self, messages):
        self.messages = messages
        self.taken = 0

    async def __aiter__(self):
        for each in self.messages:
            self.taken += 1
            yield each


async def settled():
    """Run the event loop until nothing can continue."""
    for _ in range(50):
        await asyncio.sleep(0)


async def echo(message):
    """Answer with the message."""
    return message


async def test_no_more_is_read_than_may_be_under_way():
    """A caller that sends without end is slowed down, and the server's memory stays bounded."""
    go_on = asyncio.Event()
    written = []

    async def answer(data):
        await go_on.wait()
        return data

    async def write(body):
        written.append(number_of(body))

    requests = Requests([message(n, f"chat-{n}") for n in range(3 * IN_FLIGHT_MAX)])
    running = asyncio.create_task(
        OrderedStream(answer, write, write_s_max=LONG_S).run(requests.__aiter__())
    )
    await settled()
    # One more has been read, and waits for a place.
    assert requests.taken == IN_FLIGHT_MAX + 1
    go_on.set()
    await asyncio.wait_for(running, WAIT_S)
    assert sorted(written) == list(range(3 * IN_FLIGHT_MAX))


async def test_stream_that_is_not_read_is_not_read_from():
    """Unread answers keep their slots. Once they are read, the stream continues."""
    go_on = asyncio.Event()
    decided, written = [], []

    async def answer(data):
        decided.append(number_of(data))
        return data

    async def write(body):
        await go_on.wait()
        written.append(number_of(body))

    requests = Requests([message(n, f"chat-{n}") for n in range(3 * IN_FLIGHT_MAX)])
    running = asyncio.create_task(
        OrderedStream(answer, write, write_s_max=LONG_S).run(requests.__aiter__())
    )
    await settled()
    assert requests.taken == IN_FLIGHT_MAX + 1
    assert len(decided) == IN_FLIGHT_MAX
    go_on.set()
    await asyncio.wait_for(running, WAIT_S)
    assert sorted(written) == list(range(3 * IN_FLIGHT_MAX))


async def test_caller_who_reads_nothing_for_long_is_let_go():
    """The caller gets a reason, and no task is left over."""
    before = asyncio.all_tasks()
    ended = asyncio.Event()

    reads_again = asyncio.Event()

    async def write(_body):
        await reads_again.wait()

    async def endless():
        try:
            number = 0
            while True:
                number += 1
                yield message(number, f"chat-{number}")
                await asyncio.sleep(0)
        finally:
            ended.set()

    with pytest.raises(RoutingError, match="was read for") as told:
        await asyncio.wait_for(OrderedStream(echo, write, write_s_max=0.05).run(endless()), WAIT_S)
    assert told.value.reason is Reason.OVERLOADED
    assert told.value.metadata == {"limit": "unread_answers"}
    # Only the write of one message goes on: the call can be ended after it.
    assert len(asyncio.all_tasks() - before) == 1
    ended_after = asyncio.create_task(told.value.wait_for_write())
    await asyncio.sleep(0)
    assert not ended_after.done()
    reads_again.set()
    await asyncio.wait_for(ended_after, WAIT_S)
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("place", [{"session_id": "chat"}, {"task_id": "a-task"}])
async def test_messages_of_one_conversation_are_begun_in_order(place):
    """A conversation is named by its session, or only by its task. Slow messages delay the next."""
    begun, written, under_way = [], [], 0

    async def answer(data):
        nonlocal under_way
        assert under_way == 0
        under_way += 1
        begun.append(number_of(data))
        await asyncio.sleep(0.01 if number_of(data) % 3 == 0 else 0)
        under_way -= 1
        return data

    async def write(body):
        written.append(number_of(body))

    requests = Requests([message(n, **place) for n in range(40)])
    await asyncio.wait_for(
        OrderedStream(answer, write, write_s_max=LONG_S).run(requests.__aiter__()), WAIT_S
    )
    assert begun == written == list(range(40))


async def test_stream_remembers_no_more_sessions_than_it_has_use_for():
    """Memory is bounded for any number of sessions, and a session in progress keeps its order."""
    go_on = asyncio.Event()
    written = []

    async def answer(message):
        if number_of(message) == 0:
            await go_on.wait()
        return message

    async def write(body):
        written.append(number_of(body))

    count = 3 * QUEUES_KEPT_MAX

    async def requests():
        yield message(0, "slow")
        for number in range(1, count):
            yield message(number, f"chat-{number}")
            await asyncio.sleep(0)
        yield message(count, "slow")

    stream = OrderedStream(answer, write, write_s_max=LONG_S)
    running = asyncio.create_task(stream.run(requests()))
    for _ in range(20 * count):
        await asyncio.sleep(0)
        if len(written) == count - 1:
            break
    assert len(written) == count - 1
    assert len(stream._latest) <= QUEUES_KEPT_MAX + 1
    go_on.set()
    await asyncio.wait_for(running, WAIT_S)
    assert written[-2:] == [0, count]


async def test_slow_session_does_not_hold_up_the_others():
    """The other sessions' answers are sent as they are ready."""
    go_on = asyncio.Event()
    written = []

    async def answer(data):
        if number_of(data) == 0:
            await go_on.wait()
        return data

    async def write(body):
        written.append(number_of(body))

    messages = [message(0, "slow"), message(1, "slow"), *(message(n, "quick") for n in (2, 3))]
    running = asyncio.create_task(
        OrderedStream(answer, write, write_s_max=LONG_S).run(Requests(messages).__aiter__())
    )
    await settled()
    assert written == [2, 3]
    go_on.set()
    await asyncio.wait_for(running, WAIT_S)
    assert written == [2, 3, 0, 1]


async def test_what_was_taken_is_answered_when_reading_stops():
    """A stopping server finishes the messages it has taken, and takes no more."""
    go_on = asyncio.Event()
    written = []

    async def answer(data):
        await go_on.wait()
        return data

    async def write(body):
        written.append(number_of(body))

    async def requests():
        for number in range(5):
            yield message(number, f"chat-{number}")
        await asyncio.Event().wait()

    stream = OrderedStream(answer, write, write_s_max=LONG_S)
    running = asyncio.create_task(stream.run(requests()))
    await settled()
    stream.stop_reading()
    go_on.set()
    await asyncio.wait_for(running, WAIT_S)
    assert sorted(written) == list(range(5))


async def test_caller_who_reads_again_too_late_is_told_so_and_not_that_all_was_answered():
    """The caller may read again while the last answers are decided: some were never written."""
    reads_again = asyncio.Event()
    decides_on = asyncio.Event()
    written = []

    async def answer(data):
        if number_of(data) == 2:
            await decides_on.wait()
        return data

    async def write(body):
        await reads_again.wait()
        written.append(number_of(body))

    requests = Requests([message(n, f"chat-{n}") for n in range(3)])
    stream = OrderedStream(answer, write, write_s_max=0.01)
    running = asyncio.create_task(stream.run(requests.__aiter__()))
    await asyncio.wait_for(stream._is_slow.wait(), WAIT_S)
    reads_again.set()
    await settled()
    decides_on.set()
    with pytest.raises(RoutingError, match="was read for"):
        await asyncio.wait_for(running, WAIT_S)
    assert written == [0]


async def grouped(messages, size_bytes=0):
    """Answer messages while the first write lasts; return the answers' ids by what was written."""
    go_on = asyncio.Event()
    written = []

    async def answer(message):
        padding = pb.RouteResponse(session_id="x" * size_bytes)
        number = message.route.text
        return pb.RouteStreamResponse(request_id=number, route=padding).SerializeToString()

    async def write(body):
        await go_on.wait()
        found = pb.RouteStreamResponse.FromString(body)
        assert not any(each.more for each in found.more)
        assert all(each.WhichOneof("result") == "route" for each in (found, *found.more))
        written.append([int(each.request_id) for each in (found, *found.more)])

    stream = OrderedStream(answer, write, write_s_max=LONG_S)
    running = asyncio.create_task(stream.run(Requests(messages).__aiter__()))
    await settled()
    go_on.set()
    await asyncio.wait_for(running, WAIT_S)
    return written


def asking(number, *, takes_more=True):
    """Return the bytes of a message to a session of its own."""
    route = pb.RouteRequest(session_id=f"chat-{number}", text=str(number))
    return pb.RouteStreamRequest(route=route, takes_more=takes_more).SerializeToString()


async def test_answers_that_wait_for_a_write_go_out_together():
    """And their slots are free again, so that more messages than slots are answered."""
    count = 2 * IN_FLIGHT_MAX + 5
    written = await grouped([asking(n) for n in range(count)])
    assert [number for group in written for number in group] == list(range(count))
    assert len(written) < count / 10
    assert max(map(len, written)) > IN_FLIGHT_MAX / 2


async def test_client_that_does_not_ask_for_groups_gets_each_answer_alone():
    """As clients of older releases do; one message with the wish is enough."""
    alone = await grouped([asking(n, takes_more=False) for n in range(20)])
    assert alone == [[n] for n in range(20)]
    wished = await grouped([asking(n, takes_more=n == 4) for n in range(20)])
    assert len(wished) < 20


async def test_group_of_answers_is_bounded():
    """A client takes messages of 4 MiB at most; one large answer still comes, alone."""
    third = GROUP_BYTES_MAX // 3
    written = await grouped([asking(n) for n in range(9)], third)
    assert [number for group in written for number in group] == list(range(9))
    assert max(map(len, written)) == 2
    large = await grouped([asking(n) for n in range(3)], 2 * GROUP_BYTES_MAX)
    assert large == [[0], [1], [2]]
