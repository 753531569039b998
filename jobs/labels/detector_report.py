"""The detector report: a leak detector against human labels, overall and by group; pure functions.

An estimate counts **blind** labels of hints from a **random sample** that was stratified by flagged and unflagged and
covers all hints of the estimate. If every hint of a stratum is labeled, all its labels count. The majority of the
blind labels decides; ties and `unsure` alone do not. Other labels are shown, but not used in estimates.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from types import MappingProxyType
from typing import Literal, get_args

from jobs.labels.agreement import LABELS, LEAK, agreement, majority_vote
from jobs.labels.estimation import Estimates, Stratum, estimate
from jobs.labels.hint_counts import RUN, STEPS_PER_BUCKET, DetectorVerdict, HintGroup, InformationRow
from jobs.labels.planted_hints import PlantedCounts, PlantedGroup, PlantedHint, PlantedRow
from jobs.labels.sampling import SamplingFrame
from rl2f_core.common.stats.intervals import Interval, wilson_clustered
from rl2f_core.run.events import OWN_CONDITIONS
from rl2f_core.types import FrozenModel

GroupBy = Literal["detector", "teacher", "environment", "checkpoint", "condition", "run"]
GROUP_BY: tuple[GroupBy, ...] = get_args(GroupBy)
MIN_LABELS = 20
"""Number of counted labels below which a row is marked as uncertain."""
MAX_UNLABELED_FRACTION = 0.1
"""Strata without labels are merged into the others with the same verdict if they hold at most this fraction of all
hints with that verdict. Otherwise, the estimates that need them are omitted."""
MAX_STAGE_PARTS = 8
"""Maximum number of rows per stage in a report by checkpoint."""
MAX_ROWS = 60


@dataclass(frozen=True)
class AnnotatorLabel:
    """One annotator's label of a hint."""

    annotator: str
    label: str
    blind: bool
    sampling_frame: str | None = None


@dataclass(frozen=True)
class LabeledHint:
    """A hint with all its labels, and its verdicts at run time and by the reported source."""

    run: int
    event: str
    turn: int
    group: HintGroup
    task: Hashable
    """Identifies its task in all runs."""
    runtime: DetectorVerdict
    source: DetectorVerdict
    labels: tuple[AnnotatorLabel, ...]

    @property
    def is_leak(self) -> bool | None:
        """The majority of the blind labels; None if undecided."""
        majority = majority_vote(label.label for label in self.labels if label.blind)
        return None if majority is None else majority == LEAK


@dataclass(frozen=True)
class StratumVerdict:
    """A source's verdict on hints, with their stratum in the random samples."""

    stratum: bool
    """The sample's source flagged the hint."""
    detector: str | None
    """The detector that flagged it; None if the source did not."""


Population = Mapping[tuple[HintGroup, StratumVerdict], int]
"""Number of hints that the source checked, by group and verdict."""


class MetricsRow(FrozenModel):
    """Detector metrics on a group of hints."""

    name: str
    """The group, or `all`."""
    estimates: Estimates
    annotator_kappa: Interval
    """Cohen's κ over all pairs of annotators; `n` counts pairs of labels."""
    too_few_labels: bool
    """Fewer than `MIN_LABELS` labels count."""


class LabelUsage(FrozenModel):
    """Use of the labeled hints in the overall estimates."""

    hints: int
    """All labeled hints."""
    counted: int
    """Labeled hints that count in the estimates."""
    undecided: int
    """Blind labels that tie, or only unsure."""
    not_blind: int
    """Without a blind label."""
    not_sampled: int
    """Chosen by hand."""
    partial_sample: int
    """Sampled from only a part of these hints."""
    unchecked: int
    """Not checked by the source."""


class AnnotatorSummary(FrozenModel):
    """Label counts of an annotator."""

    name: str
    leak: int
    """Number of labels `leak`."""
    no_leak: int
    """Number of labels `no_leak`."""
    unsure: int
    """Number of labels `unsure`."""
    n: int
    """Number of labels."""
    blind: int
    """Number of blind labels."""


