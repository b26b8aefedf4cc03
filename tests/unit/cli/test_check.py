"""agent-routing check: what it prints, and how it exits."""

import io
import json
import sys
import time

import pytest

from routing_service.examples import EXAMPLES

GOOD = """\
api_version: agent_routing/v1
version: 7
supervisor: desk
agents:
  - {id: desk, name: Desk}
  - {id: billing, name: Billing, on_complete: support, requires: ["plan:premium"]}
  - {id: support, name: Support, handoff_to: [billing], enabled: false}
"""
BAD = GOOD.replace("on_complete: support", "on_complete: suport").replace("version: 7\n", "")


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a registry file and returns its path."""

    def write_it(text, name="agents.yaml"):
        file = tmp_path / name
        file.write_text(text, encoding="utf-8")
        return str(file)

    return write_it


def test_good_file_is_summed_up(run, write):
    """The author sees all agents and their handoffs at a glance."""
    file = write(GOOD)
    code, out, _ = run("check", file)
    assert code == 0
    assert f"{file}: good, version 7, 3 agents, supervisor desk" in out
    billing = next(line for line in out.splitlines() if line.startswith("billing"))
    assert "→ support" in billing
    assert "needs plan:premium" in out
    assert "disabled" in out


def test_every_problem_is_a_line_with_its_place(run, write):
    """In the format of compilers, which editors understand; all at once."""
    file = write(BAD)
    code, out, _ = run("check", file)
    assert code == 1
    lines = out.splitlines()
    assert f"{file}: 2 problems" in lines
    hop = next(line for line in lines if "suport" in line)
    assert hop.startswith(f"{file}:5:")
    assert "agents[1].on_complete" in hop
    assert "; " in hop


def test_one_bad_file_of_several_fails_the_check(run, write):
    """The other files are still checked."""
    code, out, _ = run("check", write(GOOD), write(BAD, "bad.yaml"))
    assert code == 1
    assert "good, version 7" in out
    assert "bad.yaml: 2 problems" in out


def test_warnings_do_not_fail_the_check(run, write):
    """Unusual settings are reported, and accepted."""
    code, out, _ = run("check", write(GOOD))
    assert "warning: " in out
    assert code == 0


def test_missing_file_is_a_problem_of_that_file(run, tmp_path):
    """With the remedy, and no traceback."""
    file = str(tmp_path / "nowhere.yaml")
    code, out, err = run("check", file)
    assert code == 1
    assert out.splitlines()[0] == f"{file}: there is no such file; check the path"
    assert not err


def test_json_has_problems_by_field(run, write):
    """For programs: line numbers, with message and remedy in separate fields."""
    file = write(BAD)
    code, out, _ = run("check", file, "--json")
    answer = json.loads(out)
    assert code == 1
    assert answer["ok"] is False
    (report,) = answer["files"]
    assert (report["file"], report["registry"]) == (file, None)
    assert {problem["line"] for problem in report["problems"]} == {1, 5}
    assert all(problem["message"] and problem["remedy"] for problem in report["problems"])


def test_json_of_a_good_file_names_its_agents(run, write):
    """Scripts can list the agents of a file."""
    code, out, _ = run("check", write(GOOD), "--json")
    (report,) = json.loads(out)["files"]
    assert code == 0
    assert report["registry"]["home_agent_id"] == "desk"
    assert [agent["agent_id"] for agent in report["registry"]["agents"]] == [
        "desk",
        "billing",
        "support",
    ]


def test_pipe_is_checked(run, monkeypatch):
    """Generated files do not have to be saved."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(GOOD.encode())))
    code, out, _ = run("check", "-")
    assert code == 0
    assert "standard input: good" in out


def test_schema_is_json_schema(run):
    """Editors use it to complete and check registry files."""
    code, out, _ = run("check", "--schema")
    schema = json.loads(out)
    assert code == 0
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert "agents" in schema["properties"]


def test_nothing_to_check_is_a_wrong_command(run):
    """Exit code 2: the command line is wrong, not a file."""
    code, _, err = run("check")
    assert code == 2
    assert "name a registry file, or give --schema" in err


@pytest.mark.parametrize("example", list(EXAMPLES))
def test_shipped_examples_are_good(run, example):
    """Newcomers copy the examples, so these have neither problems nor warnings."""
    code, out, _ = run("check", str(EXAMPLES[example].registry_path))
    assert code == 0
    assert "warning" not in out


def test_problem_is_one_line_however_long(run, write):
    """For editors and grep: in a pipe no line is wrapped."""
    name = "a_key_that_nobody_has_ever_heard_of_and_that_is_very_long_indeed"
    file = write(GOOD.replace("enabled: false", f"{name}: 1"))
    code, out, _ = run("check", file)
    lines = out.splitlines()
    assert code == 1
    assert len(lines) == 2
    assert lines[0].startswith(f"{file}:7:")
    assert f'unknown key "{name}"; remove it; keys here: id, ' in lines[0]
    assert lines[0].endswith("icon, color")


def test_comma_in_a_text_between_braces_is_told_as_such(run, write):
    """The rest of the text looks like a key: the remedy is quotes, not another key."""
    file = write(GOOD.replace("name: Desk}", "name: Desk, description: Questions, answers}"))
    code, out, _ = run("check", file)
    assert code == 1
    assert 'unknown key "answers"; put the value before it in quotes' in out
    assert "a comma begins a new key" in out
    # An empty key has the same message as before.
    code, out, _ = run("check", write(f"answers:\n{GOOD}"))
    assert code == 1
    assert 'unknown key "answers"; remove it' in out


def test_server_without_its_file_names_no_place_in_it(run, tmp_path):
    """Without a file there is no line number."""
    file = tmp_path / "missing.yaml"
    code, _, err = run("serve", "--agents", str(file))
    assert (code, err) == (2, f"error: {file}: there is no such file; check the path\n")


def test_file_with_far_too_many_agents_is_refused_before_it_is_read(run, tmp_path):
    """Reading 20,000 agents took 24 to 40 s; now reading ends at the 513th."""
    file = tmp_path / "many.yaml"
    agents = "".join(f"- {{id: a{number}, name: A{number}}}\n" for number in range(20_000))
    head = "api_version: agent_routing/v1.1\nversion: 1\nsupervisor: a0\nagents:\n"
    file.write_text(head + agents, encoding="utf-8")
    begun_s = time.process_time()
    code, out, _ = run("check", str(file))
    assert time.process_time() - begun_s < 5
    assert code == 1
    assert "agents has more than 512 entries; the rest was not read" in out
    assert ":517:" in out
