"""Where mathematical problems come from: data sets of the hub by name, and local JSONL or Parquet files.

`HUB` is the one table of their columns. What is fetched is kept under `RL2F_HOME` as one file that is whole or absent.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rl2f_core.errors import DataError
from rl2f_core.paths import MATH_SAMPLE

_HASHES = re.compile(r"\n?#{3,4}\s*(?P<answer>[^\n]+)\s*$")
_CALCULATOR = re.compile(r"<<[^<>]*>>")
_DAPO = re.compile(
    r"\s*(?:Solve the following math problem step by step\. The last line of your response should be of the form "
    r"Answer: \$Answer \(without quotes\) where \$Answer is the answer to the problem\.)?\s*(?P<problem>.*?)\s*"
    r'(?:Remember to put your answer on its own line after "Answer:"\.)?\s*',
    re.DOTALL,
)


class Row(NamedTuple):
    """One problem as a source has it."""

    number: int
    """1-based position in the source."""
    problem: str
    answer: str
    solution: str | None
    level: str


class Columns(NamedTuple):
    """Where a row has what; `a.0.b` reaches into lists and objects."""

    problem: str
    answer: str
    solution: str | None = None
    level: str | None = None


class Hub(NamedTuple):
    """A data set of the hub."""

    id: str
    columns: Columns
    splits: tuple[str, ...] = ("train",)
    """Splits to read; the last of two is the test split."""
    config: str | None = None
    clean: Callable[[Row], Row] | None = None
    """What takes instructions off its problems, or an answer out of its solution."""


def _gsm8k(row: Row) -> Row:
    """The answer after `####`, and the worked solution before it without the calculator's marks."""
    match = _HASHES.search(row.answer)
    if match is None:
        return row._replace(answer="")
    solution = _CALCULATOR.sub("", row.answer[: match.start()]).strip()
    return row._replace(answer=match["answer"].strip(), solution=solution or None)


def _dapo(row: Row) -> Row:
    """The problem without the instruction around it."""
    match = _DAPO.fullmatch(row.problem)
    return row if match is None else row._replace(problem=match["problem"])


HUB: dict[str, Hub] = {
    "omni_math": Hub("KbsdJames/Omni-MATH", Columns("problem", "answer", "solution", "difficulty"), ("test",)),
    "deepmath": Hub("zwhe99/DeepMath-103K", Columns("question", "final_answer", "r1_solution_1", "difficulty")),
    "dapo": Hub(
        "BytedTsinghua-SIA/DAPO-Math-17k", Columns("prompt.0.content", "reward_model.ground_truth"), clean=_dapo
    ),
    "math500": Hub("HuggingFaceH4/MATH-500", Columns("problem", "answer", "solution", "level"), ("test",)),
    "aime": Hub("AI-MO/aimo-validation-aime", Columns("problem", "answer", "solution")),
    "aime_2024": Hub("HuggingFaceH4/aime_2024", Columns("problem", "answer", "solution", "year")),
    "gsm8k": Hub("openai/gsm8k", Columns("question", "answer"), ("train", "test"), "main", _gsm8k),
}
"""Known data sets: DAPO repeats each of its problems about a hundred times, which `distinct` undoes."""
_DETECTED = (
    ("problem", "question", "prompt"),
    ("answer", "final_answer", "gold"),
    ("solution", "worked_solution", "r1_solution_1"),
    ("level", "difficulty", "year"),
)
"""Column names that are detected, in order of preference."""


def known() -> list[str]:
    """The names that a source can have beside the path of a file."""
    return ["sample", *HUB]


def rows(source: str, columns: Mapping[str, str] | None = None, split: str | None = None) -> list[Row]:
    """All problems of a source, in its order.

    Args:
        source: A name of `known`, or the path of a .jsonl or .parquet file, which may have the layout of a hub data
            set.
        columns: Which column is the problem, answer, solution and level; None finds them out.
        split: Of a hub data set with a test split of its own; None takes all of them.

    Raises `DataError` naming the row for a missing column, a value of the wrong kind, or an empty problem or answer.
    """
    if source in HUB:
        hub = HUB[source]
        problems: list[Row] = []
        for part in hub.splits if split is None else (split,):
            path = _fetched(source, hub, part)
            problems += _read(path, hub.columns, hub.clean)
        return [row._replace(number=i) for i, row in enumerate(problems, 1)]
    path = MATH_SAMPLE if source == "sample" else Path(source).expanduser()
    if not path.is_file():
        raise DataError(
            "There is no such data set or file.",
            value=source,
            known=known(),
            fix="Give one of the names, or the path of a .jsonl or .parquet file.",
        )
    return _read(path, _given(columns), None)


def own_test(source: str) -> bool:
    """Whether a source has a test split of its own."""
    return source in HUB and len(HUB[source].splits) > 1


def _given(columns: Mapping[str, str] | None) -> Columns | None:
    if not columns:
        return None
    unknown = sorted(set(columns) - set(Columns._fields))
    if unknown or not {"problem", "answer"} <= set(columns):
        raise DataError(
            "`columns` names the columns of a file: problem and answer at least.",
            value=dict(columns),
            known=Columns._fields,
            fix="E.g. {problem: question, answer: final_answer}.",
        )
    return Columns(**columns)


