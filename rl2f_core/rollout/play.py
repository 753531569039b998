"""Dialogues on their way: each is at the student, at its teacher, or at its end.

    begin ─► student ─► verifier ─► end
                ▲            │
                └─ guard ◄─ teacher

As many dialogues as `rollout.batch_size` are under way; as one ends, the next begins.  `continuous`: a turn is judged
as soon as it is done, and its dialogue goes on beside the others, wherever they are.  `lockstep`: all turns under way
are done before any of them is judged.  What becomes of a dialogue depends on its request alone, so that both play the
same dialogues.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rl2f_core.backends.base import Generation, Prompt, Sampling, Ticket
from rl2f_core.baton import Baton
from rl2f_core.errors import DataError
from rl2f_core.leaks.guard import Guarded
from rl2f_core.rollout.history import History
from rl2f_core.rollout.live import LiveDialogue, judged
from rl2f_core.rollout.requests import Request, Student, turn_seed
from rl2f_core.teachers.base import FeedbackRequest
from rl2f_core.types import StopReason, Turn, Verdict

if TYPE_CHECKING:
    from rl2f_core.rollout.engine import RolloutEngine


class Played(LiveDialogue):
    """A dialogue with the number of turns that it may have, and who answers in it."""

    def __init__(self, request: Request, history: History, limit: int, student: Student) -> None:
        super().__init__(request, history)
        self.limit, self.student = limit, student

    @property
    def key(self) -> str:
        """What the backend knows it by: several students may play the same dialogue."""
        return self.request.id if self.request.student is None else f"{self.request.id} {self.student.adapter}"


class Play:
    """One call of `RolloutEngine.play`.

    Args:
        engine: Who judges, teaches and guards.
        requests: What to play.
        sampling: How the student draws its tokens.
        student: Who answers where a request does not say.
        turns: Allowed in a dialogue whose request does not say.
        advanced: Called with (dialogues ended, dialogues in all) whenever turns have been judged or hints have come.
    """

    def __init__(
        self, engine: RolloutEngine, requests: Sequence[Request], sampling: Sampling, *, student: Student,
        turns: int, advanced: Callable[[int, int], None] | None,
    ) -> None:  # fmt: skip
        self.engine, self.sampling, self.student, self.turns = engine, sampling, student, turns
        self.lockstep = engine.config.schedule == "lockstep"
        self.aside = engine.waits and not self.lockstep
        """Whether teachers are asked aside, while other dialogues go on."""
        self.total, self.advanced = len(requests), advanced
        self.queue = deque(requests)
        self.dialogues: list[Played] = []
        self.under_way: list[Played] = []
        self.speaking: dict[Ticket, Played] = {}
        self.asked = 0
        """Dialogues whose teachers are asked aside."""
        self.answers: list[tuple[Played, Guarded | Exception]] = []
        """What those teachers have said since it was last looked at."""

    def run(self) -> list[Played]:
        """Play everything; the dialogues, in the order of the requests."""
        with Baton() as self.baton, self.engine.backend.session() as self.session:
            self._begin()
            while self.under_way:
                news = self._listen_to_students()
                news += self._listen_to_teachers(rest=not news)
                self._sort(news)
                self._begin()
                if news and self.advanced is not None:
                    self.advanced(len(self.dialogues) - len(self.under_way), self.total)
        return self.dialogues

    # -- beginning and end -------------------------------------------------------------------------------------
    def _begin(self) -> None:
        """Let dialogues begin while there is room."""
        while self.queue and len(self.under_way) < self.engine.config.batch_size:
            room = self.engine.config.batch_size - len(self.under_way)
            begun = [self._begun(self.queue.popleft()) for _ in range(min(room, len(self.queue)))]
            self.dialogues += begun
            self.under_way += begun
            without_hint = [d for d in begun if d.stop is None and d.turns and d.turns[-1].hint is None]
            self._sort([d for d in begun if d not in without_hint] + self._ask(without_hint))

    def _begun(self, request: Request) -> Played:
        """A dialogue brought to where it goes on: the opening, then the turns that were already played."""
        limit, student = request.max_turns or self.turns, request.student or self.student
        dialogue = Played(request, self.engine.history, limit, student)
        for turn in request.turns:
            dialogue.attempt(turn, *self._played(turn))
            if turn.hint is not None:
                dialogue.go_on()
        self._judge_end(dialogue)
        return dialogue

    def _played(self, turn: Turn) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Tokens of a turn as they were sampled, or of its text where somebody wrote it (log-probabilities then 0).

        Raises `DataError` where the tokens are another tokenizer's.
        """
        tokenizer = self.engine.backend.tokenizer
        if not turn.token_ids:
            written = (*tokenizer.encode(self.engine.renderer.clean(turn.attempt)), tokenizer.end_id)
            return written, (0.0,) * len(written)
        try:
            same = tokenizer.decode(turn.token_ids) == turn.attempt
        except (ValueError, IndexError, OverflowError, TypeError):
            same = False
        if not same:
            raise DataError("The stored tokens are not those of this model's tokenizer.", value=turn.attempt,
                            fix="Go on with the base model that the dialogue was played with.")  # fmt: skip
        return turn.token_ids, turn.logprobs or (0.0,) * len(turn.token_ids)

    def _judge_end(self, dialogue: Played) -> None:
        """End the dialogue where its last attempt, or the number of them, does."""
        last = dialogue.turn >= dialogue.limit
        if dialogue.right and (last or self.engine.oracle_stop):
            dialogue.stop = StopReason.SOLVED
        elif last:
            dialogue.stop = StopReason.EXHAUSTED

    def _sort(self, dialogues: Sequence[Played]) -> None:
        """Send what can go on to the student, and the rest home."""
        engine = self.engine
        room = min(engine.config.context_length, engine.backend.context_limit) - self.sampling.max_new_tokens
        for dialogue in dialogues:
            if dialogue.stop is None and len(dialogue.tokens) > room:
                dialogue.stop = StopReason.SOLVED if dialogue.right else StopReason.TRUNCATED
        ended = {id(d): d for d in dialogues if d.stop is not None}
        if ended:
            self.session.leave(d.key for d in ended.values())
            self.under_way = [d for d in self.under_way if id(d) not in ended]
        speaking: dict[str | None, list[Played]] = {}
        for dialogue in dialogues:
            if dialogue.stop is None:
                speaking.setdefault(dialogue.student.adapter, []).append(dialogue)
        for adapter, live in speaking.items():
            prompts = [Prompt(tuple(d.tokens), turn_seed(d.request.seed, d.turn), d.key) for d in live]
            tickets = self.session.submit(prompts, self.sampling, adapter)
            self.speaking.update(zip(tickets, live, strict=True))

    # -- the student ---------------------------------------------------------------------------------------------
    def _listen_to_students(self) -> list[Played]:
        """Go on with what is being said; the dialogues whose turns are over and that need no teacher aside."""
        while self.session.busy:
            self.session.step()
            if not (self.lockstep and any(ticket.generation is None for ticket in self.speaking)):
                break
        said = [(ticket, ticket.generation) for ticket in self.speaking if ticket.generation is not None]
        done = [(self.speaking.pop(ticket), generation) for ticket, generation in said]
        self._judge(done)
        over = [d for d, _ in done if d.stop is not None]
        return over + self._ask([d for d, _ in done if d.stop is None])

    def _judge(self, said: Sequence[tuple[Played, Generation]]) -> None:
        """Record and judge the students' turns; the environment sees them together first."""
        environment, decode = self.engine.environment, self.engine.backend.tokenizer.decode
        texts = [decode(generation.token_ids) for _, generation in said]
        if said:
            with contextlib.suppress(Exception):  # what is wrong, `verify` says of the one attempt it is wrong with
                environment.prepare([(d.request.task, text) for (d, _), text in zip(said, texts, strict=True)])
        for (dialogue, generation), text in zip(said, texts, strict=True):
            self._attempt(dialogue, generation, text)
            if dialogue.stop is None:
                self._judge_end(dialogue)

    def _attempt(self, dialogue: Played, generation: Generation, text: str) -> None:
        """Record one turn and judge it."""
        try:
            verdict = self.engine.environment.verify(dialogue.request.task, text)
        except Exception as error:  # a verifier must be total; where one is not, the dialogue says so
            verdict = Verdict(correct=False, score=0.0, detail="the verifier failed")
            dialogue.fail(error)
        asked = self.engine.history.version(dialogue.turn)
        turn = judged(dialogue.turns, verdict, self.engine.reward, text, generation.token_ids, generation.logprobs,
                      generation.stop, asked)  # fmt: skip
        dialogue.attempt(turn, generation.token_ids, generation.logprobs)

    # -- the teacher ---------------------------------------------------------------------------------------------
    def _ask(self, dialogues: Sequence[Played]) -> list[Played]:
        """Let the teacher answer and the guard read; the dialogues that have heard it already."""
        requests = [
            FeedbackRequest(d.request.task, tuple(d.turns), d.request.seed, adapter=d.student.adapter,
                            oracle=self.engine.oracle_stop) for d in dialogues
        ]  # fmt: skip
        if self.aside:
            for dialogue, request in zip(dialogues, requests, strict=True):
                self.asked += 1
                self.baton.start(self._ask_aside, dialogue, request)
            return []
        for dialogue, answer in zip(dialogues, self.engine.hints(requests) if requests else (), strict=True):
            dialogue.hear(answer)
        return list(dialogues)

    def _ask_aside(self, dialogue: Played, request: FeedbackRequest) -> None:
        (answer,) = self.engine.hints([request])
        self.answers.append((dialogue, answer))

    def _listen_to_teachers(self, *, rest: bool) -> list[Played]:
        """Let those who are asked aside go on; the dialogues that have been answered.

        `rest` waits for one of them where there is nothing else to do.
        """
        if not self.asked:
            return []
        self.baton.give_way(rest=rest and not self.session.busy and not self.answers)
        answered, self.answers = self.answers, []
        self.asked -= len(answered)
        for dialogue, answer in answered:
            dialogue.hear(answer)
        return [dialogue for dialogue, _ in answered]
