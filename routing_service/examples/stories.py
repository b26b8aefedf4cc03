"""Scripted conversations over the examples: what a user says, and which agents should answer.

The terminal chat and the tests play them. Its rule: a story shows what an example is for, and no
more.
"""

from __future__ import annotations

from collections.abc import Mapping

from routing_service.examples.erp_stories import ERP, ERP_SWARM
from routing_service.examples.platform_story import PLATFORM
from routing_service.examples.story import Story, StoryTurn

_TAX = Story(
    name="tax",
    title="A shop owner asks about VAT in Spanish; the specialist keeps the conversation.",
    example="tax",
    locale="es",
    channel="whatsapp",
    turns=(
        StoryTurn("Hola", ("coordinator",), "NO_ACTIVE_AGENT"),
        StoryTurn(
            "¿Cómo declaro el IVA de mi tienda?",
            ("coordinator", "vat"),
            "NO_ACTIVE_AGENT",
            expect_locked_after=True,
            expect_active_after="vat",
        ),
        StoryTurn(
            "cada trimestre",
            ("vat",),
            "FOLLOW_UP_LOCK",
            expect_locked_after=True,
            expect_active_after="vat",
        ),
        StoryTurn(
            "no sé",
            ("vat",),
            "FOLLOW_UP_LOCK",
            expect_locked_after=True,
            expect_active_after="vat",
        ),
        StoryTurn("unos 12.000", ("vat",), "FOLLOW_UP_LOCK", expect_active_after="vat"),
        StoryTurn("¿Y cuándo vence el plazo?", ("vat",), "STICKY", expect_active_after="vat"),
        StoryTurn("/status", expect_command="status", expect_active_after="vat"),
        StoryTurn("  /AGENTS", expect_command="agents", expect_active_after="vat"),
        StoryTurn(
            "¿Está pagada la factura F-1023?",
            ("vat", "invoices"),
            "STICKY",
        ),
        StoryTurn(
            "/agent vat",
            expect_command="agent",
            expect_active_after="vat",
        ),
        StoryTurn(
            "Otro periodo, por favor",
            ("vat",),
            "STICKY",
            expect_locked_after=True,
            expect_active_after="vat",
        ),
        StoryTurn(
            "/supervisor quiero saber si tengo que hacer la renta",
            ("coordinator", "income_tax"),
            "COMMAND",
            expect_locked_after=True,
            expect_command="supervisor",
            expect_active_after="income_tax",
        ),
        StoryTurn(
            "gano 30.000 € al año",
            ("income_tax",),
            "FOLLOW_UP_LOCK",
            expect_active_after="income_tax",
        ),
        StoryTurn("gracias, eso es todo", ("income_tax",), "STICKY"),
        StoryTurn(
            "Ahora necesito preparar la nómina de dos empleados",
            ("coordinator",),
            "NO_ACTIVE_AGENT",
            expect_refused_rules=("entitled",),
        ),
        StoryTurn(
            "Pues presenta mi declaración de IVA",
            ("coordinator",),
            "NO_ACTIVE_AGENT",
            expect_refused_rules=("channel",),
        ),
        StoryTurn("/supervisores", ("coordinator",), "NO_ACTIVE_AGENT"),
        StoryTurn("/reset", expect_command="reset"),
        StoryTurn("/help", expect_command="help"),
    ),
)

