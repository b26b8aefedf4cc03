"""What the commands that move a conversation ask and say of the message that waits in it."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Annotated, Final, TypeVar

import typer
from rich.text import Text

from agent_routing.v1.moved_turn_pb2 import MovedTurn
from agent_routing.v1.routing_service_pb2 import ClearActiveAgentResponse, SetActiveAgentResponse
from routing_service.cli.screen import agent_text, console, time_text


class OpenTurn(enum.StrEnum):
    """What becomes of the message that waits."""

    TAKE_ALONG = "take-along"
    LEAVE = "leave"
    ABANDON = "abandon"

    @property
    def value_name(self) -> str:
        """The enum value's name in the contract, without its prefix."""
        return self.upper().replace("-", "_")


OpenTurnOption = Annotated[
    OpenTurn | None,
    typer.Option(
        "--open-turn",
        show_default=False,
        help="The message that waits: take-along gives it to the new agent, leave keeps it where "
        "it is. Default: operators take it along, users abandon it.",
    ),
]

_FATES: Final = {
    MovedTurn.OPEN_TURN_TAKE_ALONG: "goes along to ",
    MovedTurn.OPEN_TURN_LEAVE: "stays with ",
    MovedTurn.OPEN_TURN_ABANDON: "is abandoned",
}

Answer = TypeVar("Answer", SetActiveAgentResponse, ClearActiveAgentResponse)


def tried_first(
    act: Callable[..., Answer], expected_revision: int | None, *, as_json: bool
) -> Answer:
    """Try an operator's act, say what becomes of the message that waits, and do it.

    It is done only if nothing has changed since the trial. expected_revision: the caller's own.
    """
    trial = act(expected_revision=expected_revision, validate_only=True)
    if not as_json:
        print_moved(trial)
    return act(expected_revision=trial.revision, validate_only=False)


def print_moved(answer: SetActiveAgentResponse | ClearActiveAgentResponse) -> None:
    """Print what becomes of the message that waits, if one does."""
    if not answer.HasField("moved_turn"):
        return
    moved = answer.moved_turn
    line = Text(f"a message that waits since {time_text(moved.waiting_since)} ")
    line.append(_FATES.get(moved.open_turn, "is moved to "))
    if moved.HasField("agent"):
        line.append_text(agent_text(moved.agent))
    line.append(f"  request {moved.request_id}", style="dim")
    console().print(line)
