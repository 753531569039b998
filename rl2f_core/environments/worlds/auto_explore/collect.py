"""Write the files of `auto_explore` from the standard library of the running Python:

python -m rl2f_core.environments.worlds.auto_explore.collect data/auto_explore/stdlib.jsonl
"""

from __future__ import annotations

import ast
import json
import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rl2f_core.common.file_io import write_atomically
from rl2f_core.environments.worlds.auto_explore.files import File

MIN_CHARS, MAX_CHARS = 60, 500
"""Shortest and longest text of a file."""
MIN_WORDS, MAX_WORDS = 5, 25
"""Shortest and longest question."""
LEFT_OUT = {"distutils", "encodings", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages", "test", "tests",
            "tkinter", "turtle", "turtledemo", "venv"}  # fmt: skip
"""Modules and folders without files for the corpus."""
OTHER_LICENSE = re.compile("permission (to use|is hereby)|redistributions of|apache license", re.IGNORECASE)
PSF_LICENSE = re.compile("licensed to psf|copyright .* python software foundation", re.IGNORECASE)


def collect(library: Path) -> list[File]:
    """Return the functions below a folder of modules whose docstring and source have the right length.

    A question that describes several functions is left out with all of them, and so are modules with a license of
    their own.
    """
    result: list[File] = []
    for module in sorted(library.rglob("*.py")):
        parts = [part for part in module.relative_to(library).with_suffix("").parts if part != "__init__"]
        if LEFT_OUT.isdisjoint(parts) and not any(part.startswith("_") or "-" in part for part in parts):
            source = module.read_text()
            if _has_psf_license(source):
                result += _functions(ast.parse(source).body, parts, in_class=False)
    counts = Counter(file.question for file in result)
    return list({file.path: file for file in result if counts[file.question] == 1}.values())


def _has_psf_license(source: str) -> bool:
    """Return whether a module names no other license than that of Python."""
    names_none = "copyright" not in source.lower()
    return OTHER_LICENSE.search(source) is None and (names_none or PSF_LICENSE.search(source) is not None)


def _functions(body: list[ast.stmt], parts: list[str], *, in_class: bool) -> Iterator[File]:
    """Yield the public functions of a module and of its classes."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not in_class and not node.name.startswith("_"):
            yield from _functions(node.body, [*parts, node.name], in_class=True)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            docstring = ast.get_docstring(node) or ""
            question = " ".join(re.split(r"(?<=[.])\s|\n\n", docstring.strip())[0].split())
            node.decorator_list = []
            node.body = node.body[1:] if docstring else []
            text = ast.unparse(node) if node.body else ""
            fits = MIN_WORDS <= len(question.split()) <= MAX_WORDS and MIN_CHARS <= len(text) <= MAX_CHARS
            if parts and fits and question.endswith(".") and question.count("(") == question.count(")"):
                yield File("/".join([*parts, f"{node.name}.py"]), question, text)


if __name__ == "__main__":
    found = collect(Path(sysconfig.get_path("stdlib")))
    write_atomically(Path(sys.argv[1]), "".join(json.dumps(file._asdict()) + "\n" for file in found))
    print(f"{len(found):,} files")
