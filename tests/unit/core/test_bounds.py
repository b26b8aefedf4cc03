"""State is bounded: it is written with every change, and engines have row limits."""

import random
import string
import uuid
from dataclasses import dataclass, field

import pytest

from routing_service.core import strands
from routing_service.core.commands import (
    AskApproval,
    CompleteTurn,
    FollowUp,
    HandOff,
    RouteMessage,
)
from routing_service.core.events import Profile
from routing_service.core.evolve import COUNTED_AGENTS_MAX, COUNTED_IDS_CHARS_MAX, OTHER_AGENTS
from routing_service.core.facts import NO_FACTS
from routing_service.core.registry import (
    HOPS_PER_MESSAGE_MAX,
    OPEN_TURNS_MAX,
    RETURN_DEPTH_MAX,
    Agent,
    ApprovalRule,
    Limits,
    Registry,
    Topics,
    WhilePaused,
)
from routing_service.core.suggestion_fold import SUGGESTION_REST_MESSAGES
from routing_service.core.suggestions import stay_option_id
from routing_service.core.vocabulary import HandoffMode, Initiator
from routing_service.storage.event_codec import decode_state, encode_state
from tests.simulation.conversation import Conversation, registry_of

STATE_BYTES_MAX = 8 * 1024
PARKED_STATE_BYTES_MAX = 16 * 1024  # A quarter of what a store takes.
ID_CHARACTERS = string.ascii_letters + string.digits + "._:-@=;+"
ID_CHARS_MAX = 128
ENTITLEMENTS_MAX, ENTITLEMENT_CHARS_MAX = 32, 64
WIDEST = Limits(
    hops_per_message=HOPS_PER_MESSAGE_MAX,
    return_depth=RETURN_DEPTH_MAX,
    open_turns=OPEN_TURNS_MAX,
)


def names(chance, count, chars=ID_CHARS_MAX):
    """Return ids of which nothing repeats, so that compression does not help."""
    return ["".join(chance.choices(ID_CHARACTERS, k=chars)) for _ in range(count)]


@dataclass(slots=True)
class Crowd(Conversation):
    """A session that everything happens in."""

    chance: random.Random = field(default_factory=random.Random)

    def fresh_id(self):
        """Return an id that compression does not help either."""
        bits = self.chance.getrandbits(128)
        return str(uuid.UUID(int=bits & ~(0xF << 76 | 0x3 << 62) | 0x7 << 76 | 0x2 << 62))

    def fill(self, agents):
        """Bring in every agent, in turns, interludes and locks, until nothing more fits."""
        chance = self.chance
        self.do(
            RouteMessage(
                request_id=self.fresh_id(),
                text="hello",
                new_task_id=self.fresh_id(),
                profile=Profile(
                    user_id="".join(chance.choices(ID_CHARACTERS, k=256)),
                    locale="".join(chance.choices(string.ascii_letters, k=35)),
                    channel="".join(chance.choices(ID_CHARACTERS, k=64)),
                    entitlements=tuple(names(chance, ENTITLEMENTS_MAX, ENTITLEMENT_CHARS_MAX)),
                ),
                task_expire_us=self.now_us + 10**15,
            )
        )
        fresh = iter(agents)
        self.hands_to(next(fresh), turn=self.open)
        self.asks()
        for _ in range(RETURN_DEPTH_MAX):
            self.says()
            self.answers(HandOff(next(fresh), mode=HandoffMode.INTERLUDE))
            self.asks()
            yield
        # While stickiness is off turns go from agent to agent, and the stack stays full.
        self.stickiness = False
        for _ in range(2 * OPEN_TURNS_MAX):
            self.wait(chance.uniform(0, 3)).says()
            self.answers(HandOff(next(fresh)))
            for _ in range(5):
                self.hands_to(next(fresh), turn=self.open, initiator=Initiator.OPERATOR)
            self.answers(by=next(fresh))
            yield
        self.stickiness = True
        for _ in range(SUGGESTION_REST_MESSAGES):
            self.says(about=next(fresh))
            self.picks(stay_option_id(self.state.suggestion.suggestion_id))
        self.wait(chance.uniform(0, 3)).says(about=next(fresh))
        yield
        self.answers(AskApproval(), request=self.open)
        self.says()
        yield

    def asks(self):
        """Let the holder ask something and wait for a time that nothing else has."""
        asked = FollowUp(timeout_us=self.chance.randrange(10**13))
        self.wait(self.chance.uniform(0, 3)).answers(asked)


