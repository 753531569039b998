"""Stored data sets: right answers with their tasks, in a folder that is whole or not there.

    datasets/NAME/rows.jsonl      one row a line: TRL's conversational `prompt` and `completion`, and where it is from
    datasets/NAME/dataset.json    what it was made from, how many rows, their checksum

While a stage makes one, the rows of each step lie in `datasets/.NAME/`; the last step makes the folder with one rename.
Rows of others can be read too: JSON lines with `prompt` and `completion`, or with `messages`, in TRL's form.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from rl2f_core.config import EvaluationConfig, write_atomically
from rl2f_core.environments.base import Environment, extract_answer
from rl2f_core.errors import ConfigError, DataError, shorten
from rl2f_core.run import RunDir, sha256
from rl2f_core.types import Split, Task, Value

SCHEMA_VERSION = 1
"""Of rows and manifest; grows with every change that a reader would notice."""
DATASETS = "datasets"
"""Folder of a run's data sets."""
HELD_OUT = 500
"""Tasks at the beginning of a held-out split that no row may be, where the evaluation does not play more of them."""


class Row(Value):
    """One answer to imitate: a dialogue of one attempt, or of several with the hints between them."""

    task: Task
    attempts: tuple[str, ...] = Field(min_length=1)
    """The student's texts, oldest first."""
    hints: tuple[str, ...] = ()
    """The message after each attempt but the last."""
    split: Split | None = None
    """The split that the task is of, where the data set says so."""
    dialogue: str = ""
    """Id of the dialogue that it was taken from."""


def folder_of(run_dir: RunDir, name: str) -> Path:
    """Where a run's data set lies, once it is whole."""
    return run_dir.path / DATASETS / name


def normalised(text: str) -> str:
    """Text without what tells no two answers apart: width, case and white space."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


# -- writing ------------------------------------------------------------------------------------------------------


class Draft:
    """A data set in the making, step by step. A step that is played again replaces what it had written before."""

    def __init__(self, run_dir: RunDir, name: str) -> None:
        self.folder = folder_of(run_dir, name)
        self.parts = self.folder.with_name(f".{name}")

    def put(self, step: int, rows: Sequence[Mapping[str, Any]], counts: Mapping[str, Any]) -> None:
        """Keep the rows and counts of a 1-based step."""
        write_atomically(self.parts / f"{step}.json", json.dumps({"rows": list(rows), "counts": dict(counts)}))

    def steps(self, upto: int) -> list[dict[str, Any]]:
        """`rows` and `counts` of the steps 1…upto. Raises `DataError` where one is missing or torn."""
        found = []
        for step in range(1, upto + 1):
            path = self.parts / f"{step}.json"
            try:
                part = json.loads(path.read_text(encoding="utf-8"))
                found.append({"rows": list(part["rows"]), "counts": dict(part["counts"])})
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise DataError(f"Step {step} of the data set in the making cannot be read: {error}.",
                                value=str(path), fix="Restore the file, or start the run anew.") from error  # fmt: skip
        return found

    def finish(self, rows: Iterable[Mapping[str, Any]], about: Mapping[str, Any]) -> dict[str, Any]:
        """Publish the whole data set; returns its manifest."""
        fresh = self.folder.with_name(f".{self.folder.name}.tmp")
        shutil.rmtree(fresh, ignore_errors=True)
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        write_atomically(fresh / "rows.jsonl", "".join(f"{line}\n" for line in lines))
        manifest = {"schema_version": SCHEMA_VERSION, "name": self.folder.name, "rows": len(lines), **about,
                    "sha256": sha256(fresh / "rows.jsonl")}  # fmt: skip
        write_atomically(fresh / "dataset.json", json.dumps(manifest, indent=2, ensure_ascii=False))
        shutil.rmtree(self.folder, ignore_errors=True)
        os.rename(fresh, self.folder)
        return manifest

    def clear(self) -> None:
        """Remove the parts, once the data set and its commit stand."""
        shutil.rmtree(self.parts, ignore_errors=True)


# -- reading ------------------------------------------------------------------------------------------------------


def manifest_of(folder: Path) -> dict[str, Any]:
    """What a data set says of itself; raises `DataError` where it cannot be read."""
    try:
        manifest = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))
        return {**manifest, "rows": int(manifest["rows"]), "sha256": str(manifest["sha256"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"The data set's description cannot be read: {error}.", value=str(folder),
                        fix="Make the data set again, or restore dataset.json.") from error  # fmt: skip


def find(data: str, run_dir: RunDir | None) -> Path:
    """The rows that a configuration names: a stage of this run, a data set's folder, or a JSONL file.

    Raises `ConfigError` naming the data sets there are.
    """
    own = run_dir is not None and Path(data).name == data
    if own and run_dir is not None and (folder_of(run_dir, data) / "dataset.json").is_file():
        return folder_of(run_dir, data) / "rows.jsonl"
    path = Path(data)
    if (path / "dataset.json").is_file():
        return path / "rows.jsonl"
    if path.is_file():
        return path
    known = [] if run_dir is None else sorted(p.parent.name for p in (run_dir.path / DATASETS).glob("*/dataset.json"))
    raise ConfigError("There is no such data set.", value=data, known=known,
                      fix="Name an earlier `distill` stage, a data set's folder, or a .jsonl file.")  # fmt: skip


def read_rows(path: Path, environment: Environment) -> list[Row]:
    """The rows of a data set for an environment.

    Raises `DataError` where the file is missing or does not match its checksum, where a row cannot be read, and where
    one belongs to another environment.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError("The data set cannot be opened.", value=str(path)) from error
    if (path.parent / "dataset.json").is_file() and path.name == "rows.jsonl":
        manifest = manifest_of(path.parent)
        if hashlib.sha256(data).hexdigest() != manifest["sha256"]:
            raise DataError("The data set is damaged: its rows do not match their checksum.", value=str(path),
                            fix="Make it again, or restore the file.")  # fmt: skip
    rows = []
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip():
            rows.append(_row(line, f"{path.name}, line {number}", environment))
    if not rows:
        raise DataError("The data set has no rows.", value=str(path), fix="Ask for more tasks, or a better source.")
    return rows


