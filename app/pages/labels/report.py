"""The detector report of the page Labels: metrics with intervals, agreement, disagreements and the test set."""

from __future__ import annotations

from collections.abc import Sequence

from app.common.quantities import ends, fraction, plural
from app.common.urls import page_url
from app.components.elements.help_tip import help_tip
from app.components.elements.transcript import LABEL_TEXTS, inline
from app.components.nodes import Element, Node, action, el, table, time_ago
from app.endpoints.leaks.detectors import Accesses, DisagreementRow, ReportResult
from app.pages.labels.desk import LabelForm
from jobs.labels.detector_report import GROUP_BY, DetectorReport, GroupBy, MetricsRow
from jobs.labels.estimation import Estimates
from rl2f_core.common.stats.intervals import Interval
from rl2f_core.common.text.decimals import decimal

NAME_FIELD = "#label-annotator :is(input, textarea)"
"""The field of the annotator's name, which buttons focus while it is empty."""
METRICS = {
    "precision": ("precision", "Leaks among the flagged hints.", "TP / (TP + FP)"),
    "recall": (
        "recall",
        "Flagged hints among all leaks; each label is weighted by the hints that it represents.",
        "TP / (TP + FN)",
    ),
    "f1": ("F1", "Harmonic mean of precision and recall.", "2 · precision · recall / (precision + recall)"),
    "kappa": (
        "κ detector–human",
        "Agreement of the detector with the labels on all hints beyond chance.",
        "(observed − chance) / (1 − chance)",
    ),
}
"""Field of the estimates → name, meaning, formula."""
UNUSED_LABELS = (
    ("undecided", "undecided or only unsure"),
    ("not_blind", "not blind"),
    ("not_sampled", "chosen by hand, not sampled"),
    ("partial_sample", "sampled from only a part of these runs"),
    ("unchecked", "on hints that this source did not check"),
)
FIRST_RECALL = "Label 100 unflagged hints of a random sample for a first recall."


# -- numbers ---------------------------------------------------------------------------------------------------------
def estimate(interval: Interval) -> list[Node]:
    """Return an estimate with its interval."""
    shown = el("b.rl-num", fraction(interval.value))
    return [shown, el("span.rl-num.bd-ends", f" {ends(interval)}") if ends(interval) else None]


def interval_line(interval: Interval, low: float = 0) -> Element:
    """Return the interval on a line from `low` to 1, with the estimate as a point."""

    def position(value: float) -> float:
        return 100 * max(0.0, min(1.0, (value - low) / (1 - low)))

    value = interval.value
    text = "unknown" if value is None else f"{fraction(value)} {ends(interval)}".strip()
    band = None
    if value is not None and interval.low is not None and interval.high is not None:
        left, right = position(interval.low), 100 - position(interval.high)
        band = el("i.bd-band", style=f"left: {left:.2f}%; right: {right:.2f}%")
    return el(
        "span.bd-line",
        el("i.bd-zero", style=f"left: {position(0):.2f}%") if low < 0 else None,
        band,
        None if value is None else el("i.bd-point", style=f"left: {position(value):.2f}%"),
        role="img",
        aria_label=text,
    )


def interval_cell(interval: Interval) -> Element:
    """Return a table cell with an estimate and its interval."""
    if interval.value is None:
        return el("td.rl-num", el("span.rl-muted", "–"))
    line = interval_line(interval) if ends(interval) else None
    return el("td.rl-num", el("span.bd-cell", el("span", estimate(interval)), line))


def number_cell(value: str | int) -> Element:
    """Return a table cell with a number."""
    return el("td.rl-num", value if isinstance(value, str) else f"{value:,}")


def number_table(heads: Sequence[Node], rows: list[Element], name: str) -> Element:
    """Return a table whose first column has names and whose others have numbers."""
    cells = [el("th", head, class_="rl-num" if i else None, scope="col") for i, head in enumerate(heads)]
    return table(cells, rows, "bd-table", name=name)


# -- report ----------------------------------------------------------------------------------------------------------
def report_view(result: ReportResult, group_by: GroupBy, form: LabelForm, *, writable: bool = True) -> Element:
    """Return the detector report.

    Args:
        result: The report.
        group_by: Grouping of its rows.
        form: The fields of the page.
        writable: The test set may be unlocked.
    """
    report = result.report
    has_hints = bool(report.total.estimates.size)
    return el(
        "div.lb-report",
        _summary(result, form),
        _breakdown(report, group_by) if has_hints else None,
        _information(report) if report.information else None,
        _planted(report) if report.planted else None,
        el("div.bd-column", _labels(report), _test_set(result, form.annotator, writable)),
        _disagreements(result),
        data_set="test" if result.is_test_set else "dev",
    )


