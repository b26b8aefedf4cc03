"""Plausible bugs, each with the fastest test that finds it.

Owns the bugs, how each is put into a running process, and the proof that the suite finds them. A
bug that its test does not find is a hole in the suite, and fails ``test_planted_bugs.py``; a bug
that no longer fits the code cannot be planted, and fails as well.

.venv/bin/python -m tests.torture.planted_bugs            # all of them, with their times
    .venv/bin/python -m tests.torture.planted_bugs no_sync    # one, with what its test says

The processes that a test starts have the bug too: they find it in TORTURE_BUG (spoilt_server.py).
"""

from __future__ import annotations

import copy
import gc
import importlib
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import force_setattr, replace

from routing_service.auth import no_sign_in
from routing_service.core import events as ev
from routing_service.core import evolve, handoff_rules, ownership, session, topic_switch
from routing_service.core.refusals import HandoffRefused
from routing_service.core.vocabulary import HandoffMode
from routing_service.sessions import (
    appends,
    calls,
    command_handler,
    dispatch_history,
    event_feed,
    refusals,
    session_cache,
)
from routing_service.storage import memory_store
from routing_service.storage.sqlite import connection as sqlite_connection
from routing_service.storage.sqlite import file_lock
from routing_service.storage.sqlite import store as sqlite_store
from routing_service.storage.sqlite import writer as sqlite_writer
from routing_service.storage.store import RevisionConflict

CommandHandler: Final = command_handler.CommandHandler
SessionCache: Final = session_cache.SessionCache
GroupWriter: Final = sqlite_writer.GroupWriter
SqliteStore: Final = sqlite_store.SqliteStore

ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Bug:
    """One bug. test: the test that finds it. is_quick: that test takes less than a second."""

    name: str
    what: str
    plant: Callable[[], None]
    test: str
    is_quick: bool


BUGS: dict[str, Bug] = {}


def bug(test: str, *, is_quick: bool = True) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a function that plants the bug it is named for."""

    def listed(plant_it: Callable[[], None]) -> Callable[[], None]:
        name = plant_it.__name__
        BUGS[name] = Bug(name, plant_it.__doc__ or "", plant_it, test, is_quick)
        return plant_it

    return listed


def plant(name: str) -> None:
    """Plant a bug in this process. Raises KeyError for an unknown one."""
    BUGS[name].plant()


def put(owner: Any, name: str, made: Callable[[Any], Any]) -> None:
    """Replace an attribute by made(attribute). Raises AttributeError if it does not exist."""
    setattr(owner, name, made(getattr(owner, name)))


# --- what is on disk when it is acknowledged ---


@bug(
    "tests/torture/test_unsynced_writes.py::test_acknowledged_writes_survive_a_power_failure",
    is_quick=False,
)
def no_sync() -> None:
    """PRAGMA synchronous = OFF: a commit returns before the disk has it."""

    def made(set_up: Any) -> Any:
        def without_sync(connection: Any, *rest: Any) -> None:
            set_up(connection, *rest)
            connection.execute("PRAGMA synchronous = OFF")

        return without_sync

    put(sqlite_connection, "_set_up_writer", made)


@bug("tests/torture/test_failpoints.py::test_nothing_is_told_of_a_write_before_its_commit")
def acknowledged_before_commit() -> None:
    """Callers are answered when their write is queued, not when it is committed."""

    def made(write_group: Any) -> Any:
        async def too_soon(self: Any, group: Any) -> None:
            for waiting in group:
                if waiting.write.append is not None:
                    sqlite_writer._settle(waiting, None)
            await write_group(self, group)

        return too_soon

    put(GroupWriter, "_write_group", made)


@bug("tests/torture/test_failpoints.py::test_nothing_is_told_of_a_write_before_its_commit")
def published_before_commit() -> None:
    """Watchers get a change while it may still fail."""

    def made(append: Any) -> Any:
        async def publish_first(self: Any, written: Any) -> None:
            for feed in FEEDS:
                feed.publish(written.key, written.change)
            await append(self, written)

        return publish_first

    _keep_feeds()
    put(SqliteStore, "append", made)


FEEDS: list[Any] = []


def _keep_feeds() -> None:
    def made(init: Any) -> Any:
        def kept(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            FEEDS.append(self)

        return kept

    put(event_feed.EventFeed, "__init__", made)


@bug("tests/unit/storage/sqlite/test_file.py::test_second_store_in_this_process_is_refused")
def no_lock_file() -> None:
    """Two processes may write one file."""
    put(file_lock, "_lock", lambda _: lambda _descriptor: None)


@bug(
    "tests/unit/storage/sqlite/test_group_commit.py::test_group_is_written_in_the_order_of_its_keys"
)
def unsorted_group() -> None:
    """A group is written in call order; two groups in different orders can deadlock."""

    def made(take_group: Any) -> Any:
        def as_it_came(self: Any) -> Any:
            came = {id(waiting): place for place, waiting in enumerate(self._waiting)}
            return sorted(take_group(self), key=lambda waiting: came[id(waiting)])

        return as_it_came

    put(GroupWriter, "_take_group", made)


@bug("tests/conformance/test_concurrency.py::test_conflicts_are_their_own_affair[sqlite]")
def conflict_fails_the_group() -> None:
    """One write's conflict fails the whole group."""

    def made(run: Any) -> Any:
        def all_or_none(connection: Any, writes: Any) -> Any:
            outcomes = run(connection, writes)
            for outcome in outcomes:
                if isinstance(outcome, RevisionConflict):
                    return [outcome] * len(outcomes)
            return outcomes

        return all_or_none

    put(sqlite_writer, "_run_together", made)


