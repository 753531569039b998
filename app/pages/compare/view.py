"""Elements of the page Compare: the chosen runs, evaluations side by side, differences."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from app.common.urls import page_url
from app.components.elements.evaluation_view import (
    condition_label,
    dialogues_link,
    findings_list,
    number,
    value_range,
    whisker,
)
from app.components.nodes import Element, action, badge, el, empty, table
from app.endpoints.compare import ComparedRunRow, ConfigGroup, EvaluationComparison, RunComparison, StudyState
from app.endpoints.runs import RunSummary
from app.plots.comparison import MISSING
from jobs.db.models import ENDED
from jobs.queue.queue import RESUMABLE, STOPPABLE
from jobs.studies import TAG
from rl2f_core.evaluation.formatting import quantity_text
from rl2f_core.types import JsonObject

DEFAULT_QUANTITY = "cum_acc/T"
BORDERS = {"solid": "solid", "dot": "dotted"}
"""Line style of a swatch by the dash of the run's lines; `dashed` for all others."""
DIALOGUES = re.compile(r"\[([+−.\d]+)\]\((/dialogues\?[\w./@%=&,+-]+)\)")
"""A link of a report to dialogues on a page."""
PAIRED = (
    "Each checkpoint minus this one, on the same tasks with the same evaluation seed; "
    "95 % intervals over problems; findings after Holm's correction over all checkpoints."
)


def run_label(run: RunSummary) -> str:
    """Return the name of a run in the list of runs to choose."""
    facts = [f"{run.id} {run.name}", run.environment, run.method, f"seed {run.seed}"]
    return " · ".join(fact for fact in facts if fact)


def metric_label(metric: Mapping[str, str]) -> str:
    """Return the name of a metric in the list of metrics to choose."""
    title = "" if metric["title"] == metric["name"] else metric["title"]
    return " · ".join(part for part in (metric["name"], title, metric["unit"]) if part)


def _swatch(run: ComparedRunRow) -> Element:
    style = f"color: var({run.color}); border-top-style: {BORDERS.get(run.dash, 'dashed')}"
    return el("i.rl-swatch", style=style)


def _title(run: ComparedRunRow) -> str:
    return f"{run.id} {run.name}"


def run_chips(comparison: RunComparison, of_study: bool = False) -> Element:
    """Return the compared runs with their colors; without runs the next step, unless a study is shown."""
    runs, missing = comparison.runs, comparison.missing
    chips = [
        el(
            "span.rl-chip",
            _swatch(run),
            el(
                "a",
                _title(run),
                href=page_url("run", run=run.id),
                title=" · ".join([run.environment, run.method, run.model, f"seed {run.seed}"]),
            ),
            badge(run.status, run.detail) if run.status != "succeeded" else None,
            data_key=f"run{run.id}",
            data_run=run.id,
        )
        for run in runs
    ]
    nothing = empty(
        "Select runs to compare.",
        "Select them above, or mark several in the list of runs. "
        "Curves, evaluations and the differences of their configurations appear here.",
        el("a.rl-button", "All runs", href="/"),
    )
    return el(
        "div.rl-stack",
        el("div.rl-picked", chips) if chips else None,
        _missing_runs(missing) if missing else None,
        _unequal(comparison.unequal) if comparison.unequal and not of_study else None,
        None if runs or of_study else nothing,
    )


def _missing_runs(missing: Sequence[int]) -> Element:
    what = "There is no run" if len(missing) == 1 else "There are no runs"
    text = f"{what} {', '.join(map(str, missing))}: deleted, or the link is wrong. "
    return el("div.rl-alert", text, action("Remove", "remove", style="rl-small"), role="alert")


def _unequal(unequal: Mapping[str, Sequence[str]]) -> Element:
    """Return the warning that the runs differ in what should be equal."""
    texts = "; ".join(f"{what} ({', '.join(keys)})" for what, keys in unequal.items())
    text = f"These runs differ in what should be equal: {texts}. Their results may differ for this reason alone."
    return el("div.rl-alert", text, role="status")


def no_charts(metrics: Sequence[str]) -> Element:
    """Return why no chart is shown."""
    title = f"None of these runs has {', '.join(metrics)}." if metrics else "No metric is selected."
    return empty(title, "Select a metric above.")