def _summary(result: ReportResult, form: LabelForm) -> Element:
    estimates = result.report.total.estimates
    if result.is_test_set:
        lock = action("Lock test set", "lock", style="rl-small")
        top = el("p.bd-open", "Test set, unlocked. Do not tune on these results. ", lock)
        bottom = None
    else:
        to_label, url = labels_to_add(result), form.url(view="queue", selection="stratified")
        sample = el("a.rl-button.rl-primary", "Label a stratified sample", href=url)
        top, bottom = None, el("p.bd-task", el("span", to_label), sample) if to_label else None
    return el(
        "section.rl-card.bd-head",
        top,
        el("p.bd-sentence", _sentence(result)),
        el("p.rl-muted", _prevalence(estimates)),
        el("div.bd-meters", [_meter(key, getattr(estimates, key)) for key in METRICS]),
        bottom,
        aria_label="summary",
    )


def _sentence(result: ReportResult) -> list[Node]:
    e = result.report.total.estimates
    hints = f"all {plural(e.size, 'hint')}{' of the test set' if result.is_test_set else ''}"
    if not e.size:
        return ["No hint of these runs was checked by a detector."]
    if not e.n_flagged and not e.n_unflagged:
        return [f"No estimate for {hints} yet: there is no blind label on a random sample."]
    out: list[Node] = []
    if e.precision.value is not None:
        out += ["Precision ", *estimate(e.precision), f" on {plural(e.n_flagged, 'labeled flag')}"]
    elif not e.flagged:
        out.append("The detector flagged none of them")
    else:
        out.append("Precision is unknown: no flagged hint of a random sample is labeled")
    recall = e.recall
    if recall.value == 1 and e.n_unflagged and not e.false_negatives:
        low = el("b.rl-num", fraction(recall.low))
        unflagged = plural(e.n_unflagged, "unflagged hint")
        out += [f"; no leak among {unflagged}, so recall is at least ", low, f" for {hints}."]
    elif recall.value is not None:
        out += ["; recall ", *estimate(recall), f" estimated for {hints}."]
    elif not e.n_unflagged and e.size > e.flagged:
        out.append("; recall is unknown: no unflagged hint of a random sample is labeled.")
    else:
        out.append("; recall is unknown: the labels contain no leak.")
    return out


def _prevalence(estimates: Estimates) -> list[Node]:
    missed = estimates.missed_leaks
    if estimates.prevalence.value is None:
        return []
    ends_text = "" if missed.low is None else f" [{missed.low:,.0f}, {missed.high:,.0f}]"
    interval = el("span.rl-num.bd-ends", ends_text)
    count = el("b.rl-num", f"{missed.value:,.0f}")
    return ["Leaking hints: ", *estimate(estimates.prevalence), ". Unflagged leaks: about ", count, interval, "."]


def labels_to_add(result: ReportResult) -> str | None:
    """Return what to label next; None if both intervals are narrow enough."""
    e, needed = result.report.total.estimates, result.labels_needed
    first = needed.without_labels
    if not e.size:
        return None
    if not e.n_flagged and not e.n_unflagged:
        precision = f"{first} labels on flagged hints give precision to ± .05 at worst"
        return f"Label a stratified sample blind. {precision}; 100 on unflagged ones give a first recall."
    if not e.n_unflagged and e.size > e.flagged:
        return FIRST_RECALL
    if not e.n_flagged and e.flagged:
        return f"Label {min(first, e.flagged)} flagged hints of a random sample: they give precision to ± .05."
    unlabeled = e.size - e.n_flagged - e.n_unflagged
    counts = (
        ("precision", min(needed.precision or 0, e.flagged - e.n_flagged), "flagged hints"),
        ("recall", min(needed.recall or 0, unlabeled), "hints of the sample"),
    )
    parts = [f"{name} to ± .05: about {count:,} more {what}" for name, count, what in counts if count]
    return f"Label more for {'; '.join(parts)}." if parts else None


def _meter(key: str, interval: Interval) -> Element:
    name, text, formula = METRICS[key]
    known = interval.value is not None
    return el(
        "div.bd-meter",
        el("span.bd-name", name, help_tip(name, text, formula)),
        el("b.rl-num", fraction(interval.value)),
        interval_line(interval, -1 if key == "kappa" else 0),
        el(
            "span.rl-muted.rl-small.rl-num",
            " · ".join(filter(None, [ends(interval), plural(interval.n, "label")])) if known else "unknown",
        ),
        data_measure=name,
    )


