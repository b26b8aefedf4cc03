"""How a recorded dialogue becomes calls, and how these are counted."""

import uuid
from dataclasses import dataclass, field

import grpc
import pytest

from agent_routing.errors import HandoffRefused, InvalidField, Unavailable
from agent_routing.v1 import routing_service_pb2 as pb
from agent_routing.v1.dispatch_pb2 import Dispatch
from agent_routing.v1.route_reason_pb2 import ROUTE_REASON_TOPIC_SWITCH
from agent_routing.v1.turn_pb2 import OUTCOME_STATUS_APPLIED, OUTCOME_STATUS_STORED_ONLY
from routing_service.replay.choices import ReplayPolicy, SwitchMode
from routing_service.replay.figures import Calibration, ReplayFigures
from routing_service.replay.play import Stage, play_dialogue, session_id_for
from routing_service.replay.recorded_dialogue import RecordedDialogue, RecordedTurn

HOME = "supervisor"


@dataclass
class ModelServer:
    """Routes as the service does for one session and one policy, in a few lines of its own."""

    policy: ReplayPolicy = ReplayPolicy.STICKY
    completing_releases: bool = False
    refuses: frozenset[tuple[str, str]] = frozenset()
    active: str = ""
    locked: bool = False
    holder: str = ""
    calls: list[object] = field(default_factory=list)

    async def route(self, request: pb.RouteRequest) -> pb.RouteResponse:
        self.calls.append(request)
        self.holder = self.active or HOME
        return pb.RouteResponse(dispatch=self._dispatch(), supervisor_bypassed=self.holder != HOME)

    async def complete_turn(self, request: pb.CompleteTurnRequest) -> pb.CompleteTurnResponse:
        self.calls.append(request)
        assert request.agent_id == self.holder
        outcome = request.WhichOneof("outcome")
        if outcome == "handoff":
            target = request.handoff.agent_id
            if (self.holder, target) in self.refuses:
                raise HandoffRefused(
                    "no", code=grpc.StatusCode.FAILED_PRECONDITION, reason="HANDOFF_REFUSED"
                )
            self.holder, self.locked = target, False
            self.active = "" if target == HOME else target
            return self._answer(next=self._dispatch())
        self.locked = outcome == "follow_up" and self.policy is not ReplayPolicy.SUPERVISOR
        stays = self.locked or self.policy is ReplayPolicy.STICKY
        if self.holder == HOME or not stays or (outcome == "complete" and self.completing_releases):
            self.active, self.locked = "", False
        return self._answer()

    def _dispatch(self) -> Dispatch:
        dispatch = Dispatch(request_id=str(uuid.UUID(int=len(self.calls))), locked=self.locked)
        dispatch.agent.agent_id = self.holder
        return dispatch

    def _answer(self, **fields: object) -> pb.CompleteTurnResponse:
        response = pb.CompleteTurnResponse(
            outcome_status=OUTCOME_STATUS_APPLIED, locked=self.locked, **fields
        )
        response.active_agent.agent_id = self.active
        return response

    @property
    def steps(self) -> list[str]:
        """The calls in short: "route", or who completed with what."""
        return [
            "route"
            if isinstance(call, pb.RouteRequest)
            else f"{call.agent_id} {call.WhichOneof('outcome')} {call.handoff.agent_id}".rstrip()
            for call in self.calls
        ]


def user(agent, text="a message", *, uncertain=False):
    """Make a user's turn that is for an agent."""
    return RecordedTurn("user", text, agent, uncertain=uncertain)


def answer(agent, text="an answer", *, asks=False, done=False):
    """Make an agent's turn."""
    return RecordedTurn("agent", text, agent, requires_follow_up=asks, task_complete=done)


def dialogue(*turns, dialogue_id="one", language="en"):
    """Make a dialogue."""
    return RecordedDialogue(dialogue_id, list(turns), "made", language)


def stage(policy=ReplayPolicy.STICKY, switch=SwitchMode.SUPERVISOR, run_label="run"):
    """Make what all dialogues of a run share."""
    return Stage(policy, switch, HOME, run_label)


