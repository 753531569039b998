"""What a fork or a sample of hints came to: the values that are stored, a Markdown text, and a figure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

from rl2f_core.counterfactual.estimate import ArmResult, Outcome, arm_results, worth
from rl2f_core.evaluation.charts import STYLES, Chart, Panel, Series, Style
from rl2f_core.evaluation.report import interval_text
from rl2f_core.evaluation.statistics import Interval, wilson
from rl2f_core.types import Hint, Value

SHOWN = 8
"""Hints of either end that the Markdown text names."""
_STYLES: dict[str, Style] = {"as_was": STYLES["hints"], "none": STYLES["resample"]}


class HintResult(Value):
    """One hint, and what came of the alternatives to it."""

    checkpoint: str
    dialogue: str
    """Id of the dialogue's event in the source run."""
    turn: int
    """0-based."""
    task: str
    said: dict[str, Hint]
    """What the student read in each arm."""
    arms: dict[str, Interval]
    """Share solved of each arm that was played, by its samples."""
    worth: Interval | None = None
    """p(solve | the hint) − p(solve | contentless); None where one of the two was not played."""


class CounterfactualReport(Value):
    """All of it."""

    kind: Literal["fork", "hint_value"]
    title: str
    """Name of the source run."""
    source: str
    """Name of its folder."""
    seed: int
    samples: int
    turns: int | None
    """Attempts after the fork; None is what each dialogue had left."""
    then: str
    """Who hinted later on: run, arm or contentless."""
    arms: tuple[str, ...]
    checkpoints: tuple[str, ...]
    done: int
    """Dialogues played."""
    total: int
    failed: int = 0
    """Dialogues among those played that failed and are left out of every number."""
    results: tuple[ArmResult, ...]
    hints: tuple[HintResult, ...]

    def result(self, checkpoint: str, arm: str) -> ArmResult | None:
        """One row."""
        return next((r for r in self.results if (r.checkpoint, r.arm) == (checkpoint, arm)), None)

    def to_markdown(self) -> str:
        """Tables and findings."""
        what = "A dialogue" if self.kind == "fork" else f"{len(self.hints)} hints"
        left = {None: "all attempts that were left", 1: "the next attempt alone"}.get(
            self.turns, f"{self.turns} attempts"
        )
        later = {"run": "the run's teacher", "arm": "the arm's teacher", "contentless": "nobody"}[self.then]
        lines = [
            f"# {what} of {self.title} under other hints",
            "",
            f"{self.samples} samples of each arm with shared seeds, {left}; later hints: {later}. "
            "Differences are paired, to contentless; brackets are 95 % intervals.",
            "",
        ]
        header = ("checkpoint", "arm", "hints", "solved", "difference", "next score", "difference", "right parts kept")
        lines += _table(header, [_row(r) for r in self.results])
        lines += ["", *(f"- {sentence}" for sentence in self.findings())]
        if self.kind == "hint_value":
            lines += ["", "## The hints that were worth most and least", "", *self._ends()]
        return "\n".join(lines) + "\n"

    def findings(self) -> list[str]:
        """A sentence for every difference: does its interval leave 0 out?"""
        said = []
        for r in self.results:
            if r.difference is None or r.difference.value is None:
                continue
            found = "is not separated from contentless"
            if r.difference.separated:
                found = "beats contentless" if r.difference.above(0) else "is worse than contentless"
            said.append(f"{r.checkpoint}: {r.arm} {found}, {interval_text(r.difference, signed=True)}.")
        for checkpoint in self.checkpoints:
            told = [h.said for h in self.hints if h.checkpoint == checkpoint]
            for arm in self.arms:
                errors = [held[arm].error for held in told if arm in held and held[arm].error]
                if errors:
                    missed = f"was not played after {len(errors)} of {len(told)} turns"
                    said.append(f"{checkpoint}: {arm} {missed}: {errors[0]}")
        if self.failed:
            said.append(f"{self.failed} of {self.done} dialogues failed and are left out.")
        return said

    def _ends(self) -> list[str]:
        held = [h for h in self.hints if h.worth is not None and h.worth.value is not None]
        held.sort(key=lambda h: -(h.worth.value or 0.0))  # type: ignore[union-attr]
        shown = held if len(held) <= 2 * SHOWN else [*held[:SHOWN], *held[-SHOWN:]]
        rows = [(h.checkpoint, h.dialogue, str(h.turn + 1), interval_text(h.worth, True)) for h in shown]
        return _table(("checkpoint", "dialogue", "turn", "worth"), rows)


