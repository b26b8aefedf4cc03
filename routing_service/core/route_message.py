"""Deciding which agent gets a user's message: a command, an answer to a suggestion, or text.

Rule: the first line of Route that applies decides (route_lines.py), and the reason names it.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from routing_service.core import approvals, ownership, strands, suggestions, topic_switch
from routing_service.core import events as ev
from routing_service.core.abandon import drop_overtaken
from routing_service.core.case import Case, is_mid_task
from routing_service.core.commands import (
    Decision,
    DispatchPlan,
    HandoffPlan,
    RouteMessage,
    SuggestionPlan,
    TopicNote,
    Verdict,
)
from routing_service.core.draft import Draft
from routing_service.core.errors import (
    Reason,
    RoutingError,
    invalid_field,
    request_id_of_another,
    task_closed,
)
from routing_service.core.facts import (
    ChoseStay,
    Facts,
    IsServiceRequest,
    OfferedMessage,
    PlainAnswer,
    QueuedText,
    StandingHandoff,
    StoredTaskStatus,
    TopicVerdict,
)
from routing_service.core.people import end_claim, is_with_person
from routing_service.core.queued_messages import (
    Blocker,
    blocking_turn,
    is_next_due,
    queue_message,
)
from routing_service.core.registry import OPEN_TURNS_MAX
from routing_service.core.route_lines import AWAY_LINE, Arrival, choose_line, why_away
from routing_service.core.session import OPEN_STATUSES, OpenSuggestion, OpenTurn
from routing_service.core.slash_commands import ReplySpec
from routing_service.core.strand_fold import apart_of, find_strand
from routing_service.core.user_commands import answer_command
from routing_service.core.vocabulary import (
    HandoffMode,
    RouteReason,
    TaskStatus,
    TopicOutcome,
    WhenUnsure,
)

_HINTED = frozenset({WhenUnsure.SUPERVISOR.value, WhenUnsure.AGENT.value})


class Choice(msgspec.Struct, frozen=True):
    """Where a message goes. agent_id "": to no agent, the reply is all.

    confidence, topic_model: if its topic brought it there. topic: what topic detection said.
    detail: why an agent is away, for the agent that gets the message. handoff_revision, continues:
    see MessageRouted.
    """

    agent_id: str
    reason: RouteReason
    text: str
    items: tuple[ev.Item, ...] = ()
    handoff: HandoffPlan | None = None
    confidence: float = 0.0
    topic_model: str = ""
    topic: ev.TopicTrace | None = None
    detail: str = ""
    handoff_revision: int = 0
    continues: str = ""


def decide_route(case: Case, command: RouteMessage, facts: Facts) -> Decision:
    """Decide a user's message. command: the case's.

    Raises RoutingError: TASK_OPEN, TASK_CLOSED, TURN_OPEN, INVALID_FIELD, REQUEST_ID_REUSED;
    of an answer to a suggestion UNKNOWN_SUGGESTION, HANDOFF_REFUSED.
    """
    draft, mid_task, line = case.draft, case.mid_task, case.line
    if command.task_expire_us is not None or command.inbox:
        command = _checked(draft, command)
    _refuse_known_request(draft, command, facts)
    if command.quick_reply_id:
        return _decide_quick_reply(draft, command, facts, mid_task=mid_task)
    if line is None:
        return _decide_command(case, command, facts)
    if command.stickiness_enabled and facts:
        accepted = _decide_plain_answer(draft, command, facts, mid_task=mid_task)
        if accepted is not None:
            return accepted
        if case.otherwise is not None and facts.of(PlainAnswer) is None:
            draft.become(case.otherwise.draft)
            return decide_route(replace(case.otherwise, draft=draft), command, facts)
    if case.blocked_by is not None:
        return _behind(case, command, facts)
    choice = Choice(case.agent_id, line.reasons[0], command.text, command.items)
    if facts or line is AWAY_LINE:
        choice = _handed(choice, facts)
        choice = replace(choice, detail=why_away(draft)) if line is AWAY_LINE else choice
    note = None
    if draft.registry.topics.is_on and topic_switch.may_ask(draft.registry, command):
        verdict = facts.of(TopicVerdict)
        effect = topic_switch.weigh(draft, line, verdict, mid_task=mid_task)
        note = effect.note
        if effect.handoff is not None:
            choice = _switched(command, note, effect.handoff)
        elif effect.asked is WhenUnsure.SUPERVISOR:
            home_id = draft.registry.home_agent_id
            # What the agent was handed is not for the supervisor, which is only asked.
            choice = Choice(home_id, RouteReason.TOPIC_UNSURE, command.text, command.items)
        choice = replace(choice, topic=_trace(effect))
    task_id = _join_task(draft, command, facts, command.task_id)
    reply = None if draft.before.approval is None else _notice(draft)
    plan = _dispatch(draft, command, choice, task_id=task_id, mid_task=mid_task)
    offer = None if note is None else _offered(draft, command, note, choice.agent_id)
    return Decision(
        events=tuple(draft.events),
        task_id=task_id,
        dispatch=plan,
        reply=reply,
        suggestion=offer,
        topic=note,
    )


def _checked(draft: Draft, command: RouteMessage) -> RouteMessage:
    """Check what few messages have. One for inboxes has nothing to store if all agents have one.

    Raises INVALID_FIELD.
    """
    if command.task_expire_us is not None and command.task_expire_us <= draft.now_us:
        raise invalid_field("task_expire_time", "is in the past; give a later time or leave it out")
    if not command.inbox:
        return command
    if draft.registry.is_all_inbox:
        return replace(command, inbox=False)
    return command


def _behind(case: Case, command: RouteMessage, facts: Facts) -> Decision:
    """Let a message wait for the one before, or refuse it.

    Raises TURN_OPEN.
    """
    assert case.blocked_by is not None
    if command.task_id:
        _check_task(case.draft, facts, command.task_id)
    if not case.draft.registry.double_text_queues:
        raise _double_text(case.draft, case.blocked_by)
    return queue_message(case.draft, command)


def _offered(
    draft: Draft, command: RouteMessage, note: TopicNote, agent_id: str
) -> SuggestionPlan | None:
    """Offer the agent that a message may be for, or that of a second request in it."""
    offered: TopicNote | None = note
    if note.outcome is not TopicOutcome.SUGGESTED:
        offered = topic_switch.offered_second(draft, note, agent_id)
    return None if offered is None else topic_switch.suggest(draft, command, offered, agent_id)


def _handed(choice: Choice, facts: Facts) -> Choice:
    """Return a choice with the handoff by which its agent has the conversation, if it is new."""
    handed = facts.of(StandingHandoff)
    if handed is None or handed.plan.to_agent != choice.agent_id:
        return choice
    return replace(choice, handoff=handed.plan, handoff_revision=handed.revision)


def _notice(draft: Draft) -> ReplySpec | None:
    """Return what the user is to be told before the answer: that an approval ended undecided."""
    ended = approvals.ended_unseen(draft)
    return ReplySpec("", "notice", approval=ended) if ended else None


def _trace(effect: topic_switch.TopicEffect) -> ev.TopicTrace | None:
    """Return what is stored of a verdict; None if there was none."""
    opinion = effect.note.opinion
    if opinion is None or opinion.is_missing:
        return None
    return ev.TopicTrace(
        model=opinion.model,
        candidates=opinion.ranked[: ev.CANDIDATES_MAX],
        stay=opinion.stay,
        sureness=opinion.sureness,
        bound=opinion.bound,
        asked="" if effect.asked is None else effect.asked.value,
        second_request=opinion.second_request,
    )


def _decide_command(case: Case, command: RouteMessage, facts: Facts) -> Decision:
    """Do what a command says, and dispatch the text that is left over."""
    draft, parsed, mid_task = case.draft, case.parsed, case.mid_task
    assert parsed is not None
    answered = answer_command(
        draft,
        parsed,
        mid_task=mid_task,
        stickiness_enabled=command.stickiness_enabled,
        has_items=bool(command.items),
        typed=command.text,
        new_task_id=command.new_task_id,
    )
    plan = None
    if parsed.name == "task" and answered.dispatch_to and _must_wait(draft):
        # It overtakes no turn that a worker may be at work on.
        waits = queue_message(draft, replace(command, text=answered.text))
        return replace(waits, reply=answered.reply)
    if answered.dispatch_to:
        wanted = command.task_id
        if parsed.name == "reset" and not draft.state.open_task:
            # "/reset and now something else" may name the task that it has just cancelled.
            gone = {strand.task_id for strand in apart_of(draft.before).parked}
            gone |= {draft.before.task.task_id} if draft.before.task else set()
            wanted = "" if wanted in gone and not find_strand(draft.state, wanted) else wanted
        task_id = _join_task(draft, command, facts, wanted)
        choice = Choice(
            answered.dispatch_to, answered.reason, answered.text, command.items, answered.handoff
        )
        plan = _dispatch(draft, command, choice, task_id=task_id, mid_task=mid_task)
    else:
        # A command opens no task: no agent would end it.
        state = draft.state
        task_id = state.task.task_id if state.task else command.task_id or state.next_task_id
    return Decision(
        events=tuple(draft.events),
        task_id=task_id,
        dispatch=plan,
        reply=answered.reply,
        verdicts=answered.verdicts,
    )


def _must_wait(draft: Draft) -> bool:
    """Say whether a message for the task that came forward waits behind its turn."""
    state, registry = draft.state, draft.registry
    if not registry.double_text_queues or state.paused or is_with_person(state, registry):
        return False
    return blocking_turn(state, registry) is not None


def accept_suggestion(
    draft: Draft,
    command: RouteMessage,
    offer: OpenSuggestion,
    facts: Facts,
    *,
    mid_task: bool,
    mode: HandoffMode = HandoffMode.TRANSFER,
) -> tuple[Decision, tuple[Verdict, ...]]:
    """Give the message that an offer is about to the agent that was offered.

    command: its request_id becomes that of the turn, its own text is not dispatched.
    Raises RoutingError UNKNOWN_SUGGESTION, HANDOFF_REFUSED, TASK_OPEN, TASK_CLOSED.
    """
    message = facts.of(OfferedMessage)
    if message is None:
        raise suggestions.unknown_suggestion(draft.state.session_id, offer.suggestion_id)
    plan, verdicts = suggestions.accept(draft, offer, mid_task=mid_task, mode=mode)
    task_id = _join_task(draft, command, facts, command.task_id)
    choice = Choice(
        offer.agent_id,
        RouteReason.TOPIC_SWITCH,
        message.text,
        message.items,
        plan,
        confidence=offer.confidence,
    )
    reply = _notice(draft)
    dispatch = _dispatch(draft, command, choice, task_id=task_id, mid_task=mid_task)
    events = tuple(draft.events)
    decision = Decision(events=events, task_id=task_id, dispatch=dispatch, reply=reply)
    return decision, verdicts


def _decide_quick_reply(
    draft: Draft, command: RouteMessage, facts: Facts, *, mid_task: bool
) -> Decision:
    """Apply the user's answer to a suggestion. A locked agent keeps waiting for its own answer."""
    offer, accepts = suggestions.answered(draft, command.quick_reply_id)
    if accepts:
        decision, _ = accept_suggestion(draft, command, offer, facts, mid_task=mid_task)
        return decision
    return _decline(draft, offer)


