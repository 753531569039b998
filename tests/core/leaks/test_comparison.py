"""Cascades compared on labeled hints: scores of both formats, price, files of results, and the recommended cascade."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai_server import FakeEndpoint, Say, serving
from typer.testing import CliRunner

from app.cli import app
from rl2f_core.errors import DataError
from rl2f_core.leaks.benchmark.comparison import CascadeResult, evaluate, latest, read_results, recommend, record
from rl2f_core.leaks.benchmark.score import kinds_of, read_items
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.models.backends.model_pool import ModelPool


def row(number: int, label: str, hint: str, kind: str, split: str = "dev", **more: Any) -> dict[str, Any]:
    return {
        "id": f"arithmetic-{number}", "environment": "arithmetic", "problem": f"What is {number} + 85?", "kind": kind,
        "answer": str(number + 85), "attempts": ["<answer>1</answer>"], "hints": [hint], "label": label,
        "register": "terse", "split": split, **more,
    }  # fmt: skip


ROWS = [
    row(10, "leak", "It is 95.", "literal"),
    row(11, "leak", "Take ninety and six more.", "spelled_out", register="chatty"),
    row(12, "no_leak", "Look at the tens.", "strategy"),
    row(13, "no_leak", "It is 98, he said, but he errs.", "false_claim", register="chatty"),
    row(14, "ambiguous", "It is 99.", "literal"),
    row(15, "leak", "Not quite.", "literal", attempts=["<answer>1</answer>"] * 2, hints=["It is 100.", "Not quite."]),
    row(20, "leak", "It is 105.", "literal", "test"),
    row(21, "leak", "Twice fifty-three.", "analogy", "test"),
    row(22, "no_leak", "Look at the ones.", "strategy", "test"),
]
"""`exact` flags the hints that contain the answer: on dev 10, 13 and 14, on test 20."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "hints.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in ROWS))
    return path


def scored(file: Path, split: Any = "dev", detectors: str = "exact", **more: Any) -> CascadeResult:
    return evaluate(detectors, str(file), split, ModelPool(FakeBackend()), **more)


def test_a_handwritten_label_is_that_of_the_last_hint_given_the_ones_before(file: Path) -> None:
    item = read_items(file, "dev")[5]
    assert (item.hint, item.hints, len(item.attempts), item.leak) == ("Not quite.", ("It is 100.",), 2, True)


def test_handwritten_hints_are_scored_by_kind_register_and_environment(file: Path) -> None:
    result = scored(file)
    counts = {"tp": 1, "fn": 2, "fp": 1, "tn": 1}
    assert (
        result.report.overall.counts.model_dump()
        == counts
        == result.report.by_environment["arithmetic"].counts.model_dump()
    )
    assert result.report.overall.precision.value == 0.5 and result.report.overall.recall.value == pytest.approx(1 / 3)
    assert result.report.by_kind["literal"].recall.value == 0.5
    assert result.report.by_register["chatty"].counts.model_dump() == {"tp": 0, "fn": 1, "fp": 1, "tn": 0}
    assert list(result.report.by_kind) == ["literal", "not: false_claim", "not: strategy", "spelled_out"]


def test_ambiguous_hints_are_counted_apart(file: Path) -> None:
    report = scored(file).report
    assert (report.ambiguous, report.ambiguous_flagged) == (1, 1)
    assert (
        report.overall.counts.tp + report.overall.counts.fn + report.overall.counts.fp + report.overall.counts.tn == 5
    )


def test_kinds_that_dev_lacks_are_scored_apart(file: Path) -> None:
    report = scored(file, "test").report
    assert report.held_out_kinds == ("analogy",) and report.held_out is not None
    assert report.held_out.counts.model_dump() == {"tp": 0, "fn": 1, "fp": 0, "tn": 0}
    assert scored(file).report.held_out is None and "analogy" not in kinds_of(read_items(file, "dev"))


def test_a_sample_states_the_number_of_available_hints(file: Path) -> None:
    result = scored(file, limit=2)
    assert (result.hints, result.available) == (2, 6)


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeEndpoint]:
    monkeypatch.setenv("RL2F_HOME", str(tmp_path / "home"))
    with serving(lambda n, body: Say("Verdict: no leak", usage=(500, 10))) as server:
        yield server


def judge(endpoint: FakeEndpoint, *more: str) -> str:
    return ":".join(["llm_judge", "llm.type=openai_api", f"llm.base_url={endpoint.url}", *more])


