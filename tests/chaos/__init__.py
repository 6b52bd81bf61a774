# SPDX-License-Identifier: Apache-2.0
"""A whole Airflow on real services in which everything is killed at random points of a seed.

    python -m tests.chaos --seed 1 --minutes 5

Two schedulers, an API server, a DAG processor, Celery workers and pods run short tasks and callbacks on both
backends. After the time is over nothing more is started or killed; what is open ends, and the ledger and the
notes of the bodies are checked. The last line of stdout is the result as JSON.
"""

from __future__ import annotations
