"""A chat in the terminal, with the tax example's agents as scripts.

    python clients/python/examples/chat.py [--target 127.0.0.1:50051] [--session ID] [--user ana]

Start the service with `make run`. Lines are read until the input ends, so that a story can be piped
in. The agents need no model and no network: an agent gets a dispatch, and returns its answer and
how its turn ended. A real one would call a model and report the same. The examples of the
other clients have the same agents, with the same texts.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from dataclasses import dataclass

from agent_routing import Client, RouteResult, RoutingError, errors, outcomes
from agent_routing.ids import new_uuid7
from agent_routing.outcomes import Outcome
from agent_routing.v1.agent_pb2 import Agent
from agent_routing.v1.dispatch_pb2 import Dispatch, Suggestion
from agent_routing.v1.route_reason_pb2 import RouteReason
from agent_routing.v1.routing_service_pb2 import CompleteTurnResponse

VAT_RATE = 0.21
NUMBER = re.compile(r"\d[\d.,]*")
DUE = re.compile(r"\b(when|due|deadline)\b", re.IGNORECASE)
VAT = re.compile(r"\bvat\b", re.IGNORECASE)

# The agent for a message, by terms in its text; the first match counts.
SPECIALISTS = {
    "filing": re.compile(r"\b(file it|file my|submit)\b", re.IGNORECASE),
    "payroll": re.compile(r"\b(payroll|wages|employees?)\b", re.IGNORECASE),
    "invoices": re.compile(r"\binvoices?\b", re.IGNORECASE),
    "vat": VAT,
    "income_tax": re.compile(r"\b(income tax|tax return|deduct\w*)\b", re.IGNORECASE),
}

# Limit of hops of a message, far above the service's own limit.
STEPS_MAX = 20


@dataclass(frozen=True, slots=True)
class Answer:
    """What an agent says, and how its turn ended."""

    text: str
    outcome: Outcome


def say(text: str) -> Answer:
    """Answer, and keep the conversation."""
    return Answer(text, outcomes.proceed())


def ask(text: str) -> Answer:
    """Ask the user a question: the agent gets the next message."""
    return Answer(text, outcomes.follow_up(timeout=600))


def hand_over(agent_id: str, text: str, reason: str = "") -> Answer:
    """Give the message to another agent."""
    return Answer(text, outcomes.handoff(agent_id, reason=reason or text))


def answer_of(dispatch: Dispatch) -> Answer:
    """Return the answer of a dispatch's agent."""
    text = dispatch.text
    match dispatch.agent.agent_id:
        case "coordinator":
            for agent_id, words in SPECIALISTS.items():
                if words.search(text):
                    about = "what the message is about"
                    return hand_over(agent_id, "One moment, I bring in our specialist.", about)
            return say("Hello! Ask me about VAT, income tax, invoices or payroll.")
        case "vat":
            return answer_about_vat(dispatch)
        case "income_tax" | "invoices" if VAT.search(text):
            return hand_over("vat", "VAT is for a colleague of mine.")
        case "income_tax":
            return ask("What did you earn last year, before tax?")
        case "invoices":
            return say("All your invoices are paid, but for F-1023, which is due next week.")
        case "payroll":
            return say("Two employees: their payslips are ready for you to look at.")
        case "filing":
            return Answer("Filed. You get the receipt by mail.", outcomes.complete())
        case _:
            return say("I am here, and have nothing to say.")


def answer_about_vat(dispatch: Dispatch) -> Answer:
    """Return the VAT specialist's answer."""
    if number := NUMBER.search(dispatch.text):
        vat = float(number[0].replace(",", "")) * VAT_RATE
        return say(f"That makes {vat:.2f} € of VAT.")
    if DUE.search(dispatch.text):
        return say("By the 20th after the quarter's end.")
    if dispatch.locked:
        return ask("A number is all I need: what did you sell, without VAT?")
    return ask("What did you sell this quarter, without VAT?")


def after_refusal(refused: errors.HandoffRefused) -> Answer:
    """Return an agent's answer after its handoff was refused."""
    if "entitled" in refused.rules:
        return say("That needs the premium plan. Can I help with something else?")
    return say("I cannot bring in that colleague now. Can I help you myself?")