def _decline(draft: Draft, offer: OpenSuggestion) -> Decision:
    """Record that the user stays, and say so."""
    suggestions.decline(draft, offer)
    task_id = draft.state.task.task_id if draft.state.task else ""
    stays_with = draft.state.active_id or draft.registry.home_agent_id
    reply = ReplySpec("", "stays", agent_id=stays_with)
    return Decision(events=tuple(draft.events), task_id=task_id, reply=reply)


def _decide_plain_answer(
    draft: Draft, command: RouteMessage, facts: Facts, *, mid_task: bool
) -> Decision | None:
    """Accept the suggestion if the text is a plain yes; None: the message goes on as any other.

    A plain no declines the suggestion and goes on, since it may be meant for the agent as well; the
    label or the number of the option to stay only declines it.
    """
    says_yes = facts.of(PlainAnswer)
    if says_yes is None:
        return None
    offer = suggestions.takes_plain_answers(draft.state)
    if offer is None:
        return None
    if facts.of(ChoseStay):
        return _decline(draft, offer)
    if not says_yes:
        suggestions.decline(draft, offer)
        return None
    decision, _ = accept_suggestion(draft, command, offer, facts, mid_task=mid_task)
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


def _refuse_known_request(draft: Draft, command: RouteMessage, facts: Facts) -> None:
    """Refuse the id of another request of the session: an answer to one would close both."""
    request_id = command.request_id
    before = draft.before
    paused = before.paused
    if (
        (before.open_turns and before.find_turn(request_id) is not None)
        or (paused is not None and paused.request_id == request_id)
        or (facts and facts.of(IsServiceRequest))
    ):
        raise request_id_of_another(draft.state.session_id, request_id)


