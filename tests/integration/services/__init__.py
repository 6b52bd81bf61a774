# SPDX-License-Identifier: Apache-2.0
"""Races on real services: the executor with its own backends, real workers and real API servers."""

from __future__ import annotations
