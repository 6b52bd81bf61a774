# SPDX-License-Identifier: Apache-2.0
"""What Airflow is told about this distribution is complete, and true."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from pkgutil import resolve_name

import airflow
import pytest
from jsonschema import Draft7Validator

from dispatcher import __version__
from dispatcher.provider import get_provider_info

INFO = get_provider_info()
# Name and default as promised to users.
CONTRACT = {
    "kubernetes_queue": "kubernetes",
    "callback_queue": "callbacks",
    "callback_backend": "celery",
    "routes": None,
    "routes_file": None,
    "fence": "presented",
    "workload_token_ttl": "0",
    "pod_creation_concurrency": "32",
    "workload_delivery": "args",
    "callback_pod_template_file": None,
    "launch_retention_days": "30",
    "task_relaunches": "3",
    "callback_relaunches": "1",
    "callback_queued_timeout": "0",
    "deployment": None,
}


def test_it_is_what_airflows_schema_asks_for():
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    validator = Draft7Validator(schema)
    assert [error.message for error in validator.iter_errors(INFO)] == []
    assert set(INFO) - set(schema["properties"]) == {"versions"}


def test_name_and_version_are_those_of_the_distribution():
    distribution = metadata.distribution("airflow-hybrid-dispatcher")
    assert INFO["package-name"] == distribution.metadata["Name"]
    assert INFO["versions"] == [__version__]
    assert distribution.version == __version__


@pytest.mark.parametrize(
    "path",
    [
        *INFO["executors"],
        *INFO["db-managers"],
        *INFO["cli"],
        *(plugin["plugin-class"] for plugin in INFO["plugins"]),
    ],
)
def test_what_it_names_exists(path):
    assert callable(resolve_name(path))


def test_the_plugin_is_also_an_entry_point_under_the_same_name():
    (plugin,) = INFO["plugins"]
    (entry_point,) = (
        entry_point
        for entry_point in metadata.entry_points(group="airflow.plugins")
        if entry_point.dist is not None and entry_point.dist.name == "airflow-hybrid-dispatcher"
    )
    assert entry_point.value.replace(":", ".") == plugin["plugin-class"]
    assert entry_point.load().name == plugin["name"]


def test_every_key_of_the_contract_is_declared_with_its_default():
    options = INFO["config"]["dispatcher"]["options"]
    assert {key: option["default"] for key, option in options.items()} == CONTRACT
    for key, option in options.items():
        assert option["description"].endswith(".\n"), key
        assert option["version_added"] == "0.1.0", key


def test_the_example_of_the_routes_is_valid():
    from dispatcher.domain.routing import parse_rules

    assert len(parse_rules(INFO["config"]["dispatcher"]["options"]["routes"]["example"], "example")) == 1
