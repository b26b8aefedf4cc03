"""One call from its session to its committed change: load, decide, append.

Owns: the cache of hot sessions, the order of calls in a session, retries after conflicts, repeats.
Must not know: protobuf (answers are made by a function that comes with the call), which engine.
Rule: a cached state is a guess that the append checks; what appends nothing confirms the head first
where others may write. The answer is stored with the change, so that a repeat gets the same bytes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

import msgspec
import tenacity
from msgspec.structs import replace

from routing_service.core import events as ev
from routing_service.core.access import ANY_SESSION, Access, owner_mismatch, refused
from routing_service.core.commands import (
    Command,
    CompleteTurn,
    ConsultPlan,
    Decision,
    DispatchPlan,
    Erase,
    Expire,
    HandOff,
    HandoffPlan,
    ResumePlan,
    ResumeTask,
    RouteMessage,
    SetActiveAgent,
)
from routing_service.core.decide import Decided, decide, view
from routing_service.core.errors import (
    Reason,
    RoutingError,
    invalid_field,
    session_erased,
    unknown_session,
)
from routing_service.core.expiry import next_due_us
from routing_service.core.handoff_rules import agent_is_reachable
from routing_service.core.history import HistoryFold, TurnRecord
from routing_service.core.refusals import HandoffRefused
from routing_service.core.registry import Registry
from routing_service.core.route_message import topic_inquiry
from routing_service.core.session import OpenTurn, SessionState, Task
from routing_service.core.suggestions import takes_plain_answers
from routing_service.core.turn_ids import revision_of_child
from routing_service.core.vocabulary import HandoffMode, OutcomeKind, RouteReason, TaskStatus
from routing_service.sessions.turn_history import COMPLETE_TURN, SCAN_CHANGES_MAX, TurnHistory
from routing_service.storage.event_codec import (
    BLANK_EVENTS,
    ERASE_USER,
    decode_events,
    decode_state,
    encode_events,
    encode_state,
)
from routing_service.storage.store import (
    Append,
    AuditEntry,
    Change,
    RequestSeen,
    RevisionConflict,
    SessionKey,
    Store,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
    TaskCursor,
    TaskRow,
    TaskTaken,
)
from routing_service.texts import plain_answer
from routing_service.topics.detection import TopicJudge

HANDOFF_REFUSED: Final = "handoff_refused"

_SIZE_BYTES: Final = attrgetter("size_bytes")

_CHOSEN: Final = frozenset({RouteReason.USER_SELECTED, RouteReason.TOPIC_SWITCH})
"""Why a message opened its turn with another agent: by a handoff in the same change."""

CONFLICT_ATTEMPTS_MAX: Final = 20
"""Decisions on a session, after the first, before a caller is told ABORTED. A replica that loses
meets the others again at once: with 6, of 400 calls by 16 callers of one session on three replicas
4 to 7 were refused, with 20 none. All of them with their waits take less than two seconds."""

CONFLICT_WAIT_MAX_S: Final = 0.08

RECENT_TURNS_MAX: Final = 64
"""Turns of a hot session kept in memory: three times the default history, so that an agent among
several finds its own without a read."""

RECENT_BYTES_MAX: Final = 64 * 1024
"""Words of a hot session kept in memory; with the cache's bound this bounds the process."""

FOLDS_MAX: Final = 3_000
"""Sessions whose recent turns are kept, those used last. They take most of a hot session's memory,
and one read brings them back."""

HOT_TRUST_S: Final = 60.0
"""A cached session that was not used for so long is compared with the store once more, where others
may write: its revision alone would not show that it was purged and begun anew. A message after a
minute's pause thereby costs one read of one row."""

HISTORY_TURNS_DEFAULT: Final = 20
HISTORY_TURNS_MAX: Final = 100

HISTORY_BYTES_MAX: Final = 1024 * 1024
"""Words sent along with one dispatch: well below the 4 MiB that gRPC clients accept by default."""

METADATA_ENTRIES_MAX: Final = 32
METADATA_BYTES_MAX: Final = 4096


class Call(msgspec.Struct, frozen=True):
    """Who calls, for which session, and what makes a repeat the same call.

    actor: the agent for CompleteTurn, else "". access: as whom the caller comes. subject: who
    signed in, "" where nobody does. expected_revision: None = any.
    history_turns: past turns to send along; 0 = the default, -1 = none unless locked. dry_run: only
    decide; nothing is written, audited or used up. explains_topic: the answer says what became of
    the message's topic. begins: the session's id was made for this call, so that nothing can be
    stored under it.
    """

    key: SessionKey
    method: str
    request_id: str
    fingerprint: bytes
    actor: str = ""
    access: Access = ANY_SESSION
    subject: str = ""
    expected_revision: int | None = None
    history_turns: int = 0
    dry_run: bool = False
    explains_topic: bool = False
    begins: bool = False


class Made(msgspec.Struct, frozen=True):
    """What an answer is made of.

    registry: by which it was decided. turns: of a hot session, for a reply that tells of them;
    oldest first. task_status: of the task that the answer names, None where it names none. The
    user's words are not among it: they are kept with their message, and go along beside the answer.
    """

    call: Call
    decided: Decided
    registry: Registry
    revision: int
    turns: tuple[TurnRecord, ...] = ()
    task_status: TaskStatus | None = None


class Answer(msgspec.Struct, frozen=True):
    """An answer as it is stored, without the user's words and history.

    head, dispatch: the same in its two parts where a dispatch comes last: what is before it, and
    its content; so that whoever adds to the dispatch need not look for it. Else b"".
    """

    stored: bytes
    head: bytes = b""
    dispatch: bytes = b""


