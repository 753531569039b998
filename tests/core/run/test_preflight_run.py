"""The run kind `preflight`."""

from __future__ import annotations

from rl2f_core.config.loading import parse_config
from rl2f_core.config.run import RunConfig
from rl2f_core.dialogue.rollout.build import build_backend
from rl2f_core.run.kinds.preflight import _time_update
from rl2f_core.types import TrainingSample


def test_update_is_timed_with_a_temporary_learner_if_the_backend_has_weights() -> None:
    stage = {"name": "rl", "method": "rlvr", "steps": 2, "group_size": [{"step": 0, "value": 2}]}
    data = {"environment": "arithmetic", "model": {"name": "tiny-random", "device": "cpu"}, "stages": [stage]}
    weights = (0.0, 1.0, 1.0)
    sample = TrainingSample(
        token_ids=(5, 6, 7), policy_mask=(False, True, True), logprobs=(0.0, -1.0, -1.0), advantages=weights,
        rl_weights=weights, ce_weights=(0.0,) * 3, kl_weights=(0.0,) * 3,
    )  # fmt: skip
    for backend, has_weights in (("hf", True), ("fake", False)):
        config = parse_config({**data, "backend": backend})
        assert isinstance(config, RunConfig)
        seconds = _time_update(config, config.stages[0], build_backend(config), [sample])
        assert (seconds > 0) == has_weights
