"""What callers ask of a session, one type per mutating call, and the plans that decide returns.

Rule: a command holds every id and time that a decision may need, so that deciding is pure.

They are structs rather than dataclasses, as events are: a frozen dataclass sets its fields one by
one in Python, and a call makes a dozen of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from routing_service.core.events import NO_PROFILE, Event, Item, Profile, Step
from routing_service.core.slash_commands import ReplySpec
from routing_service.core.vocabulary import (
    ApprovalDecision,
    ClearScope,
    HandoffMode,
    Initiator,
    OutcomeKind,
    OutcomeStatus,
    RouteReason,
    TopicOutcome,
    TurnFate,
)


class TopicOpinion(msgspec.Struct, frozen=True):
    """What topic detection says of a message, for the session as it was when it was asked.

    ranked: agent ids with the probability that the message is for them, best first. stay: the
    probability that it is for the active agent. model: its version. suggestion_id: an unused id.
    sureness: 0-1, how far the likeliest choice is ahead. bound: below it the verdict is unsure.
    second_request: the agent of another request in the same message, "" for none.
    is_missing: it was asked and gave no verdict: it failed or was late.
    """

    ranked: tuple[tuple[str, float], ...]
    stay: float
    model: str
    suggestion_id: str
    is_missing: bool = False
    sureness: float = 1.0
    bound: float = 0.0
    second_request: str = ""

    @property
    def is_unsure(self) -> bool:
        """Say whether the verdict is below the bound."""
        return self.sureness < self.bound


class RouteMessage(msgspec.Struct, frozen=True):
    """A user's message that needs an agent.

    task_id: "" joins the open task or begins new_task_id. new_task_id: an unused id.
    task_expire_us: None leaves it as it is. quick_reply_id: an option of a suggestion.
    is_stale: the session was last used while stickiness was off, and was to begin fresh after that.
    inbox: the whole turn goes through inboxes, whichever agents get it. shown_revision: the
    revision that the user had seen when writing it; None = the latest.
    """

    request_id: str
    text: str
    new_task_id: str
    items: tuple[Item, ...] = ()
    task_id: str = ""
    profile: Profile = NO_PROFILE
    metadata: Mapping[str, str] = msgspec.field(default_factory=dict)
    task_expire_us: int | None = None
    literal_text: bool = False
    stickiness_enabled: bool = True
    quick_reply_id: str = ""
    is_stale: bool = False
    inbox: bool = False
    shown_revision: int | None = None


class SetActiveAgent(msgspec.Struct, frozen=True):
    """A handoff, inside an open turn (turn_request_id) or between messages.

    initiator: None = derived from the source: SUPERVISOR for the home agent, else AGENT.
    suggestion_id: the offer that the user accepts by it; new_task_id: an unused id for that.
    child_seed: makes the ids of a request that opens, and of a message to the user. subject: the
    signed-in caller, "" without sign-in. task_id: whose agent it is about; "" = that of the turn,
    or else the one in the foreground. open_turn: of a move outside a turn; None = by the initiator.
    """

    request_id: str
    agent_id: str
    turn_request_id: str = ""
    initiator: Initiator | None = None
    from_agent_id: str = ""
    reason: str = ""
    context: Mapping[str, object] | None = None
    message: str = ""
    mode: HandoffMode = HandoffMode.TRANSFER
    profile: Profile = NO_PROFILE
    stickiness_enabled: bool = True
    suggestion_id: str = ""
    new_task_id: str = ""
    child_seed: str = ""
    subject: str = ""
    task_id: str = ""
    open_turn: TurnFate | None = None


class ClearActiveAgent(msgspec.Struct, frozen=True):
    """Return to the home agent.

    speaks_for: the agents of the runtime that asks; one of them must be active or be the home
    agent. None = the caller is not a runtime. subject: the signed-in caller, "" without sign-in.
    task_id: whose agent is to go; "" = that of the foreground. initiator: OPERATOR, USER, or AGENT
    for a runtime. open_turn, child_seed: as of a handoff.
    """

    request_id: str
    scope: ClearScope = ClearScope.ACTIVE_AGENT
    reason: str = ""
    speaks_for: frozenset[str] | None = None
    subject: str = ""
    task_id: str = ""
    stickiness_enabled: bool = True
    initiator: Initiator = Initiator.USER
    open_turn: TurnFate | None = None
    child_seed: str = ""


class CancelTask(msgspec.Struct, frozen=True):
    """Cancel an open task. speaks_for: as of a clear; one of them must have the task.

    subject: as of a clear.
    """

    request_id: str
    task_id: str
    reason: str = ""
    speaks_for: frozenset[str] | None = None
    subject: str = ""
    stickiness_enabled: bool = True


class AnyOutcome(msgspec.Struct, frozen=True):
    """What every outcome has. kind: its name in events, answers and on the wire."""

    kind: ClassVar[OutcomeKind]

    @property
    def detail(self) -> str:
        """Return what it says for the record."""
        return ""

    @property
    def said(self) -> str:
        """Return what it says to the user about what follows."""
        return ""


class Proceed(AnyOutcome, frozen=True):
    """The answer stands by itself."""

    kind: ClassVar[OutcomeKind] = OutcomeKind.PROCEED


PROCEED = Proceed()


class FollowUp(AnyOutcome, frozen=True):
    """The agent asked something. timeout_us: how long it waits; None = without a limit."""

    kind: ClassVar[OutcomeKind] = OutcomeKind.FOLLOW_UP
    timeout_us: int | None = None


class Complete(AnyOutcome, frozen=True):
    """The agent has finished. message: for the user, about the agent that follows."""

    kind: ClassVar[OutcomeKind] = OutcomeKind.COMPLETE
    summary: str = ""
    message: str = ""

    @property
    def detail(self) -> str:
        """Return the summary."""
        return self.summary

    @property
    def said(self) -> str:
        """Return the message."""
        return self.message


class HandOff(AnyOutcome, frozen=True):
    """The agent wants another agent to go on with the message."""

    kind: ClassVar[OutcomeKind] = OutcomeKind.HANDOFF
    agent_id: str
    reason: str = ""
    context: Mapping[str, object] | None = None
    message: str = ""
    mode: HandoffMode = HandoffMode.TRANSFER

    @property
    def detail(self) -> str:
        """Return the reason."""
        return self.reason

    @property
    def said(self) -> str:
        """Return the message."""
        return self.message


class Fail(AnyOutcome, frozen=True):
    """The agent could not do it. message: why, for the record."""

    kind: ClassVar[OutcomeKind] = OutcomeKind.FAILURE
    message: str = ""

    @property
    def detail(self) -> str:
        """Return the message."""
        return self.message


class AskApproval(AnyOutcome, frozen=True):
    """The agent must not go on before a person has approved.

    prompt: what to approve. fields: the same for programs, such as the amount; None = none.
    """

    kind: ClassVar[OutcomeKind] = OutcomeKind.APPROVAL_NEEDED
    prompt: str = ""
    fields: Mapping[str, object] | None = None


Outcome = Proceed | FollowUp | Complete | HandOff | AskApproval | Fail


class CompleteTurn(msgspec.Struct, frozen=True):
    """An agent's answer to a dispatched request.

    parse_markers: None = as the registry says of the agent; False = not in this answer.
    child_seed: a fresh UUIDv7 that the id of a following request is made from.
    by_person: it is a PersonsAnswer.
    """

    request_id: str
    agent_id: str
    outcome: Outcome
    child_seed: str
    text: str = ""
    items: tuple[Item, ...] = ()
    steps: tuple[Step, ...] = ()
    parse_markers: bool | None = None
    stickiness_enabled: bool = True
    by_person: ClassVar[bool] = False


class PersonsAnswer(CompleteTurn, frozen=True):
    """An answer by an agent of kind human. subject: the signed-in caller, "" without sign-in."""

    by_person: ClassVar[bool] = True
    subject: str = ""


class KeepTurn(msgspec.Struct, frozen=True):
    """A worker goes on with its turn.

    extends: the turn may get a later deadline. attempt: the worker's lease, 1 for the first.
    first_step: the number of the first of steps within the attempt, from 0.
    """

    request_id: str
    agent_id: str
    extends: bool = False
    attempt: int = 1
    first_step: int = 0
    steps: tuple[Step, ...] = ()
    stickiness_enabled: bool = True


class Decider(msgspec.Struct, frozen=True):
    """Who decides about an approval.

    subject: the signed-in identity, for the record; "" without sign-in. names: all that the
    credential goes by, subject included. roles: its own roles and scopes. is_person: one of the
    names is a person's; a program's credential has none.
    """

    subject: str = ""
    names: frozenset[str] = frozenset()
    roles: frozenset[str] = frozenset()
    is_person: bool = False


class ResumeTask(msgspec.Struct, frozen=True):
    """A person's decision about a paused task.

    request_id: the request that waits for it. child_seed: as above.
    """

    request_id: str
    task_id: str
    decision: ApprovalDecision
    child_seed: str
    comment: str = ""
    decider: Decider = Decider()


class ClaimTurn(msgspec.Struct, frozen=True):
    """A person takes a conversation that waits for the people of an agent.

    claimant: the signed-in subject. take_over: also from another person. reason: for the audit.
    """

    request_id: str
    agent_id: str
    claimant: str
    take_over: bool = False
    reason: str = ""
    stickiness_enabled: bool = True


class ReleaseTurn(msgspec.Struct, frozen=True):
    """A person gives a claim up. is_operator: it may be another person's."""

    request_id: str
    agent_id: str
    claimant: str
    is_operator: bool = False
    stickiness_enabled: bool = True


