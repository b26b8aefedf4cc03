"""The log: its lines, and the line and counts of every call.

A line is one JSON object on stderr, or text for people on a terminal. Its rule: constant event
names with fields, never a message's text or a token (log_privacy.py).
"""

from __future__ import annotations

import logging
import secrets
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TextIO

import msgspec
import structlog

from routing_service.storage.store import StoreClosed, StoreError, StoreUnavailable, TooLarge
from routing_service.telemetry.call_record import CallRecord
from routing_service.telemetry.line_writer import LineWriter
from routing_service.telemetry.log_privacy import NOT_LOGGED, IdHashes, trace_of
from routing_service.telemetry.metrics import Metrics
from routing_service.telemetry.terminal_text import seen

DECISION: Final = "decision"
CALL_FINISHED: Final = "call_finished"
CALL_REFUSED: Final = "call_refused"
"""The audit of rejected calls: no credentials, no right, or over a limit. Each such call has this
line and no other."""

INTERNAL_ERROR: Final = "internal_error"
STORE_FAILED: Final = "store_failed"

READING_METHODS: Final = frozenset(
    {
        "Status",
        "ListTurns",
        "ListTasks",
        "ListAgents",
        "ListSessions",
        "GetSessionAt",
        "ListInbox",
        "ListEvents",
        "GetServerStatus",
        "GetStickiness",
        "GetRegistry",
    }
)
"""Reads: their lines are at debug, because a screen that polls would fill the log."""

CODES_KEPT_OUT: Final = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED"})
"""The call was rejected. The line is a warning, so that an audit needs no other level."""

CODES_LOST: Final = frozenset({"INTERNAL", "UNKNOWN", "DATA_LOSS"})
"""Work was or may have been lost: the line is an error."""

CODES_DEGRADED: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})
"""The caller has to repeat the call: the line is a warning."""

PRIVATE_FIELDS: Final = frozenset(
    {
        "agent_text",
        "authorization",
        "credentials",
        "items",
        "password",
        "secret",
        "text",
        "token",
        "user_text",
    }
)
"""Fields that are removed from every line: text of users and agents, and credentials."""

