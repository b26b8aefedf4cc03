"""One message of a user, through a program's agents and the service, step by step.

Owns: the order of the calls: route, follow the handoffs, report the answer, go on where the
service says; what happens while the service is away. Must not know: any framework, threads or
event loops (see steps). Rule: only the service decides; while it cannot be reached the chat goes
on by what was last known, and what was decided so is marked degraded.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from agent_routing import outcomes
from agent_routing.errors import (
    DeadlineExceeded,
    InvalidField,
    Overloaded,
    PreconditionFailed,
    RoutingError,
    Unavailable,
    UnknownAgent,
)
from agent_routing.integrations import agent_tools
from agent_routing.integrations.agent_names import AgentNames
from agent_routing.integrations.steps import AnyClient, Call, Calls, Segment, Steps
from agent_routing.outcomes import Outcome
from agent_routing.route_result import RouteResult
from agent_routing.v1.agent_pb2 import AGENT_KIND_SYSTEM, Agent
from agent_routing.v1.dispatch_pb2 import Dispatch, Suggestion
from agent_routing.v1.routing_service_pb2 import (
    CompleteTurnResponse,
    ListAgentsResponse,
    ListTurnsResponse,
    StatusResponse,
)
from agent_routing.v1.turn_pb2 import Turn

HISTORY_TURNS: Final = 20
"""How many past turns an agent gets: what the service sends with a message by default."""

SESSIONS_MAX: Final = 1_000
"""Sessions whose last turns are kept for the time when the service is away."""

_AWAY: Final = (Unavailable, DeadlineExceeded, Overloaded)

_log = logging.getLogger("agent_routing")


@dataclass(frozen=True, slots=True)
class Shown:
    """Words for the user. agent_id: whose; empty: the service's own, such as a command's reply."""

    agent_id: str
    text: str


@dataclass(slots=True)
class RoutedRun:
    """What came of a user's message.

    session_id: the session, as given or made. shown: what the user is to see, in order. agent_id:
    who answered last; empty if nobody did. reason: why the message went to the first agent, such as
    "STICKY". next: where the message goes on, if that is an agent of another program: hand it
    there. suggestion: a switch offered to the user, if one is. answers: what the service said to
    each answer. results: what the framework returned of each of its runs. degraded: whether
    anything was decided without the service; then error says why.
    """

    session_id: str = ""
    shown: list[Shown] = field(default_factory=list)
    agent_id: str = ""
    reason: str = ""
    next: Dispatch | None = None
    suggestion: Suggestion | None = None
    answers: list[CompleteTurnResponse] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    degraded: bool = False
    error: RoutingError | None = None

    @property
    def text(self) -> str:
        """All that the user is to see, as one text."""
        return "\n\n".join(each.text for each in self.shown)

    @property
    def locked(self) -> bool:
        """Whether the agent waits for the user's answer to its question."""
        return bool(self.answers) and self.answers[-1].locked


@dataclass(frozen=True, slots=True)
class AgentView:
    """What an agent sees at the moment. targets: name in the program, and the agent."""

    instructions: str
    targets: tuple[tuple[str, Agent], ...]

    @property
    def target_names(self) -> tuple[str, ...]:
        """The names from which transfer_to_agent chooses."""
        return tuple(name for name, _ in self.targets)


@dataclass(frozen=True, slots=True)
class Said:
    """What a run of the framework came to. text: the last agent's answer, as the framework has it.
    result: what the framework returned.
    """  # noqa: D205 - one sentence

    text: str
    result: Any


