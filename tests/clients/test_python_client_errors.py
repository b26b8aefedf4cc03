"""Refusals arrive as errors of their reason's class, with everything the service said."""

import copy
import pickle

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, PreconditionFailure, RetryInfo
from google.rpc.status_pb2 import Status

from agent_routing import errors, outcomes
from agent_routing.retry import was_unanswered
from agent_routing.status_details import routing_error
from agent_routing.v1.error_reason_pb2 import ErrorReason

REQUEST_ID = "0198a6c0-6d02-7c3b-8f64-77d0c1a9be05"
REASONS = [
    name.removeprefix("ERROR_REASON_")
    for name in ErrorReason.DESCRIPTOR.values_by_name
    if "UNSPECIFIED" not in name
]


def error_info(reason, **metadata):
    """Return the detail that names the reason."""
    return ErrorInfo(reason=reason, domain="agent_routing", metadata=metadata)


async def failure_of(call):
    """Return the error that a call raises."""
    with pytest.raises(errors.RoutingError) as raised:
        await call
    return raised.value


def test_every_reason_of_the_contract_has_a_class_of_its_own():
    """A caller catches classes; without one, only the text would identify a reason."""
    assert set(errors.ERRORS_BY_REASON) == set(REASONS)
    assert len(set(errors.ERRORS_BY_REASON.values())) == len(REASONS)
    for kind in errors.ERRORS_BY_REASON.values():
        assert issubclass(kind, errors.RoutingError)
        assert kind.__doc__


@pytest.mark.parametrize("reason", REASONS)
async def test_each_reason_arrives_as_its_class(service, connect, reason):
    """With any code: the reason is more specific."""
    service.will(
        "Status",
        service.fails(grpc.StatusCode.FAILED_PRECONDITION, "so it is", error_info(reason, a="b")),
    )
    error = await failure_of(connect().status("chat-42"))
    assert type(error) is errors.ERRORS_BY_REASON[reason]
    assert (error.reason, error.message, str(error)) == (reason, "so it is", "so it is")
    assert error.code is grpc.StatusCode.FAILED_PRECONDITION
    assert dict(error.metadata) == {"a": "b"}
    assert (error.method, error.request_id) == ("Status", "")


@pytest.mark.parametrize(
    ("code", "family"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, errors.InvalidRequest),
        (grpc.StatusCode.NOT_FOUND, errors.NotFound),
        (grpc.StatusCode.FAILED_PRECONDITION, errors.PreconditionFailed),
        (grpc.StatusCode.PERMISSION_DENIED, errors.PermissionDenied),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.ResourceExhausted),
        (grpc.StatusCode.UNAVAILABLE, errors.Unavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.DeadlineExceeded),
        (grpc.StatusCode.INTERNAL, errors.InternalError),
        (grpc.StatusCode.UNIMPLEMENTED, errors.Unimplemented),
        (grpc.StatusCode.UNAUTHENTICATED, errors.Unauthenticated),
        (grpc.StatusCode.OUT_OF_RANGE, errors.RoutingError),
        (grpc.StatusCode.UNKNOWN, errors.RoutingError),
    ],
)
async def test_a_reason_of_a_newer_service_is_its_codes_family(service, connect, code, family):
    """A client works with the next release of the service."""
    service.will("Status", service.fails(code, "new", error_info("QUANTUM_DECOHERENCE")))
    error = await failure_of(connect().status("chat-42"))
    assert type(error) is family
    assert error.reason == "QUANTUM_DECOHERENCE"


async def test_a_refused_handoff_names_every_rule(service, connect):
    """The agent's model reads them all at once, and picks another target."""
    service.will(
        "SetActiveAgent",
        service.fails(
            grpc.StatusCode.FAILED_PRECONDITION,
            "handoff from coordinator to tax_expert refused by 2 rules",
            error_info(
                "HANDOFF_REFUSED",
                agent_id="tax_expert",
                from_agent_id="coordinator",
                rules="entitled,channel",
            ),
            PreconditionFailure(
                violations=[
                    PreconditionFailure.Violation(
                        type="entitled", subject="tax_expert", description="lacks plan:premium"
                    ),
                    PreconditionFailure.Violation(
                        type="channel", subject="tax_expert", description="serves web"
                    ),
                ]
            ),
        ),
    )
    error = await failure_of(
        connect().set_active_agent("chat-42", "tax_expert", request_id=REQUEST_ID)
    )
    assert isinstance(error, errors.HandoffRefused)
    assert error.rules == ("entitled", "channel")
    assert (error.agent_id, error.from_agent_id) == ("tax_expert", "coordinator")
    assert error.violations[0] == errors.Violation("entitled", "tax_expert", "lacks plan:premium")
    assert error.request_id == REQUEST_ID


