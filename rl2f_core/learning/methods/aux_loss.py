"""Auxiliary loss terms: their weight by step, and cross-entropy beside a policy gradient.

Critique imitation is cross-entropy on the teacher's hints under the prompt of self-critique. Its prompt is that of the
teacher `self_critique` at test time, and contains no answer, no solution and no verdict.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, cast

from pydantic import Field

from rl2f_core.common import prompt_templates
from rl2f_core.config.fields import BASIC_FIELD, PROMPT_REF, ComponentConfig
from rl2f_core.config.run import RunConfig
from rl2f_core.config.stage import ResolvedStage
from rl2f_core.dialogue.teachers.base import FeedbackRequest
from rl2f_core.dialogue.teachers.self_critique import TEMPLATE, SelfCritiqueTeacher, critique
from rl2f_core.errors import FieldValueError
from rl2f_core.learning.methods.base import StepContext
from rl2f_core.learning.methods.loss_spec import LossConfig
from rl2f_core.learning.methods.policy_gradient import GradientConfigT, PolicyGradient, RevisionGradientConfig
from rl2f_core.learning.methods.samples import sft_sample
from rl2f_core.models.tokenizer import encode_chat
from rl2f_core.types import Dialogue, Group, Hint, Task, TrainingSample


class AuxLossConfig(ComponentConfig):
    """Weight of an auxiliary loss term over the steps."""

    coef_ramp: Literal["constant", "linear"] = "constant"
    """Weight of the auxiliary term: constant, or linear from 0 at `start_step` to the full weight at the last step."""
    start_step: int = Field(0, ge=0)
    """First step at which the auxiliary term has weight."""

    def weight(self, peak: float, step: int, steps: int) -> float:
        """Return the weight at a 0-based step of a stage; `peak` is the full weight."""
        if step < self.start_step:
            return 0.0
        if self.coef_ramp == "constant" or steps - 1 <= self.start_step:
            return peak
        return peak * min(1.0, (step - self.start_step) / (steps - 1 - self.start_step))


class AuxCrossEntropy(PolicyGradient[GradientConfigT]):
    """Policy gradient with an auxiliary cross-entropy term of weight `ce_coef`."""

    loss_terms = ("rl", "kl", "ce")

    @property
    def ce_coef(self) -> float:
        """Weight λ of the cross-entropy at this step."""
        config: Any = self.config  # an `AuxLossConfig` with `ce_coef`
        return config.weight(config.ce_coef, self.context.step, self.context.steps)

    def loss_options(self) -> LossConfig:
        return dataclasses.replace(super().loss_options(), ce_coef=self.ce_coef)


class CritiqueConfig(AuxLossConfig, RevisionGradientConfig):
    """Weight and prompt of critique imitation."""

    ce_coef: float = Field(0.1, ge=0, json_schema_extra=BASIC_FIELD)
    """λ: weight of the cross-entropy on critiques."""
    critique_prompt: str | None = Field(None, json_schema_extra=PROMPT_REF)
    """Prompt template of the critiques: a shipped name, or the path of a `.txt` file; None is that of self-critique.
    A `self_critique` teacher evaluated later needs the same."""

    def check_stage(self, stage: ResolvedStage, run: RunConfig) -> None:
        """Also refuse another template than that of the run's `self_critique` teacher."""
        super().check_stage(stage, run)
        teacher = run.teacher
        same = self.critique_prompt or TEMPLATE
        if isinstance(teacher, SelfCritiqueTeacher.Config) and (teacher.prompt or TEMPLATE) != same:
            raise FieldValueError(
                f"stage {stage.name!r}: critiques are learned under the prompt {self.critique_prompt or TEMPLATE!r}, "
                f"but teacher.prompt is {teacher.prompt or TEMPLATE!r}; set critique_prompt to the same",
                *("teacher", "prompt"),
            )


def is_trainable_hint(hint: Hint | None) -> bool:
    """Return whether a hint is an unflagged critique of this attempt by the teacher.

    Fallback hints are not critiques, and flagged hints (also redacted or resampled ones) would teach to guess answers.
    """
    return (
        hint is not None
        and bool(hint.text.strip())
        and hint.error is None
        and not (hint.leak is not None and hint.leak.leaked)
        and hint.source_task is None
    )


class CritiqueImitation(AuxCrossEntropy[GradientConfigT]):
    """Policy gradient over dialogues with auxiliary cross-entropy on the teacher's hints."""

    def extra_samples(self, group: Group) -> list[TrainingSample]:
        template = cast(CritiqueConfig, self.config).critique_prompt
        critiques = critique_samples(group, self.context, template) if self.ce_coef else []
        return [*super().extra_samples(group), *critiques]


def critique_samples(group: Group, context: StepContext, template: str | None) -> list[TrainingSample]:
    """Return a sample per trainable hint of a group: the self-critique prompt, then the hint with ce weight 1.

    Samples longer than the model's context are left out.
    """
    prompt = prompt_templates.load(template or TEMPLATE)
    return [
        sft_sample(*encoded, rollout.dialogue.id)
        for rollout in group.trainable
        for k in range(len(rollout.dialogue.turns))
        if (encoded := encode_critique(group.task, rollout.dialogue, k, context, prompt)) is not None
    ]


def encode_critique(
    task: Task, dialogue: Dialogue, k: int, context: StepContext, prompt: prompt_templates.PromptTemplate
) -> tuple[Sequence[int], Sequence[int]] | None:
    """Return the tokens of the self-critique prompt on attempt k and of the hint on it.

    None if the hint is not trainable, or if the tokens exceed the model's context.
    """
    turn, tokenizer = dialogue.turns[k], context.renderer.tokenizer
    if turn.hint is None or not is_trainable_hint(turn.hint):
        return None
    before = (*dialogue.turns[:k], turn.model_copy(update={"hint": None}))
    prompt_ids = encode_chat(
        tokenizer, critique(context.engine_of(task).environment, FeedbackRequest(task, before, dialogue.seed), prompt)
    )
    target_ids = (*tokenizer.encode(context.renderer.escape(turn.hint.text)), tokenizer.eos_token_id)
    return (prompt_ids, target_ids) if len(prompt_ids) + len(target_ids) <= context.max_model_len else None
