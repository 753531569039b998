"""Numbers, intervals, verdicts and tables as text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rl2f_core.common.stats.intervals import LEVEL, MIN_PROBLEMS, TOO_FEW, Interval
from rl2f_core.common.text.decimals import decimal
from rl2f_core.types import ConstantBaseline

INCLUDES_ZERO = "95 % CI includes 0"
CONDITION_TEXTS = {
    "resample": "Independent first attempts without dialogue",
    "shuffled": "Under shuffled hints",
    "misleading": "Under misleading hints",
    "scripted": "Under the environment's hints",
    "leaking": "Under hints that state the answer",
    "no_oracle": "Without an oracle stop",
    "reflection_shuffled": "With reflections of other problems",
    "reflection_dropped": "Without reflections",
    "reflection_corrupted": "With reflections that argue for wrong actions",
}
"""Descriptions of conditions in findings."""

Table = tuple[str, list[str], list[list[str]]]
"""Title, header, rows."""


def size_text(problems: int, samples: int, split: str) -> str:
    """Return the number of problems, samples and dialogues."""
    if not samples:
        return f"{problems} distinct {split} problems with different numbers of samples"
    return (
        f"{problems} distinct {split} problems × {samples} sample{'' if samples == 1 else 's'} = "
        f"{problems * samples} dialogues per condition"
    )


def missing_text(problems: int, requested: int, split: str, setting: str = "evaluation.samples_per_task") -> str:
    """State that a split has fewer distinct problems than requested."""
    return (
        f"Only {problems} distinct problems of the requested {requested} were found in the {split} split; all of them "
        f"are evaluated. Several samples each: {setting}."
    )


def number(x: float | None, signed: bool = False, digits: int = 2) -> str:
    """Format as `.31`, `−.02`, `1.00`, or `+.31` if signed; `–` for None."""
    return decimal(x, digits, signed=signed)


def digits_beside(threshold: float, *values: float | None) -> int:
    """Return the number of decimals, 2 to 6, with which no value that differs from ± a threshold is shown as it."""
    differing = [abs(x) for x in values if x is not None and not math.isclose(abs(x), abs(threshold))]
    shown = ((digits, decimal(abs(threshold), digits)) for digits in range(2, 6))
    return next((digits for digits, text in shown if text not in [decimal(x, digits) for x in differing]), 6)


def p_text(p_value: float | None) -> str:
    """Format a p-value; one that differs from .05 is not shown as .05, nor one above 0 as 0."""
    return nonzero_number(p_value, digits_beside(1 - LEVEL, p_value))


def interval_beside(interval: Interval, threshold: float, signed: bool = False) -> tuple[str, str]:
    """Format an interval and a threshold with which its ends are compared; different numbers are shown differently."""
    digits = digits_beside(threshold, interval.low, interval.high)
    return interval_text(interval, signed, digits), nonzero_number(threshold, digits)


def interval_text(interval: Interval | None, signed: bool = False, digits: int = 2) -> str:
    """Format as `.31 [.20, .42]`; `–` without a value."""
    if interval is None or interval.value is None:
        return "–"
    value = number(interval.value, signed, digits)
    if interval.low is None or interval.high is None:
        return f"{value} (no interval)"
    return f"{value} [{nonzero_number(interval.low, digits)}, {nonzero_number(interval.high, digits)}]"


def nonzero_number(x: float | None, digits: int = 2) -> str:
    """Format as `number`, with one significant digit or as `<.0001` if that would show a nonzero value as 0."""
    text = number(x, digits=digits)
    if not x or text.strip("−.0"):
        return text
    if abs(x) < 0.0001:
        return "<.0001" if x > 0 else ">−.0001"
    return f"{x:.1g}".replace("-", "−").replace("0.", ".", 1)


def baseline_text(baseline: ConstantBaseline) -> str:
    """Return the constant baseline as a sentence."""
    return f"The best constant answer ({baseline.answer}) solves {nonzero_number(baseline.score)} at one attempt."


def count_text(interval: Interval) -> str:
    """Format a mean that is not a fraction as `41.2 [38.0, 44.9]`; `–` without a value."""
    if interval.value is None:
        return "–"
    if interval.low is None or interval.high is None:
        return f"{interval.value:.1f}"
    return f"{interval.value:.1f} [{interval.low:.1f}, {interval.high:.1f}]"


def verdict_text(interval: Interval, above: str, below: str) -> str:
    """Return `above` or `below` if the interval excludes 0, also after Holm's correction; otherwise why not."""
    if interval.value is None:
        return "no problem in common"
    if interval.low is None or interval.high is None:
        return "no interval, 1 problem" if interval.n == 1 else "no interval"
    if interval.n < MIN_PROBLEMS:
        return f"{TOO_FEW} (n = {interval.n}, at least {MIN_PROBLEMS} are needed)"
    if not interval.excludes_zero:
        return INCLUDES_ZERO
    if interval.holm_p is not None and interval.holm_p > 1 - LEVEL:
        return f"95 % CI excludes 0, but not after Holm's correction (p = {p_text(interval.holm_p)})"
    return above if interval.above(0) else below


def quantity_text(name: str) -> str:
    """Return a compared quantity in words, e.g. `solve rate within 3 turns` for `cum_acc/3`."""
    head, _, turns = name.partition("/")
    if head.endswith("cum_acc"):
        within = f" within {turns} turn{'' if turns == '1' else 's'}" if turns else ""
        return f"{head.removesuffix('cum_acc')}solve rate{within}"
    return name.replace("_", " ")


def markdown_table(table: Table) -> str:
    """Return a heading and a table; cells are escaped."""
    title, header, rows = table
    return "\n".join([f"## {title}", "", *markdown_rows(header, rows)])


def markdown_rows(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table; pipes are escaped and line breaks removed."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"

    return [line(header), "|" + " --- |" * len(header), *map(line, rows)]


def render_markdown(title: str, report_tables: Sequence[Table], sentences: Sequence[str]) -> str:
    """Return a report with a title, tables and findings as Markdown."""
    lines = [f"# {title}", "", "Square brackets contain 95 % intervals.", ""]
    for table in report_tables:
        lines += [markdown_table(table), ""]
    return "\n".join([*lines, "## Findings", "", *(f"- {sentence}" for sentence in sentences)]) + "\n"
