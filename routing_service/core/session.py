"""A session as it stands: agents' holds on it, open turns, tasks, offers.

Rule: it is bounded and holds no message text, so that it can be written with every change. How each
event changes it: see ``evolve``.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from routing_service.core.vocabulary import RouteReason, TaskStatus

OPEN_STATUSES = (TaskStatus.RUNNING, TaskStatus.PAUSED)


class Tenure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One agent's hold on the conversation, current or interrupted.

    entered_turn: root request id of the turn in which it became active; "" outside a turn.
    turns_taken: turns that it ended by proceed or follow_up since then.
    lock_expire_us: None if the lock has no timeout. soft: the question was found in the agent's
    text; a message for another agent may still be taken there by its topic.
    """

    agent_id: str
    locked: bool = False
    lock_expire_us: int | None = None
    entered_turn: str = ""
    turns_taken: int = 0
    soft: bool = False


class Work(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an open turn has if its work takes long; most turns have none of it.

    inbox: a worker takes the turn from an inbox, whichever agent has it. deadline_us: when the turn
    ends without an answer; 0 = the holder's turn timeout after its dispatch. attempt: the latest
    lease of which steps are known, steps: how many of it; kept, kept_bytes: of all attempts.
    reported_us: when the latest steps came.
    """

    inbox: bool = False
    deadline_us: int = 0
    attempt: int = 0
    steps: int = 0
    kept: int = 0
    kept_bytes: int = 0
    reported_us: int = 0


class OpenTurn(msgspec.Struct, frozen=True, omit_defaults=True):
    """A user message that waits for its holder's answer.

    request_id: the open request of the chain; root_request_id: the Route that opened it.
    message_revision: the change that holds the user's text and items.
    epoch: the ownership epoch it was dispatched in, or took with it by a handoff of its own.
    path: the latest holders, the present one last; hops = handoffs and completion steps so far.
    request_since: where in path the holders of request_id begin (a handoff may keep the request).
    mid_task: a task was open before this message. asker: the agent that asks the holder one
    question and gets the answer; "" = no consult.
    path_of_handoffs: path without consults; () while it is the same. work: None for most turns;
    with it a state is of format 2.
    """

    request_id: str
    root_request_id: str
    message_revision: int
    task_id: str
    holder: str
    epoch: int
    path: tuple[str, ...]
    reason: RouteReason
    dispatched_us: int
    dispatch_revision: int
    hops: int = 0
    request_since: int = 0
    mid_task: bool = False
    asker: str = ""
    path_of_handoffs: tuple[str, ...] = ()
    work: Work | None = None

    @property
    def is_delivered(self) -> bool:
        """Whether a worker gets it from an inbox, whichever agent has it."""
        return self.work is not None and self.work.inbox

    @property
    def handed_along(self) -> tuple[str, ...]:
        """The latest agents that the message was handed to; who was only consulted is left out."""
        return self.path_of_handoffs or self.path

    def was_held_by(self, agent_id: str) -> bool:
        """Say whether the open request was ever this agent's."""
        return agent_id in self.path[self.request_since :]


class QueuedMessage(msgspec.Struct, frozen=True):
    """A message that waits. message_revision: the change that holds it."""

    request_id: str
    message_revision: int


def work_of_next(turn: OpenTurn) -> Work | None:
    """Return what the next holder of a turn begins with."""
    return Work(inbox=True) if turn.is_delivered else None


class Task(msgspec.Struct, frozen=True, omit_defaults=True):
    """The session's latest task. Its metadata is kept with the task's own row.

    shared: another task of the session was open at the same time.
    """

    task_id: str
    status: TaskStatus
    create_us: int
    update_us: int
    expire_us: int | None = None
    shared: bool = False


class Approval(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rule of a pending approval, as it was when the agent asked, and who has approved.

    by, needs, expire_us, rejects: see ApprovalRequested. voters: their hashes, fewer than needs.
    ended: the cause by which it ended without the user being told yet; "" = it is pending.
    """

    by: str
    needs: int = 1
    expire_us: int | None = None
    voters: tuple[str, ...] = ()
    ended: str = ""
    rejects: bool = False


class Claim(msgspec.Struct, frozen=True, omit_defaults=True):
    """The person who has claimed the conversation of an agent of kind human, and until when.

    claimant: "" = the conversation waits: it was given to the people, or the last claim ended, at
    claimed_us. given_by: the agent that gets it back if nobody claims it, "" = the home agent.
    """

    agent_id: str
    claimant: str
    claimed_us: int
    expire_us: int = 0
    given_by: str = ""


class Strand(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task with what hangs on it: who has it, whom that interrupted, its turns and its approval.

    The fields are those of SessionState of the same names. number: by which the user names it, the
    lowest that was free. since_us: when it was parked, or last changed since. Of the foreground,
    while it is put aside, both are 0 and task may be None.
    """

    task: Task | None = None
    number: int = 0
    since_us: int = 0
    active: Tenure | None = None
    stack: tuple[Tenure, ...] = ()
    returned: bool = False
    epoch: int = 0
    newest_turn: str = ""
    previous_agent: str = ""
    open_turns: tuple[OpenTurn, ...] = ()
    paused: OpenTurn | None = None
    approval: Approval | None = None
    queued: tuple[QueuedMessage, ...] = ()
    meanwhile: tuple[Tenure, ...] | None = None
    suggestion: OpenSuggestion | None = None
    expired: bool = False
    sent_home: bool = False
    claim: Claim | None = None

    @property
    def task_id(self) -> str:
        """Return the task's id, "" without a task."""
        return self.task.task_id if self.task else ""

    @property
    def is_locked(self) -> bool:
        """Say whether its agent has asked something and waits for the answer."""
        return self.active is not None and self.active.locked


class Apart(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a session has besides its foreground.

    parked: the tasks that wait, in the order in which they were parked. parks_again: the paused
    task in the foreground was brought there; a message that does not name it parks it again.
    freed_revision: the change that brought the question in the foreground forward because nothing
    else was left there; 0 = it waits no more, or came otherwise.
    aside: the foreground, only within a change of a parked task.
    """

    parked: tuple[Strand, ...] = ()
    parks_again: bool = False
    freed_revision: int = 0
    aside: Strand | None = None


class OpenSuggestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """An agent that the user was offered and has neither accepted nor declined.

    message_revision: the change that holds the message which is for that agent; request_id: the
    root request that it opened.
    """

    suggestion_id: str
    agent_id: str
    message_revision: int
    request_id: str
    confidence: float


class Rest(msgspec.Struct, frozen=True):
    """An agent that the user declined, and the messages for which it is not offered again."""

    agent_id: str
    messages_left: int


class SessionState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that routing needs to know of one session.

    revision: changes so far. owner: the first user, "" until one is known.
    returned: the active agent was just given back and has had no message since.
    newest_turn: root request id of the latest turn; older turns can no longer move anything.
    previous_agent: the agent of the latest dispatch. paused: the turn that waits for a person's
    approval; it is not among the open ones.
    used_us: the time of the last call if the last change was the service's own; 0 = it was a call.
    expired: a time-out sent the session home since its last message. erased: its content is gone.
    owner_hash: of an erased session, tells its owner from strangers.
    sent_home: a caller asked for the home agent since its last message. suggestion: removed by any
    change of ownership. rests: at most SUGGESTION_REST_MESSAGES, since a message declines one.
    listed: the numbered list of agents that the user was shown last, "" for none.
    meanwhile: who has the conversation once stickiness is on, the stack first, by what agents did
    while it was off; () = the home agent, None = they did nothing.
    next_task_id: the id of the first task, named in a command's answer before there was a task.
    approval: the rule of the pending approval, or what the user is to be told of one that ended;
    None for an approval that was asked for in a store of format 1. has_work: a turn has or
    had work (see Work), or a task was parked, so that the state is of format 2. queued: messages
    that wait, in order.
    apart: parked tasks; the fields of a strand above are the foreground's. None = there are none.
    claim: see Claim; None = no person has claimed the conversation since an agent of theirs has it.
    notes: the revisions of the latest notes.
    """

    session_id: str
    revision: int
    create_us: int
    update_us: int
    owner: str = ""
    locale: str = ""
    channel: str = ""
    entitlements: tuple[str, ...] = ()
    active: Tenure | None = None
    stack: tuple[Tenure, ...] = ()
    returned: bool = False
    epoch: int = 0
    newest_turn: str = ""
    previous_agent: str = ""
    open_turns: tuple[OpenTurn, ...] = ()
    paused: OpenTurn | None = None
    task: Task | None = None
    turns_by_agent: Mapping[str, int] = msgspec.field(default_factory=dict)
    registry_version: str = ""
    used_us: int = 0
    expired: bool = False
    erased: bool = False
    sent_home: bool = False
    suggestion: OpenSuggestion | None = None
    rests: tuple[Rest, ...] = ()
    listed: str = ""
    owner_hash: str = ""
    next_task_id: str = ""
    meanwhile: tuple[Tenure, ...] | None = None
    approval: Approval | None = None
    has_work: bool = False
    queued: tuple[QueuedMessage, ...] = ()
    apart: Apart | None = None
    claim: Claim | None = None
    notes: tuple[int, ...] = ()

    @property
    def last_used_us(self) -> int:
        """Return the time of the last call; changes of the service's own do not count."""
        return self.used_us or self.update_us

    @property
    def active_id(self) -> str:
        """Return the active agent's id, "" for none."""
        return self.active.agent_id if self.active else ""

    @property
    def open_task(self) -> Task | None:
        """Return the task that messages join, if one is open."""
        # Not by Task.status.is_open: every message pays for the call.
        task = self.task
        return task if task is not None and task.status in OPEN_STATUSES else None

    def find_turn(self, request_id: str) -> OpenTurn | None:
        """Return the turn whose open request this is."""
        for turn in self.open_turns:
            if turn.request_id == request_id:
                return turn
        return None

    def is_live(self, turn: OpenTurn) -> bool:
        """Say whether the turn's answer may still move anything.

        A newer message, or a change of ownership that the turn did not make, ends that for good.
        """
        return turn.root_request_id == self.newest_turn and turn.epoch == self.epoch

    @property
    def live_turn(self) -> OpenTurn | None:
        """Return the one open turn that may still move something."""
        for turn in self.open_turns:
            if self.is_live(turn):
                return turn
        return None
