"""The rules of the house: who may import whom, what loads torch, how long a module may be, what lies at the top."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("rl2f_core", "jobs", "app")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
SOURCES = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in MODULES}
"""The text of every module by its name."""
FORBIDDEN = {
    "rl2f_core": {"gradio", "apscheduler", "sqlmodel", "sqlalchemy", "app", "jobs", "tests"},
    "jobs": {"gradio", "app", "tests"},
    "app": {"tests"},
}
HEAVY = ("torch", "transformers", "peft", "trl", "accelerate", "datasets")
TENSORS = ("rl2f_core/training", "rl2f_core/backends")
TOP_LEVEL = {
    ".ci",
    ".gitignore",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "app",
    "data",
    "jobs",
    "pyproject.toml",
    "requirements.lock",
    "rl2f_core",
    "tests",
}


def imports(source: str, top_only: bool = False) -> set[str]:
    """The top-level names of all modules that `source` imports; `TYPE_CHECKING` blocks count as well.

    With `top_only`, only imports that run when the module is imported: none inside functions or `TYPE_CHECKING`.
    """
    found: set[str] = set()

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.split(".")[0])
        for child in ast.iter_child_nodes(node):
            if top_only and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                continue
            if top_only and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            walk(child)

    walk(ast.parse(source))
    return found


def test_the_import_walk_sees_every_form_of_import() -> None:
    source = (
        "import gradio.themes as g\nfrom apscheduler.jobs import x\ndef f():\n    import sqlmodel\nfrom . import y\n"
    )
    assert imports(source) == {"gradio", "apscheduler", "sqlmodel"}
    assert imports(source, top_only=True) == {"gradio", "apscheduler"}


def test_every_module_keeps_to_the_one_way_road() -> None:
    found = {name: imports(source) & FORBIDDEN[name.split("/")[0]] for name, source in SOURCES.items()}
    assert {name: names for name, names in found.items() if names} == {}


def test_no_module_outside_training_and_backends_loads_anything_heavy_when_imported() -> None:
    light = {name: source for name, source in SOURCES.items() if not name.startswith(TENSORS)}
    found = {name: imports(source, top_only=True) & {*HEAVY, "gradio"} for name, source in light.items()}
    assert {name: names for name, names in found.items() if names} == {}


def test_no_module_has_more_than_500_lines() -> None:
    tests = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py")}
    lines = {name: len(source.splitlines()) for name, source in (SOURCES | tests).items()}
    assert {name: count for name, count in lines.items() if count > 500} == {}


@pytest.mark.parametrize(
    "statement",
    [
        "import rl2f_core",
        "import rl2f_core.types, rl2f_core.config, rl2f_core.registry, rl2f_core.models, rl2f_core.device",
        "from rl2f_core import registry; registry.discover()",
        "import app.cli",
    ],
)
def test_importing_core_components_or_command_line_loads_no_torch(statement: str) -> None:
    code = f"import sys; {statement}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_the_top_level_holds_only_what_belongs_there() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:  # an unpacked archive has no git; then there is no list to judge
        names = {path.name for path in ROOT.iterdir() if path.name in TOP_LEVEL}
    else:
        names = {line.split("/")[0] for line in listed.stdout.splitlines()}
    assert names <= TOP_LEVEL


def test_no_source_file_asks_for_a_pickle_or_foreign_code() -> None:
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("eval", "exec", "pickle.load", "pickle.loads", "torch.load"), (path, node.lineno)
                for keyword in node.keywords:
                    allowed = not (keyword.arg == "trust_remote_code" and ast.unparse(keyword.value) == "True")
                    assert allowed, (path, node.lineno)
                    assert not (keyword.arg == "shell" and ast.unparse(keyword.value) == "True"), (path, node.lineno)
