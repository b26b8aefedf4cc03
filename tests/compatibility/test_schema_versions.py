"""A store that an older or a newer release has written: what goes on, what is refused, and how."""

import asyncio
import json
import sqlite3
from contextlib import closing

import pytest

from agent_routing.v1 import routing_service_pb2
from routing_service.storage.open_store import open_store
from routing_service.storage.sqlite import schema as sqlite_schema
from routing_service.storage.store import SchemaTooNew
from routing_service.storage.store_format import FORMAT_SETTING, FORMAT_TENANT, NEWEST_FORMAT
from tests.rpc.live_service import hand_to, refusal, serving
from tests.rpc.registries import DESK
from tests.stored_data.command_line import command
from tests.stored_data.conftest import run  # noqa: F401 - a fixture

TOO_NEW = ("UNAVAILABLE", "SCHEMA_TOO_NEW")


@pytest.fixture
def url(tmp_path):
    """Return the URL of the SQLite store that ``serving`` uses."""
    return f"sqlite:///{tmp_path / 'routing.db'}"


def change(url, *statements):
    """Change the file as another release would."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as file:
        for statement in statements:
            file.execute(statement)


async def talked(tmp_path):
    """Serve two sessions with a handoff each, and stop."""
    async with serving(tmp_path, DESK) as service:
        for name in ("newer", "plain"):
            chat = service.chat(name)
            routed = await chat.say("hello")
            await chat.answer(routed.dispatch, "over to sales", **hand_to("sales"))


def logged_as_too_new(service):
    """Assert that the log has this error for the operator, and no other."""
    assert {type(failure) for failure in service.observer.failures} == {SchemaTooNew}
    service.observer.failures.clear()


KIND = (
    'UPDATE changes SET events = CAST(replace(events, \'"kind":"{0}"\', \'"kind":"{1}"\') '
    "AS BLOB) WHERE session_no = (SELECT session_no FROM sessions WHERE session_id = 'newer')"
)
STATE = (
    "UPDATE sessions SET state = CAST(replace(state, '{\"v\":1', '{\"v\":9') AS BLOB) "
    "WHERE session_id = 'newer'"
)


async def test_session_with_events_of_a_newer_release_waits_for_it(tmp_path, url):
    """UNAVAILABLE, so that clients try again and find an upgraded replica; never DATA_LOSS."""
    await talked(tmp_path)
    change(url, KIND.format("message_routed", "message_teleported"))
    async with serving(tmp_path, DESK) as service:
        newer, plain = service.chat("newer"), service.chat("plain")
        for call in (newer.turns(), newer.say("more", history_turns=5)):
            refused = await refusal(call)
            assert tuple(refused) == TOO_NEW
        logged_as_too_new(service)
        # The others are served as ever, and nothing of this one was changed.
        assert len(await plain.turns()) == 2
        assert (await plain.say("more")).dispatch.agent.agent_id == "sales"


async def test_session_with_a_state_of_a_newer_release_waits_for_it(tmp_path, url):
    """Every call on it, and only on it, until the newer release is back; then it goes on."""
    await talked(tmp_path)
    change(url, STATE)
    async with serving(tmp_path, DESK) as service:
        newer = service.chat("newer")
        calls = (newer.say("more"), newer.status(), newer.set_active("sales"), newer.clear())
        for call in calls:
            assert tuple(await refusal(call)) == TOO_NEW
        logged_as_too_new(service)
        assert (await service.chat("plain").say("more")).revision == 3
        request = routing_service_pb2.RouteRequest(session_id="fresh", user_id="bo", text="hi")
        assert (await service.call("Route", request)).revision == 1
    change(url, STATE.replace('{"v":1', "@").replace('{"v":9', '{"v":1').replace("@", '{"v":9'))
    async with serving(tmp_path, DESK) as service:
        assert (await service.chat("newer").say("more")).revision == 3


async def test_verify_names_what_a_newer_release_wrote(run, tmp_path, url):  # noqa: F811
    """As too new, not as damage that a backup would have to mend."""
    await talked(tmp_path)
    change(url, KIND.format("message_routed", "message_teleported"))
    code, out, _ = await asyncio.to_thread(run, "verify", "--store", url)
    assert code == 1
    assert "kind message_teleported has schema version" in out
    assert "run the release that wrote it" in out
    assert out.count("damaged: ") == 1


async def test_copy_takes_along_what_a_newer_release_wrote(run, tmp_path, url):  # noqa: F811
    """It moves bytes, and need not understand them."""
    await talked(tmp_path)
    change(url, KIND.format("message_routed", "message_teleported"), STATE)
    target = f"sqlite:///{tmp_path / 'target.db'}"
    code, _, err = await asyncio.to_thread(run, "copy", "--from", url, "--to", target)
    assert (code, err) == (0, "")
    found = [await asyncio.to_thread(run, "verify", "--store", each) for each in (url, target)]
    assert found[0] == found[1]


async def test_store_with_a_newer_schema_is_refused_by_every_command(tmp_path, url):
    """Before anything in it is touched; with both versions and the remedy."""
    await talked(tmp_path)
    supported = len(sqlite_schema.migrations())
    change(url, f"PRAGMA user_version = {supported + 1}")
    file = tmp_path / "routing.db"
    before = file.read_bytes()
    words = (
        f"has schema version {supported + 1}, this release reads up to {supported}; "
        "run the release that wrote it, or a newer one"
    )
    for arguments in (
        ("serve", "--listen", "127.0.0.1:0", "--agents", str(tmp_path / "agents.yaml"), "--store"),
        ("migrate", "--store"),
        ("verify", "--store"),
        ("copy", "--to", f"sqlite:///{tmp_path / 'target.db'}", "--from"),
        ("backup", "--to", str(tmp_path / "backup.db"), "--store"),
    ):
        code, out, err = await command(*arguments, url)
        assert code == 1, (arguments, out, err)
        assert words in err, arguments
    newer = ("restore", "--from", str(file), "--store", f"sqlite:///{tmp_path / 'restored.db'}")
    code, _, err = await command(*newer)
    assert code == 1
    assert words in err
    assert file.read_bytes() == before
    with pytest.raises(SchemaTooNew):
        await open_store(url)


@pytest.fixture
def old_url(tmp_path):
    """Return the URL of a store as the first release made its tables, with one session in it."""
    file = tmp_path / "old.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.executescript(sqlite_schema.migrations()[0])
        connection.execute("PRAGMA user_version = 1")
        connection.execute(
            "INSERT INTO sessions (tenant, session_id, user_id, revision, create_us, update_us, "
            "state) VALUES ('default', 'old', 'ana', 1, 5, 5, ?)",
            (b'{"v":1,"state":{"session_id":"old","revision":1,"create_us":5,"update_us":5}}',),
        )
        connection.execute(
            "INSERT INTO changes (session_no, revision, time_us, method, request_id, actor, "
            "fingerprint, events, answer) VALUES (1, 1, 5, 'Route', 'r', '', x'', ?, x'')",
            (b'{"v":1,"events":[{"kind":"session_started","profile":{}}]}',),
        )
    return f"sqlite:///{file}"


async def test_store_with_an_older_schema_is_brought_up_to_date_by_migrate(run, old_url):  # noqa: F811
    """Reading commands leave the step to the operator: servers of that release may be running."""
    supported = len(sqlite_schema.migrations())
    if supported == 1:
        pytest.skip("there is one schema version yet")
    code, _, err = await asyncio.to_thread(run, "verify", "--store", old_url)
    assert code == 1
    assert f"has schema version 1, this release reads {supported}" in err
    assert "agent-routing migrate --store sqlite:///" in err
    assert (await asyncio.to_thread(run, "migrate", "--store", old_url))[0] == 0
    store = await open_store(old_url)
    assert await store.head_revision(("default", "old")) == 1
    await store.close()


async def test_backup_of_an_older_schema_can_be_made_and_restored(run, old_url, tmp_path):  # noqa: F811
    """Before an upgrade, and after one that went wrong; a server then brings it up to date."""
    backup = tmp_path / "backup.db"
    code, _, err = await asyncio.to_thread(run, "backup", "--store", old_url, "--to", str(backup))
    assert (code, err) == (0, "")
    restored = f"sqlite:///{tmp_path / 'restored.db'}"
    code, out, err = await asyncio.to_thread(
        run, "restore", "--from", str(backup), "--store", restored
    )
    assert (code, err) == (0, "")
    assert "schema version 1" in out
    store = await open_store(restored)
    assert await store.head_revision(("default", "old")) == 1
    await store.close()


async def test_store_of_an_older_release_keeps_its_format_until_it_is_raised(run, old_url):  # noqa: F811
    """A server and a plain migration write no number: the last release may still be serving."""
    code, out, err = await asyncio.to_thread(run, "migrate", "--store", old_url)
    assert (code, err) == (0, "")
    assert ", format 1\n" in out
    assert (
        f"run migrate --format {NEWEST_FORMAT} once no replica of an older release is left" in out
    )
    code, out, _ = await asyncio.to_thread(
        run, "migrate", "--store", old_url, "--format", str(NEWEST_FORMAT)
    )
    assert code == 0
    assert out.endswith(f"format raised from 1 to {NEWEST_FORMAT}\n")
    code, _, err = await asyncio.to_thread(run, "migrate", "--store", old_url, "--format", "1")
    assert code == 1
    assert f"the store has format {NEWEST_FORMAT}, which cannot be lowered to 1" in err


async def test_store_with_a_newer_format_is_refused_by_a_server(tmp_path, url):
    """It names both numbers and the remedy, and serves nothing."""
    store = await open_store(url)
    await store.put_setting(FORMAT_TENANT, FORMAT_SETTING, b"%d" % (NEWEST_FORMAT + 1))
    await store.close()
    (tmp_path / "agents.yaml").write_text(DESK)
    agents = tmp_path / "agents.yaml"
    code, _, err = await command(
        *("serve", "--listen", "127.0.0.1:0", "--agents", agents, "--store", url)
    )
    assert code == 1
    assert f"the store's format has schema version {NEWEST_FORMAT + 1}" in err
    assert "run the release that wrote it, or a newer one" in err


async def test_new_store_begins_at_the_newest_format(run, tmp_path, url):  # noqa: F811
    """No replica of an older release has been there."""
    await talked(tmp_path)
    code, out, _ = await asyncio.to_thread(run, "migrate", "--store", url, "--json")
    assert code == 0
    said = json.loads(out)
    assert (said["format_before"], said["format"]) == (NEWEST_FORMAT, NEWEST_FORMAT)
