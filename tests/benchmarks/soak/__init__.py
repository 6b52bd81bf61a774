# SPDX-License-Identifier: Apache-2.0
"""A soak of the Celery half: a task a second, Redis restarted, workers killed, deliveries repeated.

``python -m tests.benchmarks.soak --minutes 20`` (or ``make soak MINUTES=20``) needs ``redis-server`` and
``POSTGRES_URL``. Progress goes to stderr; the last line of stdout is the result as JSON, and the exit code is
1 where something ran twice, was stuck, or kept its slot.
"""

from __future__ import annotations
