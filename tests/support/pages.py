# SPDX-License-Identifier: Apache-2.0
"""What README.md and the pages of docs/ show as code: blocks, commands in blocks, and words in backticks."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

PROGRAMS = frozenset(
    {"airflow", "celery", "docker", "export", "grep", "kubectl", "make", "pip", "python", "uvicorn"}
)
"""What a line begins with that is to be typed; a block of which each line does so is one of commands."""

_FENCE = re.compile(r"\s*(```|~~~)")
_INDENT = "    "
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_COMMENT = re.compile(r"\s+# .*$")
_ASSIGNMENT = re.compile(r"[A-Z][A-Z0-9_]*=")


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code.

    :param where: page and line, as ``docs/cli.md:39``
    :param text: its lines, without the indent that makes them a block
    """

    where: str
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a block; of a pipe each part is one.

    :param where: page and line of its block
    :param text: as it stands there, without its comment
    :param variables: what it sets, with ``export`` or for itself alone
    :param argv: program and arguments; empty where it only sets variables
    """

    where: str
    text: str
    variables: dict[str, str]
    argv: tuple[str, ...]


def blocks() -> list[Block]:
    """Return every block of code, fenced or indented, in the order of the pages."""
    found = []
    for page in PAGES:
        name = page.relative_to(ROOT).as_posix()
        for number, text in _blocks_of(page.read_text(encoding="utf-8").splitlines()):
            found.append(Block(f"{name}:{number}", text))
    return found


def spans() -> list[tuple[str, str]]:
    """Return everything that stands in backticks in a line, after the page where it does."""
    return [
        (page.relative_to(ROOT).as_posix(), span)
        for page in PAGES
        for span in _SPAN.findall(page.read_text(encoding="utf-8"))
    ]


def is_of_commands(block: Block) -> bool:
    """Whether ``block`` is to be typed into a shell."""
    return all(
        _ASSIGNMENT.match(line) or line.split(maxsplit=1)[0] in PROGRAMS for line in _lines_to_type(block)
    )


def commands(block: Block) -> Iterator[Command]:
    """Yield the commands of a block that is one of commands.

    :raises ValueError: a quotation mark is not closed
    """
    for line in _lines_to_type(block):
        for part in _COMMENT.sub("", line).split(" | "):
            words = shlex.split(part)
            if words[0] == "export":
                del words[0]
            variables = {}
            while words and _ASSIGNMENT.match(words[0]):
                name, _, variables[name] = words.pop(0).partition("=")
            yield Command(block.where, part.strip(), variables, tuple(words))


def _lines_to_type(block: Block) -> list[str]:
    return [line for line in block.text.replace("\\\n", " ").splitlines() if line.strip()]


def _blocks_of(lines: list[str]) -> Iterator[tuple[int, str]]:
    number = 0
    while number < len(lines):
        if _FENCE.match(lines[number]):
            end = next(n for n in range(number + 1, len(lines)) if _FENCE.match(lines[n]))
            yield number + 1, dedent("\n".join(lines[number + 1 : end]))
            number = end + 1
        elif lines[number].startswith(_INDENT) and (number == 0 or not lines[number - 1].strip()):
            end = number
            while end < len(lines) and (lines[end].startswith(_INDENT) or not lines[end].strip()):
                end += 1
            yield number + 1, dedent("\n".join(lines[number:end])).strip("\n")
            number = end
        else:
            number += 1
