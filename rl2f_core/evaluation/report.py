"""What an evaluation found: one frozen report and its Markdown.

The sentences say what separates and what does not: an effect is called one only where its 95 % interval leaves 0 out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import combinations

from pydantic import Field

from rl2f_core.environments.base import Environment
from rl2f_core.evaluation.floors import BestConstant, standing, standing_words
from rl2f_core.evaluation.metrics import OUTCOMES, Metrics, effect_difference, effects, hint_effect, measure
from rl2f_core.evaluation.statistics import Interval
from rl2f_core.types import Dialogue, Value

MIN_TASKS = 6
"""With fewer pairs no two-sided sign test reaches 5 % (2 · ½⁵ = .0625), so an interval from them proves nothing."""
UNPARSABLE_LIMIT = 0.5
"""Above this share of unparsable attempts a checkpoint's numbers tell of the format, not of the task."""

Table = tuple[str, list[str], list[list[str]]]
"""Title, header, rows."""


class Reference(Value):
    """Closed-form solve probabilities within `turn` turns (see `environments.base.Bounds`)."""

    turn: int
    """Turns allowed."""
    with_hints: float
    """The best possible player who uses every hint."""
    without_hints: float
    """The best possible player who is told only that an attempt was wrong."""
    copying: float | None = None
    """A player who keeps what hints confirm and is random otherwise."""


class CheckpointResult(Value):
    """One checkpoint under one control."""

    checkpoint: str
    """E.g. `base`, `rl2f@24`."""
    control: str
    """hints, contentless, resample, shuffled or misleading."""
    metrics: Metrics
    """Everything measured."""


class Effect(Value):
    """cum_acc/T under `control` minus cum_acc/T under `against`, paired over tasks."""

    checkpoint: str
    """Whose."""
    control: str
    """`hints` makes it the hint_effect."""
    against: str = "contentless"
    """The control it is compared with."""
    difference: Interval
    """In shares of tasks."""


class CheckpointDifference(Value):
    """A quantity of one checkpoint minus that of another, paired over tasks."""

    quantity: str
    """hint_effect, or cum_acc (within T turns, with hints)."""
    checkpoint: str
    """The first."""
    against: str
    """The one subtracted."""
    difference: Interval
    """In shares of tasks."""


class EvaluationReport(Value):
    """Several checkpoints under several controls on the same tasks."""

    environment: str
    """Registered name."""
    level: str = ""
    """Difficulty in the environment's words."""
    split: str = "test"
    """Where the tasks come from."""
    turns: int
    """Turns allowed, T."""
    tasks: int
    """Tasks."""
    samples: int
    """Dialogues on each task."""
    seed: int = 0
    """Seed of the run that trained the checkpoints."""
    references: tuple[Reference, ...] = ()
    """Closed-form players for t = 1 … T; empty where the environment has none."""
    floor: BestConstant | None = None
    """The best constant answer."""
    rows: tuple[CheckpointResult, ...]
    """Checkpoints × controls."""
    effects: tuple[Effect, ...] = ()
    """Every control against contentless."""
    differences: tuple[CheckpointDifference, ...] = ()
    """Later checkpoints against earlier ones."""
    notes: tuple[str, ...] = Field(default=())
    """Sentences to print below the findings, e.g. the tokens a checkpoint was trained on."""
    parts: tuple[EvaluationReport, ...] = ()
    """Of a mixture: the same for the tasks of each part alone, in the mixture's order."""

    @property
    def checkpoints(self) -> list[str]:
        """In the order of their first row."""
        return list(dict.fromkeys(row.checkpoint for row in self.rows))

    @property
    def controls(self) -> list[str]:
        """In the order of their first row."""
        return list(dict.fromkeys(row.control for row in self.rows))

    def metrics(self, checkpoint: str, control: str) -> Metrics | None:
        """One row's metrics, or None."""
        return next((r.metrics for r in self.rows if (r.checkpoint, r.control) == (checkpoint, control)), None)

    def effect(self, checkpoint: str, control: str = "hints") -> Interval | None:
        """One effect, or None."""
        found = (e.difference for e in self.effects if (e.checkpoint, e.control) == (checkpoint, control))
        return next(found, None)

    @property
    def title(self) -> str:
        """Environment, level and size in one line."""
        name = f"{self.environment}, {self.level}" if self.level else self.environment
        samples = f" × {self.samples} samples" if self.samples > 1 else ""
        return f"{name}: {self.tasks} {self.split} tasks{samples}, {self.turns} turns"

    def to_markdown(self) -> str:
        """The tables, then what they say."""
        lines = [f"# Evaluation of {self.title}", "", "Square brackets hold 95 % intervals.", ""]
        for table in tables(self):
            lines += [markdown_table(table), ""]
        lines += ["## What separates and what does not", ""]
        lines += [f"- {sentence}" for sentence in findings(self)]
        for part in self.parts:
            lines += ["", re.sub("^#", "##", part.to_markdown().rstrip(), flags=re.MULTILINE)]
        return "\n".join(lines) + "\n"


