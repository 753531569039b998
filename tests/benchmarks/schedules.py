"""`python -m tests.benchmarks.schedules`: continuous against lock-step, and the cost of a dialogue by their number.

Turns end at random, at any token with the same probability, so that dialogues are of uneven length; chance comes from
each dialogue's own seed, so that both schedules sample the same tokens.  The sides take turns (A B A B) in one process.

A rollout's last steps are for fewer rows than there could be, and cost nearly as much: the more dialogues are under
way, the larger a part of a small rollout that is.  The second part is therefore measured with few under way, which is
where it would show if dialogues cost more for being many, and then with as many as in the first.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rl2f_core.config.rollout import RolloutConfig
from rl2f_core.dialogue.rollout.engine import RolloutEngine
from rl2f_core.models.backends.hf.backend import HFBackend

from .report import busy, of_ceiling, parser, ratio, rollout_work, spread, table
from .rollout import build, hf_backend, parameters, requests_of
from .worker import Settings, Stopwatch

if TYPE_CHECKING:
    from rl2f_core.models.backends.hf.decoder import RunningSequence

SCHEDULES = ("continuous", "static")
FLAT = 0.1
"""By how much, at most, a dialogue's cost may change from the smallest to the largest rollout, few under way."""


@contextmanager
def ending(end: int, mean: float) -> Iterator[None]:
    """In the block every token ends its turn with probability 1/mean."""
    from rl2f_core.models.modeling import logprobs

    plain = logprobs.compute_logits

    def compute_logits(model: Any, hidden_NH: Any, output: Any = None) -> Any:
        logits_NV = plain(model, hidden_NH, output)
        logits_NV[:, end] = -1e30
        logits_NV[:, end] = logits_NV.logsumexp(1) - math.log(mean - 1)
        return logits_NV

    logprobs.compute_logits = compute_logits
    try:
        yield
    finally:
        logprobs.compute_logits = plain


class Counter:
    """The rows of every step of a backend's model."""

    def __init__(self, backend: HFBackend) -> None:
        self.rows: list[int] = []
        plain = backend._decoder.step

        def step(*args: Any) -> list[RunningSequence]:
            drew = plain(*args)
            self.rows.append(len(drew))
            return drew

        vars(backend._decoder)["step"] = step

    def read(self) -> tuple[int, float]:
        """Steps since it was last read, and the mean number of rows that got a token."""
        rows, self.rows = self.rows, []
        return len(rows), sum(rows) / max(1, len(rows))


def play(
    engine: RolloutEngine, settings: Settings, schedule: str, repeat: int, batch: int
) -> tuple[dict[str, Any], list[Any]]:
    """One rollout: times, student tokens, operations, and what was said."""
    changed = {"batching": schedule, "max_concurrent": batch}
    config = RolloutConfig.model_validate({**engine.config.model_dump(), **changed})  # model_copy takes unknown keys
    backend = hf_backend(engine)
    decoder, sizes = backend._decoder, parameters(backend.model)
    before, watch = decoder.num_forward_tokens, Stopwatch(backend.device)
    rollouts = replace(engine, config=config).run(requests_of(settings, engine, repeat), max_turns=settings.turns)
    timed = watch.read()
    student = sum(rollout.student_tokens for rollout in rollouts)
    work = rollout_work(sizes["body"], sizes["head"], decoder.num_forward_tokens - before, student)
    return {**timed, "student": student, "work": work}, [r.sequences[-1].token_ids for r in rollouts]


def against_lockstep(
    engine: RolloutEngine, settings: Settings, counter: Counter, repeats: int, batch: int
) -> dict[str, Any]:
    """Both schedules in turns, on the same dialogues."""
    sides: dict[str, list[dict[str, Any]]] = {schedule: [] for schedule in SCHEDULES}
    same = []
    for repeat in range(1, repeats + 1):
        said = []
        for schedule, found in sides.items():
            answer, tokens = play(engine, settings, schedule, repeat, batch)
            answer["steps"], answer["rows"] = counter.read()
            found.append(answer)
            said.append(tokens)
        same.append(sum(a == b for a, b in zip(*said, strict=True)) / len(said[0]))
    rates = {s: [a["student"] / a["seconds"] for a in found] for s, found in sides.items()}
    by_cpu = {s: [a["student"] / a["cpu_seconds"] for a in found] for s, found in sides.items()}
    ours, theirs = SCHEDULES
    return {
        "answers": sides, "ratio": ratio(rates[ours], rates[theirs]),
        "cpu_ratio": ratio(by_cpu[ours], by_cpu[theirs]), "same": spread(same), "by_cpu": by_cpu,
    }  # fmt: skip


