"""Custom topic detectors on a real server: chosen by a setting, and never blocking a message."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest
from structlog.testing import capture_logs

from agent_routing_topics.default_model import load_word_model
from routing_service.core.registry import Registry
from routing_service.examples import EXAMPLES
from routing_service.registry.file import RegistryFileError, load_registry
from routing_service.server import parts
from routing_service.server.bounds import Bounds
from routing_service.server.parts import Counts
from routing_service.settings.rules import SettingsInvalid
from routing_service.settings.settings import Settings
from routing_service.topics import detector_plugin
from routing_service.topics.detection import FAILURE_LOG_S, TopicJudge, _sound
from routing_service.topics.detector_pool import DetectorThreads
from routing_service.topics.topic_detector import TopicDetector, TopicQuestion, TopicVerdict
from tests.rpc.live_service import serving, went
from tests.rpc.test_topics import desk
from tests.scripted_topics import ScriptedDetector

HERE = __name__


@dataclass
class Scene:
    """How this module's detectors behave: set by each test."""

    judge: Callable[[TopicQuestion], object] = ScriptedDetector().judge
    make: Callable[[Registry], None] = lambda _: None
    threads: list[str] = field(default_factory=list)


SCENE = Scene()


class Model:
    """A detector that behaves as the scene says."""

    version = "scene-1"

    def for_registry(self, registry: Registry) -> TopicDetector:
        """Take in a registry."""
        SCENE.make(registry)
        return self

    def judge(self, question: TopicQuestion) -> TopicVerdict:
        """Judge as the scene has it."""
        SCENE.threads.append(threading.current_thread().name)
        return SCENE.judge(question)  # type: ignore[return-value]


IMPATIENT = Bounds(detector_failure_log_s=0.0)
"""Each failure is logged, and a detector that could not be made is tried again at once."""


@pytest.fixture
def log_lines():
    """The log lines of the test."""
    with capture_logs() as lines:
        yield lines


@pytest.fixture(autouse=True)
def scene(monkeypatch) -> Scene:
    """A scene of the test's own."""
    fresh = Scene()
    monkeypatch.setattr(f"{HERE}.SCENE", fresh)
    return fresh


def named(tmp_path, registry: str = desk("auto", "auto"), **settings):
    """A server with this module's model."""
    settings = {"topic_detector_limit_s": 5.0} | settings
    return serving(tmp_path, registry, topic_detector=f"{HERE}:Model", **settings)


async def routed_without_verdict(service, text: str = "#sales what does it cost"):
    """Send a message that gets no verdict; return the log lines about it."""
    routed = await service.chat().say(text)
    assert went(routed.dispatch) == ("front", "NO_ACTIVE_AGENT")
    return service.observer.calls[-1]


async def test_detector_that_a_setting_names_decides(tmp_path, scene):
    """Decisions are logged with its version; it never runs on the event loop."""
    async with named(tmp_path) as service:
        routed = await service.chat().say("#sales what does it cost")
        assert went(routed.dispatch) == ("sales", "TOPIC_SWITCH")
        assert service.observer.calls[-1].topic_model == "scene-1"
    assert scene.threads
    assert all(name.startswith("topic-detector") for name in scene.threads)


async def test_slow_detector_holds_a_message_no_longer_than_its_limit(tmp_path, scene, log_lines):
    """The message is routed as with topics off, and the timeout is counted and logged."""
    may_go_on = threading.Event()
    scripted = scene.judge
    scene.judge = lambda question: may_go_on.wait(60) and scripted(question)
    async with named(tmp_path, topic_detector_limit_s=0.01) as service:
        record = await routed_without_verdict(service)
        assert (record.topic_outcome, record.topic_agent_id) == ("no_verdict", "")
        traced = await service.chat().say("#sales hi", validate_only=True)
        assert traced.topic_trace.outcome == 11
        assert not traced.topic_trace.candidates
        may_go_on.set()
    (line, *_) = [each for each in log_lines if each["event"] == "topic_detection_failed"]
    assert (line["cause"], line["topic_model"], line["limit_s"]) == ("late", "scene-1", 0.01)


