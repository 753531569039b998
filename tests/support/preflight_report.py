"""A preflight report for tests."""

from __future__ import annotations

from rl2f_core.common.stats.intervals import wilson
from rl2f_core.learning.training.preflight import PreflightReport


def report(passed: bool = True) -> PreflightReport:
    """Return a report of 4 groups of 2: one all incorrect, two mixed, one all correct."""
    return PreflightReport(
        stage="rl",
        tasks=4,
        samples=2,
        turns=3,
        parsable=wilson(7, 8),
        solved_first=wilson(1, 8),
        solved=wilson(4, 8),
        outcomes={"groups/frac_mixed": 0.5, "groups/frac_all_correct": 0.25, "groups/frac_all_incorrect": 0.25},
        histogram=[1, 2, 1],
        expected_mixed_groups=2.0,
        attempt_tokens=5.0,
        max_attempt_tokens=8,
        cut_attempts=wilson(0, 12),
        hint_tokens=4.0,
        dialogue_tokens=40,
        max_seq_len=64,
        truncated=wilson(0, 8),
        failed=0,
        seconds_per_step=1.5,
        total_seconds=90.0,
        memory_gib=1.25,
        most_common_answer="7",
        passed=passed,
        reason="" if passed else "Too hard.",
        fix="" if passed else "Choose an easier level.",
    )