class RoutedProgram:
    """The agents of a program, with what is known of the registry. Safe in threads.

    client: of the service. names: of the agents: ids or aliases of the registry.
    """

    def __init__(self, client: AnyClient, names: Iterable[str]) -> None:
        self.client = client
        self.names = AgentNames(names)
        self.memory = LocalMemory()
        self._listed: ListAgentsResponse | None = None

    def converse(self, text: str, fields: Mapping[str, Any]) -> Steps[RoutedRun]:
        """Route a message, run its agents, report their answers. fields: of Client.route()."""
        yield from self._know_the_registry()
        routed: RouteResult = yield Call("route", {"text": text, **fields})
        run = RoutedRun(
            session_id=routed.session_id,
            reason=routed.reason,
            suggestion=routed.suggestion,
            degraded=routed.degraded,
            error=routed.error,
        )
        if routed.reply_text:
            run.shown.append(Shown("", routed.reply_text))
        dispatch = routed.dispatch
        if dispatch is None:
            return run
        if routed.degraded:
            dispatch = self.memory.fill(run.session_id, dispatch, self.home_id)
        else:
            self.memory.seed(run.session_id, dispatch)
        if routed.replayed:
            taken_up = yield from self._taken_up(run, dispatch, fields)
            if taken_up is None:
                return run
            dispatch = taken_up
        return (yield from self._go_on(run, dispatch, fields, is_local=routed.degraded))

    def answer(
        self, session_id: str, dispatch: Dispatch, fields: Mapping[str, Any]
    ) -> Steps[RoutedRun]:
        """Answer a message that a frontend has routed. fields: user_id and locale."""
        yield from self._know_the_registry()
        run = RoutedRun(session_id=session_id)
        return (yield from self._go_on(run, dispatch, fields, is_local=False))

    @property
    def home_id(self) -> str:
        """The home agent; empty while the registry is not known."""
        return self._listed.home_agent_id if self._listed else ""

    def agents_here(self) -> list[tuple[str, Agent]]:
        """Return the program's agents as last known, with their names in it."""
        if self._listed is None:
            return [(name, Agent(agent_id=id_)) for id_, name in self.names.by_id.items()]
        return self.of_this_program(
            agent
            for agent in self._listed.agents
            if agent.enabled and agent.kind != AGENT_KIND_SYSTEM
        )

    def of_this_program(self, agents: Iterable[Agent]) -> list[tuple[str, Agent]]:
        """Return those of some agents that are the program's, with their names in it."""
        return [
            (name, agent)
            for agent in agents
            if (name := self.names.name(agent.agent_id)) is not None
        ]

    def noticed_version(self, registry_version: str) -> None:
        """Read the registry again before the next message if it has changed."""
        if self._listed is not None and self._listed.registry_version != registry_version:
            self._listed = None

    def _taken_up(
        self, run: RoutedRun, dispatch: Dispatch, fields: Mapping[str, Any]
    ) -> Calls[Dispatch | None]:
        """Return where a message stands that was routed before: a run of it may have died.

        None if it has been answered: the answer is in run. The handoffs of that run hold, so the
        agent is the one that has the message now.
        """
        who = {"session_id": run.session_id, "user_id": fields.get("user_id", "")}
        try:
            status: StatusResponse = yield Call("status", who)
            page: ListTurnsResponse = yield Call(
                "list_turns_page", {**who, "order": "NEWEST_FIRST", "page_size": HISTORY_TURNS}
            )
        except _AWAY as error:
            run.degraded, run.error = True, error
            return dispatch
        chain = {dispatch.request_id}
        for turn in reversed(page.turns):
            if turn.request_id in chain or turn.parent_request_id in chain:
                chain.add(turn.request_id)
                if turn.agent_text:
                    run.shown.append(Shown(turn.agent_id, turn.agent_text))
                    run.agent_id = turn.agent_id
        return next((each for each in status.open_requests if each.request_id in chain), None)

    def _know_the_registry(self) -> Calls[None]:
        """Read it, unless it is known. Raises LookupError for an agent that it lacks."""
        if self._listed is not None:
            return
        try:
            listed: ListAgentsResponse = yield Call("list_agents", {})
        except _AWAY as error:
            _log.warning("agents_not_listed: %s", error.message)
            return
        self.names.learn(listed)
        self._listed = listed

    def _go_on(
        self, run: RoutedRun, dispatch: Dispatch, fields: Mapping[str, Any], *, is_local: bool
    ) -> Steps[RoutedRun]:
        """Run agents for a dispatch, and for those that follow from it."""
        following: Dispatch | None = dispatch
        # The service ends this: it allows so many hops a message.
        while following is not None:
            name = self.names.name(following.agent.agent_id)
            if name is None:
                run.next = following
                break
            turn = RoutedTurn(self, run, following, fields, is_local=is_local)
            try:
                said: Said = yield Segment(name, turn)
            except Exception as error:
                yield from turn.fail(error)
                raise
            run.results.append(said.result)
            following = yield from turn.finish(said.text)
            if following is not None and following.handoff.message:
                giver = getattr(following.handoff, "from").agent_id
                run.shown.append(Shown(giver, following.handoff.message))
        return run


