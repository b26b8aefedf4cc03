"""The commands that ask a server, over a real one."""

import importlib
import json
import os
import subprocess
import sys
import uuid

import pytest

from agent_routing import Client
from routing_service import __version__
from routing_service.cli import main
from routing_service.cli.app import COMMANDS as TABLE
from routing_service.cli.app import load_command
from routing_service.cli.embedded_server import server_in_thread
from routing_service.cli.example_files import EXAMPLES as EXAMPLE_NAMES
from routing_service.cli.example_files import example_file
from routing_service.examples import EXAMPLES
from routing_service.settings.settings import SETTINGS

COMMANDS = tuple(row.name for row in TABLE)


@pytest.fixture(scope="module")
def target():
    """Serve the tax example."""
    with server_in_thread(EXAMPLES["tax"].registry_path, "memory:") as address:
        yield address


@pytest.fixture
def ask(run, target):
    """Return what runs a command on the server and must succeed: its stdout."""

    def ask_it(command, *argv):
        code, out, err = run(command, *argv, "--target", target)
        assert (code, err) == (0, ""), err
        return out

    return ask_it


@pytest.fixture
def session():
    """Return an unused session id."""
    return f"cli-{uuid.uuid1(node=1)}"  # noqa: TID251 - only has to differ


def route(ask, session, text, *argv):
    """Send a message; return the answer as a program reads it."""
    return json.loads(
        ask("route", session, text, "--user", "ana", "--channel", "web", "--json", *argv)
    )


# Conversations as a user sees them


def test_message_is_followed_from_route_to_history(ask, session):
    """One message by hand: each step's output is the next step's input."""
    out = ask("route", session, "[bold]hola", "--user", "ana", "--channel", "web", "--locale", "en")
    assert "to Coordinator (coordinator)" in out
    assert "no active agent" in out
    request = next(line.split()[1] for line in out.splitlines() if line.startswith("request"))
    out = ask(
        "complete",
        session,
        request,
        "coordinator",
        "--outcome",
        "handoff:vat",
        "--reason",
        "about VAT",
        "--message",
        "Over to VAT",
    )
    assert "Coordinator (coordinator) → VAT specialist (vat)  by supervisor" in out
    assert "Over to VAT" in out
    request = out.split()[-1]
    out = ask("complete", session, request, "vat", "--outcome", "follow-up", "--text", "How much?")
    assert "VAT specialist (vat), waits for an answer" in out
    out = ask("route", session, "100", "--user", "ana")
    assert "which waits for this answer" in out
    assert "the supervisor was not asked" in out
    out = ask("status", session)
    assert "VAT specialist (vat), waits for an answer" in out
    assert "open request" in out
    assert "ana, en, web" in out
    out = ask("history", session)
    # Shown as is, not as markup; once, although two agents got it.
    assert out.count("[bold]hola") == 1
    assert "How much?" in out
    assert "not answered yet" in out
    out = ask("clear", session, "--scope", "session")
    assert "Coordinator (coordinator) gets the next message; before: VAT specialist" in out
    assert "active agent  none" in ask("status", session)


def test_command_reply_is_printed(ask, session):
    """A user's command answers at once, in the user's language."""
    out = ask("route", session, "/status", "--user", "ana", "--locale", "es")
    assert "Estás con la coordinadora." in out
    assert "request" not in out


def test_new_session_is_begun_with_a_dash(ask):
    """A user without a session gets a new one."""
    answer = json.loads(ask("route", "-", "hello", "--user", "ana", "--json"))
    assert answer["session_id"]
    assert answer["revision"] == "1"


def test_json_has_the_contracts_names_and_every_field(ask, session):
    """Scripts find every field, set or not."""
    answer = route(ask, session, "hello")
    assert answer["dispatch"]["agent"]["agent_id"] == "coordinator"
    assert answer["supervisor_bypassed"] is False
    status = json.loads(ask("status", session, "--json"))
    assert (status["locked"], status["return_stack"]) == (False, [])
    assert status["open_requests"][0]["request_id"] == answer["request_id"]
    turns = json.loads(ask("history", session, "--json"))["turns"]
    assert [turn["user_text"] for turn in turns] == ["hello"]
    agents = json.loads(ask("agents", "--json"))
    assert agents["home_agent_id"] == "coordinator"
    cleared = json.loads(ask("clear", session, "--json"))
    assert cleared["agent"]["agent_id"] == "coordinator"