# --- once ---


@bug("tests/rpc/test_repeats.py::test_repeated_message_gets_the_first_answer")
def request_id_not_stored() -> None:
    """The change is stored without its request id, so it cannot be repeated."""

    def made(append: Any) -> Any:
        async def without_id(self: Any, written: Any) -> None:
            change = _replaced(written.change, request_id="")
            await append(self, _replaced(written, change=change))

        return without_id

    put(SqliteStore, "append", made)


@bug("tests/rpc/test_repeats.py::test_handoff_or_clear_with_other_content_is_refused")
def fingerprint_not_compared() -> None:
    """Another request with a known id gets that request's answer."""

    def made(replay: Any) -> Any:
        async def whatever(self: Any, hot: Any, call: Any, change: Any) -> Any:
            return await replay(self, hot, replace(call, fingerprint=change.fingerprint), change)

        return whatever

    put(CommandHandler, "_replay", made)


@bug("tests/rpc/test_session_owner.py::test_repeat_by_another_user_does_not_get_the_answer")
def owner_not_checked_before_a_repeat() -> None:
    """Every caller that knows a request id gets its answer."""
    put(command_handler, "refused", lambda _: lambda *_args: None)


@bug("tests/rpc/test_repeats.py::test_refused_request_is_not_used_up")
def refusal_uses_the_id_up() -> None:
    """After a refusal the request id cannot be used again."""

    def made(attempt: Any) -> Any:
        refused = set()

        async def once(self: Any, hot: Any, call: Any, *rest: Any) -> Any:
            request = (call.key, call.method, call.request_id, call.actor)
            if request in refused:
                raise refusals.reused(call)
            try:
                return await attempt(self, hot, call, *rest)
            except HandoffRefused:
                refused.add(request)
                raise

        return once

    put(CommandHandler, "_attempt", made)


@bug("tests/rpc/test_repeats.py::test_repeats_after_a_restart_get_the_first_answers")
def answer_made_anew() -> None:
    """A repeat gets a new answer instead of the stored one."""

    def made(replay: Any) -> Any:
        async def anew(self: Any, *args: Any) -> Any:
            handled = await replay(self, *args)
            return replace(handled, answer=calls.Answer(b""))

        return anew

    put(CommandHandler, "_replay", made)


# --- several writers, and a memory that may be wrong ---


@bug("tests/rpc/test_sticky_agents.py::test_refusal_is_never_decided_on_an_old_state")
def stale_cache_trusted() -> None:
    """Calls that append nothing are answered from memory, although others may write."""

    async def trusting(_self: Any, _key: Any, _state: Any) -> None:
        return

    put(SessionCache, "confirm", lambda _: trusting)


@bug("tests/rpc/test_sticky_agents.py::test_active_agent_is_the_same_from_every_instance")
def status_from_memory() -> None:
    """Status shows this replica's cache."""

    def made(_current: Any) -> Any:
        async def remembered(self: Any, key: Any, hot: Any) -> Any:
            return await self.loaded(key, hot)

        return remembered

    put(SessionCache, "current", made)


