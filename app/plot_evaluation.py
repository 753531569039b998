"""What an evaluation says, for tables and plots: from its report or, while it is being played, from its dialogues.

A difference is paired over tasks (methods: `rl2f_core.evaluation.metrics.hint_effect`), so it means something only
between dialogues on the same tasks with the same evaluation seed; `unlike` says what keeps two evaluations apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.plot_run import Chart
from app.plots import CONTROLS, DASHES, SERIES, Line, Plot, figure
from jobs.store.outcomes import solved_by_task
from rl2f_core.errors import DataError
from rl2f_core.evaluation.floors import BestConstant, standing, standing_words
from rl2f_core.evaluation.levels import ORIGINAL, LevelsReport, control_name, level_findings
from rl2f_core.evaluation.metrics import OUTCOMES
from rl2f_core.evaluation.report import EvaluationReport, count_text, findings, interval_text, number, verdict_text
from rl2f_core.evaluation.statistics import Interval, paired_bootstrap, wilson_clustered

Outcomes = Mapping[tuple[str, str], Mapping[str, Mapping[int | None, int]]]
"""By (checkpoint, control) and task: how many dialogues were solved at which turn."""
BANDED = ("hints", "contentless")
CONSTANT = "best constant answer"
"""The player who says the same to every problem."""
COUNTS: tuple[tuple[str, str, str], ...] = (
    ("length", "tokens", "Tokens an attempt."),
    ("length/right", "tokens, right", "Tokens of a right attempt."),
    ("length/wrong", "tokens, wrong", "Tokens of an attempt that is not right."),
    ("reflection_words", "reflection words", "check, verify, wait, however, re-evaluate, let me …, per 1,000 tokens."),
    ("reflection_words/right", "in right ones", "Reflection words per 1,000 tokens of right attempts."),
    ("reflection_words/wrong", "in others", "Reflection words per 1,000 tokens of attempts that are not right."),
)
"""Means of attempts: metric, title, help."""
COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("cum_acc/1", "t = 1", "Solved at the first turn."),
    ("cum_acc/T", "t = {turns}", "Solved within all turns."),
    ("effect", "against contentless", "Solved within all turns, minus the same under contentless feedback, paired."),
    ("consistency", "consistent", "CR: of the tasks solved as they are, those solved as copies too."),
    ("memorisation", "LiMem", "Acc · (1 − CR): tasks solved as they are and not as copies."),
    ("beyond_again", "beyond chance", "LiMem minus that of the same text drawn again, paired."),
    ("gain", "gain", "Solved after the first turn."),
    ("plasticity", "changed", "plasticity: the answer changed after feedback."),
    ("useful_change", "useful", "useful_change: of the changed answers, those right or closer."),
    ("retention", "kept", "retention: parts that were right and stayed so."),
    ("repeat_rate", "repeats", "repeat_rate: the answer had been given before."),
    ("leak_rate", "leaks", "leak_rate: hints that gave the answer away."),
    ("unparsable", "unparsable", "Attempts without an answer that can be read."),
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A quantity of one checkpoint minus that of another, paired over tasks."""

    quantity: str
    checkpoint: str
    against: str
    difference: Interval


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Checkpoints under controls on the same tasks."""

    title: str
    turns: int
    whole: bool
    """The report is written; else these are the dialogues so far."""
    cells: Mapping[tuple[str, str], Mapping[str, Interval]]
    """By (checkpoint, control): metrics by name."""
    effects: Mapping[tuple[str, str], Interval]
    """Each control against contentless."""
    differences: Sequence[Difference] = ()
    players: Mapping[str, Sequence[tuple[int, float]]] | None = None
    """Closed-form players by name: share solved within each turn."""
    findings: Sequence[str] = ()
    floor: BestConstant | None = None
    """The best constant answer, where all cells share one."""
    floors: Mapping[str, BestConstant] = field(default_factory=dict)
    """The same by control, where levels have each their own."""
    charts: Sequence[Chart] | None = None
    """In place of the curves by turn."""
    parts: Sequence[Evaluation] = ()
    """Of a mixture: the same for the tasks of each environment alone."""

    @property
    def checkpoints(self) -> list[str]:
        """In the order in which they were played."""
        return list(dict.fromkeys(checkpoint for checkpoint, _ in self.cells))

    @property
    def controls(self) -> list[str]:
        """In the order in which they were played."""
        return list(dict.fromkeys(control for _, control in self.cells))

    def last(self) -> str | None:
        """The newest checkpoint that was played with hints."""
        return next((c for c in reversed(self.checkpoints) if (c, "hints") in self.cells), None)


def read_report(folder: Path) -> EvaluationReport | None:
    """The report in a run's folder; None where there is none. Raises `DataError` where it cannot be read."""
    path = folder / "evaluation" / "report.json"
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError("The evaluation's report cannot be read.", value=path.name) from error
    try:
        return EvaluationReport.model_validate_json(text)
    except ValueError as error:
        raise DataError("The evaluation's report is damaged.", value=path.name, fix="Evaluate again.") from error


