# SPDX-License-Identifier: Apache-2.0
"""The task that the guard puts in place of the stock one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery import Celery
from celery.signals import celeryd_init

from workers import celery_guard


def stock_task(payload):
    return payload


@pytest.fixture
def app():
    app = Celery("guarded", broker="memory://", set_as_current=False)
    app.conf.task_track_started = True
    app.task(name="execute_workload", shared=False)(stock_task)
    yield app
    app.close()


def test_the_stock_task_is_replaced_when_a_worker_starts(app):
    celeryd_init.send(sender="worker", instance=SimpleNamespace(app=app), conf=app.conf, options={})

    task = app.tasks["execute_workload"]
    assert task.run is celery_guard.execute_workload
    assert task.track_started is False
    assert task.name == celery_guard.TASK_NAME


def test_an_app_without_the_stock_task_gets_ours(app):
    app.tasks.unregister("execute_workload")

    celery_guard.install_guard(SimpleNamespace(app=app))

    assert "execute_workload" in app.tasks
