"""The example stories, played end to end: every message over gRPC, every agent by its script."""

from collections import Counter
from dataclasses import dataclass, field

import pytest

from agent_routing.v1 import route_reason_pb2
from routing_service.examples import EXAMPLES
from routing_service.examples.agent_reply import (
    AgentTurn,
    Complete,
    Fail,
    FollowUp,
    HandOff,
    Outcome,
    Proceed,
)
from routing_service.examples.stories import STORIES, StoryTurn
from tests.rpc.live_service import (
    INTERLUDE,
    TRANSFER,
    ask,
    fail,
    finish,
    hand_to,
    outcome_status,
    proceed,
    reason,
    serving,
)

USER = "ana"


def to_fields(given: Outcome):
    """Return a script's outcome as fields of CompleteTurnRequest."""
    match given:
        case Proceed():
            return proceed()
        case FollowUp(timeout_s=timeout_s):
            return ask(timeout_s)
        case Complete(summary=summary, message=message):
            return finish(summary, message)
        case HandOff(agent_id, why, context, message, mode):
            return hand_to(
                agent_id,
                reason=why,
                context=context,
                message=message,
                mode=INTERLUDE if mode == "interlude" else TRANSFER,
            )
        case Fail(message=message):
            return fail(message)


@dataclass
class Played:
    """What came of one message."""

    agent_ids: list[str] = field(default_factory=list)
    reason: str = ""
    command: str = ""
    shown: list[str] = field(default_factory=list)
    refused_rules: tuple[str, ...] = ()


class Player:
    """Plays one story in one session."""

    def __init__(self, service, name, session_id=""):
        self.story = STORIES[name]
        self.service = service
        self.agents = EXAMPLES[self.story.example].make_agents()
        self.chat = service.chat(session_id or f"story-{name}", user_id=USER)
        self.chat.profile = {
            "locale": self.story.locale,
            "channel": self.story.channel,
            "entitlements": self.story.entitlements,
        }
        self.statuses = Counter()

    async def say(self, text):
        """Send a message and let the agents answer until nobody goes on."""
        played = Played()
        routed = await self.chat.say(text)
        if routed.HasField("reply"):
            played.command = routed.reply.command.removeprefix("/")
            played.shown.append(routed.reply.text)
            # A reply tells in words why a choice is refused; the call's record names the rules.
            played.refused_rules = self.service.observer.calls[-1].refused_rules
        dispatch = routed.dispatch if routed.HasField("dispatch") else None
        if dispatch is not None:
            played.reason = reason(dispatch)
        while dispatch is not None:
            played.agent_ids.append(dispatch.agent.agent_id)
            if dispatch.handoff.message:
                played.shown.append(dispatch.handoff.message)
            answered = await self.answer(dispatch, played)
            if answered.text:
                played.shown.append(answered.text)
            self.statuses[outcome_status(answered)] += 1
            dispatch = answered.next if answered.HasField("next") else None
        return played

    async def answer(self, dispatch, played):
        """Let an agent answer; one whose handoff is refused finds another way."""
        turn = AgentTurn(
            agent_id=dispatch.agent.agent_id,
            text=dispatch.text,
            locale=self.story.locale,
            reason=reason(dispatch).lower(),
            handoff_reason=dispatch.handoff.reason,
            locked=dispatch.locked,
        )
        reply = self.agents.answer(turn)
        fields = to_fields(reply.outcome)
        if isinstance(reply.outcome, HandOff):
            tried = await self.chat.set_active(
                reply.outcome.agent_id, turn_request_id=dispatch.request_id, validate_only=True
            )
            refused = tuple(v.rule for v in tried.verdicts if not v.allowed)
            if refused:
                played.refused_rules = refused
                again = AgentTurn(
                    turn.agent_id, turn.text, turn.locale, refused_rules=played.refused_rules
                )
                reply = self.agents.answer(again)
                fields = to_fields(reply.outcome)
        return await self.chat.answer(dispatch, reply.text, **fields)

    async def as_story_turn(self, text, played):
        """Describe what came of a message the way a story does."""
        status = await self.chat.status()
        return StoryTurn(
            text,
            tuple(played.agent_ids),
            played.reason,
            expect_locked_after=status.locked,
            expect_command=played.command,
            expect_refused_rules=played.refused_rules,
            expect_active_after=status.active_agent.agent_id,
        )


