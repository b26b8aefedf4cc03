import pytest

from routing_service.core.errors import unknown_session
from routing_service.storage.store import StoreUnavailable
from routing_service.telemetry.log_privacy import (
    NOT_LOGGED,
    IdHashes,
    LogKeyInvalid,
    read_key,
    trace_of,
    words_of,
)

SECRET = "my salary is 100"


def raised(make):
    """Return an error that was raised somewhere, with all that it was raised from."""
    try:
        make()
    except BaseException as error:  # noqa: BLE001 - whatever it is
        return error
    raise AssertionError


def fails():
    """Fail on a value."""
    int(SECRET)


def fails_while_handling():
    """Fail while a failure is handled."""
    try:
        fails()
    except ValueError:
        {}[SECRET]


def fails_because_of():
    """Fail with a cause."""
    try:
        fails()
    except ValueError as error:
        raise StoreUnavailable("the disk is full") from error


def fails_twice():
    """Fail in two places at once."""
    raise ExceptionGroup(SECRET, [raised(fails), raised(fails_because_of)])


@pytest.mark.parametrize("make", [fails, fails_while_handling, fails_because_of, fails_twice])
def test_trace_names_every_place_and_quotes_no_value(make):
    """Errors quote values, which may be a user's text."""
    error = raised(make)
    shown = trace_of(error, with_words=False)
    assert SECRET not in shown
    assert NOT_LOGGED in shown
    assert "in fails" in shown
    assert "Traceback" in shown
    assert SECRET in trace_of(error, with_words=True)


def test_trace_of_an_error_that_refers_to_itself_ends():
    """Chains can be circular, if an error is raised again."""
    first, second = ValueError("a"), ValueError("b")
    first.__context__, second.__context__ = second, first
    assert trace_of(first, with_words=False).count("ValueError") == 2


@pytest.mark.parametrize(
    ("error", "is_shown"),
    [
        (OSError(28, "No space left on device"), True),
        (StoreUnavailable("the store is locked"), True),
        (unknown_session("chat-1"), True),
        (type("OperationalError", (Exception,), {})("connection refused"), True),
        (KeyError(SECRET), False),
        (ValueError(SECRET), False),
        (AssertionError(SECRET), False),
        (UnicodeEncodeError("ascii", SECRET, 0, 1, SECRET), False),
        (type("DataError", (Exception,), {})(SECRET), False),
    ],
)
def test_words_of_the_machine_are_shown_and_others_are_not(error, is_shown):
    """A full disk must be visible in the log; a user's text must not."""
    assert (words_of(error, with_words=False) == str(error)) is is_shown
    assert (words_of(error, with_words=False) == NOT_LOGGED) is not is_shown
    assert words_of(error, with_words=True) == str(error)


def test_words_that_cannot_be_had_do_not_fail_the_line():
    """An error is logged even if its __str__ fails."""

    class Broken(OSError):
        def __str__(self):
            raise ValueError

    assert words_of(Broken(), with_words=True) == NOT_LOGGED


def test_hash_is_of_its_key_and_leads_nowhere_without():
    """One key gives one hash per id, other keys give others; an empty id stays empty."""
    one, same, other = IdHashes(b"a" * 32), IdHashes(b"a" * 32), IdHashes(b"b" * 32)
    assert one.hide("+34 600 000 000") == same.hide("+34 600 000 000")
    assert one.hide("ana") != other.hide("ana")
    assert IdHashes().hide("ana") != IdHashes().hide("ana")
    assert one.hide("ana") != one.hide("Ana")
    assert one.hide("") == ""
    assert one.hide("half \ud800").startswith("#")


def test_ids_in_other_fields_of_a_line_are_hashed_too():
    """An error's text quotes the session that it is about, or another one."""
    hashes = IdHashes(b"a" * 32)
    line = {
        "session_id": "chat-1",
        "user_id": "ana",
        "revision": 3,
        "error": 'session "chat-1" of user "ben" collides with \'ana\' in banana',
    }
    hashes.hide_in(line)
    assert line == {
        "session_id": hashes.hide("chat-1"),
        "user_id": hashes.hide("ana"),
        "revision": 3,
        "error": f'session "{hashes.hide("chat-1")}" of user "{hashes.hide("ben")}" collides '
        f"with '{hashes.hide('ana')}' in banana",
    }


def test_key_file_is_read_whole_or_refused_with_the_remedy(tmp_path):
    """A key that can be guessed is useless; the same file gives the same key."""
    path = tmp_path / "key"
    assert read_key("") == b""
    path.write_text("0123456789abcdef\n")
    assert read_key(str(path)) == read_key(str(path))
    assert IdHashes(read_key(str(path))).hide("a") == IdHashes(read_key(str(path))).hide("a")
    path.write_bytes(b"x" * 5_000)
    assert len(read_key(str(path))) == 64
    path.write_text("short")
    with pytest.raises(LogKeyInvalid, match=r"has 5 bytes, at least 16 .* openssl rand"):
        read_key(str(path))
    with pytest.raises(LogKeyInvalid, match="cannot be read: No such file"):
        read_key(str(tmp_path / "none"))