class RoutedTurn:
    """An open turn, while the framework runs: who holds it, and how it is going to end."""

    def __init__(
        self,
        program: RoutedProgram,
        run: RoutedRun,
        dispatch: Dispatch,
        fields: Mapping[str, Any],
        *,
        is_local: bool,
    ) -> None:
        self.program = program
        self.run = run
        self.dispatch = dispatch
        self.holder_id = dispatch.agent.agent_id
        self.note = agent_tools.note_of_dispatch(dispatch, program.names.by_id)
        self.user_id: str = fields.get("user_id", "")
        self._who = {"session_id": run.session_id, "user_id": self.user_id}
        self._locale = fields.get("locale", "")
        # The service has never heard of a turn that was routed without it.
        self._is_local = is_local
        self._outcome: Outcome | None = None
        self._tool_text = ""
        self._views: dict[str, AgentView] = {}

    @property
    def key(self) -> str:
        """What tells this turn from all others: the request that is to be completed."""
        return self.dispatch.request_id

    @property
    def user_text(self) -> str:
        """The user's message, without its command, and the texts among its items."""
        texts = (self.dispatch.text, *(item.text for item in self.dispatch.items))
        return "\n\n".join(text for text in texts if text)

    @property
    def is_ended(self) -> bool:
        """Whether a tool has ended the turn: nothing more is to be asked of the model."""
        return self._outcome is not None

    @property
    def tool_text(self) -> str:
        """What the user is to see by the tool that has ended the turn."""
        return self._tool_text

    def ask(self, from_name: str, question: str) -> str:
        """End the turn with a question; return what a model would read of it."""
        if not self._is_holder(from_name):
            return agent_tools.TOO_LATE
        self._outcome, self._tool_text = outcomes.follow_up(), question
        return "asked; the user's next message is the answer"

    def complete(self, from_name: str, answer: str, summary: str = "") -> str:
        """End the turn and the agent's part; return what a model would read of it."""
        if not self._is_holder(from_name):
            return agent_tools.TOO_LATE
        given = agent_tools.cut(summary, agent_tools.MESSAGE_BYTES_MAX)
        self._outcome, self._tool_text = outcomes.complete(summary=given), answer
        return "completed"

    def _is_holder(self, name: str) -> bool:
        """Tell whether an agent still has the turn. Empty: whoever has it.

        A model may call a tool beside a transfer; frameworks carry both out at once.
        """
        return not name or self.program.names.agent_id(name) == self.holder_id

    def view(self) -> Calls[AgentView]:
        """Return what the holder sees: its instructions, and whom it may hand over to."""
        holder_id = self.holder_id
        if (known := self._views.get(holder_id)) is not None:
            return known
        targets = [
            (name, agent)
            for name, agent in self.program.agents_here()
            if agent.agent_id != holder_id
        ]
        instructions = self.program.memory.instructions(self._who["session_id"], holder_id)
        if not self._is_local:
            asked = {**self._who, "locale": self._locale}
            try:
                listed: ListAgentsResponse = yield Call(
                    "list_agents", {**asked, "from_agent_id": holder_id}
                )
                targets = self.program.of_this_program(listed.agents)
                self.program.noticed_version(listed.registry_version)
                kept = self.program.memory.instructions(
                    self._who["session_id"], holder_id, listed.registry_version, self._locale
                )
                if not kept:
                    whole: ListAgentsResponse = yield Call(
                        "list_agents", {**asked, "include_instructions": True}
                    )
                    kept = whole.instructions.get(holder_id, "")
                    self.program.memory.keep_instructions(
                        self._who["session_id"], self._locale, whole
                    )
                instructions = kept
            except _AWAY as error:
                self._degrade(error)
        parts = (part for part in (instructions.strip(), agent_tools.TOOLS_NOTE) if part)
        view = AgentView("\n\n".join(parts), tuple(targets))
        self._views[holder_id] = view
        return view

    def past(self) -> Calls[list[tuple[str, str]]]:
        """Return the past turns that the holder may see, oldest first, as (role, text)."""
        turns: Iterable[Turn] = self.dispatch.history
        if self.holder_id != self.dispatch.agent.agent_id:
            turns = yield from self._turns_of_holder()
        return agent_tools.past_messages(turns, self.holder_id, self.program.names.by_id)

    def hand_over(
        self,
        to_name: str,
        *,
        from_name: str = "",
        reason: str = "",
        context: str = "",
        message: str = "",
        mode: str = "",
    ) -> Calls[str | None]:
        """Move the turn to another agent; return what a model reads if that is refused, else None.

        While the service is away the handoff goes ahead, and the run is degraded.
        """
        names = self.program.names
        target_id = names.agent_id(to_name) or ""
        if names.name(target_id) is None:
            known = ", ".join(name for name, _ in self.program.agents_here())
            return agent_tools.describe_refusal(f'no agent "{to_name}" is here; there are {known}')
        giver_id = names.agent_id(from_name) or self.holder_id
        if self._is_local:
            self.program.memory.moved_away(self.run.session_id, target_id)
        else:
            try:
                yield Call(
                    "set_active_agent",
                    {
                        **self._who,
                        "agent_id": target_id,
                        "turn_request_id": self.dispatch.request_id,
                        "from_agent_id": giver_id,
                        "reason": agent_tools.cut(reason, agent_tools.REASON_BYTES_MAX),
                        "context": _context(context),
                        "message": agent_tools.cut(message, agent_tools.MESSAGE_BYTES_MAX),
                        "mode": "INTERLUDE" if mode.lower() == "interlude" else None,
                    },
                )
            except (PreconditionFailed, UnknownAgent, InvalidField) as refused:
                return agent_tools.describe_refusal(refused.message)
            except _AWAY as error:
                self._degrade(error)
                self.program.memory.moved_away(self.run.session_id, target_id)
        self._outcome, self._tool_text = None, ""
        self.holder_id = target_id
        self.note = agent_tools.note_of_handoff(
            names.by_id.get(giver_id, giver_id), reason, context
        )
        if message:
            self.run.shown.append(Shown(giver_id, message))
        return None

    def finish(self, text: str) -> Calls[Dispatch | None]:
        """Report the answer; return where the message goes on, if anywhere."""
        whole = _joined(text, self._tool_text)
        self.run.agent_id = self.holder_id
        self.program.memory.remember(self.run.session_id, self.dispatch, self.holder_id, whole)
        sent = agent_tools.cut(whole, agent_tools.TEXT_BYTES_MAX)
        answer: CompleteTurnResponse | None = None
        if not self._is_local:
            try:
                answer = yield Call(
                    "complete_turn",
                    {
                        **self._who,
                        "request_id": self.dispatch.request_id,
                        "agent_id": self.holder_id,
                        "outcome": self._outcome or outcomes.proceed(),
                        "text": sent,
                    },
                )
            except _AWAY as error:
                self._degrade(error)
        if answer is not None:
            self.run.answers.append(answer)
            if sent == whole:
                whole = answer.text  # Without its markers.
        if whole:
            self.run.shown.append(Shown(self.holder_id, whole))
        return answer.next if answer is not None and answer.HasField("next") else None

    def fail(self, error: Exception) -> Calls[None]:
        """Report that the run has failed. Raises nothing: the run's own error is to be seen."""
        if self._is_local:
            return
        try:
            yield Call(
                "complete_turn",
                {
                    **self._who,
                    "request_id": self.dispatch.request_id,
                    "agent_id": self.holder_id,
                    # Its message may hold what people wrote.
                    "outcome": outcomes.failure(type(error).__name__),
                },
            )
        except RoutingError as not_told:
            _log.warning("failure_not_reported: %s", not_told.message)

    def _turns_of_holder(self) -> Calls[list[Turn]]:
        if not self._is_local:
            try:
                page: ListTurnsResponse = yield Call(
                    "list_turns_page",
                    {
                        **self._who,
                        "agent_id": self.holder_id,
                        "order": "NEWEST_FIRST",
                        "page_size": HISTORY_TURNS,
                    },
                )
            except _AWAY as error:
                self._degrade(error)
            else:
                # This message's own entries are what the run is about.
                return [
                    turn
                    for turn in reversed(page.turns)
                    if turn.request_id != self.dispatch.request_id
                ]
        return self.program.memory.turns(self.run.session_id, self.holder_id, self.program.home_id)

    def _degrade(self, error: RoutingError) -> None:
        """Note that something went on without the service."""
        self.run.degraded, self.run.error = True, error
        _log.warning("run_degraded: %s", error.message)


