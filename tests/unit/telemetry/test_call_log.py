import asyncio
import io
import json
import logging
import os
import threading
from datetime import datetime, timedelta

import pytest
import structlog

from routing_service.storage.store import SessionKey, StoreCorrupt, StoreUnavailable, TooLarge
from routing_service.telemetry.call_log import (
    PRIVATE_FIELDS,
    CallLog,
    LineWriter,
    configure_logging,
    log_failure,
)
from routing_service.telemetry.call_record import CallRecord, counted_fields
from routing_service.telemetry.log_privacy import NOT_LOGGED, IdHashes
from routing_service.telemetry.metrics import COUNTERS, LATENCY_BOUNDS_S, Metrics

RECORD = {
    "method": "Route",
    "tenant": "default",
    "session_id": "chat-42",
    "task_id": "0198a6c0-5f3e-7a51-9c1d-2f6f0a4b7e11",
    "request_id": "0198a6c0-5f3e-7a51-9c1d-2f6f0a4b7e12",
    "user_id": "ana",
    "agent_id": "invoices",
    "previous_agent_id": "coordinator",
    "reason": "sticky",
    "dispatched": True,
    "supervisor_bypassed": True,
    "revision": 7,
    "code": "OK",
    "duration_ms": 1.23456,
}


class Screen(io.TextIOWrapper):
    """A stream that takes itself for a terminal, or not."""

    def __init__(self, *, is_terminal=False):
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal

    @property
    def text(self):
        return self.buffer.getvalue().decode()

    @property
    def lines(self):
        return [json.loads(line) for line in self.text.splitlines()]


@pytest.fixture
def screen():
    """Where lines go."""
    return Screen()


def test_a_decision_is_one_line_with_all_ids_and_the_reason(screen):
    """Operators can find a decision by any of its ids."""
    log = CallLog(configure_logging("info", "json", screen), Metrics())
    log.finished(CallRecord(**RECORD))
    (line,) = screen.lines
    written = datetime.fromisoformat(line.pop("timestamp"))
    assert written.utcoffset() == timedelta(0)
    assert line == RECORD | {"event": "decision", "level": "info", "duration_ms": 1.235}


def test_lines_of_several_processes_name_their_process(screen):
    """Otherwise nobody can tell which of the processes that share a log is in trouble."""
    log = CallLog(configure_logging("info", "json", screen, pid=4711), Metrics())
    log.finished(CallRecord(**RECORD))
    log.finished(CallRecord("Route", code="UNAVAILABLE"))
    structlog.get_logger().warning("store_failed")
    structlog.get_logger().info("process_ended", pid=12)
    assert [line["pid"] for line in screen.lines] == [4711, 4711, 4711, 12]


async def test_lines_of_decisions_are_written_together_and_soon(screen):
    """A system call per line would cost a busy server more than the line itself."""
    log = CallLog(configure_logging("info", "json", screen), Metrics())
    for revision in range(1, 4):
        log.finished(CallRecord(**RECORD | {"revision": revision}))
    assert not screen.text
    async with asyncio.timeout(30):
        while not screen.text:  # noqa: ASYNC110 - a stream tells nobody
            await asyncio.sleep(0.001)
    assert [line["revision"] for line in screen.lines] == [1, 2, 3]


async def test_a_warning_is_written_at_once_behind_the_lines_that_wait(screen):
    """After a crash the log has the problem, and the lines before it."""
    log = CallLog(configure_logging("info", "json", screen), Metrics())
    log.finished(CallRecord(**RECORD))
    log.finished(CallRecord("Route", code="UNAVAILABLE"))
    assert [line["code"] for line in screen.lines] == ["OK", "UNAVAILABLE"]
    log.finished(CallRecord(**RECORD))
    structlog.get_logger().warning("store_failed")
    assert [line["event"] for line in screen.lines[2:]] == ["decision", "store_failed"]


def test_a_line_leaves_out_what_the_call_did_not_have(screen):
    """Bytes of log lines cost money."""
    log = CallLog(configure_logging("info", "json", screen), Metrics())
    log.finished(CallRecord("Route"))
    (line,) = screen.lines
    assert line.keys() == {"timestamp", "level", "event", "method", "code", "duration_ms"}


def test_a_refused_handoff_names_its_rules(screen):
    """Rules that refuse too often can be found in the log."""
    log = CallLog(configure_logging("info", "json", screen), Metrics())
    rules = ("entitled", "channel")
    log.finished(
        CallRecord(
            "SetActiveAgent",
            code="FAILED_PRECONDITION",
            error_reason="HANDOFF_REFUSED",
            refused_rules=rules,
        )
    )
    (line,) = screen.lines
    assert line["refused_rules"] == ["entitled", "channel"]
    assert line["error_reason"] == "HANDOFF_REFUSED"


