"""A whole run: concurrent dialogues, limits, bad lines, servers that stop."""

import json

import grpc
import pytest

from agent_routing.errors import InternalError, Unavailable
from agent_routing.v1 import routing_service_pb2 as pb
from agent_routing.v1.turn_pb2 import OUTCOME_STATUS_APPLIED
from routing_service.replay.choices import ReplayPolicy, SwitchMode
from routing_service.replay.dialogue_files import DialogueFileUnreadable
from routing_service.replay.figures import DecisionDigest, ReplayFigures, Tally
from routing_service.replay.play import Stage
from routing_service.replay.run import Order, ReplayStopped, replay

STAGE = Stage(ReplayPolicy.STICKY, SwitchMode.SUPERVISOR, "supervisor", "run")


class EasyServer:
    """Sends every message to its only agent; fails where the test says so."""

    def __init__(self, fail_on=(), error=None):
        self.fail_on = fail_on
        self.error = error
        self.order = []

    async def route(self, request):
        self.order.append((request.session_id, request.text))
        if request.text in self.fail_on:
            raise self.error
        response = pb.RouteResponse(supervisor_bypassed=True)
        response.dispatch.request_id = request.request_id
        response.dispatch.agent.agent_id = "billing"
        return response

    async def complete_turn(self, request):
        return pb.CompleteTurnResponse(outcome_status=OUTCOME_STATUS_APPLIED)


def write(tmp_path, count=20, turns=3):
    """Write dialogues whose messages name their dialogue."""
    file = tmp_path / "dialogues.jsonl"
    file.write_text(
        "".join(
            json.dumps(
                {
                    "dialogue_id": f"d{number}",
                    "turns": [
                        turn
                        for index in range(turns)
                        for turn in (
                            {"speaker": "user", "text": f"d{number} m{index}", "agent": "billing"},
                            {"speaker": "agent", "text": "yes", "agent": "billing"},
                        )
                    ],
                }
            )
            + "\n"
            for number in range(count)
        ),
        encoding="utf-8",
    )
    return str(file)


async def run(server, *files, complaints=None, progress=None, **order):
    """Replay files on a server that knows one agent."""
    return await replay(
        Order(files, **order),
        server,
        STAGE,
        frozenset({"supervisor", "billing"}),
        complain=(complaints if complaints is not None else []).append,
        progress=progress or (lambda _: None),
    )


async def test_turns_of_a_dialogue_keep_their_order(tmp_path):
    """Dialogues run concurrently, the turns of each one in order."""
    server = EasyServer()
    figures = await run(server, write(tmp_path), concurrency=8)
    assert figures.tally.user_turns == 60
    for number in range(20):
        texts = [text for _, text in server.order if text.startswith(f"d{number} ")]
        assert texts == [f"d{number} m{index}" for index in range(3)]


async def test_figures_do_not_depend_on_how_many_are_in_flight(tmp_path):
    """Sums and the digest are the same for every finishing order."""
    file = write(tmp_path)
    one, many = [await run(EasyServer(), file, concurrency=n) for n in (1, 16)]
    assert one.tally == many.tally
    assert one.tally.digest


async def test_limit_counts_dialogues(tmp_path):
    """Not lines, and not one more."""
    seen = []
    figures = await run(
        EasyServer(),
        write(tmp_path),
        limit=7,
        concurrency=4,
        progress=lambda tally: seen.append(tally.dialogues),
    )
    assert figures.tally.dialogues == 7
    assert seen == [1, 2, 3, 4, 5, 6, 7]