TOPIC_CHANGE = dialogue(
    user("hotels"), answer("hotels"), user("weather"), answer("weather"), user("weather")
)


async def test_change_of_topic_goes_by_the_supervisor():
    """The misled agent returns the message and the supervisor hands it over: one turn."""
    server = ModelServer()
    tally, error = await play_dialogue(TOPIC_CHANGE, server, stage())
    assert not error
    assert server.steps == [
        "route",
        "supervisor handoff hotels",
        "hotels proceed",
        "route",
        "hotels handoff supervisor",
        "supervisor handoff weather",
        "weather proceed",
        "route",
    ]
    assert (tally.user_turns, tally.saved_turns, tally.supervisor_calls) == (3, 1, 2)
    assert (tally.first_right_turns, tally.misrouted_turns, tally.handoffs) == (1, 1, 2)


async def test_change_of_topic_between_agents_leaves_the_supervisor_out():
    """Agents that hand over to each other cost a supervisor call for the first message only."""
    server = ModelServer()
    tally, _ = await play_dialogue(TOPIC_CHANGE, server, stage(switch=SwitchMode.AGENT))
    assert "hotels handoff weather" in server.steps
    assert (tally.saved_turns, tally.supervisor_calls, tally.handoffs) == (2, 1, 2)
    assert tally.misrouted_turns == 1


async def test_stuck_user_stays_until_the_topic_returns():
    """No correction happens: the misled agent says nothing and keeps the conversation."""
    server = ModelServer()
    recorded = dialogue(
        user("hotels"),
        answer("hotels"),
        user("weather"),
        answer("weather", "sunny"),
        user("weather"),
        answer("weather", "still sunny"),
        user("hotels"),
        answer("hotels", "booked"),
    )
    tally, _ = await play_dialogue(recorded, server, stage(switch=SwitchMode.STUCK))
    assert (tally.stuck_turns, tally.misrouted_turns, tally.handoffs) == (2, 2, 1)
    texts = [call.text for call in server.calls if isinstance(call, pb.CompleteTurnRequest)]
    assert texts == ["", "an answer", "", "", "booked"]


async def test_stuck_lock_waits_on():
    """A misled agent that had asked keeps asking; otherwise a lock would end too early."""
    server = ModelServer(policy=ReplayPolicy.FOLLOW_UP)
    recorded = dialogue(
        user("hotels"),
        answer("hotels", asks=True),
        user("weather"),
        answer("weather"),
        user("weather"),
    )
    tally, _ = await play_dialogue(
        recorded, server, stage(ReplayPolicy.FOLLOW_UP, SwitchMode.STUCK)
    )
    assert tally.stuck_turns == 2
    assert server.steps[-2] == "hotels follow_up"


async def test_lock_counts_as_saved_whoever_the_answer_is_for():
    """A lock bypasses the supervisor; misrouted messages are counted separately."""
    recorded = dialogue(
        user("hotels"),
        answer("hotels", asks=True),
        user("weather"),
        answer("weather"),
        user("weather"),
    )
    for switch in (SwitchMode.SUPERVISOR, SwitchMode.AGENT):
        server = ModelServer(policy=ReplayPolicy.FOLLOW_UP)
        tally, _ = await play_dialogue(recorded, server, stage(ReplayPolicy.FOLLOW_UP, switch))
        assert (tally.saved_turns, tally.misrouted_turns) == (1, 1)
        assert tally.unsupervised_turns == (switch is SwitchMode.AGENT)


async def test_supervisor_policy_saves_nothing():
    """Every message goes to the supervisor, so none is misrouted."""
    server = ModelServer(policy=ReplayPolicy.SUPERVISOR)
    tally, _ = await play_dialogue(TOPIC_CHANGE, server, stage(ReplayPolicy.SUPERVISOR))
    assert (tally.saved_turns, tally.supervisor_calls, tally.misrouted_turns) == (0, 3, 0)
    assert tally.handoffs == 3


