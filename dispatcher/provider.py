# SPDX-License-Identifier: Apache-2.0
"""What Airflow's provider manager is told about this distribution."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Describe this distribution in the form that Airflow's provider manager validates.

    ``package-name`` must equal the distribution's name, or Airflow refuses to load any provider.
    """
    return {
        "package-name": "airflow-hybrid-dispatcher",
        "name": "Hybrid Dispatcher",
        "description": "One executor over Celery and Kubernetes in which every launch carries one token.",
    }
