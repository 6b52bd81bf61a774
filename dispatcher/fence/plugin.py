# SPDX-License-Identifier: Apache-2.0
"""The Airflow plugin that puts the fence into API servers. Loaded in every Airflow process, hence light."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from dispatcher.fence.app import URL_PREFIX, DispatcherApp
from dispatcher.fence.middleware import FenceMiddleware


class DispatcherPlugin(AirflowPlugin):
    """The fence: a root middleware, and the application under ``/dispatcher``."""

    name = "dispatcher"
    fastapi_root_middlewares: list[Any] = [  # noqa: RUF012 - the base class declares a plain attribute
        {"middleware": FenceMiddleware, "name": "Launch fence", "args": [], "kwargs": {}}
    ]
    fastapi_apps: list[Any] = [  # noqa: RUF012 - the same
        {"app": DispatcherApp(), "url_prefix": URL_PREFIX, "name": "Hybrid Dispatcher"}
    ]
