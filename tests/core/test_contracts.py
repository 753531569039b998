"""What everything registered must keep, by kind of component; and a plug-in of 40 lines that keeps it too."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import typing
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from environment_params import ENVIRONMENTS
from environment_plugins import PLUGINS, loaded
from leak_helpers import Oracle
from method_contract import check_method
from pydantic import BaseModel
from stateful_contract import check_episodes
from typer.testing import CliRunner

from rl2f_core import registry
from rl2f_core.config.fields import BaseConfig
from rl2f_core.config.loading import dump_yaml, load_config, parse_config
from rl2f_core.config.model import ModelConfig
from rl2f_core.dialogue.teachers.base import Feedback, FeedbackRequest, Teacher
from rl2f_core.environments.base import CONTENTLESS, Environment, wrap_answer
from rl2f_core.environments.capabilities import Baselines, Demonstrator, LeakVocabulary, MisleadingHints
from rl2f_core.environments.stateful import StatefulEnvironment
from rl2f_core.errors import ConfigError, DataError, UnknownNameError
from rl2f_core.leaks.base import LeakDetector, LeakQuery
from rl2f_core.models.backends.base import Backend, GenerationRequest, SamplingParams
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.models.backends.model_pool import ModelPool
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import JsonlSink, LogEvent, MetricEvent, read_events
from rl2f_core.run.execute import execute
from rl2f_core.types import SPLITS, FinishReason, Task, Turn, Verdict

SAMPLE = 20
HOSTILE = ("", "<answer>", "</answer><answer>", "9" * 30_000, "\x00\x1b\u202e", "<|im_end|>", "<answer>" * 300, "{'a':")


def made(kind: str, name: str, *more: Any) -> Any:
    held: Any = registry.get(kind, name)
    return held(held.Config(), *more)


def run_config(**changes: Any) -> Any:
    stages = [{"name": "s", "method": "sft", "steps": 1, "tasks_per_step": 2, "group_size": 2}]
    return parse_config({"environment": "guess_number", "stages": stages, "rollout": {"max_new_tokens": 400}} | changes)


def wrong_turns(environment: Any, task: Task, count: int, rng: random.Random) -> tuple[Turn, ...]:
    """Up to `count` wrong attempts of the imperfect student."""
    turns: list[Turn] = []
    for _ in range(20 * count):
        if len(turns) == count:
            break
        attempt = environment.simulate_attempt(
            task, [t.verdict for t in turns], rng, follow_hint=bool(turns), correct=False
        )
        verdict = environment.verify_turn(task, [t.verdict for t in turns], attempt)
        if not verdict.correct and not verdict.done:
            turns.append(Turn(index=len(turns), attempt=attempt, verdict=verdict))
    return tuple(turns)


# -- the contracts -------------------------------------------------------------------------------------------------
def check_config(kind: str, name: str, folder: Path) -> None:
    """The literal is the name, defaults are right, every field is explained, YAML brings it back."""
    config_type: Any = registry.get(kind, name).Config  # type: ignore[attr-defined]
    config = config_type()
    assert config.type == name and config_type.model_config["frozen"] and config_type.__doc__
    assert config_type.model_validate(config.model_dump(mode="json")) == config
    undescribed = [f for f, info in config_type.model_fields.items() if f != "type" and not info.description]
    assert undescribed == []
    refusal = getattr(registry.get(kind, name), "unavailable_reason", "")
    if refusal:
        with pytest.raises(ConfigError, match=refusal[:40]):
            run_config(**{kind: name})
        return
    field: Any = {"method": None, "leak_detector": None, "llm": None}.get(kind, config)
    changes: dict[str, Any] = {kind: field} if field is not None else {}
    if kind == "method":
        history = registry.get("method", name).prompt_modes[0]  # type: ignore[attr-defined]
        changes = {"stages": [{"name": "s", "method": name, "steps": 1}], "rollout": {"prompting": history}}
        changes |= {"environment": "taxi"} if history == "enumerate" else {}
    if name in ("gymnasium", "verifiers"):  # they have neither scripted hints nor demonstrations
        changes |= {"teacher": "contentless", "stages": [{"name": "s", "method": "rl2f", "steps": 1}]}
    if kind == "leak_detector":
        changes = {"leak_detection": {"detectors": [name]}}
    if kind == "llm":
        changes = {"teacher": {"type": "llm", "llm": name}}
    if kind == "tracker":
        changes = {"tracking": config}
    whole = run_config(**changes)
    text = dump_yaml(whole)
    (folder / "config.yaml").write_text(text)
    assert load_config(folder / "config.yaml") == whole and dump_yaml(load_config(folder / "config.yaml")) == text
    with pytest.raises(ConfigError, match="no_such_key: unknown key"):
        place = {
            "leak_detector": "leak_detection.detectors.0", "method": "stages.0.method", "llm": "teacher.llm",
            "tracker": "tracking",
        }.get(kind, kind)  # fmt: skip
        load_config(folder / "config.yaml", [f"{place}.no_such_key=1"])


def check_tasks(environment: Environment) -> None:
    """Streams repeat, splits share no problem, and prompts do not show the answer."""
    keys: dict[str, set[str]] = {}
    shown = 0
    for split in SPLITS:
        tasks = [environment.task(split, i) for i in range(SAMPLE)]
        assert tasks == [environment.task(split, i) for i in range(SAMPLE)]
        own = {part.name for part in environment.sub_environments.values()} or {environment.name}
        assert {(t.environment, t.split) for t in tasks} == {(name, split) for name in own}
        assert len({t.id for t in tasks}) == SAMPLE
        keys[split] = {environment.canonical(t) for t in tasks}
        for task in tasks:
            stored = Task.model_validate_json(task.model_dump_json())
            assert stored.model_dump_json() == task.model_dump_json() and task.level
            assert environment.canonical(stored) == environment.canonical(task)
            prompt, answer = environment.prompt(task.public), environment.gold_answer(task)
            assert prompt.strip() and environment.prompt(json.loads(json.dumps(task.public))) == prompt
            shown += bool(re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", prompt))
    assert shown < SAMPLE  # a number may stand there by chance, but not in every third problem
    for one, other in (("train", "validation"), ("train", "test"), ("validation", "test")):
        assert keys[one].isdisjoint(keys[other]) and len(keys[one]) > 1
    assert environment.system_prompt().strip()


def check_verdict(verdict: Verdict) -> None:
    assert 0 <= verdict.score <= 1 and (verdict.score == 1) == verdict.correct
    assert verdict.distance is None or (0 <= verdict.distance <= 1 and (verdict.distance == 0) == verdict.correct)
    assert set(verdict.correct_parts) <= set(verdict.parts)
    assert verdict.parsed is not None or not (verdict.correct or verdict.parts)
    assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict


def check_verifier(environment: Any) -> None:
    """Gold is accepted, everything else refused, nothing raises."""
    for index in range(SAMPLE // 3):
        task, rng = environment.task("test", index), random.Random(index)
        gold = environment.gold_answer(task)
        right = environment.verify(task, wrap_answer(gold))
        check_verdict(right)
        assert right.correct and right.well_formed and right.parsed == environment.parse(task, gold)
        said = environment.simulate_attempt(task, [], rng, follow_hint=False, correct=True)
        assert environment.verify(task, said).correct
        again = environment.task_from_gold(environment.prompt(task.public), gold)
        assert environment.verify(again, wrap_answer(gold)).correct
        turns = wrong_turns(environment, task, 3, rng)
        assert turns
        for turn in turns:
            check_verdict(turn.verdict)
            assert turn.verdict.parsed is not None and turn.verdict.parsed != right.parsed and turn.verdict.well_formed
            assert not environment.verify(again, turn.attempt).correct
        for attempt in (
            *HOSTILE,
            gold,
            wrap_answer(gold) * 2,
            f"{wrap_answer(gold)} or not",
            wrap_answer(f"{gold} {gold}"),
        ):
            verdict = environment.verify(task, attempt)
            check_verdict(verdict)
            assert not verdict.correct, attempt[:80]
    for nonsense in ("", "\x00", "no gold at all"):
        with pytest.raises(DataError):
            environment.task_from_gold(environment.prompt(environment.task("test", 0).public), nonsense)


def check_hints(environment: Any) -> None:
    """Hints are text; the misleading one says something else; both follow from their arguments."""
    for index in range(SAMPLE // 3):
        task = environment.task("train", index)
        turns = wrong_turns(environment, task, 2, random.Random(index))
        for count in range(1, len(turns) + 1):
            verdicts = [t.verdict for t in turns[:count]]
            hint = environment.hint(task, verdicts, random.Random(1))
            false = environment.misleading_hint(task, verdicts, random.Random(1))
            assert isinstance(hint, str) and isinstance(false, str) and hint.strip() and false.strip()
            assert hint != false
            assert hint == environment.hint(task, verdicts, random.Random(1))
            assert false == environment.misleading_hint(task, verdicts, random.Random(1))
            follow = [
                environment.simulate_attempt(task, verdicts, random.Random(s), follow_hint=True, correct=False)
                for s in (1, 1)
            ]
            assert isinstance(follow[0], str) and follow[0] == follow[1]
        unread = environment.verify(task, "?")
        assert environment.hint(task, [unread], random.Random(1)).strip()
        assert environment.misleading_hint(task, [unread], random.Random(1)).strip()


def check_references(environment: Any) -> None:
    floor = environment.constant_baseline()
    assert isinstance(floor.answer, str) and 0 <= floor.score <= 1
    bounds = [environment.bounds(turns) for turns in (1, 2, 4)]
    for held in bounds:
        if held is not None:
            lines = [held.without_hints, held.with_hints]
            assert 0 <= lines[0] <= lines[1] + 1e-12 <= 1 + 1e-9
            assert held.copying is None or 0 <= held.copying <= held.with_hints + 1e-12
    assert all(b is None for b in bounds) or [b.with_hints for b in bounds] == sorted(b.with_hints for b in bounds)  # type: ignore[union-attr]


def check_vocabulary(environment: Any) -> None:
    for index in range(5):
        task = environment.task("test", index)
        text = f"Is it {environment.gold_answer(task)}? {environment.prompt(task.public)}"
        for start, end, _ in environment.find_answers(task, text):
            assert 0 <= start < end <= len(text)


def check_environment(environment: Environment) -> None:
    """The whole contract of an environment and of its optional parts."""
    assert isinstance(environment, Environment)
    check_tasks(environment)
    if isinstance(environment, StatefulEnvironment):
        check_episodes(environment)
    else:
        check_verifier(environment)
    check_hints(environment)
    check_references(environment)
    if isinstance(environment, LeakVocabulary):
        check_vocabulary(environment)


def check_teacher(teacher: Teacher, environment: Environment) -> None:
    """Answers from each request alone, whatever the company and order."""
    requests = []
    for index in range(6):
        task = environment.task("train", index)
        turns = wrong_turns(environment, task, 1 + index % 2, random.Random(index))
        requests.append(FeedbackRequest(task, turns, seed=index))

    def said(asked: Sequence[FeedbackRequest]) -> list[Feedback]:
        return [replace(f, usage=None) for f in teacher.feedback(asked)]  # how long it took is no part of it

    together = said(requests)
    assert all(isinstance(f.text, str) and f.error is None for f in together)
    empty = teacher.name == "contentless" and requests[0].observed  # the observation is the whole message
    assert all(bool(f.text.strip()) != empty for f in together)
    assert [said([r])[0] for r in requests] == together
    assert said(requests[::-1]) == together[::-1] and teacher.feedback([]) == []


def check_detector(detector: LeakDetector, environment: Environment) -> None:
    """The answer is a leak, a message without information is none, and spans lie inside the hint."""
    for index in range(4):
        task = environment.task("train", index)
        clean = detector.check(LeakQuery(task, CONTENTLESS))
        assert not clean.leaked and clean.span is None
        hint = f"The answer is {environment.gold_answer(task)}."
        report = detector.check(LeakQuery(task, hint, ("I do not know.",), (CONTENTLESS,)))
        assert (
            report.leaked and report.detector == detector.name and report.evidence and 0 < report.answer_fraction <= 1
        )
        assert report.span is None or 0 <= report.span[0] < report.span[1] <= len(hint)
        for text in HOSTILE:
            found = detector.check(LeakQuery(task, text[:5000])).span
            assert found is None or 0 <= found[0] < found[1] <= len(text)


def check_backend(backend: Backend) -> None:
    """Answers by the prompt's own seed, within the limit, without banned tokens; scores every token."""
    tokenizer = backend.tokenizer
    messages: Any = [[{"role": "user", "content": "x" * n}] for n in (1, 30, 7)]
    starts = [tuple(tokenizer.encode(tokenizer.apply_chat_template(m, add_generation_prompt=True))) for m in messages]
    prompts = [GenerationRequest(start, seed, f"p{seed}") for seed, start in enumerate(starts)]
    said = backend.generate(prompts, SamplingParams(5))
    backend.reset_prefix_cache()
    assert backend.generate(prompts, SamplingParams(5)) == said
    backend.reset_prefix_cache()
    assert [g.token_ids for g in backend.generate(prompts[::-1], SamplingParams(5))] == [
        g.token_ids for g in said[::-1]
    ]
    backend.reset_prefix_cache()
    with backend.session() as session:
        tickets = session.submit(prompts[:2], SamplingParams(5))
        session.step()
        tickets += session.submit(prompts[2:], SamplingParams(5))
        while session.has_unfinished:
            session.step()
    assert [t.generation and t.generation.token_ids for t in tickets] == [g.token_ids for g in said]
    for generation in said:
        assert 1 <= len(generation.token_ids) == len(generation.logprobs) <= 5
        assert all(p <= 0 for p in generation.logprobs)
        assert not set(generation.token_ids) & set(tokenizer.banned_token_ids)
        assert (generation.stop is FinishReason.EOS) == (generation.token_ids[-1] == tokenizer.eos_token_id)
        assert isinstance(tokenizer.decode(generation.token_ids), str)
    assert backend.generate([], SamplingParams(5)) == [] and backend.score([]) == []
    scores = backend.score(starts)
    assert [len(s) for s in scores] == [len(s) for s in starts]
    assert all(s[0] == 0 and all(p <= 0 for p in s) for s in scores) and backend.max_model_len > 0
    assert isinstance(backend.config, BaseModel) and tokenizer.eos_token_id not in tokenizer.banned_token_ids


