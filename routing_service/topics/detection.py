"""Asks topic detection about a message, with what it needs to know of the conversation.

It keeps the model and the detector of each registry, and turns a session's recent turns into a
question. Rule: a question costs no read of its own, and a failure costs no message: without a
verdict a message is routed as if topics were off. Detectors are never made on the event loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Final, SupportsFloat

import structlog
from msgspec.structs import replace

from routing_service.core.commands import TopicOpinion
from routing_service.core.evolve import OTHER_AGENTS
from routing_service.core.history import HistoryFold, TurnRecord
from routing_service.core.registry import Registry
from routing_service.core.session import SessionState
from routing_service.core.topic_switch import TopicInquiry, topic_targets
from routing_service.core.vocabulary import RouteReason, WhenUnsure
from routing_service.ids import new_uuid7
from routing_service.storage.checked_store import Store
from routing_service.topics.ask_bound import Counts, Prior, ask_bound
from routing_service.topics.calibration import Calibration
from routing_service.topics.detector_pool import (
    THREADS_MAX,
    WAITING_MAX,
    DetectorThreads,
    ThreadsBusy,
    TooLate,
    as_exception,
)
from routing_service.topics.kept_counts import FLUSH_S, KeptCounts, setting_of
from routing_service.topics.topic_detector import (
    RECENT_TURNS_MAX,
    RecentTurn,
    RemoteTopicDetector,
    TopicDetector,
    TopicModel,
    TopicQuestion,
    TopicVerdict,
)

CANDIDATE_SETS_MAX: Final = 1_024
"""Kept sets of candidates. Entitlements and channels come from callers, and few combinations of
them are in use; when there are more, all are forgotten."""

TEXT_CHARACTERS_MAX: Final = 2_000
"""Of any one text in a question. What a message is about stands in its beginning, and the time that
a verdict takes grows with the text."""

FAILURE_LOG_S: Final = 60.0
"""A model that fails does so with every message; one line a minute is enough to be seen. A detector
that could not be made is tried again as often."""

MAKING_S_MAX: Final = 600.0
"""How long the attempt to make a detector is waited for: models load for minutes at most."""

ROUNDING_MAX: Final = 1e-6
"""By how much a probability may be too large, and for each of them their sum more than 1: models
compute in few digits, and the one that ships rounds each to six."""

FAILURE_CAUSES: Final = ("error", "late", "busy", "not_made", "judge")
"""Why a message has no verdict; judge: the judge of unsure messages gave none."""

JUDGE_THREADS_MAX: Final = 16
JUDGE_WAITING_MAX: Final = 64
"""Calls of the judge at a time, and those that wait; the supervisor gets what is more."""

JUDGE_LIMIT_S: Final = 5.0
"""How long a judge may take, unless it says itself: a user waits as long for an answer anyway."""

JUDGED_MAX: Final = 4_096
"""Answers of the judge that are kept: users press send again, and programs repeat."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """What the metrics page shows of topic detection.

    bound: below this sureness the last message was unsure; ask_share, right_wanted: what is wanted,
    one of them. All None where no message was judged for a registry that asks. failures: by cause.
    is_ready: whether the registry in force is judged by all that the model can do; None: topics are
    off.
    """

    bound: float | None
    ask_share: float | None
    right_wanted: float | None
    failures: Mapping[str, int]
    is_ready: bool | None = None


class VerdictUnsound(Exception):
    """A detector's answer that is no verdict; the message says why."""


