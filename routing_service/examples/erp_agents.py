"""The ERP assistant's agents: an orchestrator or a reception, and a module for each subject.

Each function is one agent. What they say is in ``lines/erp.*.ftl``. The modules hand to each other
by the transfer tool, with what the next one needs to know.
"""

from __future__ import annotations

from routing_service.examples.agent_reply import Complete, Outcome
from routing_service.examples.scripted_agents import (
    Moment,
    Script,
    ScriptedAgents,
    hand_over,
    load_lines,
    plain,
    route_by_words,
    small_talk,
)

# The first that matches counts: an invoice for an order is finance's, buying more is purchasing's.
_ROUTES = {
    "finance": ("invoice*", "factura*"),
    "purchasing": ("reorder", "buy", "purchase*", "supplier*", "comprar", "proveedor*"),
    "inventory": ("stock", "warehouse*", "existencias", "almacen*"),
    "sales_orders": ("order*", "pedido*"),
}

_MORE = ("order more", "more", "reorder", "comprar", "mas")
_JOURNAL = ("journal", "diario")
_ITEM = ("blue widgets", "piezas azules")


def make_agents() -> ScriptedAgents:
    """Return the agents of one conversation, with a supervisor."""
    return _agents("orchestrator")


def make_swarm_agents() -> ScriptedAgents:
    """Return the agents of one conversation of the swarm."""
    return _agents("reception")


def _agents(home_agent_id: str) -> ScriptedAgents:
    scripts: dict[str, Script] = {
        home_agent_id: _home,
        "inventory": _inventory,
        "purchasing": _purchasing,
        "sales_orders": _sales_orders,
        "finance": _finance,
    }
    return ScriptedAgents(scripts, _explain_refusal, load_lines("erp"), "en")


def _explain_refusal(moment: Moment) -> None:
    moment.say("refused-system" if "not_system" in moment.turn.refused_rules else "refused")


def _home(moment: Moment) -> Outcome | None:
    agent_id = route_by_words(moment, _ROUTES)
    if agent_id:
        return hand_over(moment, agent_id, f"to-{agent_id.replace('_', '-')}")
    small_talk(moment)
    return None


def _item(moment: Moment) -> str:
    """Return the item under discussion, under the user's name for it."""
    for name in _ITEM:
        if name in moment.words:
            moment.shared["item"] = name
    return moment.shared.get("item", "")


def _amount(moment: Moment) -> str:
    return "" if moment.number is None else f"{moment.number:g}"


def _inventory(moment: Moment) -> Outcome | None:
    """Report the stock; purchasing orders missing items."""
    item = _item(moment)
    if moment.mentions(*_MORE) and moment.number is not None:
        moment.transfer_to_agent(
            "purchasing",
            "the user wants more than there is",
            context={"item": item, "quantity": moment.number},
            message=moment.line("to-purchasing"),
        )
    elif moment.mentions(*_ROUTES["sales_orders"]):
        moment.transfer_to_agent(
            "sales_orders",
            "the message is about a customer's order",
            message=moment.line("to-sales-orders"),
        )
    elif not item:
        moment.say("stock-what")
    elif moment.mentions("hamburg", "hamburgo"):
        moment.say("stock-place", item=item)
    else:
        moment.say("stock", item=item)
    return None


def _purchasing(moment: Moment) -> Outcome | None:
    """Order once quantity and date are known."""
    told = moment.turn.handoff_context
    if "quantity" in told:
        moment.notes["quantity"] = f"{told['quantity']:g}"
        moment.notes["item"] = str(told["item"] or moment.line("no-item"))
    elif moment.step != "day" and _amount(moment):
        moment.notes["quantity"] = _amount(moment)
        moment.notes["item"] = _item(moment) or moment.line("no-item")
    quantity, item = moment.notes.get("quantity", ""), moment.notes.get("item", "")
    if not quantity:
        moment.ask("quantity", "purchase-what")
    elif moment.step != "day":
        moment.ask("day", "purchase-when", quantity=quantity, item=item)
    elif moment.is_unsure:
        moment.ask("day", "purchase-unsure", quantity=quantity, item=item)
    else:
        moment.finish()
        moment.say("purchase-done", quantity=quantity, item=item, day=moment.turn.text.strip())
        moment.notes.clear()
    return None


def _sales_orders(moment: Moment) -> Outcome | None:
    """Show an order; its invoice is finance's."""
    if moment.number is not None:
        moment.shared["order"] = _amount(moment)
    order = moment.shared.get("order", "")
    if moment.turn.reason == "task_completed":
        moment.say("order-back", order=order)
    elif moment.mentions(*_JOURNAL):
        # The service refuses transfers that the registry does not allow.
        moment.transfer_to_agent("journal", "to be written down")
    elif moment.mentions(*_ROUTES["finance"]):
        moment.transfer_to_agent(
            "finance",
            "the order is to be invoiced",
            context={"order": order},
            message=moment.line("to-finance"),
        )
    elif not order:
        moment.ask("order", "order-which")
    else:
        moment.finish()
        moment.say("order", order=order)
    return None


def _finance(moment: Moment) -> Outcome | None:
    """Issue the invoice of the order that was handed over, or asked for."""
    order = str(moment.turn.handoff_context.get("order", "")) or _amount(moment)
    if not order:
        moment.ask("order", "invoice-which")
        return None
    moment.finish()
    moment.say("invoice-done", order=order)
    return Complete(summary=f"invoice for order {plain(order)}")
