"""The commands for operators, over a real server."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from agent_routing import Admin, AsyncAdmin, errors, outcomes
from agent_routing.v1 import admin_service_pb2 as pb
from routing_service.cli import main
from routing_service.cli.admin_answers import print_reloaded
from routing_service.cli.admin_options import read_time
from routing_service.cli.embedded_server import server_in_thread
from routing_service.cli.stats_report import bar
from routing_service.examples import EXAMPLES

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def target():
    """Serve the tax example."""
    with server_in_thread(EXAMPLES["tax"].registry_path, "memory:") as address:
        yield address


@pytest.fixture
def run(monkeypatch, capsys, target):
    """Return what runs a command on the server: (exit code, stdout, stderr)."""

    def run_it(command, *argv):
        monkeypatch.setattr(sys, "argv", ["agent-routing", command, *argv, "--target", target])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code, *capsys.readouterr())

    return run_it


@pytest.fixture
def ask(run):
    """Return what runs a command that must succeed: its stdout."""

    def ask_it(command, *argv):
        code, out, err = run(command, *argv)
        assert (code, err) == (0, ""), err
        return out

    return ask_it


@pytest.fixture
def tenant():
    """Return a tenant that no other test has."""
    return f"t{uuid.uuid1(node=1).hex}"  # noqa: TID251 - only has to differ


@pytest.fixture
def talk(target, tenant):
    """Hold conversations in the tenant: a handoff and a refused one; return their client."""
    with Admin(target, tenant=tenant, fallback=None, timeout=30) as client:
        for name in ("one", "two"):
            turn = client.route("hola", session_id=name, user_id="ana", channel="web", locale="en")
            with pytest.raises(errors.HandoffRefused):
                client.complete_turn(
                    name, turn.request_id, turn.agent_id, outcomes.handoff("payroll")
                )
            answer = client.complete_turn(
                name, turn.request_id, turn.agent_id, outcomes.handoff("vat"), text="VAT"
            )
            client.complete_turn(
                name, answer.next.request_id, "vat", outcomes.follow_up(), text="How much?"
            )
        client.route("hola", session_id="three", user_id="ben", channel="phone")
        yield client


# Sessions, events, watches


def test_sessions_are_listed_by_what_they_are(ask, talk, tenant):
    """Each filter, as text and as JSON."""
    out = ask("sessions", "--tenant", tenant)
    assert out.count("(vat), waits") == 2
    assert "3 sessions" in out

    def ids(*filters):
        answer = json.loads(ask("sessions", "--tenant", tenant, "--json", *filters))
        return [session["session_id"] for session in answer["sessions"]]

    assert ids() == ["one", "three", "two"]
    assert ids("--active", "vat") == ["one", "two"]
    assert ids("--owner", "ben") == ["three"]
    assert ids("--channel", "phone") == ["three"]
    assert ids("--locked") == ["one", "two"]
    assert ids("--unlocked") == ["three"]
    assert ids("--task", "running") == ["one", "three", "two"]
    assert ids("--task", "paused") == []
    assert ids("--since", "1h") == ["one", "three", "two"]
    assert ids("--until", "2020-01-01") == []
    assert "there are more" in ask("sessions", "--tenant", tenant, "--max", "2")
    assert "no sessions" in ask("sessions", "--tenant", tenant, "--owner", "nobody")


def test_events_are_listed_for_a_session_and_for_all(ask, talk, tenant):
    """Refusals are listed in order with the events."""
    out = ask("events", "one", "--tenant", tenant)
    lines = out.splitlines()
    assert "session started" in lines[0]
    refused = next(line for line in lines if "handoff refused" in line)
    assert "(coordinator) → Nóminas (payroll)  by supervisor  refused by entitled" in refused
    # The runtime that was refused named no user, so it is not shown as the session's owner.
    assert refused.endswith("refused by entitled")
    everything = ask("events", "--tenant", tenant)
    assert everything.count("message routed") == 3
    assert "three" in everything
    first = json.loads(ask("events", "one", "--newest-first", "--tenant", tenant, "--json"))
    assert "lock_engaged" in first["records"][0]["event"]

    def kinds(*filters):
        answer = json.loads(ask("events", "--tenant", tenant, "--json", *filters))
        return [
            next(k for k in record["event"] if k in ("handoff_refused", "agent_handoff"))
            for record in answer["records"]
        ]

    assert kinds("--kind", "agent_handoff") == ["agent_handoff"] * 2
    assert kinds("--agent", "payroll") == ["handoff_refused"] * 2
    both = ("--kind", "agent_handoff", "--kind", "handoff_refused")
    assert kinds(*both, "--since", "1h") == ["handoff_refused", "agent_handoff"] * 2
    assert kinds(*both, "--owner", "ben") == []
    assert "there are more" in ask("events", "--tenant", tenant, "--max", "1")
    mistyped = ask("events", "onee", "--tenant", tenant)
    assert 'nothing of session "onee" matches; agent-routing sessions lists them' in mistyped
    assert "nothing of session" not in ask("events", "--tenant", tenant, "--kind", "task_cancelled")


def test_watch_prints_what_has_happened_and_what_happens(ask, talk, tenant):
    """For one session and for all; it ends after --max."""
    out = ask("watch", "one", "--from-beginning", "--max", "2", "--tenant", tenant)
    assert "message routed  to Coordinadora" in out
    assert "(coordinator) → Especialista en IVA (vat)" in out
    lines = ask("watch", "--from-beginning", "--max", "3", "--json", "--tenant", tenant)
    changes = [json.loads(line) for line in lines.splitlines()]
    assert [int(change["revision"]) for change in changes] == [1, 2, 3]
    handoffs = ask(
        *("watch", "--from-beginning", "--max", "2", "--kind", "agent_handoff"),
        *("--tenant", tenant),
    )
    assert handoffs.count("agent handoff") == 2
    later = threading.Timer(0.5, talk.route, ("more",), {"session_id": "two", "user_id": "ana"})
    later.start()
    try:
        live = ask("watch", "two", "--after", "3", "--max", "1", "--tenant", tenant)
    finally:
        later.join()
    assert "message routed  to Especialista en IVA (vat)  follow up lock" in live


# Figures


def test_stats_are_printed_with_bars(ask, talk, tenant):
    """Every table with content."""
    out = ask("stats", "--tenant", tenant)
    assert "3 in 3 sessions" in out
    assert "0 of 3 messages, 0.0%" in out
    assert "2 carried out, 2 refused" in out
    assert "entitled" in out
    assert "█" in out
    row = next(line for line in out.splitlines() if line.startswith("coordinator  vat"))
    assert row.split()[2:5] == ["supervisor", "transfer", "2"]
    answer = json.loads(ask("stats", "--tenant", tenant, "--json", "--since", "2d"))
    assert answer["user_messages"] == "3"
    assert answer["refusals_by_rule"] == {"entitled": "2"}
    phone = json.loads(ask("stats", "--tenant", tenant, "--json", "--channel", "phone"))
    assert phone["user_messages"] == "1"
    past = json.loads(ask("stats", "--tenant", tenant, "--json", "--until", "2020-01-01"))
    assert past["user_messages"] == "0"
    assert "3 in 3 sessions" not in ask("stats", "--all-tenants", "--until", "2020-01-01")


def test_stats_are_drawn(ask, run, talk, tenant, tmp_path):
    """Names, numbers, and what was refused."""
    file = tmp_path / "handoffs.svg"
    code, out, _ = run("stats", "--tenant", tenant, "--svg", str(file))
    assert (code, out) == (0, f"drawn into {file}\n")
    words = [text.text for text in ET.parse(file).iter(f"{SVG}text")]
    assert {"Especialista en IVA", "Coordinadora", "2", "2 refused"} <= set(words)
    code, _, err = run("stats", "--tenant", tenant, "--svg", str(tmp_path / "no" / "x.svg"))
    assert (code, "cannot write" in err) == (1, True)
    chart = ask("stats", "--tenant", tenant, "--mermaid", "-")
    assert "flowchart LR" in chart
    assert '"Especialista en IVA"' in chart
    assert '|"2 refused"|' in chart
    code, out, _ = run("stats", "--tenant", tenant, "--dot", str(file))
    assert (code, out) == (0, f"drawn into {file}\n")
    assert file.read_text("utf-8").startswith("digraph handoffs {")


def test_bar_is_as_long_as_its_share():
    """A value above zero always has a bar."""
    assert [len(str(bar(n, 10, 10))) for n in (0, 1, 5, 10)] == [0, 1, 5, 10]
    assert str(bar(1, 10_000, 10)) == "▏"


# Users, registry, stickiness


def test_user_is_exported_to_a_file_that_is_whole(ask, run, talk, tenant, tmp_path):
    """One line per part; only the owner can read it; an existing file is not overwritten."""
    lines = ask("export-user", "ben", "--tenant", tenant).splitlines()
    parts = [json.loads(line) for line in lines]
    assert {part["session_id"] for part in parts} == {"three"}
    assert parts[0]["session"]["owner"] == "ben"
    file = tmp_path / "ben.jsonl"
    code, out, err = run("export-user", "ben", "--output", str(file), "--tenant", tenant)
    assert (code, out) == (0, "")
    assert f"{len(lines)} parts" in err
    assert file.read_text(encoding="utf-8").splitlines() == lines
    assert file.stat().st_mode & 0o077 == 0
    code, _, err = run("export-user", "ben", "--output", str(file), "--tenant", tenant)
    assert (code, "exists already" in err) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["ben.jsonl"]


def test_registry_is_reloaded(monkeypatch, capsys, tmp_path):
    """A trial first; a mistake is reported with its line."""
    path = tmp_path / "agents.yaml"
    text = EXAMPLES["tax"].registry_path.read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    with server_in_thread(path, "memory:") as address:

        def reload(*argv):
            command = ["agent-routing", "reload", *argv, "--target", address]
            monkeypatch.setattr(sys, "argv", command)
            with pytest.raises(SystemExit) as ended:
                main()
            return (ended.value.code, *capsys.readouterr())

        code, out, _ = reload()
        assert (code, "registry 1 is in force" in out) == (0, True)
        assert "no agent changed" in out
        code, out, _ = reload("--validate-only", "--json")
        assert (code, '"previous_registry_version": "1"' in out) == (0, True)
        path.write_text(text.replace("handoff_to: [vat, income_tax]", "handoff_to: [nobody]"))
        code, _, err = reload("--validate-only")
        assert (code, "REGISTRY_INVALID" in err, "nobody" in err) == (1, True, True)


def test_reload_is_rehearsed_with_another_file(monkeypatch, capsys, tmp_path):
    """Which conversations a change would touch, before the server's own file is replaced."""
    text = EXAMPLES["tax"].registry_path.read_text(encoding="utf-8")
    following = tmp_path / "next.yaml"
    following.write_text(
        text.replace("handoff_to: [vat, income_tax]", "handoff_to: [income_tax]"), "utf-8"
    )
    with server_in_thread(EXAMPLES["tax"].registry_path, "memory:") as address:
        with Admin(address, fallback=None, timeout=30) as client:
            turn = client.route("hola", session_id="chat-1", user_id="ana", channel="web")
            client.complete_turn("chat-1", turn.request_id, turn.agent_id, outcomes.handoff("vat"))

        def reload(*argv):
            command = ["agent-routing", "reload", *argv, "--target", address]
            monkeypatch.setattr(sys, "argv", command)
            with pytest.raises(SystemExit) as ended:
                main()
            return (ended.value.code, *capsys.readouterr())

        code, out, err = reload("--validate-only", "--agents", str(following))
        assert (code, err) == (0, "")
        assert "no agent changed" not in out
        assert "1 session read" in out
        following.write_text(text.replace("id: vat", "id: value_added"), "utf-8")
        code, _, err = reload("--validate-only", "--agents", str(following))
        assert (code, "REGISTRY_INVALID" in err, "vat" in err) == (
            1,
            True,
            True,
        )
        code, _, err = reload("--agents", str(following))
        assert (code, "--agents is only for --validate-only" in err) == (2, True)
        code, _, err = reload("--validate-only", "--agents", str(tmp_path / "none.yaml"))
        assert (code, "No such file" in err) == (2, True)


