"""agent-routing replay: the source of its server, and its output."""

import gzip
import io
import json
import os
import signal
import subprocess
import sys

import pytest

from routing_service.cli import main
from routing_service.cli.embedded_server import server_in_thread
from routing_service.examples import EXAMPLES

AGENTS = {
    "made": [
        {"id": "hotels", "name": "Hotels", "description": "Book hotels", "examples": ["a room"]},
        {"id": "weather", "name": "Weather", "description": "Forecasts", "examples": []},
    ]
}
COUNT = 6


def turn(speaker, agent, text="something", **flags):
    """Make a turn."""
    return {"speaker": speaker, "text": text, "agent": agent, **flags}


# Hotels asks, the user changes the topic, weather answers, and the user returns to hotels.
TURNS = [
    turn("user", "hotels"),
    turn("agent", "hotels", requires_follow_up=True),
    turn("user", "hotels"),
    turn("agent", "hotels", requires_follow_up=True),
    turn("user", "weather"),
    turn("agent", "weather"),
    turn("user", "weather"),
    turn("agent", "weather", task_complete=True),
    turn("user", "hotels"),
    turn("agent", "hotels", task_complete=True),
]


@pytest.fixture
def folder(tmp_path):
    """Return a folder with dialogues and the agents in them."""
    lines = [
        json.dumps(
            {"dialogue_id": f"d{number}", "corpus": "made", "language": "en", "turns": TURNS}
        )
        for number in range(COUNT)
    ]
    content = "".join(f"{line}\n" for line in lines)
    (tmp_path / "made_train.jsonl").write_text(content, encoding="utf-8")
    (tmp_path / "agents.json").write_text(json.dumps(AGENTS), encoding="utf-8")
    return tmp_path


@pytest.fixture
def run(monkeypatch, capsys):
    """Return what runs a command line: (exit code, stdout, stderr)."""

    def run_it(*argv, stdin=b""):
        monkeypatch.setattr(sys, "argv", ["agent-routing", "replay", *map(str, argv)])
        stream = io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin)), encoding="utf-8")
        monkeypatch.setattr(sys, "stdin", stream)
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code, *capsys.readouterr())

    return run_it


@pytest.fixture
def figures(run, folder):
    """Return a function that replays the folder's dialogues and returns the figures."""

    def replay(*argv):
        code, out, err = run(folder / "made_train.jsonl", "--corpus", "made_train", "--json", *argv)
        assert (code, err) == (0, ""), err
        return json.loads(out)

    return replay


@pytest.mark.parametrize(
    ("policy", "switch", "expected"),
    [
        # Of five messages the first and the two changes of topic go to the supervisor.
        ("sticky", "supervisor", {"saved": 2, "misrouted": 2, "handoffs": 3, "stuck": 0}),
        # Only the first: agents hand over to each other directly.
        ("sticky", "agent", {"saved": 4, "misrouted": 2, "handoffs": 3, "stuck": 0}),
        # Hotels keeps the two messages about the weather.
        ("sticky", "stuck", {"saved": 4, "misrouted": 2, "handoffs": 1, "stuck": 2}),
        # After each of the two questions; the second was answered about the weather.
        ("follow_up", "supervisor", {"saved": 2, "misrouted": 1, "handoffs": 4, "stuck": 0}),
        ("follow_up", "agent", {"saved": 2, "misrouted": 1, "handoffs": 4, "stuck": 0}),
        ("supervisor", "supervisor", {"saved": 0, "misrouted": 0, "handoffs": 5, "stuck": 0}),
    ],
)
def test_figures_are_those_of_the_policy(figures, policy, switch, expected):
    """Counted by hand for one dialogue; there are several of it."""
    found = figures("--policy", policy, "--switch", switch)
    assert found["dialogues"] == COUNT
    assert found["user_turns"] == 5 * COUNT
    assert found["supervisor_calls_saved"] == pytest.approx(expected["saved"] / 5)
    assert found["misrouted"] == pytest.approx(expected["misrouted"] / 5)
    assert found["handoffs"] == expected["handoffs"] * COUNT
    assert found["stuck_turns"] == expected["stuck"] * COUNT
    assert (found["errors"], found["bad_lines"], found["handoffs_refused"]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("options", "judged"),
    [
        (("--topics", "off"), 0),
        # All but messages without an active agent.
        (("--topics", "suggest"), 4),
        (("--topics", "auto"), 5),
        (("--topics", "auto", "--first-message", "supervisor"), 4),
    ],
)
def test_topics_are_as_the_options_say(figures, options, judged):
    """The built-in model, on a server started with such a registry."""
    found = figures(*options, "--switch", "agent")
    assert found["judged_turns"] == judged * COUNT
    assert 0 <= found["calibration_error"] <= 1
    assert found["errors"] == 0


