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

from rl2f_core import baton, registry
from rl2f_core.backends import _torch
from rl2f_core.backends._decode import Decoder
from rl2f_core.backends.base import Prompt, Sampling
from rl2f_core.backends.fake import FakeBackend
from rl2f_core.backends.hf import HFBackend
from rl2f_core.backends.pool import Models
from rl2f_core.config import BaseConfig, LeaksConfig, ModelConfig, RewardConfig, RolloutConfig
from rl2f_core.environments.base import Environment
from rl2f_core.leaks.guard import LeakGuard
from rl2f_core.rollout.engine import Request, RolloutEngine, Student
from rl2f_core.rollout.render import Renderer
from rl2f_core.teachers.base import Feedback, FeedbackRequest, Teacher
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
    """By how speakers share the model."""
    folders = [write_adapter(tiny, tmp_path_factory.mktemp("adapter"), seed) for seed in (1, 2)]
    made = {}
    for speakers in ("in_turns", "together", "auto"):
        config = HFBackend.Config(speakers=speakers)  # type: ignore[arg-type]
        made[speakers] = HFBackend(config, ModelConfig(name=str(tiny), dtype="float32", device="cpu"))
        made[speakers].load_adapter(ADAPTER, folders[0])
        made[speakers].load_adapter("other", folders[1])
    return made


