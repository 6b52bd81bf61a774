# SPDX-License-Identifier: Apache-2.0
"""The worker side in processes of its own, against a server that answers as the fence does."""

from __future__ import annotations
