"""One pass over the dialogues into all wanted data set types, published by one rename.

Everything is written into a hidden folder beside the target, flushed, and renamed when it is whole: whoever looks at
the target sees a finished export or none. An export that was interrupted is simply started again.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.export.card import card
from jobs.export.export_records import ExportRecord
from jobs.export.formats import FORMATS
from jobs.export.label_choice import decide
from jobs.export.pairs import PairFinder, scratch_is_full
from jobs.export.row_builders import Decisions, messages, prompt_completion, stepwise, unpaired
from jobs.export.settings import ExportSettings
from jobs.export.sources import Source
from jobs.export.writers import FormatWriter
from rl2f_core.errors import DataError, DiskFullError, RunError
from rl2f_core.file_io import disk_is_full, write_atomically
from rl2f_core.run.directory import provenance
from rl2f_core.run.progress import Progress

SCHEMA_VERSION = 1
"""Of manifest and columns; grows with every change that a reader would notice."""
PAIR_BATCH = 500
ROW_BUILDERS: dict[str, Callable[..., Iterator[dict[str, Any]]]] = {
    "stepwise_supervision": stepwise,
    "unpaired_preference": unpaired,
    "messages": messages,
    "prompt_completion": prompt_completion,
}
"""The types whose rows come from one dialogue alone."""


@dataclass
class LabelCounts:
    """What was seen."""

    dialogues: int = 0
    empty: int = 0
    """Dialogues without a single attempt; they are in no row."""
    hints: int = 0
    labels: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(whose label, or why there is none; leak, no_leak or empty) → hints."""

    def take(self, decisions: Decisions) -> None:
        """Count a dialogue's hints."""
        self.dialogues += 1
        for decision in decisions:
            if decision is not None:
                self.hints += 1
                self.labels[decision.source, decision.word] += 1

    @property
    def decided(self) -> int:
        """Hints with a label."""
        return sum(count for (_, word), count in self.labels.items() if word)

    def as_dict(self) -> dict[str, Any]:
        """Label counts by source, and why hints have none."""
        found: dict[str, Any] = {"hints": self.hints, "human": {}, "detector": {}, "without": {}}
        for (source, word), count in sorted(self.labels.items()):
            if word:
                found[source][word] = count
            else:
                found["without"][source] = count
        return found


class Stopped(Exception):
    """The export was asked to stop; nothing is left of it."""


