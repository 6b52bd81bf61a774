# SPDX-License-Identifier: Apache-2.0
"""docker-compose.yml, Dockerfile, .env.example and ``make env`` fit together; no Docker is needed here."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load(TEXT)
SERVICES = COMPOSE["services"]
# As in Airflow's own file.
AIRFLOWS_NAMES = {
    "postgres",
    "redis",
    "airflow-init",
    "airflow-apiserver",
    "airflow-scheduler",
    "airflow-dag-processor",
    "airflow-worker",
    "airflow-triggerer",
    "flower",
}
OURS = {"embedded-cluster", "kubernetes"}
SECRETS = set(re.findall(r"\$\{(\w+):\?", TEXT))
BUNDLES = "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def values_of(env):
    return dict(line.split("=", 1) for line in env.splitlines() if re.match(r"[A-Z_0-9]+=", line))


def test_services_are_named_as_in_airflows_own_file():
    assert set(SERVICES) == AIRFLOWS_NAMES | OURS
    profiles = {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service}
    assert profiles == {"flower": ["flower"], "kubernetes": ["kubernetes"]}


def test_the_worker_is_ours():
    assert "celery -A workers.celery_app worker" in SERVICES["airflow-worker"]["command"]


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_service_that_lasts_has_a_health_check_and_is_started_again(name):
    service = SERVICES[name]
    if name == "airflow-init":
        assert service["restart"] == "no"
    else:
        assert service["healthcheck"]["test"]
        assert service["restart"] == "unless-stopped"


def test_every_secret_is_asked_for_and_none_has_a_value():
    example = values_of((ROOT / ".env.example").read_text(encoding="utf-8"))

    assert set(example) == SECRETS
    assert set(example.values()) == {""}
    for name in SECRETS:
        assert not re.search(rf"\$\{{{name}(?!:\?run make env\}})", TEXT), name


@pytest.mark.parametrize("name", ["airflow-worker", "embedded-cluster", "flower", "kubernetes"])
def test_what_runs_tasks_knows_neither_the_database_nor_a_key(name):
    text = yaml.safe_dump(SERVICES[name])

    for secret in SECRETS - {"REDIS_PASSWORD", "ADMIN_PASSWORD"}:
        assert secret not in text, (name, secret)


def test_pods_find_dags_where_the_others_do():
    pod = yaml.safe_load(COMPOSE["configs"]["pod-template"]["content"])
    [container] = pod["spec"]["containers"]
    environment = {one["name"]: one["value"] for one in container["env"]}

    common = COMPOSE["x-common-environment"]
    assert environment.items() <= common.items()
    assert yaml.safe_load(environment[BUNDLES]) == yaml.safe_load(common[BUNDLES])
    assert container["image"] == SERVICES["airflow-worker"]["image"]
    assert {one["mountPath"] for one in container["volumeMounts"]} == {
        "/opt/airflow/dags",
        "/opt/airflow/logs",
    }


def test_the_version_of_airflow_is_that_of_the_lock():
    [image] = re.findall(r"^ARG AIRFLOW_IMAGE=(\S+)$", (ROOT / "Dockerfile").read_text(), re.M)
    [pinned] = re.findall(r"^apache-airflow==(\S+)$", (ROOT / "requirements-3.3.txt").read_text(), re.M)

    assert image == f"apache/airflow:{pinned}-python3.12"
    assert SERVICES["airflow-init"]["build"]["args"]["AIRFLOW_IMAGE"] == f"${{AIRFLOW_IMAGE:-{image}}}"
    assert f"#AIRFLOW_IMAGE={image}\n" in (ROOT / ".env.example").read_text()


def test_the_defaults_that_the_example_names_are_those_of_the_file():
    for name, value in re.findall(r"^#(\w+)=(.+)$", (ROOT / ".env.example").read_text(), re.M):
        assert set(re.findall(rf"\$\{{{name}:-([^}}]*)\}}", TEXT)) == {value}, name


def test_the_builder_sees_only_what_the_image_needs():
    copied = re.findall(r"^COPY --chown\S+ (.+) \S+$", (ROOT / "Dockerfile").read_text(), re.M)
    allowed = re.findall(r"^!/(\S+)$", (ROOT / ".dockerignore").read_text(), re.M)

    assert sorted(" ".join(copied).split()) == sorted(allowed)


@pytest.fixture
def checkout(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copy(ROOT / ".env.example", tmp_path)
    return tmp_path


def make_env(folder):
    subprocess.run(["make", "env"], cwd=folder, check=True, capture_output=True)
    return values_of((folder / ".env").read_text(encoding="utf-8"))


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_make_env_writes_new_secrets_for_its_user_alone(checkout, tmp_path):
    secrets = make_env(checkout)

    assert set(secrets) == SECRETS
    assert len(set(secrets.values())) == len(secrets)
    assert all(len(value) >= 24 for value in secrets.values())
    assert len(base64.urlsafe_b64decode(secrets["FERNET_KEY"])) == 32
    assert (checkout / ".env").stat().st_mode & 0o777 == 0o600
    # As they are, they stand in the addresses of the database and of the broker.
    assert all(
        re.fullmatch(r"[0-9a-f]+", secrets[f"{name}_PASSWORD"]) for name in ("POSTGRES", "REDIS", "ADMIN")
    )
    (checkout / ".env").unlink()
    assert not set(make_env(checkout).values()) & set(secrets.values())


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_make_env_keeps_what_is_set(checkout):
    (checkout / ".env").write_text("POSTGRES_PASSWORD=mine\nJWT_SECRET=\nAIRFLOW_PORT=8081\n")

    values = make_env(checkout)

    assert (values["POSTGRES_PASSWORD"], values["AIRFLOW_PORT"]) == ("mine", "8081")
    assert len(values["JWT_SECRET"]) == 64


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_the_pages_name_services_and_profiles_that_exist(page):
    for line in re.findall(r"^ {4}(?:.*\| )?docker compose (.*)$", page.read_text(encoding="utf-8"), re.M):
        command = line.split(" #")[0]
        assert set(re.findall(r"--profile (\S+)", command)) <= {"flower", "kubernetes"}, line
        named = set(
            re.findall(
                r"(?<![\w./=:-])(airflow-[a-z-]+|postgres|redis|embedded-cluster)(?![\w./:-])", command
            )
        )
        assert named <= set(SERVICES), line