async def test_outcomes_are_those_recorded():
    """A question takes precedence over a completion, so the agent gets the answer."""
    server = ModelServer()
    recorded = dialogue(
        user("hotels"),
        answer("hotels", asks=True),
        user("hotels"),
        answer("hotels", done=True),
        user("hotels"),
        answer("hotels", asks=True, done=True),
        user("hotels"),
        answer("hotels"),
    )
    await play_dialogue(recorded, server, stage())
    ends = [step for step in server.steps if step.startswith("hotels")]
    assert ends == ["hotels follow_up", "hotels complete", "hotels follow_up", "hotels proceed"]


async def test_turn_of_nobody_is_the_supervisors():
    """A greeting before any task is answered by the supervisor, which counts as right."""
    server = ModelServer()
    recorded = dialogue(user(None), answer(None), user("hotels"), answer("hotels"), user(None))
    tally, _ = await play_dialogue(recorded, server, stage())
    assert server.steps == [
        "route",
        "supervisor proceed",
        "route",
        "supervisor handoff hotels",
        "hotels proceed",
        "route",
        "hotels handoff supervisor",
    ]
    assert (tally.first_right_turns, tally.misrouted_turns, tally.saved_turns) == (1, 1, 0)
    assert tally.handoffs == 1


async def test_uncertain_turn_is_played_and_not_scored():
    """It has no reliable label, but the message is still sent."""
    server = ModelServer()
    recorded = dialogue(user("hotels"), answer("hotels"), user("weather", uncertain=True))
    tally, _ = await play_dialogue(recorded, server, stage(switch=SwitchMode.AGENT))
    assert (tally.user_turns, tally.scored_turns, tally.misrouted_turns) == (2, 1, 0)
    assert tally.saved_turns == 1


async def test_refused_direct_handoff_goes_by_the_supervisor():
    """Every agent may hand over to the home agent, so such registries can be played."""
    server = ModelServer(refuses=frozenset({("hotels", "weather")}))
    tally, error = await play_dialogue(TOPIC_CHANGE, server, stage(switch=SwitchMode.AGENT))
    assert not error
    assert server.steps[3:7] == [
        "route",
        "hotels handoff weather",
        "hotels handoff supervisor",
        "supervisor handoff weather",
    ]
    assert (tally.handoffs_refused, tally.saved_turns, tally.errors) == (1, 1, 0)


async def test_refused_supervisor_answers_itself():
    """A turn that cannot reach its owner ends with the supervisor, which has no recorded text."""
    server = ModelServer(refuses=frozenset({("supervisor", "hotels")}))
    tally, error = await play_dialogue(dialogue(user("hotels"), answer("hotels")), server, stage())
    assert not error
    assert server.steps == ["route", "supervisor handoff hotels", "supervisor proceed"]
    assert server.calls[-1].text == ""
    assert (tally.handoffs_refused, tally.stuck_turns) == (1, 0)


async def test_answer_by_another_agent_is_a_handoff_within_the_turn():
    """Records in which agents pass a message on are played as what they were."""
    server = ModelServer()
    recorded = dialogue(user("hotels"), answer("weather"))
    tally, _ = await play_dialogue(recorded, server, stage(switch=SwitchMode.AGENT))
    assert server.steps == [
        "route",
        "supervisor handoff hotels",
        "hotels handoff weather",
        "weather proceed",
    ]
    assert tally.handoffs == 2


async def test_error_ends_its_dialogue_and_is_counted():
    """Turns that could not be played are reported, and get no invented outcome."""

    class Broken(ModelServer):
        async def complete_turn(self, request):
            raise InvalidField(
                "text: too long", code=grpc.StatusCode.INVALID_ARGUMENT, reason="INVALID_FIELD"
            )

    tally, error = await play_dialogue(TOPIC_CHANGE, Broken(), stage())
    assert error == "text: too long [INVALID_FIELD]"
    assert (tally.errors, tally.user_turns, tally.dialogues) == (1, 0, 1)