def from_report(report: EvaluationReport) -> Evaluation:
    """All that the report holds."""
    players: dict[str, list[tuple[int, float]]] = {}
    for name, held in (
        ("best with hints", "with_hints"),
        ("copying only", "copying"),
        ("best without", "without_hints"),
    ):
        points = [(ref.turn, getattr(ref, held)) for ref in report.references if getattr(ref, held) is not None]
        if points:
            players[name] = points
    if report.floor is not None:
        players[CONSTANT] = [(turn, report.floor.score) for turn in range(1, report.turns + 1)]
    return Evaluation(
        title=report.title,
        turns=report.turns,
        whole=True,
        cells={(row.checkpoint, row.control): row.metrics.values for row in report.rows},
        effects={(e.checkpoint, e.control): e.difference for e in report.effects},
        differences=[Difference(d.quantity, d.checkpoint, d.against, d.difference) for d in report.differences],
        players=players,
        findings=findings(report),
        floor=report.floor,
        parts=[from_report(part) for part in report.parts],
    )


def read_levels(folder: Path) -> LevelsReport | None:
    """The report of an evaluation by level in a run's folder; None where there is none that can be read."""
    try:
        return LevelsReport.model_validate_json((folder / "evaluation" / "levels.json").read_bytes())
    except (OSError, ValueError):
        return None


def from_levels(report: LevelsReport) -> Evaluation:
    """An evaluation by level: each level and kind of copy is a control."""
    cells: dict[tuple[str, str], dict[str, Interval]] = {}
    for c in report.cells:
        turns = {f"cum_acc/{report.turns}": c.solved} if c.solved is not None else {}
        own = {"cum_acc/1": c.accuracy, **turns, "consistency": c.consistency, "memorisation": c.memorisation,
               "beyond_again": c.beyond_again}  # fmt: skip
        measured = {name: v for name, v in c.metrics.values.items() if name != "gain"} if c.metrics else {}
        cells[c.checkpoint, c.control] = {**measured, **{name: held for name, held in own.items() if held is not None}}
    floors = {control_name(info.name, copy): info.floor for info in report.levels
              for copy in (ORIGINAL, *report.copies)}  # fmt: skip
    return Evaluation(report.title, report.turns, True, cells, {}, findings=level_findings(report), floors=floors,
                      charts=level_charts(report))  # fmt: skip


def level_charts(report: LevelsReport) -> list[Chart]:
    """Right at the first attempt by level: a plot for each checkpoint, a line for each kind of copy, and the floor."""
    at = [float(i if info.value is None else info.value) for i, info in enumerate(report.levels, 1)]
    charts = []
    for checkpoint in report.checkpoints:
        lines = [Line(CONSTANT, at, [info.floor.score for info in report.levels], "--rl-muted", dash="dash", width=1.2,
                      label=CONSTANT.removeprefix("best "))]  # fmt: skip
        for position, name in enumerate((ORIGINAL, *report.copies)):
            held = [(x, report.cell(checkpoint, info.name, name)) for x, info in zip(at, report.levels, strict=True)]
            points = [(x, c) for x, c in held if c is not None]
            plain = name == ORIGINAL
            lines.append(
                Line(name, [x for x, _ in points], [c.accuracy.value for _, c in points],
                     "--rl-student" if plain else SERIES[position % len(SERIES)],
                     low=[c.accuracy.low for _, c in points] if plain else (),
                     high=[c.accuracy.high for _, c in points] if plain else (),
                     at=[[checkpoint, c.control] for _, c in points],
                     dash="solid" if plain else DASHES[1 + position % 5], width=2.6 if plain else 1.8)
            )  # fmt: skip
        ticks = [int(x) for x in at] if len(at) <= 12 else ()
        plot = Plot(
            lines, x_title=report.field or "level", format="share", range=(0.0, 1.03), height=230, x_ticks=ticks
        )
        charts.append(Chart(f"levels:{checkpoint}", checkpoint, "right at the first attempt", [], figure(plot),
                            note="bands: 95 % intervals"))  # fmt: skip
    return charts


