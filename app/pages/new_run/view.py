"""What the page New run shows beside its form, as elements."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType

from app.common.quantities import duration, plural
from app.common.urls import page_url
from app.components.nodes import Element, Node, action, badge, el, empty, progress, table, time_ago
from app.endpoints.launch import FormState, PreflightState, PresetInfo, SchedulePreview
from app.endpoints.runs import RunRow
from app.forms.estimate import Estimate
from app.forms.run_form import STUDY
from app.pages.new_run.parts import value_text, words
from rl2f_core.evaluation.formatting import number, quantity_text
from rl2f_core.evaluation.study.spec import Study

CRON_EXAMPLES = (("every hour", "0 * * * *"), ("every night", "0 2 * * *"), ("every Monday", "0 9 * * mon"))
MAX_CHANGES = 8
"""Changed keys that are named beside the button *Start now*."""
NOT_COMPARED = re.compile(r"^(name|kind): .*\n", re.MULTILINE)


def spaced(name: str) -> str:
    """Return the name of a preset as a title."""
    return name.replace("_", " ").replace("-", " · ")


def family(name: str) -> str:
    """Return the file of a preset."""
    return name.split(":")[0]


def preset_choices(presets: list[PresetInfo], chosen: str | None) -> list[tuple[str, str]]:
    """Return one choice for each file of presets with size, duration and hardware, those for a CPU first."""
    files: dict[str, list[PresetInfo]] = {}
    for item in sorted(presets, key=lambda item: not item.runs_on_cpu):
        files.setdefault(family(item.name), []).append(item)
    found: list[tuple[str, str]] = []
    for name, members in files.items():
        shown = next((item for item in members if item.name == chosen), members[0])
        variants = [f"{len(members)} variants"] if len(members) > 1 else []
        found.append((" · ".join([spaced(name), *variants, *_needs(shown)]), shown.name))
    return found


def _needs(preset: PresetInfo) -> list[str]:
    """Return model, dialogues, duration and hardware of a preset."""
    known = preset.estimate
    parts = [*(["study"] if preset.is_study else []), *([preset.model] if preset.model else [])]
    if known is not None:
        parts.append(f"{known.dialogues:,} dialogues")
        if known.seconds is not None:
            parts.append(f"≈ {duration(known.seconds)}")
    return [*parts, "CPU" if preset.runs_on_cpu else "paper scale, GPU"]


def variant_choices(presets: list[PresetInfo], chosen: str | None) -> list[tuple[str, str]]:
    """Return the presets in the file of the chosen one."""
    names = [item.name for item in presets if chosen and family(item.name) == family(chosen)]
    return [(spaced(name.split(":")[1]), name) for name in names if ":" in name] if len(names) > 1 else []


def clone_label(run: RunRow) -> str:
    """Return the label of a run to clone."""
    return f"#{run.id} {run.name} · {run.environment} · {run.status}"


def about(presets: list[PresetInfo], preset: str | None, parent: int | None, checkpoint: str = "") -> Element:
    """Return what the form started from: a preset's description, or a link to the cloned or evaluated run."""
    if parent is not None:
        what = f"An evaluation of checkpoint {checkpoint} of " if checkpoint else "A copy of "
        return note(what, el("a", f"run {parent}", href=page_url("run", run=parent)), ".")
    return note(*words(next((item.description for item in presets if item.name == preset), "")))


def note(*content: Node) -> Element:
    """Return a line about where the form started."""
    return el("p.rl-muted.nr-about", *content)


def restored(time: float) -> Element:
    """Return the notice about restored changes."""
    return el(
        "div.nr-notice",
        el("span", "Restored unsaved changes from ", time_ago(time), "."),
        action("Discard", "discard", style="rl-small"),
        role="status",
    )


def missing(text: str, fix: str | None, presets: Sequence[str] = ()) -> Element:
    """Return what is shown instead of a form that cannot start, with links to similar presets."""
    links = [el("a.rl-button", name, href=page_url("new", preset=name)) for name in presets]
    return empty(text, fix, el("a.rl-button.rl-primary", "Start from a preset", href="/new"), *links, role="alert")


