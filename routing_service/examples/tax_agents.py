"""The tax assistant's agents: a coordinator who routes and specialists who stay.

Each function is one agent. What they say is in ``lines/tax.*.ftl``; figures are those of Spain,
simplified, and no advice.
"""

from __future__ import annotations

from routing_service.examples.agent_reply import Complete, HandOff, Outcome
from routing_service.examples.scripted_agents import (
    Moment,
    ScriptedAgents,
    hand_over,
    load_lines,
    route_by_words,
)

_VAT_RATE = 0.21
# The earnings from one payer below which no return has to be filed.
_INCOME_TAX_FLOOR_EUR = 22_000
_WITHHOLDING_RATE = 0.15
_SOCIAL_SECURITY_RATE = 0.0647

_INVOICE_WORDS = ("factura*", "invoice*")
_PAYROLL_WORDS = ("nomina*", "payroll", "empleado*", "employee*", "salario*", "wages")
_VAT_WORDS = ("iva", "vat", "303")
_INCOME_WORDS = ("renta", "irpf", "income tax", "deducir", "deducc*", "deduct*", "tax return")
_FILING_WORDS = ("presenta", "presentar la", "presentarla", "file it", "file my", "submit")
_DEADLINE_WORDS = ("plazo*", "vence*", "cuando", "deadline*", "when", "due")

# In this order: "file my VAT return" is for filing, "an invoice with VAT" for invoices.
_ROUTES = {
    "filing": _FILING_WORDS,
    "payroll": _PAYROLL_WORDS,
    "invoices": _INVOICE_WORDS,
    "vat": _VAT_WORDS,
    "income_tax": _INCOME_WORDS,
}

# Terms that take the user from one specialist straight to another.
_COLLEAGUES = {"invoices": _INVOICE_WORDS, "vat": _VAT_WORDS, "income_tax": _INCOME_WORDS}


def make_agents() -> ScriptedAgents:
    """Return the agents of one conversation."""
    scripts = {
        "coordinator": _coordinator,
        "income_tax": _income_tax,
        "vat": _vat,
        "invoices": _invoices,
        "payroll": _payroll,
        "filing": _filing,
    }
    return ScriptedAgents(scripts, _explain_refusal, load_lines("tax"), "es")


def _coordinator(moment: Moment) -> Outcome | None:
    """Route by the message's topic; answer greetings directly."""
    agent_id = route_by_words(moment, _ROUTES)
    if agent_id:
        return hand_over(moment, agent_id, f"to-{agent_id.replace('_', '-')}")
    if moment.is_greeting:
        moment.say("welcome")
    elif moment.is_thanks:
        moment.say("goodbye")
    else:
        moment.say("what-about")
    return None


def _explain_refusal(moment: Moment) -> None:
    """Return a user's explanation of why the specialist cannot take the message."""
    moment.shared.pop("specialist", None)
    for rule in ("entitled", "channel"):
        if rule in moment.turn.refused_rules:
            moment.say(f"refused-{rule}")
            return
    moment.say("refused-other")


def _to_colleague(moment: Moment, own_id: str) -> HandOff | None:
    """Hand over if the message is clearly a colleague's."""
    for agent_id, terms in _COLLEAGUES.items():
        if agent_id != own_id and moment.mentions(*terms):
            return hand_over(moment, agent_id, f"to-{agent_id.replace('_', '-')}")
    return None


def _farewell(moment: Moment, summary: str) -> Complete | None:
    """Complete if the user says goodbye."""
    if not moment.is_thanks:
        return None
    moment.finish()
    moment.say("specialist-goodbye")
    return Complete(summary=summary)


def _vat(moment: Moment) -> Outcome | None:
    match moment.step:
        case "period":
            _vat_period(moment)
            return None
        case "sales":
            return _vat_sales(moment)
        case _:
            pass
    if outcome := _farewell(moment, "VAT explained"):
        return outcome
    if moment.mentions(*_DEADLINE_WORDS):
        moment.say("vat-deadline-monthly" if _is_monthly(moment) else "vat-deadline-quarterly")
        return None
    if not moment.mentions(*_VAT_WORDS) and (handoff := _to_colleague(moment, "vat")):
        return handoff
    moment.ask("period", "vat-ask-period")
    return None


def _is_monthly(moment: Moment) -> bool:
    return moment.notes.get("period") == "monthly"


def _vat_period(moment: Moment) -> None:
    if moment.mentions("mensual*", "mes", "monthly", "month"):
        moment.notes["period"] = "monthly"
    elif moment.mentions("trimest*", "quarter*"):
        moment.notes["period"] = "quarterly"
    elif moment.is_unsure:
        # Almost every small business files by quarter, so that is the default.
        moment.notes["period"] = "quarterly"
        moment.say("vat-period-guessed")
    else:
        moment.ask("period", "vat-ask-period-again")
        return
    moment.ask("sales", "vat-ask-sales")


