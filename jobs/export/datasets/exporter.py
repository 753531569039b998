"""Write the datasets of an export in one pass over the dialogues, and publish them with one rename.

All files are written and flushed in a hidden directory beside the target, so the target is complete or missing. An
interrupted export is started again from the beginning.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.export.datasets.card import card
from jobs.export.datasets.dataset_types import FORMATS, Decisions, FormatName
from jobs.export.datasets.export_records import ExportRecord, written
from jobs.export.datasets.formats import STUDENT_TYPES
from jobs.export.datasets.label_choice import LEAK, Decision, decide
from jobs.export.datasets.pairs import PairFinder, scratch_is_full
from jobs.export.datasets.settings import EXCLUSIONS, Exclusion, ExportFilter, ExportSettings
from jobs.export.datasets.sources import Source
from jobs.export.datasets.writers import FormatWriter
from jobs.export.publish import new_folder
from rl2f_core.common.file_io import write_atomically
from rl2f_core.common.text.integers import whole_number
from rl2f_core.errors import DataError, DiskFullError
from rl2f_core.run.context import Progress
from rl2f_core.run.directory import provenance
from rl2f_core.run.events import CONTROL_TEACHERS, OWN_CONDITIONS
from rl2f_core.types import SPLITS, JsonObject, Turn

if TYPE_CHECKING:
    from jobs.db.models import LeakLabel

SCHEMA_VERSION = 4
"""Version of manifest and columns; increased by every visible change."""
PAIR_BATCH = 500
HintKey = tuple[str, tuple[tuple[str, str], ...]]
WITHOUT_PAIR = {
    "history": "No attempt, after the same attempts and hints, has",
    "attempt": "No attempt at the same task has",
    "task": "No task has",
}
"""Least that the hints of a pair share → start of the sentence that there is no pair."""
UNKNOWN_PROMPTS = (
    "dialogues have prompts that cannot be rebuilt, because the environment or the template of the reprompt is missing "
    "or has changed"
)


@dataclass
class LabelCounts:
    """Counts of dialogues, and of hints by label."""

    dialogues: int = 0
    empty: int = 0
    """Dialogues without an attempt; they are in no row."""
    labels: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(label source, or the reason for no label; leak, no_leak or empty) → hints."""
    origins: Counter[tuple[str, str, bool, str]] = field(default_factory=Counter)
    """(teacher, condition, planted; leak, no_leak or empty) → hints."""
    policies: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(split, policy) → dialogues."""
    determining: int = 0
    """Hints without a flagged leak that determine the answer."""
    uncounted: int = 0
    """Hints without a flagged leak whose candidates were not counted."""
    without_answer: int = 0
    """Unlabeled hints that only `llm_judge` can check, because the task has no answer."""
    without_prompts: int = 0
    """Dialogues that are in no row of `STUDENT_TYPES`, because a prompt is unknown."""

    def add(self, record: ExportRecord, decisions: Decisions) -> None:
        """Count a dialogue's hints."""
        self.dialogues += 1
        self.without_prompts += not record.has_all_prompts
        self.policies[record.event.task.split, record.event.dialogue.policy] += 1
        for turn, decision in zip(record.turns, decisions, strict=True):
            hint = turn.hint
            if decision is not None and hint is not None:
                self.labels[decision.source, decision.word] += 1
                self.without_answer += decision.source == "unlabeled" and not record.answer and record.has_secret
                self.origins[hint.teacher, record.event.setting or "", hint.planted is not None, decision.word] += 1
                if decision.leaks is False:
                    self.determining += turn.determines_answer
                    self.uncounted += turn.bits_left is None

    @property
    def unlabeled(self) -> int:
        """Number of hints that neither a person nor a detector decided."""
        return self.labels["unlabeled", ""]

    @property
    def decided(self) -> int:
        """Number of hints with a label."""
        return sum(count for (_, word), count in self.labels.items() if word)

    def as_dict(self) -> JsonObject:
        """Return the label counts by source, and by reason for no label."""
        counts: JsonObject = {"hints": self.labels.total(), "human": {}, "detector": {}, "planted": {}, "without": {}}
        for (source, word), count in sorted(self.labels.items()):
            by_source, key = (counts[source], word) if word else (counts["without"], source)
            by_source[key] = count
        return counts

    def by_policy(self) -> list[JsonObject]:
        """Return the number of dialogues by split and policy."""

        def key(item: tuple[str, str]) -> tuple[int, str, int]:
            stage, _, step = item[1].rpartition("@")
            return SPLITS.index(item[0]), stage, whole_number(step, 0)  # type: ignore[arg-type]

        listed = sorted(self.policies, key=key)
        return [{"split": item[0], "policy": item[1], "dialogues": self.policies[item]} for item in listed]

    def by_origin(self) -> list[JsonObject]:
        """Return the number of hints, leaks, leak-free and planted hints by teacher and condition."""
        rows: dict[tuple[str, str], JsonObject] = {}
        for (teacher, condition, planted, word), count in sorted(self.origins.items()):
            empty = {"teacher": teacher, "condition": condition, "hints": 0, "leak": 0, "no_leak": 0, "planted": 0}
            row = rows.setdefault((teacher, condition), empty)
            row["hints"] += count
            for column in ["planted"] if planted else [word] if word else []:
                row[column] += count
        return list(rows.values())

    @property
    def own_leaks(self) -> int:
        """Number of leaks that the teachers wrote themselves: neither planted nor of a control."""
        return sum(
            count
            for (teacher, condition, planted, word), count in self.origins.items()
            if word == LEAK and not planted and teacher not in CONTROL_TEACHERS and condition in OWN_CONDITIONS
        )


