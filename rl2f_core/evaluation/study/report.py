"""Report of a study: hypotheses with their findings, arms under all conditions, training curves, and dialogues."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from urllib.parse import quote

from pydantic import TypeAdapter

from rl2f_core.common.file_io import checked_path, write_atomically
from rl2f_core.common.stats.intervals import (
    LEVEL,
    MIN_PROBLEMS,
    TOO_FEW,
    Interval,
    correct_family,
    difference_over_seeds,
    t_interval,
)
from rl2f_core.errors import DataError
from rl2f_core.evaluation.across_seeds import (
    Comparison,
    SeedRow,
    alone,
    arm_weights,
    compare_arms,
    mean_tokens,
    merge_seeds,
    weighted_sum,
)
from rl2f_core.evaluation.chart_data import Chart
from rl2f_core.evaluation.evaluate import NEWEST_STEPS, dialogues_path, training_rows
from rl2f_core.evaluation.figure_files import html_page, to_png
from rl2f_core.evaluation.formatting import (
    Table,
    interval_beside,
    interval_text,
    markdown_table,
    nonzero_number,
    number,
    p_text,
    quantity_text,
)
from rl2f_core.evaluation.plotting import DASHES, SERIES, Line, Plot
from rl2f_core.evaluation.report import EvaluationReport
from rl2f_core.evaluation.report_file import read_report
from rl2f_core.evaluation.study.registration import Version, changes, read_versions, when
from rl2f_core.evaluation.study.spec import ALIASES, TRAINING, Hypothesis, Study, parse_study
from rl2f_core.run.directory import RunDir
from rl2f_core.types import FrozenModel, JsonObject

TRAINING_METRICS = ("reward", "clean_reward", "clean_hint_solve_rate", "leak_rate", "planted_rate", "planted_recall",
                    "copied_answer_rate", "exported_copy_rate")  # fmt: skip
"""Metrics of training that a report has for each arm: the effect of leaks on it, and on an export of the run."""
CLEAN_REWARD_TEXT = (
    "The clean reward is the reward of dialogues in which no leak was read. The more hints leak, the more of these "
    "dialogues were solved at the first attempt, before any hint, so it cannot be compared between rates of leaks; the "
    "clean hint solve rate can if the arms solve the same tasks at the first attempt, as it counts attempts after a "
    "clean hint. Hints that a guard replaced count as clean."
)
"""How to read the training rewards of arms with planted leaks."""
_NOT_TESTED = Interval(value=None, n=0, p_value=1.0)
"""Takes the place of a hypothesis without a test in Holm's correction."""
_STAGES = TypeAdapter(dict[str, dict[str, list[object]]])
Link = Callable[[str, str, str], str]
"""Returns the address of the dialogues of a part, checkpoint and condition, or the empty string."""


@dataclass(frozen=True)
class FinishedPart:
    """Results of one run of a study."""

    folder: Path
    report: EvaluationReport
    training: Mapping[str, Sequence[JsonObject]]
    """Metrics of the training steps by stage."""


UNFINISHED_TEXT = (
    "Differences are over the seeds that all compared arms have, levels and means over all finished seeds of an arm."
)


class HypothesisResult(FrozenModel):
    """A hypothesis and what the finished parts say about it."""

    hypothesis: Hypothesis
    comparison: Comparison
    finding: str
    """confirmed, the opposite, or why neither."""
    dialogues: tuple[dict[str, str], ...]
    """Addresses of the dialogues behind all sides of the number by seed; empty if there are none."""


class ArmResult(FrozenModel):
    """The last checkpoint of an arm under one condition, or its hint effect."""

    arm: str
    """Name of the arm."""
    row: SeedRow
    """Values by seed, and their mean."""
    dialogues: dict[str, str]
    """Address of the dialogues of each seed; empty if there are none."""


class ArmTraining(FrozenModel):
    """Metrics of the newest steps before the last checkpoint of an arm."""

    arm: str
    """Name of the arm."""
    means: dict[str, Interval]
    """Mean over seeds with its t interval, by metric of `TRAINING_METRICS`."""