def references(environment: Environment, turns: int) -> tuple[Reference, ...]:
    """The environment's closed-form players for t = 1 … `turns`; empty where it has none."""
    found = []
    for t in range(1, turns + 1):
        bounds = environment.bounds(t)
        if bounds is not None:
            found.append(Reference(turn=t, **bounds._asdict()))
    return tuple(found)


def build_report(
    environment: Environment,
    played: Mapping[str, Mapping[str, Sequence[Dialogue]]],
    turns: int,
    *,
    level: str = "",
    split: str = "test",
    tasks: int,
    samples: int,
    seed: int = 0,
    resamples: int = 2000,
    bootstrap_seed: int = 0,
    notes: Sequence[str] = (),
    parts: Sequence[EvaluationReport] = (),
) -> EvaluationReport:
    """Measure everything that was played: `played[checkpoint][control]` are the dialogues, oldest checkpoint first."""
    rows, found, differences = [], [], []
    draw = {"resamples": resamples, "seed": bootstrap_seed}
    for checkpoint, by_control in played.items():
        for control, dialogues in by_control.items():
            measured = measure(dialogues, turns, **draw)
            rows.append(CheckpointResult(checkpoint=checkpoint, control=control, metrics=measured))
        for control, difference in effects(by_control, turns, **draw).items():
            found.append(Effect(checkpoint=checkpoint, control=control, difference=difference))
    for earlier, later in combinations(played, 2):
        a, b = played[later], played[earlier]
        if "hints" not in a or "hints" not in b:
            continue
        compared = {"cum_acc": hint_effect(a["hints"], b["hints"], turns, **draw)}
        if "contentless" in a and "contentless" in b:
            compared["hint_effect"] = effect_difference(a, b, turns, **draw)
        for quantity, difference in compared.items():
            differences.append(
                CheckpointDifference(quantity=quantity, checkpoint=later, against=earlier, difference=difference)
            )
    return EvaluationReport(
        environment=environment.name,
        level=level,
        split=split,
        turns=turns,
        tasks=tasks,
        samples=samples,
        seed=seed,
        references=references(environment, turns),
        floor=BestConstant.of(environment),
        rows=tuple(rows),
        effects=tuple(found),
        differences=tuple(differences),
        notes=(*_foreign_hints(played), *notes),
        parts=tuple(parts),
    )


def _foreign_hints(played: Mapping[str, Mapping[str, Sequence[Dialogue]]]) -> list[str]:
    """What weakens the shuffled control: hints that no other problem could lend, and that were contentless."""
    lines = []
    for checkpoint, by_control in played.items():
        hints = [turn.hint for d in by_control.get("shuffled", ()) for turn in d.turns if turn.hint is not None]
        own = sum(hint.source_task is None for hint in hints)
        if own:
            lines.append(
                f"Of {len(hints)} shuffled hints for {checkpoint} {own} came from no other problem, as there was none; "
                "they were contentless."
            )
    return lines


