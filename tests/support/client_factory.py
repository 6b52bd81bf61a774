# SPDX-License-Identifier: Apache-2.0
"""Factories for ``[kubernetes_executor] client_factory``."""

from __future__ import annotations

import os
from typing import Any

from kubernetes.client import CoreV1Api
from kubernetes.config import new_client_from_config

PATH_VARIABLE = "DISPATCHER_TESTS_FACTORY_KUBECONFIG"
"""Names the kubeconfig file that ``signed`` uses."""

HEADER = "X-Signed-By"


class SignedApi(CoreV1Api):
    """A client of a deployment's own: it signs what it sends."""

    def create_namespaced_pod(self, *args: Any, **kwargs: Any) -> Any:
        return super().create_namespaced_pod(*args, **kwargs, _headers={HEADER: "factory"})


def signed() -> CoreV1Api:
    """Return a client whose creations carry a header of its own."""
    return SignedApi(new_client_from_config(os.environ[PATH_VARIABLE]))


def broken() -> CoreV1Api:
    """Fail."""
    raise LookupError("no such\nvault")


def no_client() -> str:
    """Return something else."""
    return "a client"
