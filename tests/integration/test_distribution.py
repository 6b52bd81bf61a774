# SPDX-License-Identifier: Apache-2.0
"""What is released: the contents of wheel and sdist, and the wheel where nothing is installed but Airflow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from dispatcher import __version__
from tests.support.only_airflow import make_environment

ROOT = Path(__file__).parents[2]
PACKAGES = ("dispatcher", "workers")
INFO = f"airflow_hybrid_dispatcher-{__version__}.dist-info"
TOP = f"airflow_hybrid_dispatcher-{__version__}"
# What a checkout needs to be tested and started, besides the packages.
CHECKOUT = {
    ".dockerignore",
    ".env.example",
    "Dockerfile",
    "LICENSE",
    "Makefile",
    "README.md",
    "docker-compose.yml",
    "pyproject.toml",
    "requirements-3.3.txt",
    "requirements-3.4.txt",
}
IMPORT_ALL = """
import importlib, json, pkgutil, dispatcher, workers
from importlib import metadata

names = []
for package in (dispatcher, workers):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + ".", onerror=print):
        if not found.name.startswith("dispatcher.local") and ".migrations." not in found.name:
            if not found.name.endswith(("__main__", ".asgi")):
                importlib.import_module(found.name)
                names.append(found.name)
from airflow.providers_manager import ProvidersManager

manager = ProvidersManager()
provider = manager.providers["airflow-hybrid-dispatcher"]
print(json.dumps({
    "modules": len(names),
    "where": dispatcher.__path__[0],
    "provider": [provider.version, provider.data["executors"]],
    "commands": [command.name for function in manager.cli_command_functions for command in function()],
    "plugins": sorted(str(one.name) for one in metadata.entry_points(group="airflow.plugins")),
}))
"""


def build(source, target, *options):
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(target), *options]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    return sorted(target.iterdir())


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """The sdist, and the wheel that is built of it, as a package index gets them."""
    folder = tmp_path_factory.mktemp("released")
    [sdist] = build(ROOT, folder / "sdist", "-t", "sdist")
    with tarfile.open(sdist) as archive:
        # Python 3.11 knows filters from 3.11.4 on only, and Debian 12 has 3.11.2.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)
    [wheel] = build(folder / TOP, folder / "wheel", "-t", "wheel")
    return sdist, wheel


@pytest.fixture(scope="module")
def metadata(released):
    with zipfile.ZipFile(released[1]) as wheel:
        return Parser().parsestr(wheel.read(f"{INFO}/METADATA").decode())


def files_of(package):
    found = (path for path in (ROOT / package).rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in found if "__pycache__" not in path.parts}


def test_the_wheel_holds_both_packages_and_nothing_else(released):
    with zipfile.ZipFile(released[1]) as wheel:
        names = {name for name in wheel.namelist() if not name.startswith(f"{INFO}/")}

    assert names == files_of("dispatcher") | files_of("workers")
    assert {"dispatcher/py.typed", "workers/py.typed", "dispatcher/ledger/alembic.ini"} <= names


def test_the_sdist_is_a_checkout(released):
    with tarfile.open(released[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert names >= CHECKOUT
    assert files_of("dispatcher") | files_of("workers") | files_of("docs") <= names
    assert not [name for name in names if name == ".env" or "__pycache__" in name]


def test_the_metadata_say_what_is_installed_where(released, metadata):
    assert (metadata["Name"], metadata["Version"]) == ("airflow-hybrid-dispatcher", __version__)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload() == (ROOT / "README.md").read_text(encoding="utf-8")
    classifiers = set(metadata.get_all("Classifier"))
    assert {"Framework :: Apache Airflow :: Provider", "Typing :: Typed"} <= classifiers
    for minor in (11, 12, 13):
        assert f"Programming Language :: Python :: 3.{minor}" in classifiers
    assert metadata["Requires-Python"] == "<3.14,>=3.11"
    with zipfile.ZipFile(released[1]) as wheel:
        assert wheel.read(f"{INFO}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
        entry_points = wheel.read(f"{INFO}/entry_points.txt").decode()
    assert "provider_info = dispatcher.provider:get_provider_info" in entry_points
    assert "dispatcher = dispatcher.fence.plugin:DispatcherPlugin" in entry_points


def test_the_changelog_begins_with_this_version():
    changelog = (ROOT / "docs" / "changelog.md").read_text(encoding="utf-8")

    assert changelog.split("\n## ")[1].split()[0] == __version__


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_works_where_only_airflow_is_installed(released, metadata, tmp_path):
    needed = [text for text in metadata.get_all("Requires-Dist") if "extra ==" not in text]
    python = make_environment(tmp_path / "venv", ["apache-airflow", *needed])
    install = ["install", "--quiet", "--no-deps", "--offline", "--python", str(python), str(released[1])]
    subprocess.run([sys.executable, "-m", "uv", "pip", *install], check=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON"))}
    env |= {
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__EXECUTOR": "dispatcher.executor.HybridExecutor",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
        "PYTHONDONTWRITEBYTECODE": "1",
    }

    command = [str(python), "-c", IMPORT_ALL]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert Path(found["where"]).is_relative_to(tmp_path)
    assert found["modules"] > 50
    assert found["provider"] == [__version__, ["dispatcher.executor.HybridExecutor"]]
    assert "dispatcher" in found["plugins"]
    assert "dispatcher" in found["commands"]
