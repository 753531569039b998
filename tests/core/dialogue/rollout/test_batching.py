"""Lock-step and continuous play the same dialogues, at any batch size and with any teacher; nobody waits in vain."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from rl2f_core import registry
from rl2f_core.config.fields import BaseConfig
from rl2f_core.config.leaks import LeaksConfig
from rl2f_core.config.model import ModelConfig
from rl2f_core.config.rollout import RewardConfig, RolloutConfig
from rl2f_core.dialogue.rollout.engine import RolloutEngine, RolloutRequest, StudentPolicy
from rl2f_core.dialogue.rollout.leak_guard import LeakGuard
from rl2f_core.dialogue.teachers.base import Feedback, FeedbackRequest, Teacher
from rl2f_core.environments.base import Environment
from rl2f_core.models.backends import concurrency
from rl2f_core.models.backends.base import GenerationRequest, SamplingParams
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.models.backends.hf.backend import HFBackend
from rl2f_core.models.backends.hf.decoder import ContinuousBatchingDecoder
from rl2f_core.models.backends.model_pool import ModelPool
from rl2f_core.models.modeling import logprobs as model_logprobs
from rl2f_core.models.renderer import ChatRenderer
from rl2f_core.types import Rollout, StopReason, Task, Verdict

ADAPTER = "policy"


def write_adapter(tiny: Path, made: Path, seed: int) -> Path:
    """A LoRA adapter on the tiny model whose weights matter."""
    import torch
    from safetensors.torch import load_file, save_file

    base = load_file(tiny / "model.safetensors")
    (made / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4}))
    chance = torch.Generator().manual_seed(seed)
    weights = {}
    for name, weight in base.items():
        if name.endswith(("q_proj.weight", "up_proj.weight")):
            for half, shape in (("A", (2, weight.shape[1])), ("B", (weight.shape[0], 2))):
                key = f"base_model.model.{name.removesuffix('.weight')}.lora_{half}.weight"
                weights[key] = torch.randn(shape, generator=chance) * 0.3
    save_file(weights, made / "adapter_model.safetensors")
    return made


@pytest.fixture(scope="module")
def backends(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, HFBackend]:
    """By how speakers share the model; `fixed` decodes over static shapes and merges in place."""
    folders = [write_adapter(tiny, tmp_path_factory.mktemp("adapter"), seed) for seed in (1, 2)]
    made = {}
    for speakers in ("merged", "batched", "auto", "fixed"):
        fixed: dict[str, Any] = {"multi_lora": "merged", "cuda_graphs": "on"}
        config = HFBackend.Config(**(fixed if speakers == "fixed" else {"multi_lora": speakers}))
        made[speakers] = HFBackend(config, ModelConfig(name=str(tiny), dtype="float32", device="cpu"))
        made[speakers].load_adapter(ADAPTER, folders[0])
        made[speakers].load_adapter("other", folders[1])
    return made


@pytest.fixture(autouse=True)
def uneven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models end their turns after anything from one token to the limit."""
    plain = model_logprobs.compute_logits

    def ending(model: Any, hidden: Any) -> Any:
        out = plain(model, hidden)
        out[:, 2] += 4.0
        return out

    monkeypatch.setattr(model_logprobs, "compute_logits", ending)


def chancy(name: str) -> Environment:
    """An environment in which words of nothing are right now and then, so that dialogues end at different turns."""
    kind: Any = registry.get("environment", name)

    class Chancy(kind):  # type: ignore[misc]
        def verify(self, task: Task, attempt: str) -> Verdict:
            if sum(attempt.encode()) % 5 == 0:
                return Verdict(correct=True, score=1.0, parsed=self.gold_answer(task))
            return super().verify(task, attempt)

    return Chancy(kind.Config())


def engine_of(
    backend: Any, environment: Environment, teacher: dict[str, Any] | Teacher, **rollout: Any
) -> RolloutEngine:
    if isinstance(teacher, dict):
        kind: Any = registry.get("teacher", teacher["type"])
        teacher = kind(kind.Config(**teacher), environment, ModelPool(backend))
    return RolloutEngine(
        environment=environment, teacher=teacher, backend=backend,
        guard=LeakGuard.from_config(LeaksConfig(), environment),
        renderer=ChatRenderer(backend.tokenizer, environment.system_prompt()), reward=RewardConfig(),
        config=RolloutConfig(**{"max_turns": 3, "max_new_tokens": 10, "max_seq_len": 2000, **rollout}),
    )  # fmt: skip


