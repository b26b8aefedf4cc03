"""Detached signatures of a release's lists: ECDSA on P-256 with SHA-256, in base64.

openssl and cosign verify the same files, so that a reader needs nothing of this project.
"""

from __future__ import annotations

import base64
import binascii
import os
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

SUFFIX: Final = ".sig"
PASSWORD_VARIABLE: Final = "RELEASE_KEY_PASSWORD"  # noqa: S105 - the name of a variable
ALGORITHM: Final = ec.ECDSA(SHA256())


class SignatureError(Exception):
    """Why a file is not signed, with what to do."""


def sign(path: Path, key: Path) -> Path:
    """Write PATH.sig. Raises SignatureError if the key is not a private key on P-256."""
    password = os.environ.get(PASSWORD_VARIABLE)
    try:
        private = load_pem_private_key(key.read_bytes(), password.encode() if password else None)
    except (OSError, TypeError, ValueError) as error:
        raise SignatureError(
            f"{key} cannot be read as a private key in PEM; {PASSWORD_VARIABLE} is its password"
        ) from error
    if not isinstance(private, ec.EllipticCurvePrivateKey) or private.curve.name != "secp256r1":
        raise SignatureError(f"{key} is not a key on P-256")
    signed = path.with_name(path.name + SUFFIX)
    signature = base64.b64encode(private.sign(path.read_bytes(), ALGORITHM))
    signed.write_bytes(signature + b"\n")
    return signed


def verify(path: Path, key: Path) -> None:
    """Raise SignatureError unless PATH.sig is the key's signature of PATH."""
    try:
        public = load_pem_public_key(key.read_bytes())
    except (OSError, ValueError) as error:
        raise SignatureError(f"{key} cannot be read as a public key in PEM") from error
    if not isinstance(public, ec.EllipticCurvePublicKey):
        raise SignatureError(f"{key} is not a key on P-256")
    signed = path.with_name(path.name + SUFFIX)
    try:
        signature = base64.b64decode(signed.read_bytes())
        public.verify(signature, path.read_bytes(), ALGORITHM)
    except OSError as error:
        raise SignatureError(f"{path.name} is not signed: {signed.name} is missing") from error
    except (InvalidSignature, binascii.Error) as error:
        raise SignatureError(f"{signed.name} is not the signature of {path.name}") from error
