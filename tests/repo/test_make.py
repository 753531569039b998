"""`make test` runs the tests of the pages where it can, and never leaves them out in silence."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WITH, WITHOUT = "not slow and not gpu", "not slow and not gpu and not browser"


def marks(folder: Path, *programs: str, ci: str = "") -> subprocess.CompletedProcess[str]:
    """What `.ci/browser` prints for a person (not root) whose PATH has nothing but these programs."""
    folder.mkdir()
    for name, text in [("id", "echo 1000"), *[(name, "echo used >> log") for name in programs]]:
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    bash = shutil.which("bash") or "/bin/bash"
    return subprocess.run(
        [bash, str(ROOT / ".ci" / "browser")], env={"PATH": str(folder), "CI": ci}, cwd=folder, text=True,
        capture_output=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["chromium-headless-shell", "chromium", "google-chrome"])
def test_with_a_browser_the_browser_tests_run(tmp_path: Path, name: str) -> None:
    done = marks(tmp_path / "bin", name, ci="true")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, WITH, "")


def test_without_a_browser_the_other_tests_run_and_the_fix_is_printed(tmp_path: Path) -> None:
    done = marks(tmp_path / "bin", "apt-get")
    assert (done.returncode, done.stdout.strip()) == (0, WITHOUT)
    assert "skipped" in done.stderr and "apt-get install chromium" in done.stderr
    assert not (tmp_path / "bin" / "log").exists()  # a person's system is not changed


def test_in_ci_no_test_may_be_skipped(tmp_path: Path) -> None:
    done = marks(tmp_path / "bin", ci="true")
    assert done.returncode != 0 and done.stdout == "" and "skipped" in done.stderr
    assert "export CI=true" in (ROOT / ".ci" / "run").read_text()


def test_make_test_asks_which_tests_to_run() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "--dry-run", "test"], cwd=ROOT, env=environment, text=True, capture_output=True, check=True
    )
    assert "marks=$(.ci/browser) && " in done.stdout and '-m "$marks"' in done.stdout
