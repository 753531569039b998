"""The rules of the house: who may import whom, what loads torch, how long a module may be, what lies at the top."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

from source_trees import nodes, parse

ROOT = Path(__file__).resolve().parents[2]
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
INTERFACE = ("app/components/", "app/pages/")
"""Imported by the server only, after Gradio was configured."""
TENSORS = tuple(
    f"rl2f_core/{name}" for name in "models/modeling models/backends learning/learner learning/training".split()
)
LAYERS = """
rl2f_core.errors rl2f_core.types rl2f_core.registry rl2f_core.common rl2f_core.config rl2f_core.models rl2f_core.run
rl2f_core.environments rl2f_core.leaks.synthetic rl2f_core.dialogue.teachers rl2f_core.leaks rl2f_core.dialogue
rl2f_core.learning rl2f_core.evaluation rl2f_core.run.tracking rl2f_core.run.kinds rl2f_core
jobs.http_access jobs.workspace jobs.db jobs.export jobs.run_kinds jobs.worker jobs.executors jobs.labels jobs.ingest
jobs.model_server jobs.chat jobs.queue jobs.imports jobs.scheduler jobs
app.common app.forms app.plots app.endpoints app.components app.pages app.static_pages app.web
app.commands app.cli app.experiment app
""".split()
"""Each package or module imports only itself and those before it; the longest name that fits a module counts."""
MAX_ENTRIES, MAX_ENTRIES_OF_CORE = 18, 14
"""Files and folders in a folder of the product, and in `rl2f_core` itself."""
MAX_LINES, MAX_PARAMETERS = 60, 8
"""Of a function."""
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
    "setup.py",
    "tests",
}


def imports(source: str, top_only: bool = False) -> set[str]:
    """The top-level names of all modules that `source` imports; `TYPE_CHECKING` blocks count as well.

    With `top_only`, only imports that run when the module is imported: none inside functions or `TYPE_CHECKING`.
    """
    found: set[str] = set()

    def add(node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.split(".")[0])

    def walk(node: ast.AST) -> None:
        add(node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr | ast.FunctionDef | ast.AsyncFunctionDef):
                continue  # an expression has no statements; what functions import is not imported with the module
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            walk(child)

    if top_only:
        walk(parse(source))
    else:
        for node in nodes(source):
            add(node)
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


@cache
def imported_modules(source: str) -> set[str]:
    """Return the modules of this project that `source` imports anywhere, in functions and `TYPE_CHECKING` too."""
    modules: set[str] = set()
    for node in nodes(source):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            is_package = (ROOT / node.module.replace(".", "/")).is_dir()
            modules.update(f"{node.module}.{alias.name}" if is_package else node.module for alias in node.names)
    return {module for module in modules if module.split(".")[0] in PACKAGES}


def layer(module: str) -> str:
    """Return the entry of `LAYERS` that a module belongs to."""
    return max((name for name in LAYERS if f"{module}.".startswith(f"{name}.")), key=len)


def module_name(file: str) -> str:
    """Return the dotted name of a file."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def test_every_module_imports_only_its_own_layer_and_those_below() -> None:
    upward = {
        f"{file}: {module}"
        for file, source in SOURCES.items()
        for module in imported_modules(source)
        if LAYERS.index(layer(module)) > LAYERS.index(layer(module_name(file)))
    }
    assert upward == set()


def find_circle(imports: dict[str, set[str]]) -> list[str]:
    """Return modules that import one another in a circle, each the next one; empty if there are none."""
    remaining = dict(imports)
    while free := {module for module, names in remaining.items() if not names & remaining.keys()}:
        remaining = {module: names for module, names in remaining.items() if module not in free}
    path: list[str] = sorted(remaining)[:1]
    while path and path[-1] not in path[:-1]:
        path.append(min(remaining[path[-1]] & remaining.keys()))
    return path[path.index(path[-1]) :] if path else []