class LocalMemory:
    """What a program remembers of its sessions, for as long as the service is away.

    Safe in threads. SESSIONS_MAX sessions, those used last.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    def seed(self, session_id: str, dispatch: Dispatch) -> None:
        """Take over what the service has sent of a session; it is back, if it was away."""
        with self._lock:
            session = self._session(session_id)
            session.away_agent_id = ""
            session.turns = session.turns or list(dispatch.history)

    def fill(self, session_id: str, dispatch: Dispatch, home_id: str) -> Dispatch:
        """Return a dispatch that was made without the service, with what is remembered here."""
        filled = Dispatch()
        filled.CopyFrom(dispatch)
        with self._lock:
            agent_id = self._session(session_id).away_agent_id
        if agent_id:
            filled.agent.CopyFrom(Agent(agent_id=agent_id))
        filled.history.extend(self.turns(session_id, filled.agent.agent_id, home_id))
        return filled

    def turns(self, session_id: str, agent_id: str, home_id: str) -> list[Turn]:
        """Return past turns that an agent may see: its own, or all if it is the home agent."""
        with self._lock:
            turns = list(self._session(session_id).turns)
        return [turn for turn in turns if agent_id in (turn.agent_id, home_id)]

    def moved_away(self, session_id: str, agent_id: str) -> None:
        """Note a handoff that the service knows nothing of."""
        with self._lock:
            self._session(session_id).away_agent_id = agent_id

    def remember(self, session_id: str, dispatch: Dispatch, agent_id: str, text: str) -> None:
        """Keep a turn."""
        turn = Turn(
            request_id=dispatch.request_id,
            agent_id=agent_id,
            user_text=dispatch.text,
            agent_text=text,
        )
        with self._lock:
            session = self._session(session_id)
            session.turns = [*session.turns, turn][-HISTORY_TURNS:]

    def instructions(
        self, session_id: str, agent_id: str, version: str = "", locale: str | None = None
    ) -> str:
        """Return an agent's instructions. Empty: not known, or of another registry or locale.

        version, locale: empty and None for whichever they are.
        """
        with self._lock:
            session = self._session(session_id)
            if version and session.version != version:
                return ""
            if locale is not None and session.locale != locale:
                return ""
            return session.instructions.get(agent_id, "")

    def keep_instructions(self, session_id: str, locale: str, listed: ListAgentsResponse) -> None:
        """Keep all agents' instructions."""
        with self._lock:
            session = self._session(session_id)
            session.version, session.locale = listed.registry_version, locale
            # The texts of an agent are the same in most sessions: one copy of each.
            session.instructions = {
                agent_id: sys.intern(text) for agent_id, text in listed.instructions.items()
            }

    def _session(self, session_id: str) -> _Session:
        """Return a session's entry, the lock being held."""
        session = self._sessions.setdefault(session_id, _Session())
        self._sessions.move_to_end(session_id)
        if len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return session


@dataclass(slots=True)
class _Session:
    """turns: the last ones, oldest first. away_agent_id: who took over while the service was away.
    version, locale: of the instructions.
    """  # noqa: D205 - one sentence each

    turns: list[Turn] = field(default_factory=list)
    away_agent_id: str = ""
    version: str = ""
    locale: str = ""
    instructions: dict[str, str] = field(default_factory=dict)


def _context(text: str) -> dict[str, str] | None:
    """Return a handoff's context as the contract has it."""
    if not text:
        return None
    return {"context": agent_tools.cut(text, agent_tools.CONTEXT_BYTES_MAX)}


def _joined(text: str, tool_text: str) -> str:
    """Return a model's words and those it gave to a tool, each once."""
    if not tool_text or tool_text in text:
        return text
    return f"{text}\n\n{tool_text}" if text else tool_text
