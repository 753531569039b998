"""Rendering of the page Exports: how many dialogues an export would contain, its jobs, and the finished ones."""

from __future__ import annotations

from app.common.console import human_bytes
from app.common.quantities import plural
from app.common.urls import page_url
from app.components.elements.transcript import separated
from app.components.nodes import Element, Node, action, badge, el, empty, progress, table, time_ago
from app.endpoints.exports import ExportCount, ExportedModel, ExportJob, ExportList, FinishedExport
from rl2f_core.types import JsonObject

PRIVILEGED = "⚑ Every prompt contains the answer. A student trained on it learns to read answers that it will not have."
REQUIRED = {
    "formats": "Choose at least one dataset type.",
    "files": "Choose at least one file type.",
    "runs": "Choose a run.",
}


def count_text(form: JsonObject, found: ExportCount | None) -> Element:
    """Return how many dialogues the export would contain, or what is missing."""
    missing = next((text for name, text in REQUIRED.items() if not form[name]), None)
    if missing or found is None:
        return el("p.rl-muted", missing)
    text = f"{plural(found.dialogues, 'dialogue')}, {found.labeled:,} of them with human labels"
    excluded = [
        el("p.rl-muted", f"{plural(item.dialogues, 'dialogue')} {item.what} excluded; see Which dialogues.")
        for item in found.excluded
    ]
    link = None
    if form["labels"] == "human" and not found.labeled:
        link = el("a", "Label some first", href=page_url("labels", run=form["runs"][0]))
    warning = el("p.rl-warning", PRIVILEGED, role="alert") if form["privileged"] else None
    return el("div", warning, el("p", text, ". " if link else None, link, aria_live="polite"), excluded)


def export_list(found: ExportList, writable: bool, *, paused: bool = False, shown: str = "") -> Element:
    """Return the exports that wait, run or failed, and below them the finished ones with their files.

    The export in the folder `shown` is scrolled into view.
    """
    jobs = [_job(job, writable, paused) for job in [*found.active, *found.failed]]
    finished = [_export(item, writable, item.folder == shown) for item in found.finished]
    models = [_model(item, writable, item.folder == shown) for item in found.models]
    nothing = empty(
        "No export yet",
        "Choose a run and press Export. Its dialogues become JSON lines and Parquet files with a dataset card.",
    )
    title = "Queued, running and failed"
    return el(
        "div.rl-page",
        el("section.rl-stack", el("h2", title), jobs, aria_label=f"{title} exports") if jobs else None,
        el("section.rl-stack", el("h2", "Finished"), finished or nothing, aria_label="Finished exports"),
        el("section.rl-stack", el("h2", "Models"), models, aria_label="Exported models") if models else None,
    )


def _job(job: ExportJob, writable: bool, paused: bool) -> Element:
    active = job.status in ("queued", "starting", "running")
    steps = "leaking hints paired" if job.phase == "pairs" else "dialogues"
    text = f"{job.done:,.0f} of {job.total:,.0f} {steps}" if job.total else job.phase or job.status
    buttons = [
        action("Stop", "stop", style="rl-small", run=job.run) if active else None,
        None if active else action("Try again", "resume", style="rl-small", run=job.run),
        None if active else action("Dismiss", "dismiss", style="rl-small rl-quiet", run=job.run),
    ]
    return el(
        "article.rl-card.rl-stack.export-job",
        el(
            "div.rl-row",
            badge(job.status),
            el("a.rl-grow.rl-cut", job.name, href=page_url("run", run=job.run)),
            time_ago(job.ended or job.created),
        ),
        progress(job.done, job.total) if active and job.status != "queued" else None,
        el("span.rl-muted.rl-small.rl-num", text) if active else None,
        el("p.rl-warning", "The queue is paused. Resume it on ", el("a", "Runs", href="/"), ".")
        if paused and job.status == "queued"
        else None,
        el("p.rl-wrong", job.detail) if job.status == "failed" and job.detail else None,
        el("div.rl-row", buttons) if writable and job.status != "stopping" else None,
        data_key=f"job{job.run}",
    )


def _delete_button(folder: str, what: str, size: int, kept: str) -> Element:
    confirm = f"Delete the {what}, {human_bytes(size)}? The {kept}."
    return action("Delete", "delete", style="rl-small rl-quiet", folder=folder, confirm=confirm)


