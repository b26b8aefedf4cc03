"""A million inputs for every RPC: bytes by atheris, fields by Hypothesis, a part over the wire.

Checked: no INTERNAL, no UNKNOWN, no hang, no crash, and no internal detail in an answer.
"""

import asyncio
import importlib.util
import json
import sys
import time

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st

from routing_service.cli.embedded_server import server_in_thread
from tests.torture.fuzzing import (
    PATHS,
    RARE,
    REGISTRY,
    REQUESTS,
    SESSIONS,
    TASK,
    WEIGHTED_PATHS,
    Verdicts,
    message_class,
    problems_of,
    seeds,
)
from tests.torture.in_process import SILENT, UNTIL_READ, Answer, InProcess
from tests.torture.server_process import ROOT

BYTES_RUNS = 840_000
FIELDS_RUNS = 150_000
WIRE_RUNS = 10_000
"""Together a million. Over the wire an input costs ten times as much, and meets gRPC alone on top:
what is larger than a message may be, and metadata."""

FIELDS_PER_SEED = 4_000
"""Hypothesis remembers what it has drawn; beyond this a fresh start is quicker. As often the server
is a new one: a session with thousands of turns is slow to list."""

SEED = 20_260_101

CALL_TIMEOUT_S = 60
SILENT_TIMEOUT_S = 0.2

needs_atheris = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="atheris is not made for this platform"
)


@pytest.fixture
def registry_file(tmp_path):
    """Write the registry."""
    path = tmp_path / "agents.yaml"
    path.write_text(REGISTRY, "utf-8")
    return str(path)


# --- fields ---

IDS = {
    "session_id": SESSIONS,
    "request_id": REQUESTS,
    "turn_request_id": REQUESTS,
    "task_id": (TASK, ""),
    "agent_id": (
        "front",
        "sales",
        "support",
        "owner",
        "people",
        "bench",
        "SALES",
        "Sales Team",
        "nobody",
        "s\u0430les",
    ),
    "agent_ids": ("bench", "sales"),
    "from_agent_id": ("front", "sales", ""),
    "claimant": ("bea", "cem"),
    "worker_id": ("w1",),
    "user_id": ("ana", "ben", ""),
    "owner": ("ana", ""),
    "tenant": ("default", "*", "other", ""),
    "text": (
        "hello",
        "/supervisor go",
        "/reset",
        "/agent sales x",
        "/status",
        "/agent people help",
        "/agent bench go",
        "/tasks",
        "/task 1 now",
        "[HANDOFF_TO:sales]",
    ),
    "content_type": ("text/plain", "image/png"),
    "uri": ("https://example.com/a",),
    "locale": ("es", "en-GB"),
    "channel": ("web",),
    "kinds": ("agent_handoff", "message_routed"),
    "page_token": ("MTow", "bm9uZQ", "MTox", "AAAA", "LTE", "OTk5OTk5OTk5OTk5OTk5OTk5OTk5"),
    "cursor": ("AAAA", "bm9uZQ"),
}
ODD_TEXTS = (
    "",
    "\0",
    "a b",
    "ñ\u202e",
    "x" * 5_000,
    "😀" * 40,
    "\u200b",
    "\ufeff",
    "\ud7ff",
    "'\"\\",
)
WHOLE = (0, 1, 2, 3, -1, 100, 999_999_999, 10**9, 253_402_300_799, 253_402_300_800, -62_135_596_801)
REALS = (0.0, -1.5, float("inf"), float("nan"), 5e-324, 1.8e308)


def texts(name, is_tame):
    """Texts for a field: a valid one, or any."""
    fitting = st.sampled_from(IDS.get(name, ("plain",)))
    if is_tame:
        return fitting
    return st.one_of(fitting, fitting, st.sampled_from(ODD_TEXTS), st.text(max_size=20))


def values(field, depth, is_tame):
    """Values of one field."""
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_MESSAGE:
        return messages(field.message_type, is_tame, depth + 1)
    if kind == FieldDescriptor.CPPTYPE_STRING:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return st.binary(max_size=40)
        return texts(field.name, is_tame)
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        odd = () if is_tame else (-1, 77)
        return st.sampled_from([*(v.number for v in field.enum_type.values), *odd])
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return st.sampled_from(REALS[:2] if is_tame else REALS)
    if is_tame:
        return st.sampled_from((0, 1, 2, 3))
    bits = 31 if kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32) else 63
    lowest = 0 if "UINT" in str(kind) else -(2**bits)
    bounded = [number for number in WHOLE if lowest <= number < 2**bits]
    return st.one_of(st.sampled_from(bounded), st.integers(lowest, 2**bits - 1))


DEPTH_MAX = 6
_made = {}


