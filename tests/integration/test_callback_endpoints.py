# SPDX-License-Identifier: Apache-2.0
"""The callback endpoints: claim, result, and who may call them (rule 19)."""

from __future__ import annotations

import jwt
import pytest
from airflow.configuration import conf

from dispatcher.domain.lifecycle import LaunchState
from tests.support.callback_calls import callback_row, callback_worker, queued_callback_launch
from tests.support.fence_calls import assert_refused, launch_row, reason
from tests.support.rows import make_callback
from tests.support.tokens import bearer, sign_token

REFRESHED = "Refreshed-API-Token"
OTHER = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
def launch(db_session):
    return queued_callback_launch(db_session)


@pytest.fixture
def worker(execution_client, launch):
    return callback_worker(execution_client, launch)


class TestClaim:
    def test_it_sets_the_callback_running(self, db_session, worker, launch):
        answer = worker.run()

        assert (answer.status_code, answer.content) == (204, b"")
        assert callback_row(db_session, launch.subject_id).state == "running"
        row = launch_row(db_session, launch.token)
        assert (row.state, row.hostname) == (LaunchState.CLAIMED, "worker")
        assert row.claimant == f"nonce:{worker.claimant}"
        assert row.claimed_at is not None

    def test_the_answer_carries_an_execution_token(self, worker, launch):
        claims = jwt.decode(worker.run().headers[REFRESHED], options={"verify_signature": False})

        assert claims["sub"] == launch.subject_id
        assert (claims["scope"], claims["launch_token"]) == ("execution", launch.token)
        assert claims["exp"] - claims["iat"] == conf.getint("execution_api", "jwt_expiration_time")

    def test_the_token_opens_the_execution_api(self, execution_client, worker):
        """A12: a callback may use variables and connections."""
        token = worker.run().headers[REFRESHED]

        answer = execution_client.get("/execution/variables/absent", headers=bearer(token))

        assert answer.status_code == 404, answer.text

    def test_the_same_claimant_again(self, db_session, worker, launch):
        worker.run()
        before = launch_row(db_session, launch.token)

        answer = worker.run()

        assert answer.status_code == 204
        assert REFRESHED in answer.headers
        assert launch_row(db_session, launch.token) == before

    def test_another_claimant(self, worker):
        """A8: the message is delivered twice, or the pod is made twice."""
        worker.run()

        answer = worker.but(claimant="other").run()

        assert_refused(answer, "launch_consumed")
        assert REFRESHED not in answer.headers

    def test_the_token_may_come_by_either_way(self, worker):
        assert worker.but(header=None).run().status_code == 204
        assert worker.but(claim=None).run().status_code == 204

    def test_without_a_nonce_the_process_is_the_claimant(self, db_session, worker, launch):
        worker = worker.but(claimant=None)
        assert worker.run().status_code == 204

        assert launch_row(db_session, launch.token).claimant == "process:worker||7"
        assert worker.run().status_code == 204
        assert_refused(worker.run(pid=8), "launch_consumed")
        assert worker.report().status_code == 204

    @pytest.mark.parametrize("state", ["success", "failed"])
    def test_a_finished_callback(self, db_session, worker, launch, state):
        callback_row(db_session, launch.subject_id).state = state
        db_session.commit()

        assert_refused(worker.run(), "launch_revoked")
        assert launch_row(db_session, launch.token) == launch

    @pytest.mark.parametrize("state", ["superseded", "revoked", "dropped", "lost"])
    def test_an_ended_launch(self, db_session, execution_client, state):
        launch = queued_callback_launch(db_session, state=LaunchState(state))

        expected = "launch_revoked" if state == "revoked" else "launch_superseded"
        assert_refused(callback_worker(execution_client, launch).run(), expected)
        assert callback_row(db_session, launch.subject_id).state == "queued"

    def test_a_token_of_another_callback(self, db_session, worker):
        other = queued_callback_launch(db_session)

        assert_refused(worker.but(header=other.token, claim=None).run(), "launch_superseded")
        assert launch_row(db_session, other.token) == other

    def test_a_token_that_nobody_issued(self, worker):
        assert_refused(worker.but(header=OTHER, claim=None).run(), "launch_superseded")


