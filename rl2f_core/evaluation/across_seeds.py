"""Evaluation reports of several seeds: values per seed, and their mean with an interval over seeds and problems."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from statistics import fmean

import numpy as np

from rl2f_core.common.stats.contrast import contrast, paired_rates
from rl2f_core.common.stats.intervals import (
    TOO_FEW,
    Interval,
    correct_items,
    detectable_effect,
    difference_over_seeds,
    wilson_clustered,
)
from rl2f_core.dialogue.metrics.constant_baseline import describe_comparison
from rl2f_core.dialogue.metrics.dialogues import compared_with, ratio_interval, reference_note
from rl2f_core.errors import DataError
from rl2f_core.evaluation.chart_data import Chart, effects_chart
from rl2f_core.evaluation.formatting import (
    baseline_text,
    interval_beside,
    interval_text,
    markdown_table,
    nonzero_number,
    number,
    quantity_text,
    verdict_text,
)
from rl2f_core.evaluation.problem_values import PER_DIALOGUE, RATIOS, STORED_METRICS, stack
from rl2f_core.evaluation.report import EvaluationReport
from rl2f_core.types import ConstantBaseline, FrozenModel

LEGEND = (
    "Intervals treat seeds and problems as crossed, so they hold for other seeds and other problems; with one seed, "
    "for other problems only. *above 0* counts the seeds whose own interval over problems is above 0. Findings are "
    "corrected by Holm's method, in the family of one quantity and condition."
)
NO_PROBLEM_VALUES = "no interval, because a report has no values by problem; evaluate again"


class SeedRow(FrozenModel):
    """One quantity of one checkpoint by seed."""

    checkpoint: str
    """E.g. `rl2f@24`, or `rl2f@24 − sft@30` for a difference."""
    condition: str
    """Empty for a difference between checkpoints."""
    quantity: str
    """A metric, `hint_effect`, `effect` (of a control, see `compared_with`), or `difference of …`."""
    values: tuple[float | None, ...]
    """Values in the order of the summary's seeds; None if missing."""
    mean: Interval
    """Mean over seeds. Its `n` is the number of problems; 0 without values by problem, and then without an interval."""
    above_zero: int | None = None
    """For effects and differences: number of seeds whose own interval is above 0."""

    @property
    def seeds(self) -> int:
        """Number of seeds that have a value."""
        return sum(value is not None for value in self.values)

    @property
    def name(self) -> str:
        """The quantity, and what an effect is relative to if that is not contentless feedback."""
        return f"{self.quantity}{reference_note(self.condition)}" if self.quantity == "effect" else self.quantity

    @property
    def above_text(self) -> str:
        """Number of seeds above 0 of those that have a value, e.g. `2 of 3`; empty for solve rates."""
        return "" if self.above_zero is None else f"{self.above_zero} of {self.seeds}"


