"""A server that is killed in the middle of a replay and started again decides as if it had not."""

from __future__ import annotations

import json
import random
import time

import pytest

from agent_routing import Client
from agent_routing.errors import UnknownSession
from routing_service.replay.dialogue_files import read_dialogues
from routing_service.replay.play import session_id_for

SEED = 20
KILLS_MIN = 10
KILLS_MAX = 40
PATIENCE_S = 60.0


def registry_for(corpora, replay_folder, begin_replay, name):
    """Write the registry that a corpus is replayed on."""
    registry = replay_folder / "registry.yaml"
    agents = ("--corpus", name, "--corpus-agents", corpora.agents)
    writing = begin_replay([corpora.file(name)], *agents, "--write-registry", registry)
    _, err = writing.communicate()
    assert writing.returncode == 0, err
    return registry


def sessions_of(path, run_label, numbers):
    """Return the sessions that some of a file's dialogues have in a run."""
    dialogues = {}
    for number, found in enumerate(read_dialogues([str(path)])):
        if number > max(numbers):
            break
        dialogues[number] = session_id_for(run_label, found.dialogue)
    return [dialogues[number] for number in numbers]


def wait_for_session(target, session_id, process):
    """Wait until a replay has come as far as a session."""
    deadline = time.monotonic() + PATIENCE_S
    with Client(target) as client:
        while True:
            try:
                client.status(session_id)
            except UnknownSession:
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline, f"{session_id} was never begun"
                time.sleep(0.01)
            else:
                return


def figures_of(process):
    """Return what a replay that has been begun prints at its end."""
    out, err = process.communicate()
    assert process.returncode == 0, err
    return json.loads(out)


@pytest.mark.dialogues
@pytest.mark.timeout(300)
def test_killed_server_gives_the_same_decisions(corpora, serve, replay, begin_replay, tmp_path):
    """Nothing acknowledged is lost, and what was repeated is answered as the first time."""
    path = corpora.file("star_train")
    registry = registry_for(corpora, tmp_path, begin_replay, "star_train")
    options = ("--limit", 24, "--run-label", "kill", "--concurrency", 8)
    undisturbed = replay([path], "--target", serve(registry).target, *options)
    served = serve(registry)
    process = begin_replay([path], "--target", served.target, *options)
    for session_id in sessions_of(path, "kill", (8, 16)):
        wait_for_session(served.target, session_id, process)
        served.kill()
        served.start()
    found = figures_of(process)
    assert (found["errors"], found["dialogues"]) == (0, 24)
    assert found["decisions_digest"] == undisturbed["decisions_digest"]
    # Nothing was done twice either: the same run again is answered from what is stored.
    again = replay([path], "--target", served.target, *options)
    assert again["decisions_digest"] == undisturbed["decisions_digest"]


@pytest.mark.dialogues
@pytest.mark.timeout(300)
def test_killed_replay_is_taken_up_by_its_label(corpora, serve, replay, begin_replay, tmp_path):
    """The replaying process may be killed as well as the server."""
    path = corpora.file("star_train")
    registry = registry_for(corpora, tmp_path, begin_replay, "star_train")
    options = ("--limit", 24, "--run-label", "cut", "--concurrency", 8)
    undisturbed = replay([path], "--target", serve(registry).target, *options)
    served = serve(registry)
    process = begin_replay([path], "--target", served.target, *options)
    (session_id,) = sessions_of(path, "cut", (12,))
    wait_for_session(served.target, session_id, process)
    process.kill()
    process.wait()
    found = replay([path], "--target", served.target, *options)
    assert found["errors"] == 0
    assert found["decisions_digest"] == undisturbed["decisions_digest"]


@pytest.mark.dialogues
@pytest.mark.torture
def test_server_killed_again_and_again_gives_the_same_decisions(
    corpora, serve, replay, begin_replay, tmp_path
):
    """Kills at random moments of a whole corpus."""
    chance = random.Random(SEED)
    path = corpora.file("star_train")
    registry = registry_for(corpora, tmp_path, begin_replay, "star_train")
    undisturbed = replay([path], "--target", serve(registry).target, "--run-label", "kills")
    served = serve(registry)
    process = begin_replay([path], "--target", served.target, "--run-label", "kills")
    (session_id,) = sessions_of(path, "kills", (0,))
    wait_for_session(served.target, session_id, process)
    kills = 0
    while process.poll() is None and kills < KILLS_MAX:
        time.sleep(chance.uniform(0.05, 1.5))
        served.kill()
        served.start()
        kills += 1
    found = figures_of(process)
    assert kills >= KILLS_MIN, f"only {kills} kills hit the run (seed {SEED})"
    assert found["errors"] == 0
    assert found["decisions_digest"] == undisturbed["decisions_digest"], f"seed {SEED}"
