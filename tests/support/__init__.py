# SPDX-License-Identifier: Apache-2.0
"""What tests share: an Airflow of their own, rows, tokens, servers and real services."""

from __future__ import annotations
