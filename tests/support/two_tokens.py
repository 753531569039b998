"""A model with two tokens, whose probabilities are set by hand."""

from __future__ import annotations

from pathlib import Path

import torch

from rl2f_core.config.model import LoraConfig
from rl2f_core.config.stage import StageConfig
from rl2f_core.learning.learner.learner import Learner
from rl2f_core.learning.methods.loss_spec import KLConfig, LossConfig
from rl2f_core.models.store.tiny import VOCABULARY

ONLY = (100, 101)
"""The two tokens that may be sampled; 40 is the context."""


def two_token_learner(tiny: Path, kind: str, form: str, z: float) -> tuple[Learner, LossConfig, StageConfig]:
    """A fully trained model with p(100) = σ(z) after token 40, and the reference `kind`.

    All blocks are 0 and embeddings are one-hot, so the last hidden state is (√H, 0, …), and the tied output layer has
    the logit √H · E[token, 0].
    """
    banned = [token for token in range(VOCABULARY) if token not in ONLY]
    lora = LoraConfig(full_finetuning=True)
    learner = Learner(tiny, lora, dtype=torch.float32, device=torch.device("cpu"), banned=banned, pad=2, seed=0)
    parameters = learner.parameters
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.fill_(1.0 if "norm" in name else 0.0)
        next(p for name, p in parameters.items() if "embed" in name)[40, 0] = 1.0
    set_logit(learner, z)
    kl = KLConfig(form, reference=kind, top_k=2)  # type: ignore[arg-type]
    stage = StageConfig(name="s", method="sdpo", steps=9, ref_model="stage_start", learning_rate=1e-3)
    return learner, LossConfig(kl_coef=1.0, kl=kl), stage


def set_logit(learner: Learner, z: float) -> None:
    """Set p(100) = σ(z) after token 40."""
    with torch.no_grad():
        embeddings = next(p for name, p in learner.parameters.items() if "embed" in name)
        embeddings[100, 0] = z / embeddings.shape[1] ** 0.5
