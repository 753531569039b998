"""Control `shuffled`: recorded hints on other problems of the same level, in the words of the student's problem."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl2f_core import registry
from rl2f_core.config.loading import parse_config
from rl2f_core.dialogue.teachers.base import FeedbackRequest, RecordedHint
from rl2f_core.dialogue.teachers.shuffled import RecordedHints, ShuffledTeacher
from rl2f_core.environments.base import CONTENTLESS, Environment, wrap_answer
from rl2f_core.evaluation.counterfactual.fork_points import fork_point_at, match_recorded_hints
from rl2f_core.evaluation.evaluate import EvaluationRunner
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, JsonlSink
from rl2f_core.types import Dialogue, Hint, StopReason, Task, Turn, Verdict

WRONG = Verdict(correct=False, score=0.0)


def environment(name: str, **settings: Any) -> Environment:
    cls: Any = registry.get("environment", name)
    return cls(cls.Config(**settings))


def code(letters: str, answer: str, number: int) -> Task:
    public = {"letters": list(letters), "length": len(answer)}
    level = f"{len(answer)} of {len(letters)} letters"
    return Task(id=f"t{number}", environment="secret_code", split="test", level=level, public=public,
                privileged={"code": " ".join(answer)})  # fmt: skip


def dialogue(task: Task, *hints: str | Hint | None) -> tuple[Task, Dialogue]:
    """A dialogue of wrong attempts with these hints."""
    turns = [
        Turn(index=i, attempt="x", verdict=WRONG, hint=Hint(text=h, teacher="scripted") if isinstance(h, str) else h)
        for i, h in enumerate(hints)
    ]
    return task, Dialogue(id=task.id, task_id=task.id, group=task.id, index=0, turns=tuple(turns),
                          stop_reason=StopReason.EXHAUSTED)  # fmt: skip


def match(recorded: list[tuple[Task, Dialogue]], task: Task, seed: int = 0) -> list[list[str]]:
    """The texts by turn."""
    hints = RecordedHints(environment("secret_code"), recorded, "scripted").match(task, seed)
    return [[hint.text for hint in turn] for turn in hints]


def test_a_shuffled_hint_uses_the_letters_of_the_students_problem() -> None:
    recorded = [dialogue(code("AF", "AAF", 1), "Correct so far: A ? F", "A, not F: first letter.")]
    assert match(recorded, code("BD", "DBB", 2)) == [["Correct so far: B ? D"], ["B, not D: first letter."]]
    assert match(recorded, code("AF", "FFA", 2)) == [["Correct so far: A ? F"], ["A, not F: first letter."]]


def test_a_shuffled_hint_comes_from_the_same_level() -> None:
    other_levels = [dialogue(code("ABC", "AAB", 1), "three letters"), dialogue(code("AB", "AABB", 2), "four places")]
    assert match(other_levels, code("AB", "ABB", 3)) == []
    assert match([*other_levels, dialogue(code("AB", "BAB", 4), "this")], code("AB", "ABB", 3)) == [["this"]]


def test_a_shuffled_hint_comes_from_a_problem_with_another_answer() -> None:
    same_problem = dialogue(code("AB", "ABB", 1), "same problem")
    same_answer_in_other_letters = dialogue(code("CD", "CDD", 2), "same answer")
    assert match([same_problem, same_answer_in_other_letters], code("AB", "ABB", 3)) == []


def test_a_shuffled_hint_comes_from_the_same_turn() -> None:
    recorded = [dialogue(code("AB", "AAB", 1), "first", "second"), dialogue(code("AB", "BAB", 2), "only first")]
    first, second = match(recorded, code("AB", "ABB", 3))
    assert sorted(first) == ["first", "only first"] and second == ["second"]


def test_shuffled_hints_of_consecutive_turns_come_from_one_dialogue() -> None:
    recorded = [
        dialogue(code("AB", answer, i), f"{i}", f"{i}", f"{i}") for i, answer in enumerate(("AAB", "BAB", "BBB"))
    ]
    for seed in range(5):
        first, second, third = match(recorded, code("AB", "ABB", 9), seed)
        assert first == second == third and len(first) == 3


def test_problems_with_the_same_letters_come_first_and_the_choice_depends_on_the_seed_alone() -> None:
    near = [dialogue(code("AB", answer, i), f"near {answer}") for i, answer in enumerate(("AAB", "BAB", "BBB", "BBA"))]
    far = [dialogue(code("CD", "CCD", 9), "far C")]
    chosen = [match([*far, *near], code("AB", "ABB", 8), seed)[0] for seed in range(20)]
    assert all(texts[-1] == "far A" and len(texts) == 5 for texts in chosen)
    assert {texts[0] for texts in chosen} == {"near AAB", "near BAB", "near BBB", "near BBA"}
    assert chosen == [match([*far, *near], code("AB", "ABB", 8), seed)[0] for seed in range(20)]


def test_replaced_messages_and_hints_of_other_teachers_are_not_shuffled() -> None:
    failed = Hint(text=CONTENTLESS, teacher="scripted", error="no connection")
    recorded = [dialogue(code("AB", "AAB", 1), failed), dialogue(code("AB", "BAB", 2), Hint(text="x", teacher="human"))]
    assert match([*recorded, dialogue(code("AB", "BBB", 3), None)], code("AB", "ABB", 4)) == []


def test_people_of_a_puzzle_are_renamed_by_position() -> None:
    puzzles = environment("knights_knaves")
    tasks = [puzzles.task("test", i) for i in range(30)]
    recorded = [dialogue(t, f"Your answer does not fit what {t.public['people'][1]} says.") for t in tasks[1:]]
    (hints,) = RecordedHints(puzzles, recorded, "scripted").match(tasks[0], 3)
    assert {hint.text for hint in hints} == {f"Your answer does not fit what {tasks[0].public['people'][1]} says."}


def test_each_retry_gives_the_next_recorded_hint_and_none_is_an_error() -> None:
    worlds = environment("secret_code")
    task = code("AB", "ABB", 1)
    teacher = ShuffledTeacher(ShuffledTeacher.Config(), worlds)
    recorded = (RecordedHint("one", "t5"), RecordedHint("two", "t6"))
    turns = (Turn(index=0, attempt="x", verdict=WRONG),)
    said = teacher.feedback([FeedbackRequest(task, turns, 0, retry=k, recorded=recorded) for k in range(3)])
    assert [(f.text, f.source_task) for f in said] == [("one", "t5"), ("two", "t6"), ("", None)]
    assert [bool(f.error) for f in said] == [False, False, True]
    assert (
        said[2].error == "No recorded dialogue on another problem of level '3 of 2 letters' has a hint after attempt 1."
    )


def guess(prompt: str, rng: Any) -> str:
    letters = prompt.split("each ")[1].split(".")[0].replace(",", "").replace(" or", "").split()[:2]
    return wrap_answer(" ".join(rng.choice(letters) for _ in range(4)))


def evaluation(**changes: Any) -> EvaluationRunner:
    config: Any = parse_config(
        {
            "kind": "eval",
            "adapters": {"base": None},
            "backend": "fake",
            "environment": {"type": "secret_code", "length": 4, "letters": 2, "pool": 6},
            "rollout": {"max_turns": 3, "max_new_tokens": 60, "max_seq_len": 4096},
            "evaluation": {"num_tasks": 24},
            **changes,
        }
    )
    return EvaluationRunner(config, FakeBackend(script=guess))


def test_shuffled_hints_of_an_evaluation_are_recorded_in_the_same_run() -> None:
    runner = evaluation()
    recorded = runner.evaluate({"base": None}, "hints")
    played = runner.evaluate({"base": None}, "shuffled", recorded)["base"]
    by_id = {task.id: task for task in runner.tasks}
    texts = {d.task_id: [t.hint.text if t.hint else None for t in d.turns] for d in recorded["base"]}
    matched = 0
    for d in played:
        letters = set(by_id[d.task_id].public["letters"])
        for turn in d.turns:
            if turn.hint is None or turn.hint.source_task is None:
                continue
            matched += 1
            shown = turn.hint.text.removeprefix("Correct so far: ").split()
            assert set(shown) <= letters | {"?"}
            source = by_id[turn.hint.source_task]
            names = dict(zip(source.public["letters"], sorted(letters), strict=True))
            original = texts[source.id][turn.index].removeprefix("Correct so far: ").split()
            assert [names.get(word, word) for word in original] == shown
    assert matched > 24
    assert runner.evaluate({"base": None}, "shuffled", recorded)["base"] == played
    unmatched = runner.evaluate({"base": None}, "shuffled")["base"]
    assert {t.hint.text for d in unmatched for t in d.turns if t.hint} == {CONTENTLESS}


def test_a_fork_shuffles_hints_of_the_same_phase_and_checkpoint(tmp_path: Path) -> None:
    worlds = environment("secret_code", length=3, letters=2)
    run_dir = RunDir.create(
        tmp_path / "run",
        parse_config({"environment": "secret_code", "stages": [{"name": "s", "method": "rl2f", "steps": 1}]}),
    )
    pairs = [dialogue(code("AB", answer, i), f"hint {i}", None) for i, answer in enumerate(("AAB", "BAB", "BBB"))]
    events = [
        DialogueEvent.of("evaluation", "evaluation", 0, task, played, checkpoint=checkpoint, condition=condition)
        for (task, played), checkpoint, condition in zip(
            pairs, ("base", "base", "rl@1"), ("contentless", "hints", "hints"), strict=True
        )
    ]
    JsonlSink(run_dir.events_path).emit(events)
    (origin,) = match_recorded_hints([fork_point_at(events[0], 0)], run_dir, worlds, "scripted")
    assert origin.recorded_hints == ((RecordedHint("hint 1", "t1"),), ())


@pytest.mark.parametrize("name", ["knights_knaves", "secret_code", "mixture", "arithmetic"])
def test_hint_names_are_words_of_the_problem(name: str) -> None:
    env = environment(name)
    for index in range(6):
        task = env.task("test", index)
        names = env.hint_names(task)
        assert all(word in env.prompt(task.public) for word in names)
        assert bool(names) == (name in ("knights_knaves", "secret_code") or "letters" in task.public)
