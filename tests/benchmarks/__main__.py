"""`python -m tests.benchmarks`: run the benchmarks, print a table, write JSON where asked."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .learner import opening_length, read_rows
from .report import (
    Spread,
    busy,
    fastest,
    headline,
    megabytes,
    memory_line,
    of_ceiling,
    parser,
    ratio,
    relative,
    rollout_work,
    spread,
    table,
    update_work,
)
from .rollout import PLAIN
from .worker import Settings, Worker, started

WANTED = {"rollout": 2.5, "update": 1.5, "tool loop": 1.2, "step": 1.6}
"""Least ratios, from the project's requirements."""
RECOMPUTE = "recompute"
BENCHMARKS = ("rollout", "update", "step")


def say(text: str) -> None:
    """Progress, as it comes."""
    print(text, flush=True)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    options = parser("tests.benchmarks", __doc__)
    options.add_argument("--adapter", default="", help="LoRA folder whose weights play the dialogues")
    options.add_argument("--dialogues", type=int, default=64, help="dialogues at once, in groups of 8")
    options.add_argument("--turns", type=int, default=4)
    options.add_argument("--max-new-tokens", type=int, default=14, help="limit of a student turn")
    options.add_argument("--rows", type=int, default=16, help="rows of an update, at most the dialogues")
    options.add_argument("--micro-rows", type=int, default=4, help="rows of a micro-batch; must divide --rows")
    options.add_argument("--only", nargs="+", choices=BENCHMARKS, default=BENCHMARKS, help="all by default")
    options.add_argument("--rank", type=int, default=16, help="LoRA rank")
    options.add_argument(
        "--baselines",
        nargs="+",
        choices=(*PLAIN, RECOMPUTE),
        default=[*PLAIN, RECOMPUTE],
        help="attention implementations of the plain sides, and TRL with its default of recomputed activations",
    )
    args = options.parse_args(argv)
    if not 2 <= args.rows <= args.dialogues or args.rows % args.micro_rows or args.rows % 2:
        options.error("--rows is even, at most --dialogues, and a multiple of --micro-rows")
    if args.repeats < 1:
        options.error("--repeats is at least 1")
    if not set(args.baselines) & set(PLAIN):
        options.error(f"--baselines names at least one of {', '.join(PLAIN)}")
    return args


def settings_of(args: argparse.Namespace) -> Settings:
    """Sizes from the command line, with the model's folder found (and fetched where it is missing)."""
    from rl2f_core.models.store.store import get_model

    names = ("device", "dtype", "dialogues", "turns", "max_new_tokens", "rows", "micro_rows", "rank")
    sizes = {name: getattr(args, name) for name in names}
    folder = get_model(args.model, on_message=say).path.resolve()
    adapter = str(Path(args.adapter).resolve()) if args.adapter else ""
    return Settings(folder=str(folder), adapter=adapter, steps=args.repeats + 1, **sizes)


class Partial:
    """Answers so far, written to `--out` after each of them: a run that is interrupted keeps them."""

    def __init__(self, out: Path | None) -> None:
        self.out = out
        self.found: dict[str, Any] = {}

    def add(self, name: str, sides: dict[str, list[dict[str, Any]]]) -> None:
        """Store the answers of a benchmark."""
        self.found[name] = sides
        if self.out:
            self.out.write_text(json.dumps({"partial": self.found}, indent=1))


def alternate(
    ask: Callable[[str, int], dict[str, Any]],
    ours: str,
    plain: Sequence[str],
    repeats: int,
    keep: Callable[[dict[str, list[dict[str, Any]]]], None],
) -> tuple[dict[str, list[dict[str, Any]]], str]:
    """Answers of all sides in turns, and the baseline that was the fastest in the first repeat.

    The other baselines are left out after it, so that a run takes minutes. `keep` receives all answers after each.
    """
    sides: dict[str, list[dict[str, Any]]] = {side: [] for side in (ours, *plain)}
    against = ""
    for repeat in range(1, repeats + 1):
        for side, found in sides.items():
            if side in (ours, against) or not against:
                found.append(ask(side, repeat))
                keep(sides)
        against = against or fastest({side: rate(sides[side][0]) for side in plain})
    return sides, against


