"""Elements of the page Fork: status, plot, table and tree of a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.common.quantities import duration, plural
from app.common.urls import page_url
from app.components.elements.help_tip import help_tip
from app.components.elements.transcript import inline, separated, sign, signed, signs
from app.components.nodes import Element, Node, action, badge, el, empty, progress, table
from app.endpoints.dialogues import DialogueWithSiblings
from app.endpoints.fork import ForkResult
from app.endpoints.transcript import DialogueDetail
from app.pages.fork.view import arm_name, turn_view
from jobs.db.dialogue_models import DialogueSummary
from jobs.db.models import ACTIVE
from jobs.db.paging import Page
from rl2f_core.common.text.decimals import decimal
from rl2f_core.types import JsonObject

COLORS = {
    "original": "--rl-teacher",
    "contentless": "--rl-plot-2",
    "empty": "--rl-plot-5",
    "shuffled": "--rl-plot-3",
    "misleading": "--rl-plot-4",
    "edited": "--rl-accent",
    "teacher": "--rl-plot-6",
    "redacted": "--rl-plot-7",
}
LATER_HINTS = {
    "run": "Later hints are the run's teacher's in every branch.",
    "arm": "Later hints are the branch's own teacher's.",
    "contentless": "Later hints are contentless.",
}
VALUE_HELP = "How much the original hint changes the solve rate compared with a contentless one; 95 % interval."
VALUE_FORMULA = "p(solve | original hint) − p(solve | contentless)"
TICKS = (0, 0.25, 0.5, 0.75, 1)
Interval = JsonObject
"""Fields of `rl2f_core.common.stats.intervals.Interval`."""


def _background(arm: str) -> str:
    """Return the color of an arm as a style."""
    return f"background: var({COLORS.get(arm.split(' ')[0], '--rl-plot-8')})"


def interval_text(cell: Interval | None, plus: bool = False) -> str:
    """Return e.g. `.31 [.20, .42]`."""
    if cell is None or cell["value"] is None:
        return "–"
    value, low, high = (decimal(end, signed=plus) for end in (cell["value"], cell["low"], cell["high"]))
    return value if cell["low"] is None else f"{value} [{low}, {high}]"


def _interval(cell: Interval | None, plus: bool = False) -> list[Node]:
    """Return `interval_text` with a smaller interval."""
    value, space, limits = interval_text(cell, plus).partition(" ")
    return [value, space, el("small.rl-muted", limits)] if limits else [value]


# -- result --------------------------------------------------------------------------------------------------------
def no_result() -> Element:
    """Return what happens next, before a fork was started."""
    return empty(
        "What if the hint had been different?",
        "Select checkpoints and hints, then start the fork (r). The branches appear here; "
        "the original remains unchanged.",
    )


def status_card(found: ForkResult, writable: bool) -> Element:
    """Return status and progress of a fork."""
    job = found.job
    active = job.status in ACTIVE
    stop = action("Stop", "stop", style="rl-small", run=job.id)
    failed = job.detail and not active and job.status != "succeeded"
    return el(
        "div.rl-card.fk-status",
        el(
            "div.rl-row",
            el("h2", f"Fork {job.id}"),
            badge(job.status, job.detail),
            el("span.rl-muted.rl-small.rl-num", _progress_text(found)),
            el("span.rl-grow"),
            stop if active and writable and job.status != "stopping" else None,
            el("a.rl-small", "as a run", href=page_url("run", run=job.id)),
            el("a.rl-small", "its dialogues", href=page_url("dialogues", run=job.id)),
        ),
        progress(job.done, job.total) if active and job.status != "queued" else None,
        el("p.rl-wrong.rl-small", job.detail) if failed else None,
        aria_live="polite",
    )


def _progress_text(found: ForkResult) -> str:
    job, report = found.job, found.report
    if job.status not in ACTIVE:
        return f"{report['done']} dialogues" if report else ""
    if job.status == "queued":
        return "starts when the queue reaches it"
    text = f"{job.done:,.0f} of {job.total:,.0f} dialogues" if job.total else "loading the model"
    return f"{text} · {duration(job.eta)} left" if job.eta else text


def report_card(report: JsonObject) -> Element:
    """Return plot and table of every checkpoint."""
    parts = [_checkpoint(report, checkpoint) for checkpoint in report["checkpoints"]]
    note = (
        f"95 % intervals; {report['samples']} samples of each hint with shared seeds, differences paired. "
        f"{LATER_HINTS.get(report['later_hints'], '')}"
    )
    return el("div.rl-card", parts, el("p.rl-small.rl-muted", note))


def _checkpoint(report: JsonObject, checkpoint: str) -> Element | None:
    rows = [row for row in report["results"] if row["checkpoint"] == checkpoint]
    if not rows:
        return None
    hints = _hints(report, checkpoint)
    value = hints["hint_value"]
    return el(
        "section.fk-checkpoint",
        el("h3", inline(checkpoint, 60)),
        _hint_value(value) if value else None,
        _same_seed(hints["same_seed"]) if hints.get("same_seed") else None,
        _plot(rows),
        _table(rows),
        [
            el("p.rl-small.rl-muted.fk-missed", f"{arm_name(arm)}, teacher error: ", inline(error, 200))
            for arm, error in ((arm, hint["error"]) for arm, hint in hints["hints_by_arm"].items())
            if error
        ],
        data_checkpoint=checkpoint,
    )


def _hints(report: JsonObject, checkpoint: str) -> JsonObject:
    """Return the hints of a checkpoint by arm, and the value of the original one."""
    found = (item for item in report["hints"] if item["checkpoint"] == checkpoint)
    return next(found, {"hints_by_arm": {}, "hint_value": None})


def _hint_value(value: Interval) -> Element:
    return el(
        "p.rl-num.rl-with-help.fk-value",
        el("span.rl-muted", "Hint value "),
        el("b", signed(value["value"])),
        f" [{signed(value['low'])}, {signed(value['high'])}] ",
        help_tip("hint value", VALUE_HELP, VALUE_FORMULA),
    )


def _same_seed(solved: Mapping[str, bool]) -> Element:
    outcomes: list[Node] = [el("span", f"{arm_name(arm)} ", sign(str(int(right)))) for arm, right in solved.items()]
    return el("p.rl-small", el("span.rl-muted", "Under the dialogue's own seed: "), separated(outcomes, ", "))


def _plot(rows: Sequence[JsonObject]) -> Element:
    """Return a point with its interval per arm, from 0 to 1."""
    words = "; ".join(f"{arm_name(row['arm'])} {interval_text(row['solved'])}" for row in rows)
    lines: list[Node] = []
    for row in rows:
        value, low, high = (row["solved"][name] for name in ("value", "low", "high"))
        color, bar, point = _background(row["arm"]), None, None
        if low is not None:
            bar = el("u", style=f"left: {100 * low:.1f}%; width: {100 * (high - low):.1f}%; {color}")
        if value is not None:
            point = el("i", style=f"left: {100 * value:.1f}%; {color}")
        lines += [el("span", arm_name(row["arm"])), el("div.fk-line", bar, point)]
    ticks = el("div.fk-ticks", [el("span", decimal(tick), style=f"left: {100 * tick}%") for tick in TICKS])
    return el("div.fk-plot", lines, el("span"), ticks, role="img", aria_label=f"solve rate: {words}")


def _table(rows: Sequence[JsonObject]) -> Element:
    retained = any(row["retained_parts"]["value"] is not None for row in rows)
    titles = ["hint", "solved", "difference to contentless", "score of the next attempt", "difference"]
    titles += ["correct parts retained"] if retained else []
    body = [
        el(
            "tr",
            el("td", el("i.fk-dot", style=_background(row["arm"])), arm_name(row["arm"])),
            el("td.rl-num", _interval(row["solved"]), title=f"{row['solved']['n']} dialogues"),
            _difference(row, "difference"),
            el("td.rl-num", _interval(row["score"])),
            _difference(row, "score_difference"),
            el("td.rl-num", _interval(row["retained_parts"])) if retained else None,
            data_arm=row["arm"],
        )
        for row in rows
    ]
    return table(titles, body, "fk-table")


def _difference(row: JsonObject, name: str) -> Element:
    cell: Interval | None = row[name]
    if row["arm"] == "contentless":
        return el("td.rl-muted.rl-small", "0 by definition")
    if cell is None or cell["value"] is None:
        return el("td.rl-muted", "–")
    words = row["findings"][name]
    mark, tone = {"higher": ("▲", "rl-right"), "lower": ("▼", "rl-wrong")}.get(words, ("·", "rl-muted"))
    return el("td.rl-num", el("span", f"{mark} ", class_=tone), _interval(cell, plus=True), title=words)


# -- tree ----------------------------------------------------------------------------------------------------------
def tree(
    found: ForkResult,
    original: DialogueDetail,
    pages: Mapping[str, Page[DialogueSummary]],
    opened: Mapping[str, DialogueWithSiblings],
) -> Element | None:
    """Return the original and its branches as a tree; None before the first result.

    Args:
        found: The fork.
        original: The dialogue that it continues.
        pages: Samples of each open arm, by `checkpoint|arm`.
        opened: Each open sample, by `checkpoint|arm|event`.
    """
    report, turn, run = found.report, found.turn, found.job.id
    if report is None:
        return None
    count = len(original.turns) - turn - 1
    link = page_url("dialogues", run=original.run_id, dialogue=original.event_id, turn=turn)
    rows: list[Node] = [
        _leaf(
            "original",
            1,
            el("a", "the original", href=link),
            el("span.rl-muted", plural(count, "more attempt")),
            signs(original.outcomes[turn + 1 :]) if count else None,
        )
    ]
    for checkpoint in report["checkpoints"]:
        rows.append(el("div.fk-group.rl-small.rl-muted", inline(checkpoint, 60)))
        hints = _hints(report, checkpoint)["hints_by_arm"]
        for row in report["results"]:
            if row["checkpoint"] == checkpoint:
                key = f"{checkpoint}|{row['arm']}"
                content = _samples(run, turn, row, key, pages[key], opened) if key in pages else None
                rows.append(_branch(key, 1, _arm_head(row, hints.get(row["arm"])), content))
    body = el("div.fk-tree", rows, role="tree", aria_label="dialogues")
    return el("div.rl-card", el("h2", "Dialogues"), body)


def _leaf(key: str, level: int, *children: Node, is_open: bool | None = None) -> Element:
    return el(
        "div.fk-leaf",
        None if is_open is None else el("span.fk-caret", aria_hidden="true"),
        *children,
        role="treeitem",
        tabindex=0,
        aria_level=level,
        aria_expanded=None if is_open is None else str(is_open).lower(),
        data_id=key,
        data_key=key,
        data_action=None if is_open is None else "toggle",
    )


def _branch(key: str, level: int, head: Sequence[Node], content: Node, link: Node = None) -> Element:
    leaf = _leaf(key, level, *head, is_open=content is not None)
    inside = el("div.fk-inside", content, role="group") if content is not None else None
    return el("div", el("div.fk-row", leaf, link), inside, data_key=f"branch {key}", role="none")


def _arm_head(row: JsonObject, hint: JsonObject | None) -> list[Node]:
    head: list[Node] = [
        el("i.fk-dot", style=_background(row["arm"])),
        el("span.fk-arm", arm_name(row["arm"])),
        el("span.rl-num", interval_text(row["solved"])),
    ]
    if hint is None:
        return head
    leak = hint["leak"]
    if leak and leak["leaked"]:
        head.append(el("span.rl-leak", f"⚑ {leak['detector'] or ''} leak", title=leak["evidence"]))
    if hint["error"]:
        head.append(el("span.rl-wrong", "teacher error: ", inline(hint["error"], 80)))
    text = inline(hint["text"], 90) if hint["text"] else el("span.rl-muted", "(nothing)")
    return [*head, el("span.fk-quote", text)]


def _samples(
    run: int,
    turn: int,
    row: JsonObject,
    key: str,
    page: Page[DialogueSummary],
    opened: Mapping[str, DialogueWithSiblings],
) -> Element:
    rows: list[Node] = []
    for item in page.rows:
        sample = f"{key}|{item.event_id}"
        link = page_url("dialogues", run=run, dialogue=item.event_id, turn=turn + 1)
        head: list[Node] = [
            el("span.rl-num.rl-muted", str(item.index + 1)),
            signs(item.outcomes[turn + 1 :]),
            None if item.error is None else el("span.rl-wrong", "! error", title=item.error),
        ]
        content = None
        if sample in opened:  # the changed hint and everything after it
            turns = opened[sample].turns[turn:]
            content = el("div", *(turn_view(item, hint_only=item.index == turn) for item in turns))
        rows.append(_branch(sample, 2, head, content, el("a.rl-small", "replay", href=link, tabindex=-1)))
    total = page.total or 0
    if total > len(page.rows):
        url = page_url("dialogues", run=run, checkpoint=row["checkpoint"], condition=row["arm"])
        rows.append(el("a.rl-small", f"all {total:,} dialogues", href=url))
    return el("div", rows)
