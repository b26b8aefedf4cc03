"""Concurrent callers of one session: every call is either applied or refused."""

import asyncio
import random
from collections import Counter

import grpc
import pytest

from tests.rpc.live_service import (
    ask,
    fresh_id,
    hand_to,
    is_replayed,
    outcome_status,
    read_refusal,
    serving,
)
from tests.rpc.registries import DESK

CALLERS = 32

# The limit of open turns; opening one more abandons the oldest.
ROOMY = DESK.replace("open_turns: 4", "open_turns: 16")


@pytest.fixture
async def service(tmp_path):
    """A help desk with the maximum number of open turns."""
    async with serving(tmp_path, ROOMY) as running:
        yield running


async def test_callers_of_one_session_are_all_applied(service):
    """32 concurrent calls: each gets its own revision, from 1 without gaps, as in the log."""
    chat = service.chat()
    routed = await asyncio.gather(*(chat.say(f"message {n}") for n in range(CALLERS)))
    revisions = sorted(response.revision for response in routed)
    assert revisions == list(range(1, CALLERS + 1))
    assert [change.revision for change in await chat.changes()] == revisions
    by_revision = {response.revision: response.dispatch.text for response in routed}
    turns = await chat.turns()
    assert [turn.user_text for turn in turns] == [by_revision[r] for r in revisions]
    assert len({response.task_id for response in routed}) == 1


async def test_mixed_callers_are_applied_or_told_why_not(service):
    """Messages, handoffs, answers and clears together; a refused call takes no revision."""
    chat = await service.chat().with_agent("sales")
    rng = random.Random(20_250)
    start = (await chat.status()).revision

    async def one(number):
        kind = rng.choice(["say", "move", "clear", "turn"])
        if kind == "say":
            return await chat.say(f"message {number}")
        if kind == "move":
            return await chat.set_active(rng.choice(["sales", "support", "asks_only"]))
        if kind == "clear":
            return await chat.clear()
        routed = await chat.say(f"message {number}")
        return await chat.answer(routed.dispatch, f"answer {number}", **ask())

    answers = await asyncio.gather(*(one(n) for n in range(CALLERS * 3)), return_exceptions=True)
    refused = [read_refusal(a) for a in answers if isinstance(a, grpc.aio.AioRpcError)]
    assert {tuple(r) for r in refused} <= {
        ("FAILED_PRECONDITION", "HANDOFF_REFUSED"),
        ("ABORTED", "REVISION_MISMATCH"),
    }
    assert not [a for a in answers if isinstance(a, Exception) and not is_rpc_error(a)]
    revisions = [change.revision for change in await chat.changes()]
    assert revisions == list(range(1, len(revisions) + 1))
    assert len(await chat.audit()) == len(refused)
    # A server that has not seen the session replays the log to the same state.
    assert (await chat.status()).revision == revisions[-1] > start


def is_rpc_error(answer):
    """Say whether a call ended with a status that the service set."""
    return isinstance(answer, grpc.aio.AioRpcError)


async def test_one_request_sent_many_times_at_once_happens_once(service):
    """One caller is first; all the others get the same answer."""
    chat, request_id = service.chat(), fresh_id()
    calls = [chat.say("hello", request_id=request_id) for _ in range(CALLERS)]
    answers = await asyncio.gather(*calls)
    assert len({answer.SerializeToString() for answer in answers}) == 1
    replayed = [await is_replayed(call) for call in calls]
    assert Counter(replayed) == {True: CALLERS - 1, False: 1}
    assert len(await chat.changes()) == 1


async def test_first_message_sent_many_times_at_once_begins_one_session(service):
    """No caller names a session; the request id identifies it."""
    request_id = fresh_id()
    calls = [service.chat().say("hello", session_id="", request_id=request_id) for _ in range(8)]
    answers = await asyncio.gather(*calls)
    assert len({answer.SerializeToString() for answer in answers}) == 1
    assert len(await service.chat(answers[0].session_id).changes()) == 1


