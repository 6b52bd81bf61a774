# SPDX-License-Identifier: Apache-2.0
"""Housekeeping: what nobody waits for is taken away, by its owner or, if that is dead, by one heir alone."""

from __future__ import annotations

import uuid
from functools import partial

import pytest
from airflow.utils.session import create_session
from sqlalchemy import delete, update

from dispatcher.backends.base import Artefact, Progress, Stray
from dispatcher.backends.memory import MemoryBackend
from dispatcher.dispatch.housekeeping import HOUSEKEEPING_INTERVAL, TEST_PATIENCE, Housekeeper
from dispatcher.domain.lifecycle import BackendName, LaunchState
from dispatcher.domain.workload import WorkloadKind
from dispatcher.ledger import leftovers
from dispatcher.ledger.models import LaunchRow
from tests.support import dispatching as run
from tests.support import rows

pytestmark = pytest.mark.usefixtures("airflow_db")


class Keeper:
    """A housekeeper over one backend in memory, with a clock of the test's own."""

    def __init__(self, owner: str, backend: MemoryBackend, team: str | None = None) -> None:
        self.time = 0.0
        self.backend = backend
        self._keeper = Housekeeper(
            owner=owner,
            team=team,
            backends={BackendName.KUBERNETES: backend},
            session=partial(create_session, scoped=False),
            clock=lambda: self.time,
        )

    def keep(self, seconds: float = HOUSEKEEPING_INTERVAL) -> None:
        self.time += seconds
        self._keeper.keep()


def scheduler(state: str = "running") -> str:
    with create_session(scoped=False) as session:
        return str(rows.make_scheduler_job(session, state=state).id)


def launch(owner: str, **columns) -> str:
    """Write the row of a settled launch and return its token."""
    token = str(uuid.uuid4())
    values = {
        "token": token,
        "kind": "task",
        "subject_id": str(uuid.uuid4()),
        "backend": "kubernetes",
        "queue": "kubernetes",
        "route_reason": "",
        "state": LaunchState.SUCCEEDED.value,
        "scheduler_job_id": owner,
        "issued_at": rows.utcnow(),
        "settled_at": rows.utcnow(),
        **columns,
    }
    with create_session(scoped=False) as session:
        session.add(LaunchRow(**values))
    return token


def leave(backend: MemoryBackend, token: str, progress=Progress.ENDED, kind=WorkloadKind.TASK, sender=None):
    backend.left_behind[token] = Stray(Artefact(token, kind, f"ns/pod-{token}"), progress, sender)


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend(BackendName.KUBERNETES)


@pytest.mark.parametrize("progress", [Progress.ENDED, Progress.WAITING])
def test_fault_62_what_a_dead_scheduler_did_not_get_to_is_taken_away(backend, progress):
    live = scheduler()
    token = launch(scheduler("failed"))
    leave(backend, token, progress)
    Keeper(live, backend).keep()
    assert backend.removals == [token]
    assert backend.revoked == ({token} if progress is Progress.WAITING else set())
    assert run.launch_of(token).scheduler_job_id == live


def test_what_is_ones_own_and_settled_is_taken_away(backend):
    live = scheduler()
    token = launch(live)
    leave(backend, token)
    Keeper(live, backend).keep()
    assert backend.removals == [token]


def test_fault_63_what_belongs_to_another_live_scheduler_is_left_to_it(backend):
    live, other = scheduler(), scheduler()
    leave(backend, launch(other))
    leave(backend, str(uuid.uuid4()), sender=other)
    Keeper(live, backend).keep()
    assert backend.removals == []


def test_fault_63_of_two_live_schedulers_one_takes_what_a_dead_one_left(backend):
    dead, first, second = scheduler("failed"), scheduler(), scheduler()
    tokens = [launch(dead) for _ in range(3)]
    pruned = [str(uuid.uuid4()) for _ in range(3)]
    theirs = MemoryBackend(BackendName.KUBERNETES)
    for one in (backend, theirs):
        for token in tokens:
            leave(one, token)
        for token in pruned:
            leave(one, token, sender=dead)
    # Both see all of it before either has done anything.
    keepers = [Keeper(second, theirs), Keeper(first, backend)]
    for keeper in keepers:
        keeper.keep()
    assert sorted(backend.removals + theirs.removals) == sorted(tokens + pruned)


