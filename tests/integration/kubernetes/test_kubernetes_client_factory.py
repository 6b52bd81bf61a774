# SPDX-License-Identifier: Apache-2.0
"""``[kubernetes_executor] client_factory`` is used as the stock executor uses it."""

from __future__ import annotations

import pytest

from dispatcher.backends.base import Postponed, Sent
from tests.support import client_factory
from tests.support.backend_harness import eventually, make_submission, submit

pytestmark = pytest.mark.needs("kubernetes")

MODULE = "tests.support.client_factory"


def test_every_call_is_made_by_the_client_of_the_factory(field, monkeypatch):
    proxy = field.proxy()
    monkeypatch.setenv(client_factory.PATH_VARIABLE, proxy.kubeconfig)
    signatures = []

    def note(exchange):
        signatures.append(exchange.headers.get(client_factory.HEADER))
        exchange.pass_on()

    proxy.on("POST", "/pods", note, times=None)
    conf = {"client_factory": f"{MODULE}.signed", "config_file": "no such file"}
    backend = field.backend(conf=conf, settings={"pod_creation_concurrency": 20})
    assert backend.problem() is None
    batch = [make_submission() for _ in range(20)]
    left = {one.token: one for one in batch}

    def sent():
        # On a busy machine one may have to be sent again, as the executor would.
        for token, result in submit(backend, *left.values()).items():
            if isinstance(result, Sent):
                del left[token]
        return not left

    eventually(sent, "every pod is made")
    assert len(signatures) >= len(batch)
    assert set(signatures) == {"factory"}
    field.kubelet.end(field.kubelet.name_of(batch[0].token), 0)
    assert [one.token for one in eventually(backend.observe, "the ending")] == [batch[0].token]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("broken", "failed: LookupError: no such vault"),
        ("missing", "failed: AttributeError: "),
        ("no_client", "must return a CoreV1Api, not a str"),
    ],
)
def test_a_factory_that_makes_no_client_is_told_in_one_line(field, name, words):
    backend = field.backend(conf={"client_factory": f"{MODULE}.{name}"})
    problem = backend.problem() or ""
    assert problem.startswith(f"[kubernetes_executor] client_factory {MODULE}.{name} {words}")
    assert "\n" not in problem
    submission = make_submission()
    assert isinstance(submit(backend, submission)[submission.token], Postponed)


def test_further_arguments_of_calls_are_honoured(field):
    proxy = field.proxy()
    backend = field.backend(
        through=proxy, conf={"kube_client_request_args": '{"_request_timeout": 20, "_request_auth": null}'}
    )
    submission = make_submission()
    assert isinstance(submit(backend, submission)[submission.token], Sent)
