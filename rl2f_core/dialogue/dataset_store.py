"""Stored datasets of correct answers. A dataset is published atomically.

    datasets/NAME/rows.jsonl      one row per line: TRL's conversational `prompt` and `completion`, and their origin
    datasets/NAME/dataset.json    manifest: configuration, counts, checksum

While a stage makes a dataset, the rows of each step are in `datasets/.NAME/`. The last step publishes them with one
rename. Other JSON lines can be read as well, with `prompt` and `completion` or with `messages` in TRL's form.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import Field, ValidationError

from rl2f_core.common.file_io import sha256, write_atomically
from rl2f_core.config.evaluation import EvaluationConfig
from rl2f_core.environments.base import Environment, distinct_tasks, extract_answer
from rl2f_core.errors import ConfigError, DataError, shorten
from rl2f_core.run.directory import RunDir
from rl2f_core.types import FrozenModel, JsonObject, Split, Task

SCHEMA_VERSION = 1
"""Version of rows and manifest; increases with every incompatible change."""
DATASETS = "datasets"
"""Folder of a run's datasets."""
MIN_HELD_OUT_TASKS = 500
"""Number of first tasks of a held-out split that a dataset must not contain."""


class Row(FrozenModel):
    """One dialogue to imitate: attempts with the hints between them."""

    task: Task
    attempts: tuple[str, ...] = Field(min_length=1)
    """The student's messages, oldest first."""
    hints: tuple[str, ...] = ()
    """The message after each attempt but the last."""
    split: Split | None = None
    """The task's split, if the dataset names it."""


def dataset_dir(run_dir: RunDir, name: str) -> Path:
    """Return the folder of a run's published dataset."""
    return run_dir.path / DATASETS / name


