# SPDX-License-Identifier: Apache-2.0
"""What a failed call means."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException
from kubernetes.config import ConfigException
from urllib3.exceptions import (
    ConnectTimeoutError,
    MaxRetryError,
    NewConnectionError,
    ProtocolError,
    ReadTimeoutError,
    SSLError,
)

from dispatcher.backends.kubernetes.errors import (
    LONGEST_PAUSE,
    AlreadyExistsError,
    BadRequestError,
    BusyError,
    ExpiredError,
    ForbiddenError,
    NoConfigurationError,
    NotFoundError,
    UnauthorizedError,
    UnreachableError,
    classify,
)
from dispatcher.domain.errors import AmbiguousError, PermanentError, RetryableError


def answer(
    code: int, message: str = "why", reason: str = "", headers: Any = None, **more: Any
) -> ApiException:
    exc = ApiException(status=code, reason="Reason")
    exc.headers = headers
    exc.body = json.dumps({"kind": "Status", "code": code, "message": message, "reason": reason, **more})
    return exc


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (400, BadRequestError),
        (401, UnauthorizedError),
        (403, ForbiddenError),
        (404, NotFoundError),
        (405, PermanentError),
        (408, AmbiguousError),
        (409, RetryableError),
        (410, ExpiredError),
        (413, PermanentError),
        (415, PermanentError),
        (422, PermanentError),
        (429, BusyError),
        (500, AmbiguousError),
        (502, AmbiguousError),
        (503, BusyError),
        (504, AmbiguousError),
        (599, AmbiguousError),
    ],
)
@pytest.mark.parametrize("body", ["status", "text", "nothing"])
def test_answers(code, expected, body):
    exc = answer(code)
    if body != "status":
        exc.body = "<html>busy</html>" if body == "text" else None
    error = classify(exc)
    assert type(error) is expected
    assert str(error).startswith(f"the API server answered {code}: ")
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    "words",
    [
        "etcdserver: request is too large",
        "rpc error: code = ResourceExhausted desc = trying to send message larger than max (9 vs. 8)",
    ],
    ids=["database", "way to the database"],
)
def test_fault_87_what_is_too_large_for_the_database_stays_so(words):
    error = classify(answer(500, words))
    assert isinstance(error, PermanentError)
    assert words in str(error)


def test_already_exists_is_told_from_other_conflicts():
    assert type(classify(answer(409, reason="AlreadyExists"))) is AlreadyExistsError
    assert type(classify(answer(409, reason="Conflict"))) is RetryableError


def test_fault_77_an_exceeded_quota_may_pass_and_missing_rights_do_not():
    quota = classify(answer(403, 'pods "x" is forbidden: exceeded quota: pods, requested: pods=1'))
    rights = classify(answer(403, 'pods is forbidden: User "x" cannot create resource "pods"'))
    assert isinstance(quota, RetryableError)
    assert isinstance(rights, PermanentError)
    assert "cannot create" in str(rights)


@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        (NewConnectionError(None, "Connection refused"), UnreachableError),
        (ConnectTimeoutError(None, "timed out"), UnreachableError),
        (SSLError("certificate verify failed"), UnreachableError),
        (ApiException(status=0, reason="SSLError\nwrong version"), UnreachableError),
        (ConfigException("no configuration"), NoConfigurationError),
        (ReadTimeoutError(None, "/", "read timed out"), AmbiguousError),
        (ProtocolError("Connection aborted."), AmbiguousError),
        (ConnectionResetError(104, "reset"), AmbiguousError),
        (json.JSONDecodeError("no JSON", "x", 0), AmbiguousError),
        (KeyError("metadata"), AmbiguousError),
    ],
)
def test_failures_of_transport(exc, expected):
    for raised in (exc, MaxRetryError(None, "/api/v1/pods", exc)):
        error = classify(raised)
        assert type(error) is expected
        assert "\n" not in str(error)


def test_the_words_of_a_missing_configuration_can_be_continued():
    error = classify(ConfigException("Service host/port is not set."))
    assert str(error) == "no usable Kubernetes configuration: Service host/port is not set"


def test_a_typed_error_stays_what_it_is():
    error = NotFoundError("x")
    assert classify(error) is error


@pytest.mark.parametrize(
    ("named", "seconds"),
    [
        ("0", 0),
        ("7", 7),
        (" 7 ", 7),
        ("86400", LONGEST_PAUSE),
        ("-1", None),
        ("soon", None),
        ("", None),
        ("1.5", None),
        ("²", None),
        ("Thu, 99 Foo 2026 00:00:00 GMT", None),
        ("Thu, 01 Jan 99999999999 00:00:00 GMT", None),
        ("Thu, 01 Jan 2026 00:00:00 +99999999999999999999", None),
        ("Thu, 01 Jan 2026 00:00:00 GMT", 0),
        ("Thu, 01 Jan 2026 00:00:00 -0000", 0),
        ("Thu, 01 Jan 2099 00:00:00 GMT", LONGEST_PAUSE),
    ],
)
@pytest.mark.parametrize("code", [429, 503])
def test_fault_79_retry_after_in_every_form(named, seconds, code):
    assert classify(answer(code, headers={"Retry-After": named})).retry_after == seconds


def test_fault_79_retry_after_as_a_date_soon():
    soon = format_datetime(datetime.now(tz=UTC) + timedelta(seconds=60), usegmt=True)
    pause = classify(answer(503, headers={"Retry-After": soon})).retry_after
    assert pause is not None
    assert 50 < pause <= 60


def test_retry_after_in_the_body():
    assert classify(answer(500, details={"retryAfterSeconds": 3})).retry_after == 3
    assert classify(answer(500, details={"retryAfterSeconds": "x"})).retry_after is None
    assert classify(answer(500, details=None)).retry_after is None


def test_the_message_quotes_nothing_of_the_request():
    told = (
        'Pod in version "v1" cannot be handled as a Pod: ReadString: expects " or n, but found 7, '
        'error found in #10 byte of ...|eyJhbGciOi", 7]|..., bigger context ...|eyJhbGciOiJIUzUxMiJ9", 7]|...'
    )
    assert str(classify(answer(400, told))) == (
        'the API server answered 400: Pod in version "v1" cannot be handled as a Pod: '
        'ReadString: expects " or n, but found 7'
    )


def test_a_policy_that_quotes_the_arguments_tells_no_jwt():
    token = "eyJhbGciOiJIUzUxMiJ9.eyJzdWIiOiJ0aSJ9.c2lnbmF0dXJl-_x"
    told = f'admission webhook "no" denied the request: args [--json-string \\"token\\":\\"{token}\\"]\x1b[2J'
    message = str(classify(answer(403, told)))
    assert message.startswith('the API server answered 403: admission webhook "no" denied the request: args')
    assert "eyJ" not in message
    assert "c2lnbmF0" not in message
    assert "\x1b" not in message


def test_a_long_message_is_cut():
    assert len(str(classify(answer(422, "x" * 10_000)))) <= 400
