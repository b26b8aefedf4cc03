"""The built-in model: its verdicts on written examples, and properties of any verdict."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_routing_topics.default_model import TopicModel, load_default_model, load_word_model
from agent_routing_topics.model import option_rows
from agent_routing_topics.model.parameters import shipped_parameters
from routing_service.core.registry import Agent, AgentKind, Registry
from routing_service.topics.topic_detector import (
    RecentTurn,
    TopicDetector,
    TopicQuestion,
    TopicVerdict,
)

MODEL = load_word_model()

HOTELS = Agent(
    "hotels",
    name={"en": "Hotels", "es": "Hoteles"},
    description={"en": "Finds and books hotel rooms", "es": "Busca y reserva habitaciones"},
    examples=("I need a room for two nights", "Book me a hotel in Leeds"),
)
TRAINS = Agent(
    "trains",
    name={"en": "Trains"},
    description={"en": "Train timetables and tickets"},
    examples=("When does the next train to York leave?", "Two tickets to Leeds please"),
)
WEATHER = Agent("weather", description={"en": "Tells the weather forecast for a city and a day"})
BANKING = Agent(
    "banking",
    description={"en": "Account balance, transfers and lost cards"},
    examples=("how much money is in my account", "I lost my card"),
)
SUPERVISOR = Agent("supervisor", kind=AgentKind.SUPERVISOR)
AGENTS = (HOTELS, TRAINS, WEATHER, BANKING)


def registry_of(*agents: Agent) -> Registry:
    """A supervisor and agents."""
    return Registry(
        version="1",
        home_agent_id="supervisor",
        agents={agent.agent_id: agent for agent in (SUPERVISOR, *agents)},
    )


REGISTRY = registry_of(*AGENTS)
DETECTOR = MODEL.for_registry(REGISTRY)
IDS = tuple(agent.agent_id for agent in AGENTS)


@pytest.fixture(scope="module")
def meaning() -> TopicDetector:
    """The detector with vectors: loading them takes half a second."""
    pytest.importorskip("numpy")
    return load_default_model(waits=True).for_registry(REGISTRY)


def best(verdict: TopicVerdict) -> str:
    """The agent that the message is most likely for."""
    return verdict.ranked[0][0]


def in_hotels(text: str, *, asked: str = "For how many nights?") -> TopicQuestion:
    """A message in the middle of a hotel booking."""
    return TopicQuestion(
        text=text,
        locale="en",
        active_agent_id="hotels",
        is_locked=asked.endswith("?"),
        recent=(
            RecentTurn("hotels", "I need a hotel in Leeds", "On which day?", "follow_up"),
            RecentTurn("hotels", "Next Monday", asked, "follow_up"),
        ),
        earlier_agent_ids=(),
        candidate_ids=frozenset(IDS),
    )


@pytest.mark.parametrize(
    ("text", "owner"),
    [
        ("Can you book me a hotel room for tonight?", "hotels"),
        ("When does the train to Leeds leave?", "trains"),
        ("What is the weather forecast for Paris?", "weather"),
        ("what's my account balance", "banking"),
        ("Quiero reservar una habitación de hotel", "hotels"),
    ],
)
def test_first_message_goes_to_the_agent_it_is_about(text, owner):
    """This also holds for an agent with only a description."""
    verdict = DETECTOR.judge(TopicQuestion(text=text, candidate_ids=IDS))
    assert best(verdict) == owner
    assert verdict.ranked[0][1] > 0.5
    assert verdict.stay == 0


@pytest.mark.parametrize(
    ("text", "owner"),
    [
        ("Will it rain tomorrow in Paris?", "weather"),
        ("¿Qué tiempo va a hacer mañana en Madrid?", "weather"),
        ("necesito un billete de tren", "trains"),
        ("Qual é o saldo da minha conta?", "banking"),
    ],
)
def test_other_words_and_languages_are_found_by_their_meaning(meaning, text, owner):
    """No text of the registry has these words."""
    assert best(meaning.judge(TopicQuestion(text=text, candidate_ids=IDS))) == owner


@pytest.mark.parametrize("text", ["hi", "hello there!", "hola", "asdf qwer", "", "👋"])
def test_message_about_nothing_is_left_to_the_supervisor(text):
    """A greeting gets no confident agent."""
    verdict = DETECTOR.judge(TopicQuestion(text=text, candidate_ids=IDS))
    assert all(probability < 0.5 for _, probability in verdict.ranked)


@pytest.mark.parametrize(
    "text",
    [
        "Two nights please",
        "Monday to Friday",
        "yes",
        "No, that's too expensive",
        "3",
        "I don't know",
    ],
)
def test_answer_to_a_question_stays_with_the_agent_that_asked(text):
    """Short words of agreement, refusal or ignorance are answers, not topics."""
    verdict = DETECTOR.judge(in_hotels(text))
    assert verdict.stay > 0.8


@pytest.mark.parametrize(
    ("text", "owner"),
    [
        ("Actually, can you first tell me what the weather will be like on Monday?", "weather"),
        ("Wait, I need to check my bank account balance before that", "banking"),
        ("Thanks. I also need a train ticket from York to Leeds.", "trains"),
    ],
)
def test_change_of_topic_is_noticed_although_the_agent_waits_for_an_answer(text, owner):
    """A fifth and more of real changes of topic come right after a question."""
    verdict = DETECTOR.judge(in_hotels(text))
    assert best(verdict) == owner
    assert verdict.ranked[0][1] > 0.5 > verdict.stay


def test_agreement_goes_where_the_agent_offered_to_send_it():
    """If a message only agrees, the agent's offer has the topic."""
    offered = DETECTOR.judge(in_hotels("Sure!", asked="Shall I look up the weather forecast?"))
    asked = DETECTOR.judge(in_hotels("Sure!", asked="Shall I book that room?"))
    assert dict(offered.ranked)["weather"] > dict(asked.ranked)["weather"]


