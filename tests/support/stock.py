# SPDX-License-Identifier: Apache-2.0
"""A Python environment like this one, in which this distribution is not installed.

There Airflow is as its users know it: no plugin, no provider of ours, and ``import dispatcher`` and
``import workers`` fail. It is a virtual environment whose packages are links to the ones installed here.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from importlib.metadata import distribution
from pathlib import Path

DISTRIBUTION = "airflow-hybrid-dispatcher"


def make_stock_environment(folder: Path) -> Path:
    """Make the environment in ``folder`` and return its Python interpreter.

    :raises subprocess.CalledProcessError: the virtual environment could not be made.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    paths = {"base": str(folder), "platbase": str(folder)}
    target = Path(sysconfig.get_path("purelib", vars=paths))
    ours = {Path(file).parts[0] for file in distribution(DISTRIBUTION).files or ()}
    for source in {Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("platlib"))}:
        for entry in source.iterdir():
            link = target / entry.name
            if entry.name not in ours and not link.exists():
                link.symlink_to(entry)
    return python