class TestTwoLaunchesOfOneCallback:
    """A7: two schedulers queue the same row. The body runs once."""

    @pytest.fixture
    def launches(self, db_session):
        callback = make_callback(db_session, state="queued")
        return [queued_callback_launch(db_session, callback) for _ in range(2)]

    def test_the_second_claim_is_refused(self, db_session, execution_client, launches):
        first, second = (callback_worker(execution_client, launch) for launch in launches)
        assert second.run().status_code == 204

        assert_refused(first.run(), "launch_consumed")
        assert_refused(first.report(), "launch_consumed")
        assert launch_row(db_session, launches[0].token) == launches[0]

    def test_it_stays_refused_when_the_other_has_ended(self, db_session, execution_client, launches):
        first, second = (callback_worker(execution_client, launch) for launch in launches)
        first.run()
        first.report("failed", "boom")
        callback_row(db_session, launches[0].subject_id).state = "queued"
        db_session.commit()

        assert_refused(second.run(), "launch_consumed")

    def test_many_at_once(self, db_session, execution_client):
        """Distinct launches and claimants from eight threads: one claim."""
        from concurrent.futures import ThreadPoolExecutor

        callback = make_callback(db_session, state="queued")
        launches = [queued_callback_launch(db_session, callback) for _ in range(16)]
        workers = [callback_worker(execution_client, launch) for launch in launches]

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda worker: worker.run(), workers))

        assert sorted(answer.status_code for answer in answers) == [204] + [409] * 15
        claimed = [launch for launch in launches if launch_row(db_session, launch.token).was_claimed]
        assert len(claimed) == 1


class TestResult:
    @pytest.mark.parametrize(
        ("state", "output", "ended"),
        [
            ("success", None, LaunchState.SUCCEEDED),
            ("success", "done", LaunchState.SUCCEEDED),
            ("failed", "ValueError: boom", LaunchState.FAILED),
        ],
    )
    def test_it_is_recorded(self, db_session, worker, launch, state, output, ended):
        """A2: the text of the exception is in the callback's output."""
        worker.run()

        answer = worker.report(state, output)

        assert (answer.status_code, answer.content) == (204, b"")
        row = callback_row(db_session, launch.subject_id)
        assert (row.state, row.output) == (state, output)
        recorded = launch_row(db_session, launch.token)
        assert recorded.state is ended
        assert recorded.end_reason == (output if state == "failed" else None)
        assert recorded.ended_at is not None

    def test_a_repeat_changes_nothing(self, db_session, worker, launch):
        worker.run()
        worker.report("success", "done")
        before = launch_row(db_session, launch.token)

        assert worker.report("success", "done").status_code == 204
        assert worker.report("failed", "late").status_code == 204

        assert launch_row(db_session, launch.token) == before
        assert callback_row(db_session, launch.subject_id).state == "success"

    def test_without_a_claim(self, db_session, worker, launch):
        for one in (worker, worker.but(claimant=None)):
            assert_refused(one.report(), "launch_consumed")
        assert launch_row(db_session, launch.token) == launch
        assert callback_row(db_session, launch.subject_id).state == "queued"

    def test_by_another_claimant(self, db_session, worker, launch):
        worker.run()

        assert_refused(worker.but(claimant="other").report("failed"), "launch_consumed")
        assert_refused(worker.but(claimant=None).report("failed"), "launch_consumed")
        assert callback_row(db_session, launch.subject_id).state == "running"

    def test_a_callback_that_the_executor_ended_stays_ended(self, db_session, worker, launch):
        worker.run()
        row = callback_row(db_session, launch.subject_id)
        row.state, row.output = "failed", "the pod is gone"
        db_session.commit()

        assert worker.report("success", "after all").status_code == 204

        row = callback_row(db_session, launch.subject_id)
        assert (row.state, row.output) == ("failed", "the pod is gone")
        assert launch_row(db_session, launch.token).state is LaunchState.SUCCEEDED

    def test_a_launch_that_was_lost_meanwhile(self, db_session, worker, launch):
        from dispatcher.domain.lifecycle import LaunchEvent
        from dispatcher.ledger import store
        from tests.support.rows import utcnow

        worker.run()
        store.record(db_session.connection(), LaunchEvent.LOSE, (launch.token,), now=utcnow())
        db_session.commit()

        assert_refused(worker.report(), "launch_superseded")

    def test_the_end_of_a_long_output_is_kept(self, db_session, worker, launch):
        worker.run()

        assert worker.report("failed", "x" * 200_000 + "the error").status_code == 204

        output = callback_row(db_session, launch.subject_id).output
        assert len(output) == 10_000
        assert output.endswith("the error")

    def test_an_output_with_nul(self, db_session, worker, launch):
        worker.run()

        assert worker.report("failed", "a\x00b").status_code == 204
        assert callback_row(db_session, launch.subject_id).output == "a\ufffdb"


