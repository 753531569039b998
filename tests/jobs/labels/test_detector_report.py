"""The board from plain values: strata of a later source that nobody labelled, parts of long stages, pairs of people."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.labels.detector_report import AnnotatorLabel, LabeledHint, StratumVerdict, build_report
from jobs.labels.hint_counts import DetectorVerdict, HintGroup


def sort(**more: Any) -> HintGroup:
    values = {"run_id": 1, "environment": "arithmetic", "teacher": "llm", "stage": "rl", "bucket": 1, "checkpoint": "",
              "condition": "", "test": False}  # fmt: skip
    return HintGroup(**{**values, **more})


def hint(number: int, label: str, flagged: bool, during: bool | None = None, **more: Any) -> LabeledHint:
    """Labelled by anna on a draw from everything."""
    answers = more.pop("answers", (AnnotatorLabel("anna", label, True, "run//"),))
    said = DetectorVerdict(True, flagged, "exact" if flagged else "")
    first = DetectorVerdict(True, flagged if during is None else during, "")
    return LabeledHint(1, f"d/{number}", 0, sort(**more), number, first, said, answers)


def test_a_stratum_without_labels_counts_with_the_others_only_where_it_is_small() -> None:
    hints = [hint(i, "leak" if i < 8 else "no_leak", True) for i in range(10)]
    hints += [hint(100 + i, "no_leak", False) for i in range(50)]
    for size, precise in ((11, 0.8), (12, None)):  # flagged later and not at first: nobody labelled one of these
        sizes = {
            (sort(), StratumVerdict(True, "exact")): 100,
            (sort(), StratumVerdict(False, "exact")): size,
            (sort(), StratumVerdict(False, None)): 1000,
        }
        found = build_report(hints, sizes, "run").total.estimates
        assert found.precision.value == (None if precise is None else pytest.approx(precise))
        assert (found.size, found.flagged) == (1100 + size, 100 + size)
        assert (found.recall.value is None) == (precise is None)


def test_a_tier_is_scored_on_the_leaks_that_all_tiers_could_find() -> None:
    sizes = {(sort(), StratumVerdict(True, tier)): n for tier, n in (("exact", 60), ("mentions", 40))}
    sizes[sort(), StratumVerdict(False, None)] = 900
    hints = [hint(i, "leak", True) for i in range(10)] + [hint(100 + i, "no_leak", False) for i in range(90)]
    other = DetectorVerdict(True, True, "mentions")
    hints += [
        LabeledHint(1, f"e/{i}", 0, sort(), 500 + i, other, other, (AnnotatorLabel("anna", label, True, "run//"),))
        for i, label in enumerate(["leak", "no_leak"] * 4)
    ]
    rows = {row.name: row.estimates for row in build_report(hints, sizes, "run").rows}
    # exact finds 60 leaks, mentions 20, and none of the others leaks
    assert rows["exact"].precision.value == 1.0 and rows["mentions"].precision.value == pytest.approx(0.5)
    assert rows["exact"].recall.value == pytest.approx(60 / 80)
    assert rows["mentions"].recall.value == pytest.approx(20 / 80)


def test_a_long_stage_is_shown_in_at_most_eight_parts_and_checkpoints_by_name() -> None:
    sizes = {(sort(bucket=i), StratumVerdict(False, None)): 10 for i in range(21)}
    sizes[sort(checkpoint="rl@200", bucket=0), StratumVerdict(False, None)] = 5
    hints = [hint(i, "no_leak", False, bucket=i) for i in range(21)]
    hints.append(hint(99, "no_leak", False, checkpoint="rl@200", bucket=0))
    found = build_report(hints, sizes, "run", group_by="checkpoint")
    names = [row.name for row in found.rows]
    assert names == ["rl@0", *(f"rl@{i * 30 + 1}–{i * 30 + 30}" for i in range(7)), "rl@200"]
    assert sum(row.estimates.size for row in found.rows) == found.total.estimates.size == 215


def test_kappa_of_labellers_is_pooled_over_their_pairs_on_the_hints_of_a_row() -> None:
    def by(*labels: str) -> tuple[AnnotatorLabel, ...]:
        return tuple(
            AnnotatorLabel(who, label, True, "run//") for who, label in zip(("ann", "bea", "cem"), labels, strict=True)
        )

    said = [("leak", "leak", "leak"), ("no_leak", "no_leak", "leak"), ("no_leak", "no_leak", "no_leak")]
    hints = [hint(i, "", True, answers=by(*labels)) for i, labels in enumerate(said)]
    found = build_report(hints, {(sort(), StratumVerdict(True, "exact")): 3}, "run")
    # nine pairs, seven equal; first of a pair: 3 leaks of 9, second: 5 of 9; p_e = (3·5 + 6·4)/81
    assert found.total.annotator_kappa.n == 9
    assert found.total.annotator_kappa.value == pytest.approx((7 / 9 - 39 / 81) / (1 - 39 / 81))
    assert [(pair.a, pair.b, pair.n) for pair in found.pairs] == [
        ("ann", "bea", 3),
        ("ann", "cem", 3),
        ("bea", "cem", 3),
    ]
    assert len(found.disagreements) == 2, "one between people, one of the majority with the detector"