async def test_detector_that_hangs_for_ever_takes_nothing_with_it(tmp_path, scene):
    """Its threads are used up, messages are still answered at once, and the server stops."""
    bounds = Bounds(detector_threads_max=2, detector_waiting_max=1)
    hangs = threading.Event()
    scene.judge = lambda _: hangs.wait(600)
    async with named(tmp_path, topic_detector_limit_s=0.01, bounds=bounds) as service:
        for _ in range(6):
            assert (await routed_without_verdict(service)).topic_outcome == "no_verdict"
        assert len(scene.threads) == 2
    hangs.set()


async def test_answer_that_is_no_verdict_decides_nothing(tmp_path, scene):
    """NaN, for example, would pass every threshold."""
    answers = [
        None,
        "sales",
        TopicVerdict((("sales", float("nan")),)),
        TopicVerdict((("sales", 1.5),)),
        TopicVerdict((("sales", 0.9),), stay=-1.0),
        TopicVerdict((("sales", 0.2), ("support", 0.9))),
        TopicVerdict((("premium", 0.99),)),
        TopicVerdict(("sales",)),  # type: ignore[arg-type]
        TopicVerdict((("sales", "0.9"),)),  # type: ignore[arg-type]
        TopicVerdict((("sales", 10**400),)),
        TopicVerdict((("sales", 0.9), ("sales", 0.05))),
        TopicVerdict((("sales", 0.9), ("support", 0.2))),
        TopicVerdict((("sales", 0.9),), stay=0.100003),
    ]
    async with named(tmp_path) as service:
        for answer in answers:
            scene.judge = lambda _, answer=answer: answer
            record = await routed_without_verdict(service)
            assert record.topic_outcome == "no_verdict", answer


class Single:
    """Another numeric type, as arrays hold it: 0.9 in single precision."""

    def __float__(self) -> float:
        """Return it as a float."""
        return 0.8999999761581421


@pytest.mark.parametrize(
    "verdict",
    [
        lambda: TopicVerdict(pair for pair in [("sales", 0.9)]),  # type: ignore[arg-type]
        lambda: TopicVerdict([("sales", 0.9)]),  # type: ignore[arg-type]
        lambda: TopicVerdict((("sales", Single()),), stay=0),  # type: ignore[arg-type]
        lambda: TopicVerdict((("sales", 0.9), ("support", 0.1000019))),
        lambda: TopicVerdict((("sales", 1.0000001),)),
    ],
    ids=["generator", "list", "single precision", "rounded sum", "rounded up"],
)
async def test_verdict_in_numbers_of_another_kind_decides(tmp_path, scene, verdict):
    """Models compute with arrays in single precision, and return such numbers."""
    scene.judge = lambda _: verdict()
    async with named(tmp_path) as service:
        routed = await service.chat().say("what does it cost", explain_topic=True)
        assert went(routed.dispatch) == ("sales", "TOPIC_SWITCH")
        assert routed.topic_trace.candidates[0].agent_id == "sales"


async def test_detector_that_fails_costs_no_message(tmp_path, scene, log_lines):
    """One log line says why; the detector is called again for the next message."""
    scripted = scene.judge

    def fails(question: TopicQuestion) -> object:
        if "broken" in question.text:
            raise ZeroDivisionError
        return scripted(question)

    scene.judge = fails
    async with named(tmp_path) as service:
        for _ in range(3):
            record = await routed_without_verdict(service, "#sales broken")
            assert record.topic_outcome == "no_verdict"
        routed = await service.chat().say("#sales what does it cost")
        assert went(routed.dispatch) == ("sales", "TOPIC_SWITCH")
    failed = [each for each in log_lines if each["event"] == "topic_detection_failed"]
    assert [(each["cause"], each["failures"]) for each in failed] == [("error", 1)]


