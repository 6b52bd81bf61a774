# SPDX-License-Identifier: Apache-2.0
"""The HTTP side where the contract suite cannot reach it: a fault of the cluster itself."""

from __future__ import annotations

import asyncio

import httpx

from dispatcher.local.cluster import app


class Broken:
    """Stands for verbs that fail."""

    def list(self, _resource, _query):
        raise RuntimeError("hidden from callers")


def test_a_fault_of_the_cluster_is_a_status_too():
    handlers = app.Handlers(Broken(), None, None, "event")
    transport = httpx.ASGITransport(app.build(handlers, "token"), raise_app_exceptions=False)

    async def ask():
        headers = {"Authorization": "Bearer token"}
        async with httpx.AsyncClient(transport=transport, base_url="http://c", headers=headers) as client:
            return await client.get("/api/v1/pods")

    response = asyncio.run(ask())

    assert response.status_code == 500
    assert (response.json()["kind"], response.json()["code"]) == ("Status", 500)
    assert "hidden" not in response.text
