"""Registry reloads under load: every call uses the old or the new registry, and none fails.

`make test` does few reloads; `make torture` does a hundred.
"""

import asyncio
import itertools

import pytest
from structlog.testing import capture_logs

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import admin_service_pb2_grpc as pb_grpc
from routing_service.core import events as ev
from routing_service.server.bounds import Bounds
from tests.rpc.live_service import finish, hand_to, outcome_status, refusal, serving, went
from tests.rpc.registries import DESK

WAIT_S = 120
TALKERS = 8

BROKEN = (
    b"",
    b"agents: [",
    b"\xff\xfe\x00",
    DESK.replace("supervisor: front", "supervisor: nobody").encode(),
    DESK.replace("id: sales", "id: support").encode(),
    DESK.replace("limits: {", "limits: {unheard_of: 1, ").encode(),
    None,  # The file is missing.
)
"""What people and deployments do to a file."""

GOOD = (
    # The talking sessions are not affected: they are with sales, which is in every registry.
    DESK,
    DESK.replace("default_locale: en", "default_locale: es"),
    DESK.replace("  - {id: journal, name: Journal, kind: system, user_selectable: true}\n", ""),
    DESK.replace("hops_per_message: 4", "hops_per_message: 6"),
)


def install(path, content):
    """Replace the file atomically, as deployments do; None removes it."""
    if content is None:
        path.unlink(missing_ok=True)
        return
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    fresh.replace(path)


class Load:
    """State shared between the talking and the reloading tasks."""

    def __init__(self):
        self.done = asyncio.Event()
        self.rounds = 0
        self.round_ended = asyncio.Condition()

    async def count_round(self):
        """Count one finished round of a talking task."""
        async with self.round_ended:
            self.rounds += 1
            self.round_ended.notify_all()

    async def until_next_round(self, talking):
        """Wait for the end of a round, so that every reload happens under load."""
        rounds = self.rounds
        async with asyncio.timeout(WAIT_S), self.round_ended:
            await self.round_ended.wait_for(
                lambda: self.rounds > rounds or any(task.done() for task in talking)
            )


async def talk(service, number, load):
    """Talk until the end of the test; every call must be answered normally."""
    chat = await service.chat(f"reloading-{number}").with_agent("sales")
    versions = set()
    messages = 0
    while not load.done.is_set() or not messages:
        routed = await chat.say(f"message {messages}")
        assert went(routed.dispatch) == ("sales", "STICKY")
        answered = await chat.answer(routed.dispatch, f"answer {messages}")
        assert outcome_status(answered) == "APPLIED"
        moved = await chat.set_active("support")
        assert moved.agent.agent_id == "support"
        routed = await chat.say("back to sales, please")
        handed = await chat.answer(routed.dispatch, **hand_to("sales"))
        assert outcome_status(await chat.answer(handed.next, "here again")) == "APPLIED"
        versions.add((await chat.status()).registry_version)
        messages += 1
        await load.count_round()
    routed = await chat.say("thank you")
    assert outcome_status(await chat.answer(routed.dispatch, "bye", **finish())) == "APPLIED"
    return chat, messages, versions


async def reload_often(service, path, reloads, load, talking):
    """Install valid and broken files in turn, and reload each."""
    stub = pb_grpc.AdminServiceStub(service.channel)
    good = itertools.cycle(GOOD)
    broken = itertools.cycle(BROKEN)
    for number in range(reloads):
        is_broken = number % 2 == 1
        content = next(broken)
        if not is_broken:
            content = next(good).replace("desk-1", f"desk-{number}").encode()
        await asyncio.to_thread(install, path, content)
        if number % 3 == 0:
            # SIGHUP reloads in the same way: only the log has the result.
            await service.server.reload()
        else:
            call = stub.ReloadAgents(pb.ReloadAgentsRequest(), timeout=WAIT_S)
            if is_broken:
                refused = await refusal(call)
                assert tuple(refused) == ("FAILED_PRECONDITION", "REGISTRY_INVALID")
            else:
                assert (await call).registry_version == f"desk-{number}"
        await load.until_next_round(talking)


async def reload_under_load(folder, reloads):
    """Reload while others talk, and check all that is left afterwards."""
    # The file is only read when the test reloads, so that the counts are exact.
    async with serving(folder, DESK, bounds=Bounds(registry_poll_s=10 * WAIT_S)) as service:
        load = Load()
        talking = [asyncio.create_task(talk(service, n, load)) for n in range(TALKERS)]
        with capture_logs() as logs:
            await reload_often(service, folder / "agents.yaml", reloads, load, talking)
        load.done.set()
        talked = await asyncio.wait_for(asyncio.gather(*talking), WAIT_S)
        for chat, messages, _ in talked:
            turns = await chat.turns(page_size=1000)
            # Six requests per round, two at the beginning and one at the end: none is lost.
            said = [turn.user_text for turn in turns if not turn.parent_request_id]
            assert said.count("back to sales, please") == messages
            assert [f"message {n}" for n in range(messages)] == [
                text for text in said if text.startswith("message ")
            ]
            events = await chat.events()
            assert sum(isinstance(event, ev.SessionStarted) for event in events) == 1
            revisions = [change.revision for change in await chat.changes()]
            assert revisions == list(range(1, len(revisions) + 1))
        # The talking tasks saw more than one registry, so the reloads happened under load.
        assert max(len(versions) for _, _, versions in talked) > 1
        failed = [entry for entry in logs if entry["event"] == "registry_reload_failed"]
        assert all(entry["problems"] for entry in failed)
        assert all(str(folder / "agents.yaml") == entry["registry"] for entry in failed)
        return service.server.registry_reloads, len(failed)


@pytest.mark.parametrize(
    "reloads", [20, pytest.param(100, marks=[pytest.mark.torture, pytest.mark.timeout(600)])]
)
async def test_reloads_under_load_fail_no_call_and_lose_no_session(tmp_path, reloads):
    """Half of the files are broken; the log and the counters report each."""
    counted, logged = await reload_under_load(tmp_path, reloads)
    assert counted == (reloads // 2, reloads // 2)
    assert logged == reloads // 2


async def test_broken_file_is_noticed_by_itself_and_a_mended_one_too(tmp_path):
    """No reload is requested: the server watches the file and logs its mistakes."""
    path = tmp_path / "agents.yaml"
    async with serving(tmp_path, DESK) as service:
        chat = await service.chat().with_agent("sales")
        with capture_logs() as logs:
            install(path, DESK.replace("supervisor: front", "supervisor: nobody").encode())
            async with asyncio.timeout(WAIT_S):
                while service.server.registry_reloads != (0, 1):  # noqa: ASYNC110 - no event for it
                    await asyncio.sleep(0.02)
        assert went((await chat.say()).dispatch) == ("sales", "STICKY")
        (failed,) = [entry for entry in logs if entry["event"] == "registry_reload_failed"]
        assert "nobody" in str(failed["problems"])
        install(path, DESK.replace("desk-1", "desk-mended").encode())
        async with asyncio.timeout(WAIT_S):
            while service.server.registry_reloads != (1, 1):  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0.02)
        assert (await chat.say()).dispatch.agent.agent_id == "sales"
        assert (await chat.status()).registry_version == "desk-mended"