def _double_text(draft: Draft, live: Blocker) -> RoutingError:
    """Refuse a message while the turn of an earlier one is open."""
    assert isinstance(live, OpenTurn)
    return RoutingError(
        Reason.TURN_OPEN,
        f'request "{live.request_id}" of agent "{live.holder}" is still open, and this '
        "registry takes one message at a time; send it again after the answer",
        metadata={
            "session_id": draft.state.session_id,
            "request_id": live.request_id,
            "agent_id": live.holder,
        },
    )


def _check_task(draft: Draft, facts: Facts, wanted: str) -> None:
    """Refuse a message that names a task which is closed, or another than the open one.

    Raises TASK_CLOSED, TASK_OPEN, TASKS_OPEN.
    """
    latest = draft.state.task
    is_latest = latest is not None and wanted == latest.task_id
    status = latest.status.value if latest and is_latest else facts.of(StoredTaskStatus)
    if status and not TaskStatus(status).is_open:
        raise task_closed(draft.state.session_id, wanted, status)
    if latest is None or is_latest or latest.status not in OPEN_STATUSES:
        return
    if (
        draft.registry.begins_tasks
        and (refusal := strands.why_not_begun(draft, wanted)) is not None
    ):
        raise refusal
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


def _join_task(draft: Draft, command: RouteMessage, facts: Facts, wanted: str) -> str:
    """Return the task that the message belongs to; a new one is begun if none is open."""
    if wanted:
        _check_task(draft, facts, wanted)
    latest = draft.state.task
    if latest is not None and latest.status in OPEN_STATUSES:
        return latest.task_id
    task_id = wanted or draft.state.next_task_id or command.new_task_id
    draft.add(
        ev.TaskCreated(
            task_id=task_id,
            expire_us=command.task_expire_us,
            metadata=command.metadata,
            shared=draft.state.apart is not None and bool(draft.state.apart.parked),
        )
    )
    return task_id