@pytest.mark.parametrize(
    ("method", "code", "level"),
    [
        ("Route", "OK", "info"),
        ("Status", "OK", "debug"),
        ("ListTurns", "OK", "debug"),
        ("Route", "NOT_FOUND", "info"),
        ("Status", "NOT_FOUND", "info"),
        ("Route", "UNAVAILABLE", "warning"),
        ("Status", "PERMISSION_DENIED", "warning"),
        ("Route", "UNAUTHENTICATED", "warning"),
        ("Route", "RESOURCE_EXHAUSTED", "warning"),
        ("Route", "DEADLINE_EXCEEDED", "warning"),
        ("Route", "DATA_LOSS", "error"),
        ("Status", "INTERNAL", "error"),
    ],
)
def test_a_line_has_the_level_of_what_was_lost(screen, method, code, level):
    """Callers' mistakes do not alert operators; lost work does."""
    log = CallLog(configure_logging("debug", "json", screen), Metrics())
    log.finished(CallRecord(method, code=code))
    assert screen.lines[0]["level"] == level


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_ids_are_hashed_alike_in_every_line_of_one_key(screen, log_format):
    """A user's calls can be followed, but not linked to the user without the key."""
    hashes = IdHashes(b"k" * 32)
    configured = configure_logging("debug", log_format, screen, hashes=hashes)
    log = CallLog(configured, Metrics())
    log.finished(CallRecord(**RECORD))
    log.finished(CallRecord(**{**RECORD, "code": "PERMISSION_DENIED", "peer": "ipv4:10.1.2.3:4"}))
    log_failure(CallRecord(**RECORD), StoreCorrupt('session "chat-42" cannot be read'))
    structlog.get_logger("x").warning("session_not_swept", session_id="chat-42", error="'chat-42'")
    assert screen.text.count(hashes.hide("chat-42")) == 6
    assert hashes.hide("ana") in screen.text
    for private in ("chat-42", '"ana"', "user_id=ana", "10.1.2.3"):
        assert private not in screen.text
    assert RECORD["task_id"] in screen.text


def test_a_caller_who_is_kept_out_has_one_line_that_says_so(screen):
    """One audit line with caller, address, RPC and reason, at every log level but error."""
    log = CallLog(configure_logging("warning", "json", screen), Metrics())
    log.finished(
        CallRecord(
            "Status",
            user_id="eve",
            session_id="chat-42",
            peer="ipv4:10.1.2.3:4",
            code="PERMISSION_DENIED",
            error_reason="OWNER_MISMATCH",
        )
    )
    (line,) = screen.lines
    assert line["event"] == "call_refused"
    assert line["peer"] == "ipv4:10.1.2.3:4"
    assert (line["user_id"], line["error_reason"]) == ("eve", "OWNER_MISMATCH")


def test_reads_are_not_logged_by_default_but_counted(screen):
    """A screen that polls Status must not fill the log."""
    metrics = Metrics()
    log = CallLog(configure_logging("info", "json", screen), metrics)
    log.finished(CallRecord("Status"))
    assert screen.text == ""
    assert metrics.snapshot().counters["calls_total"] == {("Status", "OK"): 1}


def test_a_line_break_in_an_id_does_not_make_a_second_line(screen):
    """User ids come from outside: a forged line would look like one of ours."""
    log = CallLog(configure_logging("info", "json", screen), Metrics())
    log.finished(CallRecord("Route", user_id='ana\n{"event":"decision"}\r\x1b[2J'))
    assert len(screen.text.splitlines()) == 1
    assert screen.lines[0]["user_id"] == 'ana\n{"event":"decision"}\r\x1b[2J'


@pytest.mark.parametrize("name", sorted(PRIVATE_FIELDS))
@pytest.mark.parametrize("log_format", ["json", "console"])
def test_what_users_say_and_what_signs_in_is_never_logged(screen, name, log_format):
    """Even if such a field is added by mistake, the line does not contain it."""
    configure_logging("debug", log_format, screen)
    structlog.get_logger("x").info("something_happened", **{name: "my salary is 100"})
    assert "salary" not in screen.text
    assert NOT_LOGGED in screen.text


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_trace_has_no_local_variables(screen, log_format):
    """Local variables hold requests, and so users' texts."""
    configure_logging("info", log_format, screen)

    def fails():
        said = "my salary is " + str(50 + 50)
        raise KeyError(len(said))

    try:
        fails()
    except KeyError:
        structlog.get_logger("x").exception("something_failed")
    assert f"KeyError: {NOT_LOGGED}" in screen.text
    assert "in fails" in screen.text
    assert "salary is 100" not in screen.text