def from_outcomes(outcomes: Outcomes, turns: int, title: str = "", resamples: int = 2000, seed: int = 0) -> Evaluation:
    """What can be said from which task was solved when: the shares by turn and the effects."""
    cells = {}
    for key, by_task in outcomes.items():
        counts = [float(sum(found.values())) for found in by_task.values()]
        cells[key] = {
            f"cum_acc/{t}": wilson_clustered(
                [float(sum(n for at, n in found.items() if at is not None and at <= t)) for found in by_task.values()],
                counts,
            )
            for t in range(1, turns + 1)
        }
    effects = {
        (checkpoint, control): paired(
            outcomes, (checkpoint, control), (checkpoint, "contentless"), turns, resamples, seed
        )
        for checkpoint, control in outcomes
        if control != "contentless" and (checkpoint, "contentless") in outcomes
    }
    return Evaluation(title, turns, False, cells, effects)


def paired(
    outcomes: Outcomes, a: tuple[str, str], b: tuple[str, str], turns: int, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Share solved within `turns` of `a` minus that of `b`, paired over the tasks that both have."""
    return difference(outcomes[a], outcomes[b], turns, resamples, seed)


def difference(
    a: Mapping[str, Mapping[int | None, int]],
    b: Mapping[str, Mapping[int | None, int]],
    turns: int,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """As `rl2f_core.evaluation.metrics.hint_effect`, from counts by task."""
    first, second = solved_by_task(a, turns), solved_by_task(b, turns)
    shared = sorted(first.keys() & second.keys())
    return paired_bootstrap([first[t] for t in shared], [second[t] for t in shared], resamples, seed)


def effect_difference(
    a: Outcomes, a_checkpoint: str, b: Outcomes, b_checkpoint: str, turns: int, resamples: int = 2000, seed: int = 0
) -> Interval | None:
    """The hint effect of one checkpoint minus that of another, as `evaluation.metrics.effect_difference`.

    None where one of them was not played with hints and without.
    """
    keys = [(o, (c, control)) for o, c in ((a, a_checkpoint), (b, b_checkpoint)) for control in BANDED]
    if any(key not in outcomes for outcomes, key in keys):
        return None
    sets = [solved_by_task(outcomes[key], turns) for outcomes, key in keys]
    shared = sorted(set.intersection(*(set(s) for s in sets)))
    first = [sets[0][t] - sets[1][t] for t in shared]
    second = [sets[2][t] - sets[3][t] for t in shared]
    return paired_bootstrap(first, second, resamples, seed)


def unlike(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Why dialogues of two configurations cannot be paired: keys that decide tasks and chance and differ."""
    found = []
    first, second = _deciding(a), _deciding(b)
    for key in first:
        if first[key] != second[key]:
            found.append(key)
    return found


def _deciding(config: Mapping[str, Any]) -> dict[str, Any]:
    evaluation, rollout = config.get("evaluation") or {}, config.get("rollout") or {}
    return {
        "environment": config.get("environment"),
        "evaluation.split": evaluation.get("split"),
        "evaluation.seed": evaluation.get("seed"),
        "evaluation.samples": evaluation.get("samples"),
        "turns": evaluation.get("max_turns") or rollout.get("max_turns"),
    }


# -- for the page --------------------------------------------------------------------------------------------------
def cell(interval: Interval | None, signed: bool = False) -> dict[str, Any] | None:
    """A value with its interval in words and numbers; None where there is none."""
    if interval is None or interval.value is None:
        return None
    return {"text": interval_text(interval, signed), "value": interval.value, "low": interval.low,
            "high": interval.high, "n": interval.n}  # fmt: skip


def table(evaluation: Evaluation) -> dict[str, Any]:
    """Rows checkpoint × control; columns that no row has are left out."""
    rows: list[dict[str, Any]] = []
    for (checkpoint, control), metrics in evaluation.cells.items():
        found: dict[str, Any] = {}
        for name, _, _ in COLUMNS:
            if name == "effect":
                found[name] = cell(evaluation.effects.get((checkpoint, control)), signed=True)
            else:
                held = metrics.get(name.replace("T", str(evaluation.turns)) if name.endswith("/T") else name)
                found[name] = cell(held)
                if name.startswith("cum_acc/") and held is not None and found[name] is not None:
                    found[name] |= _beside_floor(held, evaluation.floors.get(control, evaluation.floor))
        rows.append({"checkpoint": checkpoint, "control": control, "cells": found})
    hidden = {"cum_acc/1"} if evaluation.turns == 1 else set()
    hidden |= {name for name, _, _ in COLUMNS if all(row["cells"][name] is None for row in rows)}
    columns = [
        {"key": key, "title": title.format(turns=evaluation.turns), "help": words}
        for key, title, words in COLUMNS
        if key not in hidden
    ]
    players = [
        {"name": name, "values": [{"turn": turn, "text": number(value)} for turn, value in points]}
        for name, points in (evaluation.players or {}).items()
    ]
    return {"columns": columns, "rows": rows, "players": players}


def _beside_floor(score: Interval, floor: BestConstant | None) -> dict[str, str]:
    """A mark for a score that is no better than the best constant answer's."""
    if standing(score, floor) not in ("not separated", "below"):
        return {}
    return {"floor": standing_words(score, floor)}


def attempts(evaluation: Evaluation) -> dict[str, Any] | None:
    """What attempts came to, in exclusive shares, and their length and words; None where a report does not say."""
    held = {key: metrics for key, metrics in evaluation.cells.items() if "outcome/right" in metrics}
    if not held:
        return None
    columns = [{"key": f"outcome/{name}", "title": name.replace("_", " "), "help": f"Share of attempts: {words}."}
               for name, words in OUTCOMES.items()]  # fmt: skip
    columns += [{"key": key, "title": title, "help": words} for key, title, words in COUNTS]
    rows = []
    for (checkpoint, control), metrics in held.items():
        cells = {f"outcome/{name}": cell(metrics[f"outcome/{name}"]) for name in OUTCOMES}
        for key, _, _ in COUNTS:
            found = cell(metrics[key])
            cells[key] = found and {**found, "text": count_text(metrics[key])}
        rows.append({"checkpoint": checkpoint, "control": control, "cells": cells})
    return {"columns": columns, "rows": rows, "players": []}


def difference_rows(differences: Sequence[Difference]) -> list[dict[str, Any]]:
    """Differences with their finding in words."""
    rows = []
    for d in differences:
        finding = verdict_text(d.difference, "higher", "lower")
        rows.append({"quantity": d.quantity, "checkpoint": d.checkpoint, "against": d.against,
                     "cell": cell(d.difference, signed=True), "finding": finding})  # fmt: skip
    return rows


def accuracy_charts(evaluation: Evaluation) -> list[Chart]:
    """Solved within t turns: a plot for each checkpoint, a line for each control, closed-form players in grey."""
    turns = list(range(1, evaluation.turns + 1))
    charts = []
    for checkpoint in evaluation.checkpoints:
        lines = []
        for name, points in (evaluation.players or {}).items():
            dash = {"best with hints": "longdash", "copying only": "dashdot", CONSTANT: "dash"}.get(name, "dot")
            lines.append(
                Line(name, [float(t) for t, _ in points], [v for _, v in points], "--rl-muted", dash=dash, width=1.2,
                     label=name.removeprefix("best ") if name == CONSTANT else None)
            )  # fmt: skip
        for position, control in enumerate(evaluation.controls):
            metrics = evaluation.cells.get((checkpoint, control))
            if metrics is None:
                continue
            found = [metrics[f"cum_acc/{t}"] for t in turns]
            banded, taught = control in BANDED, control == "hints"
            lines.append(
                Line(control, [float(t) for t in turns], [i.value for i in found],
                     CONTROLS.get(control, SERIES[position % len(SERIES)]),
                     low=[i.low for i in found] if banded else (), high=[i.high for i in found] if banded else (),
                     at=[[checkpoint, control] for _ in turns], dash="solid" if taught else DASHES[1 + position % 5],
                     width=2.6 if taught else 1.8)
            )  # fmt: skip
        plot = Plot(lines, x_title="turn", format="share", range=(0.0, 1.03), height=230,
                    x_ticks=turns if len(turns) <= 12 else ())  # fmt: skip
        charts.append(Chart(f"evaluation:{checkpoint}", checkpoint, "share solved within t turns", [], figure(plot),
                            note="bands: 95 % intervals"))  # fmt: skip
    return charts


def as_json(evaluation: Evaluation) -> dict[str, Any]:
    """Everything the page shows of an evaluation."""
    return {
        "title": evaluation.title,
        "whole": evaluation.whole,
        "turns": evaluation.turns,
        "checkpoints": evaluation.checkpoints,
        "table": table(evaluation),
        "attempts": attempts(evaluation),
        "differences": difference_rows(evaluation.differences),
        "findings": list(evaluation.findings),
        "charts": [chart.as_json() for chart in evaluation.charts or accuracy_charts(evaluation)],
        "parts": [as_json(part) for part in evaluation.parts],
    }
