"""StartReplay, WatchReplay and CancelReplay on a real server, with the process of the replay."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from structlog.testing import capture_logs

from agent_routing import AsyncAdmin
from agent_routing.errors import UnknownReplay
from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import admin_service_pb2_grpc
from routing_service.replay.stored_dialogues import KINDS
from routing_service.rpc.admin import replay_runs
from routing_service.rpc.admin.replay_runs import PROCESS_MODULE, ReplayBounds
from routing_service.rpc.admin.replay_sources import EVENT_KINDS
from routing_service.server.bounds import Bounds
from tests.rpc.live_service import refusal, serving
from tests.rpc.registries import DESK
from tests.rpc.signed_in import Signed, serving_signed_in, signed

WAIT_S = 120
"""The process imports the service at the lowest priority, on a machine that may be busy."""

SUPERVISED = DESK.replace("desk-1", "desk-2").replace(
    'color: "#3366ff"', 'color: "#3366ff"\n    sticks: never'
)
"""Sales no longer keeps the user."""

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="finds the process in /proc"
)


LONG = pytest.mark.long

FAILS_AT_A_CONVERSATION = """
from routing_service.cli import replay_process

async def play_conversation(conversation, *sides):
    raise ValueError(f"cannot play {conversation.turns}")

replay_process.play_conversation = play_conversation
replay_process.main()
"""


class Operator:
    """Calls of AdminService, with time enough."""

    def __init__(self, service, metadata=()):
        self.stub = admin_service_pb2_grpc.AdminServiceStub(service.channel)
        self.metadata = metadata

    async def start(self, candidate: str = SUPERVISED, **fields) -> pb.StartReplayResponse:
        """Start a replay."""
        request = pb.StartReplayRequest(candidate=candidate.encode(), reason="ticket 7", **fields)
        return await self.stub.StartReplay(request, timeout=WAIT_S, metadata=self.metadata)

    def watch(self, **fields):
        """Watch a replay."""
        request = pb.WatchReplayRequest(**fields)
        return self.stub.WatchReplay(request, timeout=WAIT_S, metadata=self.metadata)

    async def cancel(self, replay_id: str) -> pb.ReplayProgress:
        """Cancel a replay."""
        request = pb.CancelReplayRequest(replay_id=replay_id)
        answer = await self.stub.CancelReplay(request, timeout=WAIT_S, metadata=self.metadata)
        return answer.progress

    async def outcome(self, **fields) -> tuple[pb.ReplayProgress, list[pb.ReplayedTurn]]:
        """Watch a replay to its end; return how it ended, and all its turns."""
        turns: list[pb.ReplayedTurn] = []
        async for message in self.watch(**fields):
            turns += message.turns
            progress = message.progress
        assert message.position == progress.turns_changed
        return progress, turns


async def talk(service, name: str, messages: int = 2, agent: str = "sales", every_s: float = 0):
    """Hold a conversation with an agent."""
    chat = await service.chat(name).with_agent(agent)
    for number in range(messages):
        service.clock.advance(every_s)
        routed = await chat.say(f"message {number} of {name}")
        await chat.answer(routed.dispatch, "of course")
    return chat


async def talk_much(service, conversations: int = 40):
    """Hold so many conversations that a replay of them is still running when its call returns."""
    await asyncio.gather(*(talk(service, f"chat-{n:03}", 4) for n in range(conversations)))


def processes() -> list[int]:
    """Return the processes of replays that this one has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError, IndexError):
            state, parent = (entry / "stat").read_text().rpartition(") ")[2].split()[:2]
            command = (entry / "cmdline").read_bytes()
            if int(parent) == os.getpid() and state != "Z" and PROCESS_MODULE.encode() in command:
                found.append(int(entry.name))
    return found


async def until_gone() -> None:
    """Wait until no process of a replay is left."""
    async with asyncio.timeout(WAIT_S):
        while processes():  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(0.02)


@pytest.fixture
async def service(tmp_path):
    """A help desk."""
    async with serving(tmp_path, DESK) as running:
        yield running


@pytest.fixture
def sam(service):
    """An operator."""
    return Operator(service)


