"""Stored hints read again: counts, rewards and advantages worked out by hand, whatever lies in the event file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from event_data import dialogue, metric, status
from leak_helpers import Oracle
from rescore_data import BOX, CLEAN, LEAKS, bare, found, pair, run_folder, said

from rl2f_core import registry
from rl2f_core.config.loading import parse_config
from rl2f_core.errors import ConfigError, DataError, RunError
from rl2f_core.evaluation.rescoring.rescore import Rescore
from rl2f_core.evaluation.rescoring.reward_changes import TERM, RewardChange, Tally, replace_leak_penalty, sign
from rl2f_core.leaks.parsing import parse_detectors
from rl2f_core.models.backends.model_pool import ModelPool
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import Event, JsonlSink, LeakEvent, LeakRescoreEvent, encode, read_events
from rl2f_core.run.execute import execute
from rl2f_core.run.kinds import rescore as kind
from rl2f_core.types import Hint, LeakReport, RewardTerm, StopReason

EXACT = parse_detectors("exact")


def read(run: Path, penalty: float | None = None, **more: Any) -> tuple[Tally, list[RewardChange]]:
    """The run read again by the exact tier."""
    run_dir = RunDir.open(run)
    work = Rescore(run_dir.events_path, run_dir.config(), **{"detectors": EXACT, "penalty": penalty, **more})  # type: ignore[arg-type]
    return work.tally, [change for _, changes in work.run() for change in changes]


def execute_rescore(folder: Path, run: Path, **settings: Any) -> str:
    config = parse_config({"kind": "rescore", "run": str(run), "workers": 1, **settings})
    run_dir = RunDir.create(folder, config)
    return execute(config, run_dir, JsonlSink(run_dir.events_path), lambda: False).status


# -- one reward ----------------------------------------------------------------------------------------------------
def test_leak_penalty_is_replaced() -> None:
    right, old = RewardTerm(name="correct", score=1.0), RewardTerm(name=TERM, score=-1.0, weight=0.3)
    assert replace_leak_penalty((right, old), True, 0.5) == (right, RewardTerm(name=TERM, score=-1.0, weight=0.5))
    assert replace_leak_penalty((right, old), False, 0.5) == replace_leak_penalty((right, old), True, 0.0) == (right,)
    assert replace_leak_penalty((right,), True, 0.5) == replace_leak_penalty((right, old), True, 0.5)
    assert [sign(x) for x in (0.2, -0.2, 0.0, 1e-12)] == ["+", "-", "0", "0"]


# -- a group, by hand ----------------------------------------------------------------------------------------------
def test_penalty_changes_rewards_and_advantages(tmp_path: Path) -> None:
    """With a penalty of 2 the told dialogue's rewards are 0 and 1 − 2, its returns −0.5 and −1, the other's 0 and 0."""
    tally, changes = read(run_folder(tmp_path / "run", pair()), penalty=2.0)
    assert (tally.dialogues, tally.turns, tally.hints, tally.flagged) == (2, 4, 2, 1)
    assert (tally.was_checked, tally.was_flagged, tally.newly_flagged, tally.no_longer_flagged) == (2, 0, 1, 0)
    assert dict(tally.flagged_by) == {"exact": 1} and tally.stale == 0
    told, other = "dialogue:train:rl2f/1/0/0", "dialogue:train:rl2f/1/0/1"
    assert changes == [
        RewardChange(told, 0, None, False, (0.0, 0.0), (0.25, -0.25)),
        RewardChange(told, 1, "exact", False, (1.0, -1.0), (0.5, -0.5)),
        RewardChange(other, 0, None, False, (0.0, 0.0), (-0.25, 0.25)),
        RewardChange(other, 1, None, False, (0.0, 0.0), (-0.5, 0.5)),
    ]
    assert [c.reward_sign for c in changes] == [None, "+ → -", None, None]
    assert [c.advantage_sign for c in changes] == ["+ → -", "+ → -", "- → +", "- → +"]
    assert (tally.rewards_changed, dict(tally.reward_signs)) == (1, {"+ → -": 1})
    assert (tally.groups_changed, tally.advantages_changed) == (1, 4)
    assert dict(tally.advantage_signs) == {"+ → -": 2, "- → +": 2}


def test_zero_penalty_changes_only_reports(tmp_path: Path) -> None:
    tally, changes = read(run_folder(tmp_path / "run", pair()))
    assert (tally.newly_flagged, tally.rewards_changed, changes) == (1, 0, [])


def test_penalty_is_removed_from_clean_hints(tmp_path: Path) -> None:
    """The run took 0.4 for a hint that does not leak: without it the reward is 1 again, the advantages as in `pair`."""
    terms = (RewardTerm(name="correct", score=1.0), RewardTerm(name=TERM, score=-1.0, weight=0.4))
    told = dialogue(1, 0, 0, [said(0, 0.0, CLEAN, True), said(1, 1.0, None, rewards=terms)], task=BOX)
    run = run_folder(tmp_path / "run", [told, pair()[1]], reward={"leak_penalty": 0.4})
    tally, changes = read(run)
    assert (tally.flagged, tally.was_flagged, tally.no_longer_flagged) == (0, 1, 1)
    assert changes[1].was_leak and changes[1].detector is None
    assert changes[1].reward == (pytest.approx(0.6), 1.0) and changes[1].advantage == (pytest.approx(0.3), 0.5)


def test_replaced_messages_have_no_penalty(tmp_path: Path) -> None:
    """The first dialogue's hint was redacted, the second student read the leak: only the second reward changes."""
    redacted = Hint(text="The number is […].", feedback=LEAKS, teacher="llm", leak=LeakReport(leaked=True))
    first = dialogue(1, 0, 0, [said(0, 0.0, None, hint=redacted), said(1, 1.0, None)], task=BOX)
    second = dialogue(1, 0, 1, [said(0, 0.0, LEAKS), said(1, 1.0, None)], task=BOX)
    tally, changes = read(run_folder(tmp_path / "run", [first, second]), penalty=2.0)
    assert (tally.flagged, tally.rewards_changed) == (2, 1)
    changed = {(change.dialogue, change.turn): change.reward for change in changes}
    assert changed["dialogue:train:rl2f/1/0/0", 1] == (1.0, 1.0)
    assert changed["dialogue:train:rl2f/1/0/1", 1] == (1.0, -1.0)