def _breakdown(report: DetectorReport, group_by: GroupBy) -> Element:
    buttons = [
        el(
            "button.rl-button.rl-small",
            name,
            data_action="group",
            data_by=name,
            aria_pressed=str(name == group_by).lower(),
        )
        for name in GROUP_BY
    ]
    for arrow, name, step in (("←", "previous", -1), ("→", "next", 1)):
        tag, title = f"button.rl-button.rl-small.rl-quiet.bd-{name}", f"{name} grouping"
        buttons.append(el(tag, arrow, title=title, aria_label=title, data_action="step_group", data_step=step))
    between = help_tip("κ between annotators", "Agreement beyond chance over all pairs of annotators.", "Cohen's κ")
    alone = help_tip("recall", "Fraction of all leaks that this detector is the first to find.")
    heads: list[Node] = [
        group_by,
        "precision",
        el("span", "recall", alone if group_by == "detector" else None),
        "F1",
        "κ detector–human",
        el("span", "κ between annotators", between),
        el("span", "labels", help_tip("labels", "Labeled hints that count: flagged + unflagged.")),
        "flagged",
        "hints",
    ]
    rows = [_row(report.total, group_by), *(_row(row, group_by) for row in report.rows)]
    hidden = report.hidden
    omitted = f"{plural(hidden, 'row')} without labels {'is' if hidden == 1 else 'are'} omitted."
    return el(
        "section.rl-card.rl-stack.bd-wide",
        el("div.rl-row.bd-by", el("h2", "By"), buttons, role="group", aria_label="group by"),
        number_table(heads, rows, f"metrics by {group_by}"),
        el("p.rl-muted", omitted) if hidden else None,
        aria_label="breakdown",
    )


def _information(report: DetectorReport) -> Element:
    """Return the table of the bits in flagged and other hints."""
    heads: list[Node] = [
        "hints",
        "checked",
        el("span", "bits", help_tip("bits", "Mean information in a hint.", "log2(candidates before / after the hint)")),
        el("span", "determine the answer", help_tip("determine", "One candidate is left, stated or not.")),
    ]
    rows = []
    for item in report.information:
        name, known = "flagged" if item.flagged else "not flagged", item.known
        mean = decimal(item.bits / known) if known else "–"
        determining = f"{item.determining:,} of {known:,}"
        cells = [number_cell(item.hints), number_cell(mean), number_cell(determining)]
        rows.append(el("tr", el("th", name, scope="row"), cells, data_row=name))
    text = "Detectors find hints that state the answer. A hint can also determine it: a single answer is then left."
    return el(
        "section.rl-card.rl-stack",
        el("h2", "Information in hints"),
        el("p.rl-muted", text),
        number_table(heads, rows, "information in hints"),
        aria_label="information in hints",
    )


def _planted(report: DetectorReport) -> Element:
    """Return the table of the recall on planted leaks."""
    rows = []
    for item in report.planted:
        group, name = item.group, item.name
        title = name if group == "all" else f"{group} {name.replace('_', ' ') if group == 'kind' else name}"
        cells = [interval_cell(item.recall), number_cell(item.flagged), number_cell(item.hints)]
        rows.append(el("tr", el("th", inline(title, 40), scope="row"), cells, data_row=f"planted {group} {name}"))
    text = (
        "Leaks that the teacher leaky wrote. Their kind is known, so recall needs no labels. No other number has them."
    )
    return el(
        "section.rl-card.rl-stack",
        el("h2", "Planted leaks"),
        el("p.rl-muted", text),
        number_table(["planted", "recall", "flagged", "hints"], rows, "recall on planted leaks"),
        aria_label="planted leaks",
    )


def _row(row: MetricsRow, group_by: GroupBy) -> Element:
    e, name = row.estimates, row.name
    count, is_total = e.n_flagged + e.n_unflagged, name == "all"
    is_run = group_by == "run" and not is_total
    few, title = None, None
    if row.too_few_labels:
        few = el("span.rl-muted.rl-small", " few labels" if count else " no labels")
        title = f"{plural(count, 'label')} here; fewer than 20 are uncertain"
    shown = el("a", f"run {name}", href=page_url("run", run=name)) if is_run else inline(name, 40)
    return el(
        f"tr{'.bd-all' if is_total else ''}{'.bd-small' if few else ''}",
        el("th", shown, few, scope="row", title=title),
        [interval_cell(getattr(e, key)) for key in METRICS],
        interval_cell(row.annotator_kappa),
        [number_cell(text) for text in (f"{e.n_flagged} + {e.n_unflagged}", e.flagged, e.size)],
        data_row=name,
        data_key=f"row {name}",
    )


