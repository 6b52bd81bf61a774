# SPDX-License-Identifier: Apache-2.0
"""The application that the API server serves under ``/dispatcher``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import Receive, Scope, Send

URL_PREFIX = "/dispatcher"


def build_app() -> FastAPI:
    """Build the application: callback endpoints and probe.

    Database errors are answered as Airflow's own APIs answer them, with 500 and never with 409.
    """
    from airflow.api_fastapi.common.exceptions import init_error_handlers
    from fastapi import FastAPI

    from dispatcher.fence import callbacks, health

    app = FastAPI(title="Hybrid Dispatcher", docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(health.router)
    app.include_router(callbacks.router)
    init_error_handlers(app)
    return app


class DispatcherApp:
    """The same application, built on the first request.

    Airflow loads plugins in every process, and only API servers serve them.
    """

    def __init__(self) -> None:
        self._app: FastAPI | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if self._app is None:
            self._app = build_app()
        await self._app(scope, receive, send)
