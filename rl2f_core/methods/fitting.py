"""What TRL's GRPO loss has a place for, row by row and option by option.  Pure functions; no tensors.

TRL 1.16's `_compute_loss` knows: a mask of 0 and 1 on each token, an advantage and an old log-probability of each, the
clipped surrogate, and (`beta`) k3 to a reference on the very tokens of the mask.  Several rows of one dialogue fit, as
each brings its own advantages.  Cross-entropy, weights between 0 and 1, a divergence elsewhere or of another form,
another weighting of the ratio, and a value head do not.
"""

from __future__ import annotations

from typing import Any

from rl2f_core.methods.objectives import BatchCredit, Pull
from rl2f_core.types import Sample


def check_trainer(stage: Any, method: Any) -> None:
    """Refuse a stage that asks for TRL's trainer and whose rows do not fit it; raises `ValueError`.

    Args:
        stage: A `StageConfig`.
        method: The class of its method.
    """
    why = method_misfit(method(stage.method)) if stage.trainer == "trl" else ""
    if why:
        raise ValueError(f"stage {stage.name!r}: TRL's GRPO loss has no place for {why}; set trainer: own")


def method_misfit(method: Any) -> str:
    """What of a method's rows TRL's loss has no place for, as far as it is known before any is made; else empty.

    Args:
        method: A `methods.base.Method`.
    """
    if not method.trains:
        return "a stage that trains nothing"
    if "ce" in method.streams:
        return f"the cross-entropy stream of {method.name}"
    if not method.plain:
        return f"the rows of {method.name}, which are weighed one by one or read another context"
    options = method.loss_options()
    return options_misfit(options.get("kl_coef", 0.0), options.get("pull", Pull()), options.get("credit"))


def options_misfit(kl_coef: float, pull: Pull, credit: BatchCredit | None) -> str:
    """What of a loss's options TRL's has no place for; empty where it has one for all.

    Args:
        kl_coef: β.
        pull: What the kl stream does.
        credit: How the batch is credited.
    """
    if credit is not None and credit.critic is not None:
        return "a value head (PPO's critic)"
    if kl_coef and (pull.form != "k3" or pull.ratio_clip is not None):
        return f"the divergence {pull.form!r}: its β weighs k3 of the sampled token alone"
    if kl_coef and pull.weights != "stage":
        return f"a reference with the weights {pull.weights!r}"
    return ""


def row_misfit(row: Sample, kl_coef: float) -> str:
    """What of a row TRL's loss has no place for; empty where it fits.

    Args:
        row: Any.
        kl_coef: β; with 0 its kl weights do not matter.
    """
    if any(row.ce):
        return "cross-entropy (the ce stream)"
    if any(w not in (0, 1) for w in row.rl):
        return "weights of tokens other than 0 and 1: its mask takes a token or leaves it"
    if row.weighting != "ppo":
        return f"the weighting {row.weighting!r} of single rows: one loss type holds for all of them"
    if row.floor is not None:
        return "a floor under the log-probabilities of single rows"
    if kl_coef and list(map(float, row.kl)) != list(map(float, row.rl)):
        return "kl weights that are not those of rl: its divergence is taken on every token of the mask"
    if kl_coef and row.context is not None:
        return "a reference that reads another context than the policy"
    return ""
