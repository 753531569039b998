"""The experiment itself: environments, teachers, rollouts, methods, training, evaluation. Loads no torch."""

from rl2f_core import registry
from rl2f_core.config.loading import load_config, parse_config
from rl2f_core.config.run import RunConfig
from rl2f_core.errors import RL2FError

__version__ = "0.1.0"
__all__ = ["RL2FError", "RunConfig", "load_config", "parse_config"]

registry.PACKAGES |= {
    "environment": ("rl2f_core.environments", "rl2f_core.environments.puzzles", "rl2f_core.environments.worlds"),
    "teacher": ("rl2f_core.dialogue.teachers",),
    "leak_detector": ("rl2f_core.leaks",),
    "backend": ("rl2f_core.models.backends",),
    "llm": ("rl2f_core.models.llms",),
    "method": ("rl2f_core.learning.methods",),
    "tracker": ("rl2f_core.run.tracking",),
    "run_kind": ("rl2f_core.run.kinds",),
}
