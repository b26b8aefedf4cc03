"""Waiting approvals through a real server on each engine: the index follows every change."""

from routing_service.storage.queue_entries import APPROVALS_QUEUE
from routing_service.stored_data.queue_check import rebuild_queues
from tests.rpc.live_service import serving
from tests.rpc.registries import DESK
from tests.rpc.signed_in import serving_signed_in, signed
from tests.rpc.test_approval_lists import listed, sessions, watching
from tests.rpc.test_approval_rules import decision, desk, paused_by, paused_signed_in


async def test_what_waits_is_listed_watched_and_taken_off(engine):
    """A page at a time, and without the entries of what was decided."""
    async with serving(engine.folder, DESK, store=engine.url) as service:
        chats = [service.chat(name) for name in ("c", "a é", "b:1")]
        paused = {}
        for chat in chats:
            paused[chat.session_id] = await paused_by(chat, amount=40)
            service.clock.advance(1)
        names = [chat.session_id for chat in chats]
        first = await listed(service.call, page_size=2)
        assert [each.session_id for each in first.approvals] == names[:2]
        rest = await listed(service.call, page_size=2, page_token=first.next_page_token)
        assert [each.session_id for each in rest.approvals] == names[2:]
        assert not rest.next_page_token
        assert dict(rest.approvals[0].approval.fields) == {"amount": 40}
        async with watching(service.call) as watcher:
            assert await watcher.begin() == names
            await service.call("ResumeTask", decision(names[0], paused[names[0]]))
            kind, ended = await watcher.next()
            assert (kind, ended.session_id) == ("ended", names[0])
        await chats[1].say("/reset")
        assert await sessions(service.call) == names[2:]
        store, tenant = service.store, chats[2].key.tenant
        (item,) = await store.read_queue(tenant, APPROVALS_QUEUE, None, 10)
        await store.mend_queue(tenant, (), (item.entry,))
        assert await sessions(service.call) == []
        assert await rebuild_queues(store) == 1
        assert await sessions(service.call) == names[2:]
        handler = service.server._parts.handler
        assert await handler.delete(chats[2].key, (await chats[2].status()).revision)
        assert await store.read_queue(tenant, APPROVALS_QUEUE, None, 10) == []


async def test_a_person_by_another_name_approves_once(engine):
    """The votes, with all names of each person, are read back from the engine."""
    rule = desk("{needs: 3}")
    async with serving_signed_in(engine.folder, rule, store=engine.url) as service:
        paused = await paused_signed_in(service, "s")
        bea = signed(service, "approve", user="bea", subject="b-web")
        assert (await bea("ResumeTask", decision("s", paused))).decisions == 1
        cai = signed(service, "approve", user="cai")
        assert (await cai("ResumeTask", decision("s", paused))).decisions == 2
        # The same credential again gets its first answer.
        for user, subject, counted in (
            ("bea", "b-phone", 2),
            ("bea2", "b-web", 1),
            ("d", "cai", 2),
        ):
            again = signed(service, "approve", user=user, subject=subject)
            (waiting,) = (await listed(again)).approvals
            assert (waiting.may_decide, waiting.has_approved) == (True, True)
            assert waiting.approval.decisions == 2
            assert (await again("ResumeTask", decision("s", paused))).decisions == counted
        dan = signed(service, "approve", user="dan")
        assert (await dan("ResumeTask", decision("s", paused))).decisions == 3
