"""Why an agent is not available, as users, agents and approvers read it.

The registry's own words are used where it has some.
"""

import pytest

from agent_routing.v1 import routing_service_pb2 as pb
from tests.rpc.live_service import hand_to, refusal, serving, went

COMPANY = """
api_version: agent_routing/v1
version: company-1
supervisor: desk
default_locale: es
agents:
  - {id: desk, name: Asistente}
  - id: payroll
    name: {es: Nóminas, en: Payroll}
    description: Nóminas.
    requires: ["plan:pro"]
    channels: [web]
    user_selectable: true
    unavailable:
      plan: {es: Nóminas es del plan Pro., en: Payroll is part of the Pro plan.}
      channel: {es: Nóminas solo se atiende en la web.}
      disabled: Nóminas vuelve el lunes.
  - id: taxes
    name: Impuestos
    description: Impuestos.
    requires: ["plan:pro"]
    user_selectable: true
"""

PRO = ("plan:pro",)


@pytest.fixture
async def service(tmp_path):
    """A company whose payroll is for some users only."""
    async with serving(tmp_path, COMPANY) as running:
        yield running


async def test_user_reads_the_registrys_words_and_else_ours(service):
    """The plan, the channel, and both; in the user's language where there is one."""
    chat = service.chat()
    said = (await chat.say("/agent nóminas", channel="web")).reply.text
    assert "Nóminas es del plan Pro." in said
    assert "Nóminas solo se atiende en la web." not in said
    said = (await chat.say("/agent nóminas", channel="whatsapp")).reply.text
    assert "Nóminas es del plan Pro." in said
    assert "Nóminas solo se atiende en la web." in said
    said = (await chat.say("/agent payroll", channel="web", locale="en")).reply.text
    assert "Payroll is part of the Pro plan." in said
    said = (await chat.say("/agent impuestos", locale="es")).reply.text
    assert "Tu plan no lo incluye." in said
    assert "llama «inexistente»" in (await chat.say("/agent inexistente")).reply.text


async def test_supervisor_learns_why_it_gets_the_message(service):
    """The user's plan ended: the supervisor can say so, and /status says it to the user."""
    chat = service.chat()
    routed = await chat.say("mi nómina", channel="web", entitlements=PRO)
    handed = await chat.answer(routed.dispatch, **hand_to("payroll"))
    await chat.answer(handed.next, "Aquí está.")
    routed = await chat.say("¿y la de junio?", entitlements=["plan:free"])
    assert went(routed.dispatch) == ("desk", "AGENT_UNAVAILABLE")
    assert "plan:pro" in routed.dispatch.reason_detail
    assert "Nóminas es del plan Pro." in routed.dispatch.reason_detail
    (waiting,) = (await chat.status()).open_requests
    assert waiting.reason_detail == routed.dispatch.reason_detail
    said = (await chat.say("/status")).reply.text
    assert "Nóminas es del plan Pro." in said
    back = await chat.say("he pagado", entitlements=PRO)
    assert went(back.dispatch) == ("payroll", "STICKY")
    assert back.dispatch.reason_detail == ""


async def test_agent_that_hands_over_learns_why_it_may_not(service):
    """It can tell the user in the registry's words; the refusal names the rule as well."""
    chat = service.chat()
    routed = await chat.say("mi nómina", channel="web")
    refused = await refusal(chat.answer(routed.dispatch, **hand_to("payroll")))
    assert refused.rules == ["entitled"]
    assert refused.violations["entitled"].endswith(": Nóminas es del plan Pro.")


async def test_disabled_and_removed_agents_are_told_apart(tmp_path):
    """After a reload payroll is disabled, after another one it is gone."""
    async with serving(tmp_path, COMPANY) as service:
        chat = service.chat(session_id="chat-away")
        routed = await chat.say("mi nómina", channel="web", entitlements=PRO)
        handed = await chat.answer(routed.dispatch, **hand_to("payroll"))
        await chat.answer(handed.next, "Aquí está.")
    disabled = COMPANY.replace("    channels: [web]\n", "    channels: [web]\n    enabled: false\n")
    async with serving(tmp_path, disabled) as service:
        chat = service.chat(session_id="chat-away")
        routed = await chat.say("hola")
        assert went(routed.dispatch) == ("desk", "AGENT_UNAVAILABLE")
        assert "Nóminas vuelve el lunes." in routed.dispatch.reason_detail
        assert "Nóminas vuelve el lunes." in (await chat.say("/status")).reply.text
    head, _, tail = COMPANY.partition("  - id: payroll")
    gone = head + "  - id: taxes" + tail.partition("  - id: taxes")[2]
    async with serving(tmp_path, gone) as service:
        chat = service.chat(session_id="chat-away")
        routed = await chat.say("hola")
        assert '"payroll" is not in the registry any more' in routed.dispatch.reason_detail
        assert "Aquí nadie se llama «payroll»." in (await chat.say("/status")).reply.text


async def test_approver_learns_why_the_agent_cannot_go_on(service):
    """The decision is refused with the reason, and the task stays paused."""
    chat = service.chat()
    routed = await chat.say("paga la nómina", channel="web", entitlements=PRO)
    handed = await chat.answer(routed.dispatch, **hand_to("payroll"))
    await chat.answer(handed.next, "¿Pago?", approval_needed=pb.ApprovalNeededOutcome(prompt="pay"))
    paused = (await chat.status()).open_requests
    await chat.say("¿y bien?", entitlements=["plan:free"])
    request = pb.ResumeTaskRequest(
        session_id=chat.session_id,
        user_id="ana",
        task_id=routed.task_id,
        request_id=handed.next.request_id,
        decision=1,
    )
    refused = await refusal(service.call("ResumeTask", request))
    assert refused.reason == "AGENT_UNAVAILABLE"
    assert "Nóminas es del plan Pro." in refused.message
    assert paused is not None
