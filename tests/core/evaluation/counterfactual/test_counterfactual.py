"""Forks and the worth of hints: arms, estimates by hand, whole runs with a scripted student, and what resumes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fork_data import LEAKED, add_leak, event_of, make_run, obedient
from pydantic import ValidationError

from rl2f_core.config.loading import load_config
from rl2f_core.dialogue.rollout.build import build_engine
from rl2f_core.environments.base import NO_VERDICT_HINT
from rl2f_core.errors import ConfigError, DataError, RunError
from rl2f_core.evaluation.counterfactual.arms import Arm, arm_hints, label_arms, parse_arm
from rl2f_core.evaluation.counterfactual.config import choose_checkpoints, nearest_checkpoint
from rl2f_core.evaluation.counterfactual.estimates import Outcome, arm_results, hint_value
from rl2f_core.evaluation.counterfactual.fork_points import (
    find_dialogue,
    fork_point_at,
    hinted_turns,
    sample_fork_points,
)
from rl2f_core.evaluation.counterfactual.runner import ForkRunner, read_report
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.run.context import Progress
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, HintValueEvent, JsonlSink, read_events
from rl2f_core.run.execute import execute
from rl2f_core.run.journal import Journal
from rl2f_core.run.kinds.fork import fork_config
from rl2f_core.run.kinds.hint_value import hint_value_config, sampled_fork_points

FIVE = [{"hint": h} for h in ("original", "contentless", "empty", "misleading")] + [
    {"hint": "edited", "text": "Too low!"}
]


# -- estimates -----------------------------------------------------------------------------------------------------
def outcomes(arm: str, *solved: int, origin: str = "d", task: str = "t", **more: Any) -> list[Outcome]:
    return [Outcome((origin, 0), task, arm, j, bool(s), **more) for j, s in enumerate(solved)]


def test_single_fork_point_pairs_samples() -> None:
    played = [
        *outcomes("original", 1, 1, 0, 1, score=0.75, retained_parts=2, parts=4),
        *outcomes("contentless", 0, 1, 0, 0, score=0.5),
    ]
    true, baseline = arm_results(played, "base", ["original", "contentless", "unplayed"], "contentless")
    assert (true.solved.value, true.solved.n, true.hints) == (0.75, 4, 1)
    assert true.difference is not None and true.difference.value == 0.5
    assert (true.score.value, true.retained_parts.value) == (0.75, 0.5)
    assert true.score_difference is not None and true.score_difference.value == 0.25
    assert baseline.difference is None and baseline.retained_parts.value is None


def test_difference_uses_paired_samples_only() -> None:
    played = [*outcomes("original", 1, 1, 1), *outcomes("contentless", 0)]
    (true, _) = arm_results(played, "base", ["original", "contentless"], "contentless")
    assert true.difference is not None and (true.difference.value, true.difference.n) == (1.0, 1)


def test_agreeing_samples_of_one_fork_point_have_interval_width() -> None:
    """Eight times +1: mean 8 / 10, s² = (10 − 8² / 10) / 9 = .4, half = t(7) · √(.4 / 10) = 2.3646 · .2 = .4729."""
    played = [*outcomes("original", *[1] * 8), *outcomes("contentless", *[0] * 8)]
    (interval,) = hint_value(played, "original", "contentless").values()
    assert (interval.value, interval.high, interval.n) == (1.0, 1.0, 8)
    assert interval.low == pytest.approx(0.8 - 0.4729, abs=1e-4)


def test_arms_are_a_family_of_comparisons() -> None:
    """Ten samples: `true` is better in all (2 · ½¹⁰), `other` in eight (2 · ½⁸ = .0078); Holm doubles the smaller."""
    played = [*outcomes("true", *[1] * 10), *outcomes("other", *[1] * 8, 0, 0), *outcomes("contentless", *[0] * 10)]
    true, other, _ = arm_results(played, "base", ["true", "other", "contentless"], "contentless")
    assert true.difference is not None and other.difference is not None
    assert true.difference.holm_p == pytest.approx(2 * true.difference.p_value)
    assert other.difference.holm_p == other.difference.p_value


def test_several_fork_points_cluster_by_task() -> None:
    """Differences of task a: 1, 1 (two turns); of task b: 0, −1. Mean 1/4; two tasks show no difference."""
    played = []
    for origin, task, true, other in (("1", "a", 1, 0), ("2", "a", 1, 0), ("3", "b", 1, 1), ("4", "b", 0, 1)):
        played += outcomes("original", true, origin=origin, task=task)
        played += outcomes("contentless", other, origin=origin, task=task)
    (row, _) = arm_results(played, "base", ["original", "contentless"], "contentless")
    assert row.difference is not None and row.hints == 4
    assert (row.difference.value, row.difference.n) == (0.25, 2) and not row.difference.excludes_zero
    values = hint_value(played, "original", "contentless")
    assert {origin: interval.value for (origin, _), interval in values.items()} == {"1": 1, "2": 1, "3": 0, "4": -1}


# -- arms ----------------------------------------------------------------------------------------------------------
def test_parse_arm() -> None:
    assert parse_arm("shuffled") == Arm(hint="shuffled")
    assert parse_arm("edited:It: is 4") == Arm(hint="edited", text="It: is 4")
    assert parse_arm("teacher:scripted").label == "teacher scripted"
    for wrong in ("hinted", "edited", "edited:", "contentless:x", "teacher:nobody"):
        with pytest.raises(ConfigError):
            parse_arm(wrong)


def test_arm_fields_and_labels() -> None:
    for wrong in (
        {"hint": "edited"},
        {"hint": "empty", "text": "x"},
        {"hint": "teacher"},
        {"hint": "empty", "name": "/"},
    ):
        with pytest.raises(ValidationError):
            Arm.model_validate(wrong)
    edits = [Arm(hint="edited", text=text) for text in "ab"]
    assert list(label_arms([*edits, Arm(hint="empty", name="silence")])) == ["edited", "edited 2", "silence"]


# -- where they begin ----------------------------------------------------------------------------------------------
@pytest.fixture
def source(tmp_path: Path) -> RunDir:
    return make_run(tmp_path / "numbers")


def test_find_dialogue_by_event_id(source: RunDir) -> None:
    event = find_dialogue(source, event_of(1))
    assert [t.verdict.parsed for t in event.dialogue.turns] == ["2", "3", "4"]
    origin = fork_point_at(event, 1)
    assert [t.hint.text if t.hint else None for t in origin.prefix(None)] == ["Too low.", None]
    with pytest.raises(DataError, match="no such dialogue"):
        find_dialogue(source, "number/1/0")
    with pytest.raises(DataError, match=r"is correct.*Known: 0, 1"):
        fork_point_at(event, 2)
    with pytest.raises(DataError, match="no such turn"):
        fork_point_at(event, 3)


def test_fork_points_are_sampled_by_seed(source: RunDir) -> None:
    found = hinted_turns(source, "evaluation", "base")
    assert [(o.event, o.turn) for o in found] == [
        (event_of(i), t) for i, n in enumerate((1, 2, 1, 2)) for t in range(n)
    ]
    assert sample_fork_points(found, 10, 0) == found
    some = [sample_fork_points(found, 2, seed) for seed in (0, 0, 1, 2, 3)]
    assert some[0] == some[1] and len({tuple((o.event, o.turn) for o in each) for each in some}) > 1
    shown = found[0].dialogue.model_copy(update={"policy": "demonstration"})
    task = found[0].task
    JsonlSink(source.events_path).emit([DialogueEvent.of("train", "warm", 1, task, shown)])
    assert hinted_turns(source, "evaluation", "rl@1") == hinted_turns(source, "train") == [], (
        "demonstrations are nobody's"
    )
    made = hint_value_config(source, source.path.name, {"rl@1": None})
    with pytest.raises(DataError, match="no evaluation dialogues of rl@1 with hints"):
        sampled_fork_points(made, source, "rl@1")  # type: ignore[arg-type]


def test_source_is_sibling_name_or_path(source: RunDir, tmp_path: Path) -> None:
    beside = RunDir(tmp_path / "fork")
    assert beside.resolve_run("numbers").path == source.path == beside.resolve_run(str(source.path)).path
    for wrong in ("other", "..", "."):
        with pytest.raises(RunError):
            beside.resolve_run(wrong)


def test_checkpoints_are_chosen_by_name(source: RunDir) -> None:
    assert choose_checkpoints(source, ["base"]) == {"base": None} == choose_checkpoints(source, [])
    with pytest.raises(ConfigError, match=r"Unknown checkpoint.*Known: base"):
        choose_checkpoints(source, ["rl@1"])
    known = ["base", "warm@5", "rl@10", "rl@20"]
    wanted = {"rl@20": "rl@20", "rl@13": "rl@10", "rl@3": "rl@10", "warm@9": "warm@5", "base": "base"}
    assert {name: nearest_checkpoint(known, name) for name in wanted} == wanted
    assert nearest_checkpoint(known, "demonstration") == nearest_checkpoint(known, "") == "rl@20"


# -- whole runs ----------------------------------------------------------------------------------------------------
def play(config: Any, folder: Path, stop: Any = lambda: False, kind: Any = "fork") -> bool:
    """Play a fork in its folder with the obedient student, from its last commit where there is one."""
    run_dir = RunDir(folder) if (folder / "config.yaml").exists() else RunDir.create(folder, config)
    journal = Journal(run_dir, JsonlSink(run_dir.events_path))
    journal.resume()
    source = run_dir.resolve_run(config.source)
    if kind == "fork":
        origins = {n: [fork_point_at(find_dialogue(source, config.dialogue), config.turn)] for n in config.checkpoints}
    else:
        origins = {n: sampled_fork_points(config, source, n) for n in config.checkpoints}
    session = ForkRunner(kind, config, run_dir, journal, FakeBackend(script=obedient), origins, "numbers")
    return session.run(stop, Progress())


def dialogues(folder: Path) -> list[DialogueEvent]:
    return [e for e in read_events(folder / "events.jsonl") if isinstance(e, DialogueEvent)]


def test_fork_compares_arms(source: RunDir, tmp_path: Path) -> None:
    before = source.events_path.read_bytes()
    config = fork_config(source, "numbers", event_of(0), 0, {"base": None}, FIVE, samples=12, turns=1)
    assert play(config, tmp_path / "fork")
    assert source.events_path.read_bytes() == before, "the original is only read"
    report = read_report(tmp_path / "fork")
    assert report is not None and (report.done, report.total, report.source) == (60, 60, "numbers")
    shares = {row.arm: row.solved.value for row in report.results}
    assert shares["original"] == shares["edited"] == 1.0 and shares["misleading"] == 0.0
    assert 0 < (shares["contentless"] or 0) < 0.7, "who is told nothing guesses"
    assert shares["empty"] == shares["contentless"], "both leave it to the same chance"
    true = report.result("base", "original")
    assert true is not None and true.difference is not None and true.difference.above(0)
    assert "base: original +.83 [.35, 1.00]: better than contentless." in report.to_markdown()
    said = report.hints[0].hints_by_arm
    assert [said[a].text for a in ("original", "empty", "edited")] == ["Too low.", "", "Too low!"]
    assert said["original"].teacher == "scripted" and said["contentless"].leak is not None, "the guard read the arms"
    played = dialogues(tmp_path / "fork")
    by_sample = {j: {e.dialogue.seed for e in played if e.dialogue.index == j} for j in range(12)}
    assert all(len(seeds) == 1 for seeds in by_sample.values()) and len(set.union(*by_sample.values())) == 12
    assert 7 not in set.union(*by_sample.values()), "not the dialogue's own seed"
    assert {(e.phase, e.checkpoint, len(e.dialogue.turns)) for e in played} == {("fork", "base", 2)}
    (value,) = [e for e in read_events(tmp_path / "fork" / "events.jsonl") if isinstance(e, HintValueEvent)]
    assert (value.source, value.dialogue, value.turn, value.checkpoint, value.n, value.turns) == (
        "numbers", event_of(0), 0, "base", 12, 1)  # fmt: skip
    assert value.value == report.hints[0].hint_value.value == 1.0 - value.arms["contentless"]  # type: ignore[union-attr]
    assert (tmp_path / "fork" / "counterfactual" / "solved.png").stat().st_size < 120_000


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_resumed_fork_gives_the_same_result(source: RunDir, tmp_path: Path) -> None:
    config = fork_config(source, "numbers", event_of(1), 0, {"base": None}, FIVE, samples=10)
    assert play(config, tmp_path / "whole")
    asked: list[int] = []
    assert not play(config, tmp_path / "cut", stop=lambda: asked.append(1) or len(asked) > 2)
    held = read_report(tmp_path / "cut")
    assert held is not None and (held.done, held.total) == (32, 50)
    assert {row.solved.n for row in held.results} == {6, 7}, "a batch holds whole pairs"
    assert play(config, tmp_path / "cut")
    assert [e.dialogue for e in dialogues(tmp_path / "cut")] == [e.dialogue for e in dialogues(tmp_path / "whole")]
    assert read_report(tmp_path / "cut") == read_report(tmp_path / "whole")


@pytest.mark.usefixtures("undrawn")
def test_resumed_fork_reuses_stored_hints(source: RunDir, tmp_path: Path) -> None:
    arms = [{"hint": "contentless"}, {"hint": "teacher", "teacher": "self_critique", "name": "critic"}]
    config = fork_config(source, "numbers", event_of(1), 0, {"base": None}, arms, samples=10, later_hints="contentless")
    asked: list[int] = []
    assert not play(config, tmp_path / "cut", stop=lambda: asked.append(1) or len(asked) > 1)
    told = read_report(tmp_path / "cut")
    file = tmp_path / "cut" / "counterfactual" / "hints.json"
    said = json.loads(file.read_text())
    said[0][3]["critic"]["text"] = "What an endpoint would say only once."
    file.write_text(json.dumps(said))
    assert told is not None and play(config, tmp_path / "cut")
    (later,) = [e.dialogue.turns[0].hint for e in dialogues(tmp_path / "cut")[-1:]]
    assert later is not None and later.text == "What an endpoint would say only once."
    file.write_text("[")
    with pytest.raises(DataError, match="Cannot read the hints of the fork"):
        play(config, tmp_path / "cut")


def test_self_critique_arm_uses_checkpoint_of_fork(source: RunDir) -> None:
    class Recording(FakeBackend):
        spoke: str | None = "nobody"

        def generate(self, prompts: Any, sampling: Any, adapter: str | None = None) -> Any:
            self.spoke = adapter
            return super().generate(prompts, sampling, adapter)

    backend = Recording(script=lambda prompt, rng: "Look at it once more.")
    engine = build_engine(source.config(), backend)
    arm = Arm.model_validate({"hint": "teacher", "teacher": "self_critique"})
    origin = fork_point_at(find_dialogue(source, event_of(0)), 0)
    (hint,) = arm_hints(arm, [origin], engine, adapter="rl@1")
    assert (hint.text, hint.teacher, backend.spoke) == ("Look at it once more.", "self_critique", "rl@1")


@pytest.mark.usefixtures("undrawn")
def test_no_oracle_dialogue_continues_without_oracle(tmp_path: Path) -> None:
    conditions = {"conditions": ["hints", "no_oracle"]}
    run = make_run(tmp_path / "numbers", teacher="self_critique", evaluation=conditions)
    held = find_dialogue(run, event_of(0))
    free = DialogueEvent.of("evaluation", "evaluation", 0, held.task, held.dialogue, checkpoint="base",
                            condition="no_oracle")  # fmt: skip
    JsonlSink(run.events_path).emit([free])
    arms = [{"hint": "edited", "text": "Too low."}, {"hint": "contentless"}]
    config = fork_config(run, "numbers", free.id, 0, {"base": None}, arms, samples=3)
    assert play(config, tmp_path / "fork")
    played = dialogues(tmp_path / "fork")
    told = [e.dialogue for e in played if e.arm == "edited"]
    assert len(told) == 3 and all(d.turns[1].verdict.correct and len(d.turns) == 3 for d in told)
    assert all(d.solved == d.turns[-1].verdict.correct for d in told)
    assert {e.dialogue.turns[0].hint.text for e in played if e.arm == "contentless" and e.dialogue.turns[0].hint} == {
        NO_VERDICT_HINT
    }
    with pytest.raises(DataError, match="continue after correct answers"):
        fork_config(run, "numbers", free.id, 0, {"base": None}, arms, later_hints="arm")


@pytest.mark.usefixtures("undrawn")
def test_later_hints_setting(source: RunDir, tmp_path: Path) -> None:
    arms = [{"hint": "contentless"}, {"hint": "misleading"}]
    later = {}
    for then in ("run", "arm", "contentless"):
        config = fork_config(
            source, "numbers", event_of(1), 0, {"base": None}, arms, samples=3, later_hints=then, turns=2
        )
        assert play(config, tmp_path / then)
        hints = {(e.arm, e.dialogue.turns[1].hint.teacher) for e in dialogues(tmp_path / then)
                 if e.dialogue.turns[1].hint}  # fmt: skip
        later[then] = {control: {t for c, t in hints if c == control} for control in ("contentless", "misleading")}
    assert later["run"] == {"contentless": {"scripted"}, "misleading": {"scripted"}}
    assert later["arm"] == {"contentless": {"contentless"}, "misleading": {"misleading"}}
    assert later["contentless"] == {"contentless": {"contentless"}, "misleading": {"contentless"}}


@pytest.mark.usefixtures("undrawn")
def test_leaks_of_arms_are_reported(source: RunDir, tmp_path: Path) -> None:
    arms = [{"hint": "edited", "text": "The answer is 3."}]
    read = {}
    for apply in (False, True):
        changes: Any = {"apply_leak_action": apply, "leak_detection": {"action": "redact"}}
        config = fork_config(source, "numbers", event_of(0), 0, {"base": None}, arms, samples=1, **changes)
        assert play(config, tmp_path / str(apply))
        hint = dialogues(tmp_path / str(apply))[0].dialogue.turns[0].hint
        assert hint is not None and hint.leak is not None and hint.leak.leaked
        read[apply] = hint.text
    assert read == {False: "The answer is 3.", True: "The answer is […]."}


@pytest.mark.usefixtures("undrawn")
def test_a_redacted_hint_is_sampled_again_under_the_dialogues_own_seed(source: RunDir, tmp_path: Path) -> None:
    add_leak(source)
    arms = [{"hint": "original"}, {"hint": "redacted"}]
    config = fork_config(source, "numbers", LEAKED, 0, {"base": None}, arms, samples=4, turns=1)
    assert play(config, tmp_path / "fork")
    report = read_report(tmp_path / "fork")
    assert report is not None and (report.done, report.total) == (10, 10), "one more sample of each arm"
    assert {row.arm: row.solved.n for row in report.results} == {"original": 4, "redacted": 4}, "not in the estimates"
    seeds = {e.dialogue.index: e.dialogue.seed for e in dialogues(tmp_path / "fork")}
    assert seeds[0] == 7 and 7 not in (seeds[i] for i in range(1, 5)), "number 0 has the dialogue's seed"
    (hint,) = report.hints
    assert hint.same_seed["original"] is True
    masked = hint.hints_by_arm["redacted"]
    assert masked.text == "Too […]. Really […].", "the second mention is masked too"
    assert (masked.feedback, masked.leak and masked.leak.action) == ("Too low, it is 3. Really 3.", "redact")
    outcome = "solved" if hint.same_seed["redacted"] else "not solved"
    assert f"base, under the dialogue's own seed: original solved, redacted {outcome}." in report.to_markdown()


def test_a_redacted_arm_needs_a_flag_that_the_student_read_or_a_span(source: RunDir, tmp_path: Path) -> None:
    add_leak(source)
    engine = build_engine(source.config(), FakeBackend(script=obedient))
    clean = fork_point_at(find_dialogue(source, event_of(0)), 0)
    (hint,) = arm_hints(Arm(hint="redacted"), [clean], engine)
    assert hint.error == "No detector of the run flagged this hint."
    (hint,) = arm_hints(Arm(hint="redacted", span=(4, 7)), [clean], engine)
    assert (hint.text, hint.error) == ("Too […].", None)
    with pytest.raises(ValidationError, match="span"):
        Arm(hint="empty", span=(0, 1))


@pytest.mark.usefixtures("undrawn")
def test_original_arm_needs_a_hint(source: RunDir, tmp_path: Path) -> None:
    short = make_run(tmp_path / "short", rollout={"max_turns": 2, "max_new_tokens": 64, "max_seq_len": 4096})
    with pytest.raises(DataError, match="no original hint"):
        fork_config(short, "short", event_of(1), 1, {"base": None}, [], samples=2)
    config = fork_config(short, "short", event_of(1), 1, {"base": None}, [{"hint": "contentless"}], samples=2)
    assert play(config, tmp_path / "other") and {len(e.dialogue.turns) for e in dialogues(tmp_path / "other")} == {3}


@pytest.mark.usefixtures("undrawn")
def test_hint_values_of_a_run(source: RunDir, tmp_path: Path) -> None:
    config = hint_value_config(source, "numbers", {"base": None}, hints=5, samples=6)
    assert config.turns == 1
    assert play(config, tmp_path / "values", kind="hint_value")
    report = read_report(tmp_path / "values")
    assert report is not None and len(report.hints) == 5
    told = sum(hint.error is None for held in report.hints for hint in held.hints_by_arm.values())
    assert report.total == report.done == told * 6, "an arm whose teacher has no message is not played"
    true = report.result("base", "original")
    assert true is not None and true.hints == 5
    values = [e for e in read_events(tmp_path / "values" / "events.jsonl") if isinstance(e, HintValueEvent)]
    by_hint = {(h.dialogue, h.turn): h.hint_value.value for h in report.hints if h.hint_value is not None}
    assert {(e.dialogue, e.turn): e.value for e in values} == by_hint
    mean = sum(v or 0 for v in by_hint.values()) / 5
    assert true.difference is not None and true.difference.value == pytest.approx(mean)
    assert "## Highest and lowest hint values" in report.to_markdown()


@pytest.mark.usefixtures("undrawn")
def test_run_kinds_write_reports(source: RunDir, tmp_path: Path) -> None:
    configs = (
        fork_config(source, str(source.path), event_of(0), 0, {"base": None}, [], samples=2),
        hint_value_config(source, str(source.path), {"base": None}, hints=2, samples=2),
    )
    for config in configs:
        folder = tmp_path / "elsewhere" / config.kind
        run_dir = RunDir.create(folder, config)
        assert load_config(run_dir.config_path) == config
        assert execute(config, run_dir, JsonlSink(run_dir.events_path), lambda: False).status == "succeeded"
        assert (folder / "counterfactual" / "report.md").is_file()
        ids = [e.id for e in dialogues(folder)]
        report = read_report(folder)
        assert report is not None and len(set(ids)) == len(ids) == report.total > 0


@pytest.mark.usefixtures("undrawn")
def test_failed_dialogues_are_counted(source: RunDir, tmp_path: Path) -> None:
    nobody = {"type": "openai_api", "base_url": "http://127.0.0.1:9/v1", "retries": 0, "cache": False}
    teacher = {"type": "llm", "llm": nobody, "on_error": "fail"}
    config = fork_config(source, "numbers", event_of(1), 0, {"base": None}, [{"hint": "misleading"}], samples=3,
                         teacher=teacher)  # fmt: skip
    assert play(config, tmp_path / "fork")
    report = read_report(tmp_path / "fork")
    assert report is not None and (report.done, report.total, report.failed) == (3, 3, 3)
    assert "3 of 3 dialogues failed and are left out." in report.to_markdown() and report.results == ()


@pytest.mark.usefixtures("undrawn")
def test_arm_without_hint_is_reported(source: RunDir, tmp_path: Path) -> None:
    config = fork_config(source, "numbers", event_of(0), 0, {"base": None}, [], samples=1)
    assert play(config, tmp_path / "fork")
    report = read_report(tmp_path / "fork")
    assert report is not None and report.result("base", "shuffled") is None
    said = "base: shuffled is missing at 1 of 1 fork points: No recorded dialogue on another problem of level"
    assert any(sentence.startswith(said) for sentence in report.findings())
