"""``agent-routing init``: what it writes passes the check, is served, and answers."""

import itertools
import os
import subprocess
import sys

import pytest
from ruamel.yaml import YAML

from routing_service import __version__
from routing_service.cli.embedded_server import server_in_thread
from routing_service.cli.starter import DELIVERIES, STORES
from routing_service.registry.file import check_registry_file


def test_what_it_writes_is_served_and_answers(run, tmp_path):
    """Without a change: the check passes, the server serves it, the program talks to it."""
    folder = tmp_path / "my-chat"
    code, out, err = run("init", str(folder), "--agents", "billing,tech-support")
    assert (code, err) == (0, "")
    assert "good, version 1, 3 agents, supervisor front_desk" in out
    assert f"cd {folder}" in out
    with server_in_thread(folder / "agents.yaml", "memory:") as address:
        done = subprocess.run(
            [
                *(sys.executable, "agents.py", "hello", "a tech support question"),
                *("What is due?", "Tuesday", "thanks", "/status"),
            ],
            cwd=folder,
            env=os.environ | {"AGENT_ROUTING_TARGET": address},
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
    assert done.stderr == ""
    assert done.stdout.splitlines()[:6] == [
        "front_desk> Hello! I can bring in: billing, tech-support.",
        "front_desk> One moment.",
        "tech-support> Tech support: I have noted that.",
        "tech-support> Tech support: tell me more, please.",
        "tech-support> Tech support: I have noted that.",
        "tech-support> You are welcome.",
    ]
    assert "Front desk" in done.stdout.splitlines()[6]


CONVERSATION = ("hello", "a tech support question", "What is due?", "Tuesday", "thanks", "/status")


def program(folder, name, address, *arguments):
    """Return how to start a program that was written, against a server."""
    return {
        "args": [sys.executable, name, *arguments],
        "cwd": folder,
        "env": os.environ | {"AGENT_ROUTING_TARGET": address},
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }


def test_a_worker_that_it_writes_answers_the_same(run, tmp_path):
    """Three processes: the server, the worker, and the terminal that only asks."""
    code, out, err = run(
        *("init", str(tmp_path), "--agents", "billing,tech-support", "--delivery", "inbox")
    )
    assert (code, err) == (0, "")
    assert "good, version 1, 3 agents, supervisor front_desk" in out
    assert "in three terminals" in out
    assert "python worker.py\n  python chat.py" in out
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "agents.yaml",
        "chat.py",
        "compose.yaml",
        "worker.py",
    ]
    with (
        server_in_thread(tmp_path / "agents.yaml", "memory:") as address,
        subprocess.Popen(**program(tmp_path, "worker.py", address)) as worker,
    ):
        try:
            done = subprocess.run(
                **program(tmp_path, "chat.py", address, *CONVERSATION), timeout=100, check=False
            )
        finally:
            worker.terminate()
            worker.communicate(timeout=50)
    assert done.stderr == ""
    assert done.stdout.splitlines()[:6] == [
        "front_desk> Hello! I can bring in: billing, tech-support.",
        "front_desk> One moment.",
        "tech-support> Tech support: I have noted that.",
        "tech-support> Tech support: tell me more, please.",
        "tech-support> Tech support: I have noted that.",
        "tech-support> You are welcome.",
    ]
    assert "Front desk" in done.stdout.splitlines()[6]
    assert worker.returncode == 0


def test_its_terminal_says_that_no_worker_runs(run, tmp_path):
    """It waits for a while, then one line."""
    assert run("init", str(tmp_path), "--delivery", "inbox")[0] == 0
    chat = tmp_path / "chat.py"
    chat.write_text(chat.read_text("utf-8").replace("WAIT_S = 60", "WAIT_S = 1"), "utf-8")
    with server_in_thread(tmp_path / "agents.yaml", "memory:") as address:
        done = subprocess.run(
            **program(tmp_path, "chat.py", address, "hello"), timeout=50, check=False
        )
    assert (done.returncode, done.stderr) == (
        1,
        "error: no answer in 1 s; is worker.py running?\n",
    )


