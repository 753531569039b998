"""Whole runs that distill answers and learn from them: kills, failures, refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai_server import Say, serving

from jobs.export.datasets.exporter import export
from jobs.export.datasets.settings import ExportSettings
from jobs.export.datasets.sources import FolderSource
from rl2f_core.common.file_io import sha256
from rl2f_core.config.evaluation import EvaluationConfig
from rl2f_core.config.run import RunConfig
from rl2f_core.dialogue.dataset_store import find_rows, read_rows, refuse_held_out
from rl2f_core.environments.base import wrap_answer
from rl2f_core.environments.puzzles.numbers.arithmetic import Arithmetic
from rl2f_core.errors import DataError, RunError
from rl2f_core.learning.methods.sft import SFT
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, JsonlSink, LogEvent, MetricEvent, read_events
from rl2f_core.run.execute import execute
from rl2f_core.run.journal import Journal

ENV = Arithmetic(Arithmetic.Config(digits=2, operations=("+",)))


def run_of(tiny: Path, **changes: Any) -> RunConfig:
    """distill → sft on sums of two digits."""
    config = {
        "seed": 5,
        "model": {"name": str(tiny), "device": "cpu", "dtype": "float32"},
        "environment": {"type": "arithmetic", "digits": 2, "operations": ["+"]},
        "rollout": {"max_turns": 1, "max_new_tokens": 120, "max_seq_len": 256},
        "lora": {"rank": 2, "alpha": 4},
        "evaluation": {"checkpoints": [], "num_tasks": 4},
        "stages": [
            {
                "name": "data",
                "method": {"type": "distill", "source": "solution", "dedup_by": "text"},
                "steps": 3,
                "tasks_per_step": 4,
                "group_size": 1,
            },
            {
                "name": "learn",
                "method": {"type": "sft", "dataset": "data", "num_epochs": 1},
                "steps": 3,
                "group_size": 1,
            },
        ],
    } | changes
    return RunConfig.model_validate(config)


def go(run_dir: RunDir, stop: Callable[[], bool] = bool) -> str:
    return execute(run_dir.config(), run_dir, JsonlSink(run_dir.events_path), stop).status


@pytest.fixture(scope="module")
def whole(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = RunDir.create(tmp_path_factory.mktemp("distil") / "run", run_of(tiny))
    assert go(run_dir) == "succeeded"
    return run_dir.path


def kept(folder: Path) -> dict[str, Any]:
    """What must be the same however often a run was killed."""
    events = list(read_events(folder / "events.jsonl", strict=True))
    return {
        "rows": (folder / "datasets" / "data" / "rows.jsonl").read_bytes(),
        "about": json.loads((folder / "datasets" / "data" / "dataset.json").read_text()),
        "events": [e.id for e in events if e.type != "status"],
        "adapter": sha256(folder / "checkpoints" / "learn@3" / "adapter_model.safetensors"),
        "folders": sorted(p.name for p in (folder / "datasets").iterdir()),
    }


def test_a_chain_makes_a_data_set_and_learns_from_it(whole: Path):
    events = list(read_events(whole / "events.jsonl", strict=True))
    asked = [e for e in events if isinstance(e, DialogueEvent) and e.phase == "distill"]
    assert [e.outcome for e in asked] == ["kept"] * 12 and {e.dialogue.policy for e in asked} == {"demonstration"}
    rows = [json.loads(line) for line in (whole / "datasets" / "data" / "rows.jsonl").read_text().splitlines()]
    assert [row["dialogue"] for row in rows] == [e.id for e in asked]
    assert {row["split"] for row in rows} == {"train"} and all("answer" in r["completion"][0]["content"] for r in rows)
    learned = [e.task.id for e in events if isinstance(e, DialogueEvent) and e.stage == "learn"]
    assert sorted(learned) == sorted(row["task"] for row in rows)
    logs = {e.id: e.text for e in events if isinstance(e, LogEvent)}
    assert "12 of 12 (100.0%" in logs["distill:data"] and "12 rows of data" in logs["prepare:learn:0"]
    metrics = [e.values for e in events if isinstance(e, MetricEvent) and e.stage == "data"]
    assert [m["distill/kept"] for m in metrics] == [4, 8, 12] and metrics[-1]["distill/acceptance_rate"] == 1
    losses = [e.values["loss/ce"] for e in events if isinstance(e, MetricEvent) and e.stage == "learn"]
    assert len(losses) == 3 and losses[-1] < losses[0]
    assert RunDir(whole).checkpoint_names() == ["learn@3"]


def test_a_distill_stage_does_not_sample_the_tasks_of_the_stage_before(tiny: Path, tmp_path: Path):
    data = run_of(tiny).stages[0].model_dump(mode="json")
    warm = {"name": "warm", "method": "sft", "steps": 1, "tasks_per_step": 4, "group_size": 1}
    run_dir = RunDir.create(tmp_path / "run", run_of(tiny, stages=[warm, data]))
    assert go(run_dir) == "succeeded"
    dialogues = [e for e in read_events(run_dir.events_path, strict=True) if isinstance(e, DialogueEvent)]
    assert len({e.task.id for e in dialogues}) == len(dialogues) == 4 + 12


def test_a_run_without_one_worked_solution_ends_with_the_reason(tiny: Path, tmp_path: Path):
    run_dir = RunDir.create(tmp_path / "run", run_of(tiny, environment={"type": "reasoning_gym", "name": "gcd"}))
    with pytest.raises(RunError, match="answered nothing in step 1: The environment has no worked solution"):
        go(run_dir)


def test_a_data_set_is_made_of_no_curriculum(tiny: Path):
    levels = [{"settings": {"digits": 1}, "steps": 1}, {"settings": {"digits": 2}}]
    stage = run_of(tiny).stages[0].model_dump() | {"curriculum": {"levels": levels}}
    with pytest.raises(ValueError, match="distill supports no curriculum"):
        run_of(tiny, stages=[stage])


def test_a_run_that_is_stopped_or_killed_in_the_middle_ends_with_the_same_data_set(
    whole: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run_dir = RunDir.create(tmp_path / "run", run_of(tiny))
    turns = iter([False, True])
    assert go(run_dir, lambda: next(turns)) == "stopped"
    assert not (run_dir.path / "datasets" / "data").exists()
    real = Journal.commit

    class Killed(BaseException):
        pass

    def dies(self: Journal, position: dict[str, Any], save: Any = None) -> None:
        if position.get("step") == 3:  # the data set stands, its commit does not
            raise Killed
        real(self, position, save)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Journal, "commit", dies)
        go(run_dir)
    assert (run_dir.path / "datasets" / "data" / "dataset.json").exists()
    assert go(run_dir) == "succeeded"
    assert kept(run_dir.path) == kept(whole)


def test_a_run_that_is_killed_after_the_last_step_of_a_distillation_continues_with_the_next_stage(
    whole: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run_dir = RunDir.create(tmp_path / "run", run_of(tiny))

    class Killed(BaseException):
        pass

    def dies(self: SFT, *arguments: Any) -> list[str]:
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(SFT, "prepare", dies)
        go(run_dir)
    assert go(run_dir) == "succeeded"
    assert kept(run_dir.path) == kept(whole)


def test_a_step_that_was_lost_from_the_data_set_in_the_making_ends_the_resumed_run(tiny: Path, tmp_path: Path):
    run_dir = RunDir.create(tmp_path / "run", run_of(tiny))
    turns = iter([False, False, True])
    assert go(run_dir, lambda: next(turns)) == "stopped"
    (run_dir.path / "datasets" / ".data" / "1.json").write_text('{"rows": [')
    with pytest.raises(DataError, match="Step 1 of the unfinished dataset"):
        go(run_dir)


@pytest.mark.slow
def test_an_endpoint_that_fails_ends_the_run_and_the_resumed_run_goes_on_where_it_was(tiny: Path, tmp_path: Path):
    """Three answers a task: right in other words, wrong, none; the endpoint is down in the second step."""
    asked: list[str] = []
    down = [False]

    def script(number: int, body: dict[str, Any]) -> Say:
        problem = body["messages"][-1]["content"]
        asked.append(problem)
        a, b = map(int, re.findall(r"\d+", problem))
        if down[0]:
            return Say("busy", status=400)
        place = asked.count(problem) % 3
        return Say((f"{a} + {b} <answer>{a + b}</answer>", wrap_answer(str(a)), "I do not know.")[place])

    with serving(script) as server:
        llm = {"type": "openai_api", "base_url": server.url, "concurrency": 1, "retries": 0, "cache": False,
               "breaker_failures": 99}  # fmt: skip
        data = {"name": "data", "method": {"type": "distill", "source": "llm", "llm": llm}, "steps": 2,
                "tasks_per_step": 3, "group_size": 3}  # fmt: skip
        config = run_of(tiny)
        stages = [data, {**config.stages[1].model_dump(), "steps": 1}]
        run_dir = RunDir.create(tmp_path / "run", run_of(tiny, stages=stages))

        def falls() -> bool:
            down[0] = len(asked) == 9
            return False

        with pytest.raises(RunError, match="answered nothing in step 2"):
            go(run_dir, falls)
        down[0] = False
        assert go(run_dir) == "succeeded"
    about = json.loads((run_dir.path / "datasets" / "data" / "dataset.json").read_text())
    assert about["counts"]["samples"] == {"kept": 6, "unparsable": 6, "incorrect": 6} and about["rows"] == 6
    assert about["counts"]["usage"]["requests"] == 18 and "127.0.0.1" in about["source"]
    ids = [e.id for e in read_events(run_dir.events_path, strict=True)]
    assert len(ids) == len(set(ids))


def test_a_source_that_is_never_right_makes_no_data_set_and_says_so(tiny: Path, tmp_path: Path):
    data = {"name": "data", "method": {"type": "distill", "source": "student"}, "steps": 1, "tasks_per_step": 2,
            "group_size": 2}  # fmt: skip
    run_dir = RunDir.create(tmp_path / "run", run_of(tiny, stages=[data]))
    with pytest.raises(RunError, match="kept no answer: 0 of 2"):
        go(run_dir)
    assert not (run_dir.path / "datasets" / "data").exists()


def data(**changes: Any) -> dict[str, Any]:
    """A run of one stage."""
    return {"stages": [{"name": "data", "method": "distill", "steps": 1, "group_size": 1, **changes}]}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (data(method={"type": "distill", "source": "solution"}, group_size=8), "set group_size: 1"),
        ({"environment": "secret_code"}, "secret_code has no worked solutions"),
        (data(method={"type": "distill", "instruction": "x"}), "uses no llm"),
        (data(minibatches=2), "leave out minibatches"),
        (data(method={"type": "sft", "dataset": "data"}), "neither an earlier stage"),
        (data(method={"type": "sft", "num_epochs": 2}), "set dataset too"),
        (
            data(method={"type": "sft", "dataset": "a.jsonl", "hint_follow_rate": 0.1}),
            "hint_follow_rate shape demonstrations",
        ),
        (data(method={"type": "sft", "dataset": "a.jsonl"}, group_size=8), "group_size: 1 instead of 8"),
        (data(method={"type": "sft", "dataset": "a.jsonl"}, teacher="contentless"), "leave teacher out"),
        (
            data(
                method={"type": "sft", "dataset": "a.jsonl"},
                curriculum={"levels": [{"settings": {"digits": 1}, "steps": 1}, {"settings": {"digits": 2}}]},
            ),
            "leave curriculum out",
        ),
        ({"evaluation": {"checkpoints": ["data@3"]}}, "which no stage saves; known: base, stages, learn@3"),
    ],
)
def test_what_would_have_no_effect_or_no_data_is_refused(changes: dict[str, Any], says: str):
    with pytest.raises(ValueError, match=re.escape(says)):
        run_of(Path("tiny-random"), **changes)
    with pytest.raises(ValueError, match="which is not an earlier stage; known: base"):
        stages = run_of(Path("tiny-random")).model_dump()["stages"]
        run_of(Path("tiny-random"), stages=[stages[0], {**stages[1], "init_from": "data"}])


def test_what_a_distillation_kept_is_exported_and_learned_from_again(whole: Path, tmp_path: Path):
    settings = ExportSettings.model_validate({
        "formats": ["prompt_completion", "messages"], "files": ["jsonl"],
        "filter": {"phase": "distill", "condition": "kept", "include_demonstrations": True},
    })  # fmt: skip
    manifest = export([FolderSource(whole)], settings, tmp_path / "out")
    assert manifest is not None
    assert {k: entry["rows"] for k, entry in manifest["formats"].items()} == dict.fromkeys(settings.formats, 12)
    own = read_rows(find_rows(str(whole / "datasets" / "data"), None), ENV)
    for name in ("prompt_completion", "messages"):
        again = read_rows(find_rows(str(tmp_path / "out" / f"{name}.jsonl"), None), ENV)
        assert [(r.attempts, ENV.canonical(r.task)) for r in again] == [
            (r.attempts, ENV.canonical(r.task)) for r in own
        ]
        refuse_held_out(again, ENV, EvaluationConfig())
