# SPDX-License-Identifier: Apache-2.0
"""A copy of what users get, in a folder of its own, run by Docker Compose under a project name of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
COMPOSE_FILE = ROOT / "docker-compose.yml"
FILES = (".dockerignore", ".env.example", "Dockerfile", "LICENSE", "Makefile", "README.md", "pyproject.toml")
PACKAGES = ("dispatcher", "workers")
OVERRIDE = "override.yml"
EXTRA_VARIABLE = "DISPATCHER_TESTS_COMPOSE_OVERRIDE"
"""Environment variable with the path of a Compose file that a machine needs on top, for builds or limits."""

COMMAND_SECONDS = 900
_FOREIGN = ("AIRFLOW", "COMPOSE")


def base_images() -> list[str]:
    """Return the images that the default profile needs from a registry."""
    services = yaml.safe_load(COMPOSE_FILE.read_text(encoding="utf-8"))["services"].values()
    named = [service["image"] for service in services if not service.get("profiles") and "image" in service]
    base = re.search(r"^ARG AIRFLOW_IMAGE=(\S+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.M)
    assert base is not None
    return sorted({image for image in named if "$" not in image} | {base[1]})


def missing() -> str | None:
    """Say what of Docker the stack needs and is not here; None when all is there."""
    for command in (["docker", "info"], ["docker", "compose", "version"], ["make", "--version"]):
        if shutil.which(command[0]) is None:
            return f"there is no command {command[0]}"
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return f"`{' '.join(command)}` fails"
    wanted = base_images()
    found = subprocess.run(["docker", "image", "inspect", *wanted], capture_output=True, check=False)
    return f"not all of the images {', '.join(wanted)} are here" if found.returncode else None


class Compose:
    """One Compose project in a fresh copy of the files that users get.

    :param folder: where to copy them; must not exist
    :param project: name of the project
    """

    def __init__(self, folder: Path, project: str) -> None:
        self.folder = folder
        self.project = project
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)},
            "COMPOSE_PROJECT_NAME": project,
        }
        folder.mkdir()
        shutil.copy(COMPOSE_FILE, folder)
        for name in FILES:
            shutil.copy(ROOT / name, folder)
        for name in PACKAGES:
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))

    def make_env(self, **settings: str) -> None:
        """Write ``.env`` as users do, and further settings into it."""
        subprocess.run(
            ["make", "env"], cwd=self.folder, env=self.environment, check=True, capture_output=True
        )
        with (self.folder / ".env").open("a", encoding="utf-8") as file:
            file.writelines(f"{name}={value}\n" for name, value in settings.items())

    def secret(self, name: str) -> str:
        """Return a value of ``.env``."""
        found = re.search(rf"^{name}=(.+)$", (self.folder / ".env").read_text(encoding="utf-8"), re.M)
        assert found is not None
        return found[1]

    def override(self, content: dict[str, Any]) -> None:
        """Put settings of the test on top of the file that users get."""
        (self.folder / OVERRIDE).write_text(yaml.safe_dump(content), encoding="utf-8")
        extra = os.environ.get(EXTRA_VARIABLE)
        files = [COMPOSE_FILE.name, OVERRIDE, *([extra] if extra else [])]
        self.environment["COMPOSE_FILE"] = os.pathsep.join(files)

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run ``docker compose`` to its end; what it printed is in the result.

        :param arguments: what follows ``docker compose``
        :param check: whether an exit code other than 0 is an error
        """
        done = subprocess.run(
            ["docker", "compose", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"docker compose {' '.join(arguments)}:\n{done.stdout}\n{done.stderr}")
        return done

    def follow_logs(self, service: str, path: Path) -> subprocess.Popen[bytes]:
        """Write a service's log into a file from now on, until the process that is returned is ended."""
        with path.open("wb") as file:
            return subprocess.Popen(
                ["docker", "compose", "logs", "--follow", "--no-color", "--no-log-prefix", service],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def containers(self, service: str | None = None) -> list[dict[str, Any]]:
        """Return the running containers: each with its ``Name``, ``Service`` and ``Health``."""
        names = [service] if service else []
        output = self.run("ps", "--format", "json", *names).stdout
        return [json.loads(line) for line in output.splitlines() if line.strip()]

    def exec(self, service: str, *command: str) -> str:
        """Run a command in a container of a service and return its output."""
        return self.run("exec", "-T", service, *command).stdout

    def left(self) -> list[str]:
        """Return the names of the project's containers, volumes and networks."""
        label = f"label=com.docker.compose.project={self.project}"
        lists = (["ps", "-a"], ["volume", "ls"], ["network", "ls"])
        return [
            line
            for words in lists
            for line in subprocess.run(
                ["docker", *words, "-q", "--filter", label], capture_output=True, text=True, check=True
            ).stdout.split()
        ]


def kill(container: str) -> None:
    """End a container at once, as a machine does that is switched off, and remove it."""
    subprocess.run(["docker", "rm", "--force", container], check=True, capture_output=True)


def wait_until(what: str, look: Any, seconds: float) -> Any:
    """Return what ``look`` gives as soon as it gives something true.

    :param what: names it, should it not come
    """
    deadline = time.monotonic() + seconds
    while not (seen := look()):
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain for this: {what}"
        time.sleep(1)
    return seen
