"""The run of ``agent-routing replay``: its registries, servers and progress.

Its rule: stdout has only the figures; everything else goes to stderr.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import grpc.aio
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from agent_routing import RoutingError
from agent_routing.proxies import proxy_options
from agent_routing.v1.routing_service_pb2 import ListAgentsResponse
from routing_service.cli.credentials import given
from routing_service.cli.embedded_server import (
    embedded_server,
    interruptible,
    leave_by_interrupt,
)
from routing_service.cli.failure import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    CommandFailed,
    call_failed,
)
from routing_service.cli.replay_options import ReplayOptions
from routing_service.cli.replay_report import CHANGES_SHOWN_MAX, print_comparison, print_figures
from routing_service.core.registry import Registry
from routing_service.ids import new_uuid7
from routing_service.registry.file import RegistryFileError, load_registry, parse_registry
from routing_service.replay.choices import FirstMessage, TopicMode
from routing_service.replay.comparison import ChangedTurns, Compared, Comparison
from routing_service.replay.corpus_registry import (
    CorpusAgentsInvalid,
    TopicSettings,
    corpus_registry,
    load_corpus_agents,
    with_topics,
)
from routing_service.replay.dialogue_files import (
    STDIN_NAME,
    DialogueFileUnreadable,
    check_files,
)
from routing_service.replay.figures import ReplayFigures, Tally
from routing_service.replay.play import Stage
from routing_service.replay.run import Order, ReplayStopped, Side, replay, replay_sides
from routing_service.replay.server_calls import CHANNEL_OPTIONS, PatientServer
from routing_service.settings.listen_address import ListenFailed
from routing_service.settings.rules import SettingsInvalid
from routing_service.storage.store import StoreError

COMPLAINTS_MAX: Final = 20
"""Bad lines and errors that are shown; the figures count all of them."""

AGENTS_FILE: Final = "agents.json"


def run_replay(options: ReplayOptions) -> None:
    """Run the command. Raises CommandFailed, typer.Exit."""
    _check(options)
    leave_by_interrupt()
    try:
        registry_text = _registry_text(options)
        if options.write_registry:
            _write_registry(options.write_registry, registry_text)
            return
        registry = _registry(options, registry_text)
        check_files(options.files)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            if options.compare:
                old = load_registry(options.compare)
                assert registry is not None
                both = _compare_registries(options, old, registry, registry_text)
                comparison = runner.run(interruptible(both))
                print_comparison(comparison, as_json=options.as_json)
                figures = comparison.new.figures
                failed = comparison.old.figures.tally.errors + figures.tally.errors
            else:
                figures = runner.run(interruptible(_replay(options, registry, registry_text)))
                failed = figures.tally.errors
                print_figures(figures, as_json=options.as_json)
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise CommandFailed("interrupted", exit_code=EXIT_INTERRUPTED) from None
    except (CorpusAgentsInvalid, DialogueFileUnreadable, SettingsInvalid) as error:
        raise CommandFailed(str(error), exit_code=EXIT_USAGE) from error
    except (RegistryFileError, ReplayStopped, StoreError, ListenFailed) as error:
        raise CommandFailed(str(error)) from error
    if failed or figures.bad_lines:
        raise typer.Exit(EXIT_FAILED)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of the event loop that the server uses too; None for Python's own."""
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return None
    return uvloop.new_event_loop


def _check(options: ReplayOptions) -> None:
    """Refuse options that contradict each other or are incomplete."""
    if options.target and (options.embedded or options.store):
        raise typer.BadParameter(
            "--target has a store of its own; leave out --embedded and --store"
        )
    if options.compare and (options.target or options.store or options.write_registry):
        raise typer.BadParameter(
            "--compare starts a server for each registry, with a store of its own; leave out "
            "--target, --store and --write-registry"
        )
    if options.agents and options.corpus:
        raise typer.BadParameter("give --agents or --corpus: each says who the agents are")
    if not (options.target or options.agents or options.corpus):
        raise typer.BadParameter("give --agents FILE or --corpus NAME: a server needs a registry")
    if options.topics is None and options.first_message is not None:
        raise typer.BadParameter("--first-message goes with --topics suggest or --topics auto")
    if options.topics is TopicMode.OFF and options.first_message is FirstMessage.AUTO:
        raise typer.BadParameter(
            "--first-message auto needs topic detection; give --topics suggest or --topics auto"
        )
    if options.topics is not None and options.target:
        raise typer.BadParameter(
            "--target has its own registry with its own topics; leave out --topics"
        )
    if options.detector and options.target:
        raise typer.BadParameter("--target has its own detector; leave out --detector")
    if options.write_registry and not options.corpus:
        raise typer.BadParameter(
            "--write-registry writes the registry of --corpus; give --corpus NAME"
        )


def _registry_text(options: ReplayOptions) -> str:
    """Return the registry made for this run as YAML, "" if a given one is used."""
    topics = _topic_settings(options)
    if options.agents and topics is not None:
        load_registry(options.agents)  # The file's own mistakes are reported with their lines.
        return with_topics(Path(options.agents).read_text(encoding="utf-8"), topics)
    if not options.corpus:
        return ""
    path = options.corpus_agents or str(Path(options.files[0]).with_name(AGENTS_FILE))
    agents = load_corpus_agents(path, options.corpus)
    return corpus_registry(options.corpus, agents, options.policy, options.switch, topics)


def _topic_settings(options: ReplayOptions) -> TopicSettings | None:
    """Return the options' topics settings, None to use the registry's."""
    if options.topics is None:
        return None
    lock_threshold = options.topic_lock_threshold
    first_message = options.first_message or (
        FirstMessage.AUTO if options.topics is TopicMode.AUTO else FirstMessage.SUPERVISOR
    )
    return TopicSettings(
        options.topics,
        first_message,
        options.topic_threshold,
        options.topic_threshold if lock_threshold is None else lock_threshold,
    )


