"""Settings of the environment `dataset`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rl2f_core.config.components import LLMConfig
from rl2f_core.config.fields import BASIC_FIELD, QUESTIONS_REF, ComponentConfig
from rl2f_core.environments.dataset.loading import COLUMNS
from rl2f_core.errors import FieldValueError

CheckerName = Literal[
    "exact", "numeric", "multiple_choice", "regex", "math_verify", "json_fields", "unit_tests", "judge"
]
SAMPLE = "sample"
"""Path of the shipped questions."""


class Config(ComponentConfig):
    """A file of questions, its columns, and how answers are checked."""

    type: Literal["dataset"] = "dataset"
    """Name of the environment."""
    path: str = Field(SAMPLE, min_length=1, json_schema_extra={**BASIC_FIELD, **QUESTIONS_REF})
    """File with the ending .csv, .jsonl, .ndjson, .jsonl.gz or .parquet, or the shipped sample."""
    columns: dict[str, str] = Field(default_factory=dict, json_schema_extra=BASIC_FIELD)
    """Columns for problem, answer, solution, level, split, pattern, tests and choices. Those left out are detected
    by name; an empty name is none."""
    checker: CheckerName = Field("numeric", json_schema_extra=BASIC_FIELD)
    """How an answer is compared with the gold answer; see the README of the environments."""
    tolerance: float = Field(0.0, ge=0)
    """Largest distance to the gold answer that checker numeric accepts."""
    relative_tolerance: float = Field(0.0, ge=0, lt=1)
    """The same as a fraction of the gold answer; the larger of both counts."""
    json_fields: tuple[str, ...] | None = Field(None, min_length=1)
    """Keys that checker json_fields compares; None: all, and no other key is allowed."""
    llm: LLMConfig | None = None
    """Model of checker judge, an endpoint."""
    bad_rows: Literal["error", "skip"] = "error"
    """Refuse a file with rows that cannot be used, or use the others. `rl2f data check` lists the rows."""
    near_duplicates: Literal["keep", "drop"] = "keep"
    """Use or leave out training problems that nearly repeat a test problem. The log of a run counts them."""
    time_limit: float = Field(2.0, ge=1, le=60)
    """Limit of a comparison by regex or math_verify, and of the CPU time of unit tests, in seconds."""
    memory_limit: int = Field(256, ge=64, le=4096)
    """Limit of the memory of unit tests, in MB."""
    allow_weaker_sandbox: bool = False
    """Run unit tests although the kernel refuses a part of the sandbox."""
    seed: int = 0
    """Seed of the task order."""

    @model_validator(mode="after")
    def _check_columns(self) -> Config:
        unknown = sorted(set(self.columns) - set(COLUMNS))
        if unknown:
            raise FieldValueError(f"has unknown keys {', '.join(unknown)}; known: {', '.join(COLUMNS)}", "columns")
        return self

    @model_validator(mode="after")
    def _check_judge(self) -> Config:
        if (self.checker == "judge") != (self.llm is not None):
            raise FieldValueError("checker judge and llm need each other, e.g. llm: {type: openai_api}", "llm")
        if self.llm is not None and self.llm.type == "local":
            raise FieldValueError("the judge of answers is an endpoint; use llm: {type: openai_api, …}", "llm")
        return self
