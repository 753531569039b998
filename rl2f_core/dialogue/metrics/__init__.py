"""Metrics of dialogues, of what teachers cost, and the constant baseline."""