class TopicJudge:
    """Gives opinions on messages. For one thread, but for prepare()."""

    def __init__(
        self,
        load_model: Callable[[], TopicModel],
        clock_s: Callable[[], float] = time.monotonic,
        limit_s: float | None = None,
        *,
        threads_max: int = THREADS_MAX,
        waiting_max: int = WAITING_MAX,
        failure_log_s: float = FAILURE_LOG_S,
        load_judge: Callable[[], TopicModel] | None = None,
    ) -> None:
        """Load the model when a registry first wants one. clock_s: for the log's sake alone.

        limit_s: how long a verdict may take; it is then made in a worker thread, and validated.
        None: it is made at once, as by the model that ships. threads_max, waiting_max: calls of
        detectors at a time, and those that wait. failure_log_s: between two log lines of one cause,
        and between two attempts to make a detector. load_judge: loads what judges unsure messages
        where a registry says when_unsure: judge.
        """
        self._load_model = load_model
        self._clock_s = clock_s
        self._limit_s = limit_s
        self._failure_log_s = failure_log_s
        self._threads = DetectorThreads(threads_max=threads_max, waiting_max=waiting_max)
        self._model: TopicModel | None = None
        # By the registry's id: those in force(), and those that were made since. Not for as long as
        # anybody has the registry: a detector may have it itself.
        self._detectors: dict[int, tuple[Registry, TopicDetector]] = {}
        self._in_force: tuple[Registry, ...] = ()
        self._keeping = threading.Lock()
        self._candidates: dict[tuple[str, tuple[str, ...], str], frozenset[str]] = {}
        self._candidates_of: Registry | None = None
        # By cause: one that comes with every message would hide another one.
        self._failed_s: dict[str, float] = {}
        self._failed_since: dict[str, int] = {}
        # Why a registry has no detector: the last attempt's.
        self._unmade: tuple[Registry, Exception] | None = None
        self._making: asyncio.Task[None] | None = None
        self._counts = KeptCounts()
        self._load_judge = load_judge
        self._judge_threads = DetectorThreads(
            threads_max=JUDGE_THREADS_MAX, waiting_max=JUDGE_WAITING_MAX
        )
        self._judge_model: TopicModel | None = None
        self._judges: dict[int, TopicDetector] = {}
        self._judged: OrderedDict[tuple[object, ...], TopicVerdict] = OrderedDict()
        # The bound of the last judged message, and its registry.
        self._bound: tuple[Registry, float] | None = None
        # The setting with the counts of a registry and a model: a fallback's sureness is another.
        self._names: dict[tuple[int, str], str] = {}
        self._made_s: float | None = None
        self._failures = dict.fromkeys(FAILURE_CAUSES, 0)

    @property
    def figures(self) -> TopicFigures:
        """What the metrics page shows."""
        topics = self._bound[0].topics if self._bound is not None else None
        wants_right = topics is not None and topics.right_wanted is not None
        return TopicFigures(
            bound=None if self._bound is None else self._bound[1],
            ask_share=None if topics is None or wants_right else topics.ask_share,
            right_wanted=None if topics is None else topics.right_wanted,
            failures=dict(self._failures),
            is_ready=self._is_ready(),
        )

    def keep_in(self, store: Store) -> None:
        """Keep the counts that bounds follow in a store, from now on."""
        self._counts = KeptCounts(store)

    async def run(self) -> None:
        """Write the counts at an interval, and when this is cancelled."""
        try:
            while True:
                await asyncio.sleep(FLUSH_S)
                await self._counts.flush()
        finally:
            await self._counts.flush()

    def prepare(self, registry: Registry) -> None:
        """Make what a registry needs before its first message comes: it may take a while.

        Safe beside opinion() from another thread, which has the detectors of other registries all
        the while. Does nothing where the registry has topics off. A model that cannot be made is
        logged, and keeps nobody from serving.
        """
        if not registry.topics.is_on or self._known(registry) is not None:
            return
        try:
            self._make(registry)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - as in judge()
            self._note_unmade(registry, as_exception(error))

    def _is_ready(self) -> bool | None:
        """Tell whether the registry in force has its detector, with all its vectors.

        A detector with vectors judges by words until they are computed. None: topics are off.
        """
        if not self._in_force or not self._in_force[0].topics.is_on:
            return None
        detector = self._known(self._in_force[0])
        return detector is not None and getattr(detector, "is_ready", True) is True

    def in_force(self, registry: Registry) -> None:
        """Forget what was made of other registries, such as one that was only tried out.

        The one that was in force before stays too: decisions under way have it still.
        """
        with self._keeping:
            if not self._in_force or self._in_force[0] is not registry:
                self._in_force = (registry, *self._in_force[:1])
            kept = {id(each) for each in self._in_force}
            self._names = {key: name for key, name in self._names.items() if key[0] in kept}
            self._judges = {key: judge for key, judge in self._judges.items() if key in kept}
            self._judged.clear()
            self._detectors = {key: had for key, had in self._detectors.items() if key in kept}
        if self._unmade is not None and self._unmade[0] is not registry:
            self._unmade = None

    async def close(self) -> None:
        """Let go of the threads and of an attempt under way; wait for no detector."""
        self._threads.close()
        self._judge_threads.close()
        if self._making is not None:
            self._making.cancel()
            await asyncio.wait([self._making])
        close = getattr(self._model, "close", None)
        if close is not None and iscoroutinefunction(close):
            await close()

    async def opinion(  # noqa: PLR0917 - the session, and whose it is
        self,
        registry: Registry,
        asked: TopicInquiry,
        text: str,
        state: SessionState | None,
        fold: HistoryFold | None,
        tenant: str = "",
    ) -> TopicOpinion | None:
        """Return the model's opinion of a message; None where there is nothing to ask.

        fold: the session's latest turns; None = there are none. tenant: whose messages the bound
        follows. A detector that fails, or is late, has an opinion that is_missing.
        """
        question = self._question(registry, asked, text, state, fold)
        if question is None:
            return None
        detector = self._known(registry)
        if detector is None:
            self._make_beside(registry)
            return self._missing("not_made", self._unmade_by(registry))
        remote = detector if isinstance(detector, RemoteTopicDetector) else None
        try:
            # A bundled model that would hold the loop for too long names its own limit.
            limit_s = self._limit_s or getattr(self._model, "limit_s", None)
            if remote is not None:
                verdict = _sound(await remote.judge_remotely(question), question)
            elif limit_s is None:
                verdict = detector.judge(question)
            else:
                judge = detector.judge if self._limit_s is None else _sound_by(detector)
                verdict = await self._threads.call(partial(judge, question), limit_s)
        except TooLate:
            failed = self._missing("late")
        except ThreadsBusy:
            failed = self._missing("busy")
        except Exception as error:  # noqa: BLE001 - a model's bug must not end a chat
            failed = self._missing("error", error)
        else:
            opinion = await self._asking(registry, verdict, detector, self._version, tenant)
            return await self._by_judge(registry, asked, question, opinion)
        if remote is None or remote.fallback is None:
            return failed
        try:
            verdict = remote.fallback.judge(question)
        except Exception as error:  # noqa: BLE001 - as above
            return self._missing("error", error)
        version = remote.fallback_version
        verdict = replace(verdict, model=version)
        opinion = await self._asking(registry, verdict, remote.fallback, version, tenant)
        return await self._by_judge(registry, asked, question, opinion)

    def judge(
        self,
        registry: Registry,
        asked: TopicInquiry,
        text: str,
        state: SessionState | None,
        fold: HistoryFold | None,
    ) -> TopicOpinion | None:
        """Return the same beside no event loop, however long it takes; None where it fails."""
        question = self._question(registry, asked, text, state, fold)
        if question is None:
            return None
        try:
            detector = self._known(registry) or self._make(registry)
            return self._opinion(registry, _sound(detector.judge(question), question), 0.0)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - as in opinion()
            self._note_failure("error", as_exception(error))
            return None

    async def _asking(
        self,
        registry: Registry,
        verdict: TopicVerdict,
        detector: TopicDetector,
        version: str,
        tenant: str,
    ) -> TopicOpinion:
        """Return the opinion with the bound in force, and count it for the next one."""
        topics = registry.topics
        if not topics.asks_when_unsure:
            return self._opinion(registry, verdict, 0.0)
        name = self._names.get((id(registry), version))
        if name is None:
            name = self._names[id(registry), version] = setting_of(registry, version)
        # Of the messages before this one: a message does not move its own bound.
        counts = self._counts.known(tenant, name) or await self._counts.read(tenant, name)
        bound = self._bound_of(counts, detector, registry)
        opinion = self._opinion(registry, verdict, bound)
        self._counts.note(tenant, name, opinion.sureness, _likeliest(opinion))
        return opinion

    async def _by_judge(
        self,
        registry: Registry,
        asked: TopicInquiry,
        question: TopicQuestion,
        opinion: TopicOpinion,
    ) -> TopicOpinion:
        """Return the judge's opinion of an unsure message; the same one where it has none."""
        is_for_judge = registry.topics.when_unsure is WhenUnsure.JUDGE and opinion.is_unsure
        if self._load_judge is None or not is_for_judge or asked.is_turn_open:
            return opinion
        answer = question.recent[-1].agent_text if question.recent else ""
        candidates = frozenset(question.candidate_ids)
        key = (id(registry), question.text, answer, question.active_agent_id, candidates)
        verdict = self._judged.get(key)
        if verdict is None:
            try:
                judging = partial(self._judge_now, registry, question)
                # The judge has the same limit of its own; this one holds for any.
                limit_s = getattr(self._judge_model, "limit_s", None) or JUDGE_LIMIT_S
                verdict = await self._judge_threads.call(judging, limit_s)
            except Exception as error:  # noqa: BLE001 - the supervisor gets the message
                self._note_failure("judge", error)
                return opinion
            self._judged[key] = verdict
            if len(self._judged) > JUDGED_MAX:
                self._judged.popitem(last=False)
        return TopicOpinion(
            tuple(verdict.ranked),
            verdict.stay,
            verdict.model or (self._judge_model.version if self._judge_model else ""),
            new_uuid7(),
            sureness=1.0,
            bound=opinion.bound,
        )

    def _judge_now(self, registry: Registry, question: TopicQuestion) -> TopicVerdict:
        """Ask the judge, in a thread."""
        assert self._load_judge is not None
        if self._judge_model is None:
            self._judge_model = self._load_judge()
        judge = self._judges.get(id(registry))
        if judge is None:
            judge = self._judges[id(registry)] = self._judge_model.for_registry(registry)
        return _sound(judge.judge(question), question)

    def _bound_of(self, counts: Counts, detector: TopicDetector, registry: Registry) -> float:
        topics = registry.topics
        bound = ask_bound(
            counts,
            Prior.of(detector),
            ask_share=topics.ask_share,
            right_wanted=topics.right_wanted,
        )
        self._bound = registry, bound
        return bound

    def _opinion(self, registry: Registry, verdict: TopicVerdict, bound: float) -> TopicOpinion:
        topics = registry.topics
        verdict = Calibration(topics.temperature, topics.stay_offset).applied(verdict)
        return TopicOpinion(
            tuple(verdict.ranked),
            verdict.stay,
            verdict.model or self._version,
            new_uuid7(),
            sureness=verdict.how_sure(),
            bound=bound,
            second_request=verdict.second_request,
        )

    @property
    def _version(self) -> str:
        return self._model.version if self._model is not None else ""

    def _question(
        self,
        registry: Registry,
        asked: TopicInquiry,
        text: str,
        state: SessionState | None,
        fold: HistoryFold | None,
    ) -> TopicQuestion | None:
        candidates = self._candidates_for(registry, asked)
        if not candidates:
            return None
        records = fold.records if fold is not None else []
        if asked.task_id is not None:
            records = [record for record in records if record.task_id == asked.task_id]
            state = None  # It counts the turns of all tasks.
        return TopicQuestion(
            text=text[:TEXT_CHARACTERS_MAX],
            locale=asked.locale or registry.default_locale,
            active_agent_id=asked.active_agent_id,
            is_locked=asked.is_locked,
            is_turn_open=asked.is_turn_open,
            recent=recent_turns(records),
            earlier_agent_ids=earlier_agents(registry, asked.active_agent_id, state, records),
            candidate_ids=candidates,
        )

    def _known(self, registry: Registry) -> TopicDetector | None:
        found = self._detectors.get(id(registry))
        return found[1] if found is not None else None

    def _note_unmade(self, registry: Registry, error: Exception) -> None:
        self._unmade = registry, error
        self._note_failure("not_made", error)

    def _unmade_by(self, registry: Registry) -> Exception | None:
        unmade = self._unmade
        return unmade[1] if unmade is not None and unmade[0] is registry else None

    def _make(self, registry: Registry) -> TopicDetector:
        if self._model is None:
            self._model = self._load_model()
        detector = self._model.for_registry(registry)
        with self._keeping:
            # One assignment: a reader in another thread sees the one or the other, whole.
            self._detectors = {**self._detectors, id(registry): (registry, detector)}
        return detector

    def _make_beside(self, registry: Registry) -> None:
        """Try once more to make a detector that could not be made, if it is time to."""
        now_s = self._clock_s()
        is_due = self._made_s is None or now_s - self._made_s >= self._failure_log_s
        if is_due and (self._making is None or self._making.done()):
            self._made_s = now_s
            self._making = asyncio.create_task(
                self._prepare_beside(registry), name="topic detector"
            )

    async def _prepare_beside(self, registry: Registry) -> None:
        try:
            await self._threads.call(partial(self.prepare, registry), MAKING_S_MAX)
        except Exception as error:  # noqa: BLE001 - too late, or no thread for it
            self._note_unmade(registry, error)

    def _candidates_for(self, registry: Registry, asked: TopicInquiry) -> frozenset[str]:
        """Return whom this user may be given now, besides the agent they are with."""
        if self._candidates_of is not registry or len(self._candidates) >= CANDIDATE_SETS_MAX:
            self._candidates = {}
            self._candidates_of = registry
        present = asked.active_agent_id or registry.home_agent_id
        key = (asked.channel, asked.entitlements, present)
        found = self._candidates.get(key)
        if found is None:
            targets = topic_targets(registry, asked.channel, asked.entitlements)
            found = self._candidates[key] = frozenset(targets) - {present}
        return found

    def _missing(self, cause: str, error: Exception | None = None) -> TopicOpinion:
        self._note_failure(cause, error)
        return TopicOpinion((), 0.0, self._version, new_uuid7(), is_missing=True)

    def _note_failure(self, cause: str, error: Exception | None) -> None:
        """Log that there is no verdict. cause: error, late, busy, or not_made; each by itself."""
        self._failures[cause] += 1
        now_s = self._clock_s()
        failures = self._failed_since.get(cause, 0) + 1
        logged_s = self._failed_s.get(cause)
        if logged_s is not None and now_s - logged_s < self._failure_log_s:
            self._failed_since[cause] = failures
            return
        self._failed_s[cause], self._failed_since[cause] = now_s, 0
        if cause == "judge":
            # Without a traceback: it may show what was sent, and the key.
            said = f"{type(error).__name__}: {error}"
            _log.warning("topic_judge_failed", failures=failures, error=said)
            return
        _log.error(
            "topic_detection_failed",
            cause=cause,
            topic_model=self._version,
            failures=failures,
            limit_s=self._limit_s,
            exc_info=error,
        )


