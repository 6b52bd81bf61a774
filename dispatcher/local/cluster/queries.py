# SPDX-License-Identifier: Apache-2.0
"""Reads what a request asks for: its query, its body, and the options of a deletion."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request

from dispatcher.local.cluster import selectors, status
from dispatcher.local.cluster.listing import ListQuery
from dispatcher.local.cluster.objects import DeleteOptions
from dispatcher.local.cluster.podlogs import LogQuery
from dispatcher.local.cluster.resources import Resource
from dispatcher.local.cluster.watch import DEFAULT_SECONDS, WatchQuery

BODY_BYTES = 3 * 1024 * 1024
"""What a real API server takes as one request."""

JSON_TYPE = "application/json"
_TRUE = frozenset({"true", "True", "1"})
_PROPAGATION_POLICIES = ("Foreground", "Background", "Orphan")


def content_type(request: Request) -> str:
    """Return the media type of the body, without parameters; JSON when the request does not say."""
    return request.headers.get("content-type", JSON_TYPE).partition(";")[0].strip()


async def body(request: Request) -> Any:
    """Return the JSON of the body, or nothing for an empty one.

    :raises ApiError: 413, it is too large; 400, it is no JSON.
    """
    announced = int(request.headers.get("content-length", "0"))
    if announced > BODY_BYTES or len(content := await request.body()) > BODY_BYTES:
        raise status.body_too_large(BODY_BYTES)
    if not content:
        return None
    try:
        return json.loads(content)
    except ValueError as exc:
        raise status.bad_request(f"couldn't get version/kind; json parse error: {exc}") from exc


async def json_body(request: Request) -> Any:
    """Return the JSON of a body that has to be JSON.

    :raises ApiError: 415, it is of another type; 413 and 400 as ``body``.
    """
    if content_type(request) not in {JSON_TYPE, "*/*"}:
        raise status.unsupported_media_type([JSON_TYPE])
    return await body(request)


def flag(request: Request, name: str) -> bool:
    """Say whether a flag of the query is set."""
    return request.query_params.get(name, "") in _TRUE


def number(request: Request, name: str) -> int | None:
    """Return a number of the query, if it is given.

    :raises ApiError: 400, it is no number.
    """
    text = request.query_params.get(name, "")
    return _number(text) if text else None


def list_query(request: Request, resource: Resource, namespace: str | None) -> ListQuery:
    """Return what a list asks for.

    :raises ApiError: 400, a parameter cannot be understood.
    """
    return ListQuery(
        namespace,
        _selector(request, resource),
        limit=max(number(request, "limit") or 0, 0),
        continue_token=request.query_params.get("continue", ""),
        version=_version(request),
        exact=request.query_params.get("resourceVersionMatch") == "Exact",
    )


def watch_query(request: Request, resource: Resource, namespace: str | None) -> WatchQuery:
    """Return what a watch asks for.

    :raises ApiError: 400, a parameter cannot be understood.
    """
    return WatchQuery(
        namespace,
        _selector(request, resource),
        version=_version(request),
        seconds=number(request, "timeoutSeconds") or DEFAULT_SECONDS,
        bookmarks=flag(request, "allowWatchBookmarks"),
    )


def log_query(request: Request, pod: str) -> LogQuery:
    """Return what a reader of a log asks for.

    :raises ApiError: 400, a parameter cannot be understood; 422, a number is out of range.
    """
    tail, since = number(request, "tailLines"), number(request, "sinceSeconds")
    limit = number(request, "limitBytes")
    causes = []
    if tail is not None and tail < 0:
        causes.append(status.wrong("tailLines", tail, "must be greater than or equal to 0"))
    if since is not None and since < 1:
        causes.append(status.wrong("sinceSeconds", since, "must be greater than 0"))
    if limit is not None and limit < 1:
        causes.append(status.wrong("limitBytes", limit, "must be greater than 0"))
    if causes:
        raise status.invalid("PodLogOptions", pod, causes)
    return LogQuery(flag(request, "follow"), tail, since, flag(request, "timestamps"), limit)


async def delete_options(request: Request) -> DeleteOptions:
    """Return the options of a deletion: from the body or, if there is none, from the query.

    :raises ApiError: 400, they cannot be understood; 422, an unknown propagation policy.
    """
    given = await body(request)
    if given is None:
        given = dict(request.query_params)
    if not isinstance(given, dict):
        raise status.bad_request("the body is no DeleteOptions")
    policy = given.get("propagationPolicy")
    if policy and policy not in _PROPAGATION_POLICIES:
        supported = ", ".join(f'"{name}"' for name in (*_PROPAGATION_POLICIES, "nil"))
        message = f'Unsupported value: "{policy}": supported values: {supported}'
        cause = status.Cause("propagationPolicy", message, "FieldValueNotSupported")
        raise status.invalid("DeleteOptions", "", [cause])
    preconditions = given.get("preconditions") or {}
    grace = given.get("gracePeriodSeconds")
    return DeleteOptions(
        grace_seconds=None if grace is None else _number(grace),
        uid=preconditions.get("uid"),
        version=preconditions.get("resourceVersion"),
    )


def _selector(request: Request, resource: Resource) -> selectors.Selector:
    labels = request.query_params.get("labelSelector", "")
    fields = request.query_params.get("fieldSelector", "")
    try:
        return selectors.parse(labels, fields, resource.selectable)
    except selectors.SelectorError as exc:
        raise status.bad_request(str(exc)) from exc


def _version(request: Request) -> int | None:
    text = request.query_params.get("resourceVersion", "")
    if text and not text.isdecimal():
        raise status.internal(f'resourceVersion: Invalid value: "{text}": invalid syntax')
    return int(text) if text else None


def _number(text: Any) -> int:
    try:
        return int(text)
    except (TypeError, ValueError) as exc:
        raise status.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from exc
