"""The example stories, played completely: messages over gRPC, agents by script."""

from collections import Counter
from dataclasses import dataclass, field

import pytest

from agent_routing.v1 import dispatch_pb2, item_pb2, route_reason_pb2
from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.core import events as ev
from routing_service.examples import EXAMPLES
from routing_service.examples.agent_reply import (
    AgentTurn,
    AskApproval,
    Complete,
    Fail,
    FollowUp,
    HandOff,
    Outcome,
    Proceed,
)
from routing_service.examples.stories import STORIES, StoryTurn
from routing_service.examples.transfer_tool import describe_refusal, describe_tool
from tests.rpc.live_service import (
    INTERLUDE,
    TRANSFER,
    ask,
    fail,
    finish,
    fresh_id,
    hand_to,
    is_replayed,
    outcome,
    outcome_status,
    proceed,
    reason,
    refusal,
    serving,
    task_status,
)

USER = "ana"
USER_INITIATOR = 3


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
        case AskApproval(prompt=prompt):
            return {"approval_needed": pb.ApprovalNeededOutcome(prompt=prompt)}
        case Fail(message=message):
            return fail(message)


@dataclass
class Played:
    """The result of one message."""

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
            "metadata": dict(self.story.metadata),
        }
        self.statuses = Counter()

    async def play(self, turn):
        """Play one turn of the story: a user's message, or a person's decision."""
        if turn.decision:
            return await self.resume(turn)
        played = Played()
        given = {"request_id": fresh_id(), "items": [to_item(item) for item in turn.items]}
        routed = await self.chat.say(turn.user_text, **given)
        if turn.comes_twice:
            again = self.chat.say(turn.user_text, **given)
            assert await again == routed
            assert await is_replayed(again)
        if routed.HasField("reply"):
            played.command = routed.reply.command.removeprefix("/")
            played.shown.append(routed.reply.text)
            # A reply explains a refused choice in a sentence; the call's record names the rules.
            played.refused_rules = self.service.observer.calls[-1].refused_rules
        await self.follow(routed.dispatch if routed.HasField("dispatch") else None, played)
        return played

    async def resume(self, turn):
        """Decide the pending approval."""
        pending = (await self.chat.status()).pending_approval
        request = pb.ResumeTaskRequest(
            session_id=self.chat.session_id,
            task_id=pending.task_id,
            request_id=pending.request_id,
            decision=dispatch_pb2.Decision.Value(f"DECISION_{turn.decision.upper()}"),
            comment=turn.user_text,
        )
        resumed = await self.service.call("ResumeTask", request)
        if turn.comes_twice:
            again = self.service.call("ResumeTask", request)
            assert await again == resumed
            assert await is_replayed(again)
        played = Played()
        await self.follow(resumed.dispatch, played)
        return played

    async def follow(self, dispatch, played):
        """Let the agents answer until there is no next dispatch."""
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

    async def answer(self, dispatch, played):
        """Let an agent answer; if its handoff is refused, it uses another outcome."""
        turn = AgentTurn(
            agent_id=dispatch.agent.agent_id,
            text=dispatch.text,
            locale=self.story.locale,
            reason=reason(dispatch).lower(),
            handoff_reason=dispatch.handoff.reason,
            handoff_context=dict(dispatch.handoff.context),
            item_types=tuple(item.content_type for item in dispatch.items),
            decision=decision_word(dispatch),
            decision_comment=dispatch.resume.comment,
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

    async def as_story_turn(self, turn, played):
        """Return the result of a turn in the story's format."""
        status = await self.chat.status()
        return StoryTurn(
            turn.user_text,
            tuple(played.agent_ids),
            played.reason,
            expect_locked_after=status.locked,
            expect_command=played.command,
            expect_refused_rules=played.refused_rules,
            expect_active_after=status.active_agent.agent_id,
            expect_paused_after=status.HasField("pending_approval"),
            items=turn.items,
            decision=turn.decision,
            comes_twice=turn.comes_twice,
        )


def to_item(item):
    """Return a story's item as a message of the contract."""
    if item.uri:
        return item_pb2.Item(content_type=item.content_type, uri=item.uri)
    return item_pb2.Item(content_type=item.content_type, text=item.text)


def decision_word(dispatch):
    """Return a person's decision, or "" without one."""
    if not dispatch.HasField("resume"):
        return ""
    return dispatch_pb2.Decision.Name(dispatch.resume.decision).removeprefix("DECISION_").lower()


@pytest.mark.parametrize("name", STORIES)
async def test_story_plays_over_the_wire_as_it_is_written(tmp_path, name):
    """Every agent, reason, lock, command and active agent, message by message."""
    async with serving(tmp_path, STORIES[name].example) as service:
        player = Player(service, name)
        for turn in STORIES[name].turns:
            played = await player.play(turn)
            assert await player.as_story_turn(turn, played) == turn
            # Every message gets a reply.
            assert played.shown
        assert set(player.statuses) == {"APPLIED"}
        tasks = sorted(await player.chat.tasks(), key=lambda task: task.create_time.ToNanoseconds())
        assert {tuple(sorted(task.metadata.items())) for task in tasks} == {
            tuple(sorted(player.story.metadata))
        }
        if player.story.expect_task_statuses:
            statuses = tuple(task_status(task.status).lower() for task in tasks)
            assert statuses == player.story.expect_task_statuses


async def test_story_goes_on_over_restarts(tmp_path):
    """A new server for every message: the store has everything that matters."""
    name = "tutor"
    seen = []
    agents = None
    for turn in STORIES[name].turns:
        async with serving(tmp_path, STORIES[name].example) as service:
            player = Player(service, name)
            agents = player.agents = agents or player.agents
            played = await player.play(turn)
            seen.append(tuple(played.agent_ids))
    assert seen == [turn.expect_agent_ids for turn in STORIES[name].turns]


@pytest.mark.parametrize("name", STORIES)
async def test_log_of_a_story_holds_every_word_of_it(tmp_path, name):
    """Each dispatch is a turn of the history, in order, with its question and answer."""
    async with serving(tmp_path, STORIES[name].example) as service:
        player = Player(service, name)
        agent_ids, shown = [], []
        for turn in STORIES[name].turns:
            played = await player.play(turn)
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
    """Play a story; return the number of messages to its home agent, and of all messages."""
    async with serving(folder, STORIES[name].example, stickiness=stickiness) as service:
        player = Player(service, name, f"{name}-{stickiness}")
        for turn in STORIES[name].turns:
            await player.play(turn)
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
    """For every example."""
    sticky = await calls_of_the_home_agent(tmp_path, name, "enabled")
    off = await calls_of_the_home_agent(tmp_path, name, "disabled")
    assert 0 < sticky < off


async def test_each_budget_agent_asks_and_gets_the_answer_itself(tmp_path):
    """Four agents, each locked at least once, and answered without the orchestrator."""
    async with serving(tmp_path, "budget") as service:
        player = Player(service, "budget")
        for turn in STORIES["budget"].turns:
            await player.play(turn)
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


async def test_erp_hands_over_in_every_way_and_tells_who(tmp_path):
    """By the supervisor, by an agent, and by the user, whose handoff is refused if not allowed."""
    async with serving(tmp_path, "erp") as service:
        player = Player(service, "erp")
        for turn in STORIES["erp"].turns:
            await player.play(turn)
        events = await player.chat.events()
        handoffs = [e for e in events if isinstance(e, ev.AgentHandedOff)]
        assert [(e.initiator.value, e.from_agent, e.to_agent) for e in handoffs] == [
            ("supervisor", "orchestrator", "inventory"),
            ("agent", "inventory", "purchasing"),
            ("user", "purchasing", "sales_orders"),
            ("agent", "sales_orders", "finance"),
        ]
        # The agent's knowledge went along, and the next agent did not ask for it again.
        assert handoffs[1].context == {"item": "blue widgets", "quantity": 50}
        assert handoffs[1].reason == "the user wants more than there is"
        # Scripts try a handoff before they make it, so only trials are refused.
        assert not await player.chat.audit()
        for target, rules in (("journal", ["not_system"]), ("finance", ["user_selectable"])):
            refused = await refusal(player.chat.set_active(target, initiator=USER_INITIATOR))
            assert refused.reason == "HANDOFF_REFUSED"
            assert set(rules) <= set(refused.rules)
        unknown = await refusal(player.chat.set_active("robots", initiator=USER_INITIATOR))
        assert tuple(unknown) == ("NOT_FOUND", "UNKNOWN_AGENT")
        assert "registered agents: orchestrator, inventory" in unknown.message


async def test_transfer_tool_lists_whom_an_agent_may_hand_to_and_tells_of_a_refusal(tmp_path):
    """The targets come from the service's registry; a model can read the refusal."""
    async with serving(tmp_path, "erp") as service:
        chat = await service.chat().with_agent("inventory")
        answer = await service.call(
            "ListAgents",
            pb.ListAgentsRequest(
                session_id=chat.session_id, user_id="ana", from_agent_id="inventory"
            ),
        )
        targets = [(agent.agent_id, agent.description) for agent in answer.agents]
        described = describe_tool(targets)
        listed = [line.removeprefix("- ") for line in described.splitlines()[1:]]
        assert [line.partition(":")[0] for line in listed] == [
            "orchestrator",
            "purchasing",
            "sales_orders",
        ]
        assert "Orders from suppliers, and when they come." in described
        routed = await chat.say("into the journal, please")
        refused = await refusal(chat.answer(routed.dispatch, **hand_to("journal")))
        told = describe_refusal(refused.message)
        assert told.startswith('transfer_to_agent was refused: the handoff from "inventory"')
        assert "not_system" in told
        assert "Answer the user yourself" in told
        assert describe_tool([]).endswith("nobody to hand it to.")


async def test_platform_keeps_files_metadata_and_decisions_with_their_task(tmp_path):
    """Items of messages, metadata of callers, and each decision with its author."""
    async with serving(tmp_path, "platform") as service:
        player = Player(service, "platform")
        for turn in STORIES["platform"].turns:
            await player.play(turn)
        turns = await player.chat.turns(page_size=1000)
        first = next(turn for turn in turns if turn.agent_id == "planner")
        assert [(i.content_type, i.uri or i.text) for i in first.user_items] == [
            ("text/csv", "quarter,sales\n1,1040\n2,1123\n"),
            ("image/png", "https://files.example.com/returns.png"),
        ]
        # The deployer's requests and their outcomes: asked twice, resumed twice.
        ended = [outcome(turn)[0] for turn in turns if turn.agent_id == "deployer"]
        assert ended == [
            "APPROVAL_NEEDED",
            "PROCEED",
            "FOLLOW_UP",
            "APPROVAL_NEEDED",
            "COMPLETE",
        ]
        events = await player.chat.events()
        resumed = [e for e in events if isinstance(e, ev.TaskResumed)]
        assert [(e.decision.value, e.comment) for e in resumed] == [
            ("reject", "not on a Friday"),
            ("approve", "go ahead"),
        ]
        # Every request of the history is in the log, under its own task.
        assert len({turn.request_id for turn in turns}) == len(turns)
        deployed = {turn.task_id for turn in turns if turn.agent_id == "deployer"}
        assert len(deployed) == 1
        assert deployed != {first.task_id}
