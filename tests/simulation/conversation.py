"""One conversation with the state machine, kept as the service keeps it.

It has the session's state, its clock, its ids, and what the log would know of closed requests.
Every step is checked against the invariants.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace

from routing_service.core import events as ev
from routing_service.core.commands import (
    ClearActiveAgent,
    Command,
    Complete,
    CompleteTurn,
    Decision,
    Outcome,
    Proceed,
    ResumeTask,
    RouteMessage,
    SetActiveAgent,
    TopicOpinion,
)
from routing_service.core.decide import decide, view
from routing_service.core.events import Profile
from routing_service.core.facts import (
    NO_FACTS,
    Facts,
    KnownTurn,
    OfferedMessage,
    PastTurn,
    PausedMessage,
    PlainAnswer,
    RefusedHandoffs,
    StoredTaskStatus,
    TopicVerdict,
)
from routing_service.core.refusals import HandoffRefused
from routing_service.core.registry import SECOND_US, Agent, AgentKind, Registry
from routing_service.core.session import SessionState
from routing_service.core.strand_fold import every_open_turn
from routing_service.core.vocabulary import (
    ApprovalDecision,
    ClearScope,
    HandoffMode,
    Initiator,
    TurnFate,
)
from tests.simulation.never import check_change, check_offer

START_US = 1_700_000_000 * SECOND_US
SESSION_ID = "chat-1"
SUPERVISOR = Agent("supervisor", kind=AgentKind.SUPERVISOR)


def uuid7(number: int) -> str:
    """Return the number-th UUIDv7 of a run: the same in every run."""
    value = (0x018B_CFE5_6800 + number) << 80 | 0x7 << 76 | 0x2 << 62
    return str(uuid.UUID(int=value))


def registry_of(*agents: Agent, home: str = "", **settings: object) -> Registry:
    """Return a registry of these agents; a supervisor is added if there is no home agent."""
    swarm = bool(home)
    everyone = agents if swarm else (SUPERVISOR, *agents)
    if any(agent.kind is AgentKind.SUPERVISOR for agent in agents):
        everyone = agents
    supervisors = [a.agent_id for a in everyone if a.kind is AgentKind.SUPERVISOR]
    return Registry(
        version="1",
        home_agent_id=home or supervisors[0],
        agents={agent.agent_id: agent for agent in everyone},
        is_swarm=swarm,
        **settings,  # type: ignore[arg-type]
    )


@dataclass(slots=True)
class Conversation:
    """A session and its callers.

    log: every change as (time, registry version, events). open: the request of the last dispatch.
    """

    registry: Registry
    state: SessionState | None = None
    now_us: int = START_US
    stickiness: bool = True
    log: list[tuple[int, str, tuple[ev.Event, ...]]] = field(default_factory=list)
    known: dict[str, KnownTurn] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    open: str = ""
    last: Decision = field(default_factory=Decision)
    _ids: int = 0

    @property
    def active(self) -> str:
        """The active agent's id, "" for none."""
        assert self.state is not None
        return self.state.active_id

    @property
    def locked(self) -> bool:
        """Whether the active agent waits for an answer."""
        assert self.state is not None
        return self.state.active is not None and self.state.active.locked

    @property
    def stack(self) -> list[str]:
        """The interrupted agents, the first one first."""
        assert self.state is not None
        return [frame.agent_id for frame in self.state.stack]

    @property
    def task_status(self) -> str:
        """The status of the latest task, "" for none."""
        assert self.state is not None
        return self.state.task.status.value if self.state.task else ""

    @property
    def last_events(self) -> tuple[ev.Event, ...]:
        """The events of the last change."""
        return self.log[-1][2] if self.log else ()

    def kinds(self) -> list[str]:
        """Return the kinds of the last decision's events."""
        return [type(event).__name__ for event in self.last.events]

    def view(self) -> SessionState:
        """Return the session with timers applied, as the next message would see it."""
        assert self.state is not None
        return view(self.state, self.registry, self.now_us)

    def fresh_id(self) -> str:
        """Return an id that was not used before."""
        self._ids += 1
        return uuid7(self._ids)

    def wait(self, seconds: float) -> Conversation:
        """Let time pass; negative: the clock is put back."""
        self.now_us += int(seconds * SECOND_US)
        return self

    def says(
        self,
        text: str = "hello",
        *,
        task_id: str = "",
        known_task_status: str = "",
        entitlements: tuple[str, ...] = (),
        channel: str = "",
        items: tuple[ev.Item, ...] = (),
        literal_text: bool = False,
        expire_s: float | None = None,
        request_id: str = "",
        about: str = "",
        confidence: float = 0.95,
        stay: float | None = None,
        says_yes: bool | None = None,
    ) -> Decision:
        """Let the user send a message.

        about: the agent that topic detection takes it to be for, "" where it has no opinion.
        says_yes: the text is a plain yes or no.
        """
        topic = None
        if about:
            left = 1 - confidence if stay is None else stay
            topic = TopicOpinion(((about, confidence),), left, "test-1", self.fresh_id())
        return self.do(
            RouteMessage(
                request_id=request_id or self.fresh_id(),
                text=text,
                new_task_id=self.fresh_id(),
                items=items,
                task_id=task_id,
                profile=Profile(channel=channel, entitlements=entitlements),
                task_expire_us=None if expire_s is None else self.now_us + int(expire_s * 1e6),
                literal_text=literal_text,
                stickiness_enabled=self.stickiness,
            ),
            Facts(
                {
                    StoredTaskStatus: known_task_status,
                    TopicVerdict: topic,
                    PlainAnswer: says_yes,
                    OfferedMessage: self.offered,
                }
            ),
        )

    @property
    def offered(self) -> ev.MessageRouted | None:
        """The message of the open suggestion, from the log."""
        if self.state is None or self.state.suggestion is None:
            return None
        _, _, events = self.log[self.state.suggestion.message_revision - 1]
        (message,) = [event for event in events if isinstance(event, ev.MessageRouted)]
        return message

    @property
    def withdrawn(self) -> ev.MessageRouted | None:
        """The message of the turn that waits for an approval, from the log."""
        if self.state is None or self.state.paused is None:
            return None
        _, _, events = self.log[self.state.paused.message_revision - 1]
        return next((event for event in events if isinstance(event, ev.MessageRouted)), None)

    def picks(self, option_id: str) -> Decision:
        """Let the user press one of the buttons of a suggestion."""
        return self.do(
            RouteMessage(
                request_id=self.fresh_id(),
                text="",
                new_task_id=self.fresh_id(),
                stickiness_enabled=self.stickiness,
                quick_reply_id=option_id,
            ),
            Facts({OfferedMessage: self.offered}),
        )

    def answers(
        self,
        outcome: Outcome | None = None,
        *,
        by: str = "",
        request: str = "",
        text: str = "/reset",
        parse_markers: bool | None = None,
    ) -> Decision:
        """Let an agent answer, by default the holder of the last dispatch.

        Its text is a command by default, because an agent's text never counts as one.
        """
        assert self.state is not None
        request = request or self.open
        turn = self.state.find_turn(request)
        return self.do(
            CompleteTurn(
                request_id=request,
                agent_id=by or (turn.holder if turn else self.known[request].holder),
                outcome=outcome or Proceed(),
                child_seed=self.fresh_id(),
                text=text,
                parse_markers=parse_markers,
                stickiness_enabled=self.stickiness,
            ),
            Facts(
                {
                    PastTurn: None if turn else self.known.get(request),
                    RefusedHandoffs: self.refusals.get(request, 0),
                }
            ),
        )

    def hands_to(
        self,
        agent_id: str,
        *,
        turn: str = "",
        by: str = "",
        initiator: Initiator | None = None,
        mode: HandoffMode = HandoffMode.TRANSFER,
        entitlements: tuple[str, ...] = (),
        channel: str = "",
        suggestion_id: str = "",
        message: str = "",
        open_turn: TurnFate | None = None,
    ) -> Decision:
        """Request a handoff outside of an answer; turn: the request that it happens in."""
        return self.do(
            SetActiveAgent(
                request_id=self.fresh_id(),
                agent_id=agent_id,
                turn_request_id=turn,
                initiator=initiator,
                from_agent_id=by,
                mode=mode,
                profile=Profile(channel=channel, entitlements=entitlements),
                stickiness_enabled=self.stickiness,
                suggestion_id=suggestion_id,
                new_task_id=self.fresh_id(),
                child_seed=self.fresh_id(),
                message=message,
                open_turn=open_turn,
            ),
            Facts(
                {
                    PastTurn: self.known.get(turn),
                    RefusedHandoffs: self.refusals.get(turn, 0),
                    OfferedMessage: self.offered,
                    PausedMessage: self.withdrawn,
                }
            ),
        )

    def clears(
        self,
        scope: ClearScope = ClearScope.ACTIVE_AGENT,
        *,
        initiator: Initiator = Initiator.USER,
        open_turn: TurnFate | None = None,
    ) -> Decision:
        """Clear the active agent, or the session."""
        return self.do(
            ClearActiveAgent(
                request_id=self.fresh_id(),
                scope=scope,
                initiator=initiator,
                open_turn=open_turn,
                child_seed=self.fresh_id(),
            ),
            Facts({PausedMessage: self.withdrawn}),
        )

    def resumes(
        self,
        decision: ApprovalDecision = ApprovalDecision.APPROVE,
        *,
        request: str = "",
        task_id: str = "",
        known_task_status: str = "",
    ) -> Decision:
        """Let a person decide what the paused task waits for."""
        assert self.state is not None
        paused, task = self.state.paused, self.state.task
        return self.do(
            ResumeTask(
                request_id=request or (paused.request_id if paused else self.fresh_id()),
                task_id=task_id or (task.task_id if task else self.fresh_id()),
                decision=decision,
                child_seed=self.fresh_id(),
            ),
            Facts({StoredTaskStatus: known_task_status}),
        )

    def with_agent(self, agent_id: str) -> Conversation:
        """Let the supervisor hand the user's first message to an agent, which answers."""
        self.says("hello")
        self.hands_to(agent_id, turn=self.open)
        self.answers()
        return self

    def do(self, command: Command, facts: Facts = NO_FACTS) -> Decision:
        """Decide a command, check the invariants, and apply its events."""
        try:
            decided = decide(
                self.state,
                command,
                self.registry,
                self.now_us,
                session_id=SESSION_ID,
                facts=facts,
            )
        except HandoffRefused:
            turn = getattr(command, "turn_request_id", "") or command.request_id
            self.refusals[turn] = self.refusals.get(turn, 0) + 1
            raise
        check_change(self.state, command, decided, self.registry, facts)
        check_offer(command, decided, self.registry)
        self.state = decided.state
        self.last = decision = decided.decision
        if decision.events:
            self.log.append((decided.now_us, self.registry.version, decision.events))
        dispatch = decision.dispatch
        if dispatch is not None:
            turns = every_open_turn(self.state)
            turn = next((t for t in turns if t.request_id == dispatch.request_id), None)
            assert turn is not None
            self.open = dispatch.request_id
            self.known[dispatch.request_id] = KnownTurn(
                turn.root_request_id, turn.task_id, dispatch.agent_id
            )
        return decision

    def reload(self, registry: Registry) -> None:
        """Replace the registry."""
        self.registry = registry

    def change_agent(self, agent_id: str, **fields: object) -> None:
        """Reload the registry with one agent changed."""
        agents = dict(self.registry.agents)
        agents[agent_id] = replace(agents[agent_id], **fields)
        self.registry = replace(self.registry, agents=agents)

    def drop_agent(self, agent_id: str) -> None:
        """Reload the registry without an agent."""
        agents = {name: agent for name, agent in self.registry.agents.items() if name != agent_id}
        self.registry = replace(self.registry, agents=agents)


def completes(summary: str = "", message: str = "") -> Complete:
    """Return the outcome of an agent that has finished."""
    return Complete(summary=summary, message=message)


def routed_text(decision: Decision) -> str:
    """Return the text that a decision dispatches."""
    (message,) = [event for event in decision.events if isinstance(event, ev.MessageRouted)]
    return message.text
