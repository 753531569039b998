"""Read labeled hints and score leak detectors on them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue

from rl2f_core import registry
from rl2f_core.common.paths import LEAK_BENCHMARK
from rl2f_core.common.stats.intervals import Interval, wilson
from rl2f_core.config.leaks import LeaksConfig
from rl2f_core.environments.base import Environment
from rl2f_core.errors import DataError
from rl2f_core.leaks.base import LeakQuery, make_detectors, run_cascade
from rl2f_core.types import FrozenModel, JsonObject, LeakReport

Split = Literal["dev", "test"]


class LeakItem(FrozenModel):
    """One labeled hint with its dialogue."""

    id: str
    """Environment, kind, split and number, e.g. `arithmetic/roman/test/2`."""
    environment: dict[str, JsonValue]
    """The environment's configuration, `type` included."""
    problem: str
    """The problem in the student's prompt."""
    answer: str
    """The gold answer."""
    attempts: tuple[str, ...] = ()
    """The student's attempts, oldest first; the last one is wrong."""
    hints: tuple[str, ...] = ()
    """The earlier hints."""
    hint: str
    """The hint to judge."""
    leak: bool
    """The hint reveals the answer, or a part of it that the student did not have."""
    kind: str
    """Name of the obfuscation or of the near-miss."""
    answer_fraction: float = 0.0
    """Fraction of the answer that this and the earlier hints reveal."""
    split: Split
    """`dev` to tune detectors on, `test` to report; the two have no phrasing in common."""
    style: str = ""
    """Register of a hand-written hint, e.g. `terse`."""
    ambiguous: bool = False
    """The annotators disagree; `leak` has no meaning."""

    @property
    def is_partial(self) -> bool:
        """The hint reveals a part of the answer and not the whole."""
        return self.leak and 0 < self.answer_fraction < 1


class Counts(FrozenModel):
    """Confusion matrix; flagged hints are positives."""

    tp: int = 0
    """Flagged leaks."""
    fn: int = 0
    """Leaks that were not flagged."""
    fp: int = 0
    """Flagged hints that do not leak."""
    tn: int = 0
    """Hints that neither leak nor were flagged."""


class Score(FrozenModel):
    """Quality of detectors on some items."""

    counts: Counts
    precision: Interval
    """Fraction of flagged hints that leak, with the Wilson interval."""
    recall: Interval
    """Fraction of leaks that were flagged, with the Wilson interval."""
    f1: float | None
    """Harmonic mean of precision and recall; None if one is undefined."""
    answer_fraction_error: float | None
    """Mean absolute error of `answer_fraction` over the flagged leaks."""


class Misclassified(FrozenModel):
    """An item with a wrong report."""

    item: LeakItem
    report: LeakReport


class BenchmarkReport(FrozenModel):
    """Quality of detectors on the benchmark."""

    overall: Score
    by_split: dict[str, Score]
    by_environment: dict[str, Score]
    by_kind: dict[str, Score]
    """By disguise or near-miss."""
    by_detector: dict[str, Counts]
    """True and false positives by the detector that flagged the hint first."""
    by_register: dict[str, Score] = Field(default_factory=dict)
    """By register, of hand-written hints."""
    held_out_kinds: tuple[str, ...] = ()
    """Keys of `by_kind` that do not occur on dev."""
    held_out: Score | None = None
    """Of these kinds; None if there are none."""
    ambiguous: int = 0
    """Number of ambiguous hints, which no score contains."""
    ambiguous_flagged: int = 0
    """Flagged ones among them."""
    partial: int = 0
    """Number of hints that reveal only a part of the answer, which no score contains."""
    partial_flagged: int = 0
    """Flagged ones among them."""
    wrong: tuple[Misclassified, ...] = ()


def read_items(path: Path = LEAK_BENCHMARK, split: Split | None = None) -> list[LeakItem]:
    """Read the items of a file or of all files of a folder, also hand-written ones (`data/leaks/README.md`).

    Raises `DataError` if there are none or a line is invalid.
    """
    files = [path] if path.is_file() else sorted(path.glob("*.jsonl"))
    if not files:
        raise DataError("There are no benchmark items.", value=str(path), fix="Name a file or folder of *.jsonl items.")
    items = []
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            try:
                data = json.loads(line)
                if split in (None, data["split"]):
                    items.append(_from_handwritten(data) if "label" in data else LeakItem.model_validate(data))
            except (ValueError, LookupError, TypeError) as error:
                raise DataError(f"Line {number} of {file.name} is not a benchmark item.", value=str(error)) from None
    return items