async def test_answer_that_moved_nothing_is_an_error():
    """Figures of a session that another caller changes would be meaningless."""

    class Meddled(ModelServer):
        async def complete_turn(self, request):
            return pb.CompleteTurnResponse(outcome_status=OUTCOME_STATUS_STORED_ONLY)

    tally, error = await play_dialogue(TOPIC_CHANGE, Meddled(), stage())
    assert "another client" in error
    assert tally.errors == 1


async def test_server_that_stays_away_is_not_an_error_of_the_dialogue():
    """The whole replay stops: each further dialogue would only wait again."""

    class Away(ModelServer):
        async def route(self, request):
            raise Unavailable("gone", code=grpc.StatusCode.UNAVAILABLE)

    with pytest.raises(Unavailable):
        await play_dialogue(TOPIC_CHANGE, Away(), stage())


async def test_same_run_makes_the_same_requests():
    """An interrupted run is resumed by repeating it: the same sessions and request ids."""
    first, second, other = ModelServer(), ModelServer(), ModelServer()
    await play_dialogue(TOPIC_CHANGE, first, stage())
    await play_dialogue(TOPIC_CHANGE, second, stage())
    await play_dialogue(TOPIC_CHANGE, other, stage(run_label="other"))

    def ids(server):
        return [
            (c.session_id, c.request_id) for c in server.calls if isinstance(c, pb.RouteRequest)
        ]

    assert ids(first) == ids(second)
    assert not set(ids(first)) & set(ids(other))
    assert len(set(ids(first))) == 3


async def test_digest_is_of_decisions_alone():
    """Other ids do not change the digest; another policy does."""
    tallies = [
        (await play_dialogue(TOPIC_CHANGE, ModelServer(), a_stage))[0].digest
        for a_stage in (
            stage(),
            stage(run_label="other"),
            stage(switch=SwitchMode.AGENT),
        )
    ]
    assert tallies[0] == tallies[1] != tallies[2]


async def test_recorded_commands_are_taken_as_text():
    """A recorded slash is text, and runs no command."""
    server = ModelServer()
    await play_dialogue(dialogue(user("hotels", "/reset everything")), server, stage())
    assert server.calls[0].literal_text
    assert server.calls[0].text == "/reset everything"
    assert server.calls[0].locale == "en"


@pytest.mark.parametrize("dialogue_id", ["with space", "ñandú", "x" * 200, "a/b"])
def test_ids_that_no_session_can_have_are_hashed(dialogue_id):
    """Corpora name dialogues as they like; sessions have a form."""
    name = session_id_for("run", dialogue(dialogue_id=dialogue_id))
    assert name.startswith("replay:")
    assert len(name) <= 128
    assert name.isascii()
    assert name != session_id_for("run", dialogue(dialogue_id=dialogue_id + "2"))


def test_plain_ids_stay_readable():
    """An operator finds the session of a dialogue by its name."""
    assert session_id_for("a", dialogue(dialogue_id="sgd-1_0")) == "replay:a:made:sgd-1_0"


# --- Topics ---


@dataclass
class TopicServer(ModelServer):
    """Detects topics by what messages spell out: #hotels is sure, #hotels? is a coin's toss."""

    suggests: bool = False
    offered: str = ""

    async def route(self, request: pb.RouteRequest) -> pb.RouteResponse:
        self.calls.append(request)
        if request.quick_reply_id:
            if request.quick_reply_id == "stay":
                return pb.RouteResponse()
            self.holder = self.active = self.offered
            return pb.RouteResponse(dispatch=self._dispatch(), supervisor_bypassed=True)
        self.holder = self.active or HOME
        name = request.text.partition("#")[2]
        named, confidence = name.rstrip("?"), 0.5 if name.endswith("?") else 0.9
        switches = bool(named) and named != self.holder and confidence > 0.5
        if switches and not (self.suggests and self.active):
            self.holder = self.active = named
        response = pb.RouteResponse(
            dispatch=self._dispatch(), supervisor_bypassed=self.holder != HOME
        )
        if switches and self.suggests and self.holder != named:
            self.offered = named
            response.suggestion.agent.agent_id = named
            response.suggestion.options.add(id="accept")
            response.suggestion.options.add(id="stay")
        elif switches:
            response.dispatch.reason = ROUTE_REASON_TOPIC_SWITCH
        response.topic_trace.model = "spelt-1"
        if named:
            response.topic_trace.candidates.add(agent_id=named, confidence=confidence)
        else:
            response.topic_trace.stay = 0.9
        return response


