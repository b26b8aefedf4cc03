"""The page's tables, written from a stored result: each cell is made of what a run saw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.comparison.contenders import CONTENDERS, Contender
from benchmarks.comparison.play import ANSWER, AT_ONCE, CUT_OFF, NEXT
from benchmarks.comparison.scripted import STORIES, TOOL_RESULT

BEGIN: Final = "<!-- comparison: written by make compare -->"
END: Final = "<!-- comparison: end -->"

Seen = Mapping[str, Any]
Cell = Callable[[Contender, Seen], str]

STORED_ONLY: Final = 2
"""OutcomeStatus of an answer that is kept and moves nothing."""


def render(result: Mapping[str, Any]) -> str:
    """Return everything between the page's marks."""
    when = (
        f"Measured on {result['date']} with Python {result['python']}. Each program is"
        " `benchmarks/comparison/peers/NAME.py`, its pinned requirements are next to it, and what"
        " each run saw is in `benchmarks/comparison/result.json`."
    )
    parts = [BEGIN, "", when, ""]
    for section in SECTIONS:
        parts += [f"### {section.title}", "", section.intro, ""]
        parts += [*_table(section.columns, result["seen"]), ""]
    return "\n".join([*parts, END])


def _table(columns: Mapping[str, Cell], seen: Mapping[str, Seen]) -> list[str]:
    """Return a row for each contender; those of which the runs say the same have one together."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for contender in CONTENDERS:
        cells = tuple(cell(contender, seen[contender.key]) for cell in columns.values())
        rows.setdefault(cells, []).append(contender.title)
    return [
        f"| | {' | '.join(columns)} |",
        "|---" * (len(columns) + 1) + "|",
        *(f"| {', '.join(titles)} | {' | '.join(cells)} |" for cells, titles in rows.items()),
    ]


def _versions(contender: Contender, seen: Seen) -> str:
    del contender
    return ", ".join(f"{name} {version}" for name, version in seen["versions"].items())


def _persists(contender: Contender, seen: Seen) -> str:
    del seen
    return contender.persists


def _api(contender: Contender, seen: Seen) -> str:
    del seen
    return f"{contender.api} ([documentation]({contender.source}))"


def _on_disk(contender: Contender, seen: Seen) -> str:
    del contender
    disk = seen["in_one_process"]["on_disk"]
    return f"{disk['bytes'] / 1000:,.0f} kB" if disk["rows"] else "nothing"


def _path(home: str, step: Seen) -> str:
    """Return the agents whose models one message came to; H: the home agent."""
    agents = [call["agent"] for call in step["calls"]]
    names = ["H" if agent == home else agent.removesuffix("_specialist") for agent in agents]
    path = "→".join(names) or "no model"
    return f"{path} ({step['error']})" if "error" in step else path


def _story(name: str) -> Cell:
    def cell(contender: Contender, seen: Seen) -> str:
        del contender
        steps = seen["in_one_process"][name]
        home = STORIES[name].home
        calls = [call["agent"] for step in steps for call in step["calls"]]
        of_home = sum(agent == home for agent in calls)
        return f"{_messages(home, steps)}: {len(calls)} calls, {of_home} of H"

    return cell


def _messages(home: str, steps: Sequence[Seen]) -> str:
    return " · ".join(_path(home, step) for step in steps)


def _unsure(contender: Contender, seen: Seen) -> str:
    del contender
    step = seen["in_one_process"]["tax"][1]
    return _first(step)


def _first(step: Seen) -> str:
    """Say which model a message came to first, and to which it went from there."""
    home = STORIES["tax"].home
    agents = [call["agent"] for call in step["calls"]]
    if not agents:
        return _error(step)
    first = "H" if agents[0] == home else agents[0]
    later = [agent for agent in agents[1:] if agent not in {home, agents[0]}]
    text = f"{first}, then {', '.join(dict.fromkeys(later))}" if later else first
    return f"{text}; {_error(step)}" if "error" in step else text


def _error(step: Seen) -> str:
    return f"`{_short(step.get('error', 'nothing'))}`"


def _restarted(contender: Contender, seen: Seen) -> str:
    del contender
    answered = seen["restart"]["answered"]
    shown = max((call["messages"] for call in answered["calls"]), default=0)
    kept = "sees the conversation so far" if shown > 1 else "sees this message alone"
    return f"{_first(answered)}; its model {kept}"


def _kept(texts: Sequence[str], text: str) -> str:
    if not texts:
        return "no history"
    times = sum(each == text for each in texts)
    return f"the message is {TIMES.get(times, f'{times} times')} in the history"


TIMES: Final = {0: "not", 1: "once", 2: "twice"}


def _repeated(contender: Contender, seen: Seen) -> str:
    _, first, repeated, read = seen["in_one_process"]["repeat"]
    stored = read["texts"]
    calls = len(repeated["calls"])
    kept = _kept(stored, ANSWER)
    if "error" in repeated:
        return f"refused: {_error(repeated)}; {kept}"
    same = repeated["answer"] == first["answer"]
    said = "gets the first answer" if not calls and same else f"{calls} more model calls"
    if calls == 1:
        said = "1 more model call"
    del contender
    return f"{said}; {kept}"


def _both(contender: Contender, seen: Seen) -> str:
    del contender
    run = seen["at_once"]
    texts = run["stored"]["texts"]
    if not texts:
        return "nothing is stored"
    said = []
    for name, text, step in (("slow", AT_ONCE[0], run["slow"]), ("quick", AT_ONCE[1], run["fast"])):
        answer = step.get("answer", "")
        kept_text, kept_answer = text in texts, bool(answer) and answer in texts
        what = {
            (True, True): "message and answer kept",
            (True, False): "message kept without an answer",
            (False, True): "**message lost**, answer kept",
            (False, False): "**message and answer lost**",
        }[kept_text, kept_answer]
        if "error" in step:
            refused = "message kept" if kept_text else "nothing kept"
            what = f"refused, {refused}, its caller gets {_error(step)}"
        if step.get("outcome") == STORED_ONLY:
            what = (
                "message kept with the sentence of its handoff, which is not carried out, since a"
                " newer message was routed; its caller is told (`STORED_ONLY`)"
            )
        said.append(f"{name}: {what}")
    return "; ".join(said)


def _next_at_once(contender: Contender, seen: Seen) -> str:
    del contender
    return _first(seen["at_once"]["next"])


def _left(contender: Contender, seen: Seen) -> str:
    del contender
    kill = seen["kill"]
    assert kill["killed"][-1] == {"killed": True}, "the process was to be killed"
    left = kill["left"]
    if CUT_OFF not in left["texts"]:
        return "nothing of the message"
    active = f"; active agent: {left['active']}" if left["active"] else ""
    after = left["texts"][left["texts"].index(CUT_OFF) + 1 :]
    return f"the message, {len(after)} of its agents' texts{active}"


def _resumed(contender: Contender, seen: Seen) -> str:
    del contender
    resumed = seen["kill"]["resumed"]
    texts = seen["kill"]["stored"]["texts"]
    path = _path(STORIES["tax"].home, resumed)
    answered = TOOL_RESULT in resumed.get("answer", "")
    end = "answered" if answered else f"not answered: {_error(resumed)}"
    return f"{path}, {end}; {_kept(texts, CUT_OFF)}"


def _next_after_kill(contender: Contender, seen: Seen) -> str:
    del contender
    kill = seen["kill"]
    texts = kill["stored_after_next"]["texts"]
    if not texts:
        return f"{_first(kill['next'])}; no history"
    if "error" in kill["next"]:
        return f"refused until the turn is continued: {_error(kill['next'])}"
    lost = "" if CUT_OFF in texts else "; **the message that was cut off is lost**"
    return f"{_first(kill['next'])}{lost}"


def _refusal(contender: Contender, seen: Seen) -> str:
    del contender
    _, tried, _ = seen["in_one_process"]["refused"]
    agents = [call["agent"] for call in tried["calls"]]
    results = [call["result"] for call in tried["calls"] if call["result"]]
    if "refused" in tried:
        return f"the server refuses: `{_short(tried['refused'])}`"
    if "invoices" in agents:
        return "**not refused: the other agent answered**"
    if "error" in tried:
        return f"the run fails: {_error(tried)}"
    if results:
        return f"its model reads `{_short(results[0])}`"
    return "an agent has no way to hand over"


def _short(text: str) -> str:
    text = " ".join(text.split()).replace("|", "\\|")
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"


TEXT_MAX: Final = 160


def _after_refusal(contender: Contender, seen: Seen) -> str:
    del contender
    return _first(seen["in_one_process"]["refused"][2])


@dataclass(frozen=True)
class Section:
    """A table under a title, after an introduction. columns: how each one's cells are made."""

    title: str
    intro: str
    columns: Mapping[str, Cell]