def check_kind(kind: Any, name: str) -> None:
    """A configuration of its own, whose `kind` is its name, and something to execute."""
    config_type = kind.config_class
    assert issubclass(config_type, BaseConfig) and "name" in config_type.model_fields and callable(kind.execute)
    assert typing.get_args(config_type.model_fields["kind"].annotation) == (name,)
    assert config_type.model_json_schema()["properties"]["kind"]["const"] == name


# -- everything that is registered ---------------------------------------------------------------------------------
EVERYTHING = [(kind, name) for kind in registry.PACKAGES if kind != "run_kind" for name in registry.names(kind)]


@pytest.mark.parametrize(("kind", "name"), EVERYTHING)
def test_every_config_keeps_the_contract(kind: str, name: str, tmp_path: Path) -> None:
    check_config(kind, name, tmp_path)


def models(config_type: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """A configuration and all that it nests."""
    yield config_type
    for field in config_type.model_fields.values():
        for part in (field.annotation, *typing.get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from models(part)


@pytest.mark.parametrize("kind", registry.names("run_kind"))
def test_every_field_of_a_run_is_explained(kind: str) -> None:
    found = set(models(registry.get("run_kind", kind).config_class))  # type: ignore[attr-defined]
    assert len(found) >= {"eval": 5, "export": 1, "model_export": 1, "rescore": 2}.get(kind, 6)
    for model in found:
        assert [f for f, info in model.model_fields.items() if not info.description] == [], model


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_environment_keeps_the_contract(name: str) -> None:
    environment = made("environment", name)
    check_environment(environment)
    for part in (MisleadingHints, Demonstrator, Baselines):
        assert isinstance(environment, part)
    assert isinstance(environment, LeakVocabulary) or environment.stateful


@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("name", registry.names("teacher"))
def test_every_teacher_keeps_the_contract(name: str, environment: str) -> None:
    held = made("environment", environment)
    teacher = made("teacher", name, held, ModelPool(FakeBackend()))
    if teacher.unavailable_reason:
        (said,) = teacher.feedback([FeedbackRequest(held.task("train", 0), (), seed=0)])
        assert said.error and not said.text
    else:
        check_teacher(teacher, held)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("name", registry.names("leak_detector"))
def test_every_leak_detector_keeps_the_contract(name: str, environment: str) -> None:
    held = made("environment", environment)
    detector = made("leak_detector", name, held, ModelPool(Oracle(untold=-40.0)))
    supported = all(isinstance(held, part) for part in detector.requires)
    assert held.stateful or supported
    if supported:
        check_detector(detector, held)


@pytest.mark.parametrize("name", ["fake", "hf"])
def test_the_backends_keep_the_contract(name: str, tiny: Path) -> None:
    check_backend(made("backend", name, ModelConfig(name=str(tiny), dtype="float32", device="cpu")))


@pytest.mark.parametrize("name", registry.names("method"))
def test_every_method_keeps_the_contract(name: str) -> None:
    check_method(made("method", name))


@pytest.mark.parametrize("name", registry.names("run_kind"))
def test_every_kind_keeps_the_contract(name: str) -> None:
    check_kind(registry.get("run_kind", name)(), name)


# -- the registry --------------------------------------------------------------------------------------------------
def test_unknown_names_are_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match="Known: arithmetic, auto_explore, binary_matrix"):
        registry.get("environment", "chess")
    with pytest.raises(UnknownNameError, match="Unknown category of components"):
        registry.register("animal")(object)


def test_a_component_without_a_name_or_with_a_taken_one_is_refused() -> None:
    class Config(BaseModel):
        type: typing.Literal["arithmetic"] = "arithmetic"

    with pytest.raises(ConfigError, match="no nested Config"):
        registry.register("environment")(type("Nameless", (), {}))
    with pytest.raises(ConfigError, match="taken by rl2f_core"):
        registry.register("environment")(type("Copy", (), {"Config": Config}))
    assert registry.get("environment", "arithmetic").__module__ == "rl2f_core.environments.puzzles.numbers.arithmetic"


@pytest.mark.parametrize("name", ["no_such_module_anywhere", "no/such/file.py"])
def test_a_plugin_that_is_not_there_is_a_clear_error(name: str) -> None:
    try:
        with pytest.raises(ConfigError, match="RL2F_PLUGINS"):
            registry.load_plugin(name)
    finally:
        registry._discovered.discard(name)


# -- a new environment ---------------------------------------------------------------------------------------------
@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with loaded("doors", tmp_path, monkeypatch):
        yield


def command(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).resolve().parents[2])
    return subprocess.run(
        [sys.executable, "-c", "from app.cli import main; main()", *args], input=stdin, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": root}, timeout=300, check=False,
    )  # fmt: skip


