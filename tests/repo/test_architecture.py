"""The rules of the house: who may import whom, what loads torch, how long a module may be, what lies at the top."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

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
TENSORS = ("rl2f_core/models/modeling", "rl2f_core/models/backends", "rl2f_core/learning/training")
"""A package of its own in all but its path: it imports nothing of the core."""
ALLOWED_IMPORTS = """
app.cli: commands common rl2f_core.distributed rl2f_core.errors
app.experiment: commands common plots static_pages jobs.db jobs.export jobs.queue jobs.workspace rl2f_core.config
    rl2f_core.errors rl2f_core.evaluation rl2f_core.run rl2f_core.run.kinds rl2f_core.types
app.commands: common endpoints jobs.chat jobs.db jobs.executors jobs.export jobs.imports jobs.ingest jobs.labels
    jobs.queue jobs.scheduler jobs.workspace rl2f_core.models.backends rl2f_core.config rl2f_core.evaluation.counterfactual
    rl2f_core.models.device rl2f_core.distributed rl2f_core.environments rl2f_core.errors rl2f_core.evaluation
    rl2f_core.common.file_io rl2f_core.learning.hardware rl2f_core.leaks rl2f_core.dialogue.metrics rl2f_core.models.store rl2f_core.common.paths
    rl2f_core.registry rl2f_core.run rl2f_core.run.kinds rl2f_core.common.stats rl2f_core.common.text rl2f_core.learning.training
    rl2f_core.types
    model_server static_pages web
app.common: jobs.chat jobs.db jobs.queue jobs.scheduler jobs.workspace rl2f_core.config rl2f_core.errors
    rl2f_core.common.file_io rl2f_core.leaks rl2f_core.models.store rl2f_core.common.paths rl2f_core.registry
    rl2f_core.run rl2f_core.common.stats rl2f_core.types
app.components: common endpoints jobs.db plots rl2f_core.evaluation rl2f_core.common.stats rl2f_core.types
app.endpoints: common forms jobs.chat jobs.db jobs.export jobs.imports jobs.labels jobs.queue jobs.run_kinds jobs.worker
    plots rl2f_core.config rl2f_core.evaluation.counterfactual rl2f_core.environments rl2f_core.errors
    rl2f_core.evaluation rl2f_core.leaks rl2f_core.dialogue.metrics rl2f_core.models.store rl2f_core.registry
    rl2f_core.dialogue.rollout rl2f_core.run rl2f_core.run.kinds rl2f_core.common.stats rl2f_core.dialogue.teachers rl2f_core.common.text
    rl2f_core.types
app.forms: jobs.db jobs.workspace rl2f_core.config rl2f_core.environments rl2f_core.errors rl2f_core.common.file_io
    rl2f_core.leaks rl2f_core.models.llms rl2f_core.dialogue.metrics rl2f_core.models.store rl2f_core.registry
    rl2f_core.common.stats rl2f_core.dialogue.teachers rl2f_core.common.text rl2f_core.learning.training rl2f_core.types
app.model_server: jobs.export rl2f_core.models.backends rl2f_core.models rl2f_core.config rl2f_core.models.device rl2f_core.errors
    rl2f_core.models.store rl2f_core.run rl2f_core.types web
app.pages: common components endpoints forms jobs.chat jobs.db jobs.labels plots rl2f_core.config
    rl2f_core.evaluation.counterfactual rl2f_core.errors rl2f_core.leaks rl2f_core.common.stats rl2f_core.types
app.plots: common jobs.db rl2f_core.config rl2f_core.errors rl2f_core.evaluation rl2f_core.common.file_io rl2f_core.dialogue.metrics
    rl2f_core.registry rl2f_core.run rl2f_core.common.stats rl2f_core.common.text rl2f_core.types
app.static_pages: jobs.export plots rl2f_core.config rl2f_core.environments rl2f_core.errors rl2f_core.evaluation
    rl2f_core.registry rl2f_core.run rl2f_core.types
app.web: common components endpoints forms jobs.chat jobs.db jobs.export pages rl2f_core.errors rl2f_core.common.file_io
    rl2f_core.models.store rl2f_core.common.paths rl2f_core.types
jobs.chat: db ingest rl2f_core.models.backends rl2f_core.models rl2f_core.config rl2f_core.models.device
    rl2f_core.environments rl2f_core.errors rl2f_core.common.file_io rl2f_core.models.store rl2f_core.common.paths
    rl2f_core.dialogue.rollout rl2f_core.run rl2f_core.dialogue.teachers rl2f_core.common.text rl2f_core.types workspace
