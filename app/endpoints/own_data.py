"""Own questions: upload a file, and check it before a run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from app.endpoints.endpoint import Endpoints, endpoint
from app.endpoints.types import ShortText, check_file_name, from_row, validated
from app.forms.own_data import store, stored_files
from jobs.db.errors import NotFoundError
from rl2f_core.config.loading import to_yaml
from rl2f_core.environments.dataset.config import CheckerName
from rl2f_core.environments.dataset.environment import Dataset
from rl2f_core.environments.dataset.summary import read_header, suggest_checker, summarize
from rl2f_core.errors import shorten
from rl2f_core.types import FrozenModel, JsonObject

DataFile = Annotated[str, Field(max_length=300, description="Name of an uploaded file.")]
MAX_BAD_ROWS = 200
"""Bad rows that a check lists; it counts all of them."""
MAX_CELL = 200
Meaning = Literal["problem", "answer", "solution", "level", "split", "pattern", "tests", "choices"]


class BadRowInfo(FrozenModel):
    """A row that cannot be used."""

    row: int
    """1-based row of the file."""
    column: str
    """Empty if the row as a whole is invalid."""
    reason: str


class DataCheck(FrozenModel):
    """Result of the check of a file."""

    file: str
    """Name of the file."""
    columns: list[str]
    """Columns of the file."""
    used: dict[str, str]
    """Column of the file by its meaning."""
    checker: str
    """How answers are compared."""
    preview: list[list[str]]
    """The first rows, a text per column."""
    rows: int
    valid: int
    """Number of rows that can be used."""
    duplicates: int
    """Number of repeated problems."""
    near_duplicates: int
    """Problems for training or validation that nearly repeat a test problem."""
    problems: dict[str, int]
    """Number of problems by split."""
    baseline: float
    """Fraction of the test problems that the best constant answer solves."""
    empty_hints: int
    """Number of problems without content for a scripted hint, among the first `checked_hints`."""
    checked_hints: int
    """Number of problems whose scripted hints were checked."""
    num_bad_rows: int
    """Number of rows that cannot be used."""
    bad_rows: list[BadRowInfo]
    """The first bad rows."""
    yaml: str
    """`environment: …` for a configuration; it skips the bad rows."""


class OwnDataEndpoints(Endpoints):
    """Endpoints of the section *Own data* of the page *New run*."""

    @endpoint("read")
    def list_data_files(self) -> list[str]:
        """List the names of the uploaded files of questions."""
        return [path.name for path in stored_files(self._context.workspace)]

    @endpoint("run")
    def add_data_file(self, name: ShortText, text: Annotated[str, Field(max_length=2_000_000)]) -> str:
        """Store a file of questions, and return its new name.

        Args:
            name: Name of the file with the ending .csv, .jsonl or .ndjson.
            text: Its content. The page uploads larger files, and Parquet.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / check_file_name(name)
            path.write_text(text, encoding="utf-8", errors="replace")
            return store(self._context.workspace, path).name

    @endpoint("read")
    def list_data_columns(self, file: DataFile) -> list[str]:
        """List the columns of an uploaded file."""
        return read_header(self._path_of(file))

    @endpoint("run")
    def check_data_file(
        self, file: DataFile, columns: dict[Meaning, ShortText] | None = None, checker: CheckerName | None = None
    ) -> DataCheck:
        """Check the rows and gold answers of an uploaded file. The programs of unit tests run in the sandbox.

        Args:
            columns: Columns by meaning; those left out are detected by name, and an empty name is none.
            checker: How answers are compared; by default suggested by the first rows.
        """
        path = self._path_of(file)
        data: JsonObject = {"path": str(path), "columns": columns or {}}
        data["checker"] = checker or suggest_checker(path, data["columns"])
        if data["checker"] == "judge":
            data["llm"] = {"type": "openai_api"}
        summary = summarize(validated(Dataset.Config, data))
        loaded = summary.loaded
        return from_row(
            DataCheck,
            loaded,
            file=path.name,
            columns=list(loaded.header),
            used=loaded.columns,
            checker=data["checker"],
            preview=[[shorten(row[name], MAX_CELL) for name in loaded.header] for row in loaded.preview],
            problems={split: len(questions) for split, questions in loaded.questions.items()},
            baseline=summary.baseline.score,
            **{name: getattr(summary, name) for name in ("empty_hints", "checked_hints")},
            num_bad_rows=len(loaded.bad_rows),
            bad_rows=[
                BadRowInfo(row=bad.row, column=bad.column, reason=shorten(bad.reason, MAX_CELL))
                for bad in loaded.bad_rows[:MAX_BAD_ROWS]
            ],
            yaml=to_yaml({"environment": summary.settings}),
        )

    def _path_of(self, file: str) -> Path:
        """Return the path of an uploaded file."""
        files = {path.name: path for path in stored_files(self._context.workspace)}
        if file not in files:
            raise NotFoundError("File of questions not found.", value=file, known=list(files), fix="Upload it first.")
        return files[file]