class SeedSummary(FrozenModel):
    """Reports of several seeds, merged."""

    environment: str
    """Registered name."""
    level: str
    turns: int
    """Allowed turns, T."""
    seeds: tuple[str, ...]
    rows: tuple[SeedRow, ...]
    constant_baseline: ConstantBaseline | None = None
    """The score is the mean over seeds."""

    @property
    def name(self) -> str:
        """Environment and level."""
        return f"{self.environment}, {self.level}" if self.level else self.environment

    def to_markdown(self) -> str:
        """Return a table and findings as Markdown."""
        header = ["checkpoint", "condition", "quantity", *(f"seed {s}" for s in self.seeds), "mean", "above 0"]
        body = []
        for row in self.rows:
            signed = row.above_zero is not None
            body.append([row.checkpoint, row.condition, row.name, *(number(v, signed) for v in row.values),
                         interval_text(row.mean, signed), row.above_text])  # fmt: skip
        if self.constant_baseline is not None:
            score = nonzero_number(self.constant_baseline.score)
            body.append(["best constant answer", "any", "cum_acc", *("" for _ in self.seeds), score, ""])
        table = markdown_table((f"{self.name}: {len(self.seeds)} seeds, {self.turns} turns", header, body))
        return "\n".join([table, "", LEGEND, "", *(f"- {sentence}" for sentence in self.findings())]) + "\n"

    def findings(self) -> list[str]:
        """Return a sentence for each effect, difference, and score against the constant baseline."""
        lines = self._baseline_findings()
        for row in self.rows:
            if row.above_zero is None:
                continue
            verdict = NO_PROBLEM_VALUES if row.mean.n == 0 else verdict_text(row.mean, "above 0", "below 0")
            under = f" under {row.condition}" if row.condition not in ("", "hints") else ""
            over = f"{interval_text(row.mean, signed=True)} over {row.seeds} seed{'' if row.seeds == 1 else 's'}"
            lines.append(
                f"The {quantity_text(row.quantity)} of {row.checkpoint}{under}{row.name.removeprefix(row.quantity)}: "
                f"{over}, {verdict}; {row.above_text} seeds are above 0 on their own."
            )
        return lines

    def _baseline_findings(self) -> list[str]:
        baseline = self.constant_baseline
        if baseline is None:
            return []
        lines = [baseline_text(baseline)]
        for name in dict.fromkeys(("cum_acc/1", f"cum_acc/{self.turns}")):
            for row in self.rows:
                if (row.quantity, row.condition) == (name, "hints") and row.mean.low is not None:
                    comparison = describe_comparison(row.mean, baseline, row.mean.n)
                    text, constant = interval_beside(row.mean, baseline.score)
                    compared = f"{text}, {TOO_FEW}" if comparison == TOO_FEW else f"{text} is {comparison}"
                    lines.append(f"{quantity_text(name).capitalize()} of {row.checkpoint}: {compared} ({constant}).")
        return lines


def join_runs(reports: Sequence[EvaluationReport]) -> EvaluationReport:
    """Join reports of one seed; each checkpoint comes from the first report that contains it.

    The joined differences are those of the reports; `merge_seeds` also compares checkpoints of different runs. Raises
    `DataError` if the reports differ in environment, level, turns, problems or seed.
    """
    settings = {(r.environment, r.level, r.split, r.turns, r.tasks, r.samples, r.seed) for r in reports}
    if len(settings) != 1 or len({r.problems for r in reports}) != 1:
        raise DataError(
            "Cannot join reports with different evaluation settings.", value=sorted(settings),
            fix="Evaluate all runs of a seed with the same environment, turns, problems and samples.",
        )  # fmt: skip
    first_report: dict[str, int] = {}
    for i, report in enumerate(reports):
        for checkpoint in report.checkpoints:
            first_report.setdefault(checkpoint, i)
    joined = {
        field: tuple(
            item
            for i, report in enumerate(reports)
            for item in getattr(report, field)
            if first_report.get(item.checkpoint) == i
        )
        for field in ("rows", "effects", "differences")
    }
    notes = tuple(dict.fromkeys(note for report in reports for note in report.notes))
    return reports[0].model_copy(update={**joined, "notes": notes})


def name_apart(groups: Mapping[str, Sequence[EvaluationReport]]) -> list[EvaluationReport]:
    """Return the reports of several configurations, so that reports of a seed can be joined without losing results.

    A checkpoint of several configurations gets the name `CHECKPOINT of CONFIGURATION`, unless its results are the same
    in each seed that two of them share, as those of an untrained base are.

    Args:
        groups: Reports of each configuration, by its name; one report per seed.
    """
    found: dict[str, dict[str, dict[int, EvaluationReport]]] = {}
    for name, reports in groups.items():
        for report in reports:
            for checkpoint in report.checkpoints:
                found.setdefault(checkpoint, {}).setdefault(name, {})[report.seed] = alone(report, checkpoint)
    shared = {
        checkpoint
        for checkpoint, sides in found.items()
        for a, b in combinations(sides.values(), 2)
        if not a.keys() & b.keys() or any(a[seed].rows != b[seed].rows for seed in a.keys() & b.keys())
    }
    return [
        _rename(report, {checkpoint: f"{checkpoint} of {name}" for checkpoint in shared})
        for name, reports in groups.items()
        for report in reports
    ]