def test_untrained_dialogues_have_no_advantages(tmp_path: Path) -> None:
    evaluated = pair()[0].model_copy(update={"phase": "evaluation", "checkpoint": "rl2f@1", "condition": "hints"})
    warm = [e.model_copy(update={"stage": "elsewhere", "id": f"{e.id}:w"}) for e in pair()]
    tally, changes = read(run_folder(tmp_path / "run", [evaluated, *warm]), penalty=2.0)
    assert [c.advantage for c in changes] == [None, None] and tally.advantages_changed == 0
    assert tally.rewards_changed == 2 and tally.groups_changed == 0


def test_untrainable_dialogues_are_not_in_the_group(tmp_path: Path) -> None:
    failed = pair()[1].model_copy()
    dialogue = failed.dialogue.model_copy(update={"stop_reason": StopReason.FAILED})
    failed = failed.model_copy(update={"dialogue": dialogue})
    _, changes = read(run_folder(tmp_path / "run", [pair()[0], failed]), penalty=2.0)
    assert [(c.turn, c.reward, c.advantage) for c in changes] == [(1, (1.0, -1.0), (0.0, 0.0))]


def test_stale_groups_are_counted(tmp_path: Path) -> None:
    right = pair(1, advantage=0.25)
    wrong = pair(2, advantage=0.7)
    tally, _ = read(run_folder(tmp_path / "run", [*right, *wrong]), penalty=2.0)
    assert tally.stale == 1 and tally.groups_changed == 2


# -- what is read --------------------------------------------------------------------------------------------------
def test_raw_messages_are_rescored_and_fallbacks_skipped(tmp_path: Path) -> None:
    redacted = Hint(text="The number is […].", feedback=LEAKS, teacher="llm", leak=LeakReport(leaked=True))
    none = Hint(text=LEAKS, teacher="llm", error="timeout")
    refused = redacted.model_copy(update={"text": "Try again.", "error": "timeout"})
    hints = (redacted, none, refused, None)
    events = [dialogue(1, 0, 0, [said(k, 0.0, None, hint=hint) for k, hint in enumerate(hints)])]
    tally, _ = read(run_folder(tmp_path / "run", [e.model_copy(update={"task": BOX}) for e in events]))
    assert (tally.hints, tally.flagged, tally.was_flagged) == (2, 2, 2)