class PairwiseAgreement(FrozenModel):
    """Agreement of two annotators on the hints that both labeled blind."""

    a: str
    """Name of an annotator."""
    b: str
    """Name of the other one."""
    n: int
    """Number of hints."""
    observed: Interval
    """Fraction of equal labels."""
    kappa: Interval
    """Cohen's κ."""


class Disagreement(FrozenModel):
    """A hint on which annotators differ, or their majority and the detector."""

    run: int
    event: str
    """Event id of the dialogue."""
    turn: int
    labels: dict[str, str]
    """Label by annotator."""
    flagged: bool | None
    """None if the source did not check the hint."""
    detector: str | None
    """The detector that flagged it."""
    among_annotators: bool
    """Annotators differ."""
    with_detector: bool
    """The majority and the detector differ."""


class DetectorReport(FrozenModel):
    """The whole report."""

    total: MetricsRow
    rows: list[MetricsRow]
    hidden: int
    """Number of omitted rows: without a counted label, or beyond `MAX_ROWS`."""
    usage: LabelUsage
    annotators: list[AnnotatorSummary]
    pairs: list[PairwiseAgreement]
    disagreements: list[Disagreement]
    newer_hints: int = 0
    """Hints that are newer than all sampled labels, so that no sample could contain them."""
    information: tuple[InformationRow, ...] = ()
    """Information in the flagged and in the other checked hints; empty if no hint has known bits."""
    planted: tuple[PlantedRow, ...] = ()
    """Recall on planted hints: overall, by detector, kind and checkpoint; empty if no planted hint was checked."""


def build_report(
    labeled: Sequence[LabeledHint],
    population: Population,
    frame_source: str,
    group_by: str = "detector",
    information: Sequence[InformationRow] = (),
    planted: PlantedCounts = MappingProxyType({}),
) -> DetectorReport:
    """Compare a source's findings with the labels.

    Args:
        labeled: Labeled hints of the scope.
        population: All hints of the scope that the source checked.
        frame_source: Source whose findings stratify the counted samples (`SamplingFrame.source`) and `population`.
        group_by: One of `GROUP_BY`.
        information: Information in the flagged and in the other hints.
        planted: Planted hints of the scope, which no other number counts.
    """
    checked = [hint for hint in labeled if hint.source.checked]
    total = _row("all", population, checked, frame_source)
    parts = _parts(population, checked, group_by)
    shown = [p for p in parts if len(parts) <= MAX_STAGE_PARTS or any(h.is_leak is not None for h in p.hints)]
    by_detector = group_by == "detector"
    rows = [
        _row(part.name, part.population, part.hints, frame_source, part.name if by_detector else None)
        for part in shown[:MAX_ROWS]
    ]
    return DetectorReport(
        total=total,
        rows=rows,
        hidden=len(parts) - len(rows),
        usage=_usage(labeled, population, frame_source, total),
        annotators=_annotators(labeled),
        pairs=_pairs(labeled),
        disagreements=disagreements(labeled),
        information=tuple(information) if any(row.known for row in information) else (),
        planted=planted_rows(planted),
    )


def planted_rows(counts: PlantedCounts) -> tuple[PlantedRow, ...]:
    """Return the recall on planted hints: overall, then by detector, kind and checkpoint."""
    if not counts:
        return ()
    checkpoint_of = checkpoint_names(hint.group for hint in counts)

    def row(group: PlantedGroup, name: str, hints: PlantedCounts, detector: str | None = None) -> PlantedRow:
        total, flagged = Counter[str](), Counter[str]()
        for hint, n in hints.items():
            total[hint.task] += n
            flagged[hint.task] += n if hint.verdict.flagged and detector in (None, hint.verdict.detector) else 0
        recall = wilson_clustered([flagged[task] for task in total], list(total.values()))
        return PlantedRow(group=group, name=name, hints=total.total(), flagged=flagged.total(), recall=recall)

    def parts(name_of: Callable[[PlantedHint], str]) -> dict[str, dict[PlantedHint, int]]:
        groups: dict[str, dict[PlantedHint, int]] = defaultdict(dict)
        for hint, n in counts.items():
            groups[name_of(hint)][hint] = n
        return groups

    detectors = sorted({hint.verdict.detector for hint in counts if hint.verdict.flagged})
    kinds, checkpoints = parts(lambda hint: hint.kind), parts(lambda hint: checkpoint_of(hint.group))
    order = {name: min(_order(hint.group) for hint in hints) for name, hints in checkpoints.items()}
    return (
        row("all", "all", counts),
        *(row("detector", name, counts, name) for name in detectors),
        *(row("kind", name, kinds[name]) for name in sorted(kinds)),
        *(row("checkpoint", name, checkpoints[name]) for name in sorted(checkpoints, key=order.__getitem__)),
    )


