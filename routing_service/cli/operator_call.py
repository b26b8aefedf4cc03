"""The client of the commands that remove data, and their confirmation.

Its rule: nothing is removed without confirmation, by --yes or by a person who was shown how much
would go.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from agent_routing import Client
from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1.admin_service_pb2_grpc import AdminServiceStub
from routing_service.cli.failure import EXIT_USAGE, CommandFailed
from routing_service.cli.server_call import CallOptions, connected


class Operator(Client):
    """A Client with the calls that remove data."""

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
def operating(options: CallOptions) -> Iterator[Operator]:
    """Give the client. Raises CommandFailed if a call in the block fails."""
    with connected(Operator, options) as client:
        yield client


def confirm(question: str, *, said_yes: bool) -> None:
    """Ask the person at the terminal. Raises CommandFailed without a yes."""
    if said_yes:
        return
    if not sys.stdin.isatty():
        raise CommandFailed(
            "this cannot be undone, and no terminal is there to confirm it; look with --dry-run, "
            "then repeat with --yes",
            exit_code=EXIT_USAGE,
        )
    if not typer.confirm(question, err=True):
        raise CommandFailed("nothing was removed")
