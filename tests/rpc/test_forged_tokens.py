"""Forged and wrong tokens of every kind, against a server with OpenID Connect.

All are refused with the same message: the caller learns nothing, and the log has the reason.
"""

from __future__ import annotations

import json
import time

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.core.errors import Reason
from tests.rpc.identity_provider import (
    AUDIENCE,
    CLIENT_ID,
    ENTRA_ISSUER,
    ISSUER,
    OTHER_TENANT_ID,
    TENANT_ID,
    b64,
    claims,
    ec_key,
    entra_claims,
    good_set,
    jwk,
    public_pem,
    rsa_key,
    sign,
    signature,
)
from tests.rpc.live_service import refusal, serving
from tests.rpc.registries import DESK
from tests.rpc.signed_in import bearer, token

KINDS_MIN = 40

EVIL = "https://evil.example.com"
DEEP = b'{"a":' * 3000 + b"1" + b"}" * 3000


def unsigned(alg: object, mark: str = "x") -> str:
    """Return a token that claims to need no signature."""
    head = json.dumps({"alg": alg, "kid": "rsa-1"}).encode()
    return f"{b64(head)}.{b64(json.dumps(claims()).encode())}.{mark}"


def parts() -> tuple[str, str, str]:
    """Return the parts of a valid token."""
    head, body, mark = sign(claims()).split(".")
    return head, body, mark


def algorithms() -> dict[str, str]:
    """Tokens that choose the algorithm of their check."""
    found = {
        f"alg {alg!r}": unsigned(alg)
        for alg in ("none", "None", "NONE", "nOnE", "", None, 5, ["RS256"])
    }
    found |= {
        f"{alg} by the public key in its PEM form": sign(
            claims(), alg=alg, key=public_pem(rsa_key("good")), kid="rsa-1"
        )
        for alg in ("HS256", "HS384", "HS512")
    }
    jwk_text = json.dumps(jwk(rsa_key("good"), "rsa-1")).encode()
    found["HS256 by the public key as the set has it"] = sign(
        claims(), alg="HS256", key=jwk_text, kid="rsa-1"
    )
    found["HS256 by nothing"] = sign(claims(), alg="HS256", key=b"", kid="rsa-1")
    found |= {
        f"{alg} by the right key": sign(claims(), alg=alg, key=rsa_key("good"), kid="rsa-1")
        for alg in ("RS384", "RS512", "PS256")
    }
    found["ES384"] = sign(claims(), alg="ES384", key=ec_key("p384", ec.SECP384R1), kid="ec-1")
    found["EdDSA"] = sign(
        claims(), alg="EdDSA", key=ed25519.Ed25519PrivateKey.generate(), kid="ec-1"
    )
    found["ES256 under the id of an RSA key"] = sign(claims(), alg="ES256", kid="rsa-1")
    found["RS256 under the id of an EC key"] = sign(claims(), alg="RS256", kid="ec-1")
    return found


def keys() -> dict[str, str]:
    """Tokens that choose the key of their check."""
    evil = rsa_key("evil")
    pointers = {
        "jku": {"jku": f"{EVIL}/jwks.json"},
        "x5u": {"x5u": f"{EVIL}/cert.pem"},
        "jwk": {"jwk": jwk(evil, "rsa-1")},
        "x5c": {"x5c": [b64(b"a certificate")]},
    }
    found = {
        f"a key of one's own by {name}": sign(claims(), key=evil, **more)
        for name, more in pointers.items()
    }
    found |= {
        f"a key of one's own by {name}, under its own id": sign(
            claims(), key=evil, kid="evil", **more
        )
        for name, more in pointers.items()
    }
    found["another key under a known id"] = sign(claims(), key=evil)
    found["another EC key under a known id"] = sign(claims(), alg="ES256", key=ec_key("evil"))
    strange = [
        "unknown",
        "",
        "../../../../dev/null",
        f"{EVIL}/key",
        "' OR 1=1 --",
        "rsa-1\0",
        "RSA-1",
        " rsa-1",
        "${jndi:ldap://evil}",
        "%72sa-1",
        "k" * 5000,
        7,
        ["rsa-1"],
        None,
        {"kid": "rsa-1"},
    ]
    found |= {f"kid {str(kid)[:30]!r}": sign(claims(), kid=kid) for kid in strange}
    found["no kid"] = sign(claims(), kid=...)
    return found


