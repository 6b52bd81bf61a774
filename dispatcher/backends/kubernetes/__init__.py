# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes backend: one pod per launch, named after the launch token."""

from __future__ import annotations