def _row(line: bytes, where: str, environment: Environment) -> Row:
    try:
        data = json.loads(line)
        said = data["messages"] if "messages" in data else [*_said(data["prompt"], "user"),
                                                            *_said(data["completion"], "assistant")]  # fmt: skip
        said = [(str(message["role"]), str(message["content"])) for message in said if message["role"] != "system"]
        held = data.get("task_data")
        task = None if held is None else Task.model_validate(held)
        split, dialogue = data.get("split"), data.get("dialogue", "")
        named = data.get("environment")
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise DataError(f"A row of the data set cannot be read ({where}): {shorten(str(error), 200)}.",
                        value=shorten(line.decode(errors="replace"), 120),
                        fix="Write `prompt` and `completion`, or `messages`, as TRL does.") from error  # fmt: skip
    named = task.environment if task is not None else named
    if named is not None and not environment.speaks_of(str(named)):
        raise DataError(f"The data set is of another environment than this run's {environment.name} ({where}).",
                        value=named, fix="Name a data set of this environment.")  # fmt: skip
    roles = [role for role, _ in said]
    if not roles or roles != ["user", "assistant"] * (len(roles) // 2):
        raise DataError(f"A row is no dialogue of a problem, attempts and hints ({where}).", value=roles,
                        fix="After a system message, `user` and `assistant` take turns.")  # fmt: skip
    texts = [text for _, text in said]
    if task is None:
        task = _task_of(texts[0], texts[1::2], where, environment)
    else:
        task = environment.adopted(task)
    return Row(task=task, attempts=tuple(texts[1::2]), hints=tuple(texts[2::2]),
               split=split if split in ("train", "validation", "test") else None, dialogue=str(dialogue))  # fmt: skip


def _said(held: Any, role: str) -> list[Any]:
    """Messages, or a plain text as one message."""
    return [{"role": role, "content": held}] if isinstance(held, str) else list(held)


def _task_of(problem: str, attempts: Sequence[str], where: str, environment: Environment) -> Task:
    """The task of a row that carries none, from the problem and the last answer."""
    answer, why = extract_answer(attempts[-1])
    try:
        if answer is None:
            raise DataError(f"its last attempt is {why}")
        return environment.task_from_gold(problem, answer)
    except DataError as error:
        raise DataError(f"A row is no task of {environment.name} ({where}): {error}", value=shorten(problem, 120),
                        fix="Name a data set of this environment.") from error  # fmt: skip


# -- held-out tasks -----------------------------------------------------------------------------------------------


def refuse_held_out(rows: Sequence[Row], environment: Environment, evaluation: EvaluationConfig) -> None:
    """Raises `DataError` where a row is a task of the test split, or of the one that the run is evaluated on.

    A row that says its split is taken by its word and, like the others, by its problem: it may not be the same, up to
    renaming, as one of the tasks that will be played or of the first `HELD_OUT` of the split.
    """
    splits: list[Split] = list(dict.fromkeys(("test", evaluation.split)))
    held: dict[str, str] = {}
    for split in splits:
        for index in range(max(HELD_OUT, evaluation.tasks if split == evaluation.split else 0)):
            task = environment.task(split, index)
            held.setdefault(environment.canonical(task), task.id)
    taken = [
        (row, held.get(environment.canonical(row.task), row.task.id))
        for row in rows
        if row.split in splits or environment.canonical(row.task) in held
    ]
    if taken:
        row, name = taken[0]
        raise DataError(
            f"{len(taken)} of {len(rows)} rows are held-out tasks, so what is trained on them could not be evaluated.",
            value=f"{shorten(environment.prompt(row.task.public), 120)} ({name})",
            fix="Leave out the rows of the test split (and of evaluation.split).",
        )
