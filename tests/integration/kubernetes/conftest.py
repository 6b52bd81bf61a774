# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests that talk to an API server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.kubernetes_field import KubernetesField

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def field(kube_namespace: str, tmp_path: Path) -> Iterator[KubernetesField]:
    """Yield a namespace of the test's own; mark the test ``needs("kubernetes")``."""
    opened = KubernetesField(kube_namespace, tmp_path)
    yield opened
    opened.close()
