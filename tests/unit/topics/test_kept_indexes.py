"""What was computed of large registries: kept in files, read at the next start."""

import os

import pytest

from agent_routing_topics.kept_indexes import EXAMPLES_LEAST, FILES_MAX, KeptIndexes
from agent_routing_topics.model import load_word_model
from agent_routing_topics.model.agent_index import AgentText
from agent_routing_topics.model.word_knowledge import WordKnowledge
from routing_service.topics.topic_detector import RecentTurn, TopicQuestion

COUNT = 12
IDS = tuple(f"agent-{number}" for number in range(COUNT))
GOODS = ("lamp", "ladder", "kettle", "carpet", "mirror", "basket", "bicycle", "blanket", "candle")


def agents(own: str = "") -> tuple[AgentText, ...]:
    """Agents with so many examples that they are kept. own: a word of the last one's."""
    each = EXAMPLES_LEAST // COUNT + 1
    return tuple(
        AgentText(
            agent_id,
            (f"Desk {agent_id}",),
            (f"Sells a {GOODS[at % len(GOODS)]} of kind {at}; returns. {own}",) if at else (),
            tuple(
                f"where is my {GOODS[(at + number) % len(GOODS)]} of order{number} kind{at}"
                for number in range(each)
            ),
        )
        for at, agent_id in enumerate(IDS)
    )


def questions():
    """A first message, and one in mid-conversation that asks for two things."""
    yield TopicQuestion(text="a mirror of kind3 please", candidate_ids=IDS)
    turn = RecentTurn(IDS[2], "my kettle is broken", "Which order was it?", "follow_up")
    text = "order7. And do you have a carpet of kind 8?"
    yield TopicQuestion(text=text, active_agent_id=IDS[2], recent=(turn,), candidate_ids=IDS)


@pytest.fixture
def texts_read(monkeypatch):
    """The texts whose senses were computed."""
    read = []
    as_it_is = WordKnowledge.senses_of

    def counted(self, whole, words, pairs):
        read.append(whole)
        return as_it_is(self, whole, words, pairs)

    monkeypatch.setattr(WordKnowledge, "senses_of", counted)
    return read


def test_restart_judges_the_same_without_reading_the_examples(tmp_path, texts_read):
    """To the last digit; the file is for its owner alone."""
    folder = tmp_path / "var"
    first = load_word_model(kept=KeptIndexes(folder)).for_agents(agents())
    assert len(texts_read) > EXAMPLES_LEAST
    texts_read.clear()
    again = load_word_model(kept=KeptIndexes(folder)).for_agents(agents()[::-1])
    assert texts_read == []
    assert [again.judge(one) for one in questions()] == [first.judge(one) for one in questions()]
    assert [path.stat().st_mode & 0o777 for path in folder.iterdir()] == [0o600]


def test_changed_registry_or_parameters_are_computed(tmp_path, texts_read):
    """A file is found by all that decides what is in it."""
    kept = KeptIndexes(tmp_path)
    model = load_word_model(kept=kept)
    model.for_agents(agents())
    texts_read.clear()
    model.for_agents(agents("lanterns"))
    assert len(texts_read) > EXAMPLES_LEAST
    assert kept.read("another", agents(), model._knowledge, lambda: None) is None
    assert len(list(tmp_path.iterdir())) == 2


def test_small_registry_is_not_kept(tmp_path):
    """Reading it takes less than a file is worth."""
    kept = KeptIndexes(tmp_path / "var")
    load_word_model(kept=kept).for_agents(agents()[:2])
    assert not (tmp_path / "var").exists()


@pytest.mark.parametrize("damage", [lambda held: held[:-9], lambda held: held[:40] + b"x" * 40])
def test_damaged_file_is_computed_and_written_again(tmp_path, texts_read, damage):
    """It costs time and nothing else."""
    first = load_word_model(kept=KeptIndexes(tmp_path)).for_agents(agents())
    (path,) = tmp_path.iterdir()
    held = path.read_bytes()
    path.write_bytes(damage(held))
    texts_read.clear()
    again = load_word_model(kept=KeptIndexes(tmp_path)).for_agents(agents())
    assert len(texts_read) > EXAMPLES_LEAST
    assert [again.judge(one) for one in questions()] == [first.judge(one) for one in questions()]
    assert path.read_bytes() == held


def test_folder_that_cannot_be_written_costs_time_alone(tmp_path):
    """Such as one on a disk that is read only."""
    (tmp_path / "file").write_text("")
    detector = load_word_model(kept=KeptIndexes(tmp_path / "file")).for_agents(agents())
    assert detector.judge(next(questions())).ranked


def test_oldest_files_are_removed(tmp_path):
    """A registry that changes each day does not fill the disk."""
    kept = KeptIndexes(tmp_path)
    made = load_word_model().for_agents(agents()).reader
    for number in range(FILES_MAX + 2):
        kept.keep(f"v{number}", agents(), (made.index, made.closeness))
        newest = max(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, ns=(number, number))
    assert len(list(tmp_path.iterdir())) == FILES_MAX
    read = [
        kept.read(f"v{number}", agents(), made.index._knowledge, lambda: None) is not None
        for number in range(FILES_MAX + 2)
    ]
    assert read == [False, False, *[True] * FILES_MAX]