async def test_replay_shows_each_message_that_would_go_elsewhere(service, sam):
    """With the figures of both registries, and whose message it was."""
    for name in ("a", "b"):
        await talk(service, name)
    begun = await sam.start()
    assert (begun.current_registry_version, begun.registry_version) == ("desk-1", "desk-2")
    progress, turns = await sam.outcome(replay_id=begun.replay_id)
    assert progress.state == pb.REPLAY_STATE_DONE
    assert (progress.conversations, progress.conversations_played, progress.messages) == (2, 2, 6)
    assert not progress.sampled
    assert [(turn.session_id, turn.number) for turn in turns] == [
        ("a", 2), ("a", 3), ("b", 2), ("b", 3),
    ]  # fmt: skip
    for turn in turns:
        assert (turn.owner_agent_id, turn.current_agent_id, turn.agent_id) == (
            "sales",
            "sales",
            "front",
        )
        assert turn.effect == pb.REPLAY_EFFECT_SUPERVISED_NOW
        assert turn.text == ""
    assert progress.current.supervisor_calls_saved == 4
    assert progress.candidate.supervisor_calls_saved == 0
    assert progress.candidate.supervisor_calls == 6
    assert {each.effect: each.count for each in progress.effects} == {
        pb.REPLAY_EFFECT_SUPERVISED_NOW: 4
    }
    # No session has changed by it, and the request leads to the turn.
    stored = [turn for turn in await service.chat("a").turns() if not turn.parent_request_id]
    assert [turn.request_id for turn in stored][1:] == [turn.request_id for turn in turns[:2]]
    await until_gone()


async def test_watch_goes_on_after_its_last_position(service, sam):
    """A page that lost its connection gets the rest, and nothing twice."""
    await talk(service, "a", 5)
    begun = await sam.start()
    _, turns = await sam.outcome(replay_id=begun.replay_id)
    assert len(turns) == 5
    _, rest = await sam.outcome(after_position=3)
    assert rest == turns[3:]
    _, nothing = await sam.outcome(after_position=1_000_000)
    assert nothing == []


@LONG
async def test_owner_that_the_candidate_lacks_is_named(service, sam):
    """The conversations of a removed agent are what its removal is about."""
    await talk(service, "a")
    candidate = DESK.replace("id: sales", "id: shop").replace("[sales", "[shop")
    candidate = candidate.replace("aliases: [Sales Team]", "aliases: [shops]")
    await sam.start(candidate)
    progress, turns = await sam.outcome()
    assert {turn.effect for turn in turns} == {pb.REPLAY_EFFECT_OWNER_REMOVED}
    assert {turn.owner_agent_id for turn in turns} == {"sales"}
    assert progress.current.scored_messages == 3
    assert progress.candidate.scored_messages == 0


@LONG
async def test_agent_with_another_id_is_the_same_agent(service, sam):
    """Its former id is an alias: nothing is different for the user."""
    await talk(service, "a")
    candidate = DESK.replace("id: sales", "id: shop").replace("[sales", "[shop")
    await sam.start(candidate.replace("aliases: [Sales Team]", "aliases: [sales]"))
    progress, turns = await sam.outcome()
    assert progress.state == pb.REPLAY_STATE_DONE
    assert turns == []
    assert progress.candidate == progress.current


async def test_messages_are_played_at_the_times_of_the_record(service, sam):
    """Half an hour between two messages is longer than the candidate lets an agent wait."""
    await talk(service, "a", 3, every_s=1800)
    candidate = DESK.replace('color: "#3366ff"', 'color: "#3366ff"\n    idle_timeout: 20m')
    await sam.start(candidate, update_time_from={"seconds": 1})
    _, turns = await sam.outcome()
    assert len(turns) == 3
    assert {turn.agent_id for turn in turns} == {"front"}


@LONG
async def test_only_the_chosen_conversations_are_played(service, sam):
    """By time of the last change, by channel, and at most so many."""
    for number in range(5):
        await talk(service, f"old-{number}")
    service.clock.advance(8 * 24 * 3600)
    await talk(service, "new")
    await sam.start()
    progress, turns = await sam.outcome()
    assert (progress.conversations, {turn.session_id for turn in turns}) == (1, {"new"})
    await sam.start(update_time_from={"seconds": 1}, sessions_max=2)
    progress, _ = await sam.outcome()
    assert (progress.conversations_played, progress.sampled) == (2, True)
    await sam.start(channel="whatsapp")
    progress, _ = await sam.outcome()
    assert (progress.state, progress.conversations) == (pb.REPLAY_STATE_DONE, 0)


