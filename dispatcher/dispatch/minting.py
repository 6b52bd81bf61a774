# SPDX-License-Identifier: Apache-2.0
"""JWTs as Airflow's generator makes them, at a fraction of what they cost there.

Nearly all that PyJWT does for a JWT is the same each time: it looks whether the shared secret may be a
certificate or a JWK after all, and writes the header. Here Airflow's generator makes one, which is taken
apart. If what is put together again from its parts equals it, to the byte, the others are made in the same
way. Otherwise, and for private keys, whose signatures are what costs, the generator makes them all.
"""

from __future__ import annotations

import hmac
import json
import os
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

DIGESTS = {"HS256": "sha256", "HS384": "sha384", "HS512": "sha512"}
"""Algorithms with a shared secret (RFC 7518, section 3.2), and what hashlib calls their hash functions."""

JTI_BYTES = 16
"""As random as the UUID that the generator takes."""

OF_EACH = {"jti", "nbf", "iat", "exp"}
"""Claims that the generator makes for each JWT."""

OF_ALL = {"iss", "aud"}
"""Claims that the generator takes from the configuration, where it has them."""

# Writes what json does, where all is ASCII; json makes an encoder anew for each.
_encode_claims = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Mint:
    """Makes JWTs that are signed with a shared secret.

    :param head: the first segment, which is the same in all
    :param claims: what the generator puts into one, in its order
    :param valid_for: seconds
    :param keyed: what signs, with the secret taken in already; copies of it are used
    """

    head: bytes
    claims: Mapping[str, Any]
    valid_for: int
    keyed: hmac.HMAC = field(repr=False)

    def make(self, extras: Mapping[str, Any]) -> str:
        """Return a JWT, as ``JWTGenerator.generate`` does.

        :param extras: claims of its own
        """
        now = int(time.time())
        jti = os.urandom(JTI_BYTES).hex()
        of_this = {"jti": jti, "nbf": now, "iat": now, "exp": now + self.valid_for}
        return self.seal({**extras, **self.claims, **of_this})

    def seal(self, claims: Mapping[str, Any]) -> str:
        """Return the JWT with these claims."""
        signed = self.head + b"." + _base64(_encode_claims(claims))
        signer = self.keyed.copy()
        signer.update(signed)
        return (signed + b"." + _base64(signer.digest())).decode()


def mint_of(generator: Any, valid_for: float) -> Mint | None:
    """Return what makes JWTs as ``generator`` does, or None if only it can.

    :param generator: Airflow's ``JWTGenerator``
    :param valid_for: seconds
    :raises Exception: the generator cannot make any
    """
    from airflow.api_fastapi.auth.tokens import JWTGenerator

    if type(generator) is not JWTGenerator:
        return None
    sample = generator.generate(extras={}, valid_for=valid_for)
    secret = generator.signing_arg
    head, body, _ = sample.split(".")
    digest = DIGESTS.get(_parsed(head)["alg"])
    claims = _parsed(body)
    if digest is None or not isinstance(secret, str) or claims.keys() - OF_ALL != OF_EACH:
        return None
    keyed = hmac.new(secret.encode(), digestmod=digest)
    mint = Mint(head.encode(), claims, claims["exp"] - claims["iat"], keyed)
    return mint if mint.seal(claims) == sample else None


def _base64(content: bytes) -> bytes:
    return urlsafe_b64encode(content).rstrip(b"=")


def _parsed(segment: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(urlsafe_b64decode(segment + "=="))
    return parsed