@pytest.fixture(autouse=True)
def uneven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models end their turns after anything from one token to the limit."""
    plain = _torch.logits_of

    def ending(model: Any, hidden: Any) -> Any:
        out = plain(model, hidden)
        out[:, 2] += 4.0
        return out

    monkeypatch.setattr(_torch, "logits_of", ending)


def chancy(name: str) -> Environment:
    """An environment in which words of nothing are right now and then, so that dialogues end at different turns."""
    kind: Any = registry.get("environment", name)

    class Chancy(kind):  # type: ignore[misc]
        def verify(self, task: Task, attempt: str) -> Verdict:
            if sum(attempt.encode()) % 5 == 0:
                return Verdict(correct=True, score=1.0, parsed=attempt)
            return super().verify(task, attempt)

    return Chancy(kind.Config())


def engine_of(
    backend: Any, environment: Environment, teacher: dict[str, Any] | Teacher, **rollout: Any
) -> RolloutEngine:
    if isinstance(teacher, dict):
        kind: Any = registry.get("teacher", teacher["type"])
        teacher = kind(kind.Config(**teacher), environment, Models(backend))
    return RolloutEngine(
        environment=environment, teacher=teacher, backend=backend,
        guard=LeakGuard.from_config(LeaksConfig(), environment),
        renderer=Renderer(backend.tokenizer, environment.system()), reward=RewardConfig(),
        config=RolloutConfig(**{"max_turns": 3, "max_new_tokens": 10, "context_length": 2000, **rollout}),
    )  # fmt: skip


def asked(environment: Environment, count: int = 10) -> list[Request]:
    """Groups of three, with different numbers of turns."""
    tasks = [environment.task("train", i) for i in range(1 + count // 3)]
    return [
        Request(tasks[i // 3], f"d{i}", f"g{i // 3}", i % 3, 100 + i, max_turns=(None, 1, 4, 2)[i % 4])
        for i in range(count)
    ]


def content(rollouts: Sequence[Rollout]) -> list[Any]:
    """Everything but how long it took, and the log-probabilities."""
    found = []
    for rollout in rollouts:
        turns = [
            (t.token_ids, t.attempt, t.stop, t.verdict, t.prompt, t.hint and t.hint.model_copy(update={"usage": None}))
            for t in rollout.dialogue.turns
        ]
        streams = [(s.token_ids, s.student, s.turn) for s in rollout.streams]
        found.append((rollout.dialogue.id, rollout.dialogue.stop, rollout.dialogue.error, turns, streams))
    return found


def logprobs(rollouts: Sequence[Rollout]) -> list[float]:
    return [p for rollout in rollouts for stream in rollout.streams for p in stream.logprobs]


LOCAL = {"type": "llm", "max_new_tokens": 9, "temperature": 1.0}
SELF = {"type": "self_critique", "max_new_tokens": 9}


@pytest.mark.parametrize(
    ("environment", "history", "teacher", "adapter"),
    [
        ("guess_number", "dialogue", {"type": "scripted"}, None),
        ("secret_code", "fresh", {"type": "scripted"}, ADAPTER),
        ("arithmetic", "dialogue", LOCAL, ADAPTER),
        ("guess_number", "fresh", LOCAL, None),
        ("secret_code", "dialogue", SELF, ADAPTER),
    ],
)
def test_all_schedules_batch_sizes_and_ways_to_share_the_model_play_the_same_dialogues_token_for_token(
    backends: dict[str, HFBackend], environment: str, history: str, teacher: dict[str, Any], adapter: str | None
) -> None:
    held = chancy(environment)
    requests = asked(held)

    def play(schedule: str, batch_size: int, speakers: str = "in_turns") -> list[Rollout]:
        engine = engine_of(backends[speakers], held, teacher, schedule=schedule, batch_size=batch_size, history=history)
        return engine.play(requests, adapter=adapter)

    wanted = play("lockstep", 128)
    assert len({len(turns) for *_, turns, _ in content(wanted)}) > 2
    assert len({len(tokens) for *_, turns, _ in content(wanted) for tokens, *_ in turns}) > 4
    ways: list[Any] = [("lockstep", 4), ("continuous", 128), ("continuous", 4)]
    more = ("continuous", 5, "together") if teacher is LOCAL else ("continuous", 1)
    for way in [*ways, *([more] if teacher is not SELF else [])]:
        played = play(*way)
        assert content(played) == content(wanted), way
        assert logprobs(played) == pytest.approx(logprobs(wanted), abs=1e-4)
    assert not backends["in_turns"]._decoder.busy and not backends["in_turns"]._decoder.keys


@pytest.mark.slow
def test_the_real_model_says_the_same_in_both_schedules_with_the_learners_log_probabilities(smollm2: Path) -> None:
    import torch

    model = ModelConfig(name=str(smollm2), dtype="float32", device="cpu")
    backend, held = HFBackend(HFBackend.Config(), model), chancy("guess_number")
    engine = engine_of(backend, held, {"type": "scripted"}, batch_size=4)
    rollouts = engine.play(asked(held, 6))
    lockstep = replace(engine, config=engine.config.model_copy(update={"schedule": "lockstep"}))
    pairs = zip(content(lockstep.play(asked(held, 6))), content(rollouts), strict=True)
    assert sum(a == b for a, b in pairs) >= 4  # in 49,152 words a last digit decides now and then
    streams = [rollout.streams[0] for rollout in rollouts]
    ids_BT, valid_BT = _torch.right_padded([s.token_ids for s in streams], backend.pad_id, backend.device)
    wanted_BT = torch.zeros_like(valid_BT)
    for i, stream in enumerate(streams):
        wanted_BT[i, : len(stream.student)] = torch.tensor(stream.student)
    banned = backend._decoder.banned
    with torch.inference_mode():
        logp_N, _ = _torch.selected_logprobs(backend.model, ids_BT, valid_BT, wanted_BT, banned=banned)
    said = [p for s in streams for p, student in zip(s.logprobs, s.student, strict=True) if student]
    assert len(said) > 60 and logp_N.tolist() == pytest.approx(said, abs=1e-3)


# -- nothing in vain -----------------------------------------------------------------------------------------------
class Drew(NamedTuple):
    """A token of a turn."""

    key: str
    number: int
    last: bool


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[list[Drew]]:
    """The tokens of every step."""
    found: list[list[Drew]] = []
    plain = Decoder.step

    def step(self: Decoder, *args: Any) -> list[Any]:
        turns = plain(self, *args)
        found.append([Drew(t.prompt.key, len(t.token_ids), t.generation is not None) for t in turns])
        return turns

    monkeypatch.setattr(Decoder, "step", step)
    return found


def test_a_place_is_never_empty_while_a_dialogue_waits_and_each_token_is_read_once(
    backends: dict[str, HFBackend], steps: list[list[Drew]]
) -> None:
    held, backend = chancy("guess_number"), backends["in_turns"]
    requests = asked(held, 24)
    engine = engine_of(backend, held, {"type": "scripted"}, batch_size=6)
    before = backend._decoder.read_count
    rollouts = engine.play(requests)
    drawn = [len(tokens) for tokens in steps]
    last = next(i for i, tokens in enumerate(steps) if any(t.key == "d23" for t in tokens))
    joining = {i + 1 for i, tokens in enumerate(steps) if any(t.last for t in tokens)}
    full = [count for i, count in enumerate(drawn[:last]) if i > 2 and i not in joining]
    assert full and set(full) == {6}  # who joins may wait a step for another that reads the same
    streams = [rollout.streams[0] for rollout in rollouts]
    needed = 0
    for stream in streams:  # all but what the student said last, which nobody reads
        needed += len(stream.token_ids) - 1
    openings = [engine.renderer.opening(held.prompt(r.task.public)) for r in requests]
    read = backend._decoder.read_count - before
    assert read < needed - sum(map(len, openings)) + 8 * max(map(len, openings)) + len(requests)
    lockstep = replace(engine, config=engine.config.model_copy(update={"schedule": "lockstep"}))
    steps.clear()
    lockstep.play(requests)
    assert len(steps) > len(drawn)


def test_hints_and_attempts_of_one_base_are_said_in_the_same_steps(
    backends: dict[str, HFBackend], steps: list[list[Drew]]
) -> None:
    held = chancy("guess_number")
    for speakers, adapter in (("in_turns", None), ("together", ADAPTER)):
        engine_of(backends[speakers], held, LOCAL, batch_size=6).play(asked(held), adapter=adapter)
        kinds = [{bool(token.key) for token in tokens} for tokens in steps]
        assert kinds.count({True, False}) > 5 and {True} in kinds  # a teacher's prompts have no key
        steps.clear()


def test_students_that_play_side_by_side_say_what_each_says_alone(
    backends: dict[str, HFBackend], steps: list[list[Drew]]
) -> None:
    held, backend = chancy("guess_number"), backends["auto"]
    students = [Student(ADAPTER, "rl@3"), Student("other", "rl@6"), Student()]
    engine = engine_of(backend, held, {"type": "self_critique", "max_new_tokens": 9})
    requests = asked(held, 6)
    alone = [engine.play(requests, adapter=s.adapter, policy=s.policy) for s in students]
    assert len({json.dumps([t[0] for *_, turns, _ in content(played) for t in turns]) for played in alone}) == 3
    steps.clear()
    played = engine.play([replace(request, student=s) for s in students for request in requests])
    assert content(played) == [one for rollouts in alone for one in content(rollouts)]
    assert [rollout.dialogue.policy for rollout in played] == [s.policy for s in students for _ in requests]
    speaking = [{token.key.partition(" ")[2] for token in tokens if token.key} for tokens in steps]
    assert {ADAPTER, "other", "None"} in speaking
    assert not backend._decoder.busy and not any(backend._decoder.keys)


def test_adapters_share_a_step_only_where_merging_would_not_do(backends: dict[str, HFBackend]) -> None:
    kinds = ({None}, {ADAPTER}, {None, ADAPTER}, {ADAPTER, "other"}, {None, ADAPTER, "other"})
    found = {name: [backend._together(kind) for kind in kinds] for name, backend in backends.items()}
    assert found == {
        "in_turns": [False] * 5,
        "together": [False, False, True, True, True],
        "auto": [False, False, False, True, True],
    }


def test_prompts_may_join_and_differ_in_sampling_and_adapter(backends: dict[str, HFBackend]) -> None:
    backend = backends["in_turns"]
    start = tuple(backend.tokenizer.encode("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"))
    first, second = Prompt(start, 1, "a"), Prompt((*start, 9, 8), 2)
    kinds = (Sampling(12, 1.3), None), (Sampling(5, 0.7, 0.8), ADAPTER)
    with backend.session() as session:
        (one,) = session.submit([first], *kinds[0])
        session.step()
        (two,) = session.submit([second], *kinds[1])
        while session.busy:
            session.step()
    backend.forget()
    for ticket, prompt, kind in ((one, first, kinds[0]), (two, second, kinds[1])):
        (alone,) = backend.generate([prompt], *kind)
        assert ticket.generation is not None and ticket.generation.token_ids == alone.token_ids
    with backend.session() as session:
        session.submit([first], *kinds[0])
    assert not backend._decoder.busy  # a session that closes gives up what is under way


# -- teachers that take their time ---------------------------------------------------------------------------------
class Slow(Teacher):
    """Answers about its first task only when another dialogue has come to its end."""

    class Config(BaseConfig):
        """What it does."""

        type: Literal["slow"] = "slow"
        breaks_on: str = ""

    waits = True

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
            with baton.waiting(self.other):
                self.together += self.other.wait(20)
            self.alone += 1
        self.alone -= 1
        return [Feedback("Hm.") for _ in requests]


def waiting_engine(**config: Any) -> tuple[RolloutEngine, Slow, list[Request]]:
    kind: Any = registry.get("environment", "guess_number")
    environment = kind(kind.Config())
    teacher = Slow(Slow.Config(**config), environment)
    engine = engine_of(FakeBackend(FakeBackend.Config(replies=("no",))), environment, teacher, batch_size=3)
    tasks = [environment.task("train", 0).model_copy(update={"id": f"t{i}"}) for i in range(8)]
    return engine, teacher, [Request(task, task.id, task.id, 0, i) for i, task in enumerate(tasks)]


def test_no_dialogue_waits_for_a_slow_hint_of_another() -> None:
    engine, teacher, requests = waiting_engine()

    def advanced(ended: int, total: int) -> None:
        if ended == total - 1:  # all the others have played their three turns meanwhile
            teacher.other.set()

    played = engine.play(requests, advanced=advanced)
    assert teacher.together == 1
    assert [len(r.dialogue.turns) for r in played] == [3] * 8
    assert [r.dialogue.id for r in played] == [r.id for r in requests]


def test_a_teacher_that_breaks_aside_ends_the_dialogue_it_breaks_on_and_no_other() -> None:
    engine, teacher, requests = waiting_engine(breaks_on="t4")
    teacher.other.set()
    played = [r.dialogue for r in engine.play(requests)]
    assert [d.stop for d in played] == [StopReason.FAILED if d.id == "t4" else StopReason.EXHAUSTED for d in played]
    assert played[4].error == "RuntimeError: the teacher broke"


def test_who_stops_a_rollout_leaves_no_thread_behind() -> None:
    engine, teacher, requests = waiting_engine()
    before = set(threading.enumerate())

    def advanced(ended: int, total: int) -> None:
        if ended >= 3:
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        engine.play(requests, advanced=advanced)
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
def test_teachers_that_ask_another_model_at_the_same_time_are_answered_in_one_batch_and_fail_alone(
    breaks: bool,
) -> None:
    kind: Any = registry.get("environment", "guess_number")
    environment = kind(kind.Config())
    student, other = FakeBackend(FakeBackend.Config(replies=("no",))), Gathering(FakeBackend.Config(replies=("Hm.",)))
    other.breaks = breaks
    models, name = Models(student), ModelConfig(name="other")
    models._made[name] = other
    teacher: Any = registry.get("teacher", "llm")
    made = teacher(teacher.Config(llm={"type": "local", "model": {"name": "other"}}), environment, models)
    played = [r.dialogue for r in engine_of(student, environment, made, max_turns=2).play(asked(environment, 8))]
    failed = [d for d in played if d.stop is StopReason.FAILED]
    assert [d.error for d in failed] == ["MemoryError: no room"] * breaks
    first = sum(d.turns[0].hint is not None for d in played) + len(failed)
    assert other.sizes[0] == first >= 5  # all that were wrong at their first turn
    if not breaks:
        assert sum(other.sizes) == sum(turn.hint is not None for d in played for turn in d.turns)


# -- the baton -----------------------------------------------------------------------------------------------------
@pytest.fixture
def said() -> Iterator[list[str]]:
    yield []


def test_threads_run_one_at_a_time_in_the_order_in_which_they_came(said: list[str]) -> None:
    gate = threading.Event()

    def work(name: str) -> None:
        said.append(f"{name} begins")
        with baton.waiting():
            gate.wait(10)
        said.append(f"{name} ends")

    with baton.Baton() as held:
        assert not baton.aside()
        for name in "ab":
            held.start(work, name)
        while len(said) < 2:
            held.give_way(rest=True)
        assert sorted(said) == ["a begins", "b begins"]
        said.append("main")
        gate.set()
        time.sleep(0.05)
        assert said[2:] == ["main"]  # nobody runs beside the one who holds the baton
        while len(said) < 5:
            held.give_way(rest=True)
    assert sorted(said[3:]) == ["a ends", "b ends"]
