# SPDX-License-Identifier: Apache-2.0
"""The embedded cluster: a Kubernetes API over HTTP whose pods are processes of this machine.

It serves what an executor needs of the core API (pods with logs and watches, secrets, namespaces, events,
nodes) closely enough for the real client, and forgets everything when it ends. One contract suite holds it to
a real API server.

What differs from a real cluster, by design:

* One container of a pod runs, ``base`` or else the first, as a process on this machine: no image, no
  isolation, no resource limits. Pods whose ``restartPolicy`` is not ``Never`` stay Pending.
* The process gets the cluster's own environment and working directory, and the environment of the pod on top.
  ``python`` is the interpreter that runs the cluster, and its directory is first on ``PATH``.
* A volume is a directory of the pod; its mount path is replaced by that directory in command, arguments and
  environment values, since a process cannot have a file system of its own (see ``mounts``).
* Node selectors, affinity, quotas, roles and admission are not looked at: there is one node and one user.
"""

from __future__ import annotations