def forms() -> dict[str, str]:
    """Texts that are not tokens, and tokens that were changed."""
    head, body, mark = parts()
    other = sign(claims(sub="ben")).split(".")
    bare = b64(b'{"alg":"RS256","kid":"rsa-1"}')
    altered = b64(json.dumps(claims(sub="ben")).encode())
    return {
        "no signature": f"{head}.{body}",
        "an empty signature": f"{head}.{body}.",
        "half a signature": f"{head}.{body}.{mark[:100]}",
        "zeros for a signature": f"{head}.{body}.{b64(bytes(256))}",
        "another token's signature": f"{head}.{body}.{other[2]}",
        "altered claims": f"{head}.{altered}.{mark}",
        "another header": f"{bare}.{body}.{mark}",
        "zeros for an ES256 signature": ".".join(
            [b64(b'{"alg":"ES256","kid":"ec-1"}'), body, b64(bytes(64))]
        ),
        "padding": f"{head}.{body}.{mark}==",
        "letters that base64 has not": f"{head}.{body}.{mark[:9]}!{mark[9:]}",
        "five parts, as encrypted tokens have": f"{head}.{body}.{mark}.{mark}.{mark}",
        "the JSON form": json.dumps({"protected": head, "payload": body, "signature": mark}),
        "a header that is no JSON": f"{b64(b'header')}.{body}.{mark}",
        "a header that is a list": f"{b64(b'[1]')}.{body}.{mark}",
        "a header nested without end": sign(
            claims(), header=b'{"alg":"RS256","kid":"rsa-1","x":' + DEEP[:1200] + b"}"
        ),
        "claims that are no JSON": sign(b"claims"),
        "claims that are a list": sign(b"[]"),
        "claims that are a number": sign(b"7"),
        "claims that are no UTF-8": sign(b'{"sub":"\xff"}'),
        "claims nested without end": sign(DEEP[:3000]),
        "nothing but dots": "..",
        "9 KiB": sign(claims(filler="x" * 6500)),
        "a development token": token("route", "admin", user="ana"),
        "critical extensions": sign(claims(), crit=["exp"], exp=1),
        "detached claims": sign(claims(), b64=False, crit=["b64"]),
        "detached claims, not critical": sign(claims(), b64=False),
        "a logout token": sign(claims(), typ="logout+jwt"),
        "a proof of possession": sign(claims(), typ="dpop+jwt"),
        "a type that is no text": sign(claims(), typ=5),
    }


def said() -> dict[str, str]:
    """Signed tokens with wrong claims: for another audience, expired, not yet valid and so on."""
    now = int(time.time())
    changed = {
        "expired": {"exp": now - 3600},
        "exp missing": {"exp": ...},
        "exp in words": {"exp": "soon"},
        "exp null": {"exp": None},
        "exp before time": {"exp": -(10**300)},
        "exp a list": {"exp": [now + 600]},
        "nbf to come": {"nbf": now + 3600},
        "nbf in words": {"nbf": "now"},
        "iat to come": {"iat": now + 3600},
        "iss of another": {"iss": EVIL},
        "iss missing": {"iss": ...},
        "iss a list": {"iss": [ISSUER]},
        "iss with a slash more": {"iss": f"{ISSUER}/"},
        "iss in capitals": {"iss": ISSUER.upper()},
        "aud of another": {"aud": "billing"},
        "aud missing": {"aud": ...},
        "aud empty": {"aud": []},
        "aud longer": {"aud": f"{AUDIENCE}-2"},
        "aud a list of others": {"aud": ["billing", f"{AUDIENCE}2"]},
        "aud an object": {"aud": {AUDIENCE: True}},
        "sub missing": {"sub": ...},
        "sub empty": {"sub": ""},
        "sub a number": {"sub": 5},
        "sub with a line end": {"sub": "ana\nadmin"},
        "sub with half a character": {"sub": "ana\ud800"},
        "sub with a space of no width": {"sub": "ana\u200b"},
        "sub with a change of direction": {"sub": "\u202eana"},
        "sub of 300 bytes": {"sub": "a" * 300},
        "an ID token by nonce": {"nonce": "n-0S6"},
        "an ID token by at_hash": {"at_hash": "MTIz"},
        "an ID token by c_hash": {"c_hash": "MTIz"},
        "an ID token of Cognito": {"token_use": "id"},
        "an ID token of Keycloak": {"typ": "ID"},
        "a refresh token": {"typ": "Refresh"},
        "a security event": {"events": {}},
        "no tenant": {"company": ...},
        "a tenant with a slash": {"company": "a/b"},
        "all tenants": {"company": "*"},
        "a tenant that is a list": {"company": ["acme"]},
        "scope a number": {"scope": 5},
        "scope an object": {"scope": {"route": True}},
        "roles of numbers": {"roles": [1]},
        "an agent that is no id": {"agents": ["a b"]},
        "entitlements without end": {"plan": [f"p{n}" for n in range(100)]},
    }
    found = {name: sign(claims(**more)) for name, more in changed.items()}
    numbers = json.dumps(claims(exp=...))[:-1]
    for name, text in {"NaN": "NaN", "Infinity": "Infinity", "1e400": "1e400"}.items():
        found[f"exp {name}"] = sign(f'{numbers},"exp":{text}}}'.encode())
    return found


