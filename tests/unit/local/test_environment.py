# SPDX-License-Identifier: Apache-2.0
"""What the processes of a local stack find in their environment."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dispatcher.domain.routing import parse_rules
from dispatcher.local import environment
from dispatcher.local.environment import Folder
from dispatcher.local.services import Cluster, Database

FOLDER = Folder(Path("/stack"))
API = "http://127.0.0.1:1"
DATABASE = Database(url="sqlite:////stack/metadata.db", async_url="sqlite+aiosqlite:////stack/metadata.db")
CLUSTER = Cluster(kubeconfig=Path("/k"), namespace="n", pod_template=Path("/t"))


def scheduler_side():
    return environment.scheduler_side(FOLDER, API, DATABASE, CLUSTER)


@pytest.mark.parametrize("name", ["AIRFLOW_HOME", "AIRFLOW__CORE__EXECUTOR", "_AIRFLOW_X", "KUBECONFIG"])
def test_another_airflow_does_not_leak_in(name):
    assert environment.process_environment({name: "x", "HOME": "/h"}, FOLDER).keys() == {
        "HOME",
        "NO_PROXY",
        "PYTHONUNBUFFERED",
        "no_proxy",
    }


def test_a_proxy_is_not_asked_for_the_loopback_address():
    env = environment.process_environment({"no_proxy": "example.org", "HTTP_PROXY": "http://proxy"}, FOLDER)

    assert env["no_proxy"] == "example.org,127.0.0.1,localhost"
    assert env["NO_PROXY"] == "127.0.0.1,localhost"


def test_workers_get_neither_database_nor_secrets():
    workers = {
        **environment.everywhere(FOLDER, API, {}),
        **environment.celery("redis://127.0.0.1/0"),
        **environment.in_place("celery"),
    }
    held_back = {
        name: value for name, value in scheduler_side().items() if "DATABASE" in name or "KEY" in name
    }

    assert len(held_back) == 4
    assert not workers.keys() & scheduler_side().keys()
    assert not set(workers.values()) & {
        *held_back.values(),
        scheduler_side()["AIRFLOW__API_AUTH__JWT_SECRET"],
    }


def test_secrets_are_new_for_each_stack():
    one, other = scheduler_side(), scheduler_side()

    differing = {name for name in one if one[name] != other[name]}
    assert differing == {
        "AIRFLOW__API__SECRET_KEY",
        "AIRFLOW__API_AUTH__JWT_SECRET",
        "AIRFLOW__CORE__FERNET_KEY",
    }


def test_the_routes_are_valid_and_send_the_callback_to_kubernetes():
    (rule,) = parse_rules(json.dumps(environment.ROUTES), "the stack's routes")

    assert rule.backend == "kubernetes"
    assert rule.match.callback == "*_on_kubernetes"


def test_further_settings_win():
    env = environment.everywhere(FOLDER, API, {"AIRFLOW__CORE__EXECUTOR": "mine"})

    assert env["AIRFLOW__CORE__EXECUTOR"] == "mine"


def test_example_dags_are_those_of_the_package():
    assert (Path(environment.example_dags()) / "hybrid_tour.py").is_file()


def test_where_bytecode_is_not_kept_it_is_kept_for_the_stack():
    env = environment.process_environment({"PYTHONDONTWRITEBYTECODE": "1"}, FOLDER)

    assert "PYTHONDONTWRITEBYTECODE" not in env
    assert env["PYTHONPYCACHEPREFIX"] == "/stack/bytecode"
    assert environment.pods("/venv/bin/python3", env)["PYTHONPYCACHEPREFIX"] == "/stack/bytecode"


def test_python_on_the_path_of_pods_is_the_given_one():
    env = environment.pods("/venv/bin/python3", {"PATH": "/bin", "OTHER": "x"})

    assert env == {"PATH": f"/venv/bin{os.pathsep}/bin", "DISPATCHER_EXAMPLE_PLACE": "kubernetes"}
