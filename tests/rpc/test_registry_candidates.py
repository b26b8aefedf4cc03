"""GetRegistry, and another registry in the place of the server's file."""

import errno
import os
from pathlib import Path

import pytest

from agent_routing.v1 import admin_service_pb2 as pb
from routing_service.registry import file_replacement
from routing_service.registry.file import load_registry
from tests.rpc.live_service import refusal, serving
from tests.rpc.registries import DESK
from tests.rpc.signed_in import serving_signed_in, signed

NEXT = DESK.replace("desk-1", "desk-2").replace("[sales", "[shop").replace("id: sales", "id: shop")
AS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


@pytest.fixture
async def service(tmp_path):
    """A help desk whose callers sign in."""
    async with serving_signed_in(tmp_path, DESK) as running:
        yield running


@pytest.fixture
def owner(service):
    """An operator of all tenants."""
    return signed(service, "admin", "platform", subject="olga")


def previous_files(folder):
    """Return the earlier registry files in a folder, oldest first."""
    return sorted(folder.glob("agents.yaml.*.previous"))


async def take(caller, text, **fields):
    """Replace the registry."""
    request = pb.ReloadAgentsRequest(candidate=text.encode(), reason="ticket 7", **fields)
    return await caller("ReloadAgents", request)


async def in_force(caller):
    """Return the registry in force."""
    return await caller("GetRegistry", pb.GetRegistryRequest())


async def test_registry_in_force_says_who_may_hand_over_to_whom(tmp_path, service):
    """A list in the file, or all; the console draws it."""
    found = await in_force(signed(service, "admin"))
    by_id = {each.agent.agent_id: each for each in found.agents}
    written = load_registry(tmp_path / "agents.yaml").agents
    assert list(by_id) == sorted(written)
    assert found.home_agent_id == "front"
    assert found.read_only_reason == ""
    for agent_id, agent in written.items():
        assert by_id[agent_id].lists_handoffs == (agent.handoff_to is not None)
        assert list(by_id[agent_id].handoff_to) == sorted(agent.handoff_to or ())
        assert list(by_id[agent_id].aliases) == list(agent.aliases)


async def test_warnings_of_the_file_are_shown_with_their_line(tmp_path):
    """They are in the log too, which operators of the console do not read."""
    # Every agent could be suggested, and few say what they are for.
    async with serving(tmp_path, DESK + "topics: {mode: suggest}\n") as running:
        admin = signed(running, "admin")
        request = pb.ReloadAgentsRequest(validate_only=True, with_agents=True)
        trial = await admin("ReloadAgents", request)
        found = await in_force(admin)
        assert found.warnings
        assert list(found.warnings) == list(trial.warnings)
        for warning in found.warnings:
            assert warning.line > 0
            assert warning.message


async def test_candidate_replaces_the_file_and_the_former_one_is_kept(tmp_path, owner):
    """The next start reads what was taken, and a wrong candidate can be taken back."""
    path = tmp_path / "agents.yaml"
    before = path.read_bytes()
    answer = await take(owner, NEXT, expected_registry_version="desk-1", with_agents=True)
    assert (answer.previous_registry_version, answer.registry_version) == ("desk-1", "desk-2")
    assert list(answer.removed_agent_ids) == ["sales"]
    assert "shop" in {each.agent.agent_id for each in answer.agents}
    assert path.read_text(encoding="utf-8") == NEXT
    [kept] = previous_files(tmp_path)
    assert kept.name == answer.previous_file
    assert kept.read_bytes() == before
    assert (await in_force(owner)).registry_version == "desk-2"
    audit = await owner("ListEvents", pb.ListEventsRequest(kinds=["operator_act"]))
    [act] = [each.event.operator_act for each in audit.records]
    assert (act.method, act.reason) == ("ReloadAgents", "ticket 7")
    assert act.target == f'registry "desk-1" to "desk-2", the former file is "{kept.name}"'


async def test_candidate_is_taken_by_operators_of_all_tenants_alone(tmp_path, service):
    """It changes the routing of every tenant; a tenant's operator may compare it."""
    admin = signed(service, "admin")
    refused = await refusal(take(admin, NEXT))
    assert tuple(refused) == ("PERMISSION_DENIED", "SCOPE_MISSING")
    trial = await take(admin, NEXT, validate_only=True)
    assert list(trial.added_agent_ids) == ["shop"]
    assert previous_files(tmp_path) == []


