"""A Redis server over TLS: which servers the store trusts, and the errors for others.

The wheel's server has no TLS, so a proxy in front of it terminates the connection.
"""

import shutil
import ssl
import subprocess

import pytest
from structlog.testing import capture_logs

from routing_service.storage.open_store import open_store
from routing_service.storage.store import StoreUnavailable
from tests.engines.appends import append, key
from tests.engines.cut_line import cut_line


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate for the name localhost, and its key."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("redis over TLS: there is no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    files = (folder / "certificate.pem", folder / "key.pem")
    subprocess.run(
        [
            *(program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost", "-out", files[0], "-keyout", files[1]),
        ],
        check=True,
        capture_output=True,
    )
    return files


@pytest.fixture
async def place(own_redis, certificate):
    """A function that returns the server's TLS address for a host's name and a query."""
    with own_redis.client() as client:
        client.flushall()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    async with cut_line(own_redis.port, context) as line:
        yield lambda host, query="": (
            f"rediss://:{own_redis.password}@{host}:{line.port}/0?call_timeout_s=30&{query}"
        ).rstrip("&")


async def serves(url):
    """Write and read once."""
    store = await open_store(url)
    await store.append(append())
    revision = await store.head_revision(key())
    await store.close()
    return revision == 1


async def test_server_whose_certificate_is_trusted_is_used(place, certificate):
    """The URL names the file with the authority."""
    assert await serves(place("localhost", f"ssl_ca_certs={certificate[0]}"))


@pytest.mark.parametrize("trusted", [False, True])
async def test_server_that_is_not_who_it_should_be_is_refused(
    own_redis, place, certificate, trusted
):
    """With an unknown authority or another name; the password is not sent."""
    url = place("127.0.0.1", f"ssl_ca_certs={certificate[0]}") if trusted else place("localhost")
    with capture_logs() as logs, pytest.raises(StoreUnavailable) as refused:
        await open_store(url)
    assert "cannot be reached" in str(refused.value)
    assert "certificate verify failed" in logs[0]["error"]
    assert own_redis.password not in f"{refused.value} {logs}"


async def test_name_of_the_certificate_may_be_left_unchecked(place, certificate):
    """An operator may need it for an address that no certificate has."""
    query = f"ssl_ca_certs={certificate[0]}&ssl_check_hostname=off"
    assert await serves(place("127.0.0.1", query))
