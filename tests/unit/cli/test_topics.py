"""agent-routing topics: its output for dialogue files and for a service's own conversations."""

import asyncio
import json
import random
import sys

import pytest

from agent_routing_topics.commands.topic_figures import calibration_error, share
from agent_routing_topics.commands.topic_outcomes import Outcome, right_at_asked
from agent_routing_topics.default_model import TopicModel
from routing_service.cli.app import app
from routing_service.examples import EXAMPLES
from routing_service.replay.figures import Calibration
from routing_service.topics.topic_detector import TopicVerdict
from tests.rpc.live_service import serving

AGENTS = {
    "made": [
        {
            "id": "hotels",
            "name": "Hotels",
            "description": "Find and book hotel rooms",
            "services": [],
        },
        {"id": "weather", "name": "Weather", "description": "The weather forecast", "services": []},
    ]
}
TEXTS = [
    ("hotels", "I need a hotel room in Lisbon"),
    ("hotels", "For two nights please"),
    ("weather", "What will the weather be like tomorrow?"),
]


@pytest.fixture
def folder(tmp_path):
    """Return a folder with dialogues and agents."""
    turns = []
    for agent, text in TEXTS:
        turns.append({"speaker": "user", "text": text, "agent": agent})
        turns.append({"speaker": "agent", "text": "Here you are.", "agent": agent})
    lines = [json.dumps({"dialogue_id": f"d{n}", "corpus": "made", "turns": turns}) for n in "ab"]
    (tmp_path / "made.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    (tmp_path / "agents.json").write_text(json.dumps(AGENTS), "utf-8")
    return tmp_path


@pytest.fixture
def run(monkeypatch, capsys):
    """Return what runs a command line: (exit code, stdout, stderr)."""

    def run_it(*argv):
        from routing_service.cli import main  # noqa: PLC0415 - as the command starts

        capsys.readouterr()  # What a server of the test has said.
        monkeypatch.setattr(sys, "argv", ["agent-routing", "topics", *map(str, argv)])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code, *capsys.readouterr())

    return run_it


