"""Appends: one script each, and before it the claim of a new task's id.

The appends of one session, and those that share a task, are tried in the order of the calls. A task
id is unique in its tenant, though no script can look into two slots.

How a task id stays unique. Ids are claimed in the tenant's own hash, for a session, with a token
that is new for each claim. A claim counts only if the session really has the task: the claim of an
append that failed owns nothing. A writer that wants an id which another session has claimed looks
into that session. If it has the task, the id is taken. If not, its append may still be on the way:
after a short wait the writer puts up a fence in that session's slot, behind which no append with
that token can give it the task any more, and only then takes the claim over. So at any moment at
most one token can still succeed, whichever clocks differ and whichever process stops half-way.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Hashable
from functools import partial
from itertools import count
from typing import Final

from routing_service.storage.redis.bounds import DEFAULT_BOUNDS, RedisBounds
from routing_service.storage.redis.connection import Reply
from routing_service.storage.redis.keys import Keys, SessionKeys, request_field, text_bytes
from routing_service.storage.redis.pipeline import Pipeline
from routing_service.storage.redis.queues import entry_member
from routing_service.storage.redis.records import (
    from_change,
    from_task,
    head_rest,
    number,
    optional,
    task_place,
    to_change,
    to_revision,
)
from routing_service.storage.redis.scripts import Argument, Command, script_call
from routing_service.storage.store import (
    Append,
    RequestSeen,
    RevisionConflict,
    SessionKey,
    StoreCorrupt,
    StoreUnavailable,
    TaskTaken,
)

ORIGIN_BYTES: Final = 4
TOKEN_BYTES: Final = 8
"""A token is its writer's origin and a number. Two writers with the same origin would only wait
less for each other."""

CLAIM_POLL_S: Final = 0.005
"""The first pause between two reads; each is twice the one before."""

CLAIM_ATTEMPTS_MAX: Final = 8
"""How often one append may lose its claims before its caller gets StoreUnavailable."""

FENCE_KEPT_S: Final = 24 * 3600
"""How long a fence stands: far longer than an append can be on its way."""

_NO_TOKEN: Final = b""


class AppendWriter:
    """Takes appends from any number of callers."""

    def __init__(
        self, pipeline: Pipeline, keys: Keys, bounds: RedisBounds = DEFAULT_BOUNDS
    ) -> None:
        """Write nothing yet."""
        self._pipeline = pipeline
        self._keys = keys
        self._bounds = bounds
        self._origin = os.urandom(ORIGIN_BYTES)
        self._numbers = count(1)
        self._busy: dict[Hashable, asyncio.Task[None]] = {}
        """The last append that waits or runs, by its session and its tasks."""
        self._running: set[asyncio.Task[None]] = set()

    async def append(self, append: Append) -> None:
        """Store one append. Raises what Store.append does."""
        names: list[Hashable] = [append.key]
        names += [(append.key.tenant, task.task_id) for task in append.tasks]
        earlier = {self._busy[name] for name in names if name in self._busy}
        if not append.tasks and not earlier:
            # One script: the pipeline keeps the order.
            outcome = await self._run(append, {}, {})
            self._check(append, outcome)
            return
        if len(self._running) >= self._bounds.waiting_calls_max:
            raise StoreUnavailable(f"{len(self._running)} appends wait for the store; try again")
        # A caller that is cancelled must not leave it half-way.
        task = asyncio.create_task(self._append_in_turn(append, earlier), name="redis append")
        self._running.add(task)
        self._busy.update(dict.fromkeys(names, task))
        task.add_done_callback(partial(self._on_done, names))
        await asyncio.shield(task)

    async def settle(self) -> None:
        """Wait until all appends accepted before are done."""
        if self._running:
            await asyncio.wait(set(self._running))

    def _on_done(self, names: list[Hashable], task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        for name in names:
            if self._busy.get(name) is task:
                del self._busy[name]
        if not task.cancelled():
            task.exception()  # Its caller may be gone.

    async def _append_in_turn(self, append: Append, earlier: set[asyncio.Task[None]]) -> None:
        if earlier:
            await asyncio.wait(earlier)
        tokens: dict[bytes, bytes] = {}
        owners: dict[bytes, bytes] = {}
        for _ in range(CLAIM_ATTEMPTS_MAX):
            # First without claims: most appends are of tasks that the session already has.
            outcome = await self._run(append, tokens, owners)
            if outcome[0] not in {b"unclaimed", b"fenced"}:
                self._check(append, outcome)
                return
            for task_id in outcome[1:]:
                lost = tokens.pop(task_id, _NO_TOKEN)
                token, owner = await self._claim(append.key, task_id, lost)
                tokens[task_id] = token
                if owner:
                    owners[task_id] = owner
        raise StoreUnavailable("other sessions claim the same tasks; try again")

    async def _run(
        self, append: Append, tokens: dict[bytes, bytes], owners: dict[bytes, bytes]
    ) -> list[Reply]:
        (reply,) = await self._pipeline.call([_append_command(append, self._keys, tokens, owners)])
        return list(reply)

    @staticmethod
    def _check(append: Append, outcome: list[Reply]) -> None:
        """Raise the exception for a refusal."""
        key = append.key
        match outcome:
            case [b"stored"]:
                return
            case [b"seen", change]:
                raise RequestSeen(key, to_change(key, change))
            case [b"conflict", revision]:
                raise RevisionConflict(key, append.base_revision, to_revision(key, revision))
            case [b"taken", task_id, owner]:
                raise TaskTaken(task_id.decode(), owner.decode())
            case [b"corrupt", what]:
                raise StoreCorrupt(
                    f'the {what.decode()} of session "{key}" do not fit the rest of it; '
                    "restore it from a backup"
                )
        raise AssertionError(outcome)

    async def _claim(self, key: SessionKey, task_id: bytes, lost: bytes) -> tuple[bytes, bytes]:
        """Claim a task id; give the token, or the session that has the task.

        lost: the token of our claim that was fenced off; b"" = none.
        """
        mine = text_bytes(key.session_id)
        expected = lost + mine if lost else b""
        for _ in range(CLAIM_ATTEMPTS_MAX):
            claim = self._new_token() + mine
            stands = await self._put_claim(key.tenant, task_id, claim, expected)
            if stands == claim:
                return claim[:TOKEN_BYTES], b""
            owner = stands[TOKEN_BYTES:]
            if owner == mine:
                # Left behind by an append of this session; it serves as well as a new one.
                return stands[:TOKEN_BYTES], b""
            if await self._has_task(key.tenant, task_id, stands):
                return _NO_TOKEN, owner
            # It does not own the task, and cannot get it by this claim.
            expected = stands
        raise StoreUnavailable("other sessions claim the same task; try again")

    async def _has_task(self, tenant: str, task_id: bytes, claim: bytes) -> bool:
        """Whether the session of a claim has the task; if not, it never will have by this claim."""
        keys = self._keys.session(SessionKey(tenant, claim[TOKEN_BYTES:].decode()))
        if not claim.startswith(self._origin):
            pause_s, waited_s = CLAIM_POLL_S, 0.0
            while True:
                (found,) = await self._pipeline.call([("HEXISTS", keys.tasks, task_id)])
                if found:
                    return True
                if waited_s >= self._bounds.claim_wait_s:
                    break
                await asyncio.sleep(pause_s)
                waited_s += pause_s
                pause_s *= 2
        # Our own claim has failed for certain, because appends that share a task run in turn.
        (found,) = await self._pipeline.call([fence_command(keys, task_id, claim)])
        return bool(found)

    async def _put_claim(self, tenant: str, task_id: bytes, claim: bytes, expected: bytes) -> bytes:
        claims = self._keys.claims(tenant, task_id.decode())
        (reply,) = await self._pipeline.call(
            [script_call("claim", [claims], task_id, claim, expected)]
        )
        return bytes(reply)

    def _new_token(self) -> bytes:
        return self._origin + (next(self._numbers) % 2**32).to_bytes(TOKEN_BYTES - ORIGIN_BYTES)


def fence_command(keys: SessionKeys, task_id: bytes, claim: bytes) -> Command:
    """Make the command that voids a session's claim; 1 = the claim counts already."""
    wanted = [keys.tasks, keys.fences]
    return script_call("fence", wanted, task_id, claim[:TOKEN_BYTES], FENCE_KEPT_S)


