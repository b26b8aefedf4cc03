"""AdminService, put together from its parts.

Who may call is decided before a call comes here. A call is about the caller's tenant, unless it
names another one. Lists are pages, and the work for a page is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from routing_service.analytics.keeper import StatsKeeper
from routing_service.registry.live_registry import RegistrySource
from routing_service.rpc.admin.audit import AuditCalls
from routing_service.rpc.admin.audit_proof import AuditProofCalls
from routing_service.rpc.admin.inbox_list import InboxListCalls
from routing_service.rpc.admin.operations import OperationsCalls
from routing_service.rpc.admin.registry_calls import RegistryCalls
from routing_service.rpc.admin.replay_calls import ReplayCalls
from routing_service.rpc.admin.replay_runs import ReplayBounds, Replays
from routing_service.rpc.admin.replay_sources import ReplaySources
from routing_service.rpc.admin.server_status import ServerStatus, ServerStatusCalls
from routing_service.rpc.admin.session_at import SessionAtCalls
from routing_service.rpc.admin.sessions import SessionListCalls
from routing_service.rpc.admin.user_data import UserDataCalls
from routing_service.rpc.agent_cards import AgentCards, CardCache
from routing_service.rpc.rpc_method import UnaryMethod, all_methods
from routing_service.rpc.tenant_audit import READ_MAX, SCANNED_MAX
from routing_service.sessions.command_handler import CommandHandler
from routing_service.sessions.event_feed import EventFeed
from routing_service.sessions.retention import Retention
from routing_service.sessions.stickiness_switch import StickinessSwitch
from routing_service.sessions.text_reads import TextReads
from routing_service.storage.checked_store import Store


class AdminServicer:
    """The RPCs of agent_routing.v1.AdminService. replays: those that run, and the latest ones."""

    def __init__(
        self,
        store: Store,
        handler: CommandHandler,
        feed: EventFeed,
        *,
        source: RegistrySource,
        switch: StickinessSwitch,
        stats: StatsKeeper,
        clock_us: Callable[[], int],
        read_status: Callable[[], ServerStatus],
        list_turns: UnaryMethod,
        replay_settings: Mapping[str, str | int | float | bool],
        replay_bounds: ReplayBounds,
        audit_read_max: int = READ_MAX,
        audit_scanned_max: int = SCANNED_MAX,
        shown_id: Callable[[str], str] = str,
    ) -> None:
        """Answer from one store. clock_us: microseconds since 1970. shown_id: of examples.

        read_status: returns how the server is doing. list_turns: the RPC that replays read by.
        replay_settings: of the server, for the processes of replays.
        audit_read_max, audit_scanned_max: changes of a tenant's audit that are read at once, and
        for one page.
        """
        cards: CardCache | None = None

        def cards_in_force() -> AgentCards:
            nonlocal cards
            if cards is None:
                # Not before the first call: cards keep their registry, and there may be no call.
                cards = CardCache(source.registry)
            return cards.of(source.registry)

        text_reads = TextReads(handler.audit)
        audit_calls = AuditCalls(
            store,
            feed,
            cards_in_force,
            text_reads,
            read_max=audit_read_max,
            scanned_max=audit_scanned_max,
        )
        sources = ReplaySources(store, list_turns, audit_calls.methods["ListEvents"])
        self.replays = Replays(
            sources, lambda: source.registry, clock_us, replay_settings, replay_bounds
        )
        self.methods = all_methods(
            (
                SessionListCalls(store, cards_in_force),
                SessionAtCalls(store, cards_in_force),
                InboxListCalls(handler, cards_in_force),
                ServerStatusCalls(read_status),
                AuditProofCalls(store),
                audit_calls,
                UserDataCalls(
                    store,
                    handler,
                    Retention(store, handler, feed, clock_us, handler.audit),
                    cards_in_force,
                    clock_us,
                ),
                OperationsCalls(
                    store,
                    source=source,
                    switch=switch,
                    stats=stats,
                    audit=handler.audit,
                    clock_us=clock_us,
                ),
                RegistryCalls(store, source=source, audit=handler.audit, shown_id=shown_id),
                ReplayCalls(self.replays, sources, handler.audit, text_reads),
            )
        )
