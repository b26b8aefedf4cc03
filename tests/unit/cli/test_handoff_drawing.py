"""The drawing of handoffs, and its text for Mermaid and Graphviz.

The drawing is measured as it stands: every line, circle and text of the SVG is read back, and a
geometric check looks for what runs through what.
"""

import random
import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from itertools import pairwise

import pydot
import pytest

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import agent_pb2
from routing_service.cli.handoff_drawing import draw_handoffs
from routing_service.cli.handoff_graph import AGENTS_MAX, dot_text, handoff_graph, mermaid_text
from routing_service.examples import EXAMPLES
from routing_service.registry.file import check_registry_file

SVG = "{http://www.w3.org/2000/svg}"
GRAPHS = 50


@dataclass(frozen=True)
class Box:
    """What a shape covers."""

    name: str
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other):
        """Return whether two boxes overlap by more than a touch."""
        return (
            min(self.right, other.right) - max(self.left, other.left) > 0.1
            and min(self.bottom, other.bottom) - max(self.top, other.top) > 0.1
        )


def text_box(element):
    """Return a text's box: ascenders, and the width of the widest usual sans-serif font."""
    size = float(element.get("font-size"))
    wide = sum(0.6 if ord(letter) < 0x2E80 else 1.0 for letter in element.text) * size
    x, y = float(element.get("x")), float(element.get("y"))
    left = {"start": x, "middle": x - wide / 2, "end": x - wide}[element.get("text-anchor")]
    return Box(f"text {element.text!r}", left, y - 0.75 * size, left + wide, y)


def stretches(element):
    """Yield the boxes of a path's or line's straight stretches, which are level or upright."""
    half = float(element.get("stroke-width", 1)) / 2
    if element.tag == f"{SVG}line":
        points = [(float(element.get(f"x{n}")), float(element.get(f"y{n}"))) for n in (1, 2)]
    else:
        points, x, y = [], 0.0, 0.0
        for letter, numbers in re.findall(r"([MLHVz])([-\d. ]*)", element.get("d")):
            given = [float(each) for each in numbers.split()]
            x, y = {
                "M": lambda g=given: (g[0], g[1]),
                "L": lambda g=given: (g[0], g[1]),
                "H": lambda g=given, y=y: (g[0], y),
                "V": lambda g=given, x=x: (x, g[0]),
                "z": lambda p=points: p[0],
            }[letter]()
            points.append((x, y))
    if element.get("fill") not in {None, "none"}:
        # The head of an arrow: a filled triangle.
        across, down = zip(*points, strict=True)
        yield Box("arrow head", min(across), min(down), max(across), max(down))
        return
    for (x1, y1), (x2, y2) in pairwise(points):
        assert x1 == x2 or y1 == y2, "a slanted stretch needs another check"
        yield Box(
            f"{element.tag.removeprefix(SVG)} {x1} {y1} {x2} {y2}",
            min(x1, x2) - (half if x1 == x2 else 0),
            min(y1, y2) - (half if y1 == y2 else 0),
            max(x1, x2) + (half if x1 == x2 else 0),
            max(y1, y2) + (half if y1 == y2 else 0),
        )


def mistakes(drawing):
    """Return what runs through what: arrows through agents, anything through a text."""
    root = ET.fromstring(drawing)
    canvas = Box("canvas", 0, 0, float(root.get("width")), float(root.get("height")))
    texts = [text_box(each) for each in root.iter(f"{SVG}text")]
    arrows = [box for each in root.iter(f"{SVG}path") for box in stretches(each)]
    lines = [box for each in root.iter(f"{SVG}line") for box in stretches(each)]
    nodes = []
    for each in root.iter(f"{SVG}circle"):
        x, y, radius = (float(each.get(name)) for name in ("cx", "cy", "r"))
        nodes.append(Box("agent", x - radius, y - radius, x + radius, y + radius))
    found = [(node, arrow) for node in nodes for arrow in arrows if node.meets(arrow)]
    for place, text in enumerate(texts):
        others = [*arrows, *lines, *nodes, *texts[place + 1 :]]
        found += [(text, other) for other in others if text.meets(other)]
        if not (canvas.left <= text.left and text.right <= canvas.right):
            found.append((text, canvas))
    return found


def stats_of(rows):
    """Return statistics with these handoffs: (from, to, count, refused)."""
    stats = pb.GetRoutingStatsResponse(
        handoffs_total=sum(row[2] for row in rows), refusals_total=sum(row[3] for row in rows)
    )
    for start, end, count, refused in rows:
        stats.handoffs.add(from_agent_id=start, to_agent_id=end, count=count, refused=refused)
    return stats


def cards(names):
    """Return agents by id; the first is the home agent."""
    kinds = (agent_pb2.AGENT_KIND_SUPERVISOR, agent_pb2.AGENT_KIND_SPECIALIST)
    return {
        agent_id: agent_pb2.Agent(
            agent_id=agent_id, display_name=shown, color="#0b7285", kind=kinds[min(place, 1)]
        )
        for place, (agent_id, shown) in enumerate(names.items())
    }