def test_agent_that_was_left_is_found_again():
    """An earlier agent is a candidate like any other."""
    question = TopicQuestion(
        text="Back to the hotel: book that room please",
        active_agent_id="weather",
        recent=(
            RecentTurn("hotels", "Find me a hotel in Leeds", "The Bell has rooms.", "proceed"),
            RecentTurn("weather", "Will it rain there?", "It will be sunny.", "complete"),
        ),
        earlier_agent_ids=("hotels",),
        candidate_ids=IDS,
    )
    verdict = DETECTOR.judge(question)
    assert best(verdict) == "hotels"
    assert verdict.ranked[0][1] > 0.5


def test_verdict_names_candidates_alone():
    """An agent that this user may not have is not offered, and its share is dropped."""
    text = "What is the weather forecast for Paris?"
    everybody = DETECTOR.judge(TopicQuestion(text=text, candidate_ids=IDS))
    others = DETECTOR.judge(TopicQuestion(text=text, candidate_ids=("hotels", "trains")))
    assert best(everybody) == "weather"
    assert {agent_id for agent_id, _ in others.ranked} == {"hotels", "trains"}
    assert others.ranked[0][1] < 0.5


def test_unknown_ids_in_a_question_change_nothing():
    """Another replica's newer registry may have put its agents into the session."""
    question = TopicQuestion(
        text="What is the weather forecast?",
        active_agent_id="newer",
        recent=(RecentTurn("newest", "hello", "Hello!", "proceed"),),
        earlier_agent_ids=("newest",),
        candidate_ids=(*IDS, "newest", "supervisor"),
    )
    verdict = DETECTOR.judge(question)
    assert best(verdict) == "weather"
    assert "newest" not in dict(verdict.ranked)
    assert 0 <= verdict.stay <= 1


