# SPDX-License-Identifier: Apache-2.0
"""``docs/configuration.md``, made from what Airflow is told of the settings.

Write it anew with ``python -m tests.support.configuration_page``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dispatcher.provider import get_provider_info

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"

_HEAD = """\
# Configuration

Every key of the section `[dispatcher]`. A key is set in `airflow.cfg`, or by its environment variable, which
wins. `airflow config list --section dispatcher --defaults --show-values` prints the same. A value that cannot
be right stops the executor at start, with the key and what it may be.

{description}

In a deployment with teams, a team's own value is `AIRFLOW__<TEAM>___DISPATCHER__<KEY>`, or the section
`[<team>=dispatcher]`; as with Airflow's own executors, a team without one gets the default, not the
deployment's value. `fence`, `launch_retention_days` and `deployment` are those of the whole deployment.

How routing rules are written is in the [user guide](user-guide.md#routing).
"""

_KEY = """
## {key}

{description}

| | |
|---|---|
| default | {default} |
| type | {type} |
| environment variable | `AIRFLOW__DISPATCHER__{upper}` |
"""


def render() -> str:
    """Return the text of the page."""
    section = get_provider_info()["config"]["dispatcher"]
    keys = (_render_key(key, option) for key, option in section["options"].items())
    return _HEAD.format(description=_markdown(section["description"])) + "".join(keys)


def _render_key(key: str, option: dict[str, Any]) -> str:
    text = _KEY.format(
        key=key,
        upper=key.upper(),
        description=_markdown(option["description"]),
        default="not set" if option["default"] is None else f"`{option['default']}`",
        type=option["type"],
    )
    return text if option["example"] is None else f"{text}| example | `{option['example']}` |\n"


def _markdown(text: str) -> str:
    return text.strip().replace("``", "`")


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