jobs.db: rl2f_core.config rl2f_core.errors rl2f_core.run rl2f_core.common.text rl2f_core.types
jobs.executors: rl2f_core.config rl2f_core.errors rl2f_core.common.paths rl2f_core.common.processes rl2f_core.run rl2f_core.common.text
    rl2f_core.types worker workspace
jobs.export: db rl2f_core.models.backends rl2f_core.config rl2f_core.environments rl2f_core.errors
    rl2f_core.evaluation rl2f_core.common.file_io rl2f_core.models.store rl2f_core.common.paths rl2f_core.registry
    rl2f_core.dialogue.rollout rl2f_core.run rl2f_core.common.text rl2f_core.types workspace
jobs.imports: db ingest queue rl2f_core.config rl2f_core.environments rl2f_core.errors rl2f_core.evaluation
    rl2f_core.common.file_io rl2f_core.run rl2f_core.run.kinds rl2f_core.types workspace
jobs.ingest: db labels rl2f_core.config rl2f_core.errors rl2f_core.common.file_io rl2f_core.run rl2f_core.types
    run_kinds workspace
jobs.labels: db export rl2f_core.errors rl2f_core.common.file_io rl2f_core.leaks rl2f_core.run rl2f_core.common.stats
    rl2f_core.types workspace
jobs.queue: db executors ingest rl2f_core.config rl2f_core.errors rl2f_core.common.file_io rl2f_core.registry rl2f_core.run
    run_kinds worker workspace
jobs.run_kinds: export rl2f_core.config rl2f_core.registry rl2f_core.run rl2f_core.run.kinds
jobs.scheduler: db queue rl2f_core.errors rl2f_core.run.kinds rl2f_core.common.text workspace
jobs.worker: db rl2f_core.config rl2f_core.errors rl2f_core.common.file_io rl2f_core.common.processes rl2f_core.run rl2f_core.types
    run_kinds
rl2f_core: config errors
rl2f_core.models.backends: chat config device errors file_io model_store modeling processes registry types
rl2f_core.models: errors types
rl2f_core.config: errors paths registry text types
rl2f_core.evaluation.counterfactual: backends config environments errors evaluation file_io leaks metrics rollout run stats
    teachers types
rl2f_core.datasets: config environments errors file_io run types
rl2f_core.models.device: errors types
rl2f_core.distributed: device errors
rl2f_core.environments: config errors file_io llms model_store paths processes registry text types
rl2f_core.evaluation: backends config datasets device distributed environments errors file_io metrics registry
    rollout run stats teachers types
rl2f_core.common.file_io: errors types
rl2f_core.learning.hardware: backends chat config device modeling processes training types
rl2f_core.leaks: backends chat config environments errors file_io llms paths registry
    stats teachers text types
rl2f_core.models.llms: backends chat config errors model_store registry types
rl2f_core.learning.methods: chat config datasets environments errors paths registry rollout run teachers types
rl2f_core.dialogue.metrics: environments errors stats types
rl2f_core.models.store: errors file_io types
rl2f_core.models.modeling: errors
rl2f_core.registry: errors
rl2f_core.evaluation.rescoring: backends config errors leaks methods registry run types
rl2f_core.dialogue.rollout: backends chat config distributed environments errors file_io leaks paths processes registry
    run teachers types
rl2f_core.run: config distributed errors file_io model_store paths registry types
rl2f_core.run.kinds: backends config counterfactual distributed environments errors evaluation file_io leaks
    registry rescoring rollout run training types
rl2f_core.common.stats: errors types
rl2f_core.leaks.synthetic: environments paths types
rl2f_core.dialogue.teachers: backends config environments errors llms paths registry synthetic_leaks types
rl2f_core.run.tracking: config environments errors evaluation file_io registry run types
rl2f_core.learning.training: backends config datasets device distributed environments errors file_io leaks llms methods
    metrics modeling processes registry rollout run stats teachers types
