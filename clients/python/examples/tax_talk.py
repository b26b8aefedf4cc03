"""The agents of the examples: rules instead of models, so that no network is needed.

Owns a reply to the last message, for each agent, for any framework. Rule: the agents are those of
the service's tax example, under the names or aliases of its registry.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Say:
    """Text for the user."""

    text: str


@dataclass(frozen=True)
class CallTool:
    """A call of a tool. text: of the model, with the call."""

    name: str
    arguments: Mapping[str, str]
    text: str = ""


def coordinator(user_text: str, tool_output: str) -> Say | CallTool:
    """Hand over, or answer."""
    text = user_text.lower()
    if "refused" in tool_output:
        return Say(f"I cannot bring them in. {tool_output}")
    if "invoice" in text:
        return _transfer("invoices", "an invoice")
    if "payroll" in text:
        return _transfer("payroll", "payroll")
    if "vat" in text:
        return _transfer("vat", "a VAT question", message="Our VAT specialist will help you.")
    return Say("I can bring in specialists for VAT, invoices and payroll.")


def invoices(user_text: str, _tool_output: str) -> Say | CallTool:
    """Hand over questions about VAT, or answer."""
    if "vat" in user_text.lower():
        return _transfer("vat", "VAT on an invoice", context="invoice F-1023, not yet paid")
    return Say("Invoice F-1023 was paid on Monday.")


def vat(user_text: str, _tool_output: str) -> Say | CallTool:
    """Ask for the sum, and complete once it is there."""
    if found := re.search(r"\d+", user_text.replace(",", "")):
        owed = int(found[0]) * 0.21
        return CallTool(
            "complete_task",
            {"answer": f"You owe {owed:,.2f} euros.", "summary": f"VAT of {owed:.2f} euros"},
        )
    return CallTool(
        "ask_user",
        {"question": "What did you sell this quarter, without VAT?"},
        text="I work that out for you.",
    )


def payroll(_user_text: str, _tool_output: str) -> Say | CallTool:
    """Answer."""
    return Say("Two people were paid.")


def arguments(framework: str) -> argparse.Namespace:
    """Read the command line of an example."""
    parser = argparse.ArgumentParser(description=f"The tax example's agents, run by {framework}.")
    parser.add_argument("--address", default="127.0.0.1:50051", help="of the service")
    parser.add_argument("--session", default="example-1", help="id of the session")
    parser.add_argument("--plan", action="store_true", help="the user has the premium plan")
    parser.add_argument("messages", nargs="*", default=["How much VAT do I owe?", "10,000 euros"])
    return parser.parse_args()


def _transfer(agent_id: str, reason: str, *, context: str = "", message: str = "") -> CallTool:
    given = {"agent_id": agent_id, "reason": reason, "context": context, "message": message}
    return CallTool("transfer_to_agent", given)
