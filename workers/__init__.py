# SPDX-License-Identifier: Apache-2.0
"""The worker side: present the launch token, and turn a refusal into a clean exit."""

from __future__ import annotations
