"""Published numbers come from data: pages are generated, and an edited number or changed data is noticed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from rl2f_core.common.stats.intervals import Interval
from rl2f_core.dialogue.metrics.dialogues import Metrics
from rl2f_core.evaluation.report import CheckpointResult, Effect, EvaluationReport, Reference
from rl2f_core.evaluation.study.registration import register
from rl2f_core.evaluation.study.spec import load_study

ROOT = Path(__file__).resolve().parents[2]
LEGACY = {
    "small/kk_7b", "small/levels",
    "small/logic_rl-curriculum", "small/logic_rl-mixed", "small/mixture", "small/rl2f_replication",
    "small/sml-multi_turn", "small/sml-single_turn", "small/sml-single_turn_16",
}  # fmt: skip
"""Results collected before `rl2f results collect` existed; remove a name when its runs are repeated."""
PAGE = "# Codes\n\nText.\n\n<!-- results: codes -->\n<!-- end -->\n"
TEMPLATE = """{% set r = results("codes") %}
RL²F solves {{ r.value("rl2f", "solved")|ci }} of {{ r.first.tasks }} tasks, {{ r.effect("rl2f")|effect }} more.

{{ r.table() }}
"""


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    """The module `.ci/results.py`."""
    spec = importlib.util.spec_from_file_location("ci_results", ROOT / ".ci" / "results.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def report(solved: float, seed: int = 0) -> EvaluationReport:
    """An evaluation of one checkpoint under three conditions, on 40 tasks."""
    values = {
        name: Interval(value=value, low=value - 0.1, high=value + 0.1, n=40)
        for name, value in (("cum_acc/1", 0.25), ("cum_acc/3", solved), *((m, 0.5) for m in METRICS))
    }
    metrics = Metrics(turns=3, tasks=40, dialogues=40, values=values)
    conditions = ("hints", "contentless", "resample")
    rows = tuple(CheckpointResult(checkpoint="rl2f@8", condition=name, metrics=metrics) for name in conditions)
    effect = Interval(value=0.3, low=0.1, high=0.5, n=40)
    references = [Reference(turn=t, with_hints=1.0, without_hints=t / 16, copying=0.6) for t in (1, 2, 3)]
    return EvaluationReport(
        environment="secret_code", turns=3, tasks=40, samples=1, seed=seed, rows=rows, references=tuple(references),
        effects=(Effect(checkpoint="rl2f@8", condition="hints", difference=effect),),
        notes=("Stage rl2f: 1,234 sampled student tokens in 8 steps.",),
    )  # fmt: skip


METRICS = (
    "cum_acc/2", "gain", "conditional_solve_rate", "plasticity", "repeated_answer_rate", "improving_change_rate",
    "retention", "regression_rate", "parse_failure_rate", "truncated_rate", "format_error_rate", "leak_rate",
    "stop/failed", "misled_rate",
)  # fmt: skip


@pytest.fixture
def site(tmp_path: Path, generator: ModuleType) -> Path:
    """A repository with one result page, generated."""
    folder = tmp_path / "data" / "results"
    (folder / "templates").mkdir(parents=True)
    (folder / "templates" / "codes.md").write_text(TEMPLATE)
    (folder / "codes" / "seed-0").mkdir(parents=True)
    (folder / "codes" / "seed-0" / "report.json").write_text(report(0.47).model_dump_json())
    (folder / "README.md").write_text(PAGE)
    assert generator.run(tmp_path, check=False) == []
    return tmp_path


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_the_report_of_a_study_comes_from_the_folders_of_its_arms(site: Path, generator: ModuleType) -> None:
    study, folder = load_study("tiny"), site / "data" / "results" / "tiny"
    register(study, folder, 0)
    (folder / "rl2f" / "seed-1").mkdir(parents=True)
    (folder / "rl2f" / "seed-1" / "report.json").write_text(report(0.47, seed=1).model_dump_json())
    (folder / "rl2f" / "seed-1" / "training.json").write_text("{}")
    assert generator.run(site, check=False) == []
    missing = "rl2f-seed-0, contentless-seed-0, contentless-seed-1"
    assert f"Parts without a result: {missing}." in (folder / "report.md").read_text()


@pytest.mark.slow
def test_the_published_pages_agree_with_their_data(generator: ModuleType) -> None:
    assert generator.run(ROOT, check=True) == []


def test_a_page_shows_the_numbers_of_its_data_and_names_the_file(site: Path) -> None:
    text = (site / "data/results/README.md").read_text()
    assert "RL²F solves .47 [.37, .57] of 40 tasks, +.30 [.10, .50] more." in text
    assert (
        "| rl2f@8 | .25 [.15, .35] | .47 [.37, .57] | .47 [.37, .57] | .47 [.37, .57] | +.30 [.10, .50] | 1,234 |"
        in text
    )
    assert "Data: [data/results/codes/seed-0/report.json](codes/seed-0/report.json)." in text


def test_the_best_policy_under_resample_makes_independent_first_attempts(site: Path) -> None:
    # 1 − (15/16)³ = .176; the optimal policy without hints excludes its earlier answers: 3/16 = .19
    assert "| optimal policy | .06 | 1.00 | .19 | .18 |" in (site / "data/results/README.md").read_text()


def test_a_hand_edited_number_is_caught(site: Path, generator: ModuleType) -> None:
    page = site / "data" / "results" / "README.md"
    replace(page, "solves .47", "solves .52")
    assert generator.run(site, check=True) == [
        "data/results/README.md:6: .52 should be .47 according to the data. Fix: make results"
    ]
    assert generator.run(site, check=False) == [] and "solves .47" in page.read_text()


def test_changed_data_are_caught_in_the_page_and_in_the_report(site: Path, generator: ModuleType) -> None:
    (site / "data/results/codes/seed-0/report.json").write_text(report(0.61).model_dump_json())
    page, text = generator.run(site, check=True)
    assert page == "data/results/README.md:6: .47 should be .61 according to the data. Fix: make results"
    assert text.startswith("data/results/codes/seed-0/report.md:") and ".47 should be .61" in text


def test_a_figure_of_other_data_is_caught(site: Path, generator: ModuleType) -> None:
    template = site / "data" / "results" / "templates" / "codes.md"
    (site / "data/results/codes/seed-1").mkdir()
    (site / "data/results/codes/seed-1/report.json").write_text(report(0.49, seed=1).model_dump_json())
    template.write_text('{% set r = results("codes") %}\n{{ r.seeds_figure() }}\n')
    assert generator.run(site, check=False) == []
    assert (site / "data/results/codes/seeds.png").is_file() and (site / "data/results/codes/seeds.md").is_file()
    changed = report(0.49, seed=1)
    effect = changed.effects[0].model_copy(update={"difference": Interval(value=0.1, low=0.0, high=0.2, n=40)})
    changed = changed.model_copy(update={"effects": (effect,)})
    (site / "data/results/codes/seed-1/report.json").write_text(changed.model_dump_json())
    problems = generator.run(site, check=True)
    assert "data/results/codes/seeds.png: the figure does not show its data. Fix: make results" in problems
    (site / "data/results/old.png").write_bytes(b"")
    assert any("old.png: no template shows this figure" in line for line in generator.run(site, check=True))


def test_a_number_that_does_not_come_from_data_is_caught(site: Path, generator: ModuleType) -> None:
    replace(site / "data/results/README.md", "Text.", "It solves .47 of the tasks.")
    (site / "data/results/templates/codes.md").write_text(TEMPLATE + "\nThat is +.30 more.\n")
    generator.run(site, check=False)
    outside, literal = generator.run(site, check=True)
    assert outside.startswith("data/results/README.md:3: .47 is outside of <!-- results: NAME -->")
    assert literal.startswith("data/results/templates/codes.md:6: +.30 does not come from data")


def test_an_error_of_a_template_names_its_file_and_line(site: Path, generator: ModuleType) -> None:
    (site / "data/results/templates/codes.md").write_text('Text.\n\n{{ results("codes").value("ppo", "solved")|ci }}\n')
    assert generator.run(site, check=True) == ["data/results/templates/codes.md:3: codes has no ppo"]


def test_make_check_and_make_results_run_the_generator() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    for target, command in (("check-rest", ".ci/results.py --check"), ("results", ".ci/results.py")):
        done = subprocess.run(
            ["make", "--dry-run", target], cwd=ROOT, env=environment, text=True, capture_output=True, check=True
        )
        assert any(line.endswith(command) for line in done.stdout.splitlines())


def test_every_result_folder_contains_configuration_environment_report_and_command(generator: ModuleType) -> None:
    results = ROOT / "data" / "results"
    missing = set()
    for path in results.rglob("report.json"):
        name = generator.group_of(path).relative_to(results).as_posix()
        assert path.with_name("report.md").is_file(), path
        if not all(path.with_name(file).is_file() for file in ("config.yaml", "environment.json")):
            missing.add(name)
            continue
        environment = json.loads(path.with_name("environment.json").read_text())
        needed = {"command", "commit", "seed", "packages", "hardware", "wall_seconds", "cpu_seconds"}
        assert needed <= set(environment), path
    assert missing == LEGACY


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 1300
