"""What a tracker mirrors of a run, and the files of each tracker, read back."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tracking_data import STAGES, Memory, config_with, dialogue, metric, replay, run_dir_of, status

from rl2f_core import registry
from rl2f_core.config.run import RunConfig
from rl2f_core.errors import ConfigError
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import CheckpointEvent, Event, LogEvent, MetricEvent, read_events
from rl2f_core.run.tracking.base import STATE, as_messages

ROOT = Path(__file__).resolve().parents[4]
REPORT = ROOT / "data" / "example_runs" / "quickstart" / "evaluation" / "report.json"
EVENTS: list[Event] = [
    status("running"),
    metric("warm", 1, reward=0.25),
    metric("warm", 2, reward=0.5),
    dialogue(1),
    dialogue(1, index=1),
    dialogue(1, number=1),
    dialogue(1, number=2),
    metric("rl", 1, reward=0.75),
    LogEvent(id="log", text="nothing"),
]
"""Two stages of 2 and 3 steps; the stages' names and steps are those of `config_with`."""


def memory(tmp_path: Path, config: RunConfig, **settings: Any) -> Memory:
    return Memory(Memory.Config(**settings), config, run_dir_of(tmp_path / "run", config))


def test_steps_count_over_all_stages(tmp_path: Path) -> None:
    tracker = memory(tmp_path, config_with())
    replay(tracker, [*EVENTS, metric("evaluation:rl@3:hints", 0, gain=0.5)])
    assert [(kind, step, data) for kind, step, data, *_ in tracker.received if kind == "metrics"] == [
        ("metrics", 1, {"reward": 0.25}),
        ("metrics", 2, {"reward": 0.5}),
        ("metrics", 3, {"reward": 0.75}),
        ("metrics", 5, {"evaluation/rl@3/hints/gain": 0.5}),
    ]
    assert [stage["steps"] for stage in STAGES] == [2, 3]


def test_one_dialogue_of_each_of_the_first_groups_is_mirrored_as_messages(tmp_path: Path) -> None:
    tracker = memory(tmp_path, config_with(), dialogues=2)
    replay(tracker, EVENTS)
    found = [item for item in tracker.received if item[0] == "dialogue"]
    assert [(step, name, facts["task"]) for _, step, name, _, facts in found] == [
        (3, "train", "secret_code/train/100"),
        (3, "train", "secret_code/train/101"),
    ]
    _, _, _, messages, facts = found[0]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert messages[3]["content"] == "Try the other letter."
    assert "<answer>" in messages[0]["content"] and "code" in messages[1]["content"]
    assert facts["solved"] is True and facts["turns"] == 2 and facts["leak"] is False


def test_an_observation_is_a_part_of_the_message_after_an_attempt() -> None:
    found = dialogue(1).dialogue
    seen = [
        t.model_copy(update={"verdict": t.verdict.model_copy(update={"observation": "a wall"})}) for t in found.turns
    ]
    messages = as_messages("Go.", found.model_copy(update={"turns": tuple(seen)}))
    assert [m["content"] for m in messages if m["role"] == "user"] == [
        "Go.",
        "a wall\n\nTry the other letter.",
        "a wall",
    ]


def test_the_tables_of_the_evaluation_follow_at_the_end(tmp_path: Path) -> None:
    config = config_with()
    tracker = memory(tmp_path, config)
    tracker.run_dir.evaluation.mkdir()
    shutil.copy(REPORT, tracker.run_dir.evaluation)
    replay(tracker, [*EVENTS, status("succeeded")])
    tables = [item[1:] for item in tracker.received if item[0] == "table"]
    assert (5, "Checkpoints under all conditions") in tables and len(tables) > 2


def test_checkpoints_and_logs_are_not_mirrored(tmp_path: Path) -> None:
    tracker = memory(tmp_path, config_with())
    checkpoint = CheckpointEvent(id="c", name="rl@1", stage="rl", step=1, path="p", sha256="0")
    assert not tracker.handles(checkpoint)
    assert not tracker.handles(LogEvent(id="l", text="x"))


