"""What ask() returns, and how it finds out that a message was answered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from agent_routing.route_result import RouteResult
from agent_routing.v1.dispatch_pb2 import DELIVERY_INBOX, Dispatch
from agent_routing.v1.route_reason_pb2 import ROUTE_REASON_CONSULTED
from agent_routing.v1.turn_pb2 import Turn

ASK_S_DEFAULT: Final = 300.0
"""How long ask() waits: longer than a person does, shorter than the service's turn_timeout."""

ASK_WATCH_S: Final = 20.0
"""How long one watch of ask() lasts before it looks again."""

ASK_TURNS: Final = 100
"""Turns that ask() reads: a message passes through far fewer agents."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The answer to a message.

    route: what route() returned. turns: what the agents did, in order; empty for a command.
    """

    route: RouteResult
    turns: tuple[Turn, ...] = ()

    @property
    def text(self) -> str:
        """Everything that the user should see, with an empty line between two agents' texts."""
        if not self.turns:
            return self.route.reply_text or ""
        texts = [
            text
            for turn in self.turns
            if not _is_consult(turn, self.turns)
            for text in (turn.agent_text, turn.handoff_message)
        ]
        return "\n\n".join(text for text in texts if text)

    @property
    def agent_id(self) -> str:
        """The agent that answered last; empty for a command."""
        return self.turns[-1].agent_id if self.turns else ""

    @property
    def session_id(self) -> str:
        """The session."""
        return self.route.session_id

    @property
    def request_id(self) -> str:
        """The request of the message: ask() with it again returns the same answer."""
        return self.route.request_id


def check_inbox(dispatch: Dispatch) -> None:
    """Raise ValueError for a turn that the caller has to carry."""
    if dispatch.delivery != DELIVERY_INBOX:
        raise ValueError(
            f'agent "{dispatch.agent.agent_id}" has no inbox; carry request {dispatch.request_id} '
            "to it, or set delivery: inbox for it in the registry"
        )


def chain_of(request_id: str, newest_first: Iterable[Turn]) -> tuple[Turn, ...]:
    """Return the turns that followed from a request, itself included, the oldest first."""
    found: list[Turn] = []
    known = {request_id}
    for turn in reversed(list(newest_first)):
        if turn.request_id in known or turn.parent_request_id in known:
            known.add(turn.request_id)
            found.append(turn)
    return tuple(found)


def is_open(turns: Sequence[Turn], open_requests: Iterable[Dispatch]) -> bool:
    """Say whether one of the requests still waits for an answer."""
    requests = {turn.request_id for turn in turns}
    return not turns or any(dispatch.request_id in requests for dispatch in open_requests)


def no_answer_yet(routed: RouteResult, wait_s: float) -> str:
    """Say that an answer takes longer than the caller waits."""
    return (
        f'no answer from agent "{routed.agent_id}" in {wait_s:g} s; its turn goes on: ask again '
        f"with request_id {routed.request_id}"
    )


def _is_consult(turn: Turn, turns: Sequence[Turn]) -> bool:
    """Say whether an answer was for the agent that asked, and not for the user."""
    return turn.reason == ROUTE_REASON_CONSULTED and any(
        after.parent_request_id == turn.request_id
        and after.reason == ROUTE_REASON_CONSULTED
        and after.agent_id == turn.from_agent_id
        for after in turns
    )