@pytest.mark.parametrize("error_words", [False, True])
def test_a_bug_is_logged_under_the_id_that_the_caller_gets(screen, error_words):
    """The caller's id leads to the cause; the error's text is logged only if enabled."""
    configure_logging("info", "json", screen, error_words=error_words)
    error_id = log_failure(CallRecord(**RECORD), ZeroDivisionError("secret cause"))
    (line,) = screen.lines
    assert (line["event"], line["level"], line["error_id"]) == (
        "internal_error",
        "error",
        error_id,
    )
    assert line["session_id"] == "chat-42"
    assert line["request_id"] == RECORD["request_id"]
    said = "secret cause" if error_words else NOT_LOGGED
    assert f"ZeroDivisionError: {said}" in line["exception"]
    assert error_id != log_failure(CallRecord(**RECORD), ZeroDivisionError())


@pytest.mark.parametrize(
    ("error", "level", "traced"),
    [
        (StoreUnavailable("the disk is full"), "warning", False),
        (TooLarge("state", 2, 1), "warning", False),
        (StoreCorrupt(f'session "{SessionKey("a", "b")}" cannot be read'), "error", True),
    ],
)
def test_an_outage_of_the_store_does_not_bury_the_log_in_traces(screen, error, level, traced):
    """Each call fails during an outage, and the store has logged the cause. Lost data is traced."""
    configure_logging("info", "json", screen)
    log_failure(CallRecord(**RECORD), error)
    (line,) = screen.lines
    assert (line["event"], line["level"]) == ("store_failed", level)
    assert ("exception" in line) is traced


def test_libraries_say_warnings_in_our_form_and_no_less(screen):
    """One stream, one format: a traceback of gRPC's own would break log readers."""
    configure_logging("debug", "json", screen)
    configure_logging("debug", "json", screen)
    logging.getLogger("grpc.aio").info("chatter")
    logging.getLogger("grpc.aio").error("connection of %s failed", "x", exc_info=OSError("gone"))
    (line,) = screen.lines
    assert line["event"] == "library_log"
    assert line["logger"] == "grpc.aio"
    assert line["message"] == "connection of x failed"
    assert "OSError: gone" in line["exception"]


@pytest.mark.parametrize("error_words", [False, True])
def test_an_error_that_nobody_awaited_is_logged(screen, error_words):
    """Asyncio says such things through logging alone, and shows the error in its message too."""
    configure_logging("info", "json", screen, error_words=error_words)

    async def main():
        async def fails():
            raise ValueError("lo" + "st")

        task = asyncio.create_task(fails())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        del task

    asyncio.run(main())
    (line,) = screen.lines
    assert line["message"].startswith("Task exception was never retrieved")
    assert "ValueError: " in line["exception"]
    assert ("lost" in screen.text) is error_words


def test_a_terminal_gets_lines_for_people_and_a_pipe_json():
    """Users read the terminal; collectors parse JSON."""
    terminal, pipe = Screen(is_terminal=True), Screen()
    for stream in (terminal, pipe):
        log = CallLog(configure_logging("info", "auto", stream), Metrics())
        log.finished(CallRecord(**RECORD))
        structlog.get_logger("x").info("server_started", address="127.0.0.1:1")
    assert [line["event"] for line in pipe.lines] == ["decision", "server_started"]
    assert "decision" in terminal.text
    assert "chat-42" in terminal.text
    with pytest.raises(json.JSONDecodeError):
        assert terminal.lines


@pytest.mark.parametrize(
    "value", ["half a pair: \ud800", object(), {1: {2}}, b"\xff", float("nan")]
)
def test_whatever_is_logged_makes_a_line(screen, value):
    """A failing log line would fail its call."""
    configure_logging("info", "json", screen)
    structlog.get_logger("x").info("something_happened", value=value)
    assert screen.lines[0]["event"].strip("'") == "something_happened"


