"""``agent-routing plan``: machines and engine sizes for a number of users, and what ends first."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Annotated, Final

import typer

from routing_service.cli.failure import EXIT_USAGE, CommandFailed
from routing_service.cli.options import PlainJsonOption
from routing_service.cli.plan_figures import ENGINES, Demand, Plan, costs, plan

EPILOG: Final = """\b
Examples:
  agent-routing plan --users 250k
  agent-routing plan --users 10M --engine postgres
  agent-routing plan --users 1M --messages 8 --peak 10 --inbox-share 0.3 --json

\b
Calculated from measured costs that ship with this release, for messages of 80
characters; longer ones add their length to what is stored. A process is planned
for half a core at the peak. Exit codes: 0 done; 2 an option is wrong.
"""

_AMOUNT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kMB]?)")
_TIMES: Final = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9}

USERS_MAX: Final = 10 * 10**9
"""More than there are people."""


def plan_command(
    *,
    users: Annotated[
        str, typer.Option("--users", metavar="N", help="Users a day: 5000, 250k, 10M or 1B.")
    ],
    engine: Annotated[
        str,
        typer.Option("--engine", metavar="NAME", help=f"all, {', '.join(ENGINES)}."),
    ] = "all",
    messages: Annotated[
        float, typer.Option("--messages", metavar="N", help="Messages of a user a day.")
    ] = 20.0,
    sessions: Annotated[
        float, typer.Option("--sessions", metavar="N", help="Sessions that a user begins a day.")
    ] = 1.0,
    peak: Annotated[
        float,
        typer.Option("--peak", metavar="N", help="The busiest second over the average one."),
    ] = 5.0,
    inbox_share: Annotated[
        float,
        typer.Option("--inbox-share", metavar="0-1", help="Share of turns that go by an inbox."),
    ] = 0.0,
    keep_days: Annotated[
        float, typer.Option("--keep-days", metavar="N", help="Days until sessions are purged.")
    ] = 30.0,
    cores: Annotated[
        int, typer.Option("--cores", metavar="N", help="Cores of a machine of the service.")
    ] = 8,
    as_json: PlainJsonOption = False,
) -> None:
    """Plan machines and engine sizes for a number of users."""
    if engine != "all" and engine not in ENGINES:
        raise _wrong(f'--engine is "{engine}"; use all, {", ".join(ENGINES)}')
    _check("--messages", messages, 0.001, 100_000)
    _check("--sessions", sessions, 0, 100_000)
    _check("--peak", peak, 1, 1_000)
    _check("--inbox-share", inbox_share, 0, 1)
    _check("--keep-days", keep_days, 0, 36_500)
    _check("--cores", cores, 1, 1_024)
    demand = Demand(
        users=_amount(users),
        messages=messages,
        sessions=sessions,
        peak=peak,
        inbox_share=inbox_share,
        keep_days=keep_days,
        cores=cores,
    )
    plans = [plan(name, demand) for name in (ENGINES if engine == "all" else (engine,))]
    typer.echo(_as_json(demand, plans) if as_json else _as_text(demand, plans))


def _amount(text: str) -> float:
    found = _AMOUNT.fullmatch(text)
    amount = float(found[1]) * _TIMES[found[2]] if found else 0.0
    if not 1 <= amount <= USERS_MAX:
        raise _wrong(
            f'--users is "{text}"; write a number from 1 to 10B, such as 5000, 250k or 10M '
            "(k, M and B in this case, no commas)"
        )
    return amount


def _check(name: str, value: float, least: float, most: float) -> None:
    if not (math.isfinite(value) and least <= value <= most):
        raise _wrong(f"{name} is {value:g}; it must be from {least:g} to {most:g}")


def _wrong(message: str) -> CommandFailed:
    return CommandFailed(message, exit_code=EXIT_USAGE)


def _as_json(demand: Demand, plans: list[Plan]) -> str:
    answer = {
        "demand": dataclasses.asdict(demand),
        "turns_per_s": demand.turns_per_s,
        "peak_turns_per_s": demand.peak_turns_per_s,
        "plans": [
            {
                **dataclasses.asdict(each),
                "limits": [
                    {**dataclasses.asdict(limit), "share": limit.share} for limit in each.limits
                ],
            }
            for each in plans
        ],
        "measured": costs()["measured"],
    }
    return json.dumps(answer, ensure_ascii=False)


def _as_text(demand: Demand, plans: list[Plan]) -> str:
    measured = costs()["measured"]
    asked = (
        f"{demand.users:,.0f} users a day, {demand.messages:g} messages each: "
        f"{amount(demand.turns_per_s)} turns a second, {amount(demand.peak_turns_per_s)} at the "
        "peak"
    )
    lines = [
        asked,
        *(line for each in plans for line in ("", *_plan_lines(demand, each))),
        "",
        f"costs measured {measured['date']} on {measured['machine']} ({measured['command']})",
    ]
    return "\n".join(lines)


def _plan_lines(demand: Demand, made: Plan) -> list[str]:
    first = made.limits[0]
    rows = [
        (
            "service",
            f"{_count(made.processes, 'process', 'processes')} on {_machines(demand, made)}",
        )
    ]
    if made.engine_cores:
        rows.append(("engine", _stores(made)))
    if made.usd_per_day is not None:
        rows.append(("writes", f"{amount(made.usd_per_day)} USD a day, by request"))
    if made.log_mb_per_s:
        rows.append(("log", f"{amount(made.log_mb_per_s)} MB/s at the peak, to each standby"))
    kept = f"{amount(made.stored_gb)} GB in {demand.keep_days:g} days"
    rows.append(("stored", f"{amount(made.stored_gb_per_day)} GB a day, {kept}"))
    ends = f"{first.name}: {amount(first.needed)} of {amount(first.has)} {first.unit}"
    one = "one database" if made.stores > 1 else "it"
    rows.append(("ends first", f"{ends}; {one} lasts to {amount(made.users_max)} users a day"))
    rows += [("note", note) for note in made.notes]
    title = made.engine if made.fits else f"{made.engine}: does not fit"
    return [title, *(f"  {name:<11} {said}" for name, said in rows)]


def _machines(demand: Demand, made: Plan) -> str:
    if made.machines == 1:
        return f"1 machine of {demand.cores} cores, and none to take over"
    return f"{made.machines} machines of {_count(demand.cores, 'core', 'cores')}"


def _stores(made: Plan) -> str:
    cores = math.ceil(made.engine_cores / made.stores)
    each = f"{_count(cores, 'core', 'cores')} and {amount(made.stored_gb / made.stores)} GB"
    if made.stores == 1:
        return f"1 database with {each}, at half load"
    return f"{made.stores:,} databases with {each} each, at half load; the tenants are divided"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one}" if number == 1 else f"{number:,} {many}"


def amount(number: float) -> str:
    """Return a number with two digits that mean something, as planning needs no more."""
    for size, unit in ((1e9, "B"), (1e6, "M")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    if number >= 100:  # noqa: PLR2004 - three digits
        digits = max(0, len(f"{number:.0f}") - 2)
        return f"{round(number / 10**digits) * 10**digits:,.0f}"
    return f"{number:.2g}"