def test_a_callback_may_come_with_a_scope_of_its_own(worker):
    """Airflow 3.4 signs it, and a worker of 3.3 may be given what a scheduler of 3.4 sent."""
    assert worker.but(scope="callback").run().status_code == 204


class TestWhoMayCall:
    """Airflow authenticates nobody for a plugin's application."""

    @pytest.fixture(autouse=True)
    def _nothing_changes(self, db_session, launch):
        yield
        assert callback_row(db_session, launch.subject_id).state == "queued"
        assert launch_row(db_session, launch.token) == launch

    @pytest.mark.parametrize("call", ["run", "report"])
    def test_nobody_without_a_token(self, execution_client, launch, call):
        path = {"run": "run", "report": "state"}[call]
        answer = execution_client.patch(f"/dispatcher/callbacks/{launch.subject_id}/{path}", json={})

        assert answer.status_code == 401

    @pytest.mark.parametrize("call", ["run", "report"])
    def test_no_token_of_another_scope(self, worker, call):
        """An execution token lives as long as it is used; the workload's own ends by itself."""
        assert getattr(worker.but(scope="execution"), call)().status_code == 403
        assert getattr(worker.but(scope="connection_test"), call)().status_code == 403

    @pytest.mark.parametrize("call", ["run", "report"])
    def test_no_token_of_another_subject(self, worker, launch, call):
        other = sign_token(OTHER, launch_token=launch.token)

        assert getattr(worker.but(jwt=other), call)().status_code == 403

    def test_no_claim_with_an_expired_token(self, worker, launch):
        expired = sign_token(launch.subject_id, launch_token=launch.token, valid_for=-60)

        assert worker.but(jwt=expired).run().status_code == 403

    @pytest.mark.parametrize("call", ["run", "report"])
    def test_no_forged_token(self, worker, launch, call):
        claims = jwt.decode(sign_token(launch.subject_id), options={"verify_signature": False})
        forged = jwt.encode(claims, "k" * 64, algorithm="HS512")
        unsigned = jwt.encode(claims, None, algorithm="none")

        for token in (forged, unsigned, "x", "e30.e30.e30"):
            assert getattr(worker.but(jwt=token), call)().status_code == 403

    @pytest.mark.parametrize("call", ["run", "report"])
    def test_no_malformed_launch_token(self, worker, call):
        for change in ({"header": "x"}, {"claim": "x"}, {"header": OTHER}, {"claimant": "x" * 300}):
            assert_refused(getattr(worker.but(**change), call)(), "launch_token_invalid", 400)

    @pytest.mark.parametrize("call", ["run", "report"])
    def test_a_launch_token_is_needed(self, worker, call):
        answer = getattr(worker.but(header=None, claim=None, claimant=None), call)()

        assert_refused(answer, "launch_required")

    @pytest.mark.parametrize("body", [{"hostname": ""}, {"hostname": "h" * 300}, {"pid": None}, {"x": 1}])
    def test_a_malformed_claim(self, worker, body):
        assert worker.run(**body).status_code == 422

    @pytest.mark.parametrize("body", [{"state": "running"}, {"output": 7}, {"x": 1}])
    def test_a_malformed_result(self, worker, body):
        assert worker.report(**body).status_code == 422

    @pytest.mark.parametrize("call", ["run", "report"])
    def test_a_path_that_is_no_uuid(self, worker, call):
        assert getattr(worker.but(callback_id="x"), call)().status_code == 422


@pytest.mark.parametrize("call", ["run", "report"])
def test_an_unknown_callback(execution_client, worker, launch, call):
    """A15; the reason tells it from an API server that has no such endpoint."""
    answer = getattr(worker.but(callback_id=OTHER), call)()

    assert (answer.status_code, reason(answer)) == (404, "not_found")
