# SPDX-License-Identifier: Apache-2.0
"""The stack of docker-compose.yml, from nothing to nothing; `make e2e-compose` runs it."""

from __future__ import annotations