def recent_turns(records: list[TurnRecord]) -> tuple[RecentTurn, ...]:
    """Return the latest messages and what became of each, oldest first.

    A message that went from one agent to another counts once, with the last of them; so does one
    that a user sent on by accepting a suggestion.
    """
    latest: list[TurnRecord] = []
    seen: set[int] = set()
    for record in reversed(records):
        if not record.has_message or record.message_revision in seen:
            continue
        if latest and _was_sent_on(record, latest[-1]):
            continue
        seen.add(record.message_revision)
        latest.append(record)
        if len(latest) == RECENT_TURNS_MAX:
            break
    return tuple(_recent(record) for record in reversed(latest))


def earlier_agents(
    registry: Registry, active_id: str, state: SessionState | None, records: list[TurnRecord]
) -> tuple[str, ...]:
    """Return who had the conversation before, the last one last.

    Neither the active agent, nor a supervisor: no message is about what it does. state: has the
    agents of older turns; None: those of the records are all.
    """
    counted = state.turns_by_agent if state is not None else {}
    order = dict.fromkeys(agent_id for agent_id in counted if agent_id != OTHER_AGENTS)
    for record in records:
        order.pop(record.agent_id, None)
        order[record.agent_id] = None
    order.pop(active_id, None)
    if not registry.is_swarm:
        order.pop(registry.home_agent_id, None)
    return tuple(order)