async def test_bad_fields_are_all_named(service, connect):
    """A form shows every mistake at once."""
    service.will(
        "Route",
        service.fails(
            grpc.StatusCode.INVALID_ARGUMENT,
            "task_id is not a UUID",
            error_info("INVALID_FIELD", field="task_id", fields="2"),
            BadRequest(
                field_violations=[
                    BadRequest.FieldViolation(field="task_id", description="not a UUID"),
                    BadRequest.FieldViolation(field="items[1].uri", description="too long"),
                ]
            ),
        ),
    )
    error = await failure_of(connect().route("hello", task_id="42"))
    assert isinstance(error, errors.InvalidField)
    assert error.fields == ("task_id", "items[1].uri")
    assert [each.detail for each in error.violations] == ["not a UUID", "too long"]
    assert error.request_id, "the id that the client made, for the log"


async def test_revisions_and_ids_are_read_from_the_metadata(service, connect):
    """A caller decides by values, never by the message's text."""
    service.will(
        "ClearActiveAgent",
        service.fails(
            grpc.StatusCode.ABORTED,
            "moved on",
            error_info("REVISION_MISMATCH", expected_revision="17", revision="18"),
        ),
        service.fails(
            grpc.StatusCode.ABORTED, "busy", error_info("REVISION_MISMATCH", revision="x")
        ),
    )
    service.will(
        "Status",
        service.fails(
            grpc.StatusCode.OUT_OF_RANGE,
            "",
            error_info("REVISION_COMPACTED", oldest_revision="101"),
        ),
        service.fails(grpc.StatusCode.NOT_FOUND, "", error_info("UNKNOWN_TASK", task_id="t")),
        service.fails(
            grpc.StatusCode.NOT_FOUND, "", error_info("UNKNOWN_AGENT", agent_id="biling")
        ),
        service.fails(grpc.StatusCode.NOT_FOUND, "", error_info("UNKNOWN_SESSION", session_id="s")),
        service.fails(
            grpc.StatusCode.FAILED_PRECONDITION, "", error_info("TASK_OPEN", open_task_id="o")
        ),
        service.fails(
            grpc.StatusCode.FAILED_PRECONDITION, "", error_info("TURN_OPEN", request_id="r")
        ),
        service.fails(
            grpc.StatusCode.PERMISSION_DENIED, "", error_info("SCOPE_MISSING", scope="admin")
        ),
        service.fails(
            grpc.StatusCode.DATA_LOSS, "", error_info("STATE_CORRUPT", error_id="7f3a9c")
        ),
        service.fails(grpc.StatusCode.INTERNAL, "", error_info("INTERNAL", error_id="7f3a9d")),
        service.fails(
            grpc.StatusCode.RESOURCE_EXHAUSTED, "", error_info("WATCH_TOO_SLOW", revision="118")
        ),
    )
    client = connect()
    mismatch = await failure_of(client.clear_active_agent("chat-42", expected_revision=17))
    assert (mismatch.expected, mismatch.actual) == (17, 18)
    unclear = await failure_of(client.clear_active_agent("chat-42"))
    assert (unclear.expected, unclear.actual) == (None, None)
    for name, value in [
        ("oldest_revision", 101),
        ("task_id", "t"),
        ("agent_id", "biling"),
        ("session_id", "s"),
        ("open_task_id", "o"),
        ("open_request_id", "r"),
        ("scope", "admin"),
        ("error_id", "7f3a9c"),
        ("error_id", "7f3a9d"),
        ("revision", 118),
    ]:
        error = await failure_of(client.status("chat-42"))
        assert getattr(error, name) == value


async def test_how_long_to_wait_is_a_timedelta(service, connect):
    """An overloaded server says when to repeat; the caller decides whether to."""
    service.will(
        "Status",
        service.fails(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "the server has 256 calls waiting; retry after 1 s",
            error_info("OVERLOADED", limit="calls"),
            RetryInfo(retry_delay=Duration(seconds=1, nanos=500_000_000)),
        ),
    )
    error = await failure_of(connect().status("chat-42"))
    assert isinstance(error, errors.Overloaded)
    assert error.retry_after.total_seconds() == 1.5
    assert error.attempts == 1


