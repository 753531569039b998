"""The experiment itself: environments, teachers, rollouts, methods, training, evaluation. Loads no torch."""

from rl2f_core.config.loading import load_config, parse_config
from rl2f_core.config.run import RunConfig
from rl2f_core.errors import RL2FError

__version__ = "0.1.0"
__all__ = ["RL2FError", "RunConfig", "load_config", "parse_config"]
