"""Learning to criticise: cross-entropy on the teacher's stored messages under the prompt of self-critique.

Shared by `rltf_fm` and `rl2f_self`. The context is what the model itself is asked at test time
(`teachers.self_critique`): it holds no answer, no solution and no verdict, whatever the teacher was shown.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from rl2f_core import prompts
from rl2f_core.fields import BASIC, KNOWN_PROMPT
from rl2f_core.methods.base import Scene
from rl2f_core.methods.coefficient import Imitates, TermConfig
from rl2f_core.methods.rows import told_row
from rl2f_core.rollout.tokenizer import conversation
from rl2f_core.teachers.base import FeedbackRequest
from rl2f_core.teachers.self_critique import TEMPLATE, critique
from rl2f_core.types import Group, Hint, Sample


class CritiqueConfig(TermConfig):
    """How much critiques count, and under which prompt."""

    ce_coef: float = Field(0.1, ge=0, json_schema_extra=BASIC)
    """λ: weight of the cross-entropy on critiques."""
    critique_prompt: str | None = Field(None, json_schema_extra=KNOWN_PROMPT)
    """Another template than the shipped one of self-critique: a shipped name, or the path of a `.txt` file. The
    `self_critique` teacher that is evaluated later needs the same."""

    def check_stage(self, stage: Any, run: Any) -> None:
        """Refuses a template that is another one than that of the run's own self-critique."""
        check = getattr(super(), "check_stage", None)
        if check is not None:
            check(stage, run)
        teacher = run.teacher
        if teacher.type == "self_critique" and (teacher.prompt or TEMPLATE) != (self.critique_prompt or TEMPLATE):
            raise ValueError(
                f"stage {stage.name!r}: critiques are learnt under the prompt {self.critique_prompt or TEMPLATE!r}, "
                f"but teacher.prompt is {teacher.prompt or TEMPLATE!r}; give critique_prompt the same"
            )


def usable(hint: Hint | None) -> bool:
    """Whether a message is a critique to learn from: it was the teacher's, and no detector convicted it.

    A stand-in for a hint that could not be had is nobody's critique, and a message that gave the answer away (shown as
    it was, blanked, or asked for again) would teach to guess one.
    """
    return (
        hint is not None
        and bool(hint.text.strip())
        and hint.error is None
        and not (hint.leak is not None and hint.leak.leaked)
        and (hint.source_task is None)
    )


class LearnsCritiques(Imitates):
    """Beside a policy gradient over dialogues, cross-entropy on what the teacher said."""

    def further(self, group: Group) -> list[Sample]:
        rows = critique_rows(group, self.scene, self.config.critique_prompt) if self.ce_coef else []
        return [*super().further(group), *rows]


def critique_rows(group: Group, scene: Scene, template: str | None) -> list[Sample]:
    """One row for every usable hint of a group: the prompt of self-critique, then the hint with ce weight 1.

    A row that is longer than the model's context is left out: it could not be asked for at test time either.
    """
    prompt = prompts.load(template or TEMPLATE)
    tokenizer, rows = scene.renderer.tokenizer, []
    for rollout in group.trainable:
        turns = rollout.dialogue.turns
        for k, turn in enumerate(turns):
            if turn.hint is None or not usable(turn.hint):
                continue
            before = (*turns[:k], turn.model_copy(update={"hint": None}))
            request = FeedbackRequest(group.task, before, rollout.dialogue.seed)
            context = conversation(tokenizer, critique(scene.environment, request, prompt))
            words = (*tokenizer.encode(scene.renderer.clean(turn.hint.text)), tokenizer.end_id)
            if len(context) + len(words) <= scene.context:
                rows.append(told_row(context, words, rollout.dialogue.id))
    return rows
