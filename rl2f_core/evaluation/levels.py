"""Accuracy by level of difficulty and on perturbed copies of the same tasks, and how much of it is memorised.

The memorisation score is that of Xie et al. (arXiv 2410.23123): LiMem = Acc · (1 − CR), where the consistency ratio
CR is the share of the tasks solved as they are that are solved as perturbed copies too; so LiMem is the share of tasks
solved as they are but not as copies.  A student that draws its answers at random, or at a temperature, is inconsistent
without having memorised anything.  So the very same text is answered once more with another seed (`again`), and the
score under a perturbation counts as memorised only as far as it lies above the score under `again`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from rl2f_core.evaluation.charts import GREY, STYLES, Chart, Panel, Series, Style
from rl2f_core.evaluation.floors import BestConstant, standing, standing_words
from rl2f_core.evaluation.metrics import Metrics, measure, right_within
from rl2f_core.evaluation.report import attempt_tables, interval_text, markdown_table, number, verdict_text
from rl2f_core.evaluation.statistics import Interval, paired_bootstrap, wilson_clustered
from rl2f_core.types import Dialogue, StopReason, Value

ORIGINAL = "as it is"
AGAIN = "again"
ALL = "all levels"
CUT_OFF_LIMIT = 0.05
"""Above this share of attempts cut off, a level's numbers tell of the token limit too."""
_LOOKS = (STYLES["contentless"], STYLES["resample"], STYLES["shuffled"], STYLES["misleading"])
Right = Mapping[tuple[str, int], bool]
"""By task and sample: whether the first attempt is right."""


class LevelCell(Value):
    """One checkpoint on one level, on the tasks as they are or on one kind of copy."""

    checkpoint: str
    """E.g. `base`, `rl2f@24`."""
    level: str
    """E.g. `people=3`, or `all levels` together."""
    copy_name: str
    """`as it is`, `again` (the same text with another seed), or the name of a perturbation."""
    tasks: int
    """Tasks that have such a copy and whose dialogues did not fail."""
    accuracy: Interval
    """Share of first attempts that are right."""
    solved: Interval | None = None
    """Share solved within all turns, where the tasks as they are were played for several."""
    consistency: Interval | None = None
    """CR: of those solved as they are, the share solved as copies; None for the tasks as they are."""
    memorisation: Interval | None = None
    """LiMem: the share solved as they are and not as copies."""
    beyond_again: Interval | None = None
    """LiMem minus that under `again`, paired over tasks."""
    metrics: Metrics | None = None
    """All metrics of the attempts; None for all levels together."""

    @property
    def control(self) -> str:
        """What the dialogues are filed under."""
        return control_name(self.level, self.copy_name)


class LevelInfo(Value):
    """One level."""

    name: str
    """E.g. `people=3`."""
    value: int | None
    """Of the field; None where nothing is swept."""
    floor: BestConstant
    """Its best constant answer."""


class LevelsReport(Value):
    """Checkpoints by level and by kind of copy."""

    environment: str
    """Registered name."""
    field: str | None
    """What is swept."""
    split: str
    """Where the tasks come from."""
    tasks: int
    """Tasks a level."""
    samples: int
    """Dialogues on each."""
    turns: int
    """Turns allowed on the tasks as they are; copies have one."""
    levels: tuple[LevelInfo, ...]
    """From easy to hard."""
    cells: tuple[LevelCell, ...]
    """Checkpoints × levels × copies."""

    @property
    def checkpoints(self) -> list[str]:
        """In the order of their first cell."""
        return list(dict.fromkeys(cell.checkpoint for cell in self.cells))

    @property
    def copies(self) -> list[str]:
        """Kinds of copies, without the tasks as they are."""
        return [name for name in dict.fromkeys(cell.copy_name for cell in self.cells) if name != ORIGINAL]

    def cell(self, checkpoint: str, level: str, copy_name: str = ORIGINAL) -> LevelCell | None:
        """One cell, or None."""
        key = (checkpoint, level, copy_name)
        return next((c for c in self.cells if (c.checkpoint, c.level, c.copy_name) == key), None)

    @property
    def title(self) -> str:
        """Environment and size in one line."""
        swept = f" by {self.field}" if self.field else ""
        samples = f" × {self.samples} samples" if self.samples > 1 else ""
        turns = f", {self.turns} turns" if self.turns > 1 else ", first attempts"
        return f"{self.environment}{swept}: {self.tasks} {self.split} tasks a level{samples}{turns}"

    def to_markdown(self) -> str:
        """The tables, then what they say."""
        lines = [f"# Levels of {self.title}", "", "Square brackets hold 95 % intervals.", ""]
        for table in level_tables(self):
            lines += [markdown_table(table), ""]
        lines += ["## What separates and what does not", ""]
        return "\n".join(lines + [f"- {sentence}" for sentence in level_findings(self)]) + "\n"


