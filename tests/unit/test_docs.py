# SPDX-License-Identifier: Apache-2.0
"""The reference pages say what is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dispatcher.cli.definition import HANDOVER_COMMAND, LAUNCHES_COMMANDS
from dispatcher.domain.lifecycle import LaunchState
from tests.support.configuration_page import PAGE, render

ROOT = PAGE.parent.parent
PAGES = [ROOT / "README.md", *sorted(PAGE.parent.rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
NAMED_FILE = re.compile(r"`((?:dispatcher|workers|tests|docs|\.ci)/[\w./-]+)`")
# Neither the rest of a path or link, nor the name of a counter.
NAMED_MODULE = re.compile(
    r"(?<![\w./(])(?!dispatcher\.launch\.)((?:dispatcher|workers|tests)(?:\.[a-z_]+)+)\b"
)


def anchors(page: Path) -> set[str]:
    """The anchors that a renderer gives to the headings of ``page``."""
    headings = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_module(name: str) -> bool:
    """Whether ``name`` is a module or package of the repository, or a name in one."""
    *parents, last = name.split(".")
    holder = ROOT.joinpath(*parents)
    if (holder / last).is_dir() or (holder / f"{last}.py").is_file():
        return True
    sources = [holder / "__init__.py", holder.with_suffix(".py")]
    return any(re.search(rf"\b{last}\b", one.read_text(encoding="utf-8")) for one in sources if one.is_file())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_links_to_and_names_is_there(page):
    text = page.read_text(encoding="utf-8")
    for link in LINK.findall(text):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
    for named in NAMED_FILE.findall(text):
        assert (ROOT / named).exists(), named
    for named in NAMED_MODULE.findall(text):
        assert is_module(named), named


def test_every_page_is_in_the_index():
    index = PAGE.parent / "index.md"
    listed = {(index.parent / link).resolve() for link in LINK.findall(index.read_text(encoding="utf-8"))}
    assert {page.resolve() for page in PAGES[1:]} - {index.resolve()} <= listed


def test_the_page_of_the_settings_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == render(), "run: python -m tests.support.configuration_page"


def test_the_page_of_the_commands_names_every_option_and_state():
    page = (PAGE.parent / "cli.md").read_text(encoding="utf-8")
    for command in LAUNCHES_COMMANDS:
        assert f"airflow dispatcher launches {command.name}" in page
        for argument in command.args:
            assert f"`{argument.flags[-1]}`" in page
    assert "airflow dispatcher handover" in page
    for argument in HANDOVER_COMMAND.args:
        assert f"`{argument.flags[-1]}`" in page
    for state in LaunchState:
        assert f"`{state}`" in page