_LEVELS: Final[Mapping[str, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


@dataclass(frozen=True, slots=True)
class Logging:
    """The configuration of logging: the writer, the minimum level, the form."""

    writer: LineWriter
    level: int
    for_people: bool
    hashes: IdHashes | None = None
    """None: ids are written unchanged."""
    pid: int = 0
    """The process id in every line; 0 = in none."""


def configure_logging(
    level: str,
    log_format: str,
    stream: TextIO | None = None,
    *,
    hashes: IdHashes | None = None,
    error_words: bool = False,
    pid: int = 0,
) -> Logging:
    """Set up structlog, and bring the log lines of libraries there too.

    level, log_format: as in Settings. stream: default stderr, since stdout is for results. hashes:
    for ids that name a person; None = plain. error_words: whether errors are logged with their
    messages, which may quote users. pid: of this process, for every line where several processes
    share a log; 0 = lines do not name their process.
    """
    out = stream or sys.stderr
    writer = LineWriter(out, _lost_line)
    for_people = log_format == "console" or (log_format == "auto" and out.isatty())
    rendering: list[structlog.typing.Processor] = (
        [_show_unseen, structlog.dev.ConsoleRenderer(colors=out.isatty())]
        if for_people
        else [_render_json]
    )

    def add_trace(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        error = _error_of(event.pop("exc_info", None))
        if error is not None:
            # structlog's own formatter shows local variables, which may hold users' text.
            event["exception"] = trace_of(error, with_words=error_words)
        return event

    def add_pid(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if pid:
            # The supervisor's own lines name the process that they are about.
            event.setdefault("pid", pid)
        return event

    def hide_ids(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if hashes is not None:
            hashes.hide_in(event)
        return event

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            _add_logger_name,
            add_pid,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _withhold,
            add_trace,
            hide_ids,
            *rendering,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=lambda *names: _StructlogSink(writer.write, names[0] if names else ""),
        cache_logger_on_first_use=False,
    )
    _bring_library_lines(error_words=error_words)
    return Logging(writer, _LEVELS[level], for_people, hashes, pid)


def _show_unseen(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace control characters, since ids and errors quote callers. JSON escapes them itself."""
    for key, value in event.items():
        if isinstance(value, str):
            text = seen(value)
            # A trace keeps its lines; a newline in another field would fake a log line.
            event[key] = text if key == "exception" else text.replace("\n", "␊")
    return event


class CallLog:
    """Counts each call and writes its line: a CallObserver. For the event loop's thread only."""

    def __init__(self, configured: Logging, metrics: Metrics) -> None:
        """Use this logging and these metrics."""
        self._writer = configured.writer
        self._level = configured.level
        self._for_people = configured.for_people
        self._hashes = configured.hashes
        self._metrics = metrics
        self._pid = b'"pid":%d,' % configured.pid if configured.pid else b""
        self._encode = msgspec.json.Encoder().encode
        is_plain = not self._for_people and self._hashes is None
        self._writes_decisions_plain = is_plain and _LEVELS["info"] >= self._level

    def finished(self, record: CallRecord) -> None:
        """See CallObserver.finished."""
        self._metrics.count_call(record)
        if (
            self._writes_decisions_plain
            and record.code == "OK"
            and record.method not in READING_METHODS
        ):
            # A short cut for nearly every call; the code below would do the same.
            record.duration_ms = round(record.duration_ms, 3)
            line = partial(self._line, record, "info", DECISION, time.time())
            self._writer.write_soon(line)
            return
        level = _level_of(record)
        if _LEVELS[level] < self._level:
            return
        if record.code in CODES_KEPT_OUT:
            event = CALL_REFUSED
        else:
            event = CALL_FINISHED if record.method in READING_METHODS else DECISION
        record.duration_ms = round(record.duration_ms, 3)
        if self._for_people:
            fields = msgspec.to_builtins(record)
            structlog.get_logger(__name__).log(_LEVELS[level], event, **fields)
            return
        if self._hashes is not None:
            hide = self._hashes.hide
            record = msgspec.structs.replace(
                record,
                session_id=hide(record.session_id),
                user_id=hide(record.user_id),
                actor=hide(record.actor),
                peer=hide(record.peer),
            )
        line = partial(self._line, record, level, event, time.time())
        # A rejected caller may try a thousand times a second: its lines may wait.
        if level in {"debug", "info"} or event == CALL_REFUSED:
            self._writer.write_soon(line)
        else:
            self._writer.write(line())

    def _line(self, record: CallRecord, level: str, event: str, time_s: float) -> bytes:
        # The record is encoded directly: a separate struct for the line would double the cost.
        now = self._encode(datetime.fromtimestamp(time_s, UTC))
        said = now, level.encode(), event.encode(), self._pid
        head = b'{"timestamp":%b,"level":"%b","event":"%b",%b' % said
        return head + self._encode(record)[1:]

    def failed(self, record: CallRecord, error: BaseException) -> str:
        """See CallObserver.failed."""
        return log_failure(record, error)


def log_failure(record: CallRecord, error: BaseException) -> str:
    """Log why a call failed and return the line's id, all that the caller learns of a bug."""
    error_id = secrets.token_hex(8)
    ids = {
        "method": record.method,
        "tenant": record.tenant,
        "session_id": record.session_id,
        "task_id": record.task_id,
        "request_id": record.request_id,
    }
    log = structlog.get_logger(__name__)
    match error:
        case StoreUnavailable() | StoreClosed() | TooLarge():
            # The store has logged its driver's error; one trace a call would bury it.
            log.warning(STORE_FAILED, error_id=error_id, **ids, error=str(error))
        case StoreError():
            log.error(STORE_FAILED, error_id=error_id, **ids, exc_info=error)
        case _:
            log.error(INTERNAL_ERROR, error_id=error_id, **ids, exc_info=error)
    return error_id


def _level_of(record: CallRecord) -> str:
    if record.code == "OK":
        return "debug" if record.method in READING_METHODS else "info"
    if record.code in CODES_LOST:
        return "error"
    return "warning" if record.code in CODES_DEGRADED | CODES_KEPT_OUT else "info"


class _StructlogSink:
    """The output of structlog: ``msg`` under the name of every level."""

    def __init__(self, write: Callable[[bytes], None], name: str) -> None:
        self._write = write
        self.name = name

    def msg(self, line: str | bytes) -> None:
        self._write(line if isinstance(line, bytes) else line.encode("utf-8", "replace"))

    debug = info = warning = error = critical = exception = log = msg


def _lost_line(count: int) -> bytes:
    """Return the line that says that so many before it are missing."""
    rendered: list[bytes] = []
    structlog.wrap_logger(_StructlogSink(rendered.append, __name__)).error(
        "log_lines_lost",
        lines=count,
        meaning="the log could not be written: its reader did not read, or the disk was full",
    )
    return rendered[0]


class _LibraryLines(logging.Handler):
    """Turns a library's log record into one of our lines."""

    def __init__(self, *, error_words: bool) -> None:
        # Libraries' info lines are noise for operators.
        super().__init__(level=logging.WARNING)
        self._error_words = error_words

    def emit(self, record: logging.LogRecord) -> None:
        try:
            said = record.getMessage()
        except (TypeError, ValueError):  # Its arguments do not fit its format.
            said = str(record.msg)
        if record.name == "asyncio" and not self._error_words:
            # The rest shows the task and its error with everything that it quotes; the trace shows
            # its origin.
            said = said.partition("\n")[0]
        structlog.get_logger(record.name).log(
            record.levelno, "library_log", message=said, exc_info=record.exc_info
        )


def _error_of(given: object) -> BaseException | None:
    """Return a line's error, given as itself, as the result of sys.exc_info(), or as True."""
    if given is True:
        given = sys.exc_info()
    if isinstance(given, tuple):
        given = given[1] if len(given) > 1 else None
    return given if isinstance(given, BaseException) else None


def _bring_library_lines(*, error_words: bool) -> None:
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _LibraryLines)]:
        root.removeHandler(handler)
    root.addHandler(_LibraryLines(error_words=error_words))


def _add_logger_name(
    logger: _StructlogSink, _: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    if logger.name:
        event["logger"] = logger.name
    return event


def _withhold(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    for name in PRIVATE_FIELDS & event.keys():
        event[name] = NOT_LOGGED
    return event


def _render_json(_logger: object, _method: str, event: MutableMapping[str, Any]) -> bytes:
    ordered = {name: event.pop(name) for name in ("timestamp", "level", "event") if name in event}
    ordered.update(event)
    try:
        return msgspec.json.encode(ordered, enc_hook=str)
    except (TypeError, ValueError):  # Keys that are not strings, or a lone surrogate.
        return msgspec.json.encode({name: ascii(value) for name, value in ordered.items()})
