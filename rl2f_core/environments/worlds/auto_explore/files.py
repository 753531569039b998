"""Files for `auto_explore`: functions of Python's standard library, each with the first sentence of its docstring."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import NamedTuple

from rl2f_core.common.paths import STDLIB_FILES
from rl2f_core.environments.base import assign_split
from rl2f_core.errors import DataError
from rl2f_core.types import Split


class File(NamedTuple):
    """One function of the library."""

    path: str
    """Modules, class and name, e.g. `json/decoder/JSONDecoder/decode.py`."""
    question: str
    """First sentence of the docstring, which describes no other file."""
    text: str
    """Source without docstring, comments and decorators."""


@lru_cache(1)
def files() -> dict[str, File]:
    """Return all files by path; do not modify. Raises `DataError` if the corpus is missing."""
    try:
        lines = STDLIB_FILES.read_text().splitlines()
    except OSError as error:
        raise DataError(f"The files of auto_explore cannot be read: {error}.", fix="Restore the file.") from None
    return {file.path: file for file in (File(**json.loads(line)) for line in lines)}


def read(path: str) -> str:
    """Return the text of a file. Raises `DataError` if there is none."""
    file = files().get(path)
    if file is None:
        raise DataError("The corpus of auto_explore has no such file.", value=path, fix="Restore data/auto_explore.")
    return file.text


@lru_cache(3)
def paths_of(split: Split) -> tuple[str, ...]:
    """Return the files of a split: each module of the library, with all its files, belongs to one split."""
    return tuple(path for path in files() if assign_split(path.partition("/")[0]) == split)