def bench_rollout(worker: Worker, repeats: int, plain: Sequence[str], partial: Partial) -> dict[str, Any]:
    """Engine and plain loop in turns, after a short turn of each to warm up."""
    for side in ("engine", *plain):
        worker.ask(side=side, repeat=0)
    keep = functools.partial(partial.add, "rollout")
    sides, against = alternate(
        lambda side, repeat: worker.ask(side=side, repeat=repeat), "engine", plain, repeats, keep
    )
    result = result_of("rollout", "engine", against, sides, worker.info["device"])
    body, head = worker.info["body"], worker.info["head"]
    result["work"] = {
        side: [rollout_work(body, head, answer["read"], answer["student"]) for answer in found]
        for side, found in sides.items()
    }
    return result


def bench_update(
    settings: Settings, info: dict[str, Any], repeats: int, baselines: Sequence[str], partial: Partial
) -> dict[str, Any]:
    """Learner and TRL in turns.

    TRL by default recomputes activations in the backward pass, which is slower and smaller. So the headline is taken
    with that off, and the default is measured once, with the faster attention.
    """
    samples = read_rows(settings.rows_file)
    student, tokens = sum(len(s.weighted_positions) for s in samples), sum(len(s.token_ids) for s in samples)
    plain = [name for name in PLAIN if name in baselines]
    variants = {f"TRL {name}": dataclasses.replace(settings, attention=name) for name in plain}
    with started(("learner", settings), *(("trl_grpo", s) for s in variants.values())) as (ours, *others):
        workers = {"learner": ours, **dict(zip(variants, others, strict=True))}
        if info["device"] != "cpu":  # there the first step builds kernels
            for worker in workers.values():
                worker.ask()
        sides, against = alternate(
            lambda side, repeat: {**workers[side].ask(), "student": student}, "learner", list(variants), repeats,
            functools.partial(partial.add, "update"),
        )  # fmt: skip
        lora, counts = ours.info["lora"], [ours.info["micro_batches"], workers[against].info["micro_batches"]]
    if RECOMPUTE in baselines:
        with started(("trl_grpo", dataclasses.replace(variants[against], recompute=True))) as (worker,):
            sides[f"{against}, recomputing"] = [{**worker.ask(), "student": student}]
    result = result_of("update", "learner", against, sides, info["device"])
    pairs = list(zip(sides["learner"], sides[against], strict=True))
    result["difference"] = {key: max(relative(a[key], b[key]) for a, b in pairs) for key in ("loss", "grad_norm")}
    result |= {"micro_batches": counts, "rows": len(samples), "tokens": tokens, "lora": lora}
    openings = [tuple(s.token_ids[: opening_length(s)]) for s in samples]
    read = tokens - sum(map(len, openings)) + sum(map(len, set(openings)))
    work = update_work(info["body"], info["head"], lora, read, student)
    result["work"] = {side: [work] * len(found) for side, found in sides.items()}
    return result