def control_name(level: str, copy_name: str) -> str:
    """What the dialogues of a cell are filed under: `people=3`, `people=3, renamed`."""
    return level if copy_name == ORIGINAL else f"{level}, {copy_name}"


# -- measuring -----------------------------------------------------------------------------------------------------
def right_at_first(dialogues: Sequence[Dialogue]) -> dict[tuple[str, int], bool]:
    """By task (of which it is a copy) and sample: whether the first attempt is right. Failed dialogues are left out."""
    return {(d.group, d.index): right_within(d, 1) for d in dialogues if d.stop is not StopReason.FAILED}


def accuracy(right: Right) -> Interval:
    """The share right, with Wilson's interval over tasks."""
    by_task = _by_task({key: (float(hit), 1.0) for key, hit in right.items()})
    return wilson_clustered(*_columns(by_task))


def consistency(original: Right, copies: Right) -> Interval:
    """CR: of what is right as it is, the share that is right as a copy too; only what has both counts."""
    both = original.keys() & copies.keys()
    found = _by_task({key: (float(copies[key]), 1.0) for key in both if original[key]})
    return wilson_clustered(*_columns(found))


def memorisation(original: Right, copies: Right) -> Interval:
    """LiMem = Acc · (1 − CR): the share that is right as it is and not as a copy; only what has both counts."""
    return wilson_clustered(*_columns(_lost(original, copies)))


def beyond(original: Right, copies: Right, again: Right, resamples: int, seed: int) -> Interval:
    """LiMem under a perturbation minus that under `again`, paired over the tasks that have both."""
    a, b = _lost(original, copies), _lost(original, again)
    shared = sorted(a.keys() & b.keys())
    first, second = ([found[task][0] / found[task][1] for task in shared] for found in (a, b))
    return paired_bootstrap(first, second, resamples, seed)


def _lost(original: Right, copies: Right) -> dict[str, tuple[float, float]]:
    both = original.keys() & copies.keys()
    return _by_task({key: (float(original[key] and not copies[key]), 1.0) for key in both})


def _by_task(found: Mapping[tuple[str, int], tuple[float, float]]) -> dict[str, tuple[float, float]]:
    sums: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for (task, _), (hit, count) in found.items():
        sums[task] = sums[task][0] + hit, sums[task][1] + count
    return dict(sums)


