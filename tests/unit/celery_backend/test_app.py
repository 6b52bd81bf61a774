# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dispatcher.backends.celery.app import NO_RESULTS, create_app, describe, one_line, operation_timeout
from dispatcher.domain.errors import ConfigurationError
from tests.support.celery_backend import make_backend, make_conf

REDIS = "redis://:marked-secret@broker.example:6379/0"
DATABASE = "db+postgresql+psycopg2://airflow:marked-secret@db.example/airflow"
UNREADABLE = "redis://:marked#secret@broker.example:6379/0"


@pytest.mark.parametrize(
    ("broker", "options"),
    [
        (REDIS, {"socket_timeout", "socket_connect_timeout"}),
        ("sentinel://one.example:26379;sentinel://two.example:26379", {"socket_timeout"}),
        ("amqp://guest:guest@broker.example//", {"read_timeout", "write_timeout"}),
    ],
)
def test_sockets_that_the_configuration_leaves_open_get_a_time_out(broker, options):
    app, _ = create_app(make_conf(broker, DATABASE), 7.0)

    assert {app.conf.broker_transport_options[option] for option in options} == {7.0}


def test_a_time_out_of_the_configuration_stays(monkeypatch):
    monkeypatch.setenv("AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__SOCKET_TIMEOUT", "30")
    monkeypatch.setenv("AIRFLOW__CELERY__EXTRA_CELERY_CONFIG", '{"redis_socket_timeout": 40}')

    app, _ = create_app(make_conf(REDIS, REDIS), 7.0)

    assert app.conf.broker_transport_options["socket_timeout"] == 30
    assert app.conf.broker_transport_options["socket_connect_timeout"] == 7.0
    assert app.conf.redis_socket_timeout == 40
    assert app.conf.redis_socket_connect_timeout == 7.0


def test_an_unknown_broker_gets_no_options_of_ours():
    app, _ = create_app(make_conf("memory://", DATABASE), 7.0)

    assert app.conf.broker_transport_options == {}


def test_sending_asks_nothing_of_the_result_back_end():
    app, open_results = create_app(make_conf(REDIS, REDIS), 7.0)

    assert app.conf.result_backend == NO_RESULTS
    assert app.backend.as_uri() == NO_RESULTS
    assert open_results().as_uri() == "redis://:**@broker.example:6379/0"


@pytest.mark.parametrize("results", ["rpc://", "disabled://", "mongodb://db.example"])
def test_a_result_back_end_that_cannot_be_read_in_bulk_is_refused(results):
    with pytest.raises(ConfigurationError, match=r"result_backend .* must be Redis or a database"):
        create_app(make_conf(REDIS, results), 7.0)


def test_an_unknown_result_back_end_is_refused():
    with pytest.raises(ConfigurationError, match=r"Section \[celery\] cannot be used: .*nonsense"):
        create_app(make_conf(REDIS, "nonsense://"), 7.0)


def test_fault_48_a_broker_url_with_a_raw_password_is_named_without_it():
    """The error would give away a part of the password and name no option."""
    with pytest.raises(ConfigurationError, match=r"\[celery\] broker_url cannot be read") as caught:
        create_app(make_conf(UNREADABLE, DATABASE), 7.0)

    assert "marked" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_fault_48_a_result_url_with_a_raw_password_is_named_without_it():
    _, open_results = create_app(make_conf(REDIS, UNREADABLE), 7.0)

    with pytest.raises(ConfigurationError, match=r"\[celery\] result_backend cannot be read") as caught:
        open_results()

    assert "marked" not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("character", list("?#/[]%@:+"))
def test_fault_48_a_percent_encoded_password_is_read(character):
    """The other way round: encoded always works."""
    from urllib.parse import quote

    password = f"a{character}b"
    url = f"redis://:{quote(password, safe='')}@broker.example:6379/0"

    app, open_results = create_app(make_conf(url, url), 7.0)

    assert app.connection_for_write().password == password
    assert open_results().connparams["password"] == password


def test_a_mistake_of_the_configuration_is_one_line(monkeypatch):
    monkeypatch.setenv("AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__SENTINEL_KWARGS", "no json")

    problem = make_backend(make_conf(REDIS, DATABASE)).problem()

    assert problem is not None
    assert problem.startswith("Section [celery] cannot be used: ")
    assert "sentinel_kwargs" in problem
    assert "\n" not in problem


def test_making_and_starting_a_backend_asks_nobody():
    backend = make_backend(make_conf(REDIS, DATABASE))
    backend.start("1")
    backend.stop()


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan"])
def test_an_operation_time_out_that_is_none_is_refused(value):
    with pytest.raises(ConfigurationError, match=r"\[celery\] operation_timeout is"):
        operation_timeout(make_conf(REDIS, DATABASE, operation_timeout=value))


def test_the_operation_time_out_is_read():
    assert operation_timeout(make_conf(REDIS, DATABASE, operation_timeout="2.5")) == 2.5


def test_fault_51_an_error_is_described_in_one_line_without_credentials():
    error = OSError(f"cannot connect to {REDIS}.\nsecond line")

    assert describe(error) == "cannot connect to redis://***@broker.example:6379/0"


@pytest.mark.parametrize("password", ["mar@ked", "mar/ked", "mar:ked", "mar'ked", "@marked@"])
def test_fault_51_a_password_that_is_not_encoded_is_taken_out_whole(password):
    told = describe(OSError(f"cannot connect to redis://user:{password}@broker.example:6379/0 (refused)"))

    assert told == "cannot connect to redis://***@broker.example:6379/0 (refused)"


def test_an_error_without_a_text_is_described_by_its_type():
    assert describe(TimeoutError()) == "TimeoutError"


def test_a_long_text_is_shortened():
    assert len(one_line("x" * 5000)) == 300
