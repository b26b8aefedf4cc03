import sys
import unicodedata

import pytest

from routing_service.core.errors import RoutingError
from routing_service.registry.file import check_registry_file
from routing_service.rpc.request_checks import FieldChecks
from tests.rpc.registries import DESK

LOOK_ALIKES = [
    "s\u0430les",  # Cyrillic a
    "\u017fales",  # the long s, which folds to s
    "\uff33ales",  # full width
    "sa\u200bles",  # zero width
    "sa\u00adles",  # soft hyphen
    "\u202eselas",  # written backwards
    "sales\u0301",  # with an accent
    "sa1es",
    "\u1d42\u0430les",
    "sal\u0435s",  # Cyrillic e
    "\U0001d42c\U0001d41a\U0001d425\U0001d41e\U0001d42c",  # mathematical bold
    "sales\U000e0041",  # with a tag
]


def refused(check, *arguments):
    """Say whether a check refuses."""
    checks = FieldChecks()
    getattr(checks, check)("field", *arguments)
    try:
        checks.done()
    except RoutingError:
        return True
    return False


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """A help desk's agents."""
    path = tmp_path_factory.mktemp("registry") / "agents.yaml"
    path.write_text(DESK, "utf-8")
    return check_registry_file(str(path)).registry


def test_no_character_that_nobody_sees_passes_in_a_user_s_id():
    """Checked against this Python's Unicode tables. Visible characters pass."""
    unseen = {"Cc", "Cf", "Zl", "Zp"}
    wrong = []
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        category = unicodedata.category(character)
        if category == "Cs":
            continue  # Half a pair is no UTF-8 and never comes here.
        is_none = (code & 0xFFFE == 0xFFFE and code <= 0xFFFF) or 0xFDD0 <= code <= 0xFDEF
        if category in unseen or is_none:
            if not refused("user", f"a{character}"):
                wrong.append(hex(code))
        elif category not in {"Cn", "Co"} and refused("user", f"a{character}"):
            wrong.append(hex(code))
    assert not wrong


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_look_alike_of_an_agent_s_id_names_nobody(registry, name):
    """A look-alike fails as an id, in a command and in a marker: all resolve it the same way."""
    assert registry.resolve("sales") == registry.resolve("SALES") == "sales"
    assert registry.resolve(name) is None
    assert refused("agent", name, registry) is not name.isascii()
    assert refused("identifier", name) is not name.isascii()
