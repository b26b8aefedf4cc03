"""The options of ``agent-routing replay``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from routing_service.cli.options import (
    ChannelOption,
    CorpusAgentsOption,
    DetectorOption,
    EntitlementOption,
    PlainJsonOption,
    TenantOption,
)
from routing_service.replay.choices import (
    CONCURRENCY_DEFAULT,
    CONCURRENCY_MAX,
    PATIENCE_DEFAULT_S,
    TOPIC_THRESHOLD_DEFAULT,
    FirstMessage,
    ReplayPolicy,
    SwitchMode,
    TopicMode,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """The options of the command, as given."""

    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            show_default=False,
            help="Dialogues, one JSON object a line, gzipped or not; - reads a pipe.",
        ),
    ]
    agents: Annotated[
        str, typer.Option("--agents", metavar="FILE", show_default=False, help="A registry file.")
    ] = ""
    compare: Annotated[
        str,
        typer.Option(
            "--compare",
            metavar="FILE",
            show_default=False,
            help="The earlier registry file: both play the same dialogues, and the differences are "
            "shown turn by turn.",
        ),
    ] = ""
    corpus: Annotated[
        str,
        typer.Option(
            "--corpus",
            metavar="NAME",
            show_default=False,
            help="A corpus of --corpus-agents; its agents make the registry.",
        ),
    ] = ""
    corpus_agents: CorpusAgentsOption = ""
    policy: Annotated[
        ReplayPolicy,
        typer.Option(
            "--policy",
            help="How long an agent keeps the user. sticky: until the topic changes. follow_up: "
            "only while it waits for an answer. supervisor: never.",
        ),
    ] = ReplayPolicy.STICKY
    switch: Annotated[
        SwitchMode,
        typer.Option(
            "--switch",
            help="What happens to a message that went to the wrong agent. supervisor: back to the "
            "supervisor, which hands it on. agent: directly to its owner. stuck: nothing.",
        ),
    ] = SwitchMode.SUPERVISOR
    topics: Annotated[
        TopicMode | None,
        typer.Option(
            "--topics",
            show_default=False,
            help="What the server does about changes of topic: off, suggest (the user accepts "
            "right offers and declines wrong ones) or auto. Default: as in the registry.",
        ),
    ] = None
    first_message: Annotated[
        FirstMessage | None,
        typer.Option(
            "--first-message",
            show_default=False,
            help="Who gets a message while no agent is active: the supervisor, or (auto) the agent "
            "of its topic. Default: auto with --topics auto.",
        ),
    ] = None
    topic_threshold: Annotated[
        float,
        typer.Option(
            "--topic-threshold",
            metavar="P",
            min=0.0,
            max=1.0,
            help="The least probability of a topic.",
        ),
    ] = TOPIC_THRESHOLD_DEFAULT
    topic_lock_threshold: Annotated[
        float | None,
        typer.Option(
            "--topic-lock-threshold",
            metavar="P",
            min=0.0,
            max=1.0,
            show_default=False,
            help="The same while an agent waits for an answer. Default: --topic-threshold.",
        ),
    ] = None
    detector: DetectorOption = ""
    target: Annotated[
        str,
        typer.Option(
            "--target",
            metavar="HOST:PORT",
            show_default=False,
            help="A running server, with its own registry and store.",
        ),
    ] = ""
    embedded: Annotated[
        bool,
        typer.Option(
            "--embedded", help="Start a server for this run. The default without --target."
        ),
    ] = False
    store: Annotated[
        str,
        typer.Option(
            "--store",
            metavar="URL",
            show_default=False,
            help="The embedded server's store. Default: SQLite in a temporary folder.",
        ),
    ] = ""
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", metavar="N", min=1, show_default=False, help="At most N dialogues."
        ),
    ] = None
    concurrency: Annotated[
        int,
        typer.Option(
            "--concurrency", metavar="N", min=1, max=CONCURRENCY_MAX, help="Dialogues at a time."
        ),
    ] = CONCURRENCY_DEFAULT
    run_label: Annotated[
        str,
        typer.Option(
            "--run-label",
            metavar="WORD",
            show_default=False,
            help="The run's name. The same label resumes an interrupted run.",
        ),
    ] = ""
    patience_s: Annotated[
        float,
        typer.Option(
            "--patience", metavar="SECONDS", min=0.0, help="How long the server may be unreachable."
        ),
    ] = PATIENCE_DEFAULT_S
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first bad line or error.")
    ] = False
    write_registry: Annotated[
        str,
        typer.Option(
            "--write-registry",
            metavar="FILE",
            show_default=False,
            help="Only write the registry that --corpus makes, to serve it elsewhere; - prints it.",
        ),
    ] = ""
    channel: ChannelOption = ""
    entitlements: EntitlementOption = None
    tenant: TenantOption = ""
    as_json: PlainJsonOption = False
