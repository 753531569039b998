"""Evaluation report: data, tables, findings and Markdown.

A finding calls a difference an effect only if at least `MIN_PROBLEMS` problems are paired, its 95 % confidence interval
excludes 0, and Holm's correction in its family does not change that. The families are the effects of one condition
(over checkpoints) and the differences of one quantity (over pairs of checkpoints).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from itertools import combinations

from pydantic import Field

from rl2f_core.common.stats.intervals import MIN_PROBLEMS, TOO_FEW, Interval, correct_items
from rl2f_core.dialogue.metrics.constant_baseline import (
    compare_to_baseline,
    constant_baseline,
    describe_comparison,
    is_above_baseline,
)
from rl2f_core.dialogue.metrics.dialogues import (
    OUTCOMES,
    Metrics,
    compared_with,
    effect_difference,
    effects,
    hint_effect,
    reference_note,
    tally_metrics,
)
from rl2f_core.environments.base import Environment
from rl2f_core.evaluation.formatting import (
    CONDITION_TEXTS,
    Table,
    baseline_text,
    count_text,
    interval_beside,
    interval_text,
    missing_text,
    nonzero_number,
    number,
    render_markdown,
    size_text,
    verdict_text,
)
from rl2f_core.evaluation.problem_values import ProblemValues, problem_values
from rl2f_core.evaluation.reference_policies import Reference, references
from rl2f_core.types import ConstantBaseline, Dialogue, FrozenModel

MAX_PARSE_FAILURE_RATE = 0.5
"""Above this rate, a checkpoint's numbers mainly reflect the answer format."""


class CheckpointResult(FrozenModel):
    """Metrics of one checkpoint under one condition."""

    checkpoint: str
    """E.g. `base`, `rl2f@24`."""
    condition: str
    """`hints`, or a control such as `contentless`."""
    metrics: Metrics
    by_problem: dict[str, ProblemValues] = Field(default_factory=dict)
    """See `problem_values`; empty in old reports."""


class Effect(FrozenModel):
    """cum_acc/T under `condition` minus cum_acc/T under `against`, paired over problems.

    Conditions that replace reflections are compared with `hints`, the others with `contentless`.
    """

    checkpoint: str
    condition: str
    """`hints` gives the hint effect."""
    against: str = "contentless"
    difference: Interval
    """Difference of solve rates."""


class CheckpointDifference(FrozenModel):
    """A quantity of one checkpoint minus that of another, paired over problems."""

    quantity: str
    """`hint_effect`, or `cum_acc` (within T turns, with hints)."""
    checkpoint: str
    against: str
    """The subtracted checkpoint."""
    difference: Interval


