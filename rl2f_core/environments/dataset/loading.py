"""Read the questions of a file: valid rows by split, and a table of the bad ones."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from rl2f_core.environments.base import assign_split
from rl2f_core.environments.data_files import SURROGATE, InvalidRow, column_value, find_column, scan_records
from rl2f_core.environments.dataset.choices import read_choices
from rl2f_core.environments.dataset.row_text import RowError, as_text
from rl2f_core.environments.math.answer_text import canonical, folded
from rl2f_core.environments.math.sources import split_solution
from rl2f_core.errors import DataError
from rl2f_core.types import SPLITS, Split, TaskData

COLUMNS: dict[str, tuple[str, ...]] = {
    "problem": ("problem", "question", "prompt", "query", "input"),
    "answer": ("answer", "final_answer", "gold", "target", "output", "label", "answerkey"),
    "solution": ("solution", "worked_solution", "explanation", "rationale"),
    "level": ("level", "difficulty"),
    "split": ("split",),
    "pattern": ("pattern", "regex"),
    "tests": ("tests",),
    "choices": ("choices", "options"),
}
"""Columns of a question, and the names by which they are detected, in order of preference."""
SPLIT_NAMES: dict[str, Split] = {
    "train": "train", "training": "train", "validation": "validation", "valid": "validation", "val": "validation",
    "dev": "validation", "test": "test", "testing": "test",
}  # fmt: skip
MAX_ROWS = 1_000_000
MAX_PROBLEM = 50_000
"""Maximum number of characters of a problem or solution."""
RUN_WORDS = 13
"""Words in a row that make two problems near-duplicates (GPT-3, arXiv 2005.14165, appendix C)."""
MAX_EDITED = 60
"""Words of a question that is compared up to one word."""
MAX_SHARED = 10
"""A run of words in more training problems is an instruction, as in GPT-3, and makes no near-duplicates."""


class BadRow(NamedTuple):
    """A row that cannot be used."""

    row: int
    """1-based; see `data_files.scan_records`."""
    column: str
    """Column of the file; empty if the row as a whole is invalid."""
    reason: str


class Question(NamedTuple):
    """A valid row."""

    row: int
    problem: str
    key: str
    """The words of the problem's text, see `answer_text.canonical`."""
    public: TaskData
    """Public data besides the problem."""
    privileged: TaskData
    level: str
    split: Split | None
    """Split that the file names; None if it names none."""


class Loaded(NamedTuple):
    """The questions of a file."""

    questions: dict[Split, list[Question]]
    bad_rows: tuple[BadRow, ...]
    columns: dict[str, str]
    """Column of the file by its meaning."""
    header: tuple[str, ...]
    """All columns of the file."""
    rows: int
    duplicates: int
    """Rows that repeat a problem with the same answer; they are left out."""
    near_duplicates: int
    """Training and validation problems that nearly repeat a test problem."""
    preview: tuple[dict[str, str], ...]
    """The first rows as texts."""

    @property
    def valid(self) -> int:
        """Number of valid rows, duplicates included."""
        return self.rows - len(self.bad_rows)


Read = Callable[[str, object, Mapping[str, object]], tuple[TaskData, TaskData]]
"""`Checker.read`."""
Check = Callable[[Sequence[Question]], list[str]]
"""Returns for each question why its checker rejects the gold answer; empty if it accepts it."""


