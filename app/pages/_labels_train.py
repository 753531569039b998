"""The view *Train* of the page Labels: start a training, compare detectors on the same labels, use a version."""

from __future__ import annotations

import json
from pathlib import Path

from app.common.urls import page_url
from app.components.nodes import Element, Node, action, badge, el
from app.endpoints.detector_training import TrainedDetector, TrainingOverview
from app.endpoints.studio import Studio
from app.pages._labels_desk import LabelForm
from app.pages._labels_report import fraction, interval_cell, number_cell, plural, table
from rl2f_core.errors import RL2FError

MAX_SOURCES = 6
"""Newest sources of findings in the comparison."""
USE = (
    "To use a version, add the leak detector classifier in a new run and choose the version as its path. Put it after "
    "exact and equivalent, which are faster."
)
OPTIMISM = (
    "Held-out tasks, with the threshold of each half chosen on the other. No training uses labels on the test set of "
    "tasks, which the detector report can unlock."
)


def train_view(studio: Studio, form: LabelForm, message: str, *, writable: bool = True) -> Element:
    """Return the form of a training, the trained versions, and their comparison on people's labels."""
    overview = studio.training.list_detector_training()
    return el(
        "div.lb-report.lb-train",
        _start(overview, form, message, writable),
        _versions(overview["detectors"], writable),
        _comparison(studio, form),
    )


def start_training(studio: Studio, form: LabelForm) -> str:
    """Queue a training on the labels of the chosen run, or of all; return the message for the user."""
    names = [name for name in form.benchmarks.split(",") if name]
    try:
        queued = studio.training.train_detector(
            _chosen_runs(studio, form), {"benchmarks": names, "model": {"name": form.model or LabelForm.model}}
        )
    except RL2FError as error:
        return str(error)
    return f"Training is queued as run {queued['run']}. The new version is listed here when it succeeded."


def start_rescoring(studio: Studio, form: LabelForm, path: str) -> str:
    """Queue a rescoring of the labeled runs with a version; return the message for the user."""
    try:
        queued = studio.training.rescore_with_detector(_chosen_runs(studio, form), path)
    except RL2FError as error:
        return str(error)
    runs = ", ".join(str(each["run"]) for each in queued)
    return f"Rescoring is queued as run {runs}. The comparison below then has a row for each."


def _chosen_runs(studio: Studio, form: LabelForm) -> list[int]:
    labeled = [each["id"] for each in studio.training.list_detector_training()["labeled_runs"]]
    return [id for id in labeled if not form.run or form.run == str(id)]


def _start(overview: TrainingOverview, form: LabelForm, message: str, writable: bool) -> Element:
    chosen = [each for each in overview["labeled_runs"] if not form.run or form.run == str(each["id"])]
    labels = sum(each["labels"] for each in chosen)
    benchmarks = form.benchmarks.replace(",", " and ") or "no"
    active = [
        el("li", el("a", each["name"], href=each["url"]), " ", badge(each["status"])) for each in overview["active"]
    ]
    return el(
        "section.rl-card.rl-stack",
        el("h2", "Train detector"),
        el(
            "p",
            f"Data: the dev half of the {benchmarks} benchmark, and ",
            el("b.rl-num", plural(labels, "labeled hint")),
            f" of {plural(len(chosen), 'run')}, of which those on tasks of the dev set are used.",
        ),
        action("Train detector", "train", style="rl-primary") if writable else None,
        el("p.lb-message", message, role="status") if message else None,
        el("ul", active) if active else None,
        aria_label="train detector",
    )


def _versions(detectors: list[TrainedDetector], writable: bool) -> Element:
    rows = [_version(each, writable) for each in detectors]
    heads: list[Node] = ["version", "source", "precision", "recall", "threshold", "labels", ""]
    content = table(heads, [row for group in rows for row in group], "trained detectors")
    return el(
        "section.rl-card.rl-stack.bd-wide",
        el("h2", "Trained detectors"),
        content if rows else el("p.rl-muted", "None yet."),
        el("p.rl-muted.rl-small", OPTIMISM) if rows else None,
        el("p.rl-muted.rl-small", USE) if rows else None,
        aria_label="trained detectors",
    )


def _version(detector: TrainedDetector, writable: bool) -> list[Element]:
    """Return one row per source of held-out hints; the first has the name and the button."""
    rows = []
    for i, (source, quality) in enumerate(detector["quality"].items()):
        rescore = action("Rescore labeled runs", "rescore", detector=detector["path"]) if writable and i == 0 else None
        rows.append(
            el(
                "tr",
                el("th", detector["name"] if i == 0 else "", scope="row"),
                el("td", source),
                interval_cell(quality["precision"]),
                interval_cell(quality["recall"]),
                number_cell(fraction(detector["threshold"]) if i == 0 else ""),
                number_cell(detector["labels"] if i == 0 else ""),
                el("td", rescore),
                data_row=detector["name"],
            )
        )
    return rows


def _detector_names(configs: str) -> str:
    """Return the names in the JSON of detector configurations, a classifier with its version."""
    names = []
    for config in json.loads(configs) if configs.startswith("[") else []:
        version = "/".join(Path(config["path"]).parts[-2:]) if "path" in config else ""
        names.append(f"{config['type']} {version}".strip())
    return ", ".join(names) or configs


def _comparison(studio: Studio, form: LabelForm) -> Element:
    """Return precision and recall of each source of findings on the same blind labels of the dev set."""
    rows = []
    for source in studio.detectors.list_finding_sources()[: MAX_SOURCES + 1]:
        scope = {**form.scope(), "source": source["name"]}
        report = studio.detectors.detector_report(**scope)["report"]
        total, used = report["total"]["estimates"], report["usage"]["counted"]
        is_run = source["name"] == "run"
        name = "the runs' own" if is_run else f"run {source['name']}: {_detector_names(source['detectors'])}"
        link = page_url("labels", view="report", source=source["name"], run=form.run or None)
        cells = interval_cell(total["precision"]), interval_cell(total["recall"]), number_cell(used)
        rows.append(el("tr", el("th", el("a", name, href=link), scope="row"), *cells, data_source=source["name"]))
    heads: list[Node] = ["detectors", "precision", "recall", "labels that count"]
    return el(
        "section.rl-card.rl-stack.bd-wide",
        el("h2", "Comparison on blind random draws"),
        table(heads, rows, "comparison"),
        el("p.rl-muted.rl-small", "Only blind labels of random samples count. To add some, label a stratified sample."),
        aria_label="comparison",
    )
