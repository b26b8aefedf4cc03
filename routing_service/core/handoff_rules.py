"""Which handoffs are allowed.

HANDOFF_RULES is in the order in which verdicts are reported. Rule: every rule that binds is
evaluated, so that a caller learns all violations at once; the home agent is always a legal target,
so that a user can always get out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from routing_service.core.commands import Verdict
from routing_service.core.registry import Agent, AgentKind, Registry
from routing_service.core.session import OpenTurn, SessionState
from routing_service.core.vocabulary import HandoffMode, Initiator, TaskStatus

# After so many refused handoffs a turn may only end by other outcomes, or go home: otherwise a
# model that insists would loop on the same refusal.
REFUSALS_PER_TURN_MAX = 3

# A→B→A→B: the fourth holder of such a run is one too many. Consults are no steps of it.
_PING_PONG_RUN = 3


@dataclass(frozen=True, slots=True)
class Attempt:
    """One handoff to be judged.

    source: the agent that hands over, as the service sees it; claimed_source: as the caller says,
    "" = not given. mode: what the handoff would really do. turn: the open turn it happens in, None
    outside one. turn_is_lost: the named turn is no longer open. mid_task: a task was open before
    this message. refusals: earlier refused attempts in the turn. along: the turn goes along with a
    handoff outside of it.
    """

    state: SessionState
    registry: Registry
    initiator: Initiator
    target: Agent
    source: str
    mode: HandoffMode
    claimed_source: str = ""
    turn: OpenTurn | None = None
    turn_is_lost: bool = False
    mid_task: bool = False
    refusals: int = 0
    along: bool = False

    @property
    def is_home(self) -> bool:
        """Say whether the target is the supervisor, or a swarm's default agent."""
        return self.target.agent_id == self.registry.home_agent_id

    @property
    def in_turn(self) -> bool:
        """Say whether the caller named a turn."""
        return (self.turn is not None and not self.along) or self.turn_is_lost


@dataclass(frozen=True, slots=True)
class HandoffRule:
    """A named predicate. refuses: returns why, "" if it allows. initiators: None = all.

    binds_operator, binds_home: whether it holds for an operator, and for the home agent as target.
    binds_steps: it also limits the steps of judge_step().
    """

    name: str
    refuses: Callable[[Attempt], str]
    initiators: frozenset[Initiator] | None = None
    binds_operator: bool = False
    binds_home: bool = False
    binds_steps: bool = False

    def binds(self, attempt: Attempt) -> bool:
        """Say whether this rule counts for the attempt."""
        if attempt.is_home and not self.binds_home:
            # A question to the home agent frees nobody, so only the way home is exempt.
            return self.binds_steps and attempt.mode is HandoffMode.CONSULT
        if attempt.initiator is Initiator.OPERATOR:
            return self.binds_operator
        return self.initiators is None or attempt.initiator in self.initiators


def agent_is_reachable(agent: Agent, state: SessionState) -> bool:
    """Say whether this session's user may be with the agent: enabled, entitled, channel."""
    return (
        agent.enabled
        and agent.requires.issubset(state.entitlements)
        and (agent.channels is None or agent.is_on(state.channel))
    )


def why_unreachable(
    agent_id: str, state: SessionState, registry: Registry
) -> tuple[tuple[str, str], ...]:
    """Return why this session's user cannot be with an agent: rules with what each says.

    The rules are enabled, entitled and channel; "unknown" is for an agent that is not registered.
    The registry's own words come last.
    """
    agent = registry.agent(agent_id)
    if agent is None:
        return (("unknown", f'agent "{agent_id}" is not in the registry any more'),)
    attempt = Attempt(state, registry, Initiator.USER, agent, "", HandoffMode.TRANSFER)
    said = ((name, refuses(attempt)) for name, refuses in _OF_AVAILABILITY)
    return tuple((name, detail) for name, detail in said if detail)


def _with_own_words(attempt: Attempt, rule: str, detail: str) -> str:
    locale, default_locale = attempt.state.locale, attempt.registry.default_locale
    words = attempt.target.why_unavailable(rule, locale, default_locale)
    return f"{detail}: {words}" if words else detail


