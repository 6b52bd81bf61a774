# SPDX-License-Identifier: Apache-2.0
"""Sign the tokens with which workers talk to the execution API, by Airflow's own generator."""

from __future__ import annotations

from typing import Literal
from uuid import UUID


def sign_token(
    subject: UUID | str,
    scope: Literal["workload", "callback", "execution"] = "workload",
    launch_token: UUID | str | None = None,
    valid_for: float = 600.0,
) -> str:
    """Sign a JWT that Airflow's execution API accepts.

    :param subject: id of the task instance or callback; the claim ``sub``.
    :param scope: ``workload`` as sent with a workload, ``callback`` as sent with a callback by Airflow 3.4,
        ``execution`` as handed out by ``/run``.
    :param launch_token: value of the claim ``launch_token``; without it the claim is absent.
    :param valid_for: seconds until the token expires; a negative value makes an expired one.
    """
    from airflow.api_fastapi.auth.tokens import JWTGenerator, get_signing_args
    from airflow.configuration import conf

    generator = JWTGenerator(
        valid_for=valid_for,
        audience=conf.get_mandatory_list_value("execution_api", "jwt_audience")[0],
        issuer=conf.get("api_auth", "jwt_issuer", fallback=None),
        **get_signing_args(make_secret_key_if_needed=False),
    )
    extras = {"sub": str(subject), "scope": scope}
    if launch_token is not None:
        extras["launch_token"] = str(launch_token)
    return generator.generate(extras=extras)


def bearer(token: str) -> dict[str, str]:
    """Return the request header that presents ``token``."""
    return {"Authorization": f"Bearer {token}"}
