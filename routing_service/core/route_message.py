"""Deciding which agent gets a user's message.

Owns: the order of the rules for Route. Must not know: stores, protobuf, languages.
Rule: the first line that applies decides, and the reason names that line.
"""

from __future__ import annotations

from typing import NoReturn

import msgspec
from msgspec.structs import replace

from routing_service.core import events as ev
from routing_service.core import ownership, suggestions, topic_switch
from routing_service.core.commands import (
    Decision,
    DispatchPlan,
    HandoffPlan,
    RouteMessage,
    TopicNote,
    Verdict,
)
from routing_service.core.draft import Draft
from routing_service.core.errors import Reason, RoutingError, invalid_field
from routing_service.core.registry import Registry
from routing_service.core.session import OpenSuggestion, SessionState
from routing_service.core.slash_commands import ReplySpec, parse
from routing_service.core.user_commands import answer_command
from routing_service.core.vocabulary import HandoffMode, RouteReason, TaskStatus, TopicOutcome

_NOTHING = Decision()


class Choice(msgspec.Struct, frozen=True):
    """Where a message goes. agent_id "": nowhere, the reply is all.

    confidence, topic_model: where its topic brought it there.
    """

    agent_id: str
    reason: RouteReason
    text: str
    items: tuple[ev.Item, ...] = ()
    handoff: HandoffPlan | None = None
    confidence: float = 0.0
    topic_model: str = ""


def decide_route(draft: Draft, command: RouteMessage, *, is_new: bool) -> Decision:
    """Decide a user's message. draft: the session, or a new one.

    Raises RoutingError: TASK_OPEN, TASK_CLOSED, TURN_OPEN, INVALID_FIELD, REQUEST_ID_REUSED;
    of an answer to a suggestion UNKNOWN_SUGGESTION, HANDOFF_REFUSED.
    """
    if command.task_expire_us is not None and command.task_expire_us <= draft.now_us:
        raise invalid_field("task_expire_time", "is in the past; give a later time or leave it out")
    _refuse_known_request(draft, command)
    ownership.meet_user(draft, command.profile, is_new=is_new)
    ownership.expire_turns(draft)
    mid_task = is_mid_task(draft.state)
    if command.quick_reply_id:
        return _decide_quick_reply(draft, command, mid_task=mid_task)
    parsed = None if command.literal_text else parse(command.text)
    note: TopicNote | None = None
    if parsed is None:
        if command.says_yes is not None and command.stickiness_enabled:
            accepted = _decide_plain_answer(draft, command, mid_task=mid_task)
            if accepted is not None:
                return accepted
        _refuse_double_text(draft)
        agent_id, reason = _choose_agent(draft, stickiness_enabled=command.stickiness_enabled)
        choice = Choice(agent_id, reason, command.text, command.items)
        decision = _NOTHING
        if topic_switch.may_ask(draft.registry, command):
            weighed = topic_switch.weigh(draft, command, reason, mid_task=mid_task)
            note = weighed.note
            decision = Decision(topic=note)
            if weighed.handoff is not None:
                choice = _switched(command, note, weighed.handoff)
    else:
        answered = answer_command(
            draft,
            parsed,
            mid_task=mid_task,
            stickiness_enabled=command.stickiness_enabled,
            has_items=bool(command.items),
            typed=command.text,
        )
        choice = Choice(
            answered.dispatch_to, answered.reason, parsed.rest, command.items, answered.handoff
        )
        decision = Decision(reply=answered.reply, verdicts=answered.verdicts)
    plan, offer = None, None
    if choice.agent_id:
        wanted = command.task_id
        if parsed is not None and parsed.name == "reset" and not draft.state.open_task:
            # "/reset and now something else" may name the task that it has just cancelled.
            wanted = "" if draft.before.task and wanted == draft.before.task.task_id else wanted
        task_id = _join_task(draft, command, wanted)
        plan = _dispatch(draft, command, choice, task_id=task_id, mid_task=mid_task)
        if note is not None and note.outcome is TopicOutcome.SUGGESTED:
            offer = topic_switch.suggest(draft, command, note, choice.agent_id)
    else:
        task_id = _name_task(draft, command)
    return replace(
        decision, events=tuple(draft.events), task_id=task_id, dispatch=plan, suggestion=offer
    )


def topic_inquiry(
    state: SessionState | None,
    command: RouteMessage,
    registry: Registry,
    now_us: int,
    *,
    session_id: str,
) -> topic_switch.TopicInquiry | None:
    """Return what topic detection is to be asked before this message is decided; None: nothing.

    Pure, and of the session as decide_route will meet it: whoever decides on another state asks
    again.
    """
    if not topic_switch.may_ask(registry, command):
        return None
    draft = Draft(state, session_id, registry, now_us)
    ownership.meet_user(draft, command.profile, is_new=state is None)
    ownership.expire_turns(draft)
    mid_task = is_mid_task(draft.state)
    _, reason = _choose_agent(draft, stickiness_enabled=True)
    asked = topic_switch.inquiry(draft, reason, mid_task=mid_task)
    return None if isinstance(asked, TopicOutcome) else asked