def test_topics_of_a_registry_file_are_replaced_for_the_run(run, folder):
    """A topic setting can be tried before the file is changed."""
    made = folder / "made.yaml"
    run(folder / "made_train.jsonl", "--corpus", "made_train", "--write-registry", made)
    code, out, err = run(
        folder / "made_train.jsonl", "--agents", made, "--topics", "auto", "--json"
    )
    assert (code, err) == (0, ""), err
    assert json.loads(out)["judged_turns"] == 5 * COUNT
    assert "topics" not in made.read_text("utf-8")


def test_table_has_every_figure(run, folder):
    """For people: shares as percentages."""
    code, out, _ = run(folder / "made_train.jsonl", "--corpus", "made")
    assert code == 0
    rows = {line[:24].strip(): line[24:].strip() for line in out.splitlines()}
    assert rows["supervisor calls saved"] == "40.00%"
    assert rows["user turns"] == "30"
    assert len(rows["decisions digest"]) == 64


def test_same_dialogues_give_the_same_decisions(figures):
    """For any label and any concurrency."""
    first = figures()
    second = figures("--concurrency", "1")
    assert first["run_label"] != second["run_label"]
    assert first["decisions_digest"] == second["decisions_digest"]
    assert figures("--policy", "follow_up")["decisions_digest"] != first["decisions_digest"]


def test_pipe_and_packed_file_read_as_one(run, folder, figures):
    """Dialogues may come from zcat, tail -f or curl."""
    packed = gzip.compress((folder / "made_train.jsonl").read_bytes())
    agents = ("--corpus", "made", "--corpus-agents", folder / "agents.json", "--json")
    code, out, _ = run("-", *agents, stdin=packed)
    assert code == 0
    assert json.loads(out)["decisions_digest"] == figures()["decisions_digest"]


def test_limit_is_of_dialogues(figures):
    """A first look at a large file."""
    assert figures("--limit", "2")["dialogues"] == 2


def test_any_registry_is_replayed(run, folder):
    """The effect of a custom registry: refused handoffs are figures, not errors."""
    registry = folder / "own.yaml"
    registry.write_text(
        "api_version: agent_routing/v1\nversion: own\nsupervisor: desk\nagents:\n"
        "  - {id: desk, name: Desk}\n"
        "  - {id: hotels, name: Hotels, handoff_to: []}\n"
        "  - {id: weather, name: Weather, on_complete: hotels}\n",
        encoding="utf-8",
    )
    code, out, err = run(
        folder / "made_train.jsonl", "--agents", registry, "--switch", "agent", "--json"
    )
    assert (code, err) == (0, "")
    found = json.loads(out)
    # Hotels may not hand over on its own; weather's completion goes on to hotels.
    assert found["handoffs_refused"] == COUNT
    assert found["misrouted"] == pytest.approx(1 / 5)


def own_registry(folder, name, **sticks):
    """Write a registry of the dialogues' agents. sticks: by agent; session by default."""
    file = folder / f"{name}.yaml"
    file.write_text(
        f"api_version: agent_routing/v1\nversion: {name}\nsupervisor: desk\nagents:\n"
        "  - {id: desk, name: Desk}\n"
        f"  - {{id: hotels, name: Hotels, sticks: {sticks.get('hotels', 'session')}}}\n"
        f"  - {{id: weather, name: Weather, sticks: {sticks.get('weather', 'session')}}}\n",
        encoding="utf-8",
    )
    return file


@pytest.fixture
def compared(run, folder):
    """Return a function that compares a registry with one whose weather agent does not stick."""
    new = own_registry(folder, "new")
    old = own_registry(folder, "old", weather="follow_up")

    def compare(*argv, files=(folder / "made_train.jsonl",), **options):
        return run(*files, "--agents", new, "--compare", old, *argv, **options)

    return compare


