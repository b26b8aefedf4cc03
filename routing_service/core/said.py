"""What people say and note in a conversation without ending its turn."""

from __future__ import annotations

from routing_service.core import ownership
from routing_service.core.claims import check_claimant, decide_claims
from routing_service.core.commands import AddNote, ClaimTurn, Decision, ReleaseTurn, Say
from routing_service.core.draft import Draft
from routing_service.core.errors import unknown_task
from routing_service.core.events import MessageSaid, NoteAdded
from routing_service.core.people import person_with, turns_of_person


def decide_of_people(draft: Draft, command: ClaimTurn | ReleaseTurn | Say | AddNote) -> Decision:
    """Decide what a person does besides answering. Raises what the four do."""
    match command:
        case Say():
            return decide_say(draft, command)
        case AddNote():
            return decide_note(draft, command)
        case _:
            return decide_claims(draft, command)


def decide_say(draft: Draft, command: Say) -> Decision:
    """Store a message to the user; no events if the turn or conversation is not the agent's.

    Raises CLAIMED if another person has claimed the conversation.
    """
    ownership.expire_waits(draft)
    state = draft.state
    people = draft.registry.people
    is_person = command.agent_id in people
    task = state.task
    if command.request_id:
        turn = state.find_turn(command.request_id)
        is_its = turn is not None and turn.holder == command.agent_id and not turn.asker
        in_hand = turns_of_person(state, draft.registry)
        if turn is None or not is_its or not (state.is_live(turn) or turn in in_hand):
            return Decision(events=tuple(draft.events))
        task_id = turn.task_id
    else:
        is_its = is_person and person_with(state, draft.registry) == command.agent_id
        if task is None or not is_its or task.task_id != command.task_id:
            return Decision(events=tuple(draft.events))
        task_id = task.task_id
    if is_person:
        check_claimant(draft, command.subject)
    draft.add(
        MessageSaid(
            command.message_id,
            command.request_id,
            task_id,
            command.agent_id,
            command.text,
            command.subject,
        )
    )
    return Decision(events=tuple(draft.events), task_id=task_id)


def decide_note(draft: Draft, command: AddNote) -> Decision:
    """Store a note about the conversation, or about its open task that is named.

    Raises UNKNOWN_TASK.
    """
    task = draft.state.task
    if command.task_id and (task is None or task.task_id != command.task_id):
        raise unknown_task(draft.state.session_id, command.task_id)
    task_id = task.task_id if task else ""
    draft.add(
        NoteAdded(
            command.note_id,
            task_id,
            command.agent_id,
            command.author,
            command.text,
            draft.before.last_used_us,
        )
    )
    return Decision(events=tuple(draft.events), task_id=task_id)