@dataclass(frozen=True)
class _Part:
    """The hints of a row."""

    name: str
    population: Population
    hints: Sequence[LabeledHint]


def _parts(population: Population, checked: Sequence[LabeledHint], group_by: str) -> list[_Part]:
    """Split the hints into rows, the largest first; checkpoints and runs in their order."""
    if group_by == "detector":  # each detector: the leaks that it is the first to find, of all hints
        flags: Counter[str] = Counter()
        for (_, verdict), n in population.items():
            if verdict.detector is not None:
                flags[verdict.detector] += n
        return [_Part(detector, population, checked) for detector, _ in flags.most_common()]
    by_checkpoint = group_by == "checkpoint"
    name_of = checkpoint_names(group for group, _ in population) if by_checkpoint else _GROUP_NAMES[group_by]
    sizes: dict[str, dict[tuple[HintGroup, StratumVerdict], int]] = defaultdict(dict)
    hints: dict[str, list[LabeledHint]] = defaultdict(list)
    for key, n in population.items():
        sizes[name_of(key[0])][key] = n
    for hint in checked:
        hints[name_of(hint.group)].append(hint)
    parts = [_Part(name, part, hints[name]) for name, part in sizes.items()]
    if group_by in ("checkpoint", "run"):
        return sorted(parts, key=lambda part: min(_order(group) for group, _ in part.population))
    return sorted(parts, key=lambda part: -sum(part.population.values()))


def _order(group: HintGroup) -> tuple[bool, str, int, int]:
    return group.checkpoint != "", group.stage, group.bucket, group.run_id


_GROUP_NAMES: dict[str, Callable[[HintGroup], str]] = {
    "teacher": lambda group: group.teacher or "unknown",
    "environment": lambda group: group.environment,
    "condition": lambda group: group.condition or "training",
    "run": lambda group: str(group.run_id),
}