@bug("tests/rpc/test_sticky_agents.py::test_active_agent_is_the_same_from_every_instance")
def conflict_not_retried() -> None:
    """The caller gets a conflict with another replica."""
    put(command_handler, "CONFLICT_ATTEMPTS_MAX", lambda _: 1)

    def made(attempt: Any) -> Any:
        async def once(self: Any, hot: Any, call: Any, *rest: Any) -> Any:
            try:
                return await attempt(self, hot, call, *rest)
            except RevisionConflict as conflict:
                raise refusals.revision_mismatch(
                    call.key.session_id, conflict.base_revision, conflict.actual_revision
                ) from conflict

        return once

    put(CommandHandler, "_attempt", made)


@bug("tests/conformance/test_concurrency.py::test_one_base_has_one_winner[memory]")
def revision_not_compared() -> None:
    """The store accepts every append: the last one wins."""

    def made(append: Any) -> Any:
        async def overwrites(self: Any, written: Any) -> None:
            try:
                await append(self, written)
            except RevisionConflict as conflict:
                change = _replaced(written.change, revision=conflict.actual_revision + 1)
                await append(
                    self,
                    _replaced(written, base_revision=conflict.actual_revision, change=change),
                )

        return overwrites

    put(memory_store.MemoryStore, "append", made)


@bug(
    "tests/torture/test_store_faults.py::"
    "test_next_message_after_a_fault_is_decided_on_what_is_stored"
)
def cache_kept_after_a_failed_append() -> None:
    """A write without an answer is treated as not done."""
    put(session_cache.HotSession, "forget", lambda _: lambda _self: None)


@bug(
    "tests/rpc/test_expected_revisions.py::test_call_on_another_session_than_it_expects_is_aborted"
)
def expected_revision_ignored() -> None:
    """The caller's expected revision is not compared."""
    put(command_handler, "check_revision", lambda _: lambda _call, _state: None)


@bug("tests/rpc/test_session_owner.py::test_one_session_id_in_two_tenants_is_two_sessions")
def tenants_share_sessions() -> None:
    """The session's key does not contain the tenant."""
    put(no_sign_in, "named_tenant", lambda _: lambda _metadata: "default")


# --- what is remembered of a session ---


@bug("tests/rpc/test_sticky_agents.py::test_sticky_agent_survives_restart")
def lock_lost_on_restart() -> None:
    """The stored state loses the open question."""

    def made(encode_state: Any) -> Any:
        def unlocked(state: Any, *chain: Any) -> bytes:
            if state.active is not None and state.active.locked:
                state = replace(state, active=replace(state.active, locked=False))
            return bytes(encode_state(state, *chain))

        return unlocked

    put(appends, "encode_state", made)


@bug("tests/rpc/test_histories.py::test_as_many_turns_go_along_as_are_asked_for")
def history_off_by_one() -> None:
    """A message has one past turn fewer than requested."""
    put(
        dispatch_history,
        "history_count",
        lambda count: lambda call, *, locked: max(count(call, locked=locked) - 1, 0),
    )


@bug("tests/rpc/test_watch_session.py::test_watch_from_any_revision_sends_each_later_change_once")
def watch_repeats_a_change() -> None:
    """A resumed watch gets the last change again."""

    def made(after: Any) -> Any:
        return lambda self, revision: after(self, max(revision - 1, 0))

    put(event_feed._Topic, "after", made)

    def made_read(read_changes: Any) -> Any:
        async def earlier(self: Any, key: Any, *, after: int = 0, **how: Any) -> Any:
            return await read_changes(self, key, after=max(after - 1, 0), **how)

        return earlier

    put(SqliteStore, "read_changes", made_read)


# --- decisions ---


@bug("tests/rpc/test_conversation_lock.py::test_lock_ends_at_its_timeout")
def expiry_ignored() -> None:
    """Locks and idle agents never time out."""
    put(ownership, "expire_ownership", lambda _: lambda _draft: False)
    for module in (m for m in list(sys.modules.values()) if hasattr(m, "expire_ownership")):
        module.expire_ownership = ownership.expire_ownership  # type: ignore[attr-defined]


@bug("tests/unit/core/test_interludes.py::test_transfer_empties_the_stack")
def two_agents_hold_the_session() -> None:
    """A transfer leaves the replaced agent on the stack, so that it returns."""

    def made(with_new_owner: Any) -> Any:
        def kept(state: Any, event: Any) -> Any:
            after = with_new_owner(state, event)
            is_transfer = event.mode is HandoffMode.TRANSFER
            if is_transfer and state.active is not None and after.active is not None:
                after = replace(after, stack=(*state.stack, state.active))
            return after

        return kept

    put(evolve, "_with_new_owner", made)


