"""agent-routing topics examples: a prompt, and the checks of what a model answers."""

import json
import sys

import pytest

from agent_routing_topics.commands import topic_examples
from agent_routing_topics.commands.topic_examples import language_of, parsed
from routing_service.cli.failure import CommandFailed
from routing_service.registry.file import load_registry

REGISTRY = """
api_version: agent_routing/v1
version: 1
supervisor: home
default_locale: es
agents:
  - {id: home, name: Home, kind: supervisor}
  - id: bills
    name: {es: Facturas, en: Bills}
    description: {es: Facturas y cobros, en: Bills and payments}
    examples: [¿cuánto debo?]
  - id: leave
    name: {es: Vacaciones, en: Leave}
    description: {es: Vacaciones y permisos, en: Holidays and leave}
"""
ANSWER = """Here you are:
```yaml
bills:
  - "¿Cuánto debo?"
  - "send me the bill for May"
  - "o que é que eu tenho de pagar na conta em junho"
  - "how many days"
leave:
  - "I need next Friday off"
  - "how many days"
boats: ["x"]
```
"""


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Return what runs a command line: (exit code, stdout, stderr)."""
    (tmp_path / "agents.yaml").write_text(REGISTRY, "utf-8")

    def run_it(*argv):
        from routing_service.cli import main  # noqa: PLC0415 - as the command starts

        given = ["topics", "examples", "--agents", str(tmp_path / "agents.yaml"), *map(str, argv)]
        monkeypatch.setattr(sys, "argv", ["agent-routing", *given])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code, *capsys.readouterr())

    return run_it


def test_prompt_names_agents_languages_and_form(run):
    """For any model: nothing is sent anywhere."""
    code, out, err = run("--count", 7)
    assert (code, err) == (0, "")
    for words in ("Write 7 messages", "Languages: en, es", "bills: Facturas; Bills", "YAML alone"):
        assert words in out


def test_answer_is_checked_and_written_next_to_the_registry(run, tmp_path):
    """Doubles, messages of two agents, other languages and unknown agents are left out."""
    (tmp_path / "answer.txt").write_text(ANSWER, "utf-8")
    code, out, err = run("--answer", tmp_path / "answer.txt")
    assert code == 0
    for words in ("there already", "two agents have it", "its language is pt", "no such agent"):
        assert words in err
    assert "add this line" in out
    path = tmp_path / "agents.yaml"
    path.write_text(f"examples_file: agents.examples.yml\n{REGISTRY}", "utf-8")
    registry = load_registry(path)
    assert registry.agents["bills"].examples == ("¿cuánto debo?", "send me the bill for May")
    assert registry.agents["leave"].examples == ("I need next Friday off",)


def test_command_is_given_the_prompt(run, tmp_path):
    """What it prints is the answer; one that fails writes nothing."""
    script = "import sys; sys.stdin.read().index('YAML alone'); print('leave: [I am off today]')"
    assert run("--command", f'{sys.executable} -c "{script}"')[0] == 0
    assert "off today" in (tmp_path / "agents.examples.yml").read_text("utf-8")
    code, _, err = run("--command", f'{sys.executable} -c "import sys; sys.exit(3)"')
    assert code == 1
    assert "ended with 3" in err


@pytest.mark.parametrize("said", ["", "- a", "x: [", "text"])
def test_answer_that_is_no_mapping_is_refused(said):
    """With what it should be."""
    with pytest.raises(CommandFailed, match="the answer is not"):
        parsed(said)


def test_example_that_sounds_like_another_agents_is_left_out(run, tmp_path, monkeypatch):
    """It is judged without itself."""
    from agent_routing_topics.left_out import LeftOut  # noqa: PLC0415 - stands in for one

    monkeypatch.setattr(
        topic_examples,
        "left_out",
        lambda *_: [LeftOut("leave", "pay me out", "bills", 0.9), LeftOut("leave", "y", "", 0.9)],
    )
    (tmp_path / "a.txt").write_text(json.dumps({"leave": ["pay me out", "off on Monday"]}), "utf-8")
    code, out, err = run("--answer", tmp_path / "a.txt")
    assert code == 0
    assert "leave: 1 examples" in out
    assert "it sounds like bills" in err


def test_language_is_said_only_where_it_is_clear():
    """Short messages have none."""
    assert language_of("quiero saber cuanto me va a costar el envio") == "es"
    assert language_of("what is the price of my order") == "en"
    assert language_of("quero saber quanto custa o envio para a minha casa") == "pt"
    assert language_of("ok 42") == ""
