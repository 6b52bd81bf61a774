# SPDX-License-Identifier: Apache-2.0
"""Settings that cannot be used are told in one line, before any pod depends on them."""

from __future__ import annotations

import pytest
from airflow.configuration import conf

from dispatcher.backends.kubernetes.backend import KubernetesBackend
from dispatcher.backends.kubernetes.options import load_options
from tests.support.kubernetes_field import make_settings


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        pytest.param(
            "delete_option_kwargs", '{"grace": 1}', "delete_option_kwargs has grace", id="no delete option"
        ),
        pytest.param(
            "delete_option_kwargs",
            '{"grace_period_seconds": "soon"}',
            "whole number of seconds",
            id="grace text",
        ),
        pytest.param(
            "delete_option_kwargs",
            '{"grace_period_seconds": -1}',
            "whole number of seconds",
            id="grace below 0",
        ),
        pytest.param(
            "kube_client_request_args", '{"foo": 1}', "kube_client_request_args has foo", id="no argument"
        ),
        pytest.param(
            "kube_client_request_args",
            '{"_request_timeout": "9"}',
            "_request_timeout is '9'",
            id="timeout text",
        ),
        pytest.param(
            "kube_client_request_args", '{"_request_timeout": 0}', "_request_timeout is 0", id="timeout 0"
        ),
        pytest.param(
            "kube_client_request_args",
            '{"_request_timeout": [1]}',
            "_request_timeout is (1,)",
            id="timeout one",
        ),
        pytest.param("in_cluster", "maybe", "in_cluster", id="in_cluster"),
        pytest.param("delete_worker_pods", "perhaps", "delete_worker_pods", id="delete_worker_pods"),
    ],
)
def test_one_line_names_what_is_wrong(monkeypatch, key, value, told):
    monkeypatch.setenv(f"AIRFLOW__KUBERNETES_EXECUTOR__{key.upper()}", value)
    problem = KubernetesBackend(conf, make_settings()).problem()
    assert problem is not None
    assert "\n" not in problem
    assert "cannot be used" in problem
    assert told in problem


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("delete_option_kwargs", '{"grace_period_seconds": 0, "propagation_policy": "Background"}'),
        ("kube_client_request_args", '{"_request_timeout": [3, 20.5], "_preload_content": true}'),
    ],
)
def test_what_the_provider_documents_is_taken(monkeypatch, key, value):
    monkeypatch.setenv(f"AIRFLOW__KUBERNETES_EXECUTOR__{key.upper()}", value)
    assert load_options(conf)