def by_number(
    engine: RolloutEngine, settings: Settings, counts: Sequence[int], repeats: int, batch: int
) -> dict[int, list[Any]]:
    """Seconds and operations a dialogue, for rollouts of different size, taken in turns."""
    found: dict[int, list[Any]] = {count: [] for count in counts}
    for repeat in range(1, repeats + 1):
        for count in counts:
            answer, _ = play(engine, replace(settings, dialogues=count), "continuous", repeat, batch)
            found[count].append({name: answer[name] / count for name in ("cpu_seconds", "seconds", "work")})
    return found


def reached(answers: Sequence[dict[str, Any]]) -> list[float]:
    """Operations a second of each answer."""
    return [answer["work"] / answer["seconds"] for answer in answers]


def main(argv: Sequence[str] | None = None) -> None:
    """Run both and print what was found."""
    options = parser("tests.benchmarks.schedules", __doc__)
    options.add_argument("--dialogues", type=int, default=64)
    options.add_argument("--batch", type=int, default=32, help="dialogues under way")
    options.add_argument("--few", type=int, default=8, help="dialogues under way in the second part, and then --batch")
    options.add_argument("--turns", type=int, default=3)
    options.add_argument("--max-new-tokens", type=int, default=64)
    options.add_argument("--mean", type=float, default=16.0, help="mean length of a turn, but for the limit")
    options.add_argument("--counts", type=int, nargs="*", default=[64, 256, 1024], help="dialogues of the second part")
    args = options.parse_args(argv)
    from rl2f_core.models.device import matmul_ceiling
    from rl2f_core.models.store.store import get_model

    folder = str(get_model(args.model, on_message=print).path.resolve())
    settings = Settings(folder, device=args.device, dtype=args.dtype, dialogues=args.dialogues or 1,
                        turns=args.turns, max_new_tokens=args.max_new_tokens)  # fmt: skip
    engine = build(settings)
    backend = hf_backend(engine)
    counter = Counter(backend)
    gflops = matmul_ceiling(str(backend.dtype).removeprefix("torch."), backend.device.type)
    load = os.getloadavg()[0]
    print(busy(load, os.cpu_count() or 1), flush=True)
    with ending(engine.backend.tokenizer.eos_token_id, args.mean):
        play(engine, replace(settings, dialogues=8, turns=1), "static", 0, 8)
        counter.read()
        found: dict[str, Any] = {"load": load, "settings": {k: v for k, v in vars(args).items() if k != "out"}}
        found["ceiling_gflops"] = gflops
        if args.dialogues:
            result = found["schedules"] = against_lockstep(engine, settings, counter, args.repeats, args.batch)
            lines = [["schedule", "student tokens/s of CPU", "steps", "rows a step", "of ceiling"]]
            for schedule, answers in result["answers"].items():
                rows = spread([a["rows"] for a in answers]).text()
                steps = str(answers[-1]["steps"])
                rate = spread(result["by_cpu"][schedule]).text()
                lines.append([schedule, rate, steps, rows, of_ceiling(reached(answers), gflops)])
            print(table(lines))
            print(f"Matrix products reach {gflops:.0f} GFLOP/s here.")
            print(f"continuous is {result['ratio'].text(2)} times as fast as lock-step, {result['cpu_ratio'].text(2)} "
                  f"by CPU time; the same tokens in {100 * result['same'].median:.1f} % of the dialogues",
                  flush=True)  # fmt: skip
        for batch in dict.fromkeys([args.few, args.batch]) if args.counts else []:
            costs = by_number(engine, settings, args.counts, args.repeats, batch)
            found.setdefault("by_number", {})[batch] = costs
            first = spread([1000 * a["cpu_seconds"] for a in costs[args.counts[0]]]).median
            lines = [[f"dialogues, {batch} under way", "ms of CPU a dialogue", "of the first", "of ceiling"]]
            furthest = 0.0
            for count, answers in costs.items():
                cost = spread([1000 * a["cpu_seconds"] for a in answers])
                lines.append([str(count), cost.text(2), f"{cost.median / first:.3f}",
                              of_ceiling(reached(answers), gflops)])  # fmt: skip
                furthest = max(furthest, abs(cost.median / first - 1))
            print(table(lines), flush=True)
            if batch == args.few:
                print(f"{batch} under way: the cost of a dialogue changes by {100 * furthest:.0f} %; at most "
                      f"{100 * FLAT:.0f} % wanted, {'reached' if furthest <= FLAT else 'NOT reached'}",
                      flush=True)  # fmt: skip
    if args.out:
        args.out.write_text(json.dumps(found, indent=1, default=str))


if __name__ == "__main__":
    main()
