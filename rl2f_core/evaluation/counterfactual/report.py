"""Report of a fork or of hint values: data, Markdown and figure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from rl2f_core.common.stats.intervals import Interval, wilson
from rl2f_core.evaluation.chart_data import Chart, interval_plot
from rl2f_core.evaluation.counterfactual.estimates import ArmResult, Outcome, arm_results, hint_value
from rl2f_core.evaluation.formatting import interval_text, markdown_rows, verdict_text
from rl2f_core.types import FrozenModel, Hint

MAX_SHOWN = 8
"""Number of highest and of lowest hint values in the Markdown text."""
SELECTED = "They are chosen by their estimates, so the true values are closer to the mean."
"""Caution about the extremes of many estimates."""


class HintResult(FrozenModel):
    """Results of one hint and its alternatives."""

    checkpoint: str
    dialogue: str
    """Id of the dialogue's event in the source run."""
    turn: int
    """0-based."""
    task: str
    hints_by_arm: dict[str, Hint]
    """Hint of each arm."""
    arms: dict[str, Interval]
    """Solve rate of each arm with samples."""
    same_seed: dict[str, bool] = Field(default_factory=dict)
    """Whether each arm is solved under the dialogue's own seed; see `CounterfactualRun.repeats_seed`."""
    hint_value: Interval | None = None
    """p(solved | hint) − p(solved | contentless); None if one arm is missing."""


class CounterfactualReport(FrozenModel):
    """Results of a fork or hint value run."""

    kind: Literal["fork", "hint_value"]
    title: str
    """Name of the source run."""
    source: str
    """Name of its run directory."""
    seed: int
    samples: int
    turns: int | None
    """Attempts after the fork; None for the remaining turns of each dialogue."""
    later_hints: str
    """Teacher of later turns: run, arm or contentless."""
    arms: tuple[str, ...]
    checkpoints: tuple[str, ...]
    done: int
    """Finished dialogues."""
    total: int
    failed: int = 0
    """Failed dialogues, which no estimate includes."""
    results: tuple[ArmResult, ...]
    hints: tuple[HintResult, ...]

    def result(self, checkpoint: str, arm: str) -> ArmResult | None:
        """Return one row, or None."""
        return next((r for r in self.results if (r.checkpoint, r.arm) == (checkpoint, arm)), None)

    def to_markdown(self) -> str:
        """Return tables and findings as Markdown."""
        what = "A dialogue" if self.kind == "fork" else f"{len(self.hints)} hints"
        left = {None: "all remaining attempts", 1: "only the next attempt"}.get(self.turns, f"{self.turns} attempts")
        later = {"run": "the run's teacher", "arm": "the arm's teacher", "contentless": "contentless"}[self.later_hints]
        lines = [
            f"# {what} of {self.title} under other hints",
            "",
            f"{self.samples} samples per arm with shared seeds, {left}; later hints: {later}. "
            "Differences are paired and relative to contentless; brackets are 95 % intervals.",
            "",
        ]
        header = ("checkpoint", "arm", "hints", "solved", "difference", "next score", "difference", "retained parts")
        lines += markdown_rows(header, [_row(r) for r in self.results])
        lines += ["", *(f"- {sentence}" for sentence in self.findings())]
        if self.kind == "hint_value":
            lines += ["", "## Highest and lowest hint values", "", SELECTED, "", *self._extremes()]
        return "\n".join(lines) + "\n"

    def findings(self) -> list[str]:
        """Return a sentence for every difference, missing arms and failures."""
        lines = []
        for r in self.results:
            if r.difference is None or r.difference.value is None:
                continue
            verdict = verdict_text(r.difference, "better than contentless", "worse than contentless")
            lines.append(f"{r.checkpoint}: {r.arm} {interval_text(r.difference, signed=True)}: {verdict}.")
        for hint in self.hints if self.kind == "fork" else ():
            if hint.same_seed:
                outcomes = ", ".join(
                    f"{arm} {'' if is_solved else 'not '}solved" for arm, is_solved in hint.same_seed.items()
                )
                lines.append(f"{hint.checkpoint}, under the dialogue's own seed: {outcomes}.")
        for checkpoint in self.checkpoints:
            hints = [h.hints_by_arm for h in self.hints if h.checkpoint == checkpoint]
            for arm in self.arms:
                errors = [by_arm[arm].error for by_arm in hints if arm in by_arm and by_arm[arm].error]
                if errors:
                    missing = f"is missing at {len(errors)} of {len(hints)} fork points"
                    lines.append(f"{checkpoint}: {arm} {missing}: {errors[0]}")
        if self.failed:
            lines.append(f"{self.failed} of {self.done} dialogues failed and are left out.")
        return lines

    def _extremes(self) -> list[str]:
        values = [(h, v) for h in self.hints if (v := h.hint_value) is not None and v.value is not None]
        values.sort(key=lambda pair: -(pair[1].value or 0.0))
        shown = values if len(values) <= 2 * MAX_SHOWN else [*values[:MAX_SHOWN], *values[-MAX_SHOWN:]]
        rows = [(h.checkpoint, h.dialogue, str(h.turn + 1), interval_text(value, True)) for h, value in shown]
        return markdown_rows(("checkpoint", "dialogue", "turn", "hint value"), rows)


