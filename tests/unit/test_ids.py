"""Ids: valid, distinct, in the order of their making; also in a child process and from threads."""

import os
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from routing_service.core.turn_ids import child_request_id, revision_of_child
from routing_service.ids import derived_session_id, new_uuid7


def test_new_ids_are_uuids_of_version_7_with_their_time():
    """Stores sort by them, and clients check them."""
    before_ms = time.time_ns() // 1_000_000
    ids = [uuid.UUID(new_uuid7()) for _ in range(1_000)]
    after_ms = time.time_ns() // 1_000_000
    assert {(made.version, made.variant) for made in ids} == {(7, uuid.RFC_4122)}
    assert all(before_ms <= made.int >> 80 <= after_ms for made in ids)


def test_ids_are_distinct_however_many_threads_make_them():
    """Their randomness comes in batches, and no two may get the same part of one."""
    with ThreadPoolExecutor(8) as threads:
        parts = threads.map(lambda _: [new_uuid7() for _ in range(5_000)], range(8))
        ids = [made for part in parts for made in part]
    assert len(set(ids)) == 40_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork: this platform has none")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_child_process_makes_ids_of_its_own():
    """It begins with a copy of its parent's memory, randomness in store included."""
    new_uuid7()  # Leaves a batch behind.
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, new_uuid7().encode())
        os._exit(0)
    os.waitpid(child, 0)
    told = os.read(reader, 36).decode()
    os.close(reader)
    os.close(writer)
    # The time may be the same, the rest may not.
    assert told[14:] != new_uuid7()[14:]


def test_derived_session_id_is_the_same_for_every_repeat():
    """And another one where any of its parts differs, wherever they are cut."""
    made = derived_session_id("acme", "ana", "r")
    assert made == derived_session_id("acme", "ana", "r")
    assert (
        len({made, derived_session_id("acm", "eana", "r"), derived_session_id("acme", "", "r")})
        == 3
    )


@pytest.mark.parametrize("revision", [1, 2, 255, 65_536, (1 << 40) - 1])
def test_child_request_id_tells_its_revision(revision):
    """It is a UUIDv7 all the same."""
    child = child_request_id(new_uuid7(), revision)
    assert revision_of_child(child) == revision
    assert uuid.UUID(child).version == 7
    assert revision_of_child(child.upper()) == revision
