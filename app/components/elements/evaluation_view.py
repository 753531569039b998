"""Elements of evaluations: checkpoint × condition with intervals, differences, conclusions.

The data is that of `app.plots.evaluation.as_json`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from app.common.urls import page_url
from app.components.elements.help_tip import help_tip
from app.components.nodes import Element, el, table
from rl2f_core.evaluation.formatting import quantity_text
from rl2f_core.evaluation.plotting import CONDITION_COLORS
from rl2f_core.types import JsonObject

CHART_WIDTH, HEIGHT = 84, 14
"""Pixels of a whisker."""
LEGEND = (
    "Square brackets and bars: 95 % intervals. Optimal policy with / without hints. "
    "≈ const: not above the constant baseline."
)
Link = Callable[[str, str], str]
"""Address of the dialogues of a checkpoint and a condition."""


def dialogues_link(run: int) -> Link:
    """Return the addresses of the dialogues of a run's evaluation."""
    return lambda checkpoint, condition: page_url(
        "dialogues", run=run, phase="evaluation", checkpoint=checkpoint, condition=condition
    )


def number(cell: JsonObject | None) -> Element:
    """Return `.31 [.20, .42]`, the interval smaller."""
    if not cell:
        return el("span.rl-muted", "–")
    value, space, interval = str(cell["text"]).partition(" ")
    baseline = cell.get("constant_baseline")
    return el(
        "span",
        value,
        space or None,
        el("small", interval) if interval else None,
        el("small.rl-baseline", " ≈ const", title=baseline) if baseline else None,
        title=f"n = {cell['n']}",
    )


def value_range(cells: Iterable[JsonObject | None]) -> tuple[float, float]:
    """Return the range of values and intervals, at least ±0.1."""
    ends = [cell[name] for cell in cells if cell for name in ("value", "low", "high") if cell[name] is not None]
    return min([-0.1, *ends]), max([0.1, *ends])


def whisker(cell: JsonObject | None, low: float, high: float) -> Element | None:
    """Return a picture of a difference: the point, its interval, and the line of no difference."""
    if not cell:
        return None

    def at(value: float) -> float:
        return round((value - low) / ((high - low) or 1) * (CHART_WIDTH - 6) + 3, 1)

    has_interval = cell["low"] is not None
    excludes_zero = has_interval and (cell["low"] > 0 or cell["high"] < 0)
    color = "var(--rl-text)" if excludes_zero else "var(--rl-muted)"
    middle = HEIGHT / 2
    return el(
        "svg:svg",
        el("svg:line", x1=at(0), x2=at(0), y1=1, y2=HEIGHT - 1, stroke="var(--rl-border-strong)"),
        el("svg:line", x1=at(cell["low"]), x2=at(cell["high"]), y1=middle, y2=middle, stroke=color, stroke_width=2)
        if has_interval
        else None,
        el("svg:circle", cx=at(cell["value"]), cy=middle, r=3, fill=color),
        class_="rl-whisker",
        viewBox=f"0 0 {CHART_WIDTH} {HEIGHT}",
        width=CHART_WIDTH,
        height=HEIGHT,
        aria_hidden="true",
    )


def condition_label(name: str) -> Element:
    """Return the name of a condition with its color."""
    color = CONDITION_COLORS.get(name, "--rl-plot-8")
    return el("span.rl-control", el("i", style=f"color: var({color})"), name)


