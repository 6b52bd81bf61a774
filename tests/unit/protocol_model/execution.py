# SPDX-License-Identifier: Apache-2.0
"""One execution of a workload: a delivery or a pod start, from its claim to the end of its artefact.

The API server's transactions are in here as well. The claim is split into its read and its compare-and-set,
as on a database without row locks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from dispatcher.backends.base import Observation
from dispatcher.domain.launch import claimant_from_nonce
from dispatcher.domain.lifecycle import BackendName, LaunchEvent, LaunchKind
from dispatcher.domain.protocol import CALLBACK_FINISHED, Permit, Refusal
from tests.unit.protocol_model import oracle

if TYPE_CHECKING:
    from tests.unit.protocol_model.world import World

REPORTS = ("success", "failed", "up_for_retry", "deferred", "up_for_reschedule")
"""What a task may say of itself at its end."""


class Stage(StrEnum):
    """How far an execution has come."""

    ASKING = "asking"
    """It asks, or asks again, to run."""
    PERMITTED = "permitted"
    """The fence has judged its claim and is about to write."""
    RUNNING = "running"
    """Its body runs."""
    REFUSED = "refused"
    """The claim was refused."""
    STOPPED = "stopped"
    """A later call was refused."""
    DONE = "done"
    """Its report was accepted; the process winds down."""
    OVER = "over"
    """There is no process any more."""


@dataclass(slots=True)
class Execution:
    """One execution.

    :param nonce: a name of its own
    :param worker: hostname, or the uid of the pod
    :param pid: its process
    :param stock: a worker without the guard: no headers, the token comes by the JWT
    """

    world: World
    token: str
    kind: LaunchKind
    subject_id: str
    backend: BackendName
    nonce: str
    worker: str
    pid: str
    stock: bool = False
    stage: Stage = Stage.ASKING
    body_ran: bool = False
    refused_by_fence: bool = False

    @property
    def body_alive(self) -> bool:
        """Whether its body runs and has not told its end."""
        return self.stage is Stage.RUNNING

    @property
    def may_vanish(self) -> bool:
        """Whether it may go away without a trace. A pod never does: the cluster shows that it is gone."""
        return self.backend is BackendName.CELERY

    def _holds_claim(self) -> bool:
        return self.claimant in self.world.winners[self.token]

    @property
    def claimant(self) -> str:
        """Its name as a claimant."""
        name = self.pid if self.stock else self.nonce
        return self.world.rules.claimant(self.worker, name, stock=self.stock)

    # The claim

    def ask(self) -> None:
        """Send the claim: the API server reads the rows and judges."""
        launch = self.world.ledger.rows.get(self.token)
        if self.kind is LaunchKind.CALLBACK:
            subject_of_callback = self.world.callbacks[self.subject_id].subject()
            if subject_of_callback is None:
                self.stage = Stage.REFUSED
                return
            elsewhere = launch is not None and self.world.ledger.claimed_elsewhere(launch)
            verdict = self.world.rules.judge_callback_claim(
                launch, subject_of_callback, self.claimant, claimed_elsewhere=elsewhere
            )
        else:
            row = self.world.task_by_id(self.subject_id)
            subject = None if row is None else row.subject()
            verdict = self.world.rules.judge_claim(
                launch, subject, self.token, self.claimant, by_header=not self.stock
            )
        if isinstance(verdict, Refusal):
            oracle.refused(self.world, self.token, self.subject_id, self.claimant)
            self.refused_by_fence = True
            self.stage = Stage.REFUSED
        elif verdict is Permit.CLAIM:
            self.stage = Stage.PERMITTED
        elif verdict is Permit.REPEAT:
            self._start_body()
        else:
            self._ask_airflow()

    def ask_without_fence(self) -> None:
        """Claim a task at an API server that has no fence yet: only its state decides (B4)."""
        self._ask_airflow()

    def _ask_airflow(self) -> None:
        row = self.world.task_by_id(self.subject_id)
        if row is None or row.state not in ("queued", "restarting"):
            self.stage = Stage.REFUSED
            return
        row.state, row.heartbeat_at = "running", self.world.now
        self.world.winners[self.token].add(self.claimant)
        self._start_body()

    def take(self, *, answer_lost: bool = False) -> None:
        """Write the claim; a compare-and-set that misses is judged again.

        :param answer_lost: the worker never hears that it won, and asks again
        """
        claim = self._claim_callback if self.kind is LaunchKind.CALLBACK else self._claim_task
        if not claim():
            self.stage = Stage.ASKING
            return
        self.world.winners[self.token].add(self.claimant)
        oracle.won(self.world, self.token)
        if answer_lost:
            self.stage = Stage.ASKING
        else:
            self._start_body()

    def _claim_task(self) -> bool:
        row = self.world.task_by_id(self.subject_id)
        hit = self.world.ledger.record(
            LaunchEvent.CLAIM,
            self.token,
            self.world.now,
            where=lambda one: (
                one.subject_id == self.subject_id and self.world.rules.claim_finds(row, one.token)
            ),
            claimant=self.claimant,
            hostname=self.worker,
        )
        if hit:
            oracle.claimed(row, self.token)
            assert row is not None
            row.state, row.heartbeat_at = "running", self.world.now
        return hit

    def _claim_callback(self) -> bool:
        hit = self.world.ledger.record(
            LaunchEvent.CLAIM,
            self.token,
            self.world.now,
            where=lambda one: self.world.rules.was_never_claimed(
                self.world.ledger.of_callback(one.subject_id)
            ),
            claimant=self.claimant,
            hostname=self.worker,
        )
        if hit:
            self.world.callbacks[self.subject_id].state = "running"
        return hit

    def _start_body(self) -> None:
        oracle.won(self.world, self.token)
        self.stage = Stage.RUNNING
        self.body_ran = True
        oracle.body_started(self.world, self.subject_id, self.kind)

    # Later calls

    def heartbeat(self) -> None:
        """Tell that the body is alive; callbacks have no such call."""
        if self.kind is LaunchKind.TASK and self._call_is_accepted():
            row = self.world.task_by_id(self.subject_id)
            assert row is not None
            row.heartbeat_at = self.world.now

    def report(self, state: str) -> None:
        """Tell how the body ended.

        :param state: one of ``REPORTS``; for a callback anything but success is a failure
        """
        if self.kind is LaunchKind.CALLBACK:
            self._report_callback("success" if state == "success" else "failed")
            return
        if not self._call_is_accepted():
            return
        row = self.world.task_by_id(self.subject_id)
        assert row is not None
        row.state = state
        row.resumed = False
        if state == "success":
            row.said_success = True
        if state == "up_for_retry":
            row.id = self.world.new_id("ti")
        self.stage = Stage.DONE

    def report_again(self, state: str) -> None:
        """Repeat a report of a task whose answer was lost.

        :param state: as before
        """
        if self._call_is_accepted():
            row = self.world.task_by_id(self.subject_id)
            assert row is not None
            row.state = state

    def _call_is_accepted(self) -> bool:
        row = self.world.task_by_id(self.subject_id)
        launch = self.world.ledger.rows.get(self.token)
        verdict = self.world.rules.judge_call(
            launch,
            None if row is None else row.subject(),
            self.token,
            None if self.stock else claimant_from_nonce(self.nonce),
        )
        if isinstance(verdict, Refusal) or row is None or row.state != "running":
            self.stage = Stage.STOPPED
            return False
        oracle.call_accepted(self.world, self.subject_id, self.token, self.claimant)
        return True

    def _report_callback(self, state: str) -> None:
        launch = self.world.ledger.rows.get(self.token)
        subject = self.world.callbacks[self.subject_id].subject()
        if subject is None:
            self.stage = Stage.STOPPED
            return
        verdict = self.world.rules.judge_callback_result(launch, subject, self.claimant)
        if isinstance(verdict, Refusal):
            self.stage = Stage.STOPPED
            return
        self.stage = Stage.DONE
        if verdict is not Permit.CLAIM:
            return
        ok = state == "success"
        self.world.ledger.record(
            LaunchEvent.END_OK if ok else LaunchEvent.END_FAILED, self.token, self.world.now
        )
        row = self.world.callbacks[self.subject_id]
        row.result = state
        if row.state not in CALLBACK_FINISHED:
            row.state = state

    # The end of the process

    def finish(self) -> None:
        """Let the process end by itself; only what ran its body leaves a result."""
        stage, self.stage = self.stage, Stage.OVER
        if self.backend is BackendName.KUBERNETES:
            self.world.cluster.end(self.token, self.worker, ok=True)
        elif stage in (Stage.DONE, Stage.STOPPED):
            claimant = None if self.stock else claimant_from_nonce(self.nonce)
            self._store(Observation(token=self.token, ok=True, claimant=claimant))
        elif self.stock and self.refused_by_fence:
            oracle.duplicate_failed(self.world, self.token)
            self._store(Observation(token=self.token, ok=False, reason="the API server answered 409"))

    def die(self) -> None:
        """Let the process be killed: Celery stores a failure and drops the message, a pod fails.

        The killed second delivery of a callback stores none here: nothing would tell its failure from that
        of the claimant, for a callback has no heartbeat.
        """
        if self.backend is BackendName.KUBERNETES:
            self.world.fail_pod(self.token, "exit code 137")
        elif self.kind is LaunchKind.CALLBACK and not self._holds_claim():
            self.vanish()
            return
        else:
            self._store(Observation(token=self.token, ok=False, reason="worker lost"))
        self.stage = Stage.OVER

    def vanish(self) -> None:
        """Let its machine go away: no result, and Celery delivers the message again."""
        if self.stage is not Stage.OVER and self.backend is BackendName.CELERY:
            self.world.broker.ready.append(self.token)
        self.stage = Stage.OVER

    def _store(self, observation: Observation) -> None:
        stored = self.world.broker.results.get(self.token)
        # Celery does not overwrite a stored success.
        if stored is None or not stored.ok:
            self.world.broker.results[self.token] = observation
