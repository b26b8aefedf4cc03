"""Mistakes of callers: bytes, fields, sizes, methods. The error always has the same form."""

import asyncio
import random
import struct as binary
import uuid

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory, struct_pb2
from google.protobuf.descriptor import FieldDescriptor

from agent_routing.v1 import (
    admin_service_pb2,
    handoff_pb2,
    item_pb2,
    routing_service_pb2,
    turn_pb2,
)
from tests.rpc.live_service import (
    ask,
    fresh_id,
    hand_to,
    read_refusal,
    refusal,
    serving,
    struct,
)
from tests.rpc.registries import DESK

MUTATING = ("Route", "SetActiveAgent", "ClearActiveAgent", "CompleteTurn")
READING = ("Status", "ListTurns", "ListTasks", "ListAgents")

DETAILS_BYTES_MAX = 4096

REQUEST_BYTES_MAX = 256 * 1024

FUZZ_REQUESTS = 1280
FUZZ_AT_ONCE = 32


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each."""
    async with serving(tmp_path, DESK) as running:
        yield running


# --- bytes ---


@pytest.mark.parametrize("rpc", [*MUTATING, *READING])
@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        b"\x0a\x05ab",
        b"\x0a\x02\xc3\x28",
        b"\x07",
        b"\x0b" * 200,
    ],
    ids=["no tag", "cut short", "not UTF-8", "unknown wire type", "groups in groups"],
)
async def test_bytes_that_are_no_request_are_told_so(service, rpc, data):
    """The parser's own message is not shown."""
    refused = await refusal(service.raw(rpc, data))
    assert tuple(refused) == ("INVALID_ARGUMENT", "MALFORMED_REQUEST")
    assert refused.metadata == {"method": rpc}
    assert refused.message == (
        f"the request is not a valid agent_routing.v1.{rpc}Request; check that client and "
        "server use the same contract, and that text is UTF-8"
    )


async def test_fields_of_a_newer_contract_are_passed_over(service):
    """A newer client is served; unknown fields are ignored."""
    request = routing_service_pb2.RouteRequest(text="hello", user_id="ana", session_id="ahead")
    newer = b"\xf2\x3e\x05hello" + b"\xf8\x3e\x01"
    answer = await service.raw("Route", request.SerializeToString() + newer)
    routed = routing_service_pb2.RouteResponse.FromString(answer)
    assert routed.dispatch.text == "hello"


async def test_outcome_of_a_newer_contract_is_a_bad_field(service):
    """The server cannot carry it out, and another outcome would be worse than an error."""
    chat = await service.chat().with_agent("sales")
    routed = await chat.say()
    request = routing_service_pb2.CompleteTurnRequest(
        session_id=chat.session_id, request_id=routed.request_id, agent_id="sales", text="so"
    )
    newer = b"\xf2\x3e\x02\x0a\x00"
    refused = await refusal(service.raw("CompleteTurn", request.SerializeToString() + newer))
    assert tuple(refused) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert refused.rules == ["outcome"]


# --- fields ---


async def test_all_bad_fields_of_a_message_are_named_at_once(service):
    """The caller can correct all of them at once."""
    refused = await refusal(
        service.chat("no\nid").say(
            "",
            user_id="a\nb",
            task_id="1",
            request_id="2",
            items=[
                item_pb2.Item(content_type="png", uri="https://example.com"),
                item_pb2.Item(content_type="image/png"),
                item_pb2.Item(content_type="image/png", uri="not a uri"),
                item_pb2.Item(content_type="text/plain", text="a\0b"),
            ],
            locale="x",
            channel="my channel",
            entitlements=["", "ok", "x" * 65],
            metadata={"": "a", "k": "a\0b"},
            history_turns=101,
            quick_reply_id="3",
            task_expire_time={"nanos": -1},
            expected_revision=-5,
        )
    )
    assert tuple(refused) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert set(refused.rules) == {
        "session_id",
        "user_id",
        "task_id",
        "request_id",
        "items[0].content_type",
        "items[1]",
        "items[2].uri",
        "items[3].text",
        "locale",
        "channel",
        "entitlements",
        "metadata",
        "metadata[k]",
        "history_turns",
        "quick_reply_id",
        "task_expire_time",
        "expected_revision",
    }
    assert refused.metadata == {"field": "session_id", "fields": "18"}
    assert 'session_id: "no\\nid" has control, invisible' in refused.message
    assert "(and 17 more bad fields)" in refused.message


