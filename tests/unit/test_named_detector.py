"""Detectors that installed packages offer, by name."""

from __future__ import annotations

import pytest

from routing_service.topics.named_detector import DetectorUnavailable, load_named

MODULE = """
class Model:
    version = "offered-1"

    def for_registry(self, registry):
        raise NotImplementedError

nothing = object
"""
METADATA = "Metadata-Version: 2.1\nName: offered-detector\nVersion: 1\n"
ENTRY_POINTS = """[agent_routing.topic_detectors]
offered = offered_detector:Model
gone = offered_detector:Gone
"""


@pytest.fixture
def installed(tmp_path, monkeypatch) -> None:
    """A package that offers detectors."""
    (tmp_path / "offered_detector.py").write_text(MODULE, "utf-8")
    info = tmp_path / "offered_detector-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA, "utf-8")
    (info / "entry_points.txt").write_text(ENTRY_POINTS, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["offered", "offered_detector:Model"])
def test_installed_detector_is_found_by_either_name(name):
    """By the entry point that its package declares, or by where it stands."""
    assert load_named(name).version == "offered-1"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("other", "is not installed; installed ones: gone, offered; give one of them"),
        ("gone", "fails as it is made, with AttributeError"),
        ("offered_detector:nothing", "gives object, which is no topic model; it needs version"),
        ("offered_detector:Model.version", "cannot be called"),
    ],
)
def test_what_cannot_be_had_is_said_with_a_remedy(name, said):
    """An operator reads it at the start, at 3 am too."""
    with pytest.raises(DetectorUnavailable) as refused:
        load_named(name)
    assert said in str(refused.value)
