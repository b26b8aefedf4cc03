"""Sign-in by the access tokens of an OpenID Connect provider.

Rule: nothing in a token chooses how it is checked. Its header names a key of the provider's set,
and that key decides the algorithm. Other pointers to a key (jku, x5u, jwk, x5c) are not read.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import structlog

from routing_service.auth import claims
from routing_service.auth.bearer import expired
from routing_service.auth.caller import DEFAULT_TENANT, Caller, SignInRefused, is_tenant
from routing_service.auth.key_set import KEY_ID_CHARS_MAX, Key, KeySet
from routing_service.settings.provider_url import TENANT_MARK

_log = structlog.get_logger(__name__)

ALGORITHMS: Final = frozenset({"RS256", "ES256"})

HEADER_BYTES_MAX: Final = 4096

_TYPES: Final = frozenset({"", "jwt", "at+jwt", "application/at+jwt"})
"""Accepted values of typ; the last two are RFC 9068's. A token for another purpose, such as a
logout, is refused."""

_ID_TOKEN_CLAIMS: Final = frozenset({"nonce", "at_hash", "c_hash", "s_hash"})
"""Claims that tie an ID token to a browser's sign-in. Such a token tells one program who its user
is; another service must not accept it."""

_EXPIRES_S_MAX: Final = 253_402_300_799
"""The end of the year 9999."""

_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z")


class _Header(msgspec.Struct):
    alg: str
    kid: str
    typ: str = ""
    crit: msgspec.Raw | None = None


_decode_header: Final = msgspec.json.Decoder(_Header).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcRules:
    """What a token must contain, and how it is read.

    issuer: as in iss; with TENANT_MARK for several tenants of Entra ID. audiences: the token needs
    one of them. is_entra: read access tokens of Entra ID, version 2. tenants: accepted ones if the
    issuer has a mark; "*" = all. tenant_claim, user_claim, agents_claim, entitlements_claim: their
    claims' names; "" = none. scope_prefix: of each scope and role. leeway_s: allowed difference of
    clocks.
    """

    issuer: str
    audiences: Sequence[str]
    is_entra: bool = False
    tenants: frozenset[str] = frozenset()
    tenant_claim: str = ""
    user_claim: str = "sub"
    agents_claim: str = "agents"
    entitlements_claim: str = ""
    scope_prefix: str = ""
    leeway_s: float = 30.0


class OidcTokens:
    """Checks a provider's access tokens: a TokenVerifier."""

    def __init__(self, rules: OidcRules, keys: KeySet) -> None:
        """Check with the keys of one provider."""
        self._rules = rules
        self._keys = keys

    async def verify(self, token: str) -> Caller:
        """See TokenVerifier.verify."""
        header = read_header(token)
        keys = self._keys.find(header.kid, header.alg)
        if not keys:
            await self._keys.look_again()
            keys = self._keys.find(header.kid, header.alg)
        if not keys:
            raise SignInRefused("unknown_key")
        # Nothing waits from here on, so that the key is still known when the token is accepted.
        key, said = self._signed_by(token, keys)
        rules = self._rules
        issuer = rules.issuer
        if rules.is_entra:
            tenant = _tenant_of_entra(said)
            if TENANT_MARK in issuer:
                if "*" not in rules.tenants and tenant not in rules.tenants:
                    raise SignInRefused("tenant_not_let_in")
                issuer = issuer.replace(TENANT_MARK, tenant)
            elif tenant not in issuer.split("/"):
                raise SignInRefused("tenant_not_let_in")
        if said["iss"] != issuer:
            raise SignInRefused("wrong_issuer")
        if key.issuer and key.issuer.replace("{tenantid}", str(said.get("tid", ""))) != issuer:
            raise SignInRefused("key_of_another_issuer")
        _refuse_other_kinds(said)
        return _caller_of_entra(said, rules) if rules.is_entra else _caller_of(said, rules)

    def _signed_by(self, token: str, keys: Sequence[Key]) -> tuple[Key, dict[str, Any]]:
        """Return the key that signed a token, and the token's claims."""
        import jwt  # noqa: PLC0415 - of the extra oidc

        problem = "bad_signature"
        for key in keys:
            try:
                return key, jwt.decode(
                    token,
                    key.key,
                    algorithms=[key.algorithm],
                    audience=self._rules.audiences,
                    leeway=self._rules.leeway_s,
                    options={"require": ["exp", "iss", "aud", "sub"]},
                )
            except jwt.InvalidSignatureError:
                continue
            except jwt.ExpiredSignatureError:
                raise self._expired(token) from None
            except jwt.InvalidTokenError as error:
                problem = _PROBLEMS.get(type(error).__name__, "bad_claims")
                break
            except Exception as error:  # noqa: BLE001 - json's and int's, for arbitrary input
                _log.debug("token_unreadable", error=type(error).__name__)
                problem = "unreadable"
                break
        raise SignInRefused(problem)

    def _expired(self, token: str) -> SignInRefused:
        """Return a refusal with the time of expiry. The signature is known to be good."""
        import jwt  # noqa: PLC0415 - of the extra oidc

        said = jwt.decode(token, options={"verify_signature": False})
        return expired(_expires_s(said, self._rules))


