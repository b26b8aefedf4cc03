"""The checksum of every stored value, on every engine: what it finds, and that callers see none."""

import zlib

import pytest
from msgspec.structs import replace

from routing_service.storage.checksums import (
    FIELD_BYTES,
    seal_append,
    seal_audit,
    seal_setting,
)
from routing_service.storage.engine import Span
from routing_service.storage.event_codec import decode_change, decode_state
from routing_service.storage.row_content import decode_audit, decode_metadata, task_status
from routing_service.storage.store import (
    CURSOR_START,
    DAMAGED,
    Append,
    AuditEntry,
    Change,
    RequestSeen,
    SessionKey,
    StoreCorrupt,
    TaskRow,
)

KEY = SessionKey("default", "sealed")
EVENTS = b'{"v":1,"events":[{"kind":"session_started","profile":{"user_id":"ana"}}]}'
STATE = b'{"v":1,"state":{"session_id":"sealed","revision":1,"create_us":5,"update_us":5}}'
CHANGE = Change(1, 5, "Route", "r1", "", b"print", EVENTS, b"answer")
TASK = TaskRow("t1", "sealed", "ana", "running", 5, 5, None, b'{"crc":"12345678"}')
APPEND = Append(KEY, 0, CHANGE, STATE, "ana", (TASK,))
ENTRY = AuditEntry(5, "default", "sealed", 1, "handoff_refused", "r2", "ana", b'{"actor":"ana"}')


async def test_values_come_back_as_they_were_written(store):
    """By every method that reads them; the metadata of a task may have a key of the same name."""
    await store.append(APPEND)
    await store.append_audit(ENTRY)
    await store.put_setting("default", "s", b'{"on":true}')
    assert (await store.load(KEY)).state == STATE
    assert await store.read_changes(KEY, limit=5) == [CHANGE]
    assert await store.find_request(KEY, "Route", "r1") == CHANGE
    assert (await store.read_log(CURSOR_START, 5))[0] == [(KEY, CHANGE)]
    assert await store.find_task("default", "t1") == TASK
    assert await store.list_tasks(KEY, limit=5) == [TASK]
    assert (await store.read_audit("default", None, CURSOR_START, 5))[0] == [ENTRY]
    assert await store.get_setting("default", "s") == b'{"on":true}'
    assert await store.list_settings("default", "", 5) == [("s", b'{"on":true}')]
    with pytest.raises(RequestSeen) as seen:
        await store.append(APPEND)
    assert seen.value.change == CHANGE
    # Stored they are longer.
    stored = store._engine
    assert len((await stored.load(KEY)).state) == len(STATE) + FIELD_BYTES - 1
    assert (await stored.find_task("default", "t1")).data.strip() == TASK.data


PLACES = ("state", "time_us", "method", "actor", "fingerprint", "events", "answer")


@pytest.mark.parametrize("place", PLACES)
async def test_damaged_change_or_state_is_found_and_its_neighbours_are_not(store, place):
    """One changed byte anywhere in the row; the other rows of the page are read as ever."""
    sealed = seal_append(APPEND)
    state, change = sealed.state, sealed.change
    if place == "state":
        state = state.replace(b"create_us", b"creat3_us")
    else:
        value = getattr(change, place)
        edits = {"time_us": lambda: 6, "events": lambda: value.replace(b"ana", b"eve")}
        edited = edits.get(place, lambda: value[::-1] or "x")()
        change = replace(change, **{place: edited})
    await store._engine.append(replace(sealed, state=state, change=change))
    whole = replace(CHANGE, revision=2, request_id="r2")
    await store.append(Append(KEY, 1, whole, STATE, "ana"))
    if place != "state":
        first, second = await store.read_changes(KEY, limit=5)
        assert (first.revision, first.request_id, first.events) == (1, "r1", DAMAGED)
        assert second == whole
        with pytest.raises(StoreCorrupt, match="does not fit its checksum"):
            decode_change(first.events)


async def test_state_whose_owner_was_edited_is_refused(store):
    """It gave the session to someone else."""
    sealed = seal_append(replace(APPEND, state=STATE.replace(b'"v":1,', b'"v":1,"x":"ana",')))
    edited = replace(sealed, state=sealed.state.replace(b"ana", b"eve"))
    await store._engine.append(edited)
    with pytest.raises(StoreCorrupt, match="a stored state does not fit its checksum"):
        decode_state((await store.load(KEY)).state)


