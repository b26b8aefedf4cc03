"""The budget assistant's agents: an orchestrator and four who keep the user only while they ask.

Each function is one agent. What they say is in ``lines/budget.*.ftl``. All four ask with the
ask-user tool, and nothing else keeps the conversation with them.
"""

from __future__ import annotations

from routing_service.examples.agent_reply import HandOff, Outcome
from routing_service.examples.scripted_agents import (
    Moment,
    ScriptedAgents,
    hand_over,
    load_lines,
    route_by_words,
    small_talk,
)

_FEE_WORDS = (
    "every month",
    "each month",
    "monthly",
    "subscription*",
    "al mes",
    "cada mes",
    "mensual*",
    "suscripcion*",
    "por mes",
    "todo mes",
    "assinatura*",
)
_SPENDING_WORDS = (
    "bought",
    "spent",
    "spend",
    "compr*",
    "gaste",
    "he gastado",
    "llevo gastado",
    "gastei",
)
_JAR_WORDS = ("jar", "jars", "hucha*", "put aside", "apartar", "pote*", "guardar")
_ADVICE_WORDS = ("save", "saving", "plan", "advice", "ahorrar", "consejo*", "repartir", "poupar")

# In this order: "I bought" is spending even if it is bought every month; its agent sees to that.
_ROUTES = {
    "transaction_classifier": _SPENDING_WORDS,
    "jar_manager": _JAR_WORDS,
    "fee_manager": (*_FEE_WORDS, "rent", "alquiler", "aluguel"),
    "budget_advisor": _ADVICE_WORDS,
}

_DAY_MAX = 31
# Half for needs, a third for wants, the rest to save: a rule of thumb that people know.
_NEEDS_SHARE, _WANTS_SHARE, _SAVINGS_SHARE = 0.5, 0.3, 0.2


def make_agents() -> ScriptedAgents:
    """Return the agents of one conversation."""
    scripts = {
        "orchestrator": _orchestrator,
        "budget_advisor": _budget_advisor,
        "jar_manager": _jar_manager,
        "fee_manager": _fee_manager,
        "transaction_classifier": _transaction_classifier,
    }
    return ScriptedAgents(scripts, _explain_refusal, load_lines("budget"), "en")


def _explain_refusal(moment: Moment) -> None:
    moment.say("refused")


def _orchestrator(moment: Moment) -> Outcome | None:
    agent_id = route_by_words(moment, _ROUTES, specialists_stick=False)
    if agent_id:
        return hand_over(moment, agent_id, f"to-{agent_id.replace('_', '-')}")
    small_talk(moment)
    return None


def _budget_advisor(moment: Moment) -> Outcome | None:
    """Ask for income and the largest expense, then split the money."""
    match moment.step:
        case "income":
            income = moment.number
            if income is None:
                moment.ask("income", "advice-income-help" if moment.is_unsure else "advice-income")
                return None
            moment.notes["income"] = str(income)
            moment.ask("expense", "advice-expense")
        case "expense":
            moment.finish()
            income = float(moment.notes["income"])
            if not moment.is_unsure:
                moment.say("advice-expense-noted")
            moment.say(
                "advice-plan",
                needs=_money(income * _NEEDS_SHARE),
                wants=_money(income * _WANTS_SHARE),
                savings=_money(income * _SAVINGS_SHARE),
            )
        case _:
            moment.ask("income", "advice-income")
    return None


def _jar_manager(moment: Moment) -> Outcome | None:
    """Make jars and show their content. A new one takes up to three questions."""
    match moment.step:
        case "amount":
            amount = moment.number
            if amount is None:
                moment.ask("amount", "jar-amount-help" if moment.is_unsure else "jar-amount")
                return None
            moment.notes["amount"] = _money(amount)
            moment.ask("source", "jar-source")
        case "source" if moment.is_unsure:
            moment.ask("confirm", "jar-source-suggest")
        case "confirm" if moment.is_no:
            moment.ask("source", "jar-source")
        case "source" | "confirm":
            moment.finish()
            jars = moment.notes.get("jars", "")
            line = moment.line(
                "jar-entry",
                number=str(jars.count("\n") + 1 if jars else 1),
                amount=moment.notes["amount"],
            )
            moment.notes["jars"] = f"{jars}\n{line}" if jars else line
            moment.say("jar-done", amount=moment.notes["amount"])
        case _ if moment.mentions("what", "how much", "which", "que", "cuanto", "cuales"):
            if "jars" in moment.notes:
                moment.say("jar-list", jars=moment.notes["jars"])
            else:
                moment.say("jar-none")
        case _:
            moment.ask("amount", "jar-amount")
    return None


def _fee_manager(moment: Moment) -> Outcome | None:
    """Note what is paid every month, and on which day."""
    match moment.step:
        case "amount" | "day" if moment.is_unsure:
            moment.ask(moment.step, f"fee-{moment.step}-help")
        case "amount":
            amount = moment.number
            if amount is None:
                moment.ask("amount", "fee-amount")
                return None
            moment.notes["amount"] = _money(amount)
            moment.ask("day", "fee-day", amount=moment.notes["amount"])
        case "day":
            day = moment.number
            if day is None or not 1 <= day <= _DAY_MAX:
                moment.ask("day", "fee-day-again")
                return None
            moment.finish()
            fees = int(moment.notes.get("fees", "0")) + 1
            moment.notes["fees"] = str(fees)
            moment.say("fee-done", amount=moment.notes["amount"], day=str(int(day)), count=fees)
        case _:
            amount = moment.number
            if amount is None:
                moment.ask("amount", "fee-amount")
                return None
            moment.notes["amount"] = _money(amount)
            moment.ask("day", "fee-day", amount=moment.notes["amount"])
    return None


def _transaction_classifier(moment: Moment) -> Outcome | None:
    """Note an expense under needs or wants; monthly expenses are a colleague's."""
    match moment.step:
        case "category" if moment.is_unsure:
            moment.ask("category", "spending-category-help")
        case "category":
            if moment.mentions("need*", "necesidad*", "necesario", "necessidade*"):
                category = "needs"
            elif moment.mentions("want*", "fun", "capricho*", "ocio", "desejo*"):
                category = "wants"
            else:
                moment.ask("category", "spending-category-again")
                return None
            moment.finish()
            total = float(moment.notes.get("total", "0")) + float(moment.notes["amount"])
            moment.notes["total"] = str(total)
            moment.say(f"spending-done-{category}", amount=_money(float(moment.notes["amount"])))
        case _ if moment.mentions(*_FEE_WORDS):
            return _to_fee_manager(moment)
        case _:
            amount = moment.number
            if amount is None:
                moment.say("spending-total", total=_money(float(moment.notes.get("total", "0"))))
                return None
            moment.notes["amount"] = str(amount)
            moment.ask("category", "spending-category", amount=_money(amount))
    return None


def _to_fee_manager(moment: Moment) -> HandOff:
    moment.shared["specialist"] = "fee_manager"
    return HandOff(
        "fee_manager",
        reason="the expense comes back every month",
        context={"amount": moment.number},
        message=moment.line("spending-to-fees"),
    )


def _money(amount: float) -> str:
    """Write an amount, without cents if they are zero."""
    return f"{amount:.2f}".removesuffix(".00")
