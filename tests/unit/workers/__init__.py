# SPDX-License-Identifier: Apache-2.0
"""The worker side without processes and services."""

from __future__ import annotations