def test_the_price_counts_cached_replies_and_only_unflagged_hints(file: Path, endpoint: FakeEndpoint) -> None:
    cascade = f"exact,{judge(endpoint, 'llm.usd_per_million_prompt=3')}"
    for _ in range(2):  # exact flags 3 of 6 hints; the judge reads the others for 500 · 3 dollars per million
        assert scored(file, detectors=cascade).usd_per_1000_hints == pytest.approx(1000 * 3 * 0.0015 / 6)
    assert len(endpoint.requests) == 4  # and once the first hint, before the time is taken
    assert scored(file, detectors=judge(endpoint)).usd_per_1000_hints is None


def test_recorded_results_are_replaced_by_cascade_benchmark_and_half(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "results" / "benchmark-dev.json"
    record(path, [scored(file), scored(file, detectors="exact,mentions")])
    record(path, [scored(file, limit=2), scored(file, "test")])
    results = read_results(path.parent)
    assert [(each.detectors, each.split, each.hints) for each in results] == [
        ("exact", "dev", 2), ("exact,mentions", "dev", 6), ("exact", "test", 3)
    ]  # fmt: skip
    assert [each.split for each in latest(results, str(file))] == ["test"] and latest(results, "generated") == []
    path.write_text("{}")
    with pytest.raises(DataError, match="no comparison"):
        record(path, [])


# -- recommendation --------------------------------------------------------------------------------------------------
def result(file: Path, name: str, precision: float, recall: float, price: float | None, speed: float) -> CascadeResult:
    base = scored(file)
    score = base.report.overall.model_copy(
        update={
            key: getattr(base.report.overall, key).model_copy(update={"value": value})
            for key, value in (("precision", precision), ("recall", recall))
        }
    )
    return base.model_copy(
        update={
            "detectors": name, "usd_per_1000_hints": price, "hints_per_second": speed, "needs_model": speed < 1000,
            "report": base.report.model_copy(update={"overall": score}),
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("usd", "speed", "precision", "best"),
    [
        (0, 0, 0.9, "text"),
        (0.01, 0, 0.9, "local"),
        (2, 0, 0.9, "judge"),
        (2, 100, 0.9, "text"),
        (2, 5, 0.9, "local"),
        (2, 0, 0.95, "local"),
        (2, 0, 0.99, None),
    ],
)
def test_the_recommended_cascade_has_the_highest_recall_within_the_budget(
    file: Path, usd: float, speed: float, precision: float, best: str | None
) -> None:
    results = [
        result(file, "text", 0.98, 0.2, 0, 4000), result(file, "local", 0.96, 0.5, 0, 6),
        result(file, "judge", 0.92, 0.8, 1.5, 2), result(file, "unpriced", 0.92, 0.9, None, 2),
        result(file, "sloppy", 0.5, 1.0, 0, 4000),
    ]  # fmt: skip
    found = recommend(results, usd_per_1000_hints=usd, min_hints_per_second=speed, min_precision=precision)
    assert (found and found.detectors) == best


def test_a_cascade_that_was_recorded_twice_counts_with_more_hints(file: Path) -> None:
    part, whole = (result(file, "text", 0.98, recall, 0, 4000) for recall in (0.9, 0.6))
    part, other = part.model_copy(update={"hints": whole.hints - 1}), result(file, "other", 0.98, 0.1, 0, 4000)
    for order in ([part, other, whole], [whole, part, other]):
        assert {found.detectors: found for found in latest(order, whole.benchmark)} == {"text": whole, "other": other}


# -- command ---------------------------------------------------------------------------------------------------------
def test_the_command_compares_cascades_in_one_table_and_records_them(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "results.json"
    command = ["leaks", "benchmark", "--benchmark", str(file), "--detectors", "exact"]
    done = CliRunner().invoke(app, [*command, "--detectors", "exact,mentions", "--json", str(target)])
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].split("  ")[1].strip() == "exact" and "0.500" in lines[1] and "0.333" in lines[1]
    assert any(line.startswith("literal") and "0.500" in line for line in lines)
    assert any(line.startswith("not: false_claim") and "1 false alarm" in line for line in lines)
    assert "exact on" in done.stdout and "1 of 1 ambiguous hints flagged" in done.stdout
    assert [each["detectors"] for each in json.loads(target.read_text())["results"]] == ["exact", "exact,mentions"]
    test = CliRunner().invoke(app, [*command, "--split", "test", "--group-by", "register"])
    assert "held-out kinds" in test.stdout and "terse" in test.stdout
    by_kind = CliRunner().invoke(app, [*command, "--split", "test"])
    assert by_kind.stdout.index("literal") < by_kind.stdout.index("held out: analogy")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--split", "all"], "Known: dev, test"),
        (["--group-by", "author"], "Known: kind, register, environment"),
        (["--benchmark", "nowhere"], "no such name"),
        (["--detectors", "guess"], "guess"),
    ],
)
def test_the_command_explains_invalid_options(options: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["leaks", "benchmark", *options])
    assert done.exit_code == 2 and message in done.stderr
