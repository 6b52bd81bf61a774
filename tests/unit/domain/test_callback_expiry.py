# SPDX-License-Identifier: Apache-2.0
"""Which launches have waited too long for a worker that claims them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dispatcher.domain.lifecycle import BackendName, LaunchKind, LaunchState
from dispatcher.domain.protocol import has_expired
from tests.support.launches import build_launch

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LONG = timedelta(seconds=121)


@pytest.mark.parametrize(
    ("columns", "expired"),
    [
        pytest.param({}, True, id="message"),
        pytest.param({"state": LaunchState.ISSUED}, True, id="not sent"),
        pytest.param({"issued_at": NOW - LONG / 2}, False, id="in time"),
        pytest.param({"state": LaunchState.CLAIMED}, False, id="claimed"),
        pytest.param({"state": LaunchState.FAILED}, False, id="ended"),
        pytest.param({"kind": LaunchKind.TASK}, False, id="task"),
        pytest.param({"backend": BackendName.KUBERNETES}, True, id="no pod yet"),
        pytest.param({"backend": BackendName.KUBERNETES, "external_id": "a/b"}, False, id="pod"),
        pytest.param(
            {"backend": BackendName.KUBERNETES, "external_id": "a/b", "issued_at": NOW - 2 * LONG},
            True,
            id="pod, for very long",
        ),
    ],
)
def test_what_has_expired(columns, expired):
    values = {"kind": LaunchKind.CALLBACK, "state": LaunchState.SUBMITTED, "issued_at": NOW - LONG}
    launch = build_launch(**(values | columns))
    assert has_expired(launch, NOW, timedelta(seconds=120)) is expired
