"""The Python clients' tokens: requested for each attempt, renewed if refused, also on streams."""

from __future__ import annotations

import asyncio
import threading
import time

import grpc
import pytest

from agent_routing import AsyncClient, Client, errors, tls_credentials
from routing_service.examples import EXAMPLES
from routing_service.server.server import RoutingServer
from routing_service.settings.settings import Settings
from tests.rpc.signed_in import token, write_key
from tests.rpc.tls_files import Authority

LIFE_S = 1.5


@pytest.fixture
def target(tmp_path):
    """Serve the tax example in a thread; callers sign in."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)

    server = run(
        RoutingServer.start(
            Settings(
                listen="127.0.0.1:0",
                store="memory:",
                agents=str(EXAMPLES["tax"].registry_path),
                sign_in="development",
                development_key_file=str(write_key(tmp_path)),
            )
        )
    )
    yield server.address
    run(server.stop(0.5))
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


class Giver:
    """Returns one token after the other; the last one repeats."""

    def __init__(self, *tokens):
        self._tokens = list(tokens)
        self.asked = 0

    def __call__(self):
        self.asked += 1
        return self._tokens.pop(0) if len(self._tokens) > 1 else self._tokens[0]

    async def soon(self):
        """As a coroutine function."""
        await asyncio.sleep(0)
        return self()


def good(**claims):
    """Return a user's token."""
    return token("route", user="ana", **claims)


def test_token_signs_every_call_in(target):
    """A text, or the result of a function."""
    for given in (good(), good):
        with Client(target, token=given) as client:
            turn = client.route("hello", session_id="s")
            assert turn.session_id == "s"
            assert client.status("s").owner == "ana"
    with Client(target) as client, pytest.raises(errors.Unauthenticated):
        client.status("s")


def test_refused_token_is_asked_for_once_more(target):
    """It expired on its way. A second refusal reaches the caller."""
    giver = Giver(good(lasts_s=-5), good())
    with Client(target, token=giver) as client:
        assert client.route("hello", session_id="s").session_id == "s"
        assert giver.asked == 2
    giver = Giver(good(lasts_s=-5))
    with Client(target, token=giver) as client, pytest.raises(errors.Unauthenticated):
        client.status("s")
    assert giver.asked == 2
    expired = good(lasts_s=-5)
    with Client(target, token=expired) as client, pytest.raises(errors.Unauthenticated) as caught:
        client.route("hello", session_id="s")
    assert caught.value.attempts == 1


async def test_asyncio_client_awaits_its_token(target):
    """And it is called once more in the same way."""
    giver = Giver(good(lasts_s=-5), good())
    async with AsyncClient(target, token=giver.soon) as client:
        assert (await client.route("hello", session_id="s")).session_id == "s"
    assert giver.asked == 2


def test_function_that_fails_is_heard(target):
    """The caller gets its errors, and no call is made without a token."""

    def fails():
        raise RuntimeError("the vault is sealed")

    with Client(target, token=fails) as client, pytest.raises(RuntimeError, match="vault"):
        client.status("s")
    with Client(target, token=Giver(good()).soon) as client, pytest.raises(TypeError):
        client.status("s")
    with pytest.raises(ValueError, match="give a token"):
        Client(target, token="")
    with (
        Client(target, token=fails) as client,
        client.stream() as stream,
        pytest.raises(RuntimeError, match="vault"),
    ):
        stream.route("hello", session_id="s", user_id="ana")


def test_watch_goes_on_with_the_next_token(target):
    """A screen that is open all day uses many tokens, and misses nothing."""
    giver = Giver(good(lasts_s=LIFE_S), good())
    with Client(target, token=good()) as client, Client(target, token=giver) as watching:
        client.route("hello", session_id="s")
        changes = watching.watch_session("s", after_revision=0)
        assert next(changes).revision == 1
        time.sleep(LIFE_S)
        client.route("hello again", session_id="s")
        assert next(changes).revision == 2
        changes.close()
    assert giver.asked >= 2


def test_stream_goes_on_with_the_next_token(target):
    """Messages on a stream whose token expired are sent again, on another."""
    giver = Giver(good(lasts_s=LIFE_S), good())
    with Client(target, token=giver) as client, client.stream() as stream:
        stream.route("hello", session_id="s")
        time.sleep(LIFE_S)
        assert stream.route("hello again", session_id="s").session_id == "s"
    assert giver.asked >= 2


async def test_asyncio_stream_goes_on_with_the_next_token(target):
    """The same with asyncio."""
    giver = Giver(good(lasts_s=LIFE_S), good())
    async with AsyncClient(target, token=giver.soon) as client, client.stream() as stream:
        await stream.route("hello", session_id="s")
        await asyncio.sleep(LIFE_S)
        turn = await stream.route("hello again", session_id="s")
        assert turn.session_id == "s"


def test_token_in_the_clear_is_warned_of(caplog):
    """If it would leave this machine unencrypted."""
    for target, warned in (("routing.example.com:80", True), ("127.0.0.1:1", False)):
        caplog.clear()
        Client(target, token="t").close()
        assert ("token_in_the_clear" in caplog.text) is warned
    caplog.clear()
    Client("routing.example.com:443", token="t", credentials=grpc.ssl_channel_credentials()).close()
    assert not caplog.text


def test_tls_credentials_come_from_files(tmp_path):
    """Certificate and key together, or neither."""
    files = Authority(tmp_path).sign("client")
    tls_credentials()
    tls_credentials(
        authority_file=tmp_path / "authority.pem",
        certificate_file=files.certificate,
        key_file=str(files.key),
    )
    with pytest.raises(ValueError, match="give both or neither"):
        tls_credentials(certificate_file=files.certificate)
    with pytest.raises(FileNotFoundError):
        tls_credentials(authority_file=tmp_path / "missing.pem")