def export(
    sources: Sequence[Source],
    settings: ExportSettings,
    out: Path,
    *,
    name: str = "export",
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
    replace: bool = False,
) -> dict[str, Any] | None:
    """Write the data sets into the folder `out`; returns the manifest, or None where `stop` ended it early.

    Args:
        sources: The runs.
        settings: What to take and to make.
        out: The folder to make; its parent is made where it is missing.
        name: Title of the card.
        progress: Hears how many dialogues are done.
        stop: Asked between batches.
        replace: An export that stands in `out` already is replaced, once the new one is whole.

    Raises `RunError` where `out` holds something else, `DataError` where nothing would be exported, and
    `DiskFullError`. Whatever is raised, nothing half-made is left.
    """
    progress = progress or Progress()
    if (
        out.exists()
        and not (replace and (out / "manifest.json").is_file())
        and (not out.is_dir() or any(out.iterdir()))
    ):
        raise RunError("The folder for the export is not empty.", value=str(out), fix="Name another folder.")
    if settings.labels == "human" and not any(source.has_human_labels for source in sources):
        raise DataError(
            "A run's folder holds no labels of people.",
            value=[source.about()["name"] for source in sources],
            fix="Name runs of the workspace by their number, or take the detectors' labels.",
        )
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    remove_partial(out)
    scratch = out.parent / f".{out.name}.{os.getpid()}.tmp"
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        scratch.mkdir()
        manifest = _fill(scratch, sources, settings, name, progress, stop)
        _publish(scratch, out)
        return manifest
    except Stopped:
        return None
    except (OSError, sqlite3.OperationalError) as error:
        if disk_is_full(error) or scratch_is_full(error):
            raise DiskFullError("The disk is full.", value=str(out), fix="Free space, then export again.") from error
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def remove_partial(out: Path) -> None:
    """Remove what killed exports to the same place left behind."""
    for left in out.parent.glob(f".{out.name}.*.tmp"):
        pid = left.name.split(".")[-2]
        if pid.isdigit() and int(pid) != os.getpid() and not _alive(int(pid)):
            shutil.rmtree(left, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _publish(scratch: Path, out: Path) -> None:
    old = out.parent / f".{out.name}.old.{os.getpid()}.tmp"
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        os.rename(out, old)
    os.rename(scratch, out)
    shutil.rmtree(old, ignore_errors=True)


def _fill(
    folder: Path,
    sources: Sequence[Source],
    settings: ExportSettings,
    name: str,
    progress: Progress,
    stop: Callable[[], bool],
) -> dict[str, Any]:
    """Write all files into `folder`; returns the manifest."""
    counts = [source.count(settings.filter) for source in sources]
    total = sum(counts)
    if total == 0:
        raise _no_dialogues(sources, settings)
    tally = LabelCounts()
    paired = "preference" in settings.formats
    with contextlib.ExitStack() as stack:
        writers = {f: stack.enter_context(FormatWriter(folder, FORMATS[f], settings.files)) for f in settings.formats}
        finder = None
        if paired:
            finder = PairFinder(
                folder / ".pairs.sqlite", settings.seed, settings.pairs_per_leak, settings.match, settings.privileged
            )
            stack.callback(finder.close)
        for source in sources:
            for batch in source.batches(settings.filter):
                if stop():
                    raise Stopped
                _take(batch, settings, writers, finder, tally)
                progress.update("export", tally.dialogues + tally.empty, total, f"{tally.decided} labeled hints")
        if finder is not None:
            _pair(finder, writers["preference"], progress, stop)
    (folder / ".pairs.sqlite").unlink(missing_ok=True)
    if not any(writer.rows for writer in writers.values()):
        raise _no_rows(settings, tally)
    about = [{**source.about(), "dialogues": count} for source, count in zip(sources, counts, strict=True)]
    manifest = _manifest(name, settings, about, tally, writers)
    write_atomically(folder / "README.md", card(manifest))
    write_atomically(folder / "manifest.json", json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
    return manifest


def _take(
    batch: Sequence[ExportRecord],
    settings: ExportSettings,
    writers: dict[Any, FormatWriter],
    finder: PairFinder | None,
    tally: LabelCounts,
) -> None:
    rows: dict[str, list[dict[str, Any]]] = {f: [] for f in settings.formats}
    for record in batch:
        if not record.steps:
            tally.empty += 1
            continue
        decisions: Decisions = [
            None if step.written is None else decide(step, settings.labels, settings.annotator) for step in record.steps
        ]
        tally.take(decisions)
        for format in settings.formats:
            if format in ROW_BUILDERS:
                rows[format] += ROW_BUILDERS[format](record, decisions, settings.privileged)
        if finder is not None:
            finder.add(record, decisions)
    for name, made in rows.items():
        writers[name].write(made)


def _pair(finder: PairFinder, writer: FormatWriter, progress: Progress, stop: Callable[[], bool]) -> None:
    held: list[dict[str, Any]] = []
    for row in finder.rows():
        held.append(row)
        if len(held) == PAIR_BATCH:
            if stop():
                raise Stopped
            writer.write(held)
            progress.update("pairs", writer.rows, None)
            held = []
    writer.write(held)


def _manifest(
    name: str,
    settings: ExportSettings,
    about: list[dict[str, Any]],
    tally: LabelCounts,
    writers: dict[Any, FormatWriter],
) -> dict[str, Any]:
    made = provenance(settings)  # type: ignore[arg-type]  # asks only for the seed
    return {
        "schema_version": SCHEMA_VERSION,
        "name": name,
        "created": time.time(),
        "git": made["git"],
        "python": made["python"],
        "packages": made["packages"],
        "settings": settings.model_dump(mode="json"),
        "runs": about,
        "dialogues": tally.dialogues,
        "dialogues_without_an_attempt": tally.empty,
        "labels": tally.as_dict(),
        "formats": {
            name: {"rows": writer.rows, "columns": list(FORMATS[name].columns), "files": writer.files()}
            for name, writer in writers.items()
            if writer.rows
        },
        "left_out": {name: _why_empty(name, tally) for name, writer in writers.items() if not writer.rows},
    }


def _why_empty(format: str, tally: LabelCounts) -> str:
    if format == "messages":
        return "No dialogue has an attempt."
    if format == "prompt_completion":
        return "No attempt is right."
    if not tally.decided:
        return f"None of the {tally.hints} hints has a label."
    words = Counter[str]()
    for (_, word), count in tally.labels.items():
        words[word] += count
    return (
        "No task has both a leaking and a leak-free hint "
        f"({words['leak']} hints leak, {words['no_leak']} do not, over {tally.dialogues} dialogues)."
    )


def _no_dialogues(sources: Sequence[Source], settings: ExportSettings) -> DataError:
    narrowed = settings.filter.words()
    if not narrowed:
        return DataError(
            "The runs have no dialogues.",
            value=[source.about()["name"] for source in sources],
            fix="Wait until the first step has ended, or choose another run.",
        )
    all_of_them = sum(source.count(type(settings.filter)()) for source in sources)
    return DataError(
        "No dialogue passes the filter.",
        value=narrowed,
        fix=f"Drop a part of the filter; without it there are {all_of_them} dialogues.",
    )


def _no_rows(settings: ExportSettings, tally: LabelCounts) -> DataError:
    formats = list(settings.formats)
    if formats == ["prompt_completion"]:
        return DataError(f"No attempt of {tally.dialogues} dialogues is right.", value=formats,
                         fix="Take other runs, or drop a part of the filter.")  # fmt: skip
    if tally.decided:  # only preference pairs were asked for
        return DataError(
            _why_empty("preference", tally),
            value=formats,
            fix="Take more runs or controls, label more hints, or export unpaired_preference instead.",
        )
    fixes = {
        "human": "Label hints on the page Labels, or take the detectors' labels too (labels: both).",
        "detector": "Take runs whose `leak_detection.detectors` is not empty, or people's labels (labels: human).",
        "both": "Label hints on the page Labels, or take runs whose `leak_detection.detectors` is not empty.",
    }
    return DataError(
        f"None of the {tally.hints} hints in {tally.dialogues} dialogues has a label.",
        value=formats,
        fix=fixes[settings.labels] + " The type `messages` needs no labels.",
    )


def summary(manifest: dict[str, Any]) -> str:
    """What was exported, in one line."""
    rows = ", ".join(f"{name} {entry['rows']:,}" for name, entry in manifest["formats"].items())
    text = f"Exported {manifest['dialogues']:,} dialogues with {manifest['labels']['hints']:,} hints. Rows: {rows}."
    return text + "".join(f" No {name}: {why}" for name, why in manifest["left_out"].items())
