"""Notes and parts of answers: sent to watchers as agents write them, and stored nowhere."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest

from agent_routing.v1 import handoff_pb2, routing_service_pb2
from routing_service.core.marker_stream import CONTEXT_CHARS
from routing_service.sessions.live_feed import QUEUE_MESSAGES_MAX, LiveKind
from tests.rpc.live_service import hand_to, refusal, serving
from tests.rpc.signed_in import serving_signed_in, signed
from tests.rpc.test_inbox import complete, working
from tests.rpc.test_keep_turn import OFFICE, next_item, said

pb = routing_service_pb2

LIVE = (pb.WATCH_INCLUDE_DELTAS, pb.WATCH_INCLUDE_NOTES)


@pytest.fixture
async def service(tmp_path):
    """An office with workers."""
    async with serving(tmp_path, OFFICE) as running:
        yield running


class Watcher:
    """A watch, with what came of each kind."""

    def __init__(self):
        self.notes = []
        self.deltas = []
        self.events = []

    @property
    def text(self):
        """The parts, put together as the contract says."""
        text, end = "", 0
        for delta in self.deltas:
            if delta.end <= end:
                continue
            assert delta.begin == end, self.deltas
            text, end = text + delta.text, delta.end
        return text

    async def until(self, done):
        """Wait until something holds."""
        async with asyncio.timeout(20):
            while not done(self):  # noqa: ASYNC110 - what the stream has brought
                await asyncio.sleep(0.02)


@asynccontextmanager
async def watching(service, chat, include=LIVE, call=None, **fields):
    """Watch a session from now on."""
    request = pb.WatchSessionRequest(session_id=chat.session_id, include=include, **fields)
    stream = (call or service.stub.WatchSession)(request)
    watcher = Watcher()
    assert (await stream.read()).HasField("heartbeat")

    async def read():
        while (message := await stream.read()) is not grpc.aio.EOF:
            if message.HasField("note"):
                watcher.notes.append(message.note)
            elif message.HasField("delta"):
                watcher.deltas.append(message.delta)
            watcher.events += message.change.events

    reading = asyncio.ensure_future(read())
    try:
        yield watcher
    finally:
        reading.cancel()


async def write(service, item, *parts, start=""):
    """Send an answer in parts; return the answers to them."""
    written, kept = start, []
    for part in parts:
        delta = pb.AnswerDelta(
            offset=len(written.encode()), text=part, before=written[-CONTEXT_CHARS:]
        )
        kept.append(await said(service, item, delta=delta))
        written += part
    return kept


async def test_watchers_read_an_answer_as_it_is_written(service):
    """In order, and with its place, so that a repeat or a gap is seen."""
    chat = service.chat()
    item = await next_item(service, "front", chat)
    async with watching(service, chat) as watcher, watching(service, chat, ()) as plain:
        kept = await write(service, item, "¿Qué ", "tal, ", "Ana? \N{GRINNING FACE}")
        assert {answer.relay for answer in kept} == {pb.RELAY_ALL}
        await said(service, item, note="still looking")
        await watcher.until(lambda w: w.notes and len(w.deltas) == 3)
        await complete(service, item, "¿Qué tal, Ana? \N{GRINNING FACE}")
        await watcher.until(lambda w: w.events)
        await plain.until(lambda w: w.events)
    assert watcher.text == "¿Qué tal, Ana? \N{GRINNING FACE}"
    assert {(d.request_id, d.agent_id, d.attempt) for d in watcher.deltas} == {
        (item.dispatch.request_id, "front", 1)
    }
    (note,) = watcher.notes
    assert (note.text, note.agent_id, note.attempt) == ("still looking", "front", 1)
    assert not plain.deltas
    assert not plain.notes


async def test_nothing_of_it_is_stored_or_logged(tmp_path, caplog, capfd):
    """Not in the store's files, and not in a log line."""
    async with serving(tmp_path, OFFICE) as service:
        chat = service.chat()
        item = await next_item(service, "front", chat)
        async with watching(service, chat) as watcher, chat.unchanged():
            await write(service, item, "purple-elephant-delta")
            await said(service, item, note="purple-elephant-note")
            await watcher.until(lambda w: w.notes and w.deltas)
        await complete(service, item, "the whole answer")
        fields = [str(record) for record in service.observer.calls]
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("routing.db*"))
    assert b"the whole answer" in kept
    assert b"purple-elephant" not in kept
    out, err = capfd.readouterr()
    assert "purple-elephant" not in "".join([out, err, caplog.text, *fields])


async def test_markers_are_never_shown(service):
    """However the parts fall, and whichever replica gets them."""
    chat = service.chat()
    item = await next_item(service, "front", chat)
    async with watching(service, chat) as watcher:
        answered = await complete(service, item, **hand_to("marks"))
        async with working(service, "marks", lease_s=600) as worker:
            item = await worker.next()
        parts = [
            "Let me see [1]. I ",
            "hand you over [HAND",
            "OFF_TO",
            ": va",
            "t] now",
            " [",
            "ok]",
        ]
        await write(service, item, *parts)
        await watcher.until(lambda w: w.deltas and w.deltas[-1].end == len("".join(parts)))
    assert answered.next.agent.agent_id == "marks"
    assert watcher.text == "Let me see [1]. I hand you over  now [ok]"


async def test_text_of_agents_without_markers_is_left_alone(service):
    """As it is in their answers."""
    chat = service.chat()
    item = await next_item(service, "front", chat)
    async with watching(service, chat) as watcher:
        await write(service, item, "[HANDOFF", "_TO:vat]")
        await watcher.until(lambda w: len(w.deltas) == 2)
    assert watcher.text == "[HANDOFF_TO:vat]"


