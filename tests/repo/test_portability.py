"""Importing any module needs no part of Python that only POSIX systems have."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(
    path.relative_to(ROOT) for package in ("rl2f_core", "jobs", "app") for path in (ROOT / package).rglob("*.py")
)
POSIX_MODULES = {"crypt", "fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}
POSIX_NAMES = {
    "os.fork", "os.forkpty", "os.getegid", "os.geteuid", "os.getgid", "os.getpgid", "os.getuid", "os.killpg",
    "os.register_at_fork", "os.sched_getaffinity", "os.setpgid", "os.setsid", "os.statvfs", "os.uname", "os.WNOHANG",
    "signal.SIG_BLOCK", "signal.SIG_UNBLOCK", "signal.SIGALRM", "signal.SIGCHLD", "signal.SIGHUP", "signal.SIGKILL",
    "signal.SIGUSR1", "signal.alarm", "signal.pthread_sigmask", "socket.AF_UNIX",
}  # fmt: skip
SEARCH = re.compile(rf"\b({'|'.join(POSIX_MODULES | {name.split('.')[1] for name in POSIX_NAMES})})\b")
NOT_A_MODULE = {Path("rl2f_core/environments/sandbox/code_worker.py")}
"""Program that only Linux runs; it suppresses the error of its import of `resource`."""


def at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what runs when a module is imported: neither the bodies of functions nor annotations."""
    yield node
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        children: list[ast.AST] = [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
    elif isinstance(node, ast.Lambda):
        children = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
    else:
        children = list(ast.iter_child_nodes(node))
    for child in children:
        yield from at_import(child)


def posix_uses(source: str) -> set[str]:
    """The POSIX-only modules and names that importing a source text needs."""
    found: set[str] = set()
    if not SEARCH.search(source):  # parsing all modules takes seconds
        return found
    for node in at_import(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & POSIX_MODULES
        elif isinstance(node, ast.ImportFrom):
            found |= ({str(node.module)} & POSIX_MODULES) | (
                {f"{node.module}.{alias.name}" for alias in node.names} & POSIX_NAMES
            )
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found |= {f"{node.value.id}.{node.attr}"} & POSIX_NAMES
    return found


def test_the_search_finds_uses_at_import_and_none_in_functions() -> None:
    assert posix_uses("import fcntl, os\nfrom os import fork\nLIMIT = signal.SIGKILL") == {
        "fcntl", "os.fork", "signal.SIGKILL"
    }  # fmt: skip
    assert posix_uses("def f(number=signal.SIGHUP): ...") == {"signal.SIGHUP"}
    assert posix_uses("def f():\n    import pwd\n    os.fork()\nkill = lambda: os.killpg(1, 9)") == set()


def test_importing_a_module_uses_nothing_that_only_posix_systems_have() -> None:
    found = {str(path): posix_uses((ROOT / path).read_text("utf-8")) for path in MODULES if path not in NOT_A_MODULE}
    assert len(found) > 300 and {path: uses for path, uses in found.items() if uses} == {}


def test_the_compose_file_names_targets_of_the_dockerfile_and_the_build_gets_every_file_it_needs() -> None:
    folder = ROOT / ".ci" / "docker"
    services = yaml.safe_load((folder / "compose.yaml").read_text("utf-8"))["services"]
    text = (folder / "Dockerfile").read_text("utf-8")
    builds = [service["build"] for service in services.values()]
    assert (
        {build["target"] for build in builds} == {"cpu", "cuda"} <= set(re.findall(r"^FROM .* AS (\w+)$", text, re.M))
    )
    assert all(f"ARG {name}=" in text for build in builds for name in build["args"])
    assert {(folder / build["context"] / build["dockerfile"]).resolve() for build in builds} == {folder / "Dockerfile"}
    rules = (folder / "Dockerfile.dockerignore").read_text("utf-8").split()
    kept = {rule[1:] for rule in rules if rule.startswith("!")}
    needed = {
        "app",
        "jobs",
        "rl2f_core",
        "data",
        "setup.py",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "data/results/leaks",
    }
    assert needed <= kept and all((ROOT / name).exists() for name in kept)


IMPORT_ALL = """
import contextlib, importlib, os, signal, sys
import torch, transformers, gradio, trl.trainer.grpo_trainer  # other packages may use what Linux has
with contextlib.suppress(ImportError):
    import ray
names, modules, own = (text.split() for text in sys.argv[1:])
for name in modules:
    sys.modules[name] = None  # an import raises ImportError
for name in names:
    module, _, attribute = name.partition(".")
    if hasattr(sys.modules[module], attribute):
        delattr(sys.modules[module], attribute)
for name in own:
    importlib.import_module(name)
print(len(own))
"""


@pytest.mark.slow
def test_all_modules_can_be_imported_without_the_posix_modules() -> None:
    names = [path.with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__") for path in MODULES]
    own = [name for name in names if not name.endswith((".env", "__main__", "vllm.server_main", ".rl2f_taskset"))]
    uses_of_libraries = {"os.register_at_fork", "os.uname", "socket.AF_UNIX", "os.getuid", "signal.SIGCHLD"}
    arguments = [" ".join(part) for part in (POSIX_NAMES - uses_of_libraries, POSIX_MODULES - {"posix"}, own)]
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *arguments], cwd=ROOT, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) == len(own) > 300
