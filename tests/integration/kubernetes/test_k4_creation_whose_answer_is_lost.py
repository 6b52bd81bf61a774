# SPDX-License-Identifier: Apache-2.0
"""K4: the call that creates a pod times out, or its connection is cut, although the pod was made."""

from __future__ import annotations

import threading

import pytest

from dispatcher.backends.base import Postponed, Sent, Underway
from tests.support import fault_proxy
from tests.support.backend_harness import eventually, make_submission, submit

pytestmark = pytest.mark.needs("kubernetes")


def test_the_connection_is_cut_and_the_retry_finds_the_same_pod(field):
    proxy = field.proxy()
    proxy.on("POST", "/pods", fault_proxy.swallow)
    backend = field.backend(through=proxy)
    submission = make_submission()
    first = submit(backend, submission)[submission.token]
    assert isinstance(first, Postponed)
    assert first.ambiguous
    (pod,) = field.kubelet.pods()
    second = submit(backend, submission)[submission.token]
    assert second == Sent(f"{field.namespace}/{pod.metadata.name}")
    (same,) = field.kubelet.pods()
    assert same.metadata.uid == pod.metadata.uid


def test_the_answer_is_late_and_nobody_waits_for_it_or_sends_it_again(field):
    proxy = field.proxy()
    answered = threading.Event()
    proxy.on("POST", "/pods", fault_proxy.delay_answer(answered))
    backend = field.backend(through=proxy, conf={"kube_client_request_args": '{"_request_timeout": 60}'})
    submission = make_submission()
    assert backend.submit([submission]) == {submission.token: Underway()}
    eventually(field.kubelet.pods, "the pod is made")
    assert backend.results() == {}
    assert backend.submit([submission]) == {submission.token: Underway()}
    answered.set()
    results = eventually(backend.results, "the answer came")
    assert isinstance(results[submission.token], Sent)
    assert proxy.count("POST", "/pods") == 1
    assert len(field.kubelet.pods()) == 1


def test_the_call_times_out_and_the_retry_finds_the_same_pod(field):
    proxy = field.proxy()
    proxy.on("POST", "/pods", fault_proxy.delay_answer(threading.Event()))
    backend = field.backend(through=proxy, operation_seconds=1)
    submission = make_submission()
    first = submit(backend, submission)[submission.token]
    assert isinstance(first, Postponed)
    assert first.ambiguous

    def sent() -> bool:
        return isinstance(submit(backend, submission)[submission.token], Sent)

    eventually(sent, "the retry finds the pod")
    assert len(field.kubelet.pods()) == 1


def test_the_end_of_a_pod_whose_creation_was_never_answered_is_told(field):
    proxy = field.proxy()
    proxy.on("POST", "/pods", fault_proxy.swallow)
    backend = field.backend(through=proxy)
    submission = make_submission()
    submit(backend, submission)
    field.kubelet.end(field.kubelet.name_of(submission.token), 0)
    (told,) = eventually(backend.observe, "the ending")
    assert told.ok


def test_the_api_server_never_heard_of_it_and_the_retry_makes_the_pod(field):
    proxy = field.proxy()
    proxy.on("POST", "/pods", fault_proxy.reset)
    backend = field.backend(through=proxy)
    submission = make_submission()
    assert isinstance(submit(backend, submission)[submission.token], Postponed)
    assert field.kubelet.pods() == []
    assert isinstance(submit(backend, submission)[submission.token], Sent)
    assert len(field.kubelet.pods()) == 1
