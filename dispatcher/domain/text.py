# SPDX-License-Identifier: Apache-2.0
"""Text from elsewhere, made fit to be kept."""

from __future__ import annotations


def storable(text: str) -> str:
    """Replace what no database can store: NUL (PostgreSQL) and lone surrogates, which are no UTF-8.

    Drivers raise plain ``ValueError`` for both, which nobody expects of a database.

    :param text: what a worker, a pod or a service said
    """
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
