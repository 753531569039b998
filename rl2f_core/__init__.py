"""The experiment itself: environments, teachers, rollouts, methods, training, evaluation. Loads no torch."""

from rl2f_core.config import RunConfig, load_config, parse_config
from rl2f_core.errors import RL2FError
from rl2f_core.types import (
    Dialogue,
    Group,
    Hint,
    LeakReport,
    Message,
    Reward,
    Rollout,
    Sample,
    Task,
    TokenStream,
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
    "Reward",
    "Rollout",
    "RunConfig",
    "Sample",
    "Task",
    "TokenStream",
    "Turn",
    "Verdict",
    "load_config",
    "parse_config",
]