class Screen:
    """Writes the chat to a terminal, or as plain text."""

    def __init__(self, *, is_colored: bool) -> None:
        self._is_colored = is_colored

    def line(self, text: str) -> None:
        """Write a line."""
        print(text, flush=True)

    def dim(self, text: str) -> str:
        """Return a text that is less important."""
        return f"\x1b[2m{text}\x1b[22m" if self._is_colored else text

    def reply(self, text: str) -> None:
        """Show a command's answer."""
        for line in text.splitlines():
            self.line(f"  {line}")

    def handoff(self, before: Agent, after: Agent, words: str) -> None:
        """Show a handoff."""
        self.line(self.dim(f"  ── {name_of(before)} → {name_of(after)} ──"))
        if words:
            self.line(f"  {words}")

    def agent(self, dispatch: Dispatch, text: str, *, is_degraded: bool) -> None:
        """Show an agent's answer, and why it got the message."""
        if not text:
            return
        reason = RouteReason.Name(dispatch.reason).removeprefix("ROUTE_REASON_")
        because = f" {reason.lower().replace('_', ' ')}"
        if is_degraded:
            because = " (offline: the last agent known answers)"
        self.line(f"{self._badge(dispatch.agent)}{self.dim(because)}")
        self.line(f"  {text}")

    def suggestion(self, suggestion: Suggestion) -> None:
        """Show an offered agent switch."""
        self.line(f"  {suggestion.text}")
        for option in suggestion.options:
            self.line(f"    • {option.label}")

    def _badge(self, agent: Agent) -> str:
        """Return an agent's name on its own color."""
        color = re.fullmatch(r"#(..)(..)(..)", agent.color)
        if not self._is_colored or color is None:
            return f"[{name_of(agent)}]"
        red, green, blue = (int(part, 16) for part in color.groups())
        return f"\x1b[97;1;48;2;{red};{green};{blue}m {name_of(agent)} \x1b[0m"


def name_of(agent: Agent) -> str:
    """Return what to call an agent."""
    return agent.display_name or agent.agent_id


class Conversation:
    """One user's conversation with the active agent.

    Every frontend does this: route the message, show a command's reply, and run agents while
    complete_turn() names a next one.
    """

    def __init__(
        self, client: Client, session_id: str, user_id: str, locale: str, screen: Screen
    ) -> None:
        self._client = client
        self._session_id = session_id
        self._user_id = user_id
        self._locale = locale
        self._screen = screen
        self._agent: Agent | None = None

    def say(self, text: str) -> None:
        """Send the user's text, and show the answers."""
        turn = self._client.route(
            text,
            session_id=self._session_id,
            user_id=self._user_id,
            locale=self._locale,
            channel="web",
        )
        if turn.reply_text is not None:
            self._screen.reply(turn.reply_text)
        self._run_agents(turn)
        if turn.suggestion is not None:
            self._screen.suggestion(turn.suggestion)

    def _run_agents(self, turn: RouteResult) -> None:
        dispatch = turn.dispatch
        for _ in range(STEPS_MAX):
            if dispatch is None:
                return
            self._show_handoff(dispatch)
            answer = answer_of(dispatch)
            if turn.degraded:
                # The service does not know this message: there is nothing to complete.
                self._screen.agent(dispatch, answer.text, is_degraded=True)
                return
            completed = self._complete(dispatch, answer)
            self._screen.agent(dispatch, completed.text, is_degraded=False)
            dispatch = completed.next if completed.HasField("next") else None

    def _show_handoff(self, dispatch: Dispatch) -> None:
        before = self._agent
        if dispatch.handoff.HasField("from"):
            before = getattr(dispatch.handoff, "from")
        self._agent = dispatch.agent
        if before is not None and before.agent_id != dispatch.agent.agent_id:
            self._screen.handoff(before, dispatch.agent, dispatch.handoff.message)

    def _complete(self, dispatch: Dispatch, answer: Answer) -> CompleteTurnResponse:
        """Report an answer. If its handoff is refused, the agent answers itself."""
        try:
            return self._report(dispatch, answer)
        except errors.HandoffRefused as refused:
            return self._report(dispatch, after_refusal(refused))

    def _report(self, dispatch: Dispatch, answer: Answer) -> CompleteTurnResponse:
        return self._client.complete_turn(
            self._session_id,
            dispatch.request_id,
            dispatch.agent.agent_id,
            answer.outcome,
            text=answer.text,
            user_id=self._user_id,
        )


def main() -> None:
    """Talk until the input ends."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--target", default=os.environ.get("AGENT_ROUTING_TARGET", "127.0.0.1:50051")
    )
    parser.add_argument("--session", default=f"chat-{new_uuid7()}")
    parser.add_argument("--user", default="ana")
    parser.add_argument("--locale", default="en")
    options = parser.parse_args()
    # The screen already shows that a turn is degraded.
    logging.getLogger("agent_routing").setLevel(logging.ERROR)
    is_terminal = sys.stdin.isatty()
    is_forced = "FORCE_COLOR" in os.environ
    is_colored = "NO_COLOR" not in os.environ and (sys.stdout.isatty() or is_forced)
    screen = Screen(is_colored=is_colored)
    if is_terminal:
        about = f"session {options.session} at {options.target}; /status, /agents, /supervisor"
        screen.line(screen.dim(about))
    with Client(options.target) as client:
        talk = Conversation(client, options.session, options.user, options.locale, screen)
        while True:
            try:
                text = (input("> ") if is_terminal else next(sys.stdin)).strip()
            except (EOFError, StopIteration):
                return
            if text and not is_terminal:
                screen.line(f"> {text}")
            if text:
                try:
                    talk.say(text)
                except RoutingError as error:
                    screen.line(f"  {error.message}")


if __name__ == "__main__":
    main()