def config_table(groups: Sequence[ConfigGroup], runs: Sequence[ComparedRunRow]) -> Element | None:
    """Return the differing values of the configurations by section; None for one run.

    Sections that some of the runs lack, such as a stage, are folded.
    """
    if len(runs) < 2:
        return None
    heading = el("h2", "Differences of the configurations")
    if not groups:
        return el("section", heading, el("p.rl-muted", "The resolved configurations are the same."))
    rows, folded = [], []
    heads = [el("span", _swatch(run), f" {_title(run)}") for run in runs]
    for group in groups:
        values = [el("tr", *(el("td.rl-mono", text) for text in (row.key, *row.values)))
                  for row in group.differences]  # fmt: skip
        columns = zip(runs, zip(*(row.values for row in group.differences), strict=True), strict=True)
        owners = [_title(run) for run, texts in columns if set(texts) != {MISSING}]
        if len(values) > 1 and len(owners) < len(runs):
            text = f"{len(values)} keys, only in {', '.join(owners)}"
            summary = el("summary", f"{group.section} ", el("span.rl-muted", text))
            folded.append(el("details", summary, table(["key", *heads], values, "rl-diff"), data_key=group.section))
        else:
            section = el("th", group.section, colspan=len(runs) + 1, scope="rowgroup")
            rows += [el("tr.rl-group", section), *values]
    shared = table(["key", *heads], rows, "rl-diff") if rows else None
    card = el("div.rl-card.rl-stack", shared, folded)
    return el("section.rl-section", heading, card, aria_label="differences of the configurations")


# -- evaluations ---------------------------------------------------------------------------------------------------
def evaluated(found: EvaluationComparison) -> dict[int, JsonObject]:
    """Return the evaluations by run."""
    return {table.run: table.evaluation for table in found.tables if table.evaluation is not None}


def no_evaluations() -> Element:
    """Return how to get evaluations to compare."""
    return empty(
        "None of these runs was evaluated.",
        "Open a run and evaluate one of its checkpoints; then it can be compared here.",
    )


def quantity_choices(evaluations: Mapping[int, JsonObject]) -> list[tuple[str, str]]:
    """Return title and key of every quantity of the evaluations; at least the default one."""
    if not evaluations:
        return [(DEFAULT_QUANTITY, DEFAULT_QUANTITY)]
    turns = {evaluation["turns"] for evaluation in evaluations.values()}
    last = f"solved within {turns.pop() if len(turns) == 1 else 'all'} turns"
    titles = {DEFAULT_QUANTITY: last, "cum_acc/1": "solved at turn 1"}
    columns = _columns(evaluations)
    return [(titles.get(key) or str(column["title"]), key) for key, column in columns.items()]


def _columns(evaluations: Mapping[int, JsonObject]) -> dict[str, JsonObject]:
    return {column["key"]: column for item in evaluations.values() for column in item["table"]["columns"]}


def quantity_note(evaluations: Mapping[int, JsonObject], quantity: str) -> Element | None:
    """Return the explanation of a quantity; None without evaluations."""
    column = _columns(evaluations).get(quantity)
    if column is None:
        return None
    return el("p.rl-muted.rl-small", f"{column['help']} Square brackets and bars: 95 % intervals.")


def evaluation_matrix(
    evaluations: Mapping[int, JsonObject], runs: Mapping[int, ComparedRunRow], quantity: str
) -> Element:
    """Return one quantity of all runs: checkpoint × condition in rows, runs in columns."""
    cells: dict[int, dict[tuple[str, str], JsonObject | None]] = {
        run: {(row["checkpoint"], row["control"]): row["cells"].get(quantity) for row in item["table"]["rows"]}
        for run, item in evaluations.items()
    }
    limits = value_range(cell for by_row in cells.values() for cell in by_row.values())
    links = {run: dialogues_link(run) for run in evaluations}

    def cell(run: int, key: tuple[str, str]) -> Element:
        found = cells[run].get(key)
        if found:
            return el("td", el("a.rl-cell", number(found), href=links[run](*key)), whisker(found, *limits))
        is_zero = quantity == "effect" and key[1] == "contentless" and key in cells[run]
        return el("td", el("span.rl-muted", "0 by definition" if is_zero else "–"))

    body, previous = [], None
    keys = dict.fromkeys(key for by_row in cells.values() for key in by_row)
    order = {checkpoint: i for i, checkpoint in enumerate(dict.fromkeys(checkpoint for checkpoint, _ in keys))}
    for checkpoint, condition in sorted(keys, key=lambda key: order[key[0]]):
        is_first, previous = checkpoint != previous, checkpoint
        body.append(
            el(
                "tr",
                el("td", el("b", checkpoint) if is_first else None),
                el("td", condition_label(condition)),
                *(cell(run, (checkpoint, condition)) for run in evaluations),
                class_=f"{'rl-first' if is_first else ''} {'rl-hints' if condition == 'hints' else ''}",
            )
        )
    heads = [_run_head(runs[run], bool(item["whole"])) for run, item in evaluations.items()]
    return el("div.rl-card", table(["checkpoint", "condition", *heads], body, "rl-eval"))


def _run_head(run: ComparedRunRow, is_complete: bool) -> Element:
    link = el("a", _title(run), href=page_url("run", run=run.id))
    return el("span", _swatch(run), " ", link, None if is_complete else " (in progress)")


