"""Which token carries which weight, what the learner reads of it, and that sampler and learner agree.

The dialogue that the exact positions are drawn on (`DRAWN`); `#` marks the student's tokens:

    position    0   1   2 |  3   4   5 |  6   7   8 |  9  10 | 11
    part        opening   | attempt 0  | suffix     | attempt 1
                            #   #   #                 #   #    #
    token      90  91  92 | 10  11   2 | 93  94  95 | 12  13 |  2
    turn       -1  -1  -1 |  0   0   0 |  0   0   0 |  1   1 |  1
    logprob     0   0   0 | -.1 -.2 -.3|  0   0   0 | -.4 -.5| -.6

Token 2 ends a message. The suffix is the hint and the template around it, up to where the student speaks again.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rl2f_core.config.model import LoraConfig, ModelConfig
from rl2f_core.config.run import RunConfig
from rl2f_core.config.stage import StageConfig
from rl2f_core.dialogue.rollout.build import build_engine
from rl2f_core.dialogue.rollout.engine import RolloutEngine, RolloutRequest
from rl2f_core.learning.learner.learner import Learner
from rl2f_core.learning.learner.losses import LossConfig
from rl2f_core.learning.learner.micro_batch import effective_length, loss_normalizers, micro_batches
from rl2f_core.learning.methods.rl2f import RL2F, RLVR
from rl2f_core.learning.methods.samples import policy_samples, sft_samples
from rl2f_core.learning.methods.sft import SFT
from rl2f_core.models.backends.hf.backend import HFBackend
from rl2f_core.models.modeling.loading import load_base_model
from rl2f_core.models.modeling.logprobs import selected_logprobs
from rl2f_core.types import (
    Dialogue,
    Group,
    RewardTerm,
    Rollout,
    StopReason,
    Task,
    TokenSequence,
    TrainingSample,
    Turn,
    Verdict,
)

CPU = torch.device("cpu")
TASK = Task(id="t", environment="e", split="train", level="l", public={}, privileged={})


def drawn(first: float = 0.0, second: float = 1.0, stop: StopReason = StopReason.EXHAUSTED) -> Rollout:
    """The dialogue of the drawing, with the rewards of its two turns."""
    turns = tuple(
        Turn(
            index=k, attempt="x", verdict=Verdict(correct=False, score=0), rewards=(RewardTerm(name="r", score=reward),)
        )
        for k, reward in enumerate((first, second))
    )
    stream = TokenSequence(
        token_ids=(90, 91, 92, 10, 11, 2, 93, 94, 95, 12, 13, 2),
        student_mask=(False, False, False, True, True, True, False, False, False, True, True, True),
        logprobs=(0, 0, 0, -0.1, -0.2, -0.3, 0, 0, 0, -0.4, -0.5, -0.6),
        turn_ids=(-1, -1, -1, 0, 0, 0, 0, 0, 0, 1, 1, 1),
    )
    return Rollout(Dialogue(id="g/0", task_id="t", group="g", index=0, turns=turns, stop_reason=stop), (stream,))


DRAWN = drawn()
ZEROS = [0.0] * 12
STUDENT = [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1]


# -- rows ------------------------------------------------------------------------------------------------------
def test_a_policy_row_weighs_exactly_the_students_tokens_each_with_its_turns_advantage():
    (row,) = policy_samples(DRAWN, [0.5, -0.25], kl=False)
    assert list(row.token_ids) == [90, 91, 92, 10, 11, 2, 93, 94, 95, 12, 13, 2]
    assert list(row.rl_weights) == STUDENT
    assert list(row.advantages) == [0, 0, 0, 0.5, 0.5, 0.5, 0, 0, 0, -0.25, -0.25, -0.25]
    assert list(row.policy_mask) == [bool(s) for s in STUDENT]
    assert list(row.logprobs) == [0, 0, 0, -0.1, -0.2, -0.3, 0, 0, 0, -0.4, -0.5, -0.6]
    assert list(row.ce_weights) == ZEROS and list(row.kl_weights) == ZEROS
    assert row.dialogue == "g/0" and len(row.weighted_positions) == 6


def test_a_policy_row_with_kl_weighs_the_same_tokens_there():
    (row,) = policy_samples(DRAWN, [0.5, -0.25], kl=True)
    assert list(row.kl_weights) == STUDENT and list(row.rl_weights) == STUDENT and list(row.ce_weights) == ZEROS


def test_a_turn_without_advantage_still_counts_in_the_mean():
    (row,) = policy_samples(DRAWN, [0.0, 1.0], kl=False)
    assert list(row.advantages) == [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1]
    assert loss_normalizers([row]).rl == 6


@pytest.mark.parametrize(
    ("turns", "ce"),
    [
        ([0, 1], [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1]),
        ([1], [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1]),
        ([0], [0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0]),
    ],
)
def test_an_imitation_row_weighs_the_students_tokens_of_the_wanted_turns(turns: list[int], ce: list[int]):
    (row,) = sft_samples(DRAWN, turns)
    assert list(row.ce_weights) == ce
    assert list(row.rl_weights) == ZEROS and list(row.kl_weights) == ZEROS and list(row.advantages) == ZEROS
    assert not any(row.policy_mask) and list(row.token_ids) == list(DRAWN.sequences[0].token_ids)


def test_sft_imitates_all_turns_or_the_last():
    group = Group(TASK, (DRAWN, drawn(stop=StopReason.DROPPED)))
    (all_,) = SFT(SFT.Config()).samples(group)
    (last,) = SFT(SFT.Config(train_on="last")).samples(group)
    assert list(all_.ce_weights) == STUDENT
    assert list(last.ce_weights) == [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1]


def test_rl2f_rows_carry_turn_or_dialogue_credit():
    group = Group(TASK, (drawn(0, 1), drawn(0, 0)))
    # γ 0.5: turn 0: 0.5 and 0, mean 0.25; turn 1: 1 and 0, mean 0.5
    won, lost = RL2F(RL2F.Config(gamma=0.5)).samples(group)
    assert list(won.advantages) == [0, 0, 0, 0.25, 0.25, 0.25, 0, 0, 0, 0.5, 0.5, 0.5]
    assert list(lost.advantages) == [-a for a in won.advantages]
    # one return each: 0.5 and 0
    won, lost = RL2F(RL2F.Config(gamma=0.5, advantage_level="dialogue", kl_coef=0.1)).samples(group)
    assert list(won.advantages) == [0.25 * s for s in STUDENT] and list(won.kl_weights) == STUDENT


def test_rlvr_allows_one_turn():
    assert RLVR(RLVR.Config()).max_turns(4) == 1 and RL2F(RL2F.Config()).max_turns(4) == 4


# -- refusals --------------------------------------------------------------------------------------------------
def sample(**changes: object) -> TrainingSample:
    n = 3
    fields: dict[str, object] = {
        "token_ids": [5, 6, 7],
        "policy_mask": [False, True, True],
        "logprobs": [0.0, -1.0, -1.0],
        **{name: [0.0] * n for name in ("advantages", "rl_weights", "ce_weights", "kl_weights")},
    }
    return TrainingSample(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["policy_mask", "logprobs", "advantages", "rl_weights", "ce_weights", "kl_weights"])
def test_an_array_of_another_length_is_refused(name: str):
    with pytest.raises(ValueError, match=rf"Sample\.{name} has 2 entries for 3 tokens"):
        sample(**{name: [0.0, 0.0]})


@pytest.mark.parametrize("name", ["rl_weights", "ce_weights", "kl_weights"])
def test_a_weight_on_the_first_token_is_refused(name: str):
    with pytest.raises(ValueError, match="first token"):
        sample(policy_mask=[True] * 3, **{name: [1.0, 0.0, 0.0]})


def test_rl_weight_on_a_token_that_the_policy_did_not_sample_is_refused():
    with pytest.raises(ValueError, match="did not sample"):
        sample(policy_mask=[False, False, True], rl_weights=[0.0, 1.0, 1.0])


@pytest.mark.parametrize("name", ["rl_weights", "kl_weights"])
def test_a_token_has_one_temperature_so_cross_entropy_excludes_the_other_terms(name: str):
    with pytest.raises(ValueError, match="ce_weights and rl_weights or kl_weights"):
        sample(policy_mask=[True] * 3, ce_weights=[0.0, 1.0, 1.0], **{name: [0.0, 0.0, 1.0]})


def test_teacher_tokens_may_carry_ce_and_kl_weight():
    assert sample(
        policy_mask=[False] * 3, ce_weights=[0.0, 1.0, 0.0], kl_weights=[0.0, 0.0, 1.0]
    ).weighted_positions == (1, 2)


def test_a_stream_with_unequal_arrays_is_refused():
    with pytest.raises(ValueError, match="differ in length"):
        TokenSequence((1, 2), (True, False), (0.0,), (0, 0))


# -- batches ---------------------------------------------------------------------------------------------------
def row(length: int, weighted: int, first: int) -> TrainingSample:
    """Tokens first, first + 1 …; ce weight on the `weighted`-th token alone."""
    zeros = [0.0] * length
    return TrainingSample(list(range(first, first + length)), [False] * length, zeros, zeros, zeros,
                  [float(p == weighted - 1) for p in range(length)], zeros)  # fmt: skip


def test_a_row_is_needed_up_to_its_last_weighted_token():
    assert effective_length(policy_samples(DRAWN, [1, 1], kl=False)[0]) == 12
    assert effective_length(sft_samples(DRAWN, [0])[0]) == 6
    assert sft_samples(DRAWN, []) == [] and effective_length(row(4, 0, 1)) == 0
    (batch,) = micro_batches(sft_samples(DRAWN, [0]), 100, 0, CPU)
    assert batch.input_BT.tolist() == [[90, 91, 92, 10, 11, 2]]


def test_micro_batches_keep_rows_times_longest_under_the_limit():
    rows = [row(20, 3, 100), row(9, 8, 200), row(5, 5, 300), row(6, 4, 400), row(7, 0, 500), row(4, 2, 600)]
    # needed 8, 5, 4, 3, 2; the row without weight is left out
    batches = micro_batches(rows, 12, 0, CPU)
    # 12 // 8 = 1; 12 // 5 = 2; 12 // 3 = 4
    assert [[s.token_ids[0] for s in b.samples] for b in batches] == [[200], [300, 400], [100, 600]]
    assert [tuple(b.input_BT.shape) for b in batches] == [(1, 8), (2, 5), (2, 3)]
    assert batches[1].input_BT.tolist() == [[300, 301, 302, 303, 304], [400, 401, 402, 403, 0]]
    assert batches[1].attention_mask_BT.tolist() == [[True] * 5, [True] * 4 + [False]]
    assert batches[1].target_mask_BT.nonzero().tolist() == [[0, 4], [1, 3]]


def test_a_row_longer_than_the_limit_goes_alone():
    batches = micro_batches([row(9, 9, 0), row(9, 9, 50)], 4, 0, CPU)
    assert [tuple(b.input_BT.shape) for b in batches] == [(1, 9), (1, 9)]


def opened(opening: int, length: int, last: int) -> TrainingSample:
    """Opening of three equal tokens, then zeros, then `last`; ce weight from position 4 on."""
    zeros = [0.0] * length
    ids = [opening] * 3 + [0] * (length - 4) + [last]
    return TrainingSample(ids, [False] * length, zeros, zeros, zeros, [float(p > 3) for p in range(length)], zeros)


def test_rows_of_one_opening_stay_together_and_no_rows_make_no_batch():
    rows = [opened(7, 6, 1), opened(8, 6, 2), opened(7, 9, 3), opened(8, 7, 4), opened(7, 6, 5)]
    (batch,) = micro_batches(rows, 100, 0, CPU)
    # opening 7 has the longest row; equal rows stay in order
    assert [s.token_ids[-1] for s in batch.samples] == [3, 1, 5, 4, 2]
    assert batch.prefixes == (3, 3, 3, 3, 3), "the token before the first weighted one predicts it"
    assert micro_batches([], 100, 0, CPU) == [] and loss_normalizers([]).rl == 0


@pytest.mark.parametrize("limit", [1, 10, 13, 14, 20, 28, 30, 1000])
def test_no_order_of_rows_breaks_the_limit(limit: int):
    rows = [opened(7, 9, 1), opened(7, 5, 2), opened(8, 8, 3), opened(8, 7, 4), opened(9, 6, 5), opened(7, 6, 6)]
    batches = micro_batches(rows, limit, 0, CPU)
    assert all(b.input_BT.numel() <= limit or len(b.samples) == 1 for b in batches)
    assert sorted(s.token_ids[-1] for b in batches for s in b.samples) == [1, 2, 3, 4, 5, 6]


def test_the_wanted_positions_hold_the_right_values_row_by_row():
    (policy,) = policy_samples(DRAWN, [0.5, -0.25], kl=True)
    (shown,) = sft_samples(DRAWN, [0])
    (batch,) = micro_batches([shown, policy], 100, 0, CPU)
    assert [s is policy for s in batch.samples] == [True, False]
    assert batch.target_mask_BT[0].int().tolist() == STUDENT
    assert batch.target_mask_BT[1].int().tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0]
    tokens = batch.tokens
    expected = {
        "old_logprobs_N": [-0.1, -0.2, -0.3, -0.4, -0.5, -0.6, 0, 0, 0],
        "advantages_N": [0.5, 0.5, 0.5, -0.25, -0.25, -0.25, 0, 0, 0],
        "rl_N": [1] * 6 + [0] * 3,
        "ce_N": [0] * 6 + [1] * 3,
        "kl_N": [1] * 6 + [0] * 3,
    }
    for name, values in expected.items():
        assert getattr(tokens, name).tolist() == pytest.approx(values), name
    assert tokens.reference_N is None
    assert vars(loss_normalizers([shown, policy])) == {"rl": 6, "ce": 3, "kl": 6}


# -- logits only where wanted ----------------------------------------------------------------------------------
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("banned", [[], [0, 1, 7]])
def test_logits_where_wanted_equal_the_full_log_softmax(tiny: Path, temperature: float, banned: list[int]):
    model = load_base_model(str(tiny), torch.float32, CPU)
    generator = torch.Generator().manual_seed(0)
    lengths = [9, 5, 12]
    rows = [torch.randint(8, 300, (n,), generator=generator).tolist() for n in lengths]
    weights = [[0, *(float(p % 3 == 1) for p in range(1, n - 1)), 1.0] for n in lengths]
    zeros = [[0.0] * n for n in lengths]
    samples = [TrainingSample(r, [False] * len(r), z, z, z, w, z) for r, w, z in zip(rows, weights, zeros, strict=True)]
    (batch,) = micro_batches(samples, 1000, 2, CPU)
    with torch.no_grad():
        logp_N, entropy_N = selected_logprobs(
            model,
            batch.input_BT,
            batch.attention_mask_BT,
            batch.target_mask_BT,
            temperature=temperature,
            banned=torch.tensor(banned),
        )
        full, entropies = [], []
        for i in (2, 0, 1):  # longest first
            logits_TV = model(torch.tensor([rows[i]])).logits[0] / temperature
            logits_TV[:, banned] = -torch.inf
            logp_TV = logits_TV.log_softmax(1)
            for p in range(1, lengths[i]):
                if weights[i][p]:
                    full.append(float(logp_TV[p - 1, rows[i][p]]))
                    entropies.append(float(torch.special.entr(logp_TV[p - 1].exp()).sum()))
    assert logp_N.tolist() == pytest.approx(full, abs=1e-5)
    assert entropy_N.tolist() == pytest.approx(entropies, abs=1e-4)


# -- sampler and learner ---------------------------------------------------------------------------------------
STAGE = StageConfig(name="s", method="sft", steps=10, learning_rate=0.02, max_grad_norm=10)


def learner_of(backend: HFBackend, seed: int = 0) -> Learner:
    return Learner(
        backend.folder,
        LoraConfig(rank=4, alpha=8),
        dtype=torch.float32,
        device=CPU,
        banned=backend.tokenizer.banned_token_ids,
        pad=backend.tokenizer.eos_token_id,
        seed=seed,
    )


def backend_of(tiny: Path) -> HFBackend:
    return HFBackend(HFBackend.Config(), ModelConfig(name=str(tiny), dtype="float32", device="cpu"))


def engine_of(backend: HFBackend, max_turns: int, max_new_tokens: int) -> RolloutEngine:
    config = RunConfig.model_validate(
        {
            "environment": {"type": "secret_code", "letters": 2, "length": 2},
            "rollout": {"max_turns": max_turns, "max_new_tokens": max_new_tokens, "max_seq_len": 512},
            "stages": [{"name": "s", "method": "sft", "steps": 1}],
        }
    )
    return build_engine(config, backend)


@pytest.fixture(scope="module")
def trained(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[HFBackend, Learner]:
    """A backend that speaks with a learner's adapter after a few updates far from the base."""
    backend = backend_of(tiny)
    learner = learner_of(backend)
    text = backend.tokenizer.encode("<|im_start|>assistant\n<answer>A B</answer><|im_end|>")
    zeros = [0.0] * len(text)
    told = TrainingSample(text, [False] * len(text), zeros, zeros, zeros, [0.0, *[1.0] * (len(text) - 1)], zeros)
    for step in range(5):
        learner.update([told], LossConfig(), STAGE.resolve(step, 1.0))
    folder = tmp_path_factory.mktemp("adapter")
    learner.save_adapter(folder)
    backend.load_adapter("policy", folder)
    return backend, learner


