"""The synthetic leak benchmark: hints whose verdict is known because code made them, and how well detectors do on them.

`python -m rl2f_core.leaks.benchmark --out data/leaks` writes the items, one file an environment; without `--out` it
scores the literal tiers and prints the report.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl2f_core import registry
from rl2f_core.config import LeaksConfig
from rl2f_core.environments.base import Environment
from rl2f_core.errors import DataError
from rl2f_core.evaluation.statistics import Interval, wilson
from rl2f_core.leaks._bench_cases import Half, LeakItem
from rl2f_core.leaks._bench_letters import letter_items
from rl2f_core.leaks._bench_matrices import matrix_items
from rl2f_core.leaks._bench_numbers import number_items
from rl2f_core.leaks._bench_paths import path_items
from rl2f_core.leaks._bench_roles import role_items
from rl2f_core.leaks.base import LeakDetector, LeakQuery, first_leaks
from rl2f_core.leaks.guard import build_detectors
from rl2f_core.types import LeakReport, Value

FOLDER = Path(__file__).resolve().parents[2] / "data" / "leaks"
"""Where the shipped items lie."""
MAKERS: dict[str, Callable[[], Iterable[LeakItem]]] = {
    "arithmetic": lambda: number_items("arithmetic"),
    "guess_number": lambda: number_items("guess_number"),
    "secret_code": letter_items,
    "knights_knaves": role_items,
    "binary_matrix": matrix_items,
    "shortest_path": lambda: path_items("shortest_path"),
    "maze": lambda: path_items("maze"),
}
"""What makes the items of each environment."""


class Counts(Value):
    """Verdicts against the truth."""

    found: int = 0
    """Leaks that were flagged."""
    missed: int = 0
    """Leaks that were not."""
    false: int = 0
    """Near-misses that were flagged."""
    clean: int = 0
    """Near-misses that were not."""


class Score(Value):
    """How well detectors did on some items."""

    counts: Counts
    """Verdicts against the truth."""
    precision: Interval
    """Flagged hints that leak, with the Wilson interval; without a value where nothing was flagged."""
    recall: Interval
    """Leaks that were flagged, with the Wilson interval; without a value where nothing leaks."""
    f1: float | None
    """The harmonic mean of both; None where one has no value."""
    share_error: float | None
    """The mean distance between the reported and the true share over the leaks that were flagged."""


class Verdict(Value):
    """One item that was judged wrongly."""

    item: LeakItem
    """The item."""
    report: LeakReport
    """What the detectors said of it."""


class BenchmarkReport(Value):
    """How well detectors did on the benchmark."""

    overall: Score
    """All items."""
    by_split: dict[str, Score]
    """`dev`, on which detectors may be tuned, and `test`."""
    by_environment: dict[str, Score]
    """By the environment's name."""
    by_kind: dict[str, Score]
    """By disguise or near-miss."""
    by_tier: dict[str, Counts]
    """What each tier flagged, rightly and falsely; a leak counts for the first tier that found it."""
    wrong: tuple[Verdict, ...]
    """Everything that was judged wrongly."""

    def to_markdown(self) -> str:
        """Tables for people."""
        groups = {
            "": {"all": self.overall},
            "split": self.by_split,
            "environment": self.by_environment,
            "kind": self.by_kind,
        }
        lines = []
        for title, scores in groups.items():
            lines += [
                f"| {title} | leaks | near-misses | precision | recall | F1 |",
                "|---|---|---|---|---|---|",
                *(_line(name, score) for name, score in scores.items()),
                "",
            ]
        lines += ["| tier | found | false |", "|---|---|---|"]
        lines += [f"| {tier} | {counts.found} | {counts.false} |" for tier, counts in self.by_tier.items()]
        return "\n".join(lines) + "\n"


def _line(name: str, score: Score) -> str:
    c = score.counts
    f1 = "–" if score.f1 is None else f"{score.f1:.3f}"
    cells = (name, c.found + c.missed, c.false + c.clean, _shown(score.precision), _shown(score.recall), f1)
    return f"| {' | '.join(map(str, cells))} |"


def _shown(interval: Interval) -> str:
    if interval.value is None:
        return "–"
    return f"{interval.value:.3f} ({interval.low:.3f} to {interval.high:.3f})"


# -- items -----------------------------------------------------------------------------------------------------------
def make_items(environment: str) -> list[LeakItem]:
    """The items of one environment, always the same; raises `DataError` for one that has none."""
    if environment not in MAKERS:
        raise DataError("The benchmark has no items of this environment.", value=environment, known=list(MAKERS))
    return list(MAKERS[environment]())


def to_jsonl(items: Iterable[LeakItem]) -> str:
    """One item a line, without the fields that have their default."""
    return "".join(
        json.dumps(item.model_dump(mode="json", exclude_defaults=True), ensure_ascii=False) + "\n" for item in items
    )