_TAX_PREMIUM = Story(
    name="tax_premium",
    title="A subscriber has payroll done and files a return, in English, on the web.",
    example="tax",
    locale="en-GB",
    channel="web",
    entitlements=("plan:premium",),
    turns=(
        StoryTurn(
            "I need to run payroll",
            ("coordinator", "payroll"),
            "NO_ACTIVE_AGENT",
            expect_locked_after=True,
            expect_active_after="payroll",
        ),
        StoryTurn(
            "I'm not sure",
            ("payroll",),
            "FOLLOW_UP_LOCK",
            expect_locked_after=True,
            expect_active_after="payroll",
        ),
        StoryTurn(
            "two, so 2",
            ("payroll",),
            "FOLLOW_UP_LOCK",
            expect_locked_after=True,
            expect_active_after="payroll",
        ),
        StoryTurn("1,850.50", ("payroll",), "FOLLOW_UP_LOCK"),
        StoryTurn(
            "Please file my VAT return",
            ("coordinator", "filing"),
            "NO_ACTIVE_AGENT",
            expect_locked_after=True,
            expect_active_after="filing",
        ),
        # Choosing another agent does not leave a half-filed return.
        StoryTurn(
            "/agent vat when is it due?",
            expect_command="agent",
            expect_locked_after=True,
            expect_refused_rules=("owns_session",),
            expect_active_after="filing",
        ),
        StoryTurn(
            "what does it say?",
            ("filing",),
            "FOLLOW_UP_LOCK",
            expect_locked_after=True,
            expect_active_after="filing",
        ),
        StoryTurn("yes, go ahead", ("filing",), "FOLLOW_UP_LOCK"),
        StoryTurn("Thank you!", ("coordinator",), "NO_ACTIVE_AGENT"),
    ),
)

_TUTOR = Story(
    name="tutor",
    title="A lesson with two interludes, a test after each lesson, and three coordinator calls.",
    example="tutor",
    locale="en",
    channel="web",
    turns=(
        StoryTurn("Hi there!", ("coordinator",), "NO_ACTIVE_AGENT"),
        StoryTurn(
            "I want to practise fractions",
            ("coordinator", "math_specialist"),
            "NO_ACTIVE_AGENT",
            expect_locked_after=True,
            expect_active_after="math_specialist",
        ),
        StoryTurn(
            "3/4",
            ("math_specialist",),
            "FOLLOW_UP_LOCK",
            expect_locked_after=True,
            expect_active_after="math_specialist",
        ),
        StoryTurn(
            "By the way, who was king of France in the year 1700?",
            ("math_specialist",),
            "FOLLOW_UP_LOCK",
            expect_locked_after=True,
            expect_active_after="math_specialist",
        ),
        StoryTurn(
            "/agent language_specialist",
            expect_command="agent",
            expect_locked_after=True,
            expect_refused_rules=("owns_session",),
            expect_active_after="math_specialist",
        ),
        StoryTurn(
            "2/5",
            ("math_specialist",),
            "FOLLOW_UP_LOCK",
            expect_locked_after=True,
            expect_active_after="math_specialist",
        ),
        StoryTurn(
            "I don't know",
            ("math_specialist",),
            "FOLLOW_UP_LOCK",
            expect_locked_after=True,
            expect_active_after="math_specialist",
        ),
        StoryTurn(
            "I give up, this is too hard",
            ("math_specialist", "motivator"),
            "FOLLOW_UP_LOCK",
            expect_locked_after=True,
            expect_active_after="motivator",
        ),
        # The interlude is over; the teacher gets its question back, unanswered as it was.
        StoryTurn(
            "The numbers at the bottom",
            ("motivator",),
            "FOLLOW_UP_LOCK",
            expect_locked_after=True,
            expect_active_after="math_specialist",
        ),
        StoryTurn(
            "Is it 5/6?",
            ("math_specialist",),
            "RETURNED",
            expect_locked_after=True,
            expect_active_after="math_specialist",
        ),
        # A break within one message: there and back.
        StoryTurn(
            "I'm getting tired",
            ("math_specialist", "motivator", "math_specialist"),
            "FOLLOW_UP_LOCK",
            expect_locked_after=True,
            expect_active_after="math_specialist",
        ),
        StoryTurn(
            "2/4",
            ("math_specialist", "assessor"),
            "FOLLOW_UP_LOCK",
            expect_locked_after=True,
            expect_active_after="assessor",
        ),
        StoryTurn(
            "3/5",
            ("assessor",),
            "FOLLOW_UP_LOCK",
            expect_locked_after=True,
            expect_active_after="assessor",
        ),
        StoryTurn("1/4", ("assessor",), "FOLLOW_UP_LOCK"),
        StoryTurn(
            "Now some irregular verbs please",
            ("coordinator", "language_specialist"),
            "NO_ACTIVE_AGENT",
            expect_locked_after=True,
            expect_active_after="language_specialist",
        ),
        StoryTurn(
            "eated?",
            ("language_specialist",),
            "FOLLOW_UP_LOCK",
            expect_locked_after=True,
            expect_active_after="language_specialist",
        ),
        StoryTurn(
            "ate",
            ("language_specialist",),
            "FOLLOW_UP_LOCK",
            expect_locked_after=True,
            expect_active_after="language_specialist",
        ),
        StoryTurn(
            "it is went",
            ("language_specialist",),
            "FOLLOW_UP_LOCK",
            expect_locked_after=True,
            expect_active_after="language_specialist",
        ),
        StoryTurn(
            "wrote",
            ("language_specialist", "assessor"),
            "FOLLOW_UP_LOCK",
            expect_locked_after=True,
            expect_active_after="assessor",
        ),
        StoryTurn(
            "saw",
            ("assessor",),
            "FOLLOW_UP_LOCK",
            expect_locked_after=True,
            expect_active_after="assessor",
        ),
        StoryTurn("give", ("assessor",), "FOLLOW_UP_LOCK"),
        StoryTurn("/status", expect_command="status"),
    ),
)

