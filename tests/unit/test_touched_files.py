"""The map's table tells the truth: a pretend addition needs the files that it names.

In a copy of the tree the test adds an error reason, a handoff rule, a field of Route and a metric
by hand, lets the generators run, and runs the tests that compare such things. What refuses is
named: the lists that tests keep on purpose, so that a change of the contract is seen in review.
"""

import filecmp
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from agent_routing.v1 import routing_service_pb2 as pb

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs/explanation/architecture.md").read_text("utf-8")
COPIED = (
    "routing_service",
    "clients",
    "protos",
    "scripts",
    "third_party",
    "docs",
    "deploy",
    "tests",
)
FILES = ("pyproject.toml", "buf.yaml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md")
LEFT = shutil.ignore_patterns(
    "__pycache__", "node_modules", "target", "dist", "build", "var", "torture", "compatibility"
)
PROTO = "agent_routing/v1/error_reason.proto"
PYTHON_MESSAGES = "clients/python/agent_routing/v1/error_reason_pb2.py"
ROUTING_PROTO = "agent_routing/v1/routing_service.proto"
ROUTING_MESSAGES = "clients/python/agent_routing/v1/routing_service_pb2.py"
CATALOGUES = tuple(f"routing_service/texts/{locale}.ftl" for locale in ("en", "es", "pt"))

REASON = """
  // The moon is in the wrong phase.
  //
  // Metadata: phase.
  // Example: "the moon is full; repeat at new moon".
  ERROR_REASON_WRONG_MOON = 99 [(error_reason) = {
    code: FAILED_PRECONDITION
    remedy: "Wait for the new moon."
  }];
}
"""


class Copy:
    """A copy of the tree in which something is added."""

    def __init__(self, folder):
        self.root = folder
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name, ignore=LEFT)
        for name in FILES:
            shutil.copy(ROOT / name, folder / name)
        self.edited = set()

    def edit(self, name, before, after):
        """Put text in the place of other text that the file has."""
        path = self.root / name
        text = path.read_text("utf-8")
        assert before in text, (name, before)
        path.write_text(text.replace(before, after, 1), "utf-8")
        if not name.startswith("tests/"):
            self.edited.add(name)

    def append(self, name, text):
        """Add lines at a file's end."""
        path = self.root / name
        path.write_text(path.read_text("utf-8").rstrip("\n") + "\n" + text, "utf-8")
        self.edited.add(name)

    def generate(self, proto=PROTO, messages=PYTHON_MESSAGES):
        """Do what ``make protos`` does for a file, with a compiler that works offline."""
        buf = Path(sys.executable).parent / "buf"
        built = self.run(buf, "build", "-o", "-#format=binpb", "--exclude-source-info")
        assert built.returncode == 0, built.stderr
        files = descriptor_pb2.FileDescriptorSet.FromString(built.stdout).file
        [data] = [file.SerializeToString() for file in files if file.name == proto]
        path = self.root / messages
        code, count = re.subn(
            r"AddSerializedFile\(b(['\"]).*\1\)",
            lambda _: f"AddSerializedFile({data!r})",
            path.read_text("utf-8"),
            count=1,
        )
        assert count == 1
        path.write_text(code, "utf-8")
        for script in ("make_errors.py", "make_sync.py"):
            self.make(script)

    def make(self, script, *options):
        """Run a generator of the project."""
        made = self.run(sys.executable, f"scripts/{script}", *options)
        assert made.returncode == 0, made.stdout + made.stderr

    def refusals(self, *tests):
        """Run tests; return the names of those that refuse."""
        ran = self.run(
            sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *tests
        )
        said = ran.stdout.decode()
        assert ran.returncode in {0, 1}, said + ran.stderr.decode()
        assert re.search(r"\d+ passed", said), said
        return set(re.findall(r"^FAILED \S+::(\w+)", said, re.MULTILINE))

    def changed(self):
        """Return the files that are not as in the tree."""
        return {
            str(path.relative_to(self.root))
            for name in COPIED
            for path in (self.root / name).rglob("*")
            if path.is_file()
            and "__pycache__" not in path.parts
            and (source := ROOT / path.relative_to(self.root)).exists()
            and not filecmp.cmp(path, source, shallow=False)
        }

    def run(self, *command):
        """Run a command on the copy."""
        paths = os.pathsep.join((str(self.root), str(self.root / "clients/python")))
        return subprocess.run(
            command,
            cwd=self.root,
            env=os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            check=False,
        )


@pytest.fixture
def copy(tmp_path):
    """Give a copy of the tree."""
    return Copy(tmp_path)


def row(what):
    """Return the hand-written files that the table counts for an addition."""
    [said] = re.findall(rf"^\| {what} \|.*\| (\d+) \|$", TABLE, re.MULTILINE)
    return int(said)


@pytest.mark.timeout(240)
def test_error_reason_touches_what_the_table_says(copy):
    """Its value, its name in core, and the place that raises it: all else is generated."""
    proto = f"protos/{PROTO}"
    text = (copy.root / proto).read_text("utf-8").rstrip()
    copy.edit(proto, text, text.removesuffix("}").rstrip() + "\n" + REASON.rstrip())
    core = "routing_service/core/errors.py"
    copy.edit(
        core,
        "class Reason(enum.Enum):",
        "class Reason(enum.Enum):\n    WRONG_MOON = 'WRONG_MOON'\n",
    )
    raised = "routing_service/core/route_message.py"
    copy.append(
        raised,
        "\n\ndef _check_moon() -> None:\n"
        '    raise RoutingError(Reason.WRONG_MOON, "the moon is full; repeat at new moon")\n',
    )
    copy.generate()
    assert copy.changed() - copy.edited == {
        PYTHON_MESSAGES,
        "clients/go/reasons.go",
        "clients/java/src/main/java/agentrouting/RoutingException.java",
        "clients/python/agent_routing/errors.py",
        "clients/typescript/src/errors.ts",
    }
    assert len(copy.edited) == row("an error reason")
    assert (
        copy.refusals("tests/unit/test_contract.py", "tests/clients/test_python_client_errors.py")
        == set()
    )


