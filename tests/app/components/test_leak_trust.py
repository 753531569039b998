"""Detector cards as elements."""

from __future__ import annotations

from app.components.elements.leak_trust import UNMEASURED, card_table
from app.endpoints.leaks.detector_cards import CardRow, DetectorCard
from rl2f_core.common.stats.intervals import Interval


def test_a_card_without_figures_is_one_sentence_and_one_with_figures_a_table() -> None:
    unknown = CardRow(name="labels of this workspace")
    known = CardRow(name="real tutors", hints=842, precision=Interval(value=0.88, low=0.8, high=0.93, n=300))
    assert UNMEASURED in str(card_table(DetectorCard(detector="mentions", rows=[unknown, unknown])))
    shown = str(card_table(DetectorCard(detector="mentions", rows=[known, unknown])))
    assert UNMEASURED not in shown and ".88" in shown and "unknown here" in shown
