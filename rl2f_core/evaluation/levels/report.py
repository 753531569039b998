"""Accuracy by level and on perturbed variants of the tasks, and memorization.

The memorization score is LiMem = Acc · (1 − CR) (Xie et al., arXiv 2410.23123). The consistency ratio CR is the
fraction of solved original tasks whose perturbed variants are solved too. LiMem is therefore the fraction of tasks
solved in the original but not as a variant. A policy that samples its answers is inconsistent without memorization.
Each original is therefore answered again with another seed (`again`); only LiMem above that of `again` counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from rl2f_core.common.stats.intervals import Interval
from rl2f_core.dialogue.metrics.constant_baseline import describe_comparison, is_above_baseline
from rl2f_core.dialogue.metrics.dialogues import (
    Metrics,
    compute_metrics,
    fraction,
    solve_rate_difference,
    solved_within,
    sum_by_task,
)
from rl2f_core.evaluation.chart_data import CONSTANT, Chart
from rl2f_core.evaluation.formatting import (
    Table,
    interval_beside,
    interval_text,
    missing_text,
    nonzero_number,
    number,
    render_markdown,
    verdict_text,
)
from rl2f_core.evaluation.plotting import DASHES, SERIES, Line, Plot
from rl2f_core.evaluation.report import CheckpointResult, EvaluatedTasks, attempt_tables
from rl2f_core.types import ConstantBaseline, Dialogue, FrozenModel, StopReason

ORIGINAL = "as it is"
RESAMPLED = "again"
ALL_LEVELS = "all levels"
MAX_TRUNCATED_FRACTION = 0.05
"""Above this fraction of truncated attempts, a level's numbers also reflect the token limit."""
FirstAttempts = Mapping[tuple[str, int], bool]
"""Whether the first attempt is correct, by task and sample."""


class LevelCell(FrozenModel):
    """One checkpoint on one level, on the original tasks or on one kind of variant."""

    checkpoint: str
    """E.g. `base`, `rl2f@24`."""
    level: str
    """E.g. `people=3`, or `all levels`."""
    variant: str
    """`as it is`, `again` (same text, another seed), or a perturbation."""
    tasks: int
    """Tasks with this variant whose dialogues did not fail."""
    accuracy: Interval
    """Fraction of correct first attempts."""
    solved: Interval | None = None
    """Fraction solved within all turns; only for original tasks with several turns."""
    consistency: Interval | None = None
    """CR: of the solved originals, the fraction solved as variants; None for the originals."""
    memorization: Interval | None = None
    """LiMem: fraction solved in the original but not as a variant."""
    memorization_above_resample: Interval | None = None
    """LiMem minus that of `again`, paired over tasks."""
    metrics: Metrics | None = None
    """All metrics of the attempts; None for all levels together."""

    @property
    def condition(self) -> str:
        """Condition of the stored dialogues."""
        return condition_name(self.level, self.variant)


class LevelInfo(FrozenModel):
    """One level."""

    name: str
    """E.g. `people=3`."""
    value: int | None
    """Value of the swept field; None without a sweep."""
    tasks: int | None = None
    """Evaluated tasks, all of distinct problems; None in old reports."""
    constant_baseline: ConstantBaseline | None = None


