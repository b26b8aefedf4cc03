"""Every short sequence of commands, checked against the invariants.

A breadth-first search: states that differ in names and dates only are one state, so that the states
reached cover all sequences. never.py checks each step; since each state is the fold of its change
on the state before, every state is the fold of its whole log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import cast

import pytest

from routing_service.core import events as ev
from routing_service.core.commands import (
    AskApproval,
    CancelTask,
    ClearActiveAgent,
    Command,
    Complete,
    CompleteTurn,
    Decider,
    Erase,
    Expire,
    Fail,
    FollowUp,
    HandOff,
    KeepTurn,
    Outcome,
    Proceed,
    ResumeTask,
    RouteMessage,
    SetActiveAgent,
    TopicOpinion,
)
from routing_service.core.decide import decide
from routing_service.core.errors import Reason, RoutingError
from routing_service.core.events import ApprovalExpired, MessageRouted
from routing_service.core.facts import (
    NO_FACTS,
    Facts,
    LeasedTurns,
    OfferedMessage,
    PausedMessage,
    PlainAnswer,
    QueuedText,
    TopicVerdict,
)
from routing_service.core.people import unclaimed_due_us
from routing_service.core.registry import (
    SECOND_US,
    Agent,
    AgentTopics,
    ApprovalRule,
    Limits,
    OnComplete,
    Registry,
    Sticks,
    Topics,
    WhilePaused,
)
from routing_service.core.session import OpenTurn, SessionState, Strand, Tenure
from routing_service.core.suggestions import stay_option_id
from routing_service.core.task_fold import voter_hash
from routing_service.core.vocabulary import (
    ApprovalDecision,
    ClearScope,
    HandoffMode,
    Initiator,
    RouteReason,
)
from tests.simulation import parked
from tests.simulation.conversation import SESSION_ID, START_US, registry_of, uuid7
from tests.simulation.never import DAY_US, check_change, check_offer, ends_us

LOCK_TIMEOUT_US = 20 * SECOND_US
LIMITS = Limits(
    hops_per_message=3,
    return_depth=1,
    open_turns=2,
    turn_timeout_us=50 * SECOND_US,
    idle_timeout_us=400 * SECOND_US,
)
AGENTS = (
    Agent(
        "tutor",
        owns_session=True,
        on_complete=OnComplete.HOP,
        on_complete_agent_id="clerk",
        user_selectable=True,
        markers=True,
    ),
    Agent(
        "buddy",
        receives_as_interlude=True,
        on_complete=OnComplete.RETURN,
        turns_max=2,
        user_selectable=True,
    ),
    Agent("clerk", sticks=Sticks.FOLLOW_UP, user_selectable=True),
)
SUPERVISED = registry_of(*AGENTS, limits=LIMITS)
SWARM = registry_of(*AGENTS, home="tutor", limits=LIMITS)
# Switched to the clerk, offered the buddy; first messages go to their agent; questions give way.
TOPICAL = registry_of(
    AGENTS[0],
    replace(AGENTS[1], topics=AgentTopics("suggest")),
    AGENTS[2],
    limits=LIMITS,
    topics=Topics("auto", threshold=0.8, lock_threshold=0.9, first_message="auto"),
)

# Two people have to approve, in time; the store has format 2.
APPROVING = registry_of(
    *AGENTS, limits=LIMITS, approvals=ApprovalRule(needs=2, expires_us=LOCK_TIMEOUT_US)
)

# The tutor takes long: its turns last for as long as it says so. The store has format 2.
WORKING = registry_of(
    replace(AGENTS[0], turn_timeout_us=90 * SECOND_US), *AGENTS[1:], limits=LIMITS
)

# One person has to, and what is not decided in time is rejected; the clerk has no inbox.
REJECTING = registry_of(
    *(replace(agent, has_inbox=agent.agent_id != "clerk") for agent in AGENTS),
    limits=LIMITS,
    approvals=ApprovalRule(expires_us=LOCK_TIMEOUT_US, rejects_on_expiry=True),
)
# The same, and messages wait for the answers of workers.
QUEUEING = replace(WORKING, double_text_queues=True)

# Tasks that wait for an approval are parked, except where the tutor owns the session; messages wait
# for the answers of workers.
PARKING = replace(
    QUEUEING, while_paused=WhilePaused.PARK, approvals=ApprovalRule(expires_us=LOCK_TIMEOUT_US)
)

# A message that names no task begins one, unless something waits for it.
BEGINNING = replace(PARKING, begins_tasks=True)

# The same with topics, so that a message may be the answer to an offer.
BEGINNING_TOPICAL = replace(TOPICAL, begins_tasks=True)

# A letter of the alphabet: its name, and its command in a state, if it has one; with the facts that
# are found for it, if any.
Ids = Callable[[], str]
Told = tuple[Command, Facts]
Letter = tuple[str, Callable[[SessionState, Ids], Command | Told | None]]


def route(text: str) -> Letter:
    """A user's message."""
    return f"user: {text}", lambda _state, ids: RouteMessage(ids(), text, ids())


