"""The keys of an identity provider: what causes a fetch, and what an outage changes."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from structlog.testing import capture_logs

from routing_service.auth import jwks_source
from routing_service.auth.bearer import BearerSignIn
from routing_service.auth.caller import SignInRefused
from routing_service.auth.cut_off_call import LINGERING_MAX, CutOffCalls, DeadlinePassed
from routing_service.auth.jwks_source import JwksSource
from routing_service.auth.key_set import (
    FETCH_EVERY_S,
    KEYS_MAX,
    REFRESH_S,
    WAIT_S_MAX,
    JwksUnavailable,
    KeySet,
    read_key_set,
)
from routing_service.auth.oidc import OidcRules, OidcTokens
from routing_service.core.errors import RoutingError
from tests.rpc.identity_provider import (
    AUDIENCE,
    ISSUER,
    b64,
    claims,
    ec_key,
    good_set,
    jwk,
    key_set,
    rsa_key,
    sign,
)
from tests.rpc.signed_in import bearer

RULES = OidcRules(issuer=ISSUER, audiences=[AUDIENCE])
HOUR_S = 3600
RANDOM_KIDS = 10_000


class Provider:
    """A provider that answers or is unreachable, and a clock that is moved by hand."""

    def __init__(self) -> None:
        self.answer: bytes | None = good_set()
        self.fetches = 0
        self.now_s = 1000.0
        self.keys = KeySet(self.fetch, clock_s=lambda: self.now_s)
        self.sign_in = BearerSignIn(OidcTokens(RULES, self.keys))
        self.keys.tell_changes_to(self.sign_in.forget_all)

    async def fetch(self) -> bytes:
        self.fetches += 1
        await asyncio.sleep(0)
        if self.answer is None:
            raise JwksUnavailable("away")
        return self.answer

    async def enter(self, token: str):
        """Sign in with a token."""
        return await self.sign_in.caller(bearer(token), dict)

    async def problem(self, token: str) -> str:
        """Return the reason why a token is refused, or "" if it is accepted."""
        try:
            await self.enter(token)
        except SignInRefused as refused:
            return refused.problem
        return ""


@pytest.fixture
def provider():
    """A provider whose keys have not been fetched yet."""
    return Provider()


async def test_ten_thousand_made_up_keys_cost_one_fetch_and_good_tokens_go_on(provider):
    """Callers with made-up credentials overload neither the server nor the provider."""
    good = sign(claims())
    assert (await provider.enter(good)).user == "ana"
    provider.now_s += FETCH_EVERY_S
    before = provider.fetches
    body = good.split(".")[1]

    async def flood(place: int) -> str:
        head = json.dumps({"alg": "RS256", "kid": secrets.token_hex(8)}).encode()
        if place % 100 == 0:
            assert await provider.problem(good) == ""
            assert await provider.problem(sign(claims(sub=f"user-{place}"))) == ""
        # Within the thirty seconds, to the last.
        provider.now_s += (FETCH_EVERY_S - 1) / RANDOM_KIDS
        return await provider.problem(f"{b64(head)}.{body}.AAAA")

    for start in range(0, RANDOM_KIDS, 500):
        found = await asyncio.gather(*(flood(place) for place in range(start, start + 500)))
        assert set(found) == {"unknown_key"}
    fetches = provider.fetches - before
    print(f"{RANDOM_KIDS} random key ids in {FETCH_EVERY_S:g} s: {fetches} fetch")  # noqa: T201
    assert fetches <= 1


async def test_hour_without_the_provider_refuses_no_known_key(provider):
    """Sign-in does not depend on the provider's uptime; attempts are spaced."""
    good = sign(claims())
    await provider.enter(good)
    provider.answer = None
    fetches = provider.fetches
    for _ in range(0, HOUR_S, 10):
        provider.now_s += 10
        assert await provider.problem(sign(claims(), alg="ES256")) == ""
        assert await provider.problem(sign(claims(), kid="unknown")) == "unknown_key"
        assert await provider.problem(good) == ""
    assert provider.fetches - fetches <= HOUR_S / FETCH_EVERY_S
    provider.answer = good_set()
    assert await provider.problem(good) == ""


@pytest.mark.parametrize("broken", [b"", b"<html>", b"[]", b'{"keys":[]}', b'{"keys":5}', b"{}"])
async def test_invalid_key_set_changes_nothing(provider, broken):
    """The error page of a proxy locks no caller out."""
    good = sign(claims())
    await provider.enter(good)
    provider.answer = broken
    provider.now_s += FETCH_EVERY_S
    assert await provider.problem(sign(claims(), kid="unknown")) == "unknown_key"
    assert await provider.problem(good) == ""


