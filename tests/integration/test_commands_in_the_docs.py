# SPDX-License-Identifier: Apache-2.0
"""What README.md and docs/ tell people to type works.

A command runs here, or ``NOT_RUN`` says why it does not and what runs it instead. A command that is in
neither fails, and so does one that no page has any more.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import import_module

import pytest
from sqlalchemy import select

from dispatcher.backends.kubernetes.identity import STOCK_EXECUTOR, Owner, make_labels
from dispatcher.domain.lifecycle import LaunchState
from dispatcher.ledger.models import LaunchRow
from dispatcher.provider import get_provider_info
from tests.support.backend_harness import make_submission
from tests.support.launches import add_launch
from tests.support.pages import ROOT, blocks, commands, is_of_commands, spans

COMMANDS = {
    command.text: command for block in blocks() if is_of_commands(block) for command in commands(block)
}

EXAMPLES = "DISPATCHER_PROTOCOL_EXAMPLES"
WHOLE_AIRFLOW = "starts a whole Airflow, for a minute or until Ctrl-C: tests/e2e/test_local_mode.py"
INSTALLS = "installs, for minutes: tests/integration/test_distribution.py installs the wheel and uses it"
DOCKER = "needs Docker and the images: tests/e2e/compose"
CLUSTER = "needs kubectl and a cluster; its labels are checked below"
SERVES = "serves until it is told to end: tests/integration/local runs it on other ports"
NOT_RUN = {
    "make demo": WHOLE_AIRFLOW,
    "make up": WHOLE_AIRFLOW,
    "make test": "runs this test",
    "make chaos SEED=1 MINUTES=5": "takes minutes and needs services: tests/unit/chaos has its parts",
    "make env": "writes into the checkout: tests/unit/test_compose_file.py runs it on a copy",
    "grep ADMIN_PASSWORD .env": "reads what that writes, in the checkout",
    "pip install .": INSTALLS,
    "pip wheel --no-deps --wheel-dir dist .": INSTALLS,
    "pip install dist/airflow_hybrid_dispatcher-*.whl": INSTALLS,
    "airflow db migrate": "takes long: tests/integration/test_ledger_migration.py runs it on empty databases",
    "celery -A workers.celery_app worker -Q default,callbacks": (
        "runs until it is told to end: tests/integration/workers/test_celery_worker.py runs it with a broker"
    ),
    "python -m dispatcher.local.broker": SERVES,
    "python -m dispatcher.local.cluster --kubeconfig kubeconfig.yaml": SERVES,
    "uvicorn dispatcher.fence.asgi:app --host 0.0.0.0 --port 9091 --workers 4": (
        "serves until it is told to end: tests/integration/test_fence_probe.py runs it on another port"
    ),
    f"{EXAMPLES}=5000 "
    "python -m pytest --timeout=3600 tests/unit/protocol_model/test_protocol_model.py": "takes an hour",
    "docker compose up --build --wait": DOCKER,
    "docker compose exec airflow-apiserver airflow dags unpause hybrid_tour": DOCKER,
    "docker compose exec airflow-apiserver airflow dags trigger hybrid_tour": DOCKER,
    "docker compose exec airflow-apiserver airflow dispatcher launches list": DOCKER,
    "docker compose up --wait --scale airflow-scheduler=2": DOCKER,
    "docker compose kill airflow-worker": DOCKER,
    "docker compose restart redis": DOCKER,
    "docker compose restart embedded-cluster": DOCKER,
    "docker compose up --wait": DOCKER,
    "docker compose stop": DOCKER,
    "docker compose down": DOCKER,
    "docker compose down --volumes": DOCKER,
    "docker compose --profile kubernetes up --build --wait": DOCKER,
    "docker save airflow-hybrid-dispatcher:local": DOCKER,
    "docker compose --profile kubernetes exec -T kubernetes ctr images import -": DOCKER,
    "docker compose --profile kubernetes exec kubernetes kubectl get pods": DOCKER,
    "kubectl get pods -l airflow-executor=hybrid-dispatcher,dag_id=my_dag": CLUSTER,
    "kubectl logs -l airflow-launch-token=0b7e4a54-55f5-4f0e-8d1a-1f8f0a6e0001": CLUSTER,
}
NOT_OF_THIS_AIRFLOW = {"airflow tasks run ...": "what pods of Airflow 2 ran"}

ETL = {"dag_id": "etl", "task_id": "load", "run_id": "manual__2026-01-01T00:00:00+00:00"}
FAILED = {"dag_id": "train_model", "state": LaunchState.FAILED}
LIST = "airflow dispatcher launches list"
LISTED = {
    f"{LIST} --open": ["etl"],
    f"{LIST} --dag-id etl --task-id load": ["etl"],
    f"{LIST} --dag-id etl --task-id load --run-id manual__2026-01-01T00:00:00+00:00": ["etl"],
    f"{LIST} --dag-id train_model --state failed,lost --output json": ["train_model"],
}
"""The DAGs whose launches a list shows, of two that there are."""
REVOKE = (
    'airflow dispatcher launches revoke 3a46dc6a-c2b0-4e7c-a49a-5352579da23d --reason "the node is on fire"'
)
CONFIG_LIST = "airflow config list --section dispatcher --defaults --show-values --include-descriptions"
HANDOVER = "airflow dispatcher handover"
HEALTH = "python -m workers.health"
NOTHING_TO_RUN = [
    "python -m workers.pod --json-path FILE",
    "python -m workers.pod --json-string JSON",
    "python -m workers.pod --json-string <workload>",
]
RUN = {*LISTED, REVOKE, CONFIG_LIST, HANDOVER, HEALTH, *NOTHING_TO_RUN}
CLOSED_PORT = "redis://127.0.0.1:1/0"


@pytest.fixture
def airflow(airflow_db, capsys):
    """Return a function that runs a command of a page in this process and returns what it printed."""
    from airflow.cli.cli_parser import get_parser

    def run(text):
        arguments = get_parser().parse_args(COMMANDS[text].argv[1:])
        arguments.func(arguments)
        return capsys.readouterr().out

    return run


def test_each_command_runs_here_or_is_known_not_to():
    to_type = {text for text, command in COMMANDS.items() if command.argv}
    new = {text: COMMANDS[text].where for text in to_type - RUN - NOT_RUN.keys()}
    assert not new, "run them here, or say in NOT_RUN why not"
    assert RUN | NOT_RUN.keys() <= to_type, "no page has these any more"
    assert not RUN & NOT_RUN.keys()


def test_what_runs_the_others_is_there():
    for reason in NOT_RUN.values():
        for path in re.findall(r"tests/[\w/.]+\w", reason):
            assert (ROOT / path).exists(), reason


def test_the_settings_are_listed(airflow):
    printed = airflow(CONFIG_LIST)

    for key, option in get_provider_info()["config"]["dispatcher"]["options"].items():
        assert f"# {key} = {option['default'] or ''}\n" in printed
        assert option["description"].strip().splitlines()[0] in printed


@pytest.mark.parametrize("text", LISTED)
def test_launches_are_listed(airflow, db_session, text):
    launches = {"etl": add_launch(db_session, **ETL), "train_model": add_launch(db_session, **FAILED)}
    tokens = {name: launch.token for name, launch in launches.items()}
    db_session.commit()

    printed = airflow(text)

    assert [name for name, token in tokens.items() if token[:8] in printed] == LISTED[text]


def test_a_launch_is_revoked(airflow, db_session):
    token = COMMANDS[REVOKE].argv[4]
    add_launch(db_session, token=token)
    db_session.commit()

    airflow(REVOKE)

    row = db_session.scalars(select(LaunchRow).where(LaunchRow.token == token)).one()
    assert row.state == LaunchState.REVOKED
    assert row.end_reason.endswith(": the node is on fire")


def test_nothing_is_handed_over_where_there_is_nothing(airflow):
    assert "0 tasks" in airflow(HANDOVER)


def test_the_probe_says_that_there_is_no_broker():
    done = subprocess.run(
        [sys.executable, *COMMANDS[HEALTH].argv[1:]],
        env={**os.environ, "AIRFLOW__CELERY__BROKER_URL": CLOSED_PORT},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert done.returncode == 1, done.stderr
    assert re.fullmatch(r"celery@\S+ is not known: the broker \S+:1/0 does not answer \(\w+\)\n", done.stdout)


@pytest.mark.parametrize("text", NOTHING_TO_RUN)
def test_a_pod_reads_the_argument_and_says_that_it_is_no_workload(text, capsys):
    _, _, module, *arguments = COMMANDS[text].argv

    assert import_module(module).main(arguments) == 2
    assert capsys.readouterr().err.startswith("Cannot read the workload: ")


@pytest.mark.parametrize("text", [text for text, command in COMMANDS.items() if command.variables])
def test_variables_that_are_set_are_settings_of_airflow(text):
    from airflow.configuration import conf

    for name in COMMANDS[text].variables.keys() - {EXAMPLES}:
        section, key = re.fullmatch(r"AIRFLOW__([A-Z_]+?)__([A-Z_]+)", name).groups()
        assert conf.has_option(section.lower(), key.lower()), name


def named_airflow_commands():
    """Every command of Airflow that a page names, in a block (for a container, too) or in backticks."""
    for command in COMMANDS.values():
        if "airflow" in command.argv:
            yield command.argv[command.argv.index("airflow") + 1 :]
    for _, span in spans():
        if span.startswith("airflow ") and span not in NOT_OF_THIS_AIRFLOW:
            yield tuple(span.removesuffix(" ...").split()[1:])


def test_commands_of_airflow_that_are_named_exist_with_their_options(capsys):
    from airflow.cli.cli_parser import get_parser

    for words in sorted(set(named_airflow_commands())):
        # Help is shown, and nothing else, once the words before it name a command.
        with pytest.raises(SystemExit) as caught:
            get_parser().parse_args([*words, "--help"])
        shown = capsys.readouterr()
        assert caught.value.code == 0, f"airflow {' '.join(words)}: {shown.err}"
        for option in (word for word in words if word.startswith("-")):
            assert re.search(rf"(?<![\w-]){option}\b", shown.out), f"airflow {' '.join(words)}"


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_targets_of_make_that_are_named_exist():
    named = {command.text for command in COMMANDS.values() if command.argv[:1] == ("make",)}
    named |= {span for _, span in spans() if re.match(r"make [^&]+$", span)}
    # What a target would do is printed, and nothing is done.
    for text in sorted(named):
        done = subprocess.run(
            ["make", "--dry-run", *text.split()[1:]], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{text}: {done.stderr}"


def test_labels_that_pods_are_selected_by_are_those_of_pods():
    labels = make_labels(make_submission(), Owner("1", "deployment", "team")).keys() | {STOCK_EXECUTOR}
    texts = [*COMMANDS, *(span for _, span in spans())]
    for text in (text for text in texts if text.startswith("kubectl ") and " -l " in text):
        for term in text.split(" -l ")[1].split()[0].split(","):
            assert term.lstrip("!").partition("=")[0] in labels, text