def route_over_worker() -> Letter:
    """A user's message while workers have every turn that waits in an inbox."""

    def command(state: SessionState, ids: Ids) -> Told:
        leased = frozenset(turn.request_id for turn in state.open_turns)
        return RouteMessage(ids(), "hello", ids()), Facts({LeasedTurns: leased})

    return "user: hello, over a worker's turn", command


def route_while_off(text: str) -> Letter:
    """A user's message while stickiness is off."""
    return (
        f"user (off): {text}",
        lambda _state, ids: RouteMessage(ids(), text, ids(), stickiness_enabled=False),
    )


def about(agent_id: str, confidence: float = 0.95) -> Letter:
    """A user's message with a verdict of topic detection."""

    def command(_state: SessionState, ids: Ids) -> Told:
        topic = TopicOpinion(((agent_id, confidence),), 1 - confidence, "test-1", ids())
        return RouteMessage(ids(), "hello", ids()), Facts({TopicVerdict: topic})

    return f"user: about {agent_id}, {confidence}", command


def press(what: str) -> Letter:
    """A user's answer to the open offer: by a button, or a plain yes."""

    def command(state: SessionState, ids: Ids) -> Told | None:
        offer = state.suggestion
        if offer is None:
            return None
        message = MessageRouted(ids(), ids(), "", RouteReason.STICKY, text="what it was about")
        if what == "yes":
            facts = Facts({PlainAnswer: True, OfferedMessage: message})
            return RouteMessage(ids(), "yes", ids()), facts
        accepts = what == "accept"
        option = offer.suggestion_id if accepts else stay_option_id(offer.suggestion_id)
        facts = Facts({OfferedMessage: message})
        return RouteMessage(ids(), "", ids(), quick_reply_id=option), facts

    return f"user presses {what}", command


def hand_over(
    agent_id: str,
    mode: HandoffMode = HandoffMode.TRANSFER,
    initiator: Initiator | None = None,
    *,
    in_turn: bool = False,
    enabled: bool = True,
) -> Letter:
    """A handoff outside of an answer; in_turn: in the newest open turn."""

    def command(state: SessionState, ids: Ids) -> Command | None:
        if in_turn and not state.open_turns:
            return None
        turn = state.open_turns[-1].request_id if in_turn else ""
        return SetActiveAgent(
            ids(),
            agent_id,
            turn_request_id=turn,
            initiator=initiator,
            mode=mode,
            stickiness_enabled=enabled,
            child_seed=ids(),
        )

    who = initiator.value if initiator else "agent"
    where = "in the turn" if in_turn else "between turns"
    return f"{who} {where}: {mode.value} to {agent_id}{'' if enabled else ' (off)'}", command


def answer(
    name: str,
    outcome: Outcome,
    *,
    place: int = -1,
    stranger: bool = False,
    text: str = "/reset",
    enabled: bool = True,
) -> Letter:
    """An answer to the newest (-1) or the oldest (0) of several open turns."""

    def command(state: SessionState, ids: Ids) -> Command | None:
        turns = state.open_turns
        if not turns or (place == 0 and len(turns) == 1):
            return None
        turn = turns[place]
        others = [agent.agent_id for agent in AGENTS if agent.agent_id != turn.holder]
        return CompleteTurn(
            request_id=turn.request_id,
            agent_id=others[0] if stranger else turn.holder,
            outcome=outcome,
            child_seed=ids(),
            text=text,
            stickiness_enabled=enabled,
        )

    which = {0: "older turn", -1: "turn"}[place]
    who = "a stranger" if stranger else "holder"
    return f"{who} ends the {which}: {name}{'' if enabled else ' (off)'}", command


def resume(decision: ApprovalDecision) -> Letter:
    """A person's decision about the paused task."""

    def command(state: SessionState, ids: Ids) -> Command | None:
        if state.paused is None:
            return None
        return ResumeTask(state.paused.request_id, state.paused.task_id, decision, ids())

    return f"a person decides: {decision.value}", command


