"""The hand-written dialogues that topic detection is trained and tested on."""

from collections import Counter

from topics.training.field_check import FOLDER, SET_ASIDE, check


def test_field_dialogues_fit_their_registries():
    """A label that names no agent would be learned, or counted as an error, without a sign."""
    found = list(check())
    assert [problem for each in found for problem in each.problems] == []
    assert len(found) == 48
    assert sum(each.user_turns for each in found) > 6_000


def test_registries_set_aside_are_there_in_each_language():
    """Figures of registries never trained on are only as good as the registries are many."""
    names = {path.name.removesuffix(".jsonl.gz") for path in FOLDER.glob("*.jsonl.gz")}
    assert names >= SET_ASIDE
    given = 12
    assert len(SET_ASIDE) >= (len(names) - given) / 5
    languages = Counter(
        {"co": "es", "mx": "es", "uy": "es", "br": "pt", "pt": "pt"}.get(name[-2:], "en")
        for name in SET_ASIDE
    )
    assert languages == {"es": 3, "en": 3, "pt": 2}