# -- words ---------------------------------------------------------------------------------------------------------
def number(x: float | None, signed: bool = False) -> str:
    """`.31`, `−.02`, `1.00`; `+.31` where signed; `–` for None."""
    if x is None:
        return "–"
    text = f"{abs(x):.2f}"
    sign = "" if text == "0.00" else "−" if x < 0 else "+" if signed else ""
    return sign + (text[1:] if text.startswith("0.") else text)


def interval_text(interval: Interval | None, signed: bool = False) -> str:
    """`.31 [.20, .42]`; the value alone where it has no interval; `–` where there is no value."""
    if interval is None or interval.value is None:
        return "–"
    value = number(interval.value, signed)
    if interval.low is None or interval.high is None:
        return f"{value} (no interval)"
    return f"{value} [{_end(interval.low)}, {_end(interval.high)}]"


def _end(x: float) -> str:
    """An end of an interval; where two digits would show 0 for what is not, three or one significant digit."""
    return number(x) if x == 0 or abs(x) >= 0.005 else f"{x:.1g}".replace("-", "−").replace("0.", ".", 1)


def verdict_text(interval: Interval, above: str, below: str) -> str:
    """`above` or `below` where the interval leaves 0 out, `not separated from 0` exactly where it holds 0."""
    if interval.low is None or interval.high is None:
        return f"no interval, {interval.n} task{'' if interval.n == 1 else 's'}"
    return above if interval.above(0) else below if interval.below(0) else "not separated from 0"


def markdown_table(table: Table) -> str:
    """A heading and a table; pipes and line breaks in cells are made harmless."""
    title, header, rows = table

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"

    return "\n".join([f"## {title}", "", line(header), "|" + " --- |" * len(header), *(line(r) for r in rows)])


def tables(report: EvaluationReport) -> list[Table]:
    """The report's tables: what was learned, solved by turn, against the best constant answer, what attempts came to,
    their length and words, differences between checkpoints."""
    last = f"cum_acc/{report.turns}"
    first = [] if report.turns == 1 else ["cum_acc/1"]
    names = [*first, last, "gain", "hazard", "plasticity", "repeat_rate", "useful_change", "retention", "away_rate"]
    learned = [
        [r.checkpoint, r.control, *(interval_text(r.metrics[n]) for n in names),
         "0 by definition" if r.control == "contentless"
         else interval_text(report.effect(r.checkpoint, r.control), signed=True)]
        for r in report.rows
    ]  # fmt: skip
    found: list[Table] = [
        ("Checkpoints under all controls", ["checkpoint", "control", *names, "effect against contentless"], learned),
        _by_turn(report),
    ]
    found += [_against_floor(report)] if report.floor is not None else []
    counts = ["unparsable", "truncated", "ill_formed", "leak_rate", "stop/failed"]
    attempts = [[r.checkpoint, r.control, *(interval_text(r.metrics[n]) for n in counts)] for r in report.rows]
    found.append(("Attempts", ["checkpoint", "control", *counts], attempts))
    found += attempt_tables([(r.checkpoint, r.control, r.metrics) for r in report.rows])
    if report.differences:
        compared = [
            [d.quantity, f"{d.checkpoint} − {d.against}", interval_text(d.difference, signed=True),
             verdict_text(d.difference, "higher", "lower")]
            for d in report.differences
        ]  # fmt: skip
        header = ["quantity", "checkpoints", "difference", "finding"]
        found.append(("Differences between checkpoints", header, compared))
    return found