def test_a_resumed_run_continues_the_run_of_the_same_tracker_only(tmp_path: Path) -> None:
    config = config_with()
    first = memory(tmp_path, config)
    first.open()
    state = json.loads((tmp_path / "run" / STATE).read_text())
    assert state["type"] == "memory"
    again = Memory(Memory.Config(), config, RunDir(tmp_path / "run"))
    again.open()
    assert json.loads((tmp_path / "run" / STATE).read_text()) == state
    (tmp_path / "run" / STATE).write_text(json.dumps({"type": "other", "id": "theirs"}))
    again.open()
    assert json.loads((tmp_path / "run" / STATE).read_text())["id"] != "theirs"


def test_the_mirrored_configuration_has_no_webhook(tmp_path: Path) -> None:
    tracker = memory(tmp_path, config_with(alerts={"webhook": "https://example.org/SECRET"}))
    assert "SECRET" not in json.dumps(tracker.public_config())


# -- the files of each tracker ---------------------------------------------------------------------------------------
def mirror(name: str, folder: Path, **settings: Any) -> RunDir:
    """Mirror a run in two sessions: step 1 of rl, and after a resume step 2 and the evaluation."""
    config = config_with(tracking={"type": name, **settings})
    run_dir = run_dir_of(folder / "run", config)
    run_dir.evaluation.mkdir()
    for events in (
        [*EVENTS, status("stopped")],
        [status("running"), metric("rl", 2, reward=1.0), metric("evaluation:rl@3:hints", 0, gain=0.5)],
    ):
        assert config.tracking is not None
        tracker = registry.get("tracker", name)(config.tracking, config, RunDir(run_dir.path))
        replay(tracker, events)
    shutil.copy(REPORT, run_dir.evaluation)
    tracker = registry.get("tracker", name)(config.tracking, config, RunDir(run_dir.path))
    replay(tracker, [status("running"), status("succeeded")])
    return run_dir