async def test_withdrawn_key_is_refused_for_remembered_tokens_too(provider):
    """Accepted tokens are checked again."""
    by_rsa, by_ec = sign(claims()), sign(claims(), alg="ES256")
    assert await provider.problem(by_rsa) == await provider.problem(by_ec) == ""
    provider.answer = key_set(jwk(ec_key("good"), "ec-1"))
    provider.now_s += FETCH_EVERY_S
    assert await provider.problem(sign(claims(), kid="unknown")) == "unknown_key"
    assert await provider.problem(by_rsa) == "unknown_key"
    assert await provider.problem(by_ec) == ""


async def test_key_with_a_known_id_and_other_numbers_is_another_key(provider):
    """The id alone does not identify a key."""
    good = sign(claims())
    assert await provider.problem(good) == ""
    provider.answer = key_set(jwk(rsa_key("next"), "rsa-1"))
    provider.now_s += FETCH_EVERY_S
    await provider.problem(sign(claims(), kid="unknown"))
    assert await provider.problem(good) == "bad_signature"
    assert await provider.problem(sign(claims(), key=rsa_key("next"))) == ""


async def test_new_key_is_fetched_when_it_is_first_used(provider):
    """One fetch serves all calls that wait for it."""
    await provider.enter(sign(claims()))
    provider.answer = key_set(jwk(rsa_key("good"), "rsa-1"), jwk(rsa_key("next"), "rsa-2"))
    provider.now_s += FETCH_EVERY_S
    by_next = [sign(claims(sub=f"u{n}"), key=rsa_key("next"), kid="rsa-2") for n in range(20)]
    before = provider.fetches
    assert await asyncio.gather(*map(provider.problem, by_next)) == [""] * 20
    assert provider.fetches == before + 1


async def test_without_any_key_no_token_is_called_bad(provider):
    """It may be good, so the caller is asked to retry."""
    provider.answer = None
    with pytest.raises(RoutingError) as caught:
        await provider.enter(sign(claims()))
    assert caught.value.reason.value == "SIGN_IN_UNAVAILABLE"
    assert caught.value.retry_after_s
    provider.answer = good_set()
    provider.now_s += 10
    assert await provider.problem(sign(claims())) == ""


async def test_keys_are_fetched_again_from_time_to_time():
    """In the background, without a call that needs them."""
    provider = Provider()
    keys = KeySet(provider.fetch, refresh_s=0.01, clock_s=lambda: provider.fetches * 100.0)
    running = asyncio.create_task(keys.run())
    async with asyncio.timeout(20):
        while provider.fetches < 3:  # noqa: ASYNC110 - counted by the provider
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait((running,))
    await keys.close()
    assert keys.find("rsa-1", "RS256")


async def test_bug_in_a_fetch_does_not_end_the_fetches(provider):
    """It is logged, and the next fetch runs as usual."""
    await provider.enter(sign(claims()))
    answered, provider.answer = provider.answer, 5  # Not bytes: a bug in the fetch.
    provider.now_s += FETCH_EVERY_S
    assert await provider.problem(sign(claims(), kid="unknown")) == "unknown_key"
    assert await provider.problem(sign(claims())) == ""
    provider.answer = answered
    provider.now_s += FETCH_EVERY_S
    assert await provider.problem(sign(claims(), kid="unknown")) == "unknown_key"
    assert provider.keys._failures == 0


def test_only_keys_that_sign_by_our_algorithms_are_taken():
    """Each is used with its own algorithm alone; the token has no say in it."""
    good = jwk(rsa_key("good"), "good")
    with_mistakes = [
        {**good, "kid": "for encryption", "use": "enc"},
        {**good, "kid": "for wrapping", "key_ops": ["wrapKey"]},
        {**good, "kid": "for another algorithm", "alg": "RS512"},
        {**good, "kid": ""},
        {**good, "kid": "x" * 300},
        {**good, "kid": "no number", "n": "!"},
        {name: value for name, value in good.items() if name != "e"} | {"kid": "no exponent"},
        jwk(rsa_key("short", 1024), "short"),
        {"kty": "oct", "kid": "secret", "k": "c2VjcmV0"},
        {"kty": "OKP", "kid": "ed", "crv": "Ed25519", "x": "AAAA"},
        {**jwk(ec_key("good"), "off the curve"), "x": "AAAA"},
        {"kid": "no kind"},
        "no object",
    ]
    found = read_key_set(json.dumps({"keys": [good, *with_mistakes]}).encode())
    assert list(found) == ["good"]
    assert [key.algorithm for key in found["good"]] == ["RS256"]
    with pytest.raises(JwksUnavailable):
        read_key_set(json.dumps({"keys": [good] * (KEYS_MAX + 1)}).encode())


@pytest.fixture
def http_server():
    """Serve a test's pages, by path: (status, headers, body)."""
    pages = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, headers, body = pages.get(self.path, (404, {}, b""))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", pages
    server.shutdown()
    thread.join()
    server.server_close()


def discovery(issuer, **fields):
    """Return an issuer's discovery document."""
    return (200, {}, json.dumps({"issuer": issuer, **fields}).encode())