def outcome_table(evaluation: JsonObject, link: Link, outcomes: JsonObject | None = None) -> Element:
    """Return the table checkpoint × condition.

    Args:
        evaluation: The evaluation.
        link: Address of the dialogues behind a row.
        outcomes: Another table of the evaluation; by default its metrics.
    """
    outcomes = outcomes or evaluation["table"]
    columns = outcomes["columns"]
    limits = value_range(row["cells"].get("effect") for row in outcomes["rows"])
    rows, previous = [], None
    for row in outcomes["rows"]:
        checkpoint, condition = row["checkpoint"], row["control"]
        is_first = checkpoint != previous
        previous = checkpoint
        rows.append(
            el(
                "tr",
                el("td", el("b", checkpoint) if is_first else None),
                el("td", el("a", condition_label(condition), href=link(checkpoint, condition), title="Read dialogues")),
                *(_cell(column["key"], row["cells"][column["key"]], condition, limits) for column in columns),
                class_=f"{'rl-first' if is_first else ''} {'rl-hints' if condition == 'hints' else ''}",
            )
        )
    rows += [_policy_row(policy, columns, evaluation["turns"]) for policy in outcomes["reference_policies"]]
    titles = [
        el("span.rl-with-help", column["title"], help_tip(column["title"], column["help"], column.get("formula", "")))
        for column in columns
    ]
    return table(["checkpoint", "condition", *titles], rows, "rl-eval")


def _cell(key: str, cell: JsonObject | None, condition: str, limits: tuple[float, float]) -> Element:
    if key == "effect" and not cell:
        return el("td.rl-muted.rl-small", "0 by definition" if condition == "contentless" else "–")
    return el("td", number(cell), whisker(cell, *limits) if key == "effect" else None)


def _policy_row(policy: JsonObject, columns: Sequence[JsonObject], turns: int) -> Element:
    """Return the solve rates of a reference policy at the first and the last turn."""
    by_turn = {value["turn"]: value["text"] for value in policy["values"]}
    texts = {"cum_acc/1": by_turn.get(1), "cum_acc/T": by_turn.get(turns)}
    cells = [el("td.rl-muted", texts.get(column["key"])) for column in columns]
    return el("tr", el("td.rl-muted", "reference"), el("td.rl-muted", policy["name"]), *cells)


def difference_table(rows: Sequence[JsonObject]) -> Element:
    """Return differences between checkpoints (`app.plots.evaluation.difference_rows`)."""
    limits = value_range(row["cell"] for row in rows)
    body = [
        el(
            "tr",
            el("td", f"{row['checkpoint']} − {row['against']}"),
            el("td", quantity_text(row["quantity"])),
            el("td", number(row["cell"]), whisker(row["cell"], *limits)),
            el("td", row["finding"]),
        )
        for row in rows
    ]
    return table(["checkpoints", "quantity", "difference", "conclusion"], body, "rl-eval")


def findings_list(lines: Sequence[str]) -> Element:
    """Return sentences as a list."""
    return el("ul.rl-findings", *(el("li", line) for line in lines))


def conclusions_card(evaluation: JsonObject) -> Element | None:
    """Return the answers about the hints, then the other sentences, folded by kind; None without any."""
    answers, groups = evaluation["answers"], evaluation["conclusions"]
    if not answers and not groups:
        return None
    pairs = ((el("dt", el("b", question)), el("dd", text)) for question, text in answers.items())
    folds = [
        el(
            "details",
            el("summary", f"{kind} ({len(lines)})"),
            findings_list(lines),
            open=not answers or None,
            data_fold=f"conclusions {kind}",
        )
        for kind, lines in groups.items()
    ]
    return el(
        "div.rl-card.rl-stack.rl-conclusions",
        el("h2", "Conclusions"),
        el("dl.rl-answers", (cell for pair in pairs for cell in pair)) if answers else None,
        folds,
    )


def evaluation_sheet(evaluation: JsonObject, link: Link) -> Element:
    """Return tables and differences of an evaluation or of one of its parts."""
    attempts, differences = evaluation["attempts"], evaluation["differences"]
    return el(
        "div.rl-section",
        el("div.rl-card.rl-stack", outcome_table(evaluation, link), el("p.rl-muted.rl-small", LEGEND)),
        el(
            "details.rl-fold",
            el("summary", "Attempt outcomes"),
            el("div", outcome_table(evaluation, link, attempts)),
            data_fold="attempts",
        )
        if attempts
        else None,
        el("div.rl-card.rl-stack", el("h2", "Differences between checkpoints"), difference_table(differences))
        if differences
        else None,
    )
