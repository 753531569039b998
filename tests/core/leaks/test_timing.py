"""Detectors timed on labeled hints, and the area under the ROC curve of `likelihood` by hand."""

from __future__ import annotations

from typing import Any

import pytest
from leak_helpers import Oracle

from rl2f_core.leaks.benchmark.score import LeakItem
from rl2f_core.leaks.benchmark.timing import area_under_roc, spread_out, try_detectors
from rl2f_core.leaks.parsing import parse_detectors
from rl2f_core.models.backends.model_pool import ModelPool
from rl2f_core.types import LeakReport


def item(hint: str, leak: bool, kind: str = "plain", a: int = 47, **more: Any) -> LeakItem:
    values = {
        "id": f"{kind}/{a}", "environment": {"type": "arithmetic"}, "problem": f"What is {a} + 85?", "kind": kind,
        "answer": str(a + 85), "hint": hint, "leak": leak, "split": "test",
    }  # fmt: skip
    return LeakItem.model_validate({**values, **more})


ITEMS = [
    item("It is 132.", True),
    item("It is 133.", True, a=48),
    item("You add 46 and 85.", True, "llm_judge", a=46),
    item("Carry the one.", False, "chatter"),
    item("It is not 999.", False, "chatter", a=48, split="dev"),
]


def test_auc_needs_logprob_gain_of_all_hints() -> None:
    nats = (5.0, 1.0, 0.0, 2.0, -1.0)  # leaks 5, 1, 0 against 2, −1: 2 + 1 + 1 of 6 pairs
    reports = [LeakReport(leaked=False, logprob_gain=n) for n in nats]
    found = area_under_roc(ITEMS, reports)
    assert found is not None and found.value == pytest.approx(4 / 6)
    unread = area_under_roc(ITEMS, [*reports[:-1], LeakReport(leaked=False, error="too long")])
    assert unread is not None and unread.value == pytest.approx(1 / 3)  # 5, 1, 0 against 2
    assert area_under_roc(ITEMS, [*reports[:-1], LeakReport(leaked=False)]) is area_under_roc([], []) is None


def test_detectors_run_per_environment_in_order() -> None:
    guess = item("It is 7.", True, environment={"type": "guess_number"}, problem="from 1 to 9", answer="7")
    items = [ITEMS[3], guess, *ITEMS[:2]]
    seen: list[tuple[int, int]] = []
    trial = try_detectors(items, parse_detectors("exact"), on_progress=lambda *at: seen.append(at))
    assert [report.leaked for report in trial.reports] == [False, True, True, True]
    assert trial.seconds > 0 and trial.cost == 0 and seen == [(3, 4), (4, 4)]
    probed = try_detectors(items, parse_detectors("likelihood"), ModelPool(Oracle())).reports
    assert [report.logprob_gain for report in probed] == pytest.approx([0.0, 1.75, 5.25, 5.25])


def test_spread_out_is_evenly_spaced() -> None:
    assert spread_out(ITEMS, 2) == [ITEMS[0], ITEMS[2]] and spread_out(ITEMS, 9) == ITEMS


def test_a_sample_keeps_the_hints_on_a_dialogue_together() -> None:
    tutors = [item(f"Hint {k}.", False, a=a) for a in range(10, 20) for k in range(3)]
    chosen = spread_out(tutors, 7)
    assert [(each.problem[8:10], each.hint) for each in chosen] == [
        ("10", "Hint 0."), ("10", "Hint 1."), ("10", "Hint 2."), ("13", "Hint 0."), ("13", "Hint 1."),
        ("13", "Hint 2."), ("16", "Hint 0."),
    ]  # fmt: skip


def test_a_trial_counts_the_hints_that_a_model_checked() -> None:
    checked = try_detectors(ITEMS, parse_detectors("exact,likelihood"), ModelPool(Oracle()))
    assert checked.judged == sum(report.detector != "exact" for report in checked.reports) < len(ITEMS)
    assert try_detectors(ITEMS, parse_detectors("exact")).judged == 0
