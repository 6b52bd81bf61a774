# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import logging
import uuid

import pytest
from airflow.providers.celery.executors.celery_executor_utils import create_celery_app
from celery import states
from celery.exceptions import TaskRevokedError

from dispatcher.backends.base import Observation
from dispatcher.backends.celery import results as results_module
from dispatcher.backends.celery.app import create_app
from dispatcher.backends.celery.results import Results, observation
from dispatcher.domain.worker_claimant import process_of_worker
from tests.support.celery_backend import make_conf
from workers.celery_request import ProcessLostError
from workers.outcomes import ExecutionFailedError, ExpiredWorkloadError

BROKER = "redis://broker.example:6379/0"
LOGGER = "dispatcher.backends.celery.results"
TOKEN = "token"


class Stored:
    """A result back end as a worker writes to it and as the dispatcher reads it."""

    def __init__(self, url: str) -> None:
        conf = make_conf(BROKER, url)
        self.backend = create_celery_app(conf).backend
        self.results = Results(create_app(conf, 5.0)[1])

    def store(self, result: object, state: str = states.SUCCESS, request: object = None) -> str:
        token = str(uuid.uuid4())
        self.backend.store_result(token, result, state, request=request)
        return token

    def spoil(self, token: str) -> None:
        """Make the stored result of a token one that cannot be decoded."""
        if not hasattr(self.backend, "ResultSession"):
            self.backend.set(self.backend.get_key_for_task(token), b"{")
            return
        from sqlalchemy import text

        with self.backend.ResultSession() as session, session.begin():
            statement = text("UPDATE celery_taskmeta SET result = :bad WHERE task_id = :token")
            session.execute(statement, {"bad": b"no pickle", "token": token})


@pytest.fixture(params=["cache", "database"])
def stored(request, tmp_path):
    url = "cache+memory://" if request.param == "cache" else f"db+sqlite:///{tmp_path / 'results.db'}"
    return Stored(url)


def by_token(observations):
    return {one.token: one for one in observations}


def test_each_ended_token_is_told_and_no_other(stored):
    good = stored.store(None)
    bad = stored.store(ValueError("the body failed", 7), states.FAILURE)
    revoked = stored.store(RuntimeError("terminated"), states.REVOKED)
    started = stored.store({"pid": 1}, states.STARTED)
    foreign = stored.store(None)

    told = stored.results.read([good, bad, revoked, started, "never-stored"])

    assert foreign not in by_token(told)
    assert by_token(told) == {
        good: Observation(good, ok=True, anonymous=True),
        bad: Observation(bad, ok=False, reason="ValueError: the body failed, 7", anonymous=True),
        revoked: Observation(revoked, ok=False, reason="revoked"),
    }


def test_nothing_is_asked_for_nothing(stored):
    assert stored.results.read([]) == []
    stored.results.forget([])


def test_a_claimant_in_the_result_is_told(stored):
    token = stored.store({"claimant": "3f2a"})

    assert by_token(stored.results.read([token]))[token].claimant == "nonce:3f2a"


def test_a_result_that_cannot_be_decoded_is_left_out_and_named_once(stored, caplog):
    good, bad = stored.store(None), stored.store(None)
    stored.spoil(bad)
    caplog.set_level(logging.WARNING, LOGGER)

    for _ in range(3):
        assert by_token(stored.results.read([good, bad])).keys() == {good}

    (record,) = caplog.records
    assert record.message.startswith(f"The stored result of {bad} cannot be read: ")


def test_results_are_forgotten_and_others_kept(stored):
    first, second, kept = (stored.store(None) for _ in range(3))

    stored.results.forget([first, second, "never-stored"])
    stored.results.forget([first])

    assert by_token(stored.results.read([first, second, kept])).keys() == {kept}


def test_many_are_read_and_forgotten_in_portions(stored, monkeypatch):
    monkeypatch.setattr(results_module, "CHUNK", 2)
    tokens = [stored.store(None) for _ in range(5)]

    assert by_token(stored.results.read(tokens)).keys() == set(tokens)
    stored.results.forget(tokens)
    assert stored.results.read(tokens) == []