def ask_approval() -> Letter:
    """The holder of the newest turn needs an approval, in a store of format 2."""

    def command(state: SessionState, ids: Ids) -> Told | None:
        if not state.open_turns:
            return None
        turn = state.open_turns[-1]
        asked = CompleteTurn(turn.request_id, turn.holder, AskApproval(), ids())
        return asked, NO_FACTS

    return "holder needs two approvals", command


def vote(decider: str, decision: ApprovalDecision) -> Letter:
    """One of several people decides about the paused task."""

    def command(state: SessionState, ids: Ids) -> Command | None:
        if state.paused is None:
            return None
        paused = state.paused
        person = Decider(decider, frozenset({decider}), is_person=True)
        return ResumeTask(paused.request_id, paused.task_id, decision, ids(), decider=person)

    return f"{decider} decides: {decision.value}", command


def goes_on() -> Letter:
    """The worker of the newest turn goes on with it."""

    def command(state: SessionState, ids: Ids) -> Told | None:
        if not state.open_turns:
            return None
        turn = state.open_turns[-1]
        kept = KeepTurn(turn.request_id, turn.holder, extends=True)
        return kept, NO_FACTS

    return "holder goes on", command


def route_to_inboxes() -> Letter:
    """A user's message whose whole turn goes through inboxes."""
    return (
        "user: hello, by inboxes",
        lambda _state, ids: (
            RouteMessage(ids(), "hello", ids(), inbox=True),
            NO_FACTS,
        ),
    )


def route_behind() -> Letter:
    """A user's message in a store that can hold one that waits."""
    return (
        "user: hello, may wait",
        lambda _state, ids: (RouteMessage(ids(), "hello", ids()), NO_FACTS),
    )


def route_(*, enabled: bool = True, seen: int | None = None, named: bool = False) -> Letter:
    """A user's message in a store that can hold several tasks.

    seen: the revision after which it was written. named: it names a task that is not known.
    """

    def command(_state: SessionState, ids: Ids) -> Told:
        message = RouteMessage(
            ids(),
            "hello",
            ids(),
            task_id=ids() if named else "",
            stickiness_enabled=enabled,
            shown_revision=seen,
        )
        return message, NO_FACTS

    how = "" if enabled else " (off)"
    how += "" if seen is None else ", written before"
    return f"user: hello{how}, in {'a new' if named else 'any'} task", command


def sends_on() -> Letter:
    """The service sends on what waits, and applies time-outs."""

    def command(state: SessionState, ids: Ids) -> Told | None:
        queues = [view for view in parked.views(state) if view.queued]
        if not queues:
            return None
        # Behind a turn that is live a message goes on only if that turn ends in the same change.
        queues.sort(key=lambda view: view.live_turn is not None)
        message = ev.MessageQueued(queues[0].queued[0].request_id, text="hello")
        return Expire(ids(), ids()), Facts({QueuedText: message})

    return "the service sends on", command


def resume_another() -> Letter:
    """A person's decision about an open request, or about a task that is not paused."""

    def command(state: SessionState, ids: Ids) -> Command | None:
        if state.task is None:
            return None
        request_id = state.open_turns[-1].request_id if state.open_turns else ids()
        return ResumeTask(request_id, state.task.task_id, ApprovalDecision.APPROVE, ids())

    return "a person decides about another request", command


def in_parked(letter: Letter) -> Letter:
    """The same of the first task that is parked, whose turns and approval it is about."""
    name, make = letter

    def command(state: SessionState, ids: Ids) -> Command | Told | None:
        return make(parked.views(state)[1], ids) if _strands(state) else None

    return f"in the parked task, {name}", command


def route_to_parked() -> Letter:
    """A user's message that names the first task that is parked."""

    def command(state: SessionState, ids: Ids) -> Told | None:
        for strand in _strands(state):
            message = RouteMessage(ids(), "hello", ids(), task_id=strand.task_id)
            return message, NO_FACTS
        return None

    return "user: hello, in the parked task", command


def clear_parked(scope: ClearScope) -> Letter:
    """Someone clears the first task that is parked, which stays where it is."""

    def command(state: SessionState, ids: Ids) -> Command | None:
        strand = next(iter(_strands(state)), None)
        if strand is None:
            return None
        return ClearActiveAgent(ids(), scope, task_id=strand.task_id, child_seed=ids())

    return f"clear {scope.value} of the parked task", command


def hand_over_parked(agent_id: str, initiator: Initiator) -> Letter:
    """A handoff of the first task that is parked, between turns."""

    def command(state: SessionState, ids: Ids) -> Command | None:
        strand = next(iter(_strands(state)), None)
        if strand is None:
            return None
        return SetActiveAgent(
            ids(), agent_id, initiator=initiator, task_id=strand.task_id, child_seed=ids()
        )

    return f"{initiator.value}: parked task to {agent_id}", command


