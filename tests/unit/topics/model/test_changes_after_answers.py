"""Changes of topic right after an agent's answers, which asked for nothing."""

from __future__ import annotations

import pytest

from agent_routing_topics.default_model import load_default_model
from agent_routing_topics.model.agent_text import AgentText
from routing_service.topics.topic_detector import RecentTurn, TopicDetector, TopicQuestion

pytest.importorskip("numpy")

AGENTS = [
    AgentText(
        "documents",
        ("Documentos tributarios",),
        ("Facturas, boletas y otros documentos tributarios.",),
        ("muestra mis facturas", "cuántas tengo?", "muéstrame las boletas de mayo"),
    ),
    AgentText(
        "taxes",
        ("Impuestos mensuales (F29)",),
        ("Impuestos mensuales, formulario F29, IVA y PPM.",),
        ("ayúdame con el F29", "ahora muéstrame el F29", "cuánto IVA pago este mes"),
    ),
    AgentText(
        "payroll",
        ("Remuneraciones y personal",),
        ("Liquidaciones de sueldo y contratos.",),
        ("prepara las liquidaciones de sueldo",),
    ),
    AgentText("settings", ("Configuración",), ("Configuración de la cuenta y la empresa.",)),
]
IDS = frozenset(agent.agent_id for agent in AGENTS) - {"documents"}
CHANGES = [
    ("cuándo vence el formulario 29?", "taxes"),
    ("cuánto me toca de PPM este mes?", "taxes"),
    ("ayúdame a declarar el IVA", "taxes"),
    ("ahora veamos el F29", "taxes"),
    ("quiero cambiar la configuración de mi cuenta", "settings"),
    ("necesito actualizar la configuración de la empresa", "settings"),
    ("necesito la liquidación de sueldo de Pedro", "payroll"),
    ("hazme un contrato para un trabajador nuevo", "payroll"),
    ("quiero pagar los sueldos", "payroll"),
    ("cuánto le pago de sueldo a María?", "payroll"),
]
STAYING = ["la más cara", "quién la emitió?", "y las de abril?", "gracias", "descárgala", "ok"]
ANSWERED = (
    ("muestra mis facturas", "Aquí están tus facturas de mayo: 12 en total."),
    ("cuántas son?", "Son 12."),
    ("la más cara", "La factura 1043, $420.000."),
)


@pytest.fixture(scope="module")
def detector() -> TopicDetector:
    """The detector with vectors, loaded once."""
    return load_default_model(waits=True).for_agents(AGENTS)


@pytest.mark.parametrize(("answers", "found_least"), [(0, 10), (1, 4), (2, 8), (3, 7)])
def test_change_is_offered_after_so_many_answers(detector, answers, found_least):
    """Few are found right after a first answer: the model card says so."""
    recent = tuple(RecentTurn("documents", *said, "proceed") for said in ANSWERED[:answers])

    def offered(text: str) -> str:
        question = TopicQuestion(
            text=text, active_agent_id="documents", recent=recent, candidate_ids=IDS
        )
        verdict = detector.judge(question)
        name, probability = verdict.ranked[0]
        return name if probability > max(0.6, verdict.stay) else ""

    assert sum(offered(text) == owner for text, owner in CHANGES) >= found_least
    if answers:
        assert sum(bool(offered(text)) for text in STAYING) <= 1
