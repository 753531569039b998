"""`python -m tests.benchmarks.prepacked`: generation on a CPU with and without prepacked weights.

Both sides generate the same tokens for some random prompts in one process, in turns (A B A B).
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from typing import Any

import torch

from rl2f_core.config.model import ModelConfig
from rl2f_core.models.backends.base import GenerationRequest, SamplingParams
from rl2f_core.models.backends.hf.backend import HFBackend
from rl2f_core.models.backends.hf.cpu_prepack import Prepacked, prepack_model

from .report import busy, parser, ratio, spread, table
from .worker import Stopwatch

SIDES = ("prepacked", "plain")


def main(argv: Sequence[str] | None = None) -> None:
    """Run both sides and print what was found."""
    options = parser("tests.benchmarks.prepacked", __doc__, repeats=5)
    options.add_argument("--prompts", type=int, default=16, help="concurrent sequences")
    options.add_argument("--prompt-tokens", type=int, default=16)
    options.add_argument("--max-new-tokens", type=int, default=24)
    args = options.parse_args(argv)
    load = os.getloadavg()[0]
    print(busy(load, os.cpu_count() or 1), flush=True)
    model = ModelConfig(name=args.model, device="cpu", dtype=args.dtype)
    backend = HFBackend(HFBackend.Config(cuda_graphs="off"), model)

    def generate(side: str, repeat: int) -> tuple[dict[str, float], list[Any]]:
        made: Prepacked | None = None
        if side == "prepacked":
            made = prepack_model(backend.model, backend.device, backend.dtype)
        backend._prepacked = made
        rng, words = random.Random(repeat), backend.model.config.vocab_size
        for count in (4, args.prompts):  # the first call packs the weights
            prompts = [GenerationRequest(tuple(rng.randrange(words) for _ in range(args.prompt_tokens)), i)
                       for i in range(count)]  # fmt: skip
            backend.reset_prefix_cache()
            watch = Stopwatch(backend.device)
            generations = backend.generate(prompts, SamplingParams(args.max_new_tokens))
        answer = watch.read()
        if made is not None:
            made.restore()
        return answer, [generation.token_ids for generation in generations]

    sides: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    equal = True
    for repeat in range(args.repeats):
        found = {side: generate(side, repeat) for side in SIDES}
        equal = equal and found["prepacked"][1] == found["plain"][1]
        for side in SIDES:
            sides[side].append(found[side][0])
    times = {side: [answer["cpu_seconds"] for answer in answers] for side, answers in sides.items()}
    faster = ratio([1 / s for s in times["prepacked"]], [1 / s for s in times["plain"]])
    print(table([["side", "CPU-seconds"], *([side, spread(found).text(2)] for side, found in times.items())]))
    print(
        f"prepacked: {faster.text(2)} times as fast in {backend.dtype}; tokens are {'equal' if equal else 'DIFFERENT'}"
    )
    if args.out:
        settings = {name: value for name, value in vars(args).items() if name != "out"}
        info = {"dtype": str(backend.dtype).removeprefix("torch."), "cpu": torch.backends.cpu.get_cpu_capability()}
        found_all = {"settings": settings, "info": info, "load": load, "answers": sides, "equal": equal}
        args.out.write_text(json.dumps({**found_all, "ratio": faster._asdict()}, indent=1))


if __name__ == "__main__":
    main()