def test_evaluate_counts_every_message_whose_owner_is_known(run, folder):
    """By corpus and by agent, with the model and the thresholds."""
    code, out, err = run("evaluate", folder / "made.jsonl", "--corpus", "made", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["model"]
    assert (told["threshold"], told["lock_threshold"]) == (None, None)
    made = told["corpora"]["made"]
    assert made["scored_turns"] == 6
    figures = {name[:-4] for name in made if name.endswith("_low")}
    assert figures == {
        "right", "without_supervisor", "switch_precision", "switch_recall", "switch_f1",
        "false_switches_per_1000", "stuck", "calibration_error",
    }  # fmt: skip
    for held in (made, told["all"], told["corpora"]["all"]):
        assert held["messages"] == 6
        assert held["right"] <= held["right_at_asked"]["20"] <= held["right_at_asked"]["40"]
        assert {"first_right", "changes_found", "false_switches", "asked_share"} < held.keys()
    for name in figures:
        assert made[f"{name}_low"] <= made[name] <= made[f"{name}_high"], name
    assert {name: held["scored_turns"] for name, held in made["groups"].items()} == {
        "unseen agents": 6
    }
    assert sum(agent["scored_turns"] for agent in told["agents"].values()) == 6
    assert set(told["agents"]) == {"hotels", "weather"}


def test_evaluate_prints_a_line_for_each(run, folder):
    """For people; a bad line is reported and counted, and the rest is evaluated."""
    with (folder / "made.jsonl").open("a") as file:
        file.write("no dialogue\n")
    code, out, err = run("evaluate", folder / "made.jsonl", "--corpus", "made")
    assert code == 1
    assert "made.jsonl:3" in err
    for word in ("model ", "the likeliest option", "made", "hotels", "weather", "100.0%"):
        assert word in out


def test_evaluate_plays_each_file_against_the_corpus_of_its_name(run, folder):
    """Several corpora are added up under "all", and by language."""
    agents = json.loads((folder / "agents.json").read_text("utf-8"))
    agents["otro"] = [{"id": "cosas", "name": "Cosas", "description": "Cosas", "services": []}]
    (folder / "agents.json").write_text(json.dumps(agents), "utf-8")
    turn = {"speaker": "user", "text": "mis cosas", "agent": "cosas"}
    line = {"dialogue_id": "o", "corpus": "field", "language": "es", "turns": [turn]}
    (folder / "otro.jsonl").write_text(json.dumps(line) + "\n", "utf-8")
    given = (folder / "made.jsonl", folder / "otro.jsonl")
    code, out, err = run("evaluate", *given, "--corpus-agents", folder / "agents.json", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert set(told["corpora"]) == {"made", "otro", "all"}
    assert [told["corpora"][name]["messages"] for name in ("made", "otro", "all")] == [6, 1, 7]
    assert told["languages"]["es"]["messages"] == 1
    assert told["all"] == told["corpora"]["all"]


def test_message_of_no_agent_should_stay_where_it_is(run, folder, monkeypatch):
    """Thanks should stay with the active agent, a greeting goes to no agent."""
    turns = []
    for agent, text in ((None, "hello"), ("weather", "w"), (None, "how funny"), ("weather", "x")):
        turns.append({"speaker": "user", "text": text, "agent": agent})
        answerer = "weather" if turns[2:] else agent
        turns.append({"speaker": "agent", "text": "ok", "agent": answerer})
    line = {"dialogue_id": "n", "corpus": "made", "turns": turns}
    (folder / "made.jsonl").write_text(json.dumps(line) + "\n", "utf-8")
    (folder / "staying.py").write_text(
        "from routing_service.topics.topic_detector import TopicVerdict\n"
        "class Stays:\n"
        "    version = 'stays-1'\n"
        "    def for_registry(self, registry): return self\n"
        "    def judge(self, question):\n"
        "        if question.text == 'w': return TopicVerdict((('weather', 0.9),))\n"
        "        return TopicVerdict(stay=0.8 if question.active_agent_id else 0)\n",
        "utf-8",
    )
    monkeypatch.syspath_prepend(str(folder))
    given = ("evaluate", folder / "made.jsonl", "--corpus", "made", "--json")
    made = json.loads(run(*given, "--detector", "staying:Stays")[1])["corpora"]["made"]
    assert (made["messages"], made["right"], made["false_switches"]) == (4, 1.0, 0.0)
    assert made["groups"]["nobody's"]["right"] == 1.0


def test_least_sure_messages_are_asked_about_first():
    """They count as right; equal ones in file order."""
    said = [
        Outcome(
            sureness, is_right, is_first=False, changes=False, is_false_switch=False, language=""
        )
        for sureness, is_right in (
            (0.9, True),
            (0.1, False),
            (0.1, False),
            (0.5, True),
            (0.7, False),
        )
    ]
    assert right_at_asked(said, 0.0) == 0.4
    assert right_at_asked(said, 0.2) == 0.6
    assert right_at_asked(said, 0.4) == 0.8
    assert right_at_asked([], 0.2) is None


def test_sureness_is_the_lead_of_the_likeliest_option():
    """The default for a detector without its own sureness."""
    assert TopicVerdict((("a", 0.5), ("b", 0.2)), 0.3).how_sure() == pytest.approx(0.2)
    assert TopicVerdict((("a", 0.2),)).how_sure() == pytest.approx(0.6)
    assert TopicVerdict((("a", 0.5),), 0.5, sureness=0.9).how_sure() == 0.9


def test_evaluate_asks_every_example_word_for_word(run, folder):
    """With and without a history; an example shared by two agents, or of one word, is skipped."""
    agents = json.loads((folder / "agents.json").read_text("utf-8"))
    agents["made"][0]["examples"] = ["find something nice please"]
    agents["made"][1]["examples"] = [
        "will it rain in the hills",
        "find something nice please",
        "rain",
    ]
    (folder / "agents.json").write_text(json.dumps(agents), "utf-8")
    told = json.loads(run("evaluate", folder / "made.jsonl", "--corpus", "made", "--json")[1])
    made = told["corpora"]["made"]
    assert made["verbatim_asked"] == told["all"]["verbatim_asked"] == 3
    assert made["verbatim"] >= 1 / 3


def test_evaluate_tells_agents_of_the_training_from_others(run, folder, monkeypatch):
    """Accuracy on agents from the training says little about other agents."""
    trained = TopicModel.has_seen
    monkeypatch.setattr(
        TopicModel,
        "has_seen",
        lambda self, corpus, agent: (
            trained(self, "star", "hotel") and (corpus, agent) == ("made", "hotels")
        ),
    )
    given = ("evaluate", folder / "made.jsonl", "--corpus", "made")
    groups = json.loads(run(*given, "--json")[1])["corpora"]["made"]["groups"]
    assert {name: held["scored_turns"] for name, held in groups.items()} == {
        "seen agents": 4,
        "unseen agents": 2,
    }
    _, out, _ = run(*given)
    for words in ("seen agents", "unseen agents", "switches: recall", "false switches in 1,000"):
        assert words in out


def test_evaluate_may_leave_the_examples_out(run, folder):
    """New registries often have descriptions only."""
    agents = json.loads((folder / "agents.json").read_text("utf-8"))
    agents["made"][1]["examples"] = ["quux florp"]
    (folder / "agents.json").write_text(json.dumps(agents), "utf-8")
    turn = {"speaker": "user", "text": "quux florp", "agent": "weather"}
    (folder / "odd.jsonl").write_text(
        json.dumps({"dialogue_id": "o", "corpus": "made", "turns": [turn]}) + "\n", "utf-8"
    )
    given = ("evaluate", folder / "odd.jsonl", "--corpus", "made", "--json")
    whole = json.loads(run(*given, "--threshold", "0.9")[1])
    alone = json.loads(run(*given, "--threshold", "0.9", "--descriptions-only")[1])
    assert (whole["descriptions_only"], alone["descriptions_only"]) == (False, True)
    assert (whole["corpora"]["made"]["right"], alone["corpora"]["made"]["right"]) == (1.0, 0.0)


def test_evaluate_takes_another_detector(run, folder, monkeypatch):
    """To compare a custom one; a missing detector is reported."""
    (folder / "always.py").write_text(
        "from routing_service.topics.topic_detector import TopicVerdict\n"
        "class Weather:\n"
        "    version = 'weather-1'\n"
        "    def for_registry(self, registry): return self\n"
        "    def judge(self, question):\n"
        "        ids = question.candidate_ids - {question.active_agent_id}\n"
        "        return TopicVerdict(tuple((i, 0.9) for i in sorted(ids) if i == 'weather'))\n",
        "utf-8",
    )
    monkeypatch.syspath_prepend(str(folder))
    given = ("evaluate", folder / "made.jsonl", "--corpus", "made", "--json")
    told = json.loads(run(*given, "--detector", "always:Weather")[1])
    assert told["model"] == "weather-1"
    assert told["agents"]["hotels"]["right"] == 0.0
    assert set(told["corpora"]["made"]["groups"]) == {"unseen agents"}
    code, out, err = run(*given, "--detector", "always:Nobody")
    assert (code, out) == (2, "")
    assert "always has no Nobody" in err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("evaluate", "x.jsonl"), "give --agents FILE or --corpus NAME"),
        (("evaluate", "x.jsonl", "--corpus", "c", "--agents", "a.yaml"), "to name the agents"),
        (("evaluate", "x.jsonl", "--corpus", "c"), "agents.json"),
        (("calibrate", "--store", "sqlite:///none.db"), "give --agents FILE"),
    ],
)
def test_what_is_missing_is_told(run, folder, monkeypatch, argv, words):
    """Before anything is read."""
    monkeypatch.chdir(folder)
    (folder / "agents.json").unlink()
    code, out, err = run(*argv)
    assert code == 2
    assert out == ""
    assert words in err


