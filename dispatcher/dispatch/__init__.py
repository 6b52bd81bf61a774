# SPDX-License-Identifier: Apache-2.0
"""Issue, submit, observe, report: what the executor does with launches between Airflow and the backends."""

from __future__ import annotations
