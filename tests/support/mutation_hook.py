# SPDX-License-Identifier: Apache-2.0
"""A ``pod_mutation_hook`` for as long as a test wants it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow import policies
from airflow.settings import get_policy_plugin_manager

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def mutation_hook(hook: Callable[[Any], None]) -> Iterator[None]:
    """Register a hook as ``airflow_local_settings`` does.

    :param hook: changes a pod
    """

    class Plugin:
        @staticmethod
        @policies.hookimpl
        def pod_mutation_hook(pod: Any) -> None:
            hook(pod)

    manager = get_policy_plugin_manager()
    manager.register(Plugin)
    try:
        yield
    finally:
        manager.unregister(Plugin)