@pytest.mark.parametrize("state", ["superseded", "revoked", "dropped"])
def test_what_runs_is_stopped_if_its_launch_was_told_to_stop(backend, state):
    live = scheduler()
    token = launch(live, state=state)
    leave(backend, token, Progress.RUNNING)
    Keeper(live, backend).keep()
    assert backend.revoked == {token}


@pytest.mark.parametrize("state", ["succeeded", "failed", "lost"])
def test_what_runs_is_left_to_end_otherwise(backend, state):
    live = scheduler()
    token = launch(live, state=state)
    leave(backend, token, Progress.RUNNING)
    keeper = Keeper(live, backend)
    keeper.keep()
    assert backend.removals == []
    leave(backend, token, Progress.ENDED)
    keeper.keep()
    assert backend.removals == [token]


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param({"state": "submitted", "settled_at": None}, id="open"),
        pytest.param({"state": "failed", "settled_at": None}, id="not settled"),
        pytest.param({"team_name": "blue"}, id="of another team"),
        pytest.param({"backend": "celery"}, id="of another backend"),
    ],
)
@pytest.mark.parametrize("owner_state", ["running", "failed"])
def test_what_is_of_use_or_not_ours_is_left_alone(backend, columns, owner_state):
    live = scheduler()
    launch(live)
    owner = live if owner_state == "running" else scheduler("failed")
    token = launch(owner, **columns)
    leave(backend, token)
    Keeper(live, backend).keep()
    assert backend.removals == []
    assert run.launch_of(token).scheduler_job_id == owner


def test_a_pod_of_a_pruned_launch_is_removed_once_it_has_ended(backend):
    live = scheduler()
    launch(live)
    token = str(uuid.uuid4())
    keeper = Keeper(live, backend)
    for progress in (Progress.WAITING, Progress.RUNNING):
        leave(backend, token, progress, sender="4711")
        keeper.keep(2 * TEST_PATIENCE)
        assert backend.removals == []
    leave(backend, token, Progress.ENDED, sender="4711")
    keeper.keep()
    assert backend.removals == [token]


def test_a_connection_test_of_a_dead_scheduler_may_end_but_not_stay(backend):
    live = scheduler()
    launch(live)
    tests = [str(uuid.uuid4()) for _ in range(2)]
    leave(backend, tests[0], Progress.ENDED, WorkloadKind.TEST_CONNECTION, "4711")
    leave(backend, tests[1], Progress.WAITING, WorkloadKind.TEST_CONNECTION, "4711")
    keeper = Keeper(live, backend)
    keeper.keep()
    assert backend.removals == [tests[0]]
    keeper.keep(TEST_PATIENCE + 1)
    assert backend.revoked == {tests[1]}


def test_a_scheduler_that_is_declared_dead_takes_nothing(backend):
    dead = scheduler("failed")
    leave(backend, launch(dead))
    Keeper(dead, backend).keep()
    assert backend.removals == []


def test_a_backend_that_was_never_used_is_not_asked(backend):
    live = scheduler()
    asked: list[None] = []
    backend.strays = lambda: asked.append(None) or []
    keeper = Keeper(live, backend)
    keeper.keep()
    assert asked == []
    launch(live)
    keeper.keep()
    with create_session(scoped=False) as session:
        session.execute(delete(LaunchRow))
    keeper.keep()
    assert len(asked) == 2


def test_it_looks_once_in_an_interval(backend):
    live = scheduler()
    keeper = Keeper(live, backend)
    token = launch(live)
    keeper.keep()
    leave(backend, token)
    keeper.keep(HOUSEKEEPING_INTERVAL / 2)
    assert backend.removals == []
    keeper.keep(HOUSEKEEPING_INTERVAL / 2)
    assert backend.removals == [token]


def test_an_heir_wins_once():
    dead, first, second = scheduler("failed"), scheduler(), scheduler()
    token = launch(dead)
    with create_session(scoped=False) as session:
        connection = session.connection()
        alive = leftovers.schedulers_alive(connection)
        assert alive == sorted((first, second), key=int)
        inherit = partial(leftovers.inherit_settled, connection, [token], alive=alive)
        assert inherit(owner=second) == {token}
        assert inherit(owner=first) == set()
        session.execute(update(LaunchRow).values(scheduler_job_id=None))
        assert inherit(owner=first) == {token}