def messages(descriptor, is_tame, depth=0):
    """Messages of a type as dictionaries, each field there or not.

    is_tame: each value is valid for some such field, so that many requests are valid.
    """
    key = descriptor.full_name, is_tame, depth
    if key not in _made:
        fields = {}
        if depth < DEPTH_MAX:
            for field in descriptor.fields:
                drawn = st.deferred(lambda field=field: values(field, depth, is_tame))
                if field.message_type is not None and field.message_type.GetOptions().map_entry:
                    keyed = field.message_type.fields_by_name["value"]
                    drawn = st.dictionaries(
                        texts("key", is_tame),
                        st.deferred(lambda keyed=keyed: values(keyed, depth, is_tame)),
                        max_size=3,
                    )
                elif field.is_repeated:
                    drawn = st.lists(drawn, max_size=3)
                fields[field.name] = drawn
        _made[key] = st.fixed_dictionaries({}, optional=fields)
    return _made[key]


REQUEST_TYPES = {path: message_class(path) for path in PATHS}


@st.composite
def requests(draw):
    """An RPC, and a request of its type."""
    path = draw(st.sampled_from(WEIGHTED_PATHS))
    made = REQUEST_TYPES[path]()
    fill(made, draw(messages(made.DESCRIPTOR, is_tame=draw(st.booleans()))))
    return path, made.SerializeToString()


def fill(message, drawn):
    """Set a message's fields; in a oneof the last one stays."""
    for name, value in drawn.items():
        field = message.DESCRIPTOR.fields_by_name[name]
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            target = getattr(message, name)
            for key, each in value.items():
                if isinstance(each, dict):
                    fill(target[key], each)
                else:
                    target[key] = each
        elif field.is_repeated and field.message_type is not None:
            for each in value:
                fill(getattr(message, name).add(), each)
        elif field.message_type is not None:
            inner = getattr(message, name)
            inner.SetInParent()
            fill(inner, value)
        elif field.is_repeated:
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)


