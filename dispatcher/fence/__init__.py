# SPDX-License-Identifier: Apache-2.0
"""The API-server side: refuses claims and later calls of launches that are not current."""

from __future__ import annotations