def test_calibrate_says_what_thresholds_would_have_done(run, tmp_path):
    """On a store that a server has filled; the registry's own threshold is marked."""

    async def fill():
        async with serving(tmp_path, "tax") as service:
            chat = service.chat()
            chat.profile = {"locale": "en", "channel": "web"}
            await chat.with_agent("vat")
            await chat.answer((await chat.say("How much VAT do I owe?")).dispatch, "a lot")

    asyncio.run(fill())
    given = ("--store", f"sqlite:///{tmp_path / 'routing.db'}")
    agents = ("--agents", EXAMPLES["tax"].registry_path)
    code, out, err = run("calibrate", *given, *agents, "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["messages"] == 2
    rows = told["outlooks"]["while an agent is active"]["thresholds"]
    assert [row["messages"] for row in rows] == [1] * len(rows)
    assert [row["threshold"] for row in rows] == sorted(row["threshold"] for row in rows)
    code, out, err = run("calibrate", *given, *agents)
    assert (code, err) == (0, "")
    assert "2 messages with a known owner" in out
    assert "VAT do I owe" not in out


def test_store_without_conversations_is_told(run, tmp_path):
    """Instead of an empty table."""

    async def fill():
        async with serving(tmp_path, "tax"):
            pass

    asyncio.run(fill())
    code, out, err = run(
        "calibrate",
        "--store",
        f"sqlite:///{tmp_path / 'routing.db'}",
        "--agents",
        EXAMPLES["tax"].registry_path,
    )
    assert (code, out) == (1, "")
    assert "serve for a while" in err


def test_interval_of_independent_turns_is_wilsons():
    """Compared with known values; without turns there is no interval."""
    nothing = share([], [])
    assert (nothing.low, nothing.high, nothing.of) == (0.0, 1.0, 0)
    half = share([1] * 50 + [0] * 50, [1] * 100)
    assert (half.low, half.high) == (
        pytest.approx(0.4038, abs=2e-3),
        pytest.approx(0.5962, abs=2e-3),
    )
    whole = share([1] * 100, [1] * 100)
    assert (whole.low, whole.high) == pytest.approx((0.963, 1.0), abs=1e-3)


def test_interval_is_wider_where_turns_of_a_dialogue_are_alike():
    """Ten dialogues of ten turns, all right or all wrong, are ten observations."""
    alike = share([10] * 5 + [0] * 5, [10] * 10)
    ten = share([1] * 5 + [0] * 5, [1] * 10)
    assert alike.value == ten.value == 0.5
    assert (alike.low, alike.high) == pytest.approx((ten.low, ten.high), abs=1e-9)
    mixed = share([5] * 10, [10] * 10)
    assert mixed.high - mixed.low < (alike.high - alike.low) / 2


def test_interval_holds_what_is_true_as_often_as_it_says():
    """It contains the true value in nineteen of twenty random corpora with different dialogues."""
    chance = random.Random(3)
    held = 0
    for _ in range(400):
        parts, wholes = [], []
        for _ in range(60):
            ease = chance.betavariate(9, 1)
            wholes.append(turns := chance.randint(3, 20))
            parts.append(sum(chance.random() < ease for _ in range(turns)))
        found = share(parts, wholes)
        held += found.low <= 0.9 <= found.high
    assert 0.92 <= held / 400 <= 0.98


def test_calibration_error_has_an_interval():
    """Verdicts of 0.8 that are right half of the time are off by 0.3."""
    said = [Calibration.of(0.8, is_right=number % 2 == 0) for number in range(400)]
    found = calibration_error(said)
    assert found.value == pytest.approx(0.3)
    assert 0.24 < found.low < 0.3 < found.high < 0.36
    assert calibration_error([]).of == 0


def test_group_is_in_the_help(capsys):
    """Under the name by which it is called, with its commands."""
    assert app(["topics", "--help"], prog_name="agent-routing", standalone_mode=False) in {0, None}
    shown = capsys.readouterr().out
    assert "Usage: agent-routing topics" in shown
    assert [word for word in ("evaluate", "calibrate") if f"\n  {word} " not in shown] == []
