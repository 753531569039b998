"""From timings to ratios, shares and a table. Pure functions.

Work is counted as the operations of the matrix products that cannot be avoided (a multiply-add is two), the same for
all sides, so what a side does twice lowers its share:

    rollout   2 · body · read + 2 · head · student
    update    4 · body · read + 6 · lora · read + 4 · head · student

`body` is the number of weights without the embeddings, `head` those of the output layer (hidden size × vocabulary),
`lora` those of the adapter.  `read` counts every token of every dialogue once, and equal openings once; `student` are
the tokens that are sampled or trained, where alone logits are needed.  The update's 4 is 2 forward and 2 for the
gradients of the activations, since the base weights are frozen; the adapter takes 2 more for its own gradients.
Attention scores, normalisation, softmax and sampling are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple


def parser(prog: str, doc: str | None, repeats: int = 3) -> argparse.ArgumentParser:
    """A command line with what all benchmarks of a model take."""
    made = argparse.ArgumentParser(prog=f"python -m {prog}", description=doc)
    made.add_argument("--model", default="smollm2-135m", help="built-in name, folder or hub id")
    made.add_argument("--device", default="auto")
    made.add_argument("--dtype", default="auto")
    made.add_argument("--repeats", type=int, default=repeats, help="measured repeats of each side")
    made.add_argument("--out", type=Path, help="write all numbers here as JSON")
    return made


class Spread(NamedTuple):
    """Median with the smallest and largest."""

    median: float
    low: float
    high: float

    def text(self, digits: int = 1) -> str:
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}–{self.high:.{digits}f})"


def spread(values: Sequence[float]) -> Spread:
    """Median, smallest and largest of at least one value."""
    return Spread(median(values), min(values), max(values))


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """How many times faster ours is, by rates of neighbours in time: repeat i against repeat i."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])


def rollout_work(body: int, head: int, read: int, student: int) -> float:
    """Operations of a rollout."""
    return 2.0 * body * read + 2.0 * head * student


def update_work(body: int, head: int, lora: int, read: int, student: int) -> float:
    """Operations of an update."""
    return (4.0 * body + 6.0 * lora) * read + 4.0 * head * student


def of_ceiling(rates: Sequence[float], gflops: float) -> str:
    """The median of some operations a second as a share of the matrix products' ceiling."""
    return f"{100 * spread(rates).median / (gflops * 1e9):.0f} %"


def fastest(rates: Mapping[str, float]) -> str:
    """The baseline that a headline is measured against."""
    return max(rates, key=lambda name: rates[name])


def relative(a: float, b: float) -> float:
    """|a − b| over the larger of the two."""
    return abs(a - b) / max(abs(a), abs(b), 1e-12)


def busy(load: float, cores: int) -> str:
    """A warning where other programs use more than a tenth of the machine; else nothing."""
    if load <= 0.1 * cores:
        return ""
    return (
        f"Other programs are running (load {load:.1f} on {cores} cores): trust the ratios by CPU time, not the rates."
    )


def headline(result: Mapping[str, Any]) -> str:
    """One line: the ratio, what it is against, and whether it reaches what is asked by the clock."""
    found, wanted = result["ratio"], result["wanted"]
    verdict = "reached" if found.median >= wanted else "NOT reached"
    by_cpu = f", {result['cpu_ratio'].text(2)} by CPU time" if "cpu_ratio" in result else ""
    return (
        f"{result['name']}: {result['ours']} is {found.text(2)} times as fast as {result['against']}{by_cpu}; "
        f"at least {wanted} wanted, {verdict}"
    )


def memory_line(result: Mapping[str, Any]) -> str:
    """One line: peak memory of the update, ours and the headline's baseline."""
    ours, theirs = result["rise"][result["ours"]], result["rise"][result["against"]]
    verdict = "reached" if ours <= theirs else "NOT reached"
    return (
        f"memory of the update: {megabytes(ours)}, {result['against']} {megabytes(theirs)} "
        f"({ours / max(theirs, 1):.2f} times); no higher wanted, {verdict}"
    )


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns of text: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def megabytes(count: float) -> str:
    """Bytes as MB, 10⁶."""
    return f"{count / 1e6:.0f} MB"
