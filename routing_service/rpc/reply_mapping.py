"""A reply of the service to the user, in its language, as answers carry it."""

from __future__ import annotations

from agent_routing.v1 import dispatch_pb2
from routing_service.core.slash_commands import ReplySpec
from routing_service.sessions.calls import Made
from routing_service.texts.replies import render_reply


def reply_out(made: Made, reply: ReplySpec, locale: str) -> dispatch_pb2.Reply:
    """Return a reply to a command, or a notice, which has no command's name."""
    rendered = render_reply(
        reply, made.registry, locale, made.turns, channel=made.decided.state.channel
    )
    return dispatch_pb2.Reply(
        command=f"/{reply.command}" if reply.command else "",
        text=rendered.text,
        locale=rendered.locale,
        options=[
            dispatch_pb2.ReplyOption(label=option.label, text=option.text)
            for option in rendered.options
        ],
    )
