# SPDX-License-Identifier: Apache-2.0
"""All launches are compared with the ledger in turn, a page in a heartbeat, and what differs is seen to."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta

import pytest
from airflow import settings
from airflow.utils.session import create_session
from sqlalchemy import event, update

from dispatcher.dispatch import tour
from dispatcher.dispatch.flights import Flight, FlightTable
from dispatcher.dispatch.sweep import GRACE, Sweeper
from dispatcher.domain.lifecycle import LaunchState
from dispatcher.ledger import store
from dispatcher.ledger.models import LaunchRow
from tests.support import dispatching as run
from tests.support.launches import OWNER, add_launch_of
from tests.support.rows import make_scheduler_job, make_task_instance, utcnow

pytestmark = pytest.mark.usefixtures("airflow_db")

PAGE = 3
LAUNCHES = 10
PAGES = 4

TAKES = 0.01
"""Seconds that a sweep takes."""


class Clock:
    now = 1_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch):
    monkeypatch.setattr(tour, "PAGE", PAGE)


@pytest.fixture
def launches(db_session):
    """Claimed launches whose tasks run."""
    made = []
    for number in range(LAUNCHES):
        ti = make_task_instance(
            db_session, map_index=number, state="running", external_executor_id=token(number)
        )
        made.append(add_launch_of(db_session, ti, state=LaunchState.CLAIMED, claimant="nonce:one"))
    db_session.commit()
    return made


def token(number):
    return f"0000000{number:x}-0000-4000-8000-000000000000"


@pytest.fixture
def table(launches):
    """Remembers all of them as they are."""
    made = FlightTable()
    for number, launch in enumerate(launches):
        made.add(Flight(launch=launch, key=number))
    return made


@pytest.fixture
def sweeper(clock):
    return Sweeper(
        owner=OWNER,
        team=None,
        clock=clock,
        callback_patience=timedelta(days=1),
        why_waiting=lambda _launch: None,
    )


def sweep(sweeper, table, clock):
    """Sweep in a transaction, take in what was found, and let so much time pass that a page is due again."""
    with create_session(scoped=False) as session:
        swept = sweeper.sweep(session.connection(), table, utcnow())
    for one in swept.forget:
        table.forget(one)
    for launch in swept.unknown:
        table.add(Flight(launch=launch, key=launch.token))
    clock.now += TAKES
    sweeper.taken_in(swept)
    clock.now += tour.LONGEST_INTERVAL
    return swept


def write(token, **columns):
    with create_session(scoped=False) as session:
        session.execute(update(LaunchRow).where(LaunchRow.token == token).values(**columns))


@contextmanager
def statements():
    """Note the statements that are made."""
    made = []

    def note(_connection, _cursor, statement, *_):
        made.append(statement)

    engine = settings.get_engine()
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield made
    finally:
        event.remove(engine, "before_cursor_execute", note)


def test_each_sweep_reads_a_page_until_it_got_round(sweeper, table, clock, launches):
    pages = [sweep(sweeper, table, clock) for _ in range(2 * PAGES)]
    read = [[one.token for one in swept.page.standings] for swept in pages]
    expected = [launch.token for launch in launches]
    assert [len(page) for page in read] == [3, 3, 3, 1] * 2
    assert [one for page in read for one in page] == expected * 2
    assert [swept.page.last for swept in pages] == [False, False, False, True] * 2


def test_nothing_is_read_in_whole_where_nothing_has_changed(sweeper, table, clock):
    for _ in range(PAGES):
        assert sweep(sweeper, table, clock).looked_at == ()


def test_no_page_is_read_before_it_is_time(sweeper, table, clock):
    sweep(sweeper, table, clock)
    clock.now -= tour.LONGEST_INTERVAL
    with statements() as made:
        assert sweep(sweeper, table, clock).page is None
    assert made == []


def test_a_claim_is_learned_from_the_page(sweeper, table, clock, launches):
    for one in (launches[0], launches[9]):
        flight = table.get(one.token)
        flight.launch = one._replace(state=LaunchState.SUBMITTED, claimant=None)
    swept = [sweep(sweeper, table, clock) for _ in range(PAGES)]
    assert {one.looked_at for one in swept} == {()}
    for one in (launches[0], launches[9]):
        assert table.get(one.token).launch == one


def test_what_another_scheduler_took_over_is_forgotten_when_the_tour_got_round(
    sweeper, table, clock, launches
):
    taken = [launches[1].token, launches[8].token]
    for one in taken:
        write(one, scheduler_job_id="2")
    forgotten = [sweep(sweeper, table, clock).forget for _ in range(PAGES)]
    assert forgotten == [set(), set(), set(taken), set()]


def test_much_that_is_to_be_forgotten_is_looked_at_in_parts(sweeper, table, clock, launches):
    for launch in launches[:7]:
        write(launch.token, scheduler_job_id="2")
    looked = [len(sweep(sweeper, table, clock).looked_at) for _ in range(5)]
    assert max(looked) == PAGE
    assert set(table.tokens()) == {launch.token for launch in launches[7:]}


def test_what_memory_does_not_know_is_found(sweeper, table, clock, launches):
    table.forget(launches[7].token)
    found = [sweep(sweeper, table, clock).unknown for _ in range(PAGES)]
    assert found == [[], [], [launches[7]], []]


def test_what_is_issued_during_a_tour_is_not_taken_for_lost(sweeper, table, clock, db_session):
    sweep(sweeper, table, clock)
    ti = make_task_instance(db_session, map_index=77, state="running", external_executor_id=token(15))
    late = add_launch_of(db_session, ti, state=LaunchState.CLAIMED, claimant="nonce:one", sequence=0)
    table.add(Flight(launch=late, key="late"))
    for _ in range(PAGES - 1):
        assert sweep(sweeper, table, clock).forget == set()


def test_what_is_asked_for_is_looked_at_without_a_page(sweeper, table, clock, launches):
    sweep(sweeper, table, clock)
    clock.now -= tour.LONGEST_INTERVAL
    write(launches[4].token, scheduler_job_id="2")
    table.forget(launches[5].token)
    sweeper.ask([launches[4].token, launches[5].token, "unheard-of"])
    swept = sweep(sweeper, table, clock)
    assert swept.page is None
    assert swept.forget == {launches[4].token}
    assert swept.unknown == [launches[5]]


def test_the_newer_launch_of_a_task_stays_current_though_it_was_never_read(db_session, sweeper, monkeypatch):
    ti = make_task_instance(db_session, state="queued", external_executor_id=token(2))
    older = add_launch_of(db_session, ti, token=token(1), state=LaunchState.CLAIMED, claimant="nonce:one")
    newer = add_launch_of(db_session, ti)
    db_session.commit()
    table = FlightTable()
    table.add(Flight(launch=newer._replace(sequence=0), key=table.key_of(newer)))
    sweeper.ask([older.token])
    monkeypatch.setattr(tour.Tour, "page", lambda *_: None)
    with create_session(scoped=False) as session:
        (unknown,) = sweeper.sweep(session.connection(), table, utcnow()).unknown
    assert unknown == older
    assert not table.take_up(Flight(launch=unknown, key=table.key_of(unknown)))
    assert table.current(table.key_of(newer)).launch == newer


def test_a_task_that_left_running_gets_its_grace_and_no_more(sweeper, table, clock, launches):
    (launch, *_) = launches
    run.set_task(launch.token, state="up_for_retry")
    sweep(sweeper, table, clock)
    assert table.get(launch.token).left_at is not None
    noticed_at = table.get(launch.token).left_at
    clock.now = noticed_at + GRACE - 0.1
    # Whatever page is read: it is another one, and the launch is not looked at.
    assert launch.token not in sweep(sweeper, table, clock).looked_at
    clock.now = noticed_at + GRACE
    assert launch.token in sweep(sweeper, table, clock).looked_at
    ended = run.launch_of(launch.token)
    assert ended.state is LaunchState.SUCCEEDED
    assert "up_for_retry" in ended.end_reason


def test_a_task_that_runs_again_has_not_left(sweeper, table, clock, launches):
    (launch, *_) = launches
    run.set_task(launch.token, state="up_for_retry")
    sweep(sweeper, table, clock)
    run.set_task(launch.token, state="running")
    clock.now += GRACE
    sweep(sweeper, table, clock)
    assert run.launch_of(launch.token).state is LaunchState.CLAIMED
    assert table.get(launch.token).left_at is None


def test_what_was_not_committed_is_done_again(sweeper, table, clock, launches):
    write(launches[0].token, scheduler_job_id="2")
    sweeper.ask([launches[0].token])
    for _ in range(2):
        with create_session(scoped=False) as session:
            swept = sweeper.sweep(session.connection(), table, utcnow())
            session.rollback()
        assert [one.token for one in swept.page.standings] == [one.token for one in launches[1:4]]
        assert swept.forget == {launches[0].token}
    assert sweep(sweeper, table, clock).forget == {launches[0].token}
    assert sweep(sweeper, table, clock).page.standings[0].token == launches[4].token


def test_a_tour_that_is_asked_for_follows_the_one_that_is_underway(sweeper, table, clock):
    sweep(sweeper, table, clock)
    sweeper.soon()
    clock.now -= tour.LONGEST_INTERVAL
    for _ in range(PAGES - 1):
        assert sweep(sweeper, table, clock).page is not None
    clock.now -= tour.LONGEST_INTERVAL
    swept = sweep(sweeper, table, clock)
    assert swept.page is not None, "another one begins at once"


def test_what_the_dead_left_is_found_beside_what_the_living_have(db_session, sweeper, clock):
    """Whatever the order in which the database has the job ids of the living."""
    living = [str(make_scheduler_job(db_session).id) for _ in range(3)]
    owners = ["0", *living, f"{living[0]}0", f"{living[1]}-left", "z", "Z"]
    for number, owner in enumerate(owners):
        ti = make_task_instance(
            db_session, map_index=number, state="running", external_executor_id=token(number)
        )
        add_launch_of(db_session, ti, state=LaunchState.CLAIMED, claimant="x", scheduler_job_id=owner)
    db_session.commit()
    with create_session(scoped=False) as session:
        taken = store.take_over_orphans(session.connection(), owner=living[1])
    assert taken == {token(number) for number, owner in enumerate(owners) if owner not in living}


def test_launches_that_were_adopted_are_taken_up_in_the_next_heartbeat(monkeypatch):
    """However many others are in flight, and wherever the tour is."""
    executor, dead = run.started_executor(), run.started_executor()
    for number in range(PAGE + 2):
        run.queue_task(executor, task_id=f"own-{number}")
    adopted = run.queue_task(dead, task_id="adopted")
    run.loop(executor)
    with create_session(scoped=False) as session:
        session.execute(
            update(LaunchRow).where(LaunchRow.token == adopted).values(scheduler_job_id=str(executor.job_id))
        )
    assert not any(flight.token == adopted for flight in executor.dispatcher.in_flight())
    monkeypatch.setattr(tour.Tour, "page", lambda *_: None)
    executor.dispatcher.adopt_soon({adopted})
    run.loop(executor)
    assert any(flight.token == adopted for flight in executor.dispatcher.in_flight())