@bug("tests/rpc/test_handoff_limits.py::test_message_is_handed_on_only_so_often")
def hop_limit_off_by_one() -> None:
    """A message may have one handoff more than the registry allows."""

    def made(rules: Any) -> Any:
        def one_more(attempt: Any) -> str:
            if attempt.turn is not None and attempt.turn.hops:
                turn = replace(attempt.turn, hops=attempt.turn.hops - 1)
                attempt = _replaced(attempt, turn=turn)
            return str(handoff_rules._hop_limit(attempt))

        return tuple(
            _replaced(rule, refuses=one_more) if rule.name == "hop_limit" else rule
            for rule in rules
        )

    put(handoff_rules, "HANDOFF_RULES", made)


@bug("tests/rpc/test_handoffs.py::test_doubled_handoff_is_refused")
def stale_handoff_taken() -> None:
    """The caller of a handoff is not compared with the active agent."""
    put(
        handoff_rules,
        "HANDOFF_RULES",
        lambda rules: tuple(rule for rule in rules if rule.name != "from_agent"),
    )


@bug("tests/unit/core/test_complete_turn.py::test_late_answer_is_kept_and_moves_nothing")
def late_answer_moves_the_session() -> None:
    """An answer to an overtaken message still moves the conversation."""
    put(session.SessionState, "is_live", lambda _: lambda _self, _turn: True)


@bug("tests/rpc/test_user_commands.py::test_reset_cancels_the_task_and_empties_lock_and_stack")
def task_left_open_by_reset() -> None:
    """/reset does not cancel the task."""

    def made(evolve_task: Any) -> Any:
        def not_cancelled(state: Any, event: Any) -> Any:
            return state if isinstance(event, ev.TaskCancelled) else evolve_task(state, event)

        return not_cancelled

    put(evolve, "evolve_task", made)


@bug("tests/unit/core/test_topics.py::test_agent_that_owns_the_session_keeps_its_user")
def topic_takes_an_owners_user() -> None:
    """A topic switches the user in the middle of a lesson."""
    put(topic_switch, "session_owner", lambda _owner: lambda _state, _registry: "")
    rules = tuple(rule for rule in handoff_rules.HANDOFF_RULES if rule.name != "owns_session")
    put(handoff_rules, "HANDOFF_RULES", lambda _rules: rules)


@bug("tests/unit/core/test_topics.py::test_switch_ends_an_ordinary_lock_only_over_lock_threshold")
def topic_ignores_locks() -> None:
    """The general threshold counts while an agent waits for an answer, too."""

    def made(_threshold: Any) -> Any:
        return lambda registry, target, **_locked: registry.topics.threshold_to(target)

    put(topic_switch, "_threshold", made)


@bug(
    "tests/unit/core/test_topics.py::test_nothing_is_suggested_that_would_be_refused_when_it_is_accepted"
)
def offer_judged_too_early() -> None:
    """An offer is judged by the state before its message's task begins."""

    def made(attempt: Any) -> Any:
        def before_it(draft: Any, target: Any, **asked: Any) -> Any:
            return attempt(draft, target, **{**asked, "mid_task": False})

        return before_it

    put(topic_switch, "attempt_by_topic", made)
    put(topic_switch, "session_owner", lambda _owner: lambda _state, _registry: "")


@bug(
    "tests/unit/core/test_topics.py::test_suggestion_is_gone_with_any_change_of_ownership[handoff]"
)
def suggestion_outlives_a_handoff() -> None:
    """An old button moves the user back."""

    def made(with_new_owner: Any) -> Any:
        def keeping(state: Any, event: Any) -> Any:
            return replace(with_new_owner(state, event), suggestion=state.suggestion)

        return keeping

    put(evolve, "_with_new_owner", made)


@bug("tests/unit/core/test_topics.py::test_declined_suggestion_rests_for_some_messages")
def declined_agent_is_offered_again() -> None:
    """A user who declined gets the same offer with the next message."""

    def made(answer: Any) -> Any:
        def without_rest(state: Any, event: Any) -> Any:
            return replace(answer(state, event), rests=())

        return without_rest

    put(evolve, "evolve_suggestion", made)


@bug("tests/unit/core/test_topics.py::test_whoever_asked_for_the_home_agent_gets_it[/supervisor]")
def topic_takes_who_asked_for_home() -> None:
    """After /supervisor the next message goes back to the agent that the user left."""
    put(ownership, "_topics_count", lambda _count: lambda _draft: False)