def _columns(by_task: Mapping[str, tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [hit for hit, _ in by_task.values()], [count for _, count in by_task.values()]


Played = Mapping[str, Mapping[str, Mapping[str, Sequence[Dialogue]]]]
"""Dialogues by checkpoint, level and kind of copy."""


def build_levels(
    played: Played, levels: Sequence[LevelInfo], *, environment: str, field: str | None, split: str, tasks: int,
    samples: int, turns: int, resamples: int = 2000, seed: int = 0,
) -> LevelsReport:  # fmt: skip
    """Measure all that was played, level by level and over all levels together."""
    cells = []
    for checkpoint, by_level in played.items():
        whole: dict[str, list[Dialogue]] = defaultdict(list)
        for level, by_copy in by_level.items():
            cells += _cells(checkpoint, level, by_copy, turns, resamples, seed, whole=False)
            for name, dialogues in by_copy.items():
                whole[name] += dialogues
        if len(by_level) > 1:
            cells += _cells(checkpoint, ALL, whole, turns, resamples, seed, whole=True)
    return LevelsReport(environment=environment, field=field, split=split, tasks=tasks, samples=samples, turns=turns,
                        levels=tuple(levels), cells=tuple(cells))  # fmt: skip


def _cells(
    checkpoint: str, level: str, by_copy: Mapping[str, Sequence[Dialogue]], turns: int, resamples: int, seed: int, *,
    whole: bool,
) -> list[LevelCell]:  # fmt: skip
    original = right_at_first(by_copy[ORIGINAL])
    again = right_at_first(by_copy.get(AGAIN, ()))
    found = []
    for name, dialogues in by_copy.items():
        right, limit = right_at_first(dialogues), turns if name == ORIGINAL else 1
        more: dict[str, Interval | None] = {}
        if name != ORIGINAL:
            more = {"consistency": consistency(original, right), "memorisation": memorisation(original, right)}
            if name != AGAIN and again:
                more["beyond_again"] = beyond(original, right, again, resamples, seed)
        elif turns > 1:
            within = {(d.group, d.index): right_within(d, turns) for d in dialogues if d.stop is not StopReason.FAILED}
            more = {"solved": accuracy(within)}
        measured = None if whole else measure(dialogues, limit, resamples=resamples, seed=seed)
        found.append(LevelCell(checkpoint=checkpoint, level=level, copy_name=name, accuracy=accuracy(right),
                               tasks=len({task for task, _ in right}), metrics=measured, **more))  # fmt: skip
    return found


# -- words ---------------------------------------------------------------------------------------------------------
def level_tables(report: LevelsReport) -> list[tuple[str, list[str], list[list[str]]]]:
    """Accuracy by level and copy; consistency and memorisation; what attempts came to; length and words."""
    floors = {info.name: info.floor for info in report.levels}
    names = list(dict.fromkeys(cell.level for cell in report.cells))
    rows, memory = [], []
    for checkpoint in report.checkpoints:
        for level in names:
            cells = [report.cell(checkpoint, level, name) for name in report.copies]
            original = report.cell(checkpoint, level)
            if original is None:
                continue
            within = [interval_text(original.solved)] if report.turns > 1 else []
            floor = number(floors[level].score) if level in floors else "–"
            rows.append([checkpoint, level, floor, interval_text(original.accuracy), *within,
                         *(interval_text(c.accuracy) if c else "–" for c in cells)])  # fmt: skip
            memory.append([checkpoint, level, *(interval_text(c.consistency) if c else "–" for c in cells),
                           *(interval_text(c.memorisation) if c else "–" for c in cells)])  # fmt: skip
    within = [f"within {report.turns} turns"] if report.turns > 1 else []
    header = ["checkpoint", "level", "best constant answer", ORIGINAL, *within, *report.copies]
    tables = [("Right at the first attempt", header, rows)]
    if report.copies:
        header = ["checkpoint", "level", *(f"CR, {n}" for n in report.copies), *(f"LiMem, {n}" for n in report.copies)]
        tables.append(("Consistency ratio and memorisation score, LiMem = Acc · (1 − CR)", header, memory))
    held = [(c.checkpoint, c.control, c.metrics) for c in report.cells if c.metrics and c.copy_name == ORIGINAL]
    return tables + attempt_tables(held)


def level_findings(report: LevelsReport) -> list[str]:
    """Where scores are no better than the floor, and whether anything is memorised beyond chance."""
    return [*level_warnings(report), *_cut_off(report), *_memory_findings(report)]


def _cut_off(report: LevelsReport) -> list[str]:
    """Where the token limit, not the task, decides."""
    held = [(c, c.metrics["outcome/cut_off"]) for c in report.cells if c.metrics and c.copy_name == ORIGINAL]
    return [
        f"{number(share.value)} of the attempts of {c.checkpoint} at {c.level} were cut off without an answer: "
        "raise rollout.max_new_tokens."
        for c, share in held if share.value is not None and share.value > CUT_OFF_LIMIT
    ]  # fmt: skip


def level_warnings(report: LevelsReport) -> list[str]:
    """The levels at which a checkpoint is no better than the best constant answer."""
    lines = []
    for checkpoint in report.checkpoints:
        for info in report.levels:
            cell = report.cell(checkpoint, info.name)
            if cell is not None and standing(cell.accuracy, info.floor) in ("not separated", "below"):
                lines.append(f"{checkpoint} at {info.name}: {interval_text(cell.accuracy)} is "
                             f"{standing_words(cell.accuracy, info.floor)} ({number(info.floor.score)}).")  # fmt: skip
    return lines


def _memory_findings(report: LevelsReport) -> list[str]:
    lines = []
    level = ALL if len(report.levels) > 1 else report.levels[0].name
    for checkpoint in report.checkpoints:
        for name in report.copies:
            cell = report.cell(checkpoint, level, name)
            if cell is None or cell.beyond_again is None or cell.beyond_again.value is None:
                continue
            verdict = verdict_text(cell.beyond_again, "memorised beyond chance", "more consistent than chance")
            lines.append(
                f"LiMem of {checkpoint} under {name}, {level}: {interval_text(cell.memorisation)}; minus that of the "
                f"same text drawn {AGAIN}: {interval_text(cell.beyond_again, signed=True)}: {verdict}."
            )
        lost = [f"{name} {cell.tasks}" for name in report.copies
                if (cell := report.cell(checkpoint, level, name)) and (own := report.cell(checkpoint, level))
                and cell.tasks < own.tasks]  # fmt: skip
        if lost:
            lines.append(f"Not every task of {checkpoint} has each copy; tasks that have: {', '.join(lost)}.")
    return lines


def levels_chart(report: LevelsReport) -> Chart:
    """Accuracy by level: a panel a checkpoint, a line for the tasks as they are and for each copy, and the floor."""
    known = [info for info in report.levels if info.value is not None]
    at = [float(info.value or 0) for info in known] if len(known) == len(report.levels) else [
        float(i) for i in range(1, len(report.levels) + 1)
    ]  # fmt: skip
    panels = []
    for checkpoint in report.checkpoints:
        lines = []
        for position, name in enumerate([ORIGINAL, *report.copies]):
            look = STYLES["hints"] if name == ORIGINAL else _LOOKS[(position - 1) % len(_LOOKS)]._replace(band=False)
            held = [(x, report.cell(checkpoint, info.name, name)) for x, info in zip(at, report.levels, strict=True)]
            points = [(x, cell.accuracy) for x, cell in held if cell is not None]
            lines.append(
                Series(name, tuple(x for x, _ in points), tuple(i.value for _, i in points), look,
                       tuple(i.low for _, i in points), tuple(i.high for _, i in points),
                       tuple(interval_text(i) for _, i in points))
            )  # fmt: skip
        floors = tuple(info.floor.score for info in report.levels)
        lines.append(Series("best constant answer", tuple(at), floors, Style(GREY, "dashdot", None, 1.2),
                            text=tuple(number(score) for score in floors)))  # fmt: skip
        panels.append(Panel(checkpoint, tuple(lines), report.field or "level", "right at first", range=(0.0, 1.03)))
    subtitle = f"{report.title}; bands are 95\u00a0% intervals"
    return Chart("accuracy_by_level", "Right at the first attempt, by level and copy", tuple(panels), subtitle)
