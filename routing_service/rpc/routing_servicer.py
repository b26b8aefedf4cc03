"""RoutingService, put together from its parts."""

from __future__ import annotations

from collections.abc import Callable

from routing_service.ids import new_uuid7
from routing_service.rpc.agent_cards import CardCache
from routing_service.rpc.routing.approvals import ApprovalCalls
from routing_service.rpc.routing.complete_turn import CompleteTurnCalls
from routing_service.rpc.routing.degraded_turns import DegradedTurnCalls
from routing_service.rpc.routing.handoffs import HandoffCalls
from routing_service.rpc.routing.inbox import InboxCalls
from routing_service.rpc.routing.keep_turn import KeepTurnCalls
from routing_service.rpc.routing.notes import NoteCalls
from routing_service.rpc.routing.people import PeopleCalls
from routing_service.rpc.routing.reads import SessionReads
from routing_service.rpc.routing.route import RouteCalls
from routing_service.rpc.rpc_method import all_methods
from routing_service.sessions.approval_watches import ApprovalWatches
from routing_service.sessions.command_handler import CommandHandler
from routing_service.sessions.event_feed import EventFeed
from routing_service.sessions.inbox import Inbox
from routing_service.sessions.live_feed import LiveFeed


class RoutingServicer:
    """The RPCs of agent_routing.v1.RoutingService."""

    def __init__(
        self,
        handler: CommandHandler,
        feed: EventFeed,
        inbox: Inbox,
        approvals: ApprovalWatches,
        live: LiveFeed,
        *,
        new_id: Callable[[], str] = new_uuid7,
    ) -> None:
        """Answer from one handler, with what its streams watch.

        new_id: makes ids that callers leave out.
        """
        cards = CardCache(handler.registry)
        self.methods = all_methods(
            (
                RouteCalls(handler, cards, new_id),
                CompleteTurnCalls(handler, cards, new_id),
                HandoffCalls(handler, cards, new_id),
                DegradedTurnCalls(handler),
                SessionReads(handler, feed, live, cards),
                InboxCalls(handler, inbox, cards),
                ApprovalCalls(handler, approvals, cards),
                KeepTurnCalls(handler, inbox, live),
                PeopleCalls(handler, cards, new_id),
                NoteCalls(handler, cards, new_id),
            )
        )