async def test_all_bad_fields_of_a_handoff_are_named_at_once(service):
    """Fields of the context are named, too."""
    refused = await refusal(
        service.chat("no\u200bid").set_active(
            "",
            request_id="1",
            turn_request_id="2",
            suggestion_id="3",
            from_agent_id="a b",
            reason="x" * 1025,
            message="\0",
            context=struct({"a": {"b": float("nan")}}),
            initiator=handoff_pb2.INITIATOR_TOPIC,
            mode=handoff_pb2.HANDOFF_MODE_CONSULT,
        )
    )
    assert set(refused.rules) == {
        "session_id",
        "agent_id",
        "request_id",
        "turn_request_id",
        "suggestion_id",
        "from_agent_id",
        "reason",
        "message",
        "context",
        "initiator",
        "mode",
    }


async def test_all_bad_fields_of_an_answer_are_named_at_once(service):
    """Fields of steps and outcome are named, too."""
    request = routing_service_pb2.CompleteTurnRequest(
        text="x" * (32 * 1024 + 1),
        items=[item_pb2.Item(content_type="a/b", data=b"x" * (64 * 1024 + 1))],
        steps=[
            turn_pb2.Step(name="", kind="k" * 65),
            turn_pb2.Step(name="n" * 129, duration={"seconds": -1}),
        ],
        follow_up=routing_service_pb2.FollowUpOutcome(timeout={"seconds": 0}),
    )
    refused = await refusal(service.call("CompleteTurn", request))
    assert set(refused.rules) == {
        "session_id",
        "request_id",
        "agent_id",
        "text",
        "items",
        "steps[0].name",
        "steps[0].kind",
        "steps[1].name",
        "steps[1].duration",
        "follow_up.timeout",
    }


@pytest.mark.parametrize("rpc", [*MUTATING, "Status", "ListTurns", "ListTasks"])
async def test_empty_request_is_told_what_it_lacks(service, rpc):
    """The error names every required field."""
    refused = await refusal(service.raw(rpc, b""))
    assert tuple(refused) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    expected = {
        "Route": ["text"],
        "SetActiveAgent": ["session_id", "agent_id"],
        "CompleteTurn": ["session_id", "request_id", "agent_id", "outcome"],
    }
    assert refused.rules == expected.get(rpc, ["session_id"])


@pytest.mark.parametrize(
    ("fields", "bad"),
    [
        ({"text": "x" * (32 * 1024)}, None),
        ({"text": "x" * (32 * 1024 + 1)}, "text"),
        ({"text": "ñ" * (16 * 1024)}, None),
        ({"text": "ñ" * (16 * 1024) + "x"}, "text"),
        ({"text": "a\0b"}, "text"),
        ({"session_id": "x" * 128}, None),
        ({"session_id": "x" * 129}, "session_id"),
        ({"session_id": "ñ"}, None),
        ({"session_id": "n\u0303"}, "session_id"),
        ({"session_id": "a\n"}, "session_id"),
        ({"user_id": "auth0|5f7c8ec7 ñ/\\"}, None),
        ({"user_id": "x" * 257}, "user_id"),
        ({"user_id": "an\u200ba"}, "user_id"),
        ({"user_id": "\u202eana"}, "user_id"),
        ({"user_id": "ana\u2028"}, "user_id"),
        ({"entitlements": ["plan:\ufeffpremium"]}, "entitlements"),
        ({"metadata": {"ke\u00ady": "x"}}, "metadata"),
        ({"metadata": {"key": "\u202eany text"}}, None),
        ({"locale": "zh-Hant-TW"}, None),
        ({"locale": "e"}, "locale"),
        ({"locale": "es-" + "x" * 33}, "locale"),
        ({"channel": "x" * 64}, None),
        ({"channel": "x" * 65}, "channel"),
        ({"entitlements": [f"e{n}" for n in range(32)] * 2}, None),
        ({"entitlements": [f"e{n}" for n in range(33)]}, "entitlements"),
        ({"metadata": {str(n): "x" for n in range(32)}}, None),
        ({"metadata": {str(n): "x" for n in range(33)}}, "metadata"),
        ({"metadata": {"k": "x" * 4095}}, None),
        ({"metadata": {"k": "x" * 4096}}, "metadata"),
        ({"items": [item_pb2.Item(content_type="a/b", data=b"x")] * 16}, None),
        ({"items": [item_pb2.Item(content_type="a/b", data=b"x")] * 17}, "items"),
        ({"history_turns": -1}, None),
        ({"history_turns": -2}, "history_turns"),
        ({"history_turns": 100}, None),
        ({"task_expire_time": {"seconds": 253_402_300_799}}, None),
        ({"task_expire_time": {"seconds": 253_402_300_800}}, "task_expire_time"),
    ],
)
async def test_limit_of_a_field_is_where_it_is_said_to_be(service, fields, bad):
    """The largest accepted value, and the first refused one."""
    call = service.chat().say(**fields)
    if bad is None:
        assert (await call).HasField("dispatch")
        return
    refused = await refusal(call)
    assert tuple(refused) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert refused.rules == [bad]


