# SPDX-License-Identifier: Apache-2.0
"""What Airflow's provider manager is told about this distribution.

Airflow reads this on every command, so nothing of Airflow or of ours is imported but the version.
"""

from __future__ import annotations

from typing import Any

from dispatcher import __version__


def get_provider_info() -> dict[str, Any]:
    """Describe this distribution in the form that Airflow's provider manager validates.

    ``package-name`` must equal the distribution's name, or Airflow refuses to load any provider.
    """
    return {
        "package-name": "airflow-hybrid-dispatcher",
        "name": "Hybrid Dispatcher",
        "description": "One executor over Celery and Kubernetes in which every launch carries one token.",
        "versions": [__version__],
        "executors": ["dispatcher.executor.HybridExecutor"],
        "db-managers": ["dispatcher.ledger.manager.DispatcherDBManager"],
        "plugins": [{"name": "dispatcher", "plugin-class": "dispatcher.fence.plugin.DispatcherPlugin"}],
        "cli": ["dispatcher.cli.definition.get_dispatcher_cli_commands"],
        "config": {
            "dispatcher": {
                "description": (
                    "These settings apply where ``dispatcher.executor.HybridExecutor`` is an executor of\n"
                    "``[core] executor``. Broker, result back end and worker options are those of\n"
                    "``[celery]``; cluster, namespace, images and pod templates are those of\n"
                    "``[kubernetes_executor]``.\n"
                ),
                "options": {**_routing_options(), **_launch_options()},
            }
        },
    }


def _routing_options() -> dict[str, dict[str, Any]]:
    return {
        "kubernetes_queue": _option(
            "Tasks of this queue go to Kubernetes. Where it is not set but\n"
            "``[celery_kubernetes_executor] kubernetes_queue`` is, that one counts.\n",
            default="kubernetes",
        ),
        "callback_queue": _option(
            "The Celery queue of callbacks. A worker has to consume it for them to run.\n",
            default="callbacks",
        ),
        "callback_backend": _option(
            "Where callbacks go when no rule says otherwise: ``celery`` or ``kubernetes``.\n",
            default="celery",
        ),
        "routes": _option(
            "Routing rules as a JSON list; the first that matches wins, the built-in rules come last.\n"
            'A rule is ``{"match": {...}, "backend": "celery" or "kubernetes", "queue": "..."}``; without\n'
            "``queue`` the workload keeps its own. Conditions: ``kind`` (``task``, ``callback`` or\n"
            "``test_connection``); ``queue``, ``dag_id``, ``task_id``, ``run_id``, ``pool``, ``team`` and\n"
            "``callback`` (the import path) as shell globs; ``has_pod_override`` (true or false);\n"
            "``min_priority`` (a number). An invalid rule stops the executor at start.\n",
            example='[{"match": {"dag_id": "train_*"}, "backend": "kubernetes"}]',
        ),
        "routes_file": _option(
            "Path of a file that holds the JSON list of routing rules, instead of ``routes``.\n",
            example="/opt/airflow/config/routes.json",
        ),
    }


def _launch_options() -> dict[str, dict[str, Any]]:
    return {
        "fence": _option(
            "What the fence does with a call that brings no launch token. ``presented``: it is judged by\n"
            "the state of the task instance alone, as a rolling upgrade needs it. ``required``: a launch\n"
            "that is open and not claimed is started with its token only, and a launch that a guarded\n"
            "worker claimed takes later calls with its token only.\n",
            default="presented",
        ),
        "workload_token_ttl": _option(
            "Seconds that a sent workload may wait before it can no longer start. 0 means twice\n"
            "``[scheduler] task_queued_timeout``: by then Airflow has queued the task anew anyway; or twice\n"
            "``callback_queued_timeout``, if that is more.\n",
            type_="float",
            default="0",
        ),
        "pod_creation_concurrency": _option(
            "How many pod creations may be in flight at once, from 1 to 1000.\n",
            type_="integer",
            default="32",
        ),
        "workload_delivery": _option(
            "How a pod gets its workload. ``args``: in its arguments, as with the stock executor.\n"
            "``secret``: in a Secret that the pod owns, so that who may read pods learns no token; needs\n"
            "the right to create Secrets.\n",
            default="args",
        ),
        "callback_pod_template_file": _option(
            "Path of the template of the pods that run callbacks. They need less than tasks: give them\n"
            "requests of their own here. Where it is not set, the base template is used.\n",
            example="/opt/airflow/config/callback_pod.yaml",
        ),
        "launch_retention_days": _option(
            "Launches that ended more than this many days ago are removed from the ledger.\n",
            type_="integer",
            default="30",
        ),
        "task_relaunches": _option(
            "How often a task that was lost before it was claimed is launched again, for a reason that is\n"
            "not its own: its pod was evicted or deleted, its image could not be pulled, its node went\n"
            "away. No retry of the task is used.\n",
            type_="integer",
            default="3",
        ),
        "callback_relaunches": _option(
            "How often a callback that was lost before it was claimed is launched again.\n",
            type_="integer",
            default="1",
        ),
        "callback_queued_timeout": _option(
            "Seconds that a callback may wait for a worker or a pod that starts it, before it is failed.\n"
            "0 means ``[scheduler] task_queued_timeout``. It never waits longer than its token is good, see\n"
            "``workload_token_ttl``.\n",
            type_="float",
            default="0",
        ),
        "deployment": _option(
            "Tells deployments that share a namespace apart: the value of the pod label\n"
            "``airflow-deployment``. Where it is not set, it is ten hex digits made from the address of the\n"
            "metadata database without its credentials.\n",
            example="production",
        ),
    }


def _option(
    description: str, *, type_: str = "string", default: str | None = None, example: str | None = None
) -> dict[str, Any]:
    return {
        "description": description,
        "version_added": "0.1.0",
        "type": type_,
        "example": example,
        "default": default,
    }
