"""The local models of a run (student, teachers, judges), each loaded once.

A teacher with the student's base model shares its backend.
"""

from __future__ import annotations

from pathlib import Path

from rl2f_core import registry
from rl2f_core.config.fields import ComponentConfig
from rl2f_core.config.model import ModelConfig
from rl2f_core.models.backends.base import Backend


class ModelPool:
    """Backends by base model.

    A student given as a model is loaded at first use. `backend` configures all backends; None is the student's.
    """

    def __init__(self, student: Backend | ModelConfig, backend: ComponentConfig | None = None) -> None:
        self._backends: dict[ModelConfig, Backend] = {}
        if isinstance(student, ModelConfig):
            assert backend is not None
            self._student, self._config = student, backend
        else:
            self._student, self._config = student.model_config, backend or student.config
            self._backends[self._student] = student
        self._adapters: set[tuple[ModelConfig, str]] = set()

    @property
    def student_config(self) -> ModelConfig:
        """The student's model, which may not be loaded."""
        return self._student

    @property
    def student(self) -> Backend:
        """The student's backend."""
        return self.backend()

    def backend(self, model: ModelConfig | None = None) -> Backend:
        """Return the backend of a base model, loaded at first use; None is the student's."""
        model = model or self._student
        if model not in self._backends:
            self._backends[model] = registry.get("backend", self._config.type)(self._config, model)
        return self._backends[model]

    @property
    def others(self) -> list[Backend]:
        """Loaded backends but the student's."""
        return [backend for model, backend in self._backends.items() if model != self._student]

    def adapter(self, folder: str | None, model: ModelConfig | None = None) -> str | None:
        """Load an adapter once and return its name in the backend; None is the base.

        Raises `AdapterError` if it does not fit.
        """
        if folder is None:
            return None
        backend, name = self.backend(model), f"folder:{folder}"
        if (backend.model_config, name) not in self._adapters:
            backend.load_adapter(name, Path(folder))
            self._adapters.add((backend.model_config, name))
        return name
