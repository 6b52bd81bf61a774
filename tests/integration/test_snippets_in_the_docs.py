# SPDX-License-Identifier: Apache-2.0
"""What README.md and docs/ show beside commands is what Airflow, the cluster and the database can read.

Each block is of one of the kinds below, or it begins as ``PRINTED`` or ``DRAWN`` say; any other fails.
"""

from __future__ import annotations

import configparser
import json
import re
from importlib.util import find_spec

import pytest
import yaml

from dispatcher.domain.routing import parse_rules
from dispatcher.domain.wire import RefusalReason
from dispatcher.settings import load
from tests.support.pages import ROOT, blocks, commands, is_of_commands

PRINTED = {
    "The Celery broker is away: no connection to the broker: ": {
        "dispatcher/backends/celery/backend.py": "The Celery broker",
        "dispatcher/backends/celery/chores.py": "%s is away: %s",
        "dispatcher/backends/celery/publisher.py": "no connection to the broker: {describe(exc)}",
    },
    "Launches wait in the Celery queue ": {
        "dispatcher/backends/celery/lookout.py": (
            "Launches wait in the Celery queue %r%s, and no worker consumes it (%s): start one with -Q %s."
        )
    },
    "Pods of namespace airflow are not seen": {
        "dispatcher/backends/kubernetes/watch.py": "Pods of %s are not seen at the moment: %s",
    },
    "container base: OOMKilled, exit code 137": {
        "tests/unit/kubernetes/test_kubernetes_endings.py": "container base: OOMKilled, exit code 137",
        "dispatcher/backends/kubernetes/diagnosis.py": "exit code {code}",
    },
    "celery@worker-1 consumes ": {"workers/health.py": "consumes {queues}"},
    "Launch 0d1a… of task 0193… was refused": {
        "workers/outcomes.py": "%s was refused at the claim (%s); nothing was run."
    },
    "Launch 0d1a… of task 0193… was stopped": {
        "workers/outcomes.py": "%s was stopped by the API server (%s)."
    },
}
"""Beginnings of what a program prints: where the words come from, as they stand there."""

DRAWN = ("issued ──>", "scheduler                          broker / cluster               worker or pod")

SNIPPETS = {block.where: block.text for block in blocks() if not is_of_commands(block)}


def of_kind(pattern):
    """Give the test every snippet that begins so."""
    matching = [where for where, text in SNIPPETS.items() if re.match(pattern, text)]
    return pytest.mark.parametrize("where", matching)


INI, JSON, SQL, PROBE = r"\[\w+\]\n", r"\{\"|\[\{", r"SELECT ", r"livenessProbe:\n"


def test_each_block_is_of_a_kind_that_is_checked():
    beginnings = (*PRINTED, *DRAWN)
    for where, text in SNIPPETS.items():
        kinds = [kind for kind in (INI, JSON, SQL, PROBE) if re.match(kind, text)]
        known = [beginning for beginning in beginnings if text.startswith(beginning)]
        assert len(kinds) + len(known) == 1, f"{where}: of no kind that is checked\n{text}"
    for beginning in beginnings:
        assert any(text.startswith(beginning) for text in SNIPPETS.values()), f"no page shows: {beginning}"


@pytest.mark.parametrize("beginning", PRINTED)
def test_what_is_printed_is_what_the_code_says(beginning):
    [text] = [text for text in SNIPPETS.values() if text.startswith(beginning)]
    for path, words in PRINTED[beginning].items():
        assert words in (ROOT / path).read_text(encoding="utf-8"), path
        pattern = re.sub(r"%s|%r|\\\{.+?\\\}", ".*", re.escape(words))
        assert re.search(pattern, text), words


@of_kind(INI)
def test_settings_are_read_by_airflow_and_make_sense(where, monkeypatch):
    from airflow.configuration import AirflowConfigParser, conf
    from airflow.executors.executor_loader import ExecutorLoader

    monkeypatch.delenv("AIRFLOW__CORE__EXECUTOR")  # would win
    sections = configparser.ConfigParser(interpolation=None)
    sections.read_string(SNIPPETS[where])
    settings = AirflowConfigParser()
    settings.read_string(SNIPPETS[where])

    for section in sections.sections():
        for key in sections[section]:
            value = settings.get(section, key)
            match section, key:
                case "dispatcher", "routes":
                    assert load(settings, conf).rules
                case "core", "executor":
                    for name in value.split(","):
                        assert name in ExecutorLoader.executors or find_spec(name.rpartition(".")[0])
                case "celery", "extra_celery_config":
                    for module in settings.getjson(section, key)["imports"]:
                        assert find_spec(module)
                case _:
                    pytest.fail(f"{where}: nothing checks [{section}] {key}")


@of_kind(JSON)
def test_json_is_what_is_read_or_answered(where):
    from dispatcher.fence.health import health

    match json.loads(SNIPPETS[where]):
        case [*_]:
            assert parse_rules(SNIPPETS[where], where)
        case {"detail": {"reason": reason, "message": str()}}:
            assert reason in list(RefusalReason)
        case {"fence": _} as answer:
            assert answer == health()
        case _:
            pytest.fail(f"{where}: nothing checks this")


@of_kind(SQL)
def test_queries_are_understood(where, db_session):
    from sqlalchemy import text

    assert db_session.execute(text(SNIPPETS[where])).all() == []


@of_kind(PROBE)
def test_a_probe_has_the_fields_and_the_time_that_the_command_needs(where):
    from kubernetes.client import V1ExecAction, V1Probe

    from workers.health import _parser

    probe = yaml.safe_load(SNIPPETS[where])["livenessProbe"]
    to_type = {command.argv for block in blocks() if is_of_commands(block) for command in commands(block)}
    longest = _parser().parse_args([])

    assert probe.keys() <= set(V1Probe.attribute_map.values())
    assert probe["exec"].keys() <= set(V1ExecAction.attribute_map.values())
    assert tuple(probe["exec"]["command"]) in to_type
    assert probe["timeoutSeconds"] > longest.idle + 3 * longest.timeout
