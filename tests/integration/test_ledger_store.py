# SPDX-License-Identifier: Apache-2.0
"""The ledger's statements, on the metadata database of this run."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import event as sqlalchemy_event

from dispatcher.domain.lifecycle import (
    ENDED,
    OPEN,
    TRANSITIONS,
    UNCLAIMED,
    BackendName,
    LaunchEvent,
    LaunchKind,
    LaunchState,
    sources,
    target,
)
from dispatcher.ledger import claims, rows, store, submitting
from tests.support.launches import OWNER, add_launch, add_launch_of, build_launch
from tests.support.rows import make_callback, make_task_instance, utcnow

pytestmark = pytest.mark.usefixtures("airflow_db")

CLAIMANT = "nonce:one"
TASK, CALLBACK = LaunchKind.TASK, LaunchKind.CALLBACK
TIMES = {LaunchState.SUBMITTED: "submitted_at", LaunchState.CLAIMED: "claimed_at"}
TASK_STATES_THAT_CANNOT_START = [
    None, "scheduled", "running", "restarting", "deferred", "up_for_retry", "up_for_reschedule",
    "success", "failed", "skipped", "upstream_failed", "removed",
]  # fmt: skip


@pytest.fixture
def connection(db_session):
    return db_session.connection()


def _state(connection, token):
    return store.by_token(connection, token).state


def _callback_launch(session, callback, **columns):
    return add_launch(session, kind=CALLBACK, subject_id=str(callback.id), **columns)


class TestIssue:
    def test_sends_nothing_before_the_flush(self, db_session):
        """Rule 1."""
        sent = []
        bind = db_session.get_bind()
        sqlalchemy_event.listen(bind, "before_cursor_execute", lambda *args: sent.append(args[2]))
        with db_session.no_autoflush:
            store.issue(db_session, build_launch())
        assert sent == []
        db_session.flush()
        assert len(sent) == 1

    def test_every_field_is_read_as_written(self, db_session, connection):
        launch = build_launch(
            kind=CALLBACK,
            backend=BackendName.KUBERNETES,
            state=LaunchState.FAILED,
            map_index=3,
            region_id="region",
            external_id="namespace/pod",
            claimant=CLAIMANT,
            hostname="host",
            submitted_at=utcnow(),
            claimed_at=utcnow(),
            ended_at=utcnow(),
            settled_at=utcnow(),
            end_reason="because",
            team_name="team",
        )
        store.issue(db_session, launch)
        db_session.flush()
        found = store.by_token(connection, launch.token)
        assert found.sequence > 0
        for field in set(launch._fields) - {"sequence"}:
            assert getattr(found, field) == getattr(launch, field), field

    def test_the_sequence_follows_the_order_of_issue(self, db_session):
        sequences = [
            add_launch(db_session, issued_at=utcnow() - timedelta(days=n)).sequence for n in range(3)
        ]
        assert sequences == sorted(set(sequences))

    def test_a_token_is_issued_once(self, db_session):
        from sqlalchemy.exc import IntegrityError

        launch = add_launch(db_session)
        store.issue(db_session, build_launch(token=launch.token))
        with pytest.raises(IntegrityError):
            db_session.flush()


class TestReading:
    @pytest.mark.parametrize("lock", [False, True])
    def test_by_tokens_leaves_out_unknown_ones(self, db_session, connection, lock):
        one, two = add_launch(db_session), add_launch(db_session)
        found = store.by_tokens(connection, [one.token, two.token, "unknown"], lock=lock)
        assert found == {one.token: one, two.token: two}

    def test_by_token_of_an_unknown_one(self, connection):
        assert store.by_token(connection, "unknown") is None

    def test_no_tokens_no_statement(self, connection):
        assert store.by_tokens(connection, []) == {}

    def test_more_tokens_than_one_statement_takes(self, db_session, connection):
        launches = [build_launch() for _ in range(2 * rows.CHUNK + 1)]
        for launch in launches:
            store.issue(db_session, launch)
        db_session.flush()
        tokens = {launch.token for launch in launches}
        assert store.by_tokens(connection, tokens).keys() == tokens
        assert store.record(connection, LaunchEvent.SUBMIT, tokens, now=utcnow()) == tokens
        assert store.record(connection, LaunchEvent.DROP, tokens, now=utcnow()) == tokens
        assert store.settle(connection, tokens, owner=OWNER, now=utcnow()) == tokens

    def test_open_and_unsettled_of_an_owner(self, db_session, connection):
        by_state = {state: add_launch(db_session, state=state) for state in LaunchState}
        for state in LaunchState:
            add_launch(db_session, state=state, settled_at=utcnow() if state in ENDED else None, claimant="x")
            add_launch(db_session, state=state, scheduler_job_id="2")
        own_open = [launch.token for launch in store.open_of_owner(connection, OWNER)]
        assert len(own_open) == 2 * len(OPEN)
        assert {by_state[state].token for state in OPEN} <= set(own_open)
        unsettled = store.unsettled_of_owner(connection, OWNER)
        assert {launch.token for launch in unsettled} == {by_state[state].token for state in ENDED}
        assert [launch.sequence for launch in unsettled] == sorted(launch.sequence for launch in unsettled)

    def test_recent_launches_newest_first(self, db_session, connection):
        launches = [add_launch(db_session) for _ in range(3)]
        assert [found.token for found in store.recent(connection, limit=2)] == [
            launches[2].token,
            launches[1].token,
        ]

    @pytest.mark.parametrize(
        "selection",
        [
            {"states": {LaunchState.LOST}},
            {"kind": CALLBACK},
            {"backend": BackendName.KUBERNETES},
            {"dag_id": "other"},
            {"task_id": "other"},
            {"run_id": "other"},
        ],
        ids=lambda selection: next(iter(selection)),
    )
    def test_recent_launches_by_one_criterion(self, db_session, connection, selection):
        add_launch(db_session)
        columns = {"state": LaunchState.LOST} if "states" in selection else selection
        wanted = add_launch(db_session, **columns)
        assert store.recent(connection, limit=9, selection=store.Selection(**selection)) == [wanted]

    def test_an_empty_set_of_states_selects_nothing(self, db_session, connection):
        add_launch(db_session)
        assert store.recent(connection, limit=9, selection=store.Selection(states=())) == []


class TestRecord:
    @pytest.mark.parametrize("kind", LaunchKind)
    @pytest.mark.parametrize("state", LaunchState)
    @pytest.mark.parametrize("event", TRANSITIONS)
    def test_hits_exactly_where_the_transitions_table_allows(
        self, db_session, connection, event, state, kind
    ):
        launch = add_launch(db_session, kind=kind, state=state)
        now = utcnow()
        hit = store.record(connection, event, [launch.token], now=now, kind=kind, reason="why")
        found = store.by_token(connection, launch.token)
        if state not in sources(event, kind):
            assert hit == frozenset()
            assert found == launch
            return
        assert hit == {launch.token}
        assert found.state is target(event)
        assert getattr(found, TIMES.get(found.state, "ended_at")) == now
        assert found.end_reason == "why"
        assert found.settled_at is None

    def test_hits_the_allowed_part_of_a_batch(self, db_session, connection):
        by_state = {state: add_launch(db_session, state=state).token for state in LaunchState}
        hit = store.record(connection, LaunchEvent.DROP, [*by_state.values(), "unknown"], now=utcnow())
        assert hit == {by_state[state] for state in UNCLAIMED}
        assert _state(connection, by_state[LaunchState.CLAIMED]) is LaunchState.CLAIMED

    def test_no_tokens_no_hits(self, connection):
        assert store.record(connection, LaunchEvent.DROP, [], now=utcnow()) == frozenset()

    @pytest.mark.parametrize("batch", [1, 2])
    def test_misses_the_launches_of_another_owner(self, db_session, connection, batch):
        mine = [add_launch(db_session).token for _ in range(batch)]
        other = add_launch(db_session, scheduler_job_id="2").token
        nobodys = add_launch(db_session, scheduler_job_id=None).token
        hit = store.record(connection, LaunchEvent.SUBMIT, [*mine, other, nobodys], now=utcnow(), owner=OWNER)
        assert hit == set(mine)
        assert _state(connection, other) is LaunchState.ISSUED

    def test_writes_further_columns_and_keeps_a_reason_that_is_not_given(self, db_session, connection):
        launch = add_launch(db_session, end_reason="before")
        store.record(
            connection, LaunchEvent.SUBMIT, [launch.token], now=utcnow(), values={"external_id": "pod"}
        )
        found = store.by_token(connection, launch.token)
        assert (found.external_id, found.end_reason) == ("pod", "before")

    @pytest.mark.parametrize("state", ["queued", *TASK_STATES_THAT_CANNOT_START])
    @pytest.mark.parametrize("current", [True, False])
    def test_submits_only_what_is_queued_under_its_token(self, db_session, connection, state, current):
        """Rule 4."""
        instance = make_task_instance(db_session, state=state)
        launch = add_launch_of(db_session, instance)
        if not current:
            instance.external_executor_id = str(uuid4())
            db_session.flush()
        hit = store.record(
            connection,
            LaunchEvent.SUBMIT,
            [launch.token],
            now=utcnow(),
            owner=OWNER,
            where=[store.queued_under_this_token()],
        )
        assert bool(hit) == (state == "queued" and current)

    def test_finds_the_task_at_its_place_when_its_uuid_changed(self, db_session, connection):
        instance = make_task_instance(db_session)
        launch = add_launch_of(db_session, instance, subject_id=str(uuid4()))
        where = [store.queued_under_this_token()]
        hit = store.record(connection, LaunchEvent.SUBMIT, [launch.token], now=utcnow(), where=where)
        assert hit == {launch.token}


class TestClaimTask:
    """Rule 7."""

    def _claim(self, connection, launch, claimant=CLAIMANT, **changes):
        given = {"token": launch.token, "subject_id": launch.subject_id} | changes
        return claims.claim_task(connection, claimant=claimant, hostname="host", now=utcnow(), **given)

    @pytest.mark.parametrize("state", LaunchState)
    def test_claims_an_unclaimed_launch_of_a_queued_task(self, db_session, connection, state):
        launch = add_launch_of(db_session, make_task_instance(db_session), state=state)
        assert self._claim(connection, launch) == (state in UNCLAIMED)
        found = store.by_token(connection, launch.token)
        if state in UNCLAIMED:
            assert (found.state, found.claimant, found.hostname) == (LaunchState.CLAIMED, CLAIMANT, "host")
            assert found.claimed_at is not None
        else:
            assert found == launch

    @pytest.mark.parametrize("state", TASK_STATES_THAT_CANNOT_START)
    def test_misses_when_the_task_is_not_queued(self, db_session, connection, state):
        launch = add_launch_of(db_session, make_task_instance(db_session, state=state))
        assert not self._claim(connection, launch)
        assert _state(connection, launch.token) is LaunchState.ISSUED

    @pytest.mark.parametrize("token", [None, str(uuid4())], ids=["none", "another"])
    def test_misses_when_the_task_carries_another_token(self, db_session, connection, token):
        instance = make_task_instance(db_session)
        launch = add_launch_of(db_session, instance)
        instance.external_executor_id = token
        db_session.flush()
        assert not self._claim(connection, launch)

    def test_misses_for_another_subject(self, db_session, connection):
        launch = add_launch_of(db_session, make_task_instance(db_session))
        other = make_task_instance(db_session, task_id="other", token=None)
        assert not self._claim(connection, launch, subject_id=str(other.id))

    def test_misses_an_unknown_token(self, db_session, connection):
        instance = make_task_instance(db_session)
        launch = add_launch_of(db_session, instance)
        assert not self._claim(connection, launch, token=str(uuid4()))

    def test_only_the_first_claimant_wins(self, db_session, connection):
        launch = add_launch_of(db_session, make_task_instance(db_session))
        assert self._claim(connection, launch)
        assert not self._claim(connection, launch, claimant="nonce:two")
        assert store.by_token(connection, launch.token).claimant == CLAIMANT


class TestClaimCallback:
    """Rule 19."""

    def _claim(self, connection, launch, claimant=CLAIMANT, **changes):
        given = {"token": launch.token, "subject_id": launch.subject_id} | changes
        return claims.claim_callback(connection, claimant=claimant, hostname="host", now=utcnow(), **given)

    @pytest.mark.parametrize("state", LaunchState)
    def test_claims_an_unclaimed_launch(self, db_session, connection, state):
        launch = _callback_launch(db_session, make_callback(db_session), state=state)
        assert self._claim(connection, launch) == (state in UNCLAIMED)

    @pytest.mark.parametrize("state", [LaunchState.CLAIMED, *sorted(ENDED)])
    def test_misses_when_another_launch_of_it_was_ever_claimed(self, db_session, connection, state):
        callback = make_callback(db_session)
        _callback_launch(db_session, callback, state=state, claimant="nonce:other")
        newer = _callback_launch(db_session, callback)
        assert not self._claim(connection, newer)
        assert _state(connection, newer.token) is LaunchState.ISSUED

    def test_other_callbacks_do_not_matter(self, db_session, connection):
        _callback_launch(db_session, make_callback(db_session), state=LaunchState.CLAIMED, claimant="nonce:x")
        launch = _callback_launch(db_session, make_callback(db_session))
        assert self._claim(connection, launch)

    def test_an_unclaimed_older_launch_does_not_matter(self, db_session, connection):
        callback = make_callback(db_session)
        _callback_launch(db_session, callback, state=LaunchState.LOST)
        assert self._claim(connection, _callback_launch(db_session, callback))

    def test_only_the_first_claimant_wins(self, db_session, connection):
        launch = _callback_launch(db_session, make_callback(db_session))
        assert self._claim(connection, launch)
        assert not self._claim(connection, launch, claimant="nonce:two")

    def test_misses_for_another_subject(self, db_session, connection):
        launch = _callback_launch(db_session, make_callback(db_session))
        assert not self._claim(connection, launch, subject_id=str(uuid4()))

    def test_tells_which_launches_were_ever_claimed(self, db_session, connection):
        callback = make_callback(db_session)
        claimed = _callback_launch(db_session, callback, state=LaunchState.FAILED, claimant="nonce:x")
        _callback_launch(db_session, callback)
        subject_id = str(callback.id)
        assert store.callback_claimed_elsewhere(connection, [subject_id, str(uuid4())]) == {
            subject_id: {claimed.token}
        }


class TestOlderOpen:
    """Rule 3."""

    def _older(self, connection, *newer):
        return [
            launch.token for launch in submitting.older_open(connection, [launch.token for launch in newer])
        ]

    @pytest.mark.parametrize("state", LaunchState)
    def test_finds_the_open_ones(self, db_session, connection, state):
        older = add_launch(db_session, state=state)
        newer = add_launch(db_session)
        assert self._older(connection, newer) == ([older.token] if state in OPEN else [])

    @pytest.mark.parametrize(
        "other",
        [{"dag_id": "x"}, {"run_id": "x"}, {"task_id": "x"}, {"map_index": 0}, {"kind": CALLBACK}],
        ids=lambda other: next(iter(other)),
    )
    def test_leaves_out_other_tasks_and_callbacks(self, db_session, connection, other):
        add_launch(db_session, **other)
        assert self._older(connection, add_launch(db_session)) == []

    def test_a_callback_makes_nothing_old(self, db_session, connection):
        add_launch(db_session)
        assert self._older(connection, add_launch(db_session, kind=CALLBACK)) == []

    def test_leaves_out_newer_ones_and_itself(self, db_session, connection):
        middle = add_launch(db_session)
        add_launch(db_session)
        assert self._older(connection, middle) == []

    def test_finds_each_once(self, db_session, connection):
        first, second, third = (add_launch(db_session) for _ in range(3))
        assert self._older(connection, second, third) == sorted([first.token, second.token])

    def test_finds_launches_of_another_owner(self, db_session, connection):
        older = add_launch(db_session, scheduler_job_id="2")
        assert self._older(connection, add_launch(db_session)) == [older.token]


class TestTakeOver:
    """Rule 18."""

    @pytest.mark.parametrize("state", LaunchState)
    def test_takes_open_launches_of_a_dead_owner(self, db_session, connection, state):
        launch = add_launch(db_session, state=state)
        hit = store.take_over(connection, [launch.token], owner="2", dead=[OWNER, None])
        assert bool(hit) == (state in OPEN)
        owner = store.by_token(connection, launch.token).scheduler_job_id
        assert owner == ("2" if state in OPEN else OWNER)

    def test_misses_launches_of_a_live_owner(self, db_session, connection):
        launch = add_launch(db_session, scheduler_job_id="3")
        assert store.take_over(connection, [launch.token], owner="2", dead=[OWNER]) == frozenset()

    def test_only_one_of_two_heirs_gets_it(self, db_session, connection):
        launch = add_launch(db_session)
        assert store.take_over(connection, [launch.token], owner="2", dead=[OWNER])
        assert not store.take_over(connection, [launch.token], owner="3", dead=[OWNER])

    def test_nobody_is_dead(self, db_session, connection):
        launch = add_launch(db_session)
        assert store.take_over(connection, [launch.token], owner="2", dead=[]) == frozenset()


class TestSettling:
    """Rule 14."""

    @pytest.mark.parametrize("state", LaunchState)
    def test_settles_ended_launches_once(self, db_session, connection, state):
        launch = add_launch(db_session, state=state)
        first = utcnow()
        assert not store.settle(connection, [launch.token], owner="2", now=first)
        assert bool(store.settle(connection, [launch.token], owner=OWNER, now=first)) == (state in ENDED)
        later = first + timedelta(seconds=1)
        assert not store.settle(connection, [launch.token], owner=OWNER, now=later)
        assert store.by_token(connection, launch.token).settled_at == (first if state in ENDED else None)

    def test_external_ids_are_noted_in_any_state(self, db_session, connection):
        launches = [add_launch(db_session, state=state) for state in LaunchState]
        store.note_external_ids(connection, {launch.token: f"id of {launch.token}" for launch in launches})
        for launch in launches:
            assert store.by_token(connection, launch.token).external_id == f"id of {launch.token}"
            assert _state(connection, launch.token) is launch.state


class TestTwoTransactions:
    """What another transaction commits between our read and our write can only make the write miss."""

    @pytest.fixture
    def other(self):
        from airflow import settings

        with settings.get_engine().connect() as connection:
            yield connection

    def _before_the_update(self, connection, meanwhile):
        """Call ``meanwhile`` once, just before ``connection`` sends its first UPDATE."""
        pending = [meanwhile]

        def listener(_connection, _cursor, statement, *_):
            if statement.startswith("UPDATE") and pending:
                pending.pop()()

        sqlalchemy_event.listen(connection, "before_cursor_execute", listener)
        return pending

    def test_a_task_queued_anew_is_not_claimed_under_its_old_token(self, db_session, other):
        """Rule 7."""
        instance = make_task_instance(db_session)
        launch = add_launch_of(db_session, instance)
        db_session.commit()

        def queue_anew():
            instance.external_executor_id = str(uuid4())
            db_session.commit()

        pending = self._before_the_update(other, queue_anew)
        claimed = claims.claim_task(
            other, launch.token, launch.subject_id, CLAIMANT, hostname=None, now=utcnow()
        )
        assert not pending
        assert not claimed

    def test_two_launches_of_a_callback_are_not_both_claimed(self, db_session, other):
        """Rule 19, where the database has no row locks."""
        callback = make_callback(db_session)
        first, second = _callback_launch(db_session, callback), _callback_launch(db_session, callback)
        db_session.commit()

        def claim_first():
            assert claims.claim_callback(
                db_session.connection(), first.token, first.subject_id, "nonce:1", hostname=None, now=utcnow()
            )
            db_session.commit()

        pending = self._before_the_update(other, claim_first)
        claimed = claims.claim_callback(
            other, second.token, second.subject_id, "nonce:2", hostname=None, now=utcnow()
        )
        assert not pending
        assert not claimed

    @pytest.mark.needs("postgres")
    def test_batches_lock_in_the_order_of_their_tokens(self, db_session, other, airflow_database):
        """One holds the first row; the other waits for it and holds none of the later ones meanwhile."""
        if airflow_database != "postgres":
            pytest.skip("row locks need PostgreSQL as the metadata database")
        tokens = sorted(str(uuid4()) for _ in range(3))
        for token in reversed(tokens):
            add_launch(db_session, token=token)
        db_session.commit()
        backend = other.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        other.rollback()
        holder = db_session.connection()
        store.record(holder, LaunchEvent.SUBMIT, tokens[:1], now=utcnow())

        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(store.record, other, LaunchEvent.DROP, tokens[::-1], now=utcnow())
            _wait_for_a_lock(holder, backend)
            holder.exec_driver_sql("SET LOCAL lock_timeout = '2s'")
            assert store.record(holder, LaunchEvent.CLAIM, tokens, now=utcnow()) == set(tokens)
            db_session.commit()
            assert waiting.result(timeout=10) == frozenset()
        other.rollback()


def _wait_for_a_lock(connection, backend, seconds=10.0):
    """Wait until the server process ``backend`` waits for a row lock."""
    deadline = time.monotonic() + seconds
    query = f"SELECT wait_event_type FROM pg_stat_activity WHERE pid = {int(backend)}"
    while connection.exec_driver_sql(query).scalar_one() != "Lock":
        # The view is a snapshot, taken once per transaction unless it is thrown away.
        connection.exec_driver_sql("SELECT pg_stat_clear_snapshot()")
        assert time.monotonic() < deadline, "nobody waits for the lock"
        time.sleep(0.02)