def load(path: Path, columns: Mapping[str, str], needed: Sequence[str], read: Read, check: Check, drop: bool) -> Loaded:
    """Read, check and split a file.

    Args:
        path: File of a suffix in `data_files.SUFFIXES`.
        columns: Columns by meaning; those left out are detected by name, and an empty name is none.
        needed: Further meanings that the checker needs.
        read: Reads the gold answer of a row.
        check: Checks the gold answers.
        drop: Whether near-duplicates of test problems are left out.

    Raises `DataError` if the file or a column is missing, or if no row is valid.
    """
    if not path.is_file():
        raise DataError("There is no such file.", value=str(path), fix="Set environment.path to a data file.")
    scanned = list(itertools.islice(scan_records(path), MAX_ROWS + 1))
    if len(scanned) > MAX_ROWS:
        raise DataError(f"The file has more than {MAX_ROWS:,} rows.", value=str(path), fix="Split it.")
    bad = [BadRow(number, "", row.reason) for number, row in scanned if isinstance(row, InvalidRow)]
    items = [(number, row) for number, row in scanned if not isinstance(row, InvalidRow)]
    header = list(dict.fromkeys(column for _, row in items for column in row))
    if not items:
        raise DataError(f"The file has no valid row. {list_bad_rows(bad, 5)}", value=str(path))
    found = find_columns(path, columns, [item for _, item in items], header, needed)
    made = [_question(number, item, found, needed, read) for number, item in items]
    questions, conflicting, duplicates = _distinct([row for row in made if isinstance(row, Question)], found)
    bad += [*conflicting, *(row for row in made if isinstance(row, BadRow))]
    reasons = check(questions)
    bad += [BadRow(q.row, found["answer"], reason) for q, reason in zip(questions, reasons, strict=True) if reason]
    valid = [question for question, reason in zip(questions, reasons, strict=True) if not reason]
    if not valid:
        raise DataError(f"The file has no valid row. {list_bad_rows(sorted(bad), 5)}", value=str(path))
    splits, near = _split(valid, drop)
    preview = tuple({name: _shown(item.get(name)) for name in header} for _, item in items[:5])
    return Loaded(splits, tuple(sorted(bad)), found, tuple(header), len(scanned), duplicates, near, preview)


def list_bad_rows(bad_rows: Sequence[BadRow], count: int) -> str:
    """Describe the first bad rows in a sentence each."""
    texts = [f"Row {bad.row}{', ' + bad.column if bad.column else ''}: {bad.reason}." for bad in bad_rows[:count]]
    more = len(bad_rows) - count
    return " ".join(texts) + (f" And {more} more." if more > 0 else "")


def find_columns(
    path: Path,
    given: Mapping[str, str],
    items: Sequence[Mapping[str, object]],
    header: list[str],
    needed: Sequence[str],
) -> dict[str, str]:
    """Return the column of each meaning: the given one, or the first known name."""
    found: dict[str, str] = {}
    for meaning, names in COLUMNS.items():
        name = given[meaning] if meaning in given else find_column(names, header)
        required = meaning in ("problem", "answer", *needed)
        if name and all(column_value(item, name) is None for item in items) and (required or meaning in given):
            raise DataError(f"No row of {path.name} has the column {name}.", value=name, known=header)
        if not name and required:
            raise DataError(
                f"No column of {path.name} is known to hold the {meaning}.",
                value=header,
                known=names,
                fix=f"Name it: environment.columns: {{{meaning}: COLUMN}}.",
            )
        if name:
            found[meaning] = name
    return found


def _question(
    number: int, item: Mapping[str, object], columns: Mapping[str, str], needed: Sequence[str], read: Read
) -> Question | BadRow:
    values = {meaning: column_value(item, column) for meaning, column in columns.items()}
    for meaning in ("problem", "answer", *needed):
        if _is_missing(values[meaning]):
            return BadRow(number, columns[meaning], "is empty")
    answer, solution = values["answer"], values.get("solution")
    if isinstance(answer, str) and "tests" not in needed:
        answer, derived = split_solution(answer)
        solution = derived if _is_missing(solution) else solution
    for meaning in ("problem", "solution", "level", "split"):
        reason = _text_error(values.get(meaning))
        if reason:
            return BadRow(number, columns[meaning], reason)
    problem = str(values["problem"]).strip()
    if not canonical(problem):
        return BadRow(number, columns["problem"], "has no word")
    try:
        if not _is_missing(values.get("choices")):
            choices = read_choices(values["choices"])
            problem = "\n".join([problem, *(f"{letter}. {text}" for letter, text in choices.texts.items())])
        public, privileged = read(problem, answer, values)
    except RowError as error:
        return BadRow(number, columns[error.meaning], str(error))
    split: Split | None = None
    if not _is_missing(values.get("split")):
        name = str(values["split"]).strip().casefold()
        if name not in SPLIT_NAMES:
            return BadRow(number, columns["split"], f"is {name[:40]!r}, none of {', '.join(SPLIT_NAMES)}")
        split = SPLIT_NAMES[name]
    if not _is_missing(solution):
        privileged = {**privileged, "solution": str(solution)}
    level = "all" if _is_missing(values.get("level")) else str(values["level"])
    return Question(number, problem, canonical(problem), public, privileged, level, split)