def _registry(options: ReplayOptions, registry_text: str) -> Registry | None:
    """Return the named registry, None if only the server has it."""
    if registry_text:
        return parse_registry(
            registry_text, f"the registry made of {options.corpus or options.agents}"
        )
    return load_registry(options.agents) if options.agents else None


def _write_registry(name: str, text: str) -> None:
    if name == STDIN_NAME:
        typer.echo(text, nl=False)
        return
    try:
        Path(name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandFailed(f'cannot write "{name}": {error.strerror or error}') from error


async def _replay(
    options: ReplayOptions, registry: Registry | None, registry_text: str
) -> ReplayFigures:
    run_label = options.run_label or new_uuid7()
    async with (
        _server(options, registry_text) as target,
        _channel(options, target) as channel,
    ):
        server = PatientServer(
            channel,
            target,
            tenant=options.tenant,
            patience_s=options.patience_s,
            # The command's own server has neither TLS nor sign-in.
            metadata=given().metadata if options.target else lambda: (),
        )
        try:
            answer = await server.list_agents()
        except RoutingError as error:
            raise call_failed(error, target, as_json=options.as_json) from error
        _compare(answer, registry, target)
        if not options.run_label and (options.target or options.store):
            _note(f"--run-label {run_label} resumes this run if it is interrupted")
        with _progress(options.limit) as progress:
            return await replay(
                Order(options.files, options.concurrency, options.limit, strict=options.strict),
                server,
                _stage(options, answer.home_agent_id, run_label),
                frozenset(agent.agent_id for agent in answer.agents),
                complain=_complaints(),
                progress=progress,
            )


def _channel(options: ReplayOptions, target: str) -> grpc.aio.Channel:
    credentials = given().channel_credentials() if options.target else None
    channel_options = (*CHANNEL_OPTIONS, *proxy_options(target))
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=channel_options)
    channel_options += given().channel_options()
    return grpc.aio.secure_channel(target, credentials, options=channel_options)


async def _compare_registries(
    options: ReplayOptions, old: Registry, new: Registry, registry_text: str
) -> Comparison:
    """Play the same dialogues on one server for each registry."""
    run_label = options.run_label or new_uuid7()
    named = ((options.compare, old), (options.agents or f"made of {options.corpus}", new))
    async with AsyncExitStack() as opened:
        targets = (
            await opened.enter_async_context(
                embedded_server(Path(options.compare), detector=options.detector)
            ),
            await opened.enter_async_context(_server(options, registry_text)),
        )
        sides = []
        for target, (name, _) in zip(targets, named, strict=True):
            channel = await opened.enter_async_context(
                grpc.aio.insecure_channel(
                    target, options=(*CHANNEL_OPTIONS, *proxy_options(target))
                )
            )
            server = PatientServer(
                channel, target, tenant=options.tenant, patience_s=options.patience_s
            )
            answer = await server.list_agents()
            sides.append(
                Side(
                    server,
                    _stage(options, answer.home_agent_id, run_label),
                    frozenset(agent.agent_id for agent in answer.agents),
                    name,
                )
            )
        changed = ChangedTurns(kept_max=None if options.as_json else CHANGES_SHOWN_MAX)
        with _progress(options.limit) as progress:
            figures = await replay_sides(
                Order(options.files, options.concurrency, options.limit, strict=options.strict),
                tuple(sides),
                complain=_complaints(),
                progress=progress,
                played=changed.note,
            )
    before, after = (
        Compared(name, registry.version, each)
        for (name, registry), each in zip(named, figures, strict=True)
    )
    return Comparison(before, after, changed)


def _stage(options: ReplayOptions, home_agent_id: str, run_label: str) -> Stage:
    return Stage(
        policy=options.policy,
        switch=options.switch,
        home_agent_id=home_agent_id,
        run_label=run_label,
        channel=options.channel,
        entitlements=tuple(options.entitlements or ()),
    )


def _compare(answer: ListAgentsResponse, registry: Registry | None, target: str) -> None:
    """Warn if the running server has another registry than the named one."""
    if registry is not None and registry.version != answer.registry_version:
        _note(
            f'note: the registry of {target} is "{answer.registry_version}", not '
            f'"{registry.version}"; the figures are of that one'
        )


@asynccontextmanager
async def _server(options: ReplayOptions, registry_text: str) -> AsyncIterator[str]:
    """Give the target: a running server, or one started for this run."""
    if options.target:
        yield options.target
        return
    with tempfile.TemporaryDirectory(prefix="agent-routing-") as folder:
        path = Path(folder, "registry.yaml") if registry_text else Path(options.agents)
        if registry_text:
            path.write_text(registry_text, encoding="utf-8")
        async with embedded_server(path, options.store, options.detector) as target:
            yield target


def _note(line: str) -> None:
    typer.echo(line, err=True)


def _complaints() -> Callable[[str], None]:
    """Return a function that prints bad lines and errors, up to COMPLAINTS_MAX."""
    told = 0

    def complain(what: str) -> None:
        nonlocal told
        told += 1
        if told <= COMPLAINTS_MAX:
            _note(f"error: {what}")
        if told == COMPLAINTS_MAX:
            _note("error: further errors are counted and not shown")

    return complain


@contextmanager
def _progress(limit: int | None) -> Iterator[Callable[[Tally], None]]:
    """Give the progress display: a bar on a terminal, nothing in a pipe."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = (
        TextColumn("replaying"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("dialogues, {task.fields[turns]} user turns"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=limit, turns=0)
        yield lambda tally: bar.update(task, completed=tally.dialogues, turns=tally.user_turns)
