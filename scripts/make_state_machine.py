"""Write the table of Route's lines into docs/explanation/state-machine.md.

.venv/bin/python scripts/make_state_machine.py            # say whether the page is up to date
.venv/bin/python scripts/make_state_machine.py --write    # bring it up to date
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from routing_service.core.route_lines import ALL_LINES

PAGE: Final = Path(__file__).parents[1] / "docs" / "explanation" / "state-machine.md"

BEGIN: Final = "<!-- made by scripts/make_state_machine.py from core/route_lines.py -->\n"
END: Final = "<!-- end -->\n"


def route_table() -> str:
    """Return the lines of Route as a Markdown table."""
    rows = ["| | when | to whom | reason |\n", "|---|---|---|---|\n"]
    for number, line in enumerate(ALL_LINES, start=1):
        reasons = ", ".join(f"`{reason.name}`" for reason in line.reasons)
        rows.append(f"| {number} | {line.when} | {line.goes_to} | {reasons} |\n")
    return "".join(rows)


def up_to_date(page: str) -> str:
    """Return the page's text with the present table."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    assert before, f"{PAGE} has no line {BEGIN!r}"
    assert after, f"{PAGE} has no line {END!r}"
    return f"{before}{BEGIN}\n{route_table()}\n{END}{after}"


def main() -> int:
    """Compare the page with the table, or write it. Returns the exit code."""
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
