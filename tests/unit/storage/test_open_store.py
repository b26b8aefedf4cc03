"""A store's URL: what it opens, and the errors for wrong ones."""

import sys

import pytest

from routing_service.storage.memory_store import MemoryStore
from routing_service.storage.open_store import StoreUrlInvalid, open_store
from routing_service.storage.sqlite.store import SqliteStore


@pytest.mark.parametrize("url", ["memory:", "memory://", "MEMORY:"])
async def test_memory_opens(url):
    """For tests and trial runs."""
    store = await open_store(url)
    assert isinstance(store, MemoryStore)
    assert not store.shared_writers
    await store.close()


async def test_three_slashes_are_a_path_from_here(tmp_path, monkeypatch):
    """An example is sqlite:///var/routing.db, whose folder is created if it is missing."""
    monkeypatch.chdir(tmp_path)
    store = await open_store("sqlite:///var/deep/routing.db")
    assert isinstance(store, SqliteStore)
    assert not store.shared_writers
    await store.close()
    assert (tmp_path / "var/deep/routing.db").is_file()


async def test_four_slashes_are_a_path_from_the_root(tmp_path, monkeypatch):
    """Wherever the server is started."""
    monkeypatch.chdir("/")
    store = await open_store(f"sqlite:///{tmp_path}/routing.db")
    await store.close()
    assert (tmp_path / "routing.db").is_file()


async def test_escapes_in_the_path_are_undone(tmp_path):
    """A URL cannot have a question mark or a blank in a name as it is."""
    store = await open_store(f"sqlite:///{tmp_path}/what%3F%20%25.db")
    await store.close()
    assert (tmp_path / "what? %.db").is_file()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (
            "mysql://db",
            ['names the unknown engine "mysql"; use memory, sqlite, postgres, redis or dynamodb'],
        ),
        ("dynamodb://table", ["names no region and table", "dynamodb://eu-west-1/agent_routing"]),
        ("var/routing.db", ["names no engine", "sqlite:///var/routing.db"]),
        ("", ["names no engine"]),
        ("sqlite:", ["has no path", "sqlite:///relative/path.db"]),
        ("sqlite:///", ["has no path"]),
        ("sqlite://var/routing.db", ["has no path", "sqlite:////absolute/path.db"]),
        ("sqlite:routing.db", ["has no path"]),
        ("sqlite:///:memory:", ["names no file", "memory:"]),
        ("sqlite:///a.db?mode=ro", ["more than a path", "%3F"]),
        ("sqlite:///a.db#x", ["more than a path", "%23"]),
        ("sqlite:///a%00.db", ["more than a path"]),
        ("memory://host", ["has a place"]),
    ],
)
async def test_url_that_names_no_store_says_what_to_write(url, words):
    """The error has the problem, the value and the remedy."""
    with pytest.raises(StoreUrlInvalid) as raised:
        await open_store(url)
    for word in words:
        assert word in str(raised.value)


@pytest.mark.parametrize("scheme", ["mysql", "redis"])
@pytest.mark.parametrize("password", ["s3cret", "s3c/ret", "s3c@ret", "s3c@r/e@t"])
async def test_password_is_never_repeated(scheme, password):
    """Messages go to logs and screens; unescaped passwords are hidden as well."""
    with pytest.raises(StoreUrlInvalid) as raised:
        await open_store(f"{scheme}://admin:{password}@db/x")
    assert "s3c" not in str(raised.value)
    assert f"{scheme}://…@db/x" in str(raised.value)


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("memory:", {"colour": 1}, "memory has no option colour; it has none"),
        ("sqlite:///x.db", {"colour": 1}, "busy_timeout_s, file_bytes_max, group_writes_max"),
        ("sqlite:///x.db", {"busy_timeout_s": -1}, "busy_timeout_s is -1"),
        ("sqlite:///x.db", {"busy_timeout_s": float("nan")}, "busy_timeout_s is nan"),
        ("sqlite:///x.db", {"group_writes_max": 0}, "group_writes_max is 0; it must be 1 to 256"),
        ("sqlite:///x.db", {"group_writes_max": 257}, "group_writes_max is 257"),
        ("sqlite:///x.db", {"file_bytes_max": 0}, "file_bytes_max is 0"),
        ("sqlite:///x.db", {"busy_timeout_s": None}, "options of sqlite are wrong"),
    ],
)
async def test_option_that_is_wrong_is_named(tmp_path, monkeypatch, url, options, words):
    """A misspelt option must not be ignored silently."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreUrlInvalid, match=words):
        await open_store(url, **options)
    assert not list(tmp_path.iterdir())


async def test_engine_is_imported_when_asked_for(monkeypatch):
    """A trial run in memory needs no driver."""
    for name in [name for name in sys.modules if "sqlite" in name and "routing" in name]:
        monkeypatch.delitem(sys.modules, name)
    store = await open_store("memory:")
    await store.close()
    assert not [name for name in sys.modules if "sqlite" in name and "routing" in name]
