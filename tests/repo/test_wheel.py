"""The built wheel works in an environment of its own, away from the source tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import urllib.request
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_BYTES = 25e6
SMALL = (
    "model.name=tiny-random stages.0.steps=1 stages.1.steps=1 preflight.num_tasks=1 preflight.samples_per_task=2 "
    "preflight.ignore_failure=true evaluation.num_tasks=2"
).split()
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the tracked and new files."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    for name in subprocess.check_output(listed, cwd=ROOT, text=True).split("\0"):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    build = ["pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(target), "."]
    subprocess.run([sys.executable, "-m", *build], cwd=source, check=True)
    (path,) = target.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def rl2f(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of a new virtual environment with the wheel, and the dependencies of this one."""
    folder = tmp_path_factory.mktemp("away") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python, packages = folder / "bin" / "python", next(folder.glob("lib/python*/site-packages"))
    install = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *install], check=True)
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])  # its .pth files are not read
    return folder / "bin" / "rl2f"


def environment() -> dict[str, str]:
    """The variables of this process without a path to the source tree."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(rl2f: Path, *arguments: str) -> str:
    """Run a command beside the environment and return its output."""
    done = subprocess.run(
        [rl2f, *arguments], cwd=rl2f.parents[2], env=environment(), text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
    return done.stdout


def test_the_wheel_is_small_and_contains_every_file_of_the_packages_and_the_data_they_read(wheel: Path) -> None:
    assert wheel.stat().st_size < MAX_BYTES
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    code = {name for name in tracked if name.startswith(("app/", "jobs/", "rl2f_core/")) and not name.endswith(".md")}
    folders = ("configs", "prompts", "leaks", "leak_benchmark", "math_sample", "example_runs", "results/leaks")
    data = {f"rl2f_core/{name}" for name in tracked if name.startswith(tuple(f"data/{part}/" for part in folders))}
    assert len(code) > 300 and len(data) > 80 and code | data <= names


def test_every_path_of_the_data_exists_in_the_installation(rl2f: Path) -> None:
    code = "import rl2f_core.common.paths as p; print(*[v for k, v in vars(p).items() if k.isupper()], sep='\\n')"
    python = rl2f.with_name("python")
    paths = subprocess.check_output([python, "-c", code], cwd=rl2f.parents[2], env=environment(), text=True).split()
    assert len(paths) >= 8 and all(Path(path).exists() and Path(path).is_relative_to(rl2f.parents[1]) for path in paths)


def test_models_are_listed_and_a_run_of_a_preset_can_be_shared(rl2f: Path) -> None:
    assert "smollm2-135m" in run(rl2f, "models", "list")
    run(rl2f, "train", "quickstart", "--out", "run", *(f"--set={value}" for value in SMALL))
    run(rl2f, "share", "run", "--out", "pages")
    assert "<html" in (rl2f.parents[2] / "pages" / "index.html").read_text("utf-8")
    assert '"git": null' in (rl2f.parents[2] / "run" / "meta.json").read_text("utf-8")


def test_the_studio_answers_with_the_example_run(rl2f: Path) -> None:
    command = [rl2f, "serve", "--port", "0", "--workspace", "studio"]
    with subprocess.Popen(command, cwd=rl2f.parents[2], env=environment(), stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            url = re.search(r"open at (\S+)", next(line for line in server.stderr if "open at" in line))
            assert url is not None
            with urllib.request.urlopen(url[1], timeout=30) as page:
                assert page.status == 200 and b"RL2F Studio" in page.read()
        finally:
            server.terminate()
    assert (rl2f.parents[2] / "studio" / "runs" / "quickstart" / "events.jsonl").is_file()