async def test_context_has_bounds_of_size_and_depth(service):
    """A handoff's context must fit into a stored change and be readable by every client."""
    chat = await service.chat().with_agent("sales")

    def nested(levels):
        value = {"end": "here"}
        for _ in range(levels - 1):
            value = {"in": value}
        return struct(value)

    def listed(levels):
        value = struct_pb2.Value(string_value="here")
        for _ in range(levels):
            value = struct_pb2.Value(list_value=struct_pb2.ListValue(values=[value]))
        return struct_pb2.Struct(fields={"a": value})

    for context, taken in (
        (nested(24), True),
        (nested(25), False),
        (listed(23), True),
        (listed(24), False),
        (struct({"a": "x" * 16_000}), True),
        (struct({"a": "x" * 16_385}), False),
        (struct({"a": "b\0"}), False),
        (struct({"b\0": 1}), False),
        (struct({"a": [float("inf")]}), False),
    ):
        call = chat.set_active("support", context=context, validate_only=True)
        if taken:
            assert (await call).handoff.context == context
        else:
            assert (await refusal(call)).rules == ["context"]


async def test_numbers_of_pages_have_bounds(service):
    """A caller cannot make the server read everything at once."""
    chat = await service.chat().with_agent("sales")
    for page_size in (-1, 1001, 2**31 - 1):
        for call in (chat.turns(page_size=page_size), chat.tasks(page_size=page_size)):
            assert (await refusal(call)).rules == ["page_size"]
    assert (await refusal(chat.turns(order=9))).rules == ["order"]


async def test_request_larger_than_any_message_is_refused_by_the_transport(service):
    """It is refused before it is read; the session is not affected."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await service.raw("Route", b"\x1a\x80\x80\x80\x04" + b"x" * (REQUEST_BYTES_MAX + 1))
    assert caught.value.code().name == "RESOURCE_EXHAUSTED"
    assert (await service.chat().say()).revision == 1


# --- errors themselves ---


async def test_details_of_an_error_stay_below_4_kb(service):
    """For any number of faults, since proxies cut longer headers. Omitted ones are counted."""
    chat = await service.chat().with_agent("sales")
    routed = await chat.say()
    worst = [
        chat.say(
            "",
            session_id="é" * 10_000,
            locale="é" * 10_000,
            channel="é" * 10_000,
            task_id="é" * 10_000,
            request_id="\u0001" * 10_000,
            items=[item_pb2.Item(content_type="é" * 500, uri="é" * 500) for _ in range(60)],
            metadata={"é" * 100 + str(n): "\0" for n in range(100)},
            entitlements=["é" * 100 + str(n) for n in range(100)],
        ),
        chat.answer(
            routed.dispatch,
            steps=[turn_pb2.Step(name="", kind="é" * 70) for _ in range(64)],
        ),
        chat.set_active("é" * 20_000, from_agent_id="é" * 20_000),
        chat.set_active("x" * 128, from_agent_id="y" * 128),
        chat.answer(routed.dispatch, **hand_to("z" * 128)),
        chat.say("x", session_id="", task_id=str(uuid.UUID(int=0))),
    ]
    for call in worst:
        refused = await refusal(call)
        assert refused.details_bytes < DETAILS_BYTES_MAX
        assert len(refused.message) <= 1100
    refused = await refusal(
        chat.say("", items=[item_pb2.Item(content_type="x") for _ in range(16)], locale="?")
    )
    assert refused.metadata["fields"] == "33"
    assert len(refused.rules) > 5
    assert any("more fields" in words for words in refused.violations.values())


async def test_errors_quote_values_on_one_line(service):
    """A value cannot forge a log line or another error."""
    refused = await refusal(service.chat('a"\n\u202eb').say())
    assert "\n" not in refused.message
    assert "\u202e" not in refused.message
    assert '"a\\"\\n\\u202eb"' in refused.message


# --- methods ---


async def test_every_method_of_the_contract_answers(service):
    """An RPC that this release does not implement has its own reason in the error."""
    for descriptor in (
        routing_service_pb2.DESCRIPTOR.services_by_name["RoutingService"],
        admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"],
    ):
        for method in descriptor.methods:
            path = f"/{descriptor.full_name}/{method.name}"
            error = await answer_to_nothing(service.channel, path, method)
            if error is None:
                continue
            refused = read_refusal(error)
            assert refused.code not in ("INTERNAL", "UNKNOWN"), path
            if refused.code == "UNIMPLEMENTED":
                assert refused.reason == "NOT_IMPLEMENTED", path
                assert refused.metadata == {"method": method.name}, path
                assert f"this server does not have {method.name} yet" in refused.message, path


async def answer_to_nothing(channel, path, method):
    """Call a method of any kind with an empty request; return its error, or None."""
    try:
        if method.client_streaming:
            async for _ in channel.stream_stream(path)(iter([b""]), timeout=5):
                return None
        elif method.server_streaming:
            async for _ in channel.unary_stream(path)(b"", timeout=5):
                return None
        else:
            await channel.unary_unary(path)(b"", timeout=5)
    except grpc.aio.AioRpcError as error:
        return error
    return None


async def test_suggestion_that_was_never_made_is_unknown(service):
    """Both ways of accepting it are refused; nothing changes."""
    chat = await service.chat().with_agent("sales")
    made_up = fresh_id()
    async with chat.unchanged():
        for call in (
            chat.say(quick_reply_id=made_up),
            chat.set_active("support", suggestion_id=made_up),
        ):
            refused = await refusal(call)
            assert tuple(refused) == ("NOT_FOUND", "UNKNOWN_SUGGESTION")
            assert refused.metadata == {"session_id": chat.session_id, "suggestion_id": made_up}


async def test_unknown_method_is_unimplemented(service):
    """The transport answers unknown methods."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await service.raw("Teleport", b"")
    assert caught.value.code().name == "UNIMPLEMENTED"


