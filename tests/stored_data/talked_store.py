"""A SQLite store that a real server has filled, as input for a copy or a check.

Owns the conversations in it.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import grpc

from agent_routing.v1 import admin_service_pb2
from routing_service.storage.open_store import open_store
from tests.rpc.live_service import Chat, LiveService, hand_to, serving
from tests.rpc.random_talk import RandomTalk
from tests.rpc.registries import DESK

LARGE_TEXT = "ñ日本😀\x01" * 2_500
"""Near the largest message, which no page of small ones prepares for."""

TENANTS = ("", "acme")


async def talked_store(folder: Path, *, sessions: int = 3, steps: int = 14) -> str:
    """Return the URL of a store with random conversations, including large and Unicode texts.

    It has several tenants, refused handoffs in the audit, and settings.
    """
    folder.mkdir(exist_ok=True)  # noqa: ASYNC240 - nothing else runs yet
    async with serving(folder, DESK) as service:
        for seed in range(sessions):
            talk = RandomTalk(service, seed)
            talk.chat = service.chat(f"talk-{seed}")
            for _ in range(steps):
                await talk.step()

        for tenant, number in itertools.product(TENANTS, range(2)):
            chat = service.chat(f"told:{number}=+@.", user_id="añá 😀", tenant=tenant)
            await chat.say(LARGE_TEXT, locale="es", channel="web", metadata={"clave": "valor ñ"})
            await refused_handoff(chat)
            await chat.say("/reset")
            await chat.say("otra cosa", metadata={"k": "v" * 2_000})
        await erased_session(service)
    url = f"sqlite:///{folder / 'routing.db'}"
    store = await open_store(url)
    await store.put_setting("acme", "stickiness", b'{"enabled":false}')
    await store.put_setting("only-a-setting", "ñ", random.Random(1).randbytes(5_000))
    await store.put_setting("acme", "store.cursor", b"of this store alone")
    await store.close()
    return url


async def erased_session(service: LiveService) -> None:
    """Have all of a user's sessions erased."""
    for name in ("erased-1", "erased-2"):
        chat = service.chat(name, user_id="eve")
        await chat.say("a secret", metadata={"secret": "yes"})
        await refused_handoff(chat)
    request = admin_service_pb2.EraseUserRequest(user_id="eve", reason="asked for")
    await service.raw("EraseUser", request.SerializeToString(), service="AdminService")


async def refused_handoff(chat: Chat) -> None:
    """Make a call that the rules refuse, twice."""
    routed = await chat.say("premium, please")
    for _ in range(2):
        try:
            await chat.answer(routed.dispatch, **hand_to("premium"))
        except grpc.aio.AioRpcError:
            continue
        raise AssertionError("the handoff was not refused")