def test_ids_of_agents_mean_nothing():
    """Only descriptions and examples count, so misleading ids have no effect."""
    renamed = {"hotels": "weather", "trains": "a", "weather": "z", "banking": "hotels"}
    agents = [
        Agent(
            renamed[agent.agent_id],
            name=agent.name,
            description=agent.description,
            examples=agent.examples,
        )
        for agent in AGENTS
    ]
    detector = MODEL.for_registry(registry_of(*agents))
    for text in ("Will it rain?", "A room please", "my balance", "hi", "two tickets to York"):
        verdict = DETECTOR.judge(TopicQuestion(text=text, candidate_ids=IDS))
        again = detector.judge(TopicQuestion(text=text, candidate_ids=tuple(renamed.values())))
        expected = {renamed[agent_id]: probability for agent_id, probability in verdict.ranked}
        assert dict(again.ranked) == pytest.approx(expected, abs=1e-5)


def test_order_of_agents_and_candidates_means_nothing():
    """A registry file may be sorted, and sets have no order."""
    detector = MODEL.for_registry(registry_of(*reversed(AGENTS)))
    for text in ("Will it rain?", "A room please", "my balance", "hi"):
        assert DETECTOR.judge(in_hotels(text)) == detector.judge(in_hotels(text))
        forwards = DETECTOR.judge(TopicQuestion(text=text, candidate_ids=IDS))
        backwards = detector.judge(TopicQuestion(text=text, candidate_ids=IDS[::-1]))
        assert forwards == backwards


def test_way_of_writing_means_nothing():
    """Case, accents, composition and apostrophes depend on the keyboard."""
    for one, other in (
        ("¿QUÉ TIEMPO HARÁ MAÑANA?", "¿Qué tiempo hara manana?"),
        ("what\u2019s my balance?", "what's my balance?"),
        ("habitacio\u0301n de hotel", "habitación de hotel"),
    ):
        assert DETECTOR.judge(TopicQuestion(text=one, candidate_ids=IDS)) == DETECTOR.judge(
            TopicQuestion(text=other, candidate_ids=IDS)
        )


@pytest.mark.parametrize(
    "agents",
    [
        (),
        (Agent("only"),),
        (Agent("one"), Agent("two")),
        (Agent("one", description={"en": ""}, examples=("", "?", "   ")), HOTELS),
        (Agent("same", description={"en": "x"}), Agent("again", description={"en": "x"})),
    ],
)
def test_registries_that_say_little_have_verdicts(agents):
    """Descriptions and examples are optional in a registry."""
    detector = MODEL.for_registry(registry_of(*agents))
    ids = tuple(agent.agent_id for agent in agents)
    for active in ("", *ids, "gone"):
        verdict = detector.judge(
            TopicQuestion(
                text="hello, a room please",
                active_agent_id=active,
                recent=(RecentTurn(active, "x", "y", "proceed"),) if active else (),
                candidate_ids=ids,
            )
        )
        assert_sound(verdict, TopicQuestion(text="", active_agent_id=active, candidate_ids=ids))


def assert_sound(verdict: TopicVerdict, question: TopicQuestion) -> None:
    """Assert the properties of every verdict."""
    ids = [agent_id for agent_id, _ in verdict.ranked]
    assert len(set(ids)) == len(ids) <= 5
    assert set(ids) <= set(question.candidate_ids) - {question.active_agent_id}
    probabilities = [probability for _, probability in verdict.ranked]
    assert probabilities == sorted(probabilities, reverse=True)
    assert all(0 <= probability <= 1 for probability in (*probabilities, verdict.stay))
    assert sum(probabilities) + verdict.stay <= 1 + 1e-5
    if not question.active_agent_id:
        assert verdict.stay == 0


_IDS = st.sampled_from([*IDS, "", "gone", "supervisor"])
_TEXTS = st.text(max_size=60) | st.sampled_from(
    ["yes", "a hotel please", "weather?", "天気はどう", "ñandú", "ß" * 9, "\u0301" * 30, "٣ ночи"]
)