def _rename(report: EvaluationReport, names: Mapping[str, str]) -> EvaluationReport:
    """Return a report in which some checkpoints have another name."""
    changed: dict[str, tuple[FrozenModel, ...]] = {}
    for field in ("rows", "effects", "differences"):
        items = getattr(report, field)
        keys = ("checkpoint", "against") if field == "differences" else ("checkpoint",)
        changed[field] = tuple(
            item.model_copy(update={key: names.get(getattr(item, key), getattr(item, key)) for key in keys})
            for item in items
        )
    return report.model_copy(update=changed)


class Comparison(FrozenModel):
    """A quantity of one checkpoint minus that of another one, or minus the mean of several, over seeds."""

    values: tuple[float | None, ...]
    """Difference of each seed, paired over problems if it can be; None if missing."""
    difference: Interval
    """Mean over seeds, with the crossed interval; over seeds only if the reports have no values by problem."""
    is_crossed: bool = False
    """Whether the interval is over problems, too."""
    detectable: float | None = None
    """Smallest true difference that these seeds and problems find with a probability of 80 %; infinite if it is larger
    than the quantity can be."""
    tokens: tuple[float | None, ...] = ()
    """Sampled student tokens of the stages of all checkpoints, mean over seeds; None if unknown."""

    @property
    def token_gap(self) -> float | None:
        """Sampled tokens of the first checkpoint relative to those that differ most from them, minus 1."""
        known = [tokens for tokens in self.tokens if tokens]
        if len(known) < max(2, len(self.tokens)):
            return None
        return max((known[0] / tokens - 1 for tokens in known[1:]), key=abs)

    def tokens_text(self) -> str:
        """Return the sampled tokens, and whether they are equal up to `MAX_TOKEN_GAP`."""
        if self.token_gap is None:
            return "unknown"
        sizes = " and ".join(f"{tokens:,.0f}" for tokens in self.tokens if tokens is not None)
        equal = "equal" if abs(self.token_gap) <= MAX_TOKEN_GAP else f"NOT equal ({100 * self.token_gap:+.0f} %)"
        return f"{equal}: {sizes}"


MAX_TOKEN_GAP = 0.05
"""Relative difference of sampled tokens up to which two checkpoints had an equal budget."""


