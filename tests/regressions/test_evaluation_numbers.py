"""Reported faults of evaluation numbers: pooled rates, seeds, failed detectors, references, small samples, texts."""

from __future__ import annotations

from typing import Any

import pytest
from report_data import built

from rl2f_core.evaluation.across_seeds import compare_arms
from rl2f_core.evaluation.report import EvaluatedTasks
from rl2f_core.evaluation.study.report import find
from rl2f_core.evaluation.study.spec import Hypothesis
from rl2f_core.types import Dialogue, Hint, StopReason, Turn, Verdict


def answered(
    task: int, answers: str, index: int = 0, hint: Hint = Hint(text="No.", teacher="scripted"), **more: Any
) -> Dialogue:
    """A dialogue with one letter per attempt; R is right."""
    turns = tuple(
        Turn(index=k, attempt=letter, token_ids=(1,), hint=hint if k < len(answers) - 1 else None,
             verdict=Verdict(correct=letter == "R", score=float(letter == "R"), parsed=letter, well_formed=True))
        for k, letter in enumerate(answers)
    )  # fmt: skip
    stop = StopReason.SOLVED if answers.endswith("R") else StopReason.EXHAUSTED
    names = {"id": f"t{task}/{index}", "task_id": f"t{task}", "group": f"t{task}", "index": index}
    return Dialogue(**{**names, "turns": turns, "stop_reason": stop, **more})


# -- pooled rates ----------------------------------------------------------------------------------------------------
def test_a_study_compares_the_rates_that_reports_contain() -> None:
    """One arm changes 30 of 50 revisions, the other 44 of 62: .6 − .7097. The mean over problems would be +.20."""
    first = [answered(i, "xR" if i < 30 else "xxx") for i in range(40)]
    second = [answered(i, "xyz" if 8 <= i < 30 else "xx") for i in range(40)]
    size = [EvaluatedTasks(tasks=40, samples=1, seed=seed) for seed in (0, 1)]
    arms = [{str(s): built({"rl@2": {"hints": arm}}, s, size[s]) for s in (0, 1)} for arm in (first, second)]
    found = compare_arms(arms, ("rl@2", "rl@2"), "plasticity")
    assert found.is_crossed and found.values == pytest.approx((30 / 50 - 44 / 62,) * 2)
    assert found.difference.value == pytest.approx(30 / 50 - 44 / 62) and found.difference.n == 40
    hypothesis = Hypothesis(name="x", quantity="plasticity", compare=("a", "b"), smallest_effect=0.01)
    assert find(hypothesis, found) == "not shown"


def test_differences_by_seed_are_paired_as_their_mean_is() -> None:
    """The dialogues of problems 0 … 9 failed in the first arm: it solves none of the common 10, the second arm 5."""
    failed = [answered(i, "x", stop_reason=StopReason.FAILED) for i in range(10)]
    first = [*failed, *(answered(i, "xxx") for i in range(10, 20))]
    second = [answered(i, "xR" if i < 15 else "xxx") for i in range(20)]
    size = EvaluatedTasks(tasks=20, samples=1)
    arms = [{"0": built({"rl@2": {"hints": arm}}, 0, size)} for arm in (first, second)]
    found = compare_arms(arms, ("rl@2", "rl@2"))
    assert found.values == (-0.5,) and (found.difference.value, found.difference.n) == (-0.5, 10)