def _was_sent_on(record: TurnRecord, next_record: TurnRecord) -> bool:
    return (
        next_record.reason is RouteReason.TOPIC_SWITCH
        and record.user_text == next_record.user_text
        and record.agent_id != next_record.agent_id
    )


def _recent(record: TurnRecord) -> RecentTurn:
    """Return a turn as detectors read it: the same one while it is in memory, with their notes."""
    if not record.heard:
        record.heard.append(
            RecentTurn(
                agent_id=record.agent_id,
                user_text=record.user_text[:TEXT_CHARACTERS_MAX],
                agent_text=record.agent_text[:TEXT_CHARACTERS_MAX],
                outcome=record.outcome.value if record.outcome else "",
            )
        )
    turn: RecentTurn = record.heard[0]
    return turn


def _likeliest(opinion: TopicOpinion) -> float:
    """Return the probability of an opinion's likeliest option."""
    ranked = [share for _, share in opinion.ranked]
    return max(*ranked, opinion.stay, 1.0 - opinion.stay - sum(ranked), 0.0)


def _sound_by(detector: TopicDetector) -> Callable[[TopicQuestion], TopicVerdict]:
    """Return what asks a detector of others, and returns its verdict in plain numbers."""
    return lambda question: _sound(detector.judge(question), question)