@settings(max_examples=150, deadline=None)
@given(
    text=_TEXTS,
    active=_IDS,
    recent=st.lists(
        st.builds(
            RecentTurn,
            _IDS,
            _TEXTS,
            _TEXTS,
            st.sampled_from(["proceed", "follow_up", "complete", "handoff", "failure", "new", ""]),
        ),
        max_size=8,
    ),
    earlier=st.lists(_IDS, max_size=5),
    candidates=st.frozensets(_IDS),
    is_locked=st.booleans(),
)
def test_every_question_has_a_sound_verdict(  # noqa: PLR0917 - a question's fields
    text, active, recent, earlier, candidates, is_locked
):
    """For any message and session; the same question has the same verdict."""
    question = TopicQuestion(
        text=text,
        active_agent_id=active,
        is_locked=is_locked,
        recent=tuple(recent),
        earlier_agent_ids=tuple(earlier),
        candidate_ids=candidates,
    )
    verdict = DETECTOR.judge(question)
    assert_sound(verdict, question)
    assert DETECTOR.judge(question) == verdict


def many_agents(count: int) -> Registry:
    """A registry of agents with twenty examples each, of common words and a few of their own."""
    chance = random.Random(7)
    common = [
        "i",
        "need",
        "a",
        "please",
        "book",
        "find",
        "show",
        "my",
        "the",
        "for",
        "in",
        "can",
        "you",
        "room",
        "train",
        "card",
        "weather",
    ]
    syllables = [f"{a}{b}" for a in "bdfgklmnprst" for b in ("ar", "el", "in", "or")]

    def agent(number: int) -> Agent:
        own = [f"{chance.choice(syllables)}{syllables[number % 48]}{number}x" for _ in range(4)]
        said = [" ".join([*chance.sample(common, 6), *chance.sample(own, 2)]) for _ in range(21)]
        return Agent(f"agent-{number}", description={"en": said[0]}, examples=tuple(said[1:]))

    return registry_of(*map(agent, range(count)))


def test_two_hundred_agents_are_told_apart():
    """Each agent has a few words that the others do not have."""
    registry = many_agents(200)
    detector = MODEL.for_registry(registry)
    ids = tuple(agent.agent_id for agent in registry.specialists)
    for agent in registry.specialists[::20]:
        verdict = detector.judge(TopicQuestion(text=agent.examples[3], candidate_ids=ids))
        assert best(verdict) == agent.agent_id


def asked_of_many(registry: Registry, detector: TopicDetector) -> list[TopicVerdict]:
    """Verdicts on questions to many agents."""
    agents = registry.specialists
    ids = tuple(agent.agent_id for agent in agents)
    found = []
    for agent, other in zip(agents[::20], agents[5::20], strict=True):
        turn = RecentTurn(other.agent_id, "hello", agents[7].description["en"] + "?", "proceed")
        for text in (f"{agent.examples[1]} now", "yes please", f"{other.examples[2]} now"):
            found.append(detector.judge(TopicQuestion(text=text, candidate_ids=ids)))
            question = TopicQuestion(
                text=text,
                active_agent_id=other.agent_id,
                recent=(turn,),
                earlier_agent_ids=(agents[3].agent_id,),
                candidate_ids=ids,
            )
            found.append(detector.judge(question))
    return found


def test_agents_that_share_little_with_a_message_make_no_difference(monkeypatch):
    """The best few are compared in full, and those of the dialogue whatever the message says."""
    registry = many_agents(60)
    detector = MODEL.for_registry(registry)
    a_few = asked_of_many(registry, detector)
    agents = registry.specialists
    question = TopicQuestion(
        text=agents[20].examples[0],
        active_agent_id=agents[0].agent_id,
        recent=(RecentTurn(agents[1].agent_id, "hi", "hello", "proceed"),),
        candidate_ids=tuple(agent.agent_id for agent in agents),
    )
    compared = detector.reader.read(question).ids
    assert {agents[place].agent_id for place in (0, 1, 20)} <= set(compared)
    assert len(compared) <= option_rows.OPTIONS_MAX + 2
    monkeypatch.setattr(option_rows, "OPTIONS_MAX", 60)
    for whole, part in zip(asked_of_many(registry, detector), a_few, strict=True):
        if whole.ranked and whole.ranked[0][1] > 0.5:
            assert best(part) == best(whole)


