"""What a user's slash commands do.

Rule: only supervisor, reset, agent and task change anything; an agent is called only if text is
left over.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace as replace_spec
from operator import attrgetter

import msgspec
from msgspec.structs import replace

from routing_service.core import approvals, ownership, strands
from routing_service.core import events as ev
from routing_service.core.agent_picks import (
    Pick,
    PickCase,
    pick_agent,
    recall_list,
    remember_list,
)
from routing_service.core.commands import HandoffPlan, Verdict
from routing_service.core.draft import Draft
from routing_service.core.handoff_rules import (
    Attempt,
    agent_is_reachable,
    judge,
    why_unreachable,
)
from routing_service.core.registry import Agent
from routing_service.core.session import Strand
from routing_service.core.slash_commands import BECAUSE, TASK_COMMANDS, ParsedCommand, ReplySpec
from routing_service.core.strand_fold import apart_of
from routing_service.core.vocabulary import HandoffMode, Initiator, RouteReason, TaskStatus

# A page of /agents.
_PAGE = re.compile(r"[0-9]{1,3}")

# What /task is followed by: a task's number, and perhaps a message.
_NUMBERED = re.compile(r"\W*([0-9]{1,3})(?!\w)[\s.,:;)]*(.*)", re.DOTALL)

# What makes /reset cancel the parked tasks too.
_ALL = frozenset({"all", "everything", "todo", "todas", "todos", "tudo"})


class CommandAnswer(msgspec.Struct, frozen=True):
    """A command's reply, and the agent that gets the text left over ("" = none)."""

    reply: ReplySpec
    dispatch_to: str = ""
    text: str = ""
    reason: RouteReason = RouteReason.COMMAND
    handoff: HandoffPlan | None = None
    verdicts: tuple[Verdict, ...] = ()
    listed: tuple[str, ...] = ()


class CommandCase(msgspec.Struct, frozen=True):
    """A command with what it needs to know of its message."""

    parsed: ParsedCommand
    mid_task: bool
    stickiness_enabled: bool


def answer_command(
    draft: Draft,
    parsed: ParsedCommand,
    *,
    mid_task: bool,
    stickiness_enabled: bool,
    has_items: bool,
    typed: str,
    new_task_id: str,
) -> CommandAnswer:
    """Do what a command asks and record it.

    has_items: the message has more than text. typed: the message as the user wrote it.
    new_task_id: an unused id, for the first task.
    """
    if parsed.name in draft.registry.disabled_commands:
        answered = CommandAnswer(ReplySpec(parsed.name, "disabled"))
    else:
        asked = CommandCase(parsed, mid_task=mid_task, stickiness_enabled=stickiness_enabled)
        answered = _ANSWERS[parsed.name](draft, asked)
    if not (answered.text or has_items):
        answered = replace(answered, dispatch_to="", reason=RouteReason.COMMAND)
    if ended := approvals.ended_unseen(draft):
        answered = replace(answered, reply=replace_spec(answered.reply, approval=ended))
    listed = answered.listed
    state = draft.state
    names_task = not (answered.dispatch_to or state.task or state.next_task_id)
    draft.add(
        ev.CommandHandled(
            command=parsed.name,
            variant=answered.reply.variant,
            text=typed,
            agent_id=answered.reply.agent_id,
            listed=remember_list(draft.registry, listed) if listed else "",
            next_task_id=new_task_id if names_task else "",
        )
    )
    return answered


def reachable_agents(draft: Draft) -> tuple[str, ...]:
    """Return the agents that this session's user may be with, in the registry's order."""
    return tuple(
        agent.agent_id
        for agent in draft.registry.answering
        if agent_is_reachable(agent, draft.state)
    )


def _selectable_agents(draft: Draft) -> tuple[str, ...]:
    agents = draft.registry.agents
    return tuple(name for name in reachable_agents(draft) if agents[name].user_selectable)


def _supervisor(draft: Draft, asked: CommandCase) -> CommandAnswer:
    left = draft.state.active_id
    ownership.abandon_all(draft, "command")
    ownership.clear(draft, "command")
    reply = ReplySpec(
        asked.parsed.name,
        "done" if left else "none_active",
        agent_id=left,
        agent_ids=reachable_agents(draft),
    )
    return CommandAnswer(reply, dispatch_to=draft.registry.home_agent_id, text=asked.parsed.rest)