async def test_damaged_task_audit_entry_and_setting_are_found(store):
    """Each alone; its neighbour in the list is whole."""
    sealed = seal_append(replace(APPEND, tasks=(TASK, replace(TASK, task_id="t2"))))
    first, second = sealed.tasks
    first = replace(first, status="completed")
    await store._engine.append(replace(sealed, tasks=(first, second)))
    found, whole = await store.list_tasks(KEY, limit=5)
    assert (found.task_id, found.data, whole.data) == ("t1", DAMAGED, TASK.data)
    for read in (task_status, decode_metadata):
        with pytest.raises(StoreCorrupt, match='the stored task "t1"'):
            read(found)
    await store._engine.append_audit(replace(seal_audit(ENTRY), kind="operator_act"))
    await store.append_audit(ENTRY)
    (entry, whole), _ = await store.read_audit("default", None, CURSOR_START, 5)
    assert (entry.data, whole) == (DAMAGED, ENTRY)
    with pytest.raises(StoreCorrupt, match='of session "sealed" does not fit its checksum'):
        decode_audit(entry)
    moved = seal_setting("default", "one", b'{"on":true}')
    await store._engine.put_setting("default", "two", moved)
    assert await store.get_setting("default", "two") == DAMAGED


async def test_rows_of_an_older_release_are_accepted_and_get_their_checksum_as_they_change(store):
    """Older replicas write beside newer ones during a roll-out, and read what those wrote."""
    await store._engine.append(APPEND)
    await store._engine.append_audit(ENTRY)
    await store._engine.put_setting("default", "s", b'{"on":true}')
    assert (await store.load(KEY)).state == STATE
    assert await store.read_changes(KEY, limit=5) == [CHANGE]
    assert await store.find_task("default", "t1") == TASK
    assert (await store.read_audit("default", None, CURSOR_START, 5))[0] == [ENTRY]
    assert await store.swap_setting("default", "s", b'{"on":true}', b'{"on":false}')
    assert await store.get_setting("default", "s") == b'{"on":false}'
    assert len(await store._engine.get_setting("default", "s")) == 12 + FIELD_BYTES - 1
    second = replace(CHANGE, revision=2, request_id="r2")
    await store.append(Append(KEY, 1, second, STATE, "ana", (replace(TASK, update_us=6),)))
    assert len((await store._engine.load(KEY)).state) == len(STATE) + FIELD_BYTES - 1
    # What an older release makes of the new forms: fields that it does not know, and white space.
    written = (await store._engine.read_changes(KEY, Span(0, 10, 10, newest_first=False)))[1]
    assert decode_change(written.events) == decode_change(EVENTS)
    assert decode_metadata(await store._engine.find_task("default", "t1")) == {"crc": "12345678"}


async def test_tool_that_writes_the_value_anew_does_not_lose_its_checksum(store):
    """JSON printed with other white space is no value of ours, and no value of an older release."""
    sealed = seal_append(APPEND)
    spaced = sealed.state.replace(b":", b": ").replace(b",", b", ")
    await store._engine.append(replace(sealed, state=spaced))
    assert (await store.load(KEY)).state == DAMAGED


async def test_blanked_rows_have_no_checksum_left_to_fit(store):
    """Erasing takes the content of rows, and with it what the checksum was of."""
    await store.append(APPEND)
    await store.append_audit(ENTRY)
    second = replace(CHANGE, revision=2, request_id="r2")
    await store.append(Append(KEY, 1, second, STATE, "ana"))
    assert await store.erase_before(KEY, 2, b'{"v":1,"events":[]}') == 1
    first, last = await store.read_changes(KEY, limit=5)
    assert (first.events, last) == (b'{"v":1,"events":[]}', second)
    assert (await store.find_task("default", "t1")).data == b""
    assert (await store.read_audit("default", None, CURSOR_START, 5))[0][0].data == b""


async def test_compressed_setting_has_a_checksum_that_older_releases_pass_over(store):
    """Decompressing stops at the end of the compressed value."""
    value = b"z" + zlib.compress(b"figures")
    await store.put_setting("default", "s", value)
    assert await store.get_setting("default", "s") == value
    stored = await store._engine.get_setting("default", "s")
    assert len(stored) == len(value) + FIELD_BYTES
    assert zlib.decompress(stored[1:]) == b"figures"
    await store._engine.put_setting("default", "s", stored.replace(b"z", b"zz", 1))
    assert await store.get_setting("default", "s") == DAMAGED
    await store._engine.put_setting("default", "s", value)
    assert await store.get_setting("default", "s") == value


async def test_damaged_setting_is_replaced_by_a_swap_that_expects_damage(store):
    """Only one of two that saw it; the other finds the new value."""
    sealed = seal_setting("default", "s", b'{"on":true}')
    await store._engine.put_setting("default", "s", sealed.replace(b"true", b"false"))
    assert not await store.swap_setting("default", "s", b'{"on":true}', b'{"on":1}')
    assert await store.swap_setting("default", "s", DAMAGED, b'{"on":2}')
    assert not await store.swap_setting("default", "s", DAMAGED, b'{"on":3}')
    assert not await store.swap_setting("default", "none", DAMAGED, b'{"on":3}')
    assert await store.get_setting("default", "s") == b'{"on":2}'
    assert await store.get_setting("default", "none") is None