class StudyReport(FrozenModel):
    """What a study has shown so far."""

    name: str
    about: str = ""
    """The comment at the start of the file."""
    registered: tuple[str, str]
    """Time of the first version of the file with the number of finished parts, and its hash."""
    changes: tuple[str, ...]
    """Later changes of the file."""
    missing: tuple[str, ...]
    """Parts without a result."""
    hypotheses: tuple[HypothesisResult, ...]
    arms: tuple[ArmResult, ...]
    training: tuple[ArmTraining, ...] = ()

    def tables(self) -> list[Table]:
        """Return the hypotheses, and the arms under all conditions; `[text](address)` is a link to dialogues."""
        header = ["hypothesis", "finding", "difference", "levels", "p (Holm)", "smallest effect", "detectable effect",
                  "sampled tokens", "quantity", "compared, with dialogues by seed"]  # fmt: skip
        tested = []
        for result in self.hypotheses:
            h, c = result.hypothesis, result.comparison
            under = "" if h.condition == "hints" or h.quantity.startswith(TRAINING) else f" under {h.condition}"
            sides = [" ".join([side, *(_link(*item) for item in seeds.items() if item[1])])
                     for side, seeds in zip(h.compare, result.dialogues, strict=True)]  # fmt: skip
            difference, smallest = interval_beside(c.difference, h.smallest_effect, signed=True)
            detectable = "none" if c.detectable == math.inf else nonzero_number(c.detectable)
            means = [number(self._level(h, compared)) for compared in h.compare]
            levels = "–" if "–" in means else h.difference(means)
            p_value = p_text(c.difference.holm_p)
            tested.append([h.name, result.finding, difference, levels, p_value, smallest, detectable,
                           c.tokens_text(), f"{quantity_text(h.quantity)}{under}", h.difference(sides)])  # fmt: skip
        rows = [
            [a.arm, a.row.checkpoint, a.row.condition, quantity_text(a.row.quantity),
             interval_text(a.row.mean, a.row.above_zero is not None),
             " ".join(_link(number(v), path) for v, path in zip(a.row.values, a.dialogues.values(), strict=True))]
            for a in self.arms
        ]  # fmt: skip
        columns = ["arm", "checkpoint", "condition", "quantity", "mean", "by seed"]
        metrics = [name for name in TRAINING_METRICS if any(name in arm.means for arm in self.training)]
        trained = [
            [arm.arm, *(interval_text(arm.means[name]) if name in arm.means else "–" for name in metrics)]
            for arm in self.training
        ]
        training = (f"Training by arm, last {NEWEST_STEPS} steps", ["arm", *map(quantity_text, metrics)], trained)
        return [("Hypotheses", header, tested), ("Arms under all conditions", columns, rows), training]

    def _level(self, hypothesis: Hypothesis, compared: str) -> float | None:
        """Return the mean of a quantity over the seeds of an arm; None if the other tables lack it."""
        name = ALIASES.get(hypothesis.quantity, hypothesis.quantity)
        if name.startswith(TRAINING):
            metric = name.removeprefix(TRAINING)
            means = [arm.means[metric] for arm in self.training if arm.arm == compared and metric in arm.means]
        else:
            means = [a.row.mean for a in self.arms if a.arm == compared and a.row.condition == hypothesis.condition
                     and a.row.quantity.partition("/")[0] == name]  # fmt: skip
        return means[0].value if means else None

    def sentences(self) -> list[str]:
        """Return what the study tests, how it was registered and changed, and how to read the numbers."""
        time, digest = self.registered
        return [
            *([self.about] if self.about else []),
            f"Registered {time}; SHA-256 of the file: {digest}.",
            *(f"The file changed: {text}" for text in self.changes),
            *([f"Parts without a result: {', '.join(self.missing)}. {UNFINISHED_TEXT}"] if self.missing else []),
            "Square brackets contain 95 % intervals, which treat seeds and problems as crossed; those of training "
            "quantities are over seeds alone, those of one seed over problems alone. A hypothesis is tested when all "
            "seeds have finished. All hypotheses are one family in Holm's correction; equality (`same`) is tested by "
            "its interval alone. From the observed variances of seeds and problems, the detectable effect is found "
            "with a probability of 80 %, and smaller ones less often.",
            *([CLEAN_REWARD_TEXT] if any("planted_rate" in arm.means for arm in self.training) else []),
        ]

    def to_markdown(self) -> str:
        """Return the report as Markdown."""
        lines = [f"# Study {self.name}", "", *(f"- {sentence}" for sentence in self.sentences())]
        return "\n\n".join(["\n".join(lines), *map(markdown_table, self.tables())]) + "\n"