def summary(
    state: FormState,
    found: Estimate | None = None,
    changed: Mapping[str, object] = MappingProxyType({}),
    warnings: Sequence[str] = (),
    judged: PreflightState | None = None,
) -> list[Node]:
    """Return whether the configuration is valid with its size, or each error with a button that leads to it.

    Args:
        state: The checked configuration.
        found: Its size.
        changed: Keys that differ from the preset or the cloned run, with their values.
        warnings: Warnings about a file of own data.
        judged: Preflight of this configuration with its verdict, if there is one.
    """
    problem = state.yaml_error
    if problem is not None:
        line = f" (line {problem.line})" if problem.line else None
        return [
            el("div", el("span.rl-wrong", "✗ The YAML cannot be read"), el("span.rl-muted", line)),
            el("p.nr-stale", "Fix the YAML to use the form.", role="status"),
        ]
    if state.ok:
        ready = el("div", el("span.rl-right", "✓"), " ready")
        if judged is not None and judged.verdict is not None and not judged.verdict.ok:
            ready = el("div", el("span.rl-wrong", "✗"), " valid, but the preflight failed: ", judged.verdict.text)
        if state.study is not None:
            ready = el("div", el("span.rl-right", "✓"), " ready: ", study_size(state.study))
        notes = [el("p.rl-small.nr-warning", el("span.rl-leak", "! "), text) for text in warnings]
        return [ready, *notes, _size(found, state.study is not None), _changes(changed)]
    count = len(state.errors)
    items = []
    for error in state.errors:
        where = {"at": json.dumps(error.path)} if error.path else {"line": error.line or 1}
        button = action(error.field or "configuration", "focus", style="nr-link", **where)
        line = f" (line {error.line})" if error.line else None
        items.append(el("li", button, f" {error.message}", el("span.rl-muted", line)))
    title = f"✗ {count} {'error' if count == 1 else 'errors'}"
    return [el("div", el("span.rl-wrong", title)), el("ul.nr-errors", items)]


def study_size(study: Study) -> str:
    """Return the number of runs of a study."""
    arms, seeds, parts = len(study.arms), len(study.settings.seeds), len(study.parts())
    runs = f"{plural(arms, 'arm')} × {plural(seeds, 'seed')} = {plural(arms * seeds, 'run')}"
    return runs if parts == arms * seeds else f"{runs} and {plural(parts - arms * seeds, 'shared warm-up')}"


def study_sheet(study: Study | None) -> list[Node]:
    """Return the arms and hypotheses of a study, which takes the place of the form."""
    text = "A study is edited as YAML. Its runs are queued together; its hypotheses are stored before the first run."
    if study is None:
        return [el("p.rl-muted", text)]
    seeds = ", ".join(map(str, study.settings.seeds))
    rows = [
        el("tr", *(el("td", text) for text in (
            test.name, quantity_text(test.quantity), test.difference(), test.condition,
            test.direction, number(test.smallest_effect))))
        for test in study.settings.hypotheses
    ]  # fmt: skip
    titles = ["hypothesis", "quantity", "compared", "condition", "expected", "smallest effect"]
    return [
        el("h2", f"Study {study.name}"),
        el("p.rl-muted", text),
        el("p", el("b", "Arms: "), ", ".join(study.arms), ". ", el("b", "Seeds: "), f"{seeds}."),
        table(titles, rows, name="hypotheses") if rows else el("p.rl-muted", "Without hypotheses."),
    ]


def _size(found: Estimate | None, is_study: bool) -> Element | None:
    """Return the size of a run or study, with its duration and memory if a run of the model is known."""
    if found is None:
        return None
    text = f"{found.dialogues:,} dialogues with at most {found.tokens:,} sampled tokens"
    if found.model_teacher:
        text += ", without the time and tokens of the model that writes the hints"
    if found.like is None:
        known = f"About {duration(found.seconds)} on two cores, as in recorded runs. " if found.seconds else ""
        text += f". No run of this model has ended here{'' if is_study else '; the preflight measures it'}."
        return el("p.rl-muted.rl-small.nr-size", known + text)
    link = el("a", f"run {found.like}", href=page_url("run", run=found.like))
    memory = f", {found.memory_gb:.1f} GB of memory" if found.memory_gb else ""
    return el("p.rl-muted.rl-small.nr-size", f"About {duration(found.seconds)}{memory}, as in ", link, f". {text}.")


def _changes(changed: Mapping[str, object]) -> Element | None:
    """Return the keys that differ from the preset or the cloned run."""
    if not changed:
        return None
    shown = [f"{key}: {value_text(value)}" for key, value in list(changed.items())[:MAX_CHANGES]]
    more = f" and {len(changed) - MAX_CHANGES} more" if len(changed) > MAX_CHANGES else ""
    return el("p.rl-small.nr-changes", el("span.rl-muted", "Changed: "), "; ".join(shown), more)


def command(state: FormState) -> list[Node]:
    """Return the command with buttons, and where the YAML is broken."""
    text, file = state.command, state.file
    problem = state.yaml_error
    broken = None
    if problem is not None:
        line = problem.line
        link = action(f"Line {line}", "focus", style="nr-link", line=line) if line else None
        broken = el("p.rf-error.nr-broken", link, ": " if line else None, problem.message, role="alert")
    is_other = state.kind not in ("train", STUDY)
    return [
        el(
            "div.nr-cmdline",
            el("code.nr-command", text, title=f"Save {file} first and run the command beside it."),
            action("Copy command", "copy", style="rl-small", text=text),
            action("Copy YAML", "copy", style="rl-small", text=state.yaml),
            action("Save YAML", "download", style="rl-small", text=state.yaml, file=file),
        ),
        el("p.rl-muted.rl-small", "rl2f train starts runs of every kind.") if is_other else None,
        broken,
    ]


