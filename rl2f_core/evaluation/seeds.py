"""Several seeds' evaluation reports side by side: values by seed, and their mean with Student's t interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rl2f_core.errors import DataError
from rl2f_core.evaluation.charts import STYLES, Chart, Panel, Series
from rl2f_core.evaluation.floors import BestConstant, standing_words
from rl2f_core.evaluation.report import EvaluationReport, interval_text, markdown_table, number, verdict_text
from rl2f_core.evaluation.statistics import Interval, t_interval
from rl2f_core.types import Value

LEGEND = (
    "Means carry Student's t interval over seeds; *above 0* counts the seeds whose own interval over tasks "
    "lies above 0."
)


class SeedRow(Value):
    """One quantity of one checkpoint, by seed."""

    checkpoint: str
    """E.g. `rl2f@24`, or `rl2f@24 − sft@30` for a difference."""
    control: str
    """The control, or `` for a difference between checkpoints."""
    quantity: str
    """A metric's name, `hint_effect`, `effect` (another control against contentless), or `difference of …`."""
    values: tuple[float | None, ...]
    """By seed, in the summary's order; None where a seed lacks it."""
    mean: Interval
    """Mean over seeds with a t interval."""
    above_zero: int | None = None
    """For effects and differences: in how many seeds the seed's own interval lies above 0."""


class SeedSummary(Value):
    """Several seeds' reports side by side."""

    environment: str
    """Registered name."""
    level: str
    """Difficulty."""
    turns: int
    """Turns allowed, T."""
    seeds: tuple[str, ...]
    """Names, in order."""
    rows: tuple[SeedRow, ...]
    """Quantities."""
    floor: BestConstant | None = None
    """The best constant answer; its score is the mean over the seeds."""

    def row(self, checkpoint: str, quantity: str, control: str = "hints") -> SeedRow | None:
        """One row, or None."""
        key = (checkpoint, control, quantity)
        return next((r for r in self.rows if (r.checkpoint, r.control, r.quantity) == key), None)

    def to_markdown(self) -> str:
        """One table and what the effects say."""
        name = f"{self.environment}, {self.level}" if self.level else self.environment
        header = ["checkpoint", "control", "quantity", *(f"seed {s}" for s in self.seeds), "mean", "above 0"]
        body = []
        for row in self.rows:
            signed = row.above_zero is not None
            count = "" if row.above_zero is None else f"{row.above_zero} of {len(self.seeds)}"
            values = [number(v, signed) for v in row.values]
            body.append([row.checkpoint, row.control, row.quantity, *values, interval_text(row.mean, signed), count])
        if self.floor is not None:
            score = number(self.floor.score)
            body.append(["best constant answer", "any", "cum_acc", *("" for _ in self.seeds), score, ""])
        table = markdown_table((f"{name}: {len(self.seeds)} seeds, {self.turns} turns", header, body))
        lines = [table, "", LEGEND, "", *(f"- {sentence}" for sentence in self.findings())]
        return "\n".join(lines) + "\n"

    def findings(self) -> list[str]:
        """A sentence for each effect and difference, and for each score beside the best constant answer."""
        lines = self._beside_the_floor()
        for row in self.rows:
            if row.above_zero is None:
                continue
            if row.mean.low is None:
                verdict = f"no interval, {row.mean.n} seed{'' if row.mean.n == 1 else 's'}"
            else:
                verdict = verdict_text(row.mean, "above 0", "below 0")
            whose = f"{row.checkpoint} under {row.control}" if row.control not in ("", "hints") else row.checkpoint
            text = interval_text(row.mean, signed=True)
            lines.append(
                f"{row.quantity} of {whose}: {text} over {row.mean.n} seeds, {verdict}; "
                f"by itself above 0 in {row.above_zero} of {len(self.seeds)} seeds."
            )
        return lines

    def _beside_the_floor(self) -> list[str]:
        if self.floor is None:
            return []
        solves = number(self.floor.score)
        lines = [f"The best constant answer ({self.floor.answer}) solves {solves} at one attempt."]
        for name in dict.fromkeys(("cum_acc/1", f"cum_acc/{self.turns}")):
            for row in self.rows:
                if (row.quantity, row.control) == (name, "hints") and row.mean.low is not None:
                    found = standing_words(row.mean, self.floor)
                    lines.append(f"{name} of {row.checkpoint}: {interval_text(row.mean)} is {found} ({solves}).")
        return lines


