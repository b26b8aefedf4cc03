"""Agents as callers see them, made once per registry, agent and locale."""

from __future__ import annotations

from typing import Final

from agent_routing.v1 import agent_pb2, dispatch_pb2
from routing_service.core.registry import Agent, AgentKind, Registry

AGENT_KINDS: Final = {
    kind: agent_pb2.AgentKind.Value(f"AGENT_KIND_{kind.name}") for kind in AgentKind
}


class AgentCards:
    """The agents of one registry."""

    def __init__(self, registry: Registry) -> None:
        """Serve one registry."""
        self.registry = registry
        self._cards: dict[tuple[str, str], agent_pb2.Agent] = {}
        self._bytes: dict[tuple[str, str], bytes] = {}

    # Locales come from callers: without a bound they could fill the memory.
    _CARDS_MAX: Final = 10_000

    def card(self, agent_id: str, locale: str) -> agent_pb2.Agent:
        """Return an agent in a locale. An agent that is not registered has only its id."""
        card = self._cards.get((agent_id, locale))
        if card is None:
            if len(self._cards) >= self._CARDS_MAX:
                self._cards.clear()
            card = self._cards[agent_id, locale] = self._make(agent_id, locale)
        return card

    def card_bytes(self, agent_id: str, locale: str) -> bytes:
        """Return the same, serialised."""
        data = self._bytes.get((agent_id, locale))
        if data is None:
            if len(self._bytes) >= self._CARDS_MAX:
                self._bytes.clear()
            data = self.card(agent_id, locale).SerializeToString()
            self._bytes[agent_id, locale] = data
        return data

    def delivery(self, agent_id: str) -> dispatch_pb2.Delivery.ValueType:
        """Return who carries an agent's turns."""
        agent = self.registry.agent(agent_id)
        is_inbox = agent is not None and agent.has_inbox
        return dispatch_pb2.DELIVERY_INBOX if is_inbox else dispatch_pb2.DELIVERY_UNSPECIFIED

    def _make(self, agent_id: str, locale: str) -> agent_pb2.Agent:
        agent: Agent | None = self.registry.agent(agent_id)
        if agent is None:
            return agent_pb2.Agent(agent_id=agent_id, display_name=agent_id, enabled=False)
        default_locale = self.registry.default_locale
        return agent_pb2.Agent(
            agent_id=agent_id,
            display_name=agent.display_name(locale or default_locale, default_locale),
            description=agent.display_description(locale or default_locale, default_locale),
            icon=agent.icon,
            color=agent.color,
            kind=AGENT_KINDS[agent.kind],
            user_selectable=agent.user_selectable,
            enabled=agent.enabled,
        )


class CardCache:
    """The cards of the registry that was used last; a reload starts with empty cards."""

    def __init__(self, registry: Registry) -> None:
        """Start with one registry."""
        self.latest = AgentCards(registry)

    def of(self, registry: Registry) -> AgentCards:
        """Return the cards of a registry."""
        if self.latest.registry is not registry:
            self.latest = AgentCards(registry)
        return self.latest