class EvaluationReport(FrozenModel):
    """Results of several checkpoints under several conditions on the same tasks."""

    environment: str
    """Registered name."""
    level: str = ""
    """Difficulty as the environment names it."""
    split: str = "test"
    turns: int
    """Allowed turns, T."""
    tasks: int
    """Evaluated tasks, all of distinct problems."""
    samples: int
    """Dialogues per problem under each condition; 0 if their number differs."""
    requested: int = 0
    """Requested tasks; more than `tasks` if the split has fewer distinct problems."""
    problems: tuple[str, ...] = ()
    """Key of each problem, see `environments.base.problem_key`; empty in old reports, whose tasks may repeat."""
    seed: int = 0
    """Seed of the training run."""
    references: tuple[Reference, ...] = ()
    """Reference policies for t = 1 … T; empty if the environment has none."""
    constant_baseline: ConstantBaseline | None = None
    random_policy: tuple[Interval, ...] = ()
    """In a stateful environment: tasks solved within t = 1 … T turns by uniformly random valid actions."""
    rows: tuple[CheckpointResult, ...]
    """Checkpoints × conditions."""
    effects: tuple[Effect, ...] = ()
    """Every condition against contentless, or with replaced reflections against hints."""
    differences: tuple[CheckpointDifference, ...] = ()
    """Later checkpoints against earlier ones."""
    notes: tuple[str, ...] = Field(default=())
    """Sentences below the findings, e.g. the tokens of each training stage."""
    parts: tuple[EvaluationReport, ...] = ()
    """For a mixture: one report per sub-environment."""

    def to_json(self) -> str:
        """Return the report as indented JSON with each list of numbers on one line."""
        text = json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False)
        return re.sub(r"\[[\s\d.,]+\]", lambda match: re.sub(r"\.0\b", "", "".join(match[0].split())), text) + "\n"

    @property
    def checkpoints(self) -> list[str]:
        """Checkpoints in the order of their first row."""
        return list(dict.fromkeys(row.checkpoint for row in self.rows))

    @property
    def conditions(self) -> list[str]:
        """Conditions in the order of their first row."""
        return list(dict.fromkeys(row.condition for row in self.rows))

    def metrics(self, checkpoint: str, condition: str) -> Metrics | None:
        """Return the metrics of one row, or None."""
        return next((r.metrics for r in self.rows if (r.checkpoint, r.condition) == (checkpoint, condition)), None)

    def effect(self, checkpoint: str, condition: str = "hints") -> Interval | None:
        """Return one effect, or None."""
        matches = (e.difference for e in self.effects if (e.checkpoint, e.condition) == (checkpoint, condition))
        return next(matches, None)

    def difference(self, checkpoint: str, against: str, quantity: str) -> Interval | None:
        """Return one difference between checkpoints, or None."""
        key = (checkpoint, against, quantity)
        return next((d.difference for d in self.differences if (d.checkpoint, d.against, d.quantity) == key), None)

    def benchmark_scores(self) -> dict[str, dict[str, Interval]]:
        """Return the solve rate within all turns by checkpoint and sub-environment; empty without parts.

        It is that under `hints`, or under the first condition.
        """
        if not self.parts:
            return {}
        condition = "hints" if "hints" in self.conditions else self.conditions[0]
        scores: dict[str, dict[str, Interval]] = {}
        for name in self.checkpoints:
            measured = {part.environment: part.metrics(name, condition) for part in self.parts}
            scores[name] = {part: metrics.final() for part, metrics in measured.items() if metrics is not None}
        return scores

    @property
    def name(self) -> str:
        """Environment and level."""
        return f"{self.environment}, {self.level}" if self.level else self.environment

    @property
    def title(self) -> str:
        """Environment, level and size in one line."""
        size = size_text(self.tasks, self.samples, self.split) if self.problems else f"{self.tasks} {self.split} tasks"
        return f"{self.name}: {size}, {self.turns} turns"

    def to_markdown(self) -> str:
        """Return the tables and findings as Markdown."""
        lines = [render_markdown(f"Evaluation of {self.title}", tables(self), findings(self))]
        lines += [re.sub("^#", "##", part.to_markdown(), flags=re.MULTILINE) for part in self.parts]
        return "\n".join(lines)


@dataclass(frozen=True)
class EvaluatedTasks:
    """Evaluated tasks; fields as in `EvaluationReport`."""

    tasks: int
    samples: int
    level: str = ""
    split: str = "test"
    seed: int = 0
    requested: int = 0
    keys: Mapping[str, str] = dataclass_field(default_factory=dict)
    """Key of the problem of each task; by default the task's id."""

    def notes(self) -> list[str]:
        """State that the split has fewer distinct problems than requested."""
        if self.requested <= self.tasks:
            return []
        return [missing_text(self.tasks, self.requested, self.split)]


def build_report(
    environment: Environment,
    dialogues: Mapping[str, Mapping[str, Sequence[Dialogue]]],
    turns: int,
    evaluated: EvaluatedTasks,
    notes: Sequence[str] = (),
    parts: Sequence[EvaluationReport] = (),
) -> EvaluationReport:
    """Compute a report from dialogues by checkpoint (oldest first) and condition."""
    groups = [group for by_condition in dialogues.values() for group in by_condition.values()]
    keys = evaluated.keys or {d.task_id: d.task_id for group in groups for d in group}
    weighted = environment.for_tasks(keys)
    rows = []
    for checkpoint, by_condition in dialogues.items():
        for condition, group in by_condition.items():
            tallies = tally_metrics(group, turns)
            rows.append(
                CheckpointResult(
                    checkpoint=checkpoint, condition=condition, metrics=tallies.metrics(),
                    by_problem=problem_values(tallies, keys, condition == "hints"),
                )
            )  # fmt: skip
    all_effects = [
        Effect(checkpoint=checkpoint, condition=condition, against=compared_with(condition), difference=difference)
        for checkpoint, by_condition in dialogues.items()
        for condition, difference in effects(by_condition, turns).items()
    ]
    return EvaluationReport(
        environment=environment.name, tasks=evaluated.tasks, samples=evaluated.samples, level=evaluated.level,
        requested=evaluated.requested or evaluated.tasks, split=evaluated.split, seed=evaluated.seed,
        problems=tuple(keys.values()), turns=turns, references=references(weighted, turns),
        constant_baseline=constant_baseline(weighted), rows=tuple(rows),
        effects=tuple(correct_items(all_effects, "difference", [e.condition for e in all_effects])),
        differences=tuple(_differences(dialogues, turns)),
        notes=(*evaluated.notes(), *_unmatched_hints(dialogues), *notes),
        parts=tuple(parts),
    )  # fmt: skip


