"""What a decision is written as: its change, the state after it, and the rows that go with it."""

from __future__ import annotations

from routing_service.core.expiry import next_due_us
from routing_service.core.session import SessionState
from routing_service.sessions.calls import Answer, Made
from routing_service.sessions.inbox_entries import with_entries
from routing_service.storage.audit_chain import new_salt
from routing_service.storage.event_codec import (
    EVENTS_VERSION,
    StoredEvents,
    encode_linked,
    encode_state,
)
from routing_service.storage.store import Append, Change, TaskRow


def append_of(
    made: Made, answer: Answer, before: SessionState | None, tasks: tuple[TaskRow, ...], prev: bytes
) -> tuple[Append, bytes]:
    """Return the write of a decision and its answer, and the hash of its change.

    prev: the hash of the change before.
    """
    call = made.call
    decided = made.decided
    state = decided.state
    actor = call.subject
    user_id = call.access.user_id
    revision = state.revision
    events, chain = encode_linked(
        StoredEvents(
            EVENTS_VERSION,
            decided.decision.events,  # type: ignore[arg-type]  # Tuples are stored as lists are.
            decided.active_after,  # type: ignore[arg-type]
            user_id,
            state.registry_version,
            # The content-free form has no users: a user who acts for itself is named once.
            "" if actor == user_id else actor,
            call.trace_id,
            prev,
            new_salt(),
        ),
        (call.key, revision, decided.now_us, call.method, call.request_id, call.actor),
        answer.stored,
    )
    append = Append(
        call.key,
        revision - 1,
        Change(
            revision,
            decided.now_us,
            call.method,
            call.request_id,
            call.actor,
            call.fingerprint,
            events,
            answer.stored,
        ),
        encode_state(state, chain),
        # An interrupted erasure finds the session by its user when it is called again.
        state.owner or (before.owner if state.erased and before else ""),
        tasks,
        next_due_us(state, made.registry),
        before.create_us if before else None,
    )
    if tasks or made.registry.has_inboxes or state.has_work:
        # What begins, votes on or ends an approval writes its task's row.
        append = with_entries(append, before, state, made.registry)
    return append, chain