async def test_bad_line_is_skipped_and_counted(tmp_path):
    """With its place, and the agents that there are."""
    bad = tmp_path / "bad.jsonl"
    bad.write_text(
        'nonsense\n{"dialogue_id": "x", "turns": [{"speaker": "user", "text": "a", '
        '"agent": "biling"}]}\n',
        encoding="utf-8",
    )
    complaints = []
    figures = await run(EasyServer(), str(bad), write(tmp_path, 2), complaints=complaints)
    assert (figures.bad_lines, figures.tally.dialogues, figures.tally.errors) == (2, 2, 0)
    assert complaints[0].startswith(f"{bad}:1: not JSON")
    assert complaints[1] == (
        f'{bad}:2: agent "biling" is not registered; registered agents: billing, supervisor'
    )


async def test_strict_run_stops_at_the_first_bad_line(tmp_path):
    """In files that a program wrote, one bad line means that all may be bad."""
    bad = tmp_path / "bad.jsonl"
    bad.write_text("nonsense\n", encoding="utf-8")
    with pytest.raises(ReplayStopped, match=r"bad.jsonl:1: not JSON"):
        await run(EasyServer(), str(bad), strict=True)


async def test_failed_dialogue_is_named_and_the_others_go_on(tmp_path):
    """One failed dialogue does not affect the others."""
    file = write(tmp_path, 5)
    broken = InternalError("internal error 7", code=grpc.StatusCode.INTERNAL, reason="INTERNAL")
    complaints = []
    figures = await run(EasyServer({"d3 m1"}, broken), file, complaints=complaints)
    assert (figures.tally.errors, figures.tally.dialogues) == (1, 5)
    assert complaints == [f"{file}:4: dialogue d3: internal error 7 [INTERNAL]"]
    with pytest.raises(ReplayStopped, match="dialogue d3"):
        await run(EasyServer({"d3 m1"}, broken), file, strict=True)


async def test_server_that_stays_away_ends_the_run_with_how_to_take_it_up(tmp_path):
    """The label repeats the same requests, and answered ones get the same answers."""
    gone = Unavailable("cannot be reached", code=grpc.StatusCode.UNAVAILABLE)
    with pytest.raises(ReplayStopped, match=r"was unreachable after 3 dialogues.*--run-label run "):
        await run(EasyServer({"d3 m0"}, gone), write(tmp_path), concurrency=1)


async def test_file_that_vanishes_ends_the_run(tmp_path):
    """The error is that of the file, not of a task group."""
    with pytest.raises(DialogueFileUnreadable, match="nowhere"):
        await run(EasyServer(), str(tmp_path / "nowhere"))


def test_shares_are_of_what_was_played():
    """Without turns the shares are empty."""
    tally = Tally(user_turns=8, scored_turns=5, saved_turns=6, misrouted_turns=1, handoffs=2)
    figures = ReplayFigures(tally, seconds=2.0).as_dict()
    assert figures["supervisor_calls_saved"] == 0.75
    assert figures["misrouted"] == 0.2
    assert figures["turns_per_s"] == 4.0
    assert figures["handoffs"] == 2
    empty = ReplayFigures(Tally(), seconds=0.0).as_dict()
    assert (empty["supervisor_calls_saved"], empty["turns_per_s"]) == (0.0, 0.0)


def test_figures_have_the_names_that_others_read():
    """Scripts and dashboards take them from the JSON."""
    assert list(ReplayFigures(Tally(), 1.0).as_dict())[:10] == [
        "dialogues",
        "user_turns",
        "supervisor_calls_saved",
        "first_dispatch_right",
        "handoffs",
        "misrouted",
        "stuck_turns",
        "errors",
        "seconds",
        "turns_per_s",
    ]


def test_digest_tells_apart_what_was_decided_where():
    """The same decisions in another turn order or dialogue have another digest."""

    def digest(dialogue_id, *decided):
        made = DecisionDigest(dialogue_id)
        for each in decided:
            made.note(*each)
        return made.value()

    a, b = (0, "billing"), (1, "support")
    values = [digest("d1", a, b), digest("d1", b, a), digest("d2", a, b), digest("d1", a)]
    assert len(set(values)) == 4
    assert digest("d1", a, b) == values[0]
