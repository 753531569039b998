"""The whole step that is TRL's: `GRPOTrainer` with an environment, its tool loop over `generate`, its loss and update.

TRL plays several turns by tool calls.  Here every attempt is one: the tool is the teacher, and its answer is appended
in our words and tokens, so that both sides read and write the same dialogues.  What is replaced in the trainer is said
at each place; generation, the loop, scoring, masks, loss, backward pass, clipping and AdamW are its own.
"""

from __future__ import annotations

import tempfile
from typing import Any

from rl2f_core.dialogue.teachers.base import FeedbackRequest
from rl2f_core.types import Turn

from .rollout import hf_backend
from .step import WIDTH, scored
from .trl_grpo import grpo_config, peft_config
from .worker import Channel, Memory, Settings, Stopwatch

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}{{ message.get('tool_calls', '') }}\n"
    "{% endfor %}"
)
"""Never rendered into a prompt: the trainer asks that a template can carry a tool's answer, and has it so."""


def serve(settings: Settings, channel: Channel) -> None:
    """Every request is one optimiser step with the rollout before it."""
    with tempfile.TemporaryDirectory() as folder:
        build(settings, channel, folder).train()


def build(settings: Settings, channel: Channel, folder: str) -> Any:
    """The trainer, with a callback that waits for a request before each step and answers after it."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOTrainer
    from trl.trainer import grpo_trainer

    engine = scored(settings)
    backend = hf_backend(engine)
    device, tokens = backend.device, backend.tokenizer
    tokenizer = AutoTokenizer.from_pretrained(settings.folder)
    tokenizer.chat_template, tokenizer.response_template = TEMPLATE, {}

    class Player:
        """One dialogue's other side."""

        def reset(self, **row: Any) -> None:
            """Begin a dialogue."""
            self._task, self._turns = engine.environment.task("train", row["task"]), list[Turn]()

        def hint(self, attempt: str, ended: bool) -> str:
            """Judge an attempt and answer it; the first letter of the answer says whether the attempt was ended.

            Args:
                attempt: What the student wrote.
                ended: Whether it wrote the end of its message.
            """
            verdict = engine.environment.verify(self._task, attempt)
            self._turns.append(Turn(index=len(self._turns), attempt=attempt, verdict=verdict))
            (said,) = engine.teacher.feedback([FeedbackRequest(self._task, tuple(self._turns), 0)])
            return f"{int(ended)}{said.text}"

        def get_reward(self) -> float:
            """The fall of the distance over the judged attempts, as in our rewards."""
            first, last = self._turns[0].verdict.distance, self._turns[-1].verdict.distance
            return float(first or 0.0) - float(last or 0.0)

    def parsed(tokenizer: Any, ids: list[int], prefix: Any = None, tools: Any = None) -> dict[str, Any]:
        """An attempt as a call of the teacher."""
        said = {"attempt": tokens.decode(ids), "ended": ids[-1] == tokens.eos_token_id}
        call = {"type": "function", "function": {"name": "hint", "arguments": said}}
        return {"role": "assistant", "content": said["attempt"], "tool_calls": [call]}

    grpo_trainer.parse_response = parsed

    class Talking(GRPOTrainer):
        """GRPO whose prompts and hints are our tokens."""

        student = read = 0
        rollout: dict[str, float]

        def _tokenize_prompts(self, prompts: Any) -> Any:
            tasks = [engine.environment.task("train", int(prompt[-1]["content"])) for prompt in prompts]
            return [list(engine.renderer.initial_prompt(engine.environment.prompt(t.public))) for t in tasks], None, {}

        def _get_tool_suffix_ids(self, tool_messages: Any) -> Any:
            said = tool_messages[-1]["content"]
            return list(engine.renderer.hint_suffix(said[1:], ended=said[0] == "1"))

        def _generate(self, prompts: Any) -> Any:
            watch = Stopwatch(device)
            made = super()._generate(prompts)
            self.rollout, self.student = watch.read(), sum(map(sum, made[2]))
            openings = [tuple(prompt) for prompt in made[0]]
            self.read = sum(map(len, made[1])) + sum(map(len, set(openings)))
            return made

    class Turns(TrainerCallback):
        """Takes its turn when asked."""

        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            self.memory = Memory(device)
            channel.send(accumulation=trainer.args.gradient_accumulation_steps)

        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            if channel.receive() is None:
                raise SystemExit
            self.watch = Stopwatch(device)

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            timed = self.watch.read()
            played = {"rollout": trainer.rollout, "student": trainer.student, "read": trainer.read}
            channel.send(**timed, **played, **self.memory.report())

    model = AutoModelForCausalLM.from_pretrained(
        settings.folder, dtype=backend.dtype, attn_implementation=settings.attention or "sdpa", use_safetensors=True
    )
    del backend.model  # the engine's own weights are not needed here
    count = settings.dialogues // settings.group
    trainer = Talking(
        model=model,
        environment_factory=Player,
        args=grpo_config(
            settings,
            folder,
            device,
            gradient_accumulation_steps=settings.dialogues // settings.micro_rows,
            num_generations=settings.group,
            scale_rewards="none",
            max_completion_length=WIDTH,
            max_tool_calling_iterations=settings.turns - 1,
        ),
        train_dataset=Dataset.from_dict(
            {"prompt": [[{"role": "user", "content": str(i)}] for i in range(count)], "task": list(range(count))}
        ),
        processing_class=tokenizer,
        peft_config=peft_config(settings, model),
        callbacks=[Turns()],
    )
    # TRL's limit is of all turns together; a turn's own is that of the engine, as are the tokens it may not write.
    trainer.generation_config.max_new_tokens = settings.max_new_tokens
    trainer.generation_config.suppress_tokens = list(tokens.banned_token_ids)
    return trainer
