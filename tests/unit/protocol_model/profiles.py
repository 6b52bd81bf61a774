# SPDX-License-Identifier: Apache-2.0
"""How long hypothesis searches. ``DISPATCHER_PROTOCOL_EXAMPLES`` makes it search longer, and at random."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, Verbosity, settings

EXAMPLES = int(os.environ.get("DISPATCHER_PROTOCOL_EXAMPLES", "0"))

_COMMON = {
    "database": None,
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "report_multiple_bugs": False,
    "print_blob": False,
}

SEARCH = settings(max_examples=EXAMPLES or 200, stateful_step_count=60, derandomize=not EXAMPLES, **_COMMON)
"""For the protocol as it is."""

HUNT = settings(
    max_examples=400,
    stateful_step_count=40,
    derandomize=True,
    phases=[Phase.generate],
    verbosity=Verbosity.quiet,
    **_COMMON,
)
"""For mutants: the first broken invariant ends it, and nothing is made smaller."""