# -- preflight ---------------------------------------------------------------------------------------------------------
def preflight_progress(now: PreflightState) -> Element:
    """Return a preflight without a verdict: its progress, or why it ended."""
    ended: Node
    if now.status == "failed":
        ended = el("p.rl-wrong", "✗ Failed. ", now.detail)
    else:
        ended = el("p.rl-muted", "Canceled before it was done. ", now.detail)
    text = "queued" if now.status == "queued" else now.phase or "loads the model"
    count = f" {now.done:.0f} of {now.total:.0f}" if now.total and now.status != "queued" else ""
    running: list[Node] = [
        progress(now.done, now.total),
        el(
            "div.rl-row.rl-small.rl-muted",
            el("span.rl-num", text + count),
            el("span.rl-grow"),
            action("Cancel", "cancel", style="rl-small"),
        ),
    ]
    return el("div.rl-stack", _head(now), ended if now.ended else running, data_status=now.status)


def _head(now: PreflightState) -> Element:
    return el(
        "div.rl-row",
        el("h2", "Preflight"),
        None if now.verdict else badge(now.status, now.detail),
        el("span.rl-grow"),
        el("a.rl-small", f"run {now.run}", href=page_url("run", run=now.run)),
        el("button.rl-icon", "×", aria_label="Close the preflight", data_action="close"),
    )


def preflight_verdict(now: PreflightState, is_outdated: bool) -> Element:
    """Return the verdict of a preflight, above its histogram."""
    verdict = now.verdict
    assert verdict is not None
    mark, style = ("✓ ", "rl-right") if verdict.ok else ("✗ ", "rl-wrong")
    outdated = el("p.rl-small.nr-outdated", "The form has changed since this preflight.")
    return el(
        "div.rl-stack",
        _head(now),
        outdated if is_outdated else None,
        el("p", mark, verdict.text, class_=f"nr-verdict {style}"),
        el("p.nr-fix", verdict.fix) if verdict.fix else None,
        el("p.rl-muted.rl-small.nr-fix", verdict.note) if verdict.note else None,
        data_status=now.status,
    )


def is_outdated(now: PreflightState | None, state: FormState | None) -> bool:
    """Return whether the form has other settings than the preflight had."""
    if now is None or state is None or state.resolved is None:
        return False
    return NOT_COMPARED.sub("", now.yaml) != NOT_COMPARED.sub("", state.resolved)


def preflight_facts(now: PreflightState) -> Element:
    """Return the legend of the histogram, the measured values and the report."""
    legend = el(
        "p.rl-small.rl-muted.nr-legend",
        el("span.rl-wrong", "✗ all incorrect"),
        el("span.nr-mixed", "■ mixed (useful for training)"),
        el("span.rl-right", "✓ all correct"),
    )
    facts: list[Node] = []
    for fact in now.facts:
        note = el("span.rl-muted", fact.note)
        facts += [el("dt", fact.label), el("dd", el("b.rl-num", fact.value), " ", note)]
    title = el("summary.rl-small.rl-muted", "Report as text")
    report = el("details", title, el("pre.rl-model-text", now.text))
    return el("div.rl-stack", legend, el("dl.nr-facts", facts), report)


def preflight_charts(now: PreflightState) -> list[dict[str, object]]:
    """Return the histogram of group outcomes for `Charts`."""
    figure = now.figure
    if not figure:
        return []
    bars = [(count, solved) for part in figure["data"] for solved, count in zip(part["x"], part["y"], strict=True)]
    text = ", ".join(f"{count} groups with {solved} solved" for count, solved in bars)
    return [{"key": "groups", "title": "Group outcomes", "words": f"Histogram: {text}", "figure": figure}]


# -- schedule ----------------------------------------------------------------------------------------------------------
def cron_examples() -> Element:
    """Return buttons that fill in the cron fields."""
    buttons = [action(text, "cron", style="rl-small", when=when) for text, when in CRON_EXAMPLES]
    return el("p.rl-row.rl-small", buttons, el("span.rl-muted", "minute hour day month weekday"))


def next_times(preview: SchedulePreview) -> list[Node]:
    """Return the next times of a schedule, or its error."""
    if preview.error:
        return [el("p.rf-error", f"{preview.error} {preview.fix or ''}", role="alert")]
    times = preview.times
    title = el("p.rl-muted.rl-small", "next times" if len(times) > 1 else "time")
    return [title, el("ol", _times(times))]


def _times(times: Iterable[str]) -> list[Node]:
    return [el("li.rl-num", date_text(item), " ", time_ago(datetime.fromisoformat(item).timestamp())) for item in times]


def date_text(iso: str) -> str:
    """Return an ISO time as `Tue 1 Jan 2030, 3:30 UTC+01:00`."""
    time = datetime.fromisoformat(iso)
    return f"{time:%a} {time.day} {time:%b %Y}, {time.hour}:{time:%M} {time:%Z}"
