"""The guard: what a leaking hint leads to, under every action."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import pytest
from leak_helpers import arithmetic

from rl2f_core.config.fields import BaseConfig
from rl2f_core.config.leaks import LeaksConfig
from rl2f_core.dialogue.rollout.leak_guard import MAX_REDACTIONS, REDACTED, LeakGuard
from rl2f_core.dialogue.teachers.base import Feedback, FeedbackRequest
from rl2f_core.environments.base import CONTENTLESS, wrap_answer
from rl2f_core.leaks.base import LeakDetector, LeakQuery, make_detectors
from rl2f_core.types import Hint, LeakReport, Turn, Usage


class Spy:
    """A teacher that says the given texts in turn for each task, and remembers the requests."""

    def __init__(self, *texts: str | Feedback) -> None:
        self.texts = texts
        self.asked: list[list[FeedbackRequest]] = []

    def __call__(self, requests: Sequence[FeedbackRequest]) -> list[Feedback]:
        self.asked.append(list(requests))
        said = self.texts[len(self.asked) - 1]
        return [said if isinstance(said, Feedback) else Feedback(said) for _ in requests]


def request(attempt: str = "<answer>1000</answer>", hint: str | None = None, retry: int = 0) -> FeedbackRequest:
    env, task = arithmetic()
    first = Turn(index=0, attempt=attempt, verdict=env.verify(task, attempt))
    if hint is None:
        return FeedbackRequest(task, (first,), seed=5, retry=retry)
    told = first.model_copy(update={"hint": Hint(text=hint, teacher="scripted")})
    return FeedbackRequest(task, (told, first.model_copy(update={"index": 1})), seed=5, retry=retry)


def guard(
    action: Literal["flag", "redact", "resample", "drop"], tries: int = 3, detector: str = "mentions"
) -> LeakGuard:
    config = LeaksConfig.model_validate({"action": action, "max_resamples": tries, "detectors": [detector]})
    return LeakGuard.from_config(config, arithmetic()[0])


def read(held: LeakGuard, *texts: str | Feedback, resample: Callable | None = None):
    feedbacks = [text if isinstance(text, Feedback) else Feedback(text) for text in texts]
    return held.screen([request() for _ in texts], feedbacks, "scripted", resample or Spy())


@pytest.mark.parametrize("action", ["flag", "redact", "resample", "drop"])
def test_a_clean_hint_passes_every_action_unchanged(action):
    (answer,) = read(guard(action), Feedback("Too low.", source_task="arithmetic/test/9"))
    assert answer.hint == Hint(
        text="Too low.", teacher="scripted", leak=LeakReport(leaked=False), source_task="arithmetic/test/9"
    )
    assert not answer.drop and answer.error is None


@pytest.mark.parametrize("action", ["flag", "redact", "resample", "drop"])
def test_report_covers_raw_message_and_names_action(action):
    (answer,) = read(guard(action), "It is 1,024!", resample=Spy("Too low."))
    assert answer.hint.leak is not None and answer.hint.leak.action == action
    assert answer.hint.leak.detector == "mentions" and answer.hint.leak.span == (6, 11)
    assert answer.hint.feedback == "It is 1,024!" and answer.hint.is_replaced == (action != "flag")


def test_flag_keeps_message():
    (answer,) = read(guard("flag"), "It is 1024.")
    assert answer.hint.text == "It is 1024." and not answer.drop


def test_drop_ends_dialogue_and_stores_message():
    clean, leaking = read(guard("drop"), "Too low.", "It is 1024.")
    assert (clean.drop, leaking.drop) == (False, True)
    assert leaking.hint.text == "" and leaking.hint.feedback == "It is 1024."


def test_redact_replaces_all_spans():
    (answer,) = read(guard("redact"), "It is 1024, that is 1,024, or 10 + 1014, or 1024.0.")
    assert answer.hint.text == f"It is {REDACTED}, that is {REDACTED}, or {REDACTED}, or {REDACTED}."
    assert answer.hint.leak is not None and answer.hint.leak.span is not None


def test_redact_keeps_visible_values():
    env, task = arithmetic("What is 85 + 0?", "85")
    held = LeakGuard(make_detectors(LeaksConfig().detectors, env), "redact", 3, env)
    turn = Turn(index=0, attempt=wrap_answer("80"), verdict=env.verify(task, wrap_answer("80")))
    (answer,) = held.screen(
        [FeedbackRequest(task, (turn,), 0)], [Feedback("Look at 85 + 0 again: the answer is 85.")], "llm", Spy()
    )
    assert answer.hint.text == f"Look at 85 + 0 again: the answer is {REDACTED}."


def test_redact_falls_back_after_max_redactions():
    (some,) = read(guard("redact", detector="exact"), "1024 " * (MAX_REDACTIONS - 1))
    assert some.hint.text == f"{REDACTED} " * (MAX_REDACTIONS - 1)
    (many,) = read(guard("redact", detector="exact"), "1024 " * (MAX_REDACTIONS + 1))
    assert many.hint.text == CONTENTLESS and many.hint.feedback == "1024 " * (MAX_REDACTIONS + 1)


class Wordless(LeakDetector):
    """Convicts without saying where."""

    class Config(BaseConfig):
        """No options."""

        type: Literal["wordless"] = "wordless"

    def check(self, query: LeakQuery) -> LeakReport:
        return LeakReport(leaked="secret" in query.hint, detector=self.name)


def test_redact_without_a_span_becomes_contentless():
    env, _ = arithmetic()
    held = LeakGuard([Wordless(Wordless.Config(), env)], "redact", 3, env)
    (answer,) = read(held, "a secret")
    assert answer.hint.text == CONTENTLESS and answer.hint.feedback == "a secret"


def test_resample_until_clean():
    spy = Spy("Still 1024.", Feedback("Too low.", source_task="arithmetic/test/9"), "never asked for")
    (answer,) = read(guard("resample"), "It is 1024.", resample=spy)
    assert [[r.retry for r in asked] for asked in spy.asked] == [[1], [2]]
    assert len(spy.asked) == 2 and answer.hint.text == "Too low." and answer.hint.feedback == "It is 1024."
    assert answer.hint.source_task == "arithmetic/test/9"
    assert answer.hint.leak is not None and answer.hint.leak.leaked and answer.hint.leak.span == (6, 10)


@pytest.mark.parametrize("tries", [1, 3])
def test_resample_stops_after_max_resamples(tries: int):
    spy = Spy(*["1024"] * 10)
    (answer,) = read(guard("resample", tries), "It is 1024.", resample=spy)
    assert len(spy.asked) == tries
    assert answer.hint.text == CONTENTLESS and answer.hint.feedback == "It is 1024." and answer.error is None


def test_resample_continues_retry_count():
    spy = Spy("1024", "Too low.")
    guard("resample").screen([request(retry=4)], [Feedback("1024")], "scripted", spy)
    assert [[r.retry for r in asked] for asked in spy.asked] == [[5], [6]]


def test_resample_batches_leaking_hints_in_order():
    spy = Spy("Second try.")
    texts = [answer.hint.text for answer in read(guard("resample"), "one", "1024", "two", "1,024", resample=spy)]
    assert texts == ["one", "Second try.", "two", "Second try."]
    assert [len(asked) for asked in spy.asked] == [2]


@pytest.mark.parametrize("action", ["flag", "redact", "resample", "drop"])
def test_failed_messages_are_replaced(action):
    (answer,) = read(guard(action), Feedback("Traceback: the answer is 1024", source_task="x", error="timeout"))
    assert answer.hint == Hint(text=CONTENTLESS, teacher="scripted", error="timeout")
    assert answer.error == "timeout" and not answer.drop and not answer.fail
    (ended,) = read(guard(action), Feedback("Traceback: the answer is 1024", error="timeout", ends_dialogue=True))
    assert ended.hint == Hint(text="", teacher="scripted", error="timeout") and ended.fail and not ended.drop


def test_resample_error_is_stored_with_contentless_hint():
    spy = Spy(Feedback("junk 1024", error="timeout"), "Too low.")
    (answer,) = read(guard("resample"), "It is 1024.", resample=spy)
    assert answer.hint.text == CONTENTLESS and answer.error == "timeout" and len(spy.asked) == 1
    assert answer.hint.feedback == "It is 1024." and answer.hint.error == "timeout"


def test_resampled_hint_sums_usage_and_names_final_prompt():
    first = Feedback("It is 1024.", prompt="a@1", usage=Usage(completion_tokens=3, cost=0.5, requests=1))
    spy = Spy(Feedback("Too low.", prompt="b@2", usage=Usage(completion_tokens=4, cost=0.25, requests=2)))
    (answer,) = read(guard("resample"), first, resample=spy)
    assert (answer.hint.text, answer.hint.prompt_template, answer.hint.error) == ("Too low.", "b@2", None)
    assert answer.hint.usage == Usage(completion_tokens=7, cost=0.75, requests=3)


def test_no_detectors_no_report():
    held = LeakGuard.from_config(LeaksConfig(detectors=(), action="drop"), arithmetic()[0])
    (answer,) = read(held, "It is 1024.")
    assert answer.hint == Hint(text="It is 1024.", teacher="scripted") and not answer.drop


def test_queries_contain_the_whole_dialogue():
    held = guard("flag")
    shown = request("I had 1024, no: <answer>1000</answer>", hint="Too low.")
    fresh = request(hint="Think of 1024.")
    answers = held.screen([shown, fresh], [Feedback("Check your 1024.")] * 2, "llm", Spy())
    assert [answer.hint.leak.leaked for answer in answers if answer.hint.leak] == [False, True]
    assert [answer.hint.teacher for answer in answers] == ["llm", "llm"]


def test_each_request_needs_its_feedback():
    with pytest.raises(ValueError, match="shorter"):
        guard("flag").screen([request(), request()], [Feedback("one")], "scripted", Spy())
