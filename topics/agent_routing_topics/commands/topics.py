"""``agent-routing topics``: measure topic detection and compare thresholds."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from agent_routing_topics.commands.topic_examples import run_examples
from agent_routing_topics.commands.topics_learn import LearnOptions, days_ago_us, run_learn
from agent_routing_topics.commands.topics_run import (
    EvaluateOptions,
    model_of,
    run_calibrate,
    run_evaluate,
)
from routing_service.cli.options import (
    CorpusAgentsOption,
    DetectorOption,
    PlainJsonOption,
    StoreOption,
)

EVALUATE_EPILOG: Final = """\b
Plays dialogues as a server would, in this process; for their form see
agent-routing replay --help. The figures count the messages whose owner is
recorded; ranges are 95 % intervals that allow for turns of one dialogue being
alike. Wrong dispatches are corrected at once, as if the agent had handed over;
stuck counts the users left with the wrong agent without that. "Seen" are the
agents that the model was trained on. A message that the record gives to no
agent should stay where it is.

\b
"Asked" are the least sure messages, which count as right: the supervisor has
them. With --judge, they count as the judge has them. "Verbatim" are the
examples that only one agent has, asked word for word with and without a
history. With --corpus-agents and no --corpus, each file is
played against the corpus of its name, and all of them are added up.

\b
Examples:
  agent-routing topics evaluate star.jsonl.gz --corpus star
  agent-routing topics evaluate *.jsonl.gz --corpus-agents agents.json
  agent-routing topics evaluate mine.jsonl --agents agents.yaml --threshold 0.7
  agent-routing topics evaluate mine.jsonl --agents agents.yaml --descriptions-only
"""

CALIBRATE_EPILOG: Final = """\b
Reads a service's stored conversations. A message belongs to the agent that had
it in the end, by a handoff, by answering it, or because the user accepted or
declined a suggestion. Nothing is written or trained. The table shows for each
threshold what it would have done with these messages; > marks the registry's.

\b
Examples:
  agent-routing topics calibrate --store sqlite:///var/routing.db --agents agents.yaml
  agent-routing topics calibrate --store postgres://db/chat --agents new.yaml --days 30
"""

LEARN_EPILOG: Final = """\b
Reads a service's stored conversations, as topics calibrate does, which only
looks. A message belongs to the agent that the user accepted or stayed with
after a suggestion, that the supervisor or an agent handed it to, that the user
went to by a command right after the answer, or else that answered it. Messages
answered by an agent that handed over within two turns are left out.

\b
First it prints what to expect, measured on sessions that were not learned from.
Then it writes NAME.learned.yml next to the registry: a calibration, and with
--examples messages of users as examples. Nothing is in force until the key
learned_file of the registry names that file.

\b
Examples:
  agent-routing topics learn --store sqlite:///var/routing.db --agents agents.yaml
  agent-routing topics learn --store postgres://db/chat --agents agents.yaml --examples
"""

EPILOG: Final = """\b
Examples:
  agent-routing topics evaluate mine.jsonl --agents agents.yaml
  agent-routing topics calibrate --store sqlite:///var/routing.db --agents agents.yaml