def _row(r: ArmResult) -> tuple[str, ...]:
    solved = (interval_text(r.solved), interval_text(r.difference, True))
    score = (interval_text(r.score), interval_text(r.score_difference, True))
    return (r.checkpoint, r.arm, str(r.hints), *solved, *score, interval_text(r.retained_parts))


def build_report(
    outcomes: dict[str, list[Outcome]],
    hints_by_arm: dict[tuple[str, str, int], dict[str, Hint]],
    *,
    arms: Sequence[str],
    true: str | None,
    baseline: str | None,
    seed: int,
    failed: int = 0,
    repeats_seed: bool = False,
    **facts: object,
) -> CounterfactualReport:
    """Compute the report.

    Args:
        outcomes: Outcomes by checkpoint.
        hints_by_arm: Hint of each arm, by checkpoint, dialogue event and turn.
        arms: Labels in order.
        true: Label of the arm with the original hint, if any.
        baseline: Label of the contentless arm, if any.
        seed: Seed of the run.
        failed: Number of failed dialogues.
        repeats_seed: Sample 0 has the dialogue's own seed, and is in no estimate.
        facts: Other fields of the report.
    """
    results: list[ArmResult] = []
    hints: list[HintResult] = []
    for checkpoint, all_outcomes in outcomes.items():
        repeated = [o for o in all_outcomes if repeats_seed and o.sample == 0]
        group = [o for o in all_outcomes if not repeats_seed or o.sample > 0]
        results += arm_results(group, checkpoint, arms, baseline or "")
        values = hint_value(group, true, baseline) if true is not None and baseline is not None else {}
        by_origin: dict[tuple[str, int], list[Outcome]] = defaultdict(list)
        for outcome in group:
            by_origin[outcome.origin].append(outcome)
        for (policy, event, turn), arm_hints in hints_by_arm.items():
            if policy != checkpoint:
                continue
            branches = by_origin[event, turn]
            solved = {arm: [o.solved for o in branches if o.arm == arm] for arm in arms}
            hints.append(
                HintResult(
                    checkpoint=checkpoint,
                    dialogue=event,
                    turn=turn,
                    task=branches[0].task if branches else "",
                    hints_by_arm=arm_hints,
                    same_seed={o.arm: o.solved for o in repeated if o.origin == (event, turn)},
                    arms={arm: wilson(sum(s), len(s)) for arm, s in solved.items() if s},
                    hint_value=values.get((event, turn)),
                )
            )
    return CounterfactualReport.model_validate(
        {**facts, "seed": seed, "arms": tuple(arms), "checkpoints": tuple(outcomes), "results": results,
         "hints": hints, "failed": failed, "done": failed + sum(map(len, outcomes.values()))}
    )  # fmt: skip


def chart(report: CounterfactualReport) -> Chart:
    """Plot the solve rate of each arm and its paired difference to contentless, per checkpoint."""
    plots = []
    for checkpoint in report.checkpoints:
        rows = [r for arm in report.arms if (r := report.result(checkpoint, arm)) is not None]
        solved = [(r.arm, r.solved) for r in rows]
        differences = [(r.arm, r.difference) for r in rows if r.difference is not None]
        plots.append(interval_plot(f"{checkpoint}: solved", solved, "solve rate", _span(report, True), "share"))
        if differences:
            title = f"{checkpoint}: difference to contentless"
            plots.append(interval_plot(title, differences, "share", _span(report, False), "difference"))
    count = max((r.hints for r in report.results), default=0)
    what = "One hint and its alternatives" if report.kind == "fork" else f"Value of {count} hints"
    after = {None: "all remaining attempts", 1: "the next attempt"}.get(report.turns, f"{report.turns} attempts")
    subtitle = f"{report.title}; {report.samples} samples each, {after}; 95\u00a0% intervals"
    return Chart("solved", what, tuple(plots), subtitle)


def _span(report: CounterfactualReport, solved: bool) -> tuple[float, float]:
    """Return axis limits for all checkpoints."""
    cells = [r.solved if solved else r.difference for r in report.results]
    ends = [v for c in cells if c is not None for v in (c.low, c.high, c.value) if v is not None]
    low, high = min([0.0 if solved else -0.1, *ends]), max([0.1, *ends])
    return low - 0.02, min(1.0, high) + 0.03
