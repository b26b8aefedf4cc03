"""Calls that remove something, for the commands that make them, and the question before.

Owns the client of these commands, and when a person is asked first. It must not know what is
removed. Its rule: nothing is removed that was not confirmed, by a word on the command line or by
somebody who was shown how much it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import typer

from agent_routing import Client, RetryPolicy, RoutingError
from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1.admin_service_pb2_grpc import AdminServiceStub
from routing_service.cli.credentials import given
from routing_service.cli.failure import EXIT_USAGE, CommandFailed, call_failed
from routing_service.cli.server_call import Place

_RETRY: Final = RetryPolicy(attempts_max=2, backoff_first_s=0.1)
"""A repeat goes on with what is left, so one for a connection that broke does no harm."""


class Operator(Client):
    """A Client that may also remove things."""

    def erase_user(self, request: pb.EraseUserRequest) -> pb.EraseUserResponse:
        """Erase a user's sessions. Raises RoutingError."""
        return self._call(self._stub_of_admin().EraseUser, request, None, None)

    def purge_sessions(self, request: pb.PurgeSessionsRequest) -> pb.PurgeSessionsResponse:
        """Remove old sessions. Raises RoutingError."""
        return self._call(self._stub_of_admin().PurgeSessions, request, None, None)

    def _stub_of_admin(self) -> AdminServiceStub:
        self._open()
        channel = self._given_channel or self._channel
        assert channel is not None
        return AdminServiceStub(channel)


@contextmanager
def operating(place: Place) -> Iterator[Operator]:
    """Give a client; a call that fails in the block ends the command with its line."""
    try:
        with Operator(
            place.target,
            tenant=place.tenant,
            timeout=place.timeout_s,
            retry=_RETRY,
            fallback=None,
            **given().for_client(),
        ) as client:
            yield client
    except RoutingError as error:
        raise call_failed(error, place.target, as_json=place.as_json) from error
    except ValueError as error:
        raise CommandFailed(str(error), exit_code=EXIT_USAGE) from error


def confirm(question: str, *, said_yes: bool) -> None:
    """Ask whoever sits there; ends the command without a yes."""
    if said_yes:
        return
    if not sys.stdin.isatty():
        raise CommandFailed(
            "this cannot be undone and nobody is there to be asked; look with --dry-run, then "
            "repeat with --yes",
            exit_code=EXIT_USAGE,
        )
    if not typer.confirm(question, err=True):
        raise CommandFailed("nothing was removed")
