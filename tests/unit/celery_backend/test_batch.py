# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from dispatcher.backends.base import BEGIN_SECONDS, Postponed, Sent
from dispatcher.backends.celery.batch import Batch
from tests.support.backend_harness import make_submission

LONG = 60.0
NOW = 0.0


def batch_of(submissions, seconds):
    batch = Batch(seconds)
    batch.add(submissions)
    batch.complete()
    return batch


def order_of(batch):
    order = []
    while taken := next_of(batch):
        order.append(taken)
        batch.settle(taken.token, Sent(taken.token))
    return order


def next_of(batch):
    taken = batch.take({"default"}, 1)
    return taken[0] if taken else None


def test_highest_priority_first_and_the_given_order_among_equals():
    """Known fault 32: the lowest priority went first."""
    submissions = [make_submission(priority=weight) for weight in (1, 5, 10, 5, 1)]

    order = order_of(batch_of(submissions, LONG))

    assert order == [submissions[index] for index in (2, 1, 3, 0, 4)]


def test_each_token_has_its_answer():
    submissions = [make_submission() for _ in range(3)]
    batch = batch_of(submissions, LONG)
    order_of(batch)

    assert batch.close(answered=True) == {one.token: Sent(one.token) for one in submissions}


def test_nothing_more_is_handed_out_once_the_time_is_up():
    submissions = [make_submission(), make_submission()]
    batch = batch_of(submissions, NOW)

    assert next_of(batch) is None
    results = batch.close(answered=True)

    assert results.keys() == {one.token for one in submissions}
    for result in results.values():
        assert isinstance(result, Postponed)
        assert not result.ambiguous
        assert result.retry_after == 0.0


def test_none_is_begun_on_a_check_that_has_grown_old(monkeypatch):
    """However long ``[celery] operation_timeout`` lets a batch take (rule 4)."""
    now = [1000.0]
    monkeypatch.setattr("dispatcher.backends.celery.batch.time.monotonic", lambda: now[0])
    first, second = make_submission(priority=2), make_submission(priority=1)
    sending = batch_of([first, second], LONG)

    now[0] += BEGIN_SECONDS - 0.5
    assert next_of(sending) == first
    sending.settle(first.token, Sent(first.token))
    now[0] += 1.0
    assert next_of(sending) is None

    rest = sending.close(answered=True)[second.token]
    assert not rest.tried


def test_what_has_not_come_back_may_be_there_and_the_rest_certainly_is_not():
    first, second, third, fourth = (make_submission(priority=weight) for weight in (4, 3, 2, 1))
    batch = batch_of([first, second, third, fourth], LONG)
    batch.settle(next_of(batch).token, Sent(first.token))
    assert batch.take({"default"}, 2) == [second, third]

    results = batch.close(answered=False)

    assert results[first.token] == Sent(first.token)
    assert results[second.token].ambiguous
    assert results[third.token].ambiguous
    assert not results[fourth.token].ambiguous
    assert results[fourth.token].tried


def test_only_what_goes_to_the_named_queues_goes_together():
    wanted, other = (make_submission(queue=queue) for queue in ("wanted", "other"))
    batch = batch_of([wanted, other, wanted], LONG)

    assert batch.queue() == "wanted"
    assert batch.take({"wanted"}, 10) == [wanted]
    assert batch.take({"wanted"}, 10) == []
    assert batch.queue() == "other"
    assert batch.take({"wanted", "other"}, 10) == [other, wanted]
    assert batch.queue() is None


def test_what_comes_back_after_the_end_changes_no_answer():
    submission, other = make_submission(priority=1), make_submission()
    batch = batch_of([submission, other], LONG)
    next_of(batch)
    results = batch.close(answered=True)

    batch.settle(submission.token, Sent(submission.token))

    assert isinstance(results[submission.token], Postponed)
    assert next_of(batch) is None


def test_the_rest_can_be_given_up_with_one_reason():
    submissions = [make_submission() for _ in range(3)]
    batch = batch_of(submissions, LONG)
    batch.settle(next_of(batch).token, Sent("first"))

    batch.postpone_rest(Postponed("away"))

    results = batch.close(answered=True)
    assert [results[one.token] for one in submissions] == [
        Sent("first"),
        Postponed("away"),
        Postponed("away"),
    ]


def test_what_is_added_is_waited_for():
    first, second, third = (make_submission(queue=queue) for queue in ("one", "two", "three"))
    batch = Batch(LONG)
    with ThreadPoolExecutor(1) as lane:
        waiting = lane.submit(batch.queue)
        batch.add([first])
        assert waiting.result(LONG) == "one"
        assert batch.take({"one"}, 10) == [first]
        waiting = lane.submit(batch.queue)
        batch.add([second, third])
        assert waiting.result(LONG) == "two"
        assert batch.take({"two", "three"}, 10) == [second, third]
        waiting = lane.submit(batch.queue)
        batch.complete()
        assert waiting.result(LONG) is None


def test_what_is_added_first_goes_first():
    high, low = make_submission(priority=9), make_submission(priority=1)
    batch = Batch(LONG)
    batch.add([low])
    batch.add([high])
    batch.complete()

    assert order_of(batch) == [low, high]


def test_nothing_is_waited_for_when_the_time_is_up():
    assert Batch(NOW).queue() is None


def test_nothing_is_waited_for_at_the_end():
    batch = Batch(LONG)
    with ThreadPoolExecutor(1) as lane:
        waiting = lane.submit(batch.queue)
        batch.close(answered=False)
        assert waiting.result(LONG) is None


def test_what_comes_after_the_rest_was_given_up_is_given_up_too():
    submission = make_submission()
    batch = Batch(LONG)
    batch.postpone_rest(Postponed("away"))
    batch.add([submission])
    batch.complete()

    assert batch.queue() is None
    assert batch.close(answered=True) == {submission.token: Postponed("away")}