def test_merged_weights_and_adapter_give_the_same_log_probabilities(trained: tuple[HFBackend, Learner]):
    backend, learner = trained
    generator = torch.Generator().manual_seed(4)
    rows = [torch.randint(3, 300, (n,), generator=generator).tolist() for n in (6, 11, 17)]
    merged, base = backend.score(rows, "policy"), backend.score(rows, None)
    causal_lm = learner.model.get_base_model()
    for ids, here, there in zip(rows, merged, base, strict=True):
        wanted = torch.tensor([[False, *[True] * (len(ids) - 1)]])
        with torch.no_grad():
            logp_N, _ = selected_logprobs(causal_lm, torch.tensor([ids]), torch.ones_like(wanted), wanted)
        assert here[0] == 0 and here[1:] == pytest.approx(logp_N.tolist(), abs=1e-4)
        assert max(abs(a - b) for a, b in zip(here, there, strict=True)) > 0.1


@pytest.mark.parametrize("temperature", [1.0, 1.3])
def test_what_the_sampler_says_of_its_tokens_the_learner_says_too(
    trained: tuple[HFBackend, Learner], temperature: float
):
    backend, learner = trained
    engine = engine_of(backend, max_turns=3, max_new_tokens=10)
    environment = engine.environment
    requests = [RolloutRequest(environment.task("train", i), f"d{i}", "g", i, seed=i) for i in range(6)]
    rollouts = engine.run(requests, adapter="policy", temperature=temperature)
    assert max(len(r.dialogue.turns) for r in rollouts) == 3
    samples = [row for r in rollouts for row in policy_samples(r, [1.0] * len(r.dialogue.turns), kl=False)]
    banned = set(backend.tokenizer.banned_token_ids)
    for batch in micro_batches(samples, 500, backend.pad_id, CPU):
        with torch.no_grad():
            logp_N, *_ = learner.policy(batch, temperature)
        assert not banned & set(batch.input_BT[batch.target_mask_BT].tolist())
        assert logp_N.tolist() == pytest.approx(batch.tokens.old_logprobs_N.tolist(), abs=1e-4)
    metrics = learner.update(
        samples, LossConfig(), STAGE.model_copy(update={"learning_rate": 1e-12}).resolve(0, temperature)
    )
    assert metrics["ratio/mean"] == pytest.approx(1, abs=1e-4) and metrics["clip_ratio"] == 0
    assert metrics["approx_kl"] == pytest.approx(0, abs=1e-6)


