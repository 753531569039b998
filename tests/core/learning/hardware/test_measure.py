"""Measurements of a machine, on the tiny model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rl2f_core.config.model import ModelConfig
from rl2f_core.learning.hardware import bench, measure
from rl2f_core.models.backends.hf.backend import HFBackend
from rl2f_core.types import JsonObject

LATE = 1e12


@pytest.fixture(scope="module")
def backend(tiny: Path) -> HFBackend:
    """The tiny model in float32."""
    return bench.load(ModelConfig(name=str(tiny), device="cpu", dtype="float32"))


def test_weights_of_body_and_tied_head_add_up(backend: HFBackend) -> None:
    config = backend.model.config
    embeddings = config.vocab_size * config.hidden_size
    body, head = measure.weight_counts(backend.model)
    assert (head, body + head) == (embeddings, sum(p.numel() for p in backend.model.parameters()))


def test_a_rollout_counts_decoded_tokens_and_times_prefill_apart(
    backend: HFBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter([0.5, 2.5])  # one token after 30 of the prompts, and the whole completions

    def timed(work: Callable[[], object], device: torch.device) -> float:
        work()
        return next(seconds)

    monkeypatch.setattr(measure, "seconds_of", timed)
    row = measure.rollout_speed(backend, batch=3, prompt_tokens=10, new_tokens=5)
    body, head = measure.weight_counts(backend.model)
    assert row["batch"] == 3 and 1 <= row["tokens"] <= 12  # without the first token of each
    assert row["prefill_tokens_per_second"] == 30 / 0.5
    assert row["tokens_per_second"] == row["tokens"] / 2.0
    assert row["gflops"] == pytest.approx(2 * (body + head) * row["tokens"] / 2.0 / 1e9)


def test_a_warm_up_ends_when_the_calls_stop_getting_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds, calls in (((9.0, 2.0, 1.0, 0.9), 4), ((1.0, 1.0), 2), ((1.0, 2.0), 2)):
        times = iter(seconds)
        monkeypatch.setattr(measure, "seconds_of", lambda work, device, times=times: next(times))
        assert measure.warm_up(lambda: None, torch.device("cpu")) == calls
    monkeypatch.setattr(measure, "seconds_of", lambda work, device: next(times))
    times = iter([8.0, 4.0, 2.0, 1.0])
    assert measure.warm_up(lambda: None, torch.device("cpu"), seconds=-1.0) == 1


def test_an_update_counts_four_operations_per_frozen_weight_and_changes_the_adapter(backend: HFBackend) -> None:
    learner = measure.make_learner(backend, rank=2)
    before = learner.snapshot()
    row = measure.update_speed(learner, rows=2, tokens=8, micro_batch_tokens=16)
    body, head = measure.weight_counts(backend.model)
    adapter = sum(p.numel() for p in learner.parameters.values())
    assert row["tokens"] == 16
    assert row["gflops"] * row["seconds"] * 1e9 == pytest.approx((4 * body + 6 * adapter) * 16 + 4 * head * 8)
    assert any(not torch.equal(before[name], value) for name, value in learner.snapshot().items())


def test_a_backend_agrees_with_itself_and_not_with_other_weights(backend: HFBackend, tiny: Path) -> None:
    assert measure.greedy_agreement(backend, backend, new_tokens=6) == {
        "reference": "cpu, float32", "equal": 1.0, "max_logprob_error": 0.0, "mean_logprob_error": 0.0
    }  # fmt: skip
    other = bench.load(ModelConfig(name=str(tiny), device="cpu", dtype="float32"))
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.mul_(-1.5)
    found = measure.greedy_agreement(other, backend, new_tokens=6)
    assert found["equal"] < 1 and found["max_logprob_error"] > 0.01


def rows(*seconds: float) -> list[JsonObject]:
    """What `bench.measured` returns if measurements 1, 2, … take so long by their own account."""
    return bench.measured(lambda value: {"value": value, "seconds": seconds[value - 1]}, range(1, 4), LATE)


def test_measurements_stop_when_the_next_one_would_end_too_late() -> None:
    assert [row["value"] for row in rows(1, 1, 1)] == [1, 2, 3]
    assert [row["value"] for row in rows(1, 1e13, 1)] == [1, 2]
    assert [row["value"] for row in rows(1e13, 1, 1)] == [1]  # the first always runs


@pytest.mark.slow
def test_measurements_stop_when_memory_runs_out_and_other_errors_are_raised() -> None:
    def measurement(value: int) -> JsonObject:
        if value == 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return {"seconds": 0.0, "value": value}

    assert bench.measured(measurement, (1, 2, 3), LATE) == [{"seconds": 0.0, "value": 1}]
    with pytest.raises(RuntimeError, match="another"):
        bench.measured(lambda value: (_ for _ in ()).throw(RuntimeError("another")), (1,), LATE)