def _export(export: FinishedExport, writable: bool, shown: bool) -> Element:
    sizes = {file.name: file.bytes for file in export.files}
    folder = export.folder

    def link(name: str, text: str) -> Element | None:
        if name not in sizes:
            return None
        size = el("span.rl-muted.rl-num", f" {human_bytes(sizes[name])}")
        return el("a", text, size, href=f"/exports/{folder}/{name}", download=True, title=name)

    sources = separated([_source(run.run, run.name) for run in export.runs], ", ")
    rows = [
        el(
            "tr",
            el("td", form.name),
            el("td.rl-num", f"{form.rows:,}"),
            *(el("td", link(f"{form.name}.{suffix}", "download") or "–") for suffix in ("jsonl", "parquet")),
        )
        for form in export.formats
    ]
    titles: list[Node] = ["type", el("th.rl-num", "rows", scope="col"), "JSON lines", "Parquet"]
    remove = _delete_button(folder, f"export {export.name}", export.bytes, "exported runs remain")
    return el(
        "article.rl-card.rl-stack.export-done",
        el(
            "div.rl-row",
            el("b.rl-grow.rl-cut", export.name, title=folder),
            el("span.rl-chip.rl-leak", "⚑ contains answers", title=PRIVILEGED) if export.privileged else None,
            el("span.rl-muted.rl-num", human_bytes(export.bytes)),
            el("span.rl-muted", time_ago(export.created)),
        ),
        el("div.rl-muted.rl-small", "from ", sources, f" · {label_text(export)}"),
        table(titles, rows),
        [el("p.rl-muted.rl-small", f"No {name}: {why}") for name, why in export.left_out.items()],
        el(
            "div.rl-row.rl-small",
            link("README.md", "card"),
            link("manifest.json", "manifest"),
            el("span.rl-grow"),
            action("Copy Python", "copy", style="rl-small", text=load_code(export)) if rows else None,
            remove if writable else None,
        ),
        data_key=folder,
        data_folder=folder,
        data_show=shown,
    )


def _model(model: ExportedModel, writable: bool, shown: bool) -> Element:
    folder = model.folder
    rows = [
        el(
            "tr",
            el("td", el("a", file.name, href=f"/exports/{folder}/{file.name}", download=True)),
            el("td.rl-num", human_bytes(file.bytes)),
        )
        for file in model.files
    ]
    url = page_url("run", run=model.run, tab="checkpoints")
    source = el("a", f"run {model.run}", href=url) if model.run else "a deleted run,"
    remove = _delete_button(folder, f"model {model.name}", model.bytes, "checkpoint remains")
    return el(
        "article.rl-card.rl-stack.export-model",
        el(
            "div.rl-row",
            el("b.rl-grow.rl-cut", model.name, title=folder),
            el("span.rl-muted.rl-num", human_bytes(model.bytes)),
            el("span.rl-muted", time_ago(model.created)),
        ),
        el("div.rl-muted.rl-small", "from ", source, f" {model.checkpoint} · {model.base}"),
        table((), rows),
        el("div.rl-row.rl-small", remove) if writable else None,
        data_key=folder,
        data_show=shown,
    )


def _source(run: str, name: str) -> Node:
    return el("a", f"{run} · {name}", href=page_url("run", run=run)) if run.isdigit() else name


def label_text(export: FinishedExport) -> str:
    """Return how many dialogues, hints and labels an export contains."""
    labels = export.labels
    parts = [plural(export.dialogues, "dialogue")] if export.dialogues is not None else []
    if labels:
        parts.append(plural(labels["hints"], "hint"))
        for source, title in (("human", "people"), ("detector", "detectors"), ("planted", "planted")):
            counts = labels.get(source) or {}
            if counts.get("leak") or counts.get("no_leak"):
                parts.append(f"{title}: {counts.get('leak', 0):,} leak, {counts.get('no_leak', 0):,} no leak")
        parts += [f"{count:,} {why}" for why, count in labels.get("without", {}).items()]
    return " · ".join(parts)


def load_code(export: FinishedExport) -> str:
    """Return Python code that loads an export."""
    arguments = f'{export.directory!r}, "{export.formats[0].name}", split="train"'
    return f"from datasets import load_dataset\nrows = load_dataset({arguments})"
