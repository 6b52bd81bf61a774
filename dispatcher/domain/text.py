# SPDX-License-Identifier: Apache-2.0
"""Text from elsewhere, made fit to be kept."""

from __future__ import annotations

import re

_JWT = re.compile(r"(?:[\w-]+\.)?eyJ[\w-]+(?:\.[\w-]*)+", re.ASCII)
"""A JWT, or the end of one: its head alone may be cut off, and anybody can put that back."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def storable(text: str) -> str:
    """Replace what no database can store: NUL (PostgreSQL) and lone surrogates, which are no UTF-8.

    Drivers raise plain ``ValueError`` for both, which nobody expects of a database.

    :param text: what a worker, a pod or a service said
    """
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def readable(text: str) -> str:
    """Return text from elsewhere as one line that may be logged, stored and shown.

    It has nothing that looks like a JWT, and no characters that steer a terminal.

    :param text: what a pod or a service said
    """
    line = " ".join(_JWT.sub("***", text).split())
    return storable(_CONTROL.sub("\ufffd", line))
