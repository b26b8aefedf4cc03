"""The packaged automation runs what a developer runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests import toolchains

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))


def commands(name):
    """The commands of a workflow's only job."""
    workflow = YAML(typ="safe").load((ROOT / ".github/workflows" / name).read_text("utf-8"))
    (job,) = workflow["jobs"].values()
    assert job["timeout-minutes"] <= 90
    assert workflow["permissions"] == {"contents": "read"}
    return [step["run"] for step in job["steps"] if "run" in step]


def test_every_change_runs_the_one_script():
    """A check that the automation alone has would be found too late."""
    assert commands("ci.yaml") == [".ci/run"]


def test_a_tag_runs_scripts_and_targets_that_are_there():
    """In the order of docs/development/releasing.md, and it verifies what it built."""
    run = commands("release.yaml")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for command in run:
        for target in re.findall(r"^make (\S+)", command):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
        for script in re.findall(r"scripts/[\w.]+", command):
            assert (ROOT / script).is_file(), script
    assert run.index("make release") < run.index(
        ".venv/bin/python scripts/release.py --verify dist"
    )


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_its_form_is_that_of_github(path):
    """By the schema that GitHub's own editors use."""
    checker = Path(sys.executable).with_name("check-jsonschema")
    done = subprocess.run(
        [checker, "--builtin-schema", "vendor.github-workflows", path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_its_expressions_and_actions_are_used_as_they_are_meant():
    """Actionlint also reads what schemas do not: expressions, inputs of actions, shell."""
    program = toolchains.require("actionlint").programs["actionlint"]
    done = subprocess.run([program, *WORKFLOWS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
