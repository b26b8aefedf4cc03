"""The enums that commands, events and state share. Their values are what is stored.

Rule: a value that was ever stored is never renamed or reused.
"""

from __future__ import annotations

import enum


class Word(enum.Enum):
    """A word of a closed list.

    Each exists once, so its identity is its hash. Every answer looks some of them up, and Enum's
    own hash is a Python call.
    """

    __hash__ = object.__hash__


class RouteReason(Word):
    """Why a message went to an agent.

    TOPIC_UNSURE is never stored: see MessageRouted.shown_reason in events.py. Nor is DEGRADED:
    clients decide so, and history shows it for the turns that they report.
    """

    NO_ACTIVE_AGENT = "no_active_agent"
    DEFAULT_AGENT = "default_agent"
    STICKY = "sticky"
    FOLLOW_UP_LOCK = "follow_up_lock"
    AWAITING_APPROVAL = "awaiting_approval"
    COMMAND = "command"
    USER_SELECTED = "user_selected"
    SUPERVISOR_HANDOFF = "supervisor_handoff"
    AGENT_HANDOFF = "agent_handoff"
    TASK_COMPLETED = "task_completed"
    TASK_RESUMED = "task_resumed"
    RETURNED = "returned"
    CONSULTED = "consulted"
    TOPIC_SWITCH = "topic_switch"
    TOPIC_UNSURE = "topic_unsure"
    EXPIRED = "expired"
    AGENT_UNAVAILABLE = "agent_unavailable"
    STICKINESS_DISABLED = "stickiness_disabled"
    DEGRADED = "degraded"


class TopicOutcome(Word):
    """What topic detection did with a message.

    Not asked: HOME_FIRST (no agent is active, and first messages are the home agent's),
    SENT_HOME (a caller has just asked for the home agent), OWNED (in mid-task an agent owns the
    session), LOCKED (the active agent waits for an answer), OTHER_RULE (a line of Route before
    topics decided). Asked: UNSURE (no agent reaches its threshold), RESTING (declined lately),
    REFUSED (by a handoff rule), SUGGESTED, SWITCHED, NO_VERDICT (the detector failed or was late),
    ASKED (the verdict was unsure, and the registry's when_unsure decided).
    """

    HOME_FIRST = "home_first"
    SENT_HOME = "sent_home"
    OWNED = "owned"
    LOCKED = "locked"
    OTHER_RULE = "other_rule"
    UNSURE = "unsure"
    RESTING = "resting"
    REFUSED = "refused"
    SUGGESTED = "suggested"
    SWITCHED = "switched"
    NO_VERDICT = "no_verdict"
    ASKED = "asked"


class Initiator(Word):
    """The kind of caller that asked for a handoff."""

    SUPERVISOR = "supervisor"
    AGENT = "agent"
    USER = "user"
    OPERATOR = "operator"
    TOPIC = "topic"
    COMPLETION = "completion"


class WhenUnsure(Word):
    """What happens to a message of which topic detection is not sure enough.

    STAY: it goes where it would go with topics off, unless a threshold is reached. SUPERVISOR: the
    supervisor gets it and the active agent is kept. AGENT: it stays, with the candidates as a
    hint. SUGGEST: it stays, and the likeliest other agent is offered to the user. JUDGE: a slower
    judge decides; where it does not, as SUPERVISOR, or in a swarm as AGENT.
    """

    STAY = "stay"
    SUPERVISOR = "supervisor"
    AGENT = "agent"
    SUGGEST = "suggest"
    JUDGE = "judge"


class HandoffMode(Word):
    """What a handoff does to the return stack.

    TRANSFER empties it, INTERLUDE pushes the interrupted agent, RETURN pops it, HOP (a completion
    that goes on to another agent) keeps it. CONSULT asks another agent one question, ANSWER brings
    its answer back, or an unsure message to the agent that kept the conversation; both move only
    the turn. Callers may ask for TRANSFER, INTERLUDE and, in their own turn, CONSULT.
    """

    TRANSFER = "transfer"
    INTERLUDE = "interlude"
    RETURN = "return"
    HOP = "hop"
    CONSULT = "consult"
    ANSWER = "answer"


class TaskStatus(Word):
    """Where a task stands; RUNNING and PAUSED are open, the others closed."""

    is_open: bool
    """Whether messages may still join the task."""

    def __init__(self, word: str) -> None:
        """Compute is_open once: every message needs it."""
        self.is_open = word in {"running", "paused"}

    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class OutcomeKind(Word):
    """How an agent ended its turn."""

    PROCEED = "proceed"
    FOLLOW_UP = "follow_up"
    COMPLETE = "complete"
    HANDOFF = "handoff"
    APPROVAL_NEEDED = "approval_needed"
    FAILURE = "failure"


class OutcomeStatus(Word):
    """What became of a reported outcome.

    APPLIED: it was applied. STORED_ONLY: the text is kept, nothing moved.
    DEGRADED: the text is kept and a lesser outcome was applied; the verdicts say why.
    """

    APPLIED = "applied"
    STORED_ONLY = "stored_only"
    DEGRADED = "degraded"


class ApprovalDecision(Word):
    """What a person decided about a paused task; either way its agent goes on."""

    APPROVE = "approve"
    REJECT = "reject"


class TurnFate(Word):
    """What becomes of the live turn when the conversation is moved outside of it.

    TAKE_ALONG: the new agent gets it. LEAVE: its agent may answer it, and moves nothing.
    """

    TAKE_ALONG = "take_along"
    LEAVE = "leave"
    ABANDON = "abandon"


class ClearScope(Word):
    """How much ClearActiveAgent takes away."""

    ACTIVE_AGENT = "active_agent"
    SESSION = "session"
