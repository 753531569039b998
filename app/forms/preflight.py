"""Progress, verdict and histogram of a preflight."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from jobs.db.models import ENDED, Run
from rl2f_core.common.file_io import checked_path
from rl2f_core.common.stats.intervals import Interval
from rl2f_core.dialogue.metrics.constant_baseline import describe_comparison
from rl2f_core.learning.training.preflight import PreflightReport
from rl2f_core.types import FrozenModel, JsonObject


class PreflightVerdict(FrozenModel):
    """Whether a training run is worth starting."""

    ok: bool
    """The run is worth starting."""
    text: str
    """The verdict with its reason."""
    fix: str
    """What to change; empty if nothing."""
    note: str
    """Remark about later checks."""


class PreflightFact(FrozenModel):
    """A measured value of a preflight."""

    label: str
    """What was measured."""
    value: str
    """The value with its interval."""
    note: str
    """What the value refers to."""


class PreflightState(FrozenModel):
    """Progress or result of a preflight."""

    run: int
    status: str
    ended: bool
    """The run has ended."""
    detail: str | None
    yaml: str
    phase: str | None
    done: float
    """Completed dialogues."""
    total: float | None
    """All dialogues."""
    verdict: PreflightVerdict | None = None
    """None until the report exists."""
    facts: Sequence[PreflightFact] = ()
    """The measured values."""
    figure: JsonObject | None = None
    """Plotly figure of the group outcomes; its colors are names of CSS variables."""
    text: str = ""


def view(run: Run, folder: Path) -> PreflightState:
    """Return the state of a preflight.

    Args:
        run: Its row.
        folder: Its run directory, with `preflight.json` and `preflight.txt` at the end.
    """
    result: JsonObject = {}
    if (report := _report(folder)) is not None:
        text = _read(checked_path(folder, "preflight.txt")) or report.to_text()
        result = {"verdict": _verdict(report, text), "facts": _facts(report), "figure": figure(report), "text": text}
    return PreflightState(
        run=run.id,
        status=run.status,
        ended=run.status in ENDED,
        detail=run.detail,
        yaml=run.config,
        **_progress(run, folder),
        **result,
    )


def _report(folder: Path) -> PreflightReport | None:
    try:
        return PreflightReport.model_validate_json(checked_path(folder, "preflight.json").read_bytes())
    except (OSError, ValidationError):
        return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _progress(run: Run, folder: Path) -> JsonObject:
    """Return the progress from the worker's file, which is newer than the row."""
    try:
        progress = json.loads(checked_path(folder, "progress.json").read_bytes())
        return {"phase": str(progress["phase"]), "done": float(progress["done"]), "total": progress["total"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {"phase": run.phase, "done": run.done, "total": run.total}


def _verdict(report: PreflightReport, text: str) -> PreflightVerdict:
    """Return the verdict with its reason and fix; `note` is the remark of the text about later checks."""
    note = next((line.strip() for line in text.splitlines() if line.strip().startswith("These are the starting")), "")
    words = "Worth starting." if report.passed else f"Not worth starting with these weights: {report.reason}"
    return PreflightVerdict(ok=report.passed, text=words, fix=report.fix, note=note)


def _facts(report: PreflightReport) -> list[PreflightFact]:
    """Return the measured values with their intervals."""
    n = report.tasks * report.samples
    mixed = report.outcomes.get("groups/frac_mixed", 0.0)
    minutes = report.total_seconds / 60
    duration = f"{minutes:.0f} min" if minutes >= 1 else f"{report.total_seconds:.0f} s"
    rows = [
        ("dialogues", f"{report.tasks} tasks × {report.samples}", f"stage {report.stage}, up to {report.turns} turns"),
        ("parsable", _rate(report.parsable), f"of {n} first attempts"),
        ("correct at turn 1", _rate(report.solved_first), f"of {n} first attempts"),
        ("solved", _rate(report.solved), f"within {report.turns} turns"),
        *_constant_baseline(report),
        ("mixed groups", f"{mixed:.0%}", f"{report.groups_with_signal} useful groups per step"),
        ("truncated", _rate(report.cut_attempts), f"of attempts, at {report.max_attempt_tokens} tokens"),
        ("time", f"≈ {duration}", f"≈ {report.seconds_per_step:.1f} s per step of {report.stage}"),
        ("memory", f"{report.memory_gib:.1f} GiB", "peak so far"),
        *_training_memory(report),
        *_retained_states(report),
    ]
    return [PreflightFact(label=label, value=value, note=note) for label, value, note in rows]


def _training_memory(report: PreflightReport) -> list[tuple[str, str, str]]:
    """Return the estimated memory of training; reports of earlier versions have none."""
    needed, total = report.training_memory_gib, report.total_memory_gib
    if needed is None or total is None:
        return []
    return [("training memory", f"≈ {needed:.1f} GiB", f"of {total:.1f} GiB; {report.trained_weights}")]


def _retained_states(report: PreflightReport) -> list[tuple[str, str, str]]:
    """Return the disk space of the retained training states; empty without any."""
    if not report.retained_states:
        return []
    return [("disk", f"≤ {report.retained_gib:.2f} GiB", f"for {report.retained_states} retained training states")]


def _constant_baseline(report: PreflightReport) -> list[tuple[str, str, str]]:
    """Return the score of the constant baseline; reports of earlier versions have none."""
    if report.constant_baseline is None:
        return []
    found = describe_comparison(report.solved_first, report.constant_baseline)
    return [("constant baseline", f"{report.constant_baseline.score:.0%}", f"turn 1 is {found}")]


def _rate(interval: Interval) -> str:
    if interval.value is None:
        return "–"
    return f"{interval.value:.0%} ({interval.low or 0:.0%}–{interval.high or 0:.0%})"


def figure(report: PreflightReport) -> JsonObject:
    """Return the Plotly histogram of groups by their number of solved dialogues.

    Colors are names of the style sheet's variables, which `Charts` resolves.
    """
    size = report.samples
    parts = [
        ("all incorrect", "✗", "--rl-wrong", range(1)),
        ("mixed", "", "--rl-accent", range(1, size)),
        ("all correct", "✓", "--rl-right", range(size, size + 1)),
    ]
    axis = {"gridcolor": "--rl-border", "linecolor": "--rl-border", "zeroline": False, "fixedrange": True,
            "tickfont": {"size": 11, "color": "--rl-muted"}}  # fmt: skip
    font = {"size": 11, "color": "--rl-muted"}
    most = max(report.histogram, default=0)
    return {
        "data": [
            {
                "type": "bar",
                "name": name,
                "x": list(solved),
                "y": [report.histogram[k] for k in solved],
                "marker": {"color": color},
                "text": [f"{sign} {report.histogram[k]}".strip() if report.histogram[k] else "" for k in solved],
                "textposition": "outside",
                "cliponaxis": False,
                "hovertemplate": f"%{{y}} groups with %{{x}} of {size} solved: {name}<extra></extra>",
            }
            for name, sign, color, solved in parts
        ],
        "layout": {
            "height": 200,
            "margin": {"l": 36, "r": 8, "t": 18, "b": 40},
            "barmode": "overlay",
            "bargap": 0.15,
            "showlegend": False,
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"color": "--rl-text", "size": 11},
            "xaxis": {
                **axis,
                "title": {"text": f"dialogues solved in a group of {size}", "font": font},
                "showgrid": False,
                "range": [-0.6, size + 0.6],
                "dtick": max(1, size // 8),
            },
            "yaxis": {
                **axis,
                "title": {"text": "groups", "font": font},
                "range": [0, most * 1.18 or 1],
                "dtick": max(1, most // 4),
            },
        },
    }