def test_a_new_environment_is_one_file_of_forty_lines(plugin: None, tmp_path: Path) -> None:
    assert len(PLUGINS["doors"].splitlines()) <= 40
    assert "doors" in registry.names("environment")
    check_config("environment", "doors", tmp_path)
    environment = made("environment", "doors")
    check_environment(environment)
    for name in registry.names("teacher"):
        if not registry.get("teacher", name).unavailable_reason:
            check_teacher(made("teacher", name, environment, ModelPool(FakeBackend())), environment)


@pytest.mark.slow
def test_a_new_stateful_environment_is_one_file_of_forty_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(PLUGINS["corridor"].splitlines()) <= 40
    with loaded("corridor", tmp_path, monkeypatch):
        check_config("environment", "corridor", tmp_path)
        environment = made("environment", "corridor")
        check_environment(environment)
        for name in registry.names("teacher"):
            if not registry.get("teacher", name).unavailable_reason:
                check_teacher(made("teacher", name, environment, ModelPool(FakeBackend())), environment)
        check_detector(made("leak_detector", "exact", environment, ModelPool(FakeBackend())), environment)
        from app.cli import app

        schema = CliRunner().invoke(app, ["config", "schema"])
        assert schema.exit_code == 0 and "Number of the last cell of the corridor." in schema.stdout