def compare_arms(
    arms: Sequence[Mapping[str, EvaluationReport]],
    checkpoints: Sequence[str],
    metric: str = "cum_acc",
    condition: str = "hints",
    tests: int = 1,
) -> Comparison:
    """Return a metric of the first arm minus the mean of that of the others, over the seeds of all.

    Solve rates and the other metrics of `STORED_METRICS` are paired over problems and crossed with seeds (`contrast`);
    other metrics are paired by seed.
    The solve rate of a method minus that of its twin under contentless hints, at equal sampled tokens, is its content
    effect.

    Args:
        arms: Reports of each arm by seed; two arms or more, which may be the same one.
        checkpoints: Checkpoint of each arm, e.g. `rl2f@24`.
        metric: E.g. `cum_acc` (within all turns), `cum_acc/1`, `hint_effect`.
        condition: Condition of the evaluation.
        tests: Number of hypotheses that Holm's method corrects.

    Raises `DataError` without a common seed, or if the reports of a seed differ in their settings or problems.
    """
    seeds = [seed for seed in arms[0] if all(seed in arm for arm in arms)]
    if not seeds:
        raise DataError("The arms have no seed in common.", value=[*arms[0]], known=arms[1])
    sides = [(arm, checkpoint, str(i)) for i, (arm, checkpoint) in enumerate(zip(arms, checkpoints, strict=True))]
    reports = [join_runs([alone(arm[seed], checkpoint, name) for arm, checkpoint, name in sides]) for seed in seeds]
    effect, turns = metric == "hint_effect", reports[0].turns
    name = f"cum_acc/{turns}" if effect or metric == "cum_acc" else metric
    conditions = {condition: 1, "contentless": -1} if effect else {condition: 1}
    rates = [(side, c) for _, _, side in sides for c in conditions]
    weights = [weight * sign for weight in arm_weights(len(arms)) for sign in conditions.values()]
    stacked = [_stacked(reports, rate, name) for rate in rates]
    sums, counts = np.array([s for s, _, _ in stacked]), np.array([c for _, c, _ in stacked])
    is_crossed = bool(sums.size and counts.any(axis=(1, 2)).all() and all(complete for _, _, complete in stacked))
    if is_crossed:
        is_pooled = not name.startswith(PER_DIALOGUE)
        difference, by_seed = _contrast_by_seed(sums, counts, weights, is_pooled)
        values = [interval.value for interval in by_seed]
        detectable = detectable_effect(*paired_rates(sums, counts, weights, is_pooled), tests=tests)
        if detectable is not None and detectable > sum(weight for weight in weights if weight > 0):
            detectable = math.inf
    else:
        values = [_weighted_sum(report, rates, weights, name) for report in reports]
        difference, detectable = difference_over_seeds([value for value in values if value is not None], tests)
    tokens = tuple(mean_tokens([arm[seed] for seed in seeds], checkpoint) for arm, checkpoint, _ in sides)
    return Comparison(
        values=tuple(values), difference=difference, is_crossed=is_crossed, detectable=detectable, tokens=tokens
    )


def arm_weights(arms: int) -> list[float]:
    """Return the weights of the first arm minus the mean of the others."""
    return [1.0, *[-1 / (arms - 1)] * (arms - 1)]


def alone(report: EvaluationReport, checkpoint: str, name: str = "") -> EvaluationReport:
    """Return the results of one checkpoint alone, by default with its name; another one joins it with other reports."""
    rows, effects = (
        tuple(item for item in items if item.checkpoint == checkpoint) for items in (report.rows, report.effects)
    )
    found = report.model_copy(update={"rows": rows, "effects": effects, "differences": ()})
    return _rename(found, {checkpoint: name}) if name else found


def sampled_tokens(report: EvaluationReport, checkpoint: str) -> int | None:
    """Return the student tokens that a stage sampled up to its last checkpoint; None if the notes have none."""
    name, _, step = checkpoint.rpartition("@")
    pattern = re.compile(rf"Stage {re.escape(name)}: ([\d,]+) sampled student tokens in {step} steps")
    found = next((match for note in report.notes if (match := pattern.match(note))), None)
    return int(found[1].replace(",", "")) if found else None


def mean_tokens(reports: Iterable[EvaluationReport], checkpoint: str) -> float | None:
    """Return the mean of `sampled_tokens` over the reports that have it; None without any."""
    counts = [count for report in reports if (count := sampled_tokens(report, checkpoint))]
    return fmean(counts) if counts else None


def _weighted_sum(report: EvaluationReport, rates: Sequence[_Key], weights: Sequence[float], name: str) -> float | None:
    """Return the weighted sum of a metric in one report; None if a value is missing."""
    missing = Interval(value=None, n=0)
    metrics = [report.metrics(*rate) for rate in rates]
    return weighted_sum([None if m is None else m.values.get(name, missing).value for m in metrics], weights)


def weighted_sum(values: Sequence[float | None], weights: Sequence[float]) -> float | None:
    """Return the weighted sum of values; None if one is missing."""
    terms = [weight * value for weight, value in zip(weights, values, strict=True) if value is not None]
    return math.fsum(terms) if len(terms) == len(weights) else None