SECTIONS: Final = (
    Section(
        "What was run, and what persists",
        "The last column is the size of its files after the five messages of the tax story, with"
        " write-ahead logs.",
        {
            "versions": _versions,
            "what is used of it": _api,
            "its own persistence": _persists,
            "on disk": _on_disk,
        },
    ),
    Section(
        "The same three stories",
        "Whose models the five messages came to, in this order, and how many calls of models that"
        " took. H is the home agent: a supervisor, a classifier, or here the coordinator. Tax: a"
        " question, three answers to the same specialist, then a question about an invoice. Tutor:"
        ' a lesson, "I give up" (a motivator interrupts and asks something), the answer, the lesson'
        " goes on and ends, a test. Budget: two errands, each with a question back, then a goodbye."
        " A model that has to choose an agent goes by the message's topic, else it takes the"
        " specialist that spoke last, if it is shown who that was.",
        {"tax": _story("tax"), "tutor": _story("tutor"), "budget": _story("budget")},
    ),
    Section(
        'Who gets "I don\'t know", and a restart',
        'The specialist has asked "Monthly or quarterly?", and the user answers "I don\'t know".'
        " First in the same process; then from a new process on the same storage (this service's"
        " server is killed with `kill -9` too).",
        {"in the same process": _unsure, "after a restart": _restarted},
    ),
    Section(
        "Two processes, one session",
        "Two processes of the program have a message each. The first one's model reads"
        f' "{AT_ONCE[0]}" and is slow to answer with a handoff to the invoice desk. Meanwhile the'
        f' second process answers "{AT_ONCE[1]}". Then the first one ends. All on SQLite or files;'
        " this service is one server that both call.",
        {
            "what is kept of the two messages": _both,
            f'who gets the next one, "{NEXT}"': _next_at_once,
        },
    ),
    Section(
        "A repeated request",
        "The caller sends the message again, as after a timeout, with the same id where there is a"
        " place for one (LangGraph: the message's id; Agent Framework: the id of the open"
        " question; this service: `request_id`).",
        {"the repeat": _repeated},
    ),
    Section(
        "Killed in the middle of a turn",
        f'"{CUT_OFF}" is handed over to the invoice desk, whose model calls a tool. The process is'
        " killed with `kill -9` while the tool runs: two models have answered, the turn has not"
        " ended. Then either the turn is continued as the documentation says (see the program's"
        f' header), or the user sends "{NEXT}" instead.',
        {
            "what is stored": _left,
            "continued: models called": _resumed,
            "instead: who gets the next message": _next_after_kill,
        },
    ),
    Section(
        "A handoff that is not allowed",
        "The filing clerk may hand over to VAT and home only, and its model tries the invoice desk"
        " all the same. Then the user goes on.",
        {"what happens": _refusal, "who gets the next message": _after_refusal},
    ),
)
