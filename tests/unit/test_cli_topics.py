"""agent-routing topics: what it prints of dialogues and of a service's own conversations."""

import asyncio
import json
import sys

import pytest

from routing_service.cli.app import app
from routing_service.cli.topics_run import interval
from routing_service.examples import EXAMPLES
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
    assert (told["threshold"], told["lock_threshold"]) == (0.5, 0.5)
    made = told["corpora"]["made"]
    assert made["scored_turns"] == 6
    assert made["right_low"] <= made["right"] <= made["right_high"]
    assert sum(agent["scored_turns"] for agent in told["agents"].values()) == 6
    assert set(told["agents"]) == {"hotels", "weather"}


def test_evaluate_prints_a_line_for_each(run, folder):
    """For people; a bad line is told and counted, and the rest goes on."""
    with (folder / "made.jsonl").open("a") as file:
        file.write("no dialogue\n")
    code, out, err = run("evaluate", folder / "made.jsonl", "--corpus", "made")
    assert code == 1
    assert "made.jsonl:3" in err
    for word in ("model ", "threshold 0.5", "made", "hotels", "weather", "100.0%"):
        assert word in out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("evaluate", "x.jsonl"), "give --agents FILE or --corpus NAME"),
        (("evaluate", "x.jsonl", "--corpus", "c", "--agents", "a.yaml"), "one says who"),
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
    """Of a store that a server has filled; the registry's own threshold is marked."""

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
    """Rather than a table of nothing."""

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


def test_interval_is_wilsons():
    """Known values; a share of nothing says nothing."""
    assert interval(0, 0) == (0.0, 1.0)
    assert interval(50, 100) == (pytest.approx(0.4038, abs=1e-3), pytest.approx(0.5962, abs=1e-3))
    low, high = interval(100, 100)
    assert (low, high) == (pytest.approx(0.963, abs=1e-3), 1.0)


def test_group_is_in_the_help():
    """Under the name by which it is called."""
    assert "topics" in {
        group.name or group.typer_instance.info.name for group in app.registered_groups
    }
