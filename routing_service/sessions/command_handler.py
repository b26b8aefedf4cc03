"""One call from its session to its committed change: load, decide, append.

Rule: the answer is stored with the change, so that a repeat of the call gets the same bytes.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import tenacity

from routing_service.core.access import Access, refused
from routing_service.core.case import open_case
from routing_service.core.commands import (
    Abandon,
    Command,
    Erase,
    Expire,
)
from routing_service.core.decide import Decided, decide_case, view
from routing_service.core.erased_owner import SALT_BYTES
from routing_service.core.errors import Reason, RoutingError, session_erased, unknown_session
from routing_service.core.evolve import held_meanwhile
from routing_service.core.facts import NO_FACTS, facts_needed
from routing_service.core.history import TurnRecord
from routing_service.core.inbox import InboxPlace
from routing_service.core.kept_moves import settled
from routing_service.core.queued_messages import queued_count
from routing_service.core.refusals import HandoffRefused
from routing_service.core.registry import Registry
from routing_service.core.session import SessionState
from routing_service.core.task_fold import voter_hash
from routing_service.core.vocabulary import TaskStatus
from routing_service.ids import new_uuid7
from routing_service.sessions.appends import append_of
from routing_service.sessions.approval_reads import ApprovalReads
from routing_service.sessions.audit_archive import archive
from routing_service.sessions.audit_log import AuditLog, Operator
from routing_service.sessions.calls import (
    Answer,
    Call,
    Expiry,
    Handled,
    Made,
    MakeAnswer,
    SessionView,
    as_voter,
)
from routing_service.sessions.decision_inputs import DecisionInputs
from routing_service.sessions.dispatch_history import DispatchHistory, routed_message
from routing_service.sessions.inbox_entries import waiting_entries
from routing_service.sessions.inbox_turns import InboxTurns
from routing_service.sessions.next_messages import NextMessages
from routing_service.sessions.refusals import (
    audit_entry,
    check_revision,
    check_same_decision,
    reused,
    revision_mismatch,
    task_of_another,
)
from routing_service.sessions.session_cache import (
    FOLDS_MAX,
    HOT_TRUST_S,
    HotSession,
    SessionCache,
    new_fold,
)
from routing_service.sessions.session_reads import SessionReads
from routing_service.sessions.stickiness_switch import BY_STICKINESS, Stickiness, by_stickiness
from routing_service.sessions.task_rows import TaskRows, may_change_tasks
from routing_service.sessions.turn_history import TurnHistory
from routing_service.sessions.user_turns import UserTurns
from routing_service.storage.checked_store import Store
from routing_service.storage.event_codec import (
    BLANK_EVENTS,
    ERASE_USER,
    decode_events,
)
from routing_service.storage.store import (
    Append,
    Change,
    RequestSeen,
    RevisionConflict,
    SchemaTooNew,
    SessionKey,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
    TaskRow,
    TaskTaken,
)
from routing_service.topics.detection import TopicJudge

CONFLICT_ATTEMPTS_MAX: Final = 20
"""Decisions on a session, after the first, before a call fails with ABORTED. A replica that loses
meets the others again at once: of 400 calls by 16 callers of one session on three replicas, 4 to 7
failed with 6 attempts, none with 20. All attempts with their waits take less than two seconds."""

CONFLICT_WAIT_MAX_S: Final = 0.08

T = TypeVar("T")


class CommandHandler:
    """Carries calls through the state machine to the store.

    reads: what readers need beyond the session's state. tasks: the metadata of tasks.
    turns: the history of the store. now_us: the time by the clock of decisions.
    """

    def __init__(
        self,
        store: Store,
        registry: Callable[[], Registry],
        clock_us: Callable[[], int],
        *,
        stickiness: Callable[[str], Awaitable[Stickiness]],
        cache_sessions_max: int,
        folds_max: int = FOLDS_MAX,
        hot_trust_s: float = HOT_TRUST_S,
        publish: Callable[[SessionKey, Change], None] = lambda _key, _change: None,
        doubt: Callable[[SessionKey], None] = lambda _key: None,
        topics: TopicJudge | None = None,
        audit: AuditLog | None = None,
        on_entries: Callable[[Append], None] = lambda _append: None,
        user_turns: UserTurns | None = None,
    ) -> None:
        """Serve one store.

        registry: returns the present one. clock_us: microseconds since 1970. stickiness: by tenant.
        cache_sessions_max: hot sessions kept; the least recently used are evicted. folds_max,
        hot_trust_s: see SessionCache. publish: called with every change, after its commit. doubt:
        called with a session if an append's outcome is unknown. topics: judges what messages are
        about; None = no topic detection, in spite of the registry. audit: records refusals; None =
        one of its own. on_entries: called after a commit that may have changed entries of queues.
        user_turns: limits the turns of a user; None = there is no limit.
        """
        self._store = store
        self._registry = registry
        self.now_us = clock_us
        self._stickiness = stickiness
        self._publish = publish
        self._doubt = doubt
        self._next = NextMessages(self.expire, on_entries)
        self._user_turns = user_turns or UserTurns(store, 0)
        self.audit = audit or AuditLog(store, clock_us)
        self._cache = SessionCache(
            store, cache_sessions_max, folds_max=folds_max, hot_trust_s=hot_trust_s
        )
        self.turns = TurnHistory(store)
        self.reads = SessionReads(store, self.turns)
        self.tasks = TaskRows(store)
        self._history = DispatchHistory(self.turns, registry)
        self.inbox = InboxTurns(
            store, self._cache, self.reads, self._history, registry, clock_us=clock_us
        )
        self.approvals = ApprovalReads(store, self._cache, self.reads, clock_us)
        self._inputs = DecisionInputs(
            store, self._cache, self._history, self.turns, topics, reads=self.reads
        )

    @property
    def registry(self) -> Registry:
        """The registry that the next decision uses."""
        return self._registry()

    async def sticks(self, tenant: str, state: SessionState) -> bool:
        """Say whether the session's active agent would get the next message of its user."""
        stickiness = await self._stickiness(tenant)
        if stickiness.is_stale(state.last_used_us):
            return False
        held = held_meanwhile(state)
        agent_id = held[-1].agent_id if held else ""
        return stickiness.sticks(state.owner or state.session_id, (agent_id,))

    async def handle(self, call: Call, command: Command, make_answer: MakeAnswer) -> Handled:
        """Decide a call and commit it, or give a repeat its first answer.

        Raises RoutingError; StoreError if the store fails: then the call happened whole or not
        at all, and a repeat with its request id shows which.
        """
        # As SessionCache.hold does; its two coroutines cost too much for every message.
        hot = self._cache.enter(call.key)
        try:
            await hot.lock.acquire()
        except BaseException:
            self._cache.leave(hot)
            raise
        try:
            try:
                return await self._attempt(hot, call, command, make_answer)
            except RevisionConflict:
                # Another process wrote first: the cached session is out of date.
                hot.forget()
            except (StoreError, asyncio.CancelledError):
                # The append may have happened all the same.
                hot.forget()
                raise
            attempt = partial(self._attempt, hot, call, command, make_answer)
            return await self._until_committed(call.key, hot, attempt)
        finally:
            hot.lock.release()
            self._cache.leave(hot)

    async def read(
        self, key: SessionKey, access: Access, asked: tuple[str, str] = ("", "")
    ) -> SessionView:
        """Return a session as it stands.

        asked: a request, and the agent that was asked it and may have no part in the session now.
        Raises UNKNOWN_SESSION, SESSION_ERASED; OWNER_MISMATCH, SCOPE_MISSING for a caller without
        access; StoreError.
        """
        async with self._cache.hold(key) as hot:
            state = await self._cache.current(key, hot)
            if state is None:
                raise unknown_session(key.session_id)
            if state.erased:
                hot.forget()
            if stranger := refused(access, state, self.registry.home_agent_id):
                request_id, agent_id = asked
                await self._check_asked(Call(key, "", request_id, b"", agent_id), stranger)
            if self.registry.has_inboxes or state.has_work or state.paused is not None:
                await self.inbox.put_back(key, waiting_entries(state, self.registry))
            after = state
            if state.meanwhile is not None and await self.sticks(key.tenant, state):
                after = settled(state)
            return SessionView(state, view(after, self.registry, self.now_us()))

    async def expire(self, key: SessionKey) -> Expiry:
        """Apply the time-outs of a session that have passed. Raises StoreError."""
        async with self._cache.hold(key) as hot:
            state = await self._cache.current(key, hot)
            command = Expire(new_uuid7())
            if state is not None and (queued_count(state) or state.apart is not None):
                command = Expire(new_uuid7(), new_uuid7(), await self.sticks(key.tenant, state))
            try:
                return Expiry(changed=await self._change(key, hot, command, method=""))
            except RevisionConflict:
                return Expiry(changed=False, overtaken=True)

    async def abandon(self, key: SessionKey, place: InboxPlace) -> bool:
        """Give up a turn in an inbox; False if it was not there any more. Raises StoreError."""
        async with self._cache.hold(key) as hot:
            state = await self._cache.current(key, hot)
            sticks = state is None or state.apart is None or await self.sticks(key.tenant, state)
            attempt = partial(self._change, key, hot, Abandon(*place, sticks), method="")
            return await self._until_committed(key, hot, attempt)

    async def erase(self, key: SessionKey, reason: str, by: Operator) -> None:
        """End a session for good and remove its content from the store.

        After it returns, none of the content can be read here; another replica drops what it has
        in memory when it next looks at the session. If it is interrupted, call it again.
        Raises StoreError; RoutingError REVISION_MISMATCH while too many others write.
        """
        async with self._cache.hold(key) as hot:
            await self._drop_entries(key, hot)
            command = Erase(reason, secrets.token_bytes(SALT_BYTES))
            attempt = partial(self._change, key, hot, command, method=ERASE_USER, by=by)
            await self._until_committed(key, hot, attempt)
            state = hot.state
            hot.forget()
            if state is not None:
                await archive(self._store, self.audit, key, state.revision, is_purge=False)
                await self._store.erase_before(key, state.revision, BLANK_EVENTS)

    async def delete(self, key: SessionKey, revision: int) -> bool:
        """Remove a session at a revision; False if it has another revision by now."""
        async with self._cache.hold(key) as hot:
            await archive(self._store, self.audit, key, revision + 1, is_purge=True)
            await self._drop_entries(key, hot)
            try:
                await self._store.delete_session(key, revision)
            except RevisionConflict:
                return False
            finally:
                hot.forget()
            return True

    async def _drop_entries(self, key: SessionKey, hot: HotSession) -> None:
        """Take a session that is about to go out of all queues.

        If this is interrupted, they are put back when the session is read. Raises StoreError.
        """
        with suppress(StoreCorrupt, SchemaTooNew):  # What it leaves is removed when listed.
            drop = waiting_entries(await self._cache.current(key, hot), self.registry)
            if drop:
                await self._store.mend_queue(key.tenant, (), drop)

    async def _until_committed(
        self, key: SessionKey, hot: HotSession, attempt: Callable[[], Awaitable[T]]
    ) -> T:
        """Repeat an attempt while others write first, up to CONFLICT_ATTEMPTS_MAX times.

        The session is loaded again for each attempt. Raises REVISION_MISMATCH after the last one;
        what the attempt raises.
        """
        retrying = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(CONFLICT_ATTEMPTS_MAX),
            wait=tenacity.wait_random_exponential(multiplier=0.005, max=CONFLICT_WAIT_MAX_S),
            retry=tenacity.retry_if_exception_type(RevisionConflict),
            after=lambda _: hot.forget(),
            reraise=True,
        )
        try:
            return await retrying(attempt)
        except RevisionConflict as conflict:
            raise revision_mismatch(
                key.session_id, conflict.base_revision, conflict.actual_revision
            ) from conflict
        except (StoreError, asyncio.CancelledError):
            hot.forget()
            raise

    async def _change(
        self,
        key: SessionKey,
        hot: HotSession,
        command: Command,
        *,
        method: str,
        by: Operator | None = None,
    ) -> bool:
        """Commit a command that no caller of the session sent; False if there is none to commit.

        by: the operator that asked for it; None = the service itself.

        Raises RevisionConflict, StoreError.
        """
        try:
            state = await self._cache.current(key, hot)
            registry = self._registry()
            subject, trace_id = (by.subject, by.trace_id) if by else ("", "")
            call = Call(key, method, "", b"", subject=subject, trace_id=trace_id)
            case = open_case(state, command, registry, self.now_us(), session_id=key.session_id)
            needed = facts_needed(case)
            facts = await self._inputs.find(call, hot, case, needed) if needed else NO_FACTS
            decided = decide_case(case, facts)
            if decided.decision.events:
                await self._commit(hot, call, decided, registry, lambda _: Answer(b""))
            return bool(decided.decision.events)
        except (StoreError, asyncio.CancelledError):
            hot.forget()
            raise

    async def _attempt(
        self, hot: HotSession, call: Call, command: Command, make_answer: MakeAnswer
    ) -> Handled:
        """Decide once on the cached session, and try to commit it. Raises RevisionConflict."""
        state = hot.state
        if (state is None or self._store.shared_writers) and not call.begins:
            state = await self._cache.loaded(call.key, hot)
        registry = self._registry()
        # Of an erased session a repeat gets no answer either, which is stored if the erasure was
        # interrupted.
        if state is not None and (stranger := refused(call.access, state, registry.home_agent_id)):
            await self._cache.confirm(call.key, state)
            await self._check_asked(call, stranger)
        now_us = self.now_us()
        try:
            if call.expected_revision is not None:
                check_revision(call, state)
            if call.lease_token:
                await self.inbox.check_lease(call, state)
            if isinstance(command, BY_STICKINESS):
                stickiness = await self._stickiness(call.key.tenant)
                if not stickiness.is_plain:
                    command = by_stickiness(stickiness, call, command, state, registry)
            elif call.deciding is not None:
                call = as_voter(call, call.deciding, state)
            case = open_case(state, command, registry, now_us, session_id=call.key.session_id)
            needed = facts_needed(case)
            facts = await self._inputs.find(call, hot, case, needed) if needed else NO_FACTS
            decided = decide_case(case, facts)
            if self._user_turns.full:
                await self._user_turns.check(call.key, command, state, decided.state, registry)
        except RoutingError as error:
            return await self._refuse(hot, call, command, state, error)
        if call.dry_run:
            await self._cache.confirm(call.key, state)
            base = state.revision if state else 0
            turns = await self._turns_for_reply(hot, call.key, decided)
            answer = make_answer(Made(call, decided, registry, base, turns))
            message = routed_message(decided.decision)
            plan = decided.decision.dispatch
            if message is None and plan is not None:
                message = await self._history.message_at(call.key, hot, plan.message_revision)
            return Handled(answer, base, replayed=False, message=message, decided=decided)
        if not decided.decision.events:
            seen = await self._seen(call)
            if seen is not None:
                return await self._replay(hot, call, seen)
            await self._cache.confirm(call.key, state)
            made = Made(call, decided, registry, decided.state.revision)
            return Handled(
                make_answer(made), decided.state.revision, replayed=False, decided=decided
            )
        return await self._commit(hot, call, decided, registry, make_answer)

    async def _check_asked(self, call: Call, stranger: RoutingError) -> None:
        """Raise why a caller may not reach a session, unless it answers what its agent was asked.

        The agent may have no part in the session by now: its turn was abandoned, and nothing of its
        text is to be lost. Raises StoreError.
        """
        is_runtime = stranger.reason is Reason.SCOPE_MISSING and bool(call.actor)
        if not is_runtime or not await self.turns.was_asked(call.key, call.request_id, call.actor):
            raise stranger

    async def _refuse(
        self,
        hot: HotSession,
        call: Call,
        command: Command,
        state: SessionState | None,
        error: RoutingError,
    ) -> Handled:
        """Raise a decision's error, unless the call is a repeat: its first answer stands."""
        seen = await self._seen(call)
        if seen is not None:
            return await self._replay(hot, call, seen)
        await self._cache.confirm(call.key, state)
        if isinstance(error, HandoffRefused):
            error.revision = state.revision if state else 0
            if not call.dry_run:
                entry = audit_entry(call, command, state, error, self.now_us())
                await self.audit.add(entry)
        raise error

    async def _commit(
        self,
        hot: HotSession,
        call: Call,
        decided: Decided,
        registry: Registry,
        make_answer: MakeAnswer,
    ) -> Handled:
        """Append a decision with its answer, and apply it to the cached session."""
        before, state, key, decision = hot.state, decided.state, call.key, decided.decision
        dispatch = decision.dispatch
        message = routed_message(decision)
        if dispatch is not None and message is None:
            message = await self._history.message_at(key, hot, dispatch.message_revision)
        tasks: tuple[TaskRow, ...] = ()
        try:
            if may_change_tasks(decision.events):
                tasks = await self.tasks.changed(key, hot, decided, before)
        except RoutingError:
            # The metadata of a repeat may no longer fit next to what was added since.
            seen = await self._seen(call)
            if seen is None:
                await self._cache.confirm(key, before)
                raise
            return await self._replay(hot, call, seen)
        if hot.fold is None and before is not None and dispatch is not None:
            await self._cache.load_fold(key, hot)
        turns = await self._turns_for_reply(hot, key, decided) if decision.reply else ()
        task = state.task
        if task is not None and task.task_id == decision.task_id:
            status: TaskStatus | None = task.status
        else:
            status = await self.tasks.status_after(key, decision.task_id, state, tasks)
        made = Made(call, decided, registry, state.revision, turns, status)
        answer = make_answer(made)
        append, chain = append_of(made, answer, before, tasks, hot.chain)
        try:
            await self._store.append(append)
        except (StoreUnavailable, asyncio.CancelledError):
            self._doubt(key)
            raise
        except RequestSeen as seen_before:
            # This very request was handled before: here before a restart, or on another replica.
            hot.forget()
            return await self._replay(hot, call, seen_before.change)
        except TaskTaken as taken:
            hot.forget()
            row = await self._store.find_task(key.tenant, taken.task_id)
            raise task_of_another(call, taken.task_id, taken.session_id, row) from taken
        self._publish(key, append.change)
        if tasks or append.inbox_put or append.inbox_drop:
            self._next.changed(append, state)
        hot.state, hot.chain = state, chain
        if before is None:
            hot.fold = new_fold()
        if hot.fold is not None:
            hot.fold.apply(state.revision, decided.now_us, decision.events)
            self._cache.keep_fold(key, hot)
        history: tuple[TurnRecord, ...] = ()
        if dispatch is not None:
            history = await self._history.past_turns(
                hot, call, dispatch, state, registry.home_agent_id
            )
        return Handled(
            answer,
            state.revision,
            replayed=False,
            message=message,
            history=history,
            decided=decided,
        )

    async def _seen(self, call: Call) -> Change | None:
        """Return the change that an earlier call with the same request id made, if any."""
        key, method, request_id = call.key, call.method, call.request_id
        if call.deciding is None:
            return await self._store.find_request(key, method, request_id, call.actor)
        found = await self._store.find_request(key, method, request_id)
        if found is None and call.subject:
            # No decision counts yet; this person's own vote may be stored.
            voter = voter_hash(request_id, call.subject)
            found = await self._store.find_request(key, method, request_id, voter)
        return found

    async def _replay(self, hot: HotSession, call: Call, change: Change) -> Handled:
        """Give a repeat its first answer, if it is the same call.

        The session may have got an owner on another replica since it was loaded here, or may have
        been erased there: so access is checked again, on the latest state.
        """
        state = await self._cache.current(call.key, hot)
        home_id = self._registry().home_agent_id
        if state is not None and (stranger := refused(call.access, state, home_id)):
            await self._check_asked(call, stranger)
        if change.events == BLANK_EVENTS:
            raise session_erased(call.key.session_id)
        events = decode_events(change.events)  # First: a damaged change compares with nothing.
        if call.deciding is not None:
            check_same_decision(call, call.deciding, change)
        elif change.fingerprint != call.fingerprint:
            raise reused(call)
        message, history = await self._history.of_repeat(call, change.revision, events)
        return Handled(
            Answer(change.answer), change.revision, replayed=True, message=message, history=history
        )

    async def _turns_for_reply(
        self, hot: HotSession, key: SessionKey, decided: Decided
    ) -> tuple[TurnRecord, ...]:
        """Return the latest turns before a change, if its reply lists them: /history does."""
        reply = decided.decision.reply
        if reply is None or reply.command != "history" or reply.variant == "disabled":
            return ()
        await self._cache.load_fold(key, hot)
        return tuple(hot.fold.records) if hot.fold else ()