def _from_handwritten(row: JsonObject) -> LeakItem:
    """Convert a line of `data/leaks/handwritten.jsonl`; its label is that of the last hint."""
    *earlier, hint = row["hints"]
    return LeakItem(
        **{name: row[name] for name in ("id", "problem", "answer", "attempts", "kind", "split")},
        environment={"type": row["environment"]},
        hints=earlier,
        hint=hint,
        leak=row["label"] == "leak",
        ambiguous=row["label"] == "ambiguous",
        style=row["register"],
    )


def kinds_of(items: Iterable[LeakItem]) -> set[str]:
    """Return the kinds of items as keys of `BenchmarkReport.by_kind`."""
    return {_kind(item) for item in items if not item.ambiguous and not item.is_partial}


def _kind(item: LeakItem) -> str:
    return item.kind if item.leak else f"not: {item.kind}"


def score(config: LeaksConfig, items: Sequence[LeakItem]) -> BenchmarkReport:
    """Score the detectors of a leak configuration on items."""
    reports: dict[int, LeakReport] = {}
    for environment, indices in by_environment(items):
        queries = [query_of(environment, items[i]) for i in indices]
        reports.update(zip(indices, run_cascade(make_detectors(config.detectors, environment), queries), strict=True))
    return compare(items, [reports[i] for i in range(len(items))])


def by_environment(items: Sequence[LeakItem]) -> Iterator[tuple[Environment, list[int]]]:
    """Yield each environment configuration as an environment, with the indices of its items."""
    groups: dict[str, list[int]] = {}
    for i, item in enumerate(items):
        groups.setdefault(json.dumps(item.environment, sort_keys=True), []).append(i)
    for config, indices in groups.items():
        yield environment_of(json.loads(config)), indices


def environment_of(config: Mapping[str, JsonValue]) -> Environment:
    """Build the environment of an item's configuration."""
    cls: type[Environment] = registry.get("environment", str(config.get("type", "")))
    return cls(cls.Config.model_validate(dict(config)))


def query_of(environment: Environment, item: LeakItem) -> LeakQuery:
    """Convert an item to a detector's query."""
    return LeakQuery(environment.task_from_gold(item.problem, item.answer), item.hint, item.attempts, item.hints)


def compare(
    items: Sequence[LeakItem], reports: Sequence[LeakReport], dev_kinds: set[str] | None = None
) -> BenchmarkReport:
    """Score one report per item.

    Args:
        items: The items.
        reports: Their reports.
        dev_kinds: `kinds_of` the dev split, to score the other kinds separately too.
    """
    everything = list(zip(items, reports, strict=True))
    pairs = [pair for pair in everything if not pair[0].ambiguous and not pair[0].is_partial]
    ambiguous = [report.leaked for item, report in everything if item.ambiguous]
    partial = [report.leaked for item, report in everything if item.is_partial]
    held_out = sorted(kinds_of(items) - dev_kinds) if dev_kinds is not None else []

    def by(key: Callable[[LeakItem], str]) -> dict[str, Score]:
        names = dict.fromkeys(key(item) for item, _ in pairs)
        return {name: score_of([pair for pair in pairs if key(pair[0]) == name]) for name in sorted(names) if name}

    flagged: dict[str, Counter[str]] = {}
    for item, report in pairs:
        if report.leaked:
            flagged.setdefault(report.detector or "unnamed", Counter())["tp" if item.leak else "fp"] += 1
    return BenchmarkReport(
        overall=score_of(pairs),
        by_split=by(lambda item: item.split),
        by_environment=by(lambda item: str(item.environment["type"])),
        by_kind=by(_kind),
        by_register=by(lambda item: item.style),
        held_out_kinds=tuple(held_out),
        held_out=score_of([pair for pair in pairs if _kind(pair[0]) in held_out]) if held_out else None,
        ambiguous=len(ambiguous),
        ambiguous_flagged=sum(ambiguous),
        partial=len(partial),
        partial_flagged=sum(partial),
        by_detector={name: Counts(**counts) for name, counts in flagged.items()},
        wrong=tuple(Misclassified(item=item, report=report) for item, report in pairs if item.leak != report.leaked),
    )


def score_of(pairs: Sequence[tuple[LeakItem, LeakReport]]) -> Score:
    """Compute precision, recall and F1 of some reports."""
    counts = Counter((item.leak, report.leaked) for item, report in pairs)
    tp, fn, fp = counts[True, True], counts[True, False], counts[False, True]
    precision, recall = wilson(tp, tp + fp), wilson(tp, tp + fn)
    defined = precision.value is not None and recall.value is not None
    errors = [
        abs(item.answer_fraction - report.answer_fraction) for item, report in pairs if item.leak and report.leaked
    ]
    return Score(
        counts=Counts(tp=tp, fn=fn, fp=fp, tn=counts[False, False]),
        precision=precision,
        recall=recall,
        f1=2 * tp / (2 * tp + fn + fp) if defined else None,
        answer_fraction_error=sum(errors) / len(errors) if errors else None,
    )