class Say(msgspec.Struct, frozen=True):
    """An agent says something to the user while its turn goes on.

    request_id: its open request; "" = the people of agent_id have the conversation of task_id.
    subject: the signed-in caller, "" without sign-in.
    """

    message_id: str
    agent_id: str
    text: str
    request_id: str = ""
    task_id: str = ""
    subject: str = ""


class AddNote(msgspec.Struct, frozen=True):
    """A person notes something for other people. agent_id: "" = an operator."""

    note_id: str
    agent_id: str
    author: str
    text: str
    task_id: str = ""


class Expire(msgspec.Struct, frozen=True):
    """The service's own: apply the time-outs that have passed, and send on what has waited.

    child_seed: makes the id of the request with which an agent goes on whose approval has expired;
    "" = such an agent goes on later. new_task_id: an unused id.
    """

    child_seed: str = ""
    new_task_id: str = ""
    stickiness_enabled: bool = True


class Abandon(msgspec.Struct, frozen=True):
    """The service's own: give up a turn in an inbox, if it still is at that place."""

    agent_id: str
    dispatched_us: int
    request_id: str
    stickiness_enabled: bool = True


class Erase(msgspec.Struct, frozen=True):
    """Remove the content of the session. reason: the operator's, without personal data.

    salt: random bytes for the owner's hash; b"" = none is kept.
    """

    reason: str = ""
    salt: bytes = b""


