"""What a user installs: one version, every file, bounds that the tested versions lie within."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import agent_routing
import routing_service

ROOT = Path(__file__).parents[2]
SERVICE = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
OWNERS = packages_distributions()
CONSTRAINTS = "scripts/requirements/constraints.txt"
# What is not installed beside the tests cannot say which distribution it comes from.
FRAMEWORKS = {
    "a2a": {"a2a-sdk"},
    "httpx": {"httpx"},
    "agent_framework": {"agent-framework-core"},
    "agent_framework.orchestrations": {"agent-framework-orchestrations"},
    "agents": {"openai-agents"},
    "google.adk": {"google-adk"},
    "google.genai": {"google-adk"},
    "langchain": {"langchain"},
    "langchain_core": {"langchain"},
    "langgraph": {"langgraph"},
    "pydantic_ai": {"pydantic-ai-slim"},
}
CLIENT = tomllib.loads((ROOT / "clients/python/pyproject.toml").read_text("utf-8"))
TOPICS = tomllib.loads((ROOT / "topics/pyproject.toml").read_text("utf-8"))
OUR_OWN = {"agent-routing-client", "agent-routing-service", "agent-routing-topics"}


def required_by(project):
    """What an installation with all its extras asks for."""
    extras = project["project"].get("optional-dependencies", {}).values()
    return [*project["project"]["dependencies"], *(text for extra in extras for text in extra)]


def direct_requirements():
    """Each requirement that we state, but for our own distributions."""
    stated = [
        *SERVICE["build-system"]["requires"],
        *required_by(SERVICE),
        *SERVICE["dependency-groups"]["dev"],
        *required_by(CLIENT),
        *required_by(TOPICS),
    ]
    return [
        requirement for requirement in map(Requirement, stated) if requirement.name not in OUR_OWN
    ]


def pinned_versions():
    """The constraints, by canonical name; agent frameworks have environments of their own."""
    files = [*(ROOT / "scripts/requirements/integrations").glob("*.txt"), ROOT / CONSTRAINTS]
    lines = [line for file in files for line in file.read_text("utf-8").splitlines()]
    pins = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pins}


def test_the_version_is_the_same_everywhere():
    """Both distributions, the clients and the images are released together, under one version."""
    checked = subprocess.run(
        [sys.executable, "scripts/set_version.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout) == (0, "")
    assert agent_routing.__version__ == routing_service.__version__


@pytest.mark.parametrize("requirement", direct_requirements(), ids=str)
def test_bounds_hold_the_version_that_is_tested(requirement):
    """A bound that shuts out the tested version would fail at a user's, not here."""
    version = pinned_versions().get(canonicalize_name(requirement.name))
    assert version is not None, "not pinned: run make constraints"
    assert requirement.specifier.contains(version)


@pytest.mark.parametrize(
    "name", sorted({requirement.name for requirement in direct_requirements()})
)
def test_every_dependency_is_explained(name):
    """Reviewers of a new dependency can read the reasons for the others."""
    page = (ROOT / "docs/development/dependencies.md").read_text("utf-8")
    table = re.findall(r"^\| (.+?) \|", page, re.MULTILINE)
    assert name in {word for cell in table for word in cell.split(", ")}


def imported_modules(package):
    """The modules of others that the package's files import, dotted."""
    names = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
    ours = {package.name, *sys.stdlib_module_names}
    return {name for name in names if name.split(".")[0] not in ours}


def distributions_of(module):
    """The distributions that a module may come from."""
    for name, distributions in FRAMEWORKS.items():
        if f"{module}.".startswith(f"{name}."):
            return distributions
    if module.startswith("google."):  # A namespace that several distributions share.
        return {"googleapis-common-protos" if module.startswith("google.rpc.") else "protobuf"}
    if module.startswith("agent_routing."):  # An editable installation does not say what it has.
        return {"agent-routing-client"}
    if module.startswith("routing_service."):
        return {"agent-routing-service"}
    return {canonicalize_name(name) for name in OWNERS[module.split(".")[0]]}


@pytest.mark.parametrize(
    ("project", "package"),
    [
        (SERVICE, "routing_service"),
        (CLIENT, "clients/python/agent_routing"),
        (TOPICS, "topics/agent_routing_topics"),
    ],
    ids=["service", "client", "topics"],
)
def test_what_a_package_imports_it_requires(project, package):
    """What another package happens to bring along may be gone with that package's next version."""
    stated = (Requirement(text).name for text in required_by(project))
    required = {canonicalize_name(name) for name in stated}
    imported = imported_modules(ROOT / package)
    assert imported
    assert not {module for module in imported if not distributions_of(module) & required}


def test_all_distributions_carry_the_licence():
    """A build includes only files next to it, so the others have copies."""
    licence = (ROOT / "LICENSE").read_bytes()
    assert (ROOT / "topics/LICENSE").read_bytes() == licence
    assert (ROOT / "clients/python/LICENSE").read_bytes() == licence


@pytest.mark.parametrize(
    ("folder", "package"),
    [(".", "routing_service"), ("topics", "agent_routing_topics")],
    ids=["service", "topics"],
)
def test_the_wheel_ships_every_file_of_the_package(tmp_path, folder, package):
    """Texts, example registries, the schema, weights are data files: easily left behind."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", tmp_path],
        cwd=ROOT / folder,
        check=True,
        capture_output=True,
    )
    [wheel] = tmp_path.glob("agent_routing_*.whl")
    there = {
        path.relative_to(ROOT / folder).as_posix()
        for path in (ROOT / folder / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    if package == "routing_service":
        pages = (path for path in (ROOT / "docs").rglob("*") if path.is_file())
        there |= {f"{package}/{path.relative_to(ROOT).as_posix()}" for path in pages}
    shipped = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert shipped == there
    if package == "routing_service":
        zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
        read = subprocess.run(
            [
                sys.executable,
                "-c",
                "from routing_service.cli import main; main()",
                "docs",
                "install",
            ],
            cwd=tmp_path,
            env={"PYTHONPATH": str(tmp_path / "installed")},
            check=True,
            capture_output=True,
            text=True,
        )
        assert read.stdout.startswith("# Install it\n")


def test_no_file_of_weights_is_too_large_to_be_checked_in():
    """16 MB each, and 40 MB together."""
    weights = ROOT / "topics/agent_routing_topics/sentence_vectors/weights"
    sizes = [path.stat().st_size for path in weights.iterdir()]
    assert max(sizes) <= 16_000_000
    assert sum(sizes) <= 40_000_000