def test_two_registries_are_compared_turn_by_turn(compared, folder):
    """Counted by hand: only the second message about the weather goes elsewhere."""
    code, out, err = compared("--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["old"]["registry_version"] == "old"
    assert found["new"]["registry_version"] == "new"
    assert found["old"]["supervisor_calls_saved"] == pytest.approx(1 / 5)
    assert found["new"]["supervisor_calls_saved"] == pytest.approx(2 / 5)
    assert found["difference"]["supervisor_calls_saved"] == pytest.approx(1 / 5)
    assert found["difference"]["handoffs"] == -COUNT
    assert (found["changed_turns"], found["effects"]) == (COUNT, {"right now": COUNT})
    assert found["changes"] == [
        {
            "dialogue_id": f"d{number}",
            "place": f"{folder / 'made_train.jsonl'}:{number + 1}",
            "turn": 6,
            "owner": "weather",
            "old": {"agent": "desk", "reason": "NO_ACTIVE_AGENT"},
            "new": {"agent": "weather", "reason": "STICKY"},
            "effect": "right now",
        }
        for number in range(COUNT)
    ]


def test_figures_of_a_comparison_are_those_of_each_registry_alone(compared, run, folder):
    """Playing them side by side changes neither."""
    found = json.loads(compared("--json")[1])
    for name in ("old", "new"):
        file = folder / f"{name}.yaml"
        alone = json.loads(run(folder / "made_train.jsonl", "--agents", file, "--json")[1])
        assert found[name]["decisions_digest"] == alone["decisions_digest"]


def test_comparison_reads_pipes_and_packed_files_once(compared, folder):
    """A pipe can be read only once, and both registries get its content."""
    packed = gzip.compress((folder / "made_train.jsonl").read_bytes())
    expected = json.loads(compared("--json")[1])["difference"]
    code, out, err = compared("--json", files=("-",), stdin=packed)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["difference"] == expected
    assert [turn["place"] for turn in found["changes"]] == [
        f"standard input:{number + 1}" for number in range(COUNT)
    ]
    (folder / "made.gz").write_bytes(packed)
    assert json.loads(compared("--json", files=(folder / "made.gz",))[1])["difference"] == expected


def test_comparison_is_a_table_for_people(compared, folder):
    """What got better or worse, and the first changed turns."""
    code, out, err = compared()
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == f"old {folder / 'old.yaml'}, version old"
    assert "supervisor calls saved 20.00% 40.00% +20.00 points" in lines
    assert f"handoffs {4 * COUNT} {3 * COUNT} -{COUNT}" in lines
    assert "stuck turns 0 0 =" in lines
    assert (
        f"{COUNT} messages went to another agent or for another reason: {COUNT} right now" in lines
    )
    row = next(place for place, line in enumerate(lines) if line.startswith("d0 "))
    assert lines[row] == "d0 6 weather desk weather right now"
    assert lines[row + 1] == "no active agent sticky"
    assert max(map(len, out.splitlines())) <= 100


def test_comparison_shows_only_so_many_turns(compared, folder):
    """People get a limited number; programs get all of them."""
    file = folder / "made_train.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines()
    many = [line.replace('"d0"', f'"e{number}"') for number, line in enumerate(lines[:1] * 25)]
    file.write_text("\n".join(many), encoding="utf-8")
    _, out, _ = compared()
    assert "25 messages went to another agent" in out
    assert "5 more; --json lists all" in out
    # Once in the summary, and in each row.
    assert out.count("right now") == 1 + 20
    assert len(json.loads(compared("--json")[1])["changes"]) == 25


def test_registry_compared_with_itself_changes_nothing(run, folder):
    """The digests are equal too."""
    same = own_registry(folder, "same")
    file = folder / "made_train.jsonl"
    code, out, _ = run(file, "--agents", same, "--compare", same, "--json")
    found = json.loads(out)
    assert code == 0
    assert not any(found["difference"].values())
    assert found["changes"] == []
    assert found["old"]["decisions_digest"] == found["new"]["decisions_digest"]
    _, out, _ = run(file, "--agents", same, "--compare", same)
    assert out.splitlines()[-1] == "no message went to another agent or for another reason"


def test_dialogue_that_one_registry_cannot_play_is_told_with_its_name(run, folder):
    """It is left out for both registries, so that they have the same dialogues."""
    new = own_registry(folder, "new")
    old = folder / "old.yaml"
    old.write_text(
        "api_version: agent_routing/v1\nversion: old\nsupervisor: desk\n"
        "agents: [{id: desk, name: Desk}, {id: hotels, name: Hotels}]\n",
        encoding="utf-8",
    )
    file = folder / "made_train.jsonl"
    code, out, err = run(file, "--agents", new, "--compare", old, "--json")
    found = json.loads(out)
    assert (code, found["old"]["dialogues"], found["new"]["dialogues"]) == (1, 0, 0)
    assert err.startswith(f'error: {file}:1: {old}: agent "weather" is not registered')


def test_shipped_dialogues_are_of_the_budget_example(run):
    """The example of docs/how-to/replay-conversations.md must work."""
    budget = EXAMPLES["budget"].registry_path
    code, out, err = run(
        budget.with_name("dialogues.jsonl"), "--agents", budget, "--compare", budget, "--json"
    )
    assert (code, err) == (0, "")
    assert json.loads(out)["new"]["dialogues"] == 4


def test_user_of_the_dialogues_may_be_somebody(run, folder):
    """Agents for subscribers or for one channel are only reached by such users."""
    registry = folder / "own.yaml"
    registry.write_text(
        "api_version: agent_routing/v1\nversion: own\nsupervisor: desk\nagents:\n"
        "  - {id: desk, name: Desk}\n"
        "  - {id: hotels, name: Hotels, channels: [web]}\n"
        '  - {id: weather, name: Weather, requires: ["plan:premium"]}\n',
        encoding="utf-8",
    )
    files = (folder / "made_train.jsonl", "--agents", registry, "--json")
    assert json.loads(run(*files)[1])["handoffs"] == 0
    somebody = ("--channel", "web", "--entitlement", "plan:premium")
    found = json.loads(run(*files, *somebody)[1])
    assert (found["handoffs_refused"], found["handoffs"]) == (0, 3 * COUNT)


def test_registry_without_the_dialogues_agents_is_told_once_a_line(run, folder):
    """By file, line and agent; exit code 1, since nothing was played."""
    registry = folder / "other.yaml"
    registry.write_text(
        "api_version: agent_routing/v1\nversion: 1\nsupervisor: desk\n"
        "agents: [{id: desk, name: Desk}, {id: hotels, name: Hotels}]\n",
        encoding="utf-8",
    )
    file = folder / "made_train.jsonl"
    code, out, err = run(file, "--agents", registry, "--json")
    assert code == 1
    assert json.loads(out)["bad_lines"] == COUNT
    assert err.splitlines()[0] == (
        f'error: {file}:1: agent "weather" is not registered; registered agents: desk, hotels'
    )


def test_bad_lines_are_told_and_counted(run, folder):
    """The figures cover the other lines; --strict stops instead."""
    file = folder / "made_train.jsonl"
    file.write_text("nonsense\n" + file.read_text(encoding="utf-8"), encoding="utf-8")
    code, out, err = run(file, "--corpus", "made", "--json")
    found = json.loads(out)
    assert (code, found["bad_lines"], found["dialogues"]) == (1, 1, COUNT)
    assert err.startswith(f"error: {file}:1: not JSON")
    code, out, err = run(file, "--corpus", "made", "--json", "--strict")
    assert (code, out) == (1, "")
    assert err.startswith(f"error: {file}:1: not JSON")


def test_too_many_bad_lines_are_not_all_shown(run, folder):
    """The output is limited; the count has all of them."""
    file = folder / "bad.jsonl"
    file.write_text("nonsense\n" * 100, encoding="utf-8")
    code, out, err = run(file, "--corpus", "made", "--json")
    assert (code, json.loads(out)["bad_lines"]) == (1, 100)
    assert len(err.splitlines()) == 21
    assert err.splitlines()[-1] == "error: further errors are counted and not shown"


def test_running_server_is_replayed_on_and_taken_up_by_the_label(run, folder, figures):
    """The registry is written for it; the same label answers alike and writes nothing new."""
    registry, file = folder / "made.yaml", folder / "made_train.jsonl"
    made = ("--corpus", "made")
    assert run(file, *made, "--write-registry", registry) == (0, "", "")
    with server_in_thread(registry, "memory:") as target:
        label = ("--run-label", "first", "--json")
        code, out, err = run(file, *made, "--target", target, *label)
        first = json.loads(out)
        assert (code, err) == (0, "")
        assert first["decisions_digest"] == figures()["decisions_digest"]
        again = json.loads(run(file, "--target", target, *label)[1])
        assert again | {"seconds": 0, "turns_per_s": 0} == first | {"seconds": 0, "turns_per_s": 0}
        # Without a label the output says how to resume the run.
        code, out, err = run(file, *made, "--target", target, "--json")
        assert code == 0
        assert f"--run-label {json.loads(out)['run_label']} resumes this run" in err
        # Another registry than the server's is pointed at.
        _, _, err = run(file, *made, "--policy", "follow_up", "--target", target, *label)
        assert '"made-sticky-supervisor", not "made-follow_up-supervisor"' in err


def test_store_of_an_embedded_server_can_be_kept(run, folder, tmp_path):
    """For a later analysis, or to continue with it."""
    store = ("--store", f"sqlite:///{tmp_path}/kept.db", "--run-label", "kept", "--json")
    first = json.loads(run(folder / "made_train.jsonl", "--corpus", "made", *store)[1])
    again = json.loads(run(folder / "made_train.jsonl", "--corpus", "made", *store)[1])
    assert (tmp_path / "kept.db").exists()
    assert again["decisions_digest"] == first["decisions_digest"]


def test_absent_server_is_told_at_once(run, folder):
    """A server that never answered is not an outage to wait for."""
    code, out, err = run(folder / "made_train.jsonl", "--target", "127.0.0.1:1")
    assert (code, out) == (1, "")
    assert err.startswith("error: no server answers at 127.0.0.1:1")


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        ((), "give --agents FILE or --corpus NAME"),
        (("--agents", "a.yaml", "--corpus", "made"), "give --agents or --corpus"),
        (("--target", "127.0.0.1:1", "--embedded"), "leave out --embedded and --store"),
        (("--target", "127.0.0.1:1", "--topics", "auto"), "leave out --topics"),
        (("--corpus", "x", "--first-message", "auto"), "goes with --topics"),
        (
            ("--corpus", "x", "--topics", "off", "--first-message", "auto"),
            "needs topic detection",
        ),
        (("--agents", "a.yaml", "--write-registry", "-"), "give --corpus NAME"),
        (("--compare", "a.yaml"), "give --agents FILE or --corpus NAME"),
        (("--target", "127.0.0.1:1", "--compare", "a.yaml"), "--compare starts a server for each"),
        (("--agents", "a.yaml", "--compare", "b.yaml", "--store", "memory:"), "leave out --target"),
        (("--corpus", "other"), 'no agents of a corpus "other"; it has: made'),
        (("--corpus", "made", "--corpus-agents", "nowhere.json"), 'cannot read "nowhere.json"'),
        (("--corpus", "made", "--policy", "glue"), "glue"),
        (("--corpus", "made", "--limit", "0"), "'--limit'"),
    ],
)
def test_contradictions_are_wrong_commands(run, folder, argv, complaint):
    """Exit 2, before anything is started."""
    code, out, err = run(folder / "made_train.jsonl", *argv)
    assert (code, out) == (2, "")
    assert complaint in " ".join(err.split())


