"""`rl2f leaks report`: how good a detector is on all hints, by people's labels, in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from jobs.labels.detector_report import DetectorReport
    from rl2f_core.stats.intervals import Interval


def report(
    workspace: Annotated[
        Path | None, typer.Option(help="The workspace's folder; else RL2F_WORKSPACE, else ./workspace.")
    ] = None,
    run: Annotated[int | None, typer.Option(help="Only hints of this run.")] = None,
    environment: Annotated[str, typer.Option(help="Only hints of this environment.")] = "",
    source: Annotated[str, typer.Option(help="Whose findings: run, or the number of a rescore run.")] = "run",
    group_by: Annotated[
        str, typer.Option(help="detector, teacher, environment, checkpoint, condition or run.")
    ] = "detector",
    test: Annotated[
        bool, typer.Option("--test", help="Unlock the test set of tasks; access is logged with --user.")
    ] = False,
    user: Annotated[str, typer.Option(metavar="NAME", help="Who unlocks the test set.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
) -> None:
    """Score a leak detector against people's labels: precision, recall, F1 and κ with 95 % intervals, for all hints.

    Half of all tasks, chosen by their content, is kept for the end: tune thresholds on the other half. Its figures are
    shown with --test, and everybody is told how often that was done.
    """
    import json

    from app.common.console import out
    from jobs.export.resolve_sources import open_workspace
    from jobs.labels import report_queries as store
    from jobs.labels.report_queries import Scope
    from rl2f_core.errors import ConfigError

    if test and not user.strip():
        raise ConfigError("Access to the test set is logged under a name.", fix="Add --user NAME.")
    scope = Scope(run, environment, source, test)
    with open_workspace(workspace, read_only=not test) as (_, db):
        db.migrate()
        found = store.read(db, scope, group_by)
        if test:
            store.unlock_test_set(db, scope, user)
        opened = store.list_accesses(db)
    if as_json:
        half = {"half": "test" if test else "dev", "openings": [each.model_dump() for each in opened]}
        typer.echo(json.dumps({**found.model_dump(mode="json"), **half}, indent=2, ensure_ascii=False))
        return
    console = out()
    for line in sentences(found, test=test):
        console.print(line, markup=False)
    console.print(_rows(found, group_by))
    if found.pairs:
        console.print(_pairs(found))
    if found.disagreements:
        console.print(_disputes(found))
    last = f", last by {opened[0].annotator}" if opened else ""
    console.print(f"The test half was opened {_times(len(opened))}{last}.", markup=False)


def sentences(found: DetectorReport, *, test: bool) -> list[str]:
    """What is known, and what to do to know more."""
    from jobs.labels.estimation import labels_needed, sample_size_for

    total, used = found.total.estimates, found.usage
    half = "test" if test else "dev"
    flags = f"{total.n_flagged} labelled flags of {total.flagged:,}"
    others = f"{total.n_unflagged} of {total.size - total.flagged:,} unflagged hints"
    lines = [
        f"Precision {share(total.precision)} on {flags}.",
        f"Recall {share(total.recall)}, F1 {share(total.f1)}, κ {share(total.kappa)} for all {total.size:,} hints "
        f"of the {half} half, with labels on {others}.",
    ]
    if total.prevalence.value is not None:
        lines.append(
            f"{share(total.prevalence)} of all hints leak; about {count(total.missed_leaks)} of these are not flagged."
        )
    left = [
        f"{n} {why}"
        for n, why in (
            (used.undecided, "undecided or unsure"),
            (used.not_blind, "not blind"),
            (used.not_sampled, "picked by hand"),
            (used.partial_sample, "drawn from a part only"),
            (used.unchecked, "not read by the detector"),
        )
        if n
    ]
    why = f" (not: {', '.join(left)})" if left else ""
    lines.append(f"{used.counted} of {used.hints} labelled hints count{why}.")
    if total.n_flagged + total.n_unflagged == 0:
        lines.append(f"Label a mixed random draw blind: {sample_size_for()} flagged hints give precision to ± .05.")
    elif total.recall.value is None and total.n_unflagged == 0:
        lines.append("Recall needs a random draw of unflagged hints: label 100 or more of them.")
    else:
        needs = [
            f"{more} more for {name} to ± .05"
            for name, found_, n in (
                ("precision", total.precision, total.n_flagged), ("recall", total.recall, total.recall.n),
            )
            if (more := labels_needed(found_, n))
        ]  # fmt: skip
        lines += [f"To label: {', '.join(needs)}."] if needs else []
    return lines


def share(found: Interval) -> str:
    """`.94 [.88, .97]`, or a dash."""
    if found.value is None:
        return "–"
    ends = "" if found.low is None or found.high is None else f" [{_two(found.low)}, {_two(found.high)}]"
    return f"{_two(found.value)}{ends}"


def count(found: Interval) -> str:
    """`18 [4, 55]`, or a dash."""
    if found.value is None:
        return "–"
    return f"{found.value:,.0f}" + ("" if found.low is None else f" [{found.low:,.0f}, {found.high:,.0f}]")


def _two(value: float) -> str:
    text = f"{abs(value):.3f}" if 0 < abs(value) < 0.005 else f"{abs(value):.2f}"
    sign = "−" if value < 0 and text.strip("0.") else ""
    return sign + (text[1:] if text.startswith("0") else text)


def _times(n: int) -> str:
    return {0: "never", 1: "once"}.get(n, f"{n} times")


def _rows(found: DetectorReport, group_by: str):  # type: ignore[no-untyped-def]  # rich's table, which --help does not load
    from app.common.console import table

    made = []
    for row in (found.total, *found.rows):
        e = row.estimates
        made.append(
            [
                f"{row.name}{' (few)' if row.too_few_labels else ''}", f"{e.size:,}", f"{e.flagged:,}",
                f"{e.n_flagged}+{e.n_unflagged}", share(e.precision), share(e.recall), share(e.f1), share(e.kappa),
                share(row.annotator_kappa),
            ]
        )  # fmt: skip
    heads = (group_by, "hints", "flagged", "labels", "precision", "recall", "F1", "κ", "κ of labellers")
    title = f"{found.hidden} rows without labels are left out" if found.hidden else None
    return table(*heads, rows=made, title=title)


def _pairs(found: DetectorReport):  # type: ignore[no-untyped-def]
    from app.common.console import table

    rows = [[f"{p.a} and {p.b}", str(p.n), share(p.observed), share(p.kappa)] for p in found.pairs]
    return table("labellers", "hints", "equal answers", "κ", rows=rows)


def _disputes(found: DetectorReport):  # type: ignore[no-untyped-def]
    from app.common.console import table

    rows = []
    for each in found.disagreements[-20:][::-1]:
        said = ", ".join(f"{user}: {label}" for user, label in each.labels.items())
        detector = "not read" if each.flagged is None else f"flagged ({each.detector})" if each.flagged else "clean"
        rows.append([f"run {each.run}", each.event, str(each.turn + 1), said, detector])
    return table("disagreement", "dialogue", "hint", "people", "detector", rows=rows)
