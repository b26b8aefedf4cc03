"""Items of messages and steps of the execution trace, made from plain Python values.

The functions return the generated messages, and each makes an item with exactly one content.
"""

from __future__ import annotations

from datetime import datetime

from agent_routing import plain_values
from agent_routing.v1.item_pb2 import Item
from agent_routing.v1.turn_pb2 import Step

__all__ = ["Item", "Step", "data_item", "step", "text_item", "uri_item"]


def text_item(text: str, content_type: str = "text/plain") -> Item:
    """Return an item that holds text, at most 32 KiB. content_type: a media type."""
    return Item(content_type=content_type, text=text)


def data_item(data: bytes, content_type: str) -> Item:
    """Return an item that holds bytes, at most 64 KiB. content_type: such as "image/png"."""
    return Item(content_type=content_type, data=data)


def uri_item(uri: str, content_type: str) -> Item:
    """Return an item whose content is at an absolute URI. The service does not fetch it."""
    return Item(content_type=content_type, uri=uri)


def step(
    name: str,
    *,
    kind: str = "",
    input: str = "",  # noqa: A002 - the contract's name
    output: str = "",
    start_time: datetime | None = None,
    duration: plain_values.Seconds | None = None,
) -> Step:
    """Return one step of an agent's work on a turn: a model call, a tool call, a result.

    name: for example the tool's, 1-128 characters. kind: such as "tool" or "model". input, output:
    text in any format. start_time: with a time zone. Raises ValueError for a start_time without a
    time zone.
    """
    return Step(
        name=name,
        kind=kind,
        input=input,
        output=output,
        start_time=plain_values.timestamp("start_time", start_time),
        duration=plain_values.duration(duration),
    )
