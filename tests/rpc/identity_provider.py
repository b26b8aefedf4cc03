"""An identity provider for tests: keys, a key set, and valid and invalid tokens.

It checks nothing, so that a test can build any token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from functools import cache
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa, utils

ISSUER = "https://login.example.com/realms/chat"
AUDIENCE = "agent-routing"

TENANT_ID = "11111111-2222-4333-8444-555555555555"
OTHER_TENANT_ID = "99999999-2222-4333-8444-555555555555"
OBJECT_ID = "aaaaaaaa-2222-4333-8444-555555555555"
CLIENT_ID = "bbbbbbbb-2222-4333-8444-555555555555"
ENTRA_ISSUER = f"https://login.microsoftonline.com/{TENANT_ID}/v2.0"


@cache
def rsa_key(name: str, bits: int = 2048) -> rsa.RSAPrivateKey:
    """Return a key, the same for the same name. Making one takes a tenth of a second."""
    del name
    return rsa.generate_private_key(65_537, bits)


@cache
def ec_key(name: str, curve: type[ec.EllipticCurve] = ec.SECP256R1) -> ec.EllipticCurvePrivateKey:
    """Return a key, the same for the same name."""
    del name
    return ec.generate_private_key(curve())


def b64(data: bytes) -> str:
    """Encode a part of a token as base64url."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _number(value: int) -> str:
    return b64(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def jwk(key: Any, key_id: str, **fields: Any) -> dict[str, Any]:
    """Return the public part of a key as a key set holds it."""
    numbers = key.public_key().public_numbers()
    if isinstance(key, rsa.RSAPrivateKey):
        made = {"kty": "RSA", "n": _number(numbers.n), "e": _number(numbers.e)}
    else:
        size = (key.curve.key_size + 7) // 8
        made = {
            "kty": "EC",
            "crv": {256: "P-256", 384: "P-384"}[key.curve.key_size],
            "x": b64(numbers.x.to_bytes(size, "big")),
            "y": b64(numbers.y.to_bytes(size, "big")),
        }
    return {**made, "kid": key_id, "use": "sig", **fields}


def key_set(*keys: dict[str, Any]) -> bytes:
    """Return a key set."""
    return json.dumps({"keys": keys}).encode()


def good_set() -> bytes:
    """Return the published key set."""
    return key_set(jwk(rsa_key("good"), "rsa-1"), jwk(ec_key("good"), "ec-1"))


def public_pem(key: Any) -> bytes:
    """Return a public key as PEM, which attackers can get."""
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def signature(alg: str, key: Any, signed: bytes) -> bytes:
    """Sign by any algorithm. key: a private key, or bytes for HMAC."""
    digest = {"256": hashes.SHA256, "384": hashes.SHA384, "512": hashes.SHA512}.get(alg[-3:])
    if isinstance(key, bytes):
        return hmac.digest(key, signed, getattr(hashlib, f"sha{alg[-3:]}"))
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key.sign(signed)
    if isinstance(key, rsa.RSAPrivateKey):
        pad = padding.PSS(padding.MGF1(digest()), 32) if alg[0] == "P" else padding.PKCS1v15()
        return key.sign(signed, pad, digest())
    r, s = utils.decode_dss_signature(key.sign(signed, ec.ECDSA(digest())))
    size = (key.curve.key_size + 7) // 8
    return r.to_bytes(size, "big") + s.to_bytes(size, "big")


def claims(**changed: Any) -> dict[str, Any]:
    """Return the claims of a valid token; a claim set to ... is left out."""
    now = int(time.time())
    said = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "ana",
        "client_id": "web",
        "iat": now - 5,
        "nbf": now - 5,
        "exp": now + 600,
        "scope": "openid route read",
        "company": "acme",
    }
    return {name: value for name, value in (said | changed).items() if value is not ...}


def entra_claims(**changed: Any) -> dict[str, Any]:
    """Return the claims of an access token of Entra ID, version 2."""
    said = {
        "iss": ENTRA_ISSUER,
        "aud": CLIENT_ID,
        "sub": "pairwise",
        "tid": TENANT_ID,
        "oid": OBJECT_ID,
        "azp": "cccccccc-2222-4333-8444-555555555555",
        "azpacr": "0",
        "ver": "2.0",
        "scp": "route",
        "scope": ...,
        "client_id": ...,
        "company": ...,
    }
    return claims(**said | changed)


def sign(
    said: dict[str, Any] | bytes,
    *,
    alg: str = "RS256",
    key: Any = None,
    header: dict[str, Any] | bytes | None = None,
    **more: Any,
) -> str:
    """Return a token. header: the whole header; None: alg, kid and typ are filled in."""
    if key is None:
        key = rsa_key("good") if alg[0] in "RP" else ec_key("good")
    if header is None:
        made = {"alg": alg, "typ": "JWT", "kid": "rsa-1" if alg[0] in "RP" else "ec-1", **more}
        header = {name: value for name, value in made.items() if value is not ...}
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    body = said if isinstance(said, bytes) else json.dumps(said).encode()
    signed = f"{b64(head)}.{b64(body)}"
    return f"{signed}.{b64(signature(alg, key, signed.encode()))}"