@pytest.mark.timeout(240)
def test_handoff_rule_touches_what_the_table_says(copy):
    """Its predicate with its row, its name in the contract, and a text in each catalogue."""
    rules = "routing_service/core/handoff_rules.py"
    copy.edit(
        rules,
        "HANDOFF_RULES: tuple[HandoffRule, ...] = (",
        'def _moon(attempt: Attempt) -> str:\n    return ""\n\n\n'
        'HANDOFF_RULES: tuple[HandoffRule, ...] = (\n    HandoffRule("moon", _moon),',
    )
    proto = f"protos/{PROTO}"
    copy.edit(proto, "  // enabled: ", "  // moon: the moon is new.\n  // enabled: ")
    for catalogue in CATALOGUES:
        copy.append(catalogue, "rule-moon = The moon is full.\n")
    copy.generate()
    assert len(copy.edited) == row("a handoff rule")
    assert copy.refusals(
        "tests/unit/test_contract.py",
        "tests/unit/core/test_handoff_rules.py",
        "tests/unit/texts/test_replies.py",
    ) == {"test_rules_are_the_ones_that_the_contract_names"}


@pytest.mark.timeout(240)
def test_route_field_touches_what_the_table_says(copy):
    """The contract, the command, its mapping, the decision, and the asyncio Python client."""
    copy.edit(
        f"protos/{ROUTING_PROTO}",
        "  Delivery deliver = 18;\n",
        "  Delivery deliver = 18;\n\n"
        "  // The phase of the moon, at most 64 characters. Default: it does not matter.\n"
        f"  string moon = {max(pb.RouteRequest.DESCRIPTOR.fields_by_number) + 1};\n",
    )
    copy.edit(
        "routing_service/core/commands.py",
        '    quick_reply_id: str = ""\n',
        '    quick_reply_id: str = ""\n    moon: str = ""\n',
    )
    copy.edit(
        "routing_service/core/route_message.py",
        "    _refuse_known_request(draft, command, facts)\n",
        '    if command.moon == "full":\n'
        '        raise invalid_field("moon", "is full; repeat at new moon")\n'
        "    _refuse_known_request(draft, command, facts)\n",
    )
    mapped = "routing_service/rpc/routing/route.py"
    copy.edit(mapped, '        "quick_reply_id",\n', '        "quick_reply_id",\n        "moon",\n')
    copy.edit(
        mapped,
        "        quick_reply_id=quick_reply_id,\n",
        "        quick_reply_id=quick_reply_id,\n        moon=request.moon,\n",
    )
    client = "clients/python/agent_routing/routing_calls_aio.py"
    copy.edit(
        client,
        "        explain_topic: bool = False,\n",
        '        explain_topic: bool = False,\n        moon: str = "",\n',
    )
    copy.edit(
        client,
        "            explain_topic=explain_topic,\n",
        "            explain_topic=explain_topic,\n            moon=moon,\n",
    )
    copy.generate(ROUTING_PROTO, ROUTING_MESSAGES)
    assert copy.changed() - copy.edited == {
        ROUTING_MESSAGES,
        "clients/python/agent_routing/routing_calls.py",
    }
    assert len(copy.edited) == row("a Route field")
    assert copy.refusals(
        "tests/unit/test_contract.py",
        "tests/unit/rpc/test_request_fingerprints.py",
        "tests/clients/test_python_client_requests.py",
    ) == {"test_every_field_of_a_route_arrives"}


@pytest.mark.timeout(240)
def test_metric_touches_what_the_table_says(copy):
    """A field, the place that fills it in, a row of the table, a line of docs."""
    copy.edit(
        "routing_service/telemetry/call_record.py",
        "    replayed: CountedFlag = False",
        '    replayed: CountedFlag = False\n    moon: CountedText = ""',
    )
    copy.edit(
        "routing_service/telemetry/metrics.py",
        "COUNTERS: Final = (",
        'COUNTERS: Final = (\n    CallCounter("moons_total", "Calls by moon.", {"moon": "moon"}, '
        "lambda call: bool(call.moon)),",
    )
    copy.append("routing_service/rpc/call_outcome.py", "\n# record.moon is set here.\n")
    line = "| `agent_routing_calls_total`"
    new_line = "| `agent_routing_moons_total` | counter | moon | calls by moon |"
    copy.edit("docs/telemetry.md", line, f"{new_line}\n{line}")
    copy.make("make_dashboard.py", "--write")
    # The series has a sample only if a call of the test has it.
    copy.edit("tests/deploy/test_dashboards.py", 'reason="sticky",', 'reason="sticky", moon="new",')
    assert copy.changed() - copy.edited - {"tests/deploy/test_dashboards.py"} == {
        "deploy/grafana/agent-routing.json"
    }
    assert len(copy.edited) == row("a metric")
    assert copy.refusals(
        "tests/unit/telemetry/test_call_log.py", "tests/deploy/test_dashboards.py"
    ) == {
        # They list the counters and the counted fields.
        "test_calls_are_counted_by_what_became_of_them",
        "test_only_closed_lists_are_counted",
    }