class Handled(msgspec.Struct, frozen=True):
    """An answer and what goes with it.

    answer: the parts of a repeat's are not known. message: the user's words, for the dispatch.
    history: turns for the dispatch. decided None: a repeat.
    """

    answer: Answer
    revision: int
    replayed: bool
    message: ev.MessageRouted | None = None
    history: tuple[TurnRecord, ...] = ()
    decided: Decided | None = None


class Expiry(msgspec.Struct, frozen=True):
    """What became of a session that was due. overtaken: another change came first."""

    changed: bool
    overtaken: bool = False


class SessionView(msgspec.Struct, frozen=True):
    """A session as a reader sees it: stored state, and as the next message would meet it."""

    stored: SessionState
    effective: SessionState

    def reachable(self, registry: Registry) -> bool:
        """Say whether the active agent may have the next message."""
        agent = registry.agent(self.effective.active_id)
        return agent is not None and agent_is_reachable(agent, self.effective)


class PendingApproval(msgspec.Struct, frozen=True):
    """What a paused task waits for, and since when."""

    prompt: str
    pause_us: int


MakeAnswer = Callable[[Made], Answer]
MakeCommand = Callable[[], Command]


@dataclass(slots=True)
class _Hot:
    """A session in the cache. state None: not loaded. fold None: its turns were not read yet."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    used_s: float = 0.0
    state: SessionState | None = None
    fold: HistoryFold | None = None
    task_metadata: tuple[str, Mapping[str, str]] | None = None

    def forget(self) -> None:
        """Drop what is believed of the session; the store knows."""
        self.state = None
        self.fold = None
        self.task_metadata = None


class _Held:
    """A session in use: for ``async with``, which every call does, so without a generator."""

    __slots__ = ("_hot", "_leave")

    def __init__(self, hot: _Hot, leave: Callable[[_Hot], None]) -> None:
        self._hot = hot
        self._leave = leave

    async def __aenter__(self) -> _Hot:
        try:
            await self._hot.lock.acquire()
        except BaseException:
            self._leave(self._hot)
            raise
        return self._hot

    async def __aexit__(self, *_: object) -> None:
        self._hot.lock.release()
        self._leave(self._hot)


_BY_STICKINESS: Final = (RouteMessage, SetActiveAgent, CompleteTurn)
"""What is decided otherwise where a tenant's agents do not stick."""


