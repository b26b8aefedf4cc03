"""Dispatches as bytes: what is stored of an answer, and what is added when it is sent.

An answer is stored without the user's text, the history and the trace. They are added to each copy
that is sent. So the stored answer stays small, and each turn of a history is serialised only once.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from agent_routing.v1 import dispatch_pb2
from routing_service.auth import rights
from routing_service.auth.caller import Caller
from routing_service.core import commands as cmd
from routing_service.core.history import TurnRecord
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.agent_cards import AgentCards
from routing_service.rpc.wire_format import framed, tag_of, with_more
from routing_service.sessions.calls import Answer, Handled, Made
from routing_service.telemetry.call_record import CallRecord

_AGENT: Final = tag_of(dispatch_pb2.Dispatch, "agent")
_TEXT: Final = tag_of(dispatch_pb2.Dispatch, "text")
_HISTORY: Final = tag_of(dispatch_pb2.Dispatch, "history")

_SERIALISED: Final = attrgetter("shown")


def dispatch_to_store(made: Made, cards: AgentCards, locale: str) -> dispatch_pb2.Dispatch:
    """Return a decision's dispatch without what ``whole_answer`` adds."""
    plan = made.decided.decision.dispatch
    assert plan is not None
    return pm.dispatch_out(plan, "", (), cards, locale)


def dispatch_bytes(plan: cmd.DispatchPlan, cards: AgentCards, locale: str) -> bytes:
    """Return the same as bytes. The agent's card, the largest part, is serialised once for all."""
    if plan.handoff is not None or plan.resume is not None or plan.consult is not None:
        return pm.dispatch_out(plan, "", (), cards, locale).SerializeToString()
    made = dispatch_pb2.Dispatch(
        request_id=plan.request_id,
        task_id=plan.task_id,
        reason=pm.REASONS[plan.reason],
        reason_detail=plan.reason_detail,
        locked=plan.locked,
        previous_agent_id=plan.previous_agent,
    )
    if plan.inbox:
        made.delivery = dispatch_pb2.DELIVERY_INBOX
    elif cards.registry.has_inboxes:
        made.delivery = cards.delivery(plan.agent_id)
    if plan.candidates:
        made.candidates.extend(pm.candidates_out(plan.candidates))
    return made.SerializeToString() + framed(_AGENT, cards.card_bytes(plan.agent_id, locale))


def answer_with(head: bytes, key: bytes, dispatch: bytes) -> Answer:
    """Return an answer to store, joined from its head and its dispatch, if it has one.

    key: the wire key of the answer's dispatch, which is its last field.
    """
    if not dispatch:
        return Answer(head)
    return Answer(head + framed(key, dispatch), head, dispatch)


def whole_answer(key: bytes, handled: Handled, record: CallRecord, caller: Caller) -> bytes:
    """Return an answer to send: the stored one with the user's text, history and trace.

    key: the wire key of the answer's dispatch. What agents asked each other is only for callers
    that take dispatches to agents.
    """
    answer, message, history = handled.answer, handled.message, handled.history
    more = b""
    if message is not None:
        if message.items or record.traceparent:
            said = dispatch_pb2.Dispatch(
                text=message.text,
                items=pm.items_out(message.items),
                traceparent=record.traceparent,
            )
            more = said.SerializeToString()
        elif message.text:
            more = framed(_TEXT, message.text.encode())
    if history and caller.signed_in and not rights.carries_dispatches(caller):
        history = tuple(turn.without_consult() if turn.consult else turn for turn in history)
    if history:
        turns = list(map(_SERIALISED, history))
        while b"" in turns:  # Nearly always one: the turn before.
            index = turns.index(b"")
            turns[index] = _serialise(history[index])
        more += b"".join(turns)
    if not more:
        return answer.stored
    if answer.dispatch:
        return answer.head + framed(key, answer.dispatch + more)
    return with_more(answer.stored, key, more)


def _serialise(record: TurnRecord) -> bytes:
    """Return a turn as an entry of Dispatch.history, and keep the bytes with the record."""
    turn = pm.turn_out(record, with_steps=False)
    serialised = framed(_HISTORY, turn.SerializeToString())
    record.keep_shown(serialised)
    return serialised
