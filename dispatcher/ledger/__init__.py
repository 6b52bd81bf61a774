# SPDX-License-Identifier: Apache-2.0
"""The only code that reads or writes the table of launches."""

from __future__ import annotations
