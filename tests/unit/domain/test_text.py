# SPDX-License-Identifier: Apache-2.0
"""Text from elsewhere, made fit to be kept."""

from __future__ import annotations

import pytest

from dispatcher.domain.text import storable


@pytest.mark.parametrize(
    ("text", "kept"), [("a\x00b", "a\ufffdb"), ("a\ud800b", "a?b"), ("grüße 🚀\n", "grüße 🚀\n"), ("", "")]
)
def test_only_what_no_database_can_store_is_replaced(text, kept):
    assert storable(text) == kept