async def test_detector_that_cannot_take_the_registry_in_is_tried_again(tmp_path, scene):
    """Its model may start later than the server, which does not wait for it."""
    is_up = threading.Event()
    tried: list[Registry] = []

    def make(registry: Registry) -> None:
        tried.append(registry)
        if not is_up.is_set():
            raise ConnectionError

    scene.make = make
    async with named(tmp_path, bounds=IMPATIENT) as service:
        assert len(tried) == 1
        record = await routed_without_verdict(service)
        assert record.topic_outcome == "no_verdict"
        is_up.set()
        async with asyncio.timeout(30):
            while True:
                routed = await service.chat().say("#sales hi")
                if went(routed.dispatch)[0] == "sales":
                    break
                await asyncio.sleep(0.01)
    assert 2 <= len(tried) <= 4


async def test_each_cause_is_logged_with_its_own_error(tmp_path, scene, log_lines, monkeypatch):
    """A missing detector is logged with its reason each time, and hides no other cause."""
    now_s = 1_000.0
    monkeypatch.setattr(parts, "TopicJudge", partial(TopicJudge, clock_s=lambda: now_s))
    attempts: list[str] = []

    def make(_: Registry) -> None:
        attempts.append(f"attempt {len(attempts) + 1}")
        if len(attempts) < 3:
            raise ConnectionError(attempts[-1])

    scene.make = make
    scene.judge = lambda _: 1 / 0
    async with named(tmp_path) as service:
        for _ in range(3):
            await routed_without_verdict(service)
            await made_beside()
        now_s += FAILURE_LOG_S
        await routed_without_verdict(service)
        await made_beside()
        await routed_without_verdict(service)
    logged = [
        (line["cause"], line["failures"], str(line["exc_info"]))
        for line in log_lines
        if line["event"] == "topic_detection_failed"
    ]
    # In the first minute: the start's, then three messages' and the second attempt's.
    assert logged == [
        ("not_made", 1, "attempt 1"),
        ("not_made", 5, "attempt 2"),
        ("error", 1, "division by zero"),
    ]


