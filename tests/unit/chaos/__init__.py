# SPDX-License-Identifier: Apache-2.0
"""The chaos run's own code: its plan and its judgement."""

from __future__ import annotations