def attempt_tables(rows: Sequence[tuple[str, str, Metrics]]) -> list[Table]:
    """What attempts came to, in exclusive shares that add up to 1; length and reflection words by right and wrong.

    Rows are (checkpoint, control, metrics); metrics of reports from before these were measured are left out.
    """
    held = [row for row in rows if "outcome/right" in row[2].values]
    if not held:
        return []
    shares = [[c, k, *(interval_text(m[f"outcome/{name}"]) for name in OUTCOMES)] for c, k, m in held]
    sizes = [f"{name}{end}" for name in ("length", "reflection_words") for end in ("", "/right", "/wrong")]
    counts = [[c, k, *(count_text(m[name]) for name in sizes)] for c, k, m in held]
    titles = [f"{name}{end}" for name in ("tokens", "reflection words") for end in ("", ", right", ", wrong")]
    return [
        ("What attempts came to (each row adds up to 1)",
         ["checkpoint", "control", *(name.replace("_", " ") for name in OUTCOMES)], shares),
        ("Tokens an attempt, and reflection words per 1,000 tokens", ["checkpoint", "control", *titles], counts),
    ]  # fmt: skip


def count_text(interval: Interval) -> str:
    """`41.2 [38.0, 44.9]`: a mean that is no share; `–` where there is none."""
    if interval.value is None:
        return "–"
    if interval.low is None or interval.high is None:
        return f"{interval.value:.1f}"
    return f"{interval.value:.1f} [{interval.low:.1f}, {interval.high:.1f}]"


def _against_floor(report: EvaluationReport) -> Table:
    """Every checkpoint's first attempt, and what it solved in all turns, beside the best constant answer."""
    assert report.floor is not None
    rows = []
    for checkpoint in report.checkpoints:
        for what, score in _scores(report, checkpoint):
            rows.append([checkpoint, what, interval_text(score), number(report.floor.score),
                         standing_words(score, report.floor)])  # fmt: skip
    return "Against the best constant answer", ["checkpoint", "score", "solved", "constant answer", "finding"], rows


def _scores(report: EvaluationReport, checkpoint: str) -> list[tuple[str, Interval]]:
    """A checkpoint's scores under hints, or else under the first control it was played with."""
    held = [row for row in report.rows if row.checkpoint == checkpoint]
    row = next((row for row in held if row.control == "hints"), held[0])
    found = [("first attempt", row.metrics["cum_acc/1"])]
    if report.turns > 1:
        found.append((f"within {report.turns} turns ({row.control})", row.metrics.final()))
    return found


def floor_findings(report: EvaluationReport) -> list[str]:
    """The best constant answer, and each score whose interval does not lie above it."""
    if report.floor is None:
        return []
    lines = [f"The best constant answer ({report.floor.answer}) solves {number(report.floor.score)} at one attempt."]
    for checkpoint in report.checkpoints:
        for what, score in _scores(report, checkpoint):
            if standing(score, report.floor) in ("not separated", "below"):
                lines.append(
                    f"{checkpoint}, {what}: {interval_text(score)} is {standing_words(score, report.floor)} "
                    f"({number(report.floor.score)})."
                )
    return lines