class CommandHandler:
    """Carries calls through the state machine to the store."""

    def __init__(
        self,
        store: Store,
        registry: Callable[[], Registry],
        clock_us: Callable[[], int],
        *,
        stickiness_enabled: Callable[[str], Awaitable[bool]],
        cache_sessions_max: int,
        publish: Callable[[SessionKey, Change], None] = lambda _key, _change: None,
        doubt: Callable[[SessionKey], None] = lambda _key: None,
        topics: TopicJudge | None = None,
    ) -> None:
        """Serve one store.

        registry: gives the present one. clock_us: microseconds since 1970. stickiness_enabled: by
        tenant. cache_sessions_max: hot sessions kept; the least recently used go first. publish:
        hears of every change, once it is committed. doubt: hears of a session in which one may have
        been committed that nobody waited for. topics: judges what messages are about; None = nobody
        does, whatever the registry says.
        """
        self._store = store
        self._registry = registry
        self._clock_us = clock_us
        self._stickiness_enabled = stickiness_enabled
        self._cache_max = cache_sessions_max
        self._publish = publish
        self._doubt = doubt
        self._topics = topics
        self._hot: OrderedDict[SessionKey, _Hot] = OrderedDict()
        self._with_fold: OrderedDict[SessionKey, _Hot] = OrderedDict()
        self._turns = TurnHistory(store)

    @property
    def registry(self) -> Registry:
        """The registry that the next decision uses."""
        return self._registry()

    async def handle(self, call: Call, command: Command, make_answer: MakeAnswer) -> Handled:
        """Decide a call and commit it, or give a repeat its first answer.

        Raises RoutingError; StoreError where the store fails (then the call happened whole or not
        at all, and a repeat with its request_id says which).
        """
        # As _session, but every message comes this way: its two coroutines are a step too many.
        hot = self._come(call.key)
        try:
            await hot.lock.acquire()
        except BaseException:
            self._leave(hot)
            raise
        try:
            try:
                return await self._attempt(hot, call, command, make_answer)
            except RevisionConflict:
                # Another replica came first: what was believed of the session is out of date.
                hot.forget()
            except (StoreError, asyncio.CancelledError):
                # The append may have happened all the same.
                hot.forget()
                raise
            retrying = tenacity.AsyncRetrying(
                stop=tenacity.stop_after_attempt(CONFLICT_ATTEMPTS_MAX),
                wait=tenacity.wait_random_exponential(multiplier=0.005, max=CONFLICT_WAIT_MAX_S),
                retry=tenacity.retry_if_exception_type(RevisionConflict),
                after=lambda _: hot.forget(),
                reraise=True,
            )
            try:
                return await retrying(self._attempt, hot, call, command, make_answer)
            except RevisionConflict as conflict:
                raise _revision_mismatch(
                    call.key.session_id, conflict.base_revision, conflict.actual_revision
                ) from conflict
            except (StoreError, asyncio.CancelledError):
                hot.forget()
                raise
        finally:
            hot.lock.release()
            self._leave(hot)

    async def read(self, key: SessionKey, access: Access) -> SessionView:
        """Return a session as it stands. Raises UNKNOWN_SESSION; what Access is refused with."""
        async with self._session(key) as hot:
            state = await self._current(key, hot)
            if state is None:
                raise unknown_session(key.session_id)
            if state.erased:
                hot.forget()
                raise session_erased(key.session_id)
            if stranger := refused(access, state, self.registry.home_agent_id):
                raise stranger
            return SessionView(state, view(state, self.registry, self._clock_us()))

    async def expire(self, key: SessionKey) -> Expiry:
        """Let take effect what has fallen due in a session. Raises StoreError."""
        async with self._session(key) as hot:
            try:
                changed = await self._change(key, hot, Expire(), method="")
            except RevisionConflict:
                return Expiry(changed=False, overtaken=True)
            return Expiry(changed=changed)

    async def erase(self, key: SessionKey, reason: str) -> None:
        """End a session for good and take its content out of the store.

        Once it returns nothing of the content is read here again; what another replica has in
        memory is dropped when it next looks at the session. Interrupted, it is simply called again.
        Raises StoreError; RoutingError REVISION_MISMATCH while too many others write.
        """
        async with self._session(key) as hot:
            for attempt in range(CONFLICT_ATTEMPTS_MAX):
                try:
                    await self._change(key, hot, Erase(reason), method=ERASE_USER)
                    break
                except RevisionConflict as conflict:
                    hot.forget()
                    if attempt + 1 == CONFLICT_ATTEMPTS_MAX:
                        raise _revision_mismatch(
                            key.session_id, conflict.base_revision, conflict.actual_revision
                        ) from conflict
            state = hot.state
            hot.forget()
            if state is not None:
                await self._store.erase_before(key, state.revision, BLANK_EVENTS)

    async def delete(self, key: SessionKey, revision: int) -> bool:
        """Remove a session that is at a revision; False where it is elsewhere by now."""
        async with self._session(key) as hot:
            try:
                await self._store.delete_session(key, revision)
            except RevisionConflict:
                return False
            finally:
                hot.forget()
            return True

    async def _change(self, key: SessionKey, hot: _Hot, command: Command, *, method: str) -> bool:
        """Commit what nobody's request asks for; False where there is nothing to commit.

        Raises RevisionConflict, StoreError.
        """
        try:
            state = await self._current(key, hot)
            registry = self._registry()
            decided = decide(state, command, registry, self._clock_us(), session_id=key.session_id)
            if decided.decision.events:
                call = Call(key, method, "", b"")
                await self._commit(hot, call, decided, registry, lambda _: Answer(b""))
            return bool(decided.decision.events)
        except (StoreError, asyncio.CancelledError):
            hot.forget()
            raise

    async def session_of_task(self, tenant: str, task_id: str, access: Access) -> str:
        """Return the session of a task that is named alone.

        Raises UNKNOWN_TASK, and OWNER_MISMATCH without the session's id: a caller who may not have
        the task learns nothing by it.
        """
        row = await self._store.find_task(tenant, task_id)
        if row is None:
            raise RoutingError(
                Reason.UNKNOWN_TASK,
                f'task "{task_id}" is not known; name its session_id, or leave task_id out',
                metadata={"task_id": task_id},
            )
        is_owner = row.user_id in ("", access.user_id)
        if not is_owner and (access.user_id or access.must_be_owner):
            raise owner_mismatch("task", task_id)
        return row.session_id

    async def open_dispatch(
        self, key: SessionKey, turn: OpenTurn
    ) -> tuple[DispatchPlan, ev.MessageRouted | None]:
        """Return what an open request was dispatched with, and its user's words."""
        message = await self._turns.message(key, turn.message_revision)
        event = await self._turns.dispatch_event(key, turn.dispatch_revision)
        plan = DispatchPlan(
            request_id=turn.request_id,
            task_id=turn.task_id,
            agent_id=turn.holder,
            reason=turn.reason,
            message_revision=turn.message_revision,
        )
        match event:
            case ev.MessageRouted():
                plan = replace(plan, previous_agent=event.previous_agent, locked=event.locked)
                if turn.reason in _CHOSEN:
                    chosen = await self._turns.selection(key, turn.dispatch_revision)
                    plan = replace(plan, handoff=_plan_of(chosen) if chosen else None)
            case ev.TaskResumed():
                resume = ResumePlan(event.decision, event.comment)
                previous_agent = event.previous_agent or event.agent_id
                plan = replace(plan, previous_agent=previous_agent, resume=resume)
            case ev.AgentHandedOff():
                handoff = _plan_of(event)
                plan = replace(
                    plan,
                    previous_agent=event.from_agent,
                    locked=event.locked,
                    reason_detail=event.reason,
                    handoff=handoff,
                    consult=await self._consult(key, event, turn),
                )
            case None:
                pass
        return plan, message

    async def _consult(
        self, key: SessionKey, event: ev.AgentHandedOff, turn: OpenTurn
    ) -> ConsultPlan | None:
        """Return the question, or the answer, that a request was dispatched with."""
        if event.mode is HandoffMode.CONSULT:
            return ConsultPlan(event.from_agent, event.message or event.reason)
        if event.mode is not HandoffMode.ANSWER:
            return None
        answer = await self._turns.answer(key, event.turn_request_id, event.from_agent)
        question = await self._question(key, event.turn_request_id)
        is_failure = answer is None or answer.outcome is OutcomeKind.FAILURE
        return ConsultPlan(
            turn.holder, question, "" if answer is None or is_failure else answer.text
        )

    async def _question(self, key: SessionKey, request_id: str) -> str:
        """Return what the agent of a consult was asked; its request is the service's own."""
        event = await self._turns.dispatch_event(key, revision_of_child(request_id))
        return event.message or event.reason if isinstance(event, ev.AgentHandedOff) else ""

    async def stickiness_enabled(self, tenant: str) -> bool:
        """Say whether agents stick for a tenant now."""
        return await self._stickiness_enabled(tenant)

    async def pending_approval(self, key: SessionKey, turn: OpenTurn) -> PendingApproval:
        """Return what a paused turn waits for."""
        change = await self._store.find_request(key, COMPLETE_TURN, turn.request_id, turn.holder)
        for event in decode_events(change.events) if change else ():
            if isinstance(event, ev.TaskPaused):
                assert change is not None
                return PendingApproval(event.prompt, change.time_us)
        return PendingApproval("", turn.dispatched_us)

    async def task_metadata(self, tenant: str, task_id: str) -> Mapping[str, str]:
        """Return what callers keep on a task."""
        row = await self._store.find_task(tenant, task_id)
        return _decode_metadata(row.data) if row else {}

    async def list_tasks(
        self, key: SessionKey, after: TaskCursor, count: int
    ) -> list[tuple[TaskRow, Mapping[str, str]]]:
        """Return up to count tasks of a session after a place, with their metadata."""
        rows = await self._store.list_tasks(key, after=after, limit=count)
        return [(row, _decode_metadata(row.data)) for row in rows]

    @property
    def turns(self) -> TurnHistory:
        """The history of this handler's store."""
        return self._turns

    async def _attempt(
        self, hot: _Hot, call: Call, command: Command, make_answer: MakeAnswer
    ) -> Handled:
        """Decide once on what is believed of the session, and try to commit it."""
        state = hot.state
        if (state is None or self._store.shared_writers) and not call.begins:
            state = await self._loaded(call.key, hot)
        if state is not None and state.erased:
            # Nor is an answer given again: it may be there still, if the erasure was interrupted.
            await self._confirm(call.key, state)
            raise session_erased(call.key.session_id)
        registry = self._registry()
        if state is not None and (stranger := refused(call.access, state, registry.home_agent_id)):
            await self._confirm(call.key, state)
            raise stranger
        now_us = self._clock_us()
        try:
            if call.expected_revision is not None:
                _check_revision(call, state)
            command = await self._informed(call, state, command)
            if registry.topics.is_on or (state is not None and state.suggestion is not None):
                command = await self._with_topic(hot, call, command, registry, now_us)
            decided = decide(state, command, registry, now_us, session_id=call.key.session_id)
        except RoutingError as error:
            # A repeat is no new attempt: its first answer stands, whatever became of the session.
            seen = await self._store.find_request(
                call.key, call.method, call.request_id, call.actor
            )
            if seen is not None:
                return await self._replay(hot, call, seen)
            await self._confirm(call.key, state)
            if isinstance(error, HandoffRefused):
                error.revision = state.revision if state else 0
            if isinstance(error, HandoffRefused) and not call.dry_run:
                await self._audit_refusal(call, command, state, error)
            raise
        if call.dry_run:
            await self._confirm(call.key, state)
            base = state.revision if state else 0
            turns = await self._told_turns(hot, call.key, decided)
            answer = make_answer(Made(call, decided, registry, base, turns))
            message = await self._words(call.key, hot, decided.decision)
            return Handled(answer, base, replayed=False, message=message, decided=decided)
        if not decided.decision.events:
            seen = await self._store.find_request(
                call.key, call.method, call.request_id, call.actor
            )
            if seen is not None:
                return await self._replay(hot, call, seen)
            await self._confirm(call.key, state)
            made = Made(call, decided, registry, decided.state.revision)
            return Handled(
                make_answer(made), decided.state.revision, replayed=False, decided=decided
            )
        return await self._commit(hot, call, decided, registry, make_answer)

    async def _commit(
        self,
        hot: _Hot,
        call: Call,
        decided: Decided,
        registry: Registry,
        make_answer: MakeAnswer,
    ) -> Handled:
        before, state = hot.state, decided.state
        key, decision = call.key, decided.decision
        events, dispatch = decision.events, decision.dispatch
        message = await self._words(key, hot, decision) if dispatch is not None else None
        tasks: tuple[TaskRow, ...] = ()
        try:
            if _may_change_tasks(events):
                tasks = await self._task_rows(call.key, hot, decided, before)
        except RoutingError:
            # What a repeat brings may no longer fit beside what came since.
            seen = await self._store.find_request(
                call.key, call.method, call.request_id, call.actor
            )
            if seen is None:
                await self._confirm(call.key, before)
                raise
            return await self._replay(hot, call, seen)
        revision = state.revision
        turns = await self._told_turns(hot, key, decided) if decision.reply else ()
        task = state.task
        if task is not None and task.task_id == decision.task_id:
            status: TaskStatus | None = task.status
        else:
            # The session has another one by now.
            status = await self._stored_status(key, decision.task_id)
        answer = make_answer(Made(call, decided, registry, revision, turns, status))
        change = Change(
            revision=revision,
            time_us=decided.now_us,
            method=call.method,
            request_id=call.request_id,
            actor=call.actor,
            fingerprint=call.fingerprint,
            events=encode_events(
                events,
                decided.active_after,
                user_id=call.access.user_id,
                actor=call.subject,
                registry_version=state.registry_version,
            ),
            answer=answer.stored,
        )
        if before is not None and dispatch is not None and hot.fold is None:
            await self._load_fold(key, hot)
        append = Append(
            key=key,
            base_revision=revision - 1,
            change=change,
            state=encode_state(state),
            # An erasure that is interrupted finds the session by its user once more.
            user_id=before.owner if before and state.erased else state.owner,
            tasks=tasks,
            due_us=next_due_us(state, registry),
        )
        try:
            await self._store.append(append)
        except (StoreUnavailable, asyncio.CancelledError):
            self._doubt(key)
            raise
        except RequestSeen as seen:
            # Somebody handled this very request: here before a restart, or on another replica.
            hot.forget()
            return await self._replay(hot, call, seen.change)
        except TaskTaken as taken:
            hot.forget()
            row = await self._store.find_task(key.tenant, taken.task_id)
            raise _task_of_another(call, taken.task_id, taken.session_id, row) from taken
        self._publish(key, change)
        hot.state = state
        if before is None:
            hot.fold = _new_fold()
        if hot.fold is not None:
            hot.fold.apply(revision, decided.now_us, events)
            self._keep_fold(key, hot)
        history: tuple[TurnRecord, ...] = ()
        if dispatch is not None:
            home_id = registry.home_agent_id
            history = await self._history(hot, call, dispatch, revision, home_id)
        return Handled(
            answer, revision, replayed=False, message=message, history=history, decided=decided
        )

    async def _informed(self, call: Call, state: SessionState | None, command: Command) -> Command:
        """Return the command with what only the store and the switch know."""
        if isinstance(command, _BY_STICKINESS):
            enabled = await self._stickiness_enabled(call.key.tenant)
            if enabled is not command.stickiness_enabled:
                command = replace(command, stickiness_enabled=enabled)
        match command:
            case CompleteTurn():
                return await self._informed_answer(call.key, state, command)
            case RouteMessage(task_id=task_id, request_id=request_id):
                # An id that is not the service's own names some revision far beyond the last.
                may_be_child = state is not None and revision_of_child(request_id) <= state.revision
                if may_be_child and await self._turns.is_child(call.key, request_id):
                    command = replace(command, names_child=True)
                if not task_id:
                    return command
                if state is not None and state.task and state.task.task_id == task_id:
                    return command
                row = await self._store.find_task(call.key.tenant, task_id)
                if row is None:
                    return command
                if row.session_id != call.key.session_id:
                    raise _task_of_another(call, task_id, row.session_id, row)
                return replace(command, known_task_status=row.status)
            case ResumeTask(task_id=task_id):
                if state is None or (state.task and state.task.task_id == task_id):
                    return command
                row = await self._store.find_task(call.key.tenant, task_id)
                if row is not None and row.session_id != call.key.session_id:
                    raise _task_of_another(call, task_id, row.session_id, row)
                return replace(command, known_task_status=row.status if row else "")
            case SetActiveAgent(turn_request_id=turn_id) if turn_id:
                refusals = await self._store.count_audit(call.key, HANDOFF_REFUSED, turn_id)
                is_open = state is not None and state.find_turn(turn_id) is not None
                known = is_open or await self._turns.find_known_turn(call.key, turn_id) is not None
                return replace(command, refusals=refusals, turn_known=known)
            case _:
                return command

    async def _with_topic(
        self, hot: _Hot, call: Call, command: Command, registry: Registry, now_us: int
    ) -> Command:
        """Return a message, or an answer to a suggestion, with what their decision needs to know.

        Of the session as it is believed to be: after a conflict everything is asked anew.
        """
        state = hot.state
        if state is not None and state.suggestion is not None:
            command, is_answer = await self._with_answer(hot, call.key, state, command, registry)
            if is_answer:
                return command
        if self._topics is None or not registry.topics.is_on:
            return command
        if not isinstance(command, RouteMessage):
            return command
        asked = topic_inquiry(state, command, registry, now_us, session_id=call.key.session_id)
        if asked is None:
            return command
        # A dispatch reads them anyway, for its history.
        await self._load_fold(call.key, hot)
        opinion = await self._topics.opinion(registry, asked, command.text, state, hot.fold)
        return command if opinion is None else replace(command, topic=opinion)

    async def _with_answer(
        self,
        hot: _Hot,
        key: SessionKey,
        state: SessionState,
        command: Command,
        registry: Registry,
    ) -> tuple[Command, bool]:
        """Return what may answer the open suggestion with what it would accept; and if it does."""
        offer = state.suggestion
        assert offer is not None
        match command:
            case SetActiveAgent(suggestion_id=suggestion_id):
                accepts = bool(suggestion_id)
            case RouteMessage(quick_reply_id=quick_reply_id) if quick_reply_id:
                accepts = True
            case RouteMessage(text=text, items=()) if takes_plain_answers(state):
                says_yes = plain_answer(text, state.locale, registry.default_locale)
                accepts = bool(says_yes)
                command = replace(command, says_yes=says_yes)
            case _:
                accepts = False
        if accepts and isinstance(command, RouteMessage | SetActiveAgent):
            known = hot.fold.message(offer.message_revision) if hot.fold else None
            message = known or await self._turns.message(key, offer.message_revision)
            command = replace(command, offered=message)
        return command, accepts

    async def _informed_answer(
        self, key: SessionKey, state: SessionState | None, command: CompleteTurn
    ) -> CompleteTurn:
        """Return an agent's answer with what only the log knows of its request."""
        request_id = command.request_id
        turn = state.find_turn(request_id) if state else None
        if turn is not None and turn.asker:
            question = await self._question(key, request_id)
            command = replace(command, consult_question=question)
        if state is not None and turn is None:
            known_turn = await self._turns.find_known_turn(key, request_id)
            command = replace(command, known_turn=known_turn)
        if state is not None and (turn is None or turn.holder != command.agent_id):
            was_asked = await self._turns.was_asked(key, request_id, command.agent_id)
            command = replace(command, was_asked=was_asked)
        if isinstance(command.outcome, HandOff) or "[" in command.text:
            refusals = await self._store.count_audit(key, HANDOFF_REFUSED, request_id)
            command = replace(command, refusals=refusals)
        return command

    async def _replay(self, hot: _Hot, call: Call, change: Change) -> Handled:
        """Give a repeat its first answer, if it is the same call.

        The session may have found its owner elsewhere since it was loaded here; nobody else is told
        what the owner was told. Or it was erased there, and nobody is told anything.
        """
        state = await self._current(call.key, hot)
        if change.events == BLANK_EVENTS or (state is not None and state.erased):
            raise session_erased(call.key.session_id)
        home_id = self._registry().home_agent_id
        if state is not None and (stranger := refused(call.access, state, home_id)):
            raise stranger
        if change.fingerprint != call.fingerprint:
            raise _reused(call)
        history: tuple[TurnRecord, ...] = ()
        message: ev.MessageRouted | None = None
        for event in decode_events(change.events):
            match event:
                case ev.MessageRouted():
                    message = event
                    plan = (event.agent_id, event.request_id, event.locked)
                case ev.TaskResumed():
                    message = await self._turns.message(call.key, event.message_revision)
                    plan = (event.agent_id, event.child_request_id, False)
                case ev.AgentHandedOff() if event.dispatches and event.child_request_id:
                    message = await self._turns.message(call.key, event.message_revision)
                    plan = (event.to_agent, event.child_request_id, event.locked)
                case _:
                    continue
            agent_id, request_id, locked = plan
            count = _history_count(call, locked=locked)
            if count:
                wanted = self._may_see(agent_id, request_id)
                found = await self._turns.as_of(
                    call.key, change.revision, count, wanted, must_find=locked
                )
                history = _within_bytes(found)
        return Handled(
            Answer(change.answer), change.revision, replayed=True, message=message, history=history
        )

    async def _history(
        self, hot: _Hot, call: Call, dispatch: DispatchPlan, revision: int, home_id: str
    ) -> tuple[TurnRecord, ...]:
        """Return the turns that go along with a dispatch, oldest first."""
        count = _history_count(call, locked=dispatch.locked)
        if not count:
            return ()
        fold = hot.fold
        if fold is not None:
            # As far back as the log is looked through: a repeat, or a server that has not seen the
            # session, must send the same turns.
            is_home = dispatch.agent_id == home_id
            found = fold.latest(
                count,
                "" if is_home else dispatch.agent_id,
                but=dispatch.request_id,
                after=revision - SCAN_CHANGES_MAX,
            )
            complete = fold.have_messages(found)
            enough = len(found) == count or not fold.is_cut
            if complete and enough and (found or not dispatch.locked):
                return _within_bytes(found)
        wanted = self._may_see(dispatch.agent_id, dispatch.request_id)
        return _within_bytes(
            await self._turns.as_of(call.key, revision, count, wanted, must_find=dispatch.locked)
        )

    def _may_see(self, agent_id: str, request_id: str) -> Callable[[TurnRecord], bool]:
        """Return which turns an agent is shown: the home agent all, others their own."""
        is_home = agent_id == self._registry().home_agent_id
        return lambda record: (
            record.request_id != request_id and (is_home or record.agent_id == agent_id)
        )

    async def _words(
        self, key: SessionKey, hot: _Hot, decision: Decision
    ) -> ev.MessageRouted | None:
        """Return the message that a dispatch is about: this one, or the one it goes on with."""
        for event in decision.events:
            if isinstance(event, ev.MessageRouted):
                return event
        dispatch = decision.dispatch
        if dispatch is None or not dispatch.message_revision:
            return None
        known = hot.fold.message(dispatch.message_revision) if hot.fold else None
        return known or await self._turns.message(key, dispatch.message_revision)

    async def _told_turns(
        self, hot: _Hot, key: SessionKey, decided: Decided
    ) -> tuple[TurnRecord, ...]:
        """Return the latest turns before a change whose reply tells of them."""
        reply = decided.decision.reply
        if reply is None or reply.command != "history" or reply.variant == "disabled":
            return ()
        await self._load_fold(key, hot)
        return tuple(hot.fold.records) if hot.fold else ()

    async def _load_fold(self, key: SessionKey, hot: _Hot) -> None:
        """Read a hot session's recent turns once."""
        if hot.fold is not None or hot.state is None:
            return
        fold = _new_fold()
        before = hot.state.revision + 1
        changes = await self._store.read_changes(
            key, before=before, limit=RECENT_TURNS_MAX, newest_first=True
        )
        fold.is_cut = len(changes) < hot.state.revision
        for change in reversed(changes):
            fold.apply(change.revision, change.time_us, decode_events(change.events))
        hot.fold = fold

    async def _task_rows(
        self,
        key: SessionKey,
        hot: _Hot,
        decided: Decided,
        before: SessionState | None,
    ) -> tuple[TaskRow, ...]:
        """Return the tasks whose row changes: status, time limit or metadata."""
        rows: dict[str, TaskRow] = {}
        tasks = {task.task_id: task for task in _tasks_of(before, decided.state)}
        for event in decided.decision.events:
            match event:
                case ev.TaskCreated():
                    hot.task_metadata = (event.task_id, dict(event.metadata))
                    metadata = event.metadata
                case ev.TaskCompleted() | ev.TaskFailed() | ev.TaskCancelled():
                    metadata = await self._known_metadata(key, hot, event.task_id)
                case ev.MessageRouted() if event.metadata or event.task_expire_us is not None:
                    known = await self._known_metadata(key, hot, event.task_id)
                    metadata = _merged(known, event.metadata)
                    hot.task_metadata = (event.task_id, metadata)
                case ev.TaskPaused() | ev.TaskResumed():
                    metadata = await self._known_metadata(key, hot, event.task_id)
                case ev.AgentCleared() | ev.AgentHandedOff() if _dropped_approval(before, decided):
                    # The task goes on with nobody asked; the event itself is about the agent.
                    metadata = await self._known_metadata(key, hot, _task_id(decided.state))
                case _:
                    continue
            task_id = event.task_id if isinstance(event, _TASK_EVENTS) else _task_id(decided.state)
            # A task that began and ended within this change is known by its events alone.
            task = tasks.get(task_id)
            is_present = task is not None and task is decided.state.task
            status = task.status if task and is_present else _status_after(event)
            rows[task_id] = TaskRow(
                task_id=task_id,
                session_id=key.session_id,
                user_id=decided.state.owner,
                status=status.value,
                create_us=task.create_us if task else decided.now_us,
                update_us=decided.now_us,
                expire_us=task.expire_us if task else None,
                data=msgspec.json.encode(metadata),
            )
        return tuple(rows.values())

    async def _stored_status(self, key: SessionKey, task_id: str) -> TaskStatus | None:
        """Return how a task stands that is not the session's latest; None for none."""
        row = await self._store.find_task(key.tenant, task_id) if task_id else None
        return TaskStatus(row.status) if row else None

    async def _known_metadata(self, key: SessionKey, hot: _Hot, task_id: str) -> Mapping[str, str]:
        if hot.task_metadata is None or hot.task_metadata[0] != task_id:
            hot.task_metadata = (task_id, await self.task_metadata(key.tenant, task_id))
        return hot.task_metadata[1]

    async def _audit_refusal(
        self,
        call: Call,
        command: Command,
        state: SessionState | None,
        error: HandoffRefused,
    ) -> None:
        """Keep a refused handoff where no revision is taken."""
        turn_id = command.turn_request_id if isinstance(command, SetActiveAgent) else ""
        data = {
            "method": call.method,
            "metadata": error.metadata,
            "verdicts": [[v.rule, v.allowed, v.detail] for v in error.verdicts],
            **({"actor": call.subject} if call.subject else {}),
        }
        await self._store.append_audit(
            AuditEntry(
                time_us=self._clock_us(),
                tenant=call.key.tenant,
                session_id=call.key.session_id,
                revision=state.revision if state else 0,
                kind=HANDOFF_REFUSED,
                request_id=turn_id or call.request_id,
                user_id=state.owner if state else call.access.user_id,
                data=msgspec.json.encode(data),
            )
        )

    async def _current(self, key: SessionKey, hot: _Hot) -> SessionState | None:
        """Return a state that is certainly the latest."""
        return await self._loaded(key, hot, trust_s=-1.0 if self._store.shared_writers else 0.0)

    async def _loaded(
        self, key: SessionKey, hot: _Hot, *, trust_s: float = HOT_TRUST_S
    ) -> SessionState | None:
        known = hot.state
        now_s = 0.0
        if self._store.shared_writers:
            now_s = asyncio.get_running_loop().time()
        if known is None or now_s - hot.used_s > trust_s:
            head = await self._store.load(key)
            if head is not None:
                state = decode_state(head.state)
                if state.revision != head.revision:
                    message = (
                        f"a stored state is of revision {state.revision}, its session of "
                        f"{head.revision}; restore it from a backup"
                    )
                    raise StoreCorrupt(message)
                if known is None or not _is_same(known, state):
                    hot.forget()
                    hot.state = state
            else:
                hot.forget()
        hot.used_s = now_s
        return hot.state

    async def _confirm(self, key: SessionKey, state: SessionState | None) -> None:
        """Make sure that what is not written was decided on the latest state."""
        if not self._store.shared_writers:
            return
        base = state.revision if state else 0
        head = await self._store.load(key)
        actual = head.revision if head else 0
        # The revision alone would not show a session that was removed and begun anew elsewhere.
        is_same = head is None or state is None or _is_same(decode_state(head.state), state)
        if actual != base or not is_same:
            raise RevisionConflict(key, base, actual)

    def _session(self, key: SessionKey) -> _Held:
        """Hold one session: its calls take turns here, in the order in which they came."""
        return _Held(self._come(key), self._leave)

    def _come(self, key: SessionKey) -> _Hot:
        """Count one in who uses a session: it stays in the cache until it is let go of."""
        hot = self._hot.get(key)
        if hot is None:
            hot = self._hot[key] = _Hot()
        self._hot.move_to_end(key)
        hot.users += 1
        return hot

    def _leave(self, hot: _Hot) -> None:
        hot.users -= 1
        if len(self._hot) > self._cache_max:
            self._evict()

    def _keep_fold(self, key: SessionKey, hot: _Hot) -> None:
        """Keep a session's recent turns, and let go of those that were not used for longest."""
        self._with_fold[key] = hot
        self._with_fold.move_to_end(key)
        if len(self._with_fold) > FOLDS_MAX:
            _, oldest = self._with_fold.popitem(last=False)
            if not oldest.users:  # Otherwise it is kept again in a moment.
                oldest.fold = None

    def _evict(self) -> None:
        """Let go of the sessions that were not used for longest."""
        while len(self._hot) > self._cache_max:
            oldest = next(iter(self._hot))
            if self._hot[oldest].users:
                # In use: every other one is younger, and the next call evicts again.
                break
            del self._hot[oldest]
            self._with_fold.pop(oldest, None)