def test_a_log_whose_reader_is_gone_fails_no_call():
    """The collector may die before the service."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        configured = configure_logging("info", "json", stream)
        log = CallLog(configured, Metrics())
        os.close(reading)
        log.finished(CallRecord(**RECORD))
        structlog.get_logger("x").info("something_happened")
        assert configured.writer.lines_lost == 2
        # What the stream still holds cannot be written when it is closed either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)


def test_lines_of_several_threads_do_not_run_into_each_other(tmp_path):
    """Stores write from threads of their own."""
    path = tmp_path / "log"
    with path.open("w") as stream:
        log = CallLog(configure_logging("info", "json", stream), Metrics())

        def write():
            for _ in range(500):
                structlog.get_logger("x").info("something_happened", filler="x" * 200)

        threads = [threading.Thread(target=write) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(500):
            log.finished(CallRecord(**RECORD))
        for thread in threads:
            thread.join()
    events = [json.loads(line)["event"] for line in path.read_text().splitlines()]
    assert events.count("something_happened") == 2000
    assert events.count("decision") == 500


def test_calls_are_counted_by_what_became_of_them():
    """The counts agree with the log lines."""
    metrics = Metrics()
    before = metrics.snapshot()
    metrics.count_call(CallRecord(**RECORD))
    metrics.count_call(CallRecord(**RECORD | {"replayed": True}))
    metrics.count_call(CallRecord("Route", command="status", reason="", revision=8))
    metrics.count_call(
        CallRecord("CompleteTurn", outcome="handoff", outcome_status="APPLIED", agent_id="x")
    )
    metrics.count_call(
        CallRecord(
            "SetActiveAgent",
            code="FAILED_PRECONDITION",
            error_reason="HANDOFF_REFUSED",
            refused_rules=("entitled", "channel"),
        )
    )
    after = metrics.snapshot()
    assert after.counters == {
        "calls_total": {
            ("Route", "OK"): 3,
            ("CompleteTurn", "OK"): 1,
            ("SetActiveAgent", "FAILED_PRECONDITION"): 1,
        },
        "errors_total": {("SetActiveAgent", "FAILED_PRECONDITION", "HANDOFF_REFUSED"): 1},
        "replays_total": {("Route",): 1},
        "decisions_total": {("Route", "sticky"): 1},
        "supervisor_calls_saved_total": {(): 1},
        "commands_total": {("status",): 1},
        "handoff_refusals_total": {("entitled",): 1, ("channel",): 1},
        "outcomes_total": {("handoff", "APPLIED"): 1},
        "topic_judgements_total": {},
    }
    assert before.counters["supervisor_calls_saved_total"] == {(): 0}
    assert (before.counters["calls_total"], before.latency) == ({}, {})


def test_counters_read_counted_fields_alone():
    """Calls are kept by their counted fields: a counter of another one would count nothing."""

    class Watched:
        def __init__(self):
            self.read = set()

        def __getattr__(self, name):
            self.read.add(name)
            return {"method": "Route", "replayed": counter.name == "replays_total"}.get(name, True)

    for counter in COUNTERS:
        record = Watched()
        assert list(counter.series(record))
        assert record.read <= set(counted_fields()), counter.name


def test_only_closed_lists_are_counted():
    """An id or a text as a label would make a series of each."""
    assert set(counted_fields()) == {
        "method",
        "code",
        "error_reason",
        "replayed",
        "reason",
        "dispatched",
        "supervisor_bypassed",
        "topic_outcome",
        "command",
        "outcome",
        "outcome_status",
        "refused_rules",
    }


def test_latency_falls_into_the_bucket_whose_bound_includes_it():
    """As in Prometheus: le means less or equal."""
    metrics = Metrics()
    for duration_ms in (0.4, 0.5, 0.6, 9_999, 10_000, 10_001):
        metrics.count_call(CallRecord("Route", duration_ms=duration_ms))
    latency = metrics.snapshot().latency["Route"]
    assert latency.bucket_counts[:2] == (2, 1)
    assert latency.bucket_counts[-2:] == (2, 1)
    assert len(latency.bucket_counts) == len(LATENCY_BOUNDS_S) + 1
    assert latency.count == 6
    assert latency.sum_s == pytest.approx(30.0015)


def test_lines_are_written_though_a_loop_ended_before_it_had_flushed():
    """The line that waited at that time and all later ones are written."""
    screen = Screen()
    writer = LineWriter(screen)

    async def leave_a_line():
        writer.write_soon(b"one")

    async def wait_for_a_line():
        writer.write_soon(b"three")
        for _ in range(30_000):
            await asyncio.sleep(0.001)
            if "three" in screen.text:
                break

    asyncio.run(leave_a_line())
    writer.write(b"two")
    asyncio.run(wait_for_a_line())
    assert screen.text == "one\ntwo\nthree\n"
