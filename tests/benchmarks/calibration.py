"""`python -m tests.benchmarks.calibration`: simulated coverage and errors of 95 % intervals, power of studies.

A population has problem types of different difficulty, on which the arms (conditions, checkpoints) have different
effects, and training seeds that shift the logits of all problems and of each arm. Types and seeds have finitely many
values, so the true values are exact sums. Each trial draws problems and seeds independently; every seed is evaluated on
the same problems with other samples. With one seed, the true value is that of the drawn seed; with several, it is the
mean over all seeds. Under the null hypothesis, two arms exchange their effects on half of the types.

Power: a study states from its observed variances which difference it finds with a probability of 80 %. Here the effect
of a population is scaled until its true difference is the mean of these statements, and the difference is then found in
about 80 % of other trials. Families: how often a study of three comparisons without any effect confirms one of them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from scipy.special import expit

from rl2f_core.common.stats.intervals import (
    LEVEL,
    POWER,
    Interval,
    correct_family,
    detectable_effect,
    mean_interval,
    paired_difference,
    wilson_clustered,
)

PROBLEMS = (6, 12, 32, 64)
SEEDS = (1, 2, 3, 5)
SAMPLES = (1, 4)
MIN_COVERAGE = 0.93
"""Required mean coverage of an interval over all populations."""
MAX_TYPE_I = 0.05
"""Required type-I error, plus two standard errors of the simulation."""
POWER_RANGE = (POWER - 0.05, POWER + 0.15)
"""Required mean power at the difference that is stated as detectable."""
_TYPES = 1000
_SHIFTS, _WEIGHTS = np.polynomial.hermite_e.hermegauss(7)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


@dataclass(frozen=True)
class Population:
    """A population of problems and seeds; standard deviations are on the logit scale."""

    name: str
    difficulty: tuple[float, float]
    """Parameters of the Beta distribution of the solve rate without an effect."""
    effect: float
    """Mean effect of arms 0 and 2."""
    spread: float
    """Standard deviation of the effects over problems."""
    seed_shift: float
    """Standard deviation over seeds of the shift of all arms."""
    arm_shift: float
    """Standard deviation over seeds of the shift of one arm."""


POPULATIONS = (
    Population("medium", (2, 2), 0.8, 0.5, 0.3, 0.3),
    Population("hard", (0.5, 4), 1.5, 1.0, 0.3, 0.3),
    Population("easy", (4, 0.6), 0.5, 0.5, 0.2, 0.2),
    Population("rare successes", (0.3, 6), 2.5, 1.0, 0.3, 0.3),
    Population("seeds differ", (1, 1), 0.8, 0.3, 0.6, 0.6),
    Population("seeds agree", (1, 2), 0.8, 0.8, 0.0, 0.0),
)


@dataclass(frozen=True)
class Trial:
    """Evaluated dialogues of one trial, and the true values of the simulated quantities."""

    solved: np.ndarray
    """Solved dialogues (arms × problems × seeds), of `samples`."""
    solve_rates: np.ndarray
    """True solve rate by arm."""
    kept: np.ndarray
    """Retained parts (problems × seeds)."""
    parts: np.ndarray
    """Correct parts (problems × seeds)."""
    retention: float
    tokens: np.ndarray
    """Tokens of all attempts (problems × seeds)."""
    mean_tokens: float
    samples: int


class Simulator:
    """Draws trials from one population."""

    def __init__(self, population: Population, null: bool) -> None:
        rng = np.random.default_rng(7)
        rates = np.clip(rng.beta(*population.difficulty, _TYPES), 1e-6, 1 - 1e-6)
        effects = np.zeros((4, _TYPES))
        effects[::2] = population.effect + population.spread * rng.standard_normal((2, _TYPES))
        if null:  # the second half of the types are the first half with exchanged arms
            rates[_TYPES // 2 :] = rates[: _TYPES // 2]
            half = _TYPES // 2
            effects[:, half:] = effects[[1, 0, 3, 2], :half]
        self.logits = np.log(rates / (1 - rates)) + effects
        self.population = population
        self.part_counts = rng.integers(1, 5, _TYPES)
        self.retention = np.clip(rng.beta(4, 2, _TYPES), 1e-6, 1 - 1e-6)
        self.token_means = 20 * np.exp(0.4 * rng.standard_normal(_TYPES))
        shared = population.seed_shift * _SHIFTS[:, None] + population.arm_shift * _SHIFTS
        self.rate_of_shift = expit(self.logits[:, :, None, None] + shared).mean(axis=1)  # arm, shift, arm shift
        weights = self.part_counts / self.part_counts.sum()
        self.retention_of_shift = (weights[:, None] * expit(self._part_logits[:, None] + self._part_shifts)).sum(axis=0)

    @property
    def _part_logits(self) -> np.ndarray:
        return np.log(self.retention / (1 - self.retention))

    @property
    def _part_shifts(self) -> np.ndarray:
        return self.population.seed_shift * _SHIFTS

    def draw(self, rng: np.random.Generator, problems: int, seeds: int, samples: int, null: bool) -> Trial:
        """Draw one trial."""
        types = rng.integers(0, _TYPES, problems)
        shared = rng.choice(len(_SHIFTS), seeds, p=_WEIGHTS)
        arms = rng.choice(len(_SHIFTS), (4, seeds), p=_WEIGHTS)
        if null and seeds == 1:  # with one seed the hypothesis is about this seed
            arms = np.broadcast_to(arms[:1], arms.shape)
        shift = self.population.seed_shift * _SHIFTS[shared] + self.population.arm_shift * _SHIFTS[arms]
        solved = rng.binomial(samples, expit(self.logits[:, types, None] + shift[:, None]))
        parts = np.repeat((samples * self.part_counts[types])[:, None], seeds, axis=1)
        kept = rng.binomial(parts, expit(self._part_logits[types, None] + self._part_shifts[shared]))
        level = np.exp(0.2 * self.population.seed_shift * _SHIFTS[shared])
        means = self.token_means[types, None] * level
        tokens = rng.gamma(4 * samples, means / 4)
        if seeds == 1:
            rates = self.rate_of_shift[np.arange(4), shared[0], arms[:, 0]]
            retention, mean_level = float(self.retention_of_shift[shared[0]]), float(level[0])
        else:
            rates = np.einsum("asw,s,w->a", self.rate_of_shift, _WEIGHTS, _WEIGHTS)
            retention = float(self.retention_of_shift @ _WEIGHTS)
            mean_level = float(np.exp(0.2 * self.population.seed_shift * _SHIFTS) @ _WEIGHTS)
        true_tokens = float(self.token_means.mean()) * mean_level
        return Trial(solved, rates, kept, parts, retention, tokens, true_tokens, samples)


Result = tuple[Interval, float]
"""A computed interval and the true value."""


def _proportion(t: Trial) -> Result:
    return wilson_clustered(t.solved[0], np.full(t.solved[0].shape, t.samples)), float(t.solve_rates[0])


def _ratio(t: Trial) -> Result:
    return wilson_clustered(t.kept, t.parts), t.retention


def _mean(t: Trial) -> Result:
    return mean_interval(t.tokens, np.full(t.tokens.shape, t.samples)), t.mean_tokens


def _contrast(t: Trial, signs: tuple[int, ...]) -> Result:
    used = np.array(signs)
    sums = np.tensordot(used, t.solved[: len(signs)], axes=1) / t.samples
    return (
        paired_difference(sums, np.ones(sums.shape), t.samples, limit=len(signs) / 2),
        float(used @ t.solve_rates[: len(signs)]),
    )


def _difference(t: Trial) -> Result:
    return _contrast(t, (1, -1))


def _difference_of_effects(t: Trial) -> Result:
    return _contrast(t, (1, -1, -1, 1))


STATISTICS: dict[str, Callable[[Trial], Result]] = {
    "proportion": _proportion,
    "ratio": _ratio,
    "mean": _mean,
    "difference": _difference,
    "difference of effects": _difference_of_effects,
}


@dataclass(frozen=True)
class Cell:
    """Result of one statistic for one size, over all populations and samples per problem."""

    statistic: str
    problems: int
    seeds: int
    coverage: float
    """Mean over populations and samples per problem."""
    lowest: float
    """Of one population with one number of samples."""
    width: float
    """Mean width."""
    type_i: float | None
    """Fraction of trials that exclude 0 under the null hypothesis; None for other statistics than differences."""
    trials: int
    """Trials of `coverage`; `type_i` has as many."""


def simulate(trials: int, seed: int = 0) -> Iterator[Cell]:
    """Simulate every statistic for every number of problems and seeds.

    Args:
        trials: Number for each population and number of samples.
        seed: Seed of the simulation.
    """
    for problems in PROBLEMS:
        for seeds in SEEDS:
            yield from _simulate_size(problems, seeds, trials, np.random.default_rng([seed, problems, seeds]))


def _simulate_size(problems: int, seeds: int, trials: int, rng: np.random.Generator) -> list[Cell]:
    covered: dict[str, list[float]] = {name: [] for name in STATISTICS}
    widths: dict[str, list[float]] = {name: [] for name in STATISTICS}
    rejected: dict[str, list[float]] = {name: [] for name in STATISTICS if name.startswith("difference")}
    for population in POPULATIONS:
        for samples in SAMPLES:
            for null in (False, True):
                simulator = Simulator(population, null)
                drawn = [simulator.draw(rng, problems, seeds, samples, null) for _ in range(trials)]
                if null:
                    for name, results in rejected.items():
                        results.append(float(np.mean([STATISTICS[name](t)[0].excludes_zero for t in drawn])))
                    continue
                for name, statistic in STATISTICS.items():
                    hits, width = zip(*(_coverage(*statistic(t)) for t in drawn), strict=True)
                    covered[name].append(float(np.mean(hits)))
                    widths[name].append(float(np.mean(width)))
    count = trials * len(POPULATIONS) * len(SAMPLES)
    return [
        Cell(name, problems, seeds, float(np.mean(covered[name])), min(covered[name]), float(np.mean(widths[name])),
             float(np.mean(rejected[name])) if name in rejected else None, count)
        for name in STATISTICS
    ]  # fmt: skip


@dataclass(frozen=True)
class StudyCell:
    """Power and family-wise error of studies of one size, over all populations with one dialogue per problem."""

    problems: int
    seeds: int
    detectable: float
    """Mean difference that is found with a probability of `POWER`, as trials state it."""
    found: float
    """Fraction of the trials that find a true difference of this size; mean over populations."""
    lowest: float
    """Of one population."""
    family: float
    """Fraction of trials without any effect in which Holm's method confirms one of three comparisons."""
    trials: int
    """Trials of `found`; `family` has as many."""