def normalize_text(text: str) -> str:
    """Normalize width, case and white space, which do not distinguish two answers."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


# -- writing ------------------------------------------------------------------------------------------------------


class DatasetWriter:
    """Writes a dataset step by step. A repeated step replaces its earlier rows."""

    def __init__(self, run_dir: RunDir, name: str) -> None:
        self.folder = dataset_dir(run_dir, name)
        self.parts = self.folder.with_name(f".{name}")

    def write_step(self, step: int, rows: Sequence[Mapping[str, object]], counts: Mapping[str, object]) -> None:
        """Write the rows and counts of a 1-based step."""
        write_atomically(self.parts / f"{step}.json", json.dumps({"rows": list(rows), "counts": dict(counts)}))

    def steps(self, upto: int) -> list[JsonObject]:
        """Return `rows` and `counts` of the steps 1…upto; raises `DataError` if one is missing or incomplete."""
        steps = []
        for step in range(1, upto + 1):
            path = self.parts / f"{step}.json"
            try:
                stored = json.loads(path.read_text(encoding="utf-8"))
                steps.append({"rows": list(stored["rows"]), "counts": dict(stored["counts"])})
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise DataError(
                    f"Step {step} of the unfinished dataset cannot be read: {error}.",
                    value=str(path),
                    fix="Restore the file, or start a new run.",
                ) from error
        return steps

    def finish(self, rows: Iterable[Mapping[str, object]], about: Mapping[str, object]) -> JsonObject:
        """Publish the dataset and return its manifest."""
        temporary = self.folder.with_name(f".{self.folder.name}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        write_atomically(temporary / "rows.jsonl", "".join(f"{line}\n" for line in lines))
        header = {"schema_version": SCHEMA_VERSION, "name": self.folder.name, "rows": len(lines)}
        manifest = {**header, **about, "sha256": sha256(temporary / "rows.jsonl")}
        write_atomically(temporary / "dataset.json", json.dumps(manifest, indent=2, ensure_ascii=False))
        shutil.rmtree(self.folder, ignore_errors=True)
        os.rename(temporary, self.folder)
        return manifest

    def clear(self) -> None:
        """Remove the steps after the published dataset was committed."""
        shutil.rmtree(self.parts, ignore_errors=True)


# -- reading ------------------------------------------------------------------------------------------------------


def manifest_of(folder: Path) -> JsonObject:
    """Read a dataset's manifest; raises `DataError` if it cannot be read."""
    try:
        manifest = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))
        return {**manifest, "rows": int(manifest["rows"]), "sha256": str(manifest["sha256"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"The dataset's manifest cannot be read: {error}.",
            value=str(folder),
            fix="Make the dataset again, or restore dataset.json.",
        ) from error


def find_rows(dataset: str, run_dir: RunDir | None) -> Path:
    """Return the rows file of a configured dataset: a stage of this run, a dataset folder, or a JSONL file.

    Raises:
        ConfigError: No such dataset; the error lists the run's datasets.
    """
    path = Path(dataset)
    folders = [dataset_dir(run_dir, dataset)] if run_dir is not None and path.name == dataset else []
    for folder in (*folders, path):
        if (folder / "dataset.json").is_file():
            return folder / "rows.jsonl"
    if path.is_file():
        return path
    known = [] if run_dir is None else sorted(p.parent.name for p in (run_dir.path / DATASETS).glob("*/dataset.json"))
    raise ConfigError(
        "There is no such dataset.",
        value=dataset,
        known=known,
        fix="Name an earlier `distill` stage, a dataset's folder, or a .jsonl file.",
    )


def read_rows(path: Path, environment: Environment) -> list[Row]:
    """Read the rows of a dataset for an environment.

    Raises:
        DataError: The file is missing or does not match its checksum, or a row is invalid or of another environment.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError("The dataset cannot be opened.", value=str(path)) from error
    if (path.parent / "dataset.json").is_file() and path.name == "rows.jsonl":
        manifest = manifest_of(path.parent)
        if hashlib.sha256(data).hexdigest() != manifest["sha256"]:
            raise DataError(
                "The dataset is damaged: its rows do not match their checksum.",
                value=str(path),
                fix="Make it again, or restore the file.",
            )
    rows = [
        _parse_row(line, f"{path.name}, line {number}", environment)
        for number, line in enumerate(data.splitlines(), 1)
        if line.strip()
    ]
    if not rows:
        raise DataError("The dataset has no rows.", value=str(path), fix="Sample more tasks, or use a better source.")
    return rows


def _parse_row(line: bytes, where: str, environment: Environment) -> Row:
    try:
        data = json.loads(line)
        if "messages" in data:
            messages = data["messages"]
        else:
            messages = [*_as_messages(data["prompt"], "user"), *_as_messages(data["completion"], "assistant")]
        turns = [(str(message["role"]), str(message["content"])) for message in messages if message["role"] != "system"]
        task = None if data.get("task_data") is None else Task.model_validate(data["task_data"])
        split, name = data.get("split"), data.get("environment")
        verdicts = data.get("verdicts")
        last = verdicts[-1] if isinstance(verdicts, list) and verdicts else data
        is_incorrect = isinstance(last, dict) and (last.get("correct") is False or last.get("solved_at") == 0)
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise DataError(
            f"A row of the dataset cannot be read ({where}): {shorten(str(error), 200)}.",
            value=shorten(line.decode(errors="replace"), 120),
            fix="Write `prompt` and `completion`, or `messages`, as TRL does.",
        ) from error
    if is_incorrect:
        raise DataError(
            f"The last attempt of a row is incorrect by its `verdicts`, `solved_at` or `correct` ({where}).",
            value=shorten(turns[-1][1] if turns else "", 120),
            fix="Leave out such rows, or export the dialogues as `prompt_completion`: correct attempts only.",
        )
    name = task.environment if task is not None else name
    if name is not None and not environment.owns_environment(str(name)):
        raise DataError(
            f"The dataset is of another environment than this run's {environment.name} ({where}).",
            value=name,
            fix="Name a dataset of this environment.",
        )
    roles, texts = [role for role, _ in turns], [text for _, text in turns]
    if not roles or roles != ["user", "assistant"] * (len(roles) // 2):
        raise DataError(
            f"A row is not a dialogue of a problem, attempts and hints ({where}).",
            value=roles,
            fix="After a system message, `user` and `assistant` must alternate.",
        )
    return Row(
        task=_parse_task(texts, where, environment) if task is None else environment.adopt_task(task),
        attempts=tuple(texts[1::2]),
        hints=tuple(texts[2::2]),
        split=split if split in ("train", "validation", "test") else None,
    )


def _as_messages(content: str | list[JsonObject], role: str) -> list[JsonObject]:
    """Return messages; plain text becomes one message."""
    return [{"role": role, "content": content}] if isinstance(content, str) else list(content)


def _parse_task(texts: Sequence[str], where: str, environment: Environment) -> Task:
    """Build the task of a row without `task_data` from the problem and the last answer."""
    answer, why = extract_answer(texts[-1])
    try:
        if answer is None:
            raise DataError(f"its last attempt is {why}")
        return environment.task_from_gold(texts[0], answer)
    except DataError as error:
        raise DataError(
            f"A row is not a task of {environment.name} ({where}): {error}",
            value=shorten(texts[0], 120),
            fix="Name a dataset of this environment.",
        ) from error


# -- held-out tasks -----------------------------------------------------------------------------------------------


def refuse_held_out(rows: Sequence[Row], environment: Environment, evaluation: EvaluationConfig) -> None:
    """Raise `DataError` if a row is a task of the test split or of the run's evaluation split.

    Rows are recognized by their `split` and by their problem, up to renaming. The problem is compared with the
    evaluated tasks, and with the first `MIN_HELD_OUT_TASKS` tasks of each split.
    """
    splits: list[Split] = list(dict.fromkeys(("test", evaluation.split)))
    tasks = [environment.task(split, index) for split in splits for index in range(MIN_HELD_OUT_TASKS)]
    tasks += distinct_tasks(environment, evaluation.split, evaluation.num_tasks)
    held_out = {environment.canonical(task): task.id for task in reversed(tasks)}
    refused = [
        (row, held_out.get(environment.canonical(row.task), row.task.id))
        for row in rows
        if row.split in splits or environment.canonical(row.task) in held_out
    ]
    if refused:
        row, name = refused[0]
        raise DataError(
            f"{len(refused)} of {len(rows)} rows are held-out tasks; training on them would invalidate the evaluation.",
            value=f"{shorten(environment.prompt(row.task.public), 120)} ({name})",
            fix="Leave out the rows of the test split (and of evaluation.split).",
        )
