"""The models of a run: the student's, and those that teachers and judges ask for, each loaded once.

A teacher that speaks with the student's own base shares its backend, so no weights are held twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rl2f_core import registry
from rl2f_core.backends.base import Backend
from rl2f_core.config import ModelConfig


class Models:
    """Backends by model.

    Args:
        student: The backend that speaks for the student, or the model that one is made for when it is first asked for.
        backend: The config that it was (or will be) made with; other models get a backend of the same kind.
    """

    def __init__(self, student: Backend | ModelConfig, backend: Any = None) -> None:
        self._made: dict[ModelConfig, Backend] = {}
        if isinstance(student, ModelConfig):
            self._student, self._config = student, backend
        else:
            self._student, self._config = student.model_config, student.config if backend is None else backend
            self._made[self._student] = student
        self._adapters: set[tuple[ModelConfig, str]] = set()

    @property
    def student(self) -> Backend:
        """The student's backend. Raises what loading a model raises."""
        return self.backend(self._student)

    def backend(self, model: ModelConfig | None = None) -> Backend:
        """The backend of a base model; None is the student's. Raises what loading a model raises."""
        if model is None:
            return self.student
        if model not in self._made:
            made: Any = registry.get("backend", self._config.type)
            self._made[model] = made(self._config, model)
        return self._made[model]

    def adapter(self, folder: str | None, model: ModelConfig | None = None) -> str | None:
        """Load the adapter in a folder onto a base model, once, and return the backend's name for it.

        None stays None. Raises `AdapterError` where it does not fit.
        """
        if folder is None:
            return None
        backend, name = self.backend(model), f"folder:{folder}"
        if (backend.model_config, name) not in self._adapters:
            backend.load_adapter(name, Path(folder))
            self._adapters.add((backend.model_config, name))
        return name