def _append_command(
    append: Append, names: Keys, tokens: dict[bytes, bytes], owners: dict[bytes, bytes]
) -> Command:
    keys = names.session(append.key)
    change = append.change
    used = [keys.head, keys.changes, keys.requests, keys.counter, keys.log]
    used += [keys.sessions, keys.due, keys.tenants]
    arguments: list[Argument] = [
        number(append.base_revision),
        number(change.revision),
        number(change.time_us),
        head_rest(append),
        optional(append.due_us),
        request_field(change.method, change.request_id, change.actor),
        from_change(change),
        text_bytes(append.key.session_id),
        keys.member,
        b"" if append.begun_us is None else number(append.begun_us),
    ]
    entries = [*((b"put", entry) for entry in append.inbox_put)]
    entries += [(b"drop", entry) for entry in append.inbox_drop]
    if append.tasks or entries:
        used += [keys.tasks, keys.task_order, keys.fences]
    for task in append.tasks:
        task_id = text_bytes(task.task_id)
        token, owner = tokens.get(task_id, _NO_TOKEN), owners.get(task_id, b"")
        arguments += [task_id, token, owner, task_place(task.cursor), from_task(task)]
    for act, entry in entries:
        used += names.queue(append.key, entry.queue)
        arguments += [act, entry_member(entry)]
    return script_call("append", used, *arguments)