def _differences(dialogues: Mapping[str, Mapping[str, Sequence[Dialogue]]], turns: int) -> list[CheckpointDifference]:
    """Compare each checkpoint with the earlier ones."""
    differences = []
    for earlier, later in combinations(dialogues, 2):
        a, b = dialogues[later], dialogues[earlier]
        if "hints" not in a or "hints" not in b:
            continue
        compared = {"cum_acc": hint_effect(a["hints"], b["hints"], turns)}
        if "contentless" in a and "contentless" in b:
            compared["hint_effect"] = effect_difference(a, b, turns)
        differences += [
            CheckpointDifference(quantity=quantity, checkpoint=later, against=earlier, difference=difference)
            for quantity, difference in compared.items()
        ]
    return correct_items(differences, "difference", [d.quantity for d in differences])


def _unmatched_hints(dialogues: Mapping[str, Mapping[str, Sequence[Dialogue]]]) -> list[str]:
    """Count the shuffled hints of each checkpoint that were contentless because no recorded hint matched."""
    counts = []
    for checkpoint, by_condition in dialogues.items():
        hints = [turn.hint for d in by_condition.get("shuffled", ()) for turn in d.turns if turn.hint is not None]
        if hints:
            counts.append(f"{checkpoint} {sum(hint.source_task is None for hint in hints)} of {len(hints)}")
    return [f"Shuffled hints without a match, replaced by contentless ones: {', '.join(counts)}."] if counts else []


# -- tables --------------------------------------------------------------------------------------------------------
def tables(report: EvaluationReport) -> list[Table]:
    """Return the report's tables."""
    names = list(dict.fromkeys(["cum_acc/1", f"cum_acc/{report.turns}"]))
    names += ["gain", "conditional_solve_rate", "plasticity", "repeated_answer_rate", "improving_change_rate",
              "retention", "regression_rate"]  # fmt: skip
    results = _metric_rows(report.rows, names)
    for row in results:
        effect = interval_text(report.effect(row[0], row[1]), signed=True)
        row.append("0 by definition" if row[1] == "contentless" else f"{effect}{reference_note(row[1])}")
    header = ["checkpoint", "condition", *names, "effect against contentless"]
    result: list[Table] = [("Checkpoints under all conditions", header, results), _table_by_turn(report)]
    if report.parts:
        parts = [part.environment for part in report.parts]
        cells = [
            [checkpoint, *(interval_text(scores[part]) if part in scores else "–" for part in parts)]
            for checkpoint, scores in report.benchmark_scores().items()
        ]
        result.insert(0, (f"Solved within {report.turns} turns, by benchmark", ["checkpoint", *parts], cells))
    if report.constant_baseline is not None:
        result.append(_baseline_table(report, report.constant_baseline))
    rates = ["parse_failure_rate", "truncated_rate", "format_error_rate"]
    rates += ["leak_rate", "prevented_leak_rate", "stop/failed"]
    result.append(("Attempts", ["checkpoint", "condition", *rates], _metric_rows(report.rows, rates)))
    result += [*attempt_tables(report.rows), *_information_tables(report.rows)]
    if report.differences:
        differences = [
            [d.quantity, f"{d.checkpoint} − {d.against}", interval_text(d.difference, signed=True),
             verdict_text(d.difference, "higher", "lower")]
            for d in report.differences
        ]  # fmt: skip
        header = ["quantity", "checkpoints", "difference", "finding"]
        result.append(("Differences between checkpoints", header, differences))
    return result


def _metric_rows(
    rows: Sequence[CheckpointResult], names: Sequence[str], to_text: Callable[[Interval], str] = interval_text
) -> list[list[str]]:
    """Return the values of some metrics; old reports lack newer ones."""
    missing = Interval(value=None, n=0)
    return [
        [row.checkpoint, row.condition, *(to_text(row.metrics.values.get(name, missing)) for name in names)]
        for row in rows
    ]