class Stopped(Exception):
    """The export was stopped; no files remain."""


def export(
    sources: Sequence[Source],
    settings: ExportSettings,
    out: Path,
    *,
    name: str = "export",
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
    replace: bool = False,
) -> JsonObject | None:
    """Write the datasets to the directory `out`; return the manifest, or None if `stop` ended it.

    Args:
        sources: The runs.
        settings: The dialogues and dataset types.
        out: The directory to create; missing parents are created.
        name: Title of the card.
        progress: Receives the number of finished dialogues.
        stop: Called between batches; True stops the export.
        replace: Replace an earlier export in `out`, once the new one is complete.

    Raises `RunError` if `out` contains something else, `DataError` if nothing would be exported, and `DiskFullError`.
    After an error, no partial files remain.
    """
    if settings.labels == "human" and not any(source.has_human_labels for source in sources):
        raise DataError(
            "A run's folder contains no human labels.",
            value=[source.about()["name"] for source in sources],
            fix="Name runs of the workspace by their number, or use detector findings (labels: detector).",
        )
    try:
        with new_folder(out, replace) as scratch:
            return _Export(scratch, sources, settings, progress or Progress(), stop).run(name)
    except Stopped:
        return None
    except sqlite3.OperationalError as error:
        if scratch_is_full(error):
            raise DiskFullError("The disk is full.", value=str(out), fix="Free space, then export again.") from error
        raise


