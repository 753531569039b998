"""Copy the run-time files of `data/` into the wheel, as `rl2f_core/data` (see `rl2f_core/common/paths.py`)."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

FOLDERS = (
    "configs", "prompts", "leaks", "leak_benchmark", "math_sample", "own_questions", "auto_explore", "example_runs",
    "results/leaks", "results/quickstart",
)  # fmt: skip
"""Folders of `data/` that the package reads; the rest are published results and pictures."""


class BuildWithData(build_py):
    """Build the packages, then add the data. An editable installation reads `data/` in place."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib, "rl2f_core", "data")
            shutil.rmtree(target, ignore_errors=True)  # of an earlier build
            for folder in FOLDERS:
                shutil.copytree(Path("data", folder), target / folder)

    def get_source_files(self) -> list[str]:
        """Return the files of a source distribution."""
        data = (path for folder in FOLDERS for path in Path("data", folder).rglob("*") if path.is_file())
        return [*super().get_source_files(), *map(str, data)]


setup(cmdclass={"build_py": BuildWithData})
