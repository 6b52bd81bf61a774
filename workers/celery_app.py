# SPDX-License-Identifier: Apache-2.0
"""The Celery app of our workers: ``celery -A workers.celery_app worker -Q default,callbacks``.

It is the stock provider's app with the guard in place. Plain ``celery`` lacks what ``airflow celery worker``
does around it; ``workers.celery_setup`` adds that.
"""

from __future__ import annotations

from airflow.providers.celery.executors.celery_executor_utils import app

from workers import celery_guard, celery_setup

__all__ = ["app", "celery_guard"]

celery_setup.prepare_command_line(app)