class _Export:
    """One pass over the sources, into the files of `folder`."""

    def __init__(
        self,
        folder: Path,
        sources: Sequence[Source],
        settings: ExportSettings,
        progress: Progress,
        stop: Callable[[], bool],
    ) -> None:
        self.folder, self.sources, self.settings = folder, sources, settings
        self.progress, self.stop = progress, stop
        self.counts = LabelCounts()
        self.writers: dict[FormatName, FormatWriter] = {}
        self.finder: PairFinder | None = None
        self.labels: defaultdict[HintKey, dict[str, LeakLabel]] = defaultdict(dict)
        """Newest label of each annotator by hint; equal hints after the same attempts and hints share them."""

    def run(self, name: str) -> JsonObject:
        """Write all files; return the manifest."""
        settings = self.settings
        tallies = refuse_excluded(self.sources, settings.filter)
        total = sum(tally[None] for tally in tallies)
        if not total:
            raise _no_dialogues(self.sources, settings.filter)
        if settings.labels != "detector":
            labeled = settings.filter.model_copy(update={"labeled_only": True})
            sources = [source for source in self.sources if source.has_human_labels]
            for record in (record for source in sources for batch in source.batches(labeled) for record in batch):
                for index, labels in record.labels.items():
                    votes = self.labels[_hint_key(record, record.turns[index])]
                    for label in labels:
                        votes[label.annotator] = max(label, votes.get(label.annotator, label), key=attrgetter("time"))
        scratch = self.folder / ".pairs.sqlite"
        with contextlib.ExitStack() as stack:
            for format in settings.formats:
                self.writers[format] = stack.enter_context(FormatWriter(self.folder, FORMATS[format], settings.files))
            if "preference" in settings.formats:
                self.finder = PairFinder(
                    scratch, settings.seed, settings.pairs_per_leak, settings.match, settings.privileged
                )
                stack.callback(self.finder.close)
            about = []
            for source, tally in zip(self.sources, tallies, strict=True):
                before = self.counts.dialogues + self.counts.empty
                for batch in source.batches(settings.filter):
                    self._write_batch(batch, total)
                exported = self.counts.dialogues + self.counts.empty - before
                excluded = {name: tally[name] for name in EXCLUSIONS}
                about.append({**source.about(), "dialogues": exported, "excluded": excluded})
            if self.finder is not None:
                self._write_pairs(self.finder, self.writers["preference"])
        scratch.unlink(missing_ok=True)
        if not any(writer.rows for writer in self.writers.values()):
            raise _no_rows(settings, self.counts)
        manifest = self._manifest(name, about)
        write_atomically(self.folder / "README.md", card(manifest))
        write_atomically(self.folder / "manifest.json", json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
        return manifest

    def _write_batch(self, batch: Sequence[ExportRecord], total: int) -> None:
        if self.stop():
            raise Stopped
        settings, counts = self.settings, self.counts
        rows: dict[FormatName, list[JsonObject]] = {format: [] for format in settings.formats}
        for record in batch:
            if not record.turns:
                counts.empty += 1
                continue
            decisions: Decisions = [
                None if written(turn) is None else self._decide(record, turn) for turn in record.turns
            ]
            counts.add(record, decisions)
            for format in settings.formats:
                if (build := FORMATS[format].build) and (record.has_all_prompts or format not in STUDENT_TYPES):
                    rows[format] += build(record, decisions, settings.privileged)
            if self.finder is not None:
                self.finder.add(record, decisions)
        for format, new in rows.items():
            self.writers[format].write(new)
        done = counts.dialogues + counts.empty
        self.progress.update("export", done, total, f"{counts.decided} labeled hints")

    def _decide(self, record: ExportRecord, turn: Turn) -> Decision:
        labels = self.labels.get(_hint_key(record, turn), {}).values()
        return decide(turn, [*labels], self.settings.labels, self.settings.annotator)

    def _write_pairs(self, finder: PairFinder, writer: FormatWriter) -> None:
        rows = finder.rows()
        while batch := list(islice(rows, PAIR_BATCH)):
            if self.stop():
                raise Stopped
            writer.write(batch)
            self.progress.update("pairs", writer.rows, None)

    def _manifest(self, name: str, about: list[JsonObject]) -> JsonObject:
        writers, counts = self.writers, self.counts
        origin = provenance(self.settings)  # type: ignore[arg-type]  # uses only the seed
        return {
            "schema_version": SCHEMA_VERSION,
            "name": name,
            "created": time.time(),
            "git": origin["git"],
            "python": origin["python"],
            "packages": origin["packages"],
            "settings": self.settings.model_dump(mode="json"),
            "runs": about,
            "dialogues": counts.dialogues,
            "dialogues_without_an_attempt": counts.empty,
            "dialogues_without_prompts": counts.without_prompts,
            "unlabeled_without_answer": counts.without_answer,
            "labels": counts.as_dict(),
            "origins": counts.by_origin(),
            "own_leaks": counts.own_leaks,
            "policies": counts.by_policy(),
            "no_leak_that_determines_answer": counts.determining,
            "no_leak_without_counted_candidates": counts.uncounted,
            "formats": {
                name: {"rows": writer.rows, "columns": list(FORMATS[name].columns), "files": writer.files()}
                for name, writer in writers.items()
                if writer.rows
            },
            "left_out": {
                name: _why_empty(name, counts, self.settings) for name, writer in writers.items() if not writer.rows
            },
        }


def _hint_key(record: ExportRecord, turn: Turn) -> HintKey:
    """Return the problem, the conversation up to an attempt, and the hint on it."""
    history = [(each.attempt, each.reply) for each in record.turns[: turn.index]]
    return record.task_key, (*history, (turn.attempt, written(turn) or ""))


def _why_empty(format: FormatName, counts: LabelCounts, settings: ExportSettings) -> str:
    if format in STUDENT_TYPES and counts.without_prompts == counts.dialogues > 0:
        return f"{counts.dialogues:,} {UNKNOWN_PROMPTS}."
    if format == "messages":
        return "No dialogue has an attempt."
    if format == "prompt_completion":
        return "No attempt before a leak is correct."
    if not counts.decided:
        return f"None of the {counts.labels.total()} hints has a label."
    if format != "preference":
        return f"No turn of {counts.dialogues} dialogues is a row of this type."
    leaks = sum(count for (_, word), count in counts.labels.items() if word == LEAK)
    return (
        f"{WITHOUT_PAIR[settings.match]} both a leaking hint and a teacher's own hint without a leak "
        f"({leaks} hints leak, {counts.decided - leaks} do not, over {counts.dialogues} dialogues)."
    )


def refuse_excluded(sources: Sequence[Source], filter: ExportFilter) -> list[Counter[Exclusion | None]]:
    """Return the tally of each source; raise `DataError` if one has only excluded dialogues."""
    tallies = [source.tally(filter) for source in sources]
    for source, tally in zip(sources, tallies, strict=True):
        if tally.total() and not tally[None]:
            fields = [name for name in EXCLUSIONS if tally[name]]
            counts = ", ".join(f"{tally[name]} {EXCLUSIONS[name]}" for name in fields)
            options = " ".join(f"--{name.replace('_', '-')}" for name in fields)
            raise DataError(
                f"Run {source.about()['name']} has no dialogues of a trained policy on training tasks with a teacher's "
                f"own hints, only {counts}.",
                value=source.name,
                fix=f"Leave this run out, or set {' and '.join(f'filter.{name}' for name in fields)} "
                f"(`rl2f export {options}`).",
            )
    return tallies


def _no_dialogues(sources: Sequence[Source], filter: ExportFilter) -> DataError:
    conditions = filter.conditions()
    unfiltered = sum(source.tally(ExportFilter(include_controls=True)).total() for source in sources)
    if not unfiltered:
        return DataError(
            "The runs have no dialogues.",
            value=[source.about()["name"] for source in sources],
            fix="Wait until the first step has ended, or choose another run.",
        )
    return DataError(
        "No dialogue passes the filter.",
        value=conditions,
        fix=f"Drop a part of the filter; without it there are {unfiltered} dialogues.",
    )


def _no_rows(settings: ExportSettings, counts: LabelCounts) -> DataError:
    formats = list(settings.formats)
    if set(formats) <= set(STUDENT_TYPES) and counts.without_prompts == counts.dialogues:
        return DataError(_why_empty("messages", counts, settings), value=formats,
                         fix="Load the plug-in of the environment, or restore the template.")  # fmt: skip
    if formats == ["prompt_completion"]:
        return DataError(f"No attempt of {counts.dialogues} dialogues before a leak is correct.", value=formats,
                         fix="Take other runs, or drop a part of the filter.")  # fmt: skip
    if counts.decided:  # only preference pairs were requested
        return DataError(
            _why_empty("preference", counts, settings),
            value=formats,
            fix=("" if settings.match == "task" else "Allow pairs that share less (`--match task`). ")
            + "Take more runs, label more hints, use teacher leaky, or export unpaired_preference instead.",
        )
    return DataError(
        f"None of the {counts.labels.total()} hints in {counts.dialogues} dialogues has a label.",
        value=formats,
        fix=" ".join(_label_fixes(settings.labels, counts.unlabeled, counts.without_answer))
        + " The type `messages` needs no labels.",
    )


def _label_fixes(labels: str, unlabeled: int, without_answer: int) -> Iterator[str]:
    """Yield how hints without a label get one; only `llm_judge` checks those on tasks without an answer."""
    if without_answer:
        option = " (labels: human)" if labels == "detector" else ""
        judge = "" if labels == "human" else ", or run it (`rl2f leaks RUN --detector llm_judge`)"
        yield (
            f"Only llm_judge can check {without_answer:,} of them, whose tasks have no answer: "
            f"label them{option}{judge}."
        )
    if unlabeled > without_answer and labels == "human":
        yield "Label hints on the page Labels, or use detector findings too (labels: both)."
    elif unlabeled > without_answer:
        by_hand = "use human labels (labels: human)" if labels == "detector" else "label hints on the page Labels"
        yield f"Run detectors on them (`rl2f leaks RUN`), or {by_hand}."


def summary(manifest: JsonObject) -> str:
    """Summarize an export in one line."""
    rows = ", ".join(f"{name} {entry['rows']:,}" for name, entry in manifest["formats"].items())
    text = f"Exported {manifest['dialogues']:,} dialogues with {manifest['labels']['hints']:,} hints. Rows: {rows}."
    for name, what in EXCLUSIONS.items():
        if excluded := sum(run["excluded"][name] for run in manifest["runs"]):
            text += f" Excluded: {excluded:,} dialogues {what} (--{name.replace('_', '-')})."
    if (number := manifest["dialogues_without_prompts"]) and {*STUDENT_TYPES} & {*manifest["formats"]}:
        text += f" Not in {' and '.join(STUDENT_TYPES)}: {number:,} {UNKNOWN_PROMPTS}."
    for run in manifest["runs"]:
        if run["rescoring"]:
            text += f" Leaks of {run['name']}: those of {run['rescoring']} ({', '.join(run['detectors'])})."
    if unlabeled := manifest["labels"]["without"].get("unlabeled"):
        fixes = _label_fixes(manifest["settings"]["labels"], unlabeled, manifest["unlabeled_without_answer"])
        text += " ".join((f" {unlabeled:,} hints have no label.", *fixes))
    return text + "".join(f" No {name}: {why}" for name, why in manifest["left_out"].items())