def test_trial_route_writes_nothing(ask, run, session, target):
    """--validate-only returns where a message would go."""
    answer = route(ask, session, "hello", "--validate-only")
    assert answer["dispatch"]["agent"]["agent_id"] == "coordinator"
    code, _, err = run("status", session, "--target", target)
    assert (code, "UNKNOWN_SESSION" in err) == (1, True)


def test_newest_turns_are_shown_in_their_order(ask, session):
    """The end of a long history, in order."""
    for text in ("one", "two", "three"):
        route(ask, session, text)
    turns = json.loads(ask("history", session, "--newest", "2", "--json"))["turns"]
    assert [turn["user_text"] for turn in turns] == ["two", "three"]


def test_history_of_an_agent_has_its_turns_alone(ask, session):
    """The turns that a specialist may see."""
    route(ask, session, "hello")
    assert "no turns" in ask("history", session, "--agent", "vat")


def test_agents_are_listed_with_what_sets_them_apart(ask):
    """The list marks the home agent, system agents, and those that users may pick."""
    out = ask("agents", "--locale", "en")
    lines = {line.split(" (")[0]: line for line in out.splitlines()}
    assert "supervisor, home" in lines["Coordinator"]
    assert "users may pick it" in lines["VAT specialist"]
    assert "system" in next(line for line in lines.values() if "audit_log" in line)
    assert "7 agents, registry 1" in out


def test_agents_of_a_session_are_those_its_user_may_reach(ask, session):
    """Payroll is for subscribers."""
    route(ask, session, "hello")
    listed = json.loads(ask("agents", "--session", session, "--json"))["agents"]
    assert "payroll" not in [agent["agent_id"] for agent in listed]
    listed = json.loads(ask("agents", "--from", "filing", "--json"))["agents"]
    assert {"income_tax", "vat"} <= {agent["agent_id"] for agent in listed}
    assert "invoices" not in [agent["agent_id"] for agent in listed]


# Handoffs


def test_handoff_decides_who_gets_the_next_message(ask, session):
    """The output names the initiator of the handoff."""
    route(ask, session, "hello")
    out = ask(
        "handoff", session, "vat", "--initiator", "operator", "--reason", "asked on the phone"
    )
    assert "→" in out
    assert "by operator" in out
    answer = route(ask, session, "and now?")
    assert answer["dispatch"]["agent"]["agent_id"] == "vat"


@pytest.mark.parametrize("act", ["handoff", "clear"])
def test_an_operators_act_says_what_becomes_of_the_message_that_waits(ask, session, act):
    """Before it is done; the message is with the agent that then has the conversation."""
    request = route(ask, session, "hello")["request_id"]
    ask("handoff", session, "vat", "--turn", request)
    moved = ("income_tax", "--initiator", "operator") if act == "handoff" else ()
    out = ask(act, session, *moved, "--reason", "stuck")
    agent = "income_tax" if act == "handoff" else "coordinator"
    first = out.replace("\n", " ").split("revision")[0]
    assert "a message that waits since" in first
    assert "goes along to" in first
    assert f"({agent})" in first
    assert request in first.replace(" ", "")
    [waits] = json.loads(ask("status", session, "--json"))["open_requests"]
    assert (waits["request_id"], waits["agent"]["agent_id"]) == (request, agent)


def test_an_operator_may_abandon_the_message_that_waits(ask, session):
    """--open-turn; the JSON is the answer alone."""
    route(ask, session, "hello")
    given = ("--initiator", "operator", "--open-turn", "abandon", "--json")
    answer = json.loads(ask("handoff", session, "vat", *given))
    assert answer["moved_turn"]["open_turn"] == "OPEN_TURN_ABANDON"
    assert json.loads(ask("status", session, "--json"))["open_requests"] == []


def test_handoff_moves_an_open_turn(ask, session):
    """--turn: the target completes the turn under the same request id."""
    request = route(ask, session, "hello")["request_id"]
    ask("handoff", session, "vat", "--turn", request)
    answer = json.loads(
        ask("complete", session, request, "vat", "--outcome", "proceed", "--text", "hi", "--json")
    )
    assert answer["outcome_status"] == "OUTCOME_STATUS_APPLIED"