def _vat_sales(moment: Moment) -> Outcome | None:
    if moment.is_unsure:
        moment.ask("sales", "vat-sales-help")
        return None
    sales = moment.number
    if sales is None:
        if handoff := _to_colleague(moment, "vat"):
            return handoff
        moment.ask("sales", "vat-sales-again")
        return None
    moment.finish()
    moment.say("vat-result", sales=_euros(moment, sales), vat=_euros(moment, sales * _VAT_RATE))
    return None


def _income_tax(moment: Moment) -> Outcome | None:
    match moment.step:
        case "income":
            return _income_tax_income(moment)
        case _:
            pass
    if outcome := _farewell(moment, "income tax explained"):
        return outcome
    if moment.mentions("deducir", "deducc*", "deduct*"):
        moment.say("income-deductions")
        return None
    if moment.mentions(*_DEADLINE_WORDS):
        moment.say("income-deadline")
        return None
    if not moment.mentions(*_INCOME_WORDS) and (handoff := _to_colleague(moment, "income_tax")):
        return handoff
    moment.ask("income", "income-ask")
    return None


def _income_tax_income(moment: Moment) -> Outcome | None:
    if moment.is_unsure:
        moment.ask("income", "income-help")
        return None
    income = moment.number
    if income is None:
        if handoff := _to_colleague(moment, "income_tax"):
            return handoff
        moment.ask("income", "income-again")
        return None
    moment.finish()
    line_id = "income-due" if income > _INCOME_TAX_FLOOR_EUR else "income-not-due"
    floor = _euros(moment, _INCOME_TAX_FLOOR_EUR)
    moment.say(line_id, income=_euros(moment, income), floor=floor)
    return None


def _invoices(moment: Moment) -> Outcome | None:
    if not moment.step and (outcome := _farewell(moment, "invoice looked up")):
        return outcome
    number = moment.number
    if number is None:
        if not moment.mentions(*_INVOICE_WORDS) and (handoff := _to_colleague(moment, "invoices")):
            return handoff
        moment.ask("number", "invoice-help" if moment.is_unsure else "invoice-ask")
        return None
    moment.finish()
    # The script's book: odd numbers have been paid.
    line_id = "invoice-paid" if int(number) % 2 else "invoice-open"
    moment.say(line_id, number=f"F-{int(number)}")
    return Complete(summary=f"invoice F-{int(number)} looked up")


def _payroll(moment: Moment) -> Outcome | None:
    if moment.step == "people":
        people = moment.number
        if people is None:
            moment.ask("people", "payroll-help" if moment.is_unsure else "payroll-ask")
            return None
        moment.notes["people"] = str(int(people))
        moment.ask("salary", "payroll-ask-salary")
        return None
    if moment.step == "salary":
        salary = moment.number
        if salary is None:
            moment.ask("salary", "payroll-salary-help")
            return None
        moment.finish()
        net = salary * (1 - _WITHHOLDING_RATE - _SOCIAL_SECURITY_RATE)
        moment.say("payroll-result", people=moment.notes["people"], net=_euros(moment, net))
        return Complete(summary="payroll prepared")
    if outcome := _farewell(moment, "payroll explained"):
        return outcome
    moment.ask("people", "payroll-ask")
    return None


def _filing(moment: Moment) -> Outcome | None:
    if moment.step == "which":
        if moment.mentions(*_VAT_WORDS):
            moment.notes["which"] = "303"
        elif moment.mentions(*_INCOME_WORDS):
            moment.notes["which"] = "100"
        else:
            moment.ask("which", "filing-ask")
            return None
        moment.ask("confirm", "filing-confirm", form=moment.notes["which"])
        return None
    if moment.step == "confirm":
        if moment.is_yes:
            moment.finish()
            moment.say("filing-done", form=moment.notes["which"])
            return Complete(summary=f"form {moment.notes['which']} filed")
        if moment.is_no:
            moment.finish()
            moment.say("filing-not-done")
            return Complete(summary="filing called off by the user")
        moment.ask("confirm", "filing-confirm-again", form=moment.notes["which"])
        return None
    if moment.mentions(*_VAT_WORDS):
        moment.notes["which"] = "303"
        moment.ask("confirm", "filing-confirm", form="303")
        return None
    moment.ask("which", "filing-ask")
    return None


def _euros(moment: Moment, amount: float) -> str:
    """Write an amount the way the user's language does."""
    text = f"{amount:,.2f}"
    if moment.locale == "es":
        return text.translate(str.maketrans(",.", ".,")) + " €"
    return f"€{text}"