def test_tokens_that_are_not_the_students_carry_no_rl_weight_in_played_dialogues(trained: tuple[HFBackend, Learner]):
    backend, _ = trained
    engine = engine_of(backend, max_turns=2, max_new_tokens=6)
    environment, renderer = engine.environment, engine.renderer
    (rollout,) = engine.run([RolloutRequest(environment.task("train", 0), "d", "g", 0, seed=5)])
    (row,) = policy_samples(rollout, [1.0] * len(rollout.dialogue.turns), kl=True)
    # opening | attempt 0 | suffix(hint 0) | attempt 1, in exactly these tokens
    first, second = rollout.dialogue.turns
    opening = renderer.initial_prompt(environment.prompt(environment.task("train", 0).public))
    ended = first.token_ids[-1] == backend.tokenizer.eos_token_id
    suffix = renderer.hint_suffix(first.hint.text, ended=ended)
    parts = [opening, first.token_ids, suffix, second.token_ids]
    assert list(row.token_ids) == [t for part in parts for t in part]
    mask = [0] * len(opening) + [1] * len(first.token_ids) + [0] * len(suffix) + [1] * len(second.token_ids)
    assert list(row.rl_weights) == mask and list(row.kl_weights) == mask and [int(s) for s in row.policy_mask] == mask
