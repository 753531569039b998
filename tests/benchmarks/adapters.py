"""`python -m tests.benchmarks.adapters`: several adapters on one base, evaluated by one process or by one each.

Both sides are commands as a user gives them, with all that a command takes: starting, loading, playing, reporting.  The
adapters are drawn at random, close enough to the base that they speak as it does.  Sides take turns (A B A B).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .report import busy, of_ceiling, parser, ratio, rollout_work, spread, table
from .worker import QUIET, ROOT, processor_seconds

WANTED = 2.0
"""Least ratio, from the project's requirements."""
SIDES = ("batched", "apart")


def write_adapters(model: Path, folder: Path, count: int, rank: int) -> dict[str, str]:
    """Random LoRA adapters on all linear layers of a model, by name."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        base = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    layers = {n: m for n, m in base.model.named_modules() if isinstance(m, torch.nn.Linear)}
    made = {}
    for number in range(count):
        chance = torch.Generator().manual_seed(number)
        weights = {}
        for name, layer in layers.items():
            for half, shape in (("A", (rank, layer.in_features)), ("B", (layer.out_features, rank))):
                key = f"base_model.model.model.{name}.lora_{half}.weight"
                weights[key] = torch.randn(shape, generator=chance) * 0.01
        own = folder / f"adapter-{number}"
        own.mkdir()
        save_file(weights, own / "adapter_model.safetensors")
        (own / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank}))
        made[own.name] = str(own)
    return made


def evaluation(args: argparse.Namespace, adapters: dict[str, str]) -> dict[str, Any]:
    """The configuration that evaluates some adapters."""
    return {
        "kind": "eval",
        "name": "adapters",
        "adapters": adapters,
        "model": {"name": args.model, "device": args.device, "dtype": args.dtype},
        "environment": {"type": "secret_code", "length": 3, "letters": 4},
        "rollout": {"max_turns": args.turns, "max_new_tokens": args.max_new_tokens, "max_seq_len": 512},
        "evaluation": {"num_tasks": args.tasks, "conditions": ["hints", "contentless"]},
    }


def run(args: argparse.Namespace, folder: Path, adapters: dict[str, str]) -> Path:
    """One command; its run's folder."""
    config, out = folder.with_suffix(".json"), folder
    config.write_text(json.dumps(evaluation(args, adapters)))
    command = [sys.executable, "-m", "app.cli", "train", str(config), "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **QUIET}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"The evaluation ended ({done.returncode}):\n{done.stderr[-4000:]}")
    return out


def measure(
    args: argparse.Namespace, folder: Path, jobs: Sequence[dict[str, str]]
) -> tuple[dict[str, Any], list[Path]]:
    """Seconds by the clock and of processors for some commands, one after another."""
    start, spent = time.perf_counter(), processor_seconds()
    runs = [run(args, folder / str(i), adapters) for i, adapters in enumerate(jobs)]
    return {"seconds": time.perf_counter() - start, "cpu_seconds": processor_seconds() - spent}, runs


def counted(runs: Sequence[Path]) -> tuple[int, int, int]:
    """Dialogues, the tokens that had to be read, and those that students said.

    A checkpoint's first attempts are the same under both controls, and count once.
    """
    from transformers import AutoTokenizer

    from rl2f_core.dialogue.rollout.build import build_environment
    from rl2f_core.dialogue.rollout.dialogue_builder import DialogueBuilder
    from rl2f_core.dialogue.rollout.prompting import PromptBuilder, load_reprompt_template
    from rl2f_core.dialogue.rollout.request import RolloutRequest
    from rl2f_core.environments.base import Environment
    from rl2f_core.models.renderer import ChatRenderer
    from rl2f_core.models.store.store import get_model
    from rl2f_core.models.tokenizer import HFChatTokenizer
    from rl2f_core.run.directory import RunDir
    from rl2f_core.types import Dialogue

    count = read = said = 0
    for run_dir in map(RunDir, runs):
        config = run_dir.config()
        environment: Environment = build_environment(config.environment)
        tokenizer = HFChatTokenizer(AutoTokenizer.from_pretrained(get_model(config.model.name).path))
        history = PromptBuilder(
            environment, ChatRenderer(tokenizer, environment.system_prompt()), load_reprompt_template(config.rollout)
        )
        tasks = {t.id: t for t in (environment.task("test", i) for i in range(config.evaluation.num_tasks))}
        firsts = set[tuple[str, str]]()
        for file in sorted((run_dir.evaluation / "dialogues").rglob("*.jsonl")):
            for line in file.read_text().splitlines():
                dialogue = Dialogue.model_validate_json(line)
                live = DialogueBuilder(RolloutRequest(tasks[dialogue.task_id], dialogue.id, "", 0, 0), history)
                for turn in dialogue.turns:
                    live.add_attempt(turn, turn.token_ids, turn.logprobs)
                    if turn.hint is not None:
                        live.add_hint_tokens()
                first = (file.parent.name, dialogue.id)
                again = len(dialogue.turns[0].token_ids) if first in firsts and dialogue.turns else 0
                opening = len(history.initial_prompt(tasks[dialogue.task_id])) if again else 0
                firsts.add(first)
                count += 1
                read += len(live.tokens) - opening - again
                said += sum(len(turn.token_ids) for turn in dialogue.turns) - again
    return count, read, said


def main(argv: Sequence[str] | None = None) -> None:
    """Run both sides and print what was found."""
    options = parser("tests.benchmarks.adapters", __doc__)
    options.add_argument("--adapters", type=int, default=4)
    options.add_argument("--rank", type=int, default=16)
    options.add_argument("--tasks", type=int, default=16, help="test tasks, for each adapter and each of two controls")
    options.add_argument("--turns", type=int, default=4)
    options.add_argument("--max-new-tokens", type=int, default=14)
    args = options.parse_args(argv)
    from rl2f_core.models.device import matmul_ceiling, resolve_device
    from rl2f_core.models.store.store import get_model

    model = get_model(args.model, on_message=print).path
    device, dtype = resolve_device(args.device, args.dtype)
    load = os.getloadavg()[0]
    warning = busy(load, os.cpu_count() or 1)
    if warning:
        print(warning, flush=True)
    sides: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    work: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        adapters = write_adapters(model, root, args.adapters, args.rank)
        jobs = {"batched": [adapters], "apart": [{name: path} for name, path in adapters.items()]}
        sizes = _sizes(model)
        for repeat in range(1, args.repeats + 1):
            for side, found in sides.items():
                folder = root / f"{side}-{repeat}"
                folder.mkdir()
                answer, runs = measure(args, folder, jobs[side])
                found.append(answer)
                if side not in work:
                    count, read, said = counted(runs)
                    work[side] = rollout_work(*sizes, read, said)
                    print(f"{side}: {count} dialogues, {said} sampled tokens, {answer['seconds']:.0f} s", flush=True)
    gflops = matmul_ceiling(str(dtype).removeprefix("torch."), device.type)
    rates = {side: [1 / answer["seconds"] for answer in found] for side, found in sides.items()}
    by_cpu = {side: [1 / answer["cpu_seconds"] for answer in found] for side, found in sides.items()}
    result = {
        "ratio": ratio(rates["batched"], rates["apart"]),
        "cpu_ratio": ratio(by_cpu["batched"], by_cpu["apart"]),
    }
    lines = [["side", "seconds", "of ceiling"]]
    for side, found in sides.items():
        seconds = spread([answer["seconds"] for answer in found])
        lines.append([side, seconds.text(), of_ceiling([work[side] / seconds.median], gflops)])
    print(table(lines))
    verdict = "reached" if result["ratio"].median >= WANTED else "NOT reached"
    print(f"adapters: {args.adapters} in one process are {result['ratio'].text(2)} times as fast as one each, "
          f"{result['cpu_ratio'].text(2)} by CPU time; at least {WANTED} wanted, {verdict}")  # fmt: skip
    if warning:
        print(warning)
    if args.out:
        kept = {name: value._asdict() for name, value in result.items()}
        settings = {name: value for name, value in vars(args).items() if name != "out"}
        found_all = {"settings": settings, "load": load, "ceiling_gflops": gflops, "work": work, "answers": sides}
        args.out.write_text(json.dumps({**found_all, **kept}, indent=1))


def _sizes(model: Path) -> tuple[int, int]:
    """Weights of body and output layer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from .rollout import parameters

    with torch.device("meta"):
        base = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    base.tie_weights()
    found = parameters(base)
    return found["body"], found["head"]


if __name__ == "__main__":
    main()