def random_graph(seed):
    """Return statistics and agents of a graph: sparse or full, small or at the limit."""
    rng = random.Random(seed)
    count = rng.randint(1, AGENTS_MAX + 4)
    names = {
        f"agent-{n}": rng.choice(["VAT", "Especialista en devoluciones", "客户服务中心", f"a{n}"])
        for n in range(count)
    }
    density = rng.choice([0.05, 0.2, 1.0])
    rows = [
        (start, end, rng.choice([0, 1, 7, 123_456]), rng.choice([0, 0, 3, 99_999]))
        for start in names
        for end in names
        if rng.random() < density
    ]
    return stats_of(rows), cards(names)


def example_graph(name):
    """Return statistics and agents of an example: every handoff that its registry allows."""
    registry = check_registry_file(str(EXAMPLES[name].registry_path)).registry
    ids = list(registry.agents)
    rows = [
        (start, end, place + 1, place % 3)
        for place, (start, end) in enumerate((a, b) for a in ids for b in ids if a != b)
    ]
    return stats_of(rows), cards({agent_id: f"The {agent_id} agent" for agent_id in ids})


@pytest.mark.parametrize("seed", range(GRAPHS))
def test_no_arrow_runs_through_an_agent_and_nothing_crosses_a_text(seed):
    """The numbers are what the drawing is for."""
    stats, agents = random_graph(seed)
    graph = handoff_graph(stats, agents)
    drawing = draw_handoffs(graph)
    assert mistakes(drawing) == []
    root = ET.fromstring(drawing)
    assert len(list(root.iter(f"{SVG}circle"))) == len(graph.agents) <= AGENTS_MAX
    assert len(list(root.iter(f"{SVG}path"))) == 2 * len(graph.edges)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_drawn_cleanly(name):
    """Each with all handoffs between all of its agents."""
    assert mistakes(draw_handoffs(handoff_graph(*example_graph(name)))) == []


def test_check_of_the_drawing_finds_planted_mistakes():
    """Else an empty list would mean nothing."""
    stats, agents = example_graph("tax")
    drawing = draw_handoffs(handoff_graph(stats, agents))
    through_texts = re.sub(r'(<text x="[\d.]+" y=)"[\d.]+"', r'\1"150.0"', drawing)
    assert mistakes(through_texts)
    through_agents = re.sub(r'cy="[\d.]+"', 'cy="113.0"', drawing)
    assert any("agent" in node.name for node, _ in mistakes(through_agents))


HOSTILE = {
    "home": 'a"] --> b; click a "javascript:1',
    "x --> y": "<b>&\n}",
    'q"; edge [style=invis]; "': "back\\slash #quot;",
    "end": "end",
    "%%{init: 1}%%": "%%{init: {}}%%",
}


def hostile_graph():
    """Return a graph whose names try to be syntax."""
    ids = list(HOSTILE)
    rows = [(a, b, 1, 0) for a, b in pairwise(ids)] + [(ids[0], ids[3], 0, 2)]
    return handoff_graph(stats_of(rows), cards(HOSTILE))


def test_hostile_names_stay_names():
    """In the drawing they are escaped, and a colour is a colour or the default."""
    drawing = draw_handoffs(hostile_graph())
    texts = [each.text for each in ET.fromstring(drawing).iter(f"{SVG}text")]
    assert "<b>& }" in texts
    stats = stats_of([("a", "b", 1, 0)])
    red = {"a": agent_pb2.Agent(agent_id="a", color="red; stroke:url(javascript:1)")}
    assert "javascript" not in draw_handoffs(handoff_graph(stats, red))
    assert "no handoffs" in draw_handoffs(handoff_graph(pb.GetRoutingStatsResponse(), {}))


# pydot's parser uses older names of its library's functions.
@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
@pytest.mark.parametrize("graph", ["hostile", *EXAMPLES])
def test_dot_is_read_by_pydot_with_every_agent_and_edge(graph):
    """A reader from outside the project; tests/clients/test_drawings.py has Graphviz's own."""
    made = hostile_graph() if graph == "hostile" else handoff_graph(*example_graph(graph))
    (read,) = pydot.graph_from_dot_data(dot_text(made))
    nodes = [each for each in read.get_nodes() if each.get_name() not in {"node", "edge"}]
    assert len(nodes) == len(made.agents)
    assert [each.get_label() for each in read.get_edges()] == [f'"{e.label}"' for e in made.edges]
    assert all(
        each.get_source() in {node.get_name() for node in nodes} for each in read.get_edges()
    )


def test_mermaid_numbers_its_nodes_and_writes_signs_as_numbers():
    """tests/clients/test_drawings.py has the same text read by Mermaid and by Graphviz."""
    text = mermaid_text(hostile_graph())
    lines = text.splitlines()
    assert lines[1] == "flowchart LR"
    assert all(
        re.fullmatch(r'  a\d+(\(\[|\[)"[^"<>&{}%]*"(\]\)|\])', x) for x in lines if '["' in x
    )
    assert re.search(r'a\d+ -\.->\|"2 refused"\| a\d+', text)