def entra() -> dict[str, str]:
    """Tokens of Entra ID with another version, kind or tenant."""
    changed = {
        "version 1": {
            "ver": "1.0",
            "iss": f"https://sts.windows.net/{TENANT_ID}/",
            "appid": CLIENT_ID,
        },
        "version 1 under the issuer of version 2": {"ver": "1.0"},
        "no version": {"ver": ...},
        "version 2 as a number": {"ver": 2.0},
        "an ID token": {"azp": ..., "azpacr": ..., "scp": ..., "name": "Ana"},
        "an ID token with roles": {"azp": ..., "azpacr": ..., "scp": ..., "roles": ["admin"]},
        "neither scp nor roles": {"scp": ...},
        "no azp": {"azp": ...},
        "no tid": {"tid": ...},
        "tid that is no UUID": {"tid": "contoso.com"},
        "tid of another tenant": {"tid": OTHER_TENANT_ID},
        "issuer of another tenant": {"iss": ENTRA_ISSUER.replace(TENANT_ID, OTHER_TENANT_ID)},
        "another tenant in both": {
            "tid": OTHER_TENANT_ID,
            "iss": ENTRA_ISSUER.replace(TENANT_ID, OTHER_TENANT_ID),
        },
        "no oid": {"oid": ...},
        "oid that is no UUID": {"oid": "ana@contoso.com"},
        "an application that says it is a user": {"scp": ..., "roles": ["agent"], "idtyp": "user"},
        "a user that says it is an application": {"idtyp": "app"},
        "for Microsoft Graph": {"aud": "00000003-0000-0000-c000-000000000000"},
        "a nonce": {"nonce": "n-0S6"},
    }
    return {name: sign(entra_claims(**more)) for name, more in changed.items()}


@pytest.fixture
async def service(tmp_path):
    """A server for the tokens of one provider."""
    path = tmp_path / "jwks.json"
    path.write_bytes(good_set())
    async with serving(
        tmp_path,
        DESK,
        store="memory:",
        sign_in="oidc",
        oidc_issuer=ISSUER,
        oidc_audience=AUDIENCE,
        oidc_jwks=str(path),
        oidc_tenant_claim="company",
        oidc_entitlements_claim="plan",
    ) as running:
        yield running


@pytest.fixture
async def entra_service(tmp_path):
    """A server for the tokens of one tenant of Entra ID."""
    path = tmp_path / "jwks.json"
    path.write_bytes(good_set())
    async with serving(
        tmp_path,
        DESK,
        store="memory:",
        sign_in="oidc",
        oidc_profile="entra",
        oidc_issuer=ENTRA_ISSUER,
        oidc_audience=CLIENT_ID,
        oidc_jwks=str(path),
    ) as running:
        yield running


def agents(service, *metadata):
    """Make a harmless call."""
    return service.stub.ListAgents(pb.ListAgentsRequest(), metadata=metadata, timeout=20)


async def refuse_all(service, kinds) -> None:
    """Assert that all are refused with the same message, except that an expiry may be named."""
    first = await refusal(agents(service, *bearer(unsigned("none"))))
    for name, forged in kinds.items():
        refused = await refusal(agents(service, *bearer(forged)))
        assert tuple(refused) == ("UNAUTHENTICATED", "UNAUTHENTICATED"), name
        assert refused.metadata == {}, name
        if name not in ("expired", "exp before time"):
            assert refused.message == first.message, name
        record = service.observer.calls[-1]
        assert record.credential_problem, name
        assert record.actor == record.user_id == "", name


