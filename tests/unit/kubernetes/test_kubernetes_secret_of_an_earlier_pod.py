# SPDX-License-Identifier: Apache-2.0
"""The Secret of an earlier pod goes away with it, at a moment that nobody chooses."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from kubernetes.client.exceptions import ApiException

from dispatcher.backends.kubernetes.client import Cluster
from dispatcher.backends.kubernetes.errors import AlreadyExistsError

REASONS = {404: "NotFound", 409: "AlreadyExists"}
POD = {"metadata": {"namespace": "airflow", "name": "a-pod", "uid": "its-uid"}}


class Secrets:
    """The two calls of the client about Secrets: each answers with the next status of its own.

    :param creations: statuses of the creations, in their order
    """

    def __init__(self, *creations: int) -> None:
        self._creations = list(creations)
        self.calls: list[str] = []

    def create_namespaced_secret(self, *_: object, **__: object) -> SimpleNamespace:
        self.calls.append("create")
        return answer(self._creations.pop(0))

    def patch_namespaced_secret(self, *_: object, **__: object) -> SimpleNamespace:
        self.calls.append("patch")
        return answer(404)


def answer(status: int) -> SimpleNamespace:
    """Return an answer of the client, or raise what it raises."""
    if status >= 300:
        refusal = ApiException(status=status)
        refusal.body = json.dumps({"reason": REASONS[status]})
        raise refusal
    return SimpleNamespace(data=b"{}", release_conn=lambda: None)


def test_one_that_the_garbage_collector_takes_meanwhile_is_made_anew() -> None:
    secrets = Secrets(409, 201)
    Cluster(secrets, {}).put_secret(POD, "{}", {})  # type: ignore[arg-type]
    assert secrets.calls == ["create", "patch", "create"]


def test_one_that_is_there_again_is_told() -> None:
    with pytest.raises(AlreadyExistsError):
        Cluster(Secrets(409, 409), {}).put_secret(POD, "{}", {})  # type: ignore[arg-type]