def _link(text: str, address: str) -> str:
    return f"[{text}]({address})" if address else text


def read_part(folder: Path) -> FinishedPart | None:
    """Return the results in a run directory, or in a folder of `rl2f results collect`; None without a report.

    Raises `DataError` naming the file that cannot be read, or the link that leaves the directory.
    """
    checked_path(folder)
    if (report := read_report(folder)) is not None:
        return FinishedPart(folder, report, training_rows(RunDir(folder)))
    file = folder / "report.json"
    if not file.is_file():
        return None
    try:
        report = EvaluationReport.model_validate_json(file.read_bytes())
        file = folder / "training.json"
        stages = _STAGES.validate_json(file.read_bytes())
        training = {
            name: [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            for name, columns in stages.items()
        }
    except (OSError, ValueError) as error:
        fix = "Collect the results again."
        raise DataError("A file of results cannot be read.", value=f"{folder.name}/{file.name}", fix=fix) from error
    return FinishedPart(folder, report, training)


def file_links(parts: Mapping[str, FinishedPart | None], out: Path) -> Link:
    """Return the paths of files of dialogues relative to the folder of a report."""

    def link(part: str, checkpoint: str, condition: str) -> str:
        finished = parts[part]
        path = dialogues_path(RunDir(finished.folder), checkpoint, condition) if finished else out
        return quote(os.path.relpath(path, out), "/@") if path.is_file() else ""

    return link


def build_study_report(
    study: Study, versions: Sequence[Version], parts: Mapping[str, FinishedPart | None], link: Link
) -> StudyReport:
    """Return the report of a study from the results of its parts by name, and the addresses of their dialogues."""
    arms = finished_arms(study, parts)
    hypotheses = study.settings.hypotheses
    comparisons = [_compare(study, hypothesis, arms) for hypothesis in hypotheses]
    planned = len(study.settings.seeds)
    corrected = correct_family([
        _NOT_TESTED if _untested(c, planned) or c.difference.p_value is None else c.difference for c in comparisons
    ])  # fmt: skip
    tested = []
    for hypothesis, comparison, difference in zip(hypotheses, comparisons, corrected, strict=True):
        p_value = None if difference.value is None else difference.holm_p
        difference = comparison.difference.model_copy(update={"holm_p": p_value})
        detectable = comparison.detectable if _seeds(comparison) > 1 else None
        updated = comparison.model_copy(update={"difference": difference, "detectable": detectable})
        finding = find(hypothesis, updated, planned, _spread(study, hypothesis, arms))
        condition = "" if hypothesis.quantity.startswith(TRAINING) else hypothesis.condition
        sides = [(arm, arms[arm], checkpoint) for arm, checkpoint in map(study.side, hypothesis.compare)]
        dialogues = tuple(_addresses(*side, condition, link) for side in sides)
        result = HypothesisResult(hypothesis=hypothesis, comparison=updated, finding=finding, dialogues=dialogues)
        tested.append(result)
    lines = itertools.takewhile(lambda line: line.startswith("#"), versions[-1].text.splitlines())
    return StudyReport(
        name=study.name, about=" ".join(" ".join(line.strip("# ") for line in lines).split()),
        registered=(when(versions[0]), versions[0].sha256), changes=tuple(changes(versions)),
        missing=tuple(name for name, part in parts.items() if part is None), hypotheses=tuple(tested),
        arms=tuple(result for arm in arms if arms[arm] for result in _arm_results(study, arm, arms[arm], link)),
        training=tuple(_arm_training(study, arm, arms[arm].values()) for arm in arms if arms[arm]),
    )  # fmt: skip


def _seeds(comparison: Comparison) -> int:
    return sum(value is not None for value in comparison.values)


def _untested(comparison: Comparison, planned: int) -> str:
    """Return why a difference is not tested over seeds yet; empty if it is."""
    seeds = _seeds(comparison)
    if comparison.difference.value is None:
        return "no result yet"
    if planned == 1:
        return "not tested: one seed"
    return f"not tested: {seeds} of {planned} seeds" if seeds < planned else ""


def _spread(study: Study, hypothesis: Hypothesis, arms: Mapping[str, Mapping[str, FinishedPart]]) -> Interval | None:
    """Return the third of three arms minus the second; None with two arms."""
    if len(hypothesis.compare) == 2:
        return None
    sides = (hypothesis.compare[2], hypothesis.compare[1])
    return _compare(study, hypothesis.model_copy(update={"compare": sides}), arms).difference


def stored_study_report(folder: Path, folders: Mapping[str, Path]) -> tuple[StudyReport, Chart]:
    """Return the report of a registered study and its training curves, from the folders of its parts by name."""
    versions = read_versions(folder)
    study = parse_study(versions[-1].text)
    names = [part.name for part in study.parts() if part.is_arm]
    parts = {name: read_part(folders[name]) if name in folders else None for name in names}
    return build_study_report(study, versions, parts, file_links(parts, folder)), curves_chart(study, parts)


def finished_arms(study: Study, parts: Mapping[str, FinishedPart | None]) -> dict[str, dict[str, FinishedPart]]:
    """Return the finished parts by arm and seed."""
    seeds = study.settings.seeds
    return {
        arm: {str(seed): part for seed in seeds if (part := parts.get(f"{arm}-seed-{seed}")) is not None}
        for arm in study.arms
    }


def _compare(study: Study, hypothesis: Hypothesis, arms: Mapping[str, Mapping[str, FinishedPart]]) -> Comparison:
    sides = [study.side(compared) for compared in hypothesis.compare]
    seeds = [seed for seed in arms[sides[0][0]] if all(seed in arms[arm] for arm, _ in sides)]
    if not seeds:
        return Comparison(values=(), difference=Interval(value=None, n=0))
    reports = [{seed: arms[arm][seed].report for seed in seeds} for arm, _ in sides]
    checkpoints, tests = [checkpoint for _, checkpoint in sides], len(study.settings.hypotheses)
    if not hypothesis.quantity.startswith(TRAINING):
        metric = ALIASES.get(hypothesis.quantity, hypothesis.quantity)
        return compare_arms(reports, checkpoints, metric, hypothesis.condition, tests)
    name, weights = hypothesis.quantity.removeprefix(TRAINING), arm_weights(len(sides))
    means = [[_newest(arms[arm][seed], checkpoint, name) for arm, checkpoint in sides] for seed in seeds]
    values = [weighted_sum(of_seed, weights) for of_seed in means]
    difference, detectable = difference_over_seeds([value for value in values if value is not None], tests)
    if detectable is not None and detectable > 1 and name.endswith("_rate"):
        detectable = math.inf
    budget = tuple(mean_tokens(r.values(), checkpoint) for r, checkpoint in zip(reports, checkpoints, strict=True))
    return Comparison(values=tuple(values), difference=difference, detectable=detectable, tokens=budget)


def _newest(part: FinishedPart, checkpoint: str, metric: str) -> float | None:
    """Return the mean of a metric over the last steps before a checkpoint."""
    stage, _, step = checkpoint.rpartition("@")
    rows = [row for row in part.training.get(stage, ()) if row["step"] <= int(step)]
    values = [row[metric] for row in rows[-NEWEST_STEPS:] if row.get(metric) is not None]
    return fmean(values) if values else None


def find(hypothesis: Hypothesis, comparison: Comparison, planned: int, spread: Interval | None = None) -> str:
    """Return whether a difference confirms a hypothesis after Holm's correction, contradicts it, or neither.

    Args:
        planned: Seeds of the study; fewer seeds are no test.
        spread: Third arm minus second arm; without a difference of these, the first is not nearer to one of them.
    """
    difference, smallest, direction = comparison.difference, hypothesis.smallest_effect, hypothesis.direction
    if reason := _untested(comparison, planned):
        return reason
    if difference.low is None or difference.high is None:
        return "no interval"
    if comparison.is_crossed and difference.n < MIN_PROBLEMS:
        return TOO_FEW
    if spread is not None and direction != "same":
        word = {"higher": "above", "lower": "below", "different": "different from"}[direction]
        if not {"higher": spread.above(0), "lower": spread.below(0)}.get(direction, spread.excludes_zero):
            return f"not tested: {hypothesis.compare[2]} is not {word} {hypothesis.compare[1]}"
    within = difference.above(-smallest) and difference.below(smallest)
    size = "; smaller than the smallest effect" if within else ""
    if min(abs(difference.low), abs(difference.high)) >= smallest:
        size = ", at least the smallest effect"
    if direction == "same" and within:
        return "confirmed"
    if difference.excludes_zero and (difference.holm_p is None or difference.holm_p <= 1 - LEVEL):
        higher = difference.above(0)
        if direction == "same" and not size:
            return "not shown"
        return ("confirmed" if direction in ("different", "higher" if higher else "lower") else "the opposite") + size
    return "not shown" + (size if within else "")


def _arm_results(study: Study, arm: str, parts: Mapping[str, FinishedPart], link: Link) -> list[ArmResult]:
    """Return the solve rates of an arm's last checkpoint under all conditions, and its effects."""
    checkpoint = study.side(arm)[1]
    summary = merge_seeds({seed: alone(part.report, checkpoint) for seed, part in parts.items()})
    return [
        ArmResult(arm=arm, row=row, dialogues=_addresses(arm, parts, checkpoint, row.condition, link))
        for row in summary.rows
        if row.quantity in (f"cum_acc/{summary.turns}", "hint_effect")
    ]


def _arm_training(study: Study, arm: str, parts: Collection[FinishedPart]) -> ArmTraining:
    """Return the metrics of the newest steps of an arm's parts."""
    checkpoint, means = study.side(arm)[1], {}
    for name in TRAINING_METRICS:
        values = [value for part in parts if (value := _newest(part, checkpoint, name)) is not None]
        if values:
            means[name] = t_interval(values, None if name.endswith("reward") else (0, 1))
    return ArmTraining(arm=arm, means=means)


def _addresses(arm: str, seeds: Iterable[str], checkpoint: str, condition: str, link: Link) -> dict[str, str]:
    """Return the addresses of the dialogues of an arm by seed."""
    return {seed: link(f"{arm}-seed-{seed}", checkpoint, condition) for seed in seeds}


def curves_chart(study: Study, parts: Mapping[str, FinishedPart | None]) -> Chart:
    """Plot reward and solve rate of the last stage of each arm: means over seeds, in bands of all seeds.

    If leaks were read, the rewards of dialogues without one and the solve rates after clean hints are plotted too.
    """
    plots = []
    turns = next(iter(study.arms.values())).rollout.max_turns
    steps_of = [row for part in parts.values() if part for rows in part.training.values() for row in rows]
    leaky = any(row.get("clean_reward") not in (None, row.get("reward")) for row in steps_of)
    for metric in ("reward", f"cum_acc/{turns}", *(("clean_reward", "clean_hint_solve_rate") if leaky else ())):
        lines = []
        for i, (arm, finished) in enumerate(finished_arms(study, parts).items()):
            stage = study.arms[arm].stages[-1].name
            curves = [
                {row["step"]: row[metric] for row in part.training.get(stage, ()) if row.get(metric) is not None}
                for part in finished.values()
            ]
            steps = sorted(set.intersection(*map(set, curves))) if curves else []
            values = [[curve[step] for curve in curves] for step in steps]
            lines.append(Line(arm, steps, [fmean(v) for v in values], SERIES[i % len(SERIES)],
                              low=[min(v) for v in values], high=[max(v) for v in values],
                              dash=DASHES[i % len(DASHES)]))  # fmt: skip
        plots.append(Plot(lines, title=quantity_text(metric), height=230))
    return Chart("training", "Training by arm", tuple(plots), "mean of the seeds; bands from the lowest to the highest")


def write_study_report(report: StudyReport, chart: Chart, out: Path) -> None:
    """Write report.md, report.html and training.png."""
    write_atomically(out / "report.md", report.to_markdown())
    page = html_page(f"Study {report.name}", report.sentences(), [chart], report.tables())
    write_atomically(out / "report.html", page)
    write_atomically(out / f"{chart.name}.png", to_png(chart))
