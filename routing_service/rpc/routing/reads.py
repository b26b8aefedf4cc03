"""Status, the lists and WatchSession: what callers read of a session and of the registry."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from functools import partial
from typing import Final

from agent_routing.v1 import dispatch_pb2
from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.auth import rights
from routing_service.auth.caller import Caller
from routing_service.core import commands as cmd
from routing_service.core.access import Access
from routing_service.core.errors import (
    RoutingError,
    invalid_field,
    session_erased,
    unknown_agent,
    unknown_task,
)
from routing_service.core.handoff_rules import agent_is_reachable
from routing_service.core.history import TurnRecord
from routing_service.core.identifiers import REASON_BYTES_MAX
from routing_service.core.people import is_with_person
from routing_service.core.registry import Agent, Registry
from routing_service.core.session import OpenTurn, SessionState, Task
from routing_service.core.slash_commands import ReplySpec
from routing_service.core.strand_fold import every_open_turn, open_or_last, parked_views
from routing_service.core.strands import holder_of
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.agent_cards import AgentCards, CardCache
from routing_service.rpc.claim_mapping import claim_out
from routing_service.rpc.event_mapping import (
    KEEP_TURN,
    ChangeMapper,
    Consult,
    ConsultRead,
    StepsSeen,
    hide_question,
    no_steps,
)
from routing_service.rpc.page_tokens import (
    PAGE_BYTES_MAX,
    task_cursor_in,
    token_of_parts,
    turn_position_in,
)
from routing_service.rpc.request_checks import (
    PAGE_SIZE_MAX,
    FieldChecks,
    parse,
)
from routing_service.rpc.routing.approvals import pending_out
from routing_service.rpc.rpc_method import Methods, RpcAnswer
from routing_service.rpc.wire_format import framed, tag_of
from routing_service.sessions.audit_log import Operator
from routing_service.sessions.calls import SessionView
from routing_service.sessions.command_handler import CommandHandler
from routing_service.sessions.event_feed import EventFeed
from routing_service.sessions.live_feed import LiveFeed, LiveKind, LiveMessage
from routing_service.sessions.text_reads import TextReads
from routing_service.storage.event_codec import ERASE_USER
from routing_service.storage.row_content import task_status
from routing_service.storage.store import Change, SessionKey
from routing_service.telemetry.call_record import CallRecord
from routing_service.texts.agent_instructions import InstructionWriter, handoff_targets
from routing_service.texts.replies import render_reply

TURNS_PAGE_DEFAULT: Final = 50
TASKS_PAGE_DEFAULT: Final = 100

WATCH_RIGHTS_EVERY_S: Final = 30.0
"""Interval at which a watcher's right to its session is checked, besides each change while the
session has no owner. Changes of credentials are not waited for (open_streams.py)."""

HEARTBEAT_EARLY: Final = 0.9
"""A heartbeat is due after this share of its interval: timers fire a little early or late."""

_INCLUDES: Final = tuple(value for value in pb.WatchInclude.values() if value)
_LIVE: Final = {
    pb.WATCH_INCLUDE_DELTAS: LiveKind.DELTA,
    pb.WATCH_INCLUDE_NOTES: LiveKind.NOTE,
}

_WATCH_CHANGE: Final = tag_of(pb.WatchSessionResponse, "change")

SessionReadRequest = (
    pb.StatusRequest | pb.ListTurnsRequest | pb.ListTasksRequest | pb.WatchSessionRequest
)


class SessionReads:
    """The RPCs that read."""

    def __init__(
        self, handler: CommandHandler, feed: EventFeed, live: LiveFeed, cards: CardCache
    ) -> None:
        """Read through one handler, watch two feeds: of changes, and of notes and deltas."""
        self._handler = handler
        self._feed = feed
        self._live = live
        self._changes = ChangeMapper()
        self._cards = cards
        self._text_reads = TextReads(handler.audit)

    @property
    def methods(self) -> Methods:
        """These RPCs by name."""
        return {
            "Status": self.status,
            "ListTasks": self.list_tasks,
            "ListTurns": self.list_turns,
            "ListAgents": self.list_agents,
            "WatchSession": self.watch_session,
        }

    def _cards_in_force(self) -> AgentCards:
        return self._cards.of(self._handler.registry)

    async def status(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """Return the state of a session."""
        request = parse(pb.StatusRequest, data)
        key, access = await self._reader(caller, request, record)
        view = await self._handler.read(key, access)
        state = view.effective
        record.revision = state.revision
        cards = self._cards_in_force()
        registry = cards.registry
        locale = pm.locale_of(state)
        next_id = await self._next_agent(view, key.tenant)
        active = state.active
        response = pb.StatusResponse(
            session_id=key.session_id,
            revision=state.revision,
            active_agent=cards.card(active.agent_id, locale) if active else None,
            next_agent=cards.card(next_id, locale),
            locked=active is not None and active.locked,
            return_stack=[pm.frame_out(frame, cards, locale) for frame in state.stack],
            registry_version=registry.version,
            locale=state.locale,
            channel=state.channel,
            owner=state.owner,
            create_time=pm.timestamp(state.create_us),
            update_time=pm.timestamp(state.update_us),
            turns_by_agent=state.turns_by_agent,
            queued_request_ids=[queued.request_id for queued in state.queued],
            claim=claim_out(state, cards, locale),
        )
        if active is not None and active.locked and active.lock_expire_us is not None:
            response.lock_expire_time.CopyFrom(pm.timestamp(active.lock_expire_us))
        await self._fill_tasks(response, key, state, cards)
        if state.suggestion is not None:
            offer = state.suggestion
            plan = cmd.SuggestionPlan(offer.suggestion_id, offer.agent_id, offer.confidence)
            present = state.active_id or registry.home_agent_id
            response.suggestion.CopyFrom(
                pm.suggestion_out(plan, present, cards, locale, state.channel)
            )
        reads_consult = self._consults_read(caller, request.user_id)
        for turn in every_open_turn(state):
            if _may_see(turn, access, registry):
                dispatch = await self._open_request(key, turn, cards, locale)
                # Without sign-in the caller is who takes dispatches to agents.
                if caller.signed_in and dispatch.HasField("consult"):
                    _hide_consult(dispatch, reads_consult)
                response.open_requests.append(dispatch)
        return RpcAnswer(response.SerializeToString())

    async def _fill_tasks(
        self,
        response: pb.StatusResponse,
        key: SessionKey,
        state: SessionState,
        cards: AgentCards,
    ) -> None:
        """Add the current task, the parked ones, and the approvals that paused ones wait for."""
        if state.task is not None:
            metadata = await self._handler.tasks.metadata(key.tenant, state.task.task_id)
            response.task.CopyFrom(pm.task_out(state.task, metadata, key.session_id, state.owner))
        locale = pm.locale_of(state)
        if state.paused is not None:
            paused = await self._handler.reads.pending_approval(key, state.paused)
            response.pending_approval.CopyFrom(pending_out(state, state.paused, paused, cards))
        for strand, seen in parked_views(state):
            assert seen.task is not None
            metadata = await self._handler.tasks.metadata(key.tenant, strand.task_id)
            parked = pb.ParkedTask(
                task=pm.task_out(seen.task, metadata, key.session_id, state.owner),
                number=strand.number,
                agent=cards.card(holder_of(strand, cards.registry), locale),
                locked=strand.is_locked,
                queued_request_ids=[queued.request_id for queued in strand.queued],
            )
            if seen.paused is not None:
                paused = await self._handler.reads.pending_approval(key, seen.paused)
                parked.pending_approval.CopyFrom(pending_out(seen, seen.paused, paused, cards))
            response.parked_tasks.append(parked)

    async def _next_agent(self, view: SessionView, tenant: str) -> str:
        """Return the agent that gets the next ordinary message."""
        registry = self._handler.registry
        state = view.effective
        if view.reachable(registry) and (
            is_with_person(state, registry) or await self._handler.sticks(tenant, state)
        ):
            return view.effective.active_id
        return registry.home_agent_id

    async def _open_request(
        self, key: SessionKey, turn: OpenTurn, cards: AgentCards, locale: str
    ) -> dispatch_pb2.Dispatch:
        """Return the dispatch of an open request, rebuilt: it is not stored as such."""
        plan, message = await self._handler.reads.open_dispatch(key, turn)
        return pm.dispatch_out(
            plan,
            message.text if message else "",
            message.items if message else (),
            cards,
            locale,
        )

    async def list_tasks(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """List a session's tasks, oldest first."""
        request = parse(pb.ListTasksRequest, data)
        checks = FieldChecks()
        checks.number("page_size", request.page_size, 0, PAGE_SIZE_MAX)
        wanted = {
            status for status, number in pm.TASK_STATUSES.items() if number in request.statuses
        }
        for number in request.statuses:
            checks.word(
                "statuses", number, pm.TASK_STATUSES.values(), "a TaskStatus other than UNSPECIFIED"
            )
        key, access = await self._reader(caller, request, record, checks)
        after = task_cursor_in(request.page_token)
        view = await self._handler.read(key, access)
        count = request.page_size or TASKS_PAGE_DEFAULT
        response = pb.ListTasksResponse()
        present = {task.task_id: task for task in open_or_last(view.stored)}
        room_bytes = PAGE_BYTES_MAX
        while len(response.tasks) < count and room_bytes > 0:
            rows = await self._handler.reads.list_tasks(key, after, count, request.task_id.lower())
            for row, metadata in rows:
                status = task_status(row)
                after = row.cursor
                if wanted and status not in wanted:
                    continue
                task = Task(row.task_id, status, row.create_us, row.update_us, row.expire_us)
                # The row is written when its status changes; the state has the latest message.
                task = present.get(row.task_id, task)
                made = pm.task_out(task, metadata, key.session_id, row.user_id)
                response.tasks.append(made)
                room_bytes -= made.ByteSize()
                if len(response.tasks) == count or room_bytes <= 0:
                    break
            if len(rows) < count:
                break
        if len(response.tasks) == count or room_bytes <= 0:
            response.next_page_token = token_of_parts(after.create_us, after.task_id)
        return RpcAnswer(response.SerializeToString())

    async def list_turns(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """List a session's history."""
        request = parse(pb.ListTurnsRequest, data)
        checks = FieldChecks()
        checks.agent("agent_id", request.agent_id, self._handler.registry)
        task_id = request.task_id.lower()
        checks.number("page_size", request.page_size, 0, PAGE_SIZE_MAX)
        checks.word(
            "order",
            request.order,
            pb.TurnOrder.values(),
            "TURN_ORDER_OLDEST_FIRST or _NEWEST_FIRST",
        )
        checks.reason("read_reason", request.read_reason, REASON_BYTES_MAX)
        key, access = await self._reader(caller, request, record, checks)
        if request.read_reason:
            rights.check_texts(caller)
        start = turn_position_in(request.page_token)
        registry = self._handler.registry
        agent_id = registry.resolve(request.agent_id) or request.agent_id
        rights.check_turns_of(access, registry, agent_id)
        state = (await self._handler.read(key, access)).stored
        if request.read_reason:
            operator = Operator(caller.tenant, caller.subject, record.trace_id)
            await self._text_reads.note(
                operator, key.tenant, key.session_id, "ListTurns", request.read_reason
            )
        sees_all = not agent_id or agent_id == registry.home_agent_id

        def wanted(turn: TurnRecord) -> bool:
            return (sees_all or turn.agent_id == agent_id) and (
                not task_id or turn.task_id == task_id
            )

        count = request.page_size or TURNS_PAGE_DEFAULT
        turns = self._handler.turns
        if request.order == pb.TURN_ORDER_NEWEST_FIRST:
            found = await turns.newest_first(key, start, count + 1, wanted)
        else:
            found = await turns.oldest_first(key, start or (0, -1), count + 1, wanted)
        reads_consult = self._consults_read(caller, request.user_id)
        found = [
            turn if turn.consult is None or reads_consult(turn.consult) else turn.without_consult()
            for turn in found
        ]
        seen = partial(self._sees_steps, caller)
        told = partial(_notice, registry=registry, state=state)
        return RpcAnswer(_turns_page(found, count, seen, told).SerializeToString())

    async def list_agents(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """List the registry's agents."""
        request = parse(pb.ListAgentsRequest, data)
        checks = FieldChecks()
        checks.session("session_id", request.session_id)
        checks.user("user_id", request.user_id)
        checks.locale("locale", request.locale)
        registry = self._handler.registry
        checks.agent("from_agent_id", request.from_agent_id, registry)
        checks.done()
        access = rights.on_session(caller, "ListAgents", request.user_id)
        if request.include_instructions:
            rights.check_instructions(caller)
        cards = self._cards_in_force()
        agents: Iterable[Agent] = registry.agents.values()
        locale = request.locale
        if request.session_id:
            key = SessionKey(caller.tenant, request.session_id)
            record.tenant, record.session_id = key
            view = await self._handler.read(key, access)
            state = view.effective
            locale = pm.locale_of(state, request.locale)
            agents = [agent for agent in agents if agent_is_reachable(agent, state)]
        reachable = {agent.agent_id for agent in agents} if request.session_id else None
        if request.from_agent_id:
            agents = _targets_of(registry, request.from_agent_id, agents)
        agents = list(agents)
        instructions: dict[str, str] = {}
        if request.include_instructions:
            # Runs in a thread: hundreds of agents take a while, and other calls must go on.
            agent_ids = [agent.agent_id for agent in agents]
            instructions = await asyncio.to_thread(
                _instructions, registry, agent_ids, locale, reachable
            )
        response = pb.ListAgentsResponse(
            agents=[cards.card(agent.agent_id, locale) for agent in agents],
            home_agent_id=registry.home_agent_id,
            registry_version=registry.version,
            instructions=instructions,
            agent_id_by_alias={
                alias: agent.agent_id for agent in agents for alias in agent.aliases
            },
        )
        return RpcAnswer(response.SerializeToString())

    async def watch_session(
        self, caller: Caller, data: bytes, record: CallRecord
    ) -> AsyncGenerator[tuple[bytes, dict[str, str]]]:
        """Send a session's changes after a revision, then new ones as they happen."""
        request = parse(pb.WatchSessionRequest, data)
        checks = FieldChecks()
        heartbeat_s = checks.heartbeat_s(request)
        for place, kind in enumerate(request.include):
            checks.word(f"include[{place}]", kind, _INCLUDES, "DELTAS, NOTES or STEPS")
        key, access = await self._reader(caller, request, record, checks)
        try:
            view = await self._handler.read(key, access)
        except RoutingError:
            # The session may have been erased by another replica: its content must go here too.
            self._changes.forget(key)
            raise
        head = view.stored.revision
        after = request.after_revision if request.HasField("after_revision") else head
        if not 0 <= after <= head:
            raise invalid_field(
                "after_revision",
                f'is {after}, and session "{key.session_id}" is at revision {head}; give a '
                "revision that you have seen, or leave it out",
            )
        position = {"session_id": key.session_id, "revision": str(after)}
        yield _heartbeat(head), position
        steps = self._steps_seen(caller, request)
        reads_consult = self._consults_read(caller, request.user_id)
        with_notes = not (access.must_be_owner or access.user_id)
        rights_at_s = said_at_s = time.monotonic()
        has_owner = bool(view.stored.owner)
        with self._live.watching(key, _lives(request)) as live:
            async for changes in self._feed.session_changes(
                key, after, min(heartbeat_s, WATCH_RIGHTS_EVERY_S), live
            ):
                now_s = time.monotonic()
                # A session without an owner gets one by a change: before that change is sent.
                is_doubtful = bool(changes) and not has_owner
                is_erased = any(change.method == ERASE_USER for change in changes)
                if (is_doubtful or now_s - rights_at_s >= WATCH_RIGHTS_EVERY_S) and not is_erased:
                    has_owner = await self._check_watcher(key, access, position)
                    rights_at_s = now_s
                for message in live.take() if live is not None else ():
                    if rights.hears_agent(access, message.agent_id):
                        said_at_s = now_s
                        yield _live_out(message), position
                for change in changes:
                    after = change.revision
                    body = self._changes.change_bytes(
                        key,
                        change,
                        self._cards_in_force(),
                        await self._steps_of(key, change, steps, reads_consult),
                        reads_consult=reads_consult,
                        with_notes=with_notes,
                    )
                    position = {"session_id": key.session_id, "revision": str(after)}
                    if body:
                        said_at_s = now_s
                        yield framed(_WATCH_CHANGE, body), position
                    if change.method == ERASE_USER:
                        raise session_erased(key.session_id)
                if not changes and now_s - said_at_s >= heartbeat_s * HEARTBEAT_EARLY:
                    said_at_s = now_s
                    yield _heartbeat(after), position

    def _consults_read(self, caller: Caller, user_id: str) -> ConsultRead:
        """Return what says whether a reader gets what one agent asks another.

        Agents are stored under the ids of their time, so both names of a renamed agent count.
        """

        def reads(consult: Consult) -> bool:
            resolve = self._handler.registry.resolve
            return rights.reads_consult(
                caller, user_id, (*consult, *(resolve(agent) or "" for agent in consult))
            )

        return reads

    async def _steps_of(
        self, key: SessionKey, change: Change, steps: StepsSeen, reads_consult: ConsultRead
    ) -> StepsSeen:
        """Return what a watcher sees of the steps in a change, which may be those of a consult."""
        if change.method != KEEP_TURN or steps is no_steps:
            return steps
        consult = await self._handler.turns.consult_of(key, change)
        return steps if consult is None or reads_consult(consult) else no_steps

    def _sees_steps(self, caller: Caller, agent_id: str) -> bool:
        """Say whether a caller sees input and output of an agent's reported steps."""
        agent = self._handler.registry.agent(agent_id)
        return (agent is not None and agent.shows_steps) or rights.sees_steps(caller, agent_id)

    def _steps_seen(self, caller: Caller, request: pb.WatchSessionRequest) -> StepsSeen:
        if pb.WATCH_INCLUDE_STEPS not in request.include:
            return no_steps
        return partial(self._sees_steps, caller)

    async def _reader(
        self,
        caller: Caller,
        request: SessionReadRequest,
        record: CallRecord,
        checks: FieldChecks | None = None,
    ) -> tuple[SessionKey, Access]:
        """Check what every read of a session names; return its key and the caller's access.

        Raises INVALID_FIELD, OWNER_MISMATCH, SCOPE_MISSING, UNKNOWN_TASK; StoreError.
        """
        checks = checks or FieldChecks()
        session_id = request.session_id
        task_id = checks.uuid("task_id", request.task_id)
        checks.session("session_id", session_id, required=not task_id)
        checks.user("user_id", request.user_id)
        checks.done()
        record.tenant, record.session_id = caller.tenant, session_id
        record.task_id = task_id
        record.user_id = request.user_id or caller.user
        access = rights.on_session(caller, record.method, request.user_id)
        # In a session that is named, the turns of any task may be asked for: there may be none.
        if task_id and not (session_id and isinstance(request, pb.ListTurnsRequest)):
            found = await self._handler.reads.session_of_task(caller.tenant, task_id, access)
            if session_id and found != session_id:
                raise unknown_task(session_id, task_id)
            session_id = record.session_id = found
        return SessionKey(caller.tenant, session_id), access

    async def _check_watcher(
        self, key: SessionKey, access: Access, position: dict[str, str]
    ) -> bool:
        """Say whether a watched session has an owner. Raises OWNER_MISMATCH, SCOPE_MISSING."""
        try:
            return bool((await self._handler.read(key, access)).stored.owner)
        except RoutingError as refusal:
            refusal.metadata.update(position)
            raise


def _may_see(turn: OpenTurn, access: Access, registry: Registry) -> bool:
    """Say whether a caller may see an open request: a runtime sees only those of its own agents."""
    agents = access.agents
    return agents is None or turn.holder in agents or registry.home_agent_id in agents


def _hide_consult(dispatch: dispatch_pb2.Dispatch, reads_consult: ConsultRead) -> None:
    """Remove what one agent asked another from a dispatch for a reader who is none of the two.

    The dispatch has the question, or the answer to it.
    """
    other = dispatch.consult.asker.agent_id
    if other == dispatch.agent.agent_id:
        other = dispatch.previous_agent_id
    if reads_consult((dispatch.agent.agent_id, other)):
        return
    hide_question(dispatch.handoff)
    dispatch.ClearField("reason_detail")
    for field in ("question", "answer"):
        dispatch.consult.ClearField(field)


def _lives(request: pb.WatchSessionRequest) -> frozenset[LiveKind]:
    """Return what a watcher gets besides changes."""
    return frozenset(_LIVE[kind] for kind in request.include if kind in _LIVE)


def _live_out(message: LiveMessage) -> bytes:
    response = pb.WatchSessionResponse()
    if message.kind is LiveKind.NOTE:
        note = response.note
        note.request_id, note.agent_id = message.request_id, message.agent_id
        note.attempt, note.text = message.attempt, message.text
    else:
        delta = response.delta
        delta.request_id, delta.agent_id = message.request_id, message.agent_id
        delta.attempt, delta.text = message.attempt, message.text
        delta.begin, delta.end = message.begin, message.end
    return response.SerializeToString()


def _heartbeat(revision: int) -> bytes:
    response = pb.WatchSessionResponse()
    response.heartbeat.revision = revision
    response.heartbeat.send_time.GetCurrentTime()
    return response.SerializeToString()


def _turns_page(
    found: list[TurnRecord],
    count: int,
    seen: Callable[[str], bool],
    told: Callable[[TurnRecord], str],
) -> pb.ListTurnsResponse:
    """Return a page of at most count turns, or fewer if they are large.

    seen: says whether the content of an agent's reported steps is shown. told: see _notice().
    """
    response = pb.ListTurnsResponse()
    total = 0
    for index, record in enumerate(found):
        turn = pm.listed_turn_out(record, with_content=seen(record.agent_id))
        if record.parks:
            turn.notice = told(record)
        total += turn.ByteSize()
        if index == count or (index and total > PAGE_BYTES_MAX):
            last = found[index - 1]
            response.next_page_token = token_of_parts(*last.position)
            break
        response.turns.append(turn)
    return response


def _notice(record: TurnRecord, *, registry: Registry, state: SessionState) -> str:
    """Return what CompleteTurn told the user of a task that its answer parked."""
    parked = ReplySpec("", "parked", agent_id=record.agent_id)
    return render_reply(parked, registry, pm.locale_of(state), channel=state.channel).text


def _targets_of(registry: Registry, from_agent_id: str, agents: Iterable[Agent]) -> list[Agent]:
    """Return the agents that one agent may hand over to. Raises UNKNOWN_AGENT."""
    source_id = registry.resolve(from_agent_id)
    source = registry.agent(source_id) if source_id else None
    if source is None:
        raise unknown_agent(from_agent_id, tuple(registry.agents))
    targets = {target.agent_id for target in handoff_targets(registry, source)}
    return [agent for agent in agents if agent.agent_id in targets]


def _instructions(
    registry: Registry, agent_ids: list[str], locale: str, reachable: set[str] | None
) -> dict[str, str]:
    """Return the text for the prompt of each agent. reachable: see InstructionWriter."""
    writer = InstructionWriter(registry, locale, reachable=reachable)
    return {agent_id: writer.text(agent_id) for agent_id in agent_ids}
