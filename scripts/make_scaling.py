"""Write the tables of docs/scaling.md from routing_service/cli/plan_costs.json.

.venv/bin/python scripts/make_scaling.py            # say whether the page is up to date
.venv/bin/python scripts/make_scaling.py --write    # bring it up to date
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from routing_service.cli.plan import amount
from routing_service.cli.plan_figures import Demand, costs, plan

PAGE: Final = Path(__file__).parents[1] / "docs" / "scaling.md"
END: Final = "<!-- end -->\n"

USERS: Final = (100_000, 1_000_000, 10_000_000, 100_000_000)


def _begin(name: str) -> str:
    return f"<!-- {name}: made by scripts/make_scaling.py -->\n"


def _table(columns: str, rows: list[str]) -> str:
    heads = columns.split(" | ")
    return "\n".join([f"| {columns} |", "|" + "---|" * len(heads), *rows]) + "\n"


def turn_table() -> str:
    """Return what a turn costs on each engine that was measured."""
    rows = []
    names = {"sqlite": "SQLite", "postgres": "PostgreSQL", "redis": "Redis (memory)"}
    for name, title in names.items():
        cost = costs()["engines"][name]
        engine = f"{cost['engine_ms']:.2f} ms" if cost["engine_ms"] else "in the service's"
        logged = f"{_hundreds(cost['logged_bytes'])} bytes" if cost["logged_bytes"] else ""
        per_gb = 1e9 / (cost["session_bytes"] + 10 * cost["turn_bytes"])
        rows.append(
            f"| {title} | {_hundreds(cost['session_bytes'])} | {_hundreds(cost['turn_bytes'])} | "
            f"{per_gb / 1e3:,.0f},000 | {cost['service_ms']:.2f} ms | {engine} | {logged} |"
        )
    return _table(
        "engine | bytes of a session | bytes of a turn | sessions of 10 turns in a GB | "
        "service CPU for a turn | engine CPU for a turn | written to the engine's log for a turn",
        rows,
    )


def users_table() -> str:
    """Return what PostgreSQL needs by users a day."""
    rows = []
    for users in USERS:
        demand = Demand(users=users)
        made = plan("postgres", demand)
        rows.append(
            f"| {amount(users)} | {amount(demand.peak_turns_per_s)} | {made.processes:,} on "
            f"{made.machines} | {made.stores} | {amount(made.engine_cores / made.stores)} | "
            f"{amount(made.log_mb_per_s)} MB/s | {amount(made.stored_gb_per_day)} GB | "
            f"{made.limits[0].name} |"
        )
    return _table(
        "users a day | turns a second at the peak | processes on machines of 8 cores | clusters | "
        "cores of each primary | log at the peak | stored a day | ends first",
        rows,
    )


def cores_table() -> str:
    """Return the simulated rate by cores."""
    rows = [
        f"| {each['cores']} | {each['turns_per_s']:,} | {each['of_one']:.1f} |"
        for each in costs()["processes"]
    ]
    return _table("cores, and processes | turns a second | of one process", rows)


def check_table() -> str:
    """Return what the model said of this machine, and what was measured."""
    check, measured = costs()["check"], costs()["measured"]
    if "callers" not in check["by_processes"][0]:
        return _older_check_table()
    rows = [
        f"| {each['processes']} | {each['callers']} | {each['predicted_turns_per_s']} | "
        f"{each['measured_turns_per_s']} | {each['error_percent']:+d} % "
        f"({each['error_percent_least']:+d} to {each['error_percent_most']:+d}) | "
        f"{each['cpu_over_one_process']:.2f} | {each['error_as_one_percent']:+d} % | "
        f"{each['others']:.2f} |"
        for each in check["by_processes"]
    ]
    said = f"{check['cycles']} cycles on {measured['date']}, {measured['machine']}:\n\n"
    return said + _table(
        "processes | callers | predicted turns a second | measured | error, median of the cycles | "
        "CPU of a turn, of one process's | error with one process's CPU | cores that other "
        "programs took",
        rows,
    )


def _older_check_table() -> str:
    rows = [
        f"| {each['processes']} | {each['predicted_turns_per_s']} | "
        f"{each['measured_turns_per_s']} | {each['error_percent']:+d} % "
        f"({each['error_percent_least']:+d} to {each['error_percent_most']:+d}) | "
        f"{each['cpu_over_one_process']:.2f} |"
        for each in costs()["check"]["by_processes"]
    ]
    said = (
        "These figures are older than this method: each round was predicted from the CPU of one "
        "process, and other\nprograms were counted by what they wanted, not by what they took. "
        "Three cycles on a loaded machine:\n\n"
    )
    return said + _table(
        "processes | predicted turns a second | measured | error, median of the cycles | CPU of a "
        "turn, of one process's",
        rows,
    )


def peaks_table() -> str:
    """Return the simulated peaks."""
    rows = [
        f"| {amount(each['users'])} | {each['what']} | {each['p50_ms']:g} ms | "
        f"{each['p99_ms']:,g} ms | {each['busiest_p99_ms']:,g} ms | {each['long_percent']:g} % | "
        f"{each['late_s']:g} s |"
        for each in costs()["peaks"]
    ]
    spread = {each["users"]: each for each in costs()["peaks"]}.values()
    said = "; ".join(
        f"{amount(each['users'])} users: {each['clusters']} clusters, the busiest with "
        f"{each['busiest_of_average']:g} times the average"
        for each in spread
    )
    failed = sum(each["failed_turns"] for each in costs()["peaks"])
    return f"{said}. {failed} turns failed.\n\n" + _table(
        "users a day | what happens | p50 of a call | p99 | p99 on the busiest cluster | calls "
        "over 1 s | calls over 1 s, after the primary's return",
        rows,
    )


TABLES: Final[Mapping[str, Callable[[], str]]] = MappingProxyType(
    {
        "turns": turn_table,
        "check": check_table,
        "cores": cores_table,
        "users": users_table,
        "peaks": peaks_table,
    }
)


def _hundreds(number: float) -> str:
    return f"{round(number, -2):,.0f}"


def up_to_date(page: str) -> str:
    """Return the page's text with the present tables."""
    for name, make in TABLES.items():
        before, begin, rest = page.partition(_begin(name))
        _, end, after = rest.partition(END)
        assert begin, f"{PAGE} has no line {_begin(name)!r}"
        assert end, f"{PAGE} has no {END!r} after {name}"
        page = f"{before}{begin}\n{make()}\n{end}{after}"
    return page


def main() -> int:
    """Compare the page with the tables, or write them. Returns the exit code."""
    page = PAGE.read_text("utf-8")
    wanted = up_to_date(page)
    if page == wanted:
        return 0
    if "--write" in sys.argv[1:]:
        PAGE.write_text(wanted, "utf-8")
        return 0
    sys.stderr.write(f"{PAGE} is out of date; run this with --write\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
