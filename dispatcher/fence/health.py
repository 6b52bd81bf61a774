# SPDX-License-Identifier: Apache-2.0
"""The probe by which the executor learns that an API server has the fence."""

from __future__ import annotations

from airflow.configuration import conf
from fastapi import APIRouter

from dispatcher import __version__
from dispatcher.settings import load_fence_mode

router = APIRouter()


@router.get("/health")
def health() -> dict[str, str]:
    """Say that the fence is active, in which mode, and in which version. Asks for no authentication."""
    return {"fence": "active", "mode": load_fence_mode(conf).value, "version": __version__}
