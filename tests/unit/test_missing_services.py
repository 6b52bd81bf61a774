# SPDX-License-Identifier: Apache-2.0
"""A test whose service is missing is skipped by name, or fails where the service is required."""

from __future__ import annotations

import pytest

from tests.support import services


class Item:
    nodeid = "test_x.py::test_x"

    def __init__(self, *names):
        self.names = names

    def iter_markers(self, name):
        assert name == "needs"
        return [pytest.mark.needs(*self.names).mark]


@pytest.fixture(autouse=True)
def _no_redis(monkeypatch):
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.delenv(services.REQUIRE_VARIABLE, raising=False)
    services.missing.cache_clear()
    yield
    services.missing.cache_clear()


def test_skips_by_name():
    with pytest.raises(pytest.skip.Exception, match="service redis is missing: REDIS_URL is not set"):
        services.enforce(Item("redis"))


def test_fails_where_required(monkeypatch):
    monkeypatch.setenv(services.REQUIRE_VARIABLE, "redis, postgres")

    with pytest.raises(pytest.fail.Exception, match="required service redis is missing"):
        services.enforce(Item("redis"))


def test_names_a_server_that_does_not_answer(monkeypatch):
    monkeypatch.setenv("REDIS_URL", "redis://:secret@127.0.0.1:1/0")

    assert services.missing("redis") == "no answer at REDIS_URL (ConnectionError)"


def test_refuses_services_it_does_not_know(monkeypatch):
    with pytest.raises(pytest.UsageError, match="needs 'reddis'"):
        services.enforce(Item("reddis"))
    monkeypatch.setenv(services.REQUIRE_VARIABLE, "reddis")
    with pytest.raises(pytest.UsageError, match="unknown services"):
        services.enforce(Item())
