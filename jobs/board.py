"""The detector board: a detector against people's labels, for all hints, by what divides them; pure functions.

Which labels count for an estimate: those given **blind** on hints that came from a **random draw** made apart among
flagged and unflagged hints, from all hints that the estimate is for or from more. Where every hint of a cell is
labelled, all its labels count. What most of the blind answers say decides; a tie, and `unsure` alone, decide nothing.
All others are counted and shown, and stand in no estimate.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from jobs.agreement import LABELS, LEAK, agreement, consensus
from jobs.draws import Draw
from jobs.estimates import Cell, Estimates, estimate
from jobs.store.counts import STEPS, Found, Sort
from rl2f_core.evaluation.statistics import Interval
from rl2f_core.types import Value

BY = ("tier", "teacher", "environment", "checkpoint", "control", "run")
SMALL = 20
"""Labels that count below which a row is shown with reserve."""
FEW = 0.1
"""A stratum that nobody labelled may hold this share of the hints that a source judged alike; it then counts with
them. If it holds more, what needs it is not said."""
BUCKETS = 8
"""Parts of a stage that a breakdown by checkpoint shows, at most."""
MAX_ROWS = 60


@dataclass(frozen=True)
class Said:
    """One person's answer on a hint."""

    labeller: str
    label: str
    blind: bool
    drawn: str | None = None


@dataclass(frozen=True)
class Labelled:
    """A hint with all its labels, and what was found at run time and by the source that is judged."""

    run: int
    event: str
    turn: int
    sort: Sort
    task: Hashable
    """Names its task in every run."""
    during: Found
    source: Found
    answers: tuple[Said, ...]

    @property
    def decided(self) -> bool | None:
        """Whether it leaks, by what most of the blind answers say."""
        said = consensus(answer.label for answer in self.answers if answer.blind)
        return None if said is None else said == LEAK


@dataclass(frozen=True)
class Judgement:
    """What a source says of hints of one sort, beside the stratum that a draw took them from."""

    stratum: bool
    """The draw took it from the flagged ones."""
    tier: str | None
    """The tier that flagged it; empty where none is named, None where the source did not flag it."""


Population = Mapping[tuple[Sort, Judgement], int]
"""How many hints the source judged, of each sort and judgement."""


class Row(Value):
    """A detector on a part of the hints."""

    name: str
    estimates: Estimates
    labellers: Interval
    """Cohen's κ over all pairs of labellers on its hints; `n` counts pairs of answers."""
    small: bool
    """Fewer than `SMALL` labels count."""


class Used(Value):
    """What became of the labelled hints."""

    hints: int
    """Labelled by anybody."""
    counted: int
    """In the estimates."""
    undecided: int
    """Blind answers that tie, or only unsure."""
    unblind: int
    """No answer was given blind."""
    picked: int
    """Picked by hand, not drawn."""
    narrower: int
    """Drawn from a part of these hints only, so that they say nothing of the rest."""
    unchecked: int
    """Not read by the source."""


class Person(Value):
    """A labeller."""

    name: str
    leak: int
    no_leak: int
    unsure: int
    n: int
    blind: int


class Pair(Value):
    """Two labellers on the hints that both answered."""

    a: str
    b: str
    n: int
    observed: Interval
    kappa: Interval


class Dispute(Value):
    """A hint on which labellers, or they and the detector, differ."""

    run: int
    event: str
    turn: int
    answers: dict[str, str]
    flagged: bool | None
    tier: str | None
    between: bool
    against: bool


class Board(Value):
    """All of it."""

    total: Row
    rows: list[Row]
    hidden: int
    """Rows without a label that counts, or past the first `MAX_ROWS`, that are left out."""
    used: Used
    labellers: list[Person]
    pairs: list[Pair]
    disputes: list[Dispute]


def board(labelled: Sequence[Labelled], population: Population, draw_source: str, by: str = "tier") -> Board:
    """Put a source against the labels.

    Args:
        labelled: Labelled hints of the scope.
        population: All hints of the scope that the source judged.
        draw_source: Whose findings the counted draws were stratified by (`Draw.source`); the strata of `population`.
        by: One of `BY`.
    """
    judged = [hint for hint in labelled if hint.source.checked]
    total = _row("all", population, judged, draw_source)
    parts = _parts(population, judged, by)
    told = [part for part in parts if len(parts) <= BUCKETS or any(h.decided is not None for h in part.hints)]
    told = told[:MAX_ROWS]
    rows = [_row(p.name, p.population, p.hints, draw_source, p.name if by == "tier" else None) for p in told]
    return Board(
        total=total,
        rows=rows,
        hidden=len(parts) - len(rows),
        used=_used(labelled, population, draw_source, total),
        labellers=_people(labelled),
        pairs=_pairs(labelled),
        disputes=disputes(labelled),
    )


