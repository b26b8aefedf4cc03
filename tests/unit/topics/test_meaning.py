"""Judging by meaning: kept vectors, the cold start, and what the word model decides first."""

import threading

import pytest

np = pytest.importorskip("numpy")

from agent_routing_topics.meaning.example_vectors import ExampleVectors  # noqa: E402
from agent_routing_topics.meaning.meaning_model import MeaningModel  # noqa: E402
from agent_routing_topics.meaning.meaning_parameters import (  # noqa: E402
    FORMAT,
    GOES_ON_BLOCKS,
    GOES_ON_REST,
    GoesOn,
    MeaningParameters,
    parse_meaning,
)
from agent_routing_topics.model import load_word_model  # noqa: E402
from agent_routing_topics.model.agent_index import AgentText  # noqa: E402
from agent_routing_topics.model.choice_features import MEANING_FEATURES  # noqa: E402
from agent_routing_topics.model.parameters import (  # noqa: E402
    Forest,
    ParametersInvalid,
    Temperatures,
    Tree,
)
from agent_routing_topics.model.trained_model import TrainedDetector  # noqa: E402
from routing_service.topics.topic_detector import (  # noqa: E402
    RecentTurn,
    TopicQuestion,
    TopicVerdict,
)

WORDS = load_word_model()
AGENTS = (
    AgentText("leave", ("Leave",), ("Holidays",), ("I need next Friday off",)),
    AgentText("pay", ("Pay",), ("Salaries",), ("when is payday this month",)),
)
IDS = ("leave", "pay")


class Letters:
    """Stands for an encoder: a vector by the letters of a text. texts: all it was asked for."""

    def __init__(self):
        self.texts = []
        self.is_open = threading.Event()
        self.is_open.set()

    def encode(self, texts):
        self.is_open.wait(5)
        self.texts += texts
        rows = np.zeros((len(texts), 512), dtype=np.float32)
        for at, text in enumerate(texts):
            for letter in text.casefold():
                rows[at, ord(letter) % 512] += 1
        lengths = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
        return rows / np.maximum(lengths, 1e-9)


def parameters(*, leans_to_meaning=True) -> MeaningParameters:
    """An agent whose closest text is close in meaning scores 4, if asked; else all the same."""
    any_text = MEANING_FEATURES.index("meaning_any_lead")
    tree = Tree((any_text, -1, -1), (0.0, 0.0, 4.0), (1, 0, 0), (2, 0, 0))
    return MeaningParameters(
        FORMAT,
        "test-1",
        "0" * 64,
        GoesOn(0.0, ((0.0,) * 512,) * GOES_ON_BLOCKS, (0.0,) * len(GOES_ON_REST)),
        Forest(MEANING_FEATURES, (tree,) if leans_to_meaning else ()),
        Temperatures((6.0, 15.0), (1.0, 1.0, 1.0), (1.0, 1.0, 1.0)),
    )


def opening(text: str) -> TopicQuestion:
    """A first message."""
    return TopicQuestion(text=text, candidate_ids=IDS)


def test_vectors_are_computed_once_and_survive_a_restart(tmp_path):
    """By model and text: another model has none of them."""
    letters = Letters()
    path = tmp_path / "var" / "vectors.npz"
    kept = ExampleVectors(path, letters.encode, "one")
    first = kept.of(["a b", "c", "a b"])
    assert letters.texts == ["a b", "c"]
    assert first[0] == pytest.approx(first[2])
    again = ExampleVectors(path, letters.encode, "one")
    assert again.missing(["c", "d"]) == ["d"]
    assert again.of(["c"]) == pytest.approx(first[1:2], abs=1e-3)
    assert letters.texts == ["a b", "c"]
    assert ExampleVectors(path, letters.encode, "two").missing(["c"]) == ["c"]


def test_file_of_vectors_that_cannot_be_used_costs_time_alone(tmp_path):
    """A damaged one is written again; one that cannot be written is not kept."""
    letters = Letters()
    path = tmp_path / "vectors.npz"
    path.write_bytes(b"no archive")
    assert ExampleVectors(path, letters.encode, "one").of(["a"]).shape == (1, 512)
    assert ExampleVectors(path, letters.encode, "one").missing(["a"]) == []
    (tmp_path / "file").write_text("")
    lost = ExampleVectors(tmp_path / "file" / "x.npz", letters.encode, "one")
    assert lost.of(["a"]).shape == (1, 512)


def test_cold_start_judges_by_words_until_vectors_are_there():
    """A server serves at once."""
    letters = Letters()
    letters.is_open.clear()
    detector = MeaningModel(WORDS, parameters(), letters.encode).for_agents(AGENTS)
    assert not detector.is_ready
    words = WORDS.for_agents(AGENTS)
    assert detector.judge(opening("friday")) == words.judge(opening("friday"))
    letters.is_open.set()
    for thread in threading.enumerate():
        if thread.name == "topic vectors":
            thread.join(5)
    assert detector.is_ready
    assert detector.judge(opening("friday")) != words.judge(opening("friday"))


