# SPDX-License-Identifier: Apache-2.0
"""The options of plain ``celery worker``: from the configuration, unless the user gives them."""

from __future__ import annotations

import logging

import click
import pytest
from celery import Celery
from celery.bin.base import CLIContext
from celery.bin.celery import celery
from celery.bin.worker import worker

from workers import celery_setup


@pytest.fixture
def app():
    app = Celery("setup", broker="memory://", set_as_current=False)
    yield app
    app.close()


def options(app, *arguments):
    """Parse a worker command line after the app was loaded, as the ``celery`` command does."""
    context = click.Context(celery, obj=CLIContext(app=app, no_color=True, workdir=None))
    known = list(worker.params)
    with context.scope():
        celery_setup.prepare_command_line(app)
        worker.params.extend(app.user_options["worker"])
        try:
            return worker.make_context("worker", list(arguments), parent=context).params
        finally:
            worker.params[:] = known


def test_the_configuration_sets_the_defaults(app, monkeypatch):
    monkeypatch.setenv("AIRFLOW__LOGGING__LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("AIRFLOW__CELERY__POOL", "solo")
    monkeypatch.setenv("AIRFLOW__CELERY__WORKER_AUTOSCALE", "4,2")

    parsed = options(app)

    assert parsed["loglevel"] == logging.DEBUG
    assert parsed["pool"].__module__ == "celery.concurrency.solo"
    assert parsed["autoscale"] == (4, 2)
    assert parsed["optimization"] == "fair"
    assert parsed["skip_serve_logs"] is False


def test_the_level_of_celery_comes_before_the_general_one(monkeypatch):
    monkeypatch.setenv("AIRFLOW__LOGGING__LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("AIRFLOW__LOGGING__CELERY_LOGGING_LEVEL", "ERROR")

    assert celery_setup.worker_defaults()["loglevel"] == "ERROR"


def test_without_configuration_there_is_no_autoscale(app):
    parsed = options(app)

    assert parsed["autoscale"] is None
    assert parsed["pool"].__module__ == "celery.concurrency.prefork"
    assert parsed["loglevel"] == logging.INFO


def test_an_option_that_the_user_gives_wins(app, monkeypatch):
    monkeypatch.setenv("AIRFLOW__CELERY__POOL", "solo")
    monkeypatch.setenv("AIRFLOW__CELERY__WORKER_AUTOSCALE", "4,2")

    parsed = options(app, "-l", "ERROR", "-P", "threads", "--autoscale", "3,1", "--skip-serve-logs")

    assert parsed["loglevel"] == logging.ERROR
    assert parsed["pool"].__module__ == "celery.concurrency.thread"
    assert parsed["autoscale"] == (3, 1)
    assert parsed["skip_serve_logs"] is True


def test_an_app_that_is_only_imported_changes_nothing(app):
    celery_setup.prepare_command_line(app)

    assert click.get_current_context(silent=True) is None