def cancel_parked() -> Letter:
    """Someone cancels the first task that is parked."""

    def command(state: SessionState, ids: Ids) -> Command | None:
        return next((CancelTask(ids(), one.task_id) for one in _strands(state)), None)

    return "cancel the parked task", command


def erase() -> Letter:
    """An operator erases the user's data."""
    return "erase", lambda state, _ids: Erase("asked for") if state.revision else None


def clear(scope: ClearScope) -> Letter:
    """A clear."""
    return f"clear {scope.value}", lambda _state, ids: ClearActiveAgent(ids(), scope)


def clear_by_operator() -> Letter:
    """An operator's clear: what waits goes along to the home agent."""
    by = Initiator.OPERATOR
    return (
        "operator: clear",
        lambda _state, ids: ClearActiveAgent(ids(), initiator=by, child_seed=ids()),
    )


def alphabet(home: str) -> tuple[Letter, ...]:
    """Return every kind of command, for a registry with this home agent."""
    interlude, transfer = HandoffMode.INTERLUDE, HandoffMode.TRANSFER
    operator = Initiator.OPERATOR
    others = [name for name in ("tutor", "buddy", "clerk") if name != home]
    return (
        route("hello"),
        route_while_off("hello"),
        route("/supervisor"),
        route("/reset hello"),
        route("/agent buddy"),
        route("/agent clerk hello"),
        *(hand_over(name) for name in (home, *others)),
        hand_over("clerk", interlude, operator),
        *(hand_over(name, in_turn=True) for name in (home, *others)),
        hand_over("clerk", interlude, operator, in_turn=True),
        hand_over("buddy", transfer, in_turn=True, enabled=False),
        answer("proceed", Proceed()),
        answer("proceed with a marker", Proceed(), text="[handoff_to:Clerk] /reset"),
        answer("asks", FollowUp()),
        answer("asks for a while", FollowUp(timeout_us=LOCK_TIMEOUT_US)),
        answer("complete", Complete()),
        *(answer(f"hands to {name}", HandOff(name)) for name in (home, *others)),
        answer("interlude with clerk", HandOff("clerk", mode=interlude)),
        answer("consults clerk", HandOff("clerk", mode=HandoffMode.CONSULT)),
        answer("needs an approval", AskApproval()),
        resume(ApprovalDecision.REJECT),
        resume_another(),
        answer("fails", Fail()),
        answer("asks", FollowUp(), enabled=False),
        answer("proceed", Proceed(), stranger=True),
        answer("hands to clerk", HandOff("clerk"), place=0),
        clear(ClearScope.ACTIVE_AGENT),
        clear_by_operator(),
        clear(ClearScope.SESSION),
        erase(),
    )


TOPIC_LETTERS = (
    about("clerk"),
    about("clerk", 0.85),
    about("buddy"),
    about("tutor"),
    press("accept"),
    press("stay"),
    press("yes"),
)


def sweep() -> Letter:
    """The service applies the time-outs that have passed."""

    def command(state: SessionState, ids: Ids) -> Command | None:
        return Expire(ids()) if state.revision else None

    return "the service sweeps", command


APPROVAL_LETTERS = (
    sweep(),
    ask_approval(),
    vote("bea", ApprovalDecision.APPROVE),
    vote("cai", ApprovalDecision.APPROVE),
    vote("bea", ApprovalDecision.REJECT),
    hand_over("clerk", HandoffMode.TRANSFER, Initiator.OPERATOR),
    clear(ClearScope.ACTIVE_AGENT),
)


# Enough letters for every kind of change: the default search is as deep as the full one.
COMPACT = frozenset(
    {
        "user: hello",
        "user (off): hello",
        "user: /supervisor",
        "user: /agent clerk hello",
        "agent in the turn: transfer to tutor",
        "agent in the turn: transfer to buddy",
        "agent between turns: transfer to buddy",
        "holder ends the turn: proceed",
        "holder ends the turn: asks for a while",
        "holder ends the turn: complete",
        "holder ends the turn: hands to tutor",
        "holder ends the turn: interlude with clerk",
        "holder ends the turn: consults clerk",
        "holder ends the turn: needs an approval",
        "a person decides: reject",
        "holder ends the older turn: hands to clerk",
        "clear session",
        "erase",
        "wait 20 s",
    }
)


WORK_LETTERS = (goes_on(), route_to_inboxes())
INBOX_LETTERS = (route_over_worker(), clear_by_operator(), sweep())
QUEUE_LETTERS = (route_behind(), sends_on())