@pytest.mark.parametrize(
    "text",
    [
        "hotel " * 11_000,
        "".join(chr(0x4E00 + number % 5000) for number in range(21_000)),
        "a" * 65_536,
        " ".join(f"w{number}" for number in range(9_000)),
        "\ufdfa" * 20_000,
        "\u0301" * 32_000,
        "?" * 65_536,
        "no " * 20_000,
    ],
    ids=["word", "ideographs", "one word", "words", "ligatures", "marks", "questions", "denials"],
)
def test_cost_of_a_long_text_is_bounded(text):
    """64 KB cost no more than what is read of it: some tens of milliseconds on a busy machine."""
    turns = tuple(RecentTurn("hotels", text, text, "proceed") for _ in range(8))
    question = TopicQuestion(
        text=text, active_agent_id="hotels", recent=turns, candidate_ids=frozenset(IDS)
    )
    started_s = time.thread_time()
    verdict = DETECTOR.judge(question)
    assert time.thread_time() - started_s < 0.5
    assert_sound(verdict, question)


def test_reading_a_registry_lets_other_threads_run():
    """The event loop of a server keeps running: after each agent's texts there is a pause."""
    pauses: list[int] = []
    TopicModel(shipped_parameters(), give_way=lambda: pauses.append(1)).for_registry(
        many_agents(12)
    )
    assert len(pauses) >= 12


SHARED = ("find something nice please", "rain")


@pytest.mark.parametrize(
    "text", ["Two tickets to Leeds please", "TWO tickets, to leeds... please!"]
)
def test_example_of_one_agent_is_that_agents_whatever_came_before(text):
    """Word for word, however it is written."""
    verdict = DETECTOR.judge(in_hotels(text))
    assert (best(verdict), verdict.sureness) == ("trains", 1.0)
    assert verdict.ranked[0][1] == 0.99


def test_example_of_the_active_agent_stays():
    """Also one that another agent would be close to."""
    assert DETECTOR.judge(in_hotels("Book me a hotel in Leeds")).stay == 0.99


def test_example_of_two_agents_or_of_one_word_decides_nothing():
    """It may be an answer to any of them."""
    agents = (Agent("one", examples=SHARED), Agent("two", examples=SHARED))
    detector = MODEL.for_registry(registry_of(*agents))
    for text in SHARED:
        verdict = detector.judge(TopicQuestion(text=text, candidate_ids=("one", "two")))
        assert verdict.sureness < 1


def test_agent_that_the_user_may_not_have_is_not_given():
    """Even for its own example."""
    text = "Two tickets to Leeds please"
    verdict = DETECTOR.judge(TopicQuestion(text=text, candidate_ids=("hotels", "weather")))
    assert "trains" not in dict(verdict.ranked)


def test_agent_named_stay_is_an_agent_like_any_other():
    """Ids are the operator's own words."""
    agents = [Agent("stay", description=HOTELS.description, examples=HOTELS.examples), TRAINS]
    detector = MODEL.for_registry(registry_of(*agents))
    ids = ("stay", "trains")
    verdict = detector.judge(TopicQuestion(text="I need a hotel room", candidate_ids=ids))
    assert best(verdict) == "stay"
    moved = detector.judge(
        TopicQuestion(
            text="I need a hotel room",
            active_agent_id="trains",
            recent=(RecentTurn("trains", "When does it leave?", "At nine.", "complete"),),
            candidate_ids=ids,
        )
    )
    assert best(moved) == "stay"
    assert moved.stay < moved.ranked[0][1]