def _is_same(known: SessionState, stored: SessionState) -> bool:
    """Say whether what is known is what is stored, and no session of the same name before it."""
    return (known.revision, known.create_us) == (stored.revision, stored.create_us)


def _new_fold() -> HistoryFold:
    return HistoryFold(records_max=RECENT_TURNS_MAX, bytes_max=RECENT_BYTES_MAX)


def _history_count(call: Call, *, locked: bool) -> int:
    """Return how many past turns go along: a locked agent always gets its history."""
    asked = call.history_turns
    if asked < 0:
        return HISTORY_TURNS_DEFAULT if locked else 0
    return min(asked or HISTORY_TURNS_DEFAULT, HISTORY_TURNS_MAX)


def _within_bytes(records: list[TurnRecord]) -> tuple[TurnRecord, ...]:
    """Leave out the oldest turns where all of them would be too much for one answer."""
    if sum(map(_SIZE_BYTES, records)) <= HISTORY_BYTES_MAX:
        return tuple(records)
    total = 0
    for place in range(len(records) - 1, -1, -1):
        total += records[place].size_bytes
        if total > HISTORY_BYTES_MAX:
            return tuple(records[place + 1 :])
    return tuple(records)


def _tasks_of(before: SessionState | None, after: SessionState) -> list[Task]:
    """Return the tasks that a change knew, the present one last."""
    tasks = [before.task] if before and before.task else []
    return [*tasks, after.task] if after.task else tasks