class LevelsReport(FrozenModel):
    """Results of checkpoints by level and variant."""

    environment: str
    """Registered name."""
    field: str | None
    """Swept field."""
    split: str
    tasks: int
    """Requested tasks per level."""
    samples: int
    """Dialogues per task."""
    turns: int
    """Allowed turns on original tasks; variants have one."""
    levels: tuple[LevelInfo, ...]
    """From easy to hard."""
    cells: tuple[LevelCell, ...]
    """Checkpoints × levels × variants."""

    @property
    def checkpoints(self) -> list[str]:
        """Checkpoints in the order of their first cell."""
        return list(dict.fromkeys(cell.checkpoint for cell in self.cells))

    @property
    def variants(self) -> list[str]:
        """Variants without the originals."""
        return [name for name in dict.fromkeys(cell.variant for cell in self.cells) if name != ORIGINAL]

    def cell(self, checkpoint: str, level: str, variant: str = ORIGINAL) -> LevelCell | None:
        """Return one cell, or None."""
        key = (checkpoint, level, variant)
        return next((c for c in self.cells if (c.checkpoint, c.level, c.variant) == key), None)

    @property
    def title(self) -> str:
        """Environment and size in one line."""
        swept = f" by {self.field}" if self.field else ""
        samples = f" × {self.samples} samples" if self.samples > 1 else ""
        turns = f", {self.turns} turns" if self.turns > 1 else ", first attempts"
        return f"{self.environment}{swept}: {self.tasks} {self.split} tasks per level{samples}{turns}"

    def to_markdown(self) -> str:
        """Return the tables and findings as Markdown."""
        return render_markdown(f"Levels of {self.title}", level_tables(self), level_findings(self))


def condition_name(level: str, variant: str) -> str:
    """Return the condition of a cell's stored dialogues: `people=3`, `people=3, renamed`."""
    return level if variant == ORIGINAL else f"{level}, {variant}"


# -- estimates -----------------------------------------------------------------------------------------------------
def first_attempts(dialogues: Sequence[Dialogue]) -> dict[tuple[str, int], bool]:
    """Return whether first attempts are correct by (original) task and sample, without failed dialogues."""
    return {(d.group, d.index): bool(solved_within(d, 1)) for d in dialogues if d.stop_reason is not StopReason.FAILED}


def accuracy(correct: FirstAttempts) -> Interval:
    """Return the fraction of correct attempts, with a Wilson interval over tasks."""
    return _wilson(correct)


def consistency(original: FirstAttempts, variant: FirstAttempts) -> Interval:
    """Return CR: of the correct originals, the fraction whose variant is correct; only pairs count."""
    return _wilson({key: variant[key] for key in original.keys() & variant.keys() if original[key]})


def memorization(original: FirstAttempts, variant: FirstAttempts) -> Interval:
    """Return LiMem = Acc · (1 − CR): the fraction correct in the original but not as a variant; only pairs count."""
    return _wilson(_inconsistent(original, variant))


def memorization_above_resample(original: FirstAttempts, variant: FirstAttempts, again: FirstAttempts) -> Interval:
    """Return LiMem of a variant minus that of `again`, paired over common tasks."""
    return solve_rate_difference(_by_task(_inconsistent(original, variant)), _by_task(_inconsistent(original, again)))


def _inconsistent(original: FirstAttempts, variant: FirstAttempts) -> FirstAttempts:
    return {key: original[key] and not variant[key] for key in original.keys() & variant.keys()}


def _by_task(correct: FirstAttempts) -> dict[str, tuple[float, float]]:
    """Return the number of correct attempts and of attempts of each task."""
    return sum_by_task((task, float(hit), 1.0) for (task, _), hit in correct.items())


def _wilson(correct: FirstAttempts) -> Interval:
    return fraction((task, hit) for (task, _), hit in correct.items()).interval()


LevelDialogues = Mapping[str, Mapping[str, Mapping[str, Sequence[Dialogue]]]]
"""Dialogues by checkpoint, level and variant."""


def build_levels(
    dialogues: LevelDialogues, levels: Sequence[LevelInfo], *, environment: str, field: str | None,
    evaluated: EvaluatedTasks, turns: int,
) -> LevelsReport:  # fmt: skip
    """Compute the report, by level and over all levels."""
    cells = []
    for checkpoint, by_level in dialogues.items():
        merged: dict[str, list[Dialogue]] = defaultdict(list)
        for level, by_variant in by_level.items():
            cells += _cells(checkpoint, level, by_variant, turns)
            for name, group in by_variant.items():
                merged[name] += group
        if len(by_level) > 1:
            cells += _cells(checkpoint, ALL_LEVELS, merged, turns)
    return LevelsReport(
        environment=environment, field=field, split=evaluated.split, tasks=evaluated.tasks, samples=evaluated.samples,
        turns=turns, levels=tuple(levels), cells=tuple(cells),
    )  # fmt: skip


