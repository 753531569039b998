"""The benchmarks measure what they say: the sides do the same work, and a tiny run prints its ratios."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rl2f_core.types import TrainingSample
from tests.benchmarks import leaks, report, sandbox, teacher
from tests.benchmarks.learner import opening_length, padded_width
from tests.benchmarks.rollout import build, plain_loop, requests_of
from tests.benchmarks.worker import ROOT, Settings

TINY = "--model tiny-random --device cpu --dtype float32 --repeats 1"


def sample(tokens: list[int], opening: int, student: list[int]) -> TrainingSample:
    """A row whose tokens at the positions `student` carry rl weight."""
    rl = [float(i in student) for i in range(len(tokens))]
    zeros = [0.0] * len(tokens)
    advantages = [0.5 * w for w in rl]
    return TrainingSample(tokens, [w > 0 for w in rl], [-w for w in rl], advantages, rl, zeros, zeros)


def test_a_ratio_pairs_neighbours_and_shows_its_spread() -> None:
    found = report.ratio([20.0, 30.0, 60.0], [10.0, 20.0, 20.0])  # 2, 1.5, 3
    assert found == (2.0, 1.5, 3.0)
    assert found.text() == "2.0 (1.5–3.0)"


def test_work_counts_each_product_once() -> None:
    # body 10, head 5, 7 tokens read, 3 sampled: 2·10·7 + 2·5·3
    assert report.rollout_work(10, 5, 7, 3) == 170
    # body 10, lora 2, head 5, 7 tokens, 3 trained: (4·10 + 6·2)·7 + 4·5·3
    assert report.update_work(10, 5, 2, 7, 3) == 424


def test_the_headline_is_against_the_faster_baseline_and_says_when_it_misses() -> None:
    assert report.fastest({"sdpa": 3.0, "eager": 4.0}) == "eager"
    result = {"name": "update", "ours": "learner", "against": "TRL eager", "wanted": 1.3}
    assert headline(result, 1.29).endswith("at least 1.3 wanted, NOT reached")
    assert headline(result, 1.3).endswith("at least 1.3 wanted, reached")


def test_a_busy_machine_is_said_and_an_idle_one_is_not() -> None:
    assert report.busy(0.2, 2) == ""
    assert "load 3.2 on 2 cores" in report.busy(3.2, 2)


def headline(result: dict[str, object], ratio: float) -> str:
    return report.headline({**result, "ratio": report.spread([ratio])})


def test_more_memory_than_the_baseline_is_said() -> None:
    result = {"ours": "learner", "against": "TRL eager", "rise": {"learner": 3_000_000, "TRL eager": 2_000_000}}
    assert "3 MB, TRL eager 2 MB (1.50 times)" in report.memory_line(result)
    assert report.memory_line(result).endswith("NOT reached")


def test_rows_become_trl_s_padded_batch_with_every_token_in_place() -> None:
    import torch

    from tests.benchmarks.trl_grpo import batch_of

    rows = [sample([1, 2, 3, 4, 5], 2, [2, 4]), sample([6, 7, 8, 9], 3, [3])]
    assert [opening_length(row) for row in rows] == [2, 3]
    assert padded_width(rows) == 3 + 3
    batch = batch_of(rows, 0, torch.device("cpu"))
    assert batch["prompt_ids"].tolist() == [[0, 1, 2], [6, 7, 8]]
    assert batch["prompt_mask"].tolist() == [[0, 1, 1], [1, 1, 1]]
    assert batch["completion_ids"].tolist() == [[3, 4, 5], [9, 0, 0]]
    assert batch["completion_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["tool_mask"].tolist() == [[1, 0, 1], [1, 0, 0]]
    assert batch["advantages"].tolist() == [[0.5, 0.0, 0.5], [0.5, 0.0, 0.0]]
    assert batch["old_per_token_logps"].tolist() == [[-1.0, 0.0, -1.0], [-1.0, 0.0, 0.0]]
    assert batch["num_items_in_batch"].item() == 3


@pytest.mark.slow
def test_engine_and_plain_loop_play_the_same_dialogues_where_nothing_is_left_to_chance(tiny: Path) -> None:
    settings = Settings(str(tiny), device="cpu", dialogues=6, group=3, turns=3, max_new_tokens=8, temperature=1e-4)
    engine = build(settings)
    wanted = requests_of(settings, engine, 0)
    ours = [list(rollout.sequences[0].token_ids) for rollout in engine.run(wanted)]
    plain = plain_loop(engine, wanted, settings, 0)
    assert ours == [tokens for tokens, _, _ in plain]
    assert [turns for _, _, turns in plain] == [3] * 6
    assert len({tuple(tokens) for tokens in ours}) == 2  # one dialogue a task


def test_turns_end_at_every_token_with_the_same_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from rl2f_core.models.modeling import logprobs
    from tests.benchmarks.schedules import ending

    def plain(model: object, hidden: torch.Tensor, output: object) -> torch.Tensor:
        return hidden.clone()

    monkeypatch.setattr(logprobs, "compute_logits", plain)
    logits = torch.tensor([[0.0, 3.0, 9.0], [2.0, 2.0, -5.0]])
    with ending(2, mean=16):
        p = logprobs.compute_logits(None, logits).softmax(1)
    assert p[:, 2].tolist() == pytest.approx([1 / 16, 1 / 16])
    assert (p[:, 0] / p[:, 1]).tolist() == pytest.approx([2.718281828**-3, 1.0])
    assert logprobs.compute_logits is plain


def run_benchmark(command: str, out: Path) -> tuple[str, dict[str, Any]]:
    """Run a benchmark as a process; return what it prints and the numbers that it writes."""
    done = subprocess.run(
        [sys.executable, "-m", *command.split(), "--out", str(out)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(out.read_text())


@pytest.mark.slow
def test_the_benchmark_of_schedules_plays_the_same_dialogues_and_prints_its_ratios(tmp_path: Path) -> None:
    sizes = "--dialogues 12 --batch 5 --few 2 --turns 2 --max-new-tokens 16 --mean 6 --counts 8 16"
    text, found = run_benchmark(f"tests.benchmarks.schedules {TINY} {sizes}", tmp_path / "out.json")
    assert found["schedules"]["same"][0] == 1.0
    steps = {name: answers[0]["steps"] for name, answers in found["schedules"]["answers"].items()}
    assert steps["continuous"] < steps["static"]
    assert all(answers[0]["rows"] <= 5 for answers in found["schedules"]["answers"].values())
    assert {batch: set(costs) for batch, costs in found["by_number"].items()} == {"2": {"8", "16"}, "5": {"8", "16"}}
    assert "times as fast as lock-step" in text and "ms of CPU a dialogue" in text
    assert "2 under way: the cost of a dialogue changes by" in text


@pytest.mark.slow
def test_the_benchmark_of_compiling_says_when_it_has_paid(tmp_path: Path) -> None:
    text, found = run_benchmark(f"tests.benchmarks.compiled {TINY} --rows 4 --words 300", tmp_path / "out.json")
    assert found["first"]["plain"]["seconds"] < found["first"]["compiled"]["seconds"]
    assert {side: len(answers) for side, answers in found["answers"].items()} == {"compiled": 1, "plain": 1}
    assert found["ratio"]["median"] > 0
    assert "times as fast; compiling takes" in text


@pytest.mark.slow
def test_generation_with_and_without_prepacked_weights_gives_the_same_tokens(tmp_path: Path) -> None:
    text, found = run_benchmark(f"tests.benchmarks.prepacked {TINY} --prompts 5", tmp_path / "out.json")
    assert found["equal"] and found["info"]["dtype"] == "float32" and found["ratio"]["median"] > 0
    assert "times as fast in torch.float32; tokens are equal" in text


@pytest.mark.slow
def test_a_study_and_its_runs_apart_have_equal_events_and_adapters(tmp_path: Path) -> None:
    text, found = run_benchmark(f"tests.benchmarks.study {TINY} --part 0.05", tmp_path / "out.json")
    assert found["equal"] and "events and adapters are equal" in text and found["ratio"]["median"] > 0


@pytest.mark.slow
def test_the_benchmark_of_adapters_compares_one_process_with_one_each(tmp_path: Path) -> None:
    sizes = "--adapters 2 --rank 2 --tasks 1 --turns 2 --max-new-tokens 4"
    text, found = run_benchmark(f"tests.benchmarks.adapters {TINY} {sizes}", tmp_path / "out.json")
    assert found["work"]["batched"] == found["work"]["apart"] > 0
    assert f"2 in one process are {found['ratio']['median']:.2f} " in text
    assert f"{found['cpu_ratio']['median']:.2f} " in text and "by CPU time; at least 2.0 wanted" in text


@pytest.mark.slow
def test_the_benchmark_of_leaks_prints_the_rate_of_every_environment(tmp_path: Path) -> None:
    text, found = run_benchmark("tests.benchmarks.leaks --hints 20 --chunks 1", tmp_path / "out.json")
    assert set(found) == set(leaks.MIDDLES)
    for name, rate in found.items():
        assert f"{name}: {rate['fast']:,.0f} hints/s" in text
        assert f"{rate['fast'] / leaks.WANTED:.1f} times the goal of {leaks.WANTED:,}" in text


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """What a tiny run prints, and the numbers that it writes."""
    sizes = "--dialogues 8 --turns 2 --max-new-tokens 8 --rows 8 --micro-rows 4 --baselines eager"
    return run_benchmark(f"tests.benchmarks {TINY} {sizes}", tmp_path_factory.mktemp("bench") / "out.json")


@pytest.mark.slow
def test_a_tiny_run_prints_all_ratios_the_memory_and_the_ceiling(found: tuple[str, dict[str, Any]]) -> None:
    text, numbers = found
    sides = {"rollout": "eager", "update": "TRL eager", "tool loop": "TRL eager", "step": "TRL eager"}
    for name, against in sides.items():
        ratio = numbers[name]["ratio"]["median"]
        assert ratio > 0
        assert f"{ratio:.2f} ({ratio:.2f}–{ratio:.2f}) times as fast as {against}" in text
        assert numbers[name]["cpu_ratio"]["median"] > 0
    assert "memory of the update:" in text
    assert f"{max(numbers['ceiling_gflops']):.0f} GFLOP/s" in text


@pytest.mark.slow
def test_learner_and_trl_compute_the_same_loss_and_gradient(found: tuple[str, dict[str, Any]]) -> None:
    """Up to the mass of the tokens that the learner bans and TRL does not: about 2 of 384 in a random model."""
    _, numbers = found
    assert numbers["update"]["difference"]["loss"] < 0.02
    assert numbers["update"]["difference"]["grad_norm"] < 0.02
    assert numbers["update"]["micro_batches"] == [2, 2]
    assert all(answer["rise"] > 0 for answer in numbers["update"]["answers"]["learner"])


@pytest.mark.slow
@pytest.mark.xdist_group("workers")
def test_the_benchmark_of_the_sandbox_prints_rates(capsys: pytest.CaptureFixture[str]) -> None:
    found = sandbox.main(["--verdicts", "10"])
    assert found["one by one"] > 0 and found["batch"] > 0
    assert "batch of 10" in capsys.readouterr().out


@pytest.mark.slow
def test_the_measurement_of_a_teacher_writes_each_hint_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    out = tmp_path / "teacher.json"
    found = teacher.main(["--model", "tiny-random", "--hints", "2", "--out", str(out)])
    assert [*found] == [f"{name}, {style}" for name in teacher.TASKS for style in teacher.STYLES]
    rows = found["secret_code, facts"]["rows"]
    assert len(rows) == 2 and {len(row["attempts"]) for row in rows} <= {1, 2, 3}
    del found["arithmetic, facts"]
    found["secret_code, facts"]["hints"] = 99
    kept = found["arithmetic, socratic"]["rows"]
    found["arithmetic, socratic"]["rows"] = [{**kept[0], "hint": "kept"}]
    out.write_text(json.dumps(found))
    again = teacher.main(["--model", "tiny-random", "--hints", "2", "--out", str(out)])
    assert again["secret_code, facts"]["hints"] == 99 and again["arithmetic, facts"]["hints"] == 2
    continued = again["arithmetic, socratic"]["rows"]
    assert [row["hint"] for row in continued] == ["kept", kept[1]["hint"]] and continued[1]["task"] == kept[1]["task"]


def test_the_summary_of_a_teacher_counts_truth_over_the_hints_that_can_be_read() -> None:
    """Two of four hints can be read, one of them is true; bits of unread hints count as 0: 2 / 4."""
    row = {"true": None, "bits": None, "exact": False, "mentions": True, "tokens": 10, "seconds": 0.5}
    rows = [row, row, {**row, "true": True, "bits": 2.0}, {**row, "true": False}]
    found = teacher.summary(rows)
    assert found["read"].startswith(".50") and found["true"].startswith(".50") and found["exact"].startswith(".00")
    assert (found["mentions"][:4], found["bits"], found["tokens"], found["seconds"]) == ("1.00", 0.5, 10, 0.5)