@pytest.mark.parametrize(
    "text", ["agents: [", DESK.replace("supervisor: front", "supervisor: nobody"), "a: &a [*a]"]
)
async def test_wrong_candidate_changes_neither_file_nor_registry(tmp_path, owner, text):
    """It is checked as the file is before the file is touched."""
    before = (tmp_path / "agents.yaml").read_bytes()
    refused = await refusal(take(owner, text))
    assert tuple(refused) == ("FAILED_PRECONDITION", "REGISTRY_INVALID")
    assert (tmp_path / "agents.yaml").read_bytes() == before
    assert (await in_force(owner)).registry_version == "desk-1"
    assert [each.name for each in tmp_path.glob(".agents*")] == []


async def test_candidate_that_this_server_cannot_use_is_refused(tmp_path):
    """Approvals that tell callers apart need sign-in: the next start would fail."""
    text = DESK + "approvals: {by: treasurer}\n"
    async with serving(tmp_path, DESK) as running:
        refused = await refusal(take(signed(running, "admin"), text))
        assert tuple(refused) == ("FAILED_PRECONDITION", "REGISTRY_INVALID")
        assert previous_files(tmp_path) == []


async def test_second_of_two_operators_is_told(service, owner):
    """Both compared with the same registry; the second would undo what the first took."""
    await take(owner, NEXT, expected_registry_version="desk-1")
    refused = await refusal(
        take(owner, DESK.replace("desk-1", "desk-3"), expected_registry_version="desk-1")
    )
    assert tuple(refused) == ("ABORTED", "REVISION_MISMATCH")
    assert (await in_force(owner)).registry_version == "desk-2"


async def test_file_that_is_a_link_is_not_replaced(tmp_path, owner):
    """A ConfigMap's files are links: the change would be gone with the next pod."""
    path = tmp_path / "agents.yaml"
    path.rename(tmp_path / "real.yaml")
    path.symlink_to("real.yaml")
    assert "link" in (await in_force(owner)).read_only_reason
    refused = await refusal(take(owner, NEXT))
    assert tuple(refused) == ("FAILED_PRECONDITION", "REGISTRY_READ_ONLY")
    assert path.is_symlink()
    assert (tmp_path / "real.yaml").read_text(encoding="utf-8") == DESK


@pytest.mark.skipif(AS_ROOT, reason="root may write everywhere")
async def test_folder_that_cannot_be_written_is_named(tmp_path, owner):
    """Nothing is half done."""
    tmp_path.chmod(0o500)
    try:
        refused = await refusal(take(owner, NEXT))
    finally:
        tmp_path.chmod(0o700)
    assert tuple(refused) == ("FAILED_PRECONDITION", "REGISTRY_READ_ONLY")


async def test_failing_disk_leaves_the_file_as_it_was(tmp_path, owner, monkeypatch):
    """A full disk, or a file that is mounted by itself and cannot be renamed over."""

    def rename(_path, _target):
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(Path, "replace", rename)
    refused = await refusal(take(owner, NEXT))
    assert tuple(refused) == ("FAILED_PRECONDITION", "REGISTRY_READ_ONLY")
    assert (tmp_path / "agents.yaml").read_text(encoding="utf-8") == DESK
    assert previous_files(tmp_path) == []


async def test_only_so_many_earlier_files_are_kept(tmp_path, owner):
    """The newest ones; files with other names are not the server's."""
    other = tmp_path / "agents.yaml.mine.previous"
    other.write_text("mine", encoding="utf-8")
    for number in range(file_replacement.KEPT_MAX + 3):
        await take(owner, DESK.replace("desk-1", f"desk-{number + 2}"))
    kept = [each for each in previous_files(tmp_path) if each != other]
    assert len(kept) == file_replacement.KEPT_MAX
    assert "desk-13" in kept[-1].read_text(encoding="utf-8")
    assert other.exists()


async def test_candidate_in_another_encoding_is_named(service, owner):
    """With the byte and its place, as for the file."""
    request = pb.ReloadAgentsRequest(validate_only=True, candidate=b"\xff\xfea")
    refused = await refusal(owner("ReloadAgents", request))
    assert tuple(refused) == ("INVALID_ARGUMENT", "INVALID_FIELD")


async def test_tokens_without_admin_see_no_registry(service):
    """Who may hand over to whom is for operators."""
    caller = signed(service, "route", user="ana")
    refused = await refusal(in_force(caller))
    assert tuple(refused) == ("PERMISSION_DENIED", "SCOPE_MISSING")
