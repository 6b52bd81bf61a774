# SPDX-License-Identifier: Apache-2.0
"""The HTTP side: routes of the Kubernetes API onto the verbs of ``Objects``."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from dispatcher.local.cluster import discovery, queries, status
from dispatcher.local.cluster.kubelet import Kubelet
from dispatcher.local.cluster.objects import Objects
from dispatcher.local.cluster.resources import PODS, RESOURCES, Resource
from dispatcher.local.cluster.watch import Watches

OPEN_PATHS = frozenset({"/healthz", "/livez", "/readyz", "/version"})
"""Paths that answer without a token."""


@dataclass(frozen=True)
class Handlers:
    """Answers the requests about objects.

    :param objects: the verbs.
    :param watches: serves watches.
    :param kubelet: has the logs.
    :param expired_watch: how a watch from a forgotten version is refused: ``event``, as a real cluster does,
        or ``status``, as a proxy or an older cluster may, with HTTP code 410.
    """

    objects: Objects
    watches: Watches
    kubelet: Kubelet
    expired_watch: Literal["event", "status"]

    async def list(self, request: Request) -> Response:
        """List or watch a resource."""
        resource = _resource(request, "list")
        namespace = request.path_params.get("namespace")
        if queries.flag(request, "watch"):
            watch = queries.watch_query(request, resource, namespace)
            if self.expired_watch == "status" and self.watches.is_expired(resource, watch):
                raise status.expired("watch")
            return StreamingResponse(self.watches.stream(resource, watch), media_type=queries.JSON_TYPE)
        return JSONResponse(self.objects.list(resource, queries.list_query(request, resource, namespace)))

    async def create(self, request: Request) -> Response:
        """Create an object."""
        resource = _resource(request, "create")
        body = await queries.json_body(request)
        namespace = request.path_params.get("namespace", "")
        dry_run = "dryRun" in request.query_params
        created = self.objects.create(resource, namespace, body, dry_run=dry_run)
        return JSONResponse(created, HTTPStatus.CREATED)

    async def delete_collection(self, request: Request) -> Response:
        """Delete all objects that the query selects."""
        resource = _resource(request, "deletecollection")
        query = queries.list_query(request, resource, request.path_params.get("namespace"))
        options = await queries.delete_options(request)
        return JSONResponse(self.objects.delete_collection(resource, query, options))

    async def get(self, request: Request) -> Response:
        """Return one object."""
        return JSONResponse(self.objects.get(_resource(request, "get"), *_place(request)))

    async def replace(self, request: Request) -> Response:
        """Replace one object."""
        body = await queries.json_body(request)
        return JSONResponse(self.objects.replace(_resource(request, "update"), *_place(request), body))

    async def patch(self, request: Request) -> Response:
        """Patch one object."""
        resource, kind = _resource(request, "patch"), queries.content_type(request)
        return JSONResponse(self.objects.patch(resource, *_place(request), kind, await queries.body(request)))

    async def delete(self, request: Request) -> Response:
        """Delete one object."""
        options = await queries.delete_options(request)
        return JSONResponse(self.objects.delete(_resource(request, "delete"), *_place(request), options))

    async def replace_status(self, request: Request) -> Response:
        """Replace the status of one object."""
        resource, body = _with_status(request), await queries.json_body(request)
        return JSONResponse(self.objects.replace(resource, *_place(request), body, of_status=True))

    async def patch_status(self, request: Request) -> Response:
        """Patch the status of one object."""
        resource, kind, body = (
            _with_status(request),
            queries.content_type(request),
            await queries.body(request),
        )
        return JSONResponse(self.objects.patch(resource, *_place(request), kind, body, of_status=True))

    async def log(self, request: Request) -> Response:
        """Return or follow the output of a pod."""
        namespace, name = _place(request)
        pod = self.objects.get(PODS, namespace, name)
        query = queries.log_query(request, name)
        container = request.query_params.get("container", "")
        known = [container["name"] for container in pod["spec"]["containers"]]
        if container and container not in known:
            raise status.bad_request(f"container {container} is not valid for pod {name}")
        if not pod["spec"].get("nodeName"):
            return Response(status_code=HTTPStatus.NO_CONTENT)
        states = pod["status"].get("containerStatuses", [{"name": known[0], "state": {"waiting": {}}}])
        if (waiting := states[0]["state"].get("waiting")) is not None:
            reason = waiting.get("reason", "ContainerCreating")
            raise status.bad_request(
                f'container "{states[0]["name"]}" in pod "{name}" is waiting to start: {reason}'
            )
        if queries.flag(request, "previous"):
            raise status.bad_request(
                f'previous terminated container "{states[0]["name"]}" in pod "{name}" not found'
            )
        process = self.kubelet.process_of(pod)
        # Only one container of a pod runs; the others have no output.
        if process is None or container not in {"", process.container_name}:
            return Response(b"", media_type="text/plain")
        return StreamingResponse(process.log.read(query), media_type="text/plain")


def build(handlers: Handlers, token: str) -> ASGIApp:
    """Return the application.

    :param token: bearer token that callers must present.
    """
    one = "/api/v1/namespaces/{namespace}/{resource}/{name}"
    many = "/api/v1/namespaces/{namespace}/{resource}"
    routes = [
        *discovery.ROUTES,
        Route(one, handlers.get, methods=["GET"]),
        Route(one, handlers.replace, methods=["PUT"]),
        Route(one, handlers.patch, methods=["PATCH"]),
        Route(one, handlers.delete, methods=["DELETE"]),
        Route(f"{one}/status", handlers.get, methods=["GET"]),
        Route(f"{one}/status", handlers.replace_status, methods=["PUT"]),
        Route(f"{one}/status", handlers.patch_status, methods=["PATCH"]),
        Route("/api/v1/namespaces/{namespace}/pods/{name}/log", handlers.log, methods=["GET"]),
        Route(many, handlers.list, methods=["GET"]),
        Route(many, handlers.create, methods=["POST"]),
        Route(many, handlers.delete_collection, methods=["DELETE"]),
        Route("/api/v1/{resource}/{name}", handlers.get, methods=["GET"]),
        Route("/api/v1/{resource}/{name}", handlers.replace, methods=["PUT"]),
        Route("/api/v1/{resource}/{name}", handlers.patch, methods=["PATCH"]),
        Route("/api/v1/{resource}/{name}", handlers.delete, methods=["DELETE"]),
        Route("/api/v1/{resource}", handlers.list, methods=["GET"]),
        Route("/api/v1/{resource}", handlers.create, methods=["POST"]),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={status.ApiError: _refuse, HTTPException: _refuse_unserved, Exception: _fail},
    )
    return _Authenticated(app, token)


class _Authenticated:
    """Lets only callers with the token through."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not secrets.compare_digest(given, self._expected):
                await _answer(status.unauthorized())(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _resource(request: Request, verb: str) -> Resource:
    """Return the resource of the path, which must exist at this place and know the verb."""
    resource = RESOURCES.get(request.path_params["resource"])
    if resource is None:
        raise status.unknown_path()
    in_namespace = "namespace" in request.path_params
    across_namespaces = verb == "list" and "name" not in request.path_params
    if in_namespace != resource.namespaced and not (resource.namespaced and across_namespaces):
        raise status.unknown_path()
    if verb not in resource.verbs:
        raise status.method_not_allowed()
    return resource


def _with_status(request: Request) -> Resource:
    resource = _resource(request, "update")
    if resource.prepare_status_update is None:
        raise status.unknown_path()
    return resource


def _place(request: Request) -> tuple[str, str]:
    return request.path_params.get("namespace", ""), request.path_params["name"]


def _answer(refusal: status.ApiError) -> Response:
    return JSONResponse(refusal.body, refusal.code)


async def _refuse(_request: Request, error: Exception) -> Response:
    if not isinstance(error, status.ApiError):
        raise TypeError(f"no refusal: {error!r}")
    return _answer(error)


async def _refuse_unserved(_request: Request, error: Exception) -> Response:
    known = isinstance(error, HTTPException) and error.status_code == HTTPStatus.METHOD_NOT_ALLOWED
    return _answer(status.method_not_allowed() if known else status.unknown_path())


async def _fail(_request: Request, error: Exception) -> Response:
    """Answer after a fault of the cluster itself; the server logs it with its traceback."""
    return _answer(status.internal(f"the embedded cluster failed: {type(error).__name__}"))
