# SPDX-License-Identifier: Apache-2.0
"""A Python environment with nothing but given distributions and what they need, made of links to this one."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Collection, Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement


def make_environment(folder: Path, requirements: Iterable[str]) -> Path:
    """Make the environment in ``folder`` and return its Python interpreter.

    :param requirements: as a wheel's metadata lists them; what only an extra needs is left out
    :raises AssertionError: one of them is not installed here in a version that satisfies it
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    target = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    for one in _with_all_they_need(requirements):
        for top in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            if not (target / top).exists():
                (target / top).symlink_to(Path(str(one.locate_file(top))))
    return folder / "bin" / "python"


def _with_all_they_need(requirements: Iterable[str]) -> Collection[Distribution]:
    found: dict[str, Distribution] = {}
    seen: set[str] = set()
    waiting = [(Requirement(text), frozenset({""})) for text in requirements]
    while waiting:
        wanted, extras = waiting.pop()
        if wanted.marker and not any(wanted.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        if (key := f"{wanted.name}[{sorted(wanted.extras)}]") in seen:
            continue
        seen.add(key)
        try:
            one = distribution(wanted.name)
        except PackageNotFoundError:
            raise AssertionError(f"{wanted} is not installed") from None
        assert wanted.specifier.contains(one.version, prereleases=True), (
            f"{wanted}: {one.version} is installed"
        )
        found[one.metadata["Name"]] = one
        waiting += [(Requirement(text), frozenset({"", *wanted.extras})) for text in one.requires or ()]
    return found.values()