def asked(environment: Environment, count: int = 10) -> list[RolloutRequest]:
    """Groups of three, with different numbers of turns."""
    tasks = [environment.task("train", i) for i in range(1 + count // 3)]
    return [
        RolloutRequest(tasks[i // 3], f"d{i}", f"g{i // 3}", i % 3, 100 + i, max_turns=(None, 1, 4, 2)[i % 4])
        for i in range(count)
    ]


def content(rollouts: Sequence[Rollout]) -> list[Any]:
    """Everything but how long it took, and the log-probabilities."""
    found = []
    for rollout in rollouts:
        turns = [
            (
                t.token_ids,
                t.attempt,
                t.finish_reason,
                t.verdict,
                t.prompt_template,
                t.hint and t.hint.model_copy(update={"usage": None}),
            )
            for t in rollout.dialogue.turns
        ]
        streams = [(s.token_ids, s.student_mask, s.turn_ids) for s in rollout.sequences]
        found.append((rollout.dialogue.id, rollout.dialogue.stop_reason, rollout.dialogue.error, turns, streams))
    return found


def logprobs(rollouts: Sequence[Rollout]) -> list[float]:
    return [p for rollout in rollouts for stream in rollout.sequences for p in stream.logprobs]


LOCAL = {"type": "llm", "max_new_tokens": 7, "temperature": 1.0}
SELF = {"type": "self_critique", "max_new_tokens": 7}


@pytest.mark.parametrize(
    ("environment", "prompting", "teacher", "adapter"),
    [
        pytest.param("guess_number", "append", {"type": "scripted"}, None, marks=pytest.mark.slow),
        ("secret_code", "reprompt", {"type": "scripted"}, ADAPTER),
        pytest.param("arithmetic", "append", LOCAL, ADAPTER, marks=pytest.mark.slow),
        pytest.param("guess_number", "reprompt", LOCAL, None, marks=pytest.mark.slow),
        pytest.param("secret_code", "append", SELF, ADAPTER, marks=pytest.mark.slow),
    ],
)
def test_batching_concurrency_and_multi_lora_change_no_token_of_a_dialogue(
    backends: dict[str, HFBackend], environment: str, prompting: str, teacher: dict[str, Any], adapter: str | None
) -> None:
    held = chancy(environment)
    requests = asked(held, 6)

    def run(batching: str, max_concurrent: int, multi_lora: str = "merged") -> list[Rollout]:
        engine = engine_of(
            backends[multi_lora], held, teacher, batching=batching, max_concurrent=max_concurrent, prompting=prompting
        )
        return engine.run(requests, adapter=adapter)

    expected = run("static", 128)
    assert len({len(turns) for *_, turns, _ in content(expected)}) > 2
    assert len({len(tokens) for *_, turns, _ in content(expected) for tokens, *_ in turns}) > 4
    ways: list[Any] = [("static", 4), ("continuous", 128), ("continuous", 4), ("continuous", 5, "fixed")]
    more = ("continuous", 5, "batched") if teacher is LOCAL else ("continuous", 1)
    for way in [*ways, *([more] if teacher is not SELF else [])]:
        rollouts = run(*way)
        assert content(rollouts) == content(expected), way
        assert logprobs(rollouts) == pytest.approx(logprobs(expected), abs=1e-4)
    assert not backends["merged"]._decoder.pending and not backends["merged"]._decoder.keys


@pytest.mark.slow
def test_the_real_model_samples_alike_in_both_batching_modes_with_the_learners_logprobs(smollm2: Path) -> None:
    import torch

    model = ModelConfig(name=str(smollm2), dtype="float32", device="cpu")
    backend, held = HFBackend(HFBackend.Config(), model), chancy("guess_number")
    engine = engine_of(backend, held, {"type": "scripted"}, max_concurrent=4)
    rollouts = engine.run(asked(held, 6))
    static = replace(engine, config=engine.config.model_copy(update={"batching": "static"}))
    pairs = zip(content(static.run(asked(held, 6))), content(rollouts), strict=True)
    assert sum(a == b for a, b in pairs) >= 4  # in 49,152 words a last digit decides now and then
    streams = [rollout.sequences[0] for rollout in rollouts]
    rows = [s.token_ids for s in streams]
    ids_BT, attention_mask_BT = model_logprobs.right_padded(rows, backend.pad_id, backend.device)
    wanted_BT = torch.zeros_like(attention_mask_BT)
    for i, stream in enumerate(streams):
        wanted_BT[i, : len(stream.student_mask)] = torch.tensor(stream.student_mask)
    banned = backend._decoder.banned
    with torch.inference_mode():
        logp_N, _ = model_logprobs.selected_logprobs(backend.model, ids_BT, attention_mask_BT, wanted_BT, banned=banned)
    said = [p for s in streams for p, student in zip(s.logprobs, s.student_mask, strict=True) if student]
    assert len(said) > 60 and logp_N.tolist() == pytest.approx(said, abs=1e-3)


# -- no wasted work --------------------------------------------------------------------------------------------------
class Drew(NamedTuple):
    """A token of a turn."""

    key: str
    number: int
    last: bool


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[list[Drew]]:
    """The tokens of every step."""
    found: list[list[Drew]] = []
    plain = ContinuousBatchingDecoder.step

    def step(self: ContinuousBatchingDecoder, *args: Any) -> list[Any]:
        turns = plain(self, *args)
        found.append([Drew(t.prompt.cache_key, len(t.token_ids), t.generation is not None) for t in turns])
        return turns

    monkeypatch.setattr(ContinuousBatchingDecoder, "step", step)
    return found


def test_no_slot_is_empty_while_a_dialogue_waits_and_each_token_is_computed_once(
    backends: dict[str, HFBackend], steps: list[list[Drew]]
) -> None:
    held, backend = chancy("guess_number"), backends["merged"]
    requests = asked(held, 16)
    engine = engine_of(backend, held, {"type": "scripted"}, max_concurrent=6)
    before = backend._decoder.num_forward_tokens
    rollouts = engine.run(requests)
    drawn = [len(tokens) for tokens in steps]
    last = next(i for i, tokens in enumerate(steps) if any(t.key == "d15" for t in tokens))
    joining = {i + 1 for i, tokens in enumerate(steps) if any(t.last for t in tokens)}
    full = [count for i, count in enumerate(drawn[:last]) if i > 2 and i not in joining]
    assert full and set(full) == {6}  # who joins may wait a step for another that reads the same
    streams = [rollout.sequences[0] for rollout in rollouts]
    needed = 0
    for stream in streams:  # all but what the student said last, which nobody reads
        needed += len(stream.token_ids) - 1
    openings = [engine.renderer.initial_prompt(held.prompt(r.task.public)) for r in requests]
    read = backend._decoder.num_forward_tokens - before
    assert read < needed - sum(map(len, openings)) + 8 * max(map(len, openings)) + len(requests)
    static = replace(engine, config=engine.config.model_copy(update={"batching": "static"}))
    steps.clear()
    static.run(requests)
    assert len(steps) > len(drawn)


def test_hints_and_attempts_of_one_base_are_generated_in_the_same_steps(
    backends: dict[str, HFBackend], steps: list[list[Drew]]
) -> None:
    held = chancy("guess_number")
    for speakers, adapter in (("merged", None), ("batched", ADAPTER)):
        engine_of(backends[speakers], held, LOCAL, max_concurrent=6).run(asked(held), adapter=adapter)
        kinds = [{bool(token.key) for token in tokens} for tokens in steps]
        assert kinds.count({True, False}) > 5 and {True} in kinds  # a teacher's prompts have no key
        steps.clear()


def test_students_in_one_call_generate_what_each_generates_alone(
    backends: dict[str, HFBackend], steps: list[list[Drew]]
) -> None:
    held, backend = chancy("guess_number"), backends["auto"]
    students = [StudentPolicy(ADAPTER, "rl@3"), StudentPolicy("other", "rl@6"), StudentPolicy()]
    engine = engine_of(backend, held, {"type": "self_critique", "max_new_tokens": 7})
    requests = asked(held, 4)
    alone = [engine.run(requests, adapter=s.adapter, policy=s.policy) for s in students]
    assert len({json.dumps([t[0] for *_, turns, _ in content(played) for t in turns]) for played in alone}) == 3
    steps.clear()
    played = engine.run([replace(request, student=s) for s in students for request in requests])
    assert content(played) == [one for rollouts in alone for one in content(rollouts)]
    assert [rollout.dialogue.policy for rollout in played] == [s.policy for s in students for _ in requests]
    speaking = [{token.key.partition(" ")[2] for token in tokens if token.key} for tokens in steps]
    assert {ADAPTER, "other", "None"} in speaking
    assert not backend._decoder.pending and not any(backend._decoder.keys)


def test_adapters_share_a_step_only_if_merging_is_not_enough(backends: dict[str, HFBackend]) -> None:
    kinds = ({None}, {ADAPTER}, {None, ADAPTER}, {ADAPTER, "other"}, {None, ADAPTER, "other"})
    found = {name: [backend._uses_batched_lora(kind) for kind in kinds] for name, backend in backends.items()}
    assert found == {
        "merged": [False] * 5,
        "fixed": [False] * 5,
        "batched": [False, False, True, True, True],
        "auto": [False, False, False, True, True],
    }


def test_prompts_may_join_and_differ_in_sampling_and_adapter(backends: dict[str, HFBackend]) -> None:
    backend = backends["merged"]
    start = tuple(backend.tokenizer.encode("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"))
    first, second = GenerationRequest(start, 1, "a"), GenerationRequest((*start, 9, 8), 2)
    kinds = (SamplingParams(12, 1.3), None), (SamplingParams(5, 0.7, 0.8), ADAPTER)
    with backend.session() as session:
        (one,) = session.submit([first], *kinds[0])
        session.step()
        (two,) = session.submit([second], *kinds[1])
        while session.has_unfinished:
            session.step()
    backend.reset_prefix_cache()
    for ticket, prompt, kind in ((one, first, kinds[0]), (two, second, kinds[1])):
        (alone,) = backend.generate([prompt], *kind)
        assert ticket.generation is not None and ticket.generation.token_ids == alone.token_ids
    with backend.session() as session:
        session.submit([first], *kinds[0])
    assert not backend._decoder.pending  # a session that closes gives up what is under way


# -- slow teachers ---------------------------------------------------------------------------------------------------
class Slow(Teacher):
    """Answers about its first task only after another dialogue has ended."""

    class Config(BaseConfig):
        """Settings of the slow teacher."""

        type: Literal["slow"] = "slow"
        breaks_on: str = ""

    runs_async = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.other = threading.Event()
        self.together = self.alone = 0

    def feedback(self, requests: Sequence[FeedbackRequest]) -> list[Feedback]:
        self.alone += 1
        assert self.alone == 1  # one thread at a time, except where it waits
        if any(r.task.id == self.config.breaks_on for r in requests):
            self.alone -= 1
            raise RuntimeError("the teacher broke")
        if requests[0].task.id.endswith("0") and len(requests[0].turns) == 1:
            self.alone -= 1
            with concurrency.lock_released(self.other):
                self.together += self.other.wait(20)
            self.alone += 1
        self.alone -= 1
        return [Feedback("Hm.") for _ in requests]


def waiting_engine(**config: Any) -> tuple[RolloutEngine, Slow, list[RolloutRequest]]:
    kind: Any = registry.get("environment", "guess_number")
    environment = kind(kind.Config())
    teacher = Slow(Slow.Config(**config), environment)
    engine = engine_of(FakeBackend(FakeBackend.Config(replies=("no",))), environment, teacher, max_concurrent=3)
    tasks = [environment.task("train", 0).model_copy(update={"id": f"t{i}"}) for i in range(8)]
    return engine, teacher, [RolloutRequest(task, task.id, task.id, 0, i) for i, task in enumerate(tasks)]


def test_no_dialogue_waits_for_a_slow_hint_of_another() -> None:
    engine, teacher, requests = waiting_engine()

    def advanced(ended: int, total: int) -> None:
        if ended == total - 1:  # all the others have played their three turns meanwhile
            teacher.other.set()

    played = engine.run(requests, on_progress=advanced)
    assert teacher.together == 1
    assert [len(r.dialogue.turns) for r in played] == [3] * 8
    assert [r.dialogue.id for r in played] == [r.id for r in requests]


def test_an_asynchronous_teacher_error_ends_only_its_dialogue() -> None:
    engine, teacher, requests = waiting_engine(breaks_on="t4")
    teacher.other.set()
    played = [r.dialogue for r in engine.run(requests)]
    assert [d.stop_reason for d in played] == [
        StopReason.FAILED if d.id == "t4" else StopReason.EXHAUSTED for d in played
    ]
    assert played[4].error == "RuntimeError: the teacher broke"


def test_an_interrupted_rollout_leaves_no_thread_behind() -> None:
    engine, teacher, requests = waiting_engine()
    before = set(threading.enumerate())

    def advanced(ended: int, total: int) -> None:
        if ended >= 3:
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        engine.run(requests, on_progress=advanced)
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
        assert not thread.is_alive()
    assert teacher.other.is_set() and time.monotonic() - began < 10


class Gathering(FakeBackend):
    """Another model than the student's: how many prompts it is given at once. It breaks on the first of them."""

    breaks = False

    def generate(self, prompts: Any, *args: Any) -> Any:
        self.sizes = [*getattr(self, "sizes", []), len(prompts)]
        self.first = getattr(self, "first", prompts[0].seed)
        if self.breaks and any(prompt.seed == self.first for prompt in prompts):
            raise MemoryError("no room")
        return super().generate(prompts, *args)


@pytest.mark.parametrize("breaks", [False, True])
def test_concurrent_requests_of_teachers_form_one_batch_and_fail_alone(
    breaks: bool,
) -> None:
    kind: Any = registry.get("environment", "guess_number")
    environment = kind(kind.Config())
    student, other = FakeBackend(FakeBackend.Config(replies=("no",))), Gathering(FakeBackend.Config(replies=("Hm.",)))
    other.breaks = breaks
    models, name = ModelPool(student), ModelConfig(name="other")
    models._backends[name] = other
    teacher: Any = registry.get("teacher", "llm")
    made = teacher(teacher.Config(llm={"type": "local", "model": {"name": "other"}}), environment, models)
    played = [r.dialogue for r in engine_of(student, environment, made, max_turns=2).run(asked(environment, 8))]
    failed = [d for d in played if d.stop_reason is StopReason.FAILED]
    assert [d.error for d in failed] == ["MemoryError: no room"] * breaks
    first = sum(d.turns[0].hint is not None for d in played) + len(failed)
    assert other.sizes[0] == first >= 5  # all that were wrong at their first turn
    if not breaks:
        assert sum(other.sizes) == sum(turn.hint is not None for d in played for turn in d.turns)


# -- the cooperative lock ------------------------------------------------------------------------------------------
@pytest.fixture
def said() -> Iterator[list[str]]:
    yield []


def test_threads_run_one_at_a_time_in_first_in_first_out_order(said: list[str]) -> None:
    gate = threading.Event()

    def work(name: str) -> None:
        said.append(f"{name} begins")
        with concurrency.lock_released():
            gate.wait(10)
        said.append(f"{name} ends")

    with concurrency.CooperativeLock() as held:
        assert not concurrency.in_cooperative_thread()
        for name in "ab":
            held.spawn(work, name)
        while len(said) < 2:
            held.yield_lock(wait=True)
        assert sorted(said) == ["a begins", "b begins"]
        said.append("main")
        gate.set()
        time.sleep(0.05)
        assert said[2:] == ["main"]  # no thread runs without the lock
        while len(said) < 5:
            held.yield_lock(wait=True)
    assert sorted(said[3:]) == ["a ends", "b ends"]