# What happens to a parked task, and what else can happen meanwhile.
PARKING_LETTERS = (
    route_behind(),
    route_to_inboxes(),
    route("/supervisor"),
    route("/task 1"),
    route("/task 1 hello"),
    route("/reset all"),
    route_to_parked(),
    sends_on(),
    sweep(),
    hand_over("buddy", in_turn=True),
    answer("proceed", Proceed()),
    answer("asks for a while", FollowUp(timeout_us=LOCK_TIMEOUT_US)),
    answer("complete", Complete()),
    answer("interlude with clerk", HandOff("clerk", mode=HandoffMode.INTERLUDE)),
    ask_approval(),
    clear(ClearScope.SESSION),
    *map(
        in_parked,
        (
            answer("proceed", Proceed()),
            answer("asks for a while", FollowUp(timeout_us=LOCK_TIMEOUT_US)),
            answer("complete", Complete()),
            answer("hands to buddy", HandOff("buddy")),
            answer("consults clerk", HandOff("clerk", mode=HandoffMode.CONSULT)),
            answer("fails", Fail()),
            ask_approval(),
            hand_over("clerk", in_turn=True),
            goes_on(),
            resume(ApprovalDecision.APPROVE),
            resume(ApprovalDecision.REJECT),
        ),
    ),
    cancel_parked(),
    erase(),
)

# What happens where messages begin tasks, and where a question comes forward by itself.
BEGINNING_LETTERS = (
    route_(),
    route_(enabled=False),
    route_(seen=0),
    route_(named=True),
    route("/supervisor"),
    route("/task 1 hello"),
    route_to_parked(),
    sends_on(),
    sweep(),
    hand_over("buddy", in_turn=True),
    hand_over("tutor", in_turn=True),
    answer("proceed", Proceed()),
    answer("asks for a while", FollowUp(timeout_us=LOCK_TIMEOUT_US)),
    answer("complete", Complete()),
    answer("interlude with clerk", HandOff("clerk", mode=HandoffMode.INTERLUDE)),
    ask_approval(),
    clear(ClearScope.ACTIVE_AGENT),
    clear_parked(ClearScope.ACTIVE_AGENT),
    clear_parked(ClearScope.SESSION),
    hand_over_parked("clerk", Initiator.OPERATOR),
    hand_over_parked("buddy", Initiator.AGENT),
    route_to_inboxes(),
    in_parked(answer("proceed", Proceed())),
    in_parked(answer("asks for a while", FollowUp(timeout_us=LOCK_TIMEOUT_US))),
    in_parked(resume(ApprovalDecision.APPROVE)),
    cancel_parked(),
)

WAITS_US = (LOCK_TIMEOUT_US, LIMITS.turn_timeout_us, 400 * SECOND_US)


def canonical(state: SessionState, now_us: int, registry: Registry = SUPERVISED) -> Hashable:
    """Return what the future of a state depends on: names by place, times by what is left."""
    places = {turn.root_request_id: place for place, turn in enumerate(state.open_turns)}

    def tenure(held: Tenure) -> Hashable:
        left = None if held.lock_expire_us is None else max(0, held.lock_expire_us - now_us)
        entered = places.get(held.entered_turn)
        return held.agent_id, held.locked, left, entered, min(held.turns_taken, 2)

    def turn(open_turn: OpenTurn) -> Hashable:
        return (
            open_turn.holder,
            open_turn.path,
            open_turn.request_since,
            open_turn.hops,
            open_turn.asker,
            open_turn.mid_task,
            state.is_live(open_turn),
            open_turn.holder in registry.people and open_turn.epoch == state.epoch,
            state.task is not None and open_turn.task_id == state.task.task_id,
            max(0, ends_us(open_turn, registry) - now_us),
            max(0, open_turn.dispatched_us + DAY_US - now_us) if open_turn.work else None,
            open_turn.is_delivered,
        )

    idle_us = min(now_us - state.update_us, 400 * SECOND_US)
    unclaimed = unclaimed_due_us(state, registry)
    return (
        tenure(state.active) if state.active else None,
        tuple(map(tenure, state.stack)),
        tuple(map(turn, state.open_turns)),
        state.returned,
        state.task.status if state.task else None,
        (state.paused.holder, state.paused.hops) if state.paused else None,
        idle_us if state.active else 0,
        state.erased,
        state.sent_home,
        (state.suggestion.agent_id, state.suggestion.request_id == state.newest_turn)
        if state.suggestion
        else None,
        tuple((rest.agent_id, rest.messages_left) for rest in state.rests),
        _approval(state, now_us),
        len(state.queued),
        tuple(
            (
                canonical(view, now_us, registry),
                min(now_us - strand.since_us, WAITS_US[-1]) if strand.is_locked else None,
            )
            for strand, view in zip(_strands(state), parked.views(state)[1:], strict=True)
        ),
        state.apart is not None and state.apart.parks_again,
        state.apart is not None and state.apart.freed_revision > 0,
        _claim(state, now_us),
        unclaimed and (max(0, unclaimed - now_us)),
    )


