# SPDX-License-Identifier: Apache-2.0
"""What a client asks before it works: health, version, and what is served."""

from __future__ import annotations

import platform

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from dispatcher.local.cluster.resources import PODS, RESOURCES
from dispatcher.local.cluster.store import Json

# The oldest API whose behaviour is kept to.
VERSION = {"major": "1", "minor": "20", "gitVersion": "v1.20.0+embedded"}


async def _health(_request: Request) -> Response:
    return PlainTextResponse("ok")


async def _version(_request: Request) -> Response:
    return JSONResponse({**VERSION, "platform": f"{platform.system().lower()}/{platform.machine()}"})


async def _api(request: Request) -> Response:
    address = {"clientCIDR": "0.0.0.0/0", "serverAddress": request.url.netloc}
    body = {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [address]}
    return JSONResponse(body)


async def _groups(_request: Request) -> Response:
    return JSONResponse({"kind": "APIGroupList", "apiVersion": "v1", "groups": []})


async def _resources(_request: Request) -> Response:
    found: list[Json] = [
        {
            "name": resource.plural,
            "singularName": "",
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": resource.verbs,
        }
        for resource in RESOURCES.values()
    ]
    for part, verbs in (("status", ("get", "patch", "update")), ("log", ("get",))):
        name = f"{PODS.plural}/{part}"
        found.append(
            {"name": name, "singularName": "", "namespaced": True, "kind": PODS.kind, "verbs": verbs}
        )
    body = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": found}
    return JSONResponse(body)


ROUTES = (
    Route("/healthz", _health),
    Route("/livez", _health),
    Route("/readyz", _health),
    Route("/version", _version),
    Route("/api", _api),
    Route("/apis", _groups),
    Route("/api/v1", _resources),
)
"""Routes that are about the server, not about objects."""
