# SPDX-License-Identifier: Apache-2.0
"""One Airflow executor over Celery and Kubernetes: the scheduler side and the API-server side."""

from __future__ import annotations

__version__ = "0.1.0"