def simulate_studies(trials: int, seed: int = 0) -> Iterator[StudyCell]:
    """Simulate studies of every size; `trials` is the number for each population."""
    for problems in PROBLEMS[1:]:
        for seeds in SEEDS[2:]:
            rng = np.random.default_rng([seed, problems, seeds, 1])
            sizes, found, family = [], [], []
            for population in POPULATIONS:
                simulator, size = _at_detectable_effect(population, problems, seeds, rng)
                if simulator is not None:
                    drawn = [simulator.draw(rng, problems, seeds, 1, null=False) for _ in range(trials)]
                    sizes.append(size)
                    found.append(float(np.mean([_difference(t)[0].above(0) for t in drawn])))
                without = Simulator(population, null=True)
                null = [without.draw(rng, problems, seeds, 1, null=True) for _ in range(trials)]
                family.append(float(np.mean([_confirms_any(t) for t in null])))
            yield StudyCell(problems, seeds, float(np.mean(sizes)), float(np.mean(found)), min(found),
                            float(np.mean(family)), trials * len(found))  # fmt: skip


def _at_detectable_effect(
    population: Population, problems: int, seeds: int, rng: np.random.Generator, trials: int = 200
) -> tuple[Simulator | None, float]:
    """Return a population whose true difference is what its trials call detectable, and that difference.

    None if no effect on the logit scale is large enough.
    """
    low, high = 0.0, 12.0
    for _ in range(12):
        middle = (low + high) / 2
        simulator = Simulator(replace(population, effect=middle), null=False)
        drawn = [simulator.draw(rng, problems, seeds, 1, null=False) for _ in range(trials)]
        stated = float(np.mean([_stated(t) for t in drawn]))
        true = float(drawn[0].solve_rates[0] - drawn[0].solve_rates[1])
        low, high = (middle, high) if true < stated else (low, middle)
    return (simulator, true) if abs(true - stated) < 0.02 else (None, stated)