def bench_step(
    settings: Settings, info: dict[str, Any], repeats: int, attention: str, partial: Partial
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Whole steps of ours and of TRL's in turns: the rollout in them beside TRL's tool loop, and all of them."""
    name = f"TRL {attention}"
    with started(("step", settings), ("trl_step", dataclasses.replace(settings, attention=attention))) as (ours, trl):
        workers = {"ours": ours, name: trl}
        if info["device"] != "cpu":  # there the first step builds kernels
            for worker in workers.values():
                worker.ask()
        keep = functools.partial(partial.add, "step")
        sides, _ = alternate(lambda side, repeat: workers[side].ask(), "ours", [name], repeats, keep)
        lora = ours.info["lora"]
    body, head = info["body"], info["head"]
    played = {side: [{**answer, **answer["rollout"]} for answer in found] for side, found in sides.items()}
    loop = result_of("tool loop", "ours", name, played, info["device"])
    step = result_of("step", "ours", name, sides, info["device"])
    step["trained"] = [answer["trained"] for answer in sides["ours"]]
    for side, found in sides.items():
        work = [rollout_work(body, head, answer["read"], answer["student"]) for answer in found]
        update = [update_work(body, head, lora, answer["read"], answer["student"]) for answer in found]
        loop.setdefault("work", {})[side] = work
        step.setdefault("work", {})[side] = [a + b for a, b in zip(work, update, strict=True)]
    return loop, step


def rate(answer: dict[str, Any]) -> float:
    """Student tokens per second."""
    return answer["student"] / answer["seconds"]


def result_of(
    name: str, ours: str, against: str, sides: dict[str, list[dict[str, Any]]], device: str
) -> dict[str, Any]:
    """Rates of all sides, the headline ratio (on a CPU also by CPU time), and the raw answers."""
    rates = {side: [rate(answer) for answer in found] for side, found in sides.items()}
    by_cpu = {side: [a["student"] / max(a["cpu_seconds"], 1e-9) for a in sides[side]] for side in (ours, against)}
    return {
        **({"cpu_ratio": ratio(by_cpu[ours], by_cpu[against])} if device == "cpu" else {}),
        "name": name,
        "ours": ours,
        "against": against,
        "wanted": WANTED[name],
        "rates": rates,
        "ratio": ratio(rates[ours], rates[against]),
        "rise": {side: max(answer["rise"] for answer in found) for side, found in sides.items()},
        "answers": sides,
    }


def lines_of(result: dict[str, Any], gflops: float) -> list[list[str]]:
    """The table's lines for one benchmark: student tokens a second, share of the ceiling, memory."""
    lines = []
    for side, rates in result["rates"].items():
        pairs = zip(result["work"][side], result["answers"][side], strict=True)
        share = of_ceiling([work / answer["seconds"] for work, answer in pairs], gflops)
        memory = megabytes(result["rise"][side]) if result["name"] in ("update", "step") else ""
        lines.append([f"{result['name']}: {side}", str(len(rates)), spread(rates).text(), share, memory])
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    """Run everything."""
    args = arguments(argv)
    start = time.perf_counter()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    warning = busy(load, os.cpu_count() or 1)
    if warning:
        say(warning)
    with tempfile.TemporaryDirectory() as folder:
        settings = dataclasses.replace(settings_of(args), rows_file=str(Path(folder) / "rows.json"))
        info, ceilings, results = measure(args, settings)
    found = {result["name"]: result for result in results}
    gflops = max(ceilings)
    titles = ["side", "runs", "student tokens/s", "of ceiling", "memory"]
    say("\n" + table([titles, *(line for result in results for line in lines_of(result, gflops))]))
    say(
        f"\nMedians (smallest–largest). Matrix products reach {gflops:.0f} GFLOP/s here. Memory is the peak above the "
        "loaded model."
    )
    lines = [*map(headline, results), warning]
    if update := found.get("update"):
        counts, difference = update["micro_batches"], update["difference"]
        say(
            f"Update: {update['rows']} rows, {update['tokens']} tokens, in {counts[0]} micro-batches, TRL in "
            f"{counts[1]}.\nLargest relative difference to TRL over all steps: loss {difference['loss']:.1e}, gradient "
            f"norm {difference['grad_norm']:.1e}."
        )
        lines.insert(-1, memory_line(update))
    say("\n" + "\n".join(filter(None, lines)))
    say(f"{time.perf_counter() - start:.0f} s in all")
    if args.out:
        sizes = {**dataclasses.asdict(settings), "folder": args.model}
        del sizes["rows_file"]  # a path of this machine, as is the model's
        shared = {"settings": sizes, "info": info, "ceiling_gflops": ceilings, "load": load}
        args.out.write_text(json.dumps(shared | {name: named(result) for name, result in found.items()}, indent=1))


def measure(args: argparse.Namespace, settings: Settings) -> tuple[dict[str, Any], list[float], list[dict[str, Any]]]:
    """Run the benchmarks of `--only`; return the sampler's first message, measured ceilings in GFLOP/s, and results."""
    partial, results = Partial(args.out), []
    plain = [name for name in PLAIN if name in args.baselines]
    with started(("rollout", settings)) as (worker,):
        info = worker.info
        say(
            f"{args.model} in {info['dtype']} on {info['device']}: {settings.dialogues} dialogues × "
            f"{settings.turns} turns of at most {settings.max_new_tokens} tokens, then {settings.rows} rows; "
            f"{args.repeats} repeats"
        )
        ceilings = [worker.ask(ceiling=True)["gflops"]]
        if "rollout" in args.only:
            results.append(bench_rollout(worker, args.repeats, plain, partial))
            say(headline(results[-1]))
        else:
            worker.ask(side="engine", repeat=1)
        worker.ask(save=settings.rows_file)
        ceilings.append(worker.ask(ceiling=True)["gflops"])
    attention = plain[0]
    if "update" in args.only:
        results.append(bench_update(settings, info, args.repeats, args.baselines, partial))
        attention = results[-1]["against"].removeprefix("TRL ")
        say(headline(results[-1]))
    if "step" in args.only:
        for result in bench_step(settings, info, args.repeats, attention, partial):
            results.append(result)
            say(headline(result))
    return info, ceilings, results


def named(result: dict[str, Any]) -> dict[str, Any]:
    """The result with the ratio's numbers by name, for JSON."""
    return {key: value._asdict() if isinstance(value, Spread) else value for key, value in result.items()}


if __name__ == "__main__":
    main()
