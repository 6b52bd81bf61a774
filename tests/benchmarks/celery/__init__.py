# SPDX-License-Identifier: Apache-2.0
"""Publishing and observing, side by side with the stock CeleryExecutor, on one Redis in one run.

``python -m tests.benchmarks.celery`` (or ``make bench-celery``) needs ``REDIS_URL`` and ``POSTGRES_URL``.
Progress goes to stderr; the last line of stdout is the result as JSON.
"""

from __future__ import annotations