async def test_completing_what_the_service_never_saw_is_an_unknown_request(service, connect):
    """The service does not know a degraded decision; completing it must not look like success."""
    service.will(
        "CompleteTurn",
        service.fails(
            grpc.StatusCode.NOT_FOUND,
            f'request {REQUEST_ID} is not known in session "chat-42"',
            error_info("UNKNOWN_REQUEST", request_id=REQUEST_ID, session_id="chat-42"),
        ),
    )
    call = connect().complete_turn("chat-42", REQUEST_ID, "billing", outcomes.proceed())
    error = await failure_of(call)
    assert isinstance(error, errors.UnknownRequest)
    assert error.request_id == REQUEST_ID


@pytest.mark.parametrize(
    "step",
    [
        lambda service: service.fails(
            grpc.StatusCode.NOT_FOUND,
            "gone",
            trailing=(("grpc-status-details-bin", b"\xff\xff not a Status"),),
        ),
        lambda service: service.fails(
            grpc.StatusCode.NOT_FOUND,
            "gone",
            status=Status(details=[{"type_url": "x/google.rpc.ErrorInfo", "value": b"\xff"}]),
        ),
        lambda service: service.fails(
            grpc.StatusCode.NOT_FOUND, "gone", ErrorInfo(reason="UNKNOWN_TASK", domain="proxy.dev")
        ),
        lambda service: service.fails(
            grpc.StatusCode.NOT_FOUND,
            "gone",
            status=Status(details=[{"type_url": "x/of.another.Kind", "value": b"\x01"}]),
        ),
        lambda service: service.fails(grpc.StatusCode.NOT_FOUND, "gone"),
    ],
    ids=["bytes", "broken-detail", "other-domain", "other-kind", "none"],
)
async def test_details_that_cannot_be_read_hide_nothing(service, connect, step):
    """The code still says what happened; another domain's reason is not reported as ours."""
    service.will("Status", step(service))
    error = await failure_of(connect().status("chat-42"))
    assert type(error) is errors.NotFound
    assert (error.reason, error.violations) == ("", ())
    assert "gone" in error.message


async def test_the_largest_details_arrive_whole(service, connect):
    """Details take up to 4 KB, plus a long message in which each letter takes nine bytes."""
    rules = [
        PreconditionFailure.Violation(type=f"rule_{number}", description="x" * 150)
        for number in range(22)
    ]
    details = PreconditionFailure(violations=rules)
    assert 3_500 < details.ByteSize() < 4_096
    words = "税" * 500
    service.will(
        "Status",
        service.fails(
            grpc.StatusCode.FAILED_PRECONDITION, words, error_info("HANDOFF_REFUSED"), details
        ),
    )
    error = await failure_of(connect().status("chat-42"))
    assert len(error.rules) == 22
    assert error.message == words


async def test_errors_survive_pickling_and_copying(service, connect):
    """Task queues carry them to another process."""
    service.will(
        "Status",
        service.fails(
            grpc.StatusCode.FAILED_PRECONDITION,
            "no",
            error_info("HANDOFF_REFUSED", agent_id="a"),
            PreconditionFailure(violations=[PreconditionFailure.Violation(type="entitled")]),
            RetryInfo(retry_delay=Duration(seconds=1)),
        ),
    )
    error = await failure_of(connect().status("chat-42"))
    error.add_note("while testing")
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is errors.HandoffRefused
        assert vars(other) == vars(error)
        assert str(other) == "no"


async def test_a_message_above_the_channels_limit_is_too_large(service, connect):
    """It must not be read as overload: waiting does not help."""
    service.stop()
    service.options = [*service.options, ("grpc.max_receive_message_length", 1_000)]
    service.start()
    error = await failure_of(connect().route("x" * 2_000))
    assert type(error) is errors.TooLarge
    assert "larger than max" in error.message
    assert "send large items by uri" in error.message


@pytest.mark.parametrize(
    ("code", "words"),
    [
        # grpc.aio reports a connection that is lost during a write as an internal error.
        ("INTERNAL", "Internal error from Core"),
        # A proxy whose server was killed ends the stream without a status, or resets it.
        ("UNKNOWN", "Stream removed (Data frame with END_STREAM flag received)"),
        ("INTERNAL", "Received RST_STREAM with error code 2"),
    ],
)
def test_a_call_that_was_broken_off_counts_as_unanswered(code, words):
    """The service did not answer; the call is repeated."""

    class BrokenOff(grpc.RpcError):
        def code(self):
            return grpc.StatusCode[code]

        def details(self):
            return words

        def trailing_metadata(self):
            return None

    error = routing_error(
        BrokenOff(),
        method="RouteStream",
        target="127.0.0.1:1",
        request_id="",
        timeout_s=1,
        attempts=1,
    )
    assert isinstance(error, errors.Unavailable)
    assert was_unanswered(error)