def test_refused_handoff_names_every_rule(ask, run, session, target):
    """One line, with the machine-readable reason."""
    route(ask, session, "hello")
    code, out, err = run("handoff", session, "audit_log", "--target", target)
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert "not_system" in err
    assert err.endswith("[HANDOFF_REFUSED]\n")
    assert err.count("\n") == 1


def test_refusal_as_json_has_the_rules_apart(ask, run, session, target):
    """On stderr: stdout has only answers."""
    route(ask, session, "hello")
    code, out, err = run("handoff", session, "payroll", "--json", "--target", target)
    error = json.loads(err)["error"]
    assert (code, out) == (1, "")
    assert error["reason"] == "HANDOFF_REFUSED"
    assert [each["name"] for each in error["violations"]] == ["entitled"]


def test_trial_handoff_shows_what_each_rule_says(ask, run, session, target):
    """Exit code 1 if a rule refuses, so that a script can test first."""
    route(ask, session, "hello")
    code, out, _ = run("handoff", session, "payroll", "--validate-only", "--target", target)
    assert code == 1
    assert "requires plan:premium" in out
    assert "refused by entitled" in out
    code, out, _ = run("handoff", session, "vat", "--validate-only", "--target", target)
    assert code == 0
    assert "allowed; nothing was changed" in out
    assert "active agent  none" in ask("status", session)


def test_stale_expectation_is_refused_with_both_revisions(ask, run, session, target):
    """Another caller was faster: read and decide again."""
    route(ask, session, "hello")
    code, _, err = run("clear", session, "--expected-revision", "9", "--target", target)
    assert code == 1
    assert "revision 1" in err
    assert "9" in err
    assert "REVISION_MISMATCH" in err


def test_repeated_request_id_is_handled_once(ask, session):
    """An interrupted command can be repeated."""
    request_id = "0198a6c0-6d02-7c3b-8f64-77d0c1a9be05"
    first = route(ask, session, "hello", "--request-id", request_id)
    assert route(ask, session, "hello", "--request-id", request_id) == first


# Answers of agents


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (("proceed",), "TURN_OUTCOME_PROCEED"),
        (("follow-up", "--wait", "60"), "TURN_OUTCOME_FOLLOW_UP"),
        (("complete", "--reason", "all done"), "TURN_OUTCOME_COMPLETE"),
        (("failure", "--reason", "no idea"), "TURN_OUTCOME_FAILURE"),
        (("handoff:vat",), "TURN_OUTCOME_HANDOFF"),
    ],
)
def test_outcome_is_what_was_asked_for(ask, session, argv, status):
    """Each way to end a turn has its option."""
    request = route(ask, session, "hello")["request_id"]
    ask("complete", session, request, "coordinator", "--outcome", *argv)
    turns = json.loads(ask("history", session, "--json"))["turns"]
    assert turns[0]["outcome"] == status


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (("done",), '"done" is unknown; use proceed, follow-up, complete'),
        (("handoff",), '"handoff" is unknown'),
        (("proceed:vat",), '"proceed:vat" is unknown'),
        (("proceed", "--wait", "5"), "--wait goes with follow-up, not with proceed"),
        (("failure", "--message", "oh"), "--message goes with complete or handoff"),
    ],
)
def test_wrong_outcome_is_refused_before_any_call(run, argv, complaint):
    """Exit code 2, without a server."""
    code, _, err = run("complete", "s", "r", "a", "--outcome", *argv, "--target", "127.0.0.1:1")
    assert code == 2
    assert complaint in " ".join(err.replace("│", " ").split())


# Failures


def test_unknown_session_is_told_in_one_line(run, target):
    """The error has the kind, the value and the remedy."""
    code, out, err = run("status", "nobody", "--target", target)
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert '"nobody"' in err
    assert err.endswith("[UNKNOWN_SESSION]\n")


def test_another_users_session_is_refused(ask, run, session, target):
    """With the service's message."""
    route(ask, session, "hello")
    code, _, err = run("status", session, "--user", "bob", "--target", target)
    assert code == 1
    assert "OWNER_MISMATCH" in err


def test_absent_server_is_told_with_how_to_start_one(run):
    """The most common failure has its remedy in the message."""
    code, _, err = run("status", "s", "--target", "127.0.0.1:1")
    assert code == 1
    assert err.startswith("error: no server answers at 127.0.0.1:1; start one with: agent-routing ")