def test_touched_sessions_are_shown(capsys):
    """With examples, and the warning that not all were read."""
    answer = pb.ReloadAgentsResponse(
        registry_version="2",
        previous_registry_version="1",
        removed_agent_ids=["vat"],
        changed_settings=["limits"],
        sessions_read=10_000,
    )
    answer.touched.add(
        agent_id="vat", active=3, interrupted=1, answering=2, example_session_ids=["chat-1"]
    )
    print_reloaded(answer, is_trial=True)
    assert capsys.readouterr().out.splitlines() == [
        "registry 2 would be in force; before: 1",
        "removed: vat",
        "settings changed: limits",
        "vat (removed): has 3 live sessions, gets 1 back, is answering in 2",
        "  such as chat-1",
        "10000 sessions read; there are more, so the counts are too low",
    ]


def test_reload_says_what_changed(capsys):
    """Agents added, removed and changed."""
    answer = pb.ReloadAgentsResponse(
        registry_version="2",
        previous_registry_version="1",
        added_agent_ids=["ada"],
        changed_agent_ids=["ben", "cleo"],
    )
    print_reloaded(answer, is_trial=True)
    assert capsys.readouterr().out.splitlines() == [
        "registry 2 would be in force; before: 1",
        "added: ada",
        "changed: ben, cleo",
    ]