async def test_switches_are_held_against_whose_the_message_was():
    """One right, one false, one to the wrong agent, one missed; those of unknown owner are none."""
    played = dialogue(
        user("hotels", "#hotels"),
        answer("hotels"),
        user("weather", "#weather"),
        answer("weather"),
        user("weather", "#hotels"),
        answer("weather"),
        user("hotels", "#banks"),
        answer("hotels"),
        user("weather", "no word of it"),
        answer("weather"),
        user("weather", "#hotels", uncertain=True),
    )
    server = TopicServer()

    tally, error = await play_dialogue(played, server, stage(switch=SwitchMode.AGENT))

    assert error == ""
    assert (tally.switches, tally.right_switches, tally.false_switches) == (3, 1, 1)
    assert tally.due_switches == 3
    # The first message was taken to its agent, which is no switch; no supervisor was called.
    assert tally.supervisor_calls == 0
    assert tally.judged_turns == tally.scored_turns == 5
    figures = ReplayFigures(tally, 1.0).as_dict()
    assert figures["switch_precision"] == pytest.approx(1 / 3, abs=1e-6)
    assert figures["switch_recall"] == pytest.approx(1 / 3, abs=1e-6)
    assert figures["false_switches_per_1000"] == 200.0


async def test_user_takes_right_offers_and_declines_wrong_ones():
    """In suggest mode an offer counts like the switch it would be."""
    played = dialogue(
        user("hotels", "#hotels"),
        answer("hotels"),
        user("weather", "#weather"),
        answer("weather"),
        user("weather", "#hotels"),
        answer("weather"),
    )
    server = TopicServer(suggests=True)

    tally, error = await play_dialogue(played, server, stage())

    assert error == ""
    assert server.steps == [
        "route",
        "hotels proceed",
        "route",
        "route",
        "weather proceed",
        "route",
        "route",
        "weather proceed",
    ]
    assert [call.quick_reply_id for call in server.calls if isinstance(call, pb.RouteRequest)] == [
        "",
        "",
        "accept",
        "",
        "stay",
    ]
    assert (tally.offers, tally.offers_accepted, tally.offers_declined) == (2, 1, 1)
    assert (tally.switches, tally.right_switches, tally.false_switches) == (2, 1, 1)
    # The offer was taken in time to spare the supervisor, though the first dispatch was wrong.
    assert tally.supervisor_calls == 0
    assert (tally.first_right_turns, tally.misrouted_turns) == (2, 1)


async def test_calibration_is_of_the_likeliest_of_all():
    """Verdicts for an agent, for the active one, and for none, each at its confidence."""
    played = dialogue(
        user("hotels", "#hotels"),
        answer("hotels"),
        user("hotels", "more"),
        answer("hotels"),
        user("weather", "#banks?"),
        answer("weather"),
    )

    tally, _ = await play_dialogue(played, TopicServer(), stage())

    # 0.9 and right, 0.9 and right, 0.5 and wrong.
    assert sum(tally.calibration.counts) == 3
    assert tally.calibration.error == pytest.approx((0.1 + 0.1 + 0.5) / 3)


def test_calibration_error_of_nothing_is_none():
    """The bins add up, in any order."""
    assert Calibration().error == 0.0
    sure = Calibration.of(1.0, is_right=True)
    unsure = Calibration.of(0.25, is_right=False)
    assert (sure + unsure) == (unsure + sure)
    assert (sure + unsure).error == pytest.approx(0.125)
