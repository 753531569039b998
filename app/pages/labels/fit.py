"""The view *Fit* of the page Labels: fit the detector to labels, compare versions on the same labels, use one."""

from __future__ import annotations

import json
from pathlib import Path

from app.common.quantities import fraction, plural
from app.common.urls import page_url
from app.components.nodes import Element, Node, action, el
from app.endpoints.leaks.fitting import FitOverview, FittedDetector, LabeledRun
from app.endpoints.studio import Studio
from app.pages.labels.desk import LabelForm
from app.pages.labels.report import interval_cell, number_cell, number_table
from rl2f_core.errors import RL2FError
from rl2f_core.leaks.mentions.model import SourceQuality

MAX_SOURCES = 6
"""Newest sources of findings in the comparison."""
USE = (
    "To use a version, choose it as the path of the leak detector mentions in a new run, or on the command line: "
    "--detector mentions:path=FILE."
)
CROSS_VALIDATED = (
    "Each label is predicted by weights that were fitted without its task. Blind random draws are weighted by the "
    "hints that they represent. No fit uses labels on the test set of tasks, which the detector report can unlock."
)
METRICS = ("precision", "recall")
QUALITIES = {"quality": "all labels", "blind": "blind draws", "blind_default": "blind draws, default weights"}
"""Field of a version → name of its row."""


def fit_view(studio: Studio, form: LabelForm, message: str, *, writable: bool = True) -> Element:
    """Return the labels and the button of a fit, the fitted versions, and their comparison on people's labels."""
    overview = studio.fitting.list_fitted_detectors()
    chosen = _chosen(overview, form)
    return el(
        "div.lb-report.lb-fit",
        _start(chosen, message, writable),
        _versions(overview.detectors, writable),
        _comparison(studio, form, chosen[0].id if len(chosen) == 1 else None),
    )


def start_fit(studio: Studio, form: LabelForm) -> str:
    """Fit to the labels of the chosen run, or of all; return the message for the user."""
    try:
        fitted = studio.fitting.fit_detector(_chosen_runs(studio, form))
    except RL2FError as error:
        return str(error)
    old, new = fitted.blind_default, fitted.blind
    if old is None or new is None:
        return f"{fitted.name} is fitted. Precision and recall on blind random draws: unknown, there are none."
    changes = (
        f"{name} {fraction(getattr(old, name).value)} → {fraction(getattr(new, name).value)}" for name in METRICS
    )
    draws = plural(new.hints, "blind random draw")
    return f"{fitted.name} is fitted. On {draws}, old → new: {', '.join(changes)}."


def start_rescoring(studio: Studio, form: LabelForm, path: str) -> str:
    """Queue a rescoring of the labeled runs with a version; return the message for the user."""
    try:
        queued = studio.fitting.rescore_with_detector(_chosen_runs(studio, form), path)
    except RL2FError as error:
        return str(error)
    runs = ", ".join(str(item.run) for item in queued)
    return f"Rescoring is queued as run {runs}. The comparison below then has a row for each."


def _chosen_runs(studio: Studio, form: LabelForm) -> list[int]:
    return [item.id for item in _chosen(studio.fitting.list_fitted_detectors(), form)]


def _chosen(overview: FitOverview, form: LabelForm) -> list[LabeledRun]:
    """Return the labeled run that the form names, or all."""
    return [item for item in overview.labeled_runs if not form.run or form.run == str(item.id)]


def _start(chosen: list[LabeledRun], message: str, writable: bool) -> Element:
    labels = sum(item.labels for item in chosen)
    return el(
        "section.rl-card.rl-stack",
        el("h2", "Fit detector"),
        el(
            "p",
            el("b.rl-num", plural(labels, "labeled hint")),
            f" of {plural(len(chosen), 'run')}; those on tasks of the dev set adapt the weights of detector mentions. "
            "Twenty suffice.",
        ),
        action("Fit", "fit", style="rl-primary") if writable and labels else None,
        el("p.lb-message", message, role="status") if message else None,
        aria_label="fit detector",
    )


def _versions(detectors: list[FittedDetector], writable: bool) -> Element:
    rows = [row for item in detectors for row in _version(item, writable)]
    heads: list[Node] = ["version", "", "precision", "recall", "hints", "threshold", ""]
    return el(
        "section.rl-card.rl-stack.bd-wide",
        el("h2", "Fitted versions"),
        number_table(heads, rows, "fitted versions") if rows else el("p.rl-muted", "None yet."),
        [el("p.rl-muted.rl-small", item) for item in (CROSS_VALIDATED, USE)] if rows else None,
        aria_label="fitted versions",
    )


def _version(detector: FittedDetector, writable: bool) -> list[Element]:
    """Return one row per set of labels; the first has the name and the button."""
    rows = []
    for i, (field, name) in enumerate(QUALITIES.items()):
        quality: SourceQuality | None = getattr(detector, field)
        unknown = el("td.rl-num", el("span.rl-muted", "unknown"))
        rescore = action("Rescore labeled runs", "rescore", detector=detector.path) if writable and i == 0 else None
        rows.append(
            el(
                "tr",
                el("th", detector.name if i == 0 else "", scope="row"),
                el("td", name),
                [interval_cell(getattr(quality, metric)) if quality else unknown for metric in METRICS],
                number_cell(quality.hints if quality else 0),
                number_cell(fraction(detector.threshold) if i == 0 else ""),
                el("td", rescore),
                data_row=f"{detector.name} {name}",
            )
        )
    return rows


def _detector_names(configs: str) -> str:
    """Return the names in the JSON of detector configurations, fitted ones with their version."""
    names = []
    for config in json.loads(configs) if configs.startswith("[") else []:
        version = Path(config["path"]).stem if config.get("path") else ""
        names.append(f"{config['type']} {version}".strip())
    return ", ".join(names) or configs


def _comparison(studio: Studio, form: LabelForm, run: int | None) -> Element:
    """Return precision and recall of each source of findings on the same blind labels of the dev set."""
    rows = []
    for source in studio.detectors.list_finding_sources()[: MAX_SOURCES + 1]:
        report = studio.detectors.detector_report(form.scope(run=run, source=source.name)).report
        total, used = report.total.estimates, report.usage.counted
        is_run = source.name == "run"
        name = "the runs' own" if is_run else f"run {source.name}: {_detector_names(source.detectors)}"
        link = page_url("labels", view="report", source=source.name, run=run)
        cells = interval_cell(total.precision), interval_cell(total.recall), number_cell(used)
        rows.append(el("tr", el("th", el("a", name, href=link), scope="row"), *cells, data_source=source.name))
    heads: list[Node] = ["detectors", "precision", "recall", "labels that count"]
    return el(
        "section.rl-card.rl-stack.bd-wide",
        el("h2", "Comparison on blind random draws"),
        number_table(heads, rows, "comparison"),
        el(
            "p.rl-muted.rl-small",
            "Only blind labels of random samples count; to add some, label a stratified sample. A version that was "
            "fitted to these labels appears better here than its cross-validated row above.",
        ),
        aria_label="comparison",
    )
