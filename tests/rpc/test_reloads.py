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
from routing_service.sessions.touched_sessions import count_touched
from routing_service.telemetry.log_privacy import IdHashes
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


async def test_changed_file_waits_for_a_reload_where_reloads_are_manual(tmp_path):
    """A file that a deployment replaces must not reach users before someone has looked at it."""
    path = tmp_path / "agents.yaml"
    bounds = Bounds(registry_poll_s=0.02)
    async with serving(tmp_path, DESK, bounds=bounds, reload="manual") as service:
        chat = await service.chat().with_agent("sales")
        with capture_logs() as logs:
            install(path, DESK.replace("desk-1", "desk-2").encode())
            async with asyncio.timeout(WAIT_S):
                while not any(entry["event"] == "registry_file_changed" for entry in logs):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            await asyncio.sleep(0.1)
        (noticed,) = [entry for entry in logs if entry["event"] == "registry_file_changed"]
        assert noticed["registry_version"] == "desk-1"
        await chat.say()
        assert (await chat.status()).registry_version == "desk-1"
        stub = pb_grpc.AdminServiceStub(service.channel)
        tried = await stub.ReloadAgents(pb.ReloadAgentsRequest(validate_only=True), timeout=WAIT_S)
        assert tried.registry_version == "desk-2"
        assert service.server.registry_reloads == (0, 0)
        await service.server.reload()
        await chat.say()
        assert (await chat.status()).registry_version == "desk-2"


async def test_trial_does_not_stop_the_file_from_being_taken_up(tmp_path):
    """A trial right after the change once made the server believe that it had read the file."""
    bounds = Bounds(registry_poll_s=0.5)
    async with serving(tmp_path, DESK, bounds=bounds) as service:
        install(tmp_path / "agents.yaml", DESK.replace("desk-1", "desk-2").encode())
        stub = pb_grpc.AdminServiceStub(service.channel)
        await stub.ReloadAgents(pb.ReloadAgentsRequest(validate_only=True), timeout=WAIT_S)
        async with asyncio.timeout(WAIT_S):
            while service.server.registry_reloads != (1, 0):  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0.02)


async def test_rehearsal_names_the_sessions_that_a_registry_would_touch(tmp_path):
    """Counted by what the agent is to the session, for the caller's tenant or for all."""
    async with serving(tmp_path, DESK) as service:
        held = await service.chat("held").with_agent("sales")
        await held.say("wait for it")
        interrupted = await service.chat("interrupted").with_agent("sales")
        asked = await interrupted.say("I am sad")
        await interrupted.answer(asked.dispatch, **hand_to("interrupts"))
        await service.chat("elsewhere").with_agent("support")
        await service.chat("other", tenant="acme").with_agent("sales")
        ended = service.chat("idle")
        await ended.answer((await ended.say()).dispatch, "hello")
        stub = pb_grpc.AdminServiceStub(service.channel)
        following = DESK.replace("desk-1", "desk-2").replace("#3366ff", "#112233")
        following = following.replace("hops_per_message: 4", "hops_per_message: 6")

        async def rehearse(**fields):
            request = pb.ReloadAgentsRequest(
                validate_only=True, registry=following, with_sessions=True, **fields
            )
            return await stub.ReloadAgents(request, timeout=WAIT_S)

        answer = await rehearse()
        assert (answer.registry_version, answer.previous_registry_version) == ("desk-2", "desk-1")
        assert list(answer.changed_agent_ids) == ["sales"]
        assert list(answer.changed_settings) == ["limits"]
        (touched,) = answer.touched
        assert touched.agent_id == "sales"
        assert (touched.active, touched.interrupted, touched.answering) == (1, 1, 1)
        assert list(touched.example_session_ids) == ["held", "interrupted"]
        assert (answer.sessions_read, answer.all_sessions_read) == (4, True)
        everywhere = await rehearse(tenant="*")
        assert everywhere.touched[0].active == 2
        assert everywhere.sessions_read == 5
        # Nothing was put in force, nor was the server's own file.
        assert service.server.registry_reloads == (0, 0)
        assert (await held.status()).registry_version == "desk-1"


async def test_examples_of_touched_sessions_are_hashed_as_in_the_log(tmp_path):
    """An operator who may not see ids in the log may not see them here."""
    hashes = IdHashes(b"k" * 32)
    async with serving(tmp_path, DESK, shown_id=hashes.hide) as service:
        await service.chat("held").with_agent("sales")
        stub = pb_grpc.AdminServiceStub(service.channel)
        answer = await stub.ReloadAgents(
            pb.ReloadAgentsRequest(
                validate_only=True,
                registry=DESK.replace("#3366ff", "#112233"),
                with_sessions=True,
            ),
            timeout=WAIT_S,
        )
    assert list(answer.touched[0].example_session_ids) == [hashes.hide("held")]


async def test_rehearsal_reads_a_bounded_number_of_sessions(tmp_path):
    """A call must not read a store of millions; it says that it did not."""
    async with serving(tmp_path, DESK) as service:
        for number in range(3):
            await service.chat(f"held-{number}").with_agent("sales")
        counted = await count_touched(
            service.store,
            ["default"],
            {"sales"},
            home_agent_id="front",
            shown_id=str,
            read_max=2,
        )
    assert (counted.sessions_read, counted.is_complete) == (2, False)
    assert counted.by_agent["sales"].active == 2


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"registry": "x"}, "registry"),
        ({"with_sessions": True}, "with_sessions"),
        ({"tenant": "acme"}, "tenant"),
        ({"validate_only": True, "registry": "x" * (192 * 1024 + 1)}, "registry"),
    ],
)
async def test_rehearsal_refuses_what_it_does_not_mean(tmp_path, fields, named):
    """A registry in a request is never put in force: the server's file is what it goes by."""
    async with serving(tmp_path, DESK) as service:
        stub = pb_grpc.AdminServiceStub(service.channel)
        refused = await refusal(stub.ReloadAgents(pb.ReloadAgentsRequest(**fields), timeout=WAIT_S))
    assert tuple(refused) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert named in refused.violations
