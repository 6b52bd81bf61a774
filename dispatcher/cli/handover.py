# SPDX-License-Identifier: Apache-2.0
"""``airflow dispatcher handover``: go back to Airflow's stock executors without a drain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.cli.simple_table import AirflowConsole
from airflow.configuration import conf
from airflow.utils.cli import suppress_logs_and_warning
from airflow.utils.providers_configuration_loader import providers_configuration_loaded
from airflow.utils.session import create_session

from dispatcher.domain.errors import DispatcherError
from dispatcher.domain.handover import CELERY_EXECUTOR, KUBERNETES_EXECUTOR, HandoverVerdict
from dispatcher.domain.lifecycle import BackendName
from dispatcher.handover import Handover, schedulers_alive
from dispatcher.ledger.check import require_ledger

if TYPE_CHECKING:
    from argparse import Namespace

    from dispatcher.handover import Done, Plan


@suppress_logs_and_warning
@providers_configuration_loaded
def handover(args: Namespace) -> None:
    """Prepare what is queued and runs for the stock executors.

    :raises SystemExit: a scheduler is alive, the ledger is missing, or the cluster does not answer
    """
    try:
        with create_session(scoped=False) as session:
            require_ledger(session)
        if not args.force:
            _require_no_scheduler()
        with Handover(BackendName(args.default)) as work:
            plan = work.plan()
            if args.dry_run:
                _say_plan(plan)
            else:
                _say_done(work.carry_out(plan))
            _say_left(plan)
    except DispatcherError as exc:
        raise SystemExit(f"airflow dispatcher handover: {exc}") from exc


def _require_no_scheduler() -> None:
    with create_session(scoped=False) as session:
        alive = schedulers_alive(session)
    if not alive:
        return
    threshold = conf.getint("scheduler", "scheduler_health_check_threshold")
    each = ", ".join(
        f"job {one.job_id} on {one.hostname or '?'} (heartbeat {one.heartbeat_at:%Y-%m-%d %H:%M:%S} UTC)"
        for one in alive
    )
    raise SystemExit(
        f"airflow dispatcher handover: nothing was done: a scheduler is alive: {each}. Stop every scheduler "
        f"first; one that was killed counts as alive until its heartbeat is {threshold} seconds old. "
        "--force goes on all the same: what that scheduler then does to the same tasks is not foreseen"
    )


def _say_plan(plan: Plan) -> None:
    adopt = HandoverVerdict.ADOPT
    _say("Nothing was changed; without --dry-run, this would be done:")
    _say(f"{plan.count(adopt, BackendName.CELERY)} tasks on Celery go to {CELERY_EXECUTOR}")
    _say(f"{plan.count(adopt, BackendName.KUBERNETES)} tasks in pods go to {KUBERNETES_EXECUTOR}")
    _say(f"{plan.count(HandoverVerdict.GIVE_BACK)} queued tasks are given back, to be queued anew")
    _say(f"{len(plan.unsent_callbacks)} callbacks are given back, to be queued anew")
    _say(f"{sum(step.subject_id is None for step in plan.pods)} ended pods are left to {KUBERNETES_EXECUTOR}")


def _say_done(done: Done) -> None:
    _say(f"{done.adopted.get(BackendName.CELERY, 0)} tasks on Celery go to {CELERY_EXECUTOR}")
    _say(
        f"{done.adopted.get(BackendName.KUBERNETES, 0)} tasks in pods go to {KUBERNETES_EXECUTOR}; "
        f"{done.labelled} of their pods were labelled now"
    )
    _say(f"{done.given_back} queued tasks were given back, to be queued anew")
    _say(f"{done.callbacks} callbacks were given back, to be queued anew")
    _say(f"{done.renamed} tasks that are not queued yet name another executor now")
    _say(f"{done.tidied} ended pods were left to {KUBERNETES_EXECUTOR}, which removes them")


def _say_left(plan: Plan) -> None:
    for what, number in sorted(plan.left.items()):
        _say(f"left alone: {number} {what}")


def _say(line: str) -> None:
    AirflowConsole().print(line, markup=False, soft_wrap=True)