def _text_error(value: object) -> str:
    """Return why a value is not a text of a question; empty if it is one."""
    if not isinstance(value, str | int | float | None) or isinstance(value, bool):
        return f"is a {type(value).__name__}, not a text"
    text = str(value)
    if len(text) > MAX_PROBLEM:
        return f"has {len(text):,} characters, more than {MAX_PROBLEM:,}"
    return "is not valid Unicode text" if SURROGATE.search(text) else ""


def _is_missing(value: object) -> bool:
    is_nan = isinstance(value, float) and math.isnan(value)
    return value is None or is_nan or (isinstance(value, str) and not value.strip())


def _shown(value: object) -> str:
    return "" if _is_missing(value) else as_text(value).encode("utf-8", "replace").decode()


def _distinct(questions: Sequence[Question], columns: Mapping[str, str]) -> tuple[list[Question], list[BadRow], int]:
    """Return each problem once, rows with another answer to an earlier problem, and the number of repeated rows.

    Of equal problems in several splits, the one of the test split stays, then that of the validation split.
    """
    order = {split: rank for rank, split in enumerate(reversed(SPLITS))}
    first: dict[str, Question] = {}
    bad = []
    for question in sorted(questions, key=lambda q: (order.get(cast(Split, q.split), len(order)), q.row)):
        earlier = first.setdefault(folded(question.problem), question)
        if earlier.privileged["answer"] != question.privileged["answer"]:
            bad.append(BadRow(question.row, columns["answer"], f"differs from row {earlier.row}, the same problem"))
    kept = sorted(first.values())
    return kept, bad, len(questions) - len(kept) - len(bad)


def _split(questions: Sequence[Question], drop: bool) -> tuple[dict[Split, list[Question]], int]:
    """Return the questions by split and the number of near-duplicates.

    A split of the file is kept. Other questions are split 3 : 1 : 1 by a hash of their words; if the file names test
    but no validation problems, a fifth of its training problems is for validation. If it names no split, test and
    training have at least one problem each.
    """
    named = {question.split for question in questions} - {None}
    splits: dict[Split, list[Question]] = {split: [] for split in SPLITS}
    for question in questions:
        chosen = question.split or assign_split(question.key)
        if question.split == "train" and "test" in named and "validation" not in named:
            chosen = assign_split(question.key, (0.8, 0.2, 0.0))
        splits[chosen].append(question)
    pairs: tuple[tuple[Split, Split], ...] = (("test", "train"), ("train", "test"))
    for split, other in pairs if not named else ():
        source = splits["validation"] or splits[other]
        if not splits[split] and (splits["validation"] or len(source) > 1):
            moved = min(source, key=lambda question: hashlib.sha256(question.key.encode()).digest())
            source.remove(moved)
            splits[split].append(moved)
    count = 0
    for split in SPLITS[:2]:
        near = near_duplicates(splits[split], splits["test"])
        count += len(near)
        if drop:
            splits[split] = [question for i, question in enumerate(splits[split]) if i not in near]
    return splits, count


def near_duplicates(train: Sequence[Question], test: Sequence[Question]) -> set[int]:
    """Return the positions of training questions that nearly repeat a test question.

    Their texts differ in one word, which is not a number, and their answers are equal; or they share `RUN_WORDS` words
    in a row, which at most `MAX_SHARED` training questions contain.
    """
    edited = {edit for question in test for edit in _edits(question)}
    runs = {run for question in test for run in _runs(question)}
    shared = [_runs(question) & runs for question in train]
    counts = Counter(run for runs in shared for run in runs)
    return {
        i
        for i, question in enumerate(train)
        if any(counts[run] <= MAX_SHARED for run in shared[i]) or not edited.isdisjoint(_edits(question))
    }


def _runs(question: Question) -> set[int]:
    """Return hashes of the runs of `RUN_WORDS` words of a question."""
    words = question.key.split()
    return {hash(tuple(words[i : i + RUN_WORDS])) for i in range(len(words) - RUN_WORDS + 1)}


def _edits(question: Question) -> set[int]:
    """Return hashes of the answer with all words of a question, and without each one that is not a number.

    Texts of more than `MAX_EDITED` words have the first hash only.
    """
    words, answer = question.key.split(), str(question.privileged["answer"])
    left_out = [i for i, word in enumerate(words) if not word.isdigit()] if len(words) <= MAX_EDITED else []
    return {hash((answer, *words)), *(hash((answer, *words[:i], *words[i + 1 :])) for i in left_out)}
