"""What happened in a session: the event types, in the past tense, as they are stored.

Rule: an event holds all that its replay needs; fields are only ever added, with a default.

They are msgspec structs: cheap to make, small when stored, checked when read. The tag is the kind.
Those of claims and of parked tasks are stored from format 2 on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from routing_service.core.vocabulary import (
    ApprovalDecision,
    HandoffMode,
    Initiator,
    OutcomeKind,
    OutcomeStatus,
    RouteReason,
    WhenUnsure,
)


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a message that is not its text: exactly one of text, data, uri is set."""

    content_type: str
    text: str | None = None
    data: bytes | None = None
    uri: str | None = None


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step of an agent's execution trace. attempt: its lease; 0 = it came with the answer."""

    name: str
    kind: str = ""
    input: str = ""
    output: str = ""
    start_us: int | None = None
    duration_us: int | None = None
    attempt: int = 0


class Profile(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a call says of its user; an empty field says nothing."""

    user_id: str = ""
    locale: str = ""
    channel: str = ""
    entitlements: tuple[str, ...] = ()


NO_PROFILE = Profile()


class Stored(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind"):
    """What all events have in common: the form in which they are stored."""


class SessionStarted(Stored, frozen=True, tag="session_started"):
    """The session's first change."""

    profile: Profile = NO_PROFILE


class ProfileUpdated(Stored, frozen=True, tag="profile_updated"):
    """A message said something new of its user. Internal: watchers do not get it."""

    profile: Profile


class TaskCreated(Stored, frozen=True, tag="task_created"):
    """A task began; messages join it until it is closed. shared: others were open, see Task."""

    task_id: str
    expire_us: int | None = None
    metadata: Mapping[str, str] = msgspec.field(default_factory=dict)
    shared: bool = False


class TaskCompleted(Stored, frozen=True, tag="task_completed"):
    """An agent finished the task."""

    task_id: str
    agent_id: str
    summary: str = ""


class TaskFailed(Stored, frozen=True, tag="task_failed"):
    """An agent gave the task up."""

    task_id: str
    agent_id: str
    message: str = ""


class TaskCancelled(Stored, frozen=True, tag="task_cancelled"):
    """The task was cancelled. cause: reset | clear | expired | approval_expired."""

    task_id: str
    cause: str


class TaskPaused(Stored, frozen=True, tag="task_paused"):
    """A person must approve something before the agent goes on. prompt: the agent's text."""

    task_id: str
    request_id: str
    agent_id: str
    prompt: str = ""


class TaskResumed(Stored, frozen=True, tag="task_resumed"):
    """A person decided, and the paused agent goes on with a request of its own.

    previous_agent: the agent of the dispatch before; "" = the paused agent itself.
    """

    task_id: str
    request_id: str
    agent_id: str
    decision: ApprovalDecision
    child_request_id: str
    root_request_id: str
    message_revision: int
    comment: str = ""
    previous_agent: str = ""
    own_history: bool = False


class ApprovalRequested(Stored, frozen=True, tag="approval_requested"):
    """An approval is pending: it follows the pause of its task in the same change.

    by: who may decide, see registry.ApprovalRule. needs: approvals that are needed. expire_us: None
    = it does not expire. fields: what the agent says of it for programs. rejects: when it expires
    it counts as rejected. From format 2 on.
    """

    task_id: str
    request_id: str
    agent_id: str
    by: str
    needs: int = 1
    expire_us: int | None = None
    fields: Mapping[str, object] | None = None
    rejects: bool = False


class ApprovalVoted(Stored, frozen=True, tag="approval_voted"):
    """A person approved, and more approvals are needed.

    decider: the signed-in subject. other_names: the voter_hash of each other name that the
    credential goes by.
    """

    task_id: str
    request_id: str
    decider: str = ""
    comment: str = ""
    other_names: tuple[str, ...] = ()


class ApprovalDecided(Stored, frozen=True, tag="approval_decided"):
    """The decision that counts. The task goes on by the next event of the change.

    decider: the signed-in subject, "" without sign-in. decisions: how many it took, of needs.
    """

    task_id: str
    request_id: str
    decision: ApprovalDecision
    decider: str = ""
    decisions: int = 1
    needs: int = 1


class ApprovalWithdrawn(Stored, frozen=True, tag="approval_withdrawn"):
    """An approval is no longer pending, without a decision. The next event says what did it.

    cause: command | reset | clear | handoff | expired (the task did). was_shown: the reply to the
    user's own command says so; otherwise the answer to the next message does.
    """

    task_id: str
    request_id: str
    cause: str
    was_shown: bool = False


class ApprovalExpired(Stored, frozen=True, tag="approval_expired"):
    """The time of an approval passed. The next event of the change cancels its task.

    rejects: it lets the agent go on instead, with a rejection.
    """

    task_id: str
    request_id: str
    rejects: bool = False


CANDIDATES_MAX: Final = 5
"""Candidates of a topic that are stored with a message."""


class TopicTrace(msgspec.Struct, frozen=True, omit_defaults=True):
    """What topic detection said of a message, for whoever asks why later.

    candidates: agent ids with probabilities, likeliest first, CANDIDATES_MAX at most. stay: the
    probability that it is for the active agent. sureness, bound: it was unsure if the first is
    below the second. asked: what the registry's when_unsure did, "" = the verdict was sure or
    nothing. second_request: the agent of another request in the message, "" for none.
    """

    model: str
    candidates: tuple[tuple[str, float], ...] = ()
    stay: float = 0.0
    sureness: float = 1.0
    bound: float = 0.0
    asked: str = ""
    second_request: str = ""


class MessageRouted(Stored, frozen=True, tag="message_routed"):
    """A user's message opened a turn and went to an agent.

    text: without its command. previous_agent: the agent of the dispatch before this one.
    metadata: what the message adds to its task. confidence, topic_model: if its topic brought it
    here, the detector's probability and version. topic: set if detection judged it. inbox: workers
    get the turn from inboxes (format 2). own_history: the turns sent along are of its task alone.
    handoff_revision: the change with the handoff that its agent has not answered to yet, 0 = none.
    continues: the request whose message this is again, because its approval was withdrawn.
    """

    request_id: str
    task_id: str
    agent_id: str
    reason: RouteReason
    text: str = ""
    items: tuple[Item, ...] = ()
    previous_agent: str = ""
    locked: bool = False
    mid_task: bool = False
    reason_detail: str = ""
    metadata: Mapping[str, str] = msgspec.field(default_factory=dict)
    task_expire_us: int | None = None
    confidence: float = 0.0
    topic_model: str = ""
    topic: TopicTrace | None = None
    inbox: bool = False
    own_history: bool = False
    handoff_revision: int = 0
    continues: str = ""

    @property
    def shown_reason(self) -> RouteReason:
        """Why the message went there.

        Older releases cannot read TOPIC_UNSURE, so another reason is stored beside the trace.
        """
        if self.topic is not None and self.topic.asked == WhenUnsure.SUPERVISOR.value:
            return RouteReason.TOPIC_UNSURE
        return self.reason


class CommandHandled(Stored, frozen=True, tag="command_handled"):
    """A slash command was answered; other events of the change say what it changed.

    text: the message as typed. agent_id: the agent that the command was about, "" for none.
    listed: the numbered list in the reply, if it has one (see agent_picks.remember_list).
    next_task_id: the id that the session's first task gets; "" if it has one, or a task.
    """

    command: str
    variant: str
    text: str = ""
    agent_id: str = ""
    listed: str = ""
    next_task_id: str = ""


class MessageQueued(Stored, frozen=True, tag="message_queued"):
    """A user's message waits for the answer to the one before. From format 2 on.

    Its fields are as of the message that it becomes. task_id: as asked for, "" for none.
    """

    request_id: str
    task_id: str = ""
    text: str = ""
    items: tuple[Item, ...] = ()
    metadata: Mapping[str, str] = msgspec.field(default_factory=dict)
    task_expire_us: int | None = None
    inbox: bool = False


class MessageDequeued(Stored, frozen=True, tag="message_dequeued"):
    """A message no longer waits. cause: routed (by the events after it) | reset | clear | lost."""

    request_id: str
    cause: str


class TurnExtended(Stored, frozen=True, tag="turn_extended"):
    """A worker goes on with its turn, which now ends at another time. From format 2 on."""

    request_id: str
    root_request_id: str
    agent_id: str
    deadline_us: int


class StepsReported(Stored, frozen=True, tag="steps_reported"):
    """What an agent has done in its turn so far. From format 2 on.

    attempt: the lease, 1 for the first. first_step: the number of the first of these steps within
    the attempt, from 0. steps_bytes: their size.
    """

    request_id: str
    root_request_id: str
    task_id: str
    agent_id: str
    attempt: int
    first_step: int
    steps: tuple[Step, ...] = ()
    steps_bytes: int = 0


class TurnAbandoned(Stored, frozen=True, tag="turn_abandoned"):
    """A turn was closed without an answer. cause: limit | timeout | reset | clear.

    exact: what it really was, where the older releases that read this know no word for it:
    overtaken | attempts (stored as limit), command | cancelled (as clear); "" = the cause.
    """

    request_id: str
    root_request_id: str
    agent_id: str
    cause: str
    exact: str = ""

    @property
    def shown_cause(self) -> str:
        """Why it was closed, for readers of this release."""
        return self.exact or self.cause


DEGRADED_DETAIL: Final = "degraded"
"""TurnCompleted.detail of a turn that a client decided alone, as it is stored."""


class TurnCompleted(Stored, frozen=True, tag="turn_completed"):
    """An agent's answer to a request.

    text: as the user sees it, markers removed. closes: the request is no longer open and nothing
    follows in its chain. counts: a turn of the active agent. own_entry: history shows the answer
    by itself, because the agent did not hold the request. is_consult: the answer is for the agent
    that asked, not for the user. message: the agent's text for the user about what follows.
    kept: the agent leaves by it once stickiness is on again, see SessionState.meanwhile.
    user_text, user_items, decided_us: of a turn that a client decided alone while the service was
    away: no message of its own is stored for it. decided_us: 0 = unknown.
    next_revision: the change by which its request went along to another agent, 0 = it did not; the
    answer carries that dispatch.
    """

    request_id: str
    root_request_id: str
    task_id: str
    agent_id: str
    outcome: OutcomeKind
    status: OutcomeStatus
    text: str = ""
    items: tuple[Item, ...] = ()
    steps: tuple[Step, ...] = ()
    closes: bool = False
    counts: bool = False
    own_entry: bool = False
    dispatched_us: int | None = None
    detail: str = ""
    is_consult: bool = False
    message: str = ""
    user_text: str = ""
    user_items: tuple[Item, ...] = ()
    decided_us: int = 0
    kept: bool = False
    next_revision: int = 0


class AgentHandedOff(Stored, frozen=True, tag="agent_handoff"):
    """The conversation, or one turn of it, went from one agent to another.

    turn_request_id: the open request it happened in, "" outside a turn; child_request_id: the
    request that follows, "" if the same one goes on. dispatches: the turn goes on to to_agent.
    moves: active agent and stack change (not while stickiness is off). activates: to_agent may be
    active (a supervisor may not). message_revision: where the turn's user message is kept.
    drops_approval: the pending approval of the task is withdrawn. sends_home: the next message was
    requested for the home agent, so its topic does not count. is_aside: a consult's question or its
    answer, which is no step of a ping-pong (in changes stored before this field it is one).
    resumes: to_agent was interrupted, further down the stack; it goes on from its frame.
    kept: see SessionState.meanwhile; settles: what was kept takes effect by this event.
    to_person: to_agent is of kind human, or gets back what none of them claimed, or an operator
    moved the turn: no hop. along: the turn went along with a move outside of it, of which its agent
    did not know.
    """

    from_agent: str
    to_agent: str
    initiator: Initiator
    mode: HandoffMode
    route_reason: RouteReason
    reason: str = ""
    context: Mapping[str, object] | None = None
    message: str = ""
    turn_request_id: str = ""
    child_request_id: str = ""
    root_request_id: str = ""
    task_id: str = ""
    message_revision: int = 0
    dispatches: bool = False
    moves: bool = True
    activates: bool = True
    locked: bool = False
    drops_approval: bool = False
    sends_home: bool = False
    is_aside: bool = False
    resumes: bool = False
    kept: bool = False
    settles: bool = False
    to_person: bool = False
    own_history: bool = False
    along: bool = False

    @property
    def hands_back(self) -> bool:
        """Whether it only returned an unsure message to the agent that kept the conversation."""
        is_answer = self.mode is HandoffMode.ANSWER
        return is_answer and self.route_reason is not RouteReason.CONSULTED


class AgentCleared(Stored, frozen=True, tag="agent_cleared"):
    """The next message goes to the home agent.

    cause: command | reset | clear | proceed | complete | timeout. The rest: as of a handoff.
    """

    agent_id: str
    cause: str
    reason: str = ""
    sends_home: bool = False
    settles: bool = False


class LockEngaged(Stored, frozen=True, tag="lock_engaged"):
    """The agent asked the user something and waits for the answer.

    soft: it asked in prose, see Tenure (in changes stored before this field no lock is).
    """

    agent_id: str
    expire_us: int | None = None
    root_request_id: str = ""
    soft: bool = False


class LockReleased(Stored, frozen=True, tag="lock_released"):
    """The agent no longer waits.

    cause: answered | timeout | command | reset | clear | handoff | failure.
    """

    agent_id: str
    cause: str


class SwitchSuggested(Stored, frozen=True, tag="switch_suggested"):
    """The user was offered another agent, in addition to the dispatch of a message.

    request_id: of that message, which the same change holds. from_agent: the agent that got it.
    """

    suggestion_id: str
    agent_id: str
    from_agent: str
    request_id: str
    confidence: float
    topic_model: str = ""


class SwitchAnswered(Stored, frozen=True, tag="switch_answered"):
    """The user accepted or declined a suggestion. from_agent: the agent that they were with."""

    suggestion_id: str
    agent_id: str
    from_agent: str
    accepted: bool


class TimePassed(Stored, frozen=True, tag="time_passed"):
    """The sweeper applied time-outs: the events before this one in its change.

    Internal: watchers do not get it. last_used_us: the time of the last call, from which idle time
    is counted on. expired: the home agent got the session by it.
    """

    last_used_us: int
    expired: bool = False


class SessionErased(Stored, frozen=True, tag="session_erased"):
    """The session's content was erased. Its last event. reason: the operator's.

    owner_hash: see erased_owner; "" in sessions that an earlier release erased.
    """

    reason: str = ""
    owner_hash: str = ""


class StickinessExpired(Stored, frozen=True, tag="stickiness_expired"):
    """The session was idle for too long and went back to the home agent."""

    agent_id: str
    idle_us: int


class TaskParked(Stored, frozen=True, tag="task_parked"):
    """The task in the foreground waits from now on, with its agent, lock, stack and open turns.

    number: by which the user names it. cause: paused | message | command. From format 2 on, as the
    next two.
    """

    task_id: str
    number: int
    cause: str
    agent_id: str = ""


class TaskForegrounded(Stored, frozen=True, tag="task_foregrounded"):
    """A parked task has the conversation again, as it was.

    agent_id: its active agent, or else the one that waits for an approval. cause: message | command
    | freed (nothing else was left in the foreground, and its agent waits for an answer).
    """

    task_id: str
    agent_id: str
    cause: str
    locked: bool = False


class StrandChosen(Stored, frozen=True, tag="strand_chosen"):
    """The next events of the change are about a parked task; task_id "" = the foreground again.

    Internal: watchers get the events in between with parked_task_id.
    """

    task_id: str = ""


class Claimed(Stored, frozen=True, tag="claimed"):
    """A person has claimed the conversation of an agent of kind human.

    claimant: the signed-in subject. expire_us: when the claim ends by itself. taken_from: who had
    claimed it before, the same person if the claim was extended; "" = it was not claimed.
    reason: as the person gave it.
    """

    agent_id: str
    claimant: str
    expire_us: int
    taken_from: str = ""
    reason: str = ""


class ClaimReleased(Stored, frozen=True, tag="claim_released"):
    """A claim ended. cause: released | timeout | moved (the conversation left the agent)."""

    agent_id: str
    claimant: str
    cause: str


class TurnAnswered(Stored, frozen=True, tag="turn_answered"):
    """A person answered a later request, and this one with it.

    answered_by: the request with the answer, which the same change completes.
    """

    request_id: str
    root_request_id: str
    agent_id: str
    answered_by: str


class WaitBegun(Stored, frozen=True, tag="wait_begun"):
    """A conversation began to wait for the people of an agent with unclaimed_timeout.

    Internal: watchers do not get it. given_by: the agent that gets it back if nobody claims it;
    "" = the home agent.
    """

    agent_id: str
    given_by: str = ""


class MessageSaid(Stored, frozen=True, tag="message_said"):
    """An agent said something to the user, and its turn goes on.

    request_id: the open request in which it was said; "" = it had none. by: the signed-in subject.
    initiator: OPERATOR = an operator said it while the agent had the conversation; None = the
    agent.
    """

    message_id: str
    request_id: str
    task_id: str
    agent_id: str
    text: str = ""
    by: str = ""
    initiator: Initiator | None = None


class NoteAdded(Stored, frozen=True, tag="note_added"):
    """A person noted something about the conversation. Users never get it.

    agent_id: the agent for which the person wrote; "" = an operator. author: the signed-in subject.
    last_used_us: the time of the last call; a note is no use of the session.
    """

    note_id: str
    task_id: str
    agent_id: str
    author: str = ""
    text: str = ""
    last_used_us: int = 0


PersonEvent = WaitBegun | MessageSaid | NoteAdded
ClaimEvent = Claimed | ClaimReleased | TurnAnswered | PersonEvent
ApprovalEvent = (
    ApprovalRequested | ApprovalVoted | ApprovalDecided | ApprovalWithdrawn | ApprovalExpired
)

Event = (
    SessionStarted
    | ProfileUpdated
    | TaskCreated
    | TaskCompleted
    | TaskFailed
    | TaskCancelled
    | TaskPaused
    | TaskResumed
    | ApprovalEvent
    | MessageRouted
    | CommandHandled
    | TurnAbandoned
    | TurnExtended
    | StepsReported
    | MessageQueued
    | MessageDequeued
    | ClaimEvent
    | TurnCompleted
    | AgentHandedOff
    | AgentCleared
    | LockEngaged
    | LockReleased
    | StickinessExpired
    | SwitchSuggested
    | SwitchAnswered
    | TimePassed
    | TaskParked
    | TaskForegrounded
    | StrandChosen
    | SessionErased
)