class ReportDegraded(msgspec.Struct, frozen=True):
    """A turn that a client decided alone while the service was away.

    agent_id: who got the message. user_text, user_items: the message. text, items: the answer.
    by_agent: the caller speaks for the agent; otherwise the answer is left out. decided_us: when,
    0 = unknown. is_checked: nothing moved the session since the client knew it.
    """

    request_id: str
    agent_id: str
    user_text: str = ""
    user_items: tuple[Item, ...] = ()
    text: str = ""
    items: tuple[Item, ...] = ()
    by_agent: bool = False
    decided_us: int = 0
    is_checked: bool = False
    profile: Profile = NO_PROFILE


Command = (
    RouteMessage
    | SetActiveAgent
    | ClearActiveAgent
    | CancelTask
    | CompleteTurn
    | KeepTurn
    | ClaimTurn
    | ReleaseTurn
    | Say
    | AddNote
    | ResumeTask
    | ReportDegraded
    | Expire
    | Erase
    | Abandon
)


class Verdict(msgspec.Struct, frozen=True):
    """One rule's verdict on a handoff. detail: why it refused, for people; "" if it allowed."""

    rule: str
    allowed: bool
    detail: str = ""


class HandoffPlan(msgspec.Struct, frozen=True):
    """A handoff as frontends and the next agent see it."""

    from_agent: str
    to_agent: str
    initiator: Initiator
    mode: HandoffMode
    reason: str = ""
    context: Mapping[str, object] | None = None
    message: str = ""


