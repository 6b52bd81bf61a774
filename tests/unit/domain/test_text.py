# SPDX-License-Identifier: Apache-2.0
"""Text from elsewhere, made fit to be kept."""

from __future__ import annotations

import pytest

from dispatcher.domain.text import readable, storable

JWT = "eyJhbGciOiJIUzUxMiJ9.eyJzdWIiOiJ0aSJ9.c2lnbmF0dXJl-_x"


@pytest.mark.parametrize(
    ("text", "kept"), [("a\x00b", "a\ufffdb"), ("a\ud800b", "a?b"), ("grüße 🚀\n", "grüße 🚀\n"), ("", "")]
)
def test_only_what_no_database_can_store_is_replaced(text, kept):
    assert storable(text) == kept


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param(f"a {JWT} b", "a *** b", id="whole"),
        pytest.param(f"args\\n{JWT[:-4]}", "args\\***", id="after an escape"),
        pytest.param(JWT.partition(".")[2] + " b", "*** b", id="without its head"),
        pytest.param("..." + JWT[9:], "...***", id="cut at its beginning"),
        pytest.param("a\r\n\tb", "a b", id="lines"),
        pytest.param("\x1b[2Ja\x07\x9b", "\ufffd[2Ja\ufffd\ufffd", id="escape sequences"),
        pytest.param("a\x00\ud800", "a\ufffd?", id="not storable"),
        pytest.param("key.eye.Joy grüße 🚀", "key.eye.Joy grüße 🚀", id="harmless"),
    ],
)
def test_one_line_without_secrets_or_control_characters(text, shown):
    assert readable(text) == shown