"""
"""What each package may import, besides itself; names without a dot belong to the same top-level package."""
COMPONENT_PACKAGES = {
    f"rl2f_core.{n}"
    for n in ("backends", "environments", "leaks", "llms", "methods", "run_kinds", "teachers", "tracking")
}
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


@cache
def parse(source: str) -> ast.Module:
    """Parse a module once for all tests."""
    return ast.parse(source)


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

    walk(parse(source))
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


def allowed_imports() -> dict[str, set[str]]:
    """Return the table `ALLOWED_IMPORTS` with full package names."""
    allowed: dict[str, set[str]] = {}
    for line in ALLOWED_IMPORTS.replace("\n    ", " ").strip().splitlines():
        package, _, names = line.partition(": ")
        top = package.split(".")[0]
        allowed[package] = {name if name.split(".")[0] in PACKAGES else f"{top}.{name}" for name in names.split()}
    return allowed


@cache
def imported_modules(source: str) -> set[str]:
    """Return the modules of this project that `source` imports anywhere, in functions and `TYPE_CHECKING` too."""
    modules: set[str] = set()
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            is_package = (ROOT / node.module.replace(".", "/")).is_dir()
            modules.update(f"{node.module}.{alias.name}" if is_package else node.module for alias in node.names)
    return {module for module in modules if module.split(".")[0] in PACKAGES}


@cache
def package_of(module: str) -> str:
    """Return the package of a module: two levels, or one for names of a top-level `__init__`."""
    package = ".".join(module.split(".")[:2])
    path = ROOT / package.replace(".", "/")
    return package if path.is_dir() or path.with_suffix(".py").exists() else package.split(".")[0]


def module_name(file: str) -> str:
    """Return the dotted name of a file."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def package_imports() -> dict[str, set[str]]:
    """Return what every package imports, without itself and its top-level package.

    The registry names the base classes of components in annotations only; this is the one exception.
    """
    found: dict[str, set[str]] = {}
    for file, source in SOURCES.items():
        package = package_of(module_name(file))
        modules = imported_modules(source)
        if package == "rl2f_core.registry":
            modules = {module for module in modules if package_of(module) not in COMPONENT_PACKAGES}
        found.setdefault(package, set()).update({package_of(module) for module in modules} - {package, *PACKAGES})
    return found


def test_every_package_imports_only_what_the_table_allows() -> None:
    allowed = allowed_imports()
    extra = {package: names - allowed.get(package, set()) for package, names in package_imports().items()}
    assert {package: names for package, names in extra.items() if names} == {}


def test_the_table_allows_nothing_that_is_not_used() -> None:
    used = package_imports()
    unused = {package: names - used.get(package, set()) for package, names in allowed_imports().items()}
    assert {package: names for package, names in unused.items() if names} == {}


def test_no_packages_import_each_other_even_in_a_circle() -> None:
    remaining = {package: set(names) for package, names in package_imports().items()}
    while free := {package for package, names in remaining.items() if not names & set(remaining)}:
        remaining = {package: names for package, names in remaining.items() if package not in free}
    assert remaining == {}


def test_no_module_imports_a_private_module_of_another_package() -> None:
    private = {
        f"{file}: {module}"
        for file, source in SOURCES.items()
        for module in imported_modules(source)
        for i, part in enumerate(module.split("."))
        if part.startswith("_")
        and not part.startswith("__")
        and ".".join(module.split(".")[:i]) != module_name(file).rpartition(".")[0]
        and ".".join(module.split(".")[:i]) != module_name(file)
    }
    assert private == set()


def test_no_module_outside_modeling_backends_and_training_loads_anything_heavy_when_imported() -> None:
    light = {name: source for name, source in SOURCES.items() if not name.startswith(TENSORS)}
    found = {name: imports(source, top_only=True) & {*HEAVY, "gradio"} for name, source in light.items()}
    found = {name: names - {"gradio"} if name.startswith(INTERFACE) else names for name, names in found.items()}
    assert {name: names for name, names in found.items() if names} == {}


def test_no_module_has_more_than_500_lines() -> None:
    tests = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py")}
    lines = {name: len(source.splitlines()) for name, source in (SOURCES | tests).items()}
    assert {name: count for name, count in lines.items() if count > 500} == {}


@pytest.mark.parametrize(
    "statement",
    [
        "import rl2f_core",
        "import rl2f_core.types, rl2f_core.config.run, rl2f_core.models.store.store, rl2f_core.models.device",
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


UNTRUSTED = "rl2f_core/environments/sandbox/code_worker.py"
"""The only module that executes foreign code, in a sandbox; nothing imports it."""


def test_no_source_file_asks_for_a_pickle_or_foreign_code() -> None:
    assert not any(module_name(UNTRUSTED) in imported_modules(source) for source in SOURCES.values())
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        tree = parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                is_sandboxed = called == "exec" and path == ROOT / UNTRUSTED
                refused = ("eval", "exec", "pickle.load", "pickle.loads", "torch.load")
                assert called not in refused or is_sandboxed, (path, node.lineno)
                for keyword in node.keywords:
                    allowed = not (keyword.arg == "trust_remote_code" and ast.unparse(keyword.value) == "True")
                    assert allowed, (path, node.lineno)
                    assert not (keyword.arg == "shell" and ast.unparse(keyword.value) == "True"), (path, node.lineno)
