"""Values of metrics by problem, from which reports of several seeds are merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rl2f_core.dialogue.metrics.dialogues import Tallies, Tally
from rl2f_core.types import FrozenModel

STORED_METRICS = ("gain", "conditional_solve_rate", "plasticity", "repeated_answer_rate", "improving_change_rate",
                  "retention", "efficiency", "efficiency_chance",
                  "determined_rate", "parse_failure_rate")  # fmt: skip
"""Metrics with hints whose values by problem a report contains, besides cum_acc/1 and cum_acc/T."""
PER_DIALOGUE = ("cum_acc", "gain")
"""Those with one observation per dialogue. The observations of the others depend on the answers, so that differences
are those of pooled rates; see `common.stats.contrast`."""
RATIOS = ("efficiency", "efficiency_chance")
"""Those whose denominators are not numbers of observations; see `metrics.dialogues.ratio_interval`."""


class ProblemValues(FrozenModel):
    """Observations of one metric by problem, in the order of the report's `problems`."""

    sums: tuple[float, ...]
    counts: tuple[float, ...]
    """Number of observations; 0 if the problem has none."""


def problem_values(tallies: Tallies, keys: Mapping[str, str], with_hints: bool) -> dict[str, ProblemValues]:
    """Return the values of cum_acc/1, cum_acc/T and, with hints, of `STORED_METRICS`.

    Args:
        tallies: Observations of one checkpoint under one condition.
        keys: Key of the problem of each task, in the order of the values.
        with_hints: Whether the condition is `hints`.
    """
    result = {}
    for name in dict.fromkeys(["cum_acc/1", f"cum_acc/{tallies.turns}", *(STORED_METRICS if with_hints else ())]):
        tally = tallies.values[name]
        if isinstance(tally, Tally) and tally.kind in ("fraction", "ratio"):
            pairs = [tally.by_task.get(task, (0.0, 0.0)) for task in keys]
            result[name] = ProblemValues(sums=tuple(s for s, _ in pairs), counts=tuple(n for _, n in pairs))
    return result


def stack(values: Sequence[ProblemValues | None], problems: Sequence[Sequence[str]]) -> tuple[np.ndarray, np.ndarray]:
    """Return sums and counts (problems × seeds) over the union of problems; a missing problem has a count of 0.

    Args:
        values: Values of each seed; None if the seed has none.
        problems: Keys of each seed's problems, in the order of its values.
    """
    rows = {key: i for i, key in enumerate(dict.fromkeys(key for keys in problems for key in keys))}
    sums, counts = np.zeros((len(rows), len(values))), np.zeros((len(rows), len(values)))
    for seed, (of_seed, keys) in enumerate(zip(values, problems, strict=True)):
        if of_seed is not None:
            index = [rows[key] for key in keys]
            sums[index, seed], counts[index, seed] = of_seed.sums, of_seed.counts
    return sums, counts
