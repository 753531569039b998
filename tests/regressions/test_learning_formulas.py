"""Losses, advantages and their metrics, with numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import pytest
from two_tokens import set_logit, two_token_learner

from rl2f_core.types import TrainingSample


def row(token: int, **columns: Any) -> TrainingSample:
    """Fifteen tokens of context and one sampled token, with weights and numbers for the latter alone."""
    zeros = [0.0] * 16
    names = {f"{term}_weights": term for term in ("rl", "ce", "kl")} | {
        "logprobs": "logprob",
        "advantages": "advantage",
    }
    sample = TrainingSample([40] * 15 + [token], [False] * 15 + [True], zeros, zeros, zeros, zeros, zeros)
    at_last = {name: [*zeros[:15], columns.pop(short)] for name, short in names.items() if short in columns}
    return replace(sample, **at_last, **columns)


# -- a minibatch in parts --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("micro_batch_tokens", [1024, 16], ids=["together", "a row each"])
@pytest.mark.parametrize("form", ["k3", "sampled_token", "full_logits", "topk_logits"])
def test_only_some_micro_batches_have_a_kl_term(tiny: Path, form: str, micro_batch_tokens: int) -> None:
    learner, options, stage = two_token_learner(tiny, "base", form, log(3))  # the reference has (3/4, 1/4)
    learner.begin_stage(options, stage)
    set_logit(learner, 0.0)  # the policy has (1/2, 1/2)
    rows = [row(100, kl=1.0), row(100, rl=1.0, advantage=-1.0, logprob=log(0.5)), row(101, ce=1.0)]
    now = stage.model_copy(update={"micro_batch_tokens": micro_batch_tokens}).resolve(0, 1.0)
    found = learner.update(rows, options, now)
    kl = {"k3": 1.5 - 1 - log(1.5), "sampled_token": log(0.5 / 0.75) * log(0.5)}
    exact = 0.5 * log(0.5 / 0.75) + 0.5 * log(0.5 / 0.25)
    # −ρA = 1 and −log π = log 2
    assert found["loss"] == pytest.approx(1 + log(2) + kl.get(form, exact), abs=1e-4)
    assert found["kl"] == pytest.approx({"k3": kl["k3"], "sampled_token": log(0.5 / 0.75)}.get(form, exact), abs=1e-4)