def _stated(t: Trial) -> float:
    return detectable_effect(t.solved[0] - t.solved[1], np.ones(t.solved[0].shape), t.samples) or 0.0


def _confirms_any(t: Trial) -> bool:
    other = replace(t, solved=t.solved[2:])
    family = correct_family([_difference(t)[0], _difference(other)[0], _difference_of_effects(t)[0]])
    return any(d.excludes_zero and d.holm_p is not None and d.holm_p <= 1 - LEVEL for d in family)


def study_failures(cells: list[StudyCell]) -> list[StudyCell]:
    """Return the cells whose power is below the stated one or far above, or whose family-wise error is too large."""
    low, high = POWER_RANGE
    return [c for c in cells if not low <= c.found <= high or c.family > _max_error(c.trials)]


def _coverage(interval: Interval, truth: float) -> tuple[bool, float]:
    if interval.low is None or interval.high is None:
        return False, 0.0
    return interval.low - 1e-12 <= truth <= interval.high + 1e-12, interval.high - interval.low


def max_type_i(cell: Cell) -> float:
    """Return the largest accepted type-I error: .05 plus two standard errors of the simulation."""
    return _max_error(cell.trials)


def _max_error(trials: int) -> float:
    return MAX_TYPE_I + 2 * float(np.sqrt(MAX_TYPE_I * (1 - MAX_TYPE_I) / trials))


