"""Several processes on one run: who reads which rows, how they agree, and that their parts add up to the whole."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rl2f_core.config.model import LoraConfig
from rl2f_core.config.stage import StageConfig
from rl2f_core.errors import ConfigError, RunError
from rl2f_core.learning.learner.learner import Learner
from rl2f_core.learning.learner.losses import LossConfig
from rl2f_core.learning.learner.micro_batch import (
    effective_length,
    local_micro_batches,
    loss_normalizers,
    micro_batch,
    shard_samples,
)
from rl2f_core.models.process_group import ProcessGroup, is_remote_error, shard_bounds
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import JsonlSink, LogEvent, read_events
from rl2f_core.run.execute import execute
from rl2f_core.run.journal import Journal
from rl2f_core.types import TrainingSample

ROOT = Path(__file__).resolve().parents[4]


def row(opening: int, said: int, *, ce: bool = False, advantage: float = 1.0) -> TrainingSample:
    """`opening` tokens that depend on their number alone, then `said` weighted ones."""
    ids = [*range(40, 40 + opening), *(60 + opening + 7 * i for i in range(said))]
    weight = [0.0] * opening + [1.0] * said
    zeros = [0.0] * len(ids)
    advantages, logprobs = [advantage * w for w in weight], [-5.9 * w for w in weight]
    rl, told = (zeros, weight) if ce else (weight, zeros)
    return TrainingSample(ids, [bool(w) for w in rl], logprobs, advantages, rl, told, zeros)


# -- rows --------------------------------------------------------------------------------------------------------
def test_rows_are_cut_where_half_of_the_tokens_are_read():
    # in order of reading 6 + 5 and 4 + 3 + 2 tokens: the middles are at 3, 8.5, 13, 16.5, 19 of 20
    rows = [row(2, 2), row(3, 3), row(2, 1), row(3, 2), row(1, 1)]
    assert [[effective_length(r) for r in part] for part in shard_samples(rows, 2)] == [[6, 5], [4, 3, 2]]
    assert shard_samples(rows, 1) == [[rows[1], rows[3], rows[0], rows[2], rows[4]]]
    assert local_micro_batches(rows, 12, 0, 1) == ([[rows[1], rows[3]], [rows[0], rows[2], rows[4]]], [])


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_every_row_with_weight_is_in_one_share_and_none_has_more_than_its_part_and_a_row(count: int):
    rows = [row(1 + i % 5, 1 + i * i % 7) for i in range(23)]
    nothing = TrainingSample([1, 2], [False] * 2, *[[0.0, 0.0]] * 5)
    parts = shard_samples([*rows, nothing], count)
    assert sorted(id(r) for part in parts for r in part) == sorted(id(r) for r in rows)
    longest, total = max(map(effective_length, rows)), sum(map(effective_length, rows))
    assert all(sum(map(effective_length, part)) <= total / count + longest for part in parts)


def test_processes_make_equally_many_passes_and_one_without_rows_reads_the_shortest():
    rows = [row(2, 8), row(1, 1)]
    plans = [local_micro_batches(rows, 10, rank, 3) for rank in range(3)]
    assert [len(own) + len(idle) for own, idle in plans] == [1, 1, 1]
    assert [[r for part in own for r in part] for own, _ in plans].count([]) == 1
    assert [idle for _, idle in plans if idle] == [[[rows[1]]]]
    assert local_micro_batches([], 10, 1, 2) == ([], [])


@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_the_parts_of_all_processes_add_up_to_the_gradient_of_one(tiny: Path, count: int):
    """Each divides by the tokens of all rows; gradients are averaged, so each part is multiplied by their number."""
    rows = [row(3, 4, advantage=-0.5), row(3, 2), row(2, 5, ce=True), row(1, 1, ce=True), row(4, 1, advantage=2.0)]
    options = LossConfig(ce_coef=0.3)
    now = StageConfig(name="s", method="rl2f", steps=1).resolve(0, 1.0)

    def made(rank: int, ranks: int) -> tuple[dict[str, torch.Tensor], float]:
        lora = LoraConfig(rank=4, alpha=8)
        learner = Learner(tiny, lora, dtype=torch.float32, device=torch.device("cpu"), banned=[0], pad=2, seed=0)
        own, idle = local_micro_batches(rows, 8, rank, ranks)
        loss = 0.0
        for number, part in enumerate([*own, *idle]):
            scale = float(ranks) if number < len(own) else 0.0
            batch = micro_batch(part, 2, learner.device)
            found = learner.forward_backward(batch, loss_normalizers(rows), options, now, scale)
            loss += found["loss"] if scale else 0.0
        return {name: p.grad for name, p in learner.parameters.items() if p.grad is not None}, loss

    whole, loss = made(0, 1)
    parts = [made(rank, count) for rank in range(count)]
    assert sum(found for _, found in parts) == pytest.approx(loss, rel=1e-5)
    for name, gradient in whole.items():
        mean = sum(grads[name] for grads, _ in parts) / count
        torch.testing.assert_close(mean, gradient, rtol=1e-4, atol=1e-7)
    assert any(float(gradient.abs().max()) > 1e-4 for gradient in whole.values())


# -- agreement ---------------------------------------------------------------------------------------------------
def together(count: int, work: Callable[[ProcessGroup], Any]) -> list[Any]:
    """What `work` gives in each of several processes, played by threads; an error stands in its place."""
    meet, held = threading.Barrier(count), [b""] * count

    def at(rank: int) -> Any:
        def exchange(value: Any) -> list[Any]:
            held[rank] = pickle.dumps(value)
            meet.wait(20)
            found = [pickle.loads(told) for told in held]
            meet.wait(20)
            return found

        try:
            return work(ProcessGroup(rank, count, exchange))
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(at, range(count)))


def test_items_are_shared_out_in_runs_of_neighbours():
    assert [shard_bounds(7, rank, 3) for rank in range(3)] == [(0, 2), (2, 4), (4, 7)]
    assert [shard_bounds(1, rank, 2) for rank in range(2)] == [(0, 0), (0, 1)]


def test_each_does_its_share_and_all_get_all_of_it_in_order():
    seen: dict[int, list[int]] = {}

    def work(ranks: ProcessGroup) -> list[int]:
        def square(own: Any) -> list[int]:
            seen[ranks.rank] = list(own)
            return [n * n for n in own]

        return ranks.map_sharded([1, 2, 3, 4, 5], square)

    assert together(2, work) == [[1, 4, 9, 16, 25]] * 2
    assert seen == {0: [1, 2], 1: [3, 4, 5]}
    assert together(3, lambda ranks: ranks.map_sharded([7], lambda own: list(own))) == [[7]] * 3
    assert together(2, lambda ranks: ranks.map_sharded([], lambda own: list(own))) == [[], []]


def test_an_error_of_one_is_raised_by_all_and_the_others_know_whose_it_is():
    def work(ranks: ProcessGroup) -> Any:
        return ranks.map_sharded([1, 0], lambda own: [1 // n for n in own])

    first, second = together(2, work)
    assert isinstance(first, ZeroDivisionError) and isinstance(second, ZeroDivisionError)
    assert is_remote_error(first) and not is_remote_error(second)

    class Odd(Exception):
        pass

    def fails() -> None:
        raise Odd("what it was")

    main, other = together(2, lambda ranks: ranks.broadcast_from_main(fails))
    assert isinstance(main, Odd) and isinstance(other, RunError) and "Odd: what it was" in str(other)


def test_numbers_are_summed_flags_are_any_and_the_main_one_decides():
    assert (
        together(2, lambda r: r.all_reduce_sum({"a": r.rank + 1.0} | ({"b": 5.0} if r.is_main_process else {})))
        == [{"a": 3.0, "b": 5.0}] * 2
    )
    assert together(3, lambda r: r.any_rank(lambda: r.rank == 2)()) == [True] * 3
    assert together(2, lambda r: r.any_rank(lambda: False)()) == [False] * 2
    assert together(2, lambda r: r.broadcast_from_main(lambda: r.rank + 10)) == [10, 10]
    assert together(2, lambda r: r.run_on_main(lambda: "file")) == ["file", None]


def test_only_the_main_process_writes_and_all_hold_the_same_commit(tmp_path: Path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    saved: list[tuple[int, bool]] = []

    def work(ranks: ProcessGroup) -> Any:
        journal = Journal(RunDir(run_dir, ranks), JsonlSink(run_dir / "events.jsonl"))

        def save(folder: Path) -> None:
            saved.append((ranks.rank, folder.name.endswith(".tmp")))
            if ranks.is_main_process:
                (folder / "w.safetensors").write_text("weights")

        with journal.run_dir.lock():
            journal.resume()
            journal.emit([LogEvent(id="one", text=str(ranks.rank))])
            journal.commit({"step": 1}, save)
            journal.run_dir.heartbeat(status="running")
            again = Journal(RunDir(run_dir, ranks), JsonlSink(run_dir / "events.jsonl"))
            again.resume()
            return again.resume_state, again.state_dir, journal.run_dir.last_status()

    assert together(2, work) == [({"step": 1}, run_dir / "state" / "1", "running")] * 2
    assert sorted(saved) == [(0, True), (1, False)]
    assert [event.text for event in read_events(run_dir / "events.jsonl")] == ["0"]  # type: ignore[union-attr]


def test_a_commit_that_fails_fails_everywhere(tmp_path: Path):
    def work(ranks: ProcessGroup) -> None:
        journal = Journal(RunDir(tmp_path, ranks), JsonlSink(tmp_path / "events.jsonl"))

        def save(folder: Path) -> None:
            if ranks.is_main_process:
                raise RunError("No weights.")

        journal.commit({"step": 1}, save)

    assert [str(error) for error in together(2, work)] == ["No weights."] * 2
    assert not (tmp_path / "state" / "CURRENT").exists()


def test_a_kind_of_run_for_one_process_is_refused_where_several_were_started(tmp_path: Path, monkeypatch: Any):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    for kind in ("fork", "rescore", "hint_value"):
        config: Any = SimpleNamespace(kind=kind)
        with pytest.raises(ConfigError, match="does not support multi-process launch"):
            execute(config, RunDir(tmp_path), JsonlSink(tmp_path / "events.jsonl"), bool)
    assert not list(tmp_path.iterdir())


# -- the launcher's configurations -------------------------------------------------------------------------------
CONFIGS = sorted((ROOT / "data" / "configs" / "launch").glob("*.yaml"))


def test_there_are_configurations_for_two_four_and_eight_gpus():
    kinds = {f"{kind}_{n}" for kind in ("ddp", "fsdp", "deepspeed") for n in (2, 4, 8)}
    assert {path.stem for path in CONFIGS} == kinds | {"cpu_2"}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_accelerate_reads_every_configuration_and_finds_in_it_what_it_is_called(path: Path, monkeypatch: Any):
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

    kind, count = path.stem.rsplit("_", 1)
    loaded = load_config_from_file(str(path))
    assert loaded.num_processes == int(count) and loaded.use_cpu == (kind == "cpu")
    parser = launch_command_parser()
    args, *_ = _validate_launch_command(
        parser.parse_args(["--config_file", str(path), "-m", "app.cli", "train", "x.yaml"])
    )
    chosen = {"cpu": "multi_gpu", "ddp": "multi_gpu", "fsdp": "use_fsdp", "deepspeed": "use_deepspeed"}[kind]
    assert [name for name in ("multi_gpu", "use_fsdp", "use_deepspeed") if getattr(args, name)] == [chosen]
    if kind == "deepspeed":
        args.deepspeed_fields_from_accelerate_config = ",".join(loaded.deepspeed_config)
        _, env = prepare_deepspeed_cmd_env(args)
        assert env["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "2" and env["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] == "1"
    else:
        env = prepare_multi_gpu_env(args)
    assert env["ACCELERATE_MIXED_PRECISION"] == "no"
    if kind == "fsdp":
        assert env["FSDP_VERSION"] == "2" and env["FSDP_STATE_DICT_TYPE"] == "FULL_STATE_DICT"
        assert env["FSDP_AUTO_WRAP_POLICY"] == "TRANSFORMER_BASED_WRAP"