class ResumePlan(msgspec.Struct, frozen=True):
    """What a person decided, for the agent that asked."""

    decision: ApprovalDecision
    comment: str = ""


class ConsultPlan(msgspec.Struct, frozen=True):
    """A question of one agent to another. answer: None until there is one, "" if it failed."""

    asker: str
    question: str
    answer: str | None = None


class DispatchPlan(msgspec.Struct, frozen=True):
    """A message that an agent must act on.

    message_revision: the change that holds text and items; 0 = this very change.
    candidates: the agents that an unsure message may be for, with probabilities, likeliest first.
    inbox: a worker takes it from an inbox, whether or not its agent has one. trace_id: of the call
    that gave it to the agent, for one that is read back; "" = it had none.
    """

    request_id: str
    task_id: str
    agent_id: str
    reason: RouteReason
    reason_detail: str = ""
    previous_agent: str = ""
    locked: bool = False
    handoff: HandoffPlan | None = None
    message_revision: int = 0
    resume: ResumePlan | None = None
    consult: ConsultPlan | None = None
    candidates: tuple[tuple[str, float], ...] = ()
    inbox: bool = False
    trace_id: str = ""


class MovedTurn(msgspec.Struct, frozen=True):
    """The turn that was live when the conversation was moved outside of it.

    waiting_us: since when its agent had it. agent_id: who has it now, "" = it is abandoned.
    """

    request_id: str
    waiting_us: int
    agent_id: str
    fate: TurnFate


class SuggestionPlan(msgspec.Struct, frozen=True):
    """An offer to the user as frontends get it, without its text."""

    suggestion_id: str
    agent_id: str
    confidence: float


class TopicNote(msgspec.Struct, frozen=True):
    """What became of a message's topic: for the log, and for answers that explain it.

    outcome: one of TopicOutcome. agent_id, confidence: of the agent that the message is most
    likely for; "" if the detector was not asked or named none. threshold: what that agent would
    have needed. verdicts: of the handoff rules, if they were evaluated.
    """

    outcome: TopicOutcome
    agent_id: str = ""
    confidence: float = 0.0
    threshold: float = 0.0
    opinion: TopicOpinion | None = None
    verdicts: tuple[Verdict, ...] = ()


class Decision(msgspec.Struct, frozen=True):
    """What follows from a command. No events: nothing is written.

    task_id: the task the answer names. status: of a completed turn. text: the agent's, without
    markers. agent_id: the agent that gets the next message, after a handoff or a clear. topic: None
    if topics are off or could not count. is_vote: an approval that does not decide yet.
    queued: a message waits for the answer to the one before. moved: of a handoff or a clear.
    """

    events: tuple[Event, ...] = ()
    task_id: str = ""
    dispatch: DispatchPlan | None = None
    reply: ReplySpec | None = None
    handoff: HandoffPlan | None = None
    status: OutcomeStatus = OutcomeStatus.APPLIED
    verdicts: tuple[Verdict, ...] = ()
    text: str = ""
    agent_id: str = ""
    previous_agent: str = ""
    suggestion: SuggestionPlan | None = None
    topic: TopicNote | None = None
    is_vote: bool = False
    queued: bool = False
    moved: MovedTurn | None = None
