# SPDX-License-Identifier: Apache-2.0
"""Users of a real API server with few rights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubernetes.client import RbacAuthorizationV1Api

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kubernetes.client import ApiClient

EXECUTOR: Mapping[str, Sequence[str]] = {
    "pods": ("create", "get", "list", "watch", "patch", "delete"),
    "pods/log": ("get",),
    "secrets": ("create", "patch", "delete"),
}
"""What the documentation says that the scheduler's account needs."""


def grant(client: ApiClient, namespace: str, user: str, rights: Mapping[str, Sequence[str]]) -> None:
    """Give a user rights in one namespace, which end with it.

    :param client: of an administrator
    :param rights: verbs by resource
    """
    rules = [
        {"apiGroups": [""], "resources": [resource], "verbs": list(verbs)}
        for resource, verbs in rights.items()
    ]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    api = RbacAuthorizationV1Api(client)
    api.create_namespaced_role(namespace, {"metadata": {"name": user}, "rules": rules})
    binding = {"metadata": {"name": user}, "roleRef": role, "subjects": [subject]}
    api.create_namespaced_role_binding(namespace, binding)