@pytest.mark.parametrize("name", STORIES)
async def test_story_plays_over_the_wire_as_it_is_written(tmp_path, name):
    """Every agent, reason, lock, command and active agent, message by message."""
    async with serving(tmp_path, STORIES[name].example) as service:
        player = Player(service, name)
        for turn in STORIES[name].turns:
            played = await player.say(turn.user_text)
            assert await player.as_story_turn(turn.user_text, played) == turn
            # A user is never left without a word.
            assert played.shown
        assert set(player.statuses) == {"APPLIED"}


async def test_story_goes_on_over_restarts(tmp_path):
    """A new server for every message: all that matters is in the store."""
    name = "tutor"
    seen = []
    agents = None
    for turn in STORIES[name].turns:
        async with serving(tmp_path, STORIES[name].example) as service:
            player = Player(service, name)
            agents = player.agents = agents or player.agents
            played = await player.say(turn.user_text)
            seen.append(tuple(played.agent_ids))
    assert seen == [turn.expect_agent_ids for turn in STORIES[name].turns]


@pytest.mark.parametrize("name", STORIES)
async def test_log_of_a_story_holds_every_word_of_it(tmp_path, name):
    """Each dispatch is a turn of the history, in order, with what was asked and answered."""
    async with serving(tmp_path, STORIES[name].example) as service:
        player = Player(service, name)
        agent_ids, shown = [], []
        for turn in STORIES[name].turns:
            played = await player.say(turn.user_text)
            agent_ids += played.agent_ids
            shown += played.shown
        turns = await player.chat.turns(page_size=1000)
        assert [turn.agent_id for turn in turns] == agent_ids
        answers = [turn.agent_text for turn in turns if turn.agent_text]
        assert [text for text in shown if text in answers] == answers
        counts = dict((await player.chat.status()).turns_by_agent)
        assert counts == Counter(agent_ids)
        changes = await player.chat.changes()
        assert [change.revision for change in changes] == list(range(1, len(changes) + 1))


async def calls_of_the_home_agent(folder, name, stickiness):
    """Play a story; return how many messages came to its home agent, and how many there were."""
    async with serving(folder, STORIES[name].example, stickiness=stickiness) as service:
        player = Player(service, name, f"{name}-{stickiness}")
        for turn in STORIES[name].turns:
            await player.say(turn.user_text)
        calls = service.observer.dispatches(player.chat.session_id)
        turns = await player.chat.turns(page_size=1000)
        listed = Counter(turn.agent_id for turn in turns)
    home = {"tutor": "coordinator", "tax": "coordinator", "budget": "orchestrator"}
    assert calls == listed
    return calls[home[STORIES[name].example]]


async def test_stickiness_saves_four_fifths_of_the_coordinator_s_calls(tmp_path):
    """The tutor's story, of more than ten turns, with stickiness on and off."""
    assert len(STORIES["tutor"].turns) >= 10
    sticky = await calls_of_the_home_agent(tmp_path, "tutor", "enabled")
    off = await calls_of_the_home_agent(tmp_path, "tutor", "disabled")
    messages = [turn for turn in STORIES["tutor"].turns if not turn.expect_command]
    assert sticky == 3
    assert off == len(messages)
    assert sticky * 5 <= off


@pytest.mark.parametrize("name", ["tax", "budget"])
async def test_supervisor_is_never_called_more_often_with_stickiness_on(tmp_path, name):
    """Whatever the example."""
    sticky = await calls_of_the_home_agent(tmp_path, name, "enabled")
    off = await calls_of_the_home_agent(tmp_path, name, "disabled")
    assert 0 < sticky < off


async def test_each_budget_agent_asks_and_gets_the_answer_itself(tmp_path):
    """Four agents, each locked at least once, each answered without the orchestrator."""
    async with serving(tmp_path, "budget") as service:
        player = Player(service, "budget")
        for turn in STORIES["budget"].turns:
            await player.say(turn.user_text)
        turns = await player.chat.turns(page_size=1000)
        locked = route_reason_pb2.ROUTE_REASON_FOLLOW_UP_LOCK
        assert {turn.agent_id for turn in turns if turn.reason == locked} == {
            "budget_advisor",
            "jar_manager",
            "fee_manager",
            "transaction_classifier",
        }
        events = await player.chat.events()
        engaged = Counter(e.agent_id for e in events if type(e).__name__ == "LockEngaged")
        assert set(engaged) == {
            "budget_advisor",
            "jar_manager",
            "fee_manager",
            "transaction_classifier",
        }
        assert not (await player.chat.status()).HasField("active_agent")
