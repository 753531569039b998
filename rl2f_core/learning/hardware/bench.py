"""`rl2f doctor --bench`: measure a machine with a model in under three minutes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rl2f_core.config.model import ModelConfig
from rl2f_core.learning.hardware import measure, sizes
from rl2f_core.models.device import free_cached, matmul_ceiling, out_of_memory
from rl2f_core.types import JsonObject

if TYPE_CHECKING:
    from rl2f_core.models.backends.hf.backend import HFBackend

BUDGET_SECONDS = 120.0
"""Time of all measurements but the first rollout and the first update, which always run."""
PROMPT_TOKENS, NEW_TOKENS = 64, 64
"""Tokens of a prompt and of a completion."""
MAX_REFERENCE_WEIGHTS = 2_000_000_000
"""Largest model whose reference in float32 runs on the CPU."""


def benchmark(model: ModelConfig, on_message: Callable[[str], None]) -> JsonObject:
    """Measure ceilings, rollout, update, memory and greedy agreement of a model on its device.

    Raises `ModelError` or `ConfigError` if the model or the device is not available.
    """
    start = time.perf_counter()
    deadline = start + BUDGET_SECONDS
    on_message(f"Loading {model.name} …")
    backend = load(model)
    device, dtype = backend.device, str(backend.dtype).removeprefix("torch.")
    gpu = device.type == "cuda"
    on_message("Measuring matrix products and memory bandwidth …")
    report: JsonObject = {
        "model": model.name,
        "device": device.type,
        "dtype": dtype,
        "weights": sum(parameter.numel() for parameter in backend.model.parameters()),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "cores": os.cpu_count(),
        "matmul_gflops": matmul_ceiling(dtype, device.type),
        "bandwidth_gb_per_second": measure.memory_bandwidth(device),
    }
    on_message("Measuring rollout …")
    report["rollout"] = rollouts(backend, gpu, start + BUDGET_SECONDS / 2)
    report["decode"] = backend.decode_path
    backend.reset_prefix_cache()
    report["rollout_peak_bytes"] = measure.peak_bytes(device)
    on_message("Measuring update …")
    report["update"], report["update_peak_bytes"] = updates(backend, gpu, deadline)
    is_reference = (device.type, dtype) == ("cpu", "float32")
    if not is_reference and report["weights"] <= MAX_REFERENCE_WEIGHTS and time.perf_counter() < deadline:
        on_message("Comparing greedy completions with the CPU …")
        reference = load(ModelConfig(name=model.name, device="cpu", dtype="float32"))
        report["agreement"] = measure.greedy_agreement(backend, reference)
    return finish(report, backend, time.perf_counter() - start)


def finish(report: JsonObject, backend: HFBackend, seconds: float) -> JsonObject:
    """Add the fractions of the ceilings, the memory of other model sizes, and suggested settings."""
    from rl2f_core.learning.learner.memory import total_memory

    for row in (*report["rollout"], *report["update"]):
        row["of_matmul"] = row["gflops"] / report["matmul_gflops"]
        if "gb_per_second" in row:
            row["of_bandwidth"] = row["gb_per_second"] / report["bandwidth_gb_per_second"]
    total = total_memory(backend.device)
    report["memory"] = {"total": total, "sizes": sizes.memory_table(total, backend.dtype.itemsize)}
    report["suggestions"] = sizes.suggestions(report)
    report["seconds"] = seconds
    return report


def load(model: ModelConfig) -> HFBackend:
    """Return the transformers backend of a model."""
    from rl2f_core.models.backends.hf.backend import HFBackend

    return HFBackend(HFBackend.Config(), model)


def rollouts(backend: HFBackend, gpu: bool, deadline: float) -> list[JsonObject]:
    """Return measured completions of several batches."""

    def measurement(batch: int) -> JsonObject:
        measure.warm_up(lambda: measure.rollout_speed(backend, batch, PROMPT_TOKENS, 4), backend.device)
        return measure.rollout_speed(backend, batch, PROMPT_TOKENS, NEW_TOKENS)

    return measured(measurement, (1, 16, 64, 256) if gpu else (1, 8, 32), deadline)


def updates(backend: HFBackend, gpu: bool, deadline: float) -> tuple[list[JsonObject], int]:
    """Return measured updates with several micro-batches, and the peak memory."""
    learner = measure.make_learner(backend)
    rows, tokens = (64, 512) if gpu else (8, 64)
    measure.warm_up(lambda: measure.update_speed(learner, 1, tokens, tokens), backend.device)
    micro_batches = (4096, 8192, 16384, 32768) if gpu else (128, 512)
    found = measured(lambda limit: measure.update_speed(learner, rows, tokens, limit, 1), micro_batches, deadline)
    return found, measure.peak_bytes(backend.device)


def measured(measurement: Callable[[int], JsonObject], values: Sequence[int], deadline: float) -> list[JsonObject]:
    """Return measurements of ascending sizes until one runs out of memory or the next would probably end too late."""
    found: list[JsonObject] = []
    for value in values:
        if found and time.perf_counter() + 2 * found[-1]["seconds"] > deadline:
            break
        try:
            found.append(measurement(value))
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            free_cached()
            break
    return found