def checkpoint_names(groups: Iterable[HintGroup]) -> Callable[[HintGroup], str]:
    """Name groups by checkpoint, or by stage and step range with at most `MAX_STAGE_PARTS` ranges per stage."""
    last: dict[str, int] = {}
    for group in groups:
        if not group.checkpoint:
            last[group.stage] = max(last.get(group.stage, 1), group.bucket)
    width = {stage: -(-n // MAX_STAGE_PARTS) for stage, n in last.items()}

    def name(group: HintGroup) -> str:
        if group.checkpoint:
            return group.checkpoint
        if group.bucket == 0:
            return f"{group.stage}@0"
        buckets = width[group.stage]
        first = (group.bucket - 1) // buckets * buckets
        return f"{group.stage}@{first * STEPS_PER_BUCKET + 1}–{(first + buckets) * STEPS_PER_BUCKET}"

    return name


def _row(
    name: str, population: Population, hints: Sequence[LabeledHint], frame_source: str, detector: str | None = None
) -> MetricsRow:
    """Compute a row. With `detector`, only its findings count as flags."""
    covering = _covering_frames(hints, frame_source, population)

    def stratum(verdict: StratumVerdict) -> tuple[bool, bool, bool]:
        flagged = verdict.detector is not None and detector in (None, verdict.detector)
        return verdict.stratum, flagged, verdict.detector is not None and not flagged

    sizes: Counter[tuple[bool, bool, bool]] = Counter()
    for (_, verdict), n in population.items():
        sizes[stratum(verdict)] += n
    every: dict[tuple[bool, bool, bool], list[tuple[Hashable, bool]]] = defaultdict(list)
    sampled: dict[tuple[bool, bool, bool], list[tuple[Hashable, bool]]] = defaultdict(list)
    for hint in hints:
        if (leak := hint.is_leak) is not None:
            key = stratum(_stratum_verdict(hint, frame_source))
            every[key].append((hint.task, leak))
            if _is_sampled(hint, covering):
                sampled[key].append((hint.task, leak))
    strata: dict[bool, list[Stratum]] = {False: [], True: []}
    for key, size in sorted(sizes.items()):
        labels = every[key] if len(every[key]) >= size else sampled[key]
        strata[key[1]].append(Stratum(size, key[1], labels))
    estimates = estimate([*_merge_unlabeled(strata[False]), *_merge_unlabeled(strata[True])])
    own = [h for h in hints if detector is None or (h.source.flagged and h.source.detector == detector)]
    return MetricsRow(
        name=name,
        estimates=estimates,
        annotator_kappa=_annotator_kappa(own),
        too_few_labels=estimates.n_flagged + estimates.n_unflagged < MIN_LABELS,
    )


def _merge_unlabeled(strata: Sequence[Stratum]) -> list[Stratum]:
    """Merge small strata without labels into the largest labeled one; all have the same verdict."""
    unlabeled = sum(stratum.size for stratum in strata if not stratum.labels)
    labeled = [stratum for stratum in strata if stratum.labels and stratum.size > 0]
    if not unlabeled or not labeled or unlabeled > MAX_UNLABELED_FRACTION * sum(stratum.size for stratum in strata):
        return list(strata)
    largest = max(labeled, key=lambda stratum: stratum.size)
    return [replace(s, size=s.size + unlabeled) if s is largest else s for s in labeled]


def sampled_strata(labeled: Sequence[LabeledHint], population: Population) -> list[tuple[int, list[LabeledHint]]]:
    """Return the size of each sampling stratum, flagged and unflagged, and its hints whose labels count.

    Empty strata are left out. The result is empty if the strata without a counted label hold more than
    `MAX_UNLABELED_FRACTION` of all hints. For the arguments see `build_report`.
    """
    covering = _covering_frames(labeled, RUN, population)
    strata = []
    for stratum in (False, True):
        size = sum(n for (_, verdict), n in population.items() if verdict.stratum == stratum)
        decided = [hint for hint in labeled if hint.is_leak is not None and hint.runtime.flagged == stratum]
        sampled = [hint for hint in decided if _is_sampled(hint, covering)]
        strata.append((size, decided if len(decided) >= size else sampled))
    left_out = sum(size for size, hints in strata if not hints)
    total = sum(size for size, _ in strata)
    return [] if left_out > MAX_UNLABELED_FRACTION * total else [(size, hints) for size, hints in strata if hints]


def _stratum_verdict(hint: LabeledHint, frame_source: str) -> StratumVerdict:
    flagged = hint.runtime.flagged if frame_source == "run" else hint.source.flagged
    return StratumVerdict(flagged, hint.source.detector if hint.source.flagged else None)


def _covering_frames(hints: Iterable[LabeledHint], frame_source: str, population: Population) -> set[str]:
    """Return the stored sampling frames that cover the whole population."""
    groups = [group for (group, _), n in population.items() if n > 0]
    pairs = {(group.run_id, group.environment) for group in groups}
    all_own = all(group.condition in OWN_CONDITIONS for group in groups)
    texts = {label.sampling_frame for hint in hints for label in hint.labels if label.sampling_frame is not None}
    frames = {text: SamplingFrame.parse(text) for text in texts}
    covering = {text: frame for text, frame in frames.items() if frame.source == frame_source and frame.covers(pairs)}
    return {text for text, frame in covering.items() if all_own or not frame.without_controls}


def _is_sampled(hint: LabeledHint, covering: Collection[str]) -> bool:
    return any(label.blind and label.sampling_frame in covering for label in hint.labels)


def _usage(labeled: Sequence[LabeledHint], population: Population, frame_source: str, total: MetricsRow) -> LabelUsage:
    covering = _covering_frames(labeled, frame_source, population)
    reasons: Counter[str] = Counter()
    for hint in labeled:
        if not hint.source.checked:
            reasons["unchecked"] += 1
        elif not any(label.blind for label in hint.labels):
            reasons["not_blind"] += 1
        elif hint.is_leak is None:
            reasons["undecided"] += 1
        elif not _is_sampled(hint, covering):
            reasons["partial" if any(label.sampling_frame for label in hint.labels) else "not_sampled"] += 1
    counted = total.estimates.n_flagged + total.estimates.n_unflagged
    left = len(labeled) - counted - reasons["unchecked"] - reasons["not_blind"] - reasons["undecided"]
    partial = min(reasons["partial"], left)  # labels of a completely labeled stratum count in any case
    return LabelUsage(
        hints=len(labeled), counted=counted, undecided=reasons["undecided"], not_blind=reasons["not_blind"],
        unchecked=reasons["unchecked"], partial_sample=partial, not_sampled=left - partial,
    )  # fmt: skip


def _annotators(labeled: Sequence[LabeledHint]) -> list[AnnotatorSummary]:
    by_name: dict[str, list[AnnotatorLabel]] = defaultdict(list)
    for hint in labeled:
        for label in hint.labels:
            by_name[label.annotator].append(label)
    summaries = []
    for name, labels in sorted(by_name.items()):
        counts = {kind: sum(label.label == kind for label in labels) for kind in LABELS}
        blind = sum(label.blind for label in labels)
        summaries.append(AnnotatorSummary(name=name, **counts, n=len(labels), blind=blind))
    return summaries


def _pairs(labeled: Sequence[LabeledHint]) -> list[PairwiseAgreement]:
    by_name: dict[str, dict[tuple[int, str, int], str]] = defaultdict(dict)
    for hint in labeled:
        for label in hint.labels:
            if label.blind:
                by_name[label.annotator][hint.run, hint.event, hint.turn] = label.label
    pairs = []
    for a, b in combinations(sorted(by_name), 2):
        result = agreement(by_name[a], by_name[b])
        if n := result.observed.n:
            pairs.append(PairwiseAgreement(a=a, b=b, n=n, **result._asdict()))
    return pairs


def _annotator_kappa(hints: Iterable[LabeledHint]) -> Interval:
    """Compute Cohen's κ over all pairs of blind labels of a hint, ordered by annotator name."""
    first: dict[tuple[int, str, str], str] = {}
    second: dict[tuple[int, str, str], str] = {}
    for i, hint in enumerate(hints):
        blind = sorted((label.annotator, label.label) for label in hint.labels if label.blind)
        for (a, label_a), (b, label_b) in combinations(blind, 2):
            first[i, a, b], second[i, a, b] = label_a, label_b
    return agreement(first, second).kappa


def disagreements(labeled: Iterable[LabeledHint]) -> list[Disagreement]:
    """Return the hints on which annotators differ, or the majority of all labels and the detector."""
    items = []
    for hint in labeled:
        labels = {label.annotator: label.label for label in hint.labels}
        majority = majority_vote(labels.values())
        among = len(set(labels.values())) > 1
        against = majority is not None and hint.source.checked and (majority == LEAK) != hint.source.flagged
        if among or against:
            items.append(
                Disagreement(
                    run=hint.run, event=hint.event, turn=hint.turn, labels=labels, among_annotators=among,
                    with_detector=against, flagged=hint.source.flagged if hint.source.checked else None,
                    detector=hint.source.detector if hint.source.flagged else None,
                )
            )  # fmt: skip
    return items
