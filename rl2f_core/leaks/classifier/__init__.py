"""Detector `classifier`: a small language model that was trained on labeled hints."""

from rl2f_core.leaks.classifier.detector import ClassifierDetector

__all__ = ["ClassifierDetector"]