def _claim(state: SessionState, now_us: int) -> Hashable:
    """Return who has claimed the conversation, for how long, and who gave it."""
    claim = state.claim
    if claim is None:
        return None
    return claim.agent_id, claim.claimant, max(0, claim.expire_us - now_us), claim.given_by


def _strands(state: SessionState) -> tuple[Strand, ...]:
    return state.apart.parked if state.apart is not None else ()


def _approval(state: SessionState, now_us: int) -> Hashable:
    """Return who has approved, what time is left, and how it ended."""
    approval = state.approval
    if approval is None:
        return None
    left = None if approval.expire_us is None else max(0, approval.expire_us - now_us)
    voted = state.paused is not None and [
        voter_hash(state.paused.request_id, name) in approval.voters for name in ("bea", "cai")
    ]
    return left, tuple(voted or ()), approval.ended, approval.rejects


class Search:
    """A breadth-first search through the sessions that a registry allows."""

    def __init__(
        self, registry: Registry, *, compact: bool, letters: Sequence[Letter] | None = None
    ) -> None:
        self.registry = registry
        self.letters = [
            letter
            for letter in alphabet(registry.home_agent_id)
            if not compact or letter[0] in COMPACT
        ]
        if registry.topics.is_on:
            self.letters += TOPIC_LETTERS
        if not registry.approvals.is_plain:
            self.letters += APPROVAL_LETTERS
        if registry.turn_timeouts_us:
            self.letters += WORK_LETTERS
        if registry.double_text_queues:
            self.letters += QUEUE_LETTERS
        if registry.has_inboxes:
            self.letters += INBOX_LETTERS
        if letters is not None:
            self.letters = list(letters)
        self.waits_us = [
            wait_us for wait_us in WAITS_US if not compact or _wait_name(wait_us) in COMPACT
        ]
        self.steps = 0
        self.rejected = 0
        self.refusals: dict[Reason, int] = {}
        self.seen: set[Hashable] = {None}
        self._number = 0

    def run(self, length: int) -> list[int]:
        """Search all sequences up to a length; return the new states of each length."""
        frontier: list[tuple[SessionState | None, int, tuple[str, ...]]] = [(None, START_US, ())]
        sizes = []
        for _ in range(length):
            following = []
            for state, now_us, trail in frontier:
                for name, after, then_us in self._successors(state, now_us, trail):
                    key = canonical(after, then_us, self.registry)
                    if key not in self.seen:
                        self.seen.add(key)
                        following.append((after, then_us, (*trail, name)))
            sizes.append(len(following))
            frontier = following
        return sizes

    def _successors(
        self, state: SessionState | None, now_us: int, trail: tuple[str, ...]
    ) -> Iterator[tuple[str, SessionState, int]]:
        if state is not None:
            for wait_us in self.waits_us:
                self.steps += 1
                yield _wait_name(wait_us), state, now_us + wait_us
        for name, make in self.letters:
            # A command that needs a session is also tried without one.
            made = make(state or _NOBODY, self._id)
            if made is None:
                continue
            command, facts = made if isinstance(made, tuple) else (made, NO_FACTS)
            self.steps += 1
            # Commands are a second apart, so that their order is visible.
            then_us = now_us + SECOND_US
            try:
                after = self._step(state, command, facts, then_us)
            except AssertionError as error:
                error.add_note("after: " + " | ".join((*trail, name)))
                raise
            if after is not None:
                yield name, after, then_us

    def _step(
        self, state: SessionState | None, command: Command, facts: Facts, now_us: int
    ) -> SessionState | None:
        if isinstance(command, SetActiveAgent | ClearActiveAgent):
            facts = Facts({PausedMessage: _AGAIN} | facts)
        try:
            decided = decide(
                state, command, self.registry, now_us, session_id=SESSION_ID, facts=facts
            )
        except RoutingError as error:
            self.refusals[error.reason] = self.refusals.get(error.reason, 0) + 1
            return None
        check_change(state, command, decided, self.registry, facts)
        self.rejected += any(
            isinstance(event, ApprovalExpired) and event.rejects
            for event in decided.decision.events
        )
        check_offer(command, decided, self.registry)
        return decided.state

    def _id(self) -> str:
        self._number += 1
        return uuid7(self._number)