def test_queries_contain_attempts_up_to_the_hint(tmp_path: Path) -> None:
    looks = "Look at your 8 again."
    before = [said(0, 0.0, looks, attempt="8, no: <answer>3</answer>"), said(1, 0.0, None)]
    after = [said(0, 0.0, looks, attempt="<answer>3</answer>"), said(1, 0.0, None, attempt="8")]
    tally, _ = read(
        run_folder(tmp_path / "run", [dialogue(1, 0, 0, before, task=BOX), dialogue(1, 0, 1, after, task=BOX)])
    )
    assert (tally.hints, tally.flagged) == (2, 1)


def test_invalid_and_repeated_lines_are_skipped(tmp_path: Path) -> None:
    first, second = pair()
    torn = encode(pair(5)[0])[:-20]
    lines = [encode(status("running")), first, b"{nonsense\n", b'{"type":"dialogue","id":3}\n', b"\n", second, first]
    run = bare(tmp_path / "run", [*lines, encode(metric(1)), torn])
    run_dir = RunDir.open(run)
    work = Rescore(run_dir.events_path, run_dir.config(), EXACT, 2.0)  # type: ignore[arg-type]
    groups = list(work.run())
    assert work.bad == 1 and work.tally.dialogues == 2  # what does not even look like a dialogue is not one
    assert [[item.event for item in items] for items, _ in groups] == [[first.id, second.id]]
    empty = bare(tmp_path / "empty", [])
    assert read(empty)[0].dialogues == 0
    (empty / "events.jsonl").unlink()
    with pytest.raises(DataError, match="cannot be opened"):
        read(empty)


@pytest.mark.slow
def test_worker_processes_give_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))  # workers do not import pytest
    events: list[Event] = [event for step in range(1, 9) for event in pair(step, hint=LEAKS if step % 3 else CLEAN)]
    run = run_folder(tmp_path / "run", events)
    alone = read(run, 2.0, workers=1)
    assert read(run, 2.0, workers=2) == alone and alone[0].flagged == 6


def test_model_detectors_get_batches(tmp_path: Path) -> None:
    oracle = Oracle(untold=-9.0)
    run = run_folder(tmp_path / "run", [event for step in range(1, 4) for event in pair(step)])
    tally, _ = read(
        run, detectors=parse_detectors("likelihood:dialogue_context=none,llm_judge"), models=ModelPool(oracle)
    )
    assert (tally.hints, tally.flagged, dict(tally.flagged_by)) == (6, 3, {"likelihood": 3})
    assert len(oracle.scored) == 1 and len(oracle.seen) == 1  # the three hints that are left are equal


def test_failed_judge_leaves_hints_unchecked(tmp_path: Path) -> None:
    models = ModelPool(Oracle(script=lambda prompt, rng: "no idea"))
    tally, changes = read(
        run_folder(tmp_path / "run", pair()), 2.0, detectors=parse_detectors("llm_judge"), models=models
    )
    assert (tally.hints, tally.errors, tally.flagged, changes) == (2, 2, 0, [])


# -- the kind ------------------------------------------------------------------------------------------------------
def test_run_kind_writes_events_and_files(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "runs" / "target", pair())
    folder = tmp_path / "runs" / "again"
    assert execute_rescore(folder, Path("target"), detectors=["exact"], penalty=2.0) == "succeeded"
    events = list(read_events(folder / "events.jsonl", strict=True))
    (leak,) = [e for e in events if isinstance(e, LeakEvent)]
    assert (leak.run, leak.dialogue, leak.turn) == ("target", "dialogue:train:rl2f/1/0/0", 0)
    assert leak.report.detector == "exact" and leak.report.span == (14, 15)
    (scan,) = [e for e in events if isinstance(e, LeakRescoreEvent)]
    assert (scan.run, scan.hints, scan.flagged, scan.errors) == ("target", 2, 1, 0)
    assert scan.detectors == ({"type": "exact"},)
    summary = json.loads((folder / "rescore.json").read_text())
    assert (summary["flagged"], summary["penalty"], summary["run_penalty"]) == (1, 2.0, 0.0)
    assert [c["advantage_sign"] for c in found(folder)] == ["+ → -", "+ → -", "- → +", "- → +"]
    assert sorted(p.name for p in run.iterdir()) == ["config.yaml", "events.jsonl", "meta.json"]  # nothing is changed


