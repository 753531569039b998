"""Dialogues as rows with outcomes, reward, advantage, leaks, labels and hint value."""

from __future__ import annotations

from collections.abc import Sequence

from app.components.elements.transcript import inline, leak_flag, signed, signs
from app.components.nodes import Element, Node, action, el, table
from jobs.db.dialogue_models import DialogueSummary
from rl2f_core.common.text.decimals import decimal

VALUE_HELP = "largest value of its hints: p(solve | hint) − p(solve | contentless)"
COLUMNS = {
    "task": "task", "seed": "seed", "turns": "turns", "solved": "solved at", "reward": "reward", "leak": "leak",
    "bits": "bits used", "tokens": "tokens",
}  # fmt: skip
"""Order → title of the table's column."""


def dialogue_table(rows: Sequence[DialogueSummary], order: str) -> Element:
    """Return the rows as a table; a title triggers the action `order`, and a task the action `open`.

    Args:
        rows: The dialogues.
        order: The order of the rows, as in `DialogueFilter`.
    """
    heads = []
    for name, title in COLUMNS.items():
        is_current, is_down = order.removeprefix("-") == name, order.startswith("-")
        sign = (" ↓" if is_down else " ↑") if is_current else ""
        button = action(
            f"{title}{sign}", "order", style="rl-small rl-quiet", order=name if is_current and is_down else f"-{name}"
        )
        state = ("descending" if is_down else "ascending") if is_current else None
        heads.append(el("th", button, scope="col", aria_sort=state))
    return table(["", *heads], [_table_row(row) for row in rows], "dl-table", name="dialogues")


def _table_row(row: DialogueSummary) -> Element:
    solved = "–" if row.solved_at is None else str(row.solved_at)
    return el(
        "tr",
        el("td", signs(row.outcomes)),
        el(
            "td",
            el(
                "button.dl-open", inline(row.task, 60), data_action="open", data_run=row.run_id, data_event=row.event_id
            ),
        ),
        *(el("td.rl-num", text) for text in (str(row.seed), str(row.length), solved, decimal(row.reward))),
        el("td", leak_flag(row.leak_state) or el("span.rl-muted", "none" if row.leak_state else "unchecked")),
        el("td.rl-num", decimal(row.bits_used)),
        el("td.rl-num", f"{row.tokens:,}" if row.tokens else el("span.rl-muted", "–", title="not stored")),
        data_key=row_key(row.run_id, row.event_id),
    )


def dialogue_list(rows: Sequence[DialogueSummary], *, with_run: bool = True) -> Element:
    """Return the rows as items of a `View`; a click on one triggers the action `open` with `run` and `event`.

    Args:
        rows: The dialogues.
        with_run: Show the run of each dialogue.
    """
    return el("div.dl-list", [_row(row, with_run) for row in rows], role="list", aria_label="dialogues")


def row_key(run: int, event_id: str) -> str:
    """Return the `data-key` of a dialogue's row."""
    return f"{run} {event_id}"


def _row(row: DialogueSummary, with_run: bool) -> Element:
    labels, value, advantage = row.label_count, row.best_hint_value, row.advantage
    top: list[Node] = [
        signs(row.outcomes),
        el("span.rl-grow"),
        None if row.error is None else el("span.rl-wrong", "!", title="ended with an error"),
        leak_flag(row.leak_state),
        el("span.dl-labeled", f"●{labels if labels > 1 else ''}", title=f"{labels} labeled hints") if labels else None,
        None if value is None else el("span.rl-num.rl-teacher", f"w {signed(value)}", title=VALUE_HELP),
        el("span.rl-num", f"r {decimal(row.reward)}", title="reward"),
        el("span.rl-num.dl-adv", "" if advantage is None else f"A {signed(advantage)}", title="advantage"),
    ]
    sub: list[Node] = [
        el("span", f"run {row.run_id}") if with_run else None,
        inline(dialogue_place(row), 40),
        el("span.rl-cut", inline(row.dialogue_id, 60)),
    ]
    button = el(
        "button.dl-row",
        el("span.dl-row-top", [node for node in top if node]),
        el("span.dl-row-sub.rl-muted", [node for node in sub if node]),
        data_action="open",
        data_run=row.run_id,
        data_event=row.event_id,
        data_key=row_key(row.run_id, row.event_id),
    )
    return el("div", button, role="listitem")


def dialogue_place(row: DialogueSummary) -> str:
    """Return where a dialogue was sampled: checkpoint and condition, or stage and step."""
    if row.checkpoint:
        return f"{row.checkpoint} · {row.condition}" if row.condition else row.checkpoint
    step = str(row.step) if row.phase in ("train", "distill") else row.phase
    parts = [row.stage, step, (row.condition or "").replace("_", " ")]
    return " ".join(part for part in parts if part)