async def test_attempt_that_gets_no_thread_says_so(tmp_path, scene, log_lines, monkeypatch):
    """It counts as a failed attempt, with its reason."""

    def make(_: Registry) -> None:
        raise ConnectionError

    def refuses(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    scene.make = make
    monkeypatch.setattr(DetectorThreads, "_start_thread", refuses)
    async with named(tmp_path, bounds=IMPATIENT) as service:
        await routed_without_verdict(service)
        await made_beside()
    failed = [each for each in log_lines if each["event"] == "topic_detection_failed"]
    assert [repr(each["exc_info"]) for each in failed] == [
        "ConnectionError()",
        "ConnectionError()",
        """RuntimeError("can't start new thread")""",
    ]


async def made_beside() -> None:
    """Wait until no detector is being built."""
    making = [each for each in asyncio.all_tasks() if each.get_name() == "topic detector"]
    await asyncio.gather(*making)


async def test_old_detector_serves_until_the_new_one_is_ready(tmp_path, scene):
    """The new one is built off the event loop, and put in use when it is ready."""
    async with named(tmp_path) as service:
        is_asked, may_go_on = threading.Event(), threading.Event()

        def make(_: Registry) -> None:
            is_asked.set()
            assert may_go_on.wait(60)

        scene.make = make
        newer = desk("auto", "auto").replace("topics-1", "topics-2")
        await asyncio.to_thread((tmp_path / "agents.yaml").write_text, newer, encoding="utf-8")
        reloading = asyncio.create_task(service.server.reload())
        assert await asyncio.to_thread(is_asked.wait, 60)
        routed = await service.chat().say("#sales what does it cost")
        assert went(routed.dispatch) == ("sales", "TOPIC_SWITCH")
        assert not reloading.done()
        may_go_on.set()
        await reloading
        assert (await service.chat().say("#sales hi")).dispatch.agent.agent_id == "sales"


async def test_trying_a_registry_out_takes_no_detector_away(tmp_path, scene):
    """In an earlier version, several validations in a row removed the active detector."""
    made: list[str] = []
    scene.make = lambda registry: made.append(registry.version)
    async with named(tmp_path) as service:
        source = service.server._parts.source
        for _ in range(6):
            await source.reload(validate_only=True)
        assert len(made) == 7
        routed = await service.chat().say("#sales what does it cost")
        assert went(routed.dispatch) == ("sales", "TOPIC_SWITCH")
    assert len(made) == 7


@dataclass(frozen=True)
class Attached:
    """A detector that holds a reference to its registry."""

    registry: Registry

    def judge(self, question: TopicQuestion) -> TopicVerdict:
        """Judge as the scene has it."""
        return SCENE.judge(question)  # type: ignore[return-value]


@pytest.fixture
def only_own_garbage():
    """What the tests before left is not looked through by each collection of this one."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("only_own_garbage")
async def test_detector_that_keeps_its_registry_goes_with_it(tmp_path, monkeypatch):
    """At most two stay: the active one, and the one before for running decisions."""
    made: list[weakref.ref[Registry]] = []

    def for_registry(_: Model, registry: Registry) -> TopicDetector:
        made.append(weakref.ref(registry))
        return Attached(registry)

    monkeypatch.setattr(Model, "for_registry", for_registry)
    async with named(tmp_path) as service:
        source, file = service.server._parts.source, tmp_path / "agents.yaml"

        async def kept(*versions: str) -> None:
            # The loading thread releases its reference a moment later.
            for _ in range(1_000):
                gc.collect()
                found = {registry.version for each in made if (registry := each()) is not None}
                if found == set(versions):
                    break
                await asyncio.sleep(0.01)
            assert found == set(versions)

        for number in range(2, 8):
            newer = desk("auto", "auto").replace("topics-1", f"topics-{number}")
            await asyncio.to_thread(file.write_text, newer, encoding="utf-8")
            for _ in range(3):
                await source.reload(validate_only=True)
            await kept(*(f"topics-{each}" for each in (number - 2, number - 1) if each))
            await source.reload()
            routed = await service.chat().say("#sales what does it cost")
            assert went(routed.dispatch) == ("sales", "TOPIC_SWITCH")
        await asyncio.to_thread(file.write_text, "agents: []", encoding="utf-8")
        await service.server.reload()
        await kept("topics-6", "topics-7")
        routed = await service.chat().say("#sales hi")
        assert went(routed.dispatch) == ("sales", "TOPIC_SWITCH")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module:make", "No module named 'no_such_module'; install it"),
        (f"{HERE}:missing", f"{HERE} has no missing; name a function or class"),
        (f"{HERE}:HERE", "cannot be called"),
        (f"{HERE}:word", "gives str, which is no topic model"),
        (f"{HERE}:fails_as_it_is_made", "fails as it is made, with LookupError: weights.bin"),
        ("nowhere", 'topic detector "nowhere" is not installed; installed ones: words'),
    ],
)
async def test_detector_that_cannot_be_loaded_keeps_the_server_from_starting(tmp_path, name, said):
    """The server never replaces the configured detector by another one, or by none."""
    with pytest.raises(SettingsInvalid) as refused:
        async with serving(tmp_path, desk("auto"), topic_detector=name):
            pass
    assert said in str(refused.value)


def word() -> str:
    """Not a detector."""
    return "model"


def fails_as_it_is_made() -> Model:
    """Fails because a dependency is missing."""
    raise LookupError("weights.bin")


async def test_verdicts_that_were_not_given_are_on_the_metrics_page(tmp_path, scene):
    """An operator can set an alert on it."""
    scene.judge = lambda _: None
    counts = Counts()
    async with named(tmp_path, counts=counts) as service:
        await routed_without_verdict(service)
    assert counts.metrics.snapshot().counters["topic_judgements_total"] == {("no_verdict",): 1}


async def test_server_that_stopped_leaves_no_threads_and_no_attempt(tmp_path, scene):
    """A program may start many servers one after the other; hanging threads are not joined."""
    before = set(threading.enumerate())

    def ours() -> set[threading.Thread]:
        found = set(threading.enumerate()) - before
        return {thread for thread in found if thread.name.startswith("topic-detector")}

    is_asked, may_go_on = threading.Event(), threading.Event()
    fails = iter([True])

    def make(_: Registry) -> None:
        if next(fails, False):
            raise ConnectionError
        is_asked.set()
        may_go_on.wait(60)

    scene.make = make
    async with named(tmp_path, bounds=IMPATIENT) as service:
        await routed_without_verdict(service)
        assert await asyncio.to_thread(is_asked.wait, 60)
    assert "topic detector" not in {task.get_name() for task in asyncio.all_tasks()}
    left = ours()
    assert {thread.name for thread in left} == {"topic-detector-1"}
    may_go_on.set()
    for thread in left:
        await asyncio.to_thread(thread.join, 60)
    assert not ours()


async def test_registry_that_a_detector_exits_on_does_not_end_the_server(
    tmp_path, scene, log_lines
):
    """Some libraries call sys.exit instead of raising an error."""

    def exits(_: Registry) -> None:
        raise SystemExit(4)

    scene.make = exits
    async with named(tmp_path) as service:
        assert (await routed_without_verdict(service)).topic_outcome == "no_verdict"
    (line, *_) = [each for each in log_lines if each["event"] == "topic_detection_failed"]
    assert line["cause"] == "not_made"
    assert repr(line["exc_info"]) == "RuntimeError('SystemExit(4)')"


def test_verdicts_of_the_model_that_ships_are_sound():
    """The figures are rounded one by one, so their sum may slightly exceed 1."""
    registry = load_registry(EXAMPLES["erp_topics"].registry_path)
    detector = load_word_model().for_registry(registry)
    for active_id in registry.agents:
        others = frozenset(registry.agents) - {active_id, registry.home_agent_id}
        for text in ("hi", "I want my invoice and stock", *registry.agents["finance"].examples):
            asked = TopicQuestion(str(text), active_agent_id=active_id, candidate_ids=others)
            assert _sound(detector.judge(asked), asked) == detector.judge(asked)


@pytest.fixture
def without_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation of the service alone: nothing offers the model that ships."""
    found = detector_plugin.entry_points

    def offered(*, group: str) -> object:
        return () if group == detector_plugin.SHIPPED else found(group=group)

    monkeypatch.setattr(detector_plugin, "entry_points", offered)


@pytest.mark.usefixtures("without_topics")
async def test_registry_with_topics_is_refused_without_the_distribution(tmp_path):
    """The operator reads at the start what to install, and not in a log later."""
    with pytest.raises(RegistryFileError, match=r'pip install "agent-routing-service\[topics\]"'):
        async with serving(tmp_path, "tax"):
            pass


@pytest.mark.usefixtures("without_topics")
async def test_topics_off_runs_without_the_distribution(tmp_path):
    """A service that detects no topics needs neither the weights nor NumPy."""
    tax = EXAMPLES["tax"].registry_path.read_text("utf-8")
    without = tax.replace("topics: {mode: suggest, threshold: 0.6}", "topics: {mode: off}")
    assert without != tax
    async with serving(tmp_path, without) as service:
        assert went((await service.chat().say("How much VAT?")).dispatch)[0] == "coordinator"


@pytest.mark.usefixtures("without_topics")
def test_fallback_that_ships_is_refused_without_the_distribution():
    """A judge behind an address falls back on the model that ships, unless a setting says none."""
    judge = partial(Settings, topic_detector="grpc://127.0.0.1:1")
    with pytest.raises(SettingsInvalid, match=r"agent-routing-service\[topics\]"):
        parts.make_topic_judge(judge(), parts.shipped_model, Bounds())
    parts.make_topic_judge(judge(topic_detector_fallback="none"), parts.shipped_model, Bounds())
