# SPDX-License-Identifier: Apache-2.0
"""Free TCP ports of the loopback address."""

from __future__ import annotations

import socket

HOST = "127.0.0.1"


def free_port() -> int:
    """Return a port on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