def _sound(verdict: object, question: TopicQuestion) -> TopicVerdict:
    """Return a verdict in plain numbers. Raises VerdictUnsound."""
    if not isinstance(verdict, TopicVerdict):
        raise VerdictUnsound(f"a {type(verdict).__name__} is no TopicVerdict")
    stay = _probability(verdict.stay)
    ranked: dict[str, float] = {}
    before = 1.0
    # Read once: it may be a generator.
    pairs: Any = verdict.ranked
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2):  # noqa: PLR2004 - a pair
            raise VerdictUnsound("ranked has something else than pairs of an id and a probability")
        agent_id, probability = pair[0], _probability(pair[1])
        if agent_id not in question.candidate_ids:
            raise VerdictUnsound(f"{agent_id!r} is ranked, and no candidate")
        if agent_id in ranked:
            raise VerdictUnsound(f"{agent_id!r} is ranked twice")
        if probability > before:
            raise VerdictUnsound(f"{agent_id!r} is not in order: the best comes first")
        ranked[agent_id] = before = probability
    total = stay + sum(ranked.values())
    if total > 1 + ROUNDING_MAX * (1 + len(ranked)):
        raise VerdictUnsound(f"the probabilities with stay are {total:.7g} together, more than 1")
    sureness = None if verdict.sureness is None else _probability(verdict.sureness)
    second = verdict.second_request
    if second and second not in question.candidate_ids:
        raise VerdictUnsound(f"{second!r} is the second request, and no candidate")
    return TopicVerdict(tuple(ranked.items()), stay, sureness, second, str(verdict.model))


def _probability(value: object) -> float:
    """Return a number of any kind as Python's own. Raises VerdictUnsound where it is none."""
    if isinstance(value, SupportsFloat):
        with suppress(TypeError, ValueError, OverflowError):
            number = float(value)
            # A model computes with fewer digits, and may end a little above 1.
            if 0 <= number <= 1 + ROUNDING_MAX:
                return min(number, 1.0)
    raise VerdictUnsound(f"{value!r} is no probability")
