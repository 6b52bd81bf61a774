# SPDX-License-Identifier: Apache-2.0
"""Which pod a claim came from: the one name that worker and backend agree on (rule 13).

A pod's name and hostname prove nothing: a pod that is created again has the same ones, and with the host's
network the hostname is the node's. Its uid is new each time. The pod learns it from the downward API, the
guard makes it the beginning of the nonce, and the backend finds it again in the pod that ended. The nonce
goes on with something of its own for each start, since a node that lost its memory may start a pod twice
(rule 7).
"""

from __future__ import annotations

from dispatcher.domain.launch import claimant_from_nonce

POD_UID_VARIABLE = "AIRFLOW_LAUNCH_POD_UID"
"""Environment variable of the container ``base`` with the uid of its pod."""


def nonce_in_pod(pod_uid: str, start: str) -> str:
    """Return the nonce of one start of a pod, for ``Airflow-Launch-Claimant``.

    :param pod_uid: what ``POD_UID_VARIABLE`` holds
    :param start: is different in each start
    """
    return f"{pod_uid}/{start}"


def claimants_of_pod(pod_uid: str) -> str:
    """Return how the name of every claimant begins that ran in this pod.

    :param pod_uid: ``metadata.uid``
    """
    return claimant_from_nonce(f"{pod_uid}/")
