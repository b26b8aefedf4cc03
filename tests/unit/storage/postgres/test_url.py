"""A PostgreSQL store's URL: the driver's parameters, refusals, and hidden passwords."""

import pytest

from routing_service.storage.open_store import StoreUrlInvalid, open_store
from routing_service.storage.postgres.connection import _driver_parameters
from routing_service.storage.postgres.url import parse_url
from routing_service.storage.store_url import PostgresOptions


@pytest.mark.parametrize(
    ("url", "parameters"),
    [
        ("postgres://db/chat", {"host": "db", "dbname": "chat"}),
        (
            "postgresql://ana:pass@db:5433/chat",
            {"host": "db", "port": "5433", "user": "ana", "password": "pass", "dbname": "chat"},
        ),
        (
            "postgres://a%40b:p%2Fw%3A%25@db/c%20d",
            {"host": "db", "user": "a@b", "password": "p/w:%", "dbname": "c d"},
        ),
        (
            "postgres://ana:@db/chat",
            {"host": "db", "user": "ana", "password": "", "dbname": "chat"},
        ),
        ("postgres://a:p:w@db/x", {"host": "db", "user": "a", "password": "p:w", "dbname": "x"}),
        (
            "postgres://db1:5432,db2/chat",
            {"host": "db1,db2", "port": "5432,", "dbname": "chat"},
        ),
        ("postgres://db:/chat", {"host": "db", "dbname": "chat"}),
        ("postgres://[::1]:5432/chat", {"host": "::1", "port": "5432", "dbname": "chat"}),
        ("postgres://[fe80::1]/chat", {"host": "fe80::1", "dbname": "chat"}),
        ("postgres:///chat?host=/run/pg", {"host": "/run/pg", "dbname": "chat"}),
        (
            "postgres://db/chat?sslmode=verify-full&sslrootcert=/ca.pem",
            {"host": "db", "dbname": "chat", "sslmode": "verify-full", "sslrootcert": "/ca.pem"},
        ),
    ],
)
def test_url_becomes_the_drivers_parameters(url, parameters):
    """Escapes are decoded, and libpq's own options are passed on."""
    assert dict(parse_url(url).parameters) == parameters


def test_options_of_the_store_are_taken_from_the_query():
    """The store's options are not passed to the driver."""
    place = parse_url(
        "postgres://db/chat?schema=tenant_7&write_connections=3&read_connections=9"
        "&group_writes_max=64&connect_timeout_s=1.5&call_timeout_s=9&lock_timeout_s=0.5"
        "&transaction_pooler=on&hints=off"
    )
    assert place.options == PostgresOptions(
        schema="tenant_7",
        write_connections=3,
        read_connections=9,
        group_writes_max=64,
        connect_timeout_s=1.5,
        call_timeout_s=9,
        lock_timeout_s=0.5,
        transaction_pooler=True,
        hints=False,
    )
    assert dict(place.parameters) == {"host": "db", "dbname": "chat"}


def test_options_given_beside_the_url_come_first():
    """They override the URL, as flags override a file."""
    assert parse_url("postgres://db/x?read_connections=2", {"read_connections": 7}).options == (
        PostgresOptions(read_connections=7)
    )


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgres:chat", "has no server; write postgres://user:password@host:5432/database"),
        ("postgres://db", "names no database; write postgres://user:password@host"),
        ("postgres://db/", "names no database"),
        ("postgres://db/a/b", "second slash"),
        ("postgres://db/x#y", 'has a "#"'),
        ("postgres://ana:s3c/ret@db/x", "second slash"),
        ("postgres://ana:s3c#ret@db/x", "write %23"),
        ("postgres://db:port/x", "a port that is not a number from 1 to 65535"),
        ("postgres://,db/x", "an empty host"),
        ("postgres://[::1/x", "without its brackets"),
        ("postgres://ana%FF@db/x", "a user whose %-escapes are not UTF-8 text"),
        ("postgres://ana:%00@db/x", "a NUL character in its password"),
        ("postgres://db/x?sslmod=require", "the unknown option sslmod; it may have call_timeout_s"),
        ("postgres://db/x?options=-cfsync=off", "the unknown option options"),
        ("postgres://db/x?target_session_attrs=any", "unknown option target_session_attrs"),
        ("postgres://db/x?sslmode", "not option=value"),
        ("postgres://db/x?schema=a&schema=b", "gives schema twice"),
        ("postgres://db/x?host=other", "gives host twice"),
        ("postgres://db/x?password=s3cret", "has password in its query"),
        ("postgres://db/x?sslpassword=s3cret", "has sslpassword in its query"),
        ("postgres://db/x?schema=Chat", 'schema is "Chat"; it must be a lower-case name'),
        ("postgres://db/x?schema=a%22b", "lower-case name"),
        ("postgres://db/x?schema=" + "a" * 64, "lower-case name"),
        ("postgres://db/x?write_connections=0", "write_connections is 0; it must be 1 to 100"),
        ("postgres://db/x?read_connections=x", 'read_connections "x", which is not a whole number'),
        ("postgres://db/x?group_writes_max=257", "group_writes_max is 257; it must be 1 to 256"),
        ("postgres://db/x?call_timeout_s=0", "call_timeout_s is 0.0; it must be over 0"),
        ("postgres://db/x?call_timeout_s=nan", "call_timeout_s is nan"),
        ("postgres://db/x?lock_timeout_s=soon", 'lock_timeout_s "soon", which is not a number'),
        ("postgres://db/x?hints=yes", 'hints "yes"; write on or off'),
    ],
)
async def test_url_that_is_wrong_says_what_to_write(url, words):
    """The message comes before any connection, and leaves out the password."""
    with pytest.raises(StoreUrlInvalid) as raised:
        await open_store(url)
    assert words in str(raised.value)
    assert "s3c" not in str(raised.value)


@pytest.mark.parametrize("options", [{"colour": 1}, {"call_timeout_s": None}, {"schema": 7}])
async def test_option_beside_the_url_that_is_wrong_is_refused(options):
    """A misspelt option must not be ignored silently."""
    with pytest.raises(StoreUrlInvalid):
        await open_store("postgres://db/x", **options)


def test_password_is_in_nothing_that_is_shown():
    """Messages, logs and tracebacks show values."""
    place = parse_url("postgres://ana:s3cret%2F1@db:5432/chat?schema=other")
    assert place.shown == "postgres://db:5432/chat?schema=other"
    assert "s3cret" not in repr(place)
    told = 'could not translate "s3cret/1@db", "s3cret%2F1" or "s3cret/1"'
    assert place.without_secrets(told) == 'could not translate "…@db", "…" or "…"'


def test_text_stays_as_it_is_where_there_is_no_password():
    """An empty password must not match everywhere."""
    assert parse_url("postgres://ana:@db/chat").without_secrets("as it is") == "as it is"


def test_only_a_server_that_takes_writes_is_connected_to():
    """A standby may answer with old data; the URL cannot override this."""
    for url in ("postgres://db1,db2/x", "postgres://db/x?transaction_pooler=on"):
        parameters = _driver_parameters(parse_url(url))
        assert parameters["target_session_attrs"] == "read-write"


def test_nothing_is_set_on_a_poolers_connection():
    """The pooler would refuse a setting, or keep it for the next user of the connection."""
    direct = _driver_parameters(parse_url("postgres://db/x?call_timeout_s=4&lock_timeout_s=1.5"))
    assert "-c statement_timeout=4000 " in direct["options"]
    assert "-c lock_timeout=1500 " in direct["options"]
    pooled = _driver_parameters(parse_url("postgres://db/x?transaction_pooler=on"))
    assert "options" not in pooled
