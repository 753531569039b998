"""The example run that is shipped, and the function that makes one of a finished run."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from export_builders import ENVIRONMENT, event, leaky_events, turn, write_run, wrong
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from jobs.db.engine import Database
from jobs.db.queries import dialogues, metrics, runs
from jobs.export.private_paths import machine_paths
from jobs.ingest.ingester import reindex
from jobs.workspace import Workspace
from rl2f_core.common.file_io import sha256
from rl2f_core.errors import AdapterError, ConfigError, DataError, RunError
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import CheckpointEvent, DialogueEvent, JsonlSink, MetricEvent, StatusEvent, read_events

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / ".ci" / "example_run.py"


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ci_example_run", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


example_run = load_script()
create_example, NO_WEIGHTS = example_run.create_example, example_run.NO_WEIGHTS
MAX_BYTES, MAX_ADAPTER_BYTES = example_run.MAX_BYTES, example_run.MAX_ADAPTER_BYTES
SHIPPED = sorted(path.parent for path in (ROOT / "data" / "example_runs").glob("*/config.yaml"))
CONTROLS = ("hints", "contentless")
STEPS = 9


def recorded(tmp_path: Path, **config: Any) -> Path:
    """A finished run with training steps, a preflight, an evaluation under two controls, and a checkpoint."""
    events: list[DialogueEvent] = []
    for step in range(1, STEPS + 1):
        for number in range(2):
            task = ENVIRONMENT.task("train", 2 * step + number)
            turns = [turn(task, 0, wrong(task), "hint"), turn(task, 1, wrong(task, 1), None)]
            events += [event(task, turns, name=f"rl/{step}/{number}/{i}", index=i, step=step) for i in range(4)]
    for number in range(4):
        task = ENVIRONMENT.task("train", 900 + number)
        events += [
            event(
                task, [turn(task, 0, wrong(task), None)], name=f"pre/{number}/{i}", index=i, step=0, phase="preflight"
            )
            for i in range(3)
        ]
    for checkpoint in ("base", "rl@9"):
        for control in CONTROLS:
            for number in range(10):
                task = ENVIRONMENT.task("test", number)
                turns = [turn(task, 0, wrong(task), "hint"), turn(task, 1, wrong(task, 1), None)]
                where = {"phase": "evaluation", "step": 0, "checkpoint": checkpoint, "condition": control}
                events.append(event(task, turns, name=f"{task.id}/0", **where))
    run = write_run(tmp_path / "run", events, **config)
    sink = JsonlSink(run / "events.jsonl")
    sink.emit(
        [MetricEvent(id=f"metric:rl:{s}", stage="rl", step=s, values={"reward": s / 10}) for s in range(1, STEPS + 1)]
    )
    path = "checkpoints/rl@9"
    sink.emit([CheckpointEvent(id="checkpoint:rl@9", name="rl@9", stage="rl", step=9, path=path, sha256="0" * 64)])
    sink.emit([StatusEvent(id="status:2:succeeded", status="succeeded")])
    weights = run / path
    weights.mkdir(parents=True)
    (weights / "adapter_model.safetensors").write_bytes(bytes(50_000))
    (run / "evaluation").mkdir()
    (run / "evaluation" / "report.json").write_text("{}")
    (run / "evaluation" / "figure.png").write_bytes(bytes(50_000))
    return run


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def played(folder: Path) -> list[DialogueEvent]:
    return [e for e in read_events(folder / "events.jsonl", strict=True) if isinstance(e, DialogueEvent)]


def units(events: list[DialogueEvent]) -> dict[tuple[Any, ...], int]:
    """How many dialogues each step, preflight group and evaluation task has."""
    return Counter(
        (e.phase, e.task.id)
        if e.phase == "evaluation"
        else (e.phase, e.dialogue.group)
        if e.phase == "preflight"
        else (e.phase, e.stage, e.step)
        for e in events
    )


def test_groups_steps_and_tasks_stay_whole_and_the_size_is_kept(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    create_example(run, tmp_path / "whole")
    limit = size(tmp_path / "whole") * 9 // 10
    note = create_example(run, tmp_path / "out", limit)
    assert size(tmp_path / "out") <= limit
    kept, all_of_them = units(played(tmp_path / "out")), units(played(run))
    assert kept and len(kept) < len(all_of_them)
    assert all(all_of_them[unit] == count for unit, count in kept.items())
    tasks = [unit for unit in all_of_them if unit[0] == "evaluation"]
    assert note["dialogues"] == {"shipped": sum(kept.values()), "played": sum(all_of_them.values())}
    assert note["evaluation_tasks"]["shipped"] == sum(unit in kept for unit in tasks) == len(tasks)
    assert {(s, n) for p, s, n in (u for u in kept if u[0] == "train")} >= {("rl", 1), ("rl", 5), ("rl", 9)}


def test_every_metric_checkpoint_and_status_stays_in_order_and_weights_do_not(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    create_example(run, tmp_path / "out", 60_000)
    rest = [e for e in read_events(run / "events.jsonl") if not isinstance(e, DialogueEvent)]
    assert [e for e in read_events(tmp_path / "out" / "events.jsonl") if not isinstance(e, DialogueEvent)] == rest
    names = {path.name for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert names == {"config.yaml", "meta.json", "events.jsonl", "heartbeat.json", "report.json", "example.json"}
    assert not (run / "example.json").exists()
    assert json.loads((tmp_path / "out" / "example.json").read_text())["weights"] == NO_WEIGHTS
    assert "pid" not in json.loads((tmp_path / "out" / "heartbeat.json").read_text())


def test_training_dialogues_are_kept_as_they_were_and_evaluations_without_tokens(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    create_example(run, tmp_path / "out")
    before = {e.id: e for e in played(run)}
    after = played(tmp_path / "out")
    assert len(after) == len(before)  # all of it fits
    for e in after:
        if e.phase == "evaluation":
            assert all(not t.token_ids and not t.logprobs for t in e.dialogue.turns)
            assert [t.attempt for t in e.dialogue.turns] == [t.attempt for t in before[e.id].dialogue.turns]
        else:
            assert e == before[e.id]


def write_adapter(run: Path, size: int = 4) -> Path:
    """Write the adapter of the checkpoint `rl@9`."""
    folder = run / "checkpoints" / "rl@9"
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"q.lora_A.weight": torch.full((size, 4), 1 + 2**-9)}, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": size, "base_model_name_or_path": str(run.parent / "weights")}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_an_example_keeps_one_adapter_in_bfloat16_without_the_path_of_its_base(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    write_adapter(run)
    note = create_example(run, tmp_path / "out", 60_000, checkpoint="rl@9")
    assert note["weights"].startswith("The adapter rl@9 is shipped in bfloat16; the run saved it in float32.")
    adapter = RunDir.open(tmp_path / "out").checkpoint("rl@9")
    weights = load_file(adapter / "adapter_model.safetensors")["q.lora_A.weight"]
    assert weights.dtype == torch.bfloat16 and weights.flatten().tolist() == [1.0] * 16  # rounded from 1 + 2⁻⁹
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert config == {"peft_type": "LORA", "r": 4, "base_model_name_or_path": "smollm2-135m"}
    (saved,) = (e for e in read_events(tmp_path / "out" / "events.jsonl") if isinstance(e, CheckpointEvent))
    assert saved.sha256 == sha256(adapter / "adapter_model.safetensors")


def test_an_example_refuses_an_unknown_an_unreadable_or_a_large_adapter(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    with pytest.raises(ConfigError, match=r"no such checkpoint.*rl@8.*rl@9"):
        create_example(run, tmp_path / "out", checkpoint="rl@8")
    folder = write_adapter(run, size=MAX_ADAPTER_BYTES // 8 + 1)
    with pytest.raises(AdapterError, match="more than 10000000 bytes"):
        create_example(run, tmp_path / "out", checkpoint="rl@9")
    (folder / "adapter_model.safetensors").write_bytes(b"no weights")
    with pytest.raises(AdapterError, match="cannot be read"):
        create_example(run, tmp_path / "out", checkpoint="rl@9")
    assert not (tmp_path / "out").exists()


def test_an_example_can_be_read_into_a_workspace(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace").create()
    create_example(recorded(tmp_path), workspace.folder("example"))
    db = Database(workspace.database_url())
    db.migrate()
    (number,) = reindex(db, workspace)
    row = runs.get(db, number)
    assert (row.status, row.invalid_lines, row.name) == ("succeeded", 0, "leaky")
    assert len(metrics.steps(db, number)) == STEPS
    assert [c.name for c in runs.checkpoints(db, number)] == ["rl@9"]
    first = dialogues.page(db, dialogues.DialogueFilter(run=number, phase="train")).rows[0]
    assert len(dialogues.group(db, number, first)) == 4
    db.close()


def test_a_model_named_by_its_folder_gets_its_name_and_other_paths_are_refused(tmp_path: Path) -> None:
    run = recorded(tmp_path, model={"name": str(tmp_path / "weights")})
    create_example(run, tmp_path / "out")
    assert RunDir.open(tmp_path / "out").config().model.name == "smollm2-135m"
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["lora"]["init_adapter"] = str(tmp_path / "adapter")
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(DataError, match=r"depends on a file of this machine.*lora\.init_adapter"):
        create_example(run, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_no_path_of_this_machine_remains(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    task = ENVIRONMENT.task("train", 500)
    told = [turn(task, 0, f"I read {Path.home()}/secrets", None)]
    JsonlSink(run / "events.jsonl").emit(
        [event(task, told, name="told", step=3), event(task, told, name="also", step=3)]
    )
    create_example(run, tmp_path / "out")
    assert (3 not in {e.step for e in played(tmp_path / "out")}) and len(units(played(tmp_path / "out"))) > 10
    (run / "evaluation" / "report.md").write_text(f"figures: {run}/evaluation/figure.png")
    with pytest.raises(DataError, match=r"A path of this machine would remain.*report\.md"):
        create_example(run, tmp_path / "other")
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_only_a_finished_training_run_becomes_an_example_and_only_in_a_new_folder(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    with pytest.raises(RunError, match="exists"):
        create_example(run, run)
    with pytest.raises(DataError, match=r"metrics alone are too large.*Allow more than 1000 bytes"):
        create_example(run, tmp_path / "out", 1000)
    RunDir.open(run).heartbeat(status="stopped")
    with pytest.raises(RunError, match="Only a finished run"):
        create_example(run, tmp_path / "out")


# -- what is shipped -------------------------------------------------------------------------------------------------
def test_an_example_is_shipped_and_all_of_them_are_small() -> None:
    assert SHIPPED
    adapters = {folder: size(folder / "checkpoints") for folder in SHIPPED if (folder / "checkpoints").is_dir()}
    assert all(each <= MAX_ADAPTER_BYTES for each in adapters.values())
    assert size(ROOT / "data" / "example_runs") - sum(adapters.values()) <= 9_000_000
    assert all(size(folder) - adapters.get(folder, 0) <= MAX_BYTES for folder in SHIPPED)


def test_the_quickstart_ships_its_last_adapter_in_bfloat16_with_the_digest_of_its_event() -> None:
    folder = ROOT / "data" / "example_runs" / "quickstart"
    adapter = RunDir.open(folder).checkpoint("rl2f@24")
    with safe_open(adapter / "adapter_model.safetensors", framework="pt") as file:
        names = list(file.keys())
        assert {str(file.get_tensor(name).dtype) for name in names} == {"torch.bfloat16"}
    assert len(names) == 30 * 7 * 2  # layers, linear modules, A and B
    digests = {e.name: e.sha256 for e in read_events(folder / "events.jsonl") if isinstance(e, CheckpointEvent)}
    assert digests["rl2f@24"] == sha256(adapter / "adapter_model.safetensors")
    assert json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"] == "smollm2-135m"


@pytest.mark.parametrize("folder", SHIPPED, ids=lambda folder: folder.name)
def test_a_shipped_example_is_whole_clean_and_useful(folder: Path) -> None:
    events = list(read_events(folder / "events.jsonl", strict=True))
    assert [e.status for e in events if isinstance(e, StatusEvent)][-1] == "succeeded"
    for path in folder.rglob("*"):
        if path.is_file():
            assert not machine_paths(folder).search(path.read_bytes()), path
            assert not any(sign in path.read_bytes() for sign in (b'"/tmp/', b'"/home/', b'"/root/', b": /tmp/")), path
    config = RunDir.open(folder).config()
    assert not Path(config.model.name).is_absolute() and (folder / "example.json").is_file()
    steps = {(e.stage, e.step) for e in events if isinstance(e, MetricEvent) and not e.stage.startswith("evaluation")}
    assert {stage.name: stage.steps for stage in config.stages} == dict(Counter(stage for stage, _ in steps))  # type: ignore[attr-defined]
    held = [e for e in events if isinstance(e, DialogueEvent)]
    groups: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    for e in held:
        if e.phase == "train":
            groups[e.stage, e.step, e.dialogue.group].add(e.dialogue.index)
    sizes = {stage.name: stage.group_size for stage in config.stages}  # type: ignore[attr-defined]
    assert groups and all(indices == set(range(sizes[key[0]])) for key, indices in groups.items())
    controls: dict[str, set[tuple[Any, Any]]] = defaultdict(set)
    for e in held:
        if e.phase == "evaluation":
            controls[e.task.id].add((e.checkpoint, e.condition))
    assert len(controls) >= 10 and len({frozenset(held) for held in controls.values()}) == 1
    assert {control for held in controls.values() for _, control in held} == set(config.evaluation.conditions)


def test_the_readme_says_how_an_example_is_made() -> None:
    text = (ROOT / "data" / "example_runs" / "README.md").read_text()
    for folder in SHIPPED:
        assert f"`{folder.name}`" in text
    assert ".ci/example_run.py" in text


@pytest.mark.slow
def test_the_module_makes_an_example_from_the_command_line(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    command = [sys.executable, SCRIPT, run, tmp_path / "out"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "dialogues" in done.stdout, done.stderr
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert again.returncode == 2 and "exists" in again.stderr and "Traceback" not in again.stderr


def test_leaky_runs_can_be_shipped_too(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", leaky_events())
    assert create_example(run, tmp_path / "out")["dialogues"]["shipped"] == 8
    assert [e.dialogue for e in played(tmp_path / "out")] == [e.dialogue for e in leaky_events()]