def _replaced(value: Any, **changes: Any) -> Any:
    """Copy a frozen value with changes, without its checks: the bug is on purpose."""
    made = copy.copy(value)
    put_field = force_setattr if isinstance(value, msgspec.Struct) else object.__setattr__
    for name, changed in changes.items():
        put_field(made, name, changed)
    return made


# --- the proof ---


@dataclass(frozen=True, slots=True)
class Hunt:
    """The result for one bug. said: the output of its test."""

    bug: Bug
    exit_code: int
    seconds: float
    said: str

    @property
    def is_found(self) -> bool:
        """Whether the test ran and failed; a test that could not run has found nothing."""
        return self.exit_code == TESTS_FAILED

    @property
    def is_skipped(self) -> bool:
        """Whether this machine lacks what the test needs, as the test reports."""
        return self.exit_code == 0 and "1 skipped" in self.said and " passed" not in self.said


TESTS_FAILED: Final = 1
"""pytest's exit code for tests that ran and failed."""

NOT_PLANTED: Final = 90

TABLE: Final = "--table"
"""Print what the tests said of those bugs alone that were missed."""

CONTROL: Final = Bug(
    "nothing_wrong",
    "Nothing at all: a hunt for this one has to miss.",
    lambda: None,
    "tests/unit/core/test_interludes.py::test_transfer_empties_the_stack",
    is_quick=True,
)

PYTEST_OPTIONS: Final = (
    "-q",
    "-x",
    "--tb=short",
    "--show-capture=no",
    "-pno:cacheprovider",
    "-pno:xdist",
    # Plugins are imported before the forks; their assertions are less detailed, which is fine.
    "-Wignore::pytest.PytestAssertRewriteWarning",
)

IMPORTED_ONCE: Final = (
    "pytest",
    "pytest_asyncio.plugin",
    "pytest_timeout",
    "hypothesis.extra.pytestplugin",
    "hypothesis.stateful",
    "tests.engines.fixtures",
    "tests.rpc.live_service",
    "tests.torture.stored_sessions",
)
"""What every test needs, and takes longer to import than the test takes."""


def hunt(bugs: Iterable[Bug]) -> list[Hunt]:
    """Plant each bug in a process of its own and run its test there.

    The processes are forked from this one, which has imported what they need: a bug takes a
    fraction of a second instead of two.
    """
    for name in IMPORTED_ONCE:
        importlib.import_module(name)
    # Otherwise each process would scan all imported objects, and so copy them.
    gc.collect()
    gc.freeze()
    hunts = []
    for each in bugs:
        begun_s = time.monotonic()
        with tempfile.TemporaryFile() as said:
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                _run_planted(each, said.fileno())
            _, status = os.waitpid(pid, 0)
            said.seek(0)
            text = said.read().decode("utf-8", "replace")
        code = os.waitstatus_to_exitcode(status)
        hunts.append(Hunt(each, code, time.monotonic() - begun_s, text))
    return hunts


def _run_planted(planted: Bug, said: int) -> None:
    """Run one bug's test in this process; never returns."""
    code = NOT_PLANTED
    try:
        os.dup2(said, 1)
        os.dup2(said, 2)
        os.chdir(ROOT)
        os.environ["TORTURE_BUG"] = planted.name
        planted.plant()
        import pytest  # noqa: PLC0415

        code = int(pytest.main([*PYTEST_OPTIONS, planted.test]))
    except BaseException:  # noqa: BLE001 - whatever it was, this process ends below
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def main(names: list[str]) -> int:
    """Hunt for bugs and print the table; return 1 if one was not found."""
    is_told = bool(names) and TABLE not in names
    wanted = [name for name in names if name != TABLE] or list(BUGS)
    hunts = hunt((BUGS | {CONTROL.name: CONTROL})[name] for name in wanted)
    for each in hunts:
        verdict = f"MISSED (exit code {each.exit_code})"
        if each.is_found or each.is_skipped:
            verdict = "found" if each.is_found else "skipped"
        print(f"{each.bug.name:34} {each.seconds:5.1f} s  {verdict}  {each.bug.test}")  # noqa: T201
        if is_told or "MISSED" in verdict:
            print(each.said)  # noqa: T201
    return int(not all(each.is_found or each.is_skipped for each in hunts))


if __name__ == "__main__":
    # Use the module that spoilt_server.py and the tests import, not a second copy of it.
    from tests.torture import planted_bugs

    sys.exit(planted_bugs.main(sys.argv[1:]))