def test_tensorboard_reads_scalars_tables_and_dialogues_of_all_sessions(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the package tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_dir = mirror("tensorboard", tmp_path)
    files = EventAccumulator(str(run_dir.path / "tensorboard"), size_guidance={"tensors": 0})
    files.Reload()
    assert [(s.step, s.value) for s in files.Scalars("reward")] == [(1, 0.25), (2, 0.5), (3, 0.75), (4, 1.0)]
    assert files.Scalars("reward")[0].wall_time == 1001.0
    assert [(s.step, s.value) for s in files.Scalars("evaluation/rl@3/hints/gain")] == [(5, 0.5)]
    texts = {tag: files.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in files.Tags()["tensors"]}
    table = next(text for tag, text in texts.items() if "Checkpoints under all conditions" in tag.replace("_", " "))
    assert "| checkpoint | condition |" in table
    found = next(text for tag, text in texts.items() if tag.startswith("train/secret_code/train/100"))
    assert "user:\n\n    Try the other letter." in found


@pytest.mark.slow
def test_a_real_run_that_is_stopped_and_resumed_has_each_step_once_in_tensorboard(
    speaker: Path, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard", reason="the package tensorboard is not installed")
    from run_helpers import config_of, go
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_dir = RunDir.create(tmp_path / "run", config_of(speaker, tracking="tensorboard"))
    calls = iter([False, False, False])
    assert go(run_dir, lambda: next(calls, True)) == "stopped"
    assert go(run_dir) == "succeeded"
    files = EventAccumulator(str(run_dir.path / "tensorboard"))
    files.Reload()
    assert [scalar.step for scalar in files.Scalars("entropy")] == [1, 2, 3, 4, 5]
    recorded = [e for e in read_events(run_dir.events_path) if isinstance(e, MetricEvent)]
    assert [s.value for s in files.Scalars("entropy")] == pytest.approx(
        [e.values["entropy"] for e in recorded], rel=1e-6
    )
    assert not [e for e in read_events(run_dir.events_path) if isinstance(e, LogEvent) and e.level == "warning"
                and "lost" in e.text]  # fmt: skip


def leveldb_records(data: bytes) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format, after a header of 7 bytes: blocks of 32 KiB with chunks of
    checksum (4 bytes), length (2), kind (1; 1 is whole, 2 to 4 are first, middle and last part) and data."""
    position, record = 7, b""
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:  # the rest of a block without room for a header is empty
            position += 32768 - position % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            yield record
            record = b""


def wandb_rows(run_dir: RunDir) -> list[dict[str, Any]]:
    """The history of all sessions of an offline run."""
    from wandb.proto.wandb_internal_pb2 import Record

    rows = []
    for file in run_dir.path.glob("wandb/offline-run-*/*.wandb"):
        for data in leveldb_records(file.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                rows.append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item})
    return rows


@pytest.mark.slow
def test_wandb_writes_files_of_an_offline_run_under_one_id(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="the package wandb is not installed")
    run_dir = mirror("wandb", tmp_path, mode="offline")
    id = json.loads((run_dir.path / STATE).read_text())["id"]
    deadline = time.monotonic() + 30
    while not any("Checkpoints under all conditions" in key for row in wandb_rows(run_dir) for key in row):
        assert time.monotonic() < deadline  # wandb's own process writes the last file after `finish`
        time.sleep(0.2)
    assert {file.name for file in run_dir.path.glob("wandb/offline-run-*/*.wandb")} == {f"run-{id}.wandb"}
    rows = wandb_rows(run_dir)
    rewards = {row["train_step"]: row["reward"] for row in rows if "reward" in row}
    assert rewards == {1: 0.25, 2: 0.5, 3: 0.75, 4: 1.0}
    tables = [json.loads(file.read_text()) for file in run_dir.path.glob("wandb/offline-run-*/files/media/**/*.json")]
    assert any(["user", "Try the other letter."] in table["data"] for table in tables)


@pytest.mark.slow
def test_mlflow_has_one_run_with_metrics_parameters_tables_and_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="the package mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_ENABLE_ASYNC_TRACE_LOGGING", "false")
    run_dir = mirror("mlflow", tmp_path, uri=f"file:{tmp_path / 'mlruns'}", project="codes")
    client = mlflow.MlflowClient(f"file:{tmp_path / 'mlruns'}")
    id = json.loads((run_dir.path / STATE).read_text())["id"]
    experiment = client.get_experiment_by_name("codes").experiment_id
    runs = client.search_runs([experiment])
    assert [run.info.run_id for run in runs] == [id]
    assert runs[0].info.status == "FINISHED"
    assert runs[0].data.params["environment.type"] == "secret_code"
    history = sorted((m.step, m.value) for m in client.get_metric_history(id, "reward"))
    assert history == [(1, 0.25), (2, 0.5), (3, 0.75), (4, 1.0)]
    assert runs[0].data.metrics["evaluation/rl-3/hints/gain"] == 0.5
    assert any("Checkpoints" in file.path for file in client.list_artifacts(id, "evaluation"))
    traces = client.search_traces(locations=[experiment])
    assert any("Try the other letter." in str(trace.data.response) for trace in traces)


@pytest.mark.slow
def test_trackio_has_one_run_with_metrics_and_traces(tmp_path: Path) -> None:
    pytest.importorskip("trackio", reason="the package trackio is not installed")
    script = """
import json, sys
from pathlib import Path
from test_trackers import mirror
from trackio.sqlite_storage import SQLiteStorage
run_dir = mirror("trackio", Path(sys.argv[1]), project="codes")
id = json.loads((run_dir.path / "tracking.json").read_text())["id"]
runs, logs = SQLiteStorage.get_runs("codes"), SQLiteStorage.get_logs("codes", id)
traces = SQLiteStorage.get_traces("codes", id)
print("FOUND", json.dumps({"id": id, "runs": runs, "logs": logs, "traces": traces}, default=str))
"""
    path = os.pathsep.join([*map(str, (ROOT, ROOT / "tests" / "support", Path(__file__).parent)), *sys.path])
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio"), "PYTHONPATH": path}
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(next(line[6:] for line in done.stdout.splitlines() if line.startswith("FOUND ")))
    assert found["runs"] == [found["id"]]
    assert [(row["step"], row["reward"]) for row in found["logs"] if "reward" in row] == [
        (1, 0.25),
        (2, 0.5),
        (3, 0.75),
        (4, 1.0),
    ]
    assert any("evaluation/Checkpoints under all conditions" in row for row in found["logs"])
    assert "Try the other letter." in json.dumps(found["traces"])


@pytest.mark.slow
def test_wandb_without_a_key_is_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="the package wandb is not installed")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    config = config_with(tracking="wandb")
    assert config.tracking is not None
    with pytest.raises(ConfigError, match="has no key"):
        registry.get("tracker", "wandb")(config.tracking, config, run_dir_of(tmp_path / "run", config))
