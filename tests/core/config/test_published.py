"""Presets of published experiments: their numbers, and the table of them in data/configs/README.md.

Run this file to print the table.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from rl2f_core.common.paths import CONFIGS
from rl2f_core.config.presets import preset, presets

PUBLISHED: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"))
ROWS = [(name, row) for name, about in PUBLISHED.items() for row in about["rows"]]


@cache
def settings(name: str) -> dict[str, Any]:
    """Return a preset with all defaults."""
    return preset(name).config().model_dump(mode="json")


def value_of(name: str, row: dict[str, Any]) -> object:
    """Return our number."""
    value: Any = settings(f"{name}:{row['cell']}" if "cell" in row else name)
    for key in row["path"].split("."):
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


@pytest.mark.parametrize(("name", "row"), ROWS, ids=[f"{name}: {row['what']}" for name, row in ROWS])
def test_preset_has_the_published_number_or_a_stated_difference(name: str, row: dict[str, Any]) -> None:
    assert ("ours" in row) == ("difference" in row)
    assert value_of(name, row) == row.get("ours", row["published"])


def test_every_preset_of_the_folder_paper_is_compared() -> None:
    assert {item.name.partition(":")[0] for item in presets() if item.path.parent.name == "paper"} == set(PUBLISHED)


def test_readme_lists_every_published_number() -> None:
    assert table() in (CONFIGS / "README.md").read_text(encoding="utf-8")


def text_of(value: object) -> str:
    """Write a number as in a YAML file."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and 0 < abs(value) < 1e-3:
        return f"{value:.0e}".replace("e-0", "e-")
    if isinstance(value, list):
        return ", ".join(map(text_of, value))
    return (
        f"{value:,}"
        if isinstance(value, int) and value > 9999
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def table() -> str:
    """Return the tables of the README, one per preset."""
    parts = []
    for name, about in PUBLISHED.items():
        lines = [
            f"### `{name}`",
            "",
            f"Source: {about['source']}.",
            "",
            "| setting | published | ours | key | difference |",
        ]
        lines.append("|---|---|---|---|---|")
        for row in about["rows"]:
            cell = f" (`{row['cell']}`)" if "cell" in row else ""
            ours = text_of(row.get("ours", row["published"]))
            columns = [
                row["what"],
                text_of(row["published"]),
                ours,
                f"`{row['path']}`{cell}",
                row.get("difference", ""),
            ]
            lines.append(f"| {' | '.join(columns)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(table(), end="")
