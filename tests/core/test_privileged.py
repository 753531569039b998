"""Properties over every environment and teacher: the privileged half stays with teacher and verifier."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from environment_params import ENVIRONMENTS, NAMES, WORKERS

from rl2f_core import registry
from rl2f_core.config.loading import parse_config
from rl2f_core.config.model import ModelConfig
from rl2f_core.dialogue.rollout.build import build_engine, build_environment
from rl2f_core.dialogue.rollout.engine import RolloutEngine, RolloutRequest, derive_seed
from rl2f_core.environments.base import Environment
from rl2f_core.learning.methods.base import StepContext
from rl2f_core.models.backends.base import Backend, Generation, GenerationRequest, SamplingParams
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.models.backends.hf.backend import HFBackend
from rl2f_core.types import Group, Rollout, Task

ELSEWHERE = ("human", "self_critique", "shuffled")
"""Those that no run can name, and one that speaks through the student's own backend."""
TEACHERS = [name for name in registry.names("teacher") if name not in ELSEWHERE]
OTHER_MODEL = {"llm": {"type": "llm", "llm": {"type": "local", "model": {"name": "another"}}, "max_new_tokens": 40}}
"""A teacher's model has a backend of its own here, so that the student's prompts stay apart from the teacher's."""
SETTINGS = {**OTHER_MODEL, "leaky at rate 0": {"type": "leaky", "rate": 0}}
METHODS = ["rl2f", "rlvr", "reinforce_pp"]
"""Those whose rows are whole dialogues; what the rows of the others weigh is part of their contract."""
SENTINEL = "PRIVILEGED-7731-SENTINEL"
QUOTED = {"dataset": ("solution",)}
"""Privileged values whose sentences are the scripted hints of an environment."""
GARBAGE = ("I do not know.", "", "<answer>", "<answer>??</answer>", "<|im_end|>", "Correct so far:")


class Recording(FakeBackend):
    """Keeps the prompts as tokens."""

    def generate(
        self, prompts: Sequence[GenerationRequest], sampling: SamplingParams, adapter: str | None = None
    ) -> list[Generation]:
        self.prompts = [*getattr(self, "prompts", []), *prompts]
        return super().generate(prompts, sampling, adapter)


class Student:
    """Wrong attempts of the environment's imperfect student, now and then a right one, and garbage."""

    def __init__(self, environment: Environment, tasks: Sequence[Task]) -> None:
        self.pools: dict[str, list[str]] = {}
        for task in tasks:
            rng = random.Random(f"pool/{task.id}")
            pool = [environment.simulate_attempt(task, [], rng, follow_hint=False, correct=k == 8) for k in range(9)]
            self.pools[environment.prompt(task.public)] = [*pool, *GARBAGE]

    def __call__(self, text: str, rng: random.Random) -> str:
        return rng.choice(next(pool for problem, pool in self.pools.items() if problem in text))


def make_engine(environment: str, teacher: str, backend: Backend | None = None, **changes: Any) -> RolloutEngine:
    data = {
        "environment": environment,
        "teacher": SETTINGS.get(teacher, teacher),
        "backend": "fake" if backend is None else "hf",
        "rollout": {"max_turns": 4, "max_new_tokens": 600, "max_seq_len": 4096},
        "stages": [{"name": "s", "method": "sft", "steps": 1}],
    }
    return build_engine(parse_config(data | changes), backend or Recording())


def play(engine: RolloutEngine, tasks: Sequence[Task], size: int = 3) -> list[Group]:
    requests = [RolloutRequest(t, f"{t.id}/{j}", t.id, j, derive_seed(t.id, j)) for t in tasks for j in range(size)]
    rollouts = engine.run(requests)
    return [Group(task, tuple(rollouts[i * size : (i + 1) * size])) for i, task in enumerate(tasks)]


