# SPDX-License-Identifier: Apache-2.0
"""Where a launch is sent: the backend protocol and its two adapters."""

from __future__ import annotations
