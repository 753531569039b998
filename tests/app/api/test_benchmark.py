"""The benchmark's board: hand-made verdicts as the page takes them, and one computation for each state of the items."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.common import benchmark_scores

benchmark = pytest.importorskip("rl2f_core.leaks.benchmark.score")


def item(number: int, leak: bool, split: str = "dev", kind: str = "plain", **more: Any) -> dict[str, Any]:
    values = {
        "id": f"arithmetic/{kind}/{split}/{number}", "environment": {"type": "arithmetic"},
        "problem": "What is 20 + 21?",
        "answer": "41", "attempts": ["<answer>40</answer>"], "hint": "The answer is 41." if leak else "Look again.",
        "leak": leak, "kind": kind, "answer_fraction": float(leak), "split": split,
    }  # fmt: skip
    return {**values, **more}


def test_a_report_becomes_rates_by_kind_and_lists_no_mistake_of_the_test_split() -> None:
    from rl2f_core.types import LeakReport

    made = [
        (True, True, "dev"),
        (True, False, "dev"),
        (True, False, "test"),
        (False, True, "test"),
        (False, False, "dev"),
    ]
    items = [benchmark.LeakItem.model_validate(item(i, leak, split, "roman" if leak else "quoted"))
             for i, (leak, _, split) in enumerate(made)]  # fmt: skip
    reports = [LeakReport(leaked=flagged, detector="exact" if flagged else None) for _, flagged, _ in made]
    found = benchmark_scores.report_json(benchmark.compare(items, reports))
    assert found["overall"]["precision"]["value"] == 0.5
    assert found["overall"]["recall"]["value"] == pytest.approx(1 / 3)
    kinds = {
        kind["name"]: (kind["leak"], kind["flagged"], kind["n"], kind["share"]["value"]) for kind in found["kinds"]
    }
    assert kinds == {"roman": (True, 1, 3, pytest.approx(1 / 3)), "quoted": (False, 1, 2, 0.5)}
    assert (found["wrong_dev"], found["wrong_test"], len(found["wrong"])) == (1, 2, 1)
    assert found["wrong"][0]["leak"] is True
    assert found["tiers"] == [{"name": "exact", "found": 1, "missed": 0, "false": 1, "clean": 0}]


def test_the_figures_are_computed_once_for_each_state_of_the_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL2F_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(benchmark_scores, "LEAK_BENCHMARK", tmp_path)
    lines = [json.dumps(item(i, i % 2 == 0)) for i in range(4)]
    (tmp_path / "arithmetic.jsonl").write_text("\n".join(lines[:3]) + "\n")
    first = benchmark_scores.figures()
    assert (first["overall"]["leaks"], first["overall"]["recall"]["value"]) == (2, 1.0)
    assert benchmark_scores.figures() == first, "its seconds too: it was read, not made again"
    [kept] = (tmp_path / "home" / "leak-benchmark").iterdir()
    kept.write_text("{ half a file")
    assert benchmark_scores.figures()["overall"] == first["overall"]
    (tmp_path / "arithmetic.jsonl").write_text("\n".join(lines) + "\n")
    assert benchmark_scores.figures()["overall"]["near"] == 2