def is_mid_task(state: SessionState) -> bool:
    """Say whether a message would come in the middle of a task.

    A task that only a command opened has had no message yet: nobody is in the middle of it.
    """
    return state.open_task is not None and bool(state.newest_turn)


def accept_suggestion(
    draft: Draft,
    command: RouteMessage,
    offer: OpenSuggestion,
    *,
    mid_task: bool,
    mode: HandoffMode = HandoffMode.TRANSFER,
) -> tuple[Decision, tuple[Verdict, ...]]:
    """Give the message that an offer is about to the agent that was offered.

    command: its request_id becomes that of the turn, its own text goes nowhere.
    Raises RoutingError UNKNOWN_SUGGESTION, HANDOFF_REFUSED, TASK_OPEN, TASK_CLOSED.
    """
    message = command.offered
    if message is None:
        raise suggestions.unknown_suggestion(draft.state.session_id, offer.suggestion_id)
    plan, verdicts = suggestions.accept(draft, offer, mid_task=mid_task, mode=mode)
    task_id = _join_task(draft, command, command.task_id)
    choice = Choice(
        offer.agent_id,
        RouteReason.TOPIC_SWITCH,
        message.text,
        message.items,
        plan,
        confidence=offer.confidence,
    )
    dispatch = _dispatch(draft, command, choice, task_id=task_id, mid_task=mid_task)
    decision = Decision(events=tuple(draft.events), task_id=task_id, dispatch=dispatch)
    return decision, verdicts


def _decide_quick_reply(draft: Draft, command: RouteMessage, *, mid_task: bool) -> Decision:
    """Take the user's answer to a suggestion. Whoever waits for a message waits on."""
    ownership.expire_ownership(draft)
    offer, accepts = suggestions.answered(draft, command.quick_reply_id)
    if accepts:
        decision, _ = accept_suggestion(draft, command, offer, mid_task=mid_task)
        return decision
    suggestions.decline(draft, offer)
    task_id = _name_task(draft, command)
    stays_with = draft.state.active_id or draft.registry.home_agent_id
    reply = ReplySpec("", "stays", agent_id=stays_with)
    return Decision(events=tuple(draft.events), task_id=task_id, reply=reply)


def _decide_plain_answer(draft: Draft, command: RouteMessage, *, mid_task: bool) -> Decision | None:
    """Take a yes for the suggestion, if it is about that; None: the message goes on as any.

    A no declines it, and goes on: it may be meant for the agent as well.
    """
    # Looked at as it will be, since a message that goes on lets time-outs take effect itself.
    seen = Draft(draft.state, draft.state.session_id, draft.registry, draft.now_us)
    seen.before = draft.before
    ownership.expire_ownership(seen)
    offer = suggestions.takes_plain_answers(seen.state)
    if offer is None:
        return None
    if not command.says_yes:
        suggestions.decline(draft, offer)
        return None
    ownership.expire_ownership(draft)
    decision, _ = accept_suggestion(draft, command, offer, mid_task=mid_task)
    return decision


def _switched(command: RouteMessage, note: TopicNote, handoff: HandoffPlan) -> Choice:
    assert note.opinion is not None
    return Choice(
        note.agent_id,
        RouteReason.TOPIC_SWITCH,
        command.text,
        command.items,
        handoff,
        confidence=note.confidence,
        topic_model=note.opinion.model,
    )


def _choose_agent(draft: Draft, *, stickiness_enabled: bool) -> tuple[str, RouteReason]:
    """Apply the rules for a message that is no command, first match first."""
    home_id = draft.registry.home_agent_id
    if not stickiness_enabled:
        ownership.expire_ownership(draft)
        return home_id, RouteReason.STICKINESS_DISABLED
    active_id = draft.state.active_id
    if active_id and not ownership.is_available(draft, active_id):
        return home_id, RouteReason.AGENT_UNAVAILABLE
    if draft.state.paused is not None:
        waiting_id = draft.state.paused.holder
        if waiting_id != home_id and not ownership.is_available(draft, waiting_id):
            return home_id, RouteReason.AGENT_UNAVAILABLE
        return waiting_id, RouteReason.AWAITING_APPROVAL
    if ownership.expire_ownership(draft):
        return home_id, RouteReason.EXPIRED
    active = draft.state.active
    if active is None and draft.state.expired:
        return home_id, RouteReason.EXPIRED
    if active is None:
        is_swarm = draft.registry.is_swarm
        return home_id, RouteReason.DEFAULT_AGENT if is_swarm else RouteReason.NO_ACTIVE_AGENT
    if active.agent_id != active_id and not ownership.is_available(draft, active.agent_id):
        # A lock that ran out gave the session back to an agent that is away.
        return home_id, RouteReason.AGENT_UNAVAILABLE
    if draft.state.returned:
        return active.agent_id, RouteReason.RETURNED
    return active.agent_id, RouteReason.FOLLOW_UP_LOCK if active.locked else RouteReason.STICKY


