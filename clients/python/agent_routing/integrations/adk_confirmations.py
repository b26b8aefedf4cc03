"""Google ADK's tool confirmations and long-running tools, as requests for approval.

Owns how they are found among a session's events, and how a decision reaches ADK. Rule: the session
service keeps everything, so that any process can continue.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from google.adk.events import Event
from google.genai import types

from agent_routing.integrations.approvals import ApprovedRunLost, Decided, describe_call
from agent_routing.integrations.routed_turn import RoutedTurn

REQUEST_KEY: Final = "agent_routing_request_id"
"""The key in custom_metadata under which a run's events carry their request."""

CONFIRM: Final = "adk_request_confirmation"
"""The function with which ADK asks its client for a confirmation."""

_DECISION_KEY: Final = "agent_routing_decision"
"""The key in custom_metadata of a decision that ADK gets later, together with others."""

_GENERATED_HINT: Final = "by responding with a FunctionResponse"
"""Part of ADK's hint for tools that give none; it is for programs, not for people."""


LaterResult: TypeAlias = Callable[[str, Mapping[str, Any], Decided], dict[str, Any]]
"""Returns the result of a long-running tool: of its name, its first result and the decision."""


def default_later_result(_name: str, first: Mapping[str, Any], decided: Decided) -> dict[str, Any]:
    """Return the first result with the decision as its status, and the comment if there is one."""
    status = {"status": "approved" if decided.is_approved else "rejected"}
    comment = {"comment": decided.comment} if decided.comment else {}
    return {**first, **status, **comment}


@dataclass(frozen=True, slots=True)
class LongRunning:
    """The long-running tools whose calls wait for a decision, and how its result is made."""

    names: frozenset[str] = frozenset()
    later_result: LaterResult = default_later_result


class Confirmations:
    """The confirmations that runs asked for. events: of a session. requests: of the runs."""

    def __init__(
        self, events: Iterable[Event], requests: Container[str], long_running: LongRunning
    ) -> None:
        self._long_running = long_running
        self._calls: list[types.FunctionCall] = []
        self._responses: dict[str, dict[str, Any]] = {}
        self._first: dict[str | None, Mapping[str, Any]] = {}
        answered: set[str | None] = set()
        for event in events:
            metadata = event.custom_metadata or {}
            if event.author == "user":
                answered.update(each.id for each in event.get_function_responses())
            elif metadata.get(REQUEST_KEY) in requests:
                self._calls += [each for each in event.get_function_calls() if self._waits(each)]
                self._first |= {
                    each.id: each.response or {} for each in event.get_function_responses()
                }
                self._responses |= metadata.get(_DECISION_KEY, {})
        self._open = [call for call in self._calls if call.id not in answered]

    def _waits(self, call: types.FunctionCall) -> bool:
        return call.name == CONFIRM or call.name in self._long_running.names

    def ask_first(self, turn: RoutedTurn) -> None:
        """End a turn with the first confirmation that is not decided, if there is one."""
        waiting = [call for call in self._open if call.id not in self._responses]
        if waiting and not turn.no_approval:
            wanted = _original(waiting[0])
            name = str(wanted.get("name") or "tool")
            turn.need_approval(_prompt(waiting[0]), name, wanted.get("args") or {})

    async def decide(
        self, turn: RoutedTurn, agent_name: str, append: Callable[[Event], Awaitable[object]]
    ) -> types.Content | None:
        """Return the message that gives ADK the decisions; None while others are missing.

        append: adds an event to the session. Raises ApprovedRunLost if nothing waits any more.
        """
        waiting = [call for call in self._open if call.id not in self._responses]
        decided = turn.decided
        assert decided is not None
        if not waiting:
            raise ApprovedRunLost(
                "ADK's session has no confirmation that waits for this decision: it was already"
                " taken up, or the processes do not share a session service"
            )
        call_id = waiting[0].id or ""
        self._responses[call_id] = self._response(waiting[0], decided)
        if len(waiting) > 1:
            metadata = {REQUEST_KEY: turn.key, _DECISION_KEY: {call_id: self._responses[call_id]}}
            await append(Event(author=agent_name, custom_metadata=metadata))
            self.ask_first(turn)
            return None
        parts = [
            types.Part(
                function_response=types.FunctionResponse(
                    id=call.id, name=call.name, response=self._responses[call.id or ""]
                )
            )
            for call in self._open
        ]
        return types.Content(role="user", parts=parts)

    def _response(self, call: types.FunctionCall, decided: Decided) -> dict[str, Any]:
        """Return what ADK gets for a decision: a ToolConfirmation, or a tool's later result."""
        if call.name == CONFIRM:
            return _confirmation(call, decided)
        name, first = str(call.name), self._first.get(call.id, {})
        return self._long_running.later_result(name, first, decided)


def run_key(turn: RoutedTurn) -> str:
    """Return the id of a turn's ADK session."""
    # Without a session, as in an outage, a message is a conversation of its own.
    return turn.run.session_id or turn.dispatch.request_id


def _original(call: types.FunctionCall) -> dict[str, Any]:
    """Return the tool call that is to be decided."""
    if call.name != CONFIRM:
        return {"name": call.name, "args": call.args}
    return dict((call.args or {}).get("originalFunctionCall") or {})


def _prompt(call: types.FunctionCall) -> str:
    wanted = _original(call)
    shown = describe_call(str(wanted.get("name") or "tool"), wanted.get("args") or {})
    hint = str(((call.args or {}).get("toolConfirmation") or {}).get("hint") or "")
    return shown if not hint or _GENERATED_HINT in hint else f"{hint} ({shown})"


def _confirmation(call: types.FunctionCall, decided: Decided) -> dict[str, Any]:
    """Return the ToolConfirmation for a decision: the payload that the tool asked with."""
    asked = (call.args or {}).get("toolConfirmation") or {}
    payload = asked.get("payload")
    if payload is None and decided.comment:
        payload = {"comment": decided.comment}
    return {"confirmed": decided.is_approved, "payload": payload}
