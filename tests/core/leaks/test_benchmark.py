"""The synthetic leak benchmark: the shipped files, how it is scored, and what the literal tiers reach on it."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from rl2f_core.config.leaks import LeaksConfig
from rl2f_core.errors import DataError
from rl2f_core.leaks.benchmark.score import (
    BenchmarkReport,
    LeakItem,
    compare,
    environment_of,
    read_items,
    score,
)
from rl2f_core.types import LeakReport


@cache
def shipped() -> list[LeakItem]:
    return read_items()


@cache
def literal() -> BenchmarkReport:
    return score(LeaksConfig(), shipped())


def test_benchmark_has_enough_items_and_near_misses():
    items = shipped()
    assert len(items) >= 600 and len({item.id for item in items}) == len(items)
    for name in {item.environment["type"] for item in items}:
        leaks = Counter(item.leak for item in items if item.environment["type"] == name)
        assert 0.4 < leaks[True] / leaks.total() < 0.6
    assert {item.answer_fraction > 0 for item in items if item.leak} == {True}
    assert {item.answer_fraction for item in items if not item.leak} == {0.0}


@pytest.mark.slow
def test_attempts_are_well_formed_and_wrong():
    for item in shipped():
        env = environment_of(item.environment)
        task = env.task_from_gold(item.problem, item.answer)
        verdicts = [env.verify(task, attempt) for attempt in item.attempts]
        assert verdicts and all(v.well_formed and not v.correct for v in verdicts), item


def test_the_default_detectors_reach_the_required_scores():
    report = literal()
    for part in (report.overall, *report.by_split.values()):
        assert part.precision.value is not None and part.precision.value >= 0.97
        assert part.recall.value is not None and part.recall.value >= 0.90
    for name, part in report.by_environment.items():
        assert part.recall.value is not None and part.recall.value >= 0.90, name


def test_answer_fraction_error_is_small():
    error = literal().overall.answer_fraction_error
    assert error is not None and error < 0.03


def item(number: int, leak: bool, kind: str = "plain", share: float = 0.0) -> LeakItem:
    return LeakItem(
        id=str(number), environment={"type": "arithmetic"}, problem="What is 1 + 2?", answer="3", hint="", leak=leak,
        kind=kind, answer_fraction=share, split="dev",
    )  # fmt: skip


def test_scores_match_manual_computation():
    # Four leaks of which three are found, two near-misses of which one is flagged: precision 3/4, recall 3/4, F1 3/4.
    items = [item(i, i < 4, "near" if i > 3 else "plain", 1.0 if i < 4 else 0.0) for i in range(6)]
    said = [
        LeakReport(leaked=i in (0, 1, 2, 4), detector="exact" if i < 2 else "equivalent", answer_fraction=0.5)
        for i in range(6)
    ]
    report = compare(items, said)
    assert report.overall.counts.model_dump() == {"tp": 3, "fn": 1, "fp": 1, "tn": 1}
    assert (report.overall.precision.value, report.overall.recall.value, report.overall.f1) == (0.75, 0.75, 0.75)
    assert report.overall.answer_fraction_error == 0.5
    # Wilson by hand for 3 of 4: centre (0.75 + 1.9208/4) / (1 + 3.8415/4) = 0.6275
    low, high = report.overall.precision.low, report.overall.precision.high
    assert low is not None and high is not None and (low + high) / 2 == pytest.approx(0.6275, abs=1e-4)
    assert report.by_detector["exact"].tp == 2 and report.by_detector["equivalent"].fp == 1
    assert [verdict.item.id for verdict in report.wrong] == ["3", "4"]
    assert report.by_kind["not: near"].recall.value is None
    assert BenchmarkReport.model_validate_json(report.model_dump_json()) == report


def test_an_empty_folder_and_an_invalid_line_raise(tmp_path):
    with pytest.raises(DataError, match="no benchmark items"):
        read_items(tmp_path)
    (tmp_path / "x.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match="Line 1"):
        read_items(tmp_path)