def _refuse_known_request(draft: Draft, command: RouteMessage) -> None:
    """Refuse the id of another request of the session: an answer to one would close both."""
    request_id = command.request_id
    paused = draft.state.paused
    is_paused = paused is not None and paused.request_id == request_id
    if is_paused or command.names_child or draft.state.find_turn(request_id) is not None:
        raise RoutingError(
            Reason.REQUEST_ID_REUSED,
            f'request id "{request_id}" is that of another request of this session; make a new id '
            "for a new message",
            metadata={
                "session_id": draft.state.session_id,
                "request_id": request_id,
                "method": "Route",
            },
        )


def _refuse_double_text(draft: Draft) -> None:
    if not draft.registry.double_text_rejects:
        return
    live = draft.state.live_turn
    # While an approval is awaited no turn moves anything.
    if live is not None and draft.state.paused is None:
        raise RoutingError(
            Reason.TURN_OPEN,
            f'request "{live.request_id}" of agent "{live.holder}" is still open, and this '
            "registry takes one message at a time; send it again after the answer",
            metadata={
                "session_id": draft.state.session_id,
                "request_id": live.request_id,
                "agent_id": live.holder,
            },
        )


def _join_task(draft: Draft, command: RouteMessage, wanted: str) -> str:
    """Return the task that the message belongs to, made now if need be."""
    latest = draft.state.task
    status = command.known_task_status
    if latest is not None and wanted == latest.task_id:
        status = latest.status.value
    if wanted and status and not TaskStatus(status).is_open:
        _refuse_closed(draft.state.session_id, wanted, status)
    if latest is not None and latest.status.is_open:
        if wanted and wanted != latest.task_id:
            raise RoutingError(
                Reason.TASK_OPEN,
                f'task "{latest.task_id}" is open in this session, the request names "{wanted}"; '
                "finish or reset the open one first, or leave task_id out to join it",
                metadata={
                    "session_id": draft.state.session_id,
                    "open_task_id": latest.task_id,
                    "task_id": wanted,
                },
            )
        return latest.task_id
    return _begin_task(draft, command, wanted or command.new_task_id)


def _begin_task(draft: Draft, command: RouteMessage, task_id: str) -> str:
    draft.add(
        ev.TaskCreated(task_id=task_id, expire_us=command.task_expire_us, metadata=command.metadata)
    )
    return task_id


def _name_task(draft: Draft, command: RouteMessage) -> str:
    """Return the task id for an answer that dispatches nothing: no command opens a second task."""
    if draft.state.task is not None:
        return draft.state.task.task_id
    return _begin_task(draft, command, command.task_id or command.new_task_id)


def _refuse_closed(session_id: str, task_id: str, status: str) -> NoReturn:
    raise RoutingError(
        Reason.TASK_CLOSED,
        f'task "{task_id}" is {status}; leave task_id out to begin another',
        metadata={"session_id": session_id, "task_id": task_id, "status": status},
    )


def _dispatch(
    draft: Draft, command: RouteMessage, choice: Choice, *, task_id: str, mid_task: bool
) -> DispatchPlan:
    """Open a turn with the chosen agent, and close the oldest where there are too many."""
    excess = len(draft.state.open_turns) + 1 - draft.registry.limits.open_turns
    if excess > 0:
        for turn in draft.state.open_turns[:excess]:
            ownership.abandon(draft, turn, "limit")
    state = draft.state
    active = state.active
    locked = active is not None and active.agent_id == choice.agent_id and active.locked
    plan = DispatchPlan(
        request_id=command.request_id,
        task_id=task_id,
        agent_id=choice.agent_id,
        reason=choice.reason,
        previous_agent=state.previous_agent,
        locked=locked,
        handoff=choice.handoff,
        text=choice.text,
    )
    draft.add(
        ev.MessageRouted(
            request_id=command.request_id,
            task_id=task_id,
            agent_id=choice.agent_id,
            reason=choice.reason,
            text=choice.text,
            items=choice.items,
            previous_agent=state.previous_agent,
            locked=locked,
            mid_task=mid_task,
            metadata=command.metadata,
            task_expire_us=command.task_expire_us,
            confidence=choice.confidence,
            topic_model=choice.topic_model,
        )
    )
    return plan