def test_a_circle_is_found() -> None:
    assert find_circle({"a": {"b", "d"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c", "b"]
    assert find_circle({"a": {"b"}, "b": set()}) == []


def test_no_modules_import_each_other_even_in_a_circle() -> None:
    modules = {module_name(file) for file in SOURCES}
    imports = {
        module_name(file): {name if name in modules else name.rpartition(".")[0] for name in imported_modules(source)}
        - {module_name(file)}
        for file, source in SOURCES.items()
    }
    assert sum(map(len, imports.values())) > 1000
    circle = find_circle(imports)
    assert not circle, " imports ".join(circle)


def test_no_module_imports_by_a_relative_name() -> None:
    relative = {
        f"{file}:{node.lineno}"
        for file, source in SOURCES.items()
        for node in nodes(source)
        if isinstance(node, ast.ImportFrom) and node.level
    }
    assert relative == set()


def test_every_layer_exists() -> None:
    paths = [ROOT / name.replace(".", "/") for name in LAYERS]
    assert [str(path) for path in paths if not path.is_dir() and not path.with_suffix(".py").exists()] == []


def test_every_folder_has_few_entries() -> None:
    folders = {folder for path in MODULES for folder in path.parents if folder.is_relative_to(ROOT) and folder != ROOT}
    entries = {folder: [path for path in folder.iterdir() if is_source(path)] for folder in folders}
    limits = {folder: MAX_ENTRIES_OF_CORE if folder == ROOT / "rl2f_core" else MAX_ENTRIES for folder in folders}
    full = {
        folder.relative_to(ROOT).as_posix(): len(paths)
        for folder, paths in entries.items()
        if len(paths) > limits[folder]
    }
    assert full == {}


def is_source(path: Path) -> bool:
    """Return whether a file or folder belongs to the source: not compiled, a stub by Gradio, or data of a wheel."""
    return path.name != "__pycache__" and path.suffix != ".pyi" and path != ROOT / "rl2f_core" / "data"


def test_no_module_imports_a_private_module_of_another_package() -> None:
    private = {
        f"{file}: {module}"
        for file, source in SOURCES.items()
        for module in imported_modules(source)
        for i, part in enumerate(module.split("."))
        if part.startswith("_")
        and not part.startswith("__")
        and not f"{module_name(file)}.".startswith(".".join([*module.split(".")[:i], ""]))
    }
    assert private == set()


def test_no_module_outside_modeling_backends_and_training_loads_anything_heavy_when_imported() -> None:
    light = {name: source for name, source in SOURCES.items() if not name.startswith(TENSORS)}
    found = {name: imports(source, top_only=True) & {*HEAVY, "gradio"} for name, source in light.items()}
    found = {name: names - {"gradio"} if name.startswith(INTERFACE) else names for name, names in found.items()}
    assert {name: names for name, names in found.items() if names} == {}


def test_no_module_has_more_than_500_lines() -> None:
    others = [path for folder in ("tests", ".ci") for path in (ROOT / folder).rglob("*.py")]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in others}
    lines = {name: len(source.splitlines()) for name, source in (SOURCES | texts).items()}
    assert {name: count for name, count in lines.items() if count > 500} == {}


def test_functions_are_short_and_have_few_parameters() -> None:
    """The options of a command are its parameters; they are not counted."""
    exceeding = {}
    for name, source in SOURCES.items():
        for node in nodes(source):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)]
                parameters = [argument for argument in arguments if argument not in ("self", "cls")]
                lines = node.end_lineno - node.lineno + 1 if node.end_lineno else 0
                if lines > MAX_LINES or (len(parameters) > MAX_PARAMETERS and not name.startswith("app/commands/")):
                    exceeding[f"{name}:{node.name}"] = lines, len(parameters)
    assert exceeding == {}


STATEMENTS = (
    "import rl2f_core",
    "import rl2f_core.types, rl2f_core.config.run, rl2f_core.models.store.store, rl2f_core.models.device",
    "from rl2f_core import registry; registry.discover()",
    "import app.cli",
)


def test_importing_core_components_or_command_line_loads_no_torch() -> None:
    """One process executes all statements and looks after each one: a loaded module stays loaded."""
    look = f"print([m for m in {HEAVY!r} if m in sys.modules])"
    code = "\n".join(["import sys", *(line for statement in STATEMENTS for line in (statement, look))])
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    found = dict(zip(STATEMENTS, done.stdout.splitlines(), strict=False))
    assert found == dict.fromkeys(STATEMENTS, "[]"), done.stderr


def test_the_top_level_holds_only_what_belongs_there() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:  # an unpacked archive has no git; then there is no list to judge
        names = {path.name for path in ROOT.iterdir() if path.name in TOP_LEVEL}
    else:
        names = {line.split("/")[0] for line in listed.stdout.splitlines()}
    assert names <= TOP_LEVEL


UNTRUSTED = "rl2f_core/environments/sandbox/code_worker.py"
"""The only module that executes foreign code, in a sandbox; nothing imports it."""


REFUSED = ("eval", "exec", "pickle.load", "pickle.loads", "torch.load")


def test_no_source_file_asks_for_a_pickle_or_foreign_code() -> None:
    last_names = {name.rpartition(".")[2] for name in REFUSED}
    assert not any(module_name(UNTRUSTED) in imported_modules(source) for source in SOURCES.values())
    for path in MODULES:
        for node in nodes(SOURCES[path.relative_to(ROOT).as_posix()]):
            if isinstance(node, ast.Call):
                last = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if last in last_names:  # unparsing all calls takes long
                    called = ast.unparse(node.func)
                    is_sandboxed = called == "exec" and path == ROOT / UNTRUSTED
                    assert called not in REFUSED or is_sandboxed, (path, node.lineno)
                for keyword in node.keywords:
                    allowed = not (keyword.arg == "trust_remote_code" and ast.unparse(keyword.value) == "True")
                    assert allowed, (path, node.lineno)
                    assert not (keyword.arg == "shell" and ast.unparse(keyword.value) == "True"), (path, node.lineno)
