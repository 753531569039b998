"""A first environment: one class with a configuration, tasks and a prompt; a run reports what else it lacks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl2f_core import registry
from rl2f_core.config.loading import parse_config
from rl2f_core.dialogue.rollout.build import build_environment
from rl2f_core.environments.base import wrap_answer
from rl2f_core.environments.capabilities import Baselines, LeakVocabulary, ScriptedHints
from rl2f_core.environments.mixture import Mixture
from rl2f_core.errors import ConfigError, DataError
from rl2f_core.evaluation.evaluate import evaluate_run
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.run.context import RunContext
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import JsonlSink, LogEvent, read_events
from rl2f_core.run.execute import execute
from rl2f_core.run.journal import Journal

EXAMPLE = '''
"""Write a word backward."""

from typing import Literal

from rl2f_core.environments.base import Environment, sample_task
from rl2f_core.config.fields import ComponentConfig
from rl2f_core.registry import register
from rl2f_core.types import Task


@register("environment")
class Backward(Environment):
    class Config(ComponentConfig):
        """Words to write backward."""

        type: Literal["backward"] = "backward"
        letters: int = 4
        """Letters of a word."""

    def task(self, split, index):
        return sample_task(self, split, index, seed=0, make=self._make)

    def _make(self, rng):
        word = "".join(rng.choices("abcdefghij", k=self.config.letters))
        return Task(id="", environment=self.name, split="train", level=f"{self.config.letters} letters",
                    public={"word": word}, privileged={"answer": word[::-1]})

    def prompt(self, public):
        return f"Write this word backward: {public['word']}"
'''


@pytest.fixture
def backward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Any]]:
    """The environment of one file, known to this process for one test."""
    path = tmp_path / "backward.py"
    path.write_text(EXAMPLE)
    monkeypatch.setenv("RL2F_PLUGINS", str(path))
    yield registry.get("environment", "backward")
    registry._components["environment"].pop("backward", None)
    registry._discovered.discard(str(path))
    sys.modules.pop("rl2f_plugin_backward", None)


@pytest.fixture
def hinting(backward: type[Any]) -> type[Any]:
    """The same environment with scripted hints, and without false ones."""

    class Hinting(backward, ScriptedHints):  # type: ignore[misc, valid-type]
        def hint(self, task: Any, attempts: Any, rng: Any) -> str:
            return f"It has {len(self.gold_answer(task))} letters."

    registry._components["environment"]["backward"] = Hinting  # `backward` removes it
    return Hinting


def run_data(**changes: Any) -> dict[str, Any]:
    """An evaluation of the base model."""
    return {
        "kind": "eval",
        "environment": "backward",
        "teacher": "contentless",
        "adapters": {"base": None},
        "rollout": {"max_turns": 2, "max_new_tokens": 16, "max_seq_len": 2048},
        "evaluation": {"num_tasks": 3, "conditions": ["hints", "misleading", "resample"]},
        "leak_detection": {"detectors": ["exact", "mentions"], "action": "flag"},
    } | changes


def logged(run_dir: RunDir) -> list[str]:
    return [event.text for event in read_events(run_dir.events_path) if isinstance(event, LogEvent)]


def test_tasks_and_a_prompt_are_enough_for_a_verifier(backward: type[Any]) -> None:
    environment = build_environment(backward.Config())
    task = environment.task("test", 0)
    gold = environment.gold_answer(task)
    assert environment.verify(task, wrap_answer(f"  {gold}\n")).correct
    wrong = environment.verify(task, wrap_answer("zzzz"))
    assert not wrong.correct and wrong.parsed == "zzzz" and gold in wrong.detail
    assert not environment.verify(task, wrap_answer(" ")).correct
    train = {environment.canonical(environment.task("train", i)) for i in range(40)}
    test = {environment.canonical(environment.task("test", i)) for i in range(40)}
    assert train and test and train.isdisjoint(test)
    with pytest.raises(DataError, match="cannot read a problem"):
        environment.task_from_gold("Where?", "Here")


def test_the_base_of_a_leaky_teacher_needs_its_parts_of_the_environment(backward: type[Any]) -> None:
    with pytest.raises(ConfigError, match="teacher 'scripted' needs an environment with scripted hints"):
        parse_config(run_data(teacher={"type": "leaky"}))
    parse_config(run_data(teacher={"type": "leaky", "base": "contentless"}))


def test_an_evaluation_skips_and_reports_what_the_environment_lacks(backward: type[Any], tmp_path: Path) -> None:
    config = parse_config(run_data())
    run_dir = RunDir.create(tmp_path / "run", config)
    journal = Journal(run_dir, JsonlSink(run_dir.events_path))
    assert evaluate_run(config, RunContext(journal), FakeBackend(), {"base": None})
    journal.commit({"done": True})
    text = "\n".join(logged(run_dir))
    assert "Condition misleading skipped: the environment has no misleading hints." in text
    report = (run_dir.evaluation / "report.md").read_text()
    assert "resample" in report and "| misleading" not in report and "best constant answer" not in report


@pytest.mark.slow
def test_a_whole_run_works_on_a_tiny_model(backward: type[Any], tiny: Path, tmp_path: Path) -> None:
    model = {"name": str(tiny), "dtype": "float32", "device": "cpu"}
    stages = [{"name": "rl", "method": "rlvr", "steps": 1, "tasks_per_step": 2, "group_size": 2}]
    data = run_data(kind="train", model=model, backend="hf", stages=stages, preflight={"ignore_failure": True})
    config = parse_config({key: value for key, value in data.items() if key != "adapters"})
    run_dir = RunDir.create(tmp_path / "run", config)
    assert execute(config, run_dir, JsonlSink(run_dir.events_path), lambda: False).status == "succeeded"
    metrics = [event for event in read_events(run_dir.events_path) if event.type == "metric"]
    assert metrics and all("constant_baseline" not in event.values for event in metrics)


def test_a_teacher_without_its_part_of_the_environment_is_refused(backward: type[Any]) -> None:
    with pytest.raises(ConfigError, match=r"teacher 'scripted' needs an environment with scripted hints.*contentless"):
        parse_config(run_data(teacher="scripted"))


def test_scripted_hints_alone_are_enough_for_the_scripted_teacher(hinting: type[Any]) -> None:
    parse_config(run_data(teacher="scripted"))
    with pytest.raises(ConfigError, match="needs an environment with misleading hints"):
        parse_config(run_data(teacher="misleading"))


def test_a_warm_up_needs_a_demonstrator(backward: type[Any]) -> None:
    stages = [{"name": "warm-up", "method": "sft", "steps": 1}]
    data = {key: value for key, value in run_data(kind="train", stages=stages).items() if key != "adapters"}
    with pytest.raises(
        ConfigError, match="stage 'warm-up': sft without dataset needs an environment with demonstrator"
    ):
        parse_config(data)


def test_a_mixture_has_the_parts_that_all_its_environments_have(hinting: type[Any]) -> None:
    made = Mixture(Mixture.Config(environments=({"environment": "backward"}, {"environment": "guess_number"})))
    assert isinstance(made, ScriptedHints)
    assert not isinstance(made, Baselines) and not isinstance(made, LeakVocabulary)
    whole = Mixture(Mixture.Config())
    assert isinstance(whole, Baselines) and isinstance(whole, LeakVocabulary)
