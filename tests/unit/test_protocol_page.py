# SPDX-License-Identifier: Apache-2.0
"""The page of the protocol rules names every rule once, and files that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")


def test_it_names_every_rule_in_order():
    assert [int(number) for number in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)] == list(range(1, 21))


def test_it_names_files_that_exist():
    paths = set(re.findall(r"`((?:dispatcher|workers|tests)/[\w/.]+)`", PAGE))
    assert paths
    assert not [path for path in sorted(paths) if not (ROOT / path).exists()]
