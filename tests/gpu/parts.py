"""One part of `run.py` in a process of its own: `python tests/gpu/parts.py PART MODEL DEVICE FOLDER RESULT.json`."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl2f_core.models.backends.hf.backend import HFBackend

ROOT = Path(__file__).resolve().parents[2]
TOKENS = {"cuda": 512, "cpu": 32}
"""Tokens of a training sample, by device."""
ROWS = {"cuda": 32, "cpu": 4}
"""Training samples of an update, by device."""
BATCHES = {"cuda": (64, 256), "cpu": (4,)}
"""Sequences of a decode, by device."""
SHAPES: dict[str, dict[str, Any]] = {
    "cuda": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28},
    "cpu": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2},
}
"""Sizes of the model with random weights, by device: 1.51 billion weights on a GPU."""
BENCHMARK = {
    "cuda": "--repeats 3 --baselines sdpa",
    "cpu": "--dialogues 8 --turns 2 --rows 4 --micro-rows 2 --repeats 1 --baselines sdpa",
}
"""Options of `tests.benchmarks`, by device."""
LARGE = {"cuda": "--rows 64 --micro-rows 16", "cpu": "--rows 8 --micro-rows 4"}
"""Other sizes of an update, by device."""
SMALL = (
    "stages.0.steps=2 stages.1.steps=2 stages.0.tasks_per_step=4 preflight.num_tasks=1 preflight.samples_per_task=2 "
    "preflight.ignore_failure=true evaluation.num_tasks=2"
).split()
"""Settings of a quickstart of seconds."""
TRAINS = ["stages.1.method.entropy_coef=0.01", "stages.1.save_steps=1", "evaluation.conditions=[hints]"]
"""An entropy term, so that steps whose groups are all wrong train too."""


class Checks:
    """The parts; each returns numbers, or raises.

    Args:
        model: Folder or name of the model.
        device: cuda or cpu.
        folder: Directory for files.
        result: File that `keep` writes.
    """

    def __init__(self, model: str, device: str, folder: Path, result: Path) -> None:
        self.model, self.device, self.folder, self.result = model, device, folder, result

    def keep(self, found: dict[str, Any]) -> None:
        """Store what was found so far."""
        self.result.write_text(json.dumps(found), encoding="utf-8")

    def machine(self) -> dict[str, Any]:
        """Return versions and devices."""
        import torch

        from rl2f_core.models.device import describe_devices

        name = torch.cuda.get_device_name() if self.device == "cuda" else f"cpu {platform.machine()}"
        versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version()}
        return {"name": name, **versions, "devices": describe_devices(), "platform": platform.platform()}

    def quickstart(self) -> dict[str, Any]:
        """Run the whole quickstart with its evaluation; return seconds by phase, and the hint effect."""
        from rl2f_core.evaluation.report import EvaluationReport
        from rl2f_core.run.events import MetricEvent, StatusEvent, read_events

        start = time.perf_counter()
        run = self._run("quickstart", [False], () if self.device == "cuda" else SMALL)
        seconds, last = time.perf_counter() - start, 0.0
        phases: dict[str, float] = {}
        for event in read_events(run / "events.jsonl"):
            if isinstance(event, MetricEvent) and event.stage in ("warmup", "rl2f"):
                last = event.time
                for name, value in event.values.items():
                    if name.startswith("time/"):
                        phase = f"{event.stage}/{name.removeprefix('time/')}"
                        phases[phase] = phases.get(phase, 0.0) + value
            elif isinstance(event, StatusEvent) and event.status == "succeeded":
                phases["evaluation"] = event.time - last
        phases["start"] = seconds - sum(phases.values())
        report = EvaluationReport.model_validate_json((run / "evaluation" / "report.json").read_bytes())
        effect = report.effect(next(name for name in report.checkpoints if name.startswith("rl2f")), "hints")
        return {"seconds": seconds, "phases": phases, "hint_effect": effect and effect.model_dump(mode="json")}

    def rollout(self) -> dict[str, Any]:
        """Rollout of dialogues against a plain loop over `generate` (`tests/benchmarks`)."""
        return self._benchmark("rollout")

    def update(self) -> dict[str, Any]:
        """Update on 16 rows, 4 at a time, against TRL (`tests/benchmarks`)."""
        return self._benchmark("update")

    def update_64(self) -> dict[str, Any]:
        """Update on 64 rows, 16 at a time, against TRL."""
        return self._benchmark("update", LARGE[self.device])

    def micro_batches(self) -> dict[str, Any]:
        """Updates with micro-batches of several sizes, and the operations of one update."""
        from rl2f_core.models.device import matmul_ceiling

        backend = self._backend()
        ceiling = matmul_ceiling(str(backend.dtype).removeprefix("torch."), self.device)
        return self._updates(backend, 2 * ROWS[self.device], ceiling)

    def shape(self) -> dict[str, Any]:
        """Decode and update of a model of 1.5 billion random weights."""
        from rl2f_core.learning.hardware import measure
        from rl2f_core.models.device import matmul_ceiling

        backend = self._backend(random_model(Path(self.model), self.folder / "shape", SHAPES[self.device]))
        ceiling = matmul_ceiling(str(backend.dtype).removeprefix("torch."), self.device)
        found: dict[str, Any] = {"weights": sum(measure.weight_counts(backend.model)), "matmul_gflops": ceiling}
        found |= self._decode(backend)
        self.keep(found)
        return found | self._updates(backend, ROWS[self.device], ceiling)

    def decode(self) -> dict[str, Any]:
        """Decode after prompts of 64 tokens against plain `generate`, and the operations of some steps."""
        return self._decode(self._backend())

    def resume(self) -> dict[str, Any]:
        """Stop a training run after its first step and resume it; compare its weights with those of a whole run."""
        from rl2f_core.run.events import MetricEvent, read_events

        settings = (*SMALL, *TRAINS)
        whole, parts = self._run("whole", [False], settings), self._run("parts", [True, False], settings)
        events = [event for event in read_events(whole / "events.jsonl") if isinstance(event, MetricEvent)]
        steps = {(event.stage, event.step): event.values for event in events if event.stage in ("warmup", "rl2f")}
        trained = [values["tokens/trained"] for values in steps.values()]
        if len(trained) != 4 or min(trained) <= 0:
            raise AssertionError(f"Not every step trained: trained tokens by step are {trained}.")
        if difference(whole / "checkpoints" / "rl2f@1", whole / "checkpoints" / "rl2f@2") == 0:
            raise AssertionError("The last step did not change the weights.")
        changed = difference(whole / "checkpoints" / "rl2f@2", parts / "checkpoints" / "rl2f@2")
        if changed > 1e-3:
            raise AssertionError(f"The resumed run ends with other weights: they differ by {changed}.")
        return {"max_difference": changed, "identical": changed == 0, "last_step": steps["rl2f", 2]}

    def adapters(self) -> dict[str, Any]:
        """Exchange two adapters several times; each must generate the same again, and the two not the same."""
        from rl2f_core.learning.hardware import measure
        from rl2f_core.models.backends.base import SamplingParams

        backend = self._backend()
        learner = measure.make_learner(backend)
        folders = [self.folder / "first", self.folder / "second"]
        for step, folder in enumerate(folders):
            for number in range(4 * step):
                self._update(learner, number, rate=0.05)
            folder.mkdir()
            learner.save_adapter(folder)
        requests = measure.prompts(4, 16, backend.model.config.vocab_size)
        seconds, texts = [], []
        for folder in folders * 3:
            start = time.perf_counter()
            backend.load_adapter("policy", folder)
            seconds.append(time.perf_counter() - start)
            found = backend.generate(requests, SamplingParams(8, temperature=measure.GREEDY), "policy")
            texts.append([generation.token_ids for generation in found])
        if texts[0] != texts[2] or texts[0] != texts[4] or texts[1] != texts[3] or texts[1] != texts[5]:
            raise AssertionError("An adapter generates other tokens after it was exchanged.")
        if texts[0] == texts[1]:
            raise AssertionError("Two different adapters generate the same tokens.")
        return {"seconds": sorted(seconds)[len(seconds) // 2]}

    def bench(self) -> dict[str, Any]:
        """Measure rollout, update, ceilings, memory and agreement with the CPU (`rl2f doctor --bench`)."""
        from rl2f_core.config.model import ModelConfig
        from rl2f_core.learning.hardware.bench import benchmark

        return benchmark(ModelConfig.model_validate({"name": self.model, "device": self.device}), print)

    def compile(self) -> dict[str, Any]:
        """Compare compiled updates with plain ones: seconds, and the relative difference of their losses."""
        from rl2f_core.learning.hardware import measure
        from rl2f_core.learning.learner.torch_compile import can_compile, compile_blocks

        if not can_compile(self.device):
            return {"skipped": "torch cannot compile on this machine"}
        found: dict[str, list[tuple[float, float]]] = {}
        for side in ("plain", "compiled"):
            learner = measure.make_learner(self._backend())
            compile_blocks(learner.model, on=side == "compiled")
            found[side] = []
            for step in range(4):
                found[side].append(self._update(learner, step))
                self.keep({"updates": found})
        losses = [[loss for _, loss in updates] for updates in found.values()]
        error = max(abs(a - b) / max(abs(a), abs(b), 1e-3) for a, b in zip(*losses, strict=True))
        if error > 0.1:
            raise AssertionError(f"The losses of compiled updates differ by {error:.0%}.")
        plain, compiled = (min(seconds for seconds, _ in updates[1:]) for updates in found.values())
        first = found["compiled"][0][0]
        return {"plain": plain, "compiled": compiled, "first": first, "ratio": plain / compiled, "loss_error": error}

    # -- shared ------------------------------------------------------------------------------------------------------
    def _backend(self, model: Path | None = None) -> HFBackend:
        from rl2f_core.config.model import ModelConfig
        from rl2f_core.learning.hardware.bench import load

        return load(ModelConfig.model_validate({"name": str(model or self.model), "device": self.device}))

    def _update(self, learner: Any, step: int, rate: float = 1e-4) -> tuple[float, float]:
        """Make one update; return seconds and loss."""
        from rl2f_core.learning.hardware import measure

        tokens, rows = TOKENS[self.device], ROWS[self.device]
        row = measure.update_speed(learner, rows, tokens, rows * tokens // 2, step, rate)
        return row["seconds"], row["loss"]

    def _updates(self, backend: HFBackend, rows: int, ceiling: float) -> dict[str, Any]:
        """Measure updates by the size of their micro-batches, and profile one."""
        from rl2f_core.learning.hardware import measure

        learner, tokens = measure.make_learner(backend), TOKENS[self.device]
        update = partial(measure.update_speed, learner, rows, tokens)
        found: list[dict[str, Any]] = []
        for part in (n for n in (8, 4, 2, 1) if n <= rows):
            measure.warm_up(partial(update, rows // part * tokens), backend.device, 5.0)
            row = update(rows // part * tokens, 1)
            found.append({**row, "of_matmul": row["gflops"] / ceiling})
            self.keep({"update": found})
        return {"update": found, "profile": profiled(partial(update, rows // 4 * tokens), self.device)}

    def _decode(self, backend: HFBackend) -> dict[str, Any]:
        """Measure decode and plain `generate` by turns, and profile decode."""
        from rl2f_core.learning.hardware import measure

        rows: list[dict[str, Any]] = []
        for batch in BATCHES[self.device]:
            measure.warm_up(partial(measure.rollout_speed, backend, batch, 64, 4), backend.device)
            plain_generate(backend, batch, 2)
            ours, theirs = measure.rollout_speed(backend, batch, 64, 64), plain_generate(backend, batch, 64)
            rows.append({**ours, "generate": theirs, "ratio": ours["tokens_per_second"] / theirs})
            self.keep({"decode": rows})
        profile = profiled(lambda: measure.rollout_speed(backend, BATCHES[self.device][0], 64, 12), self.device)
        return {"decode": rows, "path": backend.decode_path, "profile": profile}

    def _benchmark(self, name: str, sizes: str = "") -> dict[str, Any]:
        """Run one benchmark, which writes its file after each answer."""
        command = [sys.executable, "-m", "tests.benchmarks", "--only", name, "--model", self.model]
        options = ["--device", self.device, "--out", str(self.result), *f"{BENCHMARK[self.device]} {sizes}".split()]
        subprocess.run([*command, *options], cwd=ROOT, check=True)
        found: dict[str, Any] = json.loads(self.result.read_text(encoding="utf-8"))
        return found

    def _run(self, name: str, stops: Sequence[bool], settings: Sequence[str]) -> Path:
        """Execute a quickstart, once for each entry of `stops`: True stops it after one step."""
        from rl2f_core.config.loading import load_config
        from rl2f_core.run.directory import RunDir
        from rl2f_core.run.events import JsonlSink
        from rl2f_core.run.execute import execute

        model = [f"model.name={self.model}", f"model.device={self.device}", "backend=hf"]
        config = load_config("quickstart", [*model, *settings])
        run = RunDir.create(self.folder / name, config)
        for stop in stops:
            status = execute(config, run, JsonlSink(run.events_path), lambda: stop).status  # noqa: B023
            if status != ("stopped" if stop else "succeeded"):
                raise AssertionError(f"The run ended with status {status}.")
        return run.path


def plain_generate(backend: HFBackend, batch: int, new_tokens: int) -> float:
    """Return the decoded tokens per second of `generate` after prompts of 64 tokens, without the time of prefill."""
    import torch

    from rl2f_core.models.device import seconds_of

    words = backend.model.config.vocab_size
    prompt_BT = torch.randint(words, (batch, 64), generator=torch.Generator().manual_seed(0)).to(backend.device)

    def seconds(tokens: int) -> float:
        """Return the seconds of a call."""
        with torch.inference_mode():
            return seconds_of(
                lambda: backend.model.generate(
                    prompt_BT, attention_mask=torch.ones_like(prompt_BT), do_sample=True, max_new_tokens=tokens,
                    min_new_tokens=tokens, pad_token_id=backend.pad_id,
                ),
                backend.device,
            )  # fmt: skip

    prefill = seconds(1)
    return batch * (new_tokens - 1) / max(seconds(new_tokens) - prefill, 1e-9)


def profiled(work: Callable[[], object], device: str) -> dict[str, Any]:
    """Return kernels, seconds on the host and on the GPU, and the most expensive operations of some work."""
    from torch.profiler import ProfilerActivity, profile

    gpu = [ProfilerActivity.CUDA] if device == "cuda" else []
    with profile(activities=[ProfilerActivity.CPU, *gpu]) as found:
        work()
    averages = found.key_averages()

    def top(name: str) -> dict[str, list[float]]:
        """Return calls and seconds of the ten rows with the most time of one kind."""
        rows = sorted(averages, key=lambda row: getattr(row, name, 0.0), reverse=True)[:10]
        return {row.key[:80]: [row.count, round(getattr(row, name, 0.0) / 1e6, 4)] for row in rows}

    return {
        "launches": sum(row.count for row in averages if "LaunchKernel" in row.key or "GraphLaunch" in row.key),
        "host_seconds": sum(row.self_cpu_time_total for row in averages) / 1e6,
        "gpu_seconds": sum(getattr(row, "self_device_time_total", 0.0) for row in averages) / 1e6,
        "top": top("self_cpu_time_total"),
        "top_gpu": top("self_device_time_total"),
    }


def random_model(model: Path, folder: Path, sizes: dict[str, Any]) -> Path:
    """Write a model of random weights with the tokenizer of another one; return its folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from rl2f_core.models.store.store import get_model

    source = get_model(str(model)).path
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors", "manifest.json"))
    vocabulary = json.loads((source / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    config = LlamaConfig(
        **sizes, vocab_size=vocabulary, num_attention_heads=16, num_key_value_heads=8, tie_word_embeddings=True
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    try:
        LlamaForCausalLM(config).save_pretrained(folder)
    finally:
        torch.set_default_dtype(torch.float32)
    return folder


def difference(one: Path, other: Path) -> float:
    """Return the largest difference of the weights of two adapters."""
    from safetensors.torch import load_file

    a, b = (load_file(folder / "adapter_model.safetensors") for folder in (one, other))
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def main(argv: Sequence[str]) -> int:
    """Run a part and store its result, or its error; returns the exit code."""
    part, model, device, folder, result = argv
    checks = Checks(model, device, Path(folder), Path(result))
    try:
        checks.keep(getattr(checks, part)())
    except Exception as error:
        traceback.print_exc()
        path = Path(result)
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        checks.keep(found | {"error": f"{type(error).__name__}: {error}"[:2000]})
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