def _by_turn(report: EvaluationReport) -> Table:
    everything = range(1, report.turns + 1)
    shown = [t for t in everything if report.turns <= 6 or t in (1, 2, 3, (report.turns + 1) // 2, report.turns)]
    rows = [[r.checkpoint, r.control, *(interval_text(r.metrics[f"cum_acc/{t}"]) for t in shown)] for r in report.rows]
    at = {ref.turn: ref for ref in report.references}
    for name, field in (("best player", "with_hints"), ("copying only", "copying"), ("best player", "without_hints")):
        values = [getattr(at[t], field) if t in at else None for t in shown]
        if any(v is not None for v in values):
            rows.append([name, "no hints" if field == "without_hints" else "hints", *(number(v) for v in values)])
    if report.floor is not None:
        rows.append(["best constant answer", "any", *(number(report.floor.score) for _ in shown)])
    return "Solved within t turns (cum_acc/t)", ["checkpoint", "control", *(f"t = {t}" for t in shown)], rows


_UNDER = {
    "resample": "Independent first answers instead of a dialogue",
    "shuffled": "Under shuffled hints",
    "misleading": "Under misleading hints",
    "no_oracle": "Without the verifier's stop",
}


def findings(report: EvaluationReport) -> list[str]:
    """Plain sentences: each effect, the reference lines, the floor, and what limits the evidence."""
    lines = []
    if not report.effects:
        lines.append("No contentless control was played, so nothing can be said about the use of hints.")
    for held in report.effects:
        text = interval_text(held.difference, signed=True)
        if held.control == "hints":
            verdict = verdict_text(held.difference, "hints help", "hints hurt")
            lines.append(f"hint_effect of {held.checkpoint} is {text}: {verdict}.")
        else:
            under = _UNDER.get(held.control, f"Under {held.control}")
            verdict = verdict_text(held.difference, "better than contentless", "worse than contentless")
            lines.append(f"{under} ({held.checkpoint}): {text}: {verdict}.")
    for checkpoint in report.checkpoints:
        misled, plain = report.metrics(checkpoint, "misleading"), report.metrics(checkpoint, "contentless")
        if misled is not None and plain is not None and misled["misled_rate"].value is not None:
            lines.append(
                f"After a misleading hint {checkpoint} moves away from the answer in "
                f"{interval_text(misled['misled_rate'])} of its revisions (misled_rate), after contentless feedback in "
                f"{interval_text(plain['away_rate'])}."
            )
    lines += _reference_findings(report)
    lines += floor_findings(report)
    return lines + _limits(report) + list(report.notes)


def _reference_findings(report: EvaluationReport) -> list[str]:
    if not report.references:
        return ["This environment has no closed-form best player."]
    last = report.references[-1]
    copying = "" if last.copying is None else f", one who only copies what hints confirm {number(last.copying)}"
    bounds = f"solves {number(last.with_hints)} with hints{copying}, and the best without hints"
    lines = [f"Within {last.turn} turns the best possible player {bounds} {number(last.without_hints)}."]
    for checkpoint in report.checkpoints:
        row = report.metrics(checkpoint, "hints")
        if row is not None and row.turns == last.turn and row.final().value is not None:
            solved = row.final()
            place = (
                "above" if solved.above(last.without_hints)
                else "below" if solved.below(last.without_hints) else "not separated from"
            )  # fmt: skip
            lines.append(
                f"{checkpoint} with hints solves {interval_text(solved)} within {last.turn} turns: "
                f"{place} the best without hints ({number(last.without_hints)})."
            )
    return lines


def _limits(report: EvaluationReport) -> list[str]:
    lines = []
    fewest = min((e.difference.n for e in report.effects), default=report.tasks)
    if fewest < MIN_TASKS:
        lines.append(f"Only {fewest} tasks are paired: fewer than {MIN_TASKS} can prove no difference at 95 %.")
    for checkpoint in report.checkpoints:
        held = [(r.control, r.metrics["unparsable"].value) for r in report.rows if r.checkpoint == checkpoint]
        bad = [(control, share) for control, share in held if share is not None and share > UNPARSABLE_LIMIT]
        if bad:
            shares = ", ".join(f"{number(share)} ({control})" for control, share in bad)
            lines.append(
                f"Most attempts of {checkpoint} are unparsable: {shares}; its numbers tell of the answer format first."
            )
    for row in report.rows:
        failed = row.metrics["stop/failed"]
        if failed.value:
            left_out = f"{number(failed.value)} of the dialogues failed and are left out"
            lines.append(f"{row.checkpoint} under {row.control}: {left_out}.")
    if "no_oracle" in report.controls:
        lines.append(
            "Under no_oracle a right answer does not end the dialogue and the last answer counts, so cum_acc may fall; "
            "all other controls are stopped by the verifier, and that help is part of what they show."
        )
    if len(report.effects) + len(report.differences) > 1:
        lines.append("Each interval is at 95 % by itself; nothing is corrected for their number.")
    return lines
