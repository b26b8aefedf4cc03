"""The table of Route's lines: what it promises by its order, and the page that is made from it."""

import subprocess
import sys
from pathlib import Path

from routing_service.core.route_lines import ALL_LINES, COMMAND_LINE, ROUTE_LINES, TOPIC_LINE
from routing_service.core.vocabulary import RouteReason

ROOT = Path(__file__).parents[3]

GIVEN_ELSEWHERE = {
    RouteReason.SUPERVISOR_HANDOFF,
    RouteReason.AGENT_HANDOFF,
    RouteReason.TASK_COMPLETED,
    RouteReason.TASK_RESUMED,
    RouteReason.CONSULTED,
    RouteReason.DEGRADED,
}
"""Reasons of dispatches that follow an answer or an approval, rather than a message; and the one of
a message that a client decided alone."""


def test_page_shows_the_table_as_it_is():
    """After a change of the table the page is written again: the script has --write for it."""
    checked = subprocess.run(
        [sys.executable, "scripts/make_state_machine.py"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_every_reason_of_a_message_has_a_line():
    """A reason without a line could never be given, and each line needs its own."""
    told = [reason for line in ALL_LINES for reason in line.reasons]
    assert len(set(told)) == len(told)
    assert set(told) == set(RouteReason) - GIVEN_ELSEWHERE


def test_lines_that_ask_topics_are_those_below_the_topics_own():
    """The table's order and the flag of each line agree on when topics count."""
    assert ALL_LINES[0] is COMMAND_LINE
    place = ALL_LINES.index(TOPIC_LINE)
    below = ALL_LINES[place + 1 :]
    assert [line for line in ROUTE_LINES if line.asks_topic] == list(below)
    assert [line for line in ROUTE_LINES if not line.asks_topic] == list(ALL_LINES[1:place])