def test_mistyped_file_is_a_wrong_command(run, folder):
    """Before earlier files are played for an hour."""
    code, _, err = run(folder / "made_train.jsonl", folder / "mde_train.jsonl", "--corpus", "made")
    assert code == 2
    assert "mde_train.jsonl" in err


def test_registry_is_written_as_a_file_that_serves(run, folder):
    """It can be read, changed and checked like any other file."""
    code, out, _ = run(folder / "made_train.jsonl", "--corpus", "made", "--write-registry", "-")
    assert code == 0
    assert out.startswith('api_version: agent_routing/v1\nversion: "made-sticky-supervisor"\n')
    code, _, err = run(folder / "made_train.jsonl", "--corpus", "made", "--write-registry", folder)
    assert code == 1
    assert "cannot write" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_replay_leaves_nothing_behind(folder, number):
    """Ctrl-C, kill and a closed terminal end the server and remove its folder, silently."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", "from routing_service.cli import main; main()", "replay"),
            *(str(pipe), "--corpus", "made"),
        ],
        env=os.environ | {"TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # Opened once the server stands; the replay then waits for a dialogue that never comes.
    with pipe.open("wb"):
        process.send_signal(number)
        # The thread that reads ends with the pipe.
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    # gRPC may have logged an error of its own for a call that was cut off.
    assert err.endswith("error: interrupted\n")
    assert not list(folder.glob("agent-routing-*"))