def failures(cells: list[Cell]) -> list[Cell]:
    """Return the cells that miss the required coverage or type-I error."""
    return [c for c in cells if c.coverage < MIN_COVERAGE or (c.type_i is not None and c.type_i > max_type_i(c))]


def main() -> None:
    """Run the simulation and store its cells."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.calibration", description=__doc__)
    parser.add_argument("--trials", type=int, default=1000, help="for each population and number of samples")
    parser.add_argument("--out", type=Path, help="folder for calibration.json")
    options = parser.parse_args()
    cells = []
    for cell in simulate(options.trials):
        cells.append(cell)
        error = "" if cell.type_i is None else f"  type I {cell.type_i:.3f}"
        print(f"{cell.statistic:22} {cell.problems:3} problems {cell.seeds} seeds  coverage {cell.coverage:.3f}  "
              f"lowest {cell.lowest:.3f}  width {cell.width:.2f}{error}", flush=True)  # fmt: skip
    studies = []
    for study in simulate_studies(options.trials):
        studies.append(study)
        print(f"{study.problems:3} problems {study.seeds} seeds  detectable {study.detectable:.2f}  found "
              f"{study.found:.3f}  lowest {study.lowest:.3f}  family {study.family:.3f}", flush=True)  # fmt: skip
    print(f"{len(failures(cells)) + len(study_failures(studies))} of {len(cells) + len(studies)} cells fail.")
    if options.out is not None:
        content = {"trials": options.trials, "min_coverage": MIN_COVERAGE, "max_type_i": max_type_i(cells[0]),
                   "populations": [asdict(p) for p in POPULATIONS], "cells": [asdict(c) for c in cells],
                   "power": POWER, "power_range": POWER_RANGE, "studies": [asdict(c) for c in studies]}  # fmt: skip
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "calibration.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
