"""A Redis store's URL: its parts, and the messages for wrong ones."""

import pytest

from routing_service.storage.open_store import StoreUrlInvalid, open_store
from routing_service.storage.redis.url import PASSWORD_VARIABLE, parse_url


@pytest.fixture(autouse=True)
def _no_password_from_outside(monkeypatch):
    monkeypatch.delenv(PASSWORD_VARIABLE, raising=False)


def test_all_parts_are_read():
    """Escapes in user and password are decoded."""
    place = parse_url("redis://ro%40uter:s%2Fe%3Acret@cache:6380/3?prefix=chat&read_connections=4")
    assert (place.host, place.port, place.database) == ("cache", 6380, 3)
    assert (place.user, place.password, place.tls) == ("ro@uter", "s/e:cret", False)
    assert (place.options.prefix, place.options.read_connections) == ("chat", 4)
    assert place.shown == "redis://cache:6380/3?prefix=chat"


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://cache", ("cache", 6379, 0)),
        ("redis://cache/", ("cache", 6379, 0)),
        ("rediss://cache:1/15", ("cache", 1, 15)),
        ("redis://[::1]/2", ("::1", 6379, 2)),
        ("redis://[::1]:7000", ("::1", 7000, 0)),
        ("redis://:word@cache", ("cache", 6379, 0)),
        ("redis:///4?socket=/run/redis.sock", ("", 6379, 4)),
    ],
)
def test_forms_of_the_place(url, place):
    """Port, database and user may be left out."""
    found = parse_url(url)
    assert (found.host, found.port, found.database) == place


def test_tls_is_the_scheme_s():
    """The scheme rediss is TLS, with the files that the URL names or the system's."""
    place = parse_url("rediss://cache/0?ssl_ca_certs=/etc/ca.pem&ssl_check_hostname=off")
    assert place.tls
    assert place.options.ssl_ca_certs == "/etc/ca.pem"
    assert not place.options.ssl_check_hostname


def test_password_may_come_from_the_environment(monkeypatch):
    """The command line then does not show it; one in the URL wins."""
    monkeypatch.setenv(PASSWORD_VARIABLE, "from outside")
    assert parse_url("redis://cache").password == "from outside"
    assert parse_url("redis://:mine@cache").password == "mine"


def test_password_is_shown_nowhere():
    """Neither the escaped nor the plain password is shown."""
    place = parse_url("redis://user:s%2Fq7x@cache")
    assert "q7x" not in repr(place)
    assert place.without_secrets("AUTH s/q7x, s%2Fq7x") == "AUTH …, …"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis:", "has no server"),
        ("redis://", "has no server"),
        ("redis:///0", "has no host"),
        ("redis://cache/chat", "has a database that is not a number"),
        ("redis://cache:port/0", "has a port that is not a number from 1 to 65535"),
        ("redis://cache:70000/0", "has a port that is not a number from 1 to 65535"),
        ("redis://[::1/0", "IPv6 address without its brackets"),
        ("redis://cache/0#1", 'has a "#"'),
        ("redis://cache/0?prefix", "has a query that is not"),
        ("redis://cache/0?prefix=a&prefix=b", "gives prefix twice"),
        ("redis://cache/0?prefix=a{b}", 'prefix is "a{b}"'),
        ("redis://cache/0?colour=1", "has the unknown option colour; it may have call_timeout_s"),
        ("redis://cache/0?password=x", "has password in its query"),
        ("redis://cache/0?durability=hope", 'durability is "hope"; it must be disk or memory'),
        ("redis://cache/0?durability=memory&sync_replicas=1", "sync_replicas needs"),
        ("redis://cache/0?sync_replicas=-1", "sync_replicas is -1; it must be 0 to"),
        ("redis://cache/0?read_connections=0", "read_connections is 0; it must be 1 to"),
        ("redis://cache/0?group_writes_max=257", "group_writes_max is 257; it must be 1 to 256"),
        ("redis://cache/0?call_timeout_s=nan", "call_timeout_s is nan"),
        ("redis://cache/0?call_timeout_s=soon", 'has call_timeout_s "soon", which is not a number'),
        ("redis://cache/0?read_connections=1.5", "which is not a whole number"),
        ("redis://cache/0?ssl_check_hostname=no", "write on or off"),
        ("redis://cache/0?ssl_ca_certs=/ca.pem", "has options of TLS; write rediss://"),
        ("redis://cache/0?socket=/run/s", "has both a host, or TLS, and a socket"),
        ("rediss:///0?socket=/run/s", "has both a host, or TLS, and a socket"),
        ("redis://us%ffer:word@cache/0", "has a user whose %-escapes are not UTF-8 text"),
        ("redis://user:wo%00rd@cache/0", "has a NUL character in its password"),
    ],
)
async def test_what_is_wrong_is_said_with_what_to_write(url, words):
    """The message leaves out the password after the user's colon."""
    with pytest.raises(StoreUrlInvalid) as raised:
        await open_store(url)
    assert words in str(raised.value)
    for written in ("us%ffer", ":word", "wo%00rd"):
        assert written not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"colour": 1}, "has the unknown option colour"),
        ({"group_writes_max": 0}, "group_writes_max is 0"),
    ],
)
async def test_options_beside_the_url_are_checked_too(options, words):
    """A misspelt option must not be ignored silently."""
    with pytest.raises(StoreUrlInvalid, match=words):
        await open_store("redis://cache", **options)


async def test_missing_driver_is_named_with_its_extra(monkeypatch):
    """The error names the extra to install."""
    monkeypatch.setattr("routing_service.storage.open_store.find_spec", lambda _: None)
    with pytest.raises(StoreUrlInvalid, match=r"agent-routing-service\[redis\]"):
        await open_store("redis://:word@cache")
