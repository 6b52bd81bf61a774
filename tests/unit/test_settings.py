# SPDX-License-Identifier: Apache-2.0
"""Every setting: its default, what it may be, and what is said when it is something else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dispatcher.domain.errors import ConfigurationError
from dispatcher.domain.lifecycle import BackendName
from dispatcher.provider import get_provider_info
from dispatcher.settings import FenceMode, WorkloadDelivery, load, load_fence_mode

OPTIONS = get_provider_info()["config"]["dispatcher"]["options"]
ADDRESS = "postgresql+psycopg2://airflow:secret@db:5432/airflow"


class FakeConf:
    """A configuration that holds what it is given: ``{"section.key": "value"}``."""

    def __init__(self, **values):
        self._values = {tuple(name.split("__")): value for name, value in values.items()}

    def get(self, section, key, **kwargs):
        return self._values.get((section, key), kwargs["fallback"])

    def getsection(self, section):
        return {key: value for (name, key), value in self._values.items() if name == section} or None


def _load(**values):
    conf = FakeConf(**values)
    return load(conf, conf)


def _dispatcher(**values):
    return _load(**{f"dispatcher__{key}": value for key, value in values.items()})


def test_the_defaults():
    settings = _load()
    assert settings.kubernetes_queue == "kubernetes"
    assert settings.callback_queue == "callbacks"
    assert settings.callback_backend is BackendName.CELERY
    assert settings.default_queue == "default"
    assert settings.rules == ()
    assert settings.fence is FenceMode.PRESENTED
    assert settings.workload_token_ttl == 1200
    assert settings.pod_creation_concurrency == 32
    assert settings.workload_delivery is WorkloadDelivery.ARGS
    assert settings.launch_retention_days == 30
    assert settings.task_relaunches == 3
    assert settings.callback_relaunches == 1
    assert settings.callback_queued_timeout == 600
    assert settings.heartbeat_timeout == 300


def test_the_declared_defaults_are_the_real_ones():
    declared = {key: option["default"] for key, option in OPTIONS.items() if option["default"] is not None}
    assert _dispatcher(**declared) == _load()


VALID = [
    ("kubernetes_queue", "k8s", "k8s"),
    ("kubernetes_queue", " k8s ", "k8s"),
    ("kubernetes_queue", " ", "kubernetes"),
    ("callback_queue", "calls", "calls"),
    ("callback_queue", "", "callbacks"),
    ("callback_backend", "kubernetes", BackendName.KUBERNETES),
    ("callback_backend", " celery ", BackendName.CELERY),
    ("fence", "required", FenceMode.REQUIRED),
    ("workload_token_ttl", "0.5", 0.5),
    ("workload_token_ttl", "", 1200),
    ("pod_creation_concurrency", "1", 1),
    ("workload_delivery", "secret", WorkloadDelivery.SECRET),
    ("callback_pod_template_file", " /etc/callback.yaml ", "/etc/callback.yaml"),
    ("callback_pod_template_file", " ", None),
    ("launch_retention_days", "7", 7),
    ("launch_retention_days", "365000", 365_000),
    ("task_relaunches", "0", 0),
    ("callback_relaunches", "0", 0),
    ("callback_queued_timeout", "90", 90),
    ("deployment", "prod-1.eu", "prod-1.eu"),
    ("deployment", "x" * 63, "x" * 63),
]


@pytest.mark.parametrize(("key", "text", "value"), VALID)
def test_a_valid_value(key, text, value):
    assert getattr(_dispatcher(**{key: text}), key) == value


INVALID = [
    ("callback_backend", "local", ["'local'", "celery", "kubernetes"]),
    ("callback_backend", "Celery", ["'Celery'", "celery", "kubernetes"]),
    ("fence", "on", ["'on'", "presented", "required"]),
    ("workload_delivery", "env", ["'env'", "args", "secret"]),
    ("workload_token_ttl", "1h", ["'1h'", "number of seconds"]),
    ("workload_token_ttl", "nan", ["'nan'", "number of seconds"]),
    ("workload_token_ttl", "inf", ["'inf'", "number of seconds"]),
    ("workload_token_ttl", "-1", ["-1", "at least 0"]),
    ("pod_creation_concurrency", "0", ["0", "at least 1"]),
    ("pod_creation_concurrency", "1001", ["1001", "at most 1000"]),
    ("pod_creation_concurrency", "many", ["'many'", "whole number"]),
    ("pod_creation_concurrency", "2.5", ["'2.5'", "whole number"]),
    ("launch_retention_days", "0", ["0", "at least 1"]),
    ("launch_retention_days", "nan", ["'nan'", "whole number"]),
    ("launch_retention_days", "1000000", ["1000000", "at most 365000"]),
    ("launch_retention_days", "9" * 400, ["at most 365000"]),
    ("task_relaunches", "-1", ["-1", "at least 0"]),
    ("callback_relaunches", "-1", ["-1", "at least 0"]),
    ("callback_queued_timeout", "-1", ["-1", "at least 0"]),
    ("callback_queued_timeout", "1e15", ["at most 31536000000"]),
    ("workload_token_ttl", "1e15", ["at most 31536000000"]),
    ("callback_relaunches", "1e3", ["'1e3'", "whole number"]),
    ("deployment", "my deployment", ["'my deployment'", "letters"]),
    ("deployment", "-prod", ["'-prod'", "letter or digit"]),
    ("deployment", "x" * 64, ["63"]),
    ("routes", "[", ["not valid JSON"]),
    ("routes", '{"match": {}}', ["JSON list"]),
    ("routes", '[{"match": {"dag": "x"}, "backend": "celery"}]', ["rule 1", "match.dag"]),
    ("routes", '[{"match": {}, "backend": "local"}]', ["rule 1", "backend", "celery", "kubernetes"]),
    ("routes", '[{"match": {"min_priority": "1"}, "backend": "celery"}]', ["rule 1", "match.min_priority"]),
    ("routes_file", "/nowhere/routes.json", ["/nowhere/routes.json", "cannot be read"]),
]


@pytest.mark.parametrize(("key", "text", "named"), INVALID)
def test_an_invalid_value_is_named_with_its_key_and_what_it_may_be(key, text, named):
    with pytest.raises(ConfigurationError) as caught:
        _dispatcher(**{key: text})
    message = str(caught.value)
    assert message.startswith(f"[dispatcher] {key}")
    assert "\n" not in message
    for part in named:
        assert part in message


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("task_queued_timeout", "soon"),
        ("task_queued_timeout", "0"),
        ("task_instance_heartbeat_timeout", "x"),
    ],
)
def test_an_invalid_value_of_airflows_own_is_named(key, text):
    with pytest.raises(ConfigurationError, match=rf"^\[scheduler\] {key} is"):
        _load(**{f"scheduler__{key}": text})


def test_every_key_of_the_provider_is_tested_here():
    tested = {key for key, *_ in (*VALID, *INVALID)}
    assert tested == set(OPTIONS)


class TestWorkloadTokenTtl:
    def test_zero_means_twice_the_queued_timeout(self):
        values = {"dispatcher__workload_token_ttl": "0", "scheduler__task_queued_timeout": "45.5"}
        assert _load(**values).workload_token_ttl == 91

    def test_its_own_value_wins(self):
        values = {"dispatcher__workload_token_ttl": "30", "scheduler__task_queued_timeout": "600"}
        assert _load(**values).workload_token_ttl == 30


class TestCallbackQueuedTimeout:
    def test_zero_means_the_time_that_tasks_have(self):
        assert _load(scheduler__task_queued_timeout="45.5").callback_queued_timeout == 45.5

    def test_the_token_is_good_for_as_long(self):
        settings = _load(dispatcher__callback_queued_timeout="3600")
        assert (settings.callback_queued_timeout, settings.workload_token_ttl) == (3600, 7200)

    def test_it_is_never_longer_than_the_token_is_good(self):
        values = {"dispatcher__workload_token_ttl": "30", "dispatcher__callback_queued_timeout": "60"}
        assert _load(**values).callback_queued_timeout == 30


class TestRoutes:
    RULES = [{"match": {"dag_id": "x"}, "backend": "kubernetes", "queue": "q"}]  # noqa: RUF012

    def test_inline_and_from_a_file(self, tmp_path):
        path = tmp_path / "routes.json"
        path.write_text(json.dumps(self.RULES))
        from_file = _dispatcher(routes_file=str(path))
        assert from_file.rules == _dispatcher(routes=json.dumps(self.RULES)).rules
        assert [(rule.backend, rule.queue) for rule in from_file.rules] == [(BackendName.KUBERNETES, "q")]
        assert from_file.router.rules == from_file.rules

    def test_both_are_refused(self, tmp_path):
        with pytest.raises(ConfigurationError, match="routes and routes_file are both set"):
            _dispatcher(routes="[]", routes_file=str(tmp_path / "routes.json"))

    def test_a_blank_one_does_not_count(self, tmp_path):
        path = tmp_path / "routes.json"
        path.write_text(json.dumps(self.RULES))
        assert len(_dispatcher(routes="  ", routes_file=str(path)).rules) == 1
        assert len(_dispatcher(routes=json.dumps(self.RULES), routes_file=" ").rules) == 1

    def test_the_file_is_named_in_what_is_wrong_with_it(self, tmp_path):
        path = tmp_path / "routes.json"
        path.write_text('[{"match": {}}]')
        with pytest.raises(ConfigurationError, match=rf"{re.escape(str(path))}: rule 1: key backend"):
            _dispatcher(routes_file=str(path))

    @pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.write_bytes(b"\xff\xfe")])
    def test_a_file_that_is_none(self, tmp_path, make):
        path = tmp_path / "routes.json"
        make(path)
        with pytest.raises(ConfigurationError, match="cannot be read") as caught:
            _dispatcher(routes_file=str(path))
        assert caught.value.__cause__ is not None


class TestKubernetesQueue:
    def test_that_of_the_stock_executor_counts_where_ours_is_not_set(self):
        assert _load(celery_kubernetes_executor__kubernetes_queue="k8s").kubernetes_queue == "k8s"

    @pytest.mark.parametrize("own", ["mine", "kubernetes"])
    def test_ours_wins_when_it_is_set(self, own):
        values = {
            "dispatcher__kubernetes_queue": own,
            "celery_kubernetes_executor__kubernetes_queue": "k8s",
        }
        assert _load(**values).kubernetes_queue == own

    @pytest.mark.parametrize(
        ("env", "expected"),
        [
            ({}, "kubernetes"),
            ({"AIRFLOW__CELERY_KUBERNETES_EXECUTOR__KUBERNETES_QUEUE": "k8s"}, "k8s"),
            (
                {
                    "AIRFLOW__CELERY_KUBERNETES_EXECUTOR__KUBERNETES_QUEUE": "k8s",
                    "AIRFLOW__DISPATCHER__KUBERNETES_QUEUE": "kubernetes",
                },
                "kubernetes",
            ),
            (
                {
                    "AIRFLOW__RED___CELERY_KUBERNETES_EXECUTOR__KUBERNETES_QUEUE": "k8s",
                    "AIRFLOW__DISPATCHER__KUBERNETES_QUEUE": "kubernetes",
                },
                "kubernetes",
            ),
        ],
    )
    def test_with_airflows_own_configuration(self, monkeypatch, env, expected):
        from airflow.configuration import conf

        for name, value in env.items():
            monkeypatch.setenv(name, value)
        assert load(conf).kubernetes_queue == expected


class TestTeams:
    """A team's configuration does not fall back to the deployment's: what teams share is read from that."""

    @pytest.fixture
    def team_conf(self):
        from airflow.executors.base_executor import ExecutorConf

        return ExecutorConf("red")

    def test_what_a_team_has_of_its_own(self, monkeypatch, team_conf):
        monkeypatch.setenv("AIRFLOW__RED___DISPATCHER__CALLBACK_QUEUE", "red-callbacks")
        monkeypatch.setenv("AIRFLOW__RED___CELERY_KUBERNETES_EXECUTOR__KUBERNETES_QUEUE", "red-k8s")
        settings = load(team_conf)
        assert (settings.callback_queue, settings.kubernetes_queue) == ("red-callbacks", "red-k8s")

    def test_what_teams_share(self, monkeypatch, team_conf):
        from airflow.configuration import conf

        monkeypatch.setenv("AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT", "77")
        monkeypatch.setenv("AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT", "88")
        monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_QUEUE", "common")
        monkeypatch.setenv("AIRFLOW__DISPATCHER__FENCE", "required")
        monkeypatch.setenv("AIRFLOW__DISPATCHER__LAUNCH_RETENTION_DAYS", "3")
        settings = load(team_conf)
        assert settings.workload_token_ttl == 154
        assert settings.heartbeat_timeout == 88
        assert settings.default_queue == "common"
        assert settings.fence is FenceMode.REQUIRED
        assert settings.launch_retention_days == 3
        assert settings.deployment == load(conf).deployment


class TestDeployment:
    def _of(self, address):
        return _load(database__sql_alchemy_conn=address).deployment

    def test_is_ten_hex_digits(self):
        assert re.fullmatch("[0-9a-f]{10}", self._of(ADDRESS))
        assert re.fullmatch("[0-9a-f]{10}", self._of(""))

    @pytest.mark.parametrize(
        "address",
        [
            "postgresql+psycopg2://other:rotated@db:5432/airflow",
            "postgresql+psycopg2://db:5432/airflow",
            "postgresql+psycopg2://airflow:p%40ss%2F@db:5432/airflow",
            "postgresql+psycopg2://db:5432/airflow?user=airflow&password=secret",
            "postgresql+asyncpg://airflow:secret@db:5432/airflow",
            "postgresql://airflow:secret@db:5432/airflow",
        ],
    )
    def test_stays_when_credentials_or_driver_change(self, address):
        assert self._of(address) == self._of(ADDRESS)

    def test_differs_by_server_port_database_and_file(self):
        addresses = [
            ADDRESS,
            "postgresql+psycopg2://airflow:secret@db2:5432/airflow",
            "postgresql+psycopg2://airflow:secret@db:5433/airflow",
            "postgresql+psycopg2://airflow:secret@db:5432/other",
            "postgresql+psycopg2://airflow:secret@/airflow?host=a:1&host=b:2",
            "postgresql+psycopg2://airflow:secret@/airflow?host=a:1&host=c:2",
            "mysql://airflow:secret@db:5432/airflow",
            "sqlite:////one@home/airflow.db",
            "sqlite:////two@home/airflow.db",
        ]
        assert len({self._of(address) for address in addresses}) == len(addresses)

    def test_its_own_value_wins(self):
        values = {"dispatcher__deployment": "prod", "database__sql_alchemy_conn": ADDRESS}
        assert _load(**values).deployment == "prod"


def test_the_fence_mode_alone():
    assert load_fence_mode(FakeConf(dispatcher__fence="required")) is FenceMode.REQUIRED
    # What is wrong elsewhere does not matter to the API server.
    assert load_fence_mode(FakeConf(dispatcher__routes="[")) is FenceMode.PRESENTED
    with pytest.raises(ConfigurationError, match=r"\[dispatcher\] fence"):
        load_fence_mode(FakeConf(dispatcher__fence="off"))


def test_the_router_takes_its_part():
    router = _dispatcher(kubernetes_queue="k", callback_queue="c", callback_backend="kubernetes").router
    assert (router.kubernetes_queue, router.callback_queue) == ("k", "c")
    assert (router.callback_backend, router.default_queue) == (BackendName.KUBERNETES, "default")