@pytest.mark.parametrize(
    "candidate",
    [
        "agents: [",
        pytest.param(DESK.replace("supervisor: front", "supervisor: nobody"), marks=LONG),
        # Aliases that expand to a thousand million entries.
        "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "\n".join(
            f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]"
            for old, new in zip("abcdefgh", "bcdefghi", strict=True)
        ),
        pytest.param("[" * 50_000, marks=LONG),
        pytest.param("a: !!python/object/apply:os.system [echo]\n" + DESK, marks=LONG),
        pytest.param("x" * (2 * 1024 * 1024), marks=LONG),
        pytest.param("\N{NULL}", marks=LONG),
    ],
    ids=["syntax", "reference", "aliases", "depth", "tag", "size", "NUL"],
)
async def test_wrong_candidate_is_refused_with_its_mistakes(tmp_path, candidate):
    """It is read in the process: whatever it holds, the server goes on."""
    async with serving(tmp_path, DESK, admin_listen="127.0.0.1:0") as running:
        async with grpc.aio.insecure_channel(running.server.admin_address) as channel:
            stub = admin_service_pb2_grpc.AdminServiceStub(channel)
            request = pb.StartReplayRequest(candidate=candidate.encode())
            refused = await refusal(stub.StartReplay(request, timeout=WAIT_S))
            assert tuple(refused) == ("FAILED_PRECONDITION", "REGISTRY_INVALID")
            assert await refusal(stub.WatchReplay(pb.WatchReplayRequest()).read())
        await until_gone()