def seeds_chart(summary: SeedSummary) -> Chart:
    """Return each condition's effect against contentless feedback over seeds, one plot per checkpoint."""
    effects = [(r.checkpoint, r.condition, r.mean) for r in summary.rows if r.quantity in ("hint_effect", "effect")]
    counts = sorted({row.seeds for row in summary.rows if row.quantity in ("hint_effect", "effect")})
    seeds = " to ".join(map(str, counts[:1] + counts[1:][-1:])) or "0"
    subtitle = f"{summary.name}; mean of {seeds} seeds, bars are 95\u00a0% intervals over seeds and problems"
    return effects_chart("hint_effect_seeds", subtitle, summary.turns, effects)


def merge_seeds(reports: Mapping[str, EvaluationReport]) -> SeedSummary:
    """Merge the reports of several seeds by checkpoint name.

    Of the controls, the summary contains only cum_acc/T and the effect. All pairs of checkpoints are compared. Raises
    `DataError` without a report, or if the reports differ in environment, level or turns.
    """
    settings = {(r.environment, r.level, r.turns) for r in reports.values()}
    if len(settings) != 1:
        raise DataError(
            "Cannot merge reports that differ in environment, level or number of turns.", value=sorted(settings),
            fix="Merge reports of runs that differ only in the seed.",
        )  # fmt: skip
    environment, level, turns = settings.pop()
    ordered = list(reports.values())
    compared = [*_effect_rows(ordered, turns), *_pair_rows(ordered, turns)]
    families = [f"{row.quantity} {row.condition}" for row in compared]
    rows = [*_rate_rows(ordered, turns), *correct_items(compared, "mean", families)]
    baselines = [r.constant_baseline for r in ordered if r.constant_baseline is not None]
    baseline = None
    if baselines:
        baseline = ConstantBaseline(baselines[0].answer, math.fsum(b.score for b in baselines) / len(baselines))
    return SeedSummary(
        environment=environment, level=level, turns=turns, seeds=tuple(reports), rows=tuple(rows),
        constant_baseline=baseline,
    )  # fmt: skip


def compare_groups(groups: Mapping[str, Mapping[int, EvaluationReport]]) -> SeedSummary:
    """Compare the last checkpoints of groups of runs over the seeds that all groups have.

    The checkpoint of a group has its name in the summary.

    Args:
        groups: Reports of each group by training seed; two groups or more.

    Raises `DataError` if the groups have no seed in common, or their reports other evaluation settings or problems.
    """
    seeds = sorted(set.intersection(*(set(reports) for reports in groups.values())))
    if not seeds:
        raise DataError(
            "The groups have no evaluated seed in common.",
            value="; ".join(f"{name}: {sorted(reports)}" for name, reports in groups.items()),
            fix="Start the missing seeds, and evaluate them.",
        )
    return merge_seeds(
        {
            str(seed): join_runs([alone(r[seed], r[seed].checkpoints[-1], name) for name, r in groups.items()])
            for seed in seeds
        }
    )


_Key = tuple[str, str]
"""Checkpoint, condition."""


def _keys(reports: Sequence[EvaluationReport]) -> list[_Key]:
    """Return all rows in the order of the first report that has them."""
    return list(dict.fromkeys((row.checkpoint, row.condition) for report in reports for row in report.rows))


def _rate_rows(reports: Sequence[EvaluationReport], turns: int) -> Iterator[SeedRow]:
    """Return the metrics of each checkpoint under each condition."""
    hinted = list(dict.fromkeys(["cum_acc/1", f"cum_acc/{turns}", *STORED_METRICS]))
    for checkpoint, condition in _keys(reports):
        for name in hinted if condition == "hints" else [f"cum_acc/{turns}"]:
            metrics = [report.metrics(checkpoint, condition) for report in reports]
            values = [None if m is None or name not in m.values else m[name].value for m in metrics]
            sums, counts, complete = _stacked(reports, (checkpoint, condition), name)
            if any(value is not None for value in values):
                pool = ratio_interval if name in RATIOS else wilson_clustered
                problems = int((counts > 0).any(axis=1).sum())
                mean = pool(sums, counts).model_copy(update={"n": problems}) if complete else _mean_only(values)
                yield SeedRow(
                    checkpoint=checkpoint, condition=condition, quantity=name, values=tuple(values), mean=mean
                )