def join_runs(reports: Sequence[EvaluationReport]) -> EvaluationReport:
    """Reports of one seed as one: the checkpoints of all, each taken from the first report that has it.

    Differences between checkpoints of different runs are not in any of the reports, and so not in the result either.

    Raises `DataError` where they differ in environment, level, turns, tasks or seed.
    """
    kinds = {(r.environment, r.level, r.split, r.turns, r.tasks, r.samples, r.seed) for r in reports}
    if len(kinds) != 1:
        raise DataError(
            "Runs of one seed can be joined only where they were evaluated alike.", value=sorted(kinds),
            fix="Evaluate them with the same environment, turns, tasks and samples.",
        )  # fmt: skip
    rows, effects, differences = [], [], []
    taken: set[str] = set()
    for report in reports:
        fresh = set(report.checkpoints) - taken
        rows += [r for r in report.rows if r.checkpoint in fresh]
        effects += [e for e in report.effects if e.checkpoint in fresh]
        differences += [d for d in report.differences if d.checkpoint in fresh]
        taken |= fresh
    notes = dict.fromkeys(note for report in reports for note in report.notes)
    return reports[0].model_copy(
        update={
            "rows": tuple(rows),
            "effects": tuple(effects),
            "differences": tuple(differences),
            "notes": tuple(notes),
        }
    )


def seeds_chart(summary: SeedSummary) -> Chart:
    """Each control's effect against contentless feedback: mean over seeds and t interval, a panel a checkpoint."""
    held = [r for r in summary.rows if r.quantity in ("hint_effect", "effect") and r.mean.value is not None]
    ends = [v for r in held for v in (r.mean.low, r.mean.high, r.mean.value) if v is not None]
    limits = (min([-0.1, *ends]) - 0.03, max([0.1, *ends]) + 0.03)
    panels = []
    for checkpoint in dict.fromkeys(r.checkpoint for r in held):
        rows = [r for r in held if r.checkpoint == checkpoint]
        series = tuple(
            Series(r.control, (r.mean.value or 0.0,), (None,), STYLES[r.control], (r.mean.low,), (r.mean.high,),
                   (interval_text(r.mean, signed=True),))
            for r in rows
        )  # fmt: skip
        unit = f"difference in share solved within {summary.turns} turns"
        panels.append(Panel(checkpoint, series, unit, "", "intervals", limits))
    name = f"{summary.environment}, {summary.level}" if summary.level else summary.environment
    subtitle = f"{name}; mean of {len(summary.seeds)} seeds, bars are 95\u00a0% t intervals"
    return Chart("hint_effect_seeds", "Difference to contentless feedback, by control", tuple(panels), subtitle)


def merge_seeds(reports: Mapping[str, EvaluationReport]) -> SeedSummary:
    """The summary of several seeds' reports, by seed name. Checkpoints are matched by name.

    Of the controls other than `hints` only cum_acc/T and the effect are kept.

    Raises `DataError` where there is no report, or where the reports differ in environment, level or turns.
    """
    kinds = {(r.environment, r.level, r.turns) for r in reports.values()}
    if len(kinds) != 1:
        raise DataError(
            "Reports of several seeds need one environment, level and number of turns.", value=sorted(kinds),
            fix="Merge reports of runs that differ in the seed alone.",
        )  # fmt: skip
    environment, level, turns = kinds.pop()
    held: dict[tuple[str, str, str], dict[str, Interval]] = {}
    shown = list(dict.fromkeys(["cum_acc/1", f"cum_acc/{turns}", "gain", "hazard", "plasticity", "repeat_rate",
                                "useful_change", "retention", "unparsable"]))  # fmt: skip
    for seed, report in reports.items():
        for row in report.rows:
            for name in shown if row.control == "hints" else [f"cum_acc/{turns}"]:
                held.setdefault((row.checkpoint, row.control, name), {})[seed] = row.metrics[name]
    shares = set(held)
    for seed, report in reports.items():
        for effect in report.effects:
            name = "hint_effect" if effect.control == "hints" else "effect"
            held.setdefault((effect.checkpoint, effect.control, name), {})[seed] = effect.difference
        for pair in report.differences:
            key = (f"{pair.checkpoint} − {pair.against}", "", f"difference of {pair.quantity}")
            held.setdefault(key, {})[seed] = pair.difference
    rows = []
    for key, by_seed in held.items():
        values = tuple(by_seed[seed].value if seed in by_seed else None for seed in reports)
        present = [v for v in values if v is not None]
        if present:
            share = key in shares
            rows.append(
                SeedRow(
                    checkpoint=key[0], control=key[1], quantity=key[2], values=values,
                    mean=t_interval(present, support=(0.0, 1.0) if share else None),
                    above_zero=None if share else sum(i.above(0) for i in by_seed.values()),
                )
            )  # fmt: skip
    floors = [report.floor for report in reports.values() if report.floor is not None]
    floor = None
    if floors:
        floor = BestConstant(answer=floors[0].answer, score=math.fsum(f.score for f in floors) / len(floors))
    return SeedSummary(
        environment=environment, level=level, turns=turns, seeds=tuple(reports), rows=tuple(rows), floor=floor
    )
