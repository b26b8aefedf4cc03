"""The text of the handoffs' graph, read by Mermaid and by Graphviz themselves.

Node runs both: Graphviz as WebAssembly. tests/unit/cli/test_handoff_drawing.py has the graphs.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from routing_service.cli.handoff_graph import (
    MERMAID_EDGES_MAX,
    dot_text,
    handoff_graph,
    mermaid_text,
)
from routing_service.examples import EXAMPLES
from tests import toolchains
from tests.unit.cli.test_handoff_drawing import example_graph, hostile_graph, random_graph

ROOT = Path(__file__).resolve().parents[2]
READER = Path(__file__).parent / "drawings"
PACKAGES = ROOT / "build" / "drawings"

# The first run installs packages.
pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def read():
    """Return what Mermaid and Graphviz read in graphs."""
    node = toolchains.require("node")
    PACKAGES.mkdir(parents=True, exist_ok=True)
    for file in READER.iterdir():
        shutil.copy(file, PACKAGES)

    def run(*command, given=""):
        done = subprocess.run(
            command,
            cwd=PACKAGES,
            env=node.environ(NO_COLOR="1"),
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=500,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("npm", "ci", "--no-audit", "--no-fund")

    def read_graphs(graphs):
        texts = {"mermaid": [*map(mermaid_text, graphs)], "dot": [*map(dot_text, graphs)]}
        return json.loads(run("node", "read.mjs", given=json.dumps(texts)))

    return read_graphs


def shown(label):
    """Return a label as it is displayed: Mermaid keeps numbered signs, Graphviz its escapes."""
    label = re.sub(r"ﬂ°°(\d+)¶ß", lambda found: chr(int(found[1])), label)
    return label.replace("\\\\", "\\")


def test_both_read_every_agent_name_and_number(read):
    """Of every example, of graphs of random size, and where names try to be syntax."""
    graphs = [
        hostile_graph(),
        *(handoff_graph(*example_graph(name)) for name in EXAMPLES),
        *(handoff_graph(*random_graph(seed)) for seed in range(10)),
    ]
    # At least one is above Mermaid's own limit.
    assert max(len(graph.edges) for graph in graphs) > MERMAID_EDGES_MAX
    found = read(graphs)
    for kind in ("mermaid", "dot"):
        for graph, made in zip(graphs, found[kind], strict=True):
            names = {agent.agent_id: agent.shown for agent in graph.agents}
            labels = {node: shown(label) for node, label in made["nodes"].items()}
            assert sorted(labels.values()) == sorted(names.values()), kind
            edges = [(labels[start], labels[end], said) for start, end, said in made["edges"]]
            expected = [(names[e.start], names[e.end], e.label) for e in graph.edges]
            if kind == "mermaid":
                expected = expected[:MERMAID_EDGES_MAX]
            assert sorted(edges) == sorted(expected), kind