def _reset(draft: Draft, asked: CommandCase) -> CommandAnswer:
    rest = asked.parsed.rest
    ownership.clear_all(draft, "reset")
    if draft.state.apart is not None and rest.strip(" .!").casefold() in _ALL:
        strands.cancel_parked(draft, "reset")
        rest = ""
    reply = ReplySpec(asked.parsed.name, "done", agent_ids=reachable_agents(draft))
    return CommandAnswer(reply, dispatch_to=draft.registry.home_agent_id, text=rest)


def _parked(draft: Draft) -> ReplySpec:
    """Return what /tasks says of the parked tasks."""
    parked = sorted(apart_of(draft.state).parked, key=attrgetter("number"))
    return ReplySpec(
        "tasks",
        "done" if parked else "none_parked",
        agent_ids=tuple(strands.holder_of(strand, draft.registry) for strand in parked),
        counts=tuple(strand.number for strand in parked),
        waits=tuple(_state_of(strand) for strand in parked),
    )


def _state_of(strand: Strand) -> str:
    if strand.paused is not None:
        return "paused"
    return "locked" if strand.is_locked else "running"


def _tasks(draft: Draft, _asked: CommandCase) -> CommandAnswer:
    return CommandAnswer(_parked(draft))


def _task(draft: Draft, asked: CommandCase) -> CommandAnswer:
    """Bring a parked task forward, and give its agent the text after its number."""
    written = asked.parsed.argument
    found = _NUMBERED.fullmatch(written)
    number = int(found[1]) if found else 0
    strand = next((s for s in apart_of(draft.state).parked if s.number == number), None)
    if strand is None or found is None:
        variant = "unknown_task" if written else "no_argument"
        reply = replace_spec(_parked(draft), command="task", variant=variant, detail=(written,))
        return CommandAnswer(reply)
    if strands.owned_in_task(draft):
        reply = ReplySpec("task", "refused", detail=("owns_session",))
        return CommandAnswer(reply)
    strands.bring(draft, strand, "command")
    holder = strands.holder_of(strand, draft.registry)
    reply = ReplySpec("task", "paused" if strand.paused else "done", agent_id=holder)
    home_id = draft.registry.home_agent_id
    is_there = holder == home_id or ownership.is_available(draft, holder)
    is_home = not (asked.stickiness_enabled and is_there)
    return CommandAnswer(reply, dispatch_to=home_id if is_home else holder, text=found[2])


def numbered_agents(draft: Draft) -> tuple[str, ...]:
    """Return the agents as /agents numbers them: those that the user may reach, without home."""
    home_id = draft.registry.home_agent_id
    return tuple(agent_id for agent_id in reachable_agents(draft) if agent_id != home_id)


def _agents(draft: Draft, asked: CommandCase) -> CommandAnswer:
    listed = numbered_agents(draft)
    page = _PAGE.search(asked.parsed.rest)
    reply = ReplySpec(
        asked.parsed.name,
        "done",
        agent_id=draft.state.active_id,
        agent_ids=listed,
        counts=(max(1, int(page[0])) if page else 1,),
    )
    return CommandAnswer(reply, listed=listed)


def _pick(draft: Draft, text: str) -> Pick:
    """Find the agent that a user means."""
    state, registry = draft.state, draft.registry
    listed = recall_list(registry, state.listed) if state.listed else None
    case = PickCase(
        registry,
        visible=tuple(dict.fromkeys((*reachable_agents(draft), registry.home_agent_id))),
        listed=numbered_agents(draft) if listed is None else listed,
        locale=state.locale,
    )
    return pick_agent(text, case)


def _choices(
    draft: Draft, variant: str, *, detail: tuple[str, ...] = (), fitting: tuple[str, ...] = ()
) -> CommandAnswer:
    """Ask the user which agent is meant."""
    agent_ids = fitting or _selectable_agents(draft)
    reply = ReplySpec("agent", variant, agent_ids=agent_ids, detail=detail)
    return CommandAnswer(reply, listed=agent_ids)


def _agent(draft: Draft, asked: CommandCase) -> CommandAnswer:
    pick = _pick(draft, asked.parsed.argument)
    if pick.fitting:
        return _choices(draft, "which", detail=(pick.written,), fitting=pick.fitting)
    if not pick.agent_id:
        if not pick.written:
            return _choices(draft, "no_argument")
        return _choices(draft, "unknown_agent", detail=(pick.written,))
    return replace(_select(draft, asked, draft.agent(pick.agent_id)), text=pick.rest)