def _dispatch(
    draft: Draft, command: RouteMessage, choice: Choice, *, task_id: str, mid_task: bool
) -> DispatchPlan:
    """Open a turn with the chosen agent, and close the oldest where there are too many.

    What it overtakes in an inbox is closed too, unless a worker has it.
    """
    if overtakes := draft.state.open_turns:
        _make_room(draft)
    state = draft.state
    active = state.active
    locked = active is not None and active.agent_id == choice.agent_id and active.locked
    plan = DispatchPlan(
        request_id=command.request_id,
        task_id=task_id,
        agent_id=choice.agent_id,
        reason=choice.reason,
        reason_detail=choice.detail,
        previous_agent=state.previous_agent,
        locked=locked,
        handoff=choice.handoff,
        candidates=() if choice.topic is None else hinted_candidates(choice.topic),
    )
    is_unsure = choice.reason is RouteReason.TOPIC_UNSURE
    routed = ev.MessageRouted(
        request_id=command.request_id,
        task_id=task_id,
        agent_id=choice.agent_id,
        reason=RouteReason.NO_ACTIVE_AGENT if is_unsure else choice.reason,
        text=choice.text,
        items=choice.items,
        previous_agent=state.previous_agent,
        locked=locked,
        mid_task=mid_task,
        metadata=command.metadata,
        reason_detail=choice.detail,
        task_expire_us=command.task_expire_us,
        confidence=choice.confidence,
        topic_model=choice.topic_model,
        topic=choice.topic,
    )
    # Not among the arguments above: more than 15 make the call dearer for every message.
    if command.inbox or choice.handoff_revision:
        plan = replace(plan, inbox=command.inbox)
        routed = replace(
            routed,
            inbox=command.inbox,
            handoff_revision=choice.handoff_revision,
            continues=choice.continues,
        )
    draft.add(routed)
    if overtakes:
        drop_overtaken(draft)
    if state.claim is not None:
        # A person who stood in for the active agent has the conversation no more.
        end_claim(draft)
    return plan


