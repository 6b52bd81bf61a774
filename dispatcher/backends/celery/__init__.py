# SPDX-License-Identifier: Apache-2.0
"""The Celery backend: one message per launch, under the launch token as task id."""

from __future__ import annotations
