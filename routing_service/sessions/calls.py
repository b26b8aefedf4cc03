"""What goes into the command handler with a call, and what comes out.

Protobuf stays with the caller: the answer's bytes are made by a function that comes with the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from msgspec.structs import replace

from routing_service.core import approvals
from routing_service.core import events as ev
from routing_service.core.access import ANY_SESSION, Access
from routing_service.core.commands import ResumeTask
from routing_service.core.decide import Decided
from routing_service.core.handoff_rules import agent_is_reachable
from routing_service.core.history import TurnRecord
from routing_service.core.registry import Registry
from routing_service.core.session import SessionState
from routing_service.core.strand_fold import seen_from
from routing_service.core.task_fold import voter_hash
from routing_service.core.vocabulary import TaskStatus
from routing_service.storage.store import SessionKey


class Call(msgspec.Struct, frozen=True):
    """The caller, the session, and what makes a repeat the same call.

    actor: the agent for CompleteTurn, else "". access: the rights of the caller. subject: the
    signed-in identity, "" without sign-in. expected_revision: None = any.
    history_turns: past turns to send along; 0 = the default, -1 = none unless locked. dry_run: only
    decide; nothing is written, audited or used up. explains_topic: the answer says what became of
    the message's topic. begins: the session id was made for this call, so nothing can be stored
    under it. trace_id: of the call, W3C; "" = it has none. lease_token: a worker's lease on the
    turn that it answers; "" = it has none.
    deciding: what a person decides about an approval; a decision that is only a vote is recorded
    under voter_hash.
    """

    key: SessionKey
    method: str
    request_id: str
    fingerprint: bytes
    actor: str = ""
    access: Access = ANY_SESSION
    subject: str = ""
    expected_revision: int | None = None
    history_turns: int = 0
    dry_run: bool = False
    explains_topic: bool = False
    begins: bool = False
    trace_id: str = ""
    lease_token: str = ""
    deciding: ResumeTask | None = None


def as_voter(call: Call, command: ResumeTask, state: SessionState | None) -> Call:
    """Return a decision's call as it is recorded: under the voter while more have to approve.

    By hash: a change's actor stays when its session is erased.
    """
    approval = seen_from(state, command.task_id).approval if state is not None else None
    is_vote = (
        approval is not None and not approval.ended and not approvals.is_enough(approval, command)
    )
    actor = voter_hash(call.request_id, call.subject) if is_vote else ""
    return replace(call, actor=actor)


class Made(msgspec.Struct, frozen=True):
    """What an answer is made of.

    registry: the one that decided. turns: recent turns, oldest first, for a reply that lists them.
    task_status: of the task that the answer names, None if it names none. The user's text is not
    part of it: it is stored with the message and travels next to the answer.
    """

    call: Call
    decided: Decided
    registry: Registry
    revision: int
    turns: tuple[TurnRecord, ...] = ()
    task_status: TaskStatus | None = None


class Answer(msgspec.Struct, frozen=True):
    """An answer as it is stored, without the user's text and history.

    head, dispatch: if the answer ends with a dispatch, the bytes before it and the bytes of its
    content, so that text and history can be added without parsing; else b"".
    """

    stored: bytes
    head: bytes = b""
    dispatch: bytes = b""


class Handled(msgspec.Struct, frozen=True):
    """An answer and what is sent with it.

    answer: for a repeat, head and dispatch are empty. message: the user's message, for the
    dispatch. history: turns for the dispatch. decided: None for a repeat.
    """

    answer: Answer
    revision: int
    replayed: bool
    message: ev.MessageRouted | None = None
    history: tuple[TurnRecord, ...] = ()
    decided: Decided | None = None


class Expiry(msgspec.Struct, frozen=True):
    """The result for a session that was due. overtaken: another change came first."""

    changed: bool
    overtaken: bool = False


class SessionView(msgspec.Struct, frozen=True):
    """A session for a reader: as stored, and as the next message would find it."""

    stored: SessionState
    effective: SessionState

    def reachable(self, registry: Registry) -> bool:
        """Say whether the active agent may have the next message."""
        agent = registry.agent(self.effective.active_id)
        return agent is not None and agent_is_reachable(agent, self.effective)


class PendingApproval(msgspec.Struct, frozen=True):
    """What a paused task waits for, and since when. fields: None = the agent gave none."""

    prompt: str
    pause_us: int
    fields: Mapping[str, object] | None = None


MakeAnswer = Callable[[Made], Answer]
