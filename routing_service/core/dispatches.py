"""Which events give a request to an agent. Everything that reads turns from the log asks here."""

from __future__ import annotations

import msgspec

from routing_service.core import events as ev


class Dispatched(msgspec.Struct, frozen=True):
    """One request as an event gave it to an agent.

    root_request_id: of the message that the chain of requests began with. message_revision: the
    change that holds the message, 0 = the change of this event. makes_request: the request is new;
    False for a handoff inside a turn, which keeps the turn's request. own_history: the turns sent
    along are those of its task alone.
    """

    request_id: str
    agent_id: str
    root_request_id: str
    task_id: str
    locked: bool
    message_revision: int
    makes_request: bool = True
    own_history: bool = False


def dispatched_by(event: ev.Event) -> Dispatched | None:
    """Return the request that an event gives to an agent; None for any other event."""
    match event:
        case ev.MessageRouted():
            return Dispatched(
                event.request_id,
                event.agent_id,
                event.request_id,
                event.task_id,
                event.locked,
                0,
                own_history=event.own_history,
            )
        case ev.AgentHandedOff() if event.dispatches:
            return Dispatched(
                event.child_request_id or event.turn_request_id,
                event.to_agent,
                event.root_request_id,
                event.task_id,
                event.locked,
                event.message_revision,
                makes_request=bool(event.child_request_id),
                own_history=event.own_history,
            )
        case ev.TaskResumed():
            return Dispatched(
                event.child_request_id,
                event.agent_id,
                event.root_request_id,
                event.task_id,
                locked=False,
                message_revision=event.message_revision,
                own_history=event.own_history,
            )
        case _:
            return None