_PROBLEMS: Final[Mapping[str, str]] = {
    "InvalidAudienceError": "wrong_audience",
    "ImmatureSignatureError": "not_yet",
    "InvalidIssuedAtError": "bad_iat",
    "MissingRequiredClaimError": "claim_missing",
    "DecodeError": "unreadable",
    "InvalidAlgorithmError": "bad_algorithm",
}


def read_header(token: str) -> _Header:
    """Return the header of an access token. Raises SignInRefused."""
    text = token.partition(".")[0]
    if len(text) > HEADER_BYTES_MAX:
        raise SignInRefused("bad_header")
    try:
        header = _decode_header(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, msgspec.DecodeError, RecursionError) as error:
        raise SignInRefused("bad_header") from error
    if header.alg not in ALGORITHMS:
        raise SignInRefused("bad_algorithm")
    if header.crit is not None:
        # It requires extensions (RFC 7515), and none is supported.
        raise SignInRefused("bad_header")
    if header.typ.lower() not in _TYPES:
        raise SignInRefused("other_kind_of_token")
    if not 0 < len(header.kid) <= KEY_ID_CHARS_MAX:
        raise SignInRefused("bad_header")
    return header


def _refuse_other_kinds(said: Mapping[str, Any]) -> None:
    """Refuse tokens that the provider signs for other purposes than calling a service."""
    kind = said.get("typ", "Bearer")  # Keycloak: Bearer, ID, Refresh.
    use = said.get("token_use", "access")  # Cognito: access, id.
    if kind not in ("Bearer", "at+jwt") or use != "access" or "events" in said:
        raise SignInRefused("other_kind_of_token")
    if not _ID_TOKEN_CLAIMS.isdisjoint(said):
        raise SignInRefused("id_token")


def _caller_of(said: Mapping[str, Any], rules: OidcRules) -> Caller:
    """Read the claims of a token that follows RFC 9068, at least roughly."""
    tenant = DEFAULT_TENANT
    if rules.tenant_claim:
        tenant = said.get(rules.tenant_claim, "")
        if not isinstance(tenant, str) or not is_tenant(tenant):
            raise SignInRefused("bad_tenant")
    granted = [
        *claims.words(said.get("scope"), "scope"),
        *claims.words(said.get("scp"), "scp"),
        *claims.words(said.get("roles"), "roles"),
    ]
    # A token that a program got for itself (RFC 9068, section 2.2) has no user.
    is_program = said.get("client_id", said.get("azp")) == said["sub"]
    user = "" if is_program else claims.subject(said.get(rules.user_claim), rules.user_claim)
    return Caller(
        tenant=tenant,
        subject=claims.subject(said["sub"], "sub"),
        user=user,
        person=user,
        scopes=claims.scopes(granted, rules.scope_prefix),
        roles=claims.roles(granted, rules.scope_prefix),
        agents=_agents(said, granted, rules),
        entitlements=None if is_program else _entitlements(said, rules),
        expires_s=_expires_s(said, rules),
    )


def _tenant_of_entra(said: Mapping[str, Any]) -> str:
    tenant = said.get("tid")
    if said.get("ver") != "2.0":
        # Version 1 has another issuer, and names people and programs by other claims.
        raise SignInRefused("wrong_version")
    if not isinstance(tenant, str) or not _UUID.match(tenant):
        raise SignInRefused("bad_tenant")
    return tenant


def _caller_of_entra(said: Mapping[str, Any], rules: OidcRules) -> Caller:
    """Read the claims of an access token of Entra ID, version 2.

    tid and oid identify a person. sub differs for each program, and names and addresses change.
    """
    oid, azp, scp = said.get("oid"), said.get("azp"), said.get("scp")
    if not isinstance(oid, str) or not _UUID.match(oid):
        raise SignInRefused("bad_oid")
    roles = claims.words(said.get("roles"), "roles")
    if not isinstance(azp, str) or (scp is None and not roles):
        # An ID token has neither azp nor scp. The audience alone does not tell them apart if the
        # program and the service share a registration.
        raise SignInRefused("id_token")
    is_program = scp is None
    if said.get("idtyp", "app" if is_program else "user") != ("app" if is_program else "user"):
        raise SignInRefused("bad_idtyp")
    granted = [*claims.words(scp, "scp"), *roles]
    return Caller(
        tenant=said["tid"],
        subject=oid,
        user="" if is_program else oid,
        person="" if is_program else oid,
        scopes=claims.scopes(granted, rules.scope_prefix),
        roles=claims.roles(granted, rules.scope_prefix),
        agents=_agents(said, granted, rules),
        entitlements=None if is_program else _entitlements(said, rules),
        expires_s=_expires_s(said, rules),
    )


def _expires_s(said: Mapping[str, Any], rules: OidcRules) -> float:
    # PyJWT accepts text too. A number beyond all clocks would not fit a float.
    return min(max(int(said["exp"]), 0), _EXPIRES_S_MAX) + rules.leeway_s


def _agents(said: Mapping[str, Any], granted: Sequence[str], rules: OidcRules) -> frozenset[str]:
    named = said.get(rules.agents_claim) if rules.agents_claim else None
    return claims.agents(claims.words(named, rules.agents_claim), granted, rules.scope_prefix)


def _entitlements(said: Mapping[str, Any], rules: OidcRules) -> tuple[str, ...] | None:
    """Return the entitlements in the token; without the named claim the user has none."""
    if not rules.entitlements_claim:
        return None
    return claims.entitlements(said.get(rules.entitlements_claim), rules.entitlements_claim)