def attempt_tables(rows: Sequence[CheckpointResult]) -> list[Table]:
    """Return tables of exclusive attempt outcomes, and of tokens and reflection words.

    Rows without outcomes, from old reports, are skipped.
    """
    rows = [row for row in rows if "outcome/correct" in row.metrics.values]
    if not rows:
        return []
    ends = ("", "correct", "incorrect")
    sizes = [f"{name}/{end}".rstrip("/") for name in ("attempt_tokens", "reflection_words") for end in ends]
    titles = [f"{name}, {end}".removesuffix(", ") for name in ("tokens", "reflection words") for end in ends]
    fractions = _metric_rows(rows, [f"outcome/{name}" for name in OUTCOMES])
    return [
        ("Attempt outcomes (each row adds up to 1)",
         ["checkpoint", "condition", *(name.replace("_", " ") for name in OUTCOMES)], fractions),
        ("Tokens per attempt, and reflection words per 1,000 tokens", ["checkpoint", "condition", *titles],
         _metric_rows(rows, sizes, count_text)),
    ]  # fmt: skip


def _information_tables(rows: Sequence[CheckpointResult]) -> list[Table]:
    """Return the table of the information in hints; none if no hint has a known meaning."""
    names = ["hint_bits", "bits_left", "efficiency", "efficiency_chance", "determined_rate"]
    cells = _metric_rows([row for row in rows if "hint_bits" in row.metrics.flat()], names)
    return [("Information in hints, in bits", ["checkpoint", "condition", *names], cells)] if cells else []