def test_stickiness_is_switched(ask, run, talk, tenant):
    """For one tenant; a repeat reports that nothing changed."""
    assert "stickiness is off, it was on" in ask("stickiness", "off", "--tenant", tenant)
    assert "stickiness is off already" in ask("stickiness", "off", "--tenant", tenant)
    assert "off" in ask("stats", "--tenant", tenant).split("stickiness", 1)[1].splitlines()[0]
    answer = json.loads(ask("stickiness", "on", "--tenant", tenant, "--json"))
    assert (answer["enabled"], answer["previously_enabled"]) == (True, False)
    code, _, err = run("stickiness", "off", "--tenant", tenant, "--all-tenants")
    assert (code, "use one" in err) == (2, True)


def test_stickiness_without_argument_says_how_it_stands(ask, run, talk, tenant):
    """It prints since when, by which operator and why; the settings' values are accepted too."""
    assert "by the registry; nobody has switched it" in ask("stickiness", "--tenant", tenant)
    ask("stickiness", "Disabled", "--tenant", tenant, "--reason", "incident 7")
    said = " ".join(ask("stickiness", "--tenant", tenant).split())
    assert "stickiness is off since 20" in said
    assert "by a caller without sign-in: incident 7" in said
    listed = ask("events", "--tenant", tenant, "--kind", "stickiness_switched")
    assert "stickiness switched off incident 7" in " ".join(listed.split())
    ask("stickiness", "off", "--tenant", tenant, "--users-percent", "10")
    said = " ".join(ask("stickiness", "--tenant", tenant).split())
    assert "off for 10 % of the users alone" in said
    assert "stickiness is on, it was off" in ask("stickiness", "true", "--tenant", tenant)
    code, _, err = run("stickiness", "on", "--agent", "billing")
    assert (code, "for off alone" in err) == (2, True)