_TASK_EVENTS: Final = (
    ev.TaskCreated,
    ev.TaskCompleted,
    ev.TaskFailed,
    ev.TaskCancelled,
    ev.TaskPaused,
    ev.TaskResumed,
    ev.MessageRouted,
)


def _may_change_tasks(events: Iterable[ev.Event]) -> bool:
    """Say whether a change may write a task's row: most do not."""
    for event in events:
        if isinstance(event, ev.MessageRouted):
            if event.metadata or event.task_expire_us is not None:
                return True
        elif not isinstance(event, ev.TurnCompleted):
            return True
    return False


def _task_id(state: SessionState) -> str:
    assert state.task is not None
    return state.task.task_id


def _dropped_approval(before: SessionState | None, decided: Decided) -> bool:
    """Say whether a change took a pending approval away and left its task running."""
    if before is None or before.paused is None or decided.state.paused is not None:
        return False
    task = decided.state.task
    return (
        task is not None
        and task.status is TaskStatus.RUNNING
        and task.task_id == before.paused.task_id
    )


def _status_after(event: ev.Event) -> TaskStatus:
    """Return how a task stands after an event that names it."""
    match event:
        case ev.TaskCompleted():
            return TaskStatus.COMPLETED
        case ev.TaskFailed():
            return TaskStatus.FAILED
        case ev.TaskCancelled():
            return TaskStatus.CANCELLED
        case _:
            return TaskStatus.RUNNING


