# SPDX-License-Identifier: Apache-2.0
"""Creating and watching pods, side by side with the stock KubernetesExecutor, on one API server in one run.

``python -m tests.benchmarks.kubernetes`` (or ``make bench-kubernetes``) needs ``REDIS_URL``, ``POSTGRES_URL``
and ``KUBECONFIG``. Progress goes to stderr; the last line of stdout is the result as JSON.
"""

from __future__ import annotations
