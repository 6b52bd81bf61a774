# SPDX-License-Identifier: Apache-2.0
"""Functions that test callbacks call by import path."""

from __future__ import annotations

from typing import Any


def note(**kwargs: Any) -> str:
    """Return the names of what the callback was given."""
    return ",".join(sorted(kwargs))
