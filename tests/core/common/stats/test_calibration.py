"""Simulated coverage and type-I error of all 95 % intervals, and the recorded table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks.calibration import (
    PROBLEMS,
    SEEDS,
    STATISTICS,
    Cell,
    StudyCell,
    failures,
    max_type_i,
    simulate,
    study_failures,
)

RESULTS = Path(__file__).parents[4] / "data" / "results" / "calibration"


def recorded() -> list[Cell]:
    return [Cell(**cell) for cell in json.loads((RESULTS / "calibration.json").read_text("utf-8"))["cells"]]


@pytest.mark.slow
def test_intervals_have_their_coverage_and_type_i_error() -> None:
    """Defect 6: intervals over three equal seeds had no width; the bootstrap's type-I error was .11 with 7 problems."""
    cells = list(simulate(trials=200, seed=1))
    assert len(cells) == len(PROBLEMS) * len(SEEDS) * len(STATISTICS)
    assert failures(cells) == []


def test_the_recorded_cells_meet_the_requirements() -> None:
    cells = recorded()
    sizes = {(cell.statistic, cell.problems, cell.seeds) for cell in cells}
    assert sizes == {(name, n, seeds) for name in STATISTICS for n in PROBLEMS for seeds in SEEDS}
    assert failures(cells) == []


def test_a_cell_with_low_coverage_or_high_type_i_error_fails() -> None:
    """With 10,000 trials the standard error is √(.05 · .95 / 10,000) = .00218: at most .0544."""
    good = Cell("difference", 12, 3, 0.93, 0.9, 0.4, 0.0543, 10_000)
    assert max_type_i(good) == pytest.approx(0.05436, abs=1e-5)
    low = Cell("mean", 12, 3, 0.929, 0.9, 0.4, None, 10_000)
    high = Cell("difference", 12, 3, 0.96, 0.9, 0.4, 0.0545, 10_000)
    assert failures([good, low, high]) == [low, high]


def test_the_recorded_studies_have_the_power_that_they_state() -> None:
    data = json.loads((RESULTS / "calibration.json").read_text("utf-8"))
    cells = [StudyCell(**cell) for cell in data["studies"]]
    assert {(cell.problems, cell.seeds) for cell in cells} == {(n, seeds) for n in PROBLEMS[1:] for seeds in SEEDS[2:]}
    assert study_failures(cells) == []


def test_a_study_that_finds_less_than_it_states_or_too_much_without_an_effect_fails() -> None:
    good = StudyCell(32, 3, 0.3, 0.75, 0.7, 0.05, 6000)
    weak = StudyCell(32, 3, 0.3, 0.749, 0.7, 0.05, 6000)
    false = StudyCell(32, 3, 0.3, 0.8, 0.7, 0.057, 6000)  # 0.05 + 2 · √(.05 · .95 / 6,000) = .0556
    assert study_failures([good, weak, false]) == [weak, false]
