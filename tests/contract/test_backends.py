# SPDX-License-Identifier: Apache-2.0
"""The contract of ``dispatcher.backends.base``, held by every implementation."""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from dispatcher.backends.base import Artefact, Postponed, Rejected, Sent, Underway
from dispatcher.domain.lifecycle import BackendName
from dispatcher.domain.workload import WorkloadKind
from tests.support.backend_harness import BackendHarness, MemoryHarness, eventually, make_submission, submit
from tests.support.celery_backend import (
    CeleryHarness,
    CeleryOnPostgresHarness,
    CeleryOnRedisHarness,
    CeleryOnSqliteHarness,
)
from tests.support.kubernetes_harness import (
    EmbeddedKubernetesHarness,
    KubernetesHarness,
    KubernetesSecretHarness,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dispatcher.backends.base import Backend, Observation, Submission

HARNESSES = [
    pytest.param(MemoryHarness, id="memory"),
    pytest.param(EmbeddedKubernetesHarness, id="kubernetes-embedded"),
    pytest.param(KubernetesHarness, id="kubernetes", marks=pytest.mark.needs("kubernetes")),
    pytest.param(KubernetesSecretHarness, id="kubernetes-secret", marks=pytest.mark.needs("kubernetes")),
    pytest.param(CeleryHarness, id="celery"),
    pytest.param(CeleryOnSqliteHarness, id="celery-sqlite"),
    pytest.param(CeleryOnRedisHarness, id="celery-redis", marks=pytest.mark.needs("redis")),
    pytest.param(CeleryOnPostgresHarness, id="celery-postgres", marks=pytest.mark.needs("postgres")),
]


@pytest.fixture(params=HARNESSES)
def harness(request: pytest.FixtureRequest) -> Iterator[BackendHarness]:
    opened = request.param(request)
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def backend(harness: BackendHarness) -> Backend:
    return harness.open()


def send(backend: Backend, *batch: Submission) -> list[Artefact]:
    """Send, expect it to be there, and return the artefacts as the ledger knows them."""
    results = submit(backend, *batch)
    sent = [results[submission.token] for submission in batch]
    assert all(isinstance(result, Sent) for result in sent), sent
    return [
        Artefact(submission.token, submission.kind, result.external_id)
        for submission, result in zip(batch, sent, strict=True)
    ]


def ending(backend: Backend, token: str) -> Observation | None:
    """Return how the artefact ended, if the backend tells so now."""
    told = [observation for observation in backend.observe() if observation.token == token]
    assert len(told) <= 1
    return told[0] if told else None


def await_ending(backend: Backend, token: str) -> Observation:
    return eventually(lambda: ending(backend, token), f"{backend.name} tells the ending of {token}")


@contextmanager
def within(seconds: float) -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds


def test_it_names_itself(backend):
    assert backend.name in BackendName


def test_all_is_well(backend):
    assert backend.problem() is None


def test_an_empty_batch_has_an_empty_answer(backend):
    assert backend.submit([]) == {}


def test_each_token_of_a_batch_is_answered(harness, backend):
    batch = [make_submission(priority=number) for number in range(5)]
    artefacts = send(backend, *batch)
    assert len({artefact.external_id for artefact in artefacts}) == len(batch)
    assert all(harness.count(submission.token) == 1 for submission in batch)


def test_what_became_of_a_send_is_told_once(backend):
    submission = make_submission()
    results = submit(backend, submission)
    assert isinstance(results[submission.token], Sent)
    assert backend.results() == {}


def test_what_is_underway_is_not_sent_a_second_time(harness, backend):
    submission = make_submission()
    first = backend.submit([submission])[submission.token]
    results = submit(backend, submission)
    assert isinstance(results[submission.token], Sent)
    if isinstance(first, Underway) or harness.at_most_one:
        assert harness.count(submission.token) == 1
    assert backend.results() == {}


def test_what_is_revoked_at_once_is_taken_away_all_the_same(harness, backend):
    batch = [make_submission() for _ in range(5)]
    backend.submit(batch)
    backend.revoke([Artefact(submission.token, submission.kind) for submission in batch])
    later = make_submission()
    send(backend, later)
    # Those that were sent are known to be gone only after whatever was underway has ended.
    for submission in batch:
        eventually(lambda token=submission.token: harness.count(token) == 0, "the artefact is gone")
    assert harness.count(later.token) == 1
    assert not {submission.token for submission in batch} & backend.results().keys()


def test_the_same_token_twice_is_one_artefact(harness, backend):
    submission = make_submission()
    (first,) = send(backend, submission)
    (again,) = send(backend, submission)
    assert first == again
    if harness.at_most_one:
        assert harness.count(submission.token) == 1


def test_two_schedulers_send_one_token(harness, backend):
    submission = make_submission()
    (first,) = send(backend, submission)
    (again,) = send(harness.open("2"), submission)
    assert first == again


def test_what_was_just_sent_is_not_abandoned(backend):
    submission = make_submission()
    send(backend, submission)
    for _ in range(3):
        with within(1.0):
            assert backend.abandoned({submission.token}) == {}


def test_nothing_is_told_of_what_has_not_ended(backend):
    submission = make_submission()
    send(backend, submission)
    assert ending(backend, submission.token) is None


def test_what_was_just_sent_is_not_lost(backend):
    submission = make_submission()
    send(backend, submission)
    for _ in range(3):
        with within(1.0):
            assert backend.look_for({submission.token: submission.queue}).lost == frozenset()


@pytest.mark.parametrize("kind", list(WorkloadKind))
def test_a_good_end_is_told_until_it_is_removed(harness, backend, kind):
    submission = make_submission(kind)
    (artefact,) = send(backend, submission)
    harness.end(submission, ok=True)
    told = await_ending(backend, submission.token)
    assert (told.ok, told.reason, told.gone) == (True, None, False)
    assert ending(backend, submission.token) == told
    backend.remove([artefact])
    assert ending(backend, submission.token) is None


@pytest.mark.parametrize("kind", list(WorkloadKind))
def test_a_bad_end_is_told_with_a_reason(harness, backend, kind):
    submission = make_submission(kind)
    send(backend, submission)
    harness.end(submission, ok=False)
    told = await_ending(backend, submission.token)
    assert not told.ok
    assert not told.gone
    assert told.reason
    assert "None" not in told.reason


def test_endings_of_siblings_are_kept_apart(harness, backend):
    good, bad, busy = (make_submission(map_index=index) for index in range(3))
    send(backend, good, bad, busy)
    harness.end(bad, ok=False)
    harness.end(good, ok=True)
    assert await_ending(backend, good.token).ok
    assert not await_ending(backend, bad.token).ok
    assert ending(backend, busy.token) is None


def test_nothing_is_told_of_what_another_scheduler_sent(harness, backend):
    other = harness.open("2")
    submission = make_submission()
    send(other, submission)
    harness.end(submission, ok=True)
    await_ending(other, submission.token)
    assert ending(backend, submission.token) is None


@pytest.mark.parametrize("ended_before", [True, False])
@pytest.mark.parametrize("confirmed", [True, False])
def test_what_is_taken_up_is_told(harness, backend, ended_before, confirmed):
    other = harness.open("2")
    submission = make_submission()
    (artefact,) = send(other, submission)
    if ended_before:
        harness.end(submission, ok=True)
        await_ending(other, submission.token)
    backend.watch([artefact if confirmed else Artefact(submission.token, submission.kind)])
    if not ended_before:
        assert ending(backend, submission.token) is None
        harness.end(submission, ok=True)
    assert await_ending(backend, submission.token).ok


def test_what_vanished_is_told_as_gone(harness, backend):
    if not harness.sees_vanished:
        pytest.skip("this backend cannot tell")
    submission = make_submission()
    send(backend, submission)
    harness.vanish(submission)
    told = await_ending(backend, submission.token)
    assert told.gone
    assert not told.ok
    assert told.reason


def test_what_vanished_before_it_was_taken_up_is_told_as_gone(harness, backend):
    if not harness.sees_vanished:
        pytest.skip("this backend cannot tell")
    submission = make_submission()
    (artefact,) = send(harness.open("2"), submission)
    harness.vanish(submission)
    backend.watch([artefact])
    assert await_ending(backend, submission.token).gone


def test_a_missing_artefact_that_was_never_confirmed_proves_nothing(backend):
    token = str(uuid.uuid4())
    backend.watch([Artefact(token, WorkloadKind.TASK)])
    assert ending(backend, token) is None


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_revoked_artefact_is_taken_away(harness, backend, confirmed):
    kept, revoked = make_submission(), make_submission()
    _, artefact = send(backend, kept, revoked)
    if not confirmed:
        artefact = Artefact(revoked.token, revoked.kind)
    backend.revoke([artefact])
    eventually(lambda: harness.count(revoked.token) == 0, "the artefact is gone")
    assert harness.count(kept.token) == 1
    backend.revoke([artefact])


def test_an_ended_artefact_is_taken_away(harness, backend):
    submission = make_submission()
    (artefact,) = send(backend, submission)
    harness.end(submission, ok=True)
    await_ending(backend, submission.token)
    backend.remove([artefact])
    eventually(lambda: harness.count(submission.token) == 0, "the artefact is gone")
    backend.remove([artefact])
    assert ending(backend, submission.token) is None


def test_what_another_scheduler_sent_is_a_stray_until_it_is_taken_up_or_away(harness, backend):
    if not harness.names_strays:
        pytest.skip("its artefacts do not outlast their use")
    other = harness.open("2")
    mine, taken_up, removed, stopped = (make_submission() for _ in range(4))
    send(backend, mine)
    artefacts = send(other, taken_up, removed, stopped)
    harness.end(removed, ok=True)
    strays = eventually(
        lambda: found if len(found := backend.strays()) == 3 and "ended" in _progress(found) else None,
        "the others are seen",
    )
    assert sorted(one.artefact.token for one in strays) == sorted(one.token for one in artefacts)
    assert {one.sender for one in strays} == {"2"}
    assert sorted(_progress(strays)) == ["ended", "waiting", "waiting"]
    assert all(one.artefact in artefacts for one in strays)
    backend.watch([artefacts[0]])
    backend.remove([artefacts[1]])
    backend.revoke([artefacts[2]])
    assert backend.strays() == []
    assert harness.count(mine.token) == 1


def _progress(strays):
    return [one.progress.value for one in strays]


def test_what_is_released_is_told_no_more_and_stays(harness, backend):
    submission = make_submission()
    (artefact,) = send(backend, submission)
    harness.end(submission, ok=True)
    await_ending(backend, submission.token)
    backend.release([submission.token, str(uuid.uuid4())])
    assert ending(backend, submission.token) is None
    assert harness.count(submission.token) == 1
    if harness.names_strays:
        assert [one.artefact.token for one in backend.strays()] == [submission.token]
    backend.watch([artefact])
    assert await_ending(backend, submission.token).ok


def test_what_is_not_there_is_revoked_and_removed_without_an_error(backend):
    token = str(uuid.uuid4())
    for artefact in (
        Artefact(token, WorkloadKind.TASK),
        Artefact(token, WorkloadKind.CALLBACK, f"default/nothing-{token}"),
    ):
        backend.revoke([artefact])
        backend.remove([artefact])
    backend.revoke([])
    backend.remove([])
    backend.watch([])


def test_a_bad_workload_fails_alone(harness, backend):
    bad = harness.bad_submission()
    if bad is None:
        pytest.skip("this backend takes every workload")
    good = make_submission()
    results = submit(backend, bad, good)
    assert isinstance(results[good.token], Sent)
    rejected = results[bad.token]
    assert isinstance(rejected, Rejected)
    assert rejected.reason
    assert "\n" not in rejected.reason
    assert harness.count(bad.token) == 0


def test_a_service_that_is_away_stops_nothing(harness):
    backend = harness.create_unreachable()
    if backend is None:
        pytest.skip("this backend has no service")
    submission = make_submission()
    artefact = Artefact(submission.token, submission.kind, f"default/{submission.token}")
    with within(1):
        backend.start("1")
    try:
        with within(harness.blocking_seconds):
            problem = backend.problem()
        assert problem
        assert "\n" not in problem
        with within(harness.blocking_seconds):
            results = submit(backend, submission)
        assert isinstance(results[submission.token], Postponed)
        with within(harness.blocking_seconds):
            backend.watch([artefact])
        with within(harness.blocking_seconds):
            assert backend.observe() == []
        with within(harness.blocking_seconds):
            backend.revoke([artefact])
        with within(harness.blocking_seconds):
            backend.remove([artefact])
    finally:
        with within(harness.blocking_seconds):
            backend.stop()


def test_nothing_is_left_running_when_it_stops(harness):
    before = set(threading.enumerate())
    backend = harness.open()
    submission = make_submission()
    send(backend, submission)
    ending(backend, submission.token)
    backend.stop()
    eventually(lambda: set(threading.enumerate()) <= before, "the threads end", seconds=5)
    backend.stop()