async def test_the_port_of_users_keeps_its_limit(service, sam):
    """A large candidate goes to the listeners of operators."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await sam.start("#" * (300 * 1024) + DESK)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@LONG
async def test_killed_process_is_reported_in_plain_words(service, sam):
    """As by the kernel when memory runs out."""
    await talk_much(service)
    begun = await sam.start()
    [pid] = processes()
    os.kill(pid, signal.SIGKILL)
    progress, _ = await sam.outcome(replay_id=begun.replay_id)
    assert progress.state == pb.REPLAY_STATE_FAILED
    assert progress.failure.startswith("its process was killed")
    assert progress.HasField("end_time")
    # The next one is a new process.
    again = await sam.start(sessions_max=1)
    progress, _ = await sam.outcome(replay_id=again.replay_id)
    assert progress.state == pb.REPLAY_STATE_DONE


async def test_replay_is_cancelled_while_its_process_does_nothing(service, sam):
    """What was found so far stays, and who watches sees the end."""
    await talk_much(service)
    begun = await sam.start()
    [pid] = processes()
    os.kill(pid, signal.SIGSTOP)
    watching = asyncio.create_task(sam.outcome(replay_id=begun.replay_id))
    second = await refusal(sam.start())
    assert tuple(second) == ("FAILED_PRECONDITION", "REPLAY_RUNNING")
    assert second.metadata["replay_id"] == begun.replay_id
    cancelled = await sam.cancel(begun.replay_id)
    assert cancelled.state == pb.REPLAY_STATE_CANCELLED
    progress, turns = await watching
    assert progress == cancelled
    assert len(turns) == progress.turns_changed
    await until_gone()
    assert await sam.cancel(begun.replay_id) == cancelled


@LONG
async def test_server_that_stops_ends_its_replay(tmp_path):
    """No process is left behind, and the watch says what to do."""
    async with serving(tmp_path, DESK) as service:
        sam = Operator(service)
        await talk_much(service)
        await sam.start()
        [pid] = processes()
        os.kill(pid, signal.SIGSTOP)
        watching = asyncio.create_task(sam.outcome())
        await asyncio.sleep(0.1)
        await service.server.stop(grace_s=5)
        await until_gone()
        progress, _ = await watching
        assert progress.state == pb.REPLAY_STATE_FAILED
        assert "another replica" in progress.failure


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        (ReplayBounds(seconds_max=0.05), "took longer than"),
        (ReplayBounds(memory_bytes_max=1024 * 1024), "memory|too large|ended with"),
    ],
    ids=["time", "memory"],
)
async def test_process_beyond_its_bounds_is_ended(tmp_path, bounds, said):
    """Its caller is told why."""
    async with serving(tmp_path, DESK, bounds=Bounds(replay=bounds)) as service:
        refused = await refusal(Operator(service).start())
        assert tuple(refused) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
        assert any(word in refused.message for word in said.split("|")), refused.message
        await until_gone()


async def test_caller_that_leaves_before_the_answer_leaves_no_process(service, sam):
    """It does not know the replay, so it could not cancel it."""
    request = pb.StartReplayRequest(candidate=SUPERVISED.encode())
    with pytest.raises(grpc.aio.AioRpcError):
        await sam.stub.StartReplay(request, timeout=0.05)
    await until_gone()
    unknown = await refusal(sam.watch().read())
    assert tuple(unknown) == ("NOT_FOUND", "UNKNOWN_REPLAY")


async def test_texts_need_the_right_and_leave_a_record(tmp_path):
    """Without a reason there are none; what was erased meanwhile is not shown."""
    async with serving_signed_in(tmp_path, DESK) as service:
        both = signed(service, "route", "agent", user="ana", agents=("*",), subject="maker")
        await one_turn(both, "a")
        sam = Operator(service, signed(service, "admin", subject="sam").metadata)
        rita = Operator(service, signed(service, "admin", "read_words", subject="rita").metadata)
        await sam.start(SUPERVISED)
        refused = await refusal(sam.watch(read_reason="ticket 7").read())
        assert tuple(refused) == ("PERMISSION_DENIED", "SCOPE_MISSING")
        _, turns = await rita.outcome()
        assert [turn.text for turn in turns] == [""]
        _, turns = await rita.outcome(read_reason="ticket 7")
        assert [turn.text for turn in turns] == ["the secret of ana"]
        audit = await sam.stub.ListEvents(
            pb.ListEventsRequest(kinds=["operator_act"]), metadata=sam.metadata
        )
        acts = [(each.actor, each.event.operator_act) for each in audit.records]
        assert [(who, act.method, act.reason) for who, act in acts] == [
            ("sam", "StartReplay", "ticket 7"),
            ("rita", "WatchReplay", "ticket 7"),
        ]
        await sam.stub.EraseUser(pb.EraseUserRequest(user_id="ana"), metadata=sam.metadata)
        _, turns = await rita.outcome(read_reason="ticket 7")
        assert [turn.text for turn in turns] == [""]


async def test_which_messages_are_taken_elsewhere_needs_the_right_to_read(tmp_path):
    """A candidate that listens for a word would show who said it. Counts name no session."""
    async with serving_signed_in(tmp_path, DESK) as service:
        both = signed(service, "route", "agent", user="ana", agents=("*",), subject="maker")
        await one_turn(both, "a")
        sam = Operator(service, signed(service, "admin", subject="sam").metadata)
        rita = Operator(service, signed(service, "admin", "read_words", subject="rita").metadata)
        begun = await sam.start(SUPERVISED)
        progress, turns = await sam.outcome(replay_id=begun.replay_id)
        assert (progress.state, progress.turns_changed) == (pb.REPLAY_STATE_DONE, 1)
        assert turns == []
        again, turns = await rita.outcome(replay_id=begun.replay_id)
        assert again == progress
        assert [turn.session_id for turn in turns] == ["a"]


async def test_a_process_that_fails_says_why_in_the_log(service, sam, monkeypatch):
    """The operator is sent there: what it wrote to stderr was nowhere."""
    monkeypatch.setattr(replay_runs, "PROCESS_MODULE", "routing_service.cli.no_such_module")
    with capture_logs() as lines:
        refused = await refusal(sam.start())
        assert "exit code 1" in refused.message
        assert "replay_process_failed" in refused.message
        async with asyncio.timeout(WAIT_S):
            while not (found := [x for x in lines if x["event"] == "replay_process_failed"]):  # noqa: ASYNC110 - logged after the answer
                await asyncio.sleep(0.02)
    assert "No module named routing_service.cli.no_such_module" in found[0]["last_lines"]


async def test_an_error_in_the_process_is_logged_without_what_users_said(tmp_path):
    """Its message may quote a conversation; its place says where to look."""
    program = tmp_path / "program.py"
    program.write_text(FAILS_AT_A_CONVERSATION)
    async with serving(tmp_path, DESK) as service:
        await talk(service, "a")
        with pytest.MonkeyPatch.context() as patch, capture_logs() as lines:
            patch.syspath_prepend(str(tmp_path))
            patch.setattr(replay_runs, "PROCESS_MODULE", "program")
            sam = Operator(service)
            await sam.start()
            progress, _ = await sam.outcome()
            await service.server.stop(grace_s=5)
    assert "it failed by ValueError at program.py" in progress.failure
    [failed] = [line for line in lines if line["event"] == "replay_process_failed"]
    assert "in play_conversation" in failed["last_lines"]
    assert "message 1 of a" not in failed["last_lines"]


async def test_the_process_imports_nothing_from_where_the_server_was_started(tmp_path, monkeypatch):
    """Others may write to that folder, and variables are for the server."""
    (tmp_path / "yaml.py").write_text("raise SystemExit(7)")
    (tmp_path / "msgspec.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with serving(tmp_path, DESK) as service:
        sam = Operator(service)
        await sam.start()
        progress, _ = await sam.outcome()
        assert progress.state == pb.REPLAY_STATE_DONE


async def one_turn(both: Signed, session_id: str) -> None:
    """Hand a conversation to sales, and send it a message."""
    from agent_routing.v1 import handoff_pb2  # noqa: PLC0415
    from agent_routing.v1 import routing_service_pb2 as rpb  # noqa: PLC0415

    await both(
        "SetActiveAgent",
        rpb.SetActiveAgentRequest(
            session_id=session_id,
            agent_id="sales",
            initiator=handoff_pb2.INITIATOR_SUPERVISOR,
        ),
    )
    for text in ("hello", "the secret of ana"):
        routed = await both("Route", rpb.RouteRequest(session_id=session_id, text=text))
        request = rpb.CompleteTurnRequest(
            session_id=session_id,
            request_id=routed.dispatch.request_id,
            agent_id="sales",
            text="yes",
        )
        request.proceed.SetInParent()
        await both("CompleteTurn", request)


@LONG
async def test_replays_of_another_tenant_are_unknown(tmp_path):
    """Their conversations are neither played nor shown."""
    async with serving_signed_in(tmp_path, DESK) as service:
        both = signed(service, "route", "agent", user="ana", agents=("*",), subject="maker")
        await one_turn(both, "a")
        sam = Operator(service, signed(service, "admin", subject="sam").metadata)
        xaver = Operator(service, signed(service, "admin", tenant="x").metadata)
        begun = await sam.start()
        for replay_id in ("", begun.replay_id):
            unknown = await refusal(xaver.watch(replay_id=replay_id).read())
            assert tuple(unknown) == ("NOT_FOUND", "UNKNOWN_REPLAY")
        assert tuple(await refusal(xaver.cancel(begun.replay_id))) == (
            "NOT_FOUND",
            "UNKNOWN_REPLAY",
        )
        refused = await refusal(xaver.start(tenant="default"))
        assert tuple(refused) == ("PERMISSION_DENIED", "SCOPE_MISSING")
        await xaver.start()
        progress, _ = await xaver.outcome()
        assert progress.conversations == 0


def test_server_reads_the_events_that_the_process_needs():
    """The two are in different layers."""
    assert EVENT_KINDS == KINDS


async def test_client_of_python_plays_a_replay_to_its_end(service):
    """Starts it, watches it, and cancels what has ended without harm."""
    await talk(service, "one")
    async with AsyncAdmin(service.server.address, timeout=WAIT_S) as admin:
        begun = await admin.start_replay(SUPERVISED.encode(), reason="ticket 7")
        messages = [message async for message in admin.watch_replay(begun.replay_id)]
        assert messages[-1].progress.state == pb.REPLAY_STATE_DONE
        assert messages[-1].progress.conversations_played == 1
        cancelled = await admin.cancel_replay(begun.replay_id)
        assert cancelled.progress.state == pb.REPLAY_STATE_DONE
        with pytest.raises(UnknownReplay):
            await admin.cancel_replay("nothing")