def read_items(folder: Path = FOLDER, split: Half | None = None) -> list[LeakItem]:
    """The items of all files of a folder; raises `DataError` where it has none or a line is no item."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise DataError(
            "There are no benchmark items.", value=str(folder),
            fix="Make them: python -m rl2f_core.leaks.benchmark --out FOLDER",
        )  # fmt: skip
    found = []
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            try:
                found.append(LeakItem.model_validate_json(line))
            except ValueError as error:
                raise DataError(f"Line {number} of {file.name} is no benchmark item.", value=str(error)) from None
    return [item for item in found if split in (None, item.split)]


# -- scoring ---------------------------------------------------------------------------------------------------------
Build = Callable[[Environment], Sequence[LeakDetector]]
"""Detectors for an environment, cheapest first."""


def score(detectors: Build | LeaksConfig, items: Sequence[LeakItem]) -> BenchmarkReport:
    """How well detectors do on items.

    Args:
        detectors: A leak configuration, or what builds the detectors for an environment (where they need a model).
        items: What they judge; an environment is built once for each of its configurations.
    """
    return compare(items, judge(detectors, items))


def judge(detectors: Build | LeaksConfig, items: Sequence[LeakItem]) -> list[LeakReport]:
    """The detectors' reports on the items, in order; a dearer tier reads what the cheaper ones found clean."""
    build: Build = (lambda env: build_detectors(detectors, env)) if isinstance(detectors, LeaksConfig) else detectors
    groups: dict[str, list[int]] = {}
    for i, item in enumerate(items):
        groups.setdefault(json.dumps(item.environment, sort_keys=True), []).append(i)
    reports: dict[int, LeakReport] = {}
    for config, members in groups.items():
        env = environment_of(json.loads(config))
        queries = [query_of(env, items[i]) for i in members]
        reports.update(zip(members, first_leaks(build(env), queries), strict=True))
    return [reports[i] for i in range(len(items))]


def environment_of(config: Mapping[str, Any]) -> Environment:
    """The environment that an item's configuration describes."""
    cls: Any = registry.get("environment", config.get("type", ""))
    return cls(cls.Config.model_validate(dict(config)))


def query_of(environment: Environment, item: LeakItem) -> LeakQuery:
    """What a detector is asked about an item."""
    return LeakQuery(environment.task_from_gold(item.problem, item.answer), item.hint, item.attempts, item.hints)


def compare(items: Sequence[LeakItem], reports: Sequence[LeakReport]) -> BenchmarkReport:
    """The report on verdicts that were given, one for each item."""
    pairs = list(zip(items, reports, strict=True))

    def by(key: Callable[[LeakItem], str]) -> dict[str, Score]:
        names = dict.fromkeys(key(item) for item, _ in pairs)
        return {name: score_of([pair for pair in pairs if key(pair[0]) == name]) for name in sorted(names)}

    tiers: dict[str, Counter[str]] = {}
    for item, report in pairs:
        if report.leaked:
            tiers.setdefault(report.tier or "unnamed", Counter())["found" if item.leak else "false"] += 1
    return BenchmarkReport(
        overall=score_of(pairs),
        by_split=by(lambda item: item.split),
        by_environment=by(lambda item: item.environment["type"]),
        by_kind=by(lambda item: item.kind if item.leak else f"not: {item.kind}"),
        by_tier={tier: Counts(**counts) for tier, counts in tiers.items()},
        wrong=tuple(Verdict(item=item, report=report) for item, report in pairs if item.leak != report.leaked),
    )


def score_of(pairs: Sequence[tuple[LeakItem, LeakReport]]) -> Score:
    """Precision, recall and F1 of some verdicts."""
    counts = Counter((item.leak, report.leaked) for item, report in pairs)
    found, missed, false = counts[True, True], counts[True, False], counts[False, True]
    precision, recall = wilson(found, found + false), wilson(found, found + missed)
    f1 = None
    if precision.value is not None and recall.value is not None:
        f1 = 2 * found / (2 * found + missed + false) if found + missed + false else None
    off = [abs(item.share - report.share) for item, report in pairs if item.leak and report.leaked]
    return Score(
        counts=Counts(found=found, missed=missed, false=false, clean=counts[False, False]),
        precision=precision,
        recall=recall,
        f1=f1,
        share_error=sum(off) / len(off) if off else None,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Write the items, or score the literal tiers on the shipped ones."""
    parser = argparse.ArgumentParser(prog="python -m rl2f_core.leaks.benchmark", description=__doc__)
    parser.add_argument("--out", type=Path, help="write the items into this folder")
    parser.add_argument("--split", choices=("dev", "test"), help="score these items only")
    parser.add_argument("--wrong", action="store_true", help="list what was judged wrongly")
    args = parser.parse_args(argv)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        for name in MAKERS:
            (args.out / f"{name}.jsonl").write_text(to_jsonl(make_items(name)), encoding="utf-8")
        return
    report = score(LeaksConfig(), read_items(split=args.split))
    print(report.to_markdown())
    for verdict in report.wrong if args.wrong else ():
        item = verdict.item
        print(f"{'missed' if item.leak else 'false'} {item.id}: {item.hint!r} answer {item.answer} hints {item.hints}"
              f" attempts {item.attempts} {verdict.report.evidence}")  # fmt: skip


if __name__ == "__main__":
    main()