@dataclass(frozen=True)
class _Part:
    """The hints of a row."""

    name: str
    population: Population
    hints: Sequence[Labelled]


def _parts(population: Population, judged: Sequence[Labelled], by: str) -> list[_Part]:
    """Rows of a breakdown, the largest first; checkpoints and runs in their order."""
    if by == "tier":  # a tier is scored on all hints
        found: Counter[str] = Counter()
        for (_, judgement), n in population.items():
            if judgement.tier is not None:
                found[judgement.tier] += n
        return [_Part(tier, population, judged) for tier, _ in found.most_common()]
    name_of = _checkpoints(population) if by == "checkpoint" else _NAMES[by]
    parts: dict[str, dict[tuple[Sort, Judgement], int]] = defaultdict(dict)
    hints: dict[str, list[Labelled]] = defaultdict(list)
    for key, n in population.items():
        parts[name_of(key[0])][key] = n
    for hint in judged:
        hints[name_of(hint.sort)].append(hint)
    made = [_Part(name, part, hints[name]) for name, part in parts.items()]
    if by in ("checkpoint", "run"):
        return sorted(made, key=lambda part: min(_place(sort) for sort, _ in part.population))
    return sorted(made, key=lambda part: -sum(part.population.values()))


def _place(sort: Sort) -> tuple[bool, str, int, int]:
    return sort.checkpoint != "", sort.stage, sort.bucket, sort.run_id


_NAMES: dict[str, Callable[[Sort], str]] = {
    "teacher": lambda sort: sort.teacher or "unknown",
    "environment": lambda sort: sort.environment,
    "control": lambda sort: sort.control or "training",
    "run": lambda sort: str(sort.run_id),
}