def test_the_worker_is_told_where_results_are_extended(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW__CELERY__EXTRA_CELERY_CONFIG", '{"result_extended": true}')
    stored = Stored(f"db+sqlite:///{tmp_path / 'results.db'}")

    class Request:
        hostname = "celery@worker-1"
        delivery_info = None

    token = stored.store(None, request=Request())

    assert by_token(stored.results.read([token]))[token].hostname == "celery@worker-1"


@pytest.mark.parametrize("state", [states.PENDING, states.STARTED, states.RETRY, states.RECEIVED, "whatever"])
def test_other_states_are_no_evidence(state):
    assert observation(TOKEN, {"status": state, "result": None}) is None


@pytest.mark.parametrize(
    "result", [None, "text", 7, [1], {"claimant": None}, {"claimant": 7}, {"other": "x"}]
)
def test_any_other_result_of_a_success_names_no_claimant(result):
    told = observation(TOKEN, {"status": states.SUCCESS, "result": result})

    assert told == Observation(TOKEN, ok=True, anonymous=True)


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ({"exc_type": "ValueError", "exc_message": ["a", 1], "exc_module": "builtins"}, "ValueError: a, 1"),
        ({"exc_type": "ValueError", "exc_message": "a"}, "ValueError: a"),
        ({"exc_type": "WorkerLostError", "exc_message": ["first\nsecond"]}, "WorkerLostError: first"),
        (ValueError("pickled"), "ValueError: pickled"),
        (None, "failed: None"),
        ("text", "failed: text"),
    ],
)
def test_a_failure_has_a_reason_of_one_line(result, reason):
    told = observation(TOKEN, {"status": states.FAILURE, "result": result})

    assert told == Observation(TOKEN, ok=False, reason=reason, anonymous=True)


def stored_error(stored, error, state=states.FAILURE):
    token = stored.store(error, state)
    (told,) = stored.results.read([token])
    return told


def test_an_error_of_an_execution_names_it(stored):
    told = stored_error(stored, ExecutionFailedError("RuntimeError: no\nmore", "w.12/start"))

    assert (told.reason, told.claimant) == ("RuntimeError: no", "nonce:w.12/start")
    assert not told.anonymous
    assert not told.by_infrastructure


def test_a_process_that_was_lost_is_named(stored):
    """It is in the nonce of every delivery that this process ran, and of no other."""
    told = stored_error(stored, ProcessLostError("signal 9 (SIGKILL)", process_of_worker("w", 12)))

    assert told.reason == "signal 9 (SIGKILL)"
    assert "nonce:w.12/start".startswith(told.claimant)
    assert not "nonce:w.1/start".startswith(told.claimant)
    assert not "nonce:w.123/start".startswith(told.claimant)
    assert told.by_infrastructure


def test_fault_108_a_workload_that_waited_for_too_long_may_be_launched_again(stored):
    told = stored_error(stored, ExpiredWorkloadError("launch 1 waited for too long"))

    assert told.by_infrastructure
    assert told.anonymous


@pytest.mark.parametrize("name", ["ExecutionFailedError", "ProcessLostError"])
@pytest.mark.parametrize("message", ["text", ["text"], ["text", "nonce", "more"], None])
def test_an_error_of_such_a_name_that_is_not_ours_names_nobody(name, message):
    told = observation(
        TOKEN, {"status": states.FAILURE, "result": {"exc_type": name, "exc_message": message}}
    )

    assert told.claimant is None
    assert told.anonymous


@pytest.mark.parametrize(("why", "anonymous"), [("terminated", False), ("revoked", True), ("expired", True)])
def test_what_is_dropped_unbegun_may_be_another_delivery(stored, why, anonymous):
    told = stored_error(stored, TaskRevokedError(why), states.REVOKED)

    assert (told.ok, told.anonymous) == (False, anonymous)


def test_no_class_that_a_result_names_is_made(stored):
    result = {"exc_type": "Popen", "exc_message": ["true"], "exc_module": "subprocess"}
    token = stored.store(result, states.FAILURE)

    assert by_token(stored.results.read([token]))[token].reason == "Popen: true"
