"""SDPO: divergences by hand, what the reference reads, and the loss beside TRL's `SDPOTrainer`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch

from rl2f_core.config.model import LoraConfig
from rl2f_core.config.run import RunConfig
from rl2f_core.config.stage import StageConfig
from rl2f_core.dialogue.rollout.build import build_engine
from rl2f_core.dialogue.rollout.engine import RolloutEngine, RolloutRequest
from rl2f_core.environments.base import wrap_answer
from rl2f_core.errors import RunError
from rl2f_core.learning.learner.kl import divergence, k3, ratio_weights, score_function, top_k_logprobs
from rl2f_core.learning.learner.learner import Learner
from rl2f_core.learning.learner.losses import LossConfig
from rl2f_core.learning.learner.scoring import with_reference_prompt
from rl2f_core.learning.methods.base import StepContext
from rl2f_core.learning.methods.loss_spec import KLConfig
from rl2f_core.learning.methods.sdpo import SDPO
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.types import Group, TrainingSample

CPU = torch.device("cpu")


def logs(*probabilities: float) -> torch.Tensor:
    return torch.tensor([probabilities], dtype=torch.float64).log()


# -- divergences -----------------------------------------------------------------------------------------------
def test_divergences_of_two_small_distributions():
    policy, reference = logs(0.5, 0.5), logs(0.25, 0.75)
    forward = 0.25 * log(0.25 / 0.5) + 0.75 * log(0.75 / 0.5)
    reverse = 0.5 * log(0.5 / 0.25) + 0.5 * log(0.5 / 0.75)
    assert float(divergence(policy, reference, 0.0)) == pytest.approx(forward)
    assert float(divergence(policy, reference, 1.0)) == pytest.approx(reverse)
    # m = (3/8, 5/8)
    to_m = 0.5 * log(0.5 / 0.375) + 0.5 * log(0.5 / 0.625), 0.25 * log(0.25 / 0.375) + 0.75 * log(0.75 / 0.625)
    assert float(divergence(policy, reference, 0.5)) == pytest.approx(sum(to_m) / 2)
    # α 0.2: m = 0.8·π + 0.2·π_ref = (0.45, 0.55)
    to_m = 0.5 * log(0.5 / 0.45) + 0.5 * log(0.5 / 0.55), 0.25 * log(0.25 / 0.45) + 0.75 * log(0.75 / 0.55)
    assert float(divergence(policy, reference, 0.2)) == pytest.approx(0.8 * to_m[0] + 0.2 * to_m[1])
    assert float(divergence(policy, policy, 0.3)) == pytest.approx(0)


def test_tokens_that_nobody_may_say_count_for_nothing():
    policy, reference = (torch.tensor([[a, b, -1e30]]).log_softmax(1) for a, b in ((0.0, 0.0), (0.0, 1.0)))
    for alpha in (0.0, 0.5, 1.0):
        alone = divergence(policy[:, :2], reference[:, :2], alpha)
        torch.testing.assert_close(divergence(policy, reference, alpha), alone)


def test_the_likeliest_tokens_are_made_whole_or_joined_by_all_others():
    policy, reference = logs(0.3, 0.2, 0.5), logs(0.2, 0.6, 0.2)
    mine, its = top_k_logprobs(policy, reference, 2, tail=False)
    assert mine.exp().tolist() == [pytest.approx([0.625, 0.375])] and its.exp().tolist() == [pytest.approx([0.5, 0.5])]
    mine, its = top_k_logprobs(policy, reference, 2, tail=True)
    assert mine.exp().tolist() == [pytest.approx([0.5, 0.3, 0.2])]
    assert its.exp().tolist() == [pytest.approx([0.2, 0.2, 0.6])]
    assert top_k_logprobs(policy, reference, 9, tail=False)[0].shape == (1, 3)


def test_the_score_function_has_the_gradient_of_one_divergence_and_k3_that_of_the_other():
    # π(0) = σ(z) = 3/4 at z = log 3, π_ref = (½, ½); averaged over the policy's own samples
    # d KL(π ‖ π_ref)/dz = π(0)π(1)(log 3 − 0) and d KL(π_ref ‖ π)/dz = π(0) − π_ref(0)
    for form, expected in ((score_function, 0.75 * 0.25 * log(3)), (k3, 0.25)):
        z = torch.tensor(log(3), dtype=torch.float64, requires_grad=True)
        logp = torch.stack([torch.nn.functional.logsigmoid(z), torch.nn.functional.logsigmoid(-z)])
        (logp.detach().exp() * form(logp, logs(0.5, 0.5)[0])).sum().backward()
        assert z.grad is not None and float(z.grad) == pytest.approx(expected)


def test_ratios_weigh_up_to_their_limit_without_a_gradient():
    logp = torch.tensor([0.6, 0.2], dtype=torch.float64).log().requires_grad_()
    weights = ratio_weights(logp, logs(0.2, 0.4)[0], 2.0)
    assert weights.tolist() == pytest.approx([2.0, 0.5]) and not weights.requires_grad


# -- what the reference reads ----------------------------------------------------------------------------------
def engine() -> RolloutEngine:
    config = RunConfig.model_validate({
        "environment": {"type": "guess_number", "low": 1, "size": 4}, "backend": "fake",
        "rollout": {"max_turns": 3, "max_new_tokens": 60, "max_seq_len": 4000},
        "stages": [{"name": "s", "method": "sft", "steps": 1}],
    })  # fmt: skip
    return build_engine(config, FakeBackend())


def group(answers: Sequence[Sequence[int]]) -> tuple[RolloutEngine, Group]:
    """Dialogues of these guesses, relative to the answer, one each turn."""
    played = engine()
    task = played.environment.task("train", 3)
    right = int(played.environment.gold_answer(task))
    said: list[str] = []

    def script(text: str, rng: random.Random) -> str:
        return said.pop(0)

    played.backend.script = script  # type: ignore[attr-defined]
    rollouts = []
    for number, guesses in enumerate(answers):
        said[:] = [wrap_answer(str((right - 1 + guess) % 4 + 1)) for guess in guesses]
        rollouts += played.run([RolloutRequest(task, f"d{number}", "g", number, number)], max_turns=len(guesses))
    return played, Group(task, tuple(rollouts))


def method(played: RolloutEngine, **changes: Any) -> SDPO:
    made = SDPO(SDPO.Config(**changes))
    made.begin_step(StepContext.of(played, 0, 1))
    return made


def texts(played: RolloutEngine, made: SDPO, held: Group) -> list[str]:
    return [played.backend.tokenizer.decode(made.reference_prompt(held, rollout)) for rollout in held.rollouts]


def test_the_reference_reads_the_hint_and_the_right_attempt_of_another_dialogue():
    played, held = group([(1, 2), (0,), (2, 0)])
    hint, (right, late) = held.rollouts[0].dialogue.turns[0].hint, (held.rollouts[i].dialogue.turns[-1] for i in (1, 2))
    assert hint is not None and right.attempt == late.attempt
    wrong, solved, again = texts(played, method(played), held)
    problem = played.environment.prompt(held.task.public)
    assert all(problem in text and hint.text in text and right.attempt in text for text in (wrong, again))
    assert solved == "", "it has no hint, and no other first attempt is right"
    for text, (feedback, solution) in {
        texts(played, method(played, feedback="never"), held)[0]: (False, True),
        texts(played, method(played, peer_solutions="none"), held)[0]: (True, False),
        texts(played, method(played, feedback="without_solution"), held)[0]: (False, True),
    }.items():
        assert (hint.text in text, right.attempt in text) == (feedback, solution)
    # any turn of another dialogue: the third helps the second
    assert late.attempt in texts(played, method(played, peer_solutions="any"), held)[1]
    assert texts(played, method(played, max_reprompt_len=20), held) == ["", "", ""]


def test_rows_weigh_the_first_attempt_alone_and_only_where_there_is_something_to_read():
    played, held = group([(1, 2), (0,)])
    (row,) = method(played).samples(held)
    stream = held.rollouts[0].sequences[0]
    first = [i for i, (s, k) in enumerate(zip(stream.student_mask, stream.turn_ids, strict=True)) if s and k == 0]
    assert (
        [i for i, w in enumerate(row.kl_weights) if w] == first
        and sum(row.kl_weights) == pytest.approx(1)
        and not any(row.rl_weights)
    )
    assert list(method(played, loss_reduction="token").samples(held)[0].kl_weights) == [
        float(w > 0) for w in row.kl_weights
    ]
    read = with_reference_prompt(row)
    assert list(read.token_ids) == [*(row.reference_prompt_ids or ()), *(stream.token_ids[i] for i in first)]
    assert [i for i, w in enumerate(read.kl_weights) if w] == list(
        range(len(read.token_ids) - len(first), len(read.token_ids))
    )
    # with a policy gradient the right attempt has a row too: rewards 0 and 1, s = √½, times rl_coef
    rows = method(played, rl_coef=0.5, scale_rewards=False).samples(held)
    assert [max(r.advantages, key=abs) for r in rows] == [-0.25, 0.25] and not any(rows[1].kl_weights)
    assert all(list(r.rl_weights) == [float(bool(a)) for a in r.advantages] for r in rows)
    assert method(played).advantages(held) == [[0, 0], [0]] and rows[1].reference_prompt_ids is None


def test_dialogues_are_as_long_as_the_reference_needs_them():
    assert [SDPO(SDPO.Config(**c)).max_turns(4) for c in ({}, {"feedback": "never"})] == [2, 1]
    assert SDPO(SDPO.Config(feedback="never", peer_solutions="any")).max_turns(4) == 2
    with pytest.raises(RunError, match="step"):
        SDPO(SDPO.Config()).samples(group([(1, 2)])[1])


@pytest.mark.parametrize(
    ("changes", "stage", "turns", "said"),
    [
        ({"feedback": "never", "peer_solutions": "none"}, {}, 2, "nothing to learn from"),
        ({"feedback": "never"}, {"group_size": 1}, 2, "no other dialogue"),
        ({}, {}, 1, "no hint to learn from"),
        ({"rl_coef": 1.0}, {"group_size": 1}, 2, "no other dialogue to compare with"),
        ({}, {"max_group_resamples": 1}, 2, "feedback as well"),
        ({"distillation_alpha": 0.5}, {}, 2, "distillation_alpha has no effect with distillation_mode sampled_token"),
        ({"distillation_mode": "full_logits", "distillation_topk": 5}, {}, 2, "distillation_topk has no effect"),
        ({"teacher_model_kind": "live", "teacher_update_rate": 0.1}, {}, 2, "teacher_update_rate has no effect"),
    ],
)
def test_stages_that_cannot_be_meant_are_refused(changes: Any, stage: Any, turns: int, said: str):
    stages = [{"name": "s", "method": {"type": "sdpo", **changes}, "steps": 1, **stage}]
    with pytest.raises(ValueError, match=said):
        RunConfig.model_validate({"environment": "secret_code", "rollout": {"max_turns": turns}, "stages": stages})


# -- the learner -----------------------------------------------------------------------------------------------
def pulled_row(start: int, context: Sequence[int], tokens: int, own: int = 5, weight: float = 1.0) -> TrainingSample:
    n = own + tokens
    held = [0.0] * own + [1.0] * tokens
    zeros = [0.0] * n
    return TrainingSample(
        list(range(start, start + n)),
        [bool(w) for w in held],
        [-5.9 * w for w in held],
        zeros,
        zeros,
        zeros,
        [weight * w for w in held],
        reference_prompt_ids=context,
    )


ROWS = [pulled_row(50, (200, 201, 202), 4), pulled_row(90, tuple(range(210, 220)), 2), pulled_row(70, (230,), 3)]


def learner(tiny: Path, seed: int = 1, **pull: Any) -> tuple[Learner, LossConfig, StageConfig]:
    made = Learner(tiny, LoraConfig(rank=4, alpha=8), dtype=torch.float32, device=CPU, banned=[], pad=2, seed=0)
    generator = torch.Generator().manual_seed(seed)
    made.restore({n: 0.2 * torch.randn(p.shape, generator=generator) for n, p in made.parameters.items()})
    config = LossConfig(kl_coef=1.0, kl=KLConfig(**{"divergence": "sampled_token", "reference": "live", **pull}))
    stage = StageConfig(name="s", method="sdpo", steps=9, learning_rate=0.001, max_grad_norm=1e9)
    made.begin_stage(config, stage)
    return made, config, stage


def by_hand(made: Learner, rows: Sequence[TrainingSample]) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """For each row: log π [M, V] under its own tokens, log π_ref [M, V] under its context, and its tokens [M]."""
    found = []
    for row in rows:
        first = next(i for i, w in enumerate(row.kl_weights) if w)
        tokens = torch.tensor(list(row.token_ids[first:]))
        both = []
        for start in (list(row.token_ids[:first]), list(row.reference_prompt_ids or ())):
            logits = made.model(torch.tensor([[*start, *tokens.tolist()]])).logits[0]
            both.append(logits[len(start) - 1 : -1].log_softmax(1))
        found.append((both[0], both[1].detach(), tokens))
    return found


@pytest.mark.parametrize(
    "pull",
    [{}, {"divergence": "k3"}, {"divergence": "full_logits"}, {"divergence": "full_logits", "alpha": 0.3},
     {"divergence": "topk_logits", "top_k": 7, "alpha": 0.0},
     {"divergence": "topk_logits", "top_k": 7, "tail": True}],
    ids=str,
)  # fmt: skip
def test_loss_and_gradient_are_those_of_two_plain_passes(tiny: Path, pull: dict[str, Any]):
    made, config, stage = learner(tiny, **pull)
    parts = []
    for policy, reference, tokens in by_hand(made, ROWS):
        if config.kl.divergence in ("full_logits", "topk_logits"):
            mine, its = policy, reference
            if config.kl.divergence == "topk_logits":
                mine, its = top_k_logprobs(policy, reference, 7, tail=config.kl.tail)
            parts.append(divergence(mine, its, config.kl.alpha))
        else:
            logp, ref = (x.gather(1, tokens[:, None]).squeeze(1) for x in (policy, reference))
            parts.append(k3(logp, ref) if config.kl.divergence == "k3" else score_function(logp, ref))
    total = torch.cat(parts).mean()
    expected = torch.autograd.grad(total, list(made.parameters.values()))
    start = made.snapshot()
    found = made.update(ROWS, config, stage.resolve(0, 1.0))
    assert found["loss"] == pytest.approx(float(total.detach()), abs=2e-5) and found["grad_norm"] > 1e-4
    for wanted, parameter in zip(expected, made.parameters.values(), strict=True):
        torch.testing.assert_close(parameter.grad, wanted, atol=2e-5, rtol=1e-3)
    # contexts are read in as many passes as memory allows
    made.restore(start)
    short = made.update(ROWS, config, stage.model_copy(update={"micro_batch_tokens": 16}).resolve(0, 1.0))
    assert short["loss"] == pytest.approx(found["loss"], abs=2e-5)


def test_a_row_with_a_context_and_one_without_are_each_compared_with_their_own(tiny: Path):
    made, config, stage = learner(tiny)
    bare = replace(ROWS[1], reference_prompt_ids=None)
    # a live reference that reads the same tokens is the policy itself, so its part is 0
    found = made.update([ROWS[0], bare], config, stage.resolve(0, 1.0))
    alone, _, _ = learner(tiny)
    first = alone.update([ROWS[0]], config, stage.resolve(0, 1.0))
    assert found["kl"] == pytest.approx(first["kl"] * 4 / 6, abs=1e-6) and first["kl"] != 0


def test_a_moving_teacher_follows_the_policy_by_its_rate_and_a_held_one_stays(tiny: Path):
    made, config, stage = learner(tiny, reference="ema", ema_rate=0.25)
    start = made.snapshot()
    made.update(ROWS, config, stage.resolve(0, 1.0))
    assert made.reference is not None
    for name, now in made.snapshot().items():
        torch.testing.assert_close(made.reference[name], 0.75 * start[name] + 0.25 * now)
    held, config, stage = learner(tiny, reference="base")
    start = held.snapshot()
    held.update(ROWS, config, stage.resolve(0, 1.0))
    assert held.reference is not None and all(torch.equal(held.reference[n], t) for n, t in start.items())
    assert learner(tiny)[0].reference is None


# -- beside TRL ------------------------------------------------------------------------------------------------
def padded(rows: Sequence[Sequence[int]], left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, rows))
    ids, mask = torch.full((len(rows), width), 2), torch.zeros(len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(len(row))
        ids[i, place], mask[i, place] = torch.tensor(list(row)), 1
    return ids, mask


@pytest.mark.slow
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({}, {"distillation_is_clip": 2.0}),
        ({"distillation_mode": "full_logits", "distillation_alpha": 0.5}, {"divergence": "full_logits", "alpha": 0.5}),
        ({"distillation_mode": "topk_logits", "distillation_topk": 7, "distillation_add_tail": True},
         {"divergence": "topk_logits", "top_k": 7, "tail": True}),
    ],
    ids=["sampled token (the default)", "full logits", "top k with a tail"],
)  # fmt: skip
def test_the_loss_and_gradient_are_those_of_trl(tiny: Path, tmp_path: Path, theirs: Any, ours: Any):
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

    made, config, stage = learner(tiny, **ours)
    rows = [pulled_row(50, (200, 201, 202), 4, weight=1 / 4), pulled_row(90, tuple(range(210, 220)), 2, weight=1 / 2)]
    idle = pulled_row(70, (230,), 3, weight=0.0)  # TRL counts an attempt without anything to read in its mean
    trainer = SDPOTrainer(
        model=made.model,
        reward_funcs=lambda completions, **kwargs: [0.0] * len(completions),
        args=SDPOConfig(output_dir=str(tmp_path), report_to=[], use_cpu=True, teacher_model_kind="live",
                        per_device_train_batch_size=3, num_generations=3, bf16=False,
                        gradient_checkpointing=False, **theirs),
        train_dataset=Dataset.from_list([{"prompt": "x"}] * 3),
        processing_class=AutoTokenizer.from_pretrained(tiny),
    )  # fmt: skip
    prompts, contexts, answers = [], [], []
    for row in (*rows, idle):
        prompts.append(list(row.token_ids[:5]))
        contexts.append(list(row.reference_prompt_ids or ()))
        answers.append(list(row.token_ids[5:]))
    prompt_ids, prompt_mask = padded(prompts, left=True)
    context_ids, context_mask = padded(contexts, left=True)
    completion_ids, completion_mask = padded(answers, left=False)
    made.model.zero_grad()
    inputs = {
        "prompt_ids": prompt_ids, "prompt_mask": prompt_mask, "completion_ids": completion_ids,
        "completion_mask": completion_mask, "teacher_input_ids": torch.cat([context_ids, completion_ids], 1),
        "teacher_attention_mask": torch.cat([context_mask, completion_mask], 1),
        "self_distillation_mask": torch.tensor([1.0, 1.0, 0.0]),
    }  # fmt: skip
    trainer.current_gradient_accumulation_steps = 1
    total = trainer.compute_loss(made.model, inputs)
    total.backward()
    expected = {n: p.grad.clone() for n, p in made.parameters.items()}
    # theirs is a mean over all three attempts, ours over the two that are pulled
    fresh = [replace(row, logprobs=[float(x) for x in made_logprobs(made, row)]) for row in rows]
    found = made.update([*fresh, idle], config, stage.resolve(0, 1.0))
    assert float(total.detach()) * 3 / 2 == pytest.approx(found["loss"], rel=1e-4)
    for name, parameter in made.parameters.items():
        torch.testing.assert_close(parameter.grad, expected[name] * 1.5, atol=1e-5, rtol=1e-3)


def made_logprobs(made: Learner, row: TrainingSample) -> list[float]:
    """Log-probabilities under which the row would have been sampled now: ratios are then 1, as on TRL's first pass."""
    policy, _, tokens = by_hand(made, [row])[0]
    return [0.0] * 5 + policy.detach().gather(1, tokens[:, None]).squeeze(1).tolist()


@pytest.mark.slow
def test_the_context_has_the_words_of_trls_template(tiny: Path):
    from trl.experimental.sdpo import SDPOConfig

    played, held = group([(1, 2), (0,)])
    words = SDPOConfig(output_dir="unused", use_cpu=True, report_to=[])
    hint, solution = held.rollouts[0].dialogue.turns[0].hint, held.rollouts[1].dialogue.turns[0].attempt
    assert hint is not None
    theirs = words.reprompt_template.format(
        prompt=played.environment.prompt(held.task.public),
        solution=words.solution_template.format(successful_previous_attempt=solution),
        feedback=words.feedback_template.format(feedback_raw=hint.text),
    )
    mine = texts(played, method(played), held)[0]
    assert " ".join(theirs.split()) in " ".join(mine.split())