async def test_deadline_that_has_passed_happens_whole_or_not_at_all(service):
    """The caller gets DEADLINE_EXCEEDED; a repeat with the same id returns what happened."""
    chat = service.chat()
    ids = [fresh_id() for _ in range(20)]
    codes = set()
    for number, request_id in enumerate(ids):
        request = routing_service_pb2.RouteRequest(
            session_id=chat.session_id, user_id="ana", text="hello", request_id=request_id
        )
        codes.add(await code_of(service.stub.Route(request, timeout=number * 0.0002)))
    assert codes <= {"OK", "DEADLINE_EXCEEDED"}
    answers = [await chat.say("hello", request_id=request_id) for request_id in ids]
    revisions = [change.revision for change in await chat.changes()]
    assert revisions == list(range(1, len(ids) + 1))
    assert sorted(answer.revision for answer in answers) == revisions


async def code_of(call):
    """Return the status code of a call."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


# --- random requests ---


class Fuzz:
    """Makes random requests, some of which are valid."""

    def __init__(self, seed, session_ids, request_ids):
        self.rng = random.Random(seed)
        self.session_ids = session_ids
        self.request_ids = request_ids

    def request(self):
        """Return a method and the bytes of a request for it."""
        rpc = self.rng.choice([*MUTATING, *MUTATING, *READING])
        if self.rng.random() < 0.2:
            return rpc, self.rng.randbytes(self.rng.choice([1, 3, 17, 200]))
        name = f"agent_routing.v1.{rpc}Request"
        kind = descriptor_pool.Default().FindMessageTypeByName(name)
        message = message_factory.GetMessageClass(kind)()
        self.fill(message, depth=0)
        data = bytearray(message.SerializeToString())
        if data and self.rng.random() < 0.2:
            data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        # Larger requests are refused by the transport, without details.
        return (rpc, bytes(data)) if len(data) < REQUEST_BYTES_MAX else self.request()

    def fill(self, message, depth):
        """Set some fields of a message to random values."""
        share = self.rng.choice([0.2, 0.5, 0.9])
        for field in message.DESCRIPTOR.fields:
            is_vital = field.name in ("session_id", "request_id", "agent_id", "text")
            if self.rng.random() > (0.9 if is_vital else share):
                continue
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                if field.message_type.fields_by_name["value"].message_type is None:
                    getattr(message, field.name)[self.text(field.name)] = self.text("")
                elif depth < 5:
                    self.fill(getattr(message, field.name)[self.text("")], depth + 1)
            elif field.message_type is not None:
                if depth > 5:
                    continue
                if field.is_repeated:
                    for _ in range(self.rng.choice([0, 1, 3, 20])):
                        self.fill(getattr(message, field.name).add(), depth + 1)
                else:
                    inner = getattr(message, field.name)
                    inner.SetInParent()
                    self.fill(inner, depth + 1)
            elif field.is_repeated:
                getattr(message, field.name).extend(
                    self.scalar(field) for _ in range(self.rng.choice([0, 1, 40]))
                )
            else:
                setattr(message, field.name, self.scalar(field))

    def scalar(self, field):
        """Return a value of a field's type."""
        kind = field.cpp_type
        if kind == FieldDescriptor.CPPTYPE_STRING:
            if field.type == FieldDescriptor.TYPE_BYTES:
                return self.rng.randbytes(self.rng.choice([0, 5, 20_000]))
            return self.text(field.name)
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return self.rng.choice([*(v.number for v in field.enum_type.values), -1, 77])
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return self.rng.random() < 0.5
        if kind == FieldDescriptor.CPPTYPE_DOUBLE:
            return self.rng.choice(
                [0.0, -1.5, float("inf"), float("nan"), binary.unpack("d", b"\x01" * 8)[0]]
            )
        if kind == FieldDescriptor.CPPTYPE_INT32:
            return self.rng.choice([0, 1, -1, 999_999_999, 2**31 - 1, -(2**31)])
        return self.rng.choice([0, 1, 3, -1, 253_402_300_800, 2**63 - 1, -(2**63)])

    def text(self, name):
        """Return a text, often one that the field accepts."""
        strange = [
            "",
            "\0",
            "a b",
            "ñ\u202e\u0000",
            "x" * 5000,
            "[HANDOFF_TO:sales]",
            "/agent",
            "😀",
        ]
        fitting = {
            "session_id": self.session_ids,
            "request_id": self.request_ids,
            "turn_request_id": self.request_ids,
            "task_id": [*self.request_ids[:1], ""],
            "agent_id": ["front", "sales", "support", "owner", "SALES", "nobody"],
            "from_agent_id": ["front", "sales", ""],
            "user_id": ["ana", "ana", "ana", ""],
            "text": ["hello", "/supervisor go", "/reset", "/agent sales x", "/status"],
            "content_type": ["text/plain"],
            "uri": ["https://example.com/a"],
            "locale": ["es", "en-GB"],
            "page_token": ["MTow", "bm9uZQ", "MTox"],
        }.get(name)
        if fitting and self.rng.random() < 0.85:
            return self.rng.choice(fitting)
        return self.rng.choice(strange)