def _decode_metadata(data: bytes) -> Mapping[str, str]:
    return msgspec.json.decode(data, type=dict[str, str]) if data else {}


def _merged(known: Mapping[str, str], news: Mapping[str, str]) -> Mapping[str, str]:
    """Add to a task's metadata, within its bounds. Raises INVALID_FIELD."""
    merged = {**known, **news}
    size_bytes = sum(len(key.encode()) + len(value.encode()) for key, value in merged.items())
    if len(merged) > METADATA_ENTRIES_MAX or size_bytes > METADATA_BYTES_MAX:
        raise invalid_field(
            "metadata",
            f"the task would have {len(merged)} entries of {size_bytes} bytes, at most "
            f"{METADATA_ENTRIES_MAX} of {METADATA_BYTES_MAX} are kept; use fewer or shorter ones",
        )
    return merged


def _plan_of(event: ev.AgentHandedOff) -> HandoffPlan:
    """Return a handoff as it was told when it happened."""
    return HandoffPlan(
        from_agent=event.from_agent,
        to_agent=event.to_agent,
        initiator=event.initiator,
        mode=event.mode,
        reason=event.reason,
        context=event.context,
        message=event.message,
    )


def _task_of_another(
    call: Call, task_id: str, session_id: str, row: TaskRow | None
) -> RoutingError:
    """Refuse a task of another session; whose that is, only the task's own user is told."""
    if row is None or row.user_id not in ("", call.access.user_id):
        return owner_mismatch("task", task_id)
    return invalid_field(
        "task_id",
        f'task "{task_id}" belongs to session "{session_id}"; name that session, '
        "or leave session_id out",
    )