def judge(attempt: Attempt) -> tuple[Verdict, ...]:
    """Return the verdict of every rule that binds, in the table's order."""
    verdicts = []
    for rule in HANDOFF_RULES:
        if rule.binds(attempt):
            detail = rule.refuses(attempt)
            verdicts.append(Verdict(rule.name, allowed=not detail, detail=detail))
    return tuple(verdicts)


def judge_step(attempt: Attempt) -> tuple[Verdict, ...]:
    """Return the rules that refuse a step which an agent's answer takes without asking for it.

    These are a completion that goes on to the home agent, and the return to an interrupted agent.
    They are always legal as such; what may be refused is to dispatch the message once more.
    """
    return tuple(
        Verdict(rule.name, allowed=False, detail=detail)
        for rule in HANDOFF_RULES
        if rule.binds_steps and (detail := rule.refuses(attempt))
    )


def _enabled(attempt: Attempt) -> str:
    if attempt.target.enabled:
        return ""
    detail = f'agent "{attempt.target.agent_id}" is disabled; enable it in the registry'
    return _with_own_words(attempt, "enabled", detail)


def _not_system(attempt: Attempt) -> str:
    if attempt.target.kind is not AgentKind.SYSTEM:
        return ""
    return f'agent "{attempt.target.agent_id}" is a system agent, which takes no handoffs'


def _not_active(attempt: Attempt) -> str:
    target = attempt.target.agent_id
    if attempt.turn is not None:
        # A turn that goes along may be with an agent that does not have the conversation.
        present = attempt.state.active_id or attempt.registry.home_agent_id
        if target == attempt.turn.holder and (target == present or not attempt.along):
            return f'agent "{target}" holds this turn already'
        return ""
    if target == attempt.state.active_id:
        return f'agent "{target}" is active already'
    return ""


def _from_agent(attempt: Attempt) -> str:
    claimed = attempt.claimed_source
    if not claimed:
        return ""
    if attempt.turn is not None and not attempt.along:
        if claimed == attempt.turn.holder:
            return ""
        return f'the turn is held by "{attempt.turn.holder}", not by "{claimed}"'
    if claimed in (attempt.state.active_id, attempt.registry.home_agent_id):
        return ""
    now = attempt.state.active_id or attempt.registry.home_agent_id
    return f'the conversation is with "{now}", not with "{claimed}"; the handoff comes too late'


def _handoff_to(attempt: Attempt) -> str:
    source = attempt.registry.agent(attempt.source)
    if source is None or attempt.mode is HandoffMode.RETURN:
        # An interlude may always end by returning to the agent that it interrupted.
        return ""
    target = attempt.target
    if source.handoff_to is None:
        # not_system refuses system agents.
        return ""
    if target.agent_id in source.handoff_to:
        return ""
    allowed = ", ".join(sorted(source.handoff_to)) or "nobody"
    return f'agent "{source.agent_id}" may hand to {allowed}, not to "{target.agent_id}"'


def _entitled(attempt: Attempt) -> str:
    missing = sorted(attempt.target.requires.difference(attempt.state.entitlements))
    if not missing:
        return ""
    detail = (
        f'agent "{attempt.target.agent_id}" requires {", ".join(missing)}, which the user lacks'
    )
    return _with_own_words(attempt, "entitled", detail)


def _channel(attempt: Attempt) -> str:
    channels = attempt.target.channels
    if channels is None or attempt.target.is_on(attempt.state.channel):
        return ""
    is_on = f'is on "{attempt.state.channel}"' if attempt.state.channel else "has no channel"
    detail = (
        f'agent "{attempt.target.agent_id}" is for the channels {", ".join(sorted(channels))}; '
        f"this session {is_on}"
    )
    return _with_own_words(attempt, "channel", detail)


def _user_selectable(attempt: Attempt) -> str:
    target = attempt.target
    if attempt.is_home:
        # If users may not leave by /supervisor, they may not leave by the agent's name either.
        if "supervisor" not in attempt.registry.disabled_commands:
            return ""
        return f'users may not go back to "{target.agent_id}" by themselves here'
    if target.user_selectable:
        return ""
    return f'agent "{target.agent_id}" cannot be chosen by users'


def session_owner(state: SessionState, registry: Registry) -> str:
    """Return the active or interrupted agent that owns the session in mid-task, "" for none."""
    for tenure in (state.active, *state.stack):
        agent = registry.agent(tenure.agent_id) if tenure else None
        if agent is not None and agent.owns_session:
            return agent.agent_id
    return ""


