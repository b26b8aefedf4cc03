"""Detectors that installed packages offer, by name."""

from __future__ import annotations

import pytest

from routing_service.topics.detector_plugin import DetectorUnavailable, load_named

MODULE = """
class Model:
    version = "offered-1"

    def for_registry(self, registry):
        raise NotImplementedError

class Unready(Model):
    @property
    def version(self):
        raise RuntimeError("weights are not read")

class Panic(BaseException):
    pass

def exits():
    raise SystemExit("no licence")

def panics():
    raise Panic("index out of bounds")

nothing = object
"""
METADATA = "Metadata-Version: 2.1\nName: offered-detector\nVersion: 1\n"
ENTRY_POINTS = """[agent_routing.topic_detectors]
offered = offered_detector:Model
gone = offered_detector:Gone
lacking = lacking_detector:Model
absent = absent_detector:Model
"""
LACKING = "import no_such_dependency\n"
HALF = "from offered_detector import no_such_name\n"
EXITING = "raise SystemExit(3)\n"
LACKS = (
    "lacking_detector is there, and cannot be imported: No module named 'no_such_dependency'; "
    "install what it needs"
)


@pytest.fixture
def installed(tmp_path, monkeypatch) -> None:
    """A package that offers detectors."""
    (tmp_path / "offered_detector.py").write_text(MODULE, "utf-8")
    (tmp_path / "lacking_detector.py").write_text(LACKING, "utf-8")
    (tmp_path / "half_detector.py").write_text(HALF, "utf-8")
    (tmp_path / "exiting_detector.py").write_text(EXITING, "utf-8")
    info = tmp_path / "offered_detector-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA, "utf-8")
    (info / "entry_points.txt").write_text(ENTRY_POINTS, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["offered", "offered_detector:Model"])
def test_installed_detector_is_found_by_either_name(name):
    """The name is the entry point that its package declares, or module:attribute."""
    assert load_named(name).version == "offered-1"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("other", "installed ones: absent, gone, lacking, offered, words; give one"),
        ("gone", "fails as it is made, with AttributeError"),
        ("offered_detector:nothing", "gives object, which is no topic model; it needs version"),
        ("offered_detector:Model.version", "cannot be called"),
        ("offered_detector:Unready", "with RuntimeError: weights are not read; mend it"),
        ("offered_detector:exits", "fails as it is made, with SystemExit: no licence; mend it"),
        ("offered_detector:panics", "with Panic: index out of bounds; mend it"),
        ("exiting_detector:Model", "fails as it is made, with SystemExit: 3; mend it"),
        (":Model", "does not name a module in full; give MODULE:NAME, such as"),
        (".offered_detector:Model", "does not name a module in full; give MODULE:NAME"),
        ("offered_detector.:Model", "does not name a module in full; give MODULE:NAME"),
        ("absent_detector:Model", "No module named 'absent_detector'; install it where"),
        ("offered_detector.part:Model", "'offered_detector' is not a package; install it where"),
        ("absent", "No module named 'absent_detector'; install it where"),
        ("lacking_detector:Model", LACKS),
        ("lacking", LACKS),
        ("half_detector:Model", "half_detector is there, and cannot be imported: cannot import"),
    ],
)
def test_what_cannot_be_had_is_said_with_a_remedy(name, said):
    """The operator who reads it at the start needs no other source."""
    with pytest.raises(DetectorUnavailable) as refused:
        load_named(name)
    assert said in str(refused.value)