def test_run_can_be_a_path(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "elsewhere" / "target", pair())
    assert execute_rescore(tmp_path / "runs" / "again", run) == "succeeded"
    (scan,) = [e for e in read_events(tmp_path / "runs/again/events.jsonl") if isinstance(e, LeakRescoreEvent)]
    assert scan.run == str(run.resolve())


def test_stopped_rescoring_restarts(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "target", pair())
    config = parse_config({"kind": "rescore", "run": str(run), "workers": 1})
    run_dir = RunDir.create(tmp_path / "again", config)
    sink = JsonlSink(run_dir.events_path)
    assert execute(config, run_dir, sink, lambda: True).status == "stopped"
    assert not (run_dir.path / kind.CHANGES).exists() and not (run_dir.path / kind.SUMMARY).exists()
    assert execute(config, run_dir, sink, lambda: False).status == "succeeded"
    assert sum(isinstance(e, LeakEvent) for e in read_events(run_dir.events_path)) == 1


def test_missing_run_or_dialogues_raise(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="contains no run"):
        execute_rescore(tmp_path / "a", tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="no dialogues"):
        execute_rescore(tmp_path / "b", tmp_path / "a")


# -- detectors by name ---------------------------------------------------------------------------------------------
def test_detectors_are_parsed_from_text_or_file(tmp_path: Path) -> None:
    def dumped(text: str) -> list[dict[str, Any]]:
        return [part.model_dump(mode="json", exclude_defaults=True) for part in parse_detectors(text)]

    assert [part.type for part in parse_detectors("exact, mentions")] == ["exact", "mentions"]
    assert dumped("exact,likelihood:threshold=2:dialogue_context=last") == [
        {},
        {"threshold": 2.0, "dialogue_context": "last"},
    ]
    assert dumped("llm_judge:llm.type=local:llm.model.name=tiny:votes=3")[0]["votes"] == 3
    listed = tmp_path / "list.json"
    listed.write_text('[{"type": "likelihood", "threshold": 5}, "exact"]')
    assert [part.type for part in parse_detectors(str(listed))] == ["likelihood", "exact"]
    whole = tmp_path / "run.yaml"
    whole.write_text("environment: guess_number\nleak_detection:\n  detectors: [exact]\n  action: drop\n")
    assert [part.type for part in parse_detectors(str(whole))] == ["exact"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "No detector is named"),
        ("nothing", "unknown leak_detector 'nothing'"),
        ("exact,nothing", "unknown leak_detector"),
        ("likelihood:treshold=2", "unknown key"),
        ("likelihood:threshold=much", "valid number"),
        ("nowhere.yaml", "cannot be read"),
    ],
)
def test_unknown_detector_raises(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_detectors(text)


def test_no_default_detector_loads_a_model() -> None:
    asking = [name for name in registry.names("leak_detector") if registry.get("leak_detector", name).requires_model]  # type: ignore[attr-defined]
    assert asking == ["likelihood", "llm_judge"]
    assert not any(
        registry.get("leak_detector", part.type).requires_model for part in parse_detectors("exact,mentions")
    )  # type: ignore[attr-defined]


@pytest.mark.slow
def test_benchmark_runs_are_valid_and_all_leaks_are_flagged() -> None:
    from tests.benchmarks import rescoring

    said: list[str] = []
    args = ["--environment", "secret_code", "--turns", "450", "--leaks", "0.2", "--workers", "1"]
    found = rescoring.main(args, said.append)["secret_code"]
    assert 450 <= found["turns"] < 1250 and 0.1 < found["flagged"] / found["hints"] < 0.3
    assert found["changes"] > found["flagged"] and "s for 100,000 turns" in said[0]