# An earlier state


def test_the_state_at_a_revision_is_shown(ask, run, target, tenant):
    """As it was then; what cannot be given together is refused before a call."""
    with Admin(target, tenant=tenant, fallback=None, timeout=30) as client:
        turn = client.route("hello", session_id="then", user_id="ana")
        client.clear_active_agent("then", scope="SESSION")
    now = ask("status", "then", "--tenant", tenant)
    assert "revision 2" in now
    assert "cancelled" in now
    then = ask("status", "then", "--at", "1", "--tenant", tenant)
    assert "revision 1" in then
    assert "running" in then
    assert turn.request_id in then
    answer = json.loads(ask("status", "then", "--at", "1", "--tenant", tenant, "--json"))
    assert int(answer["head_revision"]) == 2
    code, _, err = run("status", "then", "--at", "9", "--tenant", tenant, "--target", target)
    assert (code, "give 1 to 2, or 0 for the latest" in err) == (1, True)
    code, _, err = run("status", "then", "--at", "1", "--user", "ana")
    assert (code, "--at needs the session" in err) == (2, True)


# Approvals and tasks


def test_paused_task_is_approved_and_rejected(ask, run, target, tenant):
    """The pending request is found automatically; a repeat names it."""
    with Admin(target, tenant=tenant, fallback=None, timeout=30) as client:
        turn = client.route("a refund", session_id="pay", user_id="ana")
    out = ask(
        *("complete", "pay", turn.request_id, turn.agent_id, "--tenant", tenant),
        *("--outcome", "approval-needed", "--reason", "refund 80?"),
    )
    assert "paused" in out
    assert "paused" in ask("tasks", "pay", "--status", "paused", "--tenant", tenant)
    assert "no tasks" in ask("tasks", "pay", "--status", "failed", "--tenant", tenant)
    out = ask("approve", "pay", "--comment", "yes", "--tenant", tenant)
    assert "approved" in out
    assert "task resumed" in out
    request = out.split()[-1]
    assert "running" in ask("tasks", "pay", "--tenant", tenant)
    code, _, err = run("reject", "pay", "--tenant", tenant)
    assert (code, "no task waits for an approval" in err) == (1, True)
    ask(
        *("complete", "pay", request, turn.agent_id, "--tenant", tenant),
        *("--outcome", "approval-needed", "--reason", "refund 90?"),
    )
    answer = json.loads(ask("resume", "pay", "--decision", "reject", "--tenant", tenant, "--json"))
    assert answer["dispatch"]["resume"]["decision"] == "DECISION_REJECT"
    listed = json.loads(ask("tasks", "pay", "--tenant", tenant, "--json"))
    repeated = ask(
        *("reject", "pay", "--tenant", tenant, "--request", request),
        *("--task", listed["tasks"][0]["task_id"], "--json"),
    )
    assert json.loads(repeated) == answer