PATH = "/.well-known/openid-configuration"


async def test_keys_are_found_through_the_issuer_s_document(http_server):
    """No other address in an answer is used."""
    url, pages = http_server
    pages[PATH] = discovery(url, jwks_uri=f"{url}/keys")
    pages["/keys"] = (200, {}, good_set())
    assert await JwksSource(url).fetch() == good_set()
    assert await JwksSource("any", f"{url}/keys").fetch() == good_set()


@pytest.mark.parametrize(
    "document",
    [
        lambda url: discovery("https://other.example.com", jwks_uri=f"{url}/keys"),
        discovery,
        lambda url: discovery(url, jwks_uri="file:///etc/passwd"),
        lambda url: discovery(url, jwks_uri="http://login.example.com/keys"),
        lambda url: discovery(url, jwks_uri=["x"]),
        lambda _: (200, {}, b"<html>"),
        lambda _: (200, {}, b"[" * 100_000),
        lambda _: (500, {}, b""),
        lambda url: (302, {"location": f"{url}/keys"}, b""),
        lambda _: (200, {}, b" " * (jwks_source.ANSWER_BYTES_MAX + 1)),
    ],
)
async def test_invalid_discovery_document_is_refused(http_server, document):
    """Redirects and addresses of other schemes are not followed."""
    url, pages = http_server
    pages[PATH] = document(url)
    pages["/keys"] = (200, {}, good_set())
    with pytest.raises(JwksUnavailable):
        await JwksSource(url).fetch()


async def test_unreachable_provider_is_named(tmp_path):
    """The message has the URL or the path."""
    for source in (
        JwksSource("http://127.0.0.1:9"),
        JwksSource("any", str(tmp_path / "missing.json")),
    ):
        with pytest.raises(JwksUnavailable, match=r"127\.0\.0\.1|missing"):
            await source.fetch()


@pytest.fixture
def dripping_server():
    """Answer every connection with a header that never ends, a byte at a time."""
    listening = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            while not stop.wait(0.02):
                connection.sendall(b"a")

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=drip, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield f"127.0.0.1:{listening.getsockname()[1]}"
    stop.set()
    listening.close()


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("jwks", ["", "/keys"])
async def test_answer_that_drips_ends_at_the_deadline_of_the_whole_fetch(
    dripping_server, scheme, jwks
):
    """A limit on each read is never reached by a byte a second; header and TLS handshake too."""
    url = f"{scheme}://{dripping_server}"
    source = JwksSource(url, jwks and url + jwks, fetch_s_max=0.3)
    for _ in range(2 * LINGERING_MAX):
        started_s = time.monotonic()
        with pytest.raises(JwksUnavailable):
            await source.fetch()
        assert time.monotonic() - started_s < 3


async def test_call_that_cannot_be_cut_off_holds_few_threads():
    """A name server that hangs has no socket of ours to close."""
    calls, release = CutOffCalls(lingering_max=2), threading.Event()
    for _ in range(2):
        with pytest.raises(DeadlinePassed, match="took more than"):
            await calls.call(lambda _: release.wait(), 0.01)
    with pytest.raises(DeadlinePassed, match="2 earlier attempts"):
        await calls.call(lambda _: None, 1)
    release.set()
    async with asyncio.timeout(10):
        while True:
            with suppress(DeadlinePassed):
                assert await calls.call(lambda _: "made", 1) == "made"
                break
            await asyncio.sleep(0.01)


async def test_keys_older_than_they_should_be_are_an_error_in_the_log(provider):
    """The log warns that a withdrawn key may still be accepted."""
    await provider.enter(sign(claims()))
    assert provider.keys.age_s == 0
    provider.answer = None
    with capture_logs() as lines:
        for _ in range(3):
            provider.now_s += REFRESH_S
            await provider.problem(sign(claims(), kid="unknown"))
    assert provider.keys.age_s == 3 * REFRESH_S
    old = [line for line in lines if line["event"] == "sign_in_keys_old"]
    assert [(line["log_level"], line["age_s"]) for line in old] == [("error", 3 * REFRESH_S)]


async def test_calls_with_unknown_keys_wait_for_a_slow_fetch_once(provider):
    """Each of them used to wait three seconds more, for as long as the provider was slow."""
    good = sign(claims())
    await provider.enter(good)
    release = asyncio.Event()

    async def slow() -> bytes:
        await release.wait()
        return good_set()

    provider.keys._fetch = slow
    provider.now_s += FETCH_EVERY_S
    first = asyncio.create_task(provider.problem(sign(claims(), kid="unknown")))
    await asyncio.sleep(0)
    provider.now_s += WAIT_S_MAX
    async with asyncio.timeout(WAIT_S_MAX / 2):
        assert await provider.problem(sign(claims(), kid="other")) == "unknown_key"
        assert await provider.problem(good) == ""
    release.set()
    assert await first == "unknown_key"
