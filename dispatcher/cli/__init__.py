# SPDX-License-Identifier: Apache-2.0
"""The commands ``airflow dispatcher ...``."""

from __future__ import annotations
