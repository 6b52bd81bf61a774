# SPDX-License-Identifier: Apache-2.0
"""The tour: one run of the example DAG on a running Airflow, and stale launches provoked against it."""

from __future__ import annotations
