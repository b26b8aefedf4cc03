"""expected_revision: calls on a known revision; validate_only: trials without effect."""

import pytest

from agent_routing.v1 import handoff_pb2
from tests.rpc.live_service import ask, fresh_id, hand_to, is_replayed, refusal, serving, went
from tests.rpc.registries import DESK


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each."""
    async with serving(tmp_path, DESK) as running:
        yield running


# --- expected_revision ---


async def test_call_on_the_session_it_expects_goes_through(service):
    """Zero means a session that does not exist yet."""
    chat = service.chat()
    routed = await chat.say(expected_revision=0)
    moved = await chat.set_active("sales", expected_revision=routed.revision)
    cleared = await chat.clear(expected_revision=moved.revision)
    assert (routed.revision, moved.revision, cleared.revision) == (1, 2, 3)


async def test_call_on_another_session_than_it_expects_is_aborted(service):
    """The error has both revisions and nothing is written; the caller has to decide again."""
    chat = await service.chat().with_agent("sales")
    async with chat.unchanged():
        for expected in (0, 2, 4, 2**62):
            for call in (
                chat.say(expected_revision=expected),
                chat.set_active("support", expected_revision=expected),
                chat.clear(expected_revision=expected),
            ):
                refused = await refusal(call)
                assert tuple(refused) == ("ABORTED", "REVISION_MISMATCH")
                assert refused.metadata == {
                    "session_id": chat.session_id,
                    "expected_revision": str(expected),
                    "revision": "3",
                }
                assert f"is at revision 3, the request expected {expected}" in refused.message


async def test_revision_of_a_session_that_does_not_exist_is_zero(service):
    """A caller that expects a session learns that there is none."""
    chat = service.chat()
    refused = await refusal(chat.say(expected_revision=7))
    assert tuple(refused) == ("ABORTED", "REVISION_MISMATCH")
    assert refused.metadata["revision"] == "0"
    assert await chat.changes() == []


async def test_repeat_is_known_before_its_revision_is_compared(service):
    """The first answer is returned although the call itself moved the session on."""
    chat = service.chat()
    request_id = fresh_id()
    first = await chat.say(expected_revision=0, request_id=request_id)
    again = chat.say(expected_revision=0, request_id=request_id)
    assert await again == first
    assert await is_replayed(again)


async def test_negative_revision_is_a_bad_field(service):
    """No session has a negative revision."""
    chat = await service.chat().with_agent("sales")
    for call in (
        chat.say(expected_revision=-1),
        chat.set_active("support", expected_revision=-1),
        chat.clear(expected_revision=-(2**63)),
    ):
        refused = await refusal(call)
        assert tuple(refused) == ("INVALID_ARGUMENT", "INVALID_FIELD")
        assert refused.rules == ["expected_revision"]


async def test_call_that_changes_nothing_takes_no_revision(service):
    """Reads, refusals, trials and empty clears return the current revision."""
    chat = await service.chat().with_agent("sales")
    await chat.clear()
    before = (await chat.status()).revision
    assert (await chat.clear()).revision == before
    assert (await chat.say(validate_only=True)).revision == before
    assert (await chat.set_active("sales", validate_only=True)).revision == before
    await refusal(chat.set_active("premium"))
    await chat.turns()
    assert (await chat.status()).revision == before
    assert (await chat.say()).revision == before + 1


# --- validate_only ---


async def test_trial_of_a_message_says_where_it_would_go(service):
    """Nothing is written, no turn is opened, and the request id stays free."""
    chat = await service.chat().with_agent("sales", **ask())
    request_id = fresh_id()
    async with chat.unchanged():
        tried = await chat.say("red", validate_only=True, request_id=request_id)
        assert went(tried.dispatch) == ("sales", "FOLLOW_UP_LOCK")
        assert tried.dispatch.text == "red"
        assert tried.supervisor_bypassed
        assert tried.revision == 3
    routed = chat.say("blue", request_id=request_id)
    assert (await routed).dispatch.text == "blue"
    assert not await is_replayed(routed)


async def test_trial_of_a_first_message_makes_no_session(service):
    """The real message would begin the session."""
    chat = service.chat()
    tried = await chat.say(validate_only=True)
    assert (went(tried.dispatch), tried.revision) == (("front", "NO_ACTIVE_AGENT"), 0)
    assert tried.session_id == chat.session_id
    assert await chat.changes() == []
    refused = await refusal(chat.status())
    assert tuple(refused) == ("NOT_FOUND", "UNKNOWN_SESSION")
    assert (await chat.set_active("sales", validate_only=True)).revision == 0
    assert await chat.changes() == []


async def test_trial_of_a_message_fails_as_the_message_would(service):
    """A trial returns the same errors as the real message."""
    chat = await service.chat().with_agent("sales")
    refused = await refusal(chat.say(validate_only=True, task_id=fresh_id()))
    assert tuple(refused) == ("FAILED_PRECONDITION", "TASK_OPEN")
    refused = await refusal(chat.say(validate_only=True, expected_revision=1))
    assert tuple(refused) == ("ABORTED", "REVISION_MISMATCH")


async def test_trial_of_a_handoff_tells_what_every_rule_says(service):
    """If allowed, the answer has the handoff it would make; nothing is written."""
    chat = await service.chat().with_agent("sales")
    request_id = fresh_id()
    async with chat.unchanged():
        tried = await chat.set_active("support", validate_only=True, request_id=request_id)
        assert tried.agent.agent_id == "support"
        assert tried.handoff.to.agent_id == "support"
        assert all(verdict.allowed for verdict in tried.verdicts)
        assert [verdict.rule for verdict in tried.verdicts] == [
            "enabled",
            "not_system",
            "not_active",
            "from_agent",
            "handoff_to",
            "entitled",
            "channel",
            "hop_limit",
            "ping_pong",
            "return_stack",
            "return_depth",
            "approval_pending",
            "live_turn",
        ]
    moved = chat.set_active("support", request_id=request_id)
    assert (await moved).revision == 4
    assert not await is_replayed(moved)


async def test_trial_of_a_refused_handoff_is_an_answer_and_no_error(service):
    """The answer has the verdicts; there is no audit record, no handoff and no agent."""
    chat = await service.chat().with_agent("owner")
    async with chat.unchanged():
        tried = await chat.set_active(
            "premium", validate_only=True, initiator=handoff_pb2.INITIATOR_USER
        )
    verdicts = {verdict.rule: verdict for verdict in tried.verdicts}
    refused = [rule for rule, verdict in verdicts.items() if not verdict.allowed]
    assert refused == ["entitled", "owns_session"]
    assert "requires plan:premium" in verdicts["entitled"].detail
    assert verdicts["enabled"].detail == ""
    assert not tried.HasField("handoff")
    assert not tried.HasField("agent")
    assert tried.revision == 3
    assert await chat.audit() == []


async def test_verdicts_of_an_answer_are_those_of_its_handoff(service):
    """The answer lists every checked rule if a handoff was made."""
    chat = service.chat()
    routed = await chat.say()
    handed = await chat.answer(routed.dispatch, **hand_to("sales"))
    assert len(handed.verdicts) == 13
    assert all(verdict.allowed for verdict in handed.verdicts)
    answered = await chat.answer(handed.next, "hello")
    assert not answered.verdicts
