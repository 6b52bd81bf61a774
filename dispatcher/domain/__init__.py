# SPDX-License-Identifier: Apache-2.0
"""Launch states and transitions, workload view, routing rules, outcomes and errors: pure, no I/O."""

from __future__ import annotations
