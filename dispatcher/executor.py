# SPDX-License-Identifier: Apache-2.0
"""HybridExecutor: Airflow's executor interface over the dispatcher."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.configuration import conf
from airflow.executors.base_executor import ExecutorConf
from airflow.executors.workloads import ExecuteCallback, ExecuteTask, TestConnection
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState

from dispatcher import startup
from dispatcher.compat import VersionedExecutor, task_instance_key, workload_key
from dispatcher.dispatch.dispatcher import Dispatcher
from dispatcher.dispatch.heartbeat import Heartbeat
from dispatcher.dispatch.signing import Signer
from dispatcher.domain.errors import ConfigurationError
from dispatcher.domain.lifecycle import BackendName, LaunchKind
from dispatcher.ledger import store
from dispatcher.ledger.errors import DATABASE_ERRORS
from dispatcher.recovery import adopt, revoke
from dispatcher.settings import FenceMode, Settings, load

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy.orm import Session

    from dispatcher.backends.base import Backend
    from dispatcher.backends.kubernetes.backend import KubernetesBackend
    from dispatcher.backends.kubernetes.logs import Log

log = logging.getLogger(__name__)


class HybridExecutor(VersionedExecutor):
    """Runs work on Celery workers and in Kubernetes pods, with one launch token for every launch.

    The constructor starts nothing and touches nothing: the API server makes an instance to read logs.
    """

    supports_ad_hoc_ti_run: bool = True
    supports_multi_team: bool = True
    sentry_integration: str = "sentry_sdk.integrations.celery.CeleryIntegration"
    pre_assigns_external_executor_id: ClassVar[bool] = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._dispatcher: Dispatcher | None = None
        self._probe: startup.FenceProbe | None = None
        self._log_backends: dict[str | None, KubernetesBackend] = {}
        self._unsaved_records: tuple[Any, ...] = ()
        self._reported: dict[Any, Any] = {}
        self._adopted: set[Any] = set()

    @property
    def dispatcher(self) -> Dispatcher:
        """The dispatcher of a started executor.

        :raises RuntimeError: the executor was not started
        """
        if self._dispatcher is None:
            raise RuntimeError("HybridExecutor.start() has not been called")
        return self._dispatcher

    @property
    def slots_available(self) -> int:
        """How many more workloads may come; never below zero, though more may be taken over than have a slot.

        The scheduler adds up what is free in all its executors: a negative number would hide another's slots.
        """
        return max(0, int(super().slots_available))

    def start(self) -> None:
        """Check what must be there and get ready; a configuration mistake ends the scheduler in one line."""
        try:
            settings = load(self.conf)
            # Signing and the API server's address are not a team's own: they come from the deployment.
            startup.check_signing(conf)
            startup.check_ledger()
            self._probe = startup.FenceProbe(conf, settings.fence)
            self._probe.check_at_start()
        except ConfigurationError as exc:
            log.critical("HybridExecutor cannot start: %s", exc)
            raise SystemExit(f"HybridExecutor cannot start: {exc}") from None
        backends = self._make_backends(settings)
        for backend in backends.values():
            backend.start(str(self.job_id))
            if problem := backend.problem():
                log.warning("Launches for %s wait: %s", backend.name.value, problem)
        self._dispatcher = self._make_dispatcher(settings, backends)

    def _make_backends(self, settings: Settings) -> Mapping[BackendName, Backend]:
        # Imported late: most processes that load this class never send anything.
        from dispatcher.backends.celery.backend import CeleryBackend
        from dispatcher.backends.kubernetes.backend import KubernetesBackend

        return {
            BackendName.CELERY: CeleryBackend(self.conf, settings, team_name=self.team_name),
            BackendName.KUBERNETES: KubernetesBackend(self.conf, settings, team_name=self.team_name),
        }

    def _make_dispatcher(self, settings: Settings, backends: Mapping[BackendName, Backend]) -> Dispatcher:
        return Dispatcher(
            owner=str(self.job_id),
            backends=backends,
            router=settings.router,
            signer=Signer(lambda: self.jwt_generator, settings.workload_token_ttl),
            own=startup.own_names(self),
            team=self.team_name,
            ids_may_be_stale=startup.ids_may_be_stale(),
            unfenced_callbacks=settings.fence is FenceMode.PRESENTED,
            heartbeat_timeout=settings.heartbeat_timeout,
            relaunches={
                LaunchKind.TASK: settings.task_relaunches,
                LaunchKind.CALLBACK: settings.callback_relaunches,
            },
            callback_patience=settings.callback_queued_timeout,
            retention=timedelta(days=settings.launch_retention_days),
            session=partial(create_session, scoped=False),
            clock=time.monotonic,
            utcnow=_utcnow,
        )

    def queue_workload(self, workload: Any, session: Session) -> None:
        """Issue a launch in the scheduler's transaction and queue the workload (rule 1).

        :param workload: a task, a callback or a connection test
        :param session: the scheduler's session
        """
        if isinstance(workload, (ExecuteTask, ExecuteCallback)) and not self._issue(workload, session):
            return
        super().queue_workload(workload, session)

    def _issue(self, workload: ExecuteTask | ExecuteCallback, session: Session) -> bool:
        """Issue a launch; what is wrong with the workload fails it through the event buffer, and no more."""
        try:
            self.dispatcher.issue(workload, session)
        except DATABASE_ERRORS:
            raise
        except Exception as exc:
            log.exception("No launch can be issued for %s", workload.display_name)
            self._fail_unissued(workload, f"no launch can be issued for it: {type(exc).__name__}: {exc}")
            return False
        return True

    def _fail_unissued(self, workload: ExecuteTask | ExecuteCallback, reason: str) -> None:
        key = workload_key(workload)
        if isinstance(workload, ExecuteTask):
            # Not as `fail` does: that would tell of an older launch that is in memory, which is not meant.
            self._unqueue(key)
            super().change_state(key, TaskInstanceState.FAILED, reason)
        else:
            # An older launch of a callback may still run it, and decides (rule 19).
            self.fail(key, reason)

    def _get_workloads_to_schedule(self, open_slots: int) -> list[tuple[Any, Any]]:
        """Return what is to be sent now, in Airflow's own order, which begins with callbacks.

        What has to wait before it is sent again (its broker is away, a quota is used up) takes no turn from
        what another backend would take at once.

        :param open_slots: how many may be sent
        """
        queued = super()._get_workloads_to_schedule(sys.maxsize)
        return [one for one in queued if self.dispatcher.is_due(one[0])][: max(0, open_slots)]

    def _process_workloads(self, workload_items: Sequence[Any]) -> None:
        tests = [item for item in workload_items if isinstance(item, TestConnection)]
        keys = [workload_key(item) for item in workload_items if not isinstance(item, TestConnection)]
        if tests:
            for test in tests:
                self.connection_test_queue.pop(test.key, None)
            self._apply(self.dispatcher.submit_connection_tests(tests))
        if keys:
            self._apply(self.dispatcher.submit(keys))

    def fail_connection_test(self, key: Any) -> None:
        """Give up a connection test that Airflow says took too long.

        :param key: Airflow's key
        """
        super().fail_connection_test(key)
        if self._dispatcher is not None:
            self._dispatcher.forget_connection_test(key.id)

    def sync(self) -> None:
        """Observe what was sent."""
        if self._probe is not None:
            self._probe.check_now_and_then()
        self._apply(self.dispatcher.sync())
        # Airflow 3.4 gives every task that was not handed back a slot, which one without a launch would keep.
        self.running -= {key for key in self._adopted if not self.dispatcher.knows(key)}
        self._adopted.clear()

    def _apply(self, step: Heartbeat) -> None:
        for key in step.freed:
            self.running.discard(key)
            self._unqueue(key)
        for key in step.running:
            self._unqueue(key)
            self.running.add(key)
        for key, event, text in step.notes:
            self.log_task_event(event=event, extra=text, ti_key=key)
        for key, workload in step.queued.items():
            # Airflow 3.4 counts what was adopted as running: it is one slot, not two.
            self.running.discard(key)
            queue = self.callback_queue if isinstance(workload, ExecuteCallback) else self.task_queue
            queue[key] = workload

    def log_task_event(self, *, event: str, extra: str, ti_key: Any) -> None:
        """Put a line into the event log of a task; a callback has none.

        The scheduler saves the records in its next loop. It takes them out of their queue one by one while
        SQLAlchemy refers to them weakly, so records that nobody holds are gone before they are written.

        :param event: what happened, in a word or two
        :param extra: more about it
        :param ti_key: Airflow's key of the workload
        """
        super().log_task_event(event=event, extra=extra, ti_key=ti_key)
        self._unsaved_records = tuple(self._task_event_logs)

    def _unqueue(self, key: Any) -> None:
        self.task_queue.pop(key, None)
        self.callback_queue.pop(key, None)

    def get_event_buffer(self, dag_ids: Any = None) -> dict[Any, Any]:
        """Return the events that Airflow has to hear now (rules 13 and 14).

        :param dag_ids: None for all; see ``BaseExecutor``
        """
        events = super().get_event_buffer(dag_ids)
        if self._dispatcher is None:
            return events
        # Airflow 3.4 puts back what it could not take in, such as events of rows that somebody has locked.
        # Those of ours are decided anew: the task may be another launch's by now.
        others = {key: event for key, event in events.items() if self._reported.get(key) != event}
        self._reported = self._dispatcher.events(dag_ids)
        return {**others, **self._reported}

    def change_state(self, key: Any, state: Any, info: Any = None, remove_running: bool = True) -> None:
        """Take up what the scheduler says of a workload; the slot is free at once (rule 15).

        :param key: Airflow's key
        :param state: the state the scheduler wants
        :param info: its reason
        :param remove_running: see ``BaseExecutor``
        """
        self._unqueue(key)
        super().change_state(key, state, info, remove_running=remove_running)
        if self._dispatcher is not None and self._dispatcher.told(key, state, info):
            self.event_buffer.pop(key, None)

    def revoke_task(self, *, ti: TaskInstance) -> None:
        """Revoke the launch of a task that is stuck in queued (rule 17).

        :param ti: the task instance, in the scheduler's session
        :raises NotImplementedError: a worker has claimed it meanwhile: it runs, and is left alone; or
            another scheduler has taken it over
        """
        reason = "revoked by the scheduler: stuck in queued"
        if why := self.dispatcher.why_waiting(ti.external_executor_id):
            reason = f"{reason}; {why}"
        token, key = revoke(ti, str(self.job_id), _utcnow(), reason=reason), task_instance_key(ti)
        if token is not None and why:
            self.log_task_event(event="launch stuck", extra=why, ti_key=key)
        self._unqueue(key)
        self.running.discard(key)
        if token is not None:
            self.dispatcher.revoked(token)

    def try_adopt_task_instances(self, tis: Sequence[TaskInstance]) -> Sequence[TaskInstance]:
        """Take over the launches of dead schedulers (rule 18).

        :param tis: task instances of dead schedulers, in the scheduler's session
        :returns: those that the scheduler must reset
        """
        hand_back = adopt(tis, str(self.job_id))
        self._adopted.update(task_instance_key(ti) for ti in tis)
        self.dispatcher.adopt_soon({ti.external_executor_id for ti in tis if ti.external_executor_id})
        return hand_back

    def get_task_log(self, ti: TaskInstance, try_number: int) -> tuple[list[str], list[str]]:
        """Return the log of a task that runs in a pod; Celery workers serve their logs themselves.

        Called in the API server, on an executor that was never started.

        :param ti: a running task instance
        :param try_number: which try
        :returns: messages for people, and the log
        """
        messages, streams = self.get_streaming_task_log(ti, try_number)
        return messages, ["\n".join(lines) for lines in streams]

    def get_streaming_task_log(self, ti: TaskInstance, try_number: int) -> Log:
        """Return what ``get_task_log`` does, the log as streams of lines.

        :param ti: a running task instance
        :param try_number: which try
        """
        if not ti.external_executor_id:
            return [], []
        with create_session(scoped=False) as session:
            launch = store.by_token(session.connection(), ti.external_executor_id)
        if launch is None or launch.backend is not BackendName.KUBERNETES:
            return [], []
        if launch.try_number != try_number:
            return [f"The pod that runs now belongs to try {launch.try_number}, not to try {try_number}"], []
        if launch.external_id is None:
            return ["It is not recorded yet in which pod this task runs"], []
        try:
            return self._backend_with_logs(launch.team_name).open_log(launch.external_id)
        except ConfigurationError as exc:
            return [f"The log of pod {launch.external_id} cannot be read: {exc}"], []

    def _backend_with_logs(self, team_name: str | None) -> KubernetesBackend:
        """Return a backend as a team has it: Airflow asks the default executor for the logs of all teams."""
        from dispatcher.backends.kubernetes.backend import KubernetesBackend

        if team_name not in self._log_backends:
            team_conf = self.conf if team_name == self.team_name else ExecutorConf(team_name)
            self._log_backends[team_name] = KubernetesBackend(team_conf, load(team_conf), team_name=team_name)
        return self._log_backends[team_name]

    def end(self) -> None:
        """End threads and connections; launches stay for the next scheduler to take over."""
        if self._dispatcher is not None:
            self._dispatcher.stop()

    def terminate(self) -> None:
        """Do as ``end``: nothing that was sent depends on this process."""
        self.end()

    def debug_dump(self) -> None:
        """Write the flights to the log, on SIGUSR2."""
        super().debug_dump()  # type: ignore[no-untyped-call]
        if self._dispatcher is not None:
            flights = self._dispatcher.in_flight()
            lines = "\n\t".join(f"{one.token} {one.launch.state.value} {one.key}" for one in flights)
            log.info("launches in memory (%d)\n\t%s", len(flights), lines)


def _utcnow() -> datetime:
    return datetime.now(tz=UTC)
