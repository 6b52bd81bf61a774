# SPDX-License-Identifier: Apache-2.0
"""What the example DAG does when it misses a deadline: one function per backend.

Where a callback runs is decided by a routing rule on its import path.
"""

from __future__ import annotations

import logging

from dispatcher.example_dags.journal import note

log = logging.getLogger(__name__)


def report_late_on_celery() -> None:
    """Say that the run is late; without a rule, callbacks run on Celery."""
    log.warning("The run is late; this was said by a Celery worker.")
    note("report_late_on_celery")


def report_late_on_kubernetes() -> None:
    """Say that the run is late, in a pod if a rule sends callbacks of this name there."""
    log.warning("The run is late; this was said in a pod.")
    note("report_late_on_kubernetes")
