"""Dialogues of student and teacher: hints, rollouts, stored rows, metrics."""