def test_its_program_says_in_one_line_that_no_server_is_there(run, tmp_path):
    """The first mistake of everyone who follows the next steps in the wrong order."""
    assert run("init", str(tmp_path))[0] == 0
    done = subprocess.run(
        [sys.executable, "agents.py", "hello"],
        cwd=tmp_path,
        env=os.environ | {"AGENT_ROUTING_TARGET": "127.0.0.1:1"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith('error: Route: "127.0.0.1:1" cannot be reached')
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "ids",
    [
        "no,yes,on",
        "1,1.0,0x1",
        "a-b,a_b,a.b",
        "class,def,print",
        "main,Client,talk",
        "@x:y=z;+,a@b",
        "x" * 128,
        "ID",
    ],
)
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_every_id_that_an_agent_may_have_gives_files_that_work(run, tmp_path, ids, delivery):
    """Ids that YAML, Python or each other could take for something else."""
    code, _, err = run(
        *("init", str(tmp_path), "--agents", ids, "--languages", "en,no,pt-BR"),
        *("--delivery", delivery),
    )
    assert code == 0, err
    checked = check_registry_file(tmp_path / "agents.yaml").registry
    assert {"front_desk", *ids.split(",")} == {agent.agent_id for agent in checked.agents.values()}
    has_inbox = {agent.has_inbox for agent in checked.agents.values()}
    assert has_inbox == {delivery == "inbox"}
    if delivery == "inbox":
        names = {"__name__": "worker"}
        exec((tmp_path / "worker.py").read_text("utf-8"), names)
        assert set(names["worker"]._functions) == {"front_desk", *ids.split(",")}
        return
    compile((tmp_path / "agents.py").read_text("utf-8"), "agents.py", "exec")
    names = {"__name__": "agents", "sys": sys}
    source = (tmp_path / "agents.py").read_text("utf-8").partition("\nwith Client(")[0]
    exec(source, names)
    assert set(names["AGENTS"]) == {"front_desk", *ids.split(",")}
    assert len(set(names["AGENTS"].values())) == len(names["AGENTS"])


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_the_compose_file_serves_the_registry_from_the_chosen_store(run, tmp_path, store, delivery):
    """One published port, on this machine alone; everything that is depended on is there."""
    assert run("init", str(tmp_path), "--store", store, "--delivery", delivery)[0] == 0
    compose = YAML(typ="safe").load((tmp_path / "compose.yaml").read_text("utf-8"))
    server = compose["services"]["server"]
    assert server["image"] == f"agent-routing:{__version__}"
    url = server["environment"]["AGENT_ROUTING_STORE"]
    assert url.startswith({"memory": "memory:"}.get(store, f"{store}:"))
    assert server["ports"] == ["127.0.0.1:50051:50051"]
    depended = {
        name for each in compose["services"].values() for name in each.get("depends_on", {})
    }
    assert depended <= compose["services"].keys()
    mounted = {
        volume.split(":")[0]
        for each in compose["services"].values()
        for volume in each.get("volumes", [])
    }
    own = {"./agents.yaml"} | ({"./worker.py"} if delivery == "inbox" else set())
    assert own <= mounted
    assert mounted - own == set(compose.get("volumes", {}))
    assert ("worker" in compose["services"]) == (delivery == "inbox")
    published = {name for name, each in compose["services"].items() if "ports" in each}
    assert published == {"server"}
    kept = {"sqlite": {"server"}, "postgres": {"postgres"}, "redis": {"redis"}, "memory": set()}
    assert kept[store] == {
        name
        for name, each in compose["services"].items()
        if any(volume.startswith("sessions:") for volume in each.get("volumes", []))
    }


def test_nothing_is_overwritten_unless_told(run, tmp_path):
    """A second run must not cost the work of the first day."""
    assert run("init", str(tmp_path))[0] == 0
    (tmp_path / "agents.py").write_text("mine", "utf-8")
    code, _, err = run("init", str(tmp_path), "--agents", "other")
    assert code == 1
    assert "there already; name another folder, or give --force" in err
    assert (tmp_path / "agents.py").read_text("utf-8") == "mine"
    assert run("init", str(tmp_path), "--agents", "other", "--force")[0] == 0
    assert "other" in (tmp_path / "agents.py").read_text("utf-8")


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--agents", "a b"], '"a b" is not an agent id'),
        (["--agents", "a,,b"], "has an empty part"),
        (["--agents", "a,a"], "an id of its own"),
        (["--agents", "front_desk"], "an id of its own"),
        (["--agents", ",".join(f"a{n}" for n in range(21))], "21 agents are too many"),
        (["--languages", "english!"], "is not a language tag"),
        (["--languages", "en,EN"], "a language is named twice"),
        (["--delivery", "post"], "deliveries: caller, inbox"),
        (["--store", "mongo"], "stores: sqlite, postgres, redis, memory"),
    ],
)
def test_a_wrong_option_is_refused_and_nothing_is_written(run, tmp_path, argv, complaint):
    """Exit code 2, with what to do."""
    code, out, err = run("init", str(tmp_path / "new"), *argv)
    assert (code, out) == (2, "")
    assert complaint in " ".join(err.split())
    assert not (tmp_path / "new").exists()


def test_a_person_at_a_terminal_is_asked(run, tmp_path, monkeypatch):
    """For what no flag says."""
    answers = itertools.chain(["sales, returns", "es", "redis", "inbox"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.prompt", lambda *_, **__: next(answers))
    assert run("init", str(tmp_path))[0] == 0
    registry = check_registry_file(tmp_path / "agents.yaml").registry
    assert set(registry.agents) == {"front_desk", "sales", "returns"}
    assert registry.default_locale == "es"
    assert (tmp_path / "worker.py").exists()
    assert "redis://redis:6379/0" in (tmp_path / "compose.yaml").read_text("utf-8")
