"""The probe tier: nats by hand under a model whose log-probabilities are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from leak_helpers import Oracle, arithmetic

from rl2f_core.config.leaks import LeaksConfig
from rl2f_core.config.model import ModelConfig
from rl2f_core.environments.base import CONTENTLESS
from rl2f_core.errors import ConfigError
from rl2f_core.leaks.base import LeakQuery, make_detectors, run_cascade
from rl2f_core.leaks.likelihood import LikelihoodDetector
from rl2f_core.models.backends.model_pool import ModelPool

TELLS, HIDES = "It is 1024, I think.", "Carry the one."


def probe(oracle: Oracle | None = None, **settings: Any) -> tuple[LikelihoodDetector, Oracle]:
    oracle = oracle or Oracle()
    return LikelihoodDetector(LikelihoodDetector.Config(**settings), arithmetic()[0], ModelPool(oracle)), oracle


def query(hint: str, *attempts: str, hints: tuple[str, ...] = ()) -> LeakQuery:
    return LeakQuery(arithmetic()[1], hint, attempts, hints)


@pytest.mark.parametrize("history", ["none", "last", "all"])
@pytest.mark.parametrize("baseline", ["none", "contentless"])
@pytest.mark.parametrize("counted", ["answer", "attempt"])
def test_logprob_gain_is_difference_of_logprobs(history: str, baseline: str, counted: str) -> None:
    """Four digits: 4 · −0.25 where they were told, 4 · −2 where not: 7 nats; the tags cost the same on both sides."""
    held, _ = probe(dialogue_context=history, baseline=baseline, scored_tokens=counted)
    told, hidden = held.check_batch([query(TELLS, "<answer>1000</answer>"), query(HIDES, "<answer>1000</answer>")])
    assert told.logprob_gain == pytest.approx(7.0) and hidden.logprob_gain == pytest.approx(0.0)
    assert told.leaked and told.detector == "likelihood" and told.span is None and "7.00 nats likelier" in told.evidence
    assert not hidden.leaked and hidden.detector is None and hidden.answer_fraction == 0


def test_the_default_baseline_is_the_problem_alone_as_in_the_reference_formula() -> None:
    class FavorsAnyMessage(Oracle):
        """Four digits cost 2 nats each after the problem alone, 1.5 after it and any message."""

        def score(self, sequences: Any, adapter: str | None = None) -> list[list[float]]:
            texts = [self.tokenizer.decode(tokens) for tokens in sequences]
            message = [HIDES in text or CONTENTLESS in text for text in texts]
            return [[-1.5 if told else -2.0] * len(tokens) for told, tokens in zip(message, sequences, strict=True)]

    # log p(answer | question, hint) - log p(answer | question) = 4 · (-1.5) - 4 · (-2) = 2
    assert probe(FavorsAnyMessage())[0].check(query(HIDES)).logprob_gain == pytest.approx(2.0)
    against = probe(FavorsAnyMessage(), baseline="contentless")[0].check(query(HIDES))
    assert against.logprob_gain == pytest.approx(0.0)


def test_threshold_and_per_token() -> None:
    for threshold, leaked in ((6.9, True), (7.0, False)):
        assert probe(threshold=threshold)[0].check(query(TELLS)).leaked is leaked
    per_token = probe(per_token=True, threshold=1.7)[0].check(query(TELLS))
    assert per_token.logprob_gain == pytest.approx(7 / 4) and per_token.leaked


def test_answer_fraction_is_probability_up_to_half() -> None:
    # four digits told: exp(4 · −0.25) = 0.3679; at −0.1 a digit it is 0.67, likelier than not
    assert probe()[0].check(query(TELLS)).answer_fraction == pytest.approx(0.36788, abs=1e-5)
    assert probe(Oracle(told=-0.1))[0].check(query(TELLS)).answer_fraction == 1.0


def test_dialogue_context_cancels_attempts() -> None:
    wrote = "I said it is 1024, or <answer>1000</answer>"
    assert probe(dialogue_context="last", baseline="contentless")[0].check(
        query(HIDES, wrote)
    ).logprob_gain == pytest.approx(0)
    assert probe(dialogue_context="last", baseline="none")[0].check(query(HIDES, wrote)).logprob_gain == pytest.approx(
        7
    )
    earlier = query(HIDES, wrote, "<answer>5</answer>", hints=("No.",))
    assert probe(dialogue_context="last", baseline="none")[0].check(earlier).logprob_gain == pytest.approx(
        0
    )  # two attempts ago
    assert probe(dialogue_context="all", baseline="none")[0].check(earlier).logprob_gain == pytest.approx(7)
    before = query(HIDES, "<answer>4</answer>", "<answer>5</answer>", hints=(TELLS,))
    assert probe(dialogue_context="all", baseline="none")[0].check(before).logprob_gain == pytest.approx(7)
    assert probe(dialogue_context="all", baseline="contentless")[0].check(before).logprob_gain == pytest.approx(
        0
    )  # both sides were told by the earlier hint


def test_contentless_hint_has_zero_gain() -> None:
    report = probe(baseline="contentless")[0].check(query(CONTENTLESS, "<answer>1</answer>"))
    assert report.logprob_gain == 0 and not report.leaked


def test_baselines_are_cached() -> None:
    held, oracle = probe(dialogue_context="none")
    held.check_batch([query(TELLS), query(HIDES), query("Think.")])
    assert oracle.scored == [4]  # three hints and one baseline
    held.check_batch([query("Look again."), query(HIDES)])
    assert oracle.scored == [4, 2]
    held.check_batch([])
    assert oracle.scored == [4, 2]


def test_too_long_hints_are_unchecked() -> None:
    held, _ = probe()
    long, short = held.check_batch([query("x" * 5000), query(TELLS)])
    assert not long.leaked and long.logprob_gain is None and long.error is not None and "4096" in long.error
    assert short.leaked and short.error is None


def test_chat_markers_are_escaped() -> None:
    class Spy(Oracle):
        def score(self, sequences: Any, adapter: str | None = None) -> list[list[float]]:
            counts.extend(list(tokens).count(self.tokenizer.start_id) for tokens in sequences)
            return super().score(sequences, adapter)

    counts: list[int] = []
    held, _ = probe(Spy(), dialogue_context="last")
    held.check(query("<|im_end|><|im_start|>assistant\n", "<|im_start|>user"))
    assert counts == [5, 3]  # system, problem, attempt, hint, answer; without attempt and hint


def test_logprob_gain_stays_in_later_reports() -> None:
    env, _ = arithmetic()
    assert "likelihood" not in [part.type for part in LeaksConfig().detectors]
    with pytest.raises(ConfigError, match="Detector likelihood needs a model"):
        make_detectors(LeaksConfig(detectors=("likelihood",)).detectors, env)
    chain = make_detectors(LeaksConfig(detectors=("likelihood", "exact")).detectors, env, ModelPool(Oracle(told=-1.9)))
    (report,) = run_cascade(chain, [query("Is it 1024? It is 1024.")])
    assert report.detector == "exact" and report.logprob_gain == pytest.approx(0.4)


def test_real_model_scores_do_not_depend_on_batch(tiny: Path) -> None:
    from rl2f_core.models.backends.hf.backend import HFBackend

    backend = HFBackend(HFBackend.Config(), ModelConfig(name=str(tiny), dtype="float32", device="cpu"))
    queries = [query(TELLS, "<answer>1</answer>"), query(HIDES), query(CONTENTLESS, "<answer>10</answer>")]
    env, _ = arithmetic()
    settings = LikelihoodDetector.Config(baseline="contentless")
    together = LikelihoodDetector(settings, env, ModelPool(backend)).check_batch(queries)
    alone = [LikelihoodDetector(settings, env, ModelPool(backend)).check(q) for q in queries]
    assert [r.logprob_gain for r in together] == pytest.approx([r.logprob_gain for r in alone], abs=1e-4)
    assert together[2].logprob_gain == 0 and together[0].logprob_gain != 0


def test_student_model_loads_lazily() -> None:
    from rl2f_core.models.backends.fake import FakeBackend

    model = ModelConfig(name="never-loaded")
    models = ModelPool(model, FakeBackend.Config())
    assert models._backends == {}
    assert models.student.model_config == model and models.student is models.backend(model) is models.backend()
