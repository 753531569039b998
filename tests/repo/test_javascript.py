"""JavaScript of the app: little of it, in modules, and no way for a model's text to become markup or code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "app" / "components").rglob("*.js"))
MAX_LINES = 1_500
MAX_COLUMNS = 120
JS_OPTION = re.compile(r"\bjs(?:_on_load)?\s*=\s*(?:f|r)?(\"\"\"|\"|')(.*?)\1", re.DOTALL)
"""JavaScript in a Python string."""
MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|createContextualFragment"
)
GLOBALS = re.compile(r"\b(?:window|globalThis|self)\.(?!(?:Plotly|gradio_config)\b)\w+\s*=[^=]|^\s*var\s", re.MULTILINE)


def embedded_lines() -> int:
    """Lines of JavaScript in the strings of the app's Python modules."""
    sources = (path.read_text("utf-8") for path in (ROOT / "app").rglob("*.py"))
    return sum(len(text.splitlines()) for source in sources for _, text in JS_OPTION.findall(source))


def test_the_app_has_at_most_1500_lines_of_javascript() -> None:
    everything = [*(ROOT / "app").rglob("*.js"), *(ROOT / "app").rglob("*.mjs")]
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in everything) + embedded_lines()
    assert lines <= MAX_LINES


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_a_module_has_short_lines_and_one_default_export(module: Path) -> None:
    text = module.read_text("utf-8")
    assert [line for line in text.splitlines() if len(line) > MAX_COLUMNS] == []
    assert len(re.findall(r"^export default ", text, re.MULTILINE)) == 1


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_a_module_sets_text_as_text_and_no_globals(module: Path) -> None:
    text = module.read_text("utf-8")
    assert MARKUP.findall(text) == [] and GLOBALS.findall(text) == []


def test_every_component_module_has_its_python_class() -> None:
    assert [path.name for path in MODULES if not path.with_suffix(".py").is_file()] == []
