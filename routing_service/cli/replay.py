"""``agent-routing replay``: replay recorded dialogues and count what routing does."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from routing_service.cli.options import (
    ChannelOption,
    CorpusAgentsOption,
    DetectorOption,
    EntitlementOption,
    PlainJsonOption,
    TenantOption,
)
from routing_service.cli.replay_run import ReplayOptions, run_replay
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

EPILOG: Final = """\b
Each line is a dialogue:
  {"dialogue_id": "d1", "corpus": "mine", "language": "en", "turns": [
    {"speaker": "user", "text": "...", "agent": "billing"},
    {"speaker": "agent", "text": "...", "agent": "billing",
     "requires_follow_up": true, "task_complete": false}]}
agent is the turn's true owner; null is the supervisor.

\b
Figures (shares are from 0 to 1):
  supervisor_calls_saved  user turns that stickiness took past the supervisor;
                          a locked turn counts, whichever agent it was for
  first_dispatch_right    user turns that Route sent directly to their owner
  misrouted               user turns that Route sent to another agent
  stuck_turns             user turns that ended with another agent
  switch_precision        share of switches by topic (in suggest mode: offers)
                          that went to the owner
  switch_recall           share of the due switches that were made
  false_switches_per_1000 switches away from the owner, per 1,000 scored turns
  calibration_error       how far the probabilities of topic detection are off
  decisions_digest        equal for runs with the same decisions

\b
Examples:
  agent-routing replay sgd.jsonl.gz --corpus sgd --policy sticky
  agent-routing replay mine.jsonl --agents agents.yaml --json
  agent-routing replay mine.jsonl --agents new.yaml --compare agents.yaml
  agent-routing replay sgd.jsonl.gz --corpus sgd --topics auto --switch agent
  zcat *.gz | agent-routing replay - --target 127.0.0.1:50051 --limit 100
"""


def replay(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            show_default=False,
            help="Dialogues, one JSON object a line, gzipped or not; - reads a pipe.",
        ),
    ],
    *,
    agents: Annotated[
        str, typer.Option("--agents", metavar="FILE", show_default=False, help="A registry file.")
    ] = "",
    compare: Annotated[
        str,
        typer.Option(
            "--compare",
            metavar="FILE",
            show_default=False,
            help="The earlier registry file: both play the same dialogues, and the differences are "
            "shown turn by turn.",
        ),
    ] = "",
    corpus: Annotated[
        str,
        typer.Option(
            "--corpus",
            metavar="NAME",
            show_default=False,
            help="A corpus of --corpus-agents; its agents make the registry.",
        ),
    ] = "",
    corpus_agents: CorpusAgentsOption = "",
    policy: Annotated[
        ReplayPolicy,
        typer.Option(
            "--policy",
            help="How long an agent keeps the user. sticky: until the topic changes. follow_up: "
            "only while it waits for an answer. supervisor: never.",
        ),
    ] = ReplayPolicy.STICKY,
    switch: Annotated[
        SwitchMode,
        typer.Option(
            "--switch",
            help="What happens to a message that went to the wrong agent. supervisor: back to the "
            "supervisor, which hands it on. agent: directly to its owner. stuck: nothing.",
        ),
    ] = SwitchMode.SUPERVISOR,
    topics: Annotated[
        TopicMode | None,
        typer.Option(
            "--topics",
            show_default=False,
            help="What the server does about changes of topic: off, suggest (the user accepts "
            "right offers and declines wrong ones) or auto. Default: as in the registry.",
        ),
    ] = None,
    first_message: Annotated[
        FirstMessage | None,
        typer.Option(
            "--first-message",
            show_default=False,
            help="Who gets a message while no agent is active: the supervisor, or (auto) the agent "
            "of its topic. Default: auto with --topics auto.",
        ),
    ] = None,
    topic_threshold: Annotated[
        float,
        typer.Option(
            "--topic-threshold",
            metavar="P",
            min=0.0,
            max=1.0,
            help="The least probability of a topic.",
        ),
    ] = TOPIC_THRESHOLD_DEFAULT,
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
    ] = None,
    detector: DetectorOption = "",
    target: Annotated[
        str,
        typer.Option(
            "--target",
            metavar="HOST:PORT",
            show_default=False,
            help="A running server, with its own registry and store.",
        ),
    ] = "",
    embedded: Annotated[
        bool,
        typer.Option(
            "--embedded", help="Start a server for this run. The default without --target."
        ),
    ] = False,
    store: Annotated[
        str,
        typer.Option(
            "--store",
            metavar="URL",
            show_default=False,
            help="The embedded server's store. Default: SQLite in a temporary folder.",
        ),
    ] = "",
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", metavar="N", min=1, show_default=False, help="At most N dialogues."
        ),
    ] = None,
    concurrency: Annotated[
        int,
        typer.Option(
            "--concurrency", metavar="N", min=1, max=CONCURRENCY_MAX, help="Dialogues at a time."
        ),
    ] = CONCURRENCY_DEFAULT,
    run_label: Annotated[
        str,
        typer.Option(
            "--run-label",
            metavar="WORD",
            show_default=False,
            help="The run's name. The same label resumes an interrupted run.",
        ),
    ] = "",
    patience: Annotated[
        float,
        typer.Option(
            "--patience", metavar="SECONDS", min=0.0, help="How long the server may be unreachable."
        ),
    ] = PATIENCE_DEFAULT_S,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first bad line or error.")
    ] = False,
    write_registry: Annotated[
        str,
        typer.Option(
            "--write-registry",
            metavar="FILE",
            show_default=False,
            help="Only write the registry that --corpus makes, to serve it elsewhere; - prints it.",
        ),
    ] = "",
    channel: ChannelOption = "",
    entitlement: EntitlementOption = None,
    tenant: TenantOption = "",
    as_json: PlainJsonOption = False,
) -> None:
    """Replay recorded dialogues and count what routing did.

    Every user turn is a Route, every agent turn a CompleteTurn with its
    outcome. --policy and --switch shape the registry made of a corpus;
    with --agents or --target the registry is given, and they say how wrong
    dispatches are corrected and counted.
    """
    run_replay(
        ReplayOptions(
            files=tuple(files),
            agents=agents,
            compare=compare,
            corpus=corpus,
            corpus_agents=corpus_agents,
            policy=policy,
            switch=switch,
            topics=topics,
            first_message=first_message,
            topic_threshold=topic_threshold,
            topic_lock_threshold=topic_lock_threshold,
            detector=detector,
            target=target,
            embedded=embedded,
            store=store,
            limit=limit,
            concurrency=concurrency,
            run_label=run_label,
            patience_s=patience,
            strict=strict,
            write_registry=write_registry,
            channel=channel,
            entitlements=tuple(entitlement or ()),
            tenant=tenant,
            as_json=as_json,
        )
    )
