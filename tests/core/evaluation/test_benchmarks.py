"""Evaluation on several environments, and the heatmap of checkpoints and benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from learner_rows import CPU
from run_helpers import config_of, go
from typer.testing import CliRunner

from app.cli import app
from app.plots.evaluation import as_json, from_report
from rl2f_core.common.stats.intervals import Interval
from rl2f_core.config.model import LoraConfig
from rl2f_core.environments.puzzles.secret_code.environment import SecretCode
from rl2f_core.errors import ConfigError
from rl2f_core.evaluation.chart_data import benchmark_chart, benchmark_plot
from rl2f_core.evaluation.figure_files import to_png
from rl2f_core.evaluation.plotting import figure, resolve_colors, shade
from rl2f_core.evaluation.report_file import read_report
from rl2f_core.learning.learner.learner import Learner
from rl2f_core.run.directory import RunDir
from rl2f_core.run.kinds.eval import eval_config, find_environment

OWN = SecretCode.Config(alphabet="ABC", length=2)


@pytest.fixture(scope="module")
def trained(speaker: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run with one checkpoint."""
    evaluation = {"num_tasks": 2, "conditions": ["hints", "contentless"], "checkpoints": []}
    run_dir = RunDir.create(tmp_path_factory.mktemp("run") / "run", config_of(speaker, evaluation=evaluation))
    folder = run_dir.checkpoints / "rl@3"
    folder.mkdir(parents=True)
    lora = LoraConfig(rank=4, alpha=8)
    learner = Learner(speaker, lora, dtype=torch.float32, device=CPU, banned=[0], pad=2, seed=0)
    learner.save_adapter(folder)
    return run_dir


def test_environments_are_found_by_registered_name_preset_and_file(tmp_path: Path) -> None:
    assert find_environment("secret_code", OWN)["alphabet"] == "ABC"  # the run's own settings
    assert find_environment("guess_number", OWN) == {"type": "guess_number"}
    assert find_environment("reasoning_gym:gcd", OWN) == {"type": "reasoning_gym", "name": "gcd"}
    assert find_environment("knights_knaves", OWN) == {"type": "knights_knaves"}
    assert find_environment("kk_7b_cpu", OWN)["people"] == 2
    assert find_environment("rltf:shortest_path-sd", OWN)["largest"] == 6
    path = tmp_path / "mine.yaml"
    path.write_text("environment: {type: guess_number, size: 99}\nstages: [{name: s, method: sft, steps: 1}]\n")
    assert find_environment(str(path), OWN)["size"] == 99
    for missing in ("nothing", str(tmp_path / "none.yaml")):
        with pytest.raises(ConfigError, match="no such environment"):
            find_environment(missing, OWN)


@pytest.mark.slow
def test_several_environments_are_a_mixture_with_as_many_tasks_of_each(trained: RunDir, tmp_path: Path) -> None:
    path = tmp_path / "my game.yaml"
    path.write_text("environment: {type: guess_number, size: 9}\nstages: [{name: s, method: sft, steps: 1}]\n")
    config: Any = eval_config([(trained.path, "rl@3")], ["secret_code", "guess_number", str(path)])
    parts = config.environment.environments
    assert [part.name for part in parts] == ["secret_code", "guess_number", "my-game"]
    assert (parts[0].environment.alphabet, parts[2].environment.size) == ("ABC", 9)
    assert config.evaluation.num_tasks == 6 and list(config.adapters) == ["base", "rl@3"]
    single: Any = eval_config([(trained.path, "rl@3")], ["guess_number"])
    assert (single.environment.type, single.evaluation.num_tasks) == ("guess_number", 2)
    assert eval_config([(trained.path, "rl@3")]).environment == trained.config().environment


@pytest.mark.slow
def test_report_and_page_have_a_heatmap_of_checkpoints_and_benchmarks(trained: RunDir, tmp_path: Path) -> None:
    config = eval_config([(trained.path, "rl@3")], ["secret_code", "guess_number"])
    run_dir = RunDir.create(tmp_path / "eval", config)
    assert go(run_dir) == "succeeded"
    report = read_report(run_dir.path)
    assert report is not None and [(part.environment, part.tasks) for part in report.parts] == [
        ("secret_code", 2), ("guess_number", 2)]  # fmt: skip
    text = (run_dir.evaluation / "report.md").read_text()
    assert "Solved within 2 turns, by benchmark" in text
    assert "checkpoint" in text and "secret_code" in text.split("by benchmark", 1)[1].splitlines()[2]
    assert (run_dir.evaluation / "benchmarks.png").stat().st_size > 1000
    page = as_json(from_report(report))
    heatmap = page["charts"][0]
    assert (heatmap["key"], [trace["name"] for trace in heatmap["figure"]["data"]]) == ("benchmarks", ["base", "rl@3"])
    solved = report.parts[1].metrics("rl@3", "hints")
    assert solved is not None and heatmap["figure"]["data"][1]["text"][1].startswith(f"{solved.final().value:.2f}"[1:])
    assert f"rl@3 secret_code {heatmap['figure']['data'][1]['text'][0].replace('<br>', ' ')}" in heatmap["words"]
    assert benchmark_chart(report.parts[0]).plots == () and to_png(benchmark_chart(report)).startswith(b"\x89PNG")
    assert as_json(from_report(report.parts[0]))["charts"][0]["key"] != "benchmarks"


def test_heatmap_has_a_cell_per_checkpoint_and_benchmark_shaded_by_its_value() -> None:
    half = Interval(value=0.5, low=0.4, high=0.6, n=9)
    scores = {"base": {"math": Interval(value=0.0, low=0.0, high=0.1, n=9), "code": half}, "rl@3": {"code": half}}
    plot = benchmark_plot(scores)
    drawn = figure(plot)
    assert [trace["x"] for trace in drawn["data"]] == [["math", "code"]] * 2
    assert drawn["data"][0]["text"] == [".00<br>[.00, .10]", ".50<br>[.40, .60]"]
    assert drawn["data"][1]["text"][0] == "–"
    shapes = {(s["x0"] + 0.5, s["y0"] + 0.5): s["fillcolor"] for s in drawn["layout"]["shapes"]}
    assert shapes == {
        (0, 0): "fade(--rl-student,0.05)", (1, 0): "fade(--rl-student,0.225)", (1, 1): "fade(--rl-student,0.225)"
    }  # fmt: skip
    assert shade(2.0) == shade(1.0) == 0.4
    assert "--rl-" not in str(resolve_colors(drawn))


def test_command_refuses_an_unknown_environment(trained: RunDir, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["eval", str(trained.path), "--on", "guess_number, nothing", "--out", str(tmp_path)]
    )
    assert result.exit_code == 2 and "There is no such environment" in result.output and "nothing" in result.output
