"""End-to-end runs on the tiny model: their configuration, and what two runs must have in common."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from rl2f_core.common.file_io import sha256
from rl2f_core.config.run import RunConfig
from rl2f_core.environments.puzzles.secret_code.environment import SecretCode
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import JsonlSink, LogEvent, MetricEvent, StatusEvent, read_events
from rl2f_core.run.execute import execute
from rl2f_core.types import Task, Verdict

CLOCK = ("time/", "tokens_per_second/", "system/")


class EvenLength(SecretCode):
    """Any text of an even length is right, so that a random model has groups to learn from."""

    class Config(SecretCode.Config):
        type: Literal["even_length"] = "even_length"  # type: ignore[assignment]

    def verify(self, task: Task, attempt: str) -> Verdict:
        right = len(attempt) % 2 == 0
        return Verdict(correct=right, score=float(right), parsed="A B", well_formed=True)


def train_speaker(tiny: Path, folder: Path) -> Path:
    """Train all weights of the tiny model on demonstrations, so that it keeps the answer format; returns `folder`.

    A random model answers nothing that can be parsed, all its groups end alike, and no RL step would change a weight.
    """
    import torch

    from rl2f_core.dialogue.rollout.build import build_backend, build_engine
    from rl2f_core.learning.learner.micro_batch import micro_batches
    from rl2f_core.learning.methods.sft import SFT
    from rl2f_core.learning.training.collector import Collector
    from rl2f_core.models.modeling.logprobs import selected_logprobs

    config = config_of(tiny)
    backend: Any = build_backend(config)
    collector = Collector(build_engine(config, backend), config.stages[0], seed=7)
    method = SFT(SFT.Config(final_correct_rate=0.3))
    groups = [group for step in range(4) for group in collector.demonstrations(collector.resolve(step), method.config)]
    rows = [row for group in groups for row in method.samples(group)]
    (batch,) = micro_batches(rows, 10**6, backend.pad_id, backend.device)
    optimizer = torch.optim.AdamW(backend.model.requires_grad_(True).parameters(), lr=0.01)
    for _ in range(40):
        optimizer.zero_grad()
        logp_N, _ = selected_logprobs(backend.model, batch.input_BT, batch.attention_mask_BT, batch.target_mask_BT)
        (-logp_N.mean()).backward()
        optimizer.step()
    shutil.copytree(tiny, folder)
    backend.model.save_pretrained(folder)
    return folder


@contextmanager
def undrawn_figures() -> Iterator[None]:
    """Write placeholders instead of figures, which take longer than a small evaluation; `test_report` draws them."""
    from rl2f_core.evaluation import figure_files
    from rl2f_core.evaluation.levels import runner

    def placeholder(chart: Any, dpi: int = 0) -> bytes:
        return figure_files.chart_digest(chart).encode()

    with pytest.MonkeyPatch.context() as patch:
        for module in (figure_files, runner):
            patch.setattr(module, "to_png", placeholder)
        patch.setattr(figure_files, "to_html", lambda report, charts: report.title)
        yield


def config_of(
    model: Path, *, seed: int = 5, kl: float = 0.1, steps: tuple[int, int] = (2, 3), **changes: Any
) -> RunConfig:
    """sft → rl2f on codes of 2 letters of ABC."""
    shared = {"tasks_per_step": 2, "weight_decay": 0.1, "lr_scheduler_type": "cosine"}
    warm = {"name": "warm", "method": "sft", "steps": steps[0], "group_size": 2, **shared}
    settings = {"learning_rate": 0.005, "minibatches": 2, "save_steps": 2, "max_group_resamples": 1, **shared}
    rl = {"name": "rl", "method": {"type": "rl2f", "kl_coef": kl}, "steps": steps[1], "group_size": 4, **settings}
    return RunConfig.model_validate(
        {
            "seed": seed,
            "model": {"name": str(model), "device": "cpu", "dtype": "float32"},
            "environment": {"type": "secret_code", "alphabet": "ABC", "length": 2},
            "rollout": {"max_turns": 2, "max_new_tokens": 12, "max_seq_len": 256},
            "reward": {"preset": "format", "progress_weight": 0.5},
            "lora": {"rank": 4, "alpha": 8},
            "evaluation": {"checkpoints": []},
            "preflight": {"num_tasks": 2, "samples_per_task": 4, "ignore_failure": True},
            "stages": [warm, rl],
            **changes,
        }
    )


# -- what is compared ------------------------------------------------------------------------------------------
def content(folder: Path) -> list[dict[str, Any]]:
    """Every event but statuses, in order, without time, and without lines and metrics that a clock decides."""
    found = []
    for event in read_events(folder / "events.jsonl", strict=True):
        if isinstance(event, StatusEvent):
            continue
        data = event.model_dump(exclude={"time"})
        if isinstance(event, MetricEvent):
            data["values"] = {k: v for k, v in event.values.items() if not k.startswith(CLOCK)}
        if isinstance(event, LogEvent):
            data["text"] = [line for line in event.text.splitlines() if " s a step" not in line]
        found.append(data)
    return found


def adapter(folder: Path, name: str = "rl@3") -> str:
    return sha256(folder / "checkpoints" / name / "adapter_model.safetensors")


def assert_same_run(folder: Path, whole: Path, last: str = "rl@3") -> None:
    assert (folder / "events.jsonl").read_bytes().endswith(b"\n")
    ids = [event.id for event in read_events(folder / "events.jsonl", strict=True)]
    assert len(ids) == len(set(ids))
    ours, theirs = content(folder), content(whole)
    assert [e["id"] for e in ours] == [e["id"] for e in theirs]
    assert ours == theirs
    assert adapter(folder, last) == adapter(whole, last)
    assert RunDir(folder).checkpoint_names() == RunDir(whole).checkpoint_names()


def statuses(folder: Path) -> list[str]:
    return [e.status for e in read_events(folder / "events.jsonl") if isinstance(e, StatusEvent)]


def go(run_dir: RunDir, stop: Callable[[], bool] = bool, sink: JsonlSink | None = None) -> str:
    return execute(run_dir.config(), run_dir, sink or JsonlSink(run_dir.events_path), stop).status
