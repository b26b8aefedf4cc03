"""The conversation as turns: each agent's text is in the turn in which it was said."""

from routing_service.core.commands import FollowUp
from routing_service.core.history import HistoryFold
from routing_service.core.registry import Agent
from routing_service.core.vocabulary import OutcomeKind, OutcomeStatus
from tests.simulation.conversation import Conversation, registry_of

REGISTRY = registry_of(Agent("math"), Agent("exam"))


def history_of(chat):
    """Return the conversation's turns as (agent, text, outcome)."""
    fold = HistoryFold()
    for revision, (now_us, _, events) in enumerate(chat.log, start=1):
        fold.apply(revision, now_us, events)
    return [(record.agent_id, record.agent_text, record.outcome) for record in fold.records]


def test_words_of_an_agent_outlive_the_handoff_that_gives_it_the_turn():
    """It spoke up before the request was its own; its text was overwritten by the handoff."""
    chat = Conversation(REGISTRY)
    chat.says()
    chat.answers(by="math", text="I can do that")
    chat.hands_to("math", turn=chat.open)
    assert ("math", "I can do that", OutcomeKind.PROCEED) in history_of(chat)


def test_turns_are_in_the_order_in_which_agents_had_them():
    """An agent that gets a request a second time is listed at its latest place."""
    chat = Conversation(REGISTRY)
    chat.says()
    for agent in ("math", "exam", "math"):
        chat.hands_to(agent, turn=chat.open)
    assert chat.answers(FollowUp(), text="done").status is OutcomeStatus.APPLIED
    assert history_of(chat) == [
        ("supervisor", "", OutcomeKind.HANDOFF),
        ("exam", "", OutcomeKind.HANDOFF),
        ("math", "done", OutcomeKind.FOLLOW_UP),
    ]