@functools.cache
def played(environment: str, teacher: str) -> tuple[RolloutEngine, list[Group]]:
    """Four groups, to be read by every test and changed by none."""
    engine = make_engine(environment, teacher)
    tasks = [engine.environment.task("train", i) for i in range(4)]
    engine.backend.script = Student(engine.environment, tasks)  # type: ignore[attr-defined]
    return engine, play(engine, tasks)


def rollouts_of(groups: Sequence[Group]) -> Iterator[tuple[Task, Rollout]]:
    for group in groups:
        for rollout in group.rollouts:
            yield group.task, rollout


def leaves(value: Any) -> Iterator[str]:
    """Every plain value inside the privileged half, as text."""
    if isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    else:
        yield str(value)


def holds(text: str, words: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text) is not None


def poisoned(value: Any) -> Any:
    """The same shape with every value replaced by the sentinel."""
    if isinstance(value, dict):
        return {key: poisoned(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [poisoned(item) for item in value]
    return SENTINEL


everything = pytest.mark.parametrize("environment", ENVIRONMENTS)


def with_teachers() -> Iterator[Any]:
    """Every environment with every teacher; all but the scripted teacher and every fourth other pair are slow."""
    for i, environment in enumerate(NAMES):
        for j, teacher in enumerate(TEACHERS):
            marks = [pytest.mark.xdist_group("workers")] if environment in WORKERS else []
            if teacher != "scripted" and (i + j) % 4:
                marks.append(pytest.mark.slow)
            yield pytest.param(environment, teacher, marks=marks)


by_teacher = pytest.mark.parametrize(("environment", "teacher"), list(with_teachers()))


@by_teacher
def test_a_prompt_is_made_of_the_public_half_the_attempts_and_the_guarded_hints_alone(
    environment: str, teacher: str
) -> None:
    engine, groups = played(environment, teacher)
    tokenizer, renderer = engine.backend.tokenizer, engine.renderer
    given = {(p.cache_key, len(p.token_ids)): p.token_ids for p in engine.backend.prompts}  # type: ignore[attr-defined]
    count = 0
    for task, rollout in rollouts_of(groups):
        messages = renderer.messages(engine.environment.prompt(task.public))
        for turn in rollout.dialogue.turns:
            wanted = tokenizer.encode(tokenizer.apply_chat_template(messages, add_generation_prompt=True))
            assert given[rollout.dialogue.id, len(wanted)] == tuple(wanted)
            count += 1
            messages.append({"role": "assistant", "content": turn.attempt})
            if turn.hint is not None:
                messages.append({"role": "user", "content": turn.reply})
    assert count == len(given) > len(list(rollouts_of(groups)))


@by_teacher
def test_no_privileged_text_reaches_a_prompt_that_the_student_did_not_write(environment: str, teacher: str) -> None:
    engine, groups = played(environment, teacher)
    hints = 0
    for task, rollout in rollouts_of(groups):
        secrets = {engine.environment.gold_answer(task), *leaves(task.privileged)}
        own = [engine.environment.system_prompt(), engine.environment.prompt(task.public)]
        for turn in rollout.dialogue.turns:
            own.append(turn.attempt)
            if turn.hint is None:
                continue
            hints += 1
            assert turn.verdict.detail not in turn.hint.text
            assert turn.hint.planted is None or teacher == "leaky"
            if turn.hint.planted is not None:  # it reveals the answer on purpose
                continue
            for secret in secrets:
                assert not holds(turn.hint.text, secret) or any(holds(text, secret) for text in own)
    assert hints > 20


@everything
def test_the_scripted_teacher_never_leaks_by_its_own_detectors(environment: str) -> None:
    _, groups = played(environment, "scripted")
    reports = [t.hint.leak for _, r in rollouts_of(groups) for t in r.dialogue.turns if t.hint is not None]
    assert len(reports) > 20 and all(report is not None and not report.leaked for report in reports)


def twin(environment: Environment, task: Task, others: Callable[[int], Task]) -> Task | None:
    """A task that looks the same to the student and has another answer; none in an environment with a state."""
    for index in range(0 if environment.stateful else 100):
        other = others(index)
        if environment.gold_answer(other) != environment.gold_answer(task):
            changed = task.model_copy(update={"privileged": other.privileged})
            if environment.verify(changed, f"<answer>{environment.gold_answer(other)}</answer>").correct:
                return changed
    return None


@everything
def test_the_same_public_half_gives_the_same_prompts_whatever_the_answer_is(environment: str) -> None:
    """With a teacher that says nothing and attempts that are wrong on both, every prompt is the same."""
    engine = make_engine(environment, "contentless")
    train_task = functools.cache(functools.partial(engine.environment.task, "train"))
    compared = 0
    for index in range(6):
        task = train_task(index)
        other = twin(engine.environment, task, train_task)
        poison = task.model_copy(update={"privileged": poisoned(task.privileged)})
        versions = [task, poison] + ([other] if other is not None else [])
        seen = []
        for version in versions:
            assert engine.environment.prompt(version.public) == engine.environment.prompt(task.public)
            backend = Recording(FakeBackend.Config(replies=("I do not know.", "<answer>??</answer>", "", "Hm.")))
            replace(engine, backend=backend).run([RolloutRequest(version, "d", "g", 0, 3)])
            seen.append([prompt.token_ids for prompt in backend.prompts])
            compared += 1
        assert all(prompts == seen[0] and len(prompts) == 4 for prompts in seen)
    assert compared >= 12


@by_teacher
def test_a_sentinel_in_the_privileged_half_is_never_shown(environment: str, teacher: str) -> None:
    """Attempts that cannot be read ask nothing of the answer, so even a nonsense answer plays to the end.

    A planted leak shows the answer on purpose, so teacher `leaky` plants none here.
    """
    engine = make_engine(environment, "leaky at rate 0" if teacher == "leaky" else teacher)
    tasks = [engine.environment.task("train", i) for i in range(3)]
    quoted = QUOTED.get(environment, ()) if teacher in ("scripted", "leaky") else ()
    kept = [{key: task.privileged[key] for key in quoted} for task in tasks]
    poison = [
        t.model_copy(update={"privileged": {**poisoned(t.privileged), **k}}) for t, k in zip(tasks, kept, strict=True)
    ]
    engine.backend.script = lambda text, rng: rng.choice(GARBAGE)  # type: ignore[attr-defined]
    groups = play(engine, poison, size=2)
    assert engine.backend.seen and not any(SENTINEL in text for text in engine.backend.seen)  # type: ignore[attr-defined]
    if teacher == "contentless":
        assert all(len(rollout.dialogue.turns) == 4 for _, rollout in rollouts_of(groups))
    for _, rollout in rollouts_of(groups):
        assert all(turn.hint is None or SENTINEL not in turn.hint.text for turn in rollout.dialogue.turns)


@everything
def test_a_sentinel_that_a_verifier_names_in_its_verdict_stays_there(environment: str) -> None:
    """Even where an attempt can be read and the verifier breaks on the nonsense, nothing of it goes on."""
    engine = make_engine(environment, "contentless")
    tasks = [engine.environment.task("train", i) for i in range(3)]
    student = Student(engine.environment, tasks)
    student.pools = {problem: pool[:8] for problem, pool in student.pools.items()}
    engine.backend.script = student  # type: ignore[attr-defined]
    play(engine, [t.model_copy(update={"privileged": poisoned(t.privileged)}) for t in tasks], size=2)
    assert not any(SENTINEL in text for text in engine.backend.seen)  # type: ignore[attr-defined]


@by_teacher
def test_teacher_tokens_never_carry_weight(environment: str, teacher: str) -> None:
    engine, groups = played(environment, teacher)
    streams = {r.dialogue.id: r.sequences[0] for _, r in rollouts_of(groups)}
    for method in METHODS:
        held = registry.get("method", method)
        made = held(held.Config(kl_coef=0.1))  # type: ignore[attr-defined]
        made.begin_step(StepContext.of(engine, 0, 1))
        rows = tokens = 0
        for sample in (s for group in groups for s in made.samples(group)):
            rows += 1
            stream = streams[sample.dialogue]
            assert tuple(sample.token_ids) == stream.token_ids[: len(sample.token_ids)]
            for i in range(len(sample.token_ids)):
                weighted = sample.rl_weights[i] or sample.kl_weights[i] or sample.ce_weights[i] or sample.advantages[i]
                assert not weighted or stream.student_mask[i]
                assert sample.policy_mask[i] == stream.student_mask[i]
                tokens += bool(sample.rl_weights[i] or sample.kl_weights[i])
        assert rows > 0 and tokens > 0, method


@by_teacher
def test_what_the_model_was_given_is_a_prefix_of_the_stream(environment: str, teacher: str) -> None:
    engine, groups = played(environment, teacher)
    streams = {r.dialogue.id: r for _, r in rollouts_of(groups)}
    lengths: dict[str, list[int]] = {}
    for prompt in engine.backend.prompts:  # type: ignore[attr-defined]
        stream = streams[prompt.cache_key].sequences[0]
        assert stream.token_ids[: len(prompt.token_ids)] == prompt.token_ids
        lengths.setdefault(prompt.cache_key, []).append(len(prompt.token_ids))
    for key, rollout in streams.items():
        starts = [
            i
            for i, student in enumerate(rollout.sequences[0].student_mask)
            if student and not rollout.sequences[0].student_mask[i - 1]
        ]  # fmt: skip
        assert starts == lengths[key] and len(starts) == len(rollout.dialogue.turns)


@pytest.fixture(scope="module")
def tiny_backend(tiny: Path) -> HFBackend:
    class RecordingHF(HFBackend):
        """Keeps prompts and answers."""

        def submit(
            self, prompts: Sequence[GenerationRequest], sampling: SamplingParams, adapter: str | None
        ) -> list[Any]:
            tickets = super().submit(prompts, sampling, adapter)
            self.asked = [*getattr(self, "asked", []), *tickets]
            return tickets

    return RecordingHF(HFBackend.Config(), ModelConfig(name=str(tiny), dtype="float32", device="cpu"))


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param(name, marks=pytest.mark.slow) if isinstance(name, str) and number % 5 else name
        for number, name in enumerate(ENVIRONMENTS)
    ],
)
def test_a_real_tokenizer_is_given_the_streams_tokens_too(environment: str, tiny_backend: Any) -> None:
    tiny_backend.asked = []
    settings = {"max_turns": 3, "max_new_tokens": 12, "max_seq_len": 2048}
    engine = make_engine(environment, "scripted", tiny_backend, rollout=settings)
    tasks = [build_environment(engine.environment.config).task("train", i) for i in range(2)]
    groups = play(engine, tasks, size=2)
    streams = {r.dialogue.id: r.sequences[0] for _, r in rollouts_of(groups)}
    assert len(tiny_backend.asked) >= 8
    for prompt, said in ((ticket.prompt, ticket.generation) for ticket in tiny_backend.asked):
        stream, start = streams[prompt.cache_key], len(prompt.token_ids)
        end = start + len(said.token_ids)
        assert stream.token_ids[:start] == prompt.token_ids and stream.token_ids[start:end] == said.token_ids
        assert all(stream.student_mask[start:end]) and not any(stream.student_mask[end : end + 1])
        assert stream.logprobs[start:end] == said.logprobs
    for task, rollout in rollouts_of(groups):
        text = tiny_backend.tokenizer.hf.decode(list(rollout.sequences[0].token_ids))
        assert engine.environment.prompt(task.public) in text
