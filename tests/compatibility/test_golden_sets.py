"""What earlier releases stored and answered is read and answered by today's code, for ever."""

import asyncio
import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from agent_routing.v1 import routing_service_pb2
from routing_service.registry.file import load_registry
from routing_service.storage.event_codec import decode_change, decode_state
from routing_service.storage.migrate_store import migrate_store
from routing_service.storage.open_store import open_store
from routing_service.stored_data.store_copy import copy_store
from tests.compatibility.golden_set import (
    SUMS,
    as_bytes,
    found_in,
    lines,
    make_set,
    meaning,
    missing_kinds,
    sets,
    sums_of,
)
from tests.rpc.live_service import Clock, serving

SETS = pytest.mark.parametrize("golden", sets(), ids=lambda folder: folder.name)


def includes(now, then):
    """Say whether a value is unchanged; fields that a newer release added do not count."""
    if isinstance(then, dict) and isinstance(now, dict):
        return all(name in now and includes(now[name], value) for name, value in then.items())
    if isinstance(then, list) and isinstance(now, list):
        return len(now) == len(then) and all(map(includes, now, then))
    return now == then


@pytest.fixture
def store_url(golden, tmp_path):
    """Return the URL of a copy of the set's store."""
    file = tmp_path / "routing.db"
    file.write_bytes(gzip.decompress((golden / "store.db.gz").read_bytes()))
    return f"sqlite:///{file}"


def test_there_is_a_set():
    """Without one the other tests here would hold nothing."""
    assert sets()


def test_every_kind_of_event_has_golden_bytes():
    """A kind that is written is in stores from then on: scripts/add_golden.py keeps its bytes."""
    assert missing_kinds() == set()


@SETS
def test_set_is_as_it_was_made(golden):
    """Data like it is in stores out there, and does not change with our code."""
    noted = dict(
        reversed(line.split("  ")) for line in (golden / SUMS).read_text("utf-8").splitlines()
    )
    assert sums_of(golden) == noted


@SETS
def test_stored_events_mean_what_they_meant(golden):
    """Each kind that was ever written."""
    for line in lines(golden / "events.jsonl"):
        stored = decode_change(as_bytes(line["bytes"]))
        (event,) = stored.events
        assert type(event).__name__ == line["kind"]
        assert includes(meaning(event), line["means"])
        assert (stored.active, stored.user_id, stored.registry_version) == ([""], "ana", "1")


@SETS
def test_stored_states_mean_what_they_meant(golden):
    """A session continues with the state that the release stored."""
    for line in lines(golden / "states.jsonl"):
        assert includes(meaning(decode_state(as_bytes(line["bytes"]))), line["means"])


@SETS
def test_registry_file_says_what_it_said(golden):
    """An operator who upgrades keeps the file."""
    ((then),) = lines(golden / "agents.json")
    assert includes(meaning(load_registry(golden / "agents.yaml")), then)


@SETS
async def test_store_is_migrated_and_holds_what_it_held(golden, store_url):
    """Every session folds into its stored state, with the hash that was noted down then."""
    await migrate_store(store_url)
    found = await found_in(store_url)
    noted = list(lines(golden / "hashes.jsonl"))
    assert found == noted


@SETS
async def test_store_is_copied_to_one_of_today(golden, store_url, tmp_path):
    """The other way to upgrade: into fresh tables, with nothing lost."""
    await migrate_store(store_url)
    target_url = f"sqlite:///{tmp_path / 'today.db'}"
    source, target = await open_store(store_url), await open_store(target_url)
    copied = await copy_store(source, target, source_name="then")
    await source.close()
    await target.close()
    assert copied.refused == {}
    assert await found_in(target_url) == list(lines(golden / "hashes.jsonl"))


@SETS
async def test_repeated_calls_get_the_answers_of_then(golden, store_url, tmp_path):
    """A client that retries over the upgrade gets the first answer, and sessions stand as then."""
    (now, *calls) = lines(golden / "calls.jsonl")
    clock = Clock()
    clock.now_us = now["now_us"]
    registry = (golden / "agents.yaml").read_text("utf-8")
    await migrate_store(store_url, raise_to=2)
    async with serving(tmp_path, registry, store=store_url, clock=clock) as service:
        for call in calls:
            answer = await service.raw(call["rpc"], as_bytes(call["request"]))
            form = getattr(routing_service_pb2, f"{call['rpc']}Response")
            then = form.FromString(as_bytes(call["answer"]))
            today = form.FromString(answer)
            # Fields that were added since may say more.
            assert all(getattr(today, field.name) == value for field, value in then.ListFields()), (
                call["rpc"]
            )
        assert len(calls) > 20
        # And they go on.
        chat = service.chat("talk-0")
        before = (await chat.status()).revision
        assert (await chat.say("hello, new release")).revision == before + 1


async def test_set_of_today_passes_its_own_checks(tmp_path, monkeypatch):
    """What the script adds at the next release will be readable by it."""
    work = tmp_path / "work"
    work.mkdir()
    golden = tmp_path / "golden"
    await make_set(golden, work)
    test_set_is_as_it_was_made(golden)
    test_stored_events_mean_what_they_meant(golden)
    test_stored_states_mean_what_they_meant(golden)
    test_registry_file_says_what_it_said(golden)
    with pytest.raises(FileExistsError):
        await make_set(golden, work)


async def test_script_never_changes_a_set():
    """By the name of one that is there."""
    name = sets()[0].name
    before = sums_of(sets()[0])
    script = Path(__file__).parents[2] / "scripts" / "add_golden.py"
    ended = await asyncio.to_thread(
        subprocess.run, [sys.executable, script, name], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "never changed" in ended.stderr
    assert sums_of(sets()[0]) == before


def test_fields_that_were_added_are_no_difference():
    """And ones that are gone or changed are."""
    then = {"a": 1, "b": [{"c": 2}]}
    assert includes({"a": 1, "b": [{"c": 2, "new": 3}], "new": 4}, then)
    for now in ({"b": [{"c": 2}]}, {"a": 1, "b": []}, {"a": 1, "b": [{"c": 3}]}):
        assert not includes(now, then)
