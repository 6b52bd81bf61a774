# SPDX-License-Identifier: Apache-2.0
"""JWTs on the API server, signed and verified as Airflow's execution API does it.

The execution API keeps its generator and validator in a registry of its own, which neither a root middleware
nor a plugin's app can reach: these are built from the same settings.
"""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING, Any

import jwt
from airflow.api_fastapi.auth.tokens import (
    JWTGenerator,
    JWTValidator,
    get_sig_validation_args,
    get_signing_args,
)
from airflow.configuration import conf
from fastapi.security.utils import get_authorization_scheme_param

from dispatcher.domain.wire import LAUNCH_TOKEN_CLAIM

if TYPE_CHECKING:
    from collections.abc import Mapping

EXECUTION_SCOPE = "execution"
START_SCOPES = frozenset({"workload", "callback"})
"""Scopes of the JWTs that callbacks come with: 3.3 signs the first, 3.4 the second; both may be underway."""


def bearer_token(authorization: str | None) -> str | None:
    """Return the token of an ``Authorization`` header, split as the execution API splits it."""
    scheme, token = get_authorization_scheme_param(authorization)
    return token if scheme.lower() == "bearer" and token else None


def unverified_claims(token: str | None) -> dict[str, Any]:
    """Return the claims of a JWT whose signature somebody else verifies; none if it is no JWT.

    :param token: the JWT
    """
    if token is None:
        return {}
    try:
        return jwt.decode(token, options={"verify_signature": False})
    except (jwt.InvalidTokenError, RecursionError):
        return {}


@cache
def generator() -> JWTGenerator:
    """Return the signer of execution tokens: the audience, issuer, key and validity of the execution API.

    :raises ValueError: no key is configured
    """
    return JWTGenerator(
        valid_for=conf.getint("execution_api", "jwt_expiration_time"),
        audience=conf.get_mandatory_list_value("execution_api", "jwt_audience")[0],
        issuer=conf.get("api_auth", "jwt_issuer", fallback=None),
        **get_signing_args(make_secret_key_if_needed=False),
    )


@cache
def validator(grace: int = 0) -> JWTValidator:
    """Return the verifier of tokens: what the execution API requires is required here.

    :param grace: seconds for which a token is good after it has expired
    :raises ValueError: no key is configured
    """
    issuer = conf.get("api_auth", "jwt_issuer", fallback=None)
    required = {"aud", "exp", "iat"} | ({"iss"} if issuer else set())
    return JWTValidator(
        required_claims=frozenset(required),
        issuer=issuer,
        audience=conf.get_mandatory_list_value("execution_api", "jwt_audience"),
        leeway=conf.getint("api_auth", "jwt_leeway") + grace,
        **get_sig_validation_args(make_secret_key_if_needed=False),
    )


def has_expired(claims: Mapping[str, Any]) -> bool:
    """Whether the time of a verified token is over, by the rule by which Airflow refuses it.

    :param claims: of a token that was verified with a grace
    """
    return bool(claims["exp"] + conf.getint("api_auth", "jwt_leeway") <= time.time())


def execution_token(subject: str, launch_token: str) -> str:
    """Sign an execution token that carries the launch token.

    :param subject: UUID of the task instance or callback
    :param launch_token: the launch that it is for
    """
    claims = {"sub": subject, "scope": EXECUTION_SCOPE, LAUNCH_TOKEN_CLAIM: launch_token}
    return generator().generate(extras=claims)


def with_launch_token(token: str, launch_token: str) -> str:
    """Sign anew an execution token that Airflow just made, with the launch token added (rule 9).

    :param token: what Airflow answers ``/run`` with
    :param launch_token: the launch that was claimed
    """
    return generator().generate(extras=unverified_claims(token) | {LAUNCH_TOKEN_CLAIM: launch_token})