def _labels(report: DetectorReport) -> Element:
    usage, annotators, pairs = report.usage, report.annotators, report.pairs
    unused = [el("li", el("b.rl-num", str(n)), f" {text}") for key, text in UNUSED_LABELS if (n := getattr(usage, key))]
    counts = [
        el(
            "tr",
            el("th", inline(item.name, 40), scope="row"),
            [number_cell(getattr(item, label)) for label in ("leak", "no_leak", "unsure")],
            number_cell(f"{item.blind} of {item.n}"),
        )
        for item in annotators
    ]
    both = [
        el(
            "tr",
            el("th", inline(item.a, 30), " and ", inline(item.b, 30), scope="row"),
            number_cell(item.n),
            el("td.rl-num", estimate(item.observed)),
            el("td.rl-num", estimate(item.kappa)),
        )
        for item in pairs
    ]
    nobody = (
        "κ needs two annotators on the same hints, blind: let a second person label a sample of the same seed and size."
    )
    count = f" count{'s' if usage.counted == 1 else ''}: blind, on a random sample."
    newer = (
        f"{plural(report.newer_hints, 'hint')} came after these labels, so no sample contains them. The estimates take "
        "them to be like the others; label another sample to check this."
    )
    return el(
        "section.rl-card.rl-stack",
        el("h2", f"Labels on {plural(usage.hints, 'hint')}"),
        el("p", el("b.rl-num", f"{usage.counted:,}"), count),
        el("ul.bd-reasons.rl-muted", unused) if unused else None,
        el("p.rl-warning", newer) if report.newer_hints and usage.counted else None,
        number_table(["annotator", "leak", "no leak", "unsure", "blind"], counts, "annotators") if annotators else None,
        el("h2", "Between annotators"),
        number_table(["pair", "hints", "equal labels", "Cohen’s κ"], both, "pairs of annotators")
        if both
        else el("p.rl-muted", nobody),
        aria_label="labels",
    )


def _disagreements(result: ReportResult) -> Element:
    count, rows = result.disagreement_count, result.disagreements
    newest = f" The newest {len(rows)} are listed." if count > len(rows) else ""
    keys: list[Node] = [el("kbd", "j"), " ", el("kbd", "k"), " choose, ", el("kbd", "Enter"), " opens the dialogue."]
    labeled = result.report.usage.hints
    nothing = "None: annotators agree with each other and with the detector." if labeled else "None yet."
    return el(
        "section.rl-card.rl-stack",
        el("h2", f"Disagreements ({count})"),
        el("p.rl-muted.rl-small", keys, newest) if count else None,
        el("div.lb-disagreements", [_disagreement(row) for row in rows]) if rows else el("p.rl-muted", nothing),
        aria_label="disagreements",
    )


def _disagreement(row: DisagreementRow) -> Element:
    run, event_id, turn, flagged = row.run, row.event, row.turn, row.flagged
    name = event_id.split(":", 2)[-1]
    detector = None
    if flagged is not None:
        text = f"⚑ {row.detector or 'leak'}" if flagged else "no leak"
        detector = el("span.tx-label", f"detector: {text}", data_label="leak" if flagged else "")
    labels = [
        el("span.tx-label", inline(annotator, 20), f": {LABEL_TEXTS[label]}", data_label=label)
        for annotator, label in row.labels.items()
    ]
    return el(
        "a.lb-disagreement",
        el("span.rl-cut", f"run {run} · ", inline(name, 60), f" · hint {turn + 1}"),
        el("span.rl-row", labels, detector),
        href=page_url("dialogues", run=run, dialogue=event_id, turn=turn),
        data_event=event_id,
        data_return=f"{run} {event_id} {turn}",
        data_key=f"{run} {event_id} {turn}",
    )


def _test_set(result: ReportResult, annotator: str, writable: bool) -> Element:
    unlock = el(
        "button.rl-button.bd-unlock",
        "Unlock test set…",
        disabled=not writable,
        data_action="unlock",
        data_focus=None if annotator else NAME_FIELD,
        data_confirm=f"Access is logged under {annotator}. Do not tune on these results." if annotator else None,
        data_confirm_label="Unlock test set" if annotator else None,
    )
    button = action("Lock test set", "lock") if result.is_test_set else unlock
    return el(
        "section.rl-card.rl-stack",
        el("h2", "Test set"),
        el(
            "p.rl-muted",
            "Half of all tasks (by hash, so the same in every run) are held out: tune on the dev set, then unlock the "
            "test set. Its disagreements stay hidden too. Every access is logged.",
        ),
        el("div.rl-row", el("span", _access(result.accesses)), el("span.rl-grow"), button),
        aria_label="test set",
    )


def _access(accesses: Accesses) -> list[Node]:
    if not accesses.count:
        return ["Never unlocked."]
    count = "once" if accesses.count == 1 else f"{accesses.count} times"
    last = accesses.newest[0]
    return [f"Unlocked {count}, last by ", inline(last.annotator, 40), " ", time_ago(last.time), "."]