def _table_by_turn(report: EvaluationReport) -> Table:
    turns = range(1, report.turns + 1)
    shown = [t for t in turns if report.turns <= 6 or t in (1, 2, 3, (report.turns + 1) // 2, report.turns)]
    rows = _metric_rows(report.rows, [f"cum_acc/{t}" for t in shown])
    at = {ref.turn: ref for ref in report.references}
    for name, condition, field in (
        ("optimal policy", "hints", "with_hints"),
        ("copy-only policy", "hints", "copying"),
        ("optimal policy", "no hints", "without_hints"),
    ):
        values = [getattr(at[t], field) if t in at else None for t in shown]
        if any(v is not None for v in values):
            rows.append([name, condition, *map(nonzero_number, values)])
    if report.constant_baseline is not None:
        rows.append(["best constant answer", "any", *(nonzero_number(report.constant_baseline.score) for _ in shown)])
    if report.random_policy:
        rows.append(["random valid actions", "any", *(interval_text(report.random_policy[t - 1]) for t in shown)])
    return "Solved within t turns (cum_acc/t)", ["checkpoint", "condition", *(f"t = {t}" for t in shown)], rows


def _baseline_table(report: EvaluationReport, baseline: ConstantBaseline) -> Table:
    rows = [
        [checkpoint, name, *interval_beside(score, baseline.score),
         describe_comparison(score, baseline, report.tasks)]
        for checkpoint in report.checkpoints
        for name, score in _scores(report, checkpoint)
    ]  # fmt: skip
    return "Against the best constant answer", ["checkpoint", "score", "solved", "constant answer", "finding"], rows


def _scores(report: EvaluationReport, checkpoint: str) -> list[tuple[str, Interval]]:
    """Return a checkpoint's solve rates under hints, or under its first condition."""
    rows = [row for row in report.rows if row.checkpoint == checkpoint]
    row = next((row for row in rows if row.condition == "hints"), rows[0])
    scores = [("first attempt", row.metrics["cum_acc/1"])]
    if report.turns > 1:
        scores.append((f"within {report.turns} turns ({row.condition})", row.metrics.final()))
    return scores


# -- findings ------------------------------------------------------------------------------------------------------
def findings(report: EvaluationReport) -> list[str]:
    """Return sentences about effects, reference policies, the constant baseline, and limits of the evidence."""
    parts = (effect_findings, reference_findings, baseline_findings, limits)
    return [*(line for part in parts for line in part(report)), *report.notes]


def effect_findings(report: EvaluationReport) -> list[str]:
    """Return the effect of each condition, and how often misleading hints mislead."""
    lines = []
    if not any(effect.against == "contentless" for effect in report.effects):
        lines.append("The effect of hints is unknown: the condition contentless is missing.")
    for effect in report.effects:
        text = interval_text(effect.difference, signed=True)
        if effect.condition == "hints":
            verdict = verdict_text(effect.difference, "hints help", "hints hurt")
            lines.append(f"The hint effect of {effect.checkpoint} is {text}: {verdict}.")
        else:
            under = CONDITION_TEXTS.get(effect.condition, f"Under {effect.condition}")
            other = "with the reflector" if effect.against == "hints" else "contentless"
            verdict = verdict_text(effect.difference, f"better than {other}", f"worse than {other}")
            lines.append(f"{under} ({effect.checkpoint}): {text}: {verdict}.")
    for checkpoint in report.checkpoints:
        misled, control = report.metrics(checkpoint, "misleading"), report.metrics(checkpoint, "contentless")
        if misled is None or control is None or control["misled_rate"].value is None:
            continue
        if misled["misled_rate"].value is not None:
            lines.append(
                f"{checkpoint} moves toward the misleading hint in {interval_text(misled['misled_rate'])} of its "
                "revisions; without reading it, after contentless feedback, in "
                f"{interval_text(control['misled_rate'])}."
            )
    if report.random_policy:
        text = interval_text(report.random_policy[-1])
        lines.append(f"Uniformly random valid actions solve {text} within {report.turns} turns.")
    return lines


def reference_findings(report: EvaluationReport) -> list[str]:
    """Compare checkpoints with the reference policies."""
    if not report.references:
        return ["This environment has no closed-form reference policy."]
    last = report.references[-1]
    copying = "" if last.copying is None else f", the copy-only policy {nonzero_number(last.copying)}"
    lines = [
        f"Within {last.turn} turns the optimal policy solves {nonzero_number(last.with_hints)} with hints{copying}, "
        f"and {nonzero_number(last.without_hints)} without hints."
    ]
    for checkpoint in report.checkpoints if report.tasks >= MIN_PROBLEMS else ():
        row = report.metrics(checkpoint, "hints")
        if row is not None and row.turns == last.turn and row.final().value is not None:
            comparison = compare_to_baseline(row.final(), ConstantBaseline("", last.without_hints))
            relation = "indistinguishable from" if comparison == "not separated" else comparison
            text, optimal = interval_beside(row.final(), last.without_hints)
            solved = f"{checkpoint} with hints solves {text} within {last.turn} turns"
            lines.append(f"{solved}: {relation} the optimal policy without hints ({optimal}).")
    return lines


def baseline_findings(report: EvaluationReport) -> list[str]:
    """Return the constant baseline, and, with enough problems, each score that is not above it."""
    baseline = report.constant_baseline
    if baseline is None:
        return []
    return [baseline_text(baseline)] + [
        f"{checkpoint}, {name}: {text} is {describe_comparison(score, baseline)} ({constant})."
        for checkpoint in report.checkpoints
        for name, score in _scores(report, checkpoint)
        if not is_above_baseline(score, baseline, report.tasks)
        for text, constant in [interval_beside(score, baseline.score)]
    ]


def limits(report: EvaluationReport) -> list[str]:
    """Return what limits the evidence: few problems, unparsable attempts, failed dialogues, several comparisons."""
    lines = []
    fewest = min((e.difference.n for e in report.effects), default=report.tasks)
    if fewest < MIN_PROBLEMS:
        lines.append(f"Only {fewest} problems are paired; fewer than {MIN_PROBLEMS} are {TOO_FEW}.")
    for checkpoint in report.checkpoints:
        rates = [
            (r.condition, r.metrics["parse_failure_rate"].value) for r in report.rows if r.checkpoint == checkpoint
        ]
        high = [(c, rate) for c, rate in rates if rate is not None and rate > MAX_PARSE_FAILURE_RATE]
        if high:
            text = ", ".join(f"{number(rate)} ({condition})" for condition, rate in high)
            lines.append(
                f"Most attempts of {checkpoint} are unparsable: {text}; its numbers mainly reflect the answer format."
            )
    for row in report.rows:
        failed = row.metrics["stop/failed"]
        if failed.value:
            share, where = number(failed.value), f"{row.checkpoint} under {row.condition}"
            lines.append(f"{where}: {share} of the dialogues failed and are left out.")
    if "no_oracle" in report.conditions:
        lines.append(
            "Under no_oracle a correct answer does not end the dialogue and the last answer counts, so the solve rate "
            "may fall. Under all other conditions the verifier ends the dialogue, which is part of their result."
        )
    if len(report.effects) + len(report.differences) > 1:
        corrected = "Findings are corrected by Holm's method, in the family of one condition or quantity."
        known = any(effect.difference.holm_p is not None for effect in report.effects)
        lines.append(
            f"Each interval has 95 % coverage on its own. {corrected if known else 'Findings are uncorrected.'}"
        )
    return lines