def _row(r: ArmResult) -> tuple[str, ...]:
    solved = (interval_text(r.solved), interval_text(r.difference, True))
    score = (interval_text(r.score), interval_text(r.score_difference, True))
    return (r.checkpoint, r.arm, str(r.hints), *solved, *score, interval_text(r.kept))


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    return [line(header), "|" + "---|" * len(header), *(line(row) for row in rows)]


def build_report(
    outcomes: dict[str, list[Outcome]],
    said: dict[tuple[str, str, int], dict[str, Hint]],
    *,
    arms: Sequence[str],
    true: str | None,
    baseline: str | None,
    seed: int,
    failed: int = 0,
    **facts: object,
) -> CounterfactualReport:
    """Measure what was played.

    Args:
        outcomes: By checkpoint.
        said: By checkpoint, dialogue event and turn: what the student read in each arm.
        arms: Names, in order.
        true: The arm that plays the hint as it was, where there is one.
        baseline: The arm that says nothing of content, where there is one.
        seed: Of the bootstrap, and named in the report.
        failed: Dialogues that came to no outcome.
        facts: The other fields of the report.
    """
    results: list[ArmResult] = []
    hints: list[HintResult] = []
    for checkpoint, held in outcomes.items():
        results += arm_results(held, checkpoint, arms, baseline or "", seed)
        values = worth(held, true, baseline) if true is not None and baseline is not None else {}
        by_origin: dict[tuple[str, int], list[Outcome]] = defaultdict(list)
        for outcome in held:
            by_origin[outcome.origin].append(outcome)
        for (of, event, turn), told in said.items():
            if of != checkpoint:
                continue
            played = by_origin[event, turn]
            shares = {arm: [o.solved for o in played if o.arm == arm] for arm in arms}
            hints.append(
                HintResult(
                    checkpoint=checkpoint, dialogue=event, turn=turn, task=played[0].task if played else "", said=told,
                    arms={arm: wilson(sum(s), len(s)) for arm, s in shares.items() if s},
                    worth=values.get((event, turn)),
                )
            )  # fmt: skip
    return CounterfactualReport.model_validate(
        {**facts, "seed": seed, "arms": tuple(arms), "checkpoints": tuple(outcomes), "results": results,
         "hints": hints, "failed": failed, "done": failed + sum(map(len, outcomes.values()))}
    )  # fmt: skip


def chart(report: CounterfactualReport) -> Chart:
    """Share solved of each arm, and its paired difference to contentless: two panels for each checkpoint."""
    panels = []
    for checkpoint in report.checkpoints:
        rows = [r for arm in report.arms if (r := report.result(checkpoint, arm)) is not None]
        solved = [(r.arm, r.solved) for r in rows]
        differences = [(r.arm, r.difference) for r in rows if r.difference is not None]
        panels.append(Panel(f"{checkpoint}: solved", _series(solved), "share", "", "intervals", _span(report, True)))
        if differences:
            title = f"{checkpoint}: difference to contentless"
            panels.append(Panel(title, _series(differences), "share", "", "intervals", _span(report, False)))
    what = "One hint and its alternatives" if report.kind == "fork" else f"What {_count(report)} hints were worth"
    after = {None: "all attempts left", 1: "the next attempt"}.get(report.turns, f"{report.turns} attempts")
    subtitle = f"{report.title}; {report.samples} samples each, {after}; 95\u00a0% intervals"
    return Chart("solved", what, tuple(panels), subtitle)


def _series(rows: Sequence[tuple[str, Interval]]) -> tuple[Series, ...]:
    return tuple(
        Series(arm, (cell.value or 0.0,), (0.0,), _style(arm), (cell.low,), (cell.high,), (interval_text(cell),))
        for arm, cell in rows
    )


def _span(report: CounterfactualReport, solved: bool) -> tuple[float, float]:
    """The same axis for all checkpoints, as wide as their intervals."""
    cells = [r.solved if solved else r.difference for r in report.results]
    ends = [v for c in cells if c is not None for v in (c.low, c.high, c.value) if v is not None]
    low, high = min([0.0 if solved else -0.1, *ends]), max([0.1, *ends])
    return low - 0.02, min(1.0, high) + 0.03


def _count(report: CounterfactualReport) -> int:
    return max((r.hints for r in report.results), default=0)


def _style(arm: str) -> Style:
    kind = arm.split(" ")[0]
    return _STYLES.get(kind) or STYLES.get(kind) or Style("#6b7fd6", "solid", "diamond")