@pytest.mark.slow
def test_the_command_line_knows_a_new_environment(plugin: None) -> None:
    from app.cli import app

    lines = [{"problem": "House 7: which door?", "answer": "3", "attempt": wrap_answer(n)} for n in ("3", "4", "x")]
    done = command("verify", "doors", "-", stdin="".join(json.dumps(line) + "\n" for line in lines))
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["correct"] for line in done.stdout.splitlines()] == [True, False, False]
    schema = CliRunner().invoke(app, ["config", "schema"])
    assert schema.exit_code == 0 and "How many doors a house has." in schema.stdout


def steps_of(events: Sequence[Any]) -> list[tuple[str, int]]:
    return [(e.stage, e.step) for e in events if isinstance(e, MetricEvent)]


def test_a_new_environment_can_be_trained_on_at_once(plugin: None, tiny: Path, tmp_path: Path) -> None:
    more = {"steps": 1, "tasks_per_step": 2, "group_size": 2}
    config = run_config(
        environment="doors",
        model={"name": str(tiny), "dtype": "float32", "device": "cpu"},
        rollout={"max_turns": 2, "max_new_tokens": 8, "max_seq_len": 512},
        stages=[{"name": "warm", "method": "sft", **more}, {"name": "rl", "method": "rl2f", **more}],
        evaluation={"checkpoints": []},
        preflight={"num_tasks": 2, "samples_per_task": 2, "ignore_failure": True},
    )
    run_dir = RunDir.create(tmp_path / "run", config)
    assert execute(config, run_dir, JsonlSink(run_dir.events_path), lambda: False).status == "succeeded"
    events = list(read_events(run_dir.events_path, strict=True))
    assert steps_of(events) == [("warm", 1), ("rl", 1)]
    assert run_dir.checkpoint_names() == ["warm@1", "rl@1"] == [e.name for e in events if e.type == "checkpoint"]
    (said,) = [e for e in events if isinstance(e, LogEvent) and e.id == "preflight:rl"]
    assert said.level == "warning" and "first attempts are parsable" in said.text  # failed, overridden, recorded
