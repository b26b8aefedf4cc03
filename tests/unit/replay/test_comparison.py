"""Two registries over the same dialogues: what counts as a change, and which changes are kept."""

import random

import pytest

from routing_service.replay.comparison import ChangedTurns, Compared, Comparison
from routing_service.replay.dialogue_files import FoundDialogue, SourceLine
from routing_service.replay.figures import ReplayFigures, Tally
from routing_service.replay.play import FirstDispatch
from routing_service.replay.recorded_dialogue import RecordedDialogue


def found(number):
    """A dialogue of the record."""
    return FoundDialogue(SourceLine("file", number), RecordedDialogue(f"d{number}", []))


def went(agent_id, reason="STICKY", owner="billing", turn=0):
    """The agent that got a message, and the reason; the home agent is called front."""
    return FirstDispatch(turn, agent_id, reason, owner, is_home=agent_id == "front")


@pytest.mark.parametrize(
    ("was", "is_now", "effect"),
    [
        (went("front"), went("billing"), "right now"),
        (went("sales"), went("billing"), "right now"),
        (went("billing"), went("front"), "by the supervisor now"),
        (went("sales"), went("front"), "by the supervisor now"),
        (went("billing"), went("sales"), "misrouted now"),
        (went("front"), went("sales"), "misrouted now"),
        (went("sales"), went("support"), "as good as before"),
        (went("billing"), went("billing", "RETURNED"), "as good as before"),
        (went("sales", owner=""), went("front", owner=""), "unknown"),
        # Messages without an owner belong to the home agent.
        (went("sales", owner="front"), went("front", owner="front"), "right now"),
    ],
)
def test_change_is_judged_by_whom_the_message_was_for(was, is_now, effect):
    """A message that goes to the supervisor is neither lost nor saved, since it hands over."""
    changed = ChangedTurns()
    changed.note(1, found(1), ([was], [is_now]))
    (turn,) = changed.in_order()
    assert turn.effect == effect
    assert (turn.old_agent, turn.new_agent) == (was.agent_id, is_now.agent_id)


def test_same_agent_for_the_same_reason_is_no_change():
    """A turn that only one side played, because the other failed, is not a change either."""
    changed = ChangedTurns()
    changed.note(1, found(1), ([went("billing")], [went("billing"), went("sales", turn=2)]))
    assert changed.count == 0
    assert changed.in_order() == []


@pytest.mark.parametrize("seed", range(20))
def test_first_changes_of_the_record_are_kept_in_whatever_order_they_come(seed):
    """As many as are asked for, and all are counted."""
    rng = random.Random(seed)
    played = []
    for number in range(1, 40):
        turns = range(rng.randint(0, 4))
        old = [went("front", turn=turn) for turn in turns]
        played.append((number, found(number), (old, [went("billing", turn=t) for t in turns])))
    everything, bounded = ChangedTurns(), ChangedTurns(kept_max=7)
    for each in played:
        everything.note(*each)
    rng.shuffle(played)
    for each in played:
        bounded.note(*each)
    assert bounded.in_order() == everything.in_order()[:7]
    assert bounded.count == everything.count == len(everything.in_order())


def test_difference_is_the_new_less_the_old():
    """Shares as shares, counts as counts; figures about the run itself are not compared."""
    old = ReplayFigures(Tally(user_turns=10, scored_turns=10, saved_turns=4, handoffs=3), 1.0)
    new = ReplayFigures(
        Tally(user_turns=10, scored_turns=10, saved_turns=7, handoffs_refused=2), 9.0
    )
    told = Comparison(Compared("a", "1", old), Compared("b", "2", new), ChangedTurns()).as_dict()
    assert told["difference"] == {
        "supervisor_calls_saved": 0.3,
        "supervisor_calls": 0,
        "first_dispatch_right": 0,
        "misrouted": 0,
        "misrouted_turns": 0,
        "handoffs": -3,
        "handoffs_refused": 2,
        "stuck_turns": 0,
        "switch_precision": 0,
        "switch_recall": 0,
        "false_switches_per_1000": 0,
        "errors": 0,
    }
    assert (told["old"]["registry"], told["new"]["registry_version"]) == ("a", "2")
    assert told["changes"] == []