def _wait_name(wait_us: int) -> str:
    return f"wait {wait_us // SECOND_US} s"


_AGAIN = MessageRouted(uuid7(0), uuid7(0), "", RouteReason.STICKY, text="hello")
"""The message of a turn that waits for an approval, as the log has it."""

_NOBODY = SessionState(session_id=SESSION_ID, revision=0, create_us=0, update_us=0)


def search(
    registry: Registry,
    length: int,
    *,
    compact: bool = False,
    letters: Sequence[Letter] | None = None,
) -> Search:
    """Search and print what was covered."""
    started_s = time.perf_counter()
    found = Search(registry, compact=compact, letters=letters)
    sizes = found.run(length)
    count = len(found.letters) + len(found.waits_us)
    refused = {reason.value: count for reason, count in found.refusals.items()}
    print(  # noqa: T201 - shown with -rP, and with a failure
        f"home {registry.home_agent_id}: all sequences of {count} letters up to {length}: "
        f"{sum(sizes)} states, by length {sizes}; {found.steps} steps checked, "
        f"refused {refused}; {time.perf_counter() - started_s:.1f} s"
    )
    return found


def test_letters_of_the_compact_alphabet_are_letters():
    """A renamed letter must not disappear from the default search unnoticed."""
    names = {name for name, _ in alphabet("supervisor")} | set(map(_wait_name, WAITS_US))
    assert names >= COMPACT


@pytest.mark.timeout(300)
@pytest.mark.parametrize("registry", [SUPERVISED, SWARM], ids=["supervised", "swarm"])
def test_nothing_that_never_happens_is_a_few_commands_away(registry):
    """Every sequence of every kind of command, up to four."""
    found = search(registry, 4)
    assert len(found.seen) > 2000
    assert set(found.refusals) == {
        Reason.UNKNOWN_SESSION,
        Reason.HANDOFF_REFUSED,
        Reason.TASK_NOT_PAUSED,
        Reason.REQUEST_NOT_OPEN,
        Reason.SESSION_ERASED,
    }


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "registry",
    [
        pytest.param(SUPERVISED, id="supervised"),
        pytest.param(SWARM, id="swarm", marks=pytest.mark.torture),
    ],
)
def test_nothing_that_never_happens_is_six_telling_commands_away(registry):
    """Deep enough for a nested interlude that ends on its own."""
    found = search(registry, 6, compact=True)
    reached = {key for key in found.seen if key is not None}
    assert any(key[1] for key in reached), "no interlude was reached"
    assert any(key[3] for key in reached), "no return was reached"
    assert any(key[0] and key[0][1] for key in reached), "no lock was reached"
    assert any(key[5] for key in reached), "no approval was reached"
    assert any(asks(key) for key in reached), "no consult was reached"
    # An approval that is asked for in an interlude, and a consult by a locked agent.
    assert any(key[1] and key[5] for key in reached)
    assert any(asks(key) and key[0] and key[0][1] for key in reached)


@pytest.mark.timeout(300)
def test_nothing_that_never_happens_is_five_telling_commands_and_topics_away():
    """Switches, offers and answers to them, among everything else that changes a session."""
    found = search(TOPICAL, 5, compact=True)
    reached = {key for key in found.seen if key is not None}
    assert any(key[8] for key in reached), "nobody was sent home"
    assert any(key[9] for key in reached), "no offer was made"
    assert any(key[10] for key in reached), "no offer was declined"
    assert any(key[9] and key[1] for key in reached), "no offer was made in an interlude"


@pytest.mark.timeout(300)
def test_nothing_that_never_happens_is_five_telling_commands_and_votes_away():
    """Votes, withdrawals and the time of an approval, among everything that changes a session."""
    found = search(APPROVING, 5, compact=True)
    reached = {key[11] for key in found.seen if key is not None and key[11] is not None}
    assert any(voted == (True, False) for _, voted, _, _ in reached), "nobody voted"
    assert {ended for _, _, ended, _ in reached} == {"", "withdrawn", "expired"}