def _check_revision(call: Call, state: SessionState | None) -> None:
    actual = state.revision if state else 0
    expected = call.expected_revision
    assert expected is not None
    if expected != actual:
        raise _revision_mismatch(call.key.session_id, expected, actual)


def _revision_mismatch(session_id: str, expected: int, actual: int) -> RoutingError:
    return RoutingError(
        Reason.REVISION_MISMATCH,
        f'session "{session_id}" is at revision {actual}, the request expected {expected}; '
        "read the session and retry",
        metadata={
            "session_id": session_id,
            "expected_revision": str(expected),
            "revision": str(actual),
        },
    )


def _reused(call: Call) -> RoutingError:
    """Say that a request id was used for something else before."""
    metadata = {
        "session_id": call.key.session_id,
        "request_id": call.request_id,
        "method": call.method,
    }
    if call.method == "ResumeTask":
        return RoutingError(
            Reason.REQUEST_NOT_OPEN,
            f'request "{call.request_id}" was decided otherwise already; the first decision stands',
            metadata=metadata,
        )
    if call.method == COMPLETE_TURN:
        return RoutingError(
            Reason.REQUEST_NOT_OPEN,
            f'agent "{call.actor}" has answered request "{call.request_id}" already, with '
            "something else; its first answer stands",
            metadata={**metadata, "agent_id": call.actor},
        )
    return RoutingError(
        Reason.REQUEST_ID_REUSED,
        f'request id "{call.request_id}" was used in this session for a {call.method} with other '
        "content; make a new id for a new request",
        metadata=metadata,
    )
