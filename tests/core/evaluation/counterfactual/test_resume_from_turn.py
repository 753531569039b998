"""A dialogue goes on from turns that were played before, token for token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fork_data import config, obedient

from rl2f_core.config.model import ModelConfig
from rl2f_core.dialogue.rollout.build import build_engine
from rl2f_core.dialogue.rollout.engine import RolloutEngine, RolloutRequest
from rl2f_core.errors import DataError
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.models.backends.hf.backend import HFBackend
from rl2f_core.types import Hint, Rollout, StopReason, Turn


def requests(engine: RolloutEngine, count: int) -> list[RolloutRequest]:
    tasks = [engine.environment.task("train", i) for i in range(count)]
    return [RolloutRequest(task, f"d{i}", "g", i, 11 + i) for i, task in enumerate(tasks)]


def cut(request: RolloutRequest, rollout: Rollout, turn: int) -> RolloutRequest:
    """The same request, after the hint of a turn."""
    return replace(request, turns=rollout.dialogue.turns[: turn + 1])


def scripted(**changes: Any) -> RolloutEngine:
    return build_engine(config(**changes), FakeBackend(script=obedient))


@pytest.fixture(scope="module")
def tiny_engine(tiny: Path) -> RolloutEngine:
    model = ModelConfig(name=str(tiny), dtype="float32", device="cpu")
    made = config(rollout={"max_turns": 4, "max_new_tokens": 7, "max_seq_len": 512}, backend="hf")
    return build_engine(made, HFBackend(HFBackend.Config(), model))


@pytest.mark.slow
@pytest.mark.parametrize("student", ["script", "tiny model"])
def test_same_seed_reproduces_continuation(student: str, tiny_engine: RolloutEngine) -> None:
    engine = tiny_engine if student == "tiny model" else scripted()
    asked = requests(engine, 6)
    played = engine.run(asked)
    forks = [(cut(request, whole, turn), whole) for request, whole in zip(asked, played, strict=True)
             for turn in range(len(whole.dialogue.turns) - 1)]  # fmt: skip
    assert len(forks) >= 6
    for again, (_, whole) in zip(engine.run([fork for fork, _ in forks]), forks, strict=True):
        assert again.sequences[0].token_ids == whole.sequences[0].token_ids
        assert (
            again.sequences[0].student_mask == whole.sequences[0].student_mask
            and again.sequences[0].turn_ids == whole.sequences[0].turn_ids
        )
        assert again.sequences[0].logprobs == pytest.approx(whole.sequences[0].logprobs, abs=2e-5)
        assert [t.token_ids for t in again.dialogue.turns] == [t.token_ids for t in whole.dialogue.turns]
        assert [t.hint for t in again.dialogue.turns] == [t.hint for t in whole.dialogue.turns]
        assert (again.dialogue.stop_reason, again.dialogue.solved_at) == (
            whole.dialogue.stop_reason,
            whole.dialogue.solved_at,
        )


def test_other_hint_changes_only_later_turns() -> None:
    engine = scripted()
    (request,) = requests(engine, 1)
    request = replace(request, task=request.task.model_copy(update={"privileged": {"number": "3"}}))
    first = engine.run([request])[0].dialogue.turns[0]
    assert first.verdict.parsed == "2" and first.hint is not None and first.hint.text == "Too low."
    down = first.model_copy(update={"hint": Hint(text="Too high.", teacher="edited")})
    told, misled = engine.run([replace(request, turns=(turn,), max_turns=2) for turn in (first, down)])
    assert [t.verdict.parsed for t in told.dialogue.turns] == ["2", "3"]
    assert [t.verdict.parsed for t in misled.dialogue.turns] == ["2", "1"]
    bits = {"hint_bits", "hint_true", "bits_left", "chance_bits", "determines_answer"}
    assert misled.dialogue.turns[0].model_dump(exclude=bits) == down.model_dump(exclude=bits)
    left = misled.dialogue.turns[0]
    assert (left.bits_left, left.determines_answer) == (0.0, False), "the bits of the edited hint: only 1 is below 2"
    length = len(engine.renderer.initial_prompt(engine.environment.prompt(request.task.public))) + len(first.token_ids)
    assert told.sequences[0].token_ids[:length] == misled.sequences[0].token_ids[:length]


def test_continued_sequences_have_correct_masks() -> None:
    engine = scripted()
    (request,) = requests(engine, 1)
    verdict = engine.environment.verify(request.task, "<answer>x</answer>")
    played = Turn(index=0, attempt="ab", token_ids=(97, 98, 257), logprobs=(-0.5, -0.25, -2.0), verdict=verdict,
                  hint=Hint(text="No.", teacher="edited"))  # fmt: skip
    stream = engine.run([replace(request, turns=(played,), max_turns=2)])[0].sequences[0]
    opening = len(engine.renderer.initial_prompt(engine.environment.prompt(request.task.public)))
    hint = len(engine.renderer.hint_suffix("No.", ended=True))
    assert stream.token_ids[opening : opening + 3] == (97, 98, 257)
    assert stream.logprobs[opening : opening + 4] == (-0.5, -0.25, -2.0, 0.0)
    assert stream.turn_ids[: opening + 3 + hint] == (-1,) * opening + (0,) * (3 + hint)
    assert stream.student_mask[: opening + 3 + hint] == (False,) * opening + (True,) * 3 + (False,) * hint
    assert set(stream.turn_ids[opening + 3 + hint :]) == {1} and all(stream.student_mask[opening + 3 + hint :])


def test_written_turns_are_escaped() -> None:
    engine = scripted()
    (request,) = requests(engine, 1)
    text = "7<|im_end|>"
    written = Turn(index=0, attempt=text, verdict=engine.environment.verify(request.task, text),
                   hint=Hint(text="No.", teacher="human"))  # fmt: skip
    stream = engine.run([replace(request, turns=(written,), max_turns=1)])[0].sequences[0]
    opening = len(engine.renderer.initial_prompt(engine.environment.prompt(request.task.public)))
    encoded = (*b"7< |im_end|>", 257)
    assert stream.token_ids[opening : opening + len(encoded)] == encoded
    assert stream.logprobs[opening : opening + len(encoded)] == (0.0,) * len(encoded)


def test_missing_last_hint_is_requested() -> None:
    engine = scripted()
    (request,) = requests(engine, 1)
    request = replace(request, task=request.task.model_copy(update={"privileged": {"number": "4"}}))
    first = engine.run([request])[0].dialogue.turns[0]
    again = engine.run([replace(request, turns=(first.model_copy(update={"hint": None}),))])[0].dialogue
    assert again.turns[0].hint == first.hint and len(again.turns) == 3


def test_no_remaining_turns_ends_dialogue() -> None:
    engine = scripted()
    (request,) = requests(engine, 1)
    turns = engine.run([replace(request, max_turns=2)])[0].dialogue.turns
    used_up = engine.run([replace(request, turns=turns[:1], max_turns=1)])[0].dialogue
    right = turns[0].model_copy(update={"verdict": turns[0].verdict.model_copy(update={"correct": True, "score": 1})})
    solved = engine.run([replace(request, turns=(right,))])[0].dialogue
    assert (used_up.stop_reason, len(used_up.turns)) == (StopReason.EXHAUSTED, 1)
    assert (solved.stop_reason, solved.solved_at) == (StopReason.SOLVED, 1)


def test_tokens_of_another_tokenizer_raise() -> None:
    engine = scripted()
    (request,) = requests(engine, 1)
    verdict = engine.environment.verify(request.task, "7")
    foreign = Turn(index=0, attempt="7", token_ids=(70_000, 2), verdict=verdict, hint=Hint(text="No.", teacher="x"))
    other = foreign.model_copy(update={"token_ids": (97,)})
    for turn in (foreign, other):
        with pytest.raises(DataError, match="not those of this model's tokenizer"):
            engine.run([replace(request, turns=(turn,))])
