"""Results of forks that sample the attempt after a flagged hint again, with its flagged span masked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.endpoints.types import from_row
from jobs.db.models import Run
from jobs.db.queries.dialogues import DialogueView
from rl2f_core.common.stats.intervals import Interval
from rl2f_core.run.directory import RunDir
from rl2f_core.types import FrozenModel

if TYPE_CHECKING:
    from rl2f_core.run.kinds.fork import ForkRun


class RedactedRerun(FrozenModel):
    """Result of a fork with the original and the redacted hint."""

    status: str
    detail: str
    run: int
    """The fork."""
    turn: int
    """0-based attempt that the hint follows."""
    checkpoint: str
    """The student that continued the dialogue."""
    hint: str | None
    """The redacted hint; None before the first result."""
    error: str | None
    """Why there is no redacted hint."""
    stored: bool | None
    """The stored next attempt is correct; None without it or its verdict."""
    same_seed: dict[str, bool]
    """Whether the next attempt is correct under the dialogue's own seed, for `original` and `redacted`."""
    solved: dict[str, Interval]
    """Fraction of correct next attempts under other seeds, for both."""
    samples: int
    """Number of other seeds."""


def rerun_result(row: Run, config: ForkRun, view: DialogueView, folder: RunDir) -> RedactedRerun:
    """Return the result so far.

    Args:
        row: The fork.
        config: Its configuration.
        view: The dialogue that it continues.
        folder: The fork's run directory.
    """
    from rl2f_core.evaluation.counterfactual.runner import read_report

    report, checkpoint = read_report(folder.path), next(iter(config.checkpoints))
    result = next((hint for hint in report.hints if hint.checkpoint == checkpoint), None) if report else None
    masked = result.hints_by_arm.get("redacted") if result else None
    after = view.turns[config.turn + 1 : config.turn + 2]
    return from_row(
        RedactedRerun,
        row,
        run=row.id,
        turn=config.turn,
        checkpoint=checkpoint,
        hint=masked.text if masked and masked.error is None else None,
        error=masked.error if masked else None,
        stored=after[0].verdict.correct if after else None,
        same_seed=result.same_seed if result else {},
        solved=result.arms if result else {},
        samples=config.samples,
    )
