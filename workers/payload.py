# SPDX-License-Identifier: Apache-2.0
"""Read the JSON of a workload without ever showing what is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from workers.outcomes import InvalidWorkloadError

if TYPE_CHECKING:
    from airflow.executors.workloads import ExecutorWorkload


def read_workload(payload: str | bytes) -> ExecutorWorkload:
    """Return the workload that the JSON describes.

    :param payload: JSON text of one workload
    :raises InvalidWorkloadError: it is not one; the message names the fields at fault and no values, since
        the payload carries the JWT
    """
    from airflow.executors.workloads import ExecutorWorkload

    adapter: TypeAdapter[ExecutorWorkload] = TypeAdapter(ExecutorWorkload)
    try:
        return adapter.validate_json(payload)
    except ValidationError as exc:
        faults = [
            f"{'.'.join(str(part) for part in error['loc']) or 'payload'}: {error['msg']}"
            for error in exc.errors(include_url=False, include_context=False, include_input=False)
        ]
    # Raised outside the handler: the cause's own text shows the input, and with it the JWT.
    raise InvalidWorkloadError("Not a workload that can be run: " + "; ".join(faults))
