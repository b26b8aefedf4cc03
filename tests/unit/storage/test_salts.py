"""Salts of records: random, none twice; also in a child process and from threads."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from routing_service.storage.audit_chain import SALT_BYTES, new_salt


def test_salts_are_distinct_however_many_threads_take_them():
    """They are fetched many at a time, and no two records may get the same."""
    with ThreadPoolExecutor(8) as threads:
        parts = threads.map(lambda _: [new_salt() for _ in range(5_000)], range(8))
        salts = [salt for part in parts for salt in part]
    assert len(set(salts)) == 40_000
    assert {len(salt) for salt in salts} == {SALT_BYTES}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork: this platform has none")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_child_process_takes_salts_of_its_own():
    """It begins with a copy of its parent's memory, fetched salts included."""
    new_salt()  # Leaves others behind.
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, new_salt())
        os._exit(0)
    os.waitpid(child, 0)
    taken = os.read(reader, SALT_BYTES)
    os.close(reader)
    os.close(writer)
    assert taken != new_salt()