async def test_a_long_part_comes_in_pieces(service):
    """Each small enough for every store's messages."""
    chat = service.chat()
    item = await next_item(service, "front", chat)
    text = "añ€\N{GRINNING FACE}" * 2_000
    async with watching(service, chat) as watcher:
        await write(service, item, text)
        await watcher.until(lambda w: w.deltas and w.deltas[-1].end == len(text.encode()))
    assert watcher.text == text
    assert len(watcher.deltas) > 5


async def test_a_turn_sends_so_much_a_second(service):
    """Beyond that the call is refused whole, with a delay."""
    chat = service.chat()
    item = await next_item(service, "front", chat)
    text = "x" * 32_768
    with_delta = pb.AnswerDelta(text=text)
    service.server._parts.live._clock_s = lambda: 5.0
    for _ in range(2):
        await said(service, item, delta=with_delta)
    refused = await refusal(said(service, item, delta=with_delta))
    assert tuple(refused) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
    assert refused.metadata["limit"] == "turn_bytes_per_s"
    assert 0 < refused.retry_after_s <= 1.1


async def test_a_consult_is_between_agents(service):
    """The user sees neither its notes nor its parts."""
    chat = service.chat()
    item = await next_item(service, "front", chat)
    mode = {"mode": handoff_pb2.HANDOFF_MODE_CONSULT}
    async with watching(service, chat) as watcher, working(service, "vat", lease_s=600) as worker:
        await complete(service, item, **hand_to("vat", message="what is the rate?", **mode))
        asked = await worker.next()
        kept = await said(service, asked, note="looking", delta=pb.AnswerDelta(text="21 %"))
        assert kept.status == pb.KEEP_TURN_STATUS_KEPT
        assert kept.relay == pb.RELAY_UNSPECIFIED
        await complete(service, asked, "21 %")
        await watcher.until(lambda w: any(e.HasField("turn_completed") for e in w.events[2:]))
    assert not watcher.notes
    assert not watcher.deltas


async def test_who_may_read_along(tmp_path):
    """The owner and operators; a runtime only its own agents' turns; no stranger."""
    async with serving_signed_in(tmp_path, OFFICE) as service:
        user = signed(service, "route", user="ana")
        front = signed(service, "agent", agents=("front",))
        vat = signed(service, "agent", agents=("vat",))
        admin = signed(service, "admin")
        routed = await user("Route", pb.RouteRequest(session_id="chat-1", text="hello"))
        handed = pb.CompleteTurnRequest(
            session_id="chat-1",
            request_id=routed.dispatch.request_id,
            agent_id="front",
            **hand_to("vat"),
        )
        dispatch = (await front("CompleteTurn", handed)).next
        chat = service.chat("chat-1")

        def call(caller):
            return lambda request: service.stub.WatchSession(request, metadata=caller.metadata)

        async with (
            watching(service, chat, call=call(user)) as by_user,
            watching(service, chat, call=call(vat)) as by_vat,
            watching(service, chat, call=call(front)) as by_front,
            watching(service, chat, call=call(admin)) as by_admin,
        ):
            kept = pb.KeepTurnRequest(
                session_id="chat-1",
                request_id=dispatch.request_id,
                agent_id="vat",
                note="one moment",
                delta=pb.AnswerDelta(text="It is"),
            )
            await vat("KeepTurn", kept)
            for watcher in (by_user, by_vat, by_admin):
                await watcher.until(lambda w: w.notes and w.deltas)
            assert not by_front.notes
            assert not by_front.deltas
        stranger = signed(service, "route", user="ben")
        refused = await refusal(
            call(stranger)(pb.WatchSessionRequest(session_id="chat-1", include=LIVE)).read()
        )
        assert tuple(refused) == ("PERMISSION_DENIED", "OWNER_MISMATCH")


async def test_a_watcher_that_does_not_read_loses_the_oldest_parts(service):
    """Its queue is bounded; the changes are all there."""
    chat = service.chat()
    item = await next_item(service, "front", chat)
    live = service.server._parts.live
    with live.watching(chat.key, frozenset({LiveKind.DELTA})) as queue:
        await write(service, item, *["x"] * 300)
        assert len(queue.messages) == QUEUE_MESSAGES_MAX
        assert queue.take()[-1].end == 300
    assert not live._queues


async def test_a_watcher_that_comes_a_little_late_reads_from_the_beginning(service):
    """An agent may begin before the watch that reads it is open; after a while it is gone."""
    chat = service.chat()
    item = await next_item(service, "front", chat)
    await said(service, item, note="one moment")
    await write(service, item, "It is ")
    live = service.server._parts.live
    async with watching(service, chat) as watcher:
        await write(service, item, "so.", start="It is ")
        await watcher.until(lambda w: w.deltas and w.deltas[-1].end == 9)
        assert [note.text for note in watcher.notes] == ["one moment"]
        assert watcher.text == "It is so."
    later_s = live._clock_s() + 6
    live._clock_s = lambda: later_s
    with live.watching(chat.key, frozenset(LiveKind)) as queue:
        assert not queue.messages


async def test_what_to_include_is_checked(service):
    """An unset value is refused and named."""
    chat = service.chat()
    await chat.say("hello")
    request = pb.WatchSessionRequest(
        session_id=chat.session_id, user_id="ana", include=[pb.WATCH_INCLUDE_UNSPECIFIED]
    )
    refused = await refusal(service.stub.WatchSession(request).read())
    assert refused.rules == ["include[0]"]