@pytest.mark.timeout(300)
def test_nothing_that_never_happens_is_five_telling_commands_and_a_rejection_by_time_away():
    """The agent goes on in its inbox; one without an inbox has its task cancelled."""
    found = search(REJECTING, 5, compact=True)
    reached = {key[11] for key in found.seen if key is not None and key[11] is not None}
    assert {ended for _, _, ended, _ in reached} == {"", "withdrawn", "expired"}
    assert any(rejects for _, _, _, rejects in reached)
    assert found.rejected > 0, "nothing was rejected by time"
    turns = {turn for key in found.seen if key is not None for turn in key[2]}
    inboxes = {agent.agent_id for agent in REJECTING.agents.values() if agent.has_inbox}
    assert any(t[0] in inboxes and not t[6] for t in turns), "no worker's turn was overtaken"


@pytest.mark.timeout(300)
def test_nothing_that_never_happens_is_five_telling_commands_and_long_turns_away():
    """Deadlines that move, and turns for inboxes, among everything that changes a session."""
    found = search(WORKING, 5, compact=True)
    turns = {turn for key in found.seen if key is not None for turn in key[2]}
    assert any(turn[-1] for turn in turns), "no turn was delivered"
    assert any(turn[-2] and not turn[-1] for turn in turns), "no turn was extended"
    assert any(turn[-1] and turn[4] for turn in turns), "no consult was delivered"


@pytest.mark.timeout(300)
def test_nothing_that_never_happens_is_five_telling_commands_and_waiting_messages_away():
    """Messages that wait behind a worker's turn, among everything that ends it."""
    found = search(QUEUEING, 5, compact=True)
    reached = {key for key in found.seen if key is not None}
    assert any(key[12] == 1 and not key[2] for key in reached), "no message outlived its turn"
    assert any(key[12] > 1 for key in reached), "no two messages waited"
    assert any(key[12] and key[5] for key in reached), "no message waited for an approval"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "length", [pytest.param(6, id="six"), pytest.param(7, id="seven", marks=pytest.mark.torture)]
)
def test_nothing_that_never_happens_is_a_few_commands_and_parked_tasks_away(length):
    """Tasks that are parked and come forward, with all that can happen to them where they are."""
    found = search(PARKING, length, compact=True, letters=PARKING_LETTERS)
    reached = {key for key in found.seen if key is not None}
    strands = [strand for key in reached for strand, _ in cast("Strands", key[13])]
    assert any(strand[5] for strand in strands), "none was parked while it waited for an approval"
    assert any(strand[0] and strand[0][1] for strand in strands), "none asked the user"
    assert any(asks(strand) for strand in strands), "none consulted another agent"
    assert any(len(cast("Strands", key[13])) > 1 for key in reached), "no two were parked"
    assert any(key[14] for key in reached), "no paused task was brought forward"
    assert any(key[12] and key[13] for key in reached), "no message waited beside a parked task"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "length", [pytest.param(5, id="five"), pytest.param(7, id="seven", marks=pytest.mark.torture)]
)
def test_nothing_that_never_happens_is_a_few_commands_and_tasks_of_their_own_away(length):
    """Messages that begin tasks, those that join, and what is parked or completed for them."""
    found = search(BEGINNING, length, compact=True, letters=BEGINNING_LETTERS)
    reached = {key for key in found.seen if key is not None}
    strands = [strand for key in reached for strand, _ in cast("Strands", key[13])]
    assert any(strand[1] for strand in strands), "no interlude was parked"
    assert any(strand[0] and strand[0][1] for strand in strands), "no question was parked"
    assert any(key[15] for key in reached), "no question came forward by itself"
    assert found.refusals[Reason.TASK_OPEN] > 0, "no owner was to be left"


@pytest.mark.timeout(300)
def test_nothing_that_never_happens_is_four_commands_and_offers_in_tasks_of_their_own_away():
    """A plain answer to an offer belongs to the task of the offer; any other message begins one."""
    letters = [
        letter
        for letter in (*alphabet("supervisor"), *TOPIC_LETTERS)
        if letter[0] in COMPACT or letter in TOPIC_LETTERS
    ]
    found = search(BEGINNING_TOPICAL, 4, compact=True, letters=letters)
    reached = {key for key in found.seen if key is not None}
    assert any(key[9] for key in reached), "no offer was made"
    assert any(key[13] for key in reached), "no task was parked"


Strands = tuple[tuple[tuple[Hashable, ...], int | None], ...]


def asks(key: tuple[Hashable, ...]) -> bool:
    """Say whether a state has an open question of one agent to another."""
    turns = cast("tuple[tuple[Hashable, ...], ...]", key[2])
    return any(asker for _, _, _, _, asker, *_ in turns)


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("registry", [SUPERVISED, SWARM], ids=["supervised", "swarm"])
def test_nothing_that_never_happens_is_six_commands_away(registry):
    """Every sequence of every kind of command, up to six."""
    found = search(registry, 6)
    assert len(found.seen) > 50_000
