# SPDX-License-Identifier: Apache-2.0
"""The execution API with the fence, for installations that serve it apart from the rest.

``airflow api-server --apps execution`` loads no plugins, so it runs without the fence. This is the same
application with it, for any ASGI server::

    uvicorn dispatcher.fence.asgi:app --host 0.0.0.0 --port 9091 --workers 4
"""

from __future__ import annotations

import os

# As Airflow's own entry point does, and before Airflow is imported: it decides where secrets come from.
os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")

from typing import TYPE_CHECKING

from airflow.api_fastapi.app import create_app

from dispatcher.fence.app import URL_PREFIX, build_app
from dispatcher.fence.middleware import FenceMiddleware

if TYPE_CHECKING:
    from fastapi import FastAPI


def build() -> FastAPI:
    """Build Airflow's execution API with the fence in front of it and ``/dispatcher`` beside it."""
    application = create_app(apps="execution")
    application.mount(URL_PREFIX, build_app())
    application.add_middleware(FenceMiddleware)
    return application


app = build()