_BUDGET = Story(
    name="budget",
    title="Four agents, each of which keeps the user only until its question is answered.",
    example="budget",
    locale="en",
    channel="web",
    turns=(
        StoryTurn("Hello", ("orchestrator",), "NO_ACTIVE_AGENT"),
        StoryTurn(
            "Create a jar for my holidays",
            ("orchestrator", "jar_manager"),
            "NO_ACTIVE_AGENT",
            expect_locked_after=True,
            expect_active_after="jar_manager",
        ),
        StoryTurn(
            "200",
            ("jar_manager",),
            "FOLLOW_UP_LOCK",
            expect_locked_after=True,
            expect_active_after="jar_manager",
        ),
        StoryTurn(
            "I don't know",
            ("jar_manager",),
            "FOLLOW_UP_LOCK",
            expect_locked_after=True,
            expect_active_after="jar_manager",
        ),
        StoryTurn("Yes, sure", ("jar_manager",), "FOLLOW_UP_LOCK"),
        StoryTurn(
            "I bought a coffee for 4.50",
            ("orchestrator", "transaction_classifier"),
            "NO_ACTIVE_AGENT",
            expect_locked_after=True,
            expect_active_after="transaction_classifier",
        ),
        StoryTurn("a want", ("transaction_classifier",), "FOLLOW_UP_LOCK"),
        # The classifier recognizes another agent's topic and hands over within the same message.
        StoryTurn(
            "I spent 30 on the gym, as every month",
            ("orchestrator", "transaction_classifier", "fee_manager"),
            "NO_ACTIVE_AGENT",
            expect_locked_after=True,
            expect_active_after="fee_manager",
        ),
        StoryTurn(
            "/status",
            expect_command="status",
            expect_locked_after=True,
            expect_active_after="fee_manager",
        ),
        StoryTurn("On the 5th", ("fee_manager",), "FOLLOW_UP_LOCK"),
        StoryTurn(
            "How can I save more?",
            ("orchestrator", "budget_advisor"),
            "NO_ACTIVE_AGENT",
            expect_locked_after=True,
            expect_active_after="budget_advisor",
        ),
        StoryTurn(
            "2500",
            ("budget_advisor",),
            "FOLLOW_UP_LOCK",
            expect_locked_after=True,
            expect_active_after="budget_advisor",
        ),
        StoryTurn("The rent, 900", ("budget_advisor",), "FOLLOW_UP_LOCK"),
        StoryTurn(
            "Another jar, please",
            ("orchestrator", "jar_manager"),
            "NO_ACTIVE_AGENT",
            expect_locked_after=True,
            expect_active_after="jar_manager",
        ),
        # The command cancels the question; the text after it is answered at once.
        StoryTurn(
            "/supervisor what did I spend so far?",
            ("orchestrator", "transaction_classifier"),
            "COMMAND",
            expect_command="supervisor",
        ),
        StoryTurn("Thanks!", ("orchestrator",), "NO_ACTIVE_AGENT"),
    ),
)

STORIES: Mapping[str, Story] = {
    story.name: story for story in (_TAX, _TAX_PREMIUM, _TUTOR, _BUDGET, ERP, ERP_SWARM, PLATFORM)
}
