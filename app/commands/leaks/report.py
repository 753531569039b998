"""`rl2f leaks report`: precision and recall of a leak detector by human labels."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.options import AsJson, Root
from app.commands.settings import options_of
from app.common.console import out, table
from app.common.quantities import ends, fraction
from rl2f_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from app.endpoints.leaks.detector_cards import DetectorCard
    from app.endpoints.leaks.detectors import ReportScope
    from jobs.labels.detector_report import DetectorReport
    from jobs.labels.estimation import Estimates
    from rl2f_core.common.stats.intervals import Interval


def report(
    workspace: Root = None,
    hints: ReportScope = options_of("app.endpoints.leaks.detectors:ReportScope"),
    test: Annotated[
        bool, typer.Option("--test", help="Unlock the test set of tasks; access is logged with --user.")
    ] = False,
    user: Annotated[str, typer.Option(metavar="NAME", help="Name under which the access is logged.")] = "",
    as_json: AsJson = False,
) -> None:
    """Score a leak detector by human labels: precision, recall, F1 and κ for all hints, with 95 % intervals.

    Half of the tasks, by hash, are the test set: tune thresholds on the others, the dev set. --test shows the results
    on the test set; the report states the number of accesses.
    """
    from app.common.known_values import check_environment
    from app.endpoints.leaks.detector_cards import configured_detectors, detector_cards
    from jobs.db.queries import runs
    from jobs.export.datasets.resolve_sources import open_workspace
    from jobs.ingest.ingester import ingest_pending
    from jobs.labels import report_queries as store
    from jobs.labels.hint_counts import Scope
    from rl2f_core.run.directory import RunDir

    if test and not user.strip():
        raise ConfigError("Access to the test set is logged under a name.", fix="Add --user NAME.")
    group_by, scope = hints.group_by, Scope(**hints.model_dump(exclude={"group_by"}), test=test)
    with open_workspace(workspace, read_only=not test) as (folder, db):
        if test and db.migrate(folder.lock):
            ingest_pending(db, folder)
        check_environment(db, scope.environment)
        result = store.read(db, scope, group_by)
        if test:
            store.unlock_test_set(db, scope, user)
        opened = store.list_accesses(db)
        cards: list[DetectorCard] = []
        if scope.run is not None:
            configs = configured_detectors(db, RunDir(folder.folder(runs.get(db, scope.run).folder)), scope.source)
            cards = detector_cards(configs, store.read(db, Scope(source=scope.source)))
    if as_json:
        data = {
            **result.model_dump(mode="json"),
            "split": "test" if test else "dev",
            "test_set_accesses": [dict(access) for access in opened],
            "detector_cards": [card.model_dump(mode="json") for card in cards],
        }
        typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
        return
    for line in sentences(result, test=test):
        out().print(line, markup=False)
    for section in _tables(result, group_by, cards):
        out().print(section)
    times = {0: "never", 1: "once"}.get(len(opened), f"{len(opened)} times")
    last = f", last by {opened[0].annotator}" if opened else ""
    out().print(f"The test set was unlocked {times}{last}.", markup=False)


def _tables(report: DetectorReport, group_by: str, cards: Sequence[DetectorCard]) -> Iterator[Table]:
    yield _score_table(report, group_by)
    if cards:
        yield _card_table(cards)
    if report.planted:
        yield _planted_table(report)
    if report.pairs:
        yield _pair_table(report)
    if report.disagreements:
        yield _disagreement_table(report)


def sentences(report: DetectorReport, *, test: bool) -> list[str]:
    """Describe the results, and which further labels improve them."""
    total, used = report.total.estimates, report.usage
    flags = f"{total.n_flagged} labeled hints of {total.flagged:,} flagged ones"
    others = f"{total.n_unflagged} of {total.size - total.flagged:,} unflagged hints"
    lines = [
        f"Precision {proportion(total.precision)} on {flags}.",
        f"Recall {proportion(total.recall)}, F1 {proportion(total.f1)}, κ {proportion(total.kappa)} for all "
        f"{total.size:,} hints of the {'test' if test else 'dev'} set, with labels on {others}.",
    ]
    if total.prevalence.value is not None:
        missed = count(total.missed_leaks)
        lines.append(f"{proportion(total.prevalence)} of all hints leak; about {missed} of these are not flagged.")
    excluded = {
        "undecided or unsure": used.undecided,
        "not blind": used.not_blind,
        "not sampled": used.not_sampled,
        "partial sample": used.partial_sample,
        "not checked by the detector": used.unchecked,
    }
    reasons = ", ".join(f"{n} {reason}" for reason, n in excluded.items() if n)
    lines.append(f"{used.counted} of {used.hints} labeled hints count{f' (excluded: {reasons})' if reasons else ''}.")
    return [*lines, *_next_labels(total)]


def _next_labels(total: Estimates) -> list[str]:
    """Return which labels narrow the intervals to ± .05."""
    from jobs.labels.estimation import SUFFICIENT_LABELS, labels_needed

    if total.n_flagged + total.n_unflagged == 0:
        return [f"Label a stratified sample blind: {SUFFICIENT_LABELS} flagged hints give precision to ± .05."]
    if total.recall.value is None and total.n_unflagged == 0:
        return ["Recall requires a random sample of unflagged hints: label 100 or more of them."]
    more = {
        "precision": labels_needed(total.precision, total.n_flagged),
        "recall": labels_needed(total.recall, total.recall.n),
    }
    needs = [f"{n} more for {name} to ± .05" for name, n in more.items() if n]
    return [f"To label: {', '.join(needs)}."] if needs else []


def proportion(interval: Interval) -> str:
    """Format `.94 [.88, .97]`, or a dash."""
    return f"{fraction(interval.value)} {ends(interval)}".rstrip()


def count(interval: Interval) -> str:
    """Format `18 [4, 55]`, or a dash."""
    if interval.value is None:
        return "–"
    return f"{interval.value:,.0f}" + ("" if interval.low is None else f" [{interval.low:,.0f}, {interval.high:,.0f}]")


def _score_table(report: DetectorReport, group_by: str) -> Table:
    rows = []
    for row in (report.total, *report.rows):
        e = row.estimates
        name = f"{row.name}{' (few)' if row.too_few_labels else ''}"
        counts = (f"{e.size:,}", f"{e.flagged:,}", f"{e.n_flagged}+{e.n_unflagged}")
        rows.append([name, *counts, *map(proportion, (e.precision, e.recall, e.f1, e.kappa, row.annotator_kappa))])
    heads = (group_by, "hints", "flagged", "labels", "precision", "recall", "F1", "κ", "κ between annotators")
    title = f"{report.hidden} rows without labels are not shown" if report.hidden else None
    return table(*heads, rows=rows, title=title)


def _card_table(cards: Sequence[DetectorCard]) -> Table:
    """Return how far flags can be trusted, by detector and set of hints."""
    rows = [
        [card.detector, row.name, f"{row.hints:,}", _known(row.precision), _known(row.recall)]
        for card in cards
        for row in card.rows
    ]
    return table("flags of", "on", "hints", "precision", "recall", rows=rows)


def _known(interval: Interval) -> str:
    return "unknown here" if interval.value is None else proportion(interval)


def _planted_table(report: DetectorReport) -> Table:
    rows = [[r.group, r.name, f"{r.hints:,}", f"{r.flagged:,}", proportion(r.recall)] for r in report.planted]
    return table("planted leaks", "name", "hints", "flagged", "recall", rows=rows)


def _pair_table(report: DetectorReport) -> Table:
    rows = [[f"{p.a} and {p.b}", str(p.n), proportion(p.observed), proportion(p.kappa)] for p in report.pairs]
    return table("annotators", "hints", "equal labels", "κ", rows=rows)


def _disagreement_table(report: DetectorReport) -> Table:
    rows = []
    for d in report.disagreements[-20:][::-1]:
        labels = ", ".join(f"{user}: {label}" for user, label in d.labels.items())
        detector = "not checked" if d.flagged is None else f"flagged ({d.detector})" if d.flagged else "not flagged"
        rows.append([f"run {d.run}", d.event, str(d.turn + 1), labels, detector])
    return table("disagreement", "dialogue", "hint", "annotators", "detector", rows=rows)