def test_a2a_without_its_extra_says_how_to_install_it(monkeypatch, run, target):
    """Before anything is called."""
    monkeypatch.setattr("routing_service.cli.a2a.find_spec", lambda _: None)
    code, _, err = run("a2a", "--agent", "vat", "--url", "http://127.0.0.1:1", "--target", target)
    assert code == 1
    assert err.startswith(
        "error: A2A needs the extra a2a of the client; not installed: a2a, httpx;"
    )
    assert err.endswith('pip install "agent-routing-client[a2a]"\n')


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (("--url", "planner.example.org"), "it must begin with http:// or https://"),
        (
            ("--url", "http://x", "--allow-origin", "y:1"),
            '--allow-origin is "y:1"; it must begin with http:// or https://',
        ),
        (("--url", "http://x", "--remote-token-file", "/nowhere"), "/nowhere cannot be read"),
    ],
)
def test_wrong_options_of_a2a_are_refused_before_any_call(monkeypatch, run, given, complaint):
    """No server is asked."""
    monkeypatch.setattr("routing_service.cli.a2a.find_spec", lambda _: True)
    code, _, err = run("a2a", "--agent", "vat", "--target", "127.0.0.1:1", *given)
    assert code == 2
    assert complaint in err


def test_target_comes_from_the_environment(monkeypatch, run, target, session):
    """Users of one server set its address once."""
    monkeypatch.setenv("AGENT_ROUTING_TARGET", target)
    assert run("route", session, "hello", "--user", "ana")[0] == 0


def test_tenants_are_apart(ask, run, session, target):
    """--tenant selects the tenant."""
    route(ask, session, "hello")
    code, _, err = run("status", session, "--tenant", "other", "--target", target)
    assert (code, "UNKNOWN_SESSION" in err) == (1, True)


def test_text_that_is_not_utf8_is_a_wrong_command(run, target, session):
    """What a terminal in another encoding sends reaches Python as surrogates."""
    code, _, err = run("route", session, "caf\udce9", "--target", target)
    assert code == 2
    assert err.startswith("error: ")
    assert "UTF-8" in err


# The command itself


def test_help_lists_every_command(run):
    """Summaries are not cut off."""
    code, out, _ = run("--help")
    assert code == 0
    listed = out[out.index("Commands:") :]
    names = [line.split()[0] for line in listed.splitlines() if line.startswith("  ")]
    assert tuple(names[: len(COMMANDS)]) == COMMANDS
    needed = {"serve", "check", "chat", "replay", "status", "history", "agents", "handoff", "clear"}
    assert needed | {"complete", "route"} <= set(COMMANDS)
    assert "..." not in listed


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(run, command):
    """Users copy examples."""
    code, out, _ = run(command, "--help")
    assert code == 0
    assert f"  agent-routing {command}" in out
    assert "\b" not in out


def test_version_is_the_distributions(run):
    """The same version as in packages and logs."""
    assert run("--version")[:2] == (0, f"agent-routing {__version__}\n")


def test_help_imports_neither_grpc_nor_tables():
    """These imports cost more than the rest of the command, and help does not need them."""
    heavy = ("grpc", "google.protobuf", "rich", "aiosqlite", "ruamel", "jsonschema")
    code = f"""
import atexit, sys
from routing_service.cli import main
atexit.register(lambda: print("loaded:", *(set({heavy!r}) & set(sys.modules))))
main()
"""
    for asked in (["--help"], ["serve", "--help"], ["serve", "--explain", "--agents", "x.yaml"]):
        shown = subprocess.run(
            [sys.executable, "-c", code, *asked], check=True, capture_output=True, text=True
        )
        assert len(shown.stdout.splitlines()) > 10
        assert shown.stdout.splitlines()[-1] == "loaded:", asked


def test_completion_of_a_command_imports_no_command(tmp_path):
    """A user waits for it at each key press."""
    code = """
import sys
from routing_service.cli import main
try:
    main()
finally:
    print("imported:", *(name for name in sys.modules if name == "routing_service.cli.stats"))
"""
    completing = {
        "_AGENT_ROUTING_COMPLETE": "complete_bash",
        "COMP_WORDS": "agent-routing sta",
        "COMP_CWORD": "1",
    }
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | completing,
        check=True,
        capture_output=True,
        text=True,
    )
    assert shown.stdout.split() == ["status", "stats", "imported:"]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_list_of_commands_says_what_each_command_says_of_itself(row):
    """The list is built without importing the commands, so it repeats their first sentences."""
    assert load_command(row.name).get_short_help_str(limit=100) == row.summary