def _read(path: Path, columns: Columns | None, clean: Callable[[Row], Row] | None) -> list[Row]:
    problems: list[Row] = []
    for number, item in enumerate(_records(path), 1):
        if columns is None:
            columns, clean = _detected(path, item)
        row = _row(path, number, item, columns)
        row = row if clean is None else clean(row)
        for name in ("problem", "answer"):
            if not getattr(row, name).strip():
                raise DataError(
                    f"Row {number} of {path.name} has an empty {name}.",
                    value=shown(item),
                    fix="Correct or delete the row.",
                )
        problems.append(row)
    if not problems:
        raise DataError("The file holds no problems.", value=str(path))
    return problems


def shown(item: Mapping[str, Any]) -> str:
    """The start of a row."""
    return json.dumps(item, ensure_ascii=False, default=str)[:160]


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file, one object each."""
    if path.suffix == ".parquet":
        import pyarrow.parquet

        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(1024):
                    yield from batch.to_pylist()
        except (OSError, ValueError, pyarrow.ArrowException) as error:
            raise DataError(f"The Parquet file cannot be read: {error}.", value=str(path)) from error
        return
    if path.suffix not in (".jsonl", ".ndjson"):
        raise DataError("Only .jsonl and .parquet files can be read.", value=str(path))
    try:
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                item = json.loads(line)
                if not isinstance(item, dict):
                    raise DataError(f"Row {number} of {path.name} is no object.", value=line[:160])
                yield item
    except (ValueError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"Row {number} of {path.name} is not JSON: {error}.", value=line[:160]) from error
    except OSError as error:
        raise DataError(f"The file cannot be read: {error.strerror}.", value=str(path)) from error


def _detected(path: Path, item: Mapping[str, Any]) -> tuple[Columns, Callable[[Row], Row] | None]:
    """The columns that a file's first row has: those of a hub data set, or names that speak for themselves."""
    for hub in HUB.values():
        named = [name for name in hub.columns[:2] if name is not None]
        if hub.clean is not None and all(_reach(item, name) is not None for name in named):
            probe = hub.clean(Row(1, str(_reach(item, named[0])), str(_reach(item, named[1])), None, ""))
            if "." in named[0] or (probe.answer and probe.solution):
                return hub.columns, hub.clean
    problems = [next((name for name in names if item.get(name) is not None), None) for names in _DETECTED]
    if problems[0] is None or problems[1] is None:
        missing = "problem" if problems[0] is None else "answer"
        raise DataError(
            f"No column of {path.name} is known to hold the {missing}.",
            value=sorted(item),
            known=_DETECTED[0 if missing == "problem" else 1],
            fix="Name it, e.g. columns: {problem: question, answer: final_answer}.",
        )
    return Columns(problems[0], problems[1], problems[2], problems[3]), None


def _reach(item: Any, path: str) -> Any:
    """The value at `a.0.b`, or None."""
    for key in path.split("."):
        if isinstance(item, Mapping):
            item = item.get(key)
        elif isinstance(item, Sequence) and not isinstance(item, str) and key.isdigit() and int(key) < len(item):
            item = item[int(key)]
        else:
            return None
    return item


def _row(path: Path, number: int, item: Mapping[str, Any], columns: Columns) -> Row:
    texts: dict[str, str | None] = {}
    for name, column in columns._asdict().items():
        value = None if column is None else _reach(item, column)
        if isinstance(value, bool) or not isinstance(value, str | int | float | None):
            raise DataError(f"Row {number} of {path.name}: {name} (column {column}) is no text or number.", value=value)
        if value is None and name in ("problem", "answer"):
            raise DataError(
                f"Row {number} of {path.name} has no column {column}, which holds the {name}.",
                value=sorted(item),
                fix="Correct the row, or name another column.",
            )
        texts[name] = None if value is None else str(value)
    level = texts["level"]
    return Row(number, texts["problem"] or "", texts["answer"] or "", texts["solution"], level or "all")


def _fetched(name: str, hub: Hub, split: str) -> Path:
    """The cached file of a hub data set's split, downloaded if missing.

    Raises `DataError` if the download fails, without leaving a partial file.
    """
    from rl2f_core.file_io import write_atomically
    from rl2f_core.model_store.store import cache_dir

    kept = cache_dir() / "datasets" / f"{name}-{split}.jsonl"
    if kept.is_file():
        return kept
    scratch = tempfile.mkdtemp(prefix="rl2f-dataset-")
    try:
        import datasets

        data = datasets.load_dataset(hub.id, hub.config, split=split, cache_dir=scratch)
        needed = {path.split(".")[0] for path in hub.columns if path is not None}
        data = data.select_columns([column for column in data.column_names if column in needed])
        lines, seen = [], set()
        for item in data:
            line = json.dumps(item, ensure_ascii=False)
            if line not in seen:  # exact copies are no rows of their own: one data set has a hundred of each
                seen.add(line)
                lines.append(line)
    except DataError:
        raise
    except Exception as error:  # the hub's client fails in many ways; each means that there is no data set
        raise DataError(
            f"The data set {hub.id} is not on this machine and cannot be fetched: {type(error).__name__}.",
            value=name,
            fix=f"Connect to the network, or give the path of a .jsonl or .parquet copy, or put one at {kept}.",
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    write_atomically(kept, "\n".join(lines) + "\n")
    return kept
