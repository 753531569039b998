"""The experiment itself: environments, teachers, rollouts, methods, training, evaluation. Loads no torch."""

from rl2f_core.config.loading import load_config, parse_config
from rl2f_core.config.run import RunConfig
from rl2f_core.errors import RL2FError
from rl2f_core.types import (
    Dialogue,
    Group,
    Hint,
    LeakReport,
    Message,
    RewardTerm,
    Rollout,
    Task,
    TokenSequence,
    TrainingSample,
    Turn,
    Verdict,
)

__version__ = "0.1.0"
__all__ = [
    "Dialogue",
    "Group",
    "Hint",
    "LeakReport",
    "Message",
    "RL2FError",
    "RewardTerm",
    "Rollout",
    "RunConfig",
    "Task",
    "TokenSequence",
    "TrainingSample",
    "Turn",
    "Verdict",
    "load_config",
    "parse_config",
]