async def test_callers_who_name_one_task_alone_are_all_applied(service):
    """32 concurrent calls name one task: all reach its session, and each message is stored once."""
    task_id = (await service.chat().say("begin")).task_id
    routed = await asyncio.gather(
        *(
            service.chat().say(f"message {n}", session_id="", task_id=task_id)
            for n in range(CALLERS)
        )
    )
    assert {response.task_id for response in routed} == {task_id}
    (session_id,) = {response.session_id for response in routed}
    assert sorted(response.revision for response in routed) == list(range(2, CALLERS + 2))
    turns = await service.chat(session_id).turns(task_id=task_id)
    assert Counter(turn.user_text for turn in turns).most_common(1)[0][1] == 1
    assert len(turns) == CALLERS + 1


async def test_one_turn_completed_many_times_at_once_is_completed_once(service):
    """If the answer opens a request for the next agent, there is one such request with one id."""
    chat = service.chat()
    routed = await chat.say()
    calls = [chat.answer(routed.dispatch, "over", **hand_to("sales")) for _ in range(CALLERS)]
    answers = await asyncio.gather(*calls)
    assert len({answer.next.request_id for answer in answers}) == 1
    assert len({answer.SerializeToString() for answer in answers}) == 1
    assert len((await chat.status()).open_requests) == 1


async def test_turn_is_completed_by_one_of_many_answers(service):
    """Different answers to one request at once: the first is applied, the others are refused."""
    chat = service.chat()
    routed = await chat.say()
    answers = await asyncio.gather(
        *(chat.answer(routed.dispatch, f"answer {n}") for n in range(CALLERS)),
        return_exceptions=True,
    )
    applied = [answer for answer in answers if not isinstance(answer, Exception)]
    assert [outcome_status(answer) for answer in applied] == ["APPLIED"]
    reasons = {tuple(read_refusal(a)) for a in answers if isinstance(a, Exception)}
    assert reasons == {("FAILED_PRECONDITION", "REQUEST_NOT_OPEN")}
    assert [turn.agent_text for turn in await chat.turns()] == [applied[0].text]


async def test_one_of_many_handoffs_with_an_expected_revision_wins(service):
    """A caller with an outdated revision gets both revisions, and its handoff is not applied."""
    chat = await service.chat().with_agent("sales")
    answers = await asyncio.gather(
        *(chat.set_active("support", expected_revision=3) for _ in range(CALLERS)),
        return_exceptions=True,
    )
    won = [answer for answer in answers if not isinstance(answer, Exception)]
    assert [answer.revision for answer in won] == [4]
    for error in (answer for answer in answers if isinstance(answer, Exception)):
        refused = read_refusal(error)
        assert tuple(refused) == ("ABORTED", "REVISION_MISMATCH")
        assert refused.metadata == {
            "session_id": chat.session_id,
            "expected_revision": "3",
            "revision": "4",
        }


async def test_sessions_do_not_wait_for_each_other(service):
    """Many concurrent sessions: each has its own revisions and agents."""
    chats = [service.chat() for _ in range(CALLERS)]

    async def talk(chat, agent_id):
        await chat.with_agent(agent_id)
        return await chat.say("more")

    names = ["sales", "support", "narrow", "owner"]
    routed = await asyncio.gather(*(talk(chat, names[n % 4]) for n, chat in enumerate(chats)))
    assert [response.revision for response in routed] == [4] * CALLERS
    assert [r.dispatch.agent.agent_id for r in routed] == [names[n % 4] for n in range(CALLERS)]


async def test_caller_who_gives_up_leaves_nothing_half_done(service):
    """A cancelled call happened completely or not at all, and a repeat says which."""
    chat = await service.chat().with_agent("sales")
    ids = [fresh_id() for _ in range(CALLERS)]
    calls = [chat.say(f"message {n}", request_id=ids[n]) for n in range(CALLERS)]
    await asyncio.sleep(0.003)
    for call in calls[::2]:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    repeats = [chat.say(f"message {n}", request_id=ids[n]) for n in range(CALLERS)]
    answers = await asyncio.gather(*repeats)
    assert len({answer.revision for answer in answers}) == CALLERS
    texts = Counter(turn.user_text for turn in await chat.turns(page_size=1000))
    assert all(texts[f"message {n}"] == 1 for n in range(CALLERS))
    revisions = [change.revision for change in await chat.changes()]
    assert revisions == list(range(1, len(revisions) + 1))