def _effect_rows(reports: Sequence[EvaluationReport], turns: int) -> Iterator[SeedRow]:
    """Return the effect of each condition against that of `compared_with`."""
    for checkpoint, condition in _keys(reports):
        effects = [report.effect(checkpoint, condition) for report in reports]
        quantity = "hint_effect" if condition == "hints" else "effect"
        rates = [(checkpoint, condition), (checkpoint, compared_with(condition))]
        yield from _difference_row((checkpoint, condition, quantity), effects, reports, rates, turns)


def _pair_rows(reports: Sequence[EvaluationReport], turns: int) -> Iterator[SeedRow]:
    """Return the differences of all pairs of checkpoints."""
    names = list(dict.fromkeys(checkpoint for checkpoint, _ in _keys(reports)))
    for earlier, later in combinations(names, 2):
        for quantity, conditions in (("cum_acc", ["hints"]), ("hint_effect", ["hints", "contentless"])):
            differences = [report.difference(later, earlier, quantity) for report in reports]
            rates = [(checkpoint, condition) for checkpoint in (later, earlier) for condition in conditions]
            key = (f"{later} − {earlier}", "", f"difference of {quantity}")
            yield from _difference_row(key, differences, reports, rates, turns)


_SIGNS = {2: (1, -1), 4: (1, -1, -1, 1)}


def _difference_row(
    key: tuple[str, str, str],
    known: Sequence[Interval | None],
    reports: Sequence[EvaluationReport],
    rates: Sequence[_Key],
    turns: int,
) -> Iterator[SeedRow]:
    """Return a difference of solve rates, if a seed has it.

    Args:
        key: Checkpoint, condition and quantity of the row.
        known: The difference in each report.
        reports: One per seed.
        rates: The solve rates, with the signs `_SIGNS`.
        turns: Allowed turns.
    """
    stacked = [_stacked(reports, rate, f"cum_acc/{turns}") for rate in rates]
    sums, counts = np.array([s for s, _, _ in stacked]), np.array([c for _, c, _ in stacked])
    if all(complete for _, _, complete in stacked) and sums.size:
        mean, known = _contrast_by_seed(sums, counts, _SIGNS[len(rates)])
    else:
        mean = _mean_only([None if d is None else d.value for d in known])
    if mean.value is not None and len({*rates}) == len(rates):
        checkpoint, condition, quantity = key
        yield SeedRow(
            checkpoint=checkpoint, condition=condition, quantity=quantity, mean=mean,
            values=tuple(None if d is None else d.value for d in known),
            above_zero=sum(d is not None and d.above(0) for d in known),
        )  # fmt: skip


def _contrast_by_seed(
    sums: np.ndarray, counts: np.ndarray, weights: Sequence[float], is_pooled: bool = False
) -> tuple[Interval, list[Interval]]:
    """Return `contrast` of all seeds, whose value is the mean of that of the seeds, and of each seed."""
    by_seed = [contrast(sums[..., [k]], counts[..., [k]], weights, is_pooled) for k in range(sums.shape[2])]
    return contrast(sums, counts, weights, is_pooled), by_seed


def _stacked(reports: Sequence[EvaluationReport], key: _Key, name: str) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return sums and counts (problems × seeds), and whether all reports with this row have values by problem."""
    rows = [next((r for r in report.rows if (r.checkpoint, r.condition) == key), None) for report in reports]
    values = [None if row is None else row.by_problem.get(name) for row in rows]
    complete = all(row is None or value is not None for row, value in zip(rows, values, strict=True))
    return *stack(values, [report.problems for report in reports]), complete


def _mean_only(values: Sequence[float | None]) -> Interval:
    """Return a mean over seeds without an interval."""
    present = [value for value in values if value is not None]
    return Interval(value=math.fsum(present) / len(present) if present else None, n=0)