@pytest.mark.parametrize("seed", range(5))
def test_state_stays_small_with_the_longest_ids(seed):
    """Every limit at its highest, every id at its longest, and nothing that repeats."""
    chance = random.Random(seed)
    agents = names(chance, 400)
    home = names(chance, 1)[0]
    topics = Topics("suggest", threshold=0.5, lock_threshold=0.5)
    everyone = [*map(Agent, agents), Agent(home)]
    registry = registry_of(*everyone, home=home, limits=WIDEST, topics=topics)
    chat = Crowd(registry, chance=chance)
    largest = 0
    for _ in chat.fill(agents):
        data = encode_state(chat.state)
        largest = max(largest, len(data))
        assert decode_state(data) == chat.state
    assert len(chat.state.open_turns) == OPEN_TURNS_MAX
    assert len(chat.stack) == RETURN_DEPTH_MAX
    assert chat.state.paused is not None
    assert chat.state.suggestion is not None
    assert len(chat.state.rests) == SUGGESTION_REST_MESSAGES - 2  # Two more messages since.
    print(f"largest state {largest} bytes")  # noqa: T201 - the figure behind the limits
    assert largest <= STATE_BYTES_MAX


def test_counts_by_agent_are_a_bounded_summary():
    """Agents beyond the bound share a row; those that have one keep it."""
    chat = Conversation(registry_of(*(Agent(f"agent-{number:03}") for number in range(100))))
    chat.says()
    for number in range(100):
        chat.answers(by=f"agent-{number:03}")
    chat.answers(by="agent-000")
    counts = chat.state.turns_by_agent
    assert counts["agent-000"] == 2
    assert sum(counts.values()) == 101
    rows = set(counts) - {OTHER_AGENTS}
    assert len(rows) == min(COUNTED_AGENTS_MAX, COUNTED_IDS_CHARS_MAX // len("agent-000"))
    assert counts[OTHER_AGENTS] == 100 - len(rows)


def test_registry_may_be_as_wide_as_the_test_assumes():
    """The limits are the ceilings of what a registry file may say."""
    with pytest.raises(ValueError, match="open_turns"):
        Limits(open_turns=OPEN_TURNS_MAX + 1)
    with pytest.raises(ValueError, match="return_depth"):
        Limits(return_depth=RETURN_DEPTH_MAX + 1)
    assert isinstance(registry_of(limits=WIDEST), Registry)


def park_another(chat, agents):
    """Let a task be parked with all that may hang on it: frames, a turn, and its approval."""
    chat.says()
    chat.hands_to(next(agents), turn=chat.open)
    chat.asks()
    for _ in range(RETURN_DEPTH_MAX):
        chat.says()
        chat.answers(HandOff(next(agents), mode=HandoffMode.INTERLUDE))
        chat.asks()
    chat.says()
    chat.wait(chat.chance.uniform(0, 3)).says()
    outcome = AskApproval()
    command = CompleteTurn(
        chat.open, chat.state.find_turn(chat.open).holder, outcome, chat.fresh_id()
    )
    chat.do(command, NO_FACTS)


def test_state_with_parked_tasks_stays_within_what_engines_take():
    """Eight parked tasks, each with the deepest stack of the longest ids, and the foreground too.

    With real ids, of 20 characters, it is as small as one without them may be.
    """
    sizes = {}
    for chars in (20, ID_CHARS_MAX):
        chance = random.Random(chars)
        agents = names(chance, 400, chars)
        rule = ApprovalRule(by="other_than_owner", needs=2, expires_us=10**12)
        registry = registry_of(
            *map(Agent, agents), limits=WIDEST, while_paused=WhilePaused.PARK, approvals=rule
        )
        chat = Crowd(registry, chance=chance)
        fresh = iter(agents)
        for _ in range(strands.PARKED_MAX + 1):
            park_another(chat, fresh)
        assert len(chat.state.apart.parked) == strands.PARKED_MAX
        assert chat.state.paused is not None, "the ninth is held"
        assert {len(each.stack) for each in chat.state.apart.parked} == {RETURN_DEPTH_MAX}
        data = encode_state(chat.state)
        assert decode_state(data) == chat.state
        sizes[chars] = len(data)
    print(f"largest states with parked tasks, by characters of ids: {sizes}")  # noqa: T201
    assert sizes[20] <= STATE_BYTES_MAX
    assert sizes[ID_CHARS_MAX] <= PARKED_STATE_BYTES_MAX
