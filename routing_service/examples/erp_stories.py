"""The two stories of the ERP assistant: handoffs of every kind, with a supervisor and without."""

from __future__ import annotations

from routing_service.examples.story import Story, StoryTurn

ERP = Story(
    name="erp",
    title="Handoffs by the supervisor, by agents' transfer tool and by the user; some are refused.",
    example="erp",
    locale="en",
    channel="web",
    turns=(
        StoryTurn("Hello", ("orchestrator",), "NO_ACTIVE_AGENT"),
        # By the supervisor.
        StoryTurn(
            "How many blue widgets are in stock?",
            ("orchestrator", "inventory"),
            "NO_ACTIVE_AGENT",
            expect_active_after="inventory",
        ),
        StoryTurn(
            "And in the Hamburg warehouse?",
            ("inventory",),
            "STICKY",
            expect_active_after="inventory",
        ),
        # By an agent, with what the next one needs to know: it asks for the day alone.
        StoryTurn(
            "Then we need 50 more",
            ("inventory", "purchasing"),
            "STICKY",
            expect_locked_after=True,
            expect_active_after="purchasing",
        ),
        StoryTurn(
            "I don't know",
            ("purchasing",),
            "FOLLOW_UP_LOCK",
            expect_locked_after=True,
            expect_active_after="purchasing",
        ),
        StoryTurn(
            "next Friday",
            ("purchasing",),
            "FOLLOW_UP_LOCK",
            expect_active_after="purchasing",
        ),
        # Handoffs by the user: not every agent may be chosen, and unknown agents are refused.
        StoryTurn(
            "/agent finance",
            expect_command="agent",
            expect_refused_rules=("user_selectable",),
            expect_active_after="purchasing",
        ),
        StoryTurn("/agent robots", expect_command="agent", expect_active_after="purchasing"),
        StoryTurn(
            "/agent sales_orders", expect_command="agent", expect_active_after="sales_orders"
        ),
        StoryTurn(
            "What about order 1042?",
            ("sales_orders",),
            "STICKY",
            expect_active_after="sales_orders",
        ),
        # A system agent takes no conversation; the agent reads why, and answers differently.
        StoryTurn(
            "Put that into the journal",
            ("sales_orders",),
            "STICKY",
            expect_refused_rules=("not_system",),
            expect_active_after="sales_orders",
        ),
        StoryTurn("Issue the invoice for it", ("sales_orders", "finance"), "STICKY"),
        StoryTurn("/status", expect_command="status"),
        StoryTurn("Thank you very much!", ("orchestrator",), "NO_ACTIVE_AGENT"),
    ),
    expect_task_statuses=("completed", "running"),
)

ERP_SWARM = Story(
    name="erp_swarm",
    title="The same modules without a supervisor: they hand to each other, reception has the rest.",
    example="erp_swarm",
    locale="es",
    channel="web",
    turns=(
        StoryTurn("Hola", ("reception",), "DEFAULT_AGENT"),
        StoryTurn(
            "¿Cuántas piezas azules hay en el almacén?",
            ("reception", "inventory"),
            "DEFAULT_AGENT",
            expect_active_after="inventory",
        ),
        StoryTurn(
            "Hacen falta 50 más",
            ("inventory", "purchasing"),
            "STICKY",
            expect_locked_after=True,
            expect_active_after="purchasing",
        ),
        # Back to the default agent, in the middle of a question.
        StoryTurn(
            "/supervisor ¿qué más sabéis hacer?",
            ("reception",),
            "COMMAND",
            expect_command="supervisor",
        ),
        StoryTurn(
            "/agent sales_orders el pedido 1042",
            ("sales_orders",),
            "USER_SELECTED",
            expect_command="agent",
            expect_active_after="sales_orders",
        ),
        # Finance does its part and gives the order back, within one message.
        StoryTurn(
            "Emite la factura",
            ("sales_orders", "finance", "sales_orders"),
            "STICKY",
            expect_active_after="sales_orders",
        ),
        StoryTurn("/agents", expect_command="agents", expect_active_after="sales_orders"),
        StoryTurn("/reset", expect_command="reset"),
        StoryTurn("Muchas gracias", ("reception",), "DEFAULT_AGENT"),
    ),
    expect_task_statuses=("cancelled", "running"),
)