def base_choices(found: EvaluationComparison) -> list[tuple[str, str]]:
    """Return the checkpoints that the others can be compared with; the value of the default is empty."""
    names = found.checkpoints
    run = names[0].partition(":")[0] if names else ""
    default = next((name for name in reversed(names) if name.partition(":")[0] == run), None)
    return [(name, "" if name == default else name) for name in names] or [("–", "")]


def paired_table(found: EvaluationComparison) -> Element:
    """Return the difference of every checkpoint to the base, paired over tasks."""
    limits = value_range(item["cell"] for row in found.differences for item in row["quantities"])
    body = []
    for row in found.differences:
        if row["unlike"]:
            verb = "differs" if len(row["unlike"]) == 1 else "differ"
            text = f"not comparable: {', '.join(row['unlike'])} {verb}"
            body.append(el("tr", el("td", row["checkpoint"]), el("td.rl-muted", text, colspan=4)))
        for i, item in enumerate(row["quantities"]):
            body.append(
                el(
                    "tr",
                    el("td", None if i else row["checkpoint"]),
                    el("td", quantity_text(item["quantity"])),
                    el("td", number(item["cell"]), whisker(item["cell"], *limits)),
                    el("td", item["finding"]),
                    el("td.rl-muted", str(item["tasks"])),
                    class_="" if i else "rl-first",
                )
            )
    if found.pending:
        body.append(el("tr", el("td.rl-muted", f"{found.pending} more…", colspan=5)))
    titles = ["checkpoint", "quantity", "difference", "conclusion", "tasks"]
    return el("div.rl-card", table(titles, body, "rl-eval"), data_base=found.base)


def seed_tables(found: EvaluationComparison) -> Element | None:
    """Return the comparison of configurations over their seeds, and a table for each; None without any."""
    if not found.merged:
        return None
    first, *others = found.merged
    tables = [_seed_table(first)]
    for item in others:  # each configuration alone, below their comparison
        summary = el("summary", item["group"])
        tables.append(el("details", summary, _seed_table(item), data_key=item["group"]))
    problem = el("div.rl-alert", found.not_compared, role="status") if found.not_compared else None
    return el("section.rl-section", problem, tables, aria_label="seeds")


def _seed_table(merged: JsonObject) -> Element:
    body = [
        el(
            "tr",
            *(el("td", text) for text in (row["checkpoint"], row["control"], quantity_text(row["quantity"]))),
            *(el("td", value) for value in row["values"]),
            el("td", number(row["mean"])),
            el("td", row["above"]),
        )
        for row in merged["rows"]
    ]
    seeds = [f"seed {seed}" for seed in merged["seeds"]]
    titles = ["checkpoint", "condition", "quantity", *seeds, "mean [95 %]", "above 0"]
    return el(
        "div.rl-card.rl-stack",
        el("h2", f"{merged['group']} ", el("span.rl-muted.rl-small", f"over {len(seeds)} seeds, {merged['title']}")),
        table(titles, body, "rl-eval"),
        el("details", el("summary", "Conclusions"), findings_list(merged["findings"])),
    )


# -- studies -------------------------------------------------------------------------------------------------------
def missing_study(name: str) -> Element:
    """Return what is shown instead of the report of a study that was not started here."""
    return empty(f"There is no study {name} here.", "Start it on the page New run.", role="alert")


def study_section(state: StudyState, writable: bool) -> Element:
    """Return the hypotheses and arms of a study, the state of its parts, and buttons to stop or resume all."""
    counts = Counter(part.status for part in state.parts.values())
    runs = page_url("", tag=f"{TAG}{state.name}", status="any")
    button = None
    if counts.keys() & {*STOPPABLE}:
        button = action("Stop all", "stop_study", style="rl-small")
    elif counts.keys() <= {*ENDED} and counts.keys() & {*RESUMABLE}:
        button = action("Resume", "resume_study", style="rl-small")
    head = el(
        "div.rl-head",
        el("h2", f"Study {state.name}"),
        [el("span.rl-badge", f"{count} {status}", data_status=status) for status, count in counts.items()],
        el("span.rl-grow"),
        button if writable else None,
        el("a.rl-button.rl-small", "Its runs", href=runs),
    )
    tables = [
        el("div.rl-card.rl-stack", el("h3", title), table(header, map(_text_row, rows), "rl-eval", name=title))
        for title, header, rows in state.tables()
        if rows
    ]
    notes = el("details", el("summary", "How to read this"), findings_list(state.sentences()), data_key="study notes")
    return el("section.rl-section", head, tables, notes, aria_label=f"study {state.name}")


def _text_row(cells: Sequence[str]) -> Element:
    """Return a row of texts, in which `[1](/dialogues?…)` is a link to dialogues."""
    row = []
    for cell in cells:
        parts = DIALOGUES.split(cell)
        links = [el("a", label, href=href) for label, href in zip(parts[1::3], parts[2::3], strict=True)]
        row.append(el("td", parts[0], [node for pair in zip(links, parts[3::3], strict=True) for node in pair]))
    return el("tr", row)