def test_warm_start_is_ready_at_once(tmp_path):
    """From the file, without the encoder."""
    path = tmp_path / "vectors.npz"
    MeaningModel(WORDS, parameters(), Letters().encode, path, waits=True).for_agents(AGENTS)
    letters = Letters()
    letters.is_open.clear()
    warm = MeaningModel(WORDS, parameters(), letters.encode, path).for_agents(AGENTS)
    assert warm.is_ready
    assert letters.texts == []


def test_meaning_decides_where_words_are_not_sure():
    """The closest in meaning; every option has a share."""
    model = MeaningModel(WORDS, parameters(), Letters().encode, waits=True)
    detector = model.for_agents(AGENTS)
    verdict = detector.judge(opening("freedayoff next"))
    assert verdict.ranked[0][0] == "leave"
    assert verdict.ranked[0][1] > 0.9
    assert verdict.how_sure() > 0.8
    assert model.version == f"{WORDS.version}-test-1"


def test_example_word_for_word_needs_no_vector():
    """It is its agent's whatever the model says."""
    letters = Letters()
    model = MeaningModel(WORDS, parameters(leans_to_meaning=False), letters.encode, waits=True)
    detector = model.for_agents(AGENTS)
    letters.texts.clear()
    assert detector.judge(opening("When is payday this month?")).ranked[0] == ("pay", 0.99)
    assert letters.texts == []


def test_vectors_of_a_turn_are_made_once():
    """However many messages follow it."""
    letters = Letters()
    model = MeaningModel(WORDS, parameters(), letters.encode, waits=True)
    detector = model.for_agents(AGENTS)
    turn = RecentTurn("leave", "friday please", "Which Friday do you mean?", "proceed")
    letters.texts.clear()
    for text in ("payday", "salary soon"):
        question = TopicQuestion(
            text=text, active_agent_id="leave", recent=(turn,), candidate_ids=IDS
        )
        detector.judge(question)
    assert letters.texts.count("friday please") <= 1


def test_registry_without_agents_needs_no_vectors():
    """Nothing is compared."""
    letters = Letters()
    model = MeaningModel(WORDS, parameters(), letters.encode)
    assert model.for_agents(()).judge(TopicQuestion(text="x", active_agent_id="a")).stay == 1
    assert letters.texts == []


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff"])
def test_parameters_that_are_none_are_refused(content):
    """With the word model alone to go on with."""
    with pytest.raises(ParametersInvalid):
        parse_meaning(content)


def test_message_and_new_turn_are_encoded_in_one_batch_and_once():
    """A message is known when it is the last turn of the next question."""
    batches = []
    letters = Letters()

    def encode(texts):
        batches.append(list(texts))
        return letters.encode(texts)

    model = MeaningModel(WORDS, parameters(), encode, waits=True)
    detector = model.for_agents(AGENTS)
    batches.clear()
    detector.judge(opening("zebra"))
    turn = RecentTurn("pay", "zebra", "which zebra?", "complete")
    detector.judge(TopicQuestion(text="giraffe", recent=(turn,), candidate_ids=IDS))
    assert batches == [["zebra"], ["giraffe", "which zebra?"]]


@pytest.mark.parametrize(
    ("verdict", "is_by_words"),
    [
        (TopicVerdict((("pay", 0.2),), stay=0.76), True),
        (TopicVerdict((("pay", 0.86),), stay=0.1), True),
        (TopicVerdict((("pay", 0.8),), stay=0.1), False),
        (TopicVerdict((("pay", 0.3),), stay=0.7), False),
        (TopicVerdict(), False),
    ],
)
def test_where_words_are_sure_no_vector_is_made(monkeypatch, verdict, is_by_words):
    """That it stays, or that it is another agent's."""
    letters = Letters()
    model = MeaningModel(WORDS, parameters(), letters.encode, waits=True)
    detector = model.for_agents(AGENTS)
    monkeypatch.setattr(TrainedDetector, "verdict", lambda *_: verdict)
    letters.texts.clear()
    judged = detector.judge(opening("giraffe"))
    assert (judged == verdict) is is_by_words
    assert letters.texts == ([] if is_by_words else ["giraffe"])


@pytest.mark.parametrize(("probability", "wants_vectors"), [(0.55, False), (0.65, True)])
def test_part_without_a_request_in_its_words_needs_no_vector(
    monkeypatch, probability, wants_vectors
):
    """Of a message in two parts: a greeting, a name, thanks."""
    letters = Letters()
    model = MeaningModel(WORDS, parameters(), letters.encode, waits=True)
    detector = model.for_agents(AGENTS)
    by_words = TopicVerdict((("pay", probability),), stay=0.1)
    monkeypatch.setattr(TrainedDetector, "verdict", lambda *_: by_words)
    letters.texts.clear()
    detector.judge_part(opening("my name is giraffe"))
    assert (letters.texts != []) is wants_vectors