def draw_requests(seed, runs, take):
    """Pass a number of drawn requests to a function."""

    @with_seed(seed)
    @settings(
        max_examples=runs,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(requests())
    def each(request):
        take(*request)

    each()


def fuzz_fields(registry_file, runs, seed):
    """Send drawn requests to an in-process server, which is replaced now and then."""
    verdicts = Verdicts()
    with asyncio.Runner() as runner:
        while verdicts.inputs < runs:
            server = runner.run(start_with_sessions(registry_file))

            def take(path, data, server=server):
                verdicts.take(path, data, runner.run(server.send(path, data)))

            draw_requests(seed, min(FIELDS_PER_SEED, runs - verdicts.inputs), take)
            verdicts.problems += [f"failed: {error!r}" for error in server.failures]
            runner.run(server.stop())
            seed += 1
    return verdicts


async def start_with_sessions(registry_file):
    """Start a server that has some sessions."""
    server = await InProcess.start(registry_file)
    for path, data in seeds():
        await server.send(path, data)
    return server


def told(what, verdicts, begun_s):
    """Print the figures of one part."""
    answered = ", ".join(f"{code} {count:,}" for code, count in verdicts.codes.most_common())
    print(  # noqa: T201 - the figures
        f"\nfuzz {what}: {verdicts.inputs:,} inputs to {len(verdicts.methods)} RPCs in "
        f"{time.monotonic() - begun_s:.0f} s; problems {len(verdicts.problems)}; {answered}"
    )


def hold(verdicts, runs):
    """Check the result: enough inputs, no problems, and all kinds of outcomes."""
    assert verdicts.problems == []
    assert verdicts.inputs >= runs
    # The test needs some accepted requests, and most of the RPCs.
    names = {path.rpartition("/")[2] for path in PATHS}
    # Drawing varies a little: of a few hundred inputs, a few RPCs may have had none.
    assert len(names - RARE - verdicts.methods.keys()) <= (0 if runs >= WIRE_RUNS else 3)
    assert verdicts.codes["OK"] > runs / 50
    wanted = {"INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "FAILED_PRECONDITION"}
    assert (wanted if runs >= WIRE_RUNS else {"INVALID_ARGUMENT"}) <= verdicts.codes.keys()


def test_any_fields_have_an_answer(registry_file):
    """The short version."""
    hold(fuzz_fields(registry_file, 1_500, SEED), 1_500)


@pytest.mark.torture
@pytest.mark.timeout(7_200)
def test_any_fields_have_an_answer_for_long(registry_file):
    """A seventh of the million."""
    begun_s = time.monotonic()
    verdicts = fuzz_fields(registry_file, FIELDS_RUNS, SEED)
    told("fields", verdicts, begun_s)
    hold(verdicts, FIELDS_RUNS)


# --- bytes ---


async def fuzz_bytes(registry_file, tmp_path, runs, seed):
    """Run the fuzzer in a separate process: it instruments its imports, and exits."""
    out = tmp_path / "verdicts.json"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.torture.byte_fuzzer",
        f"--runs={runs}",
        f"--seed={seed}",
        f"--registry={registry_file}",
        f"--out={out}",
        cwd=ROOT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, said[-3_000:].decode(errors="replace")
    found = json.loads(await asyncio.to_thread(out.read_text, "utf-8"))
    verdicts = Verdicts(problems=found["problems"])
    verdicts.codes.update(found["codes"])
    verdicts.methods.update(found["methods"])
    return verdicts


@needs_atheris
async def test_any_bytes_have_an_answer(registry_file, tmp_path):
    """The short version."""
    hold(await fuzz_bytes(registry_file, tmp_path, 4_000, SEED), 4_000)


@needs_atheris
@pytest.mark.torture
@pytest.mark.timeout(7_200)
async def test_any_bytes_have_an_answer_for_long(registry_file, tmp_path):
    """Most of the million."""
    begun_s = time.monotonic()
    verdicts = await fuzz_bytes(registry_file, tmp_path, BYTES_RUNS, SEED)
    told("bytes", verdicts, begun_s)
    hold(verdicts, BYTES_RUNS)


# --- over the wire ---

METADATA = (
    (),
    (("agent-routing-tenant", "default"),),
    (("agent-routing-tenant", "not a tenant"),),
    (("agent-routing-tenant", "x" * 200),),
    (("authorization", "Bearer none"), ("x-bin", b"\xff\x00")),
    (("grpc-previous-rpc-attempts", "many"), ("te", "trailers")),
)


def send_over_the_wire(channel, path, data, metadata):
    """Call an RPC as a client would; read a stream a little, then cancel it."""
    name = path.rpartition("/")[2]
    answer = Answer()
    try:
        if name in {"ServerReflectionInfo", "RouteStream"}:
            call = channel.stream_stream(path)(
                iter([data]), timeout=CALL_TIMEOUT_S, metadata=metadata
            )
            answer.bodies += [body for _, body in zip(range(1), call, strict=False)]
            call.cancel()
        elif name in UNTIL_READ | SILENT | {"ExportUser"}:
            timeout_s = SILENT_TIMEOUT_S if name in SILENT else CALL_TIMEOUT_S
            call = channel.unary_stream(path)(data, timeout=timeout_s, metadata=metadata)
            answer.bodies += [body for _, body in zip(range(1), call, strict=False)]
            call.cancel()
        else:
            call = channel.unary_unary(path)
            answer.bodies += [call(data, timeout=CALL_TIMEOUT_S, metadata=metadata)]
    except grpc.RpcError as error:
        if name in SILENT and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return answer
        answer.code, answer.message = error.code().name, error.details()
        answer.details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
    return answer


def fuzz_the_wire(registry_file, runs, seed):
    """Send drawn requests, every second one damaged, to a real server."""
    verdicts = Verdicts()
    with (
        server_in_thread(registry_file, "memory:") as address,
        grpc.insecure_channel(address) as channel,
    ):
        for path, data in seeds():
            send_over_the_wire(channel, path, data, ())

        def take(path, data):
            number = verdicts.inputs
            if number % 2 and data:
                place = number % len(data)
                data = data[:place] + bytes([data[place] ^ (1 << number % 8)]) + data[place + 1 :]
            metadata = METADATA[number // 2 % len(METADATA)]
            verdicts.take(path, data, send_over_the_wire(channel, path, data, metadata))

        draw_requests(seed, runs, take)
        # The server works as before.
        for path, data in seeds()[:3]:
            answer = send_over_the_wire(channel, path, data, (("agent-routing-tenant", "after"),))
            assert answer.code == "OK"
    return verdicts


def test_any_request_over_the_wire_has_an_answer(registry_file):
    """The short version."""
    hold(fuzz_the_wire(registry_file, 600, SEED), 600)


@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_any_request_over_the_wire_has_an_answer_for_long(registry_file):
    """A hundredth of the million, through gRPC itself."""
    begun_s = time.monotonic()
    verdicts = fuzz_the_wire(registry_file, WIRE_RUNS, SEED)
    told("over the wire", verdicts, begun_s)
    hold(verdicts, WIRE_RUNS)


# --- the check itself ---


@pytest.mark.parametrize(
    "answer",
    [
        Answer(raised=KeyError("x")),
        Answer("INTERNAL", "internal error"),
        Answer("UNKNOWN", "Unexpected <class 'ValueError'>"),
        Answer("INVALID_ARGUMENT", "ValueError: x", b""),
        Answer("INVALID_ARGUMENT", "without details"),
        Answer(bodies=[b"\xff\xff"]),
    ],
)
def test_bad_answer_is_found(answer):
    """A check that never fails would make the million worthless."""
    assert list(problems_of("/agent_routing.v1.RoutingService/Route", b"", answer))