async def test_whatever_is_sent_the_server_has_an_answer(service):
    """1,280 random requests.

    Never UNKNOWN or INTERNAL, and every error has details with a reason.
    """
    chats = [await service.chat().with_agent(name, **ask()) for name in ("sales", "owner")]
    request_ids = [(await chat.say()).request_id for chat in chats for _ in range(3)]
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed of the requests: {seed}")  # noqa: T201 - shown where the test fails
    fuzz = Fuzz(seed, [*(chat.session_id for chat in chats), "fuzz"], request_ids)
    codes = {}

    async def send(rpc, data):
        try:
            await service.raw(rpc, data)
        except grpc.aio.AioRpcError as error:
            refused = read_refusal(error)
            assert refused.details_bytes < DETAILS_BYTES_MAX, (seed, rpc, data)
            return refused.code
        return "OK"

    for _ in range(FUZZ_REQUESTS // FUZZ_AT_ONCE):
        requests = [fuzz.request() for _ in range(FUZZ_AT_ONCE)]
        for code in await asyncio.gather(*(send(*request) for request in requests)):
            codes[code] = codes.get(code, 0) + 1
    assert not {"UNKNOWN", "INTERNAL", "DATA_LOSS", "UNAVAILABLE"} & codes.keys(), (seed, codes)
    # The test needs some accepted requests, and some that are refused for more than their form.
    assert codes["OK"] > 20, (seed, codes)
    assert {"INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED"} <= codes.keys(), (seed, codes)
    for chat in chats:
        revisions = [change.revision for change in await chat.changes()]
        assert revisions == list(range(1, len(revisions) + 1))
        assert (await chat.status(user_id="")).revision == revisions[-1]