def _make_room(draft: Draft) -> None:
    """Close the oldest open turns where one more would be too many."""
    turns = draft.state.open_turns
    # The registry's limit is for agents; that of the state holds for people too.
    by_people = is_with_person(draft.state, draft.registry)
    most = OPEN_TURNS_MAX if by_people else draft.registry.limits.open_turns
    for turn in turns[: max(0, len(turns) + 1 - most)]:
        ownership.abandon(draft, turn, "limit")


def send_on(draft: Draft, facts: Facts, new_task_id: str, *, stickiness_enabled: bool) -> None:
    """Send on the message that waits longest, if no turn is live: as Route does, without its topic.

    One whose task was closed meanwhile joins the open task, or begins one.
    """
    if not is_next_due(draft.state):
        return
    request_id = draft.state.queued[0].request_id
    message = facts.of(QueuedText)
    draft.add(ev.MessageDequeued(request_id, "lost" if message is None else "routed"))
    if message is None:
        return
    mid_task = is_mid_task(draft.state)
    arrival = Arrival(draft, draft.state, stickiness_enabled, expired=False)
    line = choose_line(arrival)
    choice = Choice(line.agent(arrival), line.reasons[0], message.text, message.items)
    choice = _handed(choice, facts)
    command = RouteMessage(
        request_id=request_id,
        text=message.text,
        new_task_id=new_task_id,
        items=message.items,
        metadata=message.metadata,
        task_expire_us=message.task_expire_us,
        inbox=message.inbox,
    )
    task_id = _join_task(draft, command, facts, "")
    _dispatch(draft, command, choice, task_id=task_id, mid_task=mid_task)


def send_again(draft: Draft, paused: OpenTurn, choice: Choice, request_id: str) -> DispatchPlan:
    """Give the message of a turn that waited for an approval to an agent, as another request."""
    command = RouteMessage(request_id, text="", new_task_id="", inbox=paused.is_delivered)
    handed = draft.state.revision if choice.handoff is not None else 0
    choice = replace(choice, handoff_revision=handed, continues=paused.request_id)
    return _dispatch(draft, command, choice, task_id=paused.task_id, mid_task=paused.mid_task)


def hinted_candidates(trace: ev.TopicTrace) -> tuple[tuple[str, float], ...]:
    """Return the candidates that are sent along with an unsure message."""
    return trace.candidates if trace.asked in _HINTED else ()
