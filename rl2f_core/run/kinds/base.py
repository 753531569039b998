"""Interface of a run kind: its configuration and how to execute it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from rl2f_core.config.fields import BaseConfig

if TYPE_CHECKING:
    from rl2f_core.run.context import RunContext

RunSettings = TypeVar("RunSettings", bound=BaseConfig)


class Kind(ABC, Generic[RunSettings]):
    """Executes runs of one kind. It is created without arguments."""

    config_class: ClassVar[type[BaseConfig]]
    """Configuration class; its `kind` literal is the registered name."""
    supports_distributed: ClassVar[bool] = False
    """Whether several processes can execute one run."""
    light: ClassVar[bool] = False
    """Whether a run needs no device slot of the queue."""

    @abstractmethod
    def execute(self, config: RunSettings, context: RunContext) -> bool:
        """Execute a run from its last commit; False if `context.stop` ended it early."""