def _cells(checkpoint: str, level: str, by_variant: Mapping[str, Sequence[Dialogue]], turns: int) -> list[LevelCell]:
    original = first_attempts(by_variant[ORIGINAL])
    again = first_attempts(by_variant.get(RESAMPLED, ()))
    cells = []
    for name, dialogues in by_variant.items():
        correct, limit = first_attempts(dialogues), turns if name == ORIGINAL else 1
        more: dict[str, Interval | None] = {}
        if name != ORIGINAL:
            more = {"consistency": consistency(original, correct), "memorization": memorization(original, correct)}
            if name != RESAMPLED and again:
                more["memorization_above_resample"] = memorization_above_resample(original, correct, again)
        elif turns > 1:
            valid = [d for d in dialogues if d.stop_reason is not StopReason.FAILED]
            more = {"solved": accuracy({(d.group, d.index): bool(solved_within(d, turns)) for d in valid})}
        metrics = None if level == ALL_LEVELS else compute_metrics(dialogues, limit)
        tasks = len({task for task, _ in correct})
        cells.append(LevelCell(checkpoint=checkpoint, level=level, variant=name, accuracy=accuracy(correct),
                               tasks=tasks, metrics=metrics, **more))  # fmt: skip
    return cells


# -- text ----------------------------------------------------------------------------------------------------------
def level_tables(report: LevelsReport) -> list[Table]:
    """Return the report's tables: accuracy, memorization, attempt outcomes, tokens."""
    baselines = {info.name: info.constant_baseline for info in report.levels if info.constant_baseline is not None}
    rows, memory = [], []
    for checkpoint in report.checkpoints:
        for level in dict.fromkeys(cell.level for cell in report.cells):
            original = report.cell(checkpoint, level)
            if original is None:
                continue
            cells = [report.cell(checkpoint, level, name) for name in report.variants]
            within = [interval_text(original.solved)] if report.turns > 1 else []
            baseline = nonzero_number(baselines[level].score) if level in baselines else "–"
            rows.append([checkpoint, level, baseline, interval_text(original.accuracy), *within,
                         *(interval_text(c.accuracy if c else None) for c in cells)])  # fmt: skip
            memory.append([checkpoint, level, *(interval_text(c.consistency if c else None) for c in cells),
                           *(interval_text(c.memorization if c else None) for c in cells)])  # fmt: skip
    within = [f"within {report.turns} turns"] if report.turns > 1 else []
    header = ["checkpoint", "level", "best constant answer", ORIGINAL, *within, *report.variants]
    tables = [("Correct at the first attempt", header, rows)]
    if report.variants:
        names = [f"{score}, {name}" for score in ("CR", "LiMem") for name in report.variants]
        title = "Consistency ratio and memorization score, LiMem = Acc · (1 − CR)"
        tables.append((title, ["checkpoint", "level", *names], memory))
    return tables + attempt_tables(_original_results(report))


def level_findings(report: LevelsReport) -> list[str]:
    """Return levels not above the constant baseline, truncated attempts, and memorization above chance."""
    truncated = [(r, r.metrics["outcome/truncated"]) for r in _original_results(report)]
    return [
        *level_warnings(report),
        *(
            f"{info.name}: {missing_text(info.tasks, report.tasks, report.split, 'samples')}"
            for info in report.levels
            if info.tasks is not None and info.tasks < report.tasks
        ),
        *(
            f"{number(rate.value)} of the attempts of {r.checkpoint} at {r.condition} were truncated without an "
            "answer: raise rollout.max_new_tokens."
            for r, rate in truncated
            if rate.value is not None and rate.value > MAX_TRUNCATED_FRACTION
        ),
        *_memorization_findings(report),
    ]


def _original_results(report: LevelsReport) -> list[CheckpointResult]:
    """Return the metrics on original tasks, whose condition is the level."""
    return [
        CheckpointResult(checkpoint=cell.checkpoint, condition=cell.condition, metrics=cell.metrics)
        for cell in report.cells
        if cell.metrics and cell.variant == ORIGINAL
    ]


