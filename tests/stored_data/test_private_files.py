"""The store's files, backups and exports: no other user of the machine reads them, or moves them.

The commands and servers are processes of their own, with the umask of a careless service manager.
"""

import os
import signal
import stat
from contextlib import contextmanager

import grpc
import pytest

from agent_routing.v1 import routing_service_pb2, routing_service_pb2_grpc
from routing_service.examples import EXAMPLES
from tests.rpc.conftest import serve_process  # noqa: F401 - a fixture
from tests.stored_data.command_line import command

TAX = EXAMPLES["tax"].registry_path


@contextmanager
def umask(mask):
    """Start processes under a umask."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


async def say(address):
    """Route one message through a server."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = routing_service_pb2_grpc.RoutingServiceStub(channel)
        request = routing_service_pb2.RouteRequest(session_id="s", user_id="ana", text="secret")
        await stub.Route(request, timeout=20)


def modes(folder):
    """Return the permissions of the store's files, backups and exports in a folder."""
    kept = (file for file in folder.iterdir() if "routing.db" in file.name or "out" in file.name)
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in kept}


@pytest.mark.parametrize("mask", [0o000, 0o377])
async def test_no_file_of_the_store_is_open_to_other_users(serve_process, tmp_path, mask):  # noqa: F811
    """Database, log and its index, backup, restored file, copy and export, with any umask."""
    with umask(mask):
        served = await serve_process()
        await say(served.address)
        store = f"sqlite:///{tmp_path / 'routing.db'}"
        assert {"routing.db", "routing.db-wal", "routing.db-shm"} <= modes(tmp_path).keys()
        backup = tmp_path / "out-backup.db"
        restored = f"sqlite:///{tmp_path / 'out-restored.db'}"
        for arguments in (
            ("backup", "--store", store, "--to", backup),
            ("restore", "--from", backup, "--store", restored),
            ("copy", "--from", store, "--to", f"sqlite:///{tmp_path / 'out-copy.db'}"),
            ("export-user", "ana", "--target", served.address, "--output", tmp_path / "out-export"),
        ):
            code, out, err = await command(*arguments)
            assert code == 0, (arguments, out, err)
    found = modes(tmp_path)
    assert len([name for name in found if name.startswith("out-")]) >= 4
    assert {name for name, mode in found.items() if mode != 0o600} == set()


async def test_file_that_is_open_to_others_is_a_warning(serve_process, tmp_path):  # noqa: F811
    """Its permissions may be meant so, for a backup's group; they are left as they are."""
    first = await serve_process()
    await say(first.address)
    first.send(signal.SIGTERM)
    await first.end()
    file = tmp_path / "routing.db"
    file.chmod(0o640)
    again = await serve_process()
    assert "store_file_open_to_others" in again.text
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


@pytest.mark.parametrize("dangles", [True, False])
async def test_backup_and_export_follow_no_symbolic_link(serve_process, tmp_path, dangles):  # noqa: F811
    """A link that someone left in a shared folder does not choose what is overwritten."""
    served = await serve_process()
    await say(served.address)
    victim = tmp_path / "victim"
    if not dangles:
        victim.write_bytes(b"precious")
    link = tmp_path / "backup.db"
    link.symlink_to(victim)
    store = f"sqlite:///{tmp_path / 'routing.db'}"
    for options in ((), ("--overwrite",)):
        code, _, err = await command("backup", "--store", store, "--to", link, *options)
        assert code == 1
        assert "is a symbolic link" in err
    code, _, err = await command("export-user", "ana", "--target", served.address, "--output", link)
    assert code == 2
    assert "exists already" in err
    # Nor the name under which a backup is written before it is whole.
    (tmp_path / "nightly.db.partial").symlink_to(victim)
    code, _, err = await command("backup", "--store", store, "--to", tmp_path / "nightly.db")
    assert (code, err) == (0, "")
    assert victim.exists() is not dangles
    assert dangles or victim.read_bytes() == b"precious"


async def test_second_name_of_a_file_is_locked_too(serve_process, tmp_path):  # noqa: F811
    """Two servers on one file would write over each other's sessions."""
    served = await serve_process()
    await say(served.address)
    other = tmp_path / "other" / "same.db"
    other.parent.mkdir()
    os.link(tmp_path / "routing.db", other)
    for arguments in (
        ("serve", "--listen", "127.0.0.1:0", "--agents", TAX),
        ("compact",),
        ("migrate",),
    ):
        code, _, err = await command(*arguments, "--store", f"sqlite:///{other}")
        assert code == 1, arguments
        assert "is in use by" in err
    code, _, err = await command(
        *("restore", "--from", tmp_path / "routing.db"),
        *("--store", f"sqlite:///{other}", "--overwrite"),
    )
    assert code == 1
    assert "is in use by" in err
    await say(served.address)