def _owns_session(attempt: Attempt) -> str:
    if not attempt.mid_task:
        return ""
    owner_id = session_owner(attempt.state, attempt.registry)
    return f'agent "{owner_id}" owns the session until its task is done' if owner_id else ""


def _hop_limit(attempt: Attempt) -> str:
    if attempt.turn is None:
        return ""
    if attempt.refusals >= REFUSALS_PER_TURN_MAX:
        return f"{attempt.refusals} handoffs of this turn were refused; end it another way"
    limit = attempt.registry.limits.hops_per_message
    if attempt.turn.hops < limit or attempt.target.kind is AgentKind.HUMAN:
        return ""
    return f"the message has been through {attempt.turn.hops} handoffs, at most {limit} are allowed"


def _ping_pong(attempt: Attempt) -> str:
    if attempt.turn is None or attempt.mode is HandoffMode.CONSULT:
        return ""
    run = attempt.turn.handed_along[-_PING_PONG_RUN:]
    if len(run) < _PING_PONG_RUN:
        return ""
    first, second, third = run
    if first == third and second == attempt.target.agent_id:
        return f'the message has gone between "{first}" and "{second}" and back already'
    return ""


def _return_stack(attempt: Attempt) -> str:
    if attempt.mode not in (HandoffMode.INTERLUDE, HandoffMode.HOP):
        return ""
    if all(frame.agent_id != attempt.target.agent_id for frame in attempt.state.stack):
        return ""
    return f'agent "{attempt.target.agent_id}" was interrupted and waits for the conversation'


def _return_depth(attempt: Attempt) -> str:
    limit = attempt.registry.limits.return_depth
    if attempt.mode is not HandoffMode.INTERLUDE or len(attempt.state.stack) < limit:
        return ""
    return f"{len(attempt.state.stack)} agents are interrupted already, at most {limit} may be"


def _approval_pending(attempt: Attempt) -> str:
    task = attempt.state.open_task
    if task is None or task.status is not TaskStatus.PAUSED:
        return ""
    if attempt.is_home and not attempt.in_turn:
        return ""
    return f'task "{task.task_id}" waits for an approval; resume it first'


def _live_turn(attempt: Attempt) -> str:
    if attempt.turn is not None and attempt.turn.asker and not attempt.along:
        return f'the turn is a question of "{attempt.turn.asker}"; it can only be answered'
    if attempt.turn_is_lost:
        return "the turn is closed; leave turn_request_id out to hand over the next message"
    if attempt.turn is None or attempt.state.is_live(attempt.turn):
        return ""
    return "a newer message or a change of the active agent has overtaken the turn"


_OF_AVAILABILITY = (("enabled", _enabled), ("entitled", _entitled), ("channel", _channel))

_BY_AGENTS = frozenset({Initiator.SUPERVISOR, Initiator.AGENT})
_BY_USERS = frozenset({Initiator.USER})
_AGAINST_OWNERS = frozenset({Initiator.USER, Initiator.TOPIC})

HANDOFF_RULES: tuple[HandoffRule, ...] = (
    HandoffRule("enabled", _enabled, binds_operator=True),
    HandoffRule("not_system", _not_system),
    HandoffRule("not_active", _not_active, binds_operator=True, binds_home=True),
    HandoffRule("from_agent", _from_agent, binds_home=True),
    HandoffRule("handoff_to", _handoff_to, initiators=_BY_AGENTS),
    HandoffRule("entitled", _entitled, binds_operator=True),
    HandoffRule("channel", _channel, binds_operator=True),
    HandoffRule("user_selectable", _user_selectable, initiators=_BY_USERS, binds_home=True),
    HandoffRule("owns_session", _owns_session, initiators=_AGAINST_OWNERS),
    HandoffRule("hop_limit", _hop_limit, binds_steps=True),
    HandoffRule("ping_pong", _ping_pong),
    HandoffRule("return_stack", _return_stack, binds_operator=True),
    HandoffRule("return_depth", _return_depth, binds_operator=True),
    HandoffRule("approval_pending", _approval_pending, binds_home=True),
    # A turn that is over cannot be moved, not by an operator either.
    HandoffRule("live_turn", _live_turn, binds_operator=True, binds_home=True),
)