def _select(draft: Draft, asked: CommandCase, target: Agent) -> CommandAnswer:
    """Give the conversation to the agent that the user has picked, if the rules allow it."""
    ownership.expire_ownership(draft)
    present = draft.state.active_id or draft.registry.home_agent_id
    is_present = target.agent_id == present
    mode = ownership.effective_mode(
        draft.state, draft.registry, present, target, HandoffMode.TRANSFER
    )
    attempt = Attempt(
        state=draft.state,
        registry=draft.registry,
        initiator=Initiator.USER,
        target=target,
        source=present,
        mode=mode,
        mid_task=asked.mid_task,
    )
    verdicts = judge(attempt)
    if is_present:
        # Selecting the present agent only unlocks it, so only its availability counts.
        verdicts = tuple(v for v in verdicts if v.rule in ("enabled", "entitled", "channel"))
    refused = tuple(verdict.rule for verdict in verdicts if not verdict.allowed)
    if refused:
        others = tuple(i for i in _selectable_agents(draft) if i != target.agent_id)
        reply = ReplySpec(
            "agent", "refused", agent_id=target.agent_id, agent_ids=others, detail=refused
        )
        return CommandAnswer(reply, verdicts=verdicts, listed=others)
    # While stickiness is off the next message goes home all the same, and the reply says so.
    is_kept = not (asked.stickiness_enabled or target.agent_id == draft.registry.home_agent_id)
    detail = ("stickiness_off",) if is_kept else ()
    if is_present:
        ownership.unlock(draft, "command")
        return CommandAnswer(
            ReplySpec("agent", "already_active", agent_id=target.agent_id, detail=detail),
            dispatch_to=target.agent_id,
            reason=RouteReason.USER_SELECTED,
        )
    ownership.abandon_all(draft, "command")
    if mode is not HandoffMode.INTERLUDE:
        ownership.unlock(draft, "command")
    plan = ownership.hand_off(
        draft,
        ownership.Move(
            source=present,
            target=target,
            initiator=Initiator.USER,
            mode=mode,
            route_reason=RouteReason.USER_SELECTED,
        ),
    )
    return CommandAnswer(
        ReplySpec("agent", "done", agent_id=target.agent_id, detail=detail),
        dispatch_to=target.agent_id,
        reason=RouteReason.USER_SELECTED,
        handoff=plan,
        verdicts=verdicts,
    )


def _status(draft: Draft, asked: CommandCase) -> CommandAnswer:
    # The session as the next message would find it; nothing is written.
    view = Draft(draft.state, draft.state.session_id, draft.registry, draft.now_us)
    view.before = draft.before
    ownership.expire_ownership(view)
    state = view.state
    detail = []
    if not asked.stickiness_enabled:
        detail.append("stickiness_off")
    if state.active is not None:
        if not ownership.is_available(view, state.active.agent_id):
            detail.append("unavailable")
            why = why_unreachable(state.active.agent_id, state, view.registry)
            detail += [f"{BECAUSE}{rule}" for rule, _ in why]
        if state.active.locked:
            detail.append("locked")
    if state.open_task is not None:
        is_paused = state.open_task.status is TaskStatus.PAUSED
        detail.append("task_paused" if is_paused else "task_running")
    if state.stack:
        detail.append(f"returns_to:{state.stack[-1].agent_id}")
    reply = ReplySpec(
        asked.parsed.name,
        "active" if state.active else "none_active",
        agent_id=state.active_id,
        detail=tuple(detail),
    )
    return CommandAnswer(reply)


def _history(draft: Draft, asked: CommandCase) -> CommandAnswer:
    counts = draft.state.turns_by_agent
    reply = ReplySpec(
        asked.parsed.name,
        "done" if counts else "none_answered",
        agent_ids=tuple(counts),
        counts=tuple(counts.values()),
        detail=tuple(
            f"{strand.number}:{strand.task_id}" for strand in apart_of(draft.state).parked
        ),
    )
    return CommandAnswer(reply)


def _help(draft: Draft, asked: CommandCase) -> CommandAnswer:
    useless = ["agents"] if not numbered_agents(draft) else []
    useless += ["agent"] if not _selectable_agents(draft) else []
    useless += TASK_COMMANDS if draft.state.apart is None else ()
    return CommandAnswer(ReplySpec(asked.parsed.name, "done", detail=tuple(useless)))


_ANSWERS: dict[str, Callable[[Draft, CommandCase], CommandAnswer]] = {
    "supervisor": _supervisor,
    "reset": _reset,
    "agents": _agents,
    "agent": _agent,
    "status": _status,
    "tasks": _tasks,
    "task": _task,
    "history": _history,
    "help": _help,
}
