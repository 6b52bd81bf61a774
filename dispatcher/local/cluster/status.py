# SPDX-License-Identifier: Apache-2.0
"""Refusals as Kubernetes words them: a ``Status`` object and an HTTP code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

from dispatcher.local.cluster.store import Json


class ApiError(Exception):
    """A call that the API refuses.

    :param code: HTTP code.
    :param reason: machine-readable reason; absent where Kubernetes has none.
    :param message: text for a person.
    :param details: the ``details`` of the Status, if any.
    :param metadata: its ``metadata``; only an expired list token has one.
    """

    def __init__(
        self,
        code: int,
        reason: str | None,
        message: str,
        details: Json | None = None,
        metadata: Json | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.body: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata or {},
            "status": "Failure",
            "message": message,
            "code": code,
        }
        if reason is not None:
            self.body["reason"] = reason
        if details is not None:
            self.body["details"] = details


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that is wrong with an object.

    :param field: path of the field, such as ``spec.containers[0].name``.
    :param message: what is wrong.
    :param reason: Kubernetes' name for this sort of fault.
    """

    field: str
    message: str
    reason: str = "FieldValueInvalid"


def required(field: str, hint: str = "") -> Cause:
    """Say that a field is missing."""
    return Cause(field, f"Required value: {hint}" if hint else "Required value", "FieldValueRequired")


def wrong(field: str, value: object, hint: str) -> Cause:
    """Say that a field has a value that it must not have."""
    shown = f'"{value}"' if isinstance(value, str) else value
    return Cause(field, f"Invalid value: {shown}: {hint}")


def bad_request(message: str) -> ApiError:
    """Refuse a request that cannot be understood."""
    return ApiError(HTTPStatus.BAD_REQUEST, "BadRequest", message)


def internal(message: str) -> ApiError:
    """Refuse what Kubernetes reports as an error of its own, without a reason."""
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, None, message)


def unauthorized() -> ApiError:
    """Refuse a caller without the right bearer token."""
    return ApiError(HTTPStatus.UNAUTHORIZED, "Unauthorized", "Unauthorized")


def forbidden(plural: str, name: str, message: str, cause: Cause) -> ApiError:
    """Refuse what is understood but not allowed."""
    details = {"name": name, "kind": plural, "causes": _causes([cause])}
    return ApiError(HTTPStatus.FORBIDDEN, "Forbidden", f'{plural} "{name}" is forbidden: {message}', details)


def not_found(plural: str, name: str) -> ApiError:
    """Say that there is no such object."""
    message = f'{plural} "{name}" not found'
    return ApiError(HTTPStatus.NOT_FOUND, "NotFound", message, {"name": name, "kind": plural})


def unknown_path() -> ApiError:
    """Say that nothing is served at this path."""
    message = "the server could not find the requested resource"
    return ApiError(HTTPStatus.NOT_FOUND, "NotFound", message, {})


def method_not_allowed() -> ApiError:
    """Say that the path is served, but not with this method."""
    message = "the server does not allow this method on the requested resource"
    return ApiError(HTTPStatus.METHOD_NOT_ALLOWED, "MethodNotAllowed", message, {})


def already_exists(plural: str, name: str, *, terminating: bool) -> ApiError:
    """Refuse to create what is there, or is still on its way out."""
    message = f'{plural} "{name}" already exists'
    if terminating:
        message = f"object is being deleted: {message}"
    return ApiError(HTTPStatus.CONFLICT, "AlreadyExists", message, {"name": name, "kind": plural})


def modified_meanwhile(plural: str, name: str) -> ApiError:
    """Refuse a write that was made on an older version."""
    message = (
        f'Operation cannot be fulfilled on {plural} "{name}": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    return ApiError(HTTPStatus.CONFLICT, "Conflict", message, {"name": name, "kind": plural})


def precondition_failed(kind: str, name: str, field: str, wanted: str, found: str) -> ApiError:
    """Refuse a call about an object that has another uid or version than the caller thinks."""
    message = (
        f'Operation cannot be fulfilled on {kind} "{name}": the {field} in the precondition ({wanted}) '
        f"does not match the {field} in record ({found})"
    )
    return ApiError(HTTPStatus.CONFLICT, "Conflict", message, {"name": name, "kind": kind})


def invalid(kind: str, name: str, causes: Sequence[Cause]) -> ApiError:
    """Refuse an object that is understood but wrong."""
    texts = list(dict.fromkeys(f"{cause.field}: {cause.message}" for cause in causes))
    text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details: Json = {"name": name} if name else {}
    details |= {"kind": kind, "causes": _causes(causes)}
    message = f'{kind} "{name}" is invalid: {text}'
    return ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", message, details)


def patch_failed() -> ApiError:
    """Refuse a JSON patch that does not fit the object."""
    message = "the server rejected our request due to an error in our request"
    return ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", message, {})


def unsupported_media_type(accepted: Sequence[str]) -> ApiError:
    """Refuse a body in a format that is not understood."""
    message = (
        "the body of the request was in an unknown format - "
        f"accepted media types include: {', '.join(accepted)}"
    )
    return ApiError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)


def body_too_large(limit: int) -> ApiError:
    """Refuse a body of more than ``limit`` bytes."""
    message = f"Request entity too large: limit is {limit}"
    return ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "RequestEntityTooLarge", message)


def object_too_large() -> ApiError:
    """Refuse an object that a real cluster's database would not take."""
    return internal("etcdserver: request is too large")


def expired(what: str, continue_token: str | None = None) -> ApiError:
    """Say that the history no longer reaches back to the version asked for.

    :param what: ``list``, ``watch`` or ``continue parameter``.
    :param continue_token: token that takes the rest of a list from the present state.
    """
    if continue_token is None:
        message = f"The resourceVersion for the provided {what} is too old."
        return ApiError(HTTPStatus.GONE, "Expired", message)
    message = (
        "The provided continue parameter is too old to display a consistent list result. You can start a new "
        "list without it, or use the continue token in this response to take the rest from the present state."
    )
    return ApiError(HTTPStatus.GONE, "Expired", message, metadata={"continue": continue_token})


def version_in_future(wanted: int, current: int) -> ApiError:
    """Say that the version asked for does not exist yet."""
    details = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }
    message = f"Timeout: Too large resource version: {wanted}, current: {current}"
    return ApiError(HTTPStatus.GATEWAY_TIMEOUT, "Timeout", message, details)


def deleted(plural: str, obj: Json) -> Json:
    """Return the Status that answers the deletion of an object that is gone at once."""
    details = {"name": obj["metadata"]["name"], "kind": plural, "uid": obj["metadata"]["uid"]}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def _causes(causes: Sequence[Cause]) -> list[Json]:
    return [{"reason": cause.reason, "message": cause.message, "field": cause.field} for cause in causes]