"""

topics: Final = typer.Typer(
    name="topics",
    help="Measure topic detection, and choose its threshold.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

_AgentsOption = Annotated[
    str, typer.Option("--agents", metavar="FILE", show_default=False, help="A registry file.")
]
_DAYS_MAX: Final = 36_500
_TenantOption = Annotated[
    str,
    typer.Option(
        "--tenant", metavar="ID", show_default=False, help="Only this tenant. Default: all."
    ),
]
_DaysOption = Annotated[
    int | None,
    typer.Option(
        "--days",
        metavar="N",
        min=1,
        max=_DAYS_MAX,
        show_default=False,
        help="Only messages of the last N days.",
    ),
]


@topics.command("evaluate", epilog=EVALUATE_EPILOG)
def evaluate(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            show_default=False,
            help="Dialogues, in the form of agent-routing replay.",
        ),
    ],
    *,
    agents: _AgentsOption = "",
    corpus: Annotated[
        str,
        typer.Option(
            "--corpus", metavar="NAME", show_default=False, help="A corpus of --corpus-agents."
        ),
    ] = "",
    corpus_agents: CorpusAgentsOption = "",
    detector: DetectorOption = "",
    descriptions_only: Annotated[
        bool, typer.Option("--descriptions-only", help="Ignore the agents' examples.")
    ] = False,
    threshold: Annotated[
        float | None,
        typer.Option(
            "--threshold",
            metavar="P",
            min=0.0,
            max=1.0,
            show_default=False,
            help="The least probability of a topic. Default: the most likely option wins.",
        ),
    ] = None,
    lock_threshold: Annotated[
        float | None,
        typer.Option(
            "--lock-threshold",
            metavar="P",
            min=0.0,
            max=1.0,
            show_default=False,
            help="The same while an agent waits for an answer. Default: --threshold.",
        ),
    ] = None,
    ask_share: Annotated[
        float | None,
        typer.Option(
            "--ask-share",
            metavar="P",
            min=0.0,
            max=1.0,
            show_default=False,
            help="The share of messages to ask about. Default: the registry's, or 0.2.",
        ),
    ] = None,
    right_wanted: Annotated[
        float | None,
        typer.Option(
            "--right-wanted",
            metavar="P",
            min=0.0,
            max=1.0,
            show_default=False,
            help="Ask until this share is expected to be right. Default: the registry's.",
        ),
    ] = None,
    judge: Annotated[
        str,
        typer.Option(
            "--judge",
            metavar="NAME",
            show_default=False,
            help="Judges unsure messages, as the setting topic_judge.",
        ),
    ] = "",
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", metavar="N", min=1, show_default=False, help="At most N dialogues."
        ),
    ] = None,
    as_json: PlainJsonOption = False,
) -> None:
    """Evaluate topic detection on recorded dialogues."""
    run_evaluate(
        EvaluateOptions(
            files=tuple(files),
            agents=agents,
            corpus=corpus,
            corpus_agents=corpus_agents,
            detector=detector,
            descriptions_only=descriptions_only,
            threshold=threshold,
            lock_threshold=threshold if lock_threshold is None else lock_threshold,
            ask_share=ask_share,
            right_wanted=right_wanted,
            judge=judge,
            limit=limit,
        ),
        as_json=as_json,
    )


EXAMPLES_EPILOG: Final = """\b
Prints a prompt for any model: without --command and --answer, that is all. The
answer is checked: doubles, messages in a language that the registry does not
have, and those that sound like another agent's are left out. The rest is
written next to the registry, as NAME.examples.yml; the key examples_file of
the registry names it.

\b
Examples:
  agent-routing topics examples --agents agents.yaml > prompt.txt
  agent-routing topics examples --agents agents.yaml --answer answer.yaml
  agent-routing topics examples --agents agents.yaml --command "my-model --json"
"""


@topics.command("examples", epilog=EXAMPLES_EPILOG)
def examples(
    *,
    agents: _AgentsOption = "",
    count: Annotated[
        int, typer.Option("--count", metavar="N", min=1, max=100, help="Examples an agent.")
    ] = 25,
    command: Annotated[
        str,
        typer.Option(
            "--command",
            metavar="COMMAND",
            show_default=False,
            help="A command that reads the prompt and prints the answer.",
        ),
    ] = "",
    answer: Annotated[
        str,
        typer.Option(
            "--answer", metavar="FILE", show_default=False, help="A model's answer; - reads a pipe."
        ),
    ] = "",
) -> None:
    """Get examples for each agent from a model, and check them."""
    run_examples(agents, count=count, command=command, answer=answer)


@topics.command("calibrate", epilog=CALIBRATE_EPILOG)
def calibrate(
    *,
    store: StoreOption,
    agents: _AgentsOption = "",
    detector: DetectorOption = "",
    tenant: _TenantOption = "",
    days: _DaysOption = None,
    as_json: PlainJsonOption = False,
) -> None:
    """Show what other thresholds would have done with stored conversations."""
    run_calibrate(store, agents, detector, tenant, days, as_json=as_json)


@topics.command("learn", epilog=LEARN_EPILOG)
def learn(
    *,
    store: StoreOption,
    agents: _AgentsOption = "",
    detector: DetectorOption = "",
    tenant: _TenantOption = "",
    days: _DaysOption = None,
    examples: Annotated[
        bool, typer.Option("--examples", help="Propose messages of users as examples.")
    ] = False,
    as_json: PlainJsonOption = False,
) -> None:
    """Learn from stored conversations, into a file that you read and load."""
    asked = LearnOptions(store, agents, tenant, days_ago_us(days), examples)
    run_learn(asked, model_of(detector), as_json=as_json)