def test_what_does_not_go_together_is_refused(run):
    """Before any call, with the remedy."""
    for argv, said in (
        (("events", "--newest-first"), "needs a session"),
        (("watch", "--after", "3"), "need a session"),
        (("watch", "chat", "--kind", "moon"), '"moon" is not a kind'),
        (("stats", "--svg", "x.svg", "--json"), "use one"),
        (("stats", "--dot", "-", "--json"), "use one"),
        (("stats", "--dot", "-", "--mermaid", "-"), "give the others a file"),
        (("stats", "--since", "yesterday"), "is not a time"),
        (("sessions", "--since", "2026-99-01"), "is not a time"),
        (("stickiness", "maybe"), "maybe"),
        (("resume", "x"), "--decision"),
        (("complete", "s", "r", "a", "--outcome", "approval-needed"), "--reason"),
    ):
        code, out, err = run(*argv)
        assert (code, out) == (2, ""), argv
        assert said in err, argv


def test_failed_call_is_one_line_with_its_reason(run):
    """As for every command; as JSON for programs."""
    code, out, err = run("events", "--kind", "moon")
    assert (code, out) == (1, "")
    assert err.endswith("[INVALID_FIELD]\n")
    code, _, err = run("tasks", "nobody-here", "--json")
    assert json.loads(err)["error"]["reason"] == "UNKNOWN_SESSION"


def test_times_are_read_in_every_form():
    """Without a time zone they are UTC."""
    assert read_time("--since", "") is None
    assert read_time("--since", "2026-03-01").isoformat() == "2026-03-01T00:00:00+00:00"
    with_zone = read_time("--since", "2026-03-01T08:00+01:00")
    assert with_zone.isoformat() == "2026-03-01T08:00:00+01:00"
    ages = [read_time("--since", each) for each in ("90s", "30m", "12h", "7d", "2w")]
    assert ages == sorted(ages, reverse=True)


async def test_async_admin_does_the_same(target, talk, tenant):
    """The same with await and async for."""
    async with AsyncAdmin(target, tenant=tenant, fallback=None, timeout=30) as client:
        stats = await client.routing_stats()
        assert stats.user_messages == 3
        page = await client.list_sessions_page(owner="ana", page_size=1)
        assert [session.session_id for session in page.sessions] == ["one"]
        found = await client.list_events_page(kinds=["agent_handoff"])
        assert len(found.records) == 2
        parts = [part async for part in client.export_user("ben")]
        assert parts[0].session.owner == "ben"
        seen = []
        async with asyncio.timeout(30):
            async for message in client.watch_events(from_beginning=True):
                seen.append((message.change.session_id, message.change.revision))
                if len(seen) == 7:
                    break
        assert sorted(seen) == [*(("one", n) for n in (1, 2, 3)), ("three", 1)] + [
            ("two", n) for n in (1, 2, 3)
        ]
        assert (await client.set_stickiness(True)).enabled
        assert (await client.reload_agents(validate_only=True)).registry_version == "1"
        with pytest.raises(errors.InvalidField):
            await client.list_events_page(kinds=["moon"])


def test_watch_ends_with_ctrl_c_and_no_traceback(target, talk, tenant):
    """Ctrl-C is the normal way to end it: exit code 130, as in shells."""
    command = Path(sys.executable).parent / "agent-routing"
    process = subprocess.Popen(
        [
            str(command),
            "watch",
            "--from-beginning",
            "--json",
            "--target",
            target,
            "--tenant",
            tenant,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert json.loads(process.stdout.readline())["session_id"]
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, err) == (130, "")