def level_warnings(report: LevelsReport) -> list[str]:
    """Return the levels at which a checkpoint is not above the constant baseline."""
    lines = []
    for checkpoint in report.checkpoints:
        for info in report.levels:
            cell, baseline = report.cell(checkpoint, info.name), info.constant_baseline
            if cell is not None and baseline is not None and not is_above_baseline(cell.accuracy, baseline, cell.tasks):
                text, constant = interval_beside(cell.accuracy, baseline.score)
                comparison = describe_comparison(cell.accuracy, baseline)
                lines.append(f"{checkpoint} at {info.name}: {text} is {comparison} ({constant}).")
    return lines


def _memorization_findings(report: LevelsReport) -> list[str]:
    lines = []
    level = ALL_LEVELS if len(report.levels) > 1 else report.levels[0].name
    for checkpoint in report.checkpoints:
        cells = [cell for name in report.variants if (cell := report.cell(checkpoint, level, name)) is not None]
        for cell in cells:
            above = cell.memorization_above_resample
            if above is None or above.value is None:
                continue
            verdict = verdict_text(above, "memorized beyond chance", "more consistent than chance")
            lines.append(
                f"LiMem of {checkpoint} under {cell.variant}, {level}: {interval_text(cell.memorization)}; minus LiMem "
                f"under `{RESAMPLED}`: {interval_text(above, signed=True)}: {verdict}."
            )
        original = report.cell(checkpoint, level)
        missing = [f"{cell.variant} {cell.tasks}" for cell in cells if original and cell.tasks < original.tasks]
        if missing:
            lines.append(f"Some tasks of {checkpoint} lack a variant; tasks with one: {', '.join(missing)}.")
    return lines


# -- charts --------------------------------------------------------------------------------------------------------
def level_plots(report: LevelsReport) -> list[Plot]:
    """Plot the accuracy at the first attempt by level, one plot per checkpoint.

    Each plot has a line for the originals, one per variant, and the constant baseline.
    """
    xs = [float(i if info.value is None else info.value) for i, info in enumerate(report.levels, 1)]
    baselines = [info.constant_baseline.score for info in report.levels if info.constant_baseline is not None]
    plots = []
    for checkpoint in report.checkpoints:
        lines = []
        if len(baselines) == len(xs):
            label = CONSTANT.removeprefix("best ")
            lines.append(Line(CONSTANT, xs, baselines, "--rl-muted", dash="dash", width=1.2, label=label))
        for position, name in enumerate((ORIGINAL, *report.variants)):
            cells = [(x, report.cell(checkpoint, info.name, name)) for x, info in zip(xs, report.levels, strict=True)]
            points = [(x, c) for x, c in cells if c is not None]
            original = name == ORIGINAL
            lines.append(
                Line(name, [x for x, _ in points], [c.accuracy.value for _, c in points],
                     "--rl-student" if original else SERIES[position % len(SERIES)],
                     low=[c.accuracy.low for _, c in points] if original else (),
                     high=[c.accuracy.high for _, c in points] if original else (),
                     at=[[checkpoint, c.condition] for _, c in points],
                     dash="solid" if original else DASHES[1 + position % 5], width=2.6 if original else 1.8)
            )  # fmt: skip
        plots.append(
            Plot(lines, x_title=report.field or "level", format="share", range=(0.0, 1.03), height=230,
                 x_ticks=[int(x) for x in xs] if len(xs) <= 12 else (), title=checkpoint, unit="correct at first")
        )  # fmt: skip
    return plots


def levels_chart(report: LevelsReport) -> Chart:
    """Return the accuracy by level, one plot per checkpoint."""
    title = "Correct at the first attempt, by level and variant"
    subtitle = f"{report.title}; bands are 95\u00a0% intervals"
    return Chart("accuracy_by_level", title, tuple(level_plots(report)), subtitle)