def _checkpoints(population: Population) -> Callable[[Sort], str]:
    """A checkpoint's name, or the stage with some of its steps: so many that a stage has at most `BUCKETS` parts."""
    last: dict[str, int] = {}
    for sort, _ in population:
        if not sort.checkpoint:
            last[sort.stage] = max(last.get(sort.stage, 1), sort.bucket)
    width = {stage: -(-n // BUCKETS) for stage, n in last.items()}

    def name(sort: Sort) -> str:
        if sort.checkpoint:
            return sort.checkpoint
        if sort.bucket == 0:
            return f"{sort.stage}@0"
        wide = width[sort.stage]
        first = (sort.bucket - 1) // wide * wide
        return f"{sort.stage}@{first * STEPS + 1}–{(first + wide) * STEPS}"

    return name


def _row(
    name: str, population: Population, hints: Sequence[Labelled], draw_source: str, tier: str | None = None
) -> Row:
    """With a `tier`, only its findings count as flags."""
    covering = _covering(hints, draw_source, _places(population))

    def cell(judgement: Judgement) -> tuple[bool, bool, bool]:
        flagged = judgement.tier is not None and tier in (None, judgement.tier)
        return judgement.stratum, flagged, judgement.tier is not None and not flagged

    sizes: Counter[tuple[bool, bool, bool]] = Counter()
    for (_, judgement), n in population.items():
        sizes[cell(judgement)] += n
    every: dict[tuple[bool, bool, bool], list[tuple[Hashable, bool]]] = defaultdict(list)
    drawn: dict[tuple[bool, bool, bool], list[tuple[Hashable, bool]]] = defaultdict(list)
    for hint in hints:
        if (leak := hint.decided) is not None:
            place = cell(_judgement(hint, draw_source))
            every[place].append((hint.task, leak))
            if _drawn(hint, covering):
                drawn[place].append((hint.task, leak))
    cells = [
        Cell(size, place[1], every[place] if len(every[place]) >= size else drawn[place])
        for place, size in sorted(sizes.items())
    ]
    found = estimate(
        [cell for flagged in (False, True) for cell in _joined([c for c in cells if c.flagged == flagged])]
    )
    flagged_by_it = [h for h in hints if tier is None or (h.source.flagged and h.source.tier == tier)]
    return Row(
        name=name,
        estimates=found,
        labellers=_between(flagged_by_it),
        small=found.n_flagged + found.n_unflagged < SMALL,
    )


def _joined(cells: Sequence[Cell]) -> list[Cell]:
    """Cells that the source judged alike; those without a label, where they are few hints, count with the others."""
    bare = sum(cell.size for cell in cells if not cell.labels)
    told = [cell for cell in cells if cell.labels and cell.size > 0]
    if not bare or not told or bare > FEW * sum(cell.size for cell in cells):
        return list(cells)
    largest = max(told, key=lambda cell: cell.size)
    return [replace(cell, size=cell.size + bare) if cell is largest else cell for cell in told]


def _places(population: Population) -> set[tuple[int, str]]:
    return {(sort.run_id, sort.environment) for (sort, _), n in population.items() if n > 0}


def _judgement(hint: Labelled, draw_source: str) -> Judgement:
    flagged = hint.during.flagged if draw_source == "run" else hint.source.flagged
    return Judgement(flagged, hint.source.tier if hint.source.flagged else None)


def _covering(hints: Iterable[Labelled], draw_source: str, places: Collection[tuple[int, str]]) -> set[str]:
    """The draws, as they are kept, that could have taken any hint of these places."""
    texts = {answer.drawn for hint in hints for answer in hint.answers if answer.drawn is not None}
    draws = {text: Draw.parse(text) for text in texts}
    return {text for text, draw in draws.items() if draw.source == draw_source and draw.covers(places)}


def _drawn(hint: Labelled, covering: Collection[str]) -> bool:
    return any(answer.blind and answer.drawn in covering for answer in hint.answers)


def _used(labelled: Sequence[Labelled], population: Population, draw_source: str, total: Row) -> Used:
    covering = _covering(labelled, draw_source, _places(population))
    why: Counter[str] = Counter()
    for hint in labelled:
        if not hint.source.checked:
            why["unchecked"] += 1
        elif not any(answer.blind for answer in hint.answers):
            why["unblind"] += 1
        elif hint.decided is None:
            why["undecided"] += 1
        elif not _drawn(hint, covering):
            why["narrower" if any(a.drawn for a in hint.answers) else "picked"] += 1
    counted = total.estimates.n_flagged + total.estimates.n_unflagged
    left = len(labelled) - counted - why["unchecked"] - why["unblind"] - why["undecided"]
    narrower = min(why["narrower"], left)  # those of a cell that is labelled to the last hint count all the same
    return Used(
        hints=len(labelled), counted=counted, undecided=why["undecided"], unblind=why["unblind"],
        unchecked=why["unchecked"], narrower=narrower, picked=left - narrower,
    )  # fmt: skip


def _people(labelled: Sequence[Labelled]) -> list[Person]:
    given: dict[str, list[Said]] = defaultdict(list)
    for hint in labelled:
        for answer in hint.answers:
            given[answer.labeller].append(answer)
    made = []
    for name, answers in sorted(given.items()):
        counts = {label: sum(answer.label == label for answer in answers) for label in LABELS}
        made.append(Person(name=name, **counts, n=len(answers), blind=sum(answer.blind for answer in answers)))
    return made


def _pairs(labelled: Sequence[Labelled]) -> list[Pair]:
    """Labellers on the hints that both answered blind."""
    people: dict[str, dict[tuple[int, str, int], str]] = defaultdict(dict)
    for hint in labelled:
        for answer in hint.answers:
            if answer.blind:
                people[answer.labeller][hint.run, hint.event, hint.turn] = answer.label
    made = []
    for a, b in combinations(sorted(people), 2):
        found = agreement(people[a], people[b])
        if found.n:
            made.append(Pair(a=a, b=b, n=found.n, observed=found.observed, kappa=found.kappa))
    return made


def _between(hints: Iterable[Labelled]) -> Interval:
    """Cohen's κ over all pairs of blind answers on one hint, the labellers of a pair in the order of their names."""
    first: dict[tuple[int, str, str], str] = {}
    second: dict[tuple[int, str, str], str] = {}
    for i, hint in enumerate(hints):
        blind = sorted((answer.labeller, answer.label) for answer in hint.answers if answer.blind)
        for (a, said), (b, answered) in combinations(blind, 2):
            first[i, a, b], second[i, a, b] = said, answered
    return agreement(first, second).kappa


def disputes(labelled: Iterable[Labelled]) -> list[Dispute]:
    """Hints on which labellers differ, or the majority of all answers and the detector."""
    made = []
    for hint in labelled:
        said = {answer.labeller: answer.label for answer in hint.answers}
        decided = consensus(said.values())
        between = len(set(said.values())) > 1
        against = decided is not None and hint.source.checked and (decided == LEAK) != hint.source.flagged
        if between or against:
            made.append(
                Dispute(
                    run=hint.run, event=hint.event, turn=hint.turn, answers=said, between=between, against=against,
                    flagged=hint.source.flagged if hint.source.checked else None,
                    tier=hint.source.tier if hint.source.flagged else None,
                )
            )  # fmt: skip
    return made