def test_serve_has_a_flag_for_every_setting(run):
    """A new setting has its flag at once."""
    _, out, _ = run("serve", "--help")
    assert [setting.flag for setting in SETTINGS.values() if setting.flag not in out] == []


def test_serve_explains_where_a_setting_comes_from(monkeypatch, run, tmp_path):
    """Flag before environment before file."""
    file = tmp_path / "routing.toml"
    file.write_text('drain_s = 3\nlog_level = "debug"\n', encoding="utf-8")
    monkeypatch.setenv("AGENT_ROUTING_LOG_LEVEL", "warning")
    monkeypatch.setenv("AGENT_ROUTING_DRIAN_S", "9")
    code, out, err = run("serve", "--config", str(file), "--listen", "127.0.0.1:0", "--explain")
    assert code == 0
    assert "listen = '127.0.0.1:0'  (flag --listen)" in out
    assert "log_level = 'warning'  (environment AGENT_ROUTING_LOG_LEVEL)" in out
    assert f"drain_s = 3.0  (file {file})" in out
    assert "AGENT_ROUTING_DRIAN_S" in err


def test_serve_refuses_all_bad_settings_at_once(run):
    """Exit code 2; each problem is a line."""
    code, out, err = run("serve", "--drain-s", "soon", "--log-level", "loud", "--listen", "here")
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("error: ") for line in lines)


def test_serve_without_a_registry_says_how_to_name_one(run):
    """The most common mistake of newcomers."""
    code, _, err = run("serve", "--listen", "127.0.0.1:0", "--store", "memory:")
    assert code == 2
    assert "--agents" in err


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_serve_has_every_example_by_name(run, name):
    """From the wheel alone: no path to a file."""
    code, out, err = run("serve", "--example", name, "--explain")
    assert (code, err) == (0, "")
    assert f"agents = '{example_file(name)}'  (flag --agents)" in out
    assert name not in EXAMPLES or example_file(name) == EXAMPLES[name].registry_path
    assert set(EXAMPLES) < set(EXAMPLE_NAMES)


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--example", "nope"], "examples: tax, tutor"),
        (["--example", "tax", "--agents", "x"], "either"),
    ],
)
def test_serve_refuses_an_example_that_is_not_clear(run, argv, complaint):
    """Exit code 2, before anything starts."""
    code, out, err = run("serve", *argv)
    assert (code, out) == (2, "")
    assert complaint in " ".join(err.split())


def test_served_process_announces_itself_and_stops_when_told(tmp_path):
    """The whole run: started, called, stopped."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", "from routing_service.cli import main; main()", "serve"),
            *("--listen", "127.0.0.1:0", "--store", f"sqlite:///{tmp_path}/s.db"),
            *("--agents", str(EXAMPLES["budget"].registry_path)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        line = process.stdout.readline()
        assert line.startswith("serving on 127.0.0.1:")
        with Client(line.split()[-1]) as client:
            assert client.list_agents().home_agent_id == "orchestrator"
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("agent-routing stat", ["status", "stats"]),
        ("agent-routing complete s r a --outcome ha", ["handoff:"]),
        ("agent-routing chat --example t", ["tax", "tutor"]),
        ("agent-routing replay x --policy s", ["sticky", "supervisor"]),
    ],
)
def test_shell_completes_commands_and_choices(words, completed):
    """As bash asks for it."""
    done = subprocess.run(
        [sys.executable, "-c", "from routing_service.cli import main; main()"],
        env=os.environ
        | {
            "_AGENT_ROUTING_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        },
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == completed


def test_reader_that_closes_the_pipe_causes_no_traceback():
    """agent-routing check … | head -1."""
    files = [str(example.registry_path) for example in EXAMPLES.values()]
    process = subprocess.Popen(
        [sys.executable, "-c", "from routing_service.cli import main; main()", "check", *files],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.close()
    _, err = process.communicate()
    assert "Traceback" not in err
    assert process.returncode == 1


def test_entry_point_is_main():
    """The function that the installed command calls."""
    assert importlib.import_module("routing_service.cli").main is main
