# SPDX-License-Identifier: Apache-2.0
"""What the guard counts, through Airflow's metrics: it goes wherever ``[metrics]`` sends the others.

* ``dispatcher.launch.refused``, tags ``kind`` and ``reason``: a claim was refused, nothing was run;
* ``dispatcher.launch.stopped``, tags ``kind`` and ``reason``: told to stop after the claim.
"""

from __future__ import annotations

from airflow.sdk.observability import stats

REFUSED = "dispatcher.launch.refused"
STOPPED = "dispatcher.launch.stopped"


def initialize() -> None:
    """Connect Airflow's metrics in this process, as ``[metrics]`` says.

    Airflow does so in the task process only; its supervisors count nothing themselves.
    """
    from airflow.sdk.configuration import conf
    from airflow.sdk.observability.metrics import stats_utils

    stats.initialize(
        factory=stats_utils.get_stats_factory(),
        export_legacy_names=conf.getboolean("metrics", "legacy_names_on"),
    )


def count(name: str, *, kind: str, reason: str) -> None:
    """Add one to a counter.

    :param name: ``REFUSED`` or ``STOPPED``
    :param kind: ``task`` or ``callback``
    :param reason: the reason of the outcome
    """
    stats.incr(name, tags={"kind": kind, "reason": reason})
