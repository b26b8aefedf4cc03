"""``agent-routing dialogues``: stored conversations as dialogues, pseudonymised."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from agent_routing import Admin
from agent_routing.errors import SessionErased, StateCorrupt
from agent_routing.v1.admin_service_pb2 import SessionSummary
from agent_routing.v1.session_event_pb2 import SessionEvent
from agent_routing.v1.turn_pb2 import Turn
from routing_service.cli.admin_options import (
    OnlyChannelOption,
    OwnerOption,
    SinceOption,
    UntilOption,
    read_time,
)
from routing_service.cli.export_file import write_lines
from routing_service.cli.failure import EXIT_USAGE, CommandFailed
from routing_service.cli.server_call import CallOptions, calling, server_command
from routing_service.replay.pseudonyms import KnownWords, Pseudonyms
from routing_service.replay.stored_dialogues import KINDS, agents_of, dialogue_of, with_texts

PAGE_MAX: Final = 1_000
"""The service's largest page."""

_NAMES_BYTES_MAX: Final = 16 * 1024 * 1024

EPILOG: Final = """\b
The output is what agent-routing replay and agent-routing topics evaluate read.
A message belongs to the agent that answered it after all handoffs, or to the
one that the user took after the answer by /agent or a suggestion, or an
operator by a move. After /supervisor, and without an answer, it is "uncertain"
and is in no score.

\b
Names, e-mail and postal addresses, telephone, card, account and tax numbers,
dates, links and ids become [name 1], [email 1] and so on: the same value has
the same one in a conversation. What is found and what is not: agent-routing
docs dialogues. Read the output before you give it to others.

\b
Examples:
  agent-routing dialogues --since 7d --reason "replay of June" -o june.jsonl
  agent-routing dialogues --agent billing --sample 200 --seed 1 --reason "ticket 7"
"""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which conversations, and why they are read."""

    owner: str
    agent: str
    channel: str
    changed_from: datetime | None
    changed_before: datetime | None
    sample: int | None
    seed: int
    reason: str


_ReasonOption = Annotated[
    str,
    typer.Option(
        "--reason",
        metavar="TEXT",
        show_default=False,
        help="Why the texts are read: for the audit, which records each conversation.",
    ),
]
_OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        show_default=False,
        help="Write to this new file. Default: to stdout.",
    ),
]
_AgentOption = Annotated[
    str,
    typer.Option(
        "--agent",
        metavar="ID",
        show_default=False,
        help="Only conversations in which this agent had a turn.",
    ),
]
_SampleOption = Annotated[
    int | None,
    typer.Option(
        "--sample",
        metavar="N",
        min=1,
        show_default=False,
        help="At most N conversations, chosen at random.",
    ),
]
_SeedOption = Annotated[
    int,
    typer.Option("--seed", metavar="NUMBER", help="The same seed chooses the same conversations."),
]
_NamesOption = Annotated[
    Path | None,
    typer.Option(
        "--names",
        metavar="FILE",
        show_default=False,
        help="Names, one a line, that are replaced wherever they stand capitalised.",
    ),
]
_KeepProperNamesOption = Annotated[
    bool,
    typer.Option(
        "--keep-proper-names",
        help="Keep capitalised words that follow no greeting and no 'my name is'.",
    ),
]


@server_command(json=None)
def dialogues(
    *,
    reason: _ReasonOption,
    output: _OutputOption = None,
    owner: OwnerOption = "",
    agent: _AgentOption = "",
    channel: OnlyChannelOption = "",
    since: SinceOption = "",
    until: UntilOption = "",
    sample: _SampleOption = None,
    seed: _SeedOption = 0,
    names: _NamesOption = None,
    keep_proper_names: _KeepProperNamesOption = False,
    call: CallOptions,
) -> None:
    """Write stored conversations as dialogues, pseudonymised.

    It needs the scopes admin and read_words. --since and --until compare with the time of a
    session's last change.
    """
    if not reason.strip():
        message = "--reason is empty; say why the texts are read"
        raise CommandFailed(message, exit_code=EXIT_USAGE)
    wanted = _Wanted(
        owner,
        agent,
        channel,
        read_time("--since", since),
        read_time("--until", until),
        sample,
        seed,
        reason,
    )
    listed = _names_of(names) if names else frozenset()
    counts: Counter[str] = Counter()
    with calling(call) as client:
        lines = _lines(client, wanted, listed, counts, proper_names=not keep_proper_names)
        write_lines(lines, output)
    replaced = ", ".join(f"{kind} {count}" for kind, count in sorted(_kinds(counts)))
    written = f"{_some(counts['dialogues'], 'dialogue')}, {_some(counts['messages'], 'message')}"
    if counts["uncertain"]:
        written += f" ({counts['uncertain']} uncertain, so in no score)"
    typer.echo(f"{written}; replaced: {replaced or 'nothing'}", err=True)
    if counts["unreadable"]:
        typer.echo(f"{counts['unreadable']} sessions were left out: unreadable or erased", err=True)


_TOTALS: Final = frozenset({"dialogues", "messages", "uncertain", "unreadable"})


def _some(number: int, one: str) -> str:
    return f"{number:,} {one}" if number == 1 else f"{number:,} {one}s"


def _kinds(counts: Counter[str]) -> list[tuple[str, int]]:
    return [(kind, count) for kind, count in counts.items() if kind not in _TOTALS]


def _lines(
    client: Admin,
    wanted: _Wanted,
    listed: frozenset[str],
    counts: Counter[str],
    *,
    proper_names: bool,
) -> Iterator[str]:
    """Yield a line for each conversation, and count them."""
    answer = client.list_agents()
    words = {word.casefold() for a in answer.agents for word in re.findall(r"\w+", a.display_name)}
    known = KnownWords(frozenset(words), listed, proper_names)
    most = wanted.sample
    for session in _sessions(client, wanted):
        if most is not None and counts["dialogues"] >= most:
            return
        try:
            turns = list(_turns(client, session.session_id, wanted.reason))
            if wanted.agent and wanted.agent not in agents_of(turns):
                continue
            events = list(_events(client, session.session_id))
        except (SessionErased, StateCorrupt):
            counts["unreadable"] += 1
            continue
        dialogue = dialogue_of(
            # A number: an id of the session, or a hash of it, would lead back to the session.
            f"d-{counts['dialogues'] + 1:06}",
            turns,
            events,
            home_agent_id=answer.home_agent_id,
            language=session.locale,
        )
        if not dialogue.turns:
            continue
        pseudonyms = Pseudonyms(known, ids=(session.owner, session.session_id))
        texts = pseudonyms.replace_all([turn.text for turn in dialogue.turns])
        counts["dialogues"] += 1
        counts["messages"] += dialogue.user_turns
        counts["uncertain"] += sum(turn.uncertain for turn in dialogue.turns)
        counts.update(pseudonyms.counts)
        yield msgspec.json.encode(with_texts(dialogue, texts)).decode()


def _sessions(client: Admin, wanted: _Wanted) -> list[SessionSummary]:
    """Return the sessions: in the order of their ids, or in random order for a sample."""
    found: list[SessionSummary] = []
    token = ""
    while True:
        page = client.list_sessions_page(
            owner=wanted.owner,
            channel=wanted.channel,
            update_time_from=wanted.changed_from,
            update_time_before=wanted.changed_before,
            page_size=PAGE_MAX,
            page_token=token,
        )
        found += [each for each in page.sessions if not each.HasField("unreadable")]
        token = page.next_page_token
        if not token:
            break
    if wanted.sample is not None:
        random.Random(wanted.seed).shuffle(found)  # noqa: S311 - a choice that can be repeated
    return found


def _turns(client: Admin, session_id: str, reason: str) -> Iterator[Turn]:
    token = ""
    while True:
        page = client.list_turns_page(
            session_id, page_size=PAGE_MAX, page_token=token, read_reason=reason
        )
        yield from page.turns
        token = page.next_page_token
        if not token:
            return


def _events(client: Admin, session_id: str) -> Iterator[SessionEvent]:
    token = ""
    while True:
        page = client.list_events_page(
            session_id=session_id,
            kinds=KINDS,
            oldest_first=True,
            page_size=PAGE_MAX,
            page_token=token,
        )
        yield from (each.event for each in page.records)
        token = page.next_page_token
        if not token:
            return


def _names_of(path: Path) -> frozenset[str]:
    """Return the words of a file of names, in small letters. Raises CommandFailed."""
    try:
        with path.open("rb") as file:
            content = file.read(_NAMES_BYTES_MAX + 1)
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        message = f'cannot read "{path}": {why}; check path and content'
        raise CommandFailed(message, exit_code=EXIT_USAGE) from error
    if len(content) > _NAMES_BYTES_MAX:
        message = f'"{path}" is longer than {_NAMES_BYTES_MAX} bytes'
        raise CommandFailed(message, exit_code=EXIT_USAGE)
    return frozenset(word.casefold() for word in text.split())