@pytest.mark.parametrize("alg", ["RS256", "ES256"])
async def test_good_token_is_accepted(service, alg):
    """The other tests each change one thing in this token."""
    for typ in ("JWT", "at+jwt", ...):
        answer = await agents(service, *bearer(sign(claims(), alg=alg, typ=typ)))
        assert answer.home_agent_id == "front"
    for more in ({"aud": ["billing", AUDIENCE]}, {"nbf": ..., "iat": ...}, {"company": "globex"}):
        await agents(service, *bearer(sign(claims(**more), alg=alg)))


@pytest.mark.parametrize("kinds", [algorithms, keys, forms, said])
async def test_forged_tokens_are_refused(service, kinds):
    """All get the same message, and the log names the fault."""
    await refuse_all(service, kinds())
    # A caller with a valid token still gets answers.
    await agents(service, *bearer(sign(claims())))


async def test_wrong_tokens_of_entra_are_refused(entra_service):
    """Version 1, ID tokens and other tenants, all signed with the same keys."""
    for good in ({}, {"scp": ..., "roles": ["agent", "agent:sales"]}, {"idtyp": "user"}):
        await agents(entra_service, *bearer(sign(entra_claims(**good))))
    await refuse_all(entra_service, entra())


async def test_tokens_in_other_places_are_no_tokens(service):
    """Only one authorization header is accepted: a proxy might read another one of two."""
    good = sign(claims())
    places = {
        "nothing": (),
        "two headers": (*bearer(good), *bearer(good)),
        "two different headers": (*bearer(good), *bearer(sign(claims(sub="ben")))),
        "another header": (("x-authorization", f"Bearer {good}"),),
        "a header named token": (("token", good),),
        "a cookie": (("cookie", f"token={good}"),),
        "a binary header": (("authorization-bin", f"Bearer {good}".encode()),),
        "no scheme": (("authorization", good),),
        "another scheme": (("authorization", f"Basic {good}"),),
        "two spaces": (("authorization", f"Bearer  {good}"),),
        "two tokens": (("authorization", f"Bearer {good} {good}"),),
        "two with a comma": (("authorization", f"Bearer {good}, Bearer {good}"),),
        "the scheme alone": (("authorization", "Bearer "),),
        "13 KiB": (("authorization", "Bearer " + "a" * 13_000),),
    }
    for name, metadata in places.items():
        refused = await refusal(agents(service, *metadata))
        assert tuple(refused) == ("UNAUTHENTICATED", "UNAUTHENTICATED"), name


async def test_good_tokens_without_the_right_are_denied(service):
    """A signed token without the scope gets PERMISSION_DENIED from every call."""
    for name, more, metadata in (
        ("no scope", {"scope": ...}, ()),
        ("scopes of others", {"scope": "openid profile Route ROUTE route2 admin.read"}, ()),
        ("another tenant", {}, (("agent-routing-tenant", "globex"),)),
        ("all tenants", {"scope": "admin"}, (("agent-routing-tenant", "other"),)),
    ):
        refused = await refusal(agents(service, *bearer(sign(claims(**more))), *metadata))
        assert tuple(refused) == ("PERMISSION_DENIED", "SCOPE_MISSING"), name
    refused = await refusal(
        agents(service, *bearer(sign(claims())), ("agent-routing-tenant", "a/b"))
    )
    assert tuple(refused) == ("INVALID_ARGUMENT", Reason.INVALID_FIELD.value)


def test_there_are_as_many_kinds_as_promised():
    """The count is printed here, so that the document's figure comes from a run."""
    kinds = [*algorithms(), *keys(), *forms(), *said(), *entra()]
    assert len(kinds) == len(set(kinds))
    print(f"forged and wrong tokens: {len(kinds)} kinds")  # noqa: T201 - the figure
    assert len(kinds) >= KINDS_MIN


def test_signatures_of_the_tests_are_what_they_say():
    """The forged tokens must carry real signatures, or their refusal proves nothing."""
    signed = b"header.claims"
    assert len(signature("ES256", ec_key("good"), signed)) == 64
    assert len(signature("RS256", rsa_key("good"), signed)) == 256
