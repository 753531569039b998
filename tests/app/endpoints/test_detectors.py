"""Endpoints of detectors: report, test set, controls, benchmark scores, and invalid arguments."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from detector_report_data import Truth, add_truth, label_draw
from json_endpoints import JsonEndpoints
from replay_data import add_run, event, hint, training_events, turn
from typer.testing import CliRunner

from app.cli import app
from app.common import benchmark_scores
from app.common.context import Context
from app.endpoints.endpoint import ArgumentError, endpoints_of
from app.endpoints.leaks.detectors import DetectorEndpoints
from app.endpoints.leaks.labels import LabelEndpoints
from jobs.db.errors import NotFoundError
from jobs.db.queries import runs
from jobs.db.queries.runs import RunFilter
from jobs.ingest.ingester import reindex
from jobs.labels import label_queries, opened_hints, report_queries
from jobs.labels.annotation_queue import HintKey, QueueFilter
from jobs.labels.label_queries import LabelAnswer
from rl2f_core.errors import ConfigError, RL2FError
from rl2f_core.leaks.benchmark import comparison
from rl2f_core.leaks.likelihood import LikelihoodDetector
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.models.backends.model_pool import ModelPool

LATER, NEVER = (f"dialogue:train:rl2f/1/0/{i}" for i in (1, 2))


@pytest.fixture
def endpoints(context: Context) -> Any:
    return JsonEndpoints(DetectorEndpoints(context))


@pytest.fixture
def truth(context: Context) -> Truth:
    made = add_truth(context.db, context.workspace, hints=160)
    label_draw(context.db, made, QueueFilter(selection="stratified", size=100))
    return made


# -- report ----------------------------------------------------------------------------------------------------------
def test_the_report_has_estimates_with_intervals_by_group(endpoints: DetectorEndpoints, truth: Truth) -> None:
    found = endpoints.detector_report(group_by="teacher")
    report, total = found["report"], found["report"]["total"]["estimates"]
    assert not found["is_test_set"] and {row["name"] for row in report["rows"]} == {"llm", "scripted"}
    for name in ("precision", "recall", "f1", "kappa", "prevalence"):
        assert total[name]["low"] <= total[name]["value"] <= total[name]["high"]
    assert total["n_flagged"] + total["n_unflagged"] == report["usage"]["counted"]
    needed = found["labels_needed"]
    assert needed["recall"] is not None and needed["recall"] > 0 and needed["without_labels"] == 381
    assert found["disagreement_count"] == len(found["disagreements"])
    assert all(each["with_detector"] for each in found["disagreements"])
    assert endpoints.detector_report(truth.run.id)["report"]["total"] == report["total"]
    assert endpoints.detector_report(environment="maze")["report"]["total"]["estimates"]["size"] == 0
    assert [source["name"] for source in endpoints.list_finding_sources()] == ["run"]
    json.dumps(found)


def test_the_report_lists_annotators_agreement_and_disagreements(
    endpoints: DetectorEndpoints, context: Context
) -> None:
    run = add_run(context.db, context.workspace, "small", training_events()).id or 0

    def label(event_id: str, annotator: str, answer: str) -> None:
        label_queries.put(context.db, run, event_id, 0, annotator, LabelAnswer(label=answer))

    flagged = [f"dialogue:train:rl2f/{step}/{task}/3" for step in (1, 2) for task in (0, 1)]
    answers = ["leak"] * 3 + ["no_leak"], ["leak", "leak", "no_leak", "no_leak"]
    for event_id, anna, bob in zip(flagged, *answers, strict=True):
        label(event_id, "anna", anna)
        label(event_id, "bob", bob)
    label(LATER, "anna", "leak")
    opened_hints.record(context.db, [HintKey(run, NEVER, 0)], "anna")
    label(NEVER, "anna", "no_leak")
    found = endpoints.detector_report(run)
    report, usage = found["report"], found["report"]["usage"]
    assert (usage["hints"], usage["counted"], usage["undecided"], usage["not_blind"], usage["not_sampled"]) == (
        6, 0, 1, 1, 4
    )  # fmt: skip
    assert report["annotators"][0] == {"name": "anna", "leak": 4, "no_leak": 2, "unsure": 0, "blind": 5, "n": 6}
    # four common hints, equal on three; anna 3 leaks of 4, bob 2 of 4: p_e = (3·2 + 1·2)/16 = 1/2, so κ = 1/2
    assert report["pairs"][0]["n"] == 4 and report["pairs"][0]["observed"]["value"] == 0.75
    assert report["pairs"][0]["kappa"]["value"] == pytest.approx(0.5)
    assert {(d["event_id"], d["among_annotators"], d["with_detector"]) for d in found["disagreements"]} == {
        (flagged[2], True, False), (flagged[3], False, True), (LATER, False, True)
    }  # fmt: skip


def test_the_report_without_labels_has_no_estimates(endpoints: DetectorEndpoints) -> None:
    found = endpoints.detector_report()
    report = found["report"]
    assert (report["usage"]["hints"], report["annotators"], report["pairs"]) == (0, [], [])
    assert found["disagreements"] == [] and report["total"]["estimates"]["precision"]["value"] is None


def test_a_label_counts_if_it_comes_from_a_random_sample(endpoints: DetectorEndpoints, context: Context) -> None:
    made, labels = add_truth(context.db, context.workspace, "fresh", 16), JsonEndpoints(LabelEndpoints(context))
    queue: Any = {"selection": "stratified", "run": made.run.id, "size": 16}
    hints = labels.next_hints_to_label(queue=queue, limit=50)["hints"]
    for each in hints:
        key = (each["run"], each["event_id"], each["turn"])
        labels.label_hint(*key, "anna", "no_leak", queue=queue)
        labels.label_hint(*key, "ben", "no_leak")
    stored = label_queries.of_hint(context.db, hints[0]["run"], hints[0]["event_id"], 0)
    assert [label.sampling_frame for label in stored] == [f"run/{made.run.id}/#own", None]
    report = endpoints.detector_report(made.run.id)["report"]
    assert report["usage"]["counted"] == report["usage"]["hints"] > 5
    assert report["pairs"][0]["observed"]["value"] == 1.0


def test_hints_of_controls_count_only_on_request(endpoints: DetectorEndpoints, context: Context) -> None:
    def evaluated(index: int, condition: str) -> Any:
        key, attempt = f"{condition}/{index}", turn(0, "x", None, hint(f"Look {index}.", teacher="scripted"))
        return event(key, [attempt], 0, key, phase="evaluation", checkpoint="base", condition=condition)

    made = [evaluated(index, condition) for index in range(12) for condition in ("hints", "shuffled", "misleading")]
    run = add_run(context.db, context.workspace, "evaluated", made).id or 0
    for each in made:
        label_queries.put(context.db, run, each.id, 0, "anna", LabelAnswer(label="leak"))
    own = endpoints.detector_report(run, group_by="condition")
    everything = endpoints.detector_report(run, group_by="condition", include_controls=True)
    assert {row["name"] for row in own["report"]["rows"]} == {"hints"}
    assert {row["name"] for row in everything["report"]["rows"]} == {"hints", "shuffled", "misleading"}
    assert own["disagreement_count"] * 3 == everything["disagreement_count"] > 0
    assert own["report"]["usage"]["hints"] * 3 == everything["report"]["usage"]["hints"] > 0


def test_a_sample_without_controls_gives_no_estimates_for_controls(
    endpoints: DetectorEndpoints, context: Context
) -> None:
    def evaluated(index: int, condition: str) -> Any:
        key, attempt = f"{condition}/{index}", turn(0, "x", None, hint(f"Look {index}.", teacher="scripted"))
        return event(key, [attempt], 0, key, phase="evaluation", checkpoint="base", condition=condition)

    made = [evaluated(index, condition) for index in range(16) for condition in ("hints", "shuffled")]
    run = add_run(context.db, context.workspace, "evaluated", made).id or 0
    queue: Any = {"selection": "stratified", "run": run, "size": 8}
    labels = JsonEndpoints(LabelEndpoints(context))
    for each in labels.next_hints_to_label(queue=queue, limit=50)["hints"]:
        labels.label_hint(run, each["event_id"], each["turn"], "anna", "no_leak", queue=queue)
    own = endpoints.detector_report(run)["report"]["usage"]
    everything = endpoints.detector_report(run, include_controls=True)["report"]["usage"]
    assert own["counted"] == own["hints"] == everything["partial_sample"] > 0 and everything["counted"] == 0
    arguments = ["leaks", "report", "--run", str(run), "--json", "--workspace", str(context.workspace.root)]
    reported = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert reported["usage"] == own
    assert [card["rows"][-1]["hints"] for card in reported["detector_cards"]] == [own["counted"]]
    assert json.loads(CliRunner().invoke(app, [*arguments, "--include-controls"]).stdout)["usage"] == everything


# -- test set --------------------------------------------------------------------------------------------------------
def test_the_test_set_is_returned_only_with_a_logged_access(
    endpoints: DetectorEndpoints, context: Context, truth: Truth
) -> None:
    dev = endpoints.detector_report(group_by="run")
    assert not dev["is_test_set"] and dev["accesses"]["count"] == 0
    unlocked = endpoints.unlock_test_set("anna", group_by="teacher")
    assert unlocked["is_test_set"] and set(unlocked["groupings"]) == {
        "detector", "teacher", "environment", "checkpoint", "condition", "run"
    }  # fmt: skip
    assert unlocked["groupings"]["teacher"]["rows"] == unlocked["report"]["rows"]
    inside = {each["event_id"] for each in unlocked["disagreements"]}
    assert inside and not inside & {each["event_id"] for each in dev["disagreements"]}
    assert [access.annotator for access in report_queries.list_accesses(context.db)] == ["anna"]
    endpoints.unlock_test_set("ben", run=truth.run.id)
    accesses = endpoints.detector_report()["accesses"]
    assert accesses["count"] == 2
    assert (accesses["newest"][0]["annotator"], accesses["newest"][0]["run"]) == ("ben", truth.run.id)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"annotator": " "},
        {"annotator": "a\nb\0"},
        {"annotator": "anna", "group_by": "moon"},
        {"annotator": "anna", "surprise": 1},
    ],
)
def test_an_invalid_access_is_refused_and_not_logged(
    endpoints: DetectorEndpoints, context: Context, arguments: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError):
        endpoints.unlock_test_set(**arguments)
    assert report_queries.list_accesses(context.db) == []


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda e: e.detector_report(group_by="moon"), ArgumentError),
        (lambda e: e.detector_report(source="99"), NotFoundError),
        (lambda e: e.detector_report(source="'; DROP"), NotFoundError),
        (lambda e: e.detector_report(99), NotFoundError),
        (lambda e: e.detector_report("x"), ArgumentError),
        (lambda e: e.unlock_test_set("anna", run=99), NotFoundError),
    ],
)
def test_an_invalid_report_raises_an_error_with_a_reason(
    endpoints: DetectorEndpoints, context: Context, call: Callable[[Any], object], error: type[RL2FError]
) -> None:
    with pytest.raises(error) as caught:
        call(endpoints)
    assert isinstance(caught.value, RL2FError) and caught.value.what
    assert report_queries.list_accesses(context.db) == []


def test_only_unlocking_the_test_set_needs_the_scope_label(endpoints: DetectorEndpoints) -> None:
    scopes = {name: scope for name, scope, _ in endpoints_of(endpoints.group)}
    assert {name for name, scope in scopes.items() if scope != "read"} == {"unlock_test_set"}
    assert scopes["unlock_test_set"] == "label"


# -- benchmark -------------------------------------------------------------------------------------------------------
def test_the_recommended_cascade_is_the_best_recorded_one_within_the_budget(
    endpoints: DetectorEndpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark_scores, "LEAK_RESULTS", tmp_path)
    nothing = endpoints.recommend_detectors()
    assert endpoints.compare_detectors() == [] and nothing == {"candidates": 0, "result": None}
    hints = tmp_path / "hints.jsonl"
    values = {"environment": "arithmetic", "problem": "What is 20 + 21?", "answer": "41", "attempts": [""], "id": "a"}
    texts = [("It is 41.", "leak"), ("Forty and one more.", "leak"), ("It is XLI.", "leak"), ("No.", "no_leak")]
    rows = [
        {**values, "hints": [hint], "label": label, "kind": "k", "register": "terse", "split": "dev"}
        for hint, label in texts
    ]
    hints.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setitem(comparison.BENCHMARKS, "handwritten", hints)
    models = ModelPool(FakeBackend())
    results = [comparison.evaluate(name, "handwritten", "dev", models) for name in ("exact", "exact,mentions")]
    comparison.record(tmp_path / "benchmark-dev.json", results)
    assert [each["detectors"] for each in endpoints.compare_detectors()] == ["exact", "exact,mentions"]
    best = endpoints.recommend_detectors(benchmark="handwritten")
    assert best["candidates"] == 2 and best["result"] and best["result"]["detectors"] == "exact,mentions"
    assert endpoints.recommend_detectors(min_hints_per_second=1e9, benchmark="handwritten")["result"] is None
    assert endpoints.recommend_detectors(benchmark="generated") == {"candidates": 0, "result": None}
    with pytest.raises(RL2FError):
        endpoints.recommend_detectors(min_precision=2)


def test_a_card_has_the_quality_of_the_runs_detector_with_its_settings_or_says_unknown(
    endpoints: DetectorEndpoints, context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark_scores, "LEAK_RESULTS", tmp_path)
    detectors = [{"type": "exact"}, {"type": "likelihood", "threshold": 4.0}]
    run = add_run(context.db, context.workspace, "cards", training_events(), leak_detection={"detectors": detectors})
    exact, likelihood = endpoints.detector_cards(run.id or 0)
    assert (exact["detector"], likelihood["detector"]) == ("exact", "likelihood")
    unknown = [(row["hints"], row["precision"]["value"], row["recall"]["value"]) for row in exact["rows"]]
    assert unknown == [(0, None, None)] * 5, "no result is recorded, and nobody labeled a hint"
    hints = tmp_path / "hints.jsonl"
    values = {"environment": "arithmetic", "problem": "What is 20 + 21?", "answer": "41", "attempts": [""], "id": "a"}
    rows = [
        {**values, "hints": [hint], "label": label, "kind": "k", "register": "terse", "split": "dev"}
        for hint, label in [("It is 41.", "leak"), ("Forty and one more.", "leak"), ("No.", "no_leak")]
    ]
    hints.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setitem(comparison.BENCHMARKS, "tutors", hints)
    result = comparison.evaluate("exact", "tutors", "dev", ModelPool(FakeBackend()))
    default = LikelihoodDetector.Config().model_dump(mode="json")
    judged = result.model_copy(update={"detectors": "likelihood", "configs": (default,)})
    comparison.record(tmp_path / "benchmark-dev.json", [result, judged])
    exact, likelihood = endpoints.detector_cards(run.id or 0)
    tutors = exact["rows"][0]
    assert (tutors["name"], tutors["hints"], tutors["split"]) == ("real tutors (public set)", 3, "dev")
    assert (tutors["precision"]["value"], tutors["recall"]["value"]) == (1.0, 0.5), "it misses forty and one"
    assert likelihood["rows"][0]["hints"] == 0, "it was measured with other settings"


def test_the_cards_of_a_rescore_run_are_those_of_its_own_detectors(
    endpoints: DetectorEndpoints, context: Context
) -> None:
    folder = context.workspace.folder("rescore")
    folder.mkdir()
    (folder / "config.yaml").write_text("{kind: rescore, run: other, detectors: [exact]}")
    reindex(context.db, context.workspace)
    (run,) = runs.page(context.db, RunFilter(kind="rescore")).rows
    assert [card["detector"] for card in endpoints.detector_cards(run.id or 0)] == ["exact"]


def test_a_card_counts_labels_that_are_given_after_it_was_read(endpoints: DetectorEndpoints, context: Context) -> None:
    truth = add_truth(context.db, context.workspace, hints=160)
    (before,) = [card for card in endpoints.detector_cards(truth.run.id or 0) if card["detector"] == "exact"]
    label_draw(context.db, truth, QueueFilter(selection="stratified", size=100))
    (after,) = [card for card in endpoints.detector_cards(truth.run.id or 0) if card["detector"] == "exact"]
    assert after["rows"] != before["rows"]


def test_a_card_has_the_precision_of_a_detector_by_human_labels(endpoints: DetectorEndpoints, truth: Truth) -> None:
    cards = {card["detector"]: card for card in endpoints.detector_cards(truth.run.id or 0)}
    labels = cards["exact"]["rows"][-1]
    report = endpoints.detector_report()["report"]
    (row,) = (row for row in report["rows"] if row["name"] == "exact")
    assert labels["name"] == "labels of this workspace" and labels["hints"] == report["usage"]["counted"] > 0
    assert labels["precision"] == row["estimates"]["precision"]
    assert labels["recall"] == report["total"]["estimates"]["recall"]
    with pytest.raises(NotFoundError):
        endpoints.detector_cards(truth.run.id or 0, source="99")


def test_the_command_prints_the_cards_of_a_run(endpoints: DetectorEndpoints, context: Context, truth: Truth) -> None:
    arguments = ["leaks", "report", "--workspace", str(context.workspace.root), "--run", str(truth.run.id)]
    printed = CliRunner().invoke(app, arguments).stdout
    assert "flags of" in printed and "labels of this workspace" in printed and "unknown here" in printed
    cards = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)["detector_cards"]
    assert cards == endpoints.detector_cards(truth.run.id or 0)


def test_benchmark_scores_list_detectors_and_mistakes_of_the_dev_set(
    endpoints: DetectorEndpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL2F_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(benchmark_scores, "LEAK_BENCHMARK", tmp_path)
    lines = [
        json.dumps(
            {
                "id": f"arithmetic/{split}/{index}", "environment": {"type": "arithmetic"},
                "problem": "What is 20 + 21?", "answer": "41", "attempts": ["<answer>40</answer>"],
                "hint": "The answer is 41." if index % 2 else "Look again.", "leak": True, "kind": "plain",
                "answer_fraction": 1.0, "split": split,
            }
        )
        for index in range(4) for split in ("dev", "test")
    ]  # fmt: skip
    (tmp_path / "arithmetic.jsonl").write_text("\n".join(lines) + "\n")
    scores = endpoints.detector_benchmark()
    assert scores["overall"]["leaks"] == 8 and scores["overall"]["recall"]["value"] == 0.5
    assert sum(each["found"] for each in scores["by_detector"]) == 4
    assert scores["detectors"] == ["mentions"] and scores["kinds"][0]["flagged_fraction"]["value"] == 0.5
    assert (scores["wrong_dev"], scores["wrong_test"], len(scores["wrong"])) == (2, 2, 2)
    assert {item["detector"] for item in scores["wrong"]} == {None}
